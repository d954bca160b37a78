"""Is a claim that cannot fail found, and has each claim of the book its null?"""

import os
import subprocess
import sys
from pathlib import Path

import nulls
import pytest
from chapters import chapters
from test_tangle import HEADER, cell

ROOT = Path(__file__).resolve().parent.parent
CHAPTER = (
    HEADER
    + cell("half = 0.5\n\ndef share():\n    return half", tag="setup")
    + cell("# It is a half.\nassert share() == 0.5", tag="claim")
    + cell("# It is\n# no more than one.\nassert share() <= 1", tag="claim")
    + cell("assert half == 0.5, 'a null leaves the chapter alone'")
)
HALF = "# %% claim: It is a half\n# null: chance\nhalf = 0.4\n"
ONE = "# %% claim: It is no more\n# null: all\nhalf = 2\n"


def found(root: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """What the tool makes of a chapter with these nulls."""
    for folder in ("book/notebooks", "tests/nulls"):
        (root / folder).mkdir(parents=True)
    (root / "book" / "01-small.md").write_text(CHAPTER)
    (root / "tests" / "nulls" / "01-small.py").write_text(text)
    command = [sys.executable, ROOT / "tools" / "nulls.py", "--root", root, *options]
    return subprocess.run(command, capture_output=True, text=True)


pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="a null runs in a fork")


def test_claims_that_fail_under_their_nulls(tmp_path: Path) -> None:
    """A function of the chapter reads the null's value, and the chapter its own."""
    done = found(tmp_path, HALF + ONE)
    assert (done.returncode, done.stdout) == (0, "01-small: 2 nulls, 0 problems\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (HALF, "no null for: It is no more than one."),
        (
            HALF + ONE + HALF.replace("a half", "a third"),
            "0 claims begin with: It is a",
        ),
        (HALF + ONE.replace(" no more", ""), "2 claims begin with: It is"),
    ],
)
def test_claims_and_nulls_are_matched(tmp_path: Path, text: str, problem: str) -> None:
    done = found(tmp_path, text, "--check")
    assert done.returncode == 1
    assert f"  {problem}" in done.stdout


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (HALF + ONE.replace("2", "0.9"), "passes under 'all': It is no more …"),
        (HALF + ONE.replace("2", "1 / 0"), "the null raises ZeroDivisionError"),
        (HALF + ONE.replace("2", "'two'"), "the claim raises TypeError"),
    ],
)
def test_a_claim_that_does_not_fail_is_named(
    tmp_path: Path, text: str, problem: str
) -> None:
    done = found(tmp_path, text)
    assert done.returncode == 1
    assert f"  {problem}" in done.stdout


def test_an_error_can_be_expected(tmp_path: Path) -> None:
    text = ONE.replace("half = 2", "# raises: TypeError\nhalf = 'two'")
    assert found(tmp_path, HALF + text).returncode == 0


@pytest.mark.parametrize("chapter", chapters(ROOT), ids=lambda chapter: chapter.stem)
def test_every_claim_has_a_null(chapter: Path) -> None:
    assert nulls.unmatched(ROOT, chapter) == []
