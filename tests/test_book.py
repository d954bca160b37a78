"""The rules that every chapter keeps, read off the chapters themselves."""

import ast
import itertools
import re
from pathlib import Path

import jupytext
import nbformat
import pytest
from chapters import chapters, stored

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = chapters(ROOT)
FOLDED = {"setup", "plot", "claim", "export", "hide-input", "remove-cell"}

pytestmark = pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)


def in_the_workshop(chapter: Path) -> bool:
    """Workshop pages, and recipes, have no fixed ending and need no exercises."""
    return chapter.parent.name == "workshop" or chapter.stem == "how-to"


def cells(chapter: Path, tag: str) -> list[str]:
    return [
        cell.source
        for cell in jupytext.read(chapter, fmt="md:myst").cells
        if cell.cell_type == "code" and tag in cell.metadata.get("tags", [])
    ]


def outputs(chapter: Path, tag: str) -> list[str]:
    """What the stored notebook's cells with this tag printed, one text each."""
    notebook = nbformat.read(stored(chapter), 4)
    return [
        "".join(str(o.get("text", "") or o.get("data", {})) for o in cell.outputs)
        for cell in notebook.cells
        if tag in cell.metadata.get("tags", [])
    ]


def prose(page: Path) -> str:
    """The words of a page: no code, mathematics, options, roles or links."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    text = re.sub(r"```\{code-cell\}.*?\n```", "", text, flags=re.DOTALL)
    text = re.sub(r"```(?:python|sh|text|bash)\n.*?\n```", "", text, flags=re.DOTALL)
    text = re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL)
    text = re.sub(r"```\{math\}.*?\n```", "", text, flags=re.DOTALL)
    text = re.sub(r"\$[^$]+\$", "", text)
    text = re.sub(r"\{[a-z:]+\}`[^`]*`", "", text)
    text = re.sub(r"`[^`]*`", "", text)
    text = re.sub(r"^\s*:\w+:.*$", "", text, flags=re.MULTILINE)
    return re.sub(r"\]\([^)]*\)|^\([\w-]+\)=$", "", text, flags=re.MULTILINE)


def test_numbers_in_prose_come_from_the_run(chapter: Path) -> None:
    words = re.sub(
        r"\b(?:[Ss]ections?|[Cc]hapters?|[Pp]oints?|Llama|Python|PyTorch|torch)"
        r" \d[\d.]*",
        "",
        prose(chapter),
    )
    typed = re.findall(r"[^\n]*?(?<![\w.-])\d+\.\d+(?![\w.])[^\n]*", words)
    assert typed == []


def test_exercises_are_answered_by_their_solutions(chapter: Path) -> None:
    unanswered, solved = outputs(chapter, "exercise"), outputs(chapter, "solution")
    assert len(unanswered) >= 3 or in_the_workshop(chapter)
    assert len(solved) >= len(unanswered)
    assert all("○" in text for text in unanswered)
    assert all("✓" in text and "✗" not in text for text in solved)


def test_solutions_are_folded(chapter: Path) -> None:
    text = chapter.read_text(encoding="utf-8")
    starts = re.findall(r"\{solution(?:-start)?\}[^\n]*\n((?::.*\n)*)", text)
    assert starts or in_the_workshop(chapter)
    assert all(":class: dropdown" in options for options in starts)


def test_claims_are_sentences_that_can_fail(chapter: Path) -> None:
    """Each begins with its sentence, and asserts more than a shape or a constant."""
    claims = cells(chapter, "claim")
    assert len(claims) >= (2 if in_the_workshop(chapter) else 4)
    for source in claims:
        lines = itertools.takewhile(lambda line: line[:1] == "#", source.splitlines())
        sentence = " ".join(line.lstrip("# ") for line in lines)
        assert re.fullmatch(r"[^a-z].*[.!?]", sentence), f"no sentence: {source}"
        tests = [
            ast.unparse(node.test)
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Assert)
        ]
        checks = re.findall(r"assert_close\(|pytest\.raises\(|else:\n\s+raise", source)
        assert tests or checks, source
        telling = [t for t in tests if not re.search(r"\.(shape|size\(.*?\)) ==", t)]
        assert telling or checks, source
        assert not set(tests) & {"True", "1"}, source


def test_figures_have_captions(chapter: Path) -> None:
    notebook = jupytext.read(chapter, fmt="md:myst")
    for cell in notebook.cells:
        if cell.cell_type == "code" and re.search(
            r"^show\(", cell.source, re.MULTILINE
        ):
            figure = cell.metadata.get("mystnb", {}).get("figure", {})
            assert figure.get("name", "").startswith("fig-"), cell.source
            assert len(figure.get("caption", "")) > 30, cell.source


def test_the_notebook_reads_well_in_jupyter(chapter: Path) -> None:
    notebook = nbformat.read(stored(chapter), 4)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            words = re.sub(r"\$[^$]+\$", "", cell.source)
            left = r"\{[a-z:-]+\}`|^`{3,}\{|^\([\w-]+\)=|\$\$ \(|\[\?\]"
            assert not re.search(left, words, re.MULTILINE), words


def test_the_chapter_ends_as_all_do(chapter: Path) -> None:
    text = chapter.read_text(encoding="utf-8")
    ending = r"^## Five lines to remember\n(.*?)^## Exercises$.*^## Further reading$"
    found = re.search(ending, text, re.DOTALL | re.MULTILINE)
    if in_the_workshop(chapter) and not found:
        return
    assert found, "five lines to remember, exercises, further reading"
    assert len(re.findall(r"^\d\. ", found[1], re.MULTILINE)) == 5
    assert "{cite" in text[text.index("## Further reading") :]


def test_the_chapter_does_not_argue_with_the_notes(chapter: Path) -> None:
    which = (
        r"[Oo]ne (?:of the )?notes?|[Tt]he notes? says?|[Aa]nother (?:of the )?notes?"
    )
    quoted = rf"\b(?:{which})\b"
    assert not re.search(quoted, prose(chapter))


def test_code_in_view_fits_the_page(chapter: Path) -> None:
    for cell in jupytext.read(chapter, fmt="md:myst").cells:
        folded = FOLDED & set(cell.metadata.get("tags", []))
        if cell.cell_type == "code" and not folded:
            wide = [line for line in cell.source.splitlines() if len(line) > 88]
            assert not wide
