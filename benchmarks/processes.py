"""Two threads or two processes: which trains faster on two cores?

    python benchmarks/processes.py --data FOLDER      # two minutes, on a quiet machine

Each way begins the training of chapter 16 and is stopped after some steps. Written to
benchmarks/results/processes.json, from which chapter 15 draws; with another --out, to
that file beside it.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from race import made, write  # noqa: E402

from transformer.training.run_folder import read_metrics  # noqa: E402

WAYS = {  # threads of a process, processes
    "one thread": (1, 1),
    "two threads": (2, 1),
    "two processes": (1, 2),
}
WARM = 20  # steps that are not counted


def command(processes: int) -> list[str]:
    """How to begin a training."""
    module = ["-m", "transformer"]
    if processes > 1:
        module = ["-m", "torch.distributed.run", "--standalone"]
        module += ["--nproc-per-node", str(processes), "-m", "transformer"]
    return [sys.executable, *module, "train", "--device", "cpu"]


def pace(threads: int, processes: int, flags: Sequence[str], steps: int) -> float:
    """Target tokens a second, all processes together."""
    with tempfile.TemporaryDirectory() as folder:
        training = subprocess.Popen(
            [*command(processes), *flags, "--out", folder],
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            while len(found := read_metrics(folder)) <= WARM + steps:
                if training.poll() is not None:
                    raise RuntimeError(f"the training ended: {training.args}")
                time.sleep(0.2)
        finally:
            if training.poll() is None:
                os.killpg(training.pid, signal.SIGKILL)
            training.wait()
    counted = found[WARM : WARM + steps]
    tokens = sum(metrics.target_tokens for metrics in counted)
    return tokens / (counted[-1].seconds - found[WARM - 1].seconds)


def main() -> None:
    """Measure each way in turns, and write it all down."""
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("--data", default=os.environ.get("MULTI30K"))
    ask.add_argument("--steps", type=int, default=40)
    ask.add_argument("--rounds", type=int, default=2)
    ask.add_argument("--preset", default="tiny")
    ask.add_argument("--languages", nargs=2, default=["en", "de"])
    ask.add_argument("--out", default="processes")
    options = ask.parse_args()
    source, target = options.languages
    flags = ["--preset", options.preset, "--precision", "float32"]
    flags += ["--source", source, "--target", target]
    flags += ["--data", options.data] if options.data else []
    started = time.perf_counter()
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(options.rounds):
        for name, (threads, processes) in WAYS.items():
            found[name].append(round(pace(threads, processes, flags, options.steps), 1))
            print(f"{name:14} {found[name][-1]:8,.0f} target tokens/s", flush=True)
    minutes = (time.perf_counter() - started) / 60
    write(options.out, {"made": made([1, 2], minutes, ""), "ways": found})


if __name__ == "__main__":
    main()
