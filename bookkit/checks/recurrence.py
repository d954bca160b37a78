"""Checks for the exercises of the workshop's page on recurrent networks."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from bookkit.exercises import (
    Verdict,
    array,
    exercise,
    explain,
    near,
    number,
    right,
    wrong,
)
from bookkit.forms import form


@exercise
def check_additive(answer: Callable[..., Tensor]) -> Verdict:
    """Additive attention's scores: tanh(s A + h B) · v, one for each memory vector."""
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(3, 5, generator=g), torch.randn(4, 5, generator=g)
    v = torch.randn(5, generator=g)
    for length in (6, 2):
        state = torch.randn(3, generator=g)
        memory = torch.randn(length, 4, generator=g)
        query, keys = state @ a, memory @ b
        expected = torch.tanh(query + keys) @ v
        mistakes = {
            "The tanh is missing: without it the state adds the same to every score, "
            "and the weights do not depend on it.": (query + keys) @ v,
            "The state plays no part: add it to every row inside the tanh.": (
                torch.tanh(keys) @ v
            ),
            "Use one tanh around the sum of both, not a tanh for each.": (
                torch.tanh(query) + torch.tanh(keys)
            )
            @ v,
            "That is before v: five numbers for each memory vector, not one score.": (
                torch.tanh(query + keys)
            ),
            "You multiplied by v but did not add up: one score for each memory "
            "vector.": torch.tanh(query + keys) * v,
            "You added the five numbers up: weight them by v.": (
                torch.tanh(query + keys).sum(-1)
            ),
            "Those are the weights: scores come before the softmax.": (
                expected.softmax(0)
            ),
            "That is a product of state and memory. Additive attention adds them.": (
                (query * keys) @ v
            ),
            "The tanh comes before v, not after.": torch.tanh((query + keys) @ v),
        }
        result = array(answer(state, memory, a, b, v))
        if not near(result, expected):
            return wrong(explain(result, expected, mistakes))
    return right("A score for each memory vector, for memories of any length.")


@exercise
def check_gradient(answer: Callable[[Tensor, float], Tensor | float]) -> Verdict:
    """d(last state) / d(first state) of a network of one number."""
    for u, states in (
        (0.5, (0.8, -0.4, 0.6, 0.2)),
        (2.0, (0.3, 0.1, -0.2)),
        (-1.5, (0.2, -0.3, 0.1, 0.4)),
    ):
        h = torch.tensor(states)
        slopes, wordless = 1 - h**2, torch.tanh(u * h[:-1])
        expected = (u * slopes[1:]).prod()
        mistakes = {
            "One factor too many: the derivative starts at the first state.": (
                (u * slopes).prod()
            ),
            "That is the derivative by the first word, which begins with 1 - h₁²: the "
            "derivative by the first state leaves that out.": (slopes[0] * expected),
            "The slope of the first state plays no part, that of the last one does.": (
                (u * slopes[:-1]).prod()
            ),
            "Each step multiplies by u as well.": slopes[1:].prod(),
            "Each step multiplies by the slope of tanh as well, 1 - h².": (
                torch.tensor(u ** (len(h) - 1))
            ),
            "The factors multiply; you added them.": (u * slopes[1:]).sum(),
            "The slope of tanh is 1 - h², with a square.": (u * (1 - h[1:])).prod(),
            "u is a factor of every step, not once in all.": u * slopes[1:].prod(),
            "That multiplies the states. Multiply slopes, 1 - h².": (u * h[1:]).prod(),
            "That is the last step alone: each step between has its factor.": (
                u * slopes[-1]
            ),
            "The slope of tanh at h is 1 - h²: the states have been through tanh "
            "already.": (u * (1 - h[1:].tanh() ** 2)).prod(),
            "Those are the factors: multiply them.": u * slopes[1:],
            "One u too many: n - 1 steps lead from the first state to the last.": (
                u * expected
            ),
            "The words enter the states too: use each state as it is given.": (
                (u * (1 - wordless**2)).prod()
            ),
        }
        on_nan = "There is NaN in it: did you take a logarithm? u may be negative."
        result = torch.as_tensor(answer(h, u), dtype=torch.float32)
        if not near(result, expected):
            return wrong(explain(result, expected, mistakes, on_nan))
    return right("A factor for each step: a product of many small ones vanishes.")


@exercise
@form("one", "bias")
def check_gate(answer: float) -> Verdict:
    """The bias with which a forget gate keeps half of the cell over 100 steps."""
    bias = number(answer)
    forget = 0.5 ** (1 / 100)

    def logit(share: float) -> float:
        return math.log(share / (1 - share))

    if abs(bias - logit(forget)) < 0.006:
        return right("A bias of 4 keeps half for 38 steps, one of 0 for a single step.")
    mistakes = {
        0.0: "With a bias of 0 the gate is 0.5: half is lost at every step.",
        forget: "That is the gate itself. Which bias has this number as its sigmoid?",
        -logit(forget): "The sign is wrong: a negative bias closes the gate.",
        math.log(forget): "That is the logarithm of the gate: invert the sigmoid, "
        "ln(f / (1 - f)).",
        logit(1 - 0.5 / 100): "The losses do not add up: the gate multiplies, so that "
        "f to the power of 100 is 0.5.",
        logit(
            0.99
        ): "With f = 0.99 only 0.99 to the power of 100, about 0.37, is left.",
    }
    for value, message in mistakes.items():
        if abs(bias - value) < 0.005:
            return wrong(message)
    left = (1 / (1 + math.exp(-bias))) ** 100 if bias > -700 else 0.0
    return wrong(f"With this bias {left:.3f} of the cell is left after 100 steps.")
