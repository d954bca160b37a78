"""Keep book/notebooks/ in step with the chapters book/NN-*.md and book/workshop/*.md.

python tools/notebooks.py write [CHAPTER …] [--all]   run what changed; store outputs
                                                      (new words, old code: no run)
python tools/notebooks.py check                       fail where the two disagree
python tools/notebooks.py seed                        hand stored outputs to the build

A chapter is called by its number or its stem: 12, training, 12-training.
"""

import argparse
import hashlib
import json
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

import chapters as book
import nbformat
from chapters import ChapterError, chapters, named, stored
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell
from plain import glued, plain

ROOT = Path(__file__).resolve().parent.parent
CELL_LIMIT = 1800  # seconds, on a busy machine, that one cell may run
REWORDED = "has other words than its notebook"
INSTALL = """\
# This notebook needs the book's package: where it is missing, install it.
try:
    import bookkit
except ImportError:
    print("tested-transformer[book] is missing here: installing it takes minutes.")
    %pip install --quiet --find-links . "tested-transformer[book]"
""".rstrip()


def unrun(chapter: Path) -> NotebookNode:
    """The chapter as a notebook without outputs, its text as Sphinx reads it.

    A cell's id comes from what it says, so that an edit elsewhere leaves it alone.
    """
    notebook = book.read(chapter)
    seen: Counter[str] = Counter()
    for cell in notebook.cells:
        said = f"{cell.cell_type}\0{cell.source}"
        digest = hashlib.sha256(said.encode()).hexdigest()[:12]
        cell.id = f"{digest}-{seen[digest]}"
        seen[digest] += 1
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"]}
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def installs(cell: NotebookNode) -> bool:
    """Whether a cell is the one that installs the package: no chapter has it."""
    return str(cell.id) == "install"


def add_install(notebook: NotebookNode) -> None:
    """Put the installing cell before the first cell that runs."""
    kinds = [cell.cell_type for cell in notebook.cells]
    if "code" in kinds:
        cell = new_code_cell(INSTALL, id="install")
        notebook.cells.insert(kinds.index("code"), cell)


def read(path: Path) -> NotebookNode | None:
    """A stored notebook, or None where there is none that can be read."""
    try:
        return nbformat.read(path, 4)
    except (FileNotFoundError, nbformat.reader.NotJSONError, nbformat.ValidationError):
        return None


def text_of(notebook: NotebookNode) -> list[tuple[str, ...]]:
    """All of a notebook that its chapter decides."""
    return [
        (
            cell.cell_type,
            cell.id,
            cell.source,
            json.dumps(cell.metadata, sort_keys=True),
            json.dumps(cell.get("attachments"), sort_keys=True),
        )
        for cell in notebook.cells
    ]


def code_of(notebook: NotebookNode) -> list[tuple[str, ...]]:
    """The part of it that runs for the page."""
    cells = [cell for cell in text_of(notebook) if cell[0] == "code"]
    return [cell for cell in cells if cell[1] != "install"]


def with_text(
    chapter: Path, fresh: NotebookNode, notebook: NotebookNode
) -> NotebookNode:
    """A run of the chapter's code, with the chapter's words around it: `fresh` ones."""
    plain(fresh, chapter, glued(notebook))
    ran = {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}
    fresh.cells = [ran.get(cell.id, cell) for cell in fresh.cells]
    add_install(fresh)
    return fresh


def complaint(chapter: Path) -> str | None:
    """Why the stored notebook cannot stand for the chapter, if it cannot."""
    notebook = read(stored(chapter))
    if notebook is None:
        return "has no notebook"
    try:
        fresh = unrun(chapter)
    except ChapterError as error:
        return f"cannot be read: {error}"
    if code_of(notebook) != code_of(fresh):
        return "was edited and not run again"
    cells = [cell for cell in notebook.cells if not installs(cell)]
    code = [cell for cell in cells if cell.cell_type == "code"]
    if any(cell.execution_count is None for cell in code):
        return "has cells that never ran"
    for cell in code:
        for output in cell.outputs:
            if output.output_type == "error":
                return f"holds an error: {output.ename}: {output.evalue}"
    if text_of(notebook) != text_of(with_text(chapter, fresh, notebook)):
        return REWORDED
    return None


def run(chapter: Path) -> NotebookNode:
    """The chapter, run from top to bottom in a fresh kernel."""
    notebook = unrun(chapter)
    folder = {"metadata": {"path": str(stored(chapter).parent)}}
    client = NotebookClient(
        notebook,
        timeout=CELL_LIMIT,
        record_timing=False,
        resources=folder,
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
    )
    client.execute()
    notebook.metadata.pop("language_info", None)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = joined(cell.outputs)
    return with_text(chapter, unrun(chapter), notebook)


def joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """The outputs with each text whole; a busy kernel sends one in several pieces."""
    whole: list[NotebookNode] = []
    for output in outputs:
        stream = output.get("name") if output.output_type == "stream" else None
        if stream and whole and whole[-1].get("name") == stream:
            whole[-1].text += output.text
        else:
            whole.append(output)
    return whole


def write(root: Path, names: list[str], everything: bool) -> int:
    """Run the chapters that need it; a chapter that fails keeps its old notebook."""
    why = {c: complaint(c) for c in named(root, names)}
    stale = [c for c in why if everything or names or why[c]]
    failed = 0
    for count, chapter in enumerate(stale, 1):
        print(f"[{count}/{len(stale)}] {chapter.stem} … ", end="", flush=True)
        start = time.monotonic()
        stored(chapter).parent.mkdir(parents=True, exist_ok=True)
        reworded = why[chapter] == REWORDED and not everything and not names
        try:
            if reworded and (old := read(stored(chapter))):
                # The code stands: nothing to run.
                notebook = with_text(chapter, unrun(chapter), old)
            else:
                notebook = run(chapter)
        except (CellExecutionError, CellTimeoutError, ChapterError) as error:
            print("failed", flush=True)
            print(error, file=sys.stderr)
            failed = 1
            continue
        whole = stored(chapter).with_suffix(".part")
        nbformat.write(notebook, whole)
        whole.replace(stored(chapter))
        took = "new words only" if reworded else f"{time.monotonic() - start:.0f} s"
        print(took, flush=True)
    return failed


def check(root: Path) -> int:
    """Name every chapter whose notebook is stale, and notebooks without a chapter."""
    found = [
        f"{c.relative_to(root)} {why}" for c in chapters(root) if (why := complaint(c))
    ]
    known, alone = {stored(chapter) for chapter in chapters(root)}, []
    for path in sorted((root / "book" / "notebooks").rglob("*.ipynb")):
        if path not in known:
            alone.append(
                f"{path.relative_to(root)} has no chapter: move it or delete it"
            )
    for line in found + alone:
        print(line, file=sys.stderr)
    if found:
        print("Run: make sync", file=sys.stderr)
    return 1 if found or alone else 0


def seed(root: Path) -> int:
    """Fill the build's cache, so that it renders stored outputs and runs nothing."""
    from jupyter_cache import get_cache
    from jupyter_cache.base import CacheBundleIn

    missing = [c for c in chapters(root) if read(stored(c)) is None]
    for chapter in missing:
        print(f"{chapter.relative_to(root)} has no notebook", file=sys.stderr)
    if missing:
        print("Run: make sync", file=sys.stderr)
        return 1
    folder = root / "_build" / ".jupyter_cache"
    shutil.rmtree(folder, ignore_errors=True)
    cache = get_cache(folder)
    for chapter in chapters(root):
        path = stored(chapter).resolve()
        notebook = nbformat.read(path, 4)
        notebook.cells = [cell for cell in notebook.cells if not installs(cell)]
        bundle = CacheBundleIn(notebook, str(path))
        cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Read the command line and do what it says."""
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("command", choices=("write", "check", "seed"))
    ask.add_argument(
        "chapters", nargs="*", metavar="CHAPTER", help="run these, stale or not"
    )
    ask.add_argument("--all", action="store_true", help="run every chapter anew")
    ask.add_argument("--root", type=Path, default=ROOT, help="the project's folder")
    options = ask.parse_args(arguments)
    root = options.root.resolve()
    if options.command == "write":
        try:
            return write(root, options.chapters, options.all)
        except ChapterError as error:
            ask.error(str(error))
    return check(root) if options.command == "check" else seed(root)


if __name__ == "__main__":
    sys.exit(main())
