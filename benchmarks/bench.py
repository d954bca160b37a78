"""`make bench`: install the others, race against them, draw what came of it.

    python benchmarks/bench.py            # an hour or two, on a quiet machine
    python benchmarks/bench.py --quick    # tiny models alone, one thread, few rounds
    python benchmarks/bench.py --smoke    # smaller still, one round: does it still run?
    python benchmarks/bench.py --draw     # draw your results again

What was measured goes to benchmarks/results/here/, and chapter 15 shows it beside what
is stored. The others go into a virtual environment of their own, benchmarks/.venv,
which sees this one's PyTorch, so that all run on the same.
"""

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
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


def name_of(run: dict[str, Any]) -> str:
    """What a race was about, in a few words."""
    if "beams" in run:
        way = f"beam {run['beams']}" if run["beams"] else "sampling"
        of = f"batch {run['batch']}, {way}, {run['length']} words"
    else:
        of = f"{run['size']}, {'bf16' if run['bf16'] else 'float32'}"
        of += ", memory kept" if run["kept"] else ", as shipped"
        of += "" if run["in_order"] else ", shuffled"
    return f"{of}, {run['threads']} thread{'s' * (run['threads'] > 1)}"


def draw(name: str) -> None:
    """A row for each race, a mark for each other contestant: how far ours is ahead."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    stored = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    runs = stored["runs"][::-1]
    others = sorted({other for run in runs for other in run["ahead"]})
    figure, ax = plt.subplots(figsize=(9, 1 + 0.3 * len(runs)))
    for index, other in enumerate(others):
        rows = [(row, run["ahead"].get(other)) for row, run in enumerate(runs)]
        rows = [(row, ahead) for row, ahead in rows if ahead]
        middle = [ahead["median"] for _, ahead in rows]
        spread = [
            [ahead["median"] - ahead["low"] for _, ahead in rows],
            [ahead["high"] - ahead["median"] for _, ahead in rows],
        ]
        at = [row + 0.08 * (index - len(others) / 2) for row, _ in rows]
        ax.errorbar(middle, at, xerr=spread, fmt="o", markersize=4, label=other)
    ax.axvline(1.0, color="black", linewidth=1)
    ax.set_xscale("log")
    ax.set_yticks(range(len(runs)), [name_of(run) for run in runs])
    ax.set_xlabel("ours is so many times as fast (median, lowest and highest round)")
    made = stored["made"]
    ax.set_title(f"{name}: {made['processor']}, {made['date']}")
    ax.legend(fontsize=8)
    figure.tight_layout()
    plt.rcParams["svg.hashsalt"] = "bench"
    figure.savefig(RESULTS / f"{name}.svg", metadata={"Date": None})
    print(f"drew {RESULTS / name}.svg")


def main() -> None:
    """Install, race, draw."""
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument(
        "--quick", action="store_true", help="tiny, one thread, few rounds"
    )
    ask.add_argument("--smoke", action="store_true", help="smallest, one round")
    ask.add_argument("--draw", action="store_true", help="only draw it again")
    options = ask.parse_args()
    name = "here/smoke-{}" if options.smoke else "here/{}"
    if not options.draw:
        python = install()
        few = ["--sizes", "tiny", "--threads", "1", "--rounds", "3"]
        if options.smoke:
            few = ["--sizes", "smoke", "--threads", "1", "--rounds", "1"]
        less = few if options.quick or options.smoke else []
        runs = {"training": less, "decoding": less}
        runs["sampling"] = [*less, "--beams", "0"]
        runs["compiled"] = [*few, "--only", "compiled"]
        if options.smoke:
            runs["decoding"] = [*less, "--lengths", "16"]
            del runs["compiled"], runs["sampling"]  # take minutes
        for what, arguments in runs.items():
            script = HERE / (
                "training.py" if what in ("training", "compiled") else "decoding.py"
            )
            command = [python, str(script), *arguments, "--out", name.format(what)]
            subprocess.run(command, check=True)
    for what in ("training", "decoding"):
        draw(name.format(what))


if __name__ == "__main__":
    sys.exit(main())
