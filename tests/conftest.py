import pytest
import torch
from hypothesis import Phase, settings

settings.register_profile("book", deadline=None, max_examples=40, derandomize=True)
settings.register_profile(  # tools/mutants.py: to know that a test fails is enough
    "mutants",
    settings.get_profile("book"),
    phases=(Phase.explicit, Phase.generate),
    report_multiple_bugs=False,
)
settings.load_profile("book")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
