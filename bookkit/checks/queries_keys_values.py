"""Checks for the exercises of chapter 03: queries, keys and values."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bookkit.exercises import (
    Verdict,
    array,
    exercise,
    explain,
    near,
    numbers,
    right,
    wrong,
)
from bookkit.forms import form

NAN = (
    "There is NaN in it: did a whole row of scores become −∞, or was 0 multiplied by "
    "∞? masked_fill or where sets the diagonal alone."
)


@exercise
@form("list", "first number", "second number")
def check_loud_key(answer: Sequence[float] | Tensor) -> Verdict:
    """A key that beats (1, 1) by dot product and loses to it by cosine."""
    key = numbers(answer, "the two numbers of a key, such as [1, 2]")
    if len(key) != 2:
        return wrong(f"A key here has two numbers, got {len(key)}.")
    if not math.hypot(*key) > 0:
        return wrong("A key of length zero has no angle: its cosine is undefined.")
    dot = 2 * key[0] + key[1]
    cosine = dot / (math.hypot(*key) * math.sqrt(5))
    found = f"dot product {dot:.3g} against 3, cosine {cosine:.3f} against 0.949"
    louder, turned = dot > 3 + 1e-9, cosine < 3 / math.sqrt(10) - 1e-9
    if louder and turned:
        return right(f"Longer, and at a wider angle to the query: {found}.")
    if louder and math.isclose(cosine, 3 / math.sqrt(10)):
        return wrong(
            f"You only stretched (1, 1), so the angle is the same: {found}. Change the "
            "direction."
        )
    if louder:
        return wrong(
            f"The dot product is larger, but so is the cosine: {found}. Widen the "
            "angle to the query."
        )
    if dot <= 0:
        return wrong(
            f"The angle is too wide: {found}. At a right angle or more, no length "
            "makes the dot product positive."
        )
    if turned:
        return wrong(f"The angle is wide enough, but the key is too short: {found}.")
    if math.isclose(cosine, 3 / math.sqrt(10)):
        return wrong(
            f"That has the direction of (1, 1) and is no longer than it: {found}."
        )
    return wrong(f"It is the other way round, a small angle and a short key: {found}.")


# The chapter's hand-set keys of Jane, visite, l'Afrique, en, septembre.
_KEYS = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1]]


@exercise
@form("list", "who", "what", "where", "when")
def check_place_row(answer: Sequence[float] | Tensor) -> Verdict:
    """A row `place` of W_Q that makes l'Afrique attend to septembre."""
    row = numbers(answer, "four numbers: who, what, where, when")
    if len(row) == 6:
        return wrong("Six numbers are a column of W_Q. The row place has four.")
    if len(row) != 4:
        return wrong(f"Give four numbers: who, what, where, when. Got {len(row)}.")
    scores = [sum(k * q for k, q in zip(key, row, strict=True)) for key in _KEYS]
    paid = 1 / sum(math.exp(min(score - scores[4], 700.0)) for score in scores)
    if paid > 0.95:
        return right(f"L'Afrique now attends to a time: septembre gets {paid:.3f}.")
    got = f"septembre gets {paid:.3f}"
    if row[3] < 0 and max(row[:3]) <= 0:
        return wrong(f"The sign is wrong: {got}. A negative score lowers a weight.")
    largest = row.index(max(row))
    if largest == 0 and row[0] > row[3]:
        return wrong(f"The row is largest in who, which Jane's key matches: {got}.")
    if largest == 1 and row[1] > row[3]:
        return wrong(
            f"The row is still largest in what, which the key of visite matches: {got}."
        )
    if largest == 2 and row[2] > row[3]:
        return wrong(
            f"The row is largest in where, which l'Afrique's own key matches: {got}."
        )
    if not any(row):
        return wrong(
            f"A row of zeros matches no key, so all words get the same weight: {got}."
        )
    if min(row) == max(row):
        return wrong(
            f"The four numbers are the same, so four words get the same score: {got}."
        )
    if row[3] <= max(*row[:3], 0):
        return wrong(
            f"Another word matches at least as well as septembre: {got}. The number "
            "for when must be the largest in the row, and above 0, the score of en."
        )
    return wrong(f"The right direction, but too short: {got}. Lengthen the query.")


@exercise
def check_attend_others(
    answer: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
) -> Verdict:
    """Unscaled attention in which no word attends to itself."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(5, 6, generator=g)
    w_query = torch.randn(6, 4, generator=g) / 2
    w_key = torch.randn(6, 4, generator=g) / 2
    w_value = torch.randn(6, 3, generator=g)
    scores, values = (x @ w_query) @ (x @ w_key).T, x @ w_value
    itself = torch.eye(5, dtype=torch.bool)
    hidden = scores.masked_fill(itself, -torch.inf)
    plain = scores.softmax(dim=-1)
    expected = hidden.softmax(dim=-1) @ values
    mistakes = {
        "Every word still attends to itself.": plain @ values,
        "You set the diagonal to 0 after the softmax: rows no longer sum to 1. Set it "
        "to −∞ in the scores, before the softmax.": plain.masked_fill(itself, 0.0)
        @ values,
        "A score of 0 still gets a weight, since e⁰ is 1: set the diagonal to −∞.": (
            scores.masked_fill(itself, 0.0).softmax(dim=-1) @ values
        ),
        "You kept the diagonal and masked all other scores.": values,
        "The softmax runs down the columns: normalise over each row, dim −1.": (
            hidden.softmax(dim=0) @ values
        ),
        "It is transposed: scores are queries times keys transposed, one row for each "
        "query.": hidden.T.softmax(dim=-1) @ values,
        "You divided by √d_k: right in the next chapter, not asked for here.": (
            (hidden / 2).softmax(dim=-1) @ values
        ),
        "Those are the weights: multiply them by the values.": hidden.softmax(dim=-1),
        "You averaged the words themselves: project them to values first.": (
            hidden.softmax(dim=-1) @ x
        ),
        "There is no softmax.": scores.masked_fill(itself, 0.0) @ values,
        "That is a second softmax, of weights: set the diagonal of the scores to −∞, "
        "and take one.": plain.masked_fill(itself, 0.0).softmax(dim=-1) @ values,
    }
    result = array(answer(x, w_query, w_key, w_value))
    for same in (x @ w_query, x @ w_key):
        alike = (same @ same.T).masked_fill(itself, -torch.inf)
        if near(result, alike.softmax(dim=-1) @ values):
            return wrong("One matrix made both queries and keys: each has its own.")
    for kept in plain.masked_fill(itself, 0.0), hidden.exp():
        if near(result, kept / kept.sum(dim=-1) @ values):
            return wrong(
                "You divided column j by the sum of row j: keepdim=True keeps each sum "
                "beside its row."
            )
    if not near(result, expected):
        return wrong(explain(result, expected, mistakes, NAN))
    try:
        fewer = array(answer(x[:4], w_query, w_key, w_value))
    except (RuntimeError, IndexError):
        return wrong("Right for 5 words, but it raises an error for 4: use len(x).")
    if not near(fewer, hidden[:4, :4].softmax(dim=-1) @ values[:4]):
        return wrong("Right for 5 words, but not for 4: use len(x).")
    # Low scores: a diagonal set to a merely small number would win here.
    others = (~itself).float() / 4
    for score in -56.0, -1000.0:
        offset = torch.cat([x[:, :5], torch.ones(5, 1)], dim=1)
        far_query, far_key = torch.zeros(6, 4), torch.zeros(6, 4)
        far_query[5, 0], far_key[5, 0] = 1.0, score
        try:
            low = array(answer(offset, far_query, far_key, w_value))
        except ZeroDivisionError:
            low = torch.full((6, w_value.size(1)), torch.nan)
        if score < -100 and low.isnan().all():
            continue  # exp by hand gives 0/0 there, which only chapter 04 explains
        if not near(low, others @ offset @ w_value):
            return wrong(
                f"It fails where all scores are {score:.0f}: the number on the "
                "diagonal is not low enough, or something is added to the sum of "
                "exponentials. Set the diagonal of the scores to −∞, and use softmax."
            )
    # Own scores far above the others: after a softmax over all words, the others'
    # weights are 0. First so far that neither overflows exp.
    own, same, keys = torch.eye(4, 6), torch.eye(6, 4), torch.zeros(6, 4)
    expected = (~itself[:4, :4]).float() / 3 @ own @ w_value
    for above in 120, 20_000:
        keys[:4] = above * torch.eye(4) - 40
        try:
            found = array(answer(own, same, keys, w_value))
        except OverflowError:  # math.exp
            found = torch.full((4, w_value.size(1)), torch.nan)
        except ZeroDivisionError:  # nothing is left of the others' weights
            found = torch.zeros(4, w_value.size(1))
        if above > 120 and found.isnan().any():
            continue  # exp by hand overflows there, which only chapter 04 explains
        if not near(found, expected):
            return wrong(
                "It fails where a word's own score is far above the others: their "
                "weights are rounded to 0 beside it, or the number on the diagonal is "
                "not low enough. Set the diagonal of the scores to −∞."
            )
    return right("Each word attends to all others, and its weights sum to 1.")
