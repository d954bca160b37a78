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
        "You shared out along columns: sum over the last dimension.": (
            scores.softmax(dim=-2)
        ),
        "You shared out along the first dimension: sum over the last.": (
            scores.softmax(dim=0)
        ),
        "You shared one whole among all rows: each row must sum to 1.": (
            raised / raised.sum()
        ),
        "You divided scores by their sum, and left out the exponential.": (
            scores / scores.sum(dim=-1, keepdim=True)
        ),
        "Those are the logarithms of the shares.": scores.log_softmax(dim=-1),
        "Each row lost its own maximum and was shared out along columns: sum over the "
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
            "A row that holds both −200 and 200 overflows: what you subtract must be "
            "its maximum, no mean and no minimum, so that no exponent is above 0."
        )
    return right("Rows sum to 1, and no score overflows.")


@exercise
def check_scale(answer: Callable[[Tensor, Tensor, Tensor], float | Tensor]) -> Verdict:
    """The number that scores were divided by, from the weights they became."""
    g = torch.Generator().manual_seed(0)
    for d_k, scale in (6, math.sqrt(6)), (4, 3.0), (9, 0.7):
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
            "You returned 1 over the scale: scores go above the line.": [1 / scale],
            "The sign is wrong: subtract in the same order above and below.": [-scale],
            "One logarithm is not enough: the sum below the line hides in it. Take the "
            "difference of two.": (scores / logs).flatten().tolist(),
            "Take the logarithm of the weights first: it is their ratio that counts.": (
                (scores[0, 0] - scores[0, 1]) / (weights[0, 0] - weights[0, 1])
            )
            .reshape(1)
            .tolist(),
            "You returned √d_k. Somebody else may have divided by another number: find "
            "it in the weights.": [math.sqrt(d_k)],
            "You returned d_k. The number is in the weights.": [float(d_k)],
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
        "You hid words after the softmax, so they were counted, and the rows no longer "
        "sum to 1: fill the scores before it.": shares * mask,
        "The mask is upside down: True means may attend.": (
            scores.masked_fill(mask, torch.finfo(scores.dtype).min)
            .softmax(dim=-1)
            .masked_fill(mask, 0.0)
        ),
        "The mask is upside down, and hides nothing from a row that may see all: True "
        "means may attend.": (
            scores.masked_fill(mask, torch.finfo(scores.dtype).min).softmax(dim=-1)
        ),
        "One of your two fills has the mask upside down: True means may attend.": (
            scores.masked_fill(mask, torch.finfo(scores.dtype).min)
            .softmax(dim=-1)
            .masked_fill(~mask, 0.0)
        ),
        "Your second fill has the mask upside down: it is for what is hidden.": (
            expected.masked_fill(mask, 0.0)
        ),
        "A score of 0 hides nothing, e⁰ is 1: fill with the lowest number.": (
            (scores * mask).softmax(dim=-1)
        ),
        "A score of 0 hides nothing, e⁰ is 1. Zeroing the weights afterwards comes too "
        "late: the word was counted.": (scores * mask).softmax(dim=-1) * mask,
        "You ignored the mask.": shares,
        "You shared out down the columns: a row of weights sums to 1, dim −1.": (
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
                "There is NaN where at least one key may be seen. A mask turned upside "
                "down, with −inf, does that: True means may attend. So does 0 times "
                "−inf: use masked_fill or where."
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
            "Your fill is not low enough: where all scores are near −1000, a hidden "
            "word wins. Use the lowest number the dtype has."
        )
    if not near(answer(scores + 1000.0 * ~mask, mask), expected):
        return wrong(
            "A hidden score that dwarfs the rest breaks yours: fill the scores before "
            "the softmax, not the weights after it."
        )
    empty = mask.clone()
    empty[2] = False
    row = answer(scores, empty)[:, 2]
    if row.isnan().any():
        return wrong("A row that may attend to nothing gives NaN: it should be zeros.")
    if near(row, torch.full((2, 5), 1 / 5)):
        return wrong(
            "A row that may attend to nothing shares its attention among hidden words: "
            "set masked weights to zero after the softmax, too."
        )
    if not near(row, torch.zeros(2, 5)):
        return wrong("A row that may attend to nothing should be zeros.")
    return right("Hidden words are never counted, and an empty row is zeros.")
