"""Break chapters and modules on purpose, and see it caught: real files, real runs."""

import contextlib
import io
from pathlib import Path
from typing import NamedTuple

import pytest
import tangle as tool

HEADER = """\
---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
    format_version: 0.13
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

# A chapter

"""


def cell(source: str, tag: str = "export") -> str:
    return f"```{{code-cell}} ipython3\n:tags: [{tag}]\n\n{source}\n```\n\n"


IMPORTS = 'import math\n\n__all__ = ["area", "LIMIT"]'
GOOD = (
    HEADER
    + cell(IMPORTS)
    + "Why this function?\n\n"
    + cell("def area(radius: float) -> float:\n    return math.pi * radius**2")
    + cell("assert area(1) > 3", tag="claim")
    + cell("LIMIT = 4\n_HIDDEN = 5")
)


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "book" / "workshop").mkdir(parents=True)
    (tmp_path / "transformer" / "cli").mkdir(parents=True)
    for name in ("__init__.py", "__main__.py", "cli/main.py"):
        (tmp_path / "transformer" / name).write_text('"""By hand."""\n')
    (tmp_path / "book" / "05-round-things.md").write_text(GOOD)
    (tmp_path / "book" / "06-no-code.md").write_text(HEADER + "Only words.\n")
    return tmp_path


def tangle(root: Path, *arguments: str) -> Done:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = tool.main(["--root", str(root), *arguments])
    return Done(code, out.getvalue(), err.getvalue())


def test_a_chapter_makes_its_module(project: Path) -> None:
    assert tangle(project).returncode == 0
    module = project / "transformer" / "round_things.py"
    text = module.read_text()
    assert text == (
        '"""Made from book/05-round-things.md: edit the chapter, not this file."""\n\n'
        'import math\n\n__all__ = ["area", "LIMIT"]\n\n\n'
        "def area(radius: float) -> float:\n    return math.pi * radius**2\n\n\n"
        "LIMIT = 4\n_HIDDEN = 5\n"
    )
    assert tangle(project, "--check").returncode == 0
    assert not (project / "transformer" / "no_code.py").exists()


def test_the_docstring_names_the_concept_first(project: Path) -> None:
    chapter = project / "book" / "05-round-things.md"
    chapter.write_text(GOOD.replace(IMPORTS, f'"""Area of a circle."""\n\n{IMPORTS}'))
    assert tangle(project).returncode == 0
    text = (project / "transformer" / "round_things.py").read_text()
    assert text.startswith(
        '"""Area of a circle.\n\n'
        "Made from book/05-round-things.md: edit the chapter, not this file.\n"
        '"""\n\nimport math\n\n__all__'
    )


def opening(name: str, *listed: str) -> str:
    return f"```{{code-cell}}\n:tags: [export]\n:module: {name}\n\n" + (
        f"import math\n\n__all__ = {list(listed)}\n```\n\n"
    )


def test_a_chapter_may_open_several_modules_and_go_back(project: Path) -> None:
    chapter = project / "book" / "05-round-things.md"
    back = "```{code-cell}\n:tags: [export]\n:module: a/b\n\nB = 2\n```\n\n"
    chapter.write_text(
        HEADER
        + opening("a/b", "A", "B")
        + cell("A = 1")
        + opening("c", "C")
        + cell("C = 3")
        + back
    )
    assert tangle(project).returncode == 0
    package = project / "transformer"
    assert (package / "a" / "b.py").read_text().endswith("A = 1\n\n\nB = 2\n")
    assert (package / "c.py").read_text().endswith("]\n\n\nC = 3\n")
    assert not (package / "round_things.py").exists()
    assert tangle(project, "--check").returncode == 0


def test_the_workshop_makes_modules_too(project: Path) -> None:
    page = project / "book" / "workshop" / "square-things.md"
    page.write_text(GOOD)
    assert tangle(project).returncode == 0
    text = (project / "transformer" / "square_things.py").read_text()
    assert text.startswith('"""Made from book/workshop/square-things.md: edit')


def test_two_chapters_may_not_make_one_module(project: Path) -> None:
    page = project / "book" / "workshop" / "other.md"
    page.write_text(HEADER + opening("round_things", "A") + cell("A = 1"))
    done = tangle(project)
    assert done.returncode == 1
    assert "05-round-things.md makes it too" in done.stderr


def test_one_name_in_two_modules_of_a_chapter_is_refused(project: Path) -> None:
    late = GOOD + opening("other", "A") + cell("A = 1\n_HIDDEN = 6")
    (project / "book" / "05-round-things.md").write_text(late)
    done = tangle(project)
    assert done.returncode == 1
    assert "module other: _HIDDEN is in round_things, too" in done.stderr


NAMED = GOOD.replace(":tags: [export]\n", ":tags: [export]\n:module: NAME\n", 1)


@pytest.mark.parametrize(
    "name", ["two words", "../away", "3d", "a/", "class", "__init__", "cli", "live/a"]
)
def test_a_module_needs_a_name_python_can_import(project: Path, name: str) -> None:
    (project / "book" / "05-round-things.md").write_text(NAMED.replace("NAME", name))
    done = tangle(project)
    assert done.returncode == 1
    assert name in done.stderr


def test_a_chapter_may_be_called_alone(project: Path) -> None:
    broken = GOOD.replace("import math", "from . import other")
    (project / "book" / "07-broken.md").write_text(broken)
    for name in ("05", "round-things", "book/05-round-things.md"):
        done = tangle(project, name)
        assert done.returncode == 0, done.stderr
    assert "07-broken" in tangle(project, "7").stderr + tangle(project, "07").stderr
    assert "no chapter is called '12'" in tangle(project, "12").stderr


def test_a_cell_that_cannot_be_read_is_named(project: Path) -> None:
    bad = "```{code-cell}\n---\ntags: [export]\nmystnb: a: b\n---\nA = 1\n```\n"
    (project / "book" / "07-broken.md").write_text(HEADER + bad)
    done = tangle(project)
    assert done.returncode == 1
    assert "07-broken.md: Code cell 1" in done.stderr


def test_a_public_name_is_listed_or_imported_elsewhere(project: Path) -> None:
    chapter = project / "book" / "05-round-things.md"
    chapter.write_text(GOOD.replace(', "LIMIT"', ""))
    assert "LIMIT is neither in __all__ nor" in tangle(project).stderr
    user = "from transformer.round_things import (\n    LIMIT,\n)\n"
    (project / "transformer" / "cli" / "main.py").write_text(user)
    assert tangle(project).returncode == 0


def test_a_program_calls_main_and_lists_nothing_else(project: Path) -> None:
    chapter = project / "book" / "05-round-things.md"
    chapter.write_text(
        GOOD.replace('["area", "LIMIT"]', '["main"]')
        + cell("def main() -> None:\n    print(area(LIMIT))")
    )
    assert tangle(project).returncode == 0
    text = (project / "transformer" / "round_things.py").read_text()
    assert text.endswith('area(LIMIT))\n\n\nif __name__ == "__main__":\n    main()\n')
    assert tangle(project, "--check").returncode == 0


def test_tangling_twice_touches_nothing(project: Path) -> None:
    tangle(project)
    module = project / "transformer" / "round_things.py"
    before = module.stat().st_mtime_ns
    again = tangle(project)
    assert again.stdout == ""
    assert module.stat().st_mtime_ns == before


def test_a_module_edited_by_hand_is_caught(project: Path) -> None:
    tangle(project)
    module = project / "transformer" / "round_things.py"
    module.write_text(module.read_text().replace("math.pi", "3"))
    result = tangle(project, "--check")
    assert result.returncode == 1
    assert "-    return 3 * radius**2" in result.stderr
    assert "+    return math.pi * radius**2" in result.stderr


def test_a_chapter_that_was_not_tangled_is_caught(project: Path) -> None:
    tangle(project)
    chapter = project / "book" / "05-round-things.md"
    chapter.write_text(GOOD.replace("LIMIT = 4", "LIMIT = 6"))
    result = tangle(project, "--check")
    assert result.returncode == 1
    assert "+LIMIT = 6" in result.stderr


@pytest.mark.parametrize("name", ["stray.py", "inner/stray.py"])
def test_a_module_that_no_chapter_makes_is_caught(project: Path, name: str) -> None:
    tangle(project)
    stray = project / "transformer" / name
    stray.parent.mkdir(exist_ok=True)
    stray.write_text("x = 1\n")
    for flags in ((), ("--check",)):
        result = tangle(project, *flags)
        assert result.returncode == 1
        assert "stray.py: no chapter makes this module" in result.stderr


def test_a_missing_module_is_caught(project: Path) -> None:
    result = tangle(project, "--check")
    assert result.returncode == 1
    assert "+def area" in result.stderr


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("import os", "may hold no import: import os"),
        ("def area():\n    return 0", "exported twice: area"),
        ("print(area(1))", "may hold only whole definitions: print(area(1))"),
        ("def area(:", "cell 4: invalid syntax"),
    ],
)
def test_rules_of_export_cells(project: Path, extra: str, message: str) -> None:
    (project / "book" / "05-round-things.md").write_text(GOOD + cell(extra))
    result = tangle(project)
    assert result.returncode == 1
    assert message in result.stderr


@pytest.mark.parametrize(
    ("first", "message"),
    [
        ("from . import other\n__all__ = []", "make this import absolute"),
        ("import math\nx = 1\n__all__ = []", "stand only imports, not: x = 1"),
        ("import math", "ends with __all__"),
        ("__all__ = []\nimport math", "ends with __all__"),
        ('__all__ = ["nothing"]', "lists what is not defined: nothing"),
        ("__all__ = [math]", "a plain list of names"),
        ('"""Two\nlines."""\n__all__ = []', "the docstring in the opening cell is one"),
    ],
)
def test_rules_of_opening_cells(project: Path, first: str, message: str) -> None:
    chapter = project / "book" / "05-round-things.md"
    chapter.write_text(GOOD.replace(IMPORTS, first))
    result = tangle(project)
    assert result.returncode == 1
    assert message in result.stderr
