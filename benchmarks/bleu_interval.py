"""What each test sentence adds to a BLEU score, so that chapter 16 can resample them.

    python benchmarks/bleu_interval.py RUN [RUN ...] --data FOLDER

RUN is the folder of a run of `python -m transformer train`, finished or not. Its
weights are those of the moving average with the lowest validation loss; it translates
the test sentences with greedy search and with a beam of 5. Nothing is chosen by it.
"""

import argparse
import json
from pathlib import Path

import torch
from ingredients import add_data
from race import RESULTS
from translation import split_of, this_machine

from transformer.checks import optional_import
from transformer.training.bleu import corpus_scores
from transformer.training.run_folder import (
    load_run,
    read_metrics,
    read_run,
)
from transformer.weights.files import write_atomically

PENALTY = 1.0


def counted(hypothesis: str, reference: str) -> list[int]:
    """What BLEU adds up over sentences: hits of four orders, and both lengths."""
    metric = optional_import("sacrebleu.metrics").BLEU(
        tokenize="none", force=True, effective_order=True
    )
    score = metric.sentence_score(hypothesis, [reference])
    return [*score.counts, score.sys_len, score.ref_len]


def main() -> None:
    """Translate, count, and write the file."""
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    add_data(ask)
    options = ask.parse_args()
    torch.set_num_threads(1)

    systems = []
    for folder in options.runs:
        info, translator = read_run(folder), load_run(folder)
        sources, references = zip(*split_of(info, options.data, "test"), strict=True)
        for beam_size in (1, 5):
            found = list(translator.translate(list(sources), beam_size, PENALTY))
            scores = corpus_scores(found, references, info.text)
            system = {
                "seed": info.training["seed"],
                "epochs": sum(one.bleu is not None for one in read_metrics(folder)),
                "beam_size": beam_size,
                "bleu": scores.bleu,
                "signature": scores.bleu_signature,
                "sentences": [*map(counted, found, references)],
            }
            systems.append(system)
            print(f"{folder}, beam {beam_size}: BLEU {scores.bleu:.2f}", flush=True)
    made = {"length_penalty": PENALTY, **this_machine()}
    text = json.dumps({"made": made, "systems": systems}, separators=(",", ":"))
    write_atomically(RESULTS / "bleu_interval.json", f"{text}\n".encode())


if __name__ == "__main__":
    main()
