"""Run contestants in turns, so that whatever else the machine does falls on all alike.

A contestant is a process of its own: it builds its model once, and then takes a turn
whenever it is asked to. Only one runs at a time. Ratios are taken round by round,
between neighbours in time, and reported as median, lowest and highest.
"""

import datetime
import importlib.metadata
import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
# Keep freed memory instead of handing it back to the system between two steps.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184"}
Turn = Callable[[], int]  # do the work once, and say how many tokens that was


def processor() -> str:
    """The name of this machine's processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def caches() -> dict[str, str]:
    """The sizes of one core's caches, where Linux says them."""
    found = {}
    for place in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (
            (place / name).read_text().strip() for name in ("level", "type", "size")
        )
        if kind != "Instruction":
            found[f"L{level}"] = size
    return found


def accelerator(device: Any) -> dict[str, Any]:
    """The name of a torch.device's GPU, its memory and libraries."""
    if device.type != "cuda":
        return {"device": device.type}
    import torch

    of = torch.cuda.get_device_properties(device)
    return {
        "device": of.name,
        "memory_gb": round(of.total_memory / 1e9, 1),
        "capability": f"{of.major}.{of.minor}",
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }


def made(threads: Sequence[int], minutes: float, note: str) -> dict[str, Any]:
    """Where, when and with what a benchmark ran."""
    versions = {}
    for name in ("torch", "transformers", "x-transformers", "ctranslate2"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "date": datetime.date.today().isoformat(),
        "command": " ".join(["python", *sys.argv]),
        "processor": processor(),
        "cores": os.cpu_count(),
        "caches": caches(),
        "threads": list(threads),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions,
        "minutes": round(minutes, 1),
        "note": note,
    }


def made_here() -> dict[str, Any]:
    """When, where and with what something was measured, on one thread."""
    return {
        "date": datetime.date.today().isoformat(),
        "hardware": f"{processor()}, one thread",
        "versions": {
            "python": platform.python_version(),
            "torch": importlib.metadata.version("torch"),
        },
    }


class Contestant:
    """A process that takes a turn when asked: `python script --serve '{…}'`."""

    def __init__(
        self, script: str, task: Mapping[str, Any], threads: int, keep_memory: bool
    ) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
        env |= {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
        if keep_memory:
            env |= KEEP_MEMORY
        self.turns: list[dict[str, float]] = []
        self.process = subprocess.Popen(
            [
                sys.executable,
                script,
                "--serve",
                json.dumps({**task, "threads": threads}),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        self.notes = self.receive()

    def receive(self) -> dict[str, Any]:
        """The next line of results; what libraries print is passed by."""
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        raise RuntimeError(f"a contestant died: {self.process.args}")

    def turn(self) -> dict[str, Any]:
        """One turn: its seconds and tokens."""
        assert self.process.stdin
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self.receive()

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def serve(turn: Turn, notes: Mapping[str, Any]) -> None:
    """The other end of a Contestant: warm up, then a turn for each line.

    Before each turn the work is done once unmeasured: while others ran, the system may
    have taken memory and caches away, and getting them back is nobody's speed.
    """
    turn()
    send(notes)
    for _ in sys.stdin:
        turn()
        started = time.perf_counter()
        tokens = turn()
        send(
            {
                "seconds": time.perf_counter() - started,
                "tokens": tokens,
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
        )


def send(what: Mapping[str, Any]) -> None:
    """One line to whoever asked."""
    print(json.dumps(dict(what)), flush=True)


def race(
    script: str,
    tasks: Mapping[str, Mapping[str, Any]],
    threads: int,
    keep_memory: bool,
    rounds: int,
) -> dict[str, dict[str, Any]]:
    """All contestants in turns; what each did in every round."""
    field: dict[str, Contestant] = {}
    try:
        for name, task in tasks.items():
            try:
                field[name] = Contestant(script, task, threads, keep_memory)
            except RuntimeError as error:
                print(f"  {name}: {error}", file=sys.stderr)
        for round_ in range(rounds):
            order = list(field)  # another one begins each round
            for name in order[round_ % len(order) :] + order[: round_ % len(order)]:
                field[name].turns.append(field[name].turn())
    finally:
        for one in field.values():
            one.close()
    return {name: summary(one.turns, one.notes) for name, one in field.items()}


def summary(
    turns: Sequence[Mapping[str, float]], notes: Mapping[str, Any]
) -> dict[str, Any]:
    """Tokens a second of every round, their median, and the peak of memory."""
    speeds = [turn["tokens"] / turn["seconds"] for turn in turns]
    return {
        **notes,
        "tokens_per_second": round(statistics.median(speeds), 1),
        "rounds": [round(speed, 1) for speed in speeds],
        "peak_mb": round(max(turn["peak_mb"] for turn in turns)),
    }


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """How many times as fast, round by round: median, lowest, highest."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return {
        "median": round(statistics.median(ratios), 2),
        "low": round(min(ratios), 2),
        "high": round(max(ratios), 2),
    }


def ratios(
    field: Mapping[str, Mapping[str, Any]], ours: str
) -> dict[str, dict[str, float]]:
    """How many times as fast `ours` is as each other contestant."""
    if ours not in field:
        return {}
    mine = field[ours]["rounds"]
    return {
        name: ratio(mine, one["rounds"]) for name, one in field.items() if name != ours
    }


def lines(field: Mapping[str, Mapping[str, Any]], ours: str) -> Iterator[str]:
    """A line for each contestant, to be read while the benchmark runs."""
    found = ratios(field, ours)
    for name, one in sorted(field.items(), key=lambda x: -x[1]["tokens_per_second"]):
        speed, peak = one["tokens_per_second"], one["peak_mb"]
        line = f"  {speed:9,.0f} tokens/s {peak:6,} MB  {name}"
        if name in found:
            line += "  (ours {median:.2f}×, {low:.2f} to {high:.2f})".format(
                **found[name]
            )
        yield line


def one_by_one(jobs: Sequence[str]) -> Iterator[str]:
    """Each job in turn; when it is over, how long the others will take."""
    started = time.monotonic()
    for done, job in enumerate(jobs, start=1):
        yield job
        left = (time.monotonic() - started) / done * (len(jobs) - done)
        print(f"{done}/{len(jobs)} {job}: about {left / 60:.0f} min left", flush=True)


def write(name: str, results: Mapping[str, Any]) -> None:
    """Put results where chapters find them."""
    keep(RESULTS / f"{name}.json", results)


def begun(path: Path, **empty: Any) -> dict[str, Any]:
    """The results that a file has already, or those that it begins with."""
    return json.loads(path.read_text("utf-8")) if path.exists() else empty


def keep(path: Path, found: Mapping[str, Any]) -> None:
    """Write results whole, or leave the old ones; numbers in a row are one line."""
    from transformer.weights.files import write_atomically  # which imports torch

    text = json.dumps(found, indent=1, ensure_ascii=False)
    text = re.sub(r"(?<=\d),\n\s+(?=[\d-])", ", ", text)
    write_atomically(path, f"{text}\n".encode())
