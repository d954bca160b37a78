"""Checks for the exercises of chapter 12, How is a Transformer trained?"""

import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bookkit.exercises import (
    Refused,
    Verdict,
    blanks,
    exercise,
    number,
    right,
    tensor,
    wrong,
)


@exercise
def check_smoothed(smoothed: Callable[[Tensor, int, float], Any]) -> Verdict:
    """Exercise: the smoothed loss of one word."""
    logits, label, epsilon = torch.tensor([1.5, -0.5, 0.25, 2.0, -1.0]), 2, 0.2
    surprise = -logits.log_softmax(dim=-1)
    others = (surprise.sum() - surprise[label]) / (len(logits) - 1)
    wanted = (1 - epsilon) * surprise[label] + epsilon * surprise.mean()
    answer = number(smoothed(logits, label, epsilon), "a loss, one number")
    known = {
        float(surprise[label]): "That is the plain loss: epsilon has no effect.",
        float((1 - epsilon) * surprise[label] + epsilon * others): (
            "You divided epsilon among the wrong words only. All words share it, the "
            "right one included."
        ),
        float((1 - epsilon) * surprise[label] + epsilon * surprise.sum()): (
            "You gave each word epsilon. They share it: take the mean, not the sum."
        ),
        float(wanted - epsilon / len(logits) * surprise[label]): (
            "The right word gets its share of epsilon too: q is 1 - ε + ε/V there."
        ),
        float(wanted) / math.log(2): (
            "Your loss is in bits. Use the natural logarithm, for nats."
        ),
        -float(wanted): "The sign is wrong: a surprise is *minus* the log-probability.",
        float((1 - epsilon) * surprise[label]): (
            "The second part is missing: epsilon times the mean surprise of all words."
        ),
        float((1 - epsilon) * -logits[label] - epsilon * logits.mean()): (
            "You used the logits as they are. They need a log-softmax first."
        ),
        float(epsilon * surprise[label] + (1 - epsilon) * surprise.mean()): (
            "epsilon and 1 - epsilon are swapped: the right word keeps most."
        ),
    }
    if math.isclose(answer, float(wanted), rel_tol=1e-5):
        plain = number(smoothed(logits, 0, 0.0))
        if not math.isclose(plain, float(surprise[0]), rel_tol=1e-5):
            return wrong("With epsilon = 0 it should be the plain loss of the label.")
        return right("Most for the right word, a little for every word.")
    for value, message in known.items():
        if math.isclose(answer, value, rel_tol=1e-4):
            return wrong(message)
    return wrong(
        f"For the logits {logits.tolist()}, label {label} and epsilon {epsilon}, the "
        f"loss is {wanted:.3f}; got {answer:.3f}."
    )


@exercise
def check_clip(clip: Callable[[list[Tensor], float], Any]) -> Verdict:
    """Exercise: clip gradients by their common length."""
    gradients = [torch.tensor([2.0, 1.0]), torch.tensor([[2.0], [-4.0]])]

    def clipped(given: list[Tensor], max_norm: float) -> Tensor:
        answer = clip(given, max_norm)
        if not isinstance(answer, list | tuple) or len(answer) != len(given):
            raise Refused("A list with one tensor for each gradient is wanted.")
        parts = [tensor(part, "a list of tensors") for part in answer]
        if any(a.shape != b.shape for a, b in zip(parts, given, strict=True)):
            raise Refused("Each gradient should keep its shape.")
        return torch.cat([part.flatten().double() for part in parts])

    flat = clipped(gradients, 1.0).tolist()
    short = clipped([torch.tensor([0.3]), torch.tensor([0.4])], 1.0)

    def close(*values: float) -> bool:
        pairs = zip(flat, values, strict=True)
        return all(math.isclose(a, b, abs_tol=1e-5) for a, b in pairs)

    def times(factor: float) -> bool:
        return close(2 * factor, factor, 2 * factor, -4 * factor)

    if times(1 / 5):
        if torch.allclose(short, torch.tensor([0.6, 0.8]).double()):
            return wrong(
                "You lengthened a gradient that was short. Clipping only shortens."
            )
        if not torch.allclose(short, torch.tensor([0.3, 0.4]).double()):
            return wrong(f"The short gradient (0.3, 0.4) became {short.tolist()}.")
        two = clipped(gradients, 2.0)
        if not torch.allclose(two, torch.tensor([0.8, 0.4, 0.8, -1.6]).double()):
            return wrong("Right for max_norm = 1, but not for 2: is max_norm used?")
        between = clipped([torch.tensor([0.9]), torch.tensor([1.2])], 2.0)
        if not torch.allclose(between, torch.tensor([0.9, 1.2]).double()):
            return wrong(
                "With max_norm = 2 a gradient of norm 1.5 should stay as it is; (0.9, "
                f"1.2) became {between.tolist()}."
            )
        try:
            still = clipped([torch.zeros(2), torch.zeros(1)], 1.0)
        except ZeroDivisionError:
            still = torch.tensor(math.nan)
        if still.isnan().any():
            return wrong(
                "Gradients of zeros become NaN: their norm is 0, and you divide by "
                "it. Short gradients should stay as they are."
            )
        return right("One length for all, one factor for all.")
    if close(1, 1, 1, -1):
        return wrong(
            "Each number was clipped on its own. That changes the direction: 2 and -4 "
            "became 1 and -1. Compute one norm of all numbers together."
        )
    if close(2 / 5**0.5, 1 / 5**0.5, 1 / 5**0.5, -2 / 5**0.5):
        return wrong(
            "Each gradient was clipped on its own. That changes the direction of the "
            "long vector that they form together: compute one norm of all."
        )
    if times(1):
        return wrong(
            "Nothing was shortened: the norm of all together is 5, and may be at "
            "most 1."
        )
    if times(1 / 25):
        return wrong("You divided by the square of the norm: take its root.")
    if times(1 / 9):
        return wrong(
            "You added up absolute values. The norm is the root of the sum of squares."
        )
    if times(1 / 4):
        return wrong("You divided by the largest number, not by the norm.")
    if times(1 / (5**0.5 + 20**0.5)):
        return wrong("You added up two norms. Add the squares, then take the root.")
    rounded = ", ".join(f"{value:.3g}" for value in flat)
    return wrong(f"(2, 1) and (2, -4) are five times too long; you returned {rounded}.")


PARTS = {
    "root": ("squareroot", "sqrt", "scale", "√dk"),
    "causal mask": ("causal", "mask"),
    "positions": ("position", "positionalencoding", "positionalencodings"),
    "residuals": ("residual", "residualconnection", "residualconnections"),
    "warm-up": ("warmup", "warmupsteps"),
}


def _part(answer: Any) -> str | None:
    """The part that an answer names, in any usual spelling; None for no part."""
    text = re.sub(r"^(no|without)[\s_-]+", "", str(answer).strip().lower())
    text = re.sub(r"^(the|a)\s+", "", text)
    text = re.sub(r"[\s_.-]", "", text)
    for part, others in PARTS.items():
        if text in (re.sub(r"[\s-]", "", part), *others):
            return part
    return None


@exercise
def check_broken(missing: Any) -> Verdict:
    """Exercise: from the symptom to the part that is missing."""
    hints = {
        "A": ("causal mask", "what if its input contained the next word?"),
        "B": ("warm-up", "look at the size of the first step."),
        "C": ("positions", "what makes the output depend on which word came first?"),
        "D": ("residuals", "what carries a word's own vector past the averaging?"),
    }
    names = blanks(missing, list(hints))
    for (model, (part, hint)), name in zip(hints.items(), names, strict=True):
        named = _part(name)
        if named is None:
            return wrong(f"{name!r} is none of the five: {', '.join(PARTS)}.")
        if named != part:
            return wrong(f"{model} does not lack the {named}: {hint}")
    return right("Each symptom names its part; no loss curve was needed for C and D.")
