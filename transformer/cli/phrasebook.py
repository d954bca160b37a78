"""The command that trains the phrasebook's translator anew: train-phrasebook."""

from pathlib import Path

import click

from transformer.cli.console import print_error, printable, writing
from transformer.cli.options import (
    FILE,
    SEED,
    Command,
    count,
    option,
)
from transformer.cli.progress import Progress
from transformer.cli.resources import require_file
from transformer.decoding.translator import Translator
from transformer.phrasebook.grammar import (
    phrasebook_examples,
    phrasebook_tokenizers,
    sample_pairs,
)
from transformer.training.accuracy import exact_match
from transformer.training.config import TrainingConfig
from transformer.training.loop import phrasebook_model, train

__all__ = ["train_phrasebook"]

MOST = 1_000_000  # more make the grammar repeat itself for long


@click.command(
    "train-phrasebook",
    cls=Command,
    short_help="Train the phrasebook's weights anew, in a minute.",
)
@option("--out", FILE, "The file to write.", required=True)
@option("--seed", SEED, "Fixes the sentences and the weights.", 0)
@option("--sentences", count(1, MOST), "How many sentences to learn from.", 50_000)
def train_phrasebook(out: Path, seed: int, sentences: int) -> None:
    """Train the phrasebook's translator as chapter 12 does, in about a minute.

    It is then tested on sentences that hold a pair of words never seen together. The
    same seed gives the same weights, bit for bit, on the same machine.
    """
    require_file(out)
    print_error(f"making {sentences:,} sentences …")
    examples = phrasebook_examples(sample_pairs(sentences, seed))
    model = phrasebook_model(seed)
    progress = Progress()
    for metrics in train(model, examples, TrainingConfig(seed=seed)):
        progress.show(metrics)
    progress.close()
    held_out = phrasebook_examples(sample_pairs(1000, seed + 1, held_out=True))
    share = exact_match(model, held_out)
    with writing(out):
        Translator(model, *phrasebook_tokenizers(), ("fr", "en")).save(out)
    size = out.stat().st_size / 1e6
    print(
        f"{share:.1%} of {len(held_out):,} held-out sentences translated exactly; "
        + printable(f"wrote {out} ({size:.1f} MB)")
    )
