"""Runs of chapter 16's recipe with one ingredient changed or left out.

    python benchmarks/ingredients.py NAME FOLDER --data FOLDER [--epochs N] [--seed N]

NAME is one of low-rate, no-dropout, no-smoothing, no-warmup, no-warmup-lower and
post-norm. FOLDER keeps the run; it should end in the seed (runs/en-de-no-dropout-1),
for benchmarks/translation.py reads it. A run that was stopped goes on.

The low rate is that of the first recipe. Leaving the warm-up out must not change the
learning rates after it: they are the recipe's from its highest on, and before that the
highest. In eight epochs that is more than twice the recipe's mean rate, which is the
highest of no-warmup-lower.
"""

import argparse
import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from transformer.text.multi30k import TEXTS
from transformer.training.config import TrainingConfig
from transformer.training.precision import supports_bf16
from transformer.training.trainer import (
    PRESETS,
    Preset,
    TranslationDataset,
    train_translator,
    translation_model,
)

TINY = PRESETS["tiny"]


@dataclass(frozen=True)
class AtOnce(TrainingConfig):
    """A run that begins with its highest learning rate."""

    begin: str = "at the highest rate"  # tells its folder from the recipe's

    def learning_rate_at(self, step: int, total_steps: int, d_model: int) -> float:
        """The learning rate of a step, 1 to `total_steps`."""
        return super().learning_rate_at(
            max(step, self.warmup_steps), total_steps, d_model
        )


def _changed(**changes: Any) -> Preset:
    """The recipe with other sizes or other choices for training."""
    sizes = {name: changes.pop(name) for name in TINY.sizes if name in changes}
    training = dataclasses.replace(TINY.training, **changes)
    return TINY._replace(sizes={**TINY.sizes, **sizes}, training=training)


def _at_once(**changes: Any) -> Preset:
    """The recipe without its warm-up."""
    settings = dataclasses.asdict(TINY.training) | changes
    return TINY._replace(training=AtOnce(**settings))


VARIANTS = {
    "low-rate": _changed(learning_rate=0.003, warmup_steps=400),
    "no-dropout": _changed(dropout=0.0),
    "no-smoothing": _changed(label_smoothing=0.0),
    "no-warmup": _at_once(),
    "no-warmup-lower": _at_once(learning_rate=0.0022),
    "post-norm": _changed(norm_first=False),
}


def add_data(ask: argparse.ArgumentParser) -> None:
    """The options that say where the sentence pairs lie, and which they are."""
    found = os.environ.get("MULTI30K")
    ask.add_argument("--data", default=found, required=found is None)
    ask.add_argument("--source", default="en")
    ask.add_argument("--target", default="de")
    ask.add_argument("--text", choices=TEXTS, default="tok")


def load_dataset(options: argparse.Namespace, preset: Preset) -> TranslationDataset:
    """The sentence pairs that the options name, with subwords of the preset's size."""
    sides = options.source, options.target, options.text
    return TranslationDataset.load(
        options.data, *sides, preset.vocab_size, preset.max_tokens
    )


def run(preset: Preset, dataset: TranslationDataset, folder: Path) -> None:
    """Train in a folder, or go on there; a line for each epoch."""
    config = preset.training
    size = dataset.target_tokenizer.vocab_size
    model = translation_model(size, preset.sizes, config.seed)
    for metrics in train_translator(
        model, dataset, config, folder, checkpoint_every=50, report=print
    ):
        if metrics.validation_loss is not None:
            print(
                f"epoch {metrics.epoch}: training {metrics.loss:.3f}, validation "
                f"{metrics.validation_loss:.3f}, BLEU {metrics.bleu:.2f}, "
                f"{metrics.seconds:.0f} s",
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
    ask.add_argument(
        "--vocab-size", type=int, help="fewer subwords, for a small corpus"
    )
    options = ask.parse_args()
    torch.set_num_threads(1)
    preset = VARIANTS[options.name]
    if options.vocab_size:
        preset = preset._replace(vocab_size=options.vocab_size)
    training = dataclasses.replace(
        preset.training,
        epochs=options.epochs,
        seed=options.seed,
        bf16=supports_bf16("cpu"),
    )
    preset = preset._replace(training=training)
    run(preset, load_dataset(options, preset), options.folder)


if __name__ == "__main__":
    main()
