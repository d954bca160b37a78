"""Small trainings of translators, for the tests of chapter 16."""

import os
from pathlib import Path

from transformer.data import sample_pairs
from transformer.model import read_checkpoint
from transformer.translation import Settings, train_translator

ROOT = Path(__file__).resolve().parent.parent
REAL = Path(os.environ.get("MULTI30K", ROOT.parent / "shared/data/multi30k"))
ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
SMALL = Settings(
    types=120,
    layers=1,
    d_model=16,
    num_heads=2,
    d_ff=16,
    dropout=0.2,
    max_length=64,
    epochs=3,
    step_tokens=200,
    part_tokens=200,
    peak=0.01,
    warmup=10,
    seed=5,
)
FLAGS = [  # the same on the command line, but for epochs, dropout and tokens
    *("--source", "fr", "--target", "en", "--preset", "toy", "--precision", "float32"),
    *("--types", "120", "--layers", "1", "--d-model", "16", "--num-heads", "2"),
    *("--d-ff", "16", "--device", "cpu"),
]


def write_corpus(folder, sizes=(60, 12, 12)):
    """Sentences of the phrasebook as train, val and test files."""
    folder.mkdir(exist_ok=True)
    for seed, (split, count) in enumerate(
        zip(("train", "val", "test"), sizes, strict=True)
    ):
        pairs = sample_pairs(count, seed)
        for language, side in (("fr", 0), ("en", 1)):
            lines = "".join(" ".join(pair[side]) + "\n" for pair in pairs)
            (folder / f"{split}.{language}").write_text(lines, "utf-8")
    return folder


def partly(lessons, folder, steps=999, settings=SMALL, **options):
    """A run that is left after some steps: its moments, and what it said."""
    said = []
    run = train_translator(lessons, settings, folder, say=said.append, **options)
    moments = [now for _, now in zip(range(steps), run, strict=False)]
    run.close()
    return moments, said


def newest(folder):
    """The checkpoint that a run would go on from."""
    return max(Path(folder).glob("training-*.safetensors"))


def state(folder):
    """What the last checkpoint of a run holds, but for the caller's random numbers."""
    found, _ = read_checkpoint(newest(folder))
    return {name: value for name, value in found.items() if name != "random"}


def equal(one, other):
    """Whether two dictionaries hold the same tensors, bit for bit."""
    return one.keys() == other.keys() and all(one[n].equal(other[n]) for n in one)
