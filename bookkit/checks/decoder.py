"""Checks for the exercises of chapter 09, on the decoder."""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from bookkit.exercises import (
    Verdict,
    array,
    blanks,
    exercise,
    holds,
    near,
    numbers,
    right,
    tensor,
    unanswered,
    wrong,
)
from bookkit.forms import form
from transformer.text.batches import pad
from transformer.text.words import BOS_ID, EOS_ID, PAD_ID


def _same(answer: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape and the same whole numbers."""
    return answer.shape == other.shape and bool((answer == other).all())


def _unlike(given: Tensor, wanted: Tensor, sentences: list[list[int]]) -> str:
    """What is wrong with the decoder's input or the labels; empty if nothing is."""
    first, last = (
        [[BOS_ID, *one] for one in sentences],
        [[*one, EOS_ID] for one in sentences],
    )
    whole, bare = pad([[BOS_ID, *one, EOS_ID] for one in sentences]), pad(sentences)
    # Where the label is padding, what stands in the input changes no loss.
    inputs, labels = (pad(first), whole[:, :-1], pad(first, EOS_ID)), pad(last)
    read = any(_same(given, each) for each in inputs)
    if read and _same(wanted, labels):
        return ""

    def wider(rows: Tensor, value: int) -> Tensor:
        return torch.cat([rows, torch.full((len(rows), 1), value)], dim=1)

    in_front = pad([row[::-1] for row in first]).flip(1)
    mistakes = {
        "Input and labels are the same: the model would learn to repeat what it reads. "
        "Shift one against the other.": _same(given, wanted),
        "The shift goes the wrong way: each position would predict the word before the "
        "one it reads.": (
            _same(given, labels) and any(_same(wanted, each) for each in inputs)
        ),
        "There is one column more than the longest sentence needs.": (
            _same(given, whole) and _same(wanted, wider(labels, PAD_ID))
        ),
        "One of the two is the whole target. Drop one id from each row: the last from "
        "the input, the first from the labels.": (
            _same(given, whole) or _same(wanted, whole)
        ),
        "The sentences begin and end without a sign: add <bos> and <eos>.": (
            _same(given, bare[:, :-1]) and _same(wanted, bare[:, 1:])
        ),
        "The decoder must read <bos> first: it is what it starts from.": (
            _same(given, bare) or _same(given, whole[:, 1:-1])
        ),
        "<eos> must stay in the labels, or the model never learns to stop.": (
            _same(wanted, bare) or _same(wanted, wider(bare, PAD_ID))
        ),
        "<eos> stands after the padding: put it after the last word of its row.": (
            _same(wanted, wider(bare, EOS_ID))
        ),
        "You filled up the labels with <eos>: the loss would count each. Fill up with "
        "padding.": _same(wanted, pad(last, EOS_ID)),
        "You filled up the labels with -100. Use the id of padding, 0: the loss can "
        "skip any id, with ignore_index.": _same(wanted, pad(last, -100)),
        "The padding stands in front of the words: fill up after them.": (
            _same(given, in_front)
        ),
        "The labels begin with the first word, which <bos> predicts.": (
            _same(wanted, whole[:, 2:])
        ),
        "You cut off the longer sentences: fill up the shorter ones.": (
            given.size(1) == min(map(len, first)) < labels.size(1)
        ),
        f"Input and labels should be of shape {tuple(labels.shape)}; got "
        f"{tuple(given.shape)} and {tuple(wanted.shape)}.": (
            not given.shape == wanted.shape == labels.shape
        ),
        "The input is right, the labels are not: they are the words of each sentence, "
        "<eos>, and then padding.": read,
        "The labels are right, the input is not: it is <bos>, the words of each "
        "sentence, and then padding.": _same(wanted, labels),
    }
    named = (message for message, made in mistakes.items() if made)
    return next(named, "Position t must read words up to t and predict word t + 1.")


@exercise
def check_shift(answer: Callable[[list[list[int]]], Any]) -> Verdict:
    """Decoder input and labels from sentences of different lengths."""
    for sentences in [[7, 8, 9], [5]], [[4], [3, 5], [6, 7, 8, 9]]:
        pair = answer(sentences)
        if isinstance(pair, Tensor) and pair.dim() == 3:
            pair = list(pair)
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            return wrong("Return two tensors: what the decoder reads, and the labels.")
        if any(part is None or part is ... for part in pair):
            return unanswered()
        given, wanted = (tensor(part, "two tensors") for part in pair)
        if any(part.dim() != 2 for part in (given, wanted)):
            return wrong("Input and labels should have a row for each sentence.")
        message = _unlike(given, wanted, sentences)
        if message and len(sentences) == 3:
            return wrong(f"Right for 2 sentences, but not for {sentences}: {message}")
        if message:
            return wrong(message)
        if any(part.is_floating_point() for part in (given, wanted)):
            dtype = str(given.dtype if given.is_floating_point() else wanted.dtype)
            return wrong(
                f"Right numbers, but as {dtype.removeprefix('torch.')}: ids are whole "
                "numbers, dtype=torch.long."
            )
    return right("Position t reads words up to t and predicts word t + 1.")


def _positions(answer: Any) -> list[int]:
    """The positions that a reader listed, each once, in order."""
    found = numbers(answer, "lists of position numbers, such as [0, 1]")
    return sorted({int(place) for place in found})


@exercise
@form("dictionary", "Africa", "septembre", several=True)
def check_notices(answer: Mapping[str, Any]) -> Verdict:
    """The decoder positions that change with a target word, and with a source word."""
    africa, september = map(_positions, blanks(answer, ("Africa", "septembre")))
    for word, places in (("Africa", africa), ("septembre", september)):
        if any(place not in range(6) for place in places):
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
        "You multiplied by √d_k: divide by it.": attend(target, memory, memory, 0.5),
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
    result = array(answer(target, memory, w_q, w_k, w_v))
    if near(result, expected):
        target, memory = torch.randn(2, 5, generator=g), torch.randn(4, 5, generator=g)
        w_q, w_k, w_v = torch.randn(3, 5, 3, generator=g).unbind()
        expected = attend(target, memory, memory, math.sqrt(3))
        if holds(answer, (target, memory, w_q, w_k, w_v), expected):
            return right("Three queries, five keys and values, three outputs.")
        return wrong(
            "Right for these sizes, but not for other sizes: divide by the root of "
            "d_k = w_query.size(-1)."
        )
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
