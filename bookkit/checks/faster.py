"""Checks for the exercises of chapter 15, What makes it fast?"""

import math
import tracemalloc
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
from bookkit.forms import form


@exercise
@form("one", "gigabytes")
def check_logits(gigabytes: Any) -> Verdict:
    """Exercise: what the logits of a batch weigh."""
    known = {
        0.925: "That is how many numbers there are, in billions. Each takes four "
        "bytes.",
        3.446: "That is in units of 2³⁰ bytes; a gigabyte has 10⁹.",
        29.6: "That is in bits. A number of 32 bits takes four bytes.",
        1.85: "Two bytes a number would be half precision; float32 takes four.",
        7.4: "That is twice the weight. Did you take eight bytes for a number "
        "(float32 takes four), or did you count the softmax, too? Count only the "
        "logits, once.",
        3700.0: "That is in megabytes.",
        3.7e9: "That is in bytes: divide by 10⁹.",
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
def check_gradient(gradient: Callable[[Tensor, Tensor, float], Any]) -> Verdict:
    """Exercise: the gradient of the smoothed loss for a batch of rows of logits."""
    logits = torch.tensor(
        [
            [0.5, 2.0, -1.0, 1.0, 0.0],
            [1.5, 0.0, 0.5, -0.5, 1.0],
            [-2.0, 0.25, 1.25, 0.0, 0.75],
        ]
    )
    labels, smoothing = torch.tensor([3, 0, 2]), 0.2
    p = logits.softmax(dim=-1)
    one = torch.nn.functional.one_hot(labels, 5).float()
    every = torch.zeros(5)
    every[labels] = 1.0
    target = (1 - smoothing) * one + smoothing / 5
    expected = p - target
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
            p - one - smoothing / 5
        ),
        "You gave ε/V to the wrong words alone: the right word gets it, too.": (
            p - (1 - smoothing) * one - smoothing / 5 * (1 - one)
        ),
        "You divided ε among the V - 1 wrong words. Here every word gets ε/V, the "
        "right one, too.": (p - (1 - smoothing) * one - smoothing / 4 * (1 - one)),
        "You divided ε by V - 1: all V words share it, the right one, too.": (
            p - (1 - smoothing) * one - smoothing / 4
        ),
        "You divided ε by the number of rows: divide it by V, the size of the "
        "vocabulary.": p - (1 - smoothing) * one - smoothing / 3,
        "ε and 1 − ε are swapped: the right word keeps most of the probability.": (
            p - smoothing * one - (1 - smoothing) / 5
        ),
        "Every row got the labels of all rows: a row has one right word. As an index, "
        "[torch.arange(len(labels)), labels] takes one entry in each row.": (
            p - (1 - smoothing) * every - smoothing / 5
        ),
        "Your softmax runs over the rows: it should run over the vocabulary.": (
            logits.softmax(dim=0) - target
        ),
        "That is the gradient of the mean over the rows: the loss is their sum.": (
            expected / 3
        ),
        "The rows are added up: each row of logits has its own gradient.": (
            expected.sum(dim=0)
        ),
        "You added q: subtract it from p.": p + target,
        "You subtracted q from the logits: turn them into probabilities first.": (
            logits - target
        ),
        "That is the target q. Subtract it from p.": target,
        "That is p: subtract the target q.": p,
        "You took logarithms of p: those are in the loss, not in its gradient.": (
            p.log() - target
        ),
    }
    answer = gradient(logits.clone(), labels, smoothing)
    if not near(answer, expected):
        return wrong(explain(answer, expected, mistakes))
    longer = torch.tensor(
        [
            [200.0, 198.5, -3.0, 199.0, 0.0, 150.0, 10.0, 201.0],
            [1.0, 0.0, 2.0, -1.0, 0.5, 0.0, 1.5, 3.0],
        ]
    )
    expected = longer.softmax(dim=-1) - smoothing / 8
    expected[[0, 1], [2, 6]] -= 1 - smoothing
    sizes = (
        "Right for three rows and five words, but not for two rows and eight words: "
        "read the sizes from the arguments. Each word gets ε/V."
    )
    try:
        answer = gradient(longer.clone(), torch.tensor([2, 6]), smoothing)
    except OverflowError:
        answer = torch.full_like(longer, torch.inf)
    except (IndexError, RuntimeError):
        return wrong(sizes)
    if not torch.as_tensor(answer).isfinite().all():
        return wrong("Right for small logits; with 200 the exponential overflows.")
    if not near(answer, expected):
        return wrong(sizes)
    return right(
        "p - q: the model's probabilities minus the label's. Each row sums to zero."
    )


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


def _held(log_sum_exp: Callable[[list[Tensor]], Any], pieces: list[Tensor]) -> int:
    """The most bytes that an answer holds outside torch, in arrays and in lists."""
    traced = tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        log_sum_exp(pieces)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        if not traced:
            tracemalloc.stop()


@exercise
def check_pieces(log_sum_exp: Callable[[list[Tensor]], Any]) -> Verdict:
    """Exercise: the logarithm of a sum of exponentials, piece by piece."""
    # The middle piece has the largest logit and the largest sum.
    small = [[0.5, 1.0], [-1.0, 2.0, 0.0], [0.25, -0.5]]
    pieces = [torch.tensor(piece) for piece in small]
    row = torch.cat(pieces)
    expected = row.logsumexp(dim=-1)
    parts = torch.stack([piece.logsumexp(dim=-1) for piece in pieces])
    not_rescaled = (
        "When the largest logit so far grows, rescale the sum so far: multiply it by "
        "e^(old largest - new largest)."
    )
    top = torch.tensor(-torch.inf)
    unscaled, inverted = torch.zeros(()), torch.zeros(())
    for piece in pieces:
        old, top = top, torch.maximum(top, piece.max())
        powers = (piece - top).exp().sum()
        unscaled = unscaled + powers
        inverted = powers + (inverted * (top - old).exp() if inverted else 0)
    logit_by_logit = (row - row.cummax(dim=0).values).exp().sum()
    by_its_own = torch.stack([(piece - piece.max()).exp().sum() for piece in pieces])
    mistakes = {
        "You added the logarithms of the pieces: add the sums inside the logarithms.": (
            parts.sum()
        ),
        "The logarithm is missing: that is the sum itself.": expected.exp(),
        "You used only the last piece: include all of them.": parts[-1],
        "You used only the first piece: include all of them.": parts[0],
        "That is the result of one piece alone. Did you take the largest of the "
        "results? The exponentials of all pieces add up.": parts.max(),
        "That is the largest logit, not the logarithm of the sum.": row.max(),
        "You subtracted the largest logit and did not add it back.": (
            expected - row.max()
        ),
        "You took the mean of the exponentials: take their sum.": (
            expected - math.log(len(row))
        ),
        "You began with 0, the logarithm of 1: begin with -inf.": (
            (1 + expected.exp()).log()
        ),
        not_rescaled: top + unscaled.log(),
        "The factor is inverted: when the largest logit so far grows, multiply the sum "
        "so far by e^(old largest - new largest).": top + inverted.log(),
    }
    answer = torch.as_tensor(log_sum_exp([piece.clone() for piece in pieces]))
    if any(near(answer, top + s.log()) for s in (logit_by_logit, by_its_own.sum())):
        return wrong(not_rescaled)
    if not near(answer, expected):
        return wrong(explain(answer, expected, mistakes))

    def attempt(pieces: list[Tensor]) -> Tensor:
        """The answer; where `math` raises, what torch computes with."""
        try:
            return torch.as_tensor(log_sum_exp(pieces))
        except OverflowError:  # math.exp of a large number
            return torch.tensor(torch.inf)
        except ValueError as error:  # math.log of 0
            if "domain" in str(error) or "positive" in str(error):
                return torch.tensor(-torch.inf)
            raise

    large = [torch.tensor([900.0, 2.0]), torch.tensor([901.0, -400.0])]
    answer = attempt(large)
    if not answer.isfinite():
        return wrong(
            "Right for small logits; with 900 the exponential overflows. Subtract "
            "the largest logit first."
        )
    if not near(answer, torch.cat(large).logsumexp(dim=-1)):
        return wrong(f"With large logits it should be about 901.31; got {answer:.2f}.")
    for first, second, why in (
        (0, 900, "the largest logit: the largest of the first piece will not do."),
        (900, 0, "only smaller logits: keep the largest so far."),
    ):
        answer = attempt([torch.tensor([float(each)]) for each in (first, second)])
        if not near(answer, torch.tensor(900.0)):
            return wrong(
                f"A later piece may hold {why} After {first} and then {second} it "
                f"should be 900; got {answer:.2f}."
            )
    low = [torch.tensor([-900.0]), torch.tensor([-901.0])]
    if not near(attempt(low), torch.cat(low).logsumexp(dim=-1)):
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
    # An array of all numbers and its exponentials take 96,000 bytes; the slices of the
    # list that a recursion holds, or one piece as a list of tensors, under 35,000.
    many = [torch.linspace(-1, 1, 125) for _ in range(64)]
    if _held(log_sum_exp, many) > 60_000:
        return wrong(
            "The number is right, but the pieces were joined, in a list or an array. "
            "Hold one piece at a time."
        )
    return right("One number stands for all earlier pieces.")
