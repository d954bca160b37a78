"""Checks for the exercises of chapter 04, How much should each word count?"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from bookkit.exercises import (
    Verdict,
    array,
    exercise,
    explain,
    holds,
    near,
    number,
    right,
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
        "You normalised over the last two dimensions together. The scores here have "
        "the shape (2, 3, 4): is a row of yours a table?": (
            raised / raised.sum(dim=(-2, -1), keepdim=True)
        ),
        "You divided scores by their sum, and left out the exponential.": (
            scores / scores.sum(dim=-1, keepdim=True)
        ),
        "Those are the logarithms of the weights: return the weights.": (
            scores.log_softmax(dim=-1)
        ),
        "You subtracted each row's maximum, but normalised along columns: sum over the "
        "last dimension.": lowered / lowered.sum(dim=-2, keepdim=True),
        "You subtracted each row's maximum, but normalised over all rows together: "
        "each row must sum to 1.": lowered / lowered.sum(),
        "You subtracted the maximum in the numerator only: the denominator needs it, "
        "too.": lowered / raised.sum(dim=-1, keepdim=True),
        "You divided by the maximum: a factor changes the weights. Subtract it.": (
            (scores / scores.amax(dim=-1, keepdim=True)).softmax(dim=-1)
        ),
    }
    result = array(answer(scores))
    if not near(result, expected):
        sums = result.sum(dim=-1, keepdim=True)
        little = ((sums > 0.9) & (sums < 1)).all() and sums.max() - sums.min() > 1e-6
        if little and near(result / sums, expected):
            return wrong(
                "The weights of a row sum to a little less than 1: something is added "
                "to the sum of exponentials."
            )
        return wrong(explain(result, expected, mistakes))
    for large in 1000.0, -1000.0:
        if not near(array(answer(scores + large)), expected):
            return wrong(
                f"Right for small scores, but with {large:.0f} added to each it fails: "
                "only differences count, so subtract the row's maximum first."
            )
    apart = scores + torch.tensor([[0.0], [500.0], [-500.0]])
    if not near(array(answer(apart)), expected):
        return wrong(
            "You subtracted one maximum for the whole tensor. A row far below it "
            "becomes 0/0: subtract each row's own."
        )
    wide = torch.tensor([[0.0, 2000.0, -2000.0]])
    try:
        result = array(answer(wide))
    except OverflowError:  # math.exp
        result = torch.full_like(wide, torch.nan)
    if not near(result, wide.softmax(dim=-1)):
        return wrong(
            "A row that holds both −2000 and 2000 overflows. Subtract its maximum, not "
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
        first = scores[0, 0] - scores[0, 1]
        apart, logs_apart = (
            torch.combinations(each.flatten()).diff() for each in (scores, logs)
        )
        mistakes = {
            "You returned 1 over the scale: the scores belong in the numerator.": [
                1 / scale
            ],
            "The sign is wrong: subtract in the same order in the numerator and the "
            "denominator.": [-scale],
            "One logarithm is not enough: the softmax's denominator is still in it. "
            "Take the difference of two.": (scores / logs).flatten().tolist(),
            "Take the logarithm of the weights first: it is their ratio that counts.": [
                (first / (weights[0, 0] - weights[0, 1])).item()
            ],
            "Divide by the logarithm of the ratio, not by the ratio itself.": [
                (first / (weights[0, 0] / weights[0, 1])).item()
            ],
            "Take the natural logarithm: a softmax takes powers of e.": [
                scale * math.log(2),
                scale * math.log(10),
            ],
            "You returned √d_k. The scores may have been divided by another number: "
            "compute it from the weights.": [math.sqrt(d_k)],
            "You returned d_k. Compute the number from the weights.": [float(d_k)],
            "Take both weights from one row: each row has its own denominator.": (
                (apart / logs_apart).flatten().tolist()
            ),
        }
        if math.isclose(found, scale, rel_tol=1e-3):
            continue
        for message, results in mistakes.items():
            if any(math.isclose(found, other, rel_tol=1e-6) for other in results):
                return wrong(message)
        return wrong(f"You found {found:.3g}, but the scores had another scale.")
    return right("Differences of logarithms undo the softmax, up to the scale.")


@exercise
def check_backward(answer: Callable[[Tensor, Tensor], Tensor]) -> Verdict:
    """The gradient at the scores, from the weights and the gradient at the weights."""
    g = torch.Generator().manual_seed(0)
    weights = torch.randn(3, 5, generator=g).softmax(dim=-1)
    gradient = torch.randn(3, 5, generator=g)

    def back(
        w: Tensor, dim: int | tuple[int, int] = -1, at: Tensor = gradient
    ) -> Tensor:
        return w * (at - (w * at).sum(dim, keepdim=True))

    expected = back(weights)
    product = weights * gradient
    total = product.sum(dim=-1, keepdim=True)
    jacobian = torch.diag_embed(weights) - weights[..., None] * weights[:, None]
    mistakes = {
        "You took only the terms with i = j, the slope w(1 − w). A score also moves "
        "all the other weights of its row: sum over i.": product * (1 - weights),
        "You took only the terms with i ≠ j. A score moves its own weight, too.": (
            weights * (product - total)
        ),
        "You took the denominator of the softmax for a constant: each score is in it, "
        "so there is a second term, −w_i w_j.": product,
        "The second term is there and the first is missing: where i = j, δ is 1.": (
            -weights * total
        ),
        "The sign is wrong: where the gradient at the weight is above its mean, that "
        "at the score is positive.": -expected,
        "You subtracted the plain mean of the gradient. Its mean by the weights is "
        "wanted.": weights * (gradient - gradient.mean(dim=-1, keepdim=True)),
        "You subtracted the row's sum of the gradient: weight each by its w_i.": (
            weights * (gradient - gradient.sum(dim=-1, keepdim=True))
        ),
        "You took the mean of the w_i g_i: the mean by the weights is their sum.": (
            weights * (gradient - product.mean(dim=-1, keepdim=True))
        ),
        "The factor w_j in front is missing.": gradient - total,
        "The second term lacks its factor w_j.": product - total,
        "You summed down the columns: the weights of one row depend on each other, "
        "those of two rows do not.": back(weights, 0),
        "You summed over all rows together: each row is a softmax of its own.": (
            back(weights, (0, 1))
        ),
        "You applied the softmax again: you are given the weights, not the scores.": (
            back(weights.softmax(dim=-1))
        ),
        "Those are the derivatives of each weight by each score: multiply by the "
        "gradient at the weights, and sum over them.": jacobian,
        "You summed the derivatives over i without the gradient at the weights. They "
        "add up to 0, as the weights of a row always add up to 1.": (
            torch.zeros_like(weights)
        ),
    }
    result = array(answer(weights, gradient))
    if not near(result, expected):
        return wrong(explain(result, expected, mistakes))
    four, at = torch.randn(3, 4, generator=g).softmax(dim=-1), gradient[:, :4]
    if not holds(answer, (four, at), back(four, at=at)):
        return wrong("Right for five keys, but not for four: use weights.size(-1).")
    hidden = torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0, 0.0]])
    hidden = torch.cat([hidden, torch.zeros(1, 5)])
    result = array(answer(hidden, gradient))
    if not result[:2].isfinite().all():
        return wrong(
            "Right for weights above 0, but the weight of a hidden key is 0, and so is "
            "its gradient: you divide by a weight or take its logarithm."
        )
    if not near(result[:2], back(hidden)[:2]):
        return wrong(
            "Right for weights above 0, but not where a row has weights of 0: "
            f"{explain(result, back(hidden), {})}"
        )
    if not near(result, back(hidden)):
        return wrong(
            "Right for hidden keys, but not for a row of zeros, a query that may "
            "attend to nothing: none of its scores gets a gradient."
        )
    return right("A hidden key gets no gradient, and a saturated row gets none at all.")
