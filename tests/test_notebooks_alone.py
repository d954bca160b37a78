"""What the wheel holds; notebooks run where nothing of the book is but the wheel."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell

ROOT = Path(__file__).resolve().parent.parent
# It draws and reads stored results.
NOTEBOOKS = ["01-why-attention"]
# An editable installation finds the checkout from anywhere: a kernel here must not.
NO_CHECKOUT = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "__editable__" not in str(f)]
"""
WHERE = """
import bookkit, bookkit.stored, transformer
print(*(each.__file__ for each in (bookkit, transformer)), bookkit.stored.FOLDER)
"""

pytestmark = pytest.mark.plain


NOT_SOURCE = (".*", "_build", "build", "mutants", "__pycache__", "*.egg-info")


def run(*command: str | Path, cwd: Path) -> None:
    subprocess.run([sys.executable, *map(str, command)], check=True, cwd=cwd)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution's files, as pip would unpack them."""
    backend = pytest.importorskip("setuptools")
    if int(backend.__version__.partition(".")[0]) < 77:
        pytest.skip("the setuptools here is older than the build needs")
    folder = tmp_path_factory.mktemp("sdist")
    copy = folder / "copy"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*NOT_SOURCE))
    build = "import sys, setuptools.build_meta as b; b.build_sdist(sys.argv[1])"
    run("-c", build, folder, cwd=copy)
    shutil.rmtree(copy)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The book's wheel, built from nothing but the source distribution."""
    out = tmp_path_factory.mktemp("wheel")
    options = "--quiet --no-deps --no-build-isolation --disable-pip-version-check"
    run("-m", "pip", "wheel", *options.split(), "-w", out, sdist, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files."""
    site = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(site)
    return site


def test_the_sdist_holds_the_source_of_every_module(sdist: Path) -> None:
    for path in (ROOT / "transformer").rglob("*.py"):
        first = re.search(r"Made from (book/\S+): edit", path.read_text("utf-8"))
        if first:
            assert (sdist / first[1]).exists(), f"{path} is made from {first[1]}"
    for name in ("tools/tangle.py", "tests/conftest.py", "Makefile", "_toc.yml"):
        assert (sdist / name).exists(), name


def test_the_wheel_holds_what_it_needs(unpacked: Path) -> None:
    for top in ("transformer", "bookkit"):
        for path in (ROOT / top).rglob("*"):
            kinds = ".css .html .js .mplstyle .py .safetensors .txt .typed"
            if path.suffix in kinds.split():
                assert (unpacked / path.relative_to(ROOT)).exists(), path


def test_the_wheel_explores_without_what_draws_the_book(
    unpacked: Path, tmp_path: Path
) -> None:
    code = f"""{NO_CHECKOUT}
for name in ("bookkit", "IPython", "matplotlib"):
    sys.modules[name] = None
from transformer.cli import main
print(sys.modules["transformer"].__file__)
sys.exit(main(["explore", "--out", "page.html"]))
"""
    environment = {**os.environ, "PYTHONPATH": str(unpacked)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert str(unpacked) in done.stdout
    assert "engine" in (tmp_path / "page.html").read_text("utf-8")


def test_stored_results_are_found_in_the_wheel(unpacked: Path) -> None:
    spec = importlib.util.spec_from_file_location(
        "stored_in_the_wheel", unpacked / "bookkit" / "stored.py"
    )
    stored = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stored)
    assert stored.FOLDER.is_relative_to(unpacked)
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        assert stored.results(path.stem) == json.loads(path.read_text("utf-8"))
    with pytest.raises(ValueError, match="no results are stored as 'nothing'"):
        stored.results("nothing")


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_installs_what_it_needs_and_runs(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    notebook = nbformat.read(ROOT / "book" / "notebooks" / f"{name}.ipynb", 4)
    (first, *_) = (cell for cell in notebook.cells if cell.cell_type == "code")
    assert first.id == "install"
    notebook.cells.append(new_code_cell(WHERE))
    home, start, target = (tmp_path / n for n in ("home", "start", "installed"))
    for folder in (home, start, target):
        folder.mkdir()
    shutil.copy(wheel, home)
    (start / "sitecustomize.py").write_text(NO_CHECKOUT)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (start, target))))
    # pip itself, into a folder; what the wheel needs is in this environment already.
    monkeypatch.setenv("PIP_TARGET", str(target))
    for option in ("NO_DEPS", "NO_INDEX", "DISABLE_PIP_VERSION_CHECK"):
        monkeypatch.setenv(f"PIP_{option}", "1")
    place = {"metadata": {"path": str(home)}}
    NotebookClient(notebook, timeout=600, resources=place).execute()
    said = "".join(output.get("text", "") for output in first.outputs)
    assert "is missing here: installing" in said
    found = notebook.cells[-1].outputs[0].text.split()
    assert len(found) == 3
    assert all(Path(path).is_relative_to(target) for path in found)
    claims = [c for c in notebook.cells if "claim" in c.metadata.get("tags", [])]
    assert claims
    assert all(claim.execution_count for claim in claims)
