"""Run the tests that a change touches, the quickest first, for 45 seconds.

    python tools/quick.py [--seconds 45]

Changed is what differs from the branch's origin in main, committed or not; where there
is no git, what is younger than the last quick run that passed. A test file is touched
when it changed, when it imports what changed, or when it is the one for a chapter that
did. What did not fit into the time is said: `make test` runs everything.
"""

import argparse
import ast
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
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


def changed(root: Path) -> list[str]:
    """The files that changed, relative to the root."""
    base = git(root, "merge-base", "HEAD", "origin/main") or git(
        root, "merge-base", "HEAD", "main"
    )
    differing = git(root, "diff", "--name-only", base[0] if base else "HEAD")
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


def touched(root: Path, files: list[str]) -> list[str]:
    """The test files that changed, or import what did, directly."""
    modules = {module_name(file) for file in files if file.endswith(".py")}
    pages = (Path(file).stem for file in files if file.endswith(".md"))
    stems = {re.sub(r"^\d+-", "", page).replace("-", "_") for page in pages}
    from_package = origins(root)
    chosen = {PAGES} if any(file.startswith("book/") for file in files) else set()
    for path in sorted((root / "tests").rglob("test_*.py")):
        name = path.relative_to(root).as_posix()
        used = imports(path)
        used |= {from_package[name] for name in used if name in from_package}
        if name in files or used & modules or path.stem[5:] in stems:
            chosen.add(name)
    return [name for name in sorted(chosen - set(APART)) if (root / name).exists()]


class Budget:
    """Runs the quickest tests first and stops when the time is up."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        self.left = 0
        self.known: dict[str, float] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Order by the seconds that each test took when it ran last."""
        assert config.cache is not None
        self.known = config.cache.get("quick/seconds", {})
        items.sort(key=lambda item: self.known.get(item.nodeid, 0.1))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        """Leave out what would end too late."""
        start = time.monotonic()
        if start + self.known.get(item.nodeid, 0.0) > self.end:
            item.add_marker(pytest.mark.skip(reason="no time left"))
            self.left += 1
            return (yield)
        result = yield
        self.known[item.nodeid] = round(time.monotonic() - start, 3)
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Keep the seconds for the next time."""
        assert session.config.cache is not None
        session.config.cache.set("quick/seconds", self.known)


def main() -> int:
    """Choose, run, and say what was left out."""
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("--seconds", type=float, default=45)
    ask.add_argument("--root", type=Path, default=ROOT, help="the project's folder")
    options = ask.parse_args()
    root = options.root.resolve()
    tests = touched(root, changed(root))
    if not tests:
        print("No test is touched.")
        return 0
    names = (name.removeprefix("tests/").removesuffix(".py") for name in tests)
    print(f"{len(tests)} test files:", *names)
    budget = Budget(options.seconds)
    paths = [str(root / name) for name in tests]
    code = pytest.main(["-q", "--maxfail=5", f"--rootdir={root}", *paths], [budget])
    if budget.left:
        print(f"{budget.left} tests did not fit into the time: make test runs them.")
    if code == 0 and stamp(root).parent.is_dir():
        stamp(root).touch()
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
