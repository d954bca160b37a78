"""Tangle the book into the package: every cell tagged `export` becomes library code.

    python tools/tangle.py [CHAPTER …]           write the modules that chapters make
    python tools/tangle.py [CHAPTER …] --check   exit 1 and show where the two disagree

An export cell with `module: training/loss` opens transformer/training/loss.py, and the
export cells after it go on there until another one is named. A chapter's first export
cell opens the module of the chapter's own name where it names none. The cell that opens
a module holds, in this order:

    an optional docstring of one line: the module's concept
    imports, absolute ones, and nothing else
    `__all__`, chosen by hand; each name in it is defined below

The cells after it hold whole classes, functions and constants, which the module repeats
verbatim and in order. A public name is listed in `__all__` or imported by another
module of ours; all others start with an underscore.

A module whose `__all__` is `["main"]` is a program: its other names are its own, and it
ends with two lines that call `main`. No cell holds these: a notebook would run them.
"""

import argparse
import ast
import difflib
import keyword
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import chapters as book
from chapters import ChapterError

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ["main"]
RUN = 'if __name__ == "__main__":\n    main()'
BY_HAND = {"__init__.py", "__main__.py"}
PACKAGES_BY_HAND = {"cli", "live"}  # what no chapter shows
FROM_OURS = re.compile(r"from transformer\.([\w.]+) import (\([^)]*\)|[^\n]*)")
DEFINITIONS = (
    ast.ClassDef,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.Assign,
    ast.AnnAssign,
)


@dataclass
class Module:
    """One module and the export cells of the chapter that makes it."""

    name: str  # "training/loss"
    chapter: Path
    first: int  # the number of its first cell among the chapter's export cells
    cells: list[str] = field(default_factory=list)

    def fail(self, message: str) -> ChapterError:
        """An error that says where."""
        return ChapterError(f"{self.chapter}: module {self.name}: {message}")


def is_by_hand(module: Path, package: Path) -> bool:
    """Whether no chapter needs to make this module."""
    top = module.relative_to(package).parts[0]
    return module.name in BY_HAND or top in PACKAGES_BY_HAND


def check_name(name: object, chapter: Path) -> str:
    """Refuse what is no name of a module that a chapter may make."""
    parts = str(name).split("/")
    ok = all(part.isidentifier() and not keyword.iskeyword(part) for part in parts)
    if not ok or f"{parts[-1]}.py" in BY_HAND or parts[0] in PACKAGES_BY_HAND:
        raise ChapterError(
            f"{chapter}: module: {name} is no name of a module like training/loss"
        )
    return str(name)


def modules_of(chapter: Path) -> list[Module]:
    """The modules that a chapter makes, each with its cells.

    Raises:
        ChapterError: for a `module` that is no name, or cells that cannot be read.
    """
    found: dict[str, Module] = {}
    now = None
    cells = [
        cell
        for cell in book.read(chapter).cells
        if cell.cell_type == "code" and "export" in cell.metadata.get("tags", [])
    ]
    for number, cell in enumerate(cells, 1):
        name = cell.metadata.get("module")
        if name is None and now is None:
            stem = chapter.stem[3:] if chapter.stem[:2].isdigit() else chapter.stem
            name = stem.replace("-", "_")
        if name is not None:
            name = check_name(name, chapter)
            now = found.setdefault(name, Module(name, chapter, number))
        assert now is not None
        now.cells.append(cell.source.strip())
    return list(found.values())


def defined(node: ast.stmt) -> list[str]:
    """The names that a statement at top level defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    if isinstance(node, ast.AnnAssign):
        targets: list[ast.expr] = [node.target]
    else:
        targets = node.targets if isinstance(node, ast.Assign) else []
    return [
        name.id
        for target in targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    ]


def text_of(node: ast.stmt) -> str | None:
    """What a docstring says; None of any other statement."""
    value = node.value if isinstance(node, ast.Expr) else None
    said = value.value if isinstance(value, ast.Constant) else None
    return said if isinstance(said, str) else None


def parse(module: Module, number: int) -> list[ast.stmt]:
    """The statements of a module's cell."""
    try:
        return ast.parse(module.cells[number]).body
    except SyntaxError as error:
        raise module.fail(f"cell {number + 1}: {error}") from None


def opening(module: Module) -> tuple[str, str, str, list[str]]:
    """Docstring, imports and `__all__` of the opening cell, and the names listed.

    Raises:
        ChapterError: when the cell holds anything else, or in another order.
    """
    nodes = parse(module, 0)
    concept = ""
    if nodes and (said := text_of(nodes[0])) is not None:
        concept = said.strip()
        del nodes[0]
        if "\n" in concept:
            raise module.fail("the docstring in the opening cell is one line")
    listing = nodes.pop() if nodes else None
    if not isinstance(listing, ast.Assign) or defined(listing) != ["__all__"]:
        raise module.fail("the opening cell ends with __all__ = [names, by hand]")
    lines = module.cells[0].splitlines()
    for node in nodes:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            line = ast.unparse(node).splitlines()[0]
            raise module.fail(f"before __all__ stand only imports, not: {line}")
        if isinstance(node, ast.ImportFrom) and node.level:
            raise module.fail(f"make this import absolute: {ast.unparse(node)}")
    try:
        names = ast.literal_eval(listing.value)
    except ValueError:
        raise module.fail("__all__ is a plain list of names") from None
    all_text = "\n".join(lines[listing.lineno - 1 :])
    imports = ""
    if nodes:
        imports = "\n".join(lines[nodes[0].lineno - 1 : listing.lineno - 1]).strip()
    return concept, imports, all_text, list(names)


def definitions(module: Module) -> list[str]:
    """The names that the cells after the opening one define, in order."""
    names: list[str] = []
    for number in range(1, len(module.cells)):
        for node in parse(module, number):
            line = ast.unparse(node).splitlines()[0]
            if isinstance(node, ast.Import | ast.ImportFrom):
                raise module.fail(f"cell {number + 1} may hold no import: {line}")
            if not isinstance(node, DEFINITIONS) and text_of(node) is None:
                raise module.fail(
                    f"cell {number + 1} may hold only whole definitions: {line}"
                )
            names += defined(node)
    return names


def tangle(module: Module, root: Path = ROOT) -> str:
    """The text of a module: its docstring, imports, `__all__`, then each cell."""
    concept, imports, listing, listed = opening(module)
    names = definitions(module)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise module.fail(f"exported twice: {', '.join(twice)}")
    if missing := [name for name in listed if name not in names]:
        raise module.fail(f"__all__ lists what is not defined: {', '.join(missing)}")
    source = module.chapter.relative_to(root).as_posix()
    origin = f"Made from {source}: edit the chapter, not this file."
    doc = f'"""{concept}\n\n{origin}\n"""' if concept else f'"""{origin}"""'
    top = "\n\n".join(part for part in (doc, imports, listing) if part)
    run = [RUN] if listed == PROGRAM else []
    return "\n\n\n".join([top, *module.cells[1:], *run]) + "\n"


def imported(texts: list[str]) -> set[tuple[str, str]]:
    """Which name is imported from which module of ours: ("training/loss", "name")."""
    found: set[tuple[str, str]] = set()
    for text in texts:
        for origin, names in FROM_OURS.findall(text):
            module = origin.replace(".", "/")
            found |= {(module, name) for name in re.findall(r"\w+", names)}
    return found


def unlisted(made: dict[str, tuple[Module, str]], root: Path) -> list[str]:
    """Public names that `__all__` leaves out although no other module imports them."""
    package = root / "transformer"
    texts = [text for _, text in made.values()]
    for folder in (package, root / "bookkit"):
        for path in folder.rglob("*.py"):
            if path.relative_to(folder).with_suffix("").as_posix() not in made:
                texts.append(path.read_text(encoding="utf-8"))
    used = imported(texts)
    found = []
    for name, (module, _) in made.items():
        listed = opening(module)[3]
        if listed == PROGRAM:
            continue
        for public in definitions(module):
            if public.startswith("_") or public in listed or (name, public) in used:
                continue
            found.append(
                f"{module.chapter}: module {name}: {public} is neither in __all__ nor "
                f"imported by another module: list it, or call it _{public}"
            )
    return found


def read(root: Path) -> tuple[dict[str, tuple[Module, str]], list[str]]:
    """Every module that a chapter makes, with its text, and what is wrong."""
    made: dict[str, tuple[Module, str]] = {}
    found: list[str] = []
    for chapter in book.chapters(root):
        try:
            here: dict[str, str] = {}  # shadowed in the notebook, not in the package
            for module in modules_of(chapter):
                text = tangle(module, root)
                if module.name in made:
                    raise module.fail(f"{made[module.name][0].chapter} makes it too")
                for name in definitions(module):
                    if here.setdefault(name, module.name) != module.name:
                        raise module.fail(f"{name} is in {here[name]}, too")
                made[module.name] = module, text
        except ChapterError as error:
            found.append(str(error))
    return made, found


def work(root: Path, only: list[Path], check: bool) -> list[str]:
    """Write or compare the modules of some chapters; return what is wrong."""
    package = root / "transformer"
    made, found = read(root)
    found += unlisted(made, root)
    for name, (module, text) in made.items():
        path = package / f"{name}.py"
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        if old == text or module.chapter not in only:
            continue
        if check:
            names = str(path.relative_to(root)), str(module.chapter.relative_to(root))
            old_lines, new_lines = old.splitlines(), text.splitlines()
            diff = difflib.unified_diff(old_lines, new_lines, *names, lineterm="")
            found.append("\n".join(diff))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
            print(f"{module.chapter.relative_to(root)} -> {path.relative_to(root)}")
    if only != book.chapters(root):
        mine = [str(chapter.relative_to(root)) for chapter in only]
        return [line for line in found if any(chapter in line for chapter in mine)]
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).with_suffix("").as_posix()
        if name not in made and not is_by_hand(path, package):
            found.append(f"{path.relative_to(root)}: no chapter makes this module")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Write or check, and say what is wrong."""
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("chapters", nargs="*", metavar="CHAPTER", help="only these")
    ask.add_argument(
        "--check", action="store_true", help="change nothing; fail on a difference"
    )
    ask.add_argument("--root", type=Path, default=ROOT, help="the project's folder")
    options = ask.parse_args(arguments)
    root = options.root.resolve()
    try:
        found = work(root, book.named(root, options.chapters), options.check)
    except ChapterError as error:
        found = [str(error)]
    for complaint in found:
        print(complaint, file=sys.stderr)
    if found:
        print("Edit the chapter, not the module, then: make sync", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
