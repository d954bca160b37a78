import gc
import os
import sys

import pytest
from hypothesis import settings

settings.register_profile("book", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("book")
os.environ["MPLBACKEND"] = "agg"  # no window is opened for a figure


@pytest.fixture(autouse=True)
def seeded() -> None:
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


def pytest_collection_finish() -> None:
    gc.freeze()  # collections pass over what was imported
    gc.set_threshold(20_000, 20)


# The package is imported inside fixtures: here it would be loaded before the checker of
# shapes is in place, and by the process that only hands tests to others.


@pytest.fixture(scope="session")
def browser():
    """The Chromium in which pages are read."""
    from playwright.sync_api import sync_playwright

    from tools.browser import find

    if (path := find()) is None:
        pytest.fail("there is no Chromium here: run `python tools/browser.py`")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox"]
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A folder with sentences of the phrasebook; do not write into it."""
    from small_runs import write_corpus

    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def dataset(corpus):
    """What the small runs are trained on."""
    from small_runs import load_dataset

    return load_dataset(corpus)


@pytest.fixture(scope="session")
def whole_run(dataset, tmp_path_factory):
    """The folder of a small run that nothing disturbed; do not write into it."""
    from small_runs import run_steps

    folder = tmp_path_factory.mktemp("whole") / "run"
    _, reported = run_steps(dataset, folder)
    assert reported == []
    return folder


@pytest.fixture(scope="session")
def book(tmp_path_factory):
    """A text of a hundred lines; do not write into it."""
    from transformer.phrasebook.grammar import sample_pairs

    path = tmp_path_factory.mktemp("text") / "book.txt"
    lines = [" ".join(pair.english) for pair in sample_pairs(100, seed=0)]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path
