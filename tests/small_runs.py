"""Small trainings of translators, for tests: a second each."""

import itertools
import os
from pathlib import Path

from transformer.phrasebook.grammar import sample_pairs
from transformer.training.config import TrainingConfig
from transformer.training.run_folder import read_metrics
from transformer.training.state import TrainingState
from transformer.training.trainer import (
    TranslationDataset,
    train_translator,
    translation_model,
)
from transformer.weights.files import read_training_state

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = os.environ | {
    "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
SIZES = {
    "d_model": 16,
    "num_heads": 2,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "d_ff": 16,
    "dropout": 0.2,
    "tie_embeddings": True,
    "max_length": 64,
}
CONFIG = TrainingConfig(  # five steps an epoch
    epochs=3,
    batch_tokens=400,
    learning_rate=0.01,
    warmup_steps=10,
    cooldown=0.0,
    seed=5,
)


def note_devices(monkeypatch, trainer):
    """The devices to which trainings of a module bring their models, in turn."""
    devices = []

    class Noted(TrainingState):
        def __init__(self, model, config, process_group, *others):
            devices.append(process_group.device)
            super().__init__(model, config, process_group, *others)

    monkeypatch.setattr(f"transformer.training.{trainer}.TrainingState", Noted)
    return devices


def write_corpus(folder, sizes=(60, 6, 6)):
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


def load_dataset(folder):
    return TranslationDataset.load(folder, "fr", "en", vocab_size=120, max_tokens=64)


def small_model(dataset, seed=5, **sizes):
    return translation_model(dataset.source_tokenizer.vocab_size, SIZES | sizes, seed)


def run_steps(dataset, folder, steps=None, config=CONFIG, model=None, **options):
    """The metrics of a run that is left after some steps, and what it reported.

    Where it goes on is left out: the metrics say so.
    """
    reported = []
    options = {"checkpoint_every": 3, "keep_epochs": 2} | options
    run = train_translator(
        small_model(dataset) if model is None else model,
        dataset,
        config,
        folder,
        report=reported.append,
        **options,
    )
    metrics = list(itertools.islice(run, steps))
    run.close()
    return metrics, [line for line in reported if "going on from step" not in line]


def newest(folder):
    """The checkpoint that a run would go on from."""
    return max(Path(folder).glob("training-*.pt"))


def equal(one, other):
    """Whether two nested states are the same, bit for bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return one.equal(other) if hasattr(one, "equal") else one == other


def timeless(folder):
    """The metrics of a run, but for its seconds."""
    return [metrics._replace(seconds=0.0) for metrics in read_metrics(folder)]


def assert_same_run(folder, whole):
    """The same to the last bit: state, kept weights, metrics; and no other files."""
    found, names = ({path.name for path in each.iterdir()} for each in (folder, whole))
    assert found == names, f"{folder}: {found ^ names}"
    states = (read_training_state(newest(each)) for each in (folder, whole))
    assert equal(*states)
    for path in whole.glob("*.safetensors"):
        assert (folder / path.name).read_bytes() == path.read_bytes(), path.name
    assert timeless(folder) == timeless(whole)
