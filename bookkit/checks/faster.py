"""Checks for the exercises of chapter 15, What makes it fast?"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from bookkit.exercises import (
    Verdict,
    exercise,
    explain,
    near,
    number,
    right,
    wrong,
)


@exercise
def check_logits(gigabytes: Any) -> Verdict:
    """Exercise: what the logits of a batch weigh."""
    known = {
        0.925: "That is how many numbers there are, in billions. Each takes four "
        "bytes.",
        3.446: "That is in units of 2³⁰ bytes; a gigabyte has 10⁹.",
        29.6: "That is in bits. A number of 32 bits takes four bytes.",
        1.85: "Two bytes a number would be half precision; float32 takes four.",
        7.4: "Eight bytes a number would be double precision; float32 takes four.",
        3700.0: "That is in megabytes.",
        11.1: "That is logits, softmax and gradient together: count only the "
        "logits, once.",
    }
    value = number(gigabytes)
    if math.isclose(value, 3.7, rel_tol=0.01):
        return right("3.7 GB, the product of two matrices of 51 and 76 MB.")
    for answer, message in known.items():
        if math.isclose(value, answer, rel_tol=0.01):
            return wrong(message)
    return wrong(
        f"Not {value:g}: multiply the rows by the vocabulary size and by the bytes "
        "per number."
    )


@exercise
def check_gradient(gradient: Callable[[Tensor, int, float], Any]) -> Verdict:
    """Exercise: the gradient of the smoothed loss for one row of logits."""
    logits, word, smoothing = torch.tensor([0.5, 2.0, -1.0, 1.0, 0.0]), 3, 0.2
    p = logits.softmax(dim=-1)
    one = torch.zeros(5)
    one[word] = 1.0
    even = torch.full((5,), smoothing / 5)
    expected = p - (1 - smoothing) * one - even
    mistakes = {
        "The sign is wrong: where p is larger than q, a larger logit makes the loss "
        "larger.": -expected,
        "That is the gradient without smoothing: p minus one at the right word.": p
        - one,
        "The smoothing term ε/V is missing: the target q has it for every word.": (
            p - (1 - smoothing) * one
        ),
        "You gave all of ε to each word: each gets only ε/V.": (
            p - (1 - smoothing) * one - smoothing
        ),
        "The right word kept all of its 1, so the target q sums to more than one.": (
            p - one - even
        ),
        "You gave ε/V to the wrong words alone: the right word gets it, too.": (
            p - (1 - smoothing) * one - even * (1 - one)
        ),
        "ε and 1 − ε are swapped: the right word keeps most of the probability.": (
            p - smoothing * one - (1 - smoothing) / 5
        ),
        "You added q: subtract it from p.": p + (1 - smoothing) * one + even,
        "You subtracted q from the logits: turn them into probabilities first.": (
            logits - (1 - smoothing) * one - even
        ),
        "That is the target q. Subtract it from p.": (1 - smoothing) * one + even,
        "You took logarithms of p: those are in the loss, not in its gradient.": (
            p.log() - (1 - smoothing) * one - even
        ),
    }
    answer = gradient(logits.clone(), word, smoothing)
    if not near(answer, expected):
        return wrong(explain(answer, expected, mistakes))
    longer = torch.tensor([200.0, 198.5, -3.0, 199.0, 0.0, 150.0, 10.0, 201.0])
    expected = longer.softmax(dim=-1) - smoothing / 8
    expected[2] -= 1 - smoothing
    answer = torch.as_tensor(gradient(longer.clone(), 2, smoothing))
    if not answer.isfinite().all():
        return wrong("Right for small logits; with 200 the exponential overflows.")
    if not near(answer, expected):
        return wrong("Right for five words, but not for eight: each word gets ε/V.")
    return right("p - q: the model's probabilities minus the label's. It sums to zero.")


class Largest(TorchFunctionMode):
    """Notes how many numbers the largest tensor has that is made meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor):
            self.numbers = max(self.numbers, made.numel())
        return made


@exercise
def check_pieces(log_sum_exp: Callable[[list[Tensor]], Any]) -> Verdict:
    """Exercise: the logarithm of a sum of exponentials, piece by piece."""
    small = [torch.tensor([0.5, 2.0]), torch.tensor([-1.0, 1.0, 0.0])]
    expected = torch.cat(small).logsumexp(dim=-1)
    parts = torch.stack([piece.logsumexp(dim=-1) for piece in small])
    mistakes = {
        "You added the logarithms of the pieces: add the sums inside the logarithms.": (
            parts.sum()
        ),
        "The logarithm is missing: that is the sum itself.": expected.exp(),
        "You used only the last piece: include all of them.": parts[-1],
        "You used only the first piece: include all of them.": parts[0],
        "That is the largest logit, not the logarithm of the sum.": torch.cat(
            small
        ).max(),
        "You took the mean of the exponentials: take their sum.": (
            expected - math.log(5)
        ),
    }
    answer = torch.as_tensor(log_sum_exp([piece.clone() for piece in small]))
    if not near(answer, expected):
        return wrong(explain(answer, expected, mistakes))
    large = [torch.tensor([900.0, 2.0]), torch.tensor([901.0, -400.0])]
    answer = torch.as_tensor(log_sum_exp(large))
    if not answer.isfinite():
        return wrong(
            "Right for small logits; with 900 the exponential overflows. Subtract "
            "the largest logit first."
        )
    if not near(answer, torch.cat(large).logsumexp(dim=-1)):
        return wrong(f"With large logits it should be about 901.31; got {answer:.2f}.")
    rising = [torch.tensor([0.0]), torch.tensor([900.0])]
    answer = torch.as_tensor(log_sum_exp(rising))
    if not near(answer, torch.cat(rising).logsumexp(dim=-1)):
        return wrong(
            "A later piece may hold the largest logit: the largest of the first piece "
            f"will not do. After 0 and then 900 it should be 900; got {answer:.2f}."
        )
    low = [torch.tensor([-900.0]), torch.tensor([-901.0])]
    if not near(torch.as_tensor(log_sum_exp(low)), torch.cat(low).logsumexp(dim=-1)):
        return wrong(
            "With logits far below zero every exponential becomes 0. Subtract the "
            "largest logit, even if it is negative."
        )
    long = [torch.linspace(-1, 1, 64) for _ in range(5)]
    with Largest() as largest:
        log_sum_exp(long)
    if largest.numbers > 127:
        return wrong(
            "The number is right, but the pieces were joined: from five pieces of 64 "
            f"logits you made one tensor of {largest.numbers}. Hold one piece at a "
            "time."
        )
    return right("One number stands for all earlier pieces.")
