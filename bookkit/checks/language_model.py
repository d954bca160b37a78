"""Checks for the exercises of chapter 17, What comes next?"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

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
from bookkit.forms import form


@exercise
def check_perplexity(perplexity: Callable[[Tensor, Tensor], Any]) -> Verdict:
    """Exercise: the perplexity of a text."""
    rows = [[1.0, 0.0, 2.0, -1.0], [0.5, 0.5, 0.0, 1.5], [0.0, 2.0, 1.0, -2.0]]
    logits, labels = torch.tensor(rows), torch.tensor([2, 0, 1])
    logs = logits.log_softmax(dim=-1)
    surprise = -logs.gather(-1, labels[:, None]).squeeze(-1)
    across = -logits.log_softmax(dim=0).gather(-1, labels[:, None])
    expected = float(surprise.mean().exp())
    answer = number(perplexity(logits, labels), "a perplexity, one number")
    known = {
        float(
            surprise.mean()
        ): "That is the mean surprise: the perplexity is its exponential.",
        float(surprise.mean()) / math.log(2): (
            "That is the mean surprise in bits a token: the perplexity is two to "
            "that power."
        ),
        float(2 ** surprise.mean()): (
            "You took two to the power of nats: with natural logarithms the base is e."
        ),
        float((surprise.mean() / math.log(2)).exp()): (
            "You took e to the power of bits: with bits the base is two."
        ),
        float(1 / (-surprise).exp().mean()): (
            "You averaged probabilities: average their logarithms."
        ),
        float((-logits.gather(-1, labels[:, None])).mean().exp()): (
            "A logit is not the logarithm of a probability: take log_softmax first."
        ),
        float((-logs[:, labels]).mean().exp()): (
            "Every row got the labels of all rows: a row has one label. As an index, "
            "[torch.arange(len(labels)), labels] takes one entry in each row."
        ),
        float(surprise.exp().mean()): (
            "You took the mean of exponentials: take the mean of the surprise first, "
            "and then the exponential."
        ),
        float(surprise.sum().exp()): (
            "You used the surprise of the whole text: perplexity uses the mean "
            "surprise of a token."
        ),
        float((-surprise.mean()).exp()): (
            "That is the inverse of the perplexity: the surprise has a minus sign."
        ),
        float(F.cross_entropy(logits.softmax(dim=-1), labels).exp()): (
            "You applied softmax twice: cross_entropy and log_softmax want the logits."
        ),
        float(across.mean().exp()): (
            "Your softmax runs over the positions: it should run over the vocabulary."
        ),
        float((-logs.max(dim=-1).values).mean().exp()): (
            "You took the most probable token of each row, not the label."
        ),
        float((-(logs.exp() * logs).sum(dim=-1)).mean().exp()): (
            "That is how uncertain the predictions are, and the labels are missing: "
            "take the surprise of each label."
        ),
    }
    if math.isclose(answer, expected, abs_tol=1e-4):
        even = number(perplexity(torch.zeros(5, 7), torch.tensor([0, 6, 3, 3, 1])))
        if not math.isclose(even, 7.0, abs_tol=1e-3):
            return wrong(
                f"A uniform guess among seven tokens gives {even:.3f}; it should be 7."
            )
        try:
            even = float(perplexity(torch.zeros(2000, 7), torch.arange(2000) % 7))
        except (ArithmeticError, ValueError):  # 1 / 0 and log(0) by `math`
            even = math.inf
        if not math.isclose(even, 7.0, abs_tol=1e-2):
            return wrong(
                "Right for a short text, but the product of 2,000 probabilities is 0: "
                "add their logarithms."
            )
        return right("A uniform guess among seven tokens has a perplexity of seven.")
    for value, message in known.items():
        if math.isclose(answer, value, abs_tol=1e-4):
            return wrong(message)
    return wrong(f"For the example it should be {expected:.3f}; got {answer:.3f}.")


@exercise
@form("one", "bits a character")
def check_vocabularies(bits: Any) -> Verdict:
    """Exercise: bits a character of a model that reads subwords."""
    answer = number(bits)
    token = math.log2(300)
    if math.isclose(answer, token / 4, rel_tol=0.025):  # 2.1 will do
        return right(
            "2.06 bits, where the model of characters needs 2.32: the second is "
            "better, although its perplexity is sixty times as high."
        )
    known = {
        token: "These are the bits a token, and a token has four characters here.",
        math.log2(5): "These are the bits a character of the first model.",
        math.log(300) / 4: "These are nats: for bits, take the logarithm to base two.",
        math.log2(300 / 4): "You divided the perplexity: divide its logarithm.",
        300**0.25: "That is the perplexity of a character: take its logarithm.",
        300 / 4: "You divided the perplexity: take its logarithm first.",
        token * 4: "You multiplied by four: divide, because a character costs less "
        "than a token.",
        token * 250: "These are the bits of the whole text.",
    }
    for value, message in known.items():
        if math.isclose(answer, value, rel_tol=0.02):
            return wrong(message)
    return wrong(
        f"Got {answer:g}. The text costs 250 times the bits a token; how many bits is "
        "that a character?"
    )


def _prefix_rows(prefix: int, length: int) -> list[list[bool]]:
    """The right mask: causal, and open inside the prefix."""
    return [
        [key <= query or (query < prefix and key < prefix) for key in range(length)]
        for query in range(length)
    ]


def _prefix(mask: list[list[bool]]) -> Verdict:
    """The verdict on a mask of 5 positions whose prefix has 3."""
    expected = _prefix_rows(3, 5)
    if mask == expected:
        return right(
            "The prefix attends in both directions, as in an encoder, and the rest "
            "causally, as in a decoder."
        )

    def drawn(sees: Callable[[int, int], bool]) -> list[list[bool]]:
        return [[sees(query, key) for key in range(5)] for query in range(5)]

    if mask == drawn(lambda query, key: key <= query):
        return wrong(
            "That is the causal mask: inside the prefix the first position should "
            "attend to the third, too."
        )
    if mask == drawn(lambda query, key: query < 3 and key < 3):
        return wrong(
            "Only the square of the prefix is True: positions after it should attend "
            "to the prefix and to their own past."
        )
    if mask == drawn(lambda query, key: True):
        return wrong(
            "After the prefix a position attends to its future, which it should "
            "predict."
        )
    if mask == drawn(lambda query, key: key <= query or query < 3):
        return wrong(
            "The prefix attends to what follows it: in its rows only the columns of "
            "the prefix should be True."
        )
    if mask == drawn(lambda query, key: not expected[query][key]):
        return wrong("Inverted: True must mean may attend.")
    if mask == drawn(lambda query, key: expected[key][query]):
        return wrong("Your mask is transposed: rows are queries, and columns are keys.")
    if mask == drawn(lambda query, key: key < 3):
        return wrong(
            "The positions after the prefix attend to it alone, and not to their own "
            "past."
        )
    if mask == _prefix_rows(2, 5):
        return wrong("The prefix is one too short.")
    if mask == _prefix_rows(4, 5):
        return wrong("The prefix is one too long.")
    return wrong(
        "Go row by row: which positions may the first attend to, and which the fourth?"
    )


@exercise
@form(
    "matrix",
    *("0", "1", "2", "3", "4"),
    columns=("0", "1", "2", "3", "4"),
    ticks=True,
    by_hand="By hand first, for a prefix of 3 and a length of 5. Each row is a "
    "position: tick the positions that it may attend to.",
    judge=_prefix,
)
def check_prefix(prefix_mask: Callable[[int, int], Any]) -> Verdict:
    """Exercise: a causal mask whose first positions all attend to one another."""
    answer = tensor(prefix_mask(3, 5), "a tensor of booleans")
    if answer.shape != (5, 5):
        squeezed = answer.squeeze().shape == (5, 5)
        why = "an axis of size 1 too many" if squeezed else "length includes the prefix"
        return wrong(
            "The mask should be (length, length) = (5, 5), got "
            f"{tuple(answer.shape)}: {why}."
        )
    if answer.dtype != torch.bool:
        return wrong(f"The mask should be boolean, got {answer.dtype}.")
    verdict = _prefix(answer.tolist())
    if verdict.ok and prefix_mask(2, 7).tolist() != _prefix_rows(2, 7):
        return wrong("Right for 3 of 5 positions, but not for 2 of 7.")
    return verdict


@exercise
def check_induction(induction_scores: Callable[[Tensor, int], Any]) -> Verdict:
    """Exercise: the induction score of each head, from its weights."""
    generator = torch.Generator().manual_seed(3)
    period = 5
    weights = torch.rand(3, 2 * period, 2 * period, generator=generator).tril()
    weights = weights / weights.sum(dim=-1, keepdim=True)
    t = torch.arange(period, 2 * period)
    whole = torch.arange(period - 1, 2 * period)

    def at(queries: Tensor, keys: Tensor) -> Tensor:
        return weights[:, queries, keys].mean(dim=-1)

    expected = at(t, t - period + 1)
    mistakes = {
        "That is the weight on the earlier occurrence itself: take the token after "
        "it.": at(t, t - period),
        "One column too far: the token after the earlier occurrence is at t - period + "
        "1.": at(t, t - period + 2),
        "That is the weight on the previous token, whatever it is: take the one "
        "after the earlier occurrence.": at(t, t - 1),
        "You included the last position of the first half, which repeats nothing.": (
            at(whole, whole - period + 1)
        ),
        "The last position is missing: the token after its earlier occurrence is the "
        "first of the second half.": at(t[:-1], t[:-1] - period + 1),
        "You summed; the score is a mean over positions.": expected * period,
        "You took the mean over the heads too: return one score for each head.": (
            expected.mean()
        ),
        "Queries and keys are swapped: rows are queries, and columns are keys.": at(
            t - period + 1, t
        ),
    }
    answer = induction_scores(weights.clone(), period)
    before = weights.diagonal(-period - 1, dim1=1, dim2=2).mean(dim=-1)
    early = at(t, t - period - 1), at(t, (t - period - 1).clamp(min=0)), before
    if any(near(answer, each) for each in early):
        return wrong(
            "That is the weight on the token before the earlier occurrence: take the "
            "one after it."
        )
    if not near(answer, expected):
        on_nan = (
            "Some entries are NaN, as the mean of no entries is. Which positions did "
            "you take? The second half begins at `period`: 16 was the chapter's."
        )
        return wrong(explain(answer, expected, mistakes, on_nan))
    other = weights[:2, :6, :6].clone()
    t = torch.arange(3, 6)
    if not near(induction_scores(other, 3), other[:, t, t - 2].mean(dim=-1)):
        return wrong(
            "It fails for two heads and a block of three: take the sizes from the "
            "arguments."
        )
    return right(
        "The score is the mean of a diagonal, one column to the right of the earlier "
        "occurrences."
    )
