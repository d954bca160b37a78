"""Break chapters and modules on purpose, and see it caught: real files, real runs."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
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


GOOD = (
    HEADER
    + cell("import math")
    + "Why this function?\n\n"
    + cell("def area(radius: float) -> float:\n    return math.pi * radius**2")
    + cell("assert area(1) > 3", tag="claim")
    + cell("LIMIT = 4\n_HIDDEN = 5")
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "book").mkdir()
    (tmp_path / "transformer").mkdir()
    for name in ("__init__.py", "__main__.py"):
        (tmp_path / "transformer" / name).write_text('"""By hand."""\n')
    (tmp_path / "book" / "05-round-things.md").write_text(GOOD)
    (tmp_path / "book" / "06-no-code.md").write_text(HEADER + "Only words.\n")
    return tmp_path


def tangle(root: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "tangle.py"), "--root", str(root)]
    return subprocess.run([*command, *flags], capture_output=True, text=True)


def test_a_chapter_makes_its_module(project: Path) -> None:
    assert tangle(project).returncode == 0
    module = project / "transformer" / "round_things.py"
    text = module.read_text()
    assert text.startswith('"""Made from book/05-round-things.md')
    assert '__all__ = [\n    "area",\n    "LIMIT",\n]' in text
    assert "assert" not in text
    namespace: dict = {}
    exec(text, namespace)
    assert round(namespace["area"](1), 2) == 3.14
    assert tangle(project, "--check").returncode == 0
    assert not (project / "transformer" / "no_code.py").exists()


NAMED = GOOD.replace(":tags: [export]\n", ":tags: [export]\n:module: NAME\n", 1)


def test_a_chapter_may_name_its_module(project: Path) -> None:
    chapter = project / "book" / "05-round-things.md"
    chapter.write_text(NAMED.replace("NAME", "circles"))
    assert tangle(project).returncode == 0
    assert (project / "transformer" / "circles.py").exists()
    assert not (project / "transformer" / "round_things.py").exists()
    assert tangle(project, "--check").returncode == 0


@pytest.mark.parametrize("name", ["two words", "../away", "3d"])
def test_a_module_needs_a_name_python_can_import(project: Path, name: str) -> None:
    (project / "book" / "05-round-things.md").write_text(NAMED.replace("NAME", name))
    done = tangle(project)
    assert done.returncode == 1
    assert name in done.stderr
    assert "Traceback" not in done.stderr


def test_only_the_first_export_cell_names_the_module(project: Path) -> None:
    late = GOOD + "```{code-cell} ipython3\n:tags: [export]\n:module: a\n\nB = 2\n```\n"
    (project / "book" / "05-round-things.md").write_text(late)
    done = tangle(project)
    assert done.returncode == 1
    assert "export cell 4" in done.stderr


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
        (cell("import os"), "may hold no import: import os"),
        (cell("def area():\n    return 0"), "exported twice: area"),
    ],
)
def test_rules_of_export_cells(project: Path, extra: str, message: str) -> None:
    (project / "book" / "05-round-things.md").write_text(GOOD + extra)
    result = tangle(project)
    assert result.returncode == 1
    assert message in result.stderr


@pytest.mark.parametrize(
    ("first", "message"),
    [
        ("from . import other", "make this import absolute"),
        ("import math\nx = 1", "may hold only imports: x = 1"),
    ],
)
def test_the_first_export_cell_holds_absolute_imports(
    project: Path, first: str, message: str
) -> None:
    chapter = project / "book" / "05-round-things.md"
    chapter.write_text(GOOD.replace("import math", first))
    result = tangle(project)
    assert result.returncode == 1
    assert message in result.stderr


def test_the_books_own_modules_are_its_chapters(tmp_path: Path) -> None:
    for folder in ("book", "transformer"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    assert tangle(tmp_path, "--check").returncode == 0
