"""Checks for the exercises of chapter 04, How much should each word count?"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from bookkit.exercises import (
    Verdict,
    exercise,
    explain,
    near,
    number,
    right,
    tensor,
    wrong,
)


@exercise
def check_softmax(answer: Callable[[Tensor], Tensor]) -> Verdict:
    """A softmax over the last dimension that no score can overflow."""
    g = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 3, 4, generator=g)
    expected = scores.softmax(dim=-1)
    raised = scores.exp()
    lowered = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    mistakes = {
        "That is only the exponential: divide by the sum of the row.": raised,
        "That is only the exponential, safe as it is: divide by the sum.": lowered,
        "You normalised along columns: sum over the last dimension.": (
            scores.softmax(dim=-2)
        ),
        "You normalised over the first dimension: sum over the last.": (
            scores.softmax(dim=0)
        ),
        "You normalised over all rows together: each row must sum to 1.": (
            raised / raised.sum()
        ),
        "You divided scores by their sum, and left out the exponential.": (
            scores / scores.sum(dim=-1, keepdim=True)
        ),
        "Those are the logarithms of the weights: return the weights.": (
            scores.log_softmax(dim=-1)
        ),
        "You subtracted each row's maximum, but normalised along columns: sum over the "
        "last dimension.": lowered / lowered.sum(dim=-2, keepdim=True),
    }
    result = answer(scores)
    if not near(result, expected):
        return wrong(explain(result, expected, mistakes))
    for large in 1000.0, -1000.0:
        if not near(answer(scores + large), expected):
            return wrong(
                f"Right for small scores, but with {large:.0f} added to each it fails: "
                "only differences count, so subtract the row's maximum first."
            )
    apart = scores + torch.tensor([[0.0], [500.0], [-500.0]])
    if not near(answer(apart), expected):
        return wrong(
            "You subtracted one maximum for the whole tensor. A row far below it "
            "becomes 0/0: subtract each row's own."
        )
    wide = torch.tensor([[0.0, 200.0, -200.0]])
    if not near(answer(wide), wide.softmax(dim=-1)):
        return wrong(
            "A row that holds both −200 and 200 overflows. Subtract its maximum, not "
            "its mean or its minimum, so that no exponent is above 0."
        )
    return right("Rows sum to 1, and no score overflows.")


@exercise
def check_scale(answer: Callable[[Tensor, Tensor, Tensor], float | Tensor]) -> Verdict:
    """The number that scores were divided by, from the weights they became."""
    g = torch.Generator().manual_seed(0)
    for d_k, scale in (4, 3.0), (6, math.sqrt(6)), (9, 0.7):
        query = torch.randn(3, d_k, generator=g, dtype=torch.float64)
        key = torch.randn(5, d_k, generator=g, dtype=torch.float64)
        scores = query @ key.T
        weights = (scores / scale).softmax(dim=-1)
        result = answer(query, key, weights)
        if isinstance(result, Tensor) and result.numel() != 1:
            return wrong(f"One number, please: you returned {result.numel()} of them.")
        found = number(result, "one number")
        logs = weights.log()
        mistakes = {
            "You returned 1 over the scale: the scores belong in the numerator.": [
                1 / scale
            ],
            "The sign is wrong: subtract in the same order in the numerator and the "
            "denominator.": [-scale],
            "One logarithm is not enough: the softmax's denominator is still in it. "
            "Take the difference of two.": (scores / logs).flatten().tolist(),
            "Take the logarithm of the weights first: it is their ratio that counts.": (
                (scores[0, 0] - scores[0, 1]) / (weights[0, 0] - weights[0, 1])
            )
            .reshape(1)
            .tolist(),
            "You returned √d_k. The scores may have been divided by another number: "
            "compute it from the weights.": [math.sqrt(d_k)],
            "You returned d_k. Compute the number from the weights.": [float(d_k)],
        }
        if math.isclose(found, scale, rel_tol=1e-3):
            continue
        for message, results in mistakes.items():
            if any(math.isclose(found, other, rel_tol=1e-6) for other in results):
                return wrong(message)
        return wrong(f"You found {found:.3g}, but the scores had another scale.")
    return right("Differences of logarithms undo the softmax, up to the scale.")


@exercise
def check_masked_weights(answer: Callable[[Tensor, Tensor], Tensor]) -> Verdict:
    """Weights under a mask: hidden before the softmax, zeros in an empty row."""
    g = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 4, 5, generator=g)
    mask = torch.tensor(
        [[1, 1, 0, 1, 1], [1, 0, 0, 0, 0], [0, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    ).bool()
    hidden = scores.masked_fill(~mask, -torch.inf)
    expected = hidden.softmax(dim=-1)
    shares = scores.softmax(dim=-1)
    mistakes = {
        "You masked words after the softmax, so its sum includes them, and the rows no "
        "longer sum to 1: fill the scores before it.": shares * mask,
        "The mask is inverted: True means may attend.": (
            scores.masked_fill(mask, torch.finfo(scores.dtype).min)
            .softmax(dim=-1)
            .masked_fill(mask, 0.0)
        ),
        "The mask is inverted: True means may attend. A row that your fill masks "
        "completely also gets equal weights, not zeros.": (
            scores.masked_fill(mask, torch.finfo(scores.dtype).min).softmax(dim=-1)
        ),
        "One of your two fills has the mask inverted: True means may attend.": (
            scores.masked_fill(mask, torch.finfo(scores.dtype).min)
            .softmax(dim=-1)
            .masked_fill(~mask, 0.0)
        ),
        "Your second fill has the mask inverted: set the hidden words' weights to 0.": (
            expected.masked_fill(mask, 0.0)
        ),
        "A score of 0 hides nothing, e⁰ is 1: fill with the lowest number.": (
            (scores * mask).softmax(dim=-1)
        ),
        "A score of 0 hides nothing, e⁰ is 1. Zeroing the weights afterwards comes too "
        "late: the word is already in the softmax's sum.": (
            (scores * mask).softmax(dim=-1) * mask
        ),
        "You ignored the mask.": shares,
        "You normalised down the columns: each row must sum to 1, so use dim=-1.": (
            hidden.softmax(dim=-2).nan_to_num()
        ),
        "You added the mask to the scores. A True adds 1, and hides nothing.": (
            (scores + mask).softmax(dim=-1)
        ),
        "Those are the scores with words hidden: the softmax is missing.": hidden,
    }
    result = tensor(answer(scores, mask))
    if not near(result, expected):
        if result.isnan().any():
            return wrong(
                "There is NaN in a row that may attend to at least one key. An "
                "inverted mask with −inf causes that (True means may attend), and so "
                "does 0 times −inf: use masked_fill or where."
            )
        return wrong(explain(result, expected, mistakes))
    low = answer(scores - 1000.0, mask)
    if low.isnan().any() or not low.any():
        return wrong(
            "Where all scores are near −1000 the exponentials have all been rounded to "
            "0. Fill the scores and leave the rest to softmax."
        )
    if not near(low, expected):
        return wrong(
            "Your fill is not low enough: where all scores are near −1000, the "
            "softmax gives the weight to a hidden word. Use the dtype's lowest number."
        )
    if not near(answer(scores + 1000.0 * ~mask, mask), expected):
        return wrong(
            "The weights are wrong where a hidden score is much larger than the rest: "
            "fill the scores before the softmax, not the weights after it."
        )
    empty = mask.clone()
    empty[2] = False
    row = answer(scores, empty)[:, 2]
    if row.isnan().any():
        return wrong("A row that may attend to nothing gives NaN: it should be zeros.")
    if near(row, torch.full((2, 5), 1 / 5)):
        return wrong(
            "A row that may attend to nothing gives equal weights to hidden words: set "
            "masked weights to zero after the softmax, too."
        )
    if not near(row, torch.zeros(2, 5)):
        return wrong("A row that may attend to nothing should be zeros.")
    return right("Hidden words have no effect, and an empty row is zeros.")
