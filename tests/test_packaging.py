"""What is declared, and what a wheel holds."""

import ast
import importlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
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
    homes = packages_distributions()
    undeclared = set()
    for path in files:
        for name in imported(code_of(path)) - LOCAL - set(sys.stdlib_module_names):
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
    homes = packages_distributions()
    known = declared(["book"])
    for path in (ROOT / "book" / "notebooks").rglob("*.ipynb"):
        for name in imported(code_of(path)) - LOCAL - set(sys.stdlib_module_names):
            assert {home.lower() for home in homes[name]} & known, (path.stem, name)


def test_every_folder_of_the_package_is_packed() -> None:
    packages = set(PROJECT["tool"]["setuptools"]["packages"])
    for top in ("transformer", "bookkit"):
        for init in (ROOT / top).rglob("__init__.py"):
            name = ".".join(init.parent.relative_to(ROOT).parts)
            assert name in packages, f"{name} is missing from pyproject's packages"


def test_constraints_name_everything_that_is_declared() -> None:
    wanted = declared(["train", "book", "dev"])
    for file in ("constraints.txt", "constraints-oldest.txt"):
        lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
        pinned = {name_of(line) for line in lines if line[:1] not in ("", "#")}
        assert sorted(wanted - pinned) == [], file


def build_wheel(folder: Path) -> Path:
    """The wheel, built from a copy of what it is made of."""
    backend = pytest.importorskip("setuptools")
    if int(backend.__version__.partition(".")[0]) < 77:
        pytest.skip("the setuptools here is older than the build needs")
    source, out = folder / "source", folder / "out"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "LICENSE-TEXT"):
        shutil.copy(ROOT / name, source)
    for name in ("transformer", "bookkit", "benchmarks/results"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--disable-pip-version-check", "-w", str(out)]
    subprocess.run([*command, str(source)], check=True)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    zipfile.ZipFile(build_wheel(folder)).extractall(folder / "site")
    return folder / "site"


def test_the_wheel_holds_what_it_needs(wheel: Path) -> None:
    for top in ("transformer", "bookkit"):
        for path in (ROOT / top).rglob("*"):
            kinds = ".css .html .js .mplstyle .py .safetensors .txt .typed"
            if path.suffix in kinds.split():
                assert (wheel / path.relative_to(ROOT)).exists(), path


def test_stored_results_are_found_in_the_wheel(wheel: Path) -> None:
    spec = importlib.util.spec_from_file_location(
        "stored_in_the_wheel", wheel / "bookkit" / "stored.py"
    )
    stored = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stored)
    assert stored.FOLDER.is_relative_to(wheel)
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        assert stored.results(path.stem) == json.loads(path.read_text("utf-8"))
    with pytest.raises(ValueError, match="no results are stored as 'nothing'"):
        stored.results("nothing")


WITHOUT = """
import sys, traceback
for missing in ("IPython", "matplotlib"):
    for name in [each for each in sys.modules if each.startswith("bookkit")]:
        del sys.modules[name]
    sys.modules[missing] = None
    try:
        from bookkit import show
    except ImportError:
        traceback.print_exc()
    del sys.modules[missing]
"""


def test_bookkit_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], cwd=ROOT, capture_output=True, text=True
    )
    said = [line for line in done.stderr.splitlines() if line[:1].strip()]
    assert said == [
        line
        for missing in ("IPython", "matplotlib")
        for line in (
            "Traceback (most recent call last):",
            f"ImportError: bookkit needs {missing}: "
            "pip install 'tested-transformer[book]'",
        )
    ]


def test_the_version_is_that_of_pyproject() -> None:
    assert transformer.__version__ == PROJECT["project"]["version"]


def test_the_command_is_where_pyproject_says() -> None:
    (target,) = PROJECT["project"]["scripts"].values()
    module, _, function = target.partition(":")
    assert callable(getattr(importlib.import_module(module), function))
