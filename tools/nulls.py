"""Try every claim under a null, which must make it fail.

    python tools/nulls.py [CHAPTER …] [--check | --seeds SHIFT]

The nulls of a chapter stand under its name in tests/nulls/, those of a claim together:

    # %% claim: <how the claim's sentence begins>
    # null: <what is replaced, switched off or left to chance>
    tokenize = split_words

    # null: <something else>
    tokenize = list

Each runs in a fork of the chapter, just before its claim. The claim must then raise
AssertionError, or the error that a line `# raises: NAME` gives. A claim without a null
is wrong, and so is a null without a claim. With --check nothing runs: claims and nulls
are only matched. Files are shared with the fork: a null that writes makes its own.

With --seeds no null is tried: the chapter runs with every seed of PyTorch shifted, and
claims that do not hold then are listed. Such a sentence is to speak of one run.
"""

import argparse
import contextlib
import io
import os
import re
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from chapters import ChapterError, named, read, stored
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(
    r"^(?:# %% claim: (.*)\n)?# null: (.*)\n(?:# raises: (\w+)\n)?", re.M
)


class Null(NamedTuple):
    """How its claim begins, what it is, the error it must lead to, its code."""

    claim: str
    name: str
    error: str
    code: str


def nulls_of(root: Path, chapter: Path) -> list[Null]:
    """Those of `tests/nulls/STEM.py`, or of `tests/nulls/workshop/STEM.py`."""
    page = chapter.relative_to(root / "book")
    path = (root / "tests" / "nulls" / page).with_suffix(".py")
    parts = BLOCK.split(path.read_text(encoding="utf-8") if path.exists() else "")
    nulls, claim = [], ""
    for begins, *rest in zip(*(parts[first::4] for first in (1, 2, 3, 4)), strict=True):
        claim, (name, error, code) = begins or claim, rest
        nulls.append(Null(claim, name, error or "AssertionError", code))
    return nulls


def sentence(claim: str) -> str:
    """The claim in words: the comment that its cell begins with."""
    comment = re.match(r"(#.*\n)*", claim)
    return " ".join(re.sub(r"(?m)^# ?", "", comment[0] if comment else "").split())


def cells_of(chapter: Path, tag: str = "") -> list[NotebookNode]:
    """The code cells with this tag; without one, all that run when nobody helps."""
    cells = [cell for cell in read(chapter).cells if cell.cell_type == "code"]
    tags = [set(cell.metadata.get("tags", [])) for cell in cells]
    wanted = [tag in t if tag else not t & {"exercise", "solution"} for t in tags]
    return [cell for cell, keep in zip(cells, wanted, strict=True) if keep]


def unmatched(root: Path, chapter: Path) -> list[str]:
    """Claims without a null, and nulls that belong to no claim or to several."""
    claims = [sentence(cell.source) for cell in cells_of(chapter, "claim")]
    begins = [null.claim for null in nulls_of(root, chapter)]
    wrong = [f"no null for: {c}" for c in claims if not c.startswith(tuple(begins))]
    for begin in dict.fromkeys(begins):
        if (count := sum(claim.startswith(begin) for claim in claims)) != 1:
            wrong.append(f"{count} claims begin with: {begin}")
    return wrong


def attempt(null: Null, claim: str, names: dict[str, Any]) -> tuple[str, str]:
    """What the claim does under its null: "fails", or what is wrong; and its line."""
    running = "the null"
    try:
        exec(compile(null.code, "null", "exec"), names)
        running = "the claim"
        exec(compile(claim, "claim", "exec"), names)
    except BaseException as error:
        kind = type(error).__name__
        lines = [f.lineno or 1 for f in traceback.extract_tb(error.__traceback__)]
        where = ""
        if running == "the claim" and lines[1:]:  # else it could not be compiled
            where = claim.splitlines()[lines[1] - 1].strip()
        if running == "the claim" and kind == null.error:
            return "fails", where
        return f"{running} raises {kind}: {error}", where
    return "passes", ""


def in_fork(null: Null, claim: str, names: dict[str, Any]) -> list[str]:
    """`attempt` in a copy of this process, so that nothing here changes."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        try:
            output = contextlib.redirect_stdout(io.StringIO())
            with os.fdopen(writing, "w") as pipe, output:
                pipe.write("\n".join(attempt(null, claim, names)))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    return (found or "the process ended\n").rsplit("\n", 1)


def shift_seeds(by: int) -> None:
    """Let every seed that PyTorch is given in this process be another one."""
    import torch

    own = torch.manual_seed

    class Shifted(torch.Generator):
        def manual_seed(self, seed: int) -> torch.Generator:
            return super().manual_seed(seed + by)

    def manual_seed(seed: int) -> torch.Generator:
        return own(seed + by)

    for module in (torch, torch.random):
        vars(module).update(manual_seed=manual_seed)
    vars(torch).update(Generator=Shifted)


def play(
    chapter: Path, before: Callable[[str, dict[str, Any]], None] = lambda *_: None
) -> list[tuple[Any, Exception]]:
    """Run a chapter; the cells that raised, and what. `before` is called at a claim."""
    from IPython.core.interactiveshell import InteractiveShell

    os.environ["MPLBACKEND"] = "agg"  # no window is opened for a figure
    shell, raised = InteractiveShell.instance(), []
    os.chdir(stored(chapter).parent)
    for cell in cells_of(chapter):
        if is_claim := "claim" in cell.metadata.get("tags", []):
            before(cell.source, shell.user_ns)
        with contextlib.redirect_stdout(io.StringIO()):
            done = shell.run_cell(cell.source)
        if not done.success:
            raised.append((cell, done.error_before_exec or done.error_in_exec))
            if not is_claim:  # what comes later may need it
                break
    return raised


def run(root: Path, chapter: Path, verbose: bool = False) -> list[str]:
    """Run the chapter and, before each claim, its nulls; what is wrong."""
    wrong, nulls = unmatched(root, chapter), nulls_of(root, chapter)

    def attempt_nulls(claim: str, names: dict[str, Any]) -> None:
        words = sentence(claim)
        for null in (null for null in nulls if words.startswith(null.claim)):
            found, where = in_fork(null, claim, names)
            line = f"{found} under {null.name!r}: {null.claim} …"
            wrong.extend([line] * (found != "fails"))
            if verbose:
                print(line, "|", where, flush=True)

    return wrong + [raises(cell, error) for cell, error in play(chapter, attempt_nulls)]


def raises(cell: Any, error: Exception) -> str:
    """What to say of a cell that fails by itself."""
    begins = cell.source.partition("\n")[0]
    return f"the chapter itself raises {error!r}: {begins}"


def from_other_seeds(chapter: Path, shift: int) -> list[str]:
    """The claims that do not hold there, each with the line that fails.

    And the cell that is no claim and raises: those behind it were not run.
    """
    shift_seeds(shift)
    found = []
    for cell, error in play(chapter):
        if "claim" not in cell.metadata.get("tags", []):
            found.append(f"{raises(cell, error)} (stopped)")
            continue
        frames = traceback.extract_tb(error.__traceback__)
        inside = [f.line for f in frames if f.filename.startswith("<ipython")]
        begins = cell.source.partition("\n")[0]
        found.append(f"{begins} … | {(*inside, repr(error))[0]}")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Read the command line and do what it says, each chapter in its own process."""
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("chapters", nargs="*", metavar="CHAPTER")
    other = ask.add_mutually_exclusive_group()
    other.add_argument("--check", action="store_true", help="match, and run nothing")
    other.add_argument(
        "--seeds", type=int, default=0, metavar="SHIFT", help="add this to every seed"
    )
    ask.add_argument("--verbose", action="store_true", help="show what each null does")
    ask.add_argument("--root", type=Path, default=ROOT, help="the project's folder")
    options = ask.parse_args(arguments)
    root, failed = options.root.resolve(), 0
    try:
        pages = named(root, options.chapters)
    except ChapterError as error:
        ask.error(str(error))
    with ProcessPoolExecutor(2, max_tasks_per_child=1) as pool:
        if options.check:
            found = map(partial(unmatched, root), pages)
        elif options.seeds:
            found = pool.map(partial(from_other_seeds, shift=options.seeds), pages)
        else:
            found = pool.map(partial(run, root, verbose=options.verbose), pages)
        for chapter, lines in zip(pages, found, strict=True):
            if options.seeds:
                claims = len(cells_of(chapter, "claim"))
                print(f"{chapter.stem}: {len(lines)} of {claims} claims do not hold")
            else:
                count = len(nulls_of(root, chapter))
                print(f"{chapter.stem}: {count} nulls, {len(lines)} problems")
                failed |= bool(lines)
            print("".join(f"  {line}\n" for line in lines), end="", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
