"""Training configuration, and the paper's learning rate schedule.

Made from book/12-training.md: edit the chapter, not this file.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from transformer.checks import (
    is_number,
    require_bool,
    require_positive,
    require_probability,
)

__all__ = [
    "noam_learning_rate",
    "SCHEDULES",
    "TrainingConfig",
]


def noam_learning_rate(step: int, d_model: int, warmup_steps: int = 4000) -> float:
    """The paper's schedule (equation 3): linear warm-up, then decay as 1/√step.

    Its peak, at the end of the warm-up, is (d_model · warmup_steps)^-½.

    Raises:
        ValueError: for a step, width or warm-up below 1.
    """
    require_positive(step=step, d_model=d_model, warmup_steps=warmup_steps)
    return d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def _inverse_sqrt(step: int, total_steps: int, warmup_steps: int) -> float:
    return math.sqrt(warmup_steps / step)


def _cosine(step: int, total_steps: int, warmup_steps: int) -> float:
    progress = (step - warmup_steps) / (total_steps - warmup_steps)
    return (1 + math.cos(math.pi * progress)) / 2


# The share of its peak that the learning rate has at a step after the warm-up.
SCHEDULES: dict[str, Callable[[int, int, int], float]] = {
    "inverse-sqrt": _inverse_sqrt,
    "cosine": _cosine,
}
_FRACTIONS = (
    "learning_rate",
    "cooldown",
    "label_smoothing",
    "max_grad_norm",
    "ema_decay",
)


@dataclass(frozen=True)
class TrainingConfig:
    """How to train; the defaults train the phrasebook. Model sizes are the model's.

    Attributes:
        epochs: how often the training set is read.
        batch_tokens: most positions of a step on either side, padding included: as many
            of the sources, and as many of the targets.
        micro_batch_tokens: most positions on either side read at once; a step adds the
            gradients of several such parts. None: the whole batch at once.
        schedule: how the learning rate falls after warm-up, a name in `SCHEDULES`.
        learning_rate: its peak. None: the paper's, which follows from the model's width
            and the warm-up.
        warmup_steps: steps over which the learning rate rises to its peak.
        cooldown: the last share of the steps, over which it also falls linearly, to 0
            at the last step: a training of a single step needs a cooldown of 0.
        label_smoothing: the share ε of each label that all tokens share.
        max_grad_norm: a longer gradient is clipped to this length.
        ema_decay: the share that the moving average of the weights keeps at each step,
            at most: in the first steps it keeps less.
        patience: epochs without a lower validation loss after which a run ends.
        bf16: whether matrices are multiplied in bfloat16.
        seed: fixes the order of the examples and a run's dropout, and on the command
            line the initial weights.

    The simple loop of chapter 12 has no parts, average, patience or bf16.

    Raises:
        ValueError: naming the first field that no training could follow.
    """

    epochs: int = 2
    batch_tokens: int = 1024
    micro_batch_tokens: int | None = None
    schedule: str = "inverse-sqrt"
    learning_rate: float | None = None
    warmup_steps: int = 300
    cooldown: float = 0.5
    label_smoothing: float = 0.1
    max_grad_norm: float = 1.0
    ema_decay: float = 0.999
    patience: int = 10
    bf16: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        require_positive(
            epochs=self.epochs,
            batch_tokens=self.batch_tokens,
            micro_batch_tokens=(
                self.batch_tokens
                if self.micro_batch_tokens is None
                else self.micro_batch_tokens
            ),
            warmup_steps=self.warmup_steps,
            patience=self.patience,
        )
        require_probability(
            label_smoothing=self.label_smoothing, ema_decay=self.ema_decay
        )
        for name in _FRACTIONS:  # NumPy's numbers, too, which JSON could not hold
            if is_number(value := getattr(self, name)):
                object.__setattr__(self, name, float(value))
        for name in ("learning_rate", "max_grad_norm"):
            value = getattr(self, name)
            paper = name == "learning_rate" and value is None
            if not paper and not (is_number(value) and value > 0):
                raise ValueError(f"{name} must be a number above 0, got {value!r}")
        if self.learning_rate == math.inf:
            raise ValueError("learning_rate must be finite, got inf")
        share = self.cooldown
        if not is_number(share) or not 0 <= share <= 1:
            raise ValueError(f"cooldown must lie in [0, 1], got {share!r}")
        if type(self.seed) is not int:
            raise ValueError(f"seed must be a whole number, got {self.seed!r}")
        require_bool(bf16=self.bf16)
        if self.schedule not in SCHEDULES:
            names = " or ".join(SCHEDULES)
            raise ValueError(f"schedule must be {names}, got {self.schedule!r}")

    def learning_rate_at(self, step: int, total_steps: int, d_model: int) -> float:
        """The learning rate of a step, 1 to `total_steps`."""
        left = (total_steps - step) / total_steps
        cooled = min(1.0, left / self.cooldown) if self.cooldown else 1.0
        return cooled * self._before_cooldown(step, total_steps, d_model)

    def _before_cooldown(self, step: int, total_steps: int, d_model: int) -> float:
        warmup = self.warmup_steps
        if self.learning_rate is None and self.schedule == "inverse-sqrt":
            return noam_learning_rate(step, d_model, warmup)
        peak = self.learning_rate or noam_learning_rate(warmup, d_model, warmup)
        if step <= warmup:
            return peak * step / warmup
        return peak * SCHEDULES[self.schedule](step, total_steps, warmup)
