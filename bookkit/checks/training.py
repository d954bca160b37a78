"""Checks for the exercises of chapter 12, How is a Transformer trained?"""

import math
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
from bookkit.forms import form


@exercise
def check_gap(gap: Callable[[int, float], Any]) -> Verdict:
    """Exercise: how far the logits are apart where the smoothed loss is least."""

    def least(vocab_size: int, epsilon: float) -> float:
        return math.log1p(vocab_size * (1 - epsilon) / epsilon)

    size, epsilon = 5, 0.3  # not 1/5: log(1/ε) would be log V
    answer = gap(size, epsilon)
    if isinstance(answer, float) and answer == math.inf:
        return wrong(
            "That is the gap that the plain loss asks for. With smoothing the loss "
            "rises again when the wrong words get too little."
        )
    found = number(answer, "a distance, one number")
    other = epsilon / size
    own = 1 - epsilon + other
    if math.isclose(found, least(size, epsilon), rel_tol=1e-3):
        for vocab, share in (1000, 0.1), (3, 0.6), (50, 0.01):
            found = number(gap(vocab, share))
            if not math.isclose(found, least(vocab, share), rel_tol=1e-3):
                return wrong(
                    f"Right for V = {size} and ε = {epsilon}, but not for V = {vocab} "
                    f"and ε = {share}: the gap there is {least(vocab, share):.3f}; got "
                    f"{found:.3f}."
                )
        return right(
            "Farther apart for more words and for a smaller ε, never without end."
        )
    apart = math.log(own / other)
    known = {
        -apart: "The sign is wrong: the right word's logit is the larger one.",
        math.log((1 - epsilon) / other): (
            "The right word has its share of ε, too: q is 1 − ε + ε/V there."
        ),
        math.log((1 - epsilon) * (size - 1) / epsilon): (
            "You shared ε among the wrong words only. All V words share it, the right "
            "one included."
        ),
        math.log(own / (1 - own)): (
            "You compared the right word with all the others together. Each of the "
            "others has a logit of its own."
        ),
        math.log((1 - epsilon) / epsilon): (
            "You compared 1 − ε with all of ε. All V words share ε: V has to appear."
        ),
        -math.log(epsilon): (
            "You compared 1 with all of ε. All V words share ε: V has to appear."
        ),
        own / other: (
            "That is the ratio of two probabilities. A softmax makes it from a "
            "difference of logits by a power of e: take the logarithm."
        ),
        own - other: (
            "That is the difference of two probabilities, not of two logits."
        ),
        own: "That is the right word's probability at the least loss, not a logit.",
        -math.log(own): (
            "That is the surprise at the right word: compare it with that at another."
        ),
        math.log(own): (
            "That is the logarithm of one probability, which is a logit less log Σ eᶻ. "
            "In the difference of two of them this term is gone."
        ),
        -math.log(other): (
            "That is the surprise at a wrong word: subtract that at the right one."
        ),
        apart / math.log(2): "That is in bits. Logits are in nats: log to base e.",
        apart / math.log(10): "That is a logarithm to base 10: logits need base e.",
        -(own * math.log(own) + (size - 1) * other * math.log(other)): (
            "That is the floor, the least loss itself. How far apart are the logits "
            "that reach it?"
        ),
        math.log(size): "That is log V, the loss of equal logits.",
    }
    for value, message in known.items():
        if math.isclose(found, value, rel_tol=1e-3):
            return wrong(message)
    return wrong(
        f"For V = {size} and ε = {epsilon} the least loss has p = q: {own:.2f} for the "
        f"right word and {other:.2f} for each other. You got {found:.3f}."
    )


@exercise
def check_clip(clip: Callable[[list[Tensor], float], Any]) -> Verdict:
    """Exercise: clip gradients by their common length."""
    gradients = [torch.tensor([2.0, 1.0]), torch.tensor([[2.0], [-4.0]])]

    def clipped(given: list[Tensor], max_norm: float) -> Tensor:
        answer = clip(given, max_norm)
        if not isinstance(answer, list | tuple) or len(answer) != len(given):
            raise Refused("A list with one tensor for each gradient is wanted.")
        parts = [tensor(part, "each gradient as a tensor") for part in answer]
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
        more = [torch.tensor([2.0]), torch.tensor([3.0]), torch.tensor([[6.0]])]
        three = clipped(more, 1.0)
        if not torch.allclose(three, torch.tensor([2.0, 3.0, 6.0]).double() / 7):
            became = ", ".join(f"{value:.3g}" for value in three.tolist())
            return wrong(
                "Right for two gradients of norm 5, but not for three of norm 7: (2), "
                f"(3) and (6) became {became}."
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
    if times(1 / 20**0.5):
        return wrong(
            "You took the largest of the norms: compute one norm of all numbers "
            "together."
        )
    if times(5):
        return wrong("The factor is upside down: it is max_norm divided by the norm.")
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
    text = str(answer).strip().lower().replace("-", " ").replace("_", " ")
    for word in "no ", "without ", "the ", "a ":
        text = text.removeprefix(word)
    text = text.replace(" ", "").replace(".", "")
    for part, others in PARTS.items():
        if text == part.replace("-", "").replace(" ", "") or text in others:
            return part
    return None


@exercise
@form("dictionary", "A", "B", "C", "D", choices=tuple(PARTS))
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
