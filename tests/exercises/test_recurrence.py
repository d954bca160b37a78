"""The exercises on recurrent networks: the answer is right, mistakes are named."""

import math

import torch

from bookkit.checks.recurrence import check_additive, check_gate, check_gradient
from tests.exercises import named_mistakes, right_answers


def one_by_one(s, m, a, b, v):
    return [torch.tanh(s @ a + one @ b) @ v for one in m]


def by_logarithms(log, exp):
    def gradient_left(h, u):
        return exp(sum(log(u * (1 - x * x)) for x in h[1:]))

    return gradient_left


RIGHT = [
    (check_additive, one_by_one),
    (check_additive, lambda *given: torch.stack(one_by_one(*given)).numpy()),
    (check_additive, lambda s, m, a, b, v: ((m @ b + s @ a).tanh() * v).sum(-1)),
    (check_gradient, lambda h, u: math.prod(u * (1 - x * x) for x in h[1:].tolist())),
    (check_gate, torch.tensor(0.5 ** (1 / 100)).double().logit()),
    (check_gate, -math.log(2 ** (1 / 100) - 1)),
]

WRONG = [
    (check_additive, lambda s, m, a, b, v: (s @ a + m @ b) @ v, "tanh is missing"),
    (check_additive, lambda s, m, a, b, v: (m @ b).tanh() @ v, "plays no part"),
    (
        check_additive,
        lambda s, m, a, b, v: ((s @ a).tanh() + (m @ b).tanh()) @ v,
        "one tanh around the sum",
    ),
    (check_additive, lambda s, m, a, b, v: (s @ a + m @ b).tanh(), "before v"),
    (check_additive, lambda s, m, a, b, v: (s @ a + m @ b).tanh().sum(-1), "by v"),
    (
        check_additive,
        lambda s, m, a, b, v: ((s @ a + m @ b).tanh() @ v).softmax(0),
        "before the softmax",
    ),
    (check_additive, lambda s, m, a, b, v: (s @ a * (m @ b)) @ v, "adds them"),
    (check_additive, lambda s, m, a, b, v: ((s @ a + m @ b) @ v).tanh(), "not after"),
    (check_additive, lambda s, m, a, b, v: s @ m, "raised RuntimeError"),
    (check_additive, lambda s, m, a, b, v: torch.tanh(a @ s + m @ b) @ v, "sizes"),
    (check_additive, lambda s, m, a, b, v: (s @ a + m @ b).tanh() * v, "did not add"),
    (check_gradient, lambda h, u: (u * (1 - h**2)).prod(), "One factor too many"),
    (
        check_gradient,
        lambda h, u: (1 - h[0] ** 2) * (u * (1 - h[1:] ** 2)).prod(),
        "by the first word",
    ),
    (check_gradient, lambda h, u: (u * (1 - h[:-1] ** 2)).prod(), "last one does"),
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
    (
        check_gradient,
        lambda h, u: u ** len(h) * (1 - h[1:] ** 2).prod(),
        "One u too many",
    ),
    (
        check_gradient,
        lambda h, u: (u * (1 - torch.tanh(u * h[:-1]) ** 2)).prod(),
        "The words enter the states too",
    ),
    (check_gradient, by_logarithms(math.log, math.exp), "none below 0"),
    (check_gradient, by_logarithms(torch.log, torch.exp), "u may be negative"),
    (check_gate, 5, "0.511 of the cell is left"),
    (check_gate, 4.95, "0.494 of the cell is left"),
    (check_gate, 4.98, "0.504 of the cell is left"),
    (check_gate, 0, "half is lost at every step"),
    (check_gate, 0.5 ** (1 / 100), "the gate itself"),
    (check_gate, -4.97, "negative bias"),
    (check_gate, math.log(0.5) / 100, "invert the sigmoid"),
    (check_gate, 5.293, "multiplies"),
    (check_gate, 4.595, "0.37"),
    (check_gate, 2, "of the cell is left"),
    (check_gate, -1e4, "0.000 of the cell is left"),
    (check_gate, "4.97", "without quotes"),
]


test_right = right_answers(RIGHT)


test_wrong_is_named = named_mistakes(WRONG)
