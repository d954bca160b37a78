"""Recall and translation: the stored run of the workshop page on recurrence.

    python benchmarks/why_attention.py              # seeds 0, 1 and 2
    python benchmarks/why_attention.py --seeds 0

It runs the page's own cells, those tagged `recall` and `translator`, with more
distances, seeds and steps than a page has time for: about half an hour on one core.
Every finished run is kept at once in benchmarks/results/why_attention.json, and a run
that is there already is not made again: stop it and start it as you like.
"""

import argparse
import contextlib
import io
import itertools
import random
from typing import Any

import jupytext
import torch
from race import RESULTS, ROOT, begun, keep, made_here, one_by_one

PAGE = ROOT / "book" / "workshop" / "recurrence.md"

DISTANCES = [2, 4, 8, 12, 16, 24, 32]
KINDS = [
    "RNN",
    "RNN, orthogonal",
    "GRU",
    "LSTM",
    "LSTM, open gate",
    "convolutions",
    "attention",
]
RECURRENT = ["RNN", "RNN, orthogonal", "GRU", "LSTM"]
OTHER_RATES, OTHER_RATES_AT = [0.001, 0.01], [24, 32]
LETTERS_READ = 16
FAR_STEPS, LAST_STEPS = 1000, 2000
TRANSLATORS = {  # size, with attention, steps, learning rate
    "with attention": (20, True, 500, 0.005),
    "with attention, six times": (20, True, 3000, 0.005),
    "without": (22, False, 500, 0.005),
    "without, rate 0.0025": (22, False, 500, 0.0025),
    "without, rate 0.01": (22, False, 500, 0.01),
    "without, rate 0.02": (22, False, 500, 0.02),
    "without, wide": (44, False, 500, 0.005),
    "without, six times": (22, False, 3000, 0.005),
    "without, wide, six times": (44, False, 3000, 0.005),
}


def page_cells(tag: str) -> dict[str, Any]:
    """What the page's cells with this tag define."""
    names: dict[str, Any] = {"random": random, "torch": torch}
    names |= {"nn": torch.nn, "F": torch.nn.functional}
    for cell in jupytext.read(PAGE, fmt="md:myst").cells:
        if tag in cell.metadata.get("tags", []):
            exec(compile(cell.source, str(PAGE), "exec"), names)
    return names


def settings() -> dict[str, Any]:
    """Where and how these numbers were made."""
    return {
        "command": "python benchmarks/why_attention.py",
        **made_here(),
        "parameters": 6000,
        "steps": {"far": FAR_STEPS, "last": LAST_STEPS},
    }


def main() -> None:
    """Make the runs that are missing, one after another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)

    recall = page_cells("recall")
    with contextlib.redirect_stdout(io.StringIO()):  # the page's examples
        translation = page_cells("translator")

    jobs: dict[str, Any] = {}

    def far(kind: str, distance: int, seed: int, rate: float = 0.004) -> Any:
        return recall["train_recall"](kind, distance, True, seed, FAR_STEPS, rate)

    def last(kind: str, seed: int) -> Any:
        return recall["train_recall"](kind, LETTERS_READ, False, seed, LAST_STEPS)

    def translate(name: str, seed: int) -> Any:
        size, with_attention, steps, rate = TRANSLATORS[name]
        train = translation["train_translator"]
        network = train(size, with_attention, seed, steps, rate)
        scores = [translation["evaluate"](network, clauses) for clauses in range(1, 6)]
        words, chains, aligned = zip(*scores, strict=True)
        parameters = sum(p.numel() for p in network.parameters())
        made = {"words": words, "chains": chains, "parameters": parameters}
        return {**made, "aligned": aligned} if with_attention else made

    for seed in seeds:
        for name in TRANSLATORS:
            jobs[f"translator/{name}/{seed}"] = (translate, name, seed)
        for kind in KINDS:
            jobs[f"last/{kind}/{seed}"] = (last, kind, seed)
        for distance in DISTANCES:
            for kind in KINDS:
                jobs[f"far/{kind}/{distance}/{seed}"] = (far, kind, distance, seed)
        for rate, kind, distance in itertools.product(
            OTHER_RATES, RECURRENT, OTHER_RATES_AT
        ):
            name = f"far/{kind}, rate {rate}/{distance}/{seed}"
            jobs[name] = (far, kind, distance, seed, rate)

    path = RESULTS / "why_attention.json"
    stored = begun(path, runs={})
    for job in one_by_one([job for job in jobs if job not in stored["runs"]]):
        function, *arguments = jobs[job]
        made = function(*arguments)
        stored = {"settings": settings(), "runs": {**stored["runs"], job: made}}
        keep(path, rounded(stored))


def rounded(value: Any) -> Any:
    """The same, floats to four decimals."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return round(value, 4) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
