"""Checks for the exercises of chapter 05, multi-head attention."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bookkit.exercises import (
    Refused,
    Verdict,
    array,
    exercise,
    near,
    right,
    wrong,
)
from bookkit.forms import form

Rows = list[list[float]]


def _visit() -> Rows:
    """The chapter's five words, a row of eight numbers each, codes left out."""
    x = torch.zeros(5, 8)
    x[[0, 1, 2, 4], [0, 1, 2, 3]] = 1
    x[:, 4:] = torch.randn(5, 4, generator=torch.Generator().manual_seed(5)) / 2
    rows: Rows = x.tolist()
    return rows


_WORDS = _visit()


def _attended(query_weight: Rows, factor: float = 1.0) -> Rows:
    """What each word attends to, by kind: a word's key is its first four numbers."""
    rows = []
    for word in _WORDS:
        query = [
            factor * sum(x * row[j] for x, row in zip(word, query_weight, strict=True))
            for j in range(4)
        ]
        scores = [
            sum(q * k for q, k in zip(query, key[:4], strict=True)) / math.sqrt(4)
            for key in _WORDS
        ]
        raised = [math.exp(score - max(scores)) for score in scores]
        rows.append([one / sum(raised) for one in raised])
    return rows


def _even(weights: list[float]) -> bool:
    """Whether a word attends to all words alike."""
    return all(abs(weight - 0.2) < 0.02 for weight in weights)


def _question(query_weight: Rows) -> Verdict:
    """The verdict on a query projection of eight rows and four columns."""
    attended = _attended(query_weight)
    kinds, codes = query_weight[:4], query_weight[4:]
    even = all(_even(attended[i]) for i in (0, 1, 3, 4))
    if attended[2][1] >= 0.9 and even:
        return right(
            "L'Afrique attends to visite, and the other words attend to all words "
            "alike."
        )
    if attended[1][2] >= 0.5 and _even(attended[2]):
        return wrong(
            "Rows and columns are swapped: visite attends to places. The row is the "
            "kind of the query's word, the column the kind to be found."
        )
    if attended[2][1] < 0.9:
        by_kind, by_code = any(map(any, kinds)), any(map(any, codes))
        if by_code and not by_kind:
            return wrong(
                "That row belongs to the code: the rows of the kinds are the first "
                "four."
            )
        if not by_kind and not by_code:
            return wrong(
                "All entries are 0, so all scores are 0 and every word gets the same "
                "weight."
            )
        if not any(query_weight[2]) and not by_code:
            return wrong(
                "The row of places is empty, so l'Afrique has no query: you filled "
                "another row."
            )
        row = ", ".join(f"{weight:.2f}" for weight in attended[2])
        if _attended(query_weight, 8.0)[2][1] >= 0.9:
            got = f"The weight on visite is only {attended[2][1]:.2f}"
            if not even:
                return wrong(
                    f"{got}, and other words have a query as well: only the row of "
                    "places should hold a number, and a larger one."
                )
            return wrong(
                f"{got}: the entry is in the right place, but should be larger."
            )
        if _attended(query_weight, -8.0)[2][1] >= 0.9:
            return wrong("The sign is wrong: visite gets less weight than the others.")
        if attended[2][1] < 0.1:
            return wrong(
                f"L'Afrique does not attend to the action: its weights are {row}."
            )
        return wrong(
            f"L'Afrique attends to other kinds as well: its weights are {row}."
        )
    if any(map(any, codes)):
        return wrong(
            "The query depends on the code too: only the rows of the kinds should "
            "hold numbers."
        )
    return wrong(
        "Other words have a query as well: only the row of places should hold a number."
    )


@exercise
@form(
    "matrix",
    *("person", "action", "place", "time", "code 1", "code 2", "code 3", "code 4"),
    columns=("person", "action", "place", "time"),
    judge=_question,
)
def check_question(query_weight: Tensor) -> Verdict:
    """Check a query projection: only l'Afrique attends to anything, to visite."""
    query_weight = array(query_weight)
    if query_weight.shape == (4, 8):
        return wrong(
            "The matrix is transposed: x @ query_weight needs 8 rows and 4 columns."
        )
    if query_weight.shape != (8, 4):
        shape = tuple(query_weight.shape)
        return wrong(f"The matrix should have 8 rows and 4 columns, and is {shape}.")
    if not query_weight.isfinite().all():
        return wrong("Use finite numbers only: 0 times infinity is NaN, not a score.")
    return _question(query_weight.tolist())


def _for_sizes(
    check: Callable[..., Verdict],
    answer: Callable[..., Any],
    first: tuple[int, ...],
    other: tuple[int, ...],
) -> Verdict:
    """The verdict for two choices of heads, length, d_model, d_k and d_v."""
    if not (verdict := check(answer, *first)).ok:
        return verdict
    try:
        if (verdict := check(answer, *other)).ok:
            return verdict
    except (RuntimeError, IndexError, ValueError):
        pass
    return wrong(
        f"Right for {first[0]} heads and d_k = {first[3]}, but not for {other[0]} "
        f"heads and d_k = {other[3]}: take every size from the tensors."
    )


@exercise
def check_sizes(multi_head: Callable[..., Tensor]) -> Verdict:
    """Multi-head attention with d_k ≠ d_v, for one sentence."""
    sizes = (3, 4, 8, 6, 5), (2, 5, 9, 3, 4)  # d_k is not 8 // 3
    return _for_sizes(_sizes, multi_head, *sizes)


def _sizes(multi_head: Callable[..., Any], *sizes: int) -> Verdict:
    """The verdict for one choice of sizes."""
    heads, length, d_model, d_k, d_v = sizes
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    x = normal(length, d_model)
    w_q, w_k = normal(heads, d_model, d_k), normal(heads, d_model, d_k)
    w_v, w_o = normal(heads, d_model, d_v), normal(heads * d_v, d_model)
    answer = array(multi_head(x, w_q, w_k, w_v, w_o))

    def mixed(scale: float = d_k, axis: int = -1) -> Tensor:
        scores = (x @ w_q) @ (x @ w_k).mT / math.sqrt(scale)
        return scores.softmax(axis) @ (x @ w_v)  # (heads, length, d_v)

    def joined(parts: Tensor) -> Tensor:
        return parts.transpose(0, 1).flatten(1)

    def reshaped(w: Tensor) -> Tensor:
        wide = x @ w.reshape(d_model, -1)
        return wide.unflatten(-1, (heads, -1)).transpose(0, 1)

    if near(answer, joined(mixed()) @ w_o):
        return right(
            "d_k sets the scale and d_v the size of the values; they need not be equal."
        )
    for scale, name in (
        (d_v, "√d_v"),
        (d_model, "√d_model"),
        (1, "nothing"),
        (1 / d_k, "1/√d_k, which multiplies"),
        (d_k**2, "d_k"),
        (d_model / heads, "√(d_model / h)"),
        (d_model // heads, "√(d_model / h)"),
    ):
        if near(answer, joined(mixed(scale)) @ w_o):
            return wrong(
                f"The scores are divided by {name}: a dot product of query and key "
                "sums d_k products, so the scale is √d_k."
            )
    for one in (w_q, w_k):
        scores = (x @ one) @ (x @ one).mT / math.sqrt(d_k)
        if near(answer, joined(scores.softmax(-1) @ (x @ w_v)) @ w_o):
            return wrong(
                "You used one matrix for both queries and keys: each has its own."
            )
    swapped = (x @ w_k) @ (x @ w_q).mT / math.sqrt(d_k)
    if near(answer, joined(swapped.softmax(-1) @ (x @ w_v)) @ w_o):
        return wrong(
            "Queries and keys are swapped: the rows of the scores belong to the "
            "queries."
        )
    if near(answer, mixed().reshape(length, -1) @ w_o):
        return wrong(
            "You reshaped without a transpose: a row mixes several words. Bring "
            "words before heads, then join heads and d_v."
        )
    if near(answer, mixed().permute(1, 2, 0).flatten(1) @ w_o):
        return wrong(
            "The heads are interleaved: each head's d_v numbers should stay side by "
            "side."
        )
    if near(answer, joined(mixed(axis=-2)) @ w_o):
        return wrong(
            "Your softmax is over the queries: it should be over the keys, so that "
            "the weights of each query sum to one."
        )
    if near(answer, joined(mixed(axis=0)) @ w_o):
        return wrong("Your softmax is over the heads: it should be over the keys.")
    scores = reshaped(w_q) @ reshaped(w_k).mT / math.sqrt(d_k)
    if near(answer, joined(scores.softmax(-1) @ reshaped(w_v)) @ w_o):
        return wrong(
            "reshape does not put the matrices side by side. Move the heads behind "
            "d_model first: w_q.transpose(0, 1).flatten(1)."
        )
    for scale, also in (d_k, "."), (1, ", and the scale is, too."):
        scores = (x @ w_q) @ (x @ w_k).mT / math.sqrt(scale)
        if near(answer, joined(scores @ (x @ w_v)) @ w_o):
            return wrong(f"The softmax is missing: scores are not yet weights{also}")
    if near(answer, joined(mixed()) @ w_o / heads):
        return wrong("You took the mean over the heads: their terms add up.")
    if near(answer, joined(mixed().flip(0)) @ w_o):
        return wrong(
            "The heads are joined in the reverse order: the first d_v rows of w_o "
            "belong to the first head."
        )
    if near(answer, x + joined(mixed()) @ w_o):
        return wrong("You added x: return the output of attention alone.")
    if near(answer, joined(mixed())):
        return wrong("The heads are concatenated but not projected: w_o is missing.")
    if answer.shape != (length, d_model):
        shape = tuple(answer.shape)
        return wrong(f"The shape should be {(length, d_model)}, and is {shape}.")
    return wrong(
        "The shape is right, but the numbers are not: compare one head with chapter "
        "04, then check how the heads are joined and projected."
    )


@exercise
def check_two(two_matrices: Callable[..., Sequence[Tensor] | Tensor]) -> Verdict:
    """Each head as two matrices, one for its scores and one for what it adds."""
    return _for_sizes(_two, two_matrices, (3, 5, 8, 6, 4), (2, 4, 9, 5, 3))


def _two(two_matrices: Callable[..., Any], *sizes: int) -> Verdict:
    """The verdict for one choice of sizes."""
    heads, length, d_model, d_k, d_v = sizes
    generator = torch.Generator().manual_seed(4)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) / shape[-2] ** 0.5

    x = 2 * torch.randn(length, d_model, generator=generator)
    w_q, w_k = normal(heads, d_model, d_k), normal(heads, d_model, d_k)
    w_v, w_o = normal(heads, d_model, d_v), normal(heads * d_v, d_model)
    answer = two_matrices(w_q, w_k, w_v, w_o)
    if not isinstance(answer, Sequence | Tensor) or len(answer) != 2:
        raise Refused("Give back two tensors, qk and ov.")
    qk, ov = (array(part, "two tensors, qk and ov").float() for part in answer)
    wanted = (heads, d_model, d_model)
    for name, part in (("qk", qk), ("ov", ov)):
        if part.shape == wanted[1:]:
            return wrong(
                f"There is one {name} for all heads. Each head has a softmax of its "
                "own, so each needs matrices of its own."
            )
        if part.shape != wanted:
            shape = tuple(part.shape)
            return wrong(f"The shape of {name} should be {wanted}, and is {shape}.")

    def output(qk: Tensor, ov: Tensor) -> Tensor:
        return ((x @ qk @ x.T).softmax(-1) @ x @ ov).sum(0)

    scores, slices = w_q @ w_k.mT, w_o.view(heads, d_v, d_model)
    if near(output(qk, ov), output(scores / d_k**0.5, w_v @ slices)):
        return right("A head is two matrices: where it looks, and what it adds.")
    if near(output(ov, qk), output(scores / d_k**0.5, w_v @ slices)):
        return wrong("Your two tensors are swapped: qk comes first.")
    for divisor, name in ((1, "nothing"), (d_v, "√d_v"), (d_model, "√d_model")):
        if near(qk, scores / divisor**0.5):
            return wrong(
                f"qk is divided by {name}. The sum that uses it has no √d_k, so qk has "
                "to hold it."
            )
    if near(qk, scores / d_k):
        return wrong("qk is divided by d_k, or twice by its root: once is right.")
    if near(qk, scores.mT / d_k**0.5) or near(qk, scores.mT):
        return wrong(
            "qk is transposed: the row of a score belongs to the query, so w_q comes "
            "first."
        )
    if not near(qk, scores / d_k**0.5):
        return wrong(
            "qk is wrong: write the scores of a head as x times a matrix times x.T."
        )
    if near(ov, w_v @ w_o.view(d_v, heads, d_model).transpose(0, 1)):
        return wrong(
            "ov takes every third row of w_o for a head. A head's d_v rows lie next to "
            "each other, as the heads' outputs lie side by side."
        )
    if near(ov, w_v @ slices.flip(0)):
        return wrong("The slices of w_o are in the reverse order.")
    if near(ov, w_v @ slices[:1].expand(heads, -1, -1)):
        return wrong(
            "Every head has the first slice of w_o: each has its own d_v rows."
        )
    if near(ov, (w_v @ slices).mT):
        return wrong("ov is transposed: x @ ov[i] needs w_v first, then w_o's slice.")
    if near(ov, w_v @ slices / heads):
        return wrong("ov is divided by the number of heads: their terms add up.")
    return wrong(
        "qk is right and ov is not: take one head's term of the sum over heads, and "
        "see which matrices stand behind its weights."
    )
