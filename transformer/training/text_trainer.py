"""Training language models on plain text, in runs that outlive a crash.

Made from book/workshop/real-training.md: edit the chapter, not this file.
"""

import os
import random
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional as F

from transformer.beyond.language_model import LanguageModel, LanguageModelConfig
from transformer.beyond.text_generator import TextGenerator, encode_text
from transformer.checks import (
    require_device,
    require_not_empty,
    require_positive,
    require_string,
)
from transformer.decoding.step import evaluating
from transformer.decoding.support import unwrap_to
from transformer.text.multi30k import read_lines
from transformer.text.subwords import SubwordTokenizer
from transformer.training.base import Trainer
from transformer.training.config import TrainingConfig
from transformer.training.distributed import ProcessGroup
from transformer.training.loop import StepMetrics, paper_adam
from transformer.training.precision import bf16_autocast
from transformer.training.run_folder import RunFolder, digest_of, learn_subwords
from transformer.training.state import OptimizerFactory, Schedule, TrainingState
from transformer.training.trainer import Preset

__all__ = [
    "TextDataset",
    "TEXT_PRESET",
    "language_model",
    "split_texts",
    "text_loss",
    "train_language_model",
]


class TextDataset(NamedTuple):
    """Token ids of a training text and of a held-out one, with their tokenizer."""

    train: Int[Tensor, " length"]
    validation: Int[Tensor, " length"]
    tokenizer: SubwordTokenizer
    languages: tuple[str, str] = ("text", "text")
    text: str = "lines"
    files: list[str] | None = None

    @classmethod
    def load(
        cls,
        files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        vocab_size: int = 1000,
        run: str | os.PathLike[str] | None = None,
        report: Callable[[str], None] = lambda message: None,
        tokenizer: SubwordTokenizer | None = None,
    ) -> "TextDataset":
        """Read plain text; about the last tenth of each file is held out.

        The tokenizer is trained on the rest, and has at most `vocab_size` subwords.
        `run` and `report` are those of `TranslationDataset.load`; the `tokenizer` of a
        model that is trained further is used as it is.

        Raises:
            ValueError: for a file that is missing, empty, too long or not UTF-8 text,
                or a `vocab_size` that is too small.
            ImportError: where the library tokenizers is not installed.
        """
        if isinstance(files, str | os.PathLike):
            files = [files]
        require_not_empty("file", files)
        report(f"reading {', '.join(os.fspath(file) for file in files)}")
        train, validation = split_texts(files)
        lines = train.split("\n")
        if tokenizer is None:
            tokenizer = learn_subwords(lines, vocab_size, "raw", run, report)
        ids, held_out = (encode_text(tokenizer, text) for text in (train, validation))
        names = [str(Path(file).resolve()) for file in files]
        return cls(torch.tensor(ids), torch.tensor(held_out), tokenizer, files=names)

    def validation_set(self) -> list[int]:
        """What a run is evaluated on, of which its description keeps a digest."""
        return self.validation.tolist()

    @property
    def data(self) -> list[str] | None:
        """Where the text was read, for the description of a run."""
        return self.files

    def digest(self) -> str:
        """A short text that stands for the examples and what they were made with."""
        return digest_of([self.train, self.validation, self.tokenizer.to_json()])


def split_texts(files: Sequence[str | os.PathLike[str]]) -> tuple[str, str]:
    """The text to train on, and what is held out: about the last tenth of each file.

    Raises:
        ValueError: for a file that is missing, empty, too long or not UTF-8 text.
    """
    sides = [_hold_out(_read(Path(file))) for file in files]
    train, validation = ("\n".join(side) for side in zip(*sides, strict=True))
    return train, validation


def _read(path: Path) -> str:
    text = "\n".join(read_lines(path))  # which ends where a file has no end
    if not text.strip():
        raise ValueError(f"{path} has no text in it")
    return text.rstrip("\n")


def _hold_out(text: str) -> tuple[str, str]:
    """The text's beginning and about its last tenth, cut at a line if one ends near."""
    cut = len(text) * 9 // 10
    line = text.find("\n", cut, len(text) * 19 // 20)
    return (text[:cut], text[cut:]) if line < 0 else (text[:line], text[line + 1 :])


# Of two sizes tried on a book of 150,000 characters, the better one.
TEXT_PRESET = Preset(
    vocab_size=1000,
    sizes={
        "d_model": 128,
        "num_heads": 4,
        "num_layers": 4,
        "d_ff": 512,
        "dropout": 0.2,
        "norm_first": True,
        "max_length": 128,
    },
    training=TrainingConfig(
        epochs=100,
        batch_tokens=2048,
        learning_rate=0.003,
        warmup_steps=200,
        cooldown=0.0,
        label_smoothing=0.0,
        seed=1,
    ),
)


def language_model(
    vocab_size: int, sizes: Mapping[str, Any], seed: int = 0
) -> LanguageModel:
    """An untrained language model."""
    with torch.random.fork_rng(devices=[]):  # the caller's random state stays
        torch.default_generator.manual_seed(seed)
        return LanguageModel(LanguageModelConfig(vocab_size, **sizes))


def text_loss(
    model: LanguageModel,
    ids: Int[Tensor, " length"],
    batch_tokens: int = 4096,
    bf16: bool = False,
) -> float:
    """Mean loss of a text's tokens, in nats, read in windows one after another.

    Raises:
        ValueError: for a text of fewer than two tokens.
    """
    if len(ids) < 2:
        raise ValueError(f"at least two tokens are needed, got {len(ids)}")
    window = model.config.max_length
    device = next(model.parameters()).device
    whole = (len(ids) - 1) // window * window
    total = 0.0
    with evaluating(model), bf16_autocast(device, enabled=bf16):
        for first, last, width in ((0, whole, window), (whole, len(ids) - 1, None)):
            if first == last:
                continue
            width = width or last - first
            inputs, labels = ids[first:last], ids[first + 1 : last + 1]
            rows = max(1, batch_tokens // width)
            for some, wanted in zip(
                inputs.view(-1, width).split(rows),
                labels.view(-1, width).split(rows),
                strict=True,
            ):
                total += _summed_loss(model, some.to(device), wanted.to(device)).item()
    return total / (len(ids) - 1)


def _summed_loss(
    model: LanguageModel,
    ids: Int[Tensor, "batch length"],
    labels: Int[Tensor, "batch length"],
    smoothing: float = 0.0,
) -> Tensor:
    logits = model(ids).float().flatten(0, 1)
    return F.cross_entropy(
        logits, labels.flatten(), reduction="sum", label_smoothing=smoothing
    )


def train_language_model(
    model: nn.Module,
    dataset: TextDataset,
    config: TrainingConfig,
    folder: str | os.PathLike[str] | None = None,
    device: str | torch.device | None = None,
    checkpoint_every: int = 200,
    report: Callable[[str], None] = lambda message: None,
    optimizer: OptimizerFactory = paper_adam,
    schedule: Schedule | None = None,
    stop: Callable[[], bool] | None = None,
) -> Generator[StepMetrics, None, None]:
    """Train a language model, a step for each metrics that the caller takes.

    An epoch has as many windows as the text, from random places. Weights, folder and
    resumption are as in `train_translator`; no epochs' weights are kept but the best.
    The model is trained on the device where it is; a `device` moves it there first.
    `report`, `optimizer`, `schedule` and `stop` are those of `train_translator`.

    Raises:
        ValueError: for a `checkpoint_every` below 1, a text shorter than a window, a
            held-out one of fewer than two tokens, a window that does not fit into a
            batch, a tokenizer that is not the model's, a `device` that is not found, or
            what `train_translator` refuses of a model, a folder or a loss.
    """
    require_positive(checkpoint_every=checkpoint_every)
    model = unwrap_to(LanguageModel, model, "train_language_model")
    window = model.config.max_length
    tokens = min(config.micro_batch_tokens or config.batch_tokens, config.batch_tokens)
    if window > tokens:
        raise ValueError(
            f"a window has max_length = {window} tokens, but at most {tokens} fit"
        )
    if len(dataset.train) <= window or len(dataset.validation) < 2:
        raise ValueError(
            f"the text is too short: {len(dataset.train)} tokens to train on and "
            f"{len(dataset.validation)} held out, at least {window + 1} and 2 are "
            "needed; a shorter max_length needs less"
        )
    TextGenerator(model, dataset.tokenizer)  # refuses what does not belong together
    run = None if folder is None else RunFolder(folder)
    if run is not None:  # refused now, not after an epoch
        name = type(dataset.tokenizer).__name__
        require_string(f"what {name}.to_json gives", dataset.tokenizer.to_json())
    if device is None:
        group = ProcessGroup.single_process(model)
    else:
        group = ProcessGroup(device=require_device(device))
    state = TrainingState(model, config, group, optimizer, schedule)
    return _TextTrainer(dataset, state, run, checkpoint_every, report, stop).steps()


class _TextTrainer(Trainer):
    """Trains a language model; a batch is the places where windows begin."""

    def batches(self, epoch: int) -> list[list[int]]:
        config, window = self.state.config, self.state.model.config.max_length
        length, rows = len(self.dataset.train), config.batch_tokens // window
        rng = random.Random(f"{config.seed} {epoch}")
        windows = (length - 1) // window
        starts = [rng.randrange(length - window) for _ in range(windows)]
        return [starts[first : first + rows] for first in range(0, windows, rows)]

    def train_step(
        self, batch: list[int], step: int, learning_rate: float
    ) -> tuple[float, float, int]:
        state, config = self.state, self.state.config
        device, window = state.process_group.device, state.model.config.max_length
        places = torch.tensor(batch)[:, None] + torch.arange(window + 1)
        windows = self.dataset.train[places].to(device)
        rows = (config.micro_batch_tokens or config.batch_tokens) // window
        total, labels = torch.zeros((), device=device), len(batch) * window
        with state.training_step(f"{config.seed} {step}", learning_rate):
            for part in windows.split(rows):
                with bf16_autocast(device, enabled=config.bf16):
                    loss = _summed_loss(
                        state.model, part[:, :-1], part[:, 1:], config.label_smoothing
                    )
                (loss / labels).backward()
                total += loss.detach() / labels
        return total.item(), state.update(), labels

    def validate(self) -> float:
        state, config = self.state, self.state.config
        tokens = config.micro_batch_tokens or config.batch_tokens
        with state.averaged_weights() as averaged:
            return text_loss(averaged, self.dataset.validation, tokens, config.bf16)

    def save_epoch(self, epoch: int, loss: float) -> float | None:
        if self.folder is not None and loss < self.state.best_validation_loss:
            with self.state.averaged_weights() as averaged:
                self.folder.save_best(self.with_tokenizers(averaged))
        return None

    def with_tokenizers(self, model: LanguageModel) -> TextGenerator:
        return TextGenerator(model, self.dataset.tokenizer)
