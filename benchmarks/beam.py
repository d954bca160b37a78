"""What a wide beam finds in an unsure model, with and without a length penalty.

    python benchmarks/beam.py            # seeds 0, 1, 2: ten minutes on one core
    python benchmarks/beam.py --seeds 0

Each model learns the phrasebook from a fifth of its sentences, read once, and then
translates held-out ones with beams of 1 to 32. Chapter 13 draws its figure from
benchmarks/results/beam.json, which this writes.
"""

import argparse
import datetime
import json
import platform
import time

import torch
from race import RESULTS, keep, one_by_one, processor

from transformer.decoding.beam import beam_search
from transformer.model import Transformer
from transformer.phrasebook.grammar import phrasebook_examples, sample_pairs
from transformer.training.config import TrainingConfig
from transformer.training.loop import phrasebook_model, train

SENTENCES, TESTS = 10_000, 300
BEAM_SIZES, PENALTIES = (1, 2, 4, 8, 16, 32), (0.0, 0.6)
LONGEST = 31  # eos needs the last of the model's 32 positions


@torch.inference_mode()
def log_probability(model: Transformer, source: list[int], target: list[int]) -> float:
    """The log-probability of a whole translation, eos included."""
    bos, eos = model.config.bos_id, model.config.eos_id
    logits = model(torch.tensor([source]), torch.tensor([[bos, *target]]))[0]
    log_probabilities = logits.log_softmax(dim=-1)
    labels = torch.tensor([*target, eos])[:, None]
    return log_probabilities.gather(1, labels).sum().item()


def measure(model: Transformer, examples: list, size: int, alpha: float) -> dict:
    """One beam size and penalty, over all the examples."""
    sources = [source for source, _ in examples]
    found = beam_search(model, sources, LONGEST, size, alpha)
    targets = [target for _, target in examples]
    pairs = list(zip(found, targets, strict=True))
    totals = [
        log_probability(model, source, ids)
        for source, ids in zip(sources, found, strict=True)
    ]
    return {
        "beam_size": size,
        "length_penalty": alpha,
        "exact": sum(ours == target for ours, target in pairs) / len(pairs),
        "length": sum(map(len, found)) / sum(map(len, targets)),
        "log_probability": sum(totals) / len(totals),
        "empty": sum(not ids for ids in found),
        "cut": sum(len(ids) == LONGEST for ids in found),
    }


def main() -> None:
    """Train, search, write."""
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    seeds = ask.parse_args().seeds
    torch.set_num_threads(1)
    examples = phrasebook_examples(sample_pairs(TESTS, 13, held_out=True))
    runs, started = [], time.perf_counter()
    for seed in map(int, one_by_one([*map(str, seeds)])):
        model = phrasebook_model(seed)
        config = TrainingConfig(epochs=1, warmup_steps=100, seed=seed)
        sentences = phrasebook_examples(sample_pairs(SENTENCES, seed))
        for step in train(model, sentences, config):
            if step.step % 50 == 0:
                print(f"seed {seed}: step {step.step} of {step.total_steps}")
        model.eval()
        for size in BEAM_SIZES:
            for alpha in PENALTIES:
                run = {"seed": seed, **measure(model, examples, size, alpha)}
                runs.append(run)
                print(json.dumps(run))
    made = {
        "command": "python benchmarks/beam.py",
        "date": datetime.date.today().isoformat(),
        "processor": processor(),
        "threads": 1,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "minutes": round((time.perf_counter() - started) / 60, 1),
    }
    stored = {
        "made": made,
        "sentences": SENTENCES,
        "tests": TESTS,
        "beam_sizes": BEAM_SIZES,
        "runs": runs,
    }
    keep(RESULTS / "beam.json", stored)


if __name__ == "__main__":
    main()
