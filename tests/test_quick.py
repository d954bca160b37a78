"""`make quick` in a small project: what it chooses, runs and leaves out."""

import os
import subprocess
import sys
from pathlib import Path

import browser
import pytest
from quick import changed, touched

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


def quick(root: Path, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, str(TOOL), "--root", str(root), *arguments],
        capture_output=True,
        text=True,
        cwd=root,
        env=os.environ
        | {"PYTHONPATH": str(root), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def chosen(root: Path) -> str:
    return " ".join(Path(name).stem for name in touched(root, changed(root)))


def test_it_runs_what_a_change_touches(project: Path) -> None:
    assert "Nothing has changed." in quick(project)
    (project / "transformer" / "wing" / "room.py").touch()
    said = quick(project)
    assert "2 test files: test_direct test_named" in said
    assert "2 passed" in said
    assert "LEFT OUT" not in said
    assert "Nothing has changed." in quick(project)
    os.utime(project / ".venv" / ".quick", (2e9, 2e9))
    os.utime(project / "book" / "04-other.md", (3e9, 3e9))
    assert chosen(project) == "test_other"


def test_what_was_left_out_is_listed_and_a_run_of_nothing_fails(project: Path) -> None:
    """It used to end with "3 skipped" and exit code 0, and not to run them again."""
    for name in ("slow", "direct"):
        (project / "tests" / f"test_{name}.py").touch()
    last = project / ".pytest_cache" / "v" / "quick" / "seconds"
    last.parent.mkdir(parents=True)
    last.write_text('{"tests/test_slow.py::test_d": 100.0}')
    said = quick(project)
    assert "2 passed" in said
    assert "1 tests LEFT OUT" in said
    assert "tests/test_slow.py (1)" in said
    assert "skipped" not in said
    assert "3 tests LEFT OUT" in quick(project, "--seconds", "-1", code=1)
    (project / "tests" / "test_slow.py").write_text("def test_f():\n    assert 0\n")
    quick(project, code=1)


def test_a_change_that_no_test_is_for_is_not_passed_over(project: Path) -> None:
    (project / "tools").mkdir()
    (project / "tools" / "odd.py").write_text("")
    assert "NO TEST RAN: none is for tools/odd.py" in quick(project, code=1)


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
    assert chosen(project) == "test_new test_other"
    git("checkout", "-q", "-f", "main")
    git("update-ref", "refs/remotes/origin/main", "main")  # as a clone has it
    room = project / "transformer" / "wing" / "room.py"
    room.write_text('"""New words alone."""\n\nthing = 1  # they compute nothing\n')
    git("commit", "-q", "-a", "-m", "on main itself")
    (project / "tests" / "test_room.py").write_text("def test_r():\n    pass\n")
    assert chosen(project) == "test_new test_room"
    room.write_text('"""New words alone."""\n\nthing = 2\n')
    assert chosen(project) == "test_direct test_named test_new test_room"


@pytest.mark.parametrize("ci", ["", "true"])
def test_system_packages_are_installed_on_a_ci_machine_alone(
    monkeypatch: pytest.MonkeyPatch, ci: str
) -> None:
    ran: list[list[str]] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess:
        ran.append(command)
        return subprocess.CompletedProcess(command, int("playwright" in command))

    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(browser, "find", lambda: None)
    monkeypatch.setattr(browser.subprocess, "run", run)
    monkeypatch.setattr(browser.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert browser.main() == 1
    assert ran[0][2:4] == ["playwright", "install"]
    assert any("apt-get" in command for command in ran) == bool(ci)
