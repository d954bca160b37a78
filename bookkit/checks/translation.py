"""Checks for the exercises of chapter 16, Can it translate real sentences?"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from bookkit.exercises import (
    Verdict,
    exercise,
    number,
    right,
    wrong,
)


@exercise
def check_merge(join: Callable[[tuple[str, ...], tuple[str, str]], Any]) -> Verdict:
    """Exercise: join a pair of pieces wherever it stands."""
    cases = [
        (("b", "a", "n", "a", "n", "a"), ("a", "n"), ("b", "an", "an", "a")),
        (("l", "o", "w"), ("w", "l"), ("l", "o", "w")),
        (("a", "a", "a", "a"), ("a", "a"), ("aa", "aa")),
        (("a", "a", "a"), ("a", "a"), ("aa", "a")),
        (("ba", "n", "a", "n"), ("a", "n"), ("ba", "n", "an")),
    ]
    for pieces, pair, wanted in cases:
        answer = join(pieces, pair)
        if isinstance(answer, str) or not isinstance(answer, Sequence):
            return wrong(f"A tuple of pieces is wanted, got {answer!r}.")
        answer = tuple(map(str, answer))
        if answer == wanted:
            continue
        told = f"{pieces} with {pair} should be {wanted}, got {answer}."
        if "".join(answer) != "".join(pieces):
            return wrong(f"Letters were lost or doubled: {told}")
        if answer == pieces:
            return wrong(f"Nothing was joined: {told}")
        if answer == ("a", "aa"):
            return wrong(f"You went from the right: begin at the left. {told}")
        if answer[0] == "ban":
            return wrong(
                f"You searched the text: *ba* ends in a, and is another piece. {told}"
            )
        if len(set(pieces)) == 1 or any(len(piece) > 2 for piece in answer):
            return wrong(f"A piece just joined joined again, or none did: {told}")
        if sum(len(piece) > 1 for piece in answer) == 1:
            return wrong(f"You joined the first place only; join them all: {told}")
        return wrong(told)
    return right("Everywhere, from the left, and no piece twice in one round.")


@exercise
def check_clipped(clipped: Callable[[list[str], list[str], int], Any]) -> Verdict:
    """Exercise: the clipped precision of n-grams."""
    reference = ["the", "cat", "sat", "on", "the", "mat"]
    cases = [
        (["the", "the", "the", "dog"], 1, 2 / 4),
        (["the", "cat", "and", "the", "cat"], 2, 1 / 4),
        (["a", "dog"], 1, 0.0),
        (["cat", "the", "sat"], 2, 0.0),
        (["the", "cat", "sat", "on", "a", "mat"], 3, 2 / 4),
    ]
    for said, n, wanted in cases:
        share = clipped(list(said), list(reference), n)
        answer = number(share, "a share, one number")
        if math.isclose(answer, wanted, abs_tol=1e-9):
            continue
        mine, theirs = (
            Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
            for words in (said, reference)
        )
        hits = (mine & theirs).total()
        known = {
            sum(mine[gram] for gram in mine if gram in theirs) / mine.total(): (
                "You did not clip: each n-gram counts at most as often as the "
                "reference has it."
            ),
            len(mine.keys() & theirs.keys()) / len(mine): (
                "You counted different n-grams. One that both have twice counts twice."
            ),
            hits / theirs.total(): (
                "You divided by the reference's n-grams: that is recall. Precision "
                "divides by those that were said."
            ),
            hits / len(said): "You divided by the words. Divide by the n-grams.",
        }
        for value, message in known.items():
            if math.isclose(answer, value, abs_tol=1e-9):
                return wrong(message)
        if answer > wanted == 0 and n > 1:
            return wrong("The order counts: *cat the* is not *the cat*.")
        return wrong(
            f"For {' '.join(said)!r} against {' '.join(reference)!r} and n = {n} the "
            f"share is {wanted:.3f}, got {answer:.3f}."
        )
    return right("Each counts, but no more often than the reference has it.")


@exercise
def check_two(answer: Any) -> Verdict:
    """Exercise: the loss of a step that two processes share."""
    loss = number(answer)
    if math.isclose(loss, 2.5, abs_tol=1e-6):
        return right("Everybody's losses, over everybody's targets.")
    known = {
        3.0: "That is the mean of the means: the 30 targets count like the 90.",
        6.0: "That is the sum of the means. A loss is a mean over targets.",
        3.5: "The weights are swapped: the 90 targets have the loss of 2.",
        300.0: "That is the sum of all losses; divide it by the targets.",
    }
    for value, message in known.items():
        if math.isclose(loss, value, abs_tol=1e-6):
            return wrong(message)
    return wrong(f"Add up the losses of all 120 targets, then divide; got {loss:g}.")
