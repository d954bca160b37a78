"""Checks for the exercises of chapter 2, How does a word become a vector?"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bookkit.exercises import (
    Refused,
    Verdict,
    array,
    blanks,
    exercise,
    explain,
    near,
    number,
    numbers,
    right,
    wrong,
)
from bookkit.forms import form


def _looked_up(ids: Tensor, gradient: Tensor, vocab_size: int) -> Tensor:
    """For each word the sum of the gradients of its tokens."""
    one_hot = F.one_hot(ids.flatten(), vocab_size).to(gradient)
    return one_hot.T @ gradient.flatten(0, 1)


@exercise
def check_table_gradient(
    table_gradient: Callable[[Tensor, Tensor, int], Tensor],
) -> Verdict:
    """Exercise: the gradient of a table, from that of the vectors looked up in it."""
    draw = torch.Generator().manual_seed(2)
    ids = torch.tensor([[4, 1, 2], [6, 4, 1]])
    gradient = torch.randn(2, 3, 16, generator=draw)
    summed = _looked_up(ids, gradient, 8)
    counts = torch.bincount(ids.flatten(), minlength=8).clamp(min=1)[:, None]
    last = torch.zeros(8, 16)
    for token, row in zip(ids.flatten(), gradient.flatten(0, 1), strict=True):
        last[token] = row
    written_once = (
        "A word that occurs twice got the gradient of one of its tokens: writing to "
        "repeated ids, as `table[ids] = …` and `table[ids] += …` do, keeps one. Add "
        "them all up."
    )
    unscaled = (
        "You left out √d_model: TokenEmbedding multiplies the row by it, so the chain "
        "rule multiplies the gradient by it as well."
    )
    mistakes = {
        unscaled: summed,
        "You divided by √d_model. Backwards, too, a factor multiplies.": summed / 4,
        "You multiplied by d_model: the factor is its root.": summed * 16,
        written_once: last * 4,
        f"{written_once} And √d_model is missing.": last,
        "You took the mean over a word's tokens. The loss has a term through each: "
        "their gradients add up.": summed / counts * 4,
        "You took the mean over a word's tokens, where their gradients add up, and "
        "left out √d_model.": summed / counts,
        "Only the first sentence counts in your sum: all tokens of the batch do.": (
            _looked_up(ids[:1], gradient[:1], 8) * 4
        ),
        "You have a table for each sentence: add them up, for they share one.": (
            F.one_hot(ids, 8).float().mT @ gradient * 4
        ),
        "That has a row for each token. The gradient has the shape of the table, a "
        "row for each word of the vocabulary.": gradient * 4,
        "That has a row for each token. A row for each word of the vocabulary is "
        "wanted, and √d_model is missing.": gradient,
        "That says how often each word occurs. Multiply by the tokens' gradients.": (
            F.one_hot(ids.flatten(), 8).sum(dim=0).float()
        ),
    }
    answer = array(table_gradient(ids, gradient, 8))
    if not near(answer, summed * 4):
        return wrong(explain(answer, summed * 4, mistakes))
    ids, gradient = torch.tensor([[0, 2, 0, 0]]), torch.randn(1, 4, 9, generator=draw)
    answer = array(table_gradient(ids, gradient, 3))
    if not near(answer, _looked_up(ids, gradient, 3) * 3):
        return wrong(
            "Right for a vocabulary of 8 and d_model = 16, but not for 3 and 9: "
            f"{explain(answer, _looked_up(ids, gradient, 3) * 3, {})}"
        )
    return right(
        "Each token adds its gradient, times √d_model, to the row it looked up."
    )


@exercise
@form("list", "first number", "second number")
def check_never(row: Sequence[float] | Tensor) -> Verdict:
    """Exercise: a long row whose word never has the highest score."""
    row = numbers(row, "the two numbers of a row, such as [1, 2]")
    if len(row) != 2:
        return wrong(f"A row here has two numbers, got {len(row)}.")
    others = [(4, 0), (-1, 3), (-1, -3)]
    length = math.hypot(*row)
    # Across the three sides of the triangle: a row outside it wins along one of them.
    for h in (3, 5), (3, -5), (-1, 0):
        score = h[0] * row[0] + h[1] * row[1]
        best = max(h[0] * x + h[1] * y for x, y in others)
        if score > best + 1e-5:  # a row on a side only ties
            found = f"With h = ({h[0]}, {h[1]}) its score is {score:.6g}, and the "
            found += f"others' at most {best:.6g}."
            if length > 4:
                return wrong(
                    f"{found} A row longer than all others always wins for some h, "
                    "such as one that points its way."
                )
            if row[0] < -1:
                return wrong(
                    f"{found} To point away from the longest row does not help: h may "
                    "point away from it as well."
                )
            return wrong(
                f"{found} The winner is the row that lies farthest in the direction "
                "of h. Which places are never farthest?"
            )
    if any(math.dist(row, other) < 1e-9 for other in others):
        return wrong("That row belongs to another word: the two tie for every h.")
    if length <= math.sqrt(10):
        return wrong(
            f"That word never wins, but its row has the length {length:.3g}, and it "
            "should be longer than √10 = 3.16."
        )
    return right(
        "Whatever h is, one of the other three scores as high or higher, though two of "
        "them are shorter."
    )


def _moved(alone: list[int], tied: list[int]) -> Verdict:
    """The verdict on the rows of a table of 8 for the ids [[4, 1, 2], [6, 4, 1]]."""
    looked_up, everything = [1, 2, 4, 6], list(range(8))
    if alone == looked_up and tied == everything:
        return right(
            "At the input only the rows looked up; at the output every word is a "
            "candidate."
        )
    if alone == everything:
        return wrong(
            "An untied table is only read: a row enters the loss through the tokens "
            "that looked it up, and row 0 has none here."
        )
    if tied == looked_up:
        return wrong(
            "The tied table is the output map too: the loss pushes down the score of "
            "every wrong candidate, so every row gets a gradient."
        )
    if alone == looked_up:
        return wrong(
            f"Right when untied, but when tied you say {tied} for a vocabulary of 8. "
            "Which words are candidates at the output?"
        )
    if alone == [1, 2, 4]:
        return wrong("Those are the rows of the first sentence: all are wanted.")
    if alone == [1, 4]:
        return wrong("A row looked up once gets a gradient too.")
    if alone == [2, 6]:
        return wrong("A row looked up twice gets the sum of both gradients, not none.")
    return wrong(
        "For the ids [[4, 1, 2], [6, 4, 1]] of a vocabulary of 8, you say "
        f"{alone} when untied and {tied} when tied. Through which tokens does a row "
        "enter the loss?"
    )


def _moved_by_hand(answer: Mapping[str, Any]) -> Verdict:
    """The verdict on what a reader lists for one example."""
    untied, tied = blanks(answer, ("untied", "tied"))
    return _moved(
        sorted({int(row) for row in numbers(untied, "a list of ids")}),
        sorted({int(row) for row in numbers(tied, "a list of ids")}),
    )


@exercise
@form(
    "dictionary",
    "untied",
    "tied",
    several=True,
    by_hand="By hand first: which rows receive a gradient from the ids "
    "[[4, 1, 2], [6, 4, 1]] of a vocabulary of 8?",
    judge=_moved_by_hand,
)
def check_moved(rows_with_gradient: Callable[[Tensor, int, bool], set[int]]) -> Verdict:
    """Exercise: the rows of a table that receive a gradient."""
    ids = torch.tensor([[4, 1, 2], [6, 4, 1]])

    def found(ids: Tensor, vocab_size: int, tied: bool) -> list[int]:
        answer = rows_with_gradient(ids, vocab_size, tied)
        rows = [int(number(one, "an id, a whole number")) for one in answer]
        if len(rows) == vocab_size and set(rows) <= {0, 1}:
            raise Refused("That is a mask: give the ids.")
        return sorted(set(rows))

    verdict = _moved(found(ids, 8, False), found(ids, 8, True))
    if verdict.ok:
        ids = torch.tensor([[0, 2, 0]])
        alone, tied = found(ids, 5, False), found(ids, 5, True)
        if (alone, tied) != ([0, 2], list(range(5))):
            hint = " Id 0 has a row like any other." if alone == [2] else ""
            return wrong(
                "Right for a vocabulary of 8, but for the ids [[0, 2, 0]] of one of 5 "
                f"you say {alone} when untied and {tied} when tied.{hint}"
            )
    return verdict
