import dataclasses

import pytest
import torch
from hypothesis import settings

settings.register_profile("book", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("book")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


# The package is imported inside fixtures: here it would be loaded before the checker of
# shapes is in place.


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Sentences of the phrasebook, as files."""
    from small_runs import write_corpus

    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def lessons(corpus):
    """What the small trainings learn from."""
    from small_runs import SMALL

    from transformer.translation import prepare

    return prepare(corpus, SMALL, "fr", "en")


@pytest.fixture(scope="module")
def learned(lessons, tmp_path_factory):
    """A small run, kept."""
    from small_runs import SMALL, partly

    folder = tmp_path_factory.mktemp("learned")
    partly(lessons, folder, settings=dataclasses.replace(SMALL, epochs=2))
    return folder
