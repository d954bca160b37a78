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


def write(root: Path, texts: list[str]) -> None:
    """A book with a chapter for each of these texts of nulls."""
    for folder in ("book/notebooks", "tests/nulls"):
        (root / folder).mkdir(parents=True)
    for number, text in enumerate(texts, start=1):
        (root / "book" / f"0{number}-small.md").write_text(CHAPTER)
        (root / "tests" / "nulls" / f"0{number}-small.py").write_text(text)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a null runs in a fork")
def test_claims_are_tried_under_their_nulls(tmp_path: Path) -> None:
    """A function of the chapter reads the null's value, and the chapter its own.

    An error can be expected. A claim that does not fail is named.
    """
    expected = ONE.replace("half = 2", "# raises: TypeError\nhalf = 'two'")
    claim, null, code = ONE.splitlines(keepends=True)  # three nulls of one claim
    codes = [code.replace("2", half) for half in ("0.9", "1 / 0", "'two'")]
    wrong = claim + null + null.join(codes)
    write(tmp_path, [HALF + ONE + expected, HALF + wrong])
    command = [sys.executable, ROOT / "tools" / "nulls.py", "--root", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    for line, begins in zip(
        done.stdout.splitlines(),
        [
            "01-small: 3 nulls, 0 problems",
            "02-small: 4 nulls, 3 problems",
            "  passes under 'all': It is no more …",
            "  the null raises ZeroDivisionError",
            "  the claim raises TypeError",
        ],
        strict=True,
    ):
        assert line.startswith(begins)


def test_a_claim_that_hangs_on_its_seed_is_listed(tmp_path: Path) -> None:
    draws = [
        "import torch\n\ntorch.manual_seed(0)\nfirst = torch.rand(1)",
        "generator = torch.Generator()\ngenerator.manual_seed(0)\n"
        "second = torch.rand(1, generator=generator)",
    ]
    claims = [
        "# They are equal.\nassert first == second",
        "# It is the seed's.\nassert round(first.item(), 3) == 0.496",
    ]
    write(tmp_path, [""])
    text = HEADER + "".join(map(cell, draws))
    text += "".join(cell(claim, tag="claim") for claim in claims)
    (tmp_path / "book" / "01-small.md").write_text(text)
    command = [sys.executable, ROOT / "tools" / "nulls.py", "--root", tmp_path]
    done = subprocess.run([*command, "--seeds", "7"], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "01-small: 1 of 2 claims do not hold",
        "  # It is the seed's. … | assert round(first.item(), 3) == 0.496",
    ]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a null runs in a fork")
def test_a_claim_that_is_no_python_is_reported() -> None:
    null = nulls.Null("It is", "chance", "AssertionError", "")
    found, where = nulls.in_fork(null, "# It is.\nassert (", {})
    assert found.startswith("the claim raises SyntaxError")
    assert where == ""


def test_claims_and_nulls_are_matched(tmp_path: Path, capsys) -> None:
    texts = [
        HALF,
        HALF + ONE + HALF.replace("a half", "a third"),
        HALF + ONE.replace(" no more", ""),
        HALF + ONE,
    ]
    write(tmp_path, texts)
    check = ["--root", str(tmp_path), "--check"]
    assert nulls.main(check) == 1
    assert capsys.readouterr().out.splitlines() == [
        "01-small: 1 nulls, 1 problems",
        "  no null for: It is no more than one.",
        "02-small: 3 nulls, 1 problems",
        "  0 claims begin with: It is a third",
        "03-small: 2 nulls, 1 problems",
        "  2 claims begin with: It is",
        "04-small: 2 nulls, 0 problems",
    ]
    assert nulls.main([*check, "04-small"]) == 0


@pytest.mark.parametrize("chapter", chapters(ROOT), ids=lambda chapter: chapter.stem)
def test_every_claim_has_a_null(chapter: Path) -> None:
    assert nulls.unmatched(ROOT, chapter) == []
