"""`make bench`: install the others, and race against them.

    python benchmarks/bench.py            # an hour or two, on a quiet machine
    python benchmarks/bench.py --quick    # tiny models alone, one thread, few rounds
    python benchmarks/bench.py --smoke    # smaller still, one round: does it still run?

What was measured goes to benchmarks/results/here/, and chapter 15 draws its training
beside what is stored. The others go into a virtual environment of their own,
benchmarks/.venv, which sees this one's PyTorch, so that all run on the same.
"""

import argparse
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
THERE = HERE / ".venv"


def install() -> str:
    """A virtual environment with the others in it; the path of its Python."""
    python = THERE / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    needed, note = (HERE / "requirements.txt").read_text("utf-8"), THERE / ".installed"
    if not note.is_file() or note.read_text("utf-8") != needed:
        print(f"Installing the others into {THERE}: a few minutes the first time.")
        venv.create(THERE, with_pip=True, symlinks=os.name != "nt")
        ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
        found = subprocess.run(
            [python, "-c", ask], check=True, capture_output=True, text=True
        )
        ours = Path(found.stdout.strip()) / "ours.pth"
        ours.write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
        quiet = ("--quiet", "--disable-pip-version-check")
        names = ("--requirement", str(HERE / "requirements.txt"))
        subprocess.run([python, "-m", "pip", "install", *quiet, *names], check=True)
        note.write_text(needed, "utf-8")
    return str(python)


def main() -> None:
    """Install, race."""
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument(
        "--quick", action="store_true", help="tiny, one thread, few rounds"
    )
    ask.add_argument("--smoke", action="store_true", help="smallest, one round")
    options = ask.parse_args()
    python, less, name = install(), [], "here/{}"
    if options.quick:
        less = ["--sizes", "tiny", "--threads", "1", "--rounds", "3"]
    if options.smoke:
        name = "here/smoke-{}"
        less = ["--sizes", "smoke", "--threads", "1", "--rounds", "1"]
    for what in ("training", "decoding"):
        command = [python, str(HERE / f"{what}.py"), *less, "--out", name.format(what)]
        if options.smoke and what == "decoding":
            command += ["--lengths", "16"]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    sys.exit(main())
