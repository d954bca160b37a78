import pytest
import torch
from hypothesis import settings

settings.register_profile("book", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("book")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
