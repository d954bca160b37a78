"""Run notebooks where nothing of the book is, but a wheel beside them."""

import os
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell
from test_packaging import build_wheel

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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The book's wheel."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


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
