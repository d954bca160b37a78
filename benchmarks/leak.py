"""What a careless split gives away: one model, two ways to put a test set aside.

    python benchmarks/leak.py                    # all sizes, seeds 0, 1 and 2
    python benchmarks/leak.py --sizes 1000 --seeds 0

Each run trains the phrasebook's model on some sentences, drawn either carelessly (any
of the grammar) or carefully (none with a held-out combination). Both are tested on the
same sentences with held-out combinations, none of which either has read, and on
sentences drawn as their own were. One thread, ten minutes in all on one free core.
A finished run is kept at once in benchmarks/results/leak.json and not made again.
Chapter 11 draws a figure from that file.
"""

import argparse
import time

import torch
from race import RESULTS, begun, keep, made_here, one_by_one

from transformer.phrasebook.grammar import (
    phrasebook_examples,
    sample_pairs,
)
from transformer.training.accuracy import exact_match
from transformer.training.config import TrainingConfig
from transformer.training.loop import phrasebook_model, train

SIZES = (300, 1000, 3000, 10_000)
SPLITS = {"careless": None, "careful": False}
SENTENCES_READ = 40_000  # in all, however many different ones there are
TEST_SENTENCES = 1000


def run(split: str, size: int, seed: int) -> dict:
    """Train once; two shares of exact translations, and what it took."""
    pool = sample_pairs(size + 2 * TEST_SENTENCES, 100 + seed, SPLITS[split])
    held_out = sample_pairs(TEST_SENTENCES, seed=200 + seed, held_out=True)
    excluded = set(held_out)
    pool = [pair for pair in pool if pair not in excluded]
    own_test = pool[:TEST_SENTENCES]
    training_set = phrasebook_examples(pool[TEST_SENTENCES : TEST_SENTENCES + size])
    started = time.process_time()
    model = phrasebook_model(seed)
    config = TrainingConfig(epochs=SENTENCES_READ // size, seed=seed)
    steps = sum(1 for _ in train(model, training_set, config))
    return {
        "own_test": round(exact_match(model, phrasebook_examples(own_test)), 4),
        "held_out": round(exact_match(model, phrasebook_examples(held_out)), 4),
        "steps": steps,
        "seconds": round(time.process_time() - started, 1),
    }


def main() -> None:
    """Make the runs that are asked for and not yet there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    choice = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / "leak.json"
    found = begun(path, runs={})
    found |= {
        "command": "python benchmarks/leak.py",
        **made_here(),
        "sentences_read": SENTENCES_READ,
        "test_sentences": TEST_SENTENCES,
    }
    names = [
        f"{split} {size} {seed}"
        for seed in choice.seeds
        for size in choice.sizes
        for split in SPLITS
    ]
    for name in one_by_one([name for name in names if name not in found["runs"]]):
        split, size, seed = name.split()
        result = found["runs"][name] = run(split, int(size), int(seed))
        keep(path, found)
        print("  own test {own_test:.1%}, held out {held_out:.1%}".format(**result))


if __name__ == "__main__":
    main()
