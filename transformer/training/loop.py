"""The training loop: a step of Adam for each batch.

Made from book/12-training.md: edit the chapter, not this file.
"""

import math
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import nn

from transformer.checks import require_examples, require_not_meta
from transformer.decoding.support import unwrap
from transformer.model import Transformer, TransformerConfig
from transformer.phrasebook.grammar import phrasebook_tokenizers
from transformer.text.batches import (
    Batch,
    Example,
    batches_by_tokens,
    example_length,
    make_batch,
)
from transformer.training.config import TrainingConfig
from transformer.training.loss import label_smoothed_loss

__all__ = [
    "phrasebook_model",
    "paper_adam",
    "train_step",
    "training_mode",
    "StepMetrics",
    "train",
]


def phrasebook_model(seed: int = 0) -> Transformer:
    """An untrained model of the phrasebook's size: 2 + 2 layers of width 96."""
    source, target = phrasebook_tokenizers()
    config = TransformerConfig(
        source.vocab_size,
        target.vocab_size,
        d_model=96,
        num_heads=4,
        num_encoder_layers=2,
        num_decoder_layers=2,
        d_ff=192,
        dropout=0.0,
        max_length=32,
    )
    with torch.random.fork_rng(devices=[]):  # the caller's random state stays
        torch.default_generator.manual_seed(seed)
        return Transformer(config)


def paper_adam(model: nn.Module) -> torch.optim.Adam:
    """Adam with the paper's constants (section 5.3); each step sets its own rate."""
    return torch.optim.Adam(
        model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True
    )


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    learning_rate: float,
    config: TrainingConfig,
) -> tuple[float, float]:
    """One training step: loss, gradient, clipping, update.

    Returns the loss, and the norm of the gradient before it was clipped. The batch is
    to be padded with the `pad_id` of the model's config.
    """
    source, decoder_input, labels = batch.to(next(model.parameters()).device)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    logits = model(source, decoder_input)
    pad_id = unwrap(model, "train_step").config.pad_id
    loss = label_smoothed_loss(logits, labels, config.label_smoothing, pad_id)
    optimizer.zero_grad()
    loss.backward()
    grad_norm = nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
    optimizer.step()
    return loss.item(), grad_norm.item()


@contextmanager
def training_mode(model: nn.Module) -> Iterator[None]:
    """Training mode, with dropout; afterwards each module's own mode again."""
    evaluating = [module for module in model.modules() if not module.training]
    try:
        model.train()
        yield
    finally:
        for module in evaluating:
            module.training = False


class StepMetrics(NamedTuple):
    """What a training step reports.

    Attributes:
        step: its number, from 1.
        total_steps: how many there are, if the training does not end early.
        epoch: the number of the epoch, from 1.
        loss: the mean over the step's labels, in nats.
        learning_rate: the rate that the step used.
        grad_norm: the length of the gradient before it was clipped.
        target_tokens: how many labels the step had.
        seconds: time since the training began.
        validation_loss: at the end of an epoch of a real run, else None.
        bleu: the same, for BLEU of greedy search on the validation set.
    """

    step: int
    total_steps: int
    epoch: int
    loss: float
    learning_rate: float
    grad_norm: float
    target_tokens: int
    seconds: float
    validation_loss: float | None = None
    bleu: float | None = None


def train(
    model: nn.Module,
    examples: Sequence[Example],
    config: TrainingConfig | None = None,
) -> Iterator[StepMetrics]:
    """Train a model in place, one step for each `StepMetrics` that the caller asks for.

    The config's `seed` fixes the order of the examples; dropout draws from torch's own
    generator. Between steps, and afterwards, the model is in the mode it was in. The
    config's `bf16`, `micro_batch_tokens`, `ema_decay` and `patience` are ignored here.

    Raises:
        ValueError: at once, naming the first example that does not fit the model or a
            batch, for none, or for a model on the meta device; at a step whose loss or
            gradient is not finite.
    """
    config = config or TrainingConfig()
    sizes = unwrap(model, "train").config
    require_not_meta(next(model.parameters()).device)
    require_examples(
        "example",
        examples,
        sizes,
        max_length=sizes.max_length,
        batch_tokens=config.batch_tokens,
    )
    return _steps(model, examples, config, sizes)


def _steps(
    model: nn.Module,
    examples: Sequence[Example],
    config: TrainingConfig,
    sizes: TransformerConfig,
) -> Iterator[StepMetrics]:
    """The steps of `train`."""
    rng = random.Random(config.seed)
    lengths = [example_length(example) for example in examples]
    steps = [
        (epoch, indices)
        for epoch in range(1, config.epochs + 1)
        for indices in batches_by_tokens(lengths, config.batch_tokens, rng)
    ]
    optimizer = paper_adam(model)
    started = time.perf_counter()
    for step, (epoch, indices) in enumerate(steps, start=1):
        learning_rate = config.learning_rate_at(step, len(steps), sizes.d_model)
        batch = make_batch(
            [examples[index] for index in indices],
            sizes.pad_id,
            sizes.bos_id,
            sizes.eos_id,
        )
        with training_mode(model):
            loss, grad_norm = train_step(model, optimizer, batch, learning_rate, config)
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            raise ValueError(
                f"step {step} diverged, its loss is {loss} and its gradient's norm "
                f"{grad_norm}: try a lower learning rate"
            )
        yield StepMetrics(
            step,
            len(steps),
            epoch,
            loss,
            learning_rate,
            grad_norm,
            target_tokens=int((batch.labels != sizes.pad_id).sum()),
            seconds=time.perf_counter() - started,
        )
