"""`make quick` in a small project: what it chooses, runs and leaves out."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from quick import touched

ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT / "tools" / "quick.py"
FILES = {
    "transformer/__init__.py": "from transformer.wing.room import thing\n",
    "transformer/wing/__init__.py": "",
    "transformer/wing/room.py": "thing = 1\n",
    "transformer/other.py": "",
    "book/04-other.md": "# Other\n",
    "pyproject.toml": "[tool.pytest.ini_options]\n",
    ".venv/.quick": "",
    "tests/test_direct.py": "def test_a():\n    import transformer.wing.room\n",
    "tests/test_named.py": "from transformer import thing\n\ndef test_b():\n    pass\n",
    "tests/test_other.py": "def test_c():\n    pass\n",
    "tests/test_slow.py": "def test_d():\n    pass\n\ndef test_e():\n    pass\n",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project without git; nothing has changed since the last quick run."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (1e9, 1e9))
    return tmp_path


def quick(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(TOOL), "--root", str(root), *arguments],
        capture_output=True,
        text=True,
        cwd=root,
        env=os.environ
        | {"PYTHONPATH": str(root), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_runs_what_a_change_touches_and_leaves_out_what_takes_too_long(
    project: Path,
) -> None:
    assert "No test is touched." in quick(project)
    (project / "transformer" / "wing" / "room.py").touch()
    assert "2 test files: test_direct test_named" in quick(project)
    assert "No test is touched." in quick(project)
    os.utime(project / ".venv" / ".quick", (2e9, 2e9))
    (project / "book" / "04-other.md").touch()
    os.utime(project / "book" / "04-other.md", (3e9, 3e9))
    assert "1 test files: test_other" in quick(project)
    os.utime(project / "tests" / "test_slow.py", (9e9, 9e9))
    assert "3 passed" in quick(project)
    late = quick(project, "--seconds", "0")
    assert "3 tests did not fit into the time: make test runs them." in late


def test_a_page_without_a_number_has_its_tests() -> None:
    for page, name in (("how-to", "how_to"), ("workshop/checks", "checks")):
        assert f"tests/test_{name}.py" in touched(ROOT, [f"book/{page}.md"])


def test_with_git_it_goes_by_what_differs(project: Path) -> None:
    def git(*arguments: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *arguments], cwd=project, check=True)

    try:
        git("init", "-q", "-b", "main")
    except FileNotFoundError:
        pytest.skip("no git here")
    git("add", "-A")
    git("commit", "-q", "-m", "all")
    git("checkout", "-q", "-b", "branch")
    (project / "tests" / "test_other.py").write_text("def test_c():\n    assert 1\n")
    git("commit", "-q", "-a", "-m", "one")
    (project / "tests" / "test_new.py").write_text("def test_n():\n    pass\n")
    assert "2 test files: test_new test_other" in quick(project)
    git("checkout", "-q", "-f", "main")
    git("update-ref", "refs/remotes/origin/main", "main")  # as a clone has it
    (project / "tests" / "test_direct.py").write_text("def test_a():\n    assert 1\n")
    git("commit", "-q", "-a", "-m", "on main itself")
    assert "test_direct" in quick(project)
