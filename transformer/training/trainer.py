"""Training real translators: data, presets, and runs that outlive a crash.

Made from book/workshop/real-training.md: edit the chapter, not this file.
"""

import dataclasses
import hashlib
import json
import os
import random
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from transformer.checks import (
    optional_import,
    require_examples,
    require_not_empty,
    require_positive,
)
from transformer.decoding.support import unwrap
from transformer.decoding.translator import Translator, length_ratio_of
from transformer.model import Transformer, TransformerConfig
from transformer.text.batches import Example, batches_by_tokens, example_length
from transformer.text.multi30k import SentencePair, read_pairs, require_text
from transformer.text.subwords import SubwordTokenizer
from transformer.text.words import Tokenizer
from transformer.training.bleu import corpus_scores
from transformer.training.config import TrainingConfig
from transformer.training.distributed import ProcessGroup
from transformer.training.loop import StepMetrics
from transformer.training.run import Run
from transformer.training.run_folder import RunFolder
from transformer.training.train_state import TrainState, validation_loss

__all__ = [
    "TranslationDataset",
    "Preset",
    "PRESETS",
    "translation_model",
    "train_translator",
]


class TranslationDataset(NamedTuple):
    """Training set and validation set of a translator, with its tokenizers.

    `validation_pairs` are the sentences of `validation`; `folder` is where they were
    read, and `left_out` counts the pairs that were too long, or empty for a tokenizer.
    """

    train: list[Example]
    validation: list[Example]
    validation_pairs: list[SentencePair]
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    languages: tuple[str, str] = ("en", "de")
    text: str = "raw"
    folder: str | None = None
    left_out: int = 0

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        source: str,
        target: str,
        text: str = "raw",
        vocab_size: int = 9712,
        max_tokens: int = 256,
    ) -> "TranslationDataset":
        """Read the pairs of a folder; train a joint tokenizer on its training pairs.

        A pair is left out if a side of it has no tokens or more than `max_tokens`, the
        end of the target counted.

        Raises:
            ValueError: for files that are missing, unreadable or do not pair, a
                `vocab_size` that is too small, no pair that fits, or where the library
                tokenizers is not installed.
        """
        require_positive(max_tokens=max_tokens)
        pairs = read_pairs(folder, text, "train", source, target)
        validation_pairs = read_pairs(folder, text, "val", source, target)
        sentences = [side for pair in pairs for side in pair]
        tokenizer = SubwordTokenizer.train(sentences, vocab_size, text)

        def encode(pair: SentencePair) -> Example:
            return tokenizer.encode(pair[0]), tokenizer.encode(pair[1])

        def fits(example: Example) -> bool:
            return all(example) and example_length(example) <= max_tokens

        train = [example for example in map(encode, pairs) if fits(example)]
        kept = [pair for pair in validation_pairs if fits(encode(pair))]
        if not train or not kept:
            raise ValueError(f"{folder} has no pairs of at most {max_tokens} tokens")
        return cls(
            train,
            validation=[encode(pair) for pair in kept],
            validation_pairs=[(one, tokenizer.normalize(other)) for one, other in kept],
            source_tokenizer=tokenizer,
            target_tokenizer=tokenizer,
            languages=(source, target),
            text=text,
            folder=str(Path(folder).resolve()),
            left_out=len(pairs) - len(train) + len(validation_pairs) - len(kept),
        )

    def digest(self) -> str:
        """A short text that stands for the examples and what they were made with."""
        tokenizers = self.source_tokenizer.to_json(), self.target_tokenizer.to_json()
        data = json.dumps([self.train, self.validation, *tokenizers])
        return hashlib.sha256(data.encode()).hexdigest()[:16]


class Preset(NamedTuple):
    """Choices that were tried together; `sizes` are arguments of TransformerConfig."""

    vocab_size: int
    sizes: dict[str, Any]
    training: TrainingConfig

    @property
    def max_tokens(self) -> int:
        """The longest example that fits into the model and into a batch."""
        training = self.training
        tokens = training.micro_batch_tokens or training.batch_tokens
        longest = int(self.sizes.get("max_length", 1024))
        return min(longest, tokens, training.batch_tokens)


def _preset(
    vocab_size: int = 9712,
    layers: int = 4,
    d_model: int = 128,
    num_heads: int = 4,
    d_ff: int = 256,
    dropout: float = 0.3,
    norm_first: bool = True,
    **training: Any,
) -> Preset:
    sizes = {
        "d_model": d_model,
        "num_heads": num_heads,
        "num_encoder_layers": layers,
        "num_decoder_layers": layers,
        "d_ff": d_ff,
        "dropout": dropout,
        "norm_first": norm_first,
        "tie_embeddings": True,
        "max_length": 256,
    }
    defaults = {"epochs": 80, "cooldown": 0.0, "seed": 1}
    return Preset(vocab_size, sizes, TrainingConfig(**{**defaults, **training}))


# Tiny has the sizes of Transformer-Tiny (Wu et al. 2021), small and toy were found by
# trying, base has the paper's widths and layers.
PRESETS = {
    "tiny": _preset(batch_tokens=2048, learning_rate=0.005, warmup_steps=2000),
    "small": _preset(
        layers=3,
        d_model=256,
        d_ff=512,
        batch_tokens=2048,
        learning_rate=0.0035,
        warmup_steps=2000,
    ),
    "base": _preset(
        layers=6,
        d_model=512,
        num_heads=8,
        d_ff=2048,
        norm_first=False,
        batch_tokens=4096,
        learning_rate=0.0007,
        warmup_steps=4000,
    ),
    "toy": _preset(
        vocab_size=300,
        layers=2,
        d_model=64,
        d_ff=128,
        dropout=0.1,
        norm_first=False,
        epochs=10,
        batch_tokens=1024,
        learning_rate=0.003,
        warmup_steps=100,
    ),
}


def translation_model(
    vocab_size: int, sizes: Mapping[str, Any], seed: int = 0
) -> Transformer:
    """An untrained model over a joint vocabulary."""
    with torch.random.fork_rng(devices=[]):  # the caller's random state stays
        torch.default_generator.manual_seed(seed)
        return Transformer(TransformerConfig(vocab_size, vocab_size, **sizes))


def train_translator(
    model: nn.Module,
    dataset: TranslationDataset,
    config: TrainingConfig,
    folder: str | os.PathLike[str] | None = None,
    process_group: ProcessGroup | None = None,
    checkpoint_every: int = 200,
    keep_epochs: int = 10,
    report: Callable[[str], None] = lambda message: None,
) -> Generator[StepMetrics, None, None]:
    """Train a model to translate, a step for each metrics that the caller takes.

    In the end the model has the best weights: of the moving averages at the end of each
    epoch, that with the lowest validation loss. Until then it has those of the last
    step. A wrapped model (compiled, distributed) is trained without its wrapper.

    With a `folder`, the run is kept there: a checkpoint after so many steps and at the
    end of each epoch, the last `keep_epochs` epochs' weights, the best ones
    (`model.safetensors`) and the metrics of each step. A run that was cut short at any
    time goes on to the same weights, bit for bit on one CPU with as many threads.

    The model is trained on the device where it is; a `process_group` moves it to that
    of its process, which shares each step with the others. `report` is called with what
    is worth saying, a line each: a damaged checkpoint, or an early end.

    Raises:
        ValueError: for `checkpoint_every` or `keep_epochs` below 1; for no examples, or
            one that does not fit into a batch or that the model cannot read; for
            tokenizers that are not the model's; for a model without numbers (on meta);
            where sacreBLEU is not installed; for a folder that cannot be written to,
            that has other files or another run, that another training is writing to, or
            that not all processes share; with a folder, for a model or a tokenizer that
            cannot be saved; for a loss that is not finite.
    """
    require_positive(checkpoint_every=checkpoint_every, keep_epochs=keep_epochs)
    require_not_empty("validation pair", dataset.validation_pairs)
    optional_import("sacrebleu.metrics")  # better now than after an epoch
    model = unwrap(model, "train_translator")
    translator = _translator(model, dataset)
    run = None if folder is None else RunFolder(folder)
    if run is not None:
        translator.metadata()  # refused now, not after an epoch
    for name in ("train", "validation"):
        require_examples(
            f"{name} example",
            getattr(dataset, name),
            model.config,
            max_length=model.config.max_length,
            batch_tokens=config.batch_tokens,
            micro_batch_tokens=config.micro_batch_tokens or config.batch_tokens,
        )
    _require_usable(dataset, translator)
    state = TrainState(model, config, process_group or ProcessGroup.beside(model))
    return _TranslatorRun(
        dataset, state, run, checkpoint_every, report, keep_epochs
    ).steps()


def _require_usable(dataset: TranslationDataset, translator: Translator) -> None:
    """Refuse now, not in the middle of an epoch, what cannot be read or scored."""
    require_text(dataset.text)
    if (pairs := len(dataset.validation_pairs)) != len(dataset.validation):
        raise ValueError(
            "each validation example needs its sentences, "
            f"got {len(dataset.validation)} examples and {pairs} pairs"
        )
    for number, (sentence, _) in enumerate(dataset.validation_pairs, start=1):
        try:
            translator.encode(sentence)
        except ValueError as error:
            raise ValueError(f"validation sentence {number}: {error}") from None


@dataclasses.dataclass
class _TranslatorRun(Run):
    """The run of a translator, on a `TranslationDataset`."""

    keep_epochs: int

    def batches(self, epoch: int) -> list[list[int]]:
        config = self.state.config
        lengths = [example_length(example) for example in self.dataset.train]
        rng = random.Random(f"{config.seed} {epoch}")
        return batches_by_tokens(lengths, config.batch_tokens, rng)

    def step(
        self, batch: list[int], step: int, learning_rate: float
    ) -> tuple[float, float, int]:
        examples = [self.dataset.train[index] for index in batch]
        labels = sum(len(target) + 1 for _, target in examples)
        return *self.state.train_step(examples, step, learning_rate), labels

    def validate(self) -> float:
        state, config = self.state, self.state.config
        examples = self.dataset.validation
        tokens = config.micro_batch_tokens or config.batch_tokens
        loss = state.process_group.first(
            lambda: validation_loss(state.averaged, examples, tokens, config.bf16)
        )
        return state.process_group.sum(loss or 0.0)

    def end_epoch(self, epoch: int, loss: float) -> float | None:
        state, dataset = self.state, self.dataset

        def keep() -> float:
            if self.run is not None:
                self.run.save_epoch(epoch, self.usable(state.model), self.keep_epochs)
            averaged = self.usable(state.averaged)
            sources, references = zip(*dataset.validation_pairs, strict=True)
            hypotheses = averaged.translate(
                list(sources), on_cut=lambda _: None, on_unknown=lambda *_: None
            )
            bleu = corpus_scores(list(hypotheses), references, dataset.text).bleu
            if self.run is not None and loss < state.best_validation_loss:
                self.run.save_best(averaged)
            return bleu

        return state.process_group.sum(state.process_group.first(keep) or 0.0)

    def usable(self, model: Transformer) -> Translator:
        return _translator(model, self.dataset)


def _translator(model: Transformer, dataset: TranslationDataset) -> Translator:
    tokenizers = dataset.source_tokenizer, dataset.target_tokenizer
    ratio = length_ratio_of(dataset.train)
    return Translator(model, *tokenizers, dataset.languages, ratio)
