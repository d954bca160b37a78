"""Break a small book on purpose, and see each break caught by the tool that must."""

import base64
import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import notebooks
import pytest
from test_tangle import HEADER, Done, cell

ROOT = Path(__file__).resolve().parent.parent
CHAPTER = (
    HEADER
    + cell("x = 3", tag="setup")
    + cell("print(f'{x / 7:.3f}')", tag="printed")
    + "```{code-cell} ipython3\n---\nmystnb:\n  figure:\n    name: fig-a\n"
    + "    caption: Keys in no order.\ntags: [drawn]\n---\n'a figure'\n```\n\n"
    + cell("assert x > 2", tag="claim")
)


def tool(root: Path, *arguments: str) -> Done:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = notebooks.main(["--root", str(root), *arguments])
        except SystemExit as left:
            code = left.code
    return Done(code, out.getvalue(), err.getvalue())


def nbval(root: Path) -> subprocess.CompletedProcess[str]:
    sanitize = ROOT / "tests" / "nbval_sanitize.cfg"
    command = [sys.executable, "-m", "pytest", "--nbval", "-p", "no:cacheprovider"]
    # The installing cell finds this one, and need not import torch.
    (stored(root).parent / "bookkit.py").touch()
    return subprocess.run(
        [*command, "--nbval-sanitize-with", str(sanitize), "book/notebooks"],
        cwd=root,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The texts of a small book that is in step."""
    root = tmp_path_factory.mktemp("whole")
    (root / "book").mkdir()
    (root / "book" / "03-small.md").write_text(CHAPTER)
    assert tool(root, "write").returncode == 0
    notebook = (root / "book" / "notebooks" / "03-small.ipynb").read_text()
    return {"chapter": CHAPTER, "notebook": notebook}


@pytest.fixture
def book(tmp_path: Path, whole: dict[str, str]) -> Path:
    (tmp_path / "book" / "notebooks").mkdir(parents=True)
    (tmp_path / "book" / "03-small.md").write_text(whole["chapter"])
    stored(tmp_path).write_text(whole["notebook"])
    return tmp_path


def stored(root: Path) -> Path:
    return root / "book" / "notebooks" / "03-small.ipynb"


def change(root: Path, edit) -> None:
    notebook = json.loads(stored(root).read_text())
    edit(notebook)
    stored(root).write_text(json.dumps(notebook))


def test_a_book_in_step_passes(book: Path) -> None:
    assert tool(book, "check").returncode == 0


def test_writing_again_runs_nothing_and_changes_nothing(book: Path) -> None:
    before = stored(book).read_bytes()
    result = tool(book, "write")
    assert result.stdout == ""
    assert stored(book).read_bytes() == before


def test_running_everything_anew_changes_nothing_either(book: Path) -> None:
    before = stored(book).read_bytes()
    result = tool(book, "write", "--all")
    assert "03-small" in result.stdout
    assert stored(book).read_bytes() == before


def test_an_edit_leaves_the_ids_of_other_cells_alone(book: Path) -> None:
    def ids() -> list[str]:
        return [c["id"] for c in json.loads(stored(book).read_text())["cells"]]

    before = ids()
    chapter = book / "book" / "03-small.md"
    chapter.write_text(CHAPTER.replace("x > 2", "x > 1"))
    assert tool(book, "write").returncode == 0
    assert ids()[:-1] == before[:-1]
    assert ids()[-1] != before[-1]


def test_a_notebook_installs_what_it_needs_and_the_page_does_not(book: Path) -> None:
    first, second, *_ = (
        c for c in json.loads(stored(book).read_text())["cells"] if "outputs" in c
    )
    assert "".join(first["source"]) == notebooks.INSTALL
    assert second["execution_count"] == 1
    assert tool(book, "seed").returncode == 0
    (cached,) = (book / "_build" / ".jupyter_cache").rglob("base.ipynb")
    assert "pip install" not in cached.read_text()
    change(book, lambda notebook: notebook["cells"].pop(1))
    assert "other words" in tool(book, "check").stderr
    before = stored(book).read_text()
    assert "new words only" in tool(book, "write").stdout
    assert before != stored(book).read_text()
    assert tool(book, "check").returncode == 0


def test_a_chapter_edited_and_not_run_is_caught(book: Path) -> None:
    chapter = book / "book" / "03-small.md"
    for old, new in (("x = 3", "x = 4"), ("x > 2", "x > 1"), ("claim", "c")):
        chapter.write_text(CHAPTER.replace(old, new))
        result = tool(book, "check")
        assert result.returncode == 1
        assert "03-small.md was edited and not run again" in result.stderr


def test_new_words_are_caught_and_written_without_a_run(book: Path) -> None:
    change(book, lambda notebook: notebook["cells"][3]["outputs"][0].update(text="7\n"))
    (book / "book" / "03-small.md").write_text(CHAPTER.replace("A chapter", "Another"))
    result = tool(book, "check")
    assert result.returncode == 1
    assert "03-small.md has other words than its notebook" in result.stderr
    assert tool(book, "write").returncode == 0
    assert tool(book, "check").returncode == 0
    heading, _, _, printed, *_ = json.loads(stored(book).read_text())["cells"]
    assert heading["source"] == ["# Another"]
    assert printed["outputs"][0]["text"] == ["7\n"]  # the old run's


MARKED = """\
(ch-marked)=
# Marked

Half of it is {glue:text}`marked-half`; see {numref}`fig-marked-a` and
{numref}`fig-marked-b`, {eq}`eq-marked-sum`, {ref}`ch-small` and
{ref}`the claim <ch-small>`, {cite}`one2001,three2003` or {cite:t}`one2001`, and the
{term}`query <queries>`.

$$
a + b
$$ (eq-marked-sum)

```{diagram} figures/a.svg
:name: fig-marked-b
:alt: Two boxes.
Boxes of {glue:text}`marked-half`.
```

```{margin} Why?
Because.
```

```{live} Try it
:state: s=Jane
:show: row
See {ref}`ch-small`.
```

`````{exercise-start} Try it
:label: ex-marked-try
`````

"""
WORKS = """\
@misc{one2001, author = {Velič, Ana}, title = {One}, year = {2001}, url = {https://a.b}}
@misc{three2003, author = {A, B and C, D and E, F}, title = {Three}, year = {2003}}
"""


def test_a_notebook_can_be_read_without_sphinx(book: Path) -> None:
    folder = book / "book"
    (folder / "figures").mkdir()
    drawing = '<svg viewBox="0 0 9 9"><path d="M0 0h9"/></svg>'
    (folder / "figures" / "a.svg").write_text(drawing)
    (folder / "references.bib").write_text(WORKS)
    small = CHAPTER.replace("# A chapter", "(ch-small)=\n# A small chapter")
    (folder / "03-small.md").write_text(small)
    glue = "from myst_nb import glue\n\nglue('marked-half', '0.50', display=False)"
    figure = (
        cell("x = 3", tag="a")
        + CHAPTER[CHAPTER.index("```{code-cell} ipython3\n---") :]
    )
    (folder / "04-marked.md").write_text(
        HEADER.replace("# A chapter\n", MARKED)
        + cell(glue, tag="remove-cell")
        + figure.replace("fig-a", "fig-marked-a")
    )
    assert tool(book, "write").returncode == 0
    notebook = json.loads((folder / "notebooks" / "04-marked.ipynb").read_text())
    words = ["".join(c["source"]) for c in notebook["cells"] if "outputs" not in c]
    assert words[0].startswith("# Marked\n\nHalf of it is 0.50; see Figure 2 and\n")
    for said in (
        "Figure 1, (1), [A small chapter](03-small.ipynb) and\n",
        "[the claim](03-small.ipynb), ([Velič, 2001](https://a.b); A et al., 2003) or "
        "[Velič (2001)](https://a.b)",
        "the\nquery.",
        "$$\na + b\n\\tag{1}\n$$",
        "![Two boxes.](attachment:a.svg)\n\n**Figure 1.** Boxes of 0.50.",
        "> **Why?** Because.",
        "> **Try it.** See [A small chapter](03-small.ipynb). (On the book's page the "
        "model runs here.",
        "### Exercise: Try it",
    ):
        assert said in words[0]
    assert words[1] == "**Figure 2.** Keys in no order."
    (picture,) = notebook["cells"][0]["attachments"]["a.svg"].values()
    assert 'viewBox="0 0 9 9"' in base64.b64decode("".join(picture)).decode()
    assert tool(book, "check").returncode == 0


def test_a_notebook_never_run_is_caught(book: Path) -> None:
    def clear(notebook) -> None:
        for c in notebook["cells"]:
            if c["cell_type"] == "code":
                c["execution_count"], c["outputs"] = None, []

    change(book, clear)
    result = tool(book, "check")
    assert result.returncode == 1
    assert "has cells that never ran" in result.stderr


def test_a_missing_notebook_is_caught(book: Path) -> None:
    stored(book).unlink()
    result = tool(book, "check")
    assert result.returncode == 1
    assert "has no notebook" in result.stderr


def test_a_notebook_without_a_chapter_is_caught(book: Path) -> None:
    stored(book).with_name("04-lost.ipynb").write_text(stored(book).read_text())
    result = tool(book, "check")
    assert result.returncode == 1
    assert "04-lost.ipynb has no chapter" in result.stderr
    (stored(book).parent / "workshop").mkdir()
    stored(book).with_name("04-lost.ipynb").rename(
        stored(book).parent / "workshop" / "lost.ipynb"
    )
    found = tool(book, "check").stderr
    assert "workshop/lost.ipynb has no chapter: move it or delete it" in found
    assert "make sync" not in found


def test_a_workshop_page_has_a_notebook_with_links_that_lead_there(book: Path) -> None:
    page = book / "book" / "workshop" / "bench.md"
    page.parent.mkdir()
    words = "(ws-bench)=\n# A bench\n\nAfter {ref}`ch-small`.\n\n"
    page.write_text(HEADER.replace("# A chapter\n", words) + cell("1 + 1", tag="a"))
    small = CHAPTER.replace("# A chapter", "(ch-small)=\n# Small, see {ref}`ws-bench`")
    (book / "book" / "03-small.md").write_text(small)
    for name in ("bench", "small"):
        assert tool(book, "write", name).returncode == 0
    folder = book / "book" / "notebooks"
    inner = (folder / "workshop" / "bench.ipynb").read_text()
    assert "After [Small, see" in inner
    assert "(../03-small.ipynb)" in inner
    assert "[A bench](workshop/bench.ipynb)" in (folder / "03-small.ipynb").read_text()
    assert tool(book, "check").returncode == 0
    unknown = tool(book, "write", "bunch")
    assert unknown.returncode == 2
    assert "no chapter is called 'bunch'" in unknown.stderr


def test_a_cell_that_cannot_be_read_is_named(book: Path) -> None:
    bad = "```{code-cell}\n---\ntags: [a]\nmystnb: a: b\n---\nA = 1\n```\n"
    (book / "book" / "03-small.md").write_text(HEADER + bad)
    assert "03-small.md cannot be read: " in tool(book, "check").stderr
    assert tool(book, "write").returncode == 1


def test_a_stored_error_is_caught(book: Path) -> None:
    def fail(notebook) -> None:
        error = {"ename": "ValueError", "evalue": "no", "traceback": []}
        output = {"output_type": "error", **error}
        notebook["cells"][-1]["outputs"] = [output]

    change(book, fail)
    result = tool(book, "check")
    assert result.returncode == 1
    assert "holds an error: ValueError: no" in result.stderr


def test_a_claim_that_fails_is_caught_and_the_old_notebook_kept(book: Path) -> None:
    before = stored(book).read_bytes()
    chapter = book / "book" / "03-small.md"
    chapter.write_text(CHAPTER.replace("x > 2", "x > 5"))
    result = tool(book, "write")
    assert result.returncode == 1
    assert "assert x > 5" in result.stderr
    assert stored(book).read_bytes() == before
    assert [p.name for p in stored(book).parent.iterdir()] == ["03-small.ipynb"]


def test_a_printed_number_and_a_claim_that_changed_are_caught(book: Path) -> None:
    text = stored(book).read_text()
    assert "0.429" in text
    stored(book).write_text(text.replace("0.429", "0.428").replace("x > 2", "x > 5"))
    result = nbval(book)
    assert result.returncode == 1
    assert "2 failed, 3 passed" in result.stdout
    assert re.search("0.428.*0.429", result.stdout, flags=re.DOTALL)
    assert "AssertionError" in result.stdout


def test_seeding_names_a_chapter_without_a_notebook(book: Path) -> None:
    stored(book).unlink()
    done = tool(book, "seed")
    assert done.returncode == 1
    assert "03-small.md has no notebook" in done.stderr
    assert "Traceback" not in done.stderr
