"""Checks for the exercises of chapter 13, How does it speak?"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bookkit.exercises import (
    Verdict,
    exercise,
    explain,
    near,
    number,
    right,
    wrong,
)

BOS, EOS = 1, 2
STORY = [5, 7, 5, 9, EOS]


class _Lost(Exception):  # noqa: N818
    """The reader's loop asked something that no greedy search asks."""


def _storyteller(story: Sequence[int]) -> Callable[[Sequence[int]], Tensor]:
    """A model that tells one story, whatever it is given, by counting what it got."""

    def next_logits(ids: Sequence[int]) -> Tensor:
        ids = [int(index) for index in ids]
        if not ids:
            raise _Lost("The model was given no id at all: begin with bos.")
        if EOS in ids:
            raise _Lost("The model has said eos, and you went on: stop there.")
        if len(ids) > len(story):
            raise _Lost(
                "Your loop goes on past max_length: cut a model that never ends."
            )
        if ids[0] != BOS:
            raise _Lost(
                f"The model was given {ids}, without bos in front: give it all ids so "
                "far, not the last one alone."
            )
        if ids != [BOS, *story][: len(ids)]:
            raise _Lost(
                f"The model was given {ids}, but its likeliest words so far are "
                f"{[BOS, *story][: len(ids)]}: take the largest logit, and append it."
            )
        logits = torch.full((12,), -3.0)
        logits[story[min(len(ids), len(story)) - 1]] = 2.0
        return logits

    return next_logits


@exercise
def check_loop(greedy: Callable[..., Any]) -> Verdict:
    """Exercise: greedy search for one sentence."""
    try:
        answer = greedy(_storyteller(STORY), BOS, EOS, 10)
        answer = [int(index) for index in answer]
        if answer == [BOS, *STORY]:
            return wrong("bos and eos are still there: nobody says them.")
        if answer == [BOS, *STORY[:-1]]:
            return wrong("bos is still there: it was given, not said.")
        if answer == STORY:
            return wrong("eos is still there: it says *stop*, it is not a word.")
        if answer != STORY[:-1]:
            return wrong(f"The model wants to say {STORY[:-1]}; you gave {answer}.")
        cut = [int(index) for index in greedy(_storyteller([4] * 50), BOS, EOS, 6)]
    except _Lost as lost:
        return wrong(str(lost))
    if len(cut) != 6:
        return wrong(
            "A model that never ends should be cut at max_length = 6 ids, got "
            f"{len(cut)}."
        )
    return right("The best word now, and again, until the end.")


@exercise
def check_score(log_probability: Callable[[Tensor, Tensor], Any]) -> Verdict:
    """Exercise: the log-probability of a whole sentence."""
    rows = [[1.0, 0.0, 2.0, -1.0], [0.5, 0.5, 0.0, 1.5], [0.0, 2.0, 1.0, -2.0]]
    logits, wanted = torch.tensor(rows), torch.tensor([2, 3, 1])
    chances = logits.log_softmax(dim=-1)
    words = chances.gather(-1, wanted[:, None]).squeeze(-1)
    answer = number(log_probability(logits, wanted), "a logarithm, one number")
    across = logits.log_softmax(dim=0).gather(-1, wanted[:, None]).sum()
    known = {
        float(words.mean()): (
            "That is the mean over the words. The sentence's is the sum: each word "
            "makes it less likely."
        ),
        float(words.sum().exp()): "That is the probability; its logarithm is wanted.",
        -float(words.sum()): (
            "The sign: a probability is at most 1, so its logarithm is never positive."
        ),
        float(words[:-1].sum()): "The end is missing: eos has a probability, too.",
        float(words.exp().sum()): (
            "You added probabilities. They multiply, and their logarithms add."
        ),
        float(logits.gather(-1, wanted[:, None]).sum()): (
            "You added logits. They are not yet logarithms of probabilities: "
            "log_softmax makes them so."
        ),
        float(across): "Your softmax runs over the places: it should run over words.",
        float(chances.max(dim=-1).values.sum()): (
            "You took the likeliest word of each row, not the wanted one."
        ),
    }
    if math.isclose(answer, float(words.sum()), abs_tol=1e-5):
        other = torch.tensor([0, 0, 3])
        value = float(chances.gather(-1, other[:, None]).sum())
        found = number(log_probability(logits, other))
        if math.isclose(found, value, abs_tol=1e-5):
            return right("Probabilities multiply, logarithms add, and the end counts.")
        return wrong("You took the likeliest word of each row, not the wanted one.")
    for value, message in known.items():
        if math.isclose(answer, value, abs_tol=1e-4):
            return wrong(message)
    return wrong(f"For the example it is {words.sum():.3f}; got {answer:.3f}.")


@exercise
def check_positions(positions: Any) -> Verdict:
    """Exercise: positions worked through without a cache, nine words and the end."""
    known: dict[float, str] = {
        45: "Nine turns? The end takes a turn, too, and bos is given in all of them.",
        10: "That is the number of turns. In each, all ids so far are worked through.",
        9: "That many words are said. Each turn works through all ids so far.",
        100: "Not ten in each turn: the first turn is given bos alone.",
        54: "bos is given in the first turn, so that begins with one position.",
        66: "eos is said, and not given again: the last turn has bos and nine words.",
    }
    count = number(positions)
    if count == 55:
        return right("1 + 2 + … + 10; with a cache it would be 10.")
    return wrong(known.get(count, f"Not {count:g}: add up the ids of each turn."))


@exercise
def check_top_k(top_k: Callable[[Tensor, int], Any]) -> Verdict:
    """Exercise: probabilities from the k likeliest words alone."""
    logits, k = torch.tensor([0.5, 2.0, -1.0, 1.0, 0.0]), 2
    largest = torch.tensor([False, True, False, True, False])
    expected = logits.masked_fill(~largest, -torch.inf).softmax(dim=-1)
    chances = logits.softmax(dim=-1)
    zeroed = chances * largest
    mistakes = {
        "You zeroed the rest and left it at that: what is left must add up to one.": (
            zeroed
        ),
        "You set the rest of the logits to 0, and e to the 0 is 1: take minus "
        "infinity.": (logits * largest).softmax(dim=-1),
        "You kept the likeliest word alone, not k of them.": (
            (logits == logits.max()).float()
        ),
        "Nothing was cut off.": chances,
        "These are the ids of the k words: their probabilities are wanted.": (
            logits.topk(k).indices
        ),
        "These are the k probabilities alone: one for each word is wanted, zero for "
        "those that are cut.": expected[largest].sort(descending=True).values,
        "You kept one word too many: with k = 2, two can be drawn.": (
            logits.masked_fill(logits < 0.5, -torch.inf).softmax(dim=-1)
        ),
        "You kept the least likely words.": (
            logits.masked_fill(logits > 0.0, -torch.inf).softmax(dim=-1)
        ),
    }
    answer = top_k(logits.clone(), k)
    if not near(answer, expected):
        return wrong(explain(answer, expected, mistakes))
    if not near(top_k(logits.clone(), 5), chances):
        return wrong("With k as large as the vocabulary, nothing should change.")
    return right("A mask before the softmax; what is left shares all the chance.")


@exercise
def check_alpha(alpha: Any) -> Verdict:
    """Exercise: the length penalty at which a short and a long answer are even."""
    known = {
        0.6: "At 0.6 the short one is still ahead: −1.57 against −2.07.",
        2.0: "The long one is divided by 2^α times as much. That should be 2.",
        0.0: "At 0 the totals themselves are compared: −2 against −4.",
        -1.0: "The sign: a larger α divides the longer sentence by more.",
        math.log(2) / math.log(13 / 4): (
            "You divided by the length itself. Five are added, and six divide."
        ),
        math.log(2): "Take logarithms on both sides of 2^α = 2.",
        0.5: "Turned round: 2^α = 2 is wanted, not 2^α = √2.",
    }
    value = number(alpha)
    if math.isclose(value, 1.0, abs_tol=0.005):
        return right("3 / 1.5 = 2 and −4 / −2 = 2: at α = 1 they are even.")
    for answer, message in known.items():
        if math.isclose(value, answer, abs_tol=0.005):
            return wrong(message)
    short, long = -2 / 1.5**value, -4 / 3**value
    return wrong(f"At {value:g} the scores are {short:.2f} and {long:.2f}.")
