"""Tangle the book into the package: every cell tagged `export` becomes library code.

    python tools/tangle.py            write transformer/<stem>.py from book/NN-<stem>.md
    python tools/tangle.py --check    exit 1 and show where the two disagree

One chapter makes one module, named like it or as its first export cell's `module` says.
That cell holds the imports; the cells after it hold whole classes and functions, which
the module repeats verbatim and in order.
"""

import argparse
import ast
import difflib
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import jupytext
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent
BY_HAND = {"__init__.py", "__main__.py"}


class ChapterError(Exception):
    """A chapter breaks a rule of the literate pipeline."""


def chapters(root: Path) -> list[Path]:
    """The chapters of the book, in reading order."""
    return sorted((root / "book").glob("[0-9][0-9]-*.md"))


@functools.cache  # reading a long chapter takes a while, and its name is asked, too
def export_cells(chapter: Path) -> list[NotebookNode]:
    """A chapter's export cells, in reading order."""
    return [
        cell
        for cell in jupytext.read(chapter, fmt="md:myst").cells
        if cell.cell_type == "code" and "export" in cell.metadata.get("tags", [])
    ]


def module_path(chapter: Path, root: Path) -> Path:
    """`book/05-multi-head.md` makes `transformer/multi_head.py`.

    Raises:
        ChapterError: for a `module` that is no name, or stands on a later cell.
    """
    name = chapter.stem[3:].replace("-", "_")
    for number, cell in enumerate(export_cells(chapter)):
        if "module" in cell.metadata:
            name = cell.metadata["module"]
            if number or not str(name).isidentifier():
                raise ChapterError(
                    f"{chapter}: the first export cell may name the module; "
                    f"export cell {number + 1} says {name!r}"
                )
    return root / "transformer" / f"{name}.py"


def exported(chapter: Path) -> list[str]:
    """The sources of a chapter's export cells, in reading order."""
    return [cell.source.strip() for cell in export_cells(chapter)]


def public_names(source: str) -> list[str]:
    """Classes, functions and constants defined at top level, in order of definition."""
    names: list[str] = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names += [
                target.id for target in node.targets if isinstance(target, ast.Name)
            ]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
    return [name for name in names if not name.startswith("_")]


def check_imports(chapter: Path, cells: list[str]) -> None:
    """Imports, absolute ones, live in the first export cell and nowhere else."""
    for number, source in enumerate(cells):
        for node in ast.parse(source).body:
            importing = isinstance(node, ast.Import | ast.ImportFrom)
            if importing != (number == 0):
                wanted = "only imports" if number == 0 else "no import"
                line = ast.unparse(node).splitlines()[0]
                raise ChapterError(
                    f"{chapter}: export cell {number + 1} may hold {wanted}: {line}"
                )
            if isinstance(node, ast.ImportFrom) and node.level:
                raise ChapterError(
                    f"{chapter}: make this import absolute: {ast.unparse(node)}"
                )


def tangle(chapter: Path, root: Path = ROOT) -> str:
    """The module a chapter defines: origin, imports, `__all__`, then each cell."""
    imports, *definitions = cells = exported(chapter)
    check_imports(chapter, cells)
    body = "\n\n\n".join(definitions)
    names = public_names(body)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ChapterError(f"{chapter}: exported twice: {', '.join(twice)}")
    listed = "".join(f'    "{name}",\n' for name in names)
    source = chapter.relative_to(root).as_posix()
    origin = f'"""Made from {source}: edit the chapter, not this file."""'
    return f"{origin}\n\n{imports}\n\n__all__ = [\n{listed}]\n\n\n{body}\n"


def modules(root: Path) -> Iterator[tuple[Path, Path, str]]:
    """Each chapter that exports, its module's path, and what the module should say."""
    for chapter in chapters(root):
        if exported(chapter):
            yield chapter, module_path(chapter, root), tangle(chapter, root)


def write(root: Path) -> None:
    """Write every module whose chapter has changed."""
    for chapter, module, text in modules(root):
        if not module.exists() or module.read_text(encoding="utf-8") != text:
            module.write_text(text, encoding="utf-8", newline="\n")
            print(f"{chapter.relative_to(root)} -> {module.relative_to(root)}")


def complaints(root: Path) -> list[str]:
    """What is wrong between book and package: a line or a difference for each."""
    found: list[str] = []
    made = {root / "transformer" / name for name in BY_HAND}
    for chapter, module, text in modules(root):
        made.add(module)
        old = module.read_text(encoding="utf-8") if module.exists() else ""
        if old != text:
            names = str(module.relative_to(root)), str(chapter.relative_to(root))
            diff = difflib.unified_diff(
                old.splitlines(), text.splitlines(), *names, lineterm=""
            )
            found.append("\n".join(diff))
    for module in sorted((root / "transformer").rglob("*.py")):
        if module not in made:
            found.append(f"{module.relative_to(root)}: no chapter makes this module")
    return found


def main() -> int:
    """Write or check, and say what is wrong."""
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument(
        "--check", action="store_true", help="change nothing; fail on a difference"
    )
    ask.add_argument("--root", type=Path, default=ROOT, help="the project's folder")
    options = ask.parse_args()
    root = options.root.resolve()
    try:
        if not options.check:
            write(root)
        found = complaints(root)
    except ChapterError as error:
        found = [str(error)]
    for complaint in found:
        print(complaint, file=sys.stderr)
    if found:
        print("Edit the chapter, not the module, then: make sync", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
