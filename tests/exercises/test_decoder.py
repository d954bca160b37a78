"""Chapter 09's exercises: the answer is right, likely mistakes are named."""

import math

import pytest
import torch

from bookkit.checks.decoder import (
    check_cross,
    check_notices,
    check_shift,
)


def cross(scale=None, causal=False, dim=-1, swap=False):
    """Cross-attention, right unless told otherwise."""

    def answer(target, memory, w_query, w_key, w_value):
        asks, answers = (memory, target) if swap else (target, memory)
        queries, keys, values = asks @ w_query, answers @ w_key, answers @ w_value
        scores = queries @ keys.T / (scale or math.sqrt(queries.size(-1)))
        if causal:
            later = torch.ones(scores.shape, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        return scores.softmax(dim=dim) @ values

    return answer


def everyone(africa, september):
    return {"Africa": africa, "septembre": september}


RIGHT = [
    (check_shift, lambda t: (t[:, :-1], t[:, 1:])),
    (check_shift, lambda t: [t[:, :-1], t[:, 1:]]),
    (check_notices, everyone([3, 4, 5], range(6))),
    (check_notices, everyone((5, 4, 3), list(range(6)))),
    (check_cross, cross()),
]

WRONG = [
    (check_shift, lambda t: (t[:, :-1], t[:, :-1]), "repeat"),
    (check_shift, lambda t: (t, t), "the same"),
    (check_shift, lambda t: (t[:, 1:], t[:, :-1]), "wrong way"),
    (check_shift, lambda t: (t, t[:, 1:]), "whole target"),
    (check_shift, lambda t: (t, t.roll(-1, dims=1)), "whole target"),
    (check_shift, lambda t: (t.roll(1, 1), t.roll(-1, 1)), "roll"),
    (check_shift, lambda t: (t[:, 1:-1], t[:, 2:]), "<bos>"),
    (check_shift, lambda t: (t[:, :-2], t[:, 1:-1]), "<eos>"),
    (check_shift, lambda t: (t[:, :-1], t[:, 2:]), "one shape"),
    (
        check_shift,
        lambda t: (t[:, :-1].masked_fill(t[:, :-1] == 2, 0), t[:, 1:]),
        "removed <eos> from the input",
    ),
    (
        check_shift,
        lambda t: (t[:, :-1], t[:, 1:].masked_fill(t[:, 1:] == 0, -100)),
        "by -100",
    ),
    (check_shift, lambda t: (t[:, :-1], t[:, 1:] + 1), "labels are not"),
    (check_shift, lambda t: (t[:, :-1] + 1, t[:, 1:]), "input is not"),
    (check_shift, lambda t: t[:, 1:], "two tensors"),
    (check_shift, lambda t: t[:, 9], "raised"),
    (check_shift, lambda t: (t[:-1], t[1:]), "cut off a sentence"),
    (check_shift, lambda t: (t[:, :-1].tolist(), t[:, 1:].tolist()), "not a list"),
    (check_notices, everyone([3], range(6)), "Later positions attend"),
    (check_notices, everyone([4, 5], range(6)), "attend to itself"),
    (check_notices, everyone([0, 1, 2, 3], range(6)), "wrong way"),
    (check_notices, everyone([2, 3, 4, 5], range(6)), "predicts Africa"),
    (check_notices, everyone(range(6), range(6)), "positions 0 to 2"),
    (check_notices, everyone([3, 4, 5], [5]), "has no causal mask"),
    (check_notices, everyone([3, 4, 5], []), "memory enters"),
    (check_notices, everyone([3, 4, 5], [3, 4, 5]), "for the target"),
    (check_notices, {"Africa": [3, 4, 5]}, "Nothing stands under 'septembre'"),
    (check_notices, everyone(3, range(6)), "lists of position numbers"),
    (
        check_notices,
        everyone([4, 5, 6], range(6)),
        "For Africa: positions are numbered",
    ),
    (
        check_notices,
        everyone([3, 4, 5], range(7)),
        "For septembre: positions are numbered",
    ),
    (check_notices, everyone([1, 3, 5], range(6)), "Africa is input 3"),
    (check_notices, everyone([2], range(6)), "predicts Africa"),
    (check_cross, cross(swap=True), "reversed"),
    (check_cross, lambda t, m, q, k, v: cross()(t, t, q, k, v), "of the target"),
    (check_cross, lambda t, m, q, k, v: cross()(m, m, q, k, v), "of the memory"),
    (check_cross, cross(scale=1.0), "missing"),
    (check_cross, cross(scale=4.0), "square root"),
    (check_cross, cross(scale=math.sqrt(6)), "width of the input"),
    (check_cross, cross(dim=0), "over the queries"),
    (check_cross, cross(causal=True), "No causal mask"),
    (check_cross, lambda t, m, q, k, v: cross()(t, m, q, k, k), "averaged the keys"),
    (
        check_cross,
        lambda t, m, q, k, v: cross()(t, m, q, k, torch.eye(6)),
        "memory itself",
    ),
    (check_cross, lambda t, m, q, k, v: t @ q, "off by"),
    (check_cross, lambda t, m, q, k, v: cross()(t, m, k, q, v), "mixed up"),
    (check_cross, lambda t, m, q, k, v: cross()(t, m, q, q, v), "used twice"),
    (check_cross, lambda t, m, q, k, v: cross()(t, m, q, v, k), "mixed up"),
    (check_cross, lambda t, m, q, k, v: (t @ q) @ (m @ k) @ m @ v, "want transposing"),
    (check_cross, lambda t, m, q, k, v: (t @ q) @ (m @ k).T / 2 @ m @ v, "no softmax"),
    (check_cross, lambda t, m, q, k, v: m @ q, "One vector for each query"),
]


@pytest.mark.parametrize(("check", "answer"), RIGHT)
def test_right(check, answer):
    assert repr(check(answer)).startswith("✓")


@pytest.mark.parametrize(("check", "answer", "words"), WRONG)
def test_mistake_is_named(check, answer, words):
    verdict = repr(check(answer))
    assert verdict.startswith("✗")
    assert words in verdict


@pytest.mark.parametrize("check", [check_shift, check_notices, check_cross])
def test_unanswered(check):
    assert repr(check(...)).startswith("○")


@pytest.mark.parametrize(
    ("check", "stub"),
    [
        (check_shift, lambda target: ...),
        (check_shift, lambda target: (..., ...)),
        (check_notices, everyone(..., ...)),
        (check_cross, lambda t, m, q, k, v: None),
    ],
)
def test_untouched_stub_is_unanswered(check, stub):
    assert repr(check(stub)).startswith("○")
