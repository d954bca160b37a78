"""Chapter 01's exercises: the answer is right, likely mistakes are named."""

import math

import pytest
import torch

from bookkit.checks.why_attention import (
    check_additive,
    check_context,
    check_gradient,
    check_last_state,
    check_layers,
)


def read(inputs, w, u, start=0.0, bend=torch.tanh):
    state = torch.full((u.size(0),), start)
    for x in inputs:
        state = bend(x @ w + state @ u)
    return state


def all_states(inputs, w, u):
    return torch.stack([read(inputs[: t + 1], w, u) for t in range(len(inputs))])


def forgetful(inputs, w, u):
    return torch.tanh(inputs[-1] @ w)


RIGHT = [
    (check_last_state, read),
    (check_context, lambda scores, memory: scores.softmax(0) @ memory),
    (check_context, lambda s, m: (s.softmax(0)[:, None] * m).sum(0)),
    (check_layers, 16),
    (check_layers, 16.0),
    (check_additive, lambda s, m, w, u, v: torch.tanh(s @ w + m @ u) @ v),
    (check_gradient, lambda h, u: (u * (1 - h[1:] ** 2)).prod()),
    (check_gradient, lambda h, u: math.prod(u * (1 - x * x) for x in h[1:].tolist())),
]

WRONG = [
    (check_last_state, forgetful, "old state has no part"),
    (check_last_state, all_states, "give back the last"),
    (check_last_state, lambda x, w, u: read(x, w, u, bend=lambda h: h), "tanh"),
    (check_last_state, lambda x, w, u: read(x, w, u, start=1.0), "zeros, not ones"),
    (check_last_state, lambda x, w, u: read(x.flip(0), w, u), "backwards"),
    (check_last_state, lambda x, w, u: read(x[:-1], w, u), "one word early"),
    (check_last_state, lambda x, w, u: read(x, w, u.T), "transposed"),
    (check_last_state, lambda x, w, u: x @ u, "want transposing"),
    (check_last_state, lambda x, w, u: torch.zeros(3), "words have no part"),
    (check_last_state, lambda x, w, u: [0.0, 0.0, 0.0], "a tensor, not a list"),
    (check_last_state, lambda x, w, u: read(x, w, u)[None], "axis of size 1"),
    (check_last_state, lambda x, w, u: read(x, w, torch.eye(3)), "U is missing"),
    (check_context, lambda s, m: s.softmax(0), "Those are the weights"),
    (check_context, lambda s, m: s @ m, "no softmax"),
    (check_context, lambda s, m: s.exp() @ m, "divide by their sum"),
    (check_context, lambda s, m: s / s.sum() @ m, "exponentials first"),
    (check_context, lambda s, m: m[s.argmax()], "hard choice"),
    (check_context, lambda s, m: m.mean(0), "plain mean"),
    (check_context, lambda s, m: (s.softmax(0)[:, None] * m).mean(0), "their sum"),
    (check_context, lambda s, m: s.softmax(0)[:, None] * m, "did not add"),
    (check_context, lambda s, m: (-s).softmax(0) @ m, "minus"),
    (check_layers, 8, "only two of them backwards"),
    (check_layers, 7, "divide by the width"),
    (check_layers, 32, "width 3"),
    (check_layers, 1, "attention"),
    (check_layers, 100, "How many words further"),
    (check_layers, 16.5, "32 steps, not 33"),
    (check_layers, 33 / 5, "divide by the width"),
    (check_layers, 33 / 4, "only two of them backwards"),
    (check_layers, "16", "without quotes"),
    (check_layers, lambda: 16, "not a function"),
    (check_context, lambda s, m: m @ s.softmax(0), "want transposing"),
    (check_context, lambda s, m: (s.softmax(0) @ m).item(), "raised"),
    (check_additive, lambda s, m, w, u, v: (s @ w + m @ u) @ v, "tanh is missing"),
    (check_additive, lambda s, m, w, u, v: (m @ u).tanh() @ v, "takes no part"),
    (
        check_additive,
        lambda s, m, w, u, v: ((s @ w).tanh() + (m @ u).tanh()) @ v,
        "One tanh around the sum",
    ),
    (check_additive, lambda s, m, w, u, v: (s @ w + m @ u).tanh(), "before v"),
    (check_additive, lambda s, m, w, u, v: (s @ w + m @ u).tanh().sum(-1), "by v"),
    (
        check_additive,
        lambda s, m, w, u, v: ((s @ w + m @ u).tanh() @ v).softmax(0),
        "before the softmax",
    ),
    (check_additive, lambda s, m, w, u, v: (s @ w * (m @ u)) @ v, "adds them"),
    (check_additive, lambda s, m, w, u, v: ((s @ w + m @ u) @ v).tanh(), "not after"),
    (check_additive, lambda s, m, w, u, v: s @ m, "raised RuntimeError"),
    (check_additive, lambda s, m, w, u, v: torch.tanh(w @ s + m @ u) @ v, "sizes"),
    (check_additive, lambda s, m, w, u, v: (s @ w + m @ u).tanh() * v, "did not add"),
    (check_gradient, lambda h, u: (u * (1 - h**2)).prod(), "One factor too many"),
    (check_gradient, lambda h, u: (u * (1 - h[:-1] ** 2)).prod(), "last word's has"),
    (check_gradient, lambda h, u: (1 - h[1:] ** 2).prod(), "by u as well"),
    (check_gradient, lambda h, u: u ** (len(h) - 1), "slope of tanh as well"),
    (check_gradient, lambda h, u: (u * (1 - h[1:] ** 2)).sum(), "you added"),
    (check_gradient, lambda h, u: (u * (1 - h[1:])).prod(), "with a square"),
    (check_gradient, lambda h, u: u * (1 - h[1:] ** 2).prod(), "once in all"),
    (check_gradient, lambda h, u: (u * h[1:]).prod(), "multiplies the states"),
    (check_gradient, lambda h, u: u * (1 - h[1:] ** 2), "multiply them"),
    (check_gradient, lambda h, u: u * (1 - h[-1] ** 2), "last step alone"),
    (
        check_gradient,
        lambda h, u: (u * (1 - h[1:].tanh() ** 2)).prod(),
        "through tanh already",
    ),
]

UNANSWERED = [
    (check, answer)
    for check in (check_last_state, check_context, check_additive, check_gradient)
    for answer in (..., None, lambda *_: ...)
] + [(check_layers, ...), (check_layers, None)]


@pytest.mark.parametrize(("check", "answer"), RIGHT)
def test_right(check, answer):
    verdict = check(answer)
    assert verdict.ok, verdict


@pytest.mark.parametrize(("check", "answer", "words"), WRONG)
def test_wrong_is_named(check, answer, words):
    verdict = check(answer)
    assert verdict.kind == "wrong"
    assert words in verdict.message


@pytest.mark.parametrize(("check", "answer"), UNANSWERED)
def test_unanswered(check, answer):
    assert check(answer).kind == "unanswered"
