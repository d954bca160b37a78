"""Runs of chapter 16's recipe with one ingredient changed or left out.

    python benchmarks/ingredients.py NAME FOLDER --data FOLDER [--epochs N] [--seed N]

NAME is one of low-rate, no-dropout, no-smoothing, no-warmup and post-norm. FOLDER keeps
the run; it should end in the seed (runs/en-de-no-dropout-1), for
benchmarks/translation.py reads it. A run that was stopped goes on.

The low rate is that of the first recipe. Leaving the warm-up out must not change the
rates after it: they are the recipe's from its highest on, and before that the highest.
"""

import argparse
import dataclasses
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from transformer.translation import (  # noqa: E402
    TINY,
    Lessons,
    Settings,
    made_for_bf16,
    prepare,
    train_translator,
)


@dataclass(frozen=True)
class AtOnce(Settings):
    """A run that begins with its highest rate."""

    begin: str = "at the highest rate"  # tells its folder from the recipe's

    def rate(self, step: int, total: int) -> float:
        """The learning rate of a step, 1 to `total`."""
        return super().rate(max(step, self.warmup), total)


VARIANTS = {
    "low-rate": dataclasses.replace(TINY, peak=0.003, warmup=400),
    "no-dropout": dataclasses.replace(TINY, dropout=0.0),
    "no-smoothing": dataclasses.replace(TINY, smoothing=0.0),
    "no-warmup": AtOnce(**dataclasses.asdict(TINY)),
    "post-norm": dataclasses.replace(TINY, norm_first=False),
}


def add_data(ask: argparse.ArgumentParser) -> None:
    """The option that says where Multi30k lies."""
    found = os.environ.get("MULTI30K")
    ask.add_argument("--data", default=found, required=found is None)


def follow(lessons: Lessons, settings: Settings, folder: Path) -> None:
    """Train in a folder, or go on there; a line an epoch."""
    for now in train_translator(lessons, settings, folder, every=50, say=print):
        if now.checked is not None:
            print(
                f"epoch {now.epoch}: training {now.loss:.3f}, validation "
                f"{now.checked:.3f}, BLEU {now.bleu:.2f}, {now.seconds:.0f} s",
                flush=True,
            )


def main() -> None:
    """Train one of them."""
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("name", choices=VARIANTS)
    ask.add_argument("folder", type=Path)
    add_data(ask)
    ask.add_argument("--epochs", type=int, default=6)
    ask.add_argument("--seed", type=int, default=1)
    options = ask.parse_args()
    torch.set_num_threads(1)
    chosen = {"epochs": options.epochs, "seed": options.seed}
    settings = dataclasses.replace(
        VARIANTS[options.name], **chosen, bf16=made_for_bf16("cpu")
    )
    follow(prepare(options.data, settings), settings, options.folder)


if __name__ == "__main__":
    main()
