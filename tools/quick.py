"""Run the tests that a change touches, its own first, for 35 seconds on two cores.

    python tools/quick.py [--seconds 35]

Changed is what differs from the branch's origin in main, committed or not; where there
is no git, what is younger than the last quick run that passed. A test file is touched
when it changed, when it imports what changed, or when it is the one for a chapter that
did; where nothing but docstrings and comments of a module changed, it is the module's
own. What did not fit into the time is listed at the end: `make test` runs everything.
The exit code is 1 if a test failed, or if something changed and no test ran.

pytest-testmon, which goes by the lines that each test ran, was tried: it needs a traced
run of all tests first (half as long again), and takes a docstring for code.
"""

import argparse
import ast
import functools
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).resolve().parent
ROOT = TOOLS.parent
FOLDERS = ("transformer", "bookkit", "tools", "tests", "book", "benchmarks")
PAGES = "tests/test_book.py"  # what chapters must keep
APART = ("tests/test_site.py",)  # needs the rendered site


def git(root: Path, *arguments: str) -> list[str] | None:
    """The lines that git prints; None where it cannot."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.splitlines()


def stamp(root: Path) -> Path:
    """Its time is that of the last quick run that passed."""
    return root / ".venv" / ".quick"


def origin(root: Path) -> str | None:
    """The commit from which the branch left main; None without git."""
    for main in ("origin/main", "main"):
        if found := git(root, "merge-base", "HEAD", main):
            return found[0]
    return "HEAD" if git(root, "rev-parse", "HEAD") else None


def changed(root: Path) -> list[str]:
    """The files that changed, relative to the root."""
    differing = git(root, "diff", "--name-only", origin(root) or "HEAD")
    new = git(root, "ls-files", "--others", "--exclude-standard")
    if differing is not None and new is not None:
        return sorted({*differing, *new})
    since = stamp(root).stat().st_mtime if stamp(root).exists() else 0.0
    return sorted(
        path.relative_to(root).as_posix()
        for folder in FOLDERS
        for path in (root / folder).rglob("*")
        if path.is_file() and path.stat().st_mtime > since
    )


def without_docstrings(source: str) -> str:
    """What a source computes: its syntax tree without docstrings and comments."""
    tree = ast.parse(source)
    documented = ast.Module, ast.ClassDef, ast.FunctionDef
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, False) is not None:
            del node.body[0]
    return ast.dump(tree)


def reworded(root: Path, files: list[str]) -> set[str]:
    """The modules of which nothing but docstrings and comments changed."""
    found = set()
    for file in files:
        old = git(root, "show", f"{origin(root)}:{file}") or []
        if file.endswith(".py") and old and (root / file).exists():
            new = (root / file).read_text(encoding="utf-8")
            if without_docstrings("\n".join(old)) == without_docstrings(new):
                found.add(file)
    return found


def imports(path: Path) -> set[str]:
    """Modules and names that a file imports: a.b and, of `from a.b import c`, a.b.c."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
    return found


def origins(root: Path) -> dict[str, str]:
    """Where each name of `transformer` itself comes from: its module."""
    tree = ast.parse((root / "transformer" / "__init__.py").read_text(encoding="utf-8"))
    return {
        f"transformer.{alias.name}": node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def module_name(path: str) -> str:
    """`transformer/training/loss.py` is imported as transformer.training.loss."""
    parts = Path(path).with_suffix("").parts
    parts = parts[1:] if parts[0] in ("tools", "tests") else parts
    return ".".join(part for part in parts if part != "__init__")


def touched(root: Path, files: list[str]) -> dict[str, bool]:
    """The test files that changed, or import what did; whether each is a change's own.

    A test's own change is that of the module or page by whose name it goes.
    """
    same = reworded(root, files)
    modules = {
        module_name(file) for file in files if file.endswith(".py") and file not in same
    }
    names = (Path(file).stem for file in files if file.endswith((".md", ".py")))
    stems = {re.sub(r"^\d+-", "", name).replace("-", "_") for name in names}
    from_package = origins(root)
    chosen = {PAGES: False} if any(file.startswith("book/") for file in files) else {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        name = path.relative_to(root).as_posix()
        used = imports(path)
        used |= {from_package[name] for name in used if name in from_package}
        own = name in files or path.stem[5:] in stems
        if own or used & modules:
            chosen[name] = own
    return {
        name: own
        for name, own in chosen.items()
        if name not in APART and (root / name).exists()
    }


# The rest of this file is a plugin of pytest's, loaded by each of its two processes.

SECONDS = "quick/seconds"  # of each test, when it ran last
_TAKES, _END = pytest.StashKey[float](), pytest.StashKey[float]()
_left: list[str] = []
_took: dict[str, float] = {}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """The change's own tests come first, then the quickest."""
    assert config.cache is not None
    config.stash[_END] = time.monotonic() + float(os.environ["QUICK_SECONDS"])
    known = config.cache.get(SECONDS, {})
    own = os.environ["QUICK_OWN"].split()
    for item in items:
        item.stash[_TAKES] = known.get(item.nodeid, 0.1)
    items.sort(
        key=lambda item: (
            item.nodeid.partition("::")[0] not in own,
            item.stash[_TAKES],
        )
    )


def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Leave out what would end too late, and what needs a browser that is not here."""
    needs_browser = "browser" in getattr(item, "fixturenames", ())
    late = time.monotonic() + item.stash[_TAKES] > item.config.stash[_END]
    if late or (needs_browser and not _has_browser()):
        _left.append(item.nodeid)
        return True
    return None


@functools.cache
def _has_browser() -> bool:
    from browser import find

    return find() is not None


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how long each test takes, its fixtures included."""
    _took[report.nodeid] = _took.get(report.nodeid, 0.0) + report.duration


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """One of two processes tells the first what it left out; the first keeps all."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left"] = _left
        return (yield)
    cache, kept = session.config.cache, stamp(session.config.rootpath)
    assert cache is not None
    cache.set(SECONDS, cache.get(SECONDS, {}) | _took)
    if not _took and session.exitstatus == 0:
        session.exitstatus = 1
    if not _left and session.exitstatus == 0 and kept.parent.is_dir():
        kept.touch()
    return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take what one of the two processes left out."""
    _left.extend(getattr(node, "workeroutput", {}).get("left", []))


def pytest_terminal_summary(
    terminalreporter: Any, exitstatus: int, config: pytest.Config
) -> None:
    """List what was left out, in colours that cannot be overlooked."""
    if _left:
        files = Counter(name.partition("::")[0] for name in _left)
        listed = ", ".join(f"{name} ({count})" for name, count in files.most_common())
        terminalreporter.section(f"{len(_left)} tests LEFT OUT", red=True)
        terminalreporter.line(
            f"{listed}\nThere was no time for them, or no browser (`make chromium` "
            "fetches one). `make test` runs all.",
            red=True,
        )


def main() -> int:
    """Choose, run, and say what was left out."""
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("--seconds", type=float, default=35)
    ask.add_argument("--root", type=Path, default=ROOT, help="the project's folder")
    options = ask.parse_args()
    root = options.root.resolve()
    files = changed(root)
    tests = touched(root, files)
    if not files:
        print("Nothing has changed.")
        return 0
    if not tests:
        print(f"NO TEST RAN: none is for {', '.join(files)}")
        return 1
    names = (name.removeprefix("tests/").removesuffix(".py") for name in tests)
    print(f"{len(tests)} test files:", *names, flush=True)
    environment = os.environ | {
        "QUICK_SECONDS": str(options.seconds),
        "QUICK_OWN": " ".join(name for name, own in tests.items() if own),
        "PYTHONPATH": os.pathsep.join(
            [str(TOOLS), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
    }
    command = [sys.executable, "-m", "pytest", "-q", "--maxfail=5", "-p", "quick"]
    command += ["-p", "xdist", "-n", "2", f"--rootdir={root}"]
    command += [str(root / name) for name in tests]
    return subprocess.run(command, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
