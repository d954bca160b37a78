"""Checks for the exercises of chapter 2, How does a word become a vector?"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from bookkit.exercises import (
    Refused,
    Verdict,
    exercise,
    number,
    right,
    tensor,
    wrong,
)


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a.double(), b.double(), atol=1e-4)


@exercise
def check_scores(output_scores: Callable[[Tensor, Tensor], Tensor]) -> Verdict:
    """Exercise: score every word of the vocabulary with the tied table."""
    draw = torch.Generator().manual_seed(2)
    hidden = torch.randn(2, 3, 16, generator=draw)
    table = torch.randn(7, 16, generator=draw)
    answer = tensor(output_scores(hidden, table), "a tensor of scores")
    scores = hidden @ table.T
    if _close(answer, scores):
        return right("One dot product with each row: h times E transposed.")
    if _close(answer, scores * 16**0.5):
        return wrong(
            "You multiplied by √d_model. That factor is for the input embedding; the "
            "output map uses the rows as stored."
        )
    if _close(answer, scores / 16**0.5):
        return wrong(
            "You divided by √d_model. Attention divides its scores by √d_k; the output "
            "map uses the rows as stored."
        )
    if _close(answer, scores.softmax(-1)) or _close(answer, scores.log_softmax(-1)):
        return wrong(
            "You applied a softmax. Scores are wanted; the loss applies its own."
        )
    cosine = F.normalize(hidden, dim=-1) @ F.normalize(table, dim=-1).T
    if _close(answer, cosine):
        return wrong(
            "These are cosines. The output map is the plain dot product: lengths count."
        )
    if _close(answer, hidden @ F.normalize(table, dim=-1).T):
        return wrong("You normalised the rows. The output map uses them as stored.")
    if _close(answer, scores.argmax(-1)):
        return wrong("You chose the best word. The score of every word is wanted.")
    if _close(answer, scores.mT):
        return wrong(
            "Words and positions changed places: h comes first, the table transposed."
        )
    if answer.shape != scores.shape:
        return wrong(
            "The shape should be (batch, length, vocabulary) = (2, 3, 7), got "
            f"{tuple(answer.shape)}: multiply by the table transposed."
        )
    return wrong(
        "The shape is right, but a score is not the dot product of h and a row."
    )


def _ids(answer: Sequence[int] | Tensor) -> list[int]:
    """The ids that a reader gave back."""
    numbers = [number(value, "an id, a whole number") for value in answer]
    if any(value != int(value) for value in numbers):
        raise Refused("Those are cosines: give back the ids of the rows.")
    return [int(value) for value in numbers]


@exercise
def check_similar(most_similar: Callable[[int, Tensor, int], Sequence[int]]) -> Verdict:
    """Exercise: the ids of the rows with the largest cosine, without the word."""
    # Row 1 points almost where row 0 points; row 2 is long, row 3 is opposite.
    table = torch.tensor(
        [[1.0, 0.0], [0.9, 0.1], [30.0, 30.0], [-1.0, 0.0], [0.0, 0.5], [0.4, -0.1]]
    )
    found = _ids(most_similar(0, table, 3))
    if found == [1, 5, 2]:
        # and another word, so that a constant answer is not enough
        third = _ids(most_similar(3, table, 2))
        if 3 not in third and third != [4, 2]:
            return wrong("Right for word 0, but not for word 3: is the id used?")
        for word, count in (3, 2), (2, 5), (3, 5):
            if word in _ids(most_similar(word, table, count)):
                return wrong(
                    f"Right for word 0, but word {word} is in its own result: the "
                    "number that hides it is not low enough. Take −∞, or leave its id "
                    "out."
                )
        # Rows 0 and 1 point the same way, so either may come first.
        twins = torch.tensor([[1.0, 2.0], [2.0, 4.0], [-1.0, 0.0], [3.0, 0.0]])
        if [_ids(most_similar(word, twins, 2)) for word in (0, 1)] != [[1, 3], [0, 3]]:
            return wrong(
                "It fails where another row points the same way: leave the word out by "
                "its id, not as the first in the order."
            )
        return right("Directions compared, lengths ignored, the word left out.")
    if found == [0, 4, 1]:
        return wrong(
            "You removed the word's row, which lowers each id after it by one. Keep "
            "the ids of the whole table."
        )
    if found[:1] == [0]:
        return wrong(
            "You list the word itself, whose cosine with itself is always 1. "
            "Leave it out."
        )
    if found == [2, 1, 5]:
        return wrong(
            "The long row 2 wins by its length, not by its direction: you compared dot "
            "products, or divided by something that is not each row's length. Divide "
            "by both lengths."
        )
    if found == [3, 1, 5]:
        return wrong(
            "You ignored the sign: row 3 points the opposite way, and is the least "
            "similar of all."
        )
    if found == [1, 5]:
        return wrong(
            "One id is missing: leave the word itself out before you count to three."
        )
    if found == [1, 5, 4]:
        return wrong(
            "You compared distances: the long row 2 is far away, yet its direction is "
            "near. The cosine ignores lengths."
        )
    if found[:1] == [3]:
        return wrong("You list the least similar first: sort from the largest cosine.")
    if sorted(found) == [1, 2, 5]:
        return wrong("These are the right rows in the wrong order: most similar first.")
    if len(found) != 3:
        return wrong(f"For count=3 return three ids, got {len(found)}.")
    return wrong(f"For word 0 the three nearest are 1, 5, 2; you gave {found}.")


@exercise
def check_moved(rows_with_gradient: Callable[[Tensor, int, bool], set[int]]) -> Verdict:
    """Exercise: the rows of a table that receive a gradient."""
    ids = torch.tensor([[4, 1, 2], [6, 4, 1]])

    def found(tied: bool) -> list[int]:
        answer = rows_with_gradient(ids, 8, tied)
        return sorted({int(number(one, "an id, a whole number")) for one in answer})

    alone, tied = found(False), found(True)
    looked_up, everything = [1, 2, 4, 6], list(range(8))
    if (alone, tied) == (looked_up, everything):
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
        f"For the ids {ids.tolist()} of a vocabulary of 8, you say {alone} when untied "
        f"and {tied} when tied. Through which tokens does a row enter the loss?"
    )
