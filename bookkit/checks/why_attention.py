"""Checks for the exercises of chapter 01, Why look at every word at once?"""

from collections.abc import Callable

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
    no_u = torch.zeros(3)
    for x in inputs:
        no_u = torch.tanh(x @ w + no_u)
    mistakes = {
        "Those are zeros: the words have no part in it.": torch.zeros(3),
        "U is missing: the old state goes through it.": no_u,
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
    if not near(result, expected):
        return wrong(explain(result, expected, mistakes))
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
        if not near(result, expected):
            return wrong(explain(result, expected, mistakes))
    return right("One vector from many, each by its weight.")


@exercise
def check_layers(answer: float) -> Verdict:
    """Width-5 convolutions until the last of 33 words hears from the first."""
    layers = number(answer)
    if layers == 16:
        return right("32 words apart, two words a layer. Attention needs one layer.")
    mistakes: dict[float, str] = {
        8: "A width of 5 reaches four words in all, but only two of them backwards.",
        7: "Do not divide by the width: an output sees two words on either side.",
        32: "One word a layer: that is width 3. Width 5 reaches two words back.",
        33: "That is one layer a word. Width 5 reaches two words back.",
        17: "One too many: from word 33 to word 1 there are 32 steps.",
        15: "One too few: after 15 layers the last word hears from word 3.",
        1: "One layer would do for attention. A convolution reaches its width only.",
        16.5: "From word 33 to word 1 there are 32 steps, not 33.",
        6: "Do not divide by the width: an output sees two words on either side.",
        9: "A width of 5 reaches four words in all, but only two of them backwards.",
    }
    mistakes |= {33 / 5: mistakes[7], 32 / 5: mistakes[7], 33 / 4: mistakes[8]}
    return wrong(
        mistakes.get(layers, "How many words further back does each layer reach?")
    )


@exercise
def check_additive(answer: Callable[..., Tensor]) -> Verdict:
    """Additive attention's scores: v · tanh(W s + U h), one for each memory vector."""
    g = torch.Generator().manual_seed(0)
    w, u = torch.randn(3, 5, generator=g), torch.randn(4, 5, generator=g)
    v = torch.randn(5, generator=g)
    for length in (6, 2):
        state = torch.randn(3, generator=g)
        memory = torch.randn(length, 4, generator=g)
        asked, offered = state @ w, memory @ u
        expected = torch.tanh(asked + offered) @ v
        mistakes = {
            "The tanh is missing: without it the state adds the same to every score, "
            "and has no say.": (asked + offered) @ v,
            "The state takes no part: add it to every row inside the tanh.": (
                torch.tanh(offered) @ v
            ),
            "One tanh around the sum of both, not a tanh for each.": (
                torch.tanh(asked) + torch.tanh(offered)
            )
            @ v,
            "That is before v: five numbers for each memory vector, not one score.": (
                torch.tanh(asked + offered)
            ),
            "You multiplied by v and did not add up: one score for each memory "
            "vector.": torch.tanh(asked + offered) * v,
            "You added the five numbers up: weigh them by v.": (
                torch.tanh(asked + offered).sum(-1)
            ),
            "Those are the weights: scores come before the softmax.": (
                expected.softmax(0)
            ),
            "That is a product of state and memory. Additive attention adds them.": (
                (asked * offered) @ v
            ),
            "The tanh comes before v, not after.": torch.tanh((asked + offered) @ v),
        }
        result = answer(state, memory, w, u, v)
        if not near(result, expected):
            return wrong(explain(result, expected, mistakes))
    return right("A score for each memory vector, for memories of any length.")


@exercise
def check_gradient(answer: Callable[[Tensor, float], Tensor | float]) -> Verdict:
    """d(last state) / d(first state) of a reader of one number."""
    for u, states in ((0.5, (0.8, -0.4, 0.6, 0.2)), (2.0, (0.3, 0.1, -0.2))):
        h = torch.tensor(states)
        slopes = 1 - h**2
        expected = (u * slopes[1:]).prod()
        mistakes = {
            "One factor too many: the nudge starts at the first state.": (
                (u * slopes).prod()
            ),
            "The first word's own slope has no part, the last word's has.": (
                (u * slopes[:-1]).prod()
            ),
            "Each step multiplies by u as well.": slopes[1:].prod(),
            "Each step multiplies by the slope of tanh as well, 1 - h².": (
                torch.tensor(u ** (len(h) - 1))
            ),
            "The factors multiply; you added them.": (u * slopes[1:]).sum(),
            "The slope of tanh is 1 - h², with a square.": (u * (1 - h[1:])).prod(),
            "u is there once a step, not once in all.": u * slopes[1:].prod(),
            "That multiplies the states. Multiply slopes, 1 - h².": (u * h[1:]).prod(),
            "That is the last step alone: each step between has its factor.": (
                u * slopes[-1]
            ),
            "The slope of tanh at h is 1 - h²: the states have been through tanh "
            "already.": (u * (1 - h[1:].tanh() ** 2)).prod(),
            "Those are the factors: multiply them.": u * slopes[1:],
        }
        result = torch.as_tensor(answer(h, u), dtype=torch.float32)
        if not near(result, expected):
            return wrong(explain(result, expected, mistakes))
    return right(
        "A factor for each step; below one they vanish, above one they explode."
    )
