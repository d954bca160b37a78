"""Checks for the exercises of chapter 09, on the decoder."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from bookkit.exercises import (
    Refused,
    Verdict,
    blanks,
    exercise,
    near,
    number,
    right,
    tensor,
    unanswered,
    wrong,
)


def _same(answer: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape and the same whole numbers."""
    return answer.shape == other.shape and bool((answer == other).all())


@exercise
def check_shift(answer: Callable[[Tensor], Any]) -> Verdict:
    """Decoder input and labels from a padded target."""
    target = torch.tensor([[1, 7, 8, 9, 2], [1, 5, 2, 0, 0]])
    pair = answer(target.clone())
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        return wrong("Return two tensors: what the decoder reads, and the labels.")
    if any(part is None or part is ... for part in pair):
        return unanswered()
    given, wanted = (tensor(part, "two tensors") for part in pair)
    first, last = target[:, :-1], target[:, 1:]
    if _same(given, first) and _same(wanted, last):
        return right("Position t reads words up to t and predicts word t + 1.")
    if _same(given, wanted):
        return wrong(
            "Input and labels are the same: the model would learn to repeat what it "
            "reads. Shift one against the other."
        )
    if _same(given, last) and _same(wanted, first):
        return wrong(
            "The shift goes the wrong way: each position would predict the word "
            "before the one it reads."
        )
    if _same(given, target[:-1]) or _same(wanted, target[1:]):
        return wrong(
            "You cut off a sentence, not a word: axis 0 is the batch, the words stand "
            "along axis 1."
        )
    if _same(given, target) or _same(wanted, target):
        return wrong(
            "One of the two is the whole target. Drop one word from each: the last "
            "from the input, the first from the labels."
        )
    if _same(given, target.roll(1, dims=1)) or _same(wanted, target.roll(-1, dims=1)):
        return wrong(
            "roll() wraps around: the word that leaves at one end comes back at the "
            "other, so <bos> or padding appears where no word is. Cut it off."
        )
    if _same(given, target[:, 1:-1]):
        return wrong("The decoder must read <bos> first: it is what it starts from.")
    if _same(wanted, target[:, 1:-1]):
        return wrong(
            "<eos> must stay in the labels, or the model never learns to stop."
        )
    if given.shape != wanted.shape:
        shapes = f"{tuple(given.shape)} and {tuple(wanted.shape)}"
        return wrong(f"Input and labels must have one shape, got {shapes}.")
    if _same(given, first.masked_fill(first == 2, 0)):
        return wrong(
            "You removed <eos> from the input of the shorter row. It stays: its label "
            "is padding, which the loss skips."
        )
    if (wanted == -100).any() and _same(wanted.masked_fill(wanted == -100, 0), last):
        return wrong(
            "You replaced the padding among the labels by -100. Leave its id, 0: the "
            "loss can skip any id, with ignore_index."
        )
    if _same(given, first):
        return wrong(
            "The input is right, the labels are not: they are the target without the "
            "first id of each row, <eos> and padding unchanged."
        )
    if _same(wanted, last):
        return wrong(
            "The labels are right, the input is not: it is the target without the last "
            "id of each row, <eos> and padding unchanged."
        )
    return wrong("Position t must read words up to t and predict word t + 1.")


def _positions(answer: Any) -> list[int]:
    """The positions that a reader listed, each once, in order."""
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        raise Refused("Give lists of position numbers, such as [0, 1].")
    return sorted({int(number(each, "the number of a position")) for each in answer})


@exercise
def check_notices(answer: Mapping[str, Any]) -> Verdict:
    """The decoder positions that change with a target word, and with a source word."""
    africa, september = map(_positions, blanks(answer, ("Africa", "septembre")))
    for word, places in (("Africa", africa), ("septembre", september)):
        if not set(places) <= set(range(6)):
            return wrong(
                f"For {word}: positions are numbered from 0 to 5; <bos> is 0 and "
                "September is 5."
            )
    if africa != [3, 4, 5]:
        reads = "Position 3 reads Africa: the mask lets a position attend to itself."
        predicts = "Position 2 predicts Africa, but does not read it: it reads visits."
        everywhere = "The causal mask keeps positions 0 to 2 from attending to Africa."
        reasons = {
            (3,): "Later positions attend to Africa, too: the causal mask allows it.",
            (4, 5): reads,
            (0, 1, 2): (
                "Those positions come before Africa: the mask hides it from them."
            ),
            (0, 1, 2, 3): (
                "That is the mask the wrong way round: the positions before Africa do "
                "not change."
            ),
            (2, 3, 4, 5): predicts,
            (2,): predicts,
            (0, 1, 2, 3, 4, 5): everywhere,
            (): "Position 3 reads Africa, so its output changes.",
        }
        why = reasons.get(
            tuple(africa), "Africa is input 3: which positions may attend to it?"
        )
        return wrong(f"For Africa: {why}")
    if september != list(range(6)):
        if september in ([5], [4, 5], [4]):
            why = (
                "Cross-attention has no causal mask: every position attends to every "
                "source word."
            )
        elif september == []:
            why = "The memory enters the decoder by cross-attention."
        else:
            why = (
                "The causal mask is for the target. Which target positions may attend "
                "to this source word?"
            )
        return wrong(f"For septembre: {why}")
    return right("Earlier positions do not change; the source reaches every position.")


@exercise
def check_cross(
    answer: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor],
) -> Verdict:
    """Cross-attention for one head."""
    g = torch.Generator().manual_seed(0)
    target, memory = torch.randn(3, 6, generator=g), torch.randn(5, 6, generator=g)
    w_q, w_k, w_v = torch.randn(3, 6, 4, generator=g).unbind()

    def attend(
        queries: Tensor, keys: Tensor, values: Tensor, scale: float = 2.0
    ) -> Tensor:
        scores = (queries @ w_q) @ (keys @ w_k).T / scale
        return scores.softmax(dim=-1) @ (values @ w_v)

    scores = (target @ w_q) @ (memory @ w_k).T / math.sqrt(4)
    expected = attend(target, memory, memory)
    future = torch.ones(3, 5, dtype=torch.bool).triu(1)
    mistakes = {
        "The roles are reversed: queries come from the target, keys and values from "
        "the memory.": attend(memory, target, target),
        "That is self-attention of the target: keys and values come from memory.": (
            attend(target, target, target)
        ),
        "That is self-attention of the memory: queries come from the target.": attend(
            memory, memory, memory
        ),
        "The scale 1/√d_k is missing.": attend(target, memory, memory, 1.0),
        "You divided by d_k, not by its square root.": attend(
            target, memory, memory, 4.0
        ),
        "You divided by √d, the width of the input: the queries have d_k numbers.": (
            attend(target, memory, memory, math.sqrt(6))
        ),
        "The softmax runs over the queries: normalise each row, with dim=-1.": (
            scores.softmax(dim=0) @ (memory @ w_v)
        ),
        "There is no softmax.": scores @ (memory @ w_v),
        "No causal mask here: every position may attend to the whole source.": (
            scores.masked_fill(future, -torch.inf).softmax(-1) @ (memory @ w_v)
        ),
        "You averaged the memory itself: project it to values first.": (
            scores.softmax(dim=-1) @ memory
        ),
        "You averaged the keys: apply the weights to the values.": (
            scores.softmax(dim=-1) @ (memory @ w_k)
        ),
        "Those are the weights: multiply them by the values.": scores.softmax(dim=-1),
    }
    result = tensor(answer(target, memory, w_q, w_k, w_v))
    if near(result, expected):
        return right("Three queries, five keys and values, three outputs.")
    for message, mistake in mistakes.items():
        if near(result, mistake):
            return wrong(message)
    for a, b, c in itertools.product((w_q, w_k, w_v), repeat=3):
        mixed = ((target @ a) @ (memory @ b).T / math.sqrt(4)).softmax(dim=-1)
        if near(result, mixed @ (memory @ c)):
            return wrong(
                "Two of the three matrices are mixed up, or one is used twice: queries "
                "by w_query, keys by w_key, values by w_value."
            )
    if result.shape != expected.shape:
        got, shape = tuple(result.shape), tuple(expected.shape)
        return wrong(f"One vector for each query: {shape} is wanted, got {got}.")
    gap = (result - expected).abs().max().item()
    return wrong(f"The shape is right, the numbers are off by up to {gap:.2g}.")
