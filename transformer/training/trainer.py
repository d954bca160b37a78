"""Training real translators: data, presets, and runs that outlive a crash.

Made from book/workshop/real-training.md: edit the chapter, not this file.
"""

import dataclasses
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
from transformer.text.words import Tokenizer
from transformer.training.base import Trainer
from transformer.training.bleu import corpus_scores
from transformer.training.config import TrainingConfig
from transformer.training.distributed import ProcessGroup
from transformer.training.loop import StepMetrics, paper_adam
from transformer.training.run_folder import RunFolder, digest_of, learn_subwords
from transformer.training.state import (
    OptimizerFactory,
    Schedule,
    TrainingState,
    validation_loss,
)

__all__ = [
    "TranslationDataset",
    "Preset",
    "PRESETS",
    "translation_model",
    "train_translator",
]


class TranslationDataset(NamedTuple):
    """Training set and validation set of a translator, with its tokenizers.

    `validation_pairs` are all sentences of the validation set, also those too long for
    `validation`; `folder` is where they were read, and `left_out` counts the pairs that
    were too long, or empty for a tokenizer.
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
        run: str | os.PathLike[str] | None = None,
        report: Callable[[str], None] = lambda message: None,
        tokenizers: tuple[Tokenizer, Tokenizer] | None = None,
    ) -> "TranslationDataset":
        """Read the pairs of a folder; train a joint tokenizer on its training pairs.

        A pair is not trained on if a side of it has no tokens or more than
        `max_tokens`, the end of the target counted. With the folder of a `run`, the
        subwords are kept there, and not learned anew when the run is taken up; the
        `tokenizers` of a model that is trained further are used as they are. `report`
        is called before what takes a while, with a line that says what it is.

        Raises:
            ValueError: for files that are missing, unreadable or do not pair, a
                `vocab_size` that is too small, or no pair that fits.
            ImportError: where the library tokenizers is not installed.
        """
        require_positive(max_tokens=max_tokens)
        report(f"reading {folder}")
        pairs = read_pairs(folder, text, "train", source, target)
        validation_pairs = read_pairs(folder, text, "val", source, target)
        if tokenizers is None:
            sentences = [side for pair in pairs for side in pair]
            joint = learn_subwords(sentences, vocab_size, text, run, report)
            tokenizers = joint, joint
        one, other = tokenizers
        normalize = getattr(other, "normalize", str)  # as references are measured

        def encode(pair: SentencePair) -> Example:
            return one.encode(pair[0]), other.encode(pair[1])

        def fits(example: Example) -> bool:
            return all(example) and example_length(example) <= max_tokens

        train = [example for example in map(encode, pairs) if fits(example)]
        validation = [each for each in map(encode, validation_pairs) if fits(each)]
        if not train or not validation:
            raise ValueError(f"{folder} has no pairs of at most {max_tokens} tokens")
        fitting = len(train) + len(validation)
        return cls(
            train,
            validation,
            [(read, normalize(written)) for read, written in validation_pairs],
            source_tokenizer=one,
            target_tokenizer=other,
            languages=(source, target),
            text=text,
            folder=str(Path(folder).resolve()),
            left_out=len(pairs) + len(validation_pairs) - fitting,
        )

    def digest(self) -> str:
        """A short text that stands for the examples and what they were made with."""
        tokenizers = self.source_tokenizer.to_json(), self.target_tokenizer.to_json()
        return digest_of([self.train, self.validation, *tokenizers])

    def validation_set(self) -> list[SentencePair]:
        """What a run is evaluated on, of which its description keeps a digest."""
        return self.validation_pairs

    @property
    def data(self) -> str | None:
        """Where the sentences were read, for the description of a run."""
        return self.folder


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
    optimizer: OptimizerFactory = paper_adam,
    schedule: Schedule | None = None,
    stop: Callable[[], bool] | None = None,
) -> Generator[StepMetrics, None, None]:
    """Train a model to translate, a step for each metrics that the caller takes.

    In the end the model has the best weights: of the moving averages at the end of each
    epoch, that with the lowest validation loss. Until then it has those of the last
    step. A wrapped model (compiled, distributed) is trained without its wrapper.

    With a `folder`, the run is kept there: a checkpoint after so many steps and at the
    end of each epoch, the last `keep_epochs` epochs' weights, the best ones
    (`model.safetensors`) and the metrics of each step. A run that was cut short at any
    time goes on to the same weights, bit for bit on one CPU with as many threads. What
    changes a result by rounding alone may change then: `micro_batch_tokens`, `bf16`,
    the device.

    `optimizer` makes the optimiser, by default Adam with the paper's constants.
    `schedule` gives the learning rate of a step from its number and how many there are,
    in place of the config's: `lambda step, total: 0.001`. After each step `stop` is
    asked whether to end here: then a checkpoint is kept, and the run can go on later.

    The model is trained on the device where it is; a `process_group` moves it to that
    of its process, which shares each step with the others. `report` is called with what
    is worth saying, a line each: where a run goes on, a damaged checkpoint, parts that
    are not the package's own, or an early end.

    Raises:
        ValueError: for `checkpoint_every` or `keep_epochs` below 1; for no examples, or
            one that does not fit into a batch or that the model cannot read; for
            tokenizers that are not the model's; for a model without numbers (on meta);
            for a folder that cannot be written to, that has other files or another run,
            that another training is writing to, or that not all processes share; with a
            folder, for a model or a tokenizer that cannot be saved; for a loss that is
            not finite.
        ImportError: where sacreBLEU is not installed.
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
    require_text(dataset.text)
    _require_some_readable(dataset, translator)
    group = process_group or ProcessGroup.single_process(model)
    state = TrainingState(model, config, group, optimizer, schedule)
    return _TranslatorTrainer(
        dataset, state, run, checkpoint_every, report, stop, keep_epochs
    ).steps()


def _require_some_readable(dataset: TranslationDataset, translator: Translator) -> None:
    """Refuse now, not after an epoch, a validation set of which nothing can be read."""
    for sentence, _ in dataset.validation_pairs:
        try:
            translator.encode(sentence)
        except ValueError as error:
            reason = error
        else:
            return
    raise ValueError(f"no validation sentence can be translated: {reason}")


@dataclasses.dataclass
class _TranslatorTrainer(Trainer):
    """Trains a translator on a `TranslationDataset`."""

    keep_epochs: int

    def batches(self, epoch: int) -> list[list[int]]:
        config = self.state.config
        lengths = [example_length(example) for example in self.dataset.train]
        rng = random.Random(f"{config.seed} {epoch}")
        return batches_by_tokens(lengths, config.batch_tokens, rng)

    def train_step(
        self, batch: list[int], step: int, learning_rate: float
    ) -> tuple[float, float, int]:
        examples = [self.dataset.train[index] for index in batch]
        labels = sum(len(target) + 1 for _, target in examples)
        return *self.state.train_step(examples, step, learning_rate), labels

    def validate(self) -> float:
        state, config = self.state, self.state.config
        examples = self.dataset.validation
        tokens = config.micro_batch_tokens or config.batch_tokens
        with state.averaged_weights() as averaged:
            loss = state.process_group.on_rank_zero(
                lambda: validation_loss(averaged, examples, tokens, config.bf16)
            )
        return state.process_group.sum(loss or 0.0)

    def save_epoch(self, epoch: int, loss: float) -> float | None:
        state, dataset = self.state, self.dataset

        def save() -> float:
            if self.folder is not None:
                translator = self.with_tokenizers(state.model)
                self.folder.save_epoch(epoch, translator, self.keep_epochs)
            with state.averaged_weights() as averaged:
                translator = self.with_tokenizers(averaged)
                bleu = _greedy_bleu(translator, dataset)
                if self.folder is not None and loss < state.best_validation_loss:
                    self.folder.save_best(translator)
            return bleu

        return state.process_group.sum(state.process_group.on_rank_zero(save) or 0.0)

    def with_tokenizers(self, model: Transformer) -> Translator:
        return _translator(model, self.dataset)


def _greedy_bleu(translator: Translator, dataset: TranslationDataset) -> float:
    """BLEU of greedy search; a sentence that cannot be read counts as blank."""
    sources, references = zip(*dataset.validation_pairs, strict=True)
    hypotheses = translator.translate(
        list(sources),
        beam_size=1,
        on_error=lambda *_: None,
        on_cut=lambda _: None,
        on_unknown=lambda *_: None,
    )
    return corpus_scores(hypotheses, references, dataset.text).bleu


def _translator(model: Transformer, dataset: TranslationDataset) -> Translator:
    tokenizers = dataset.source_tokenizer, dataset.target_tokenizer
    ratio = length_ratio_of(dataset.train)
    return Translator(model, *tokenizers, dataset.languages, ratio)
