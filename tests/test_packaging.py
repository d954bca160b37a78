"""What is declared, and what a wheel holds."""

import ast
import functools
import json
import re
import sys
import tomllib
import warnings
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import transformer

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
NEEDS = {  # what may be imported where
    "transformer": ["train"],
    "bookkit": ["book"],
    "book": ["train", "book"],
    "tools": ["book", "dev"],
    "tests": ["train", "book", "dev"],
    "benchmarks": ["train", "book", "benchmarks"],
}
LOCAL = {"transformer", "bookkit", "tests", "tools", "benchmarks"}


def name_of(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")


def declared(extras: list[str]) -> set[str]:
    found = [*PROJECT["project"]["dependencies"]]
    for extra in extras:
        if extra == "benchmarks":
            lines = (ROOT / "benchmarks" / "requirements.txt").read_text().splitlines()
            found += [line for line in lines if line and not line.startswith("#")]
        else:
            found += EXTRAS[extra]
    return {name_of(requirement) for requirement in found}


def imported(source: str) -> set[str]:
    """The packages that a source imports, wherever it does."""
    nodes = list(ast.walk(ast.parse(source)))
    return {
        name.partition(".")[0]
        for node in nodes
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module]
            if isinstance(node, ast.ImportFrom) and node.module and not node.level
            else []
        )
    }


@functools.cache
def imports_of(path: Path) -> set[str]:
    """The packages that a module or a notebook imports."""
    return imported(code_of(path)) - LOCAL - set(sys.stdlib_module_names)


homes_of_packages = functools.cache(packages_distributions)


def code_of(path: Path) -> str:
    if path.suffix == ".py":
        return path.read_text(encoding="utf-8")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    return "\n".join(
        line for line in "\n".join(code).splitlines() if "%pip" not in line
    )


@pytest.mark.parametrize("folder", NEEDS)
def test_every_import_is_declared(folder: str) -> None:
    files = [
        path
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".ipynb") and ".venv" not in path.parts
    ]
    known = declared(NEEDS[folder])
    homes = homes_of_packages()
    undeclared = set()
    for path in files:
        for name in imports_of(path):
            ours = f"{name}.py" in {file.name for file in files} or any(
                (ROOT / place / f"{name}.py").exists()
                for place in ("tools", "tests", "benchmarks", "book/_ext")
            )
            offers = {home.lower().replace("_", "-") for home in homes.get(name, [])}
            offers.add(name.lower().replace("_", "-"))
            if not ours and not offers & known:
                undeclared.add(f"{path.relative_to(ROOT)}: {name}")
    assert not undeclared


def test_notebooks_need_the_extra_book_alone() -> None:
    """And what the package offers with `[train]` is asked for by name, not imported."""
    assert set(EXTRAS["train"]) <= set(EXTRAS["book"])
    homes = homes_of_packages()
    known = declared(["book"])
    for path in (ROOT / "book" / "notebooks").rglob("*.ipynb"):
        for name in imports_of(path):
            assert {home.lower() for home in homes[name]} & known, (path.stem, name)


def test_every_folder_of_the_package_is_packed() -> None:
    packages = set(PROJECT["tool"]["setuptools"]["packages"])
    for top in ("transformer", "bookkit"):
        for init in (ROOT / top).rglob("__init__.py"):
            name = ".".join(init.parent.relative_to(ROOT).parts)
            assert name in packages, f"{name} is missing from pyproject's packages"


def test_contributors_are_told_what_each_folder_of_the_package_is_for() -> None:
    told = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for init in (ROOT / "transformer").glob("*/__init__.py"):
        assert f"`transformer/{init.parent.name}/`" in told, init.parent.name


def test_constraints_name_everything_that_is_declared() -> None:
    wanted = declared(["train", "book", "dev"])
    for file in ("constraints.txt", "constraints-oldest.txt"):
        lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
        pinned = {name_of(line) for line in lines if line[:1] not in ("", "#")}
        assert sorted(wanted - pinned) == [], file


def test_bookkit_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def parts_of(package: str) -> list[str]:
        return [name for name in sys.modules if name.partition(".")[0] == package]

    for missing in ("IPython", "matplotlib"):
        with monkeypatch.context() as without:
            for name in parts_of("bookkit"):
                without.delitem(sys.modules, name)
            for name in {missing, *parts_of(missing)}:
                without.setitem(sys.modules, name, None)
            with pytest.raises(ImportError) as caught:
                from bookkit import show  # noqa: F401
            for name in parts_of("bookkit"):
                del sys.modules[name]
        assert str(caught.value) == (
            f"bookkit needs {missing}: pip install 'tested-transformer[book]'"
        )
        assert caught.value.__suppress_context__  # that is all


def test_the_version_is_that_of_pyproject() -> None:
    assert transformer.__version__ == PROJECT["project"]["version"]


def test_torchs_warning_about_python_3_13_0_fails_no_test() -> None:
    warnings.warn(
        "Guards may run slower on Python 3.13.0. Consider upgrading to Python 3.13.1+.",
        RuntimeWarning,
        stacklevel=1,
    )


def test_the_citation_and_the_changes_are_of_this_version() -> None:
    version = transformer.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"Version {version} " in (ROOT / "CHANGELOG.md").read_text("utf-8")
