"""Checks for the exercises of chapter 01, Why look at every word at once?"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bookkit.exercises import Verdict, exercise, right, wrong


def _near(answer: Any, other: Tensor) -> bool:
    """Whether an answer is a tensor of the same shape and nearly the same numbers."""
    return (
        isinstance(answer, Tensor)
        and answer.shape == other.shape
        and torch.allclose(answer.double(), other.double(), atol=1e-4, rtol=1e-4)
    )


def _explain(answer: Any, expected: Tensor, mistakes: dict[str, Tensor]) -> str:
    """The message of the mistake that gives this answer, else how far off it is."""
    if not isinstance(answer, Tensor):
        return f"Give back a tensor, not a {type(answer).__name__}."
    for message, result in mistakes.items():
        if _near(answer, result):
            return message
    if answer.shape != expected.shape:
        got, wanted = tuple(answer.shape), tuple(expected.shape)
        return f"The shape is {got}; it should be {wanted}."
    gap = (answer.double() - expected.double()).abs().max().item()
    return f"The numbers are off by up to {gap:.2g}."


def _read(inputs: Tensor, w: Tensor, u: Tensor, start: float = 0.0) -> Tensor:
    """The last state of a recurrent network."""
    state = torch.full((u.size(0),), start)
    for x in inputs:
        state = torch.tanh(x @ w + state @ u)
    return state


@exercise
def check_last_state(answer: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Verdict:
    """The last state of a recurrent network that starts from zeros."""
    g = torch.Generator().manual_seed(0)
    inputs = torch.randn(4, 6, generator=g)
    w = torch.randn(6, 3, generator=g) / 2
    u = torch.randn(3, 3, generator=g) / 2
    expected = _read(inputs, w, u)
    states = torch.stack([_read(inputs[: t + 1], w, u) for t in range(4)])
    no_tanh = torch.zeros(3)
    for x in inputs:
        no_tanh = x @ w + no_tanh @ u
    outside = torch.zeros(3)
    for x in inputs:
        outside = torch.tanh(x @ w) + outside @ u
    mistakes = {
        "You read the words backwards.": _read(inputs.flip(0), w, u),
        "The old state has no part in it: is it still zeros when the last word "
        "comes?": _read(inputs[-1:], w, u),
        "The tanh is missing.": no_tanh,
        "The old state belongs inside the tanh.": outside,
        "The state starts at zeros, not ones.": _read(inputs, w, u, start=1.0),
        "Those are all the states: give back the last.": states,
        "That is the first state: give back the last.": states[0],
        "You stopped one word early.": states[-2],
        "U is transposed.": _read(inputs, w, u.T),
        "You mixed up W's words: take the sum inside the tanh, once a word.": (
            torch.tanh((inputs @ w).sum(0))
        ),
    }
    result = answer(inputs, w, u)
    if not _near(result, expected):
        return wrong(_explain(result, expected, mistakes))
    return right("Four words, one after another, in one vector of three numbers.")


@exercise
def check_context(answer: Callable[[Tensor, Tensor], Tensor]) -> Verdict:
    """The softmax-weighted sum of memory vectors, for any number of them."""
    g = torch.Generator().manual_seed(0)
    for length in (5, 3):
        memory = torch.randn(length, 3, generator=g)
        scores = torch.randn(length, generator=g) * 2
        weights = scores.softmax(0)
        expected = weights @ memory
        mistakes = {
            "Those are the weights: mix the memory with them.": weights,
            "There is no softmax: the scores themselves are not weights.": (
                scores @ memory
            ),
            "You took the exponentials and forgot to divide by their sum.": (
                scores.exp() @ memory
            ),
            "You divided the scores by their sum: take their exponentials first.": (
                scores / scores.sum() @ memory
            ),
            "That is the one entry with the highest score, a hard choice. Mix them "
            "all.": memory[scores.argmax()],
            "That is the plain mean: the scores had no say.": memory.mean(0),
            "You took the mean of the weighted vectors: their sum, for the weights "
            "share out the whole already.": expected / length,
            "You weighted the vectors and did not add them up.": (
                weights[:, None] * memory
            ),
            "The softmax of minus the scores: a high score should count for more.": (
                (-scores).softmax(0) @ memory
            ),
        }
        result = answer(scores, memory)
        if not _near(result, expected):
            return wrong(_explain(result, expected, mistakes))
    return right("One vector from many, each by its weight.")


@exercise
def check_layers(answer: float) -> Verdict:
    """Width-5 convolutions until the last of 33 words hears from the first."""
    if answer == 16:
        return right("32 words apart, two words a layer. Attention needs one layer.")
    mistakes = {
        8: "A width of 5 reaches four words in all, but only two of them backwards.",
        7: "Do not divide by the width: an output sees two words on either side.",
        32: "One word a layer: that is width 3. Width 5 reaches two words back.",
        33: "That is one layer a word. Width 5 reaches two words back.",
        17: "One too many: from word 33 to word 1 there are 32 steps.",
        15: "One too few: after 15 layers the last word hears from word 3.",
        1: "One layer would do for attention. A convolution reaches its width only.",
    }
    return wrong(
        mistakes.get(int(answer), "How many words further back does each layer reach?")
    )
