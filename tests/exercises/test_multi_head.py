"""Chapter 05's exercises: the answer is right, likely mistakes are named."""

import math

import pytest
import torch

from bookkit.checks.multi_head import (
    check_merge,
    check_question,
    check_sizes,
    check_split,
)


def cut(x, heads):
    return x.view(*x.shape[:2], heads, x.size(-1) // heads)


def split(x, heads):
    return cut(x, heads).transpose(1, 2)


def dealt(x, heads):
    return x.view(*x.shape[:2], -1, heads).permute(0, 3, 1, 2)


def viewed(x, heads):
    return x.view(x.size(0), heads, x.size(1), -1)


def asking(*places, strength=12.0, shape=(8, 4)):
    weight = torch.zeros(shape)
    for row, column in places:
        weight[row, column] = strength
    return weight


def mixed(x, w_q, w_k, w_v, scale=None, axis=-1):
    scores = (x @ w_q) @ (x @ w_k).mT / math.sqrt(scale or w_q.size(-1))
    return scores.softmax(axis) @ (x @ w_v)


def joined(parts):
    return parts.transpose(0, 1).flatten(1)


RIGHT = [
    (check_split, split),
    (check_split, lambda x, h: x.unflatten(-1, (h, -1)).transpose(1, 2)),
    (check_split, lambda x, h: torch.stack(x.chunk(h, dim=-1), dim=1)),
    (check_merge, lambda h: h.transpose(1, 2).flatten(2)),
    (check_merge, lambda h: torch.cat(h.unbind(1), dim=-1)),
    (check_question, asking((2, 1))),
    (check_question, asking((2, 1), strength=20.0).double()),
    (check_sizes, lambda x, q, k, v, o: joined(mixed(x, q, k, v)) @ o),
]

WRONG = [
    (check_split, viewed, "view without a transpose"),
    (check_split, cut, "words come before heads"),
    (check_split, dealt, "the heads in turn"),
    (check_split, lambda x, h: split(x, h).mT, "changed places"),
    (check_split, lambda x, h: x, "shape"),
    (check_split, lambda x, h: split(x, h).flip(1), "wrong head"),
    (check_split, lambda x, h: [x], "tensor"),
    (check_merge, lambda h: h.reshape(h.size(0), h.size(2), -1), "mix different words"),
    (check_merge, lambda h: h.permute(0, 2, 3, 1).flatten(2), "the heads in turn"),
    (check_merge, lambda h: h.transpose(1, 2), "still apart"),
    (check_merge, lambda h: h.sum(1), "side by side"),
    (check_merge, lambda h: h.mean(1), "side by side"),
    (check_merge, lambda h: h.flatten(), "shape"),
    (check_question, asking((2, 1)).T, "transposed"),
    (check_question, torch.zeros(4, 4), "rows"),
    (check_question, asking((1, 2)), "swapped"),
    (check_question, asking((2, 1), strength=-12.0), "sign"),
    (check_question, asking((2, 1), strength=3.0), "in the right place"),
    (
        check_question,
        asking((0, 1), (1, 1), (2, 1), (3, 1), strength=6.0),
        "other words have a query as well",
    ),
    (check_question, asking((2, 1), strength=-1.0), "sign"),
    (check_question, asking((2, 0), (2, 1)), "other kinds"),
    (check_question, asking((2, 1), strength=0.0), "All entries are 0"),
    (check_question, asking((2, 0)), "does not attend to the action"),
    (check_question, asking((0, 1), (2, 1)), "Other words"),
    (
        check_question,
        asking((2, 1)) + asking((4, 1), strength=5.0),
        "depends on the code",
    ),
    (check_question, "visite", "tensor"),
    (check_question, asking((2, 1), strength=float("inf")), "finite"),
    (check_sizes, lambda x, q, k, v, o: joined(mixed(x, q, k, v, 5)) @ o, "√d_v"),
    (check_sizes, lambda x, q, k, v, o: joined(mixed(x, q, k, v, 8)) @ o, "√d_model"),
    (check_sizes, lambda x, q, k, v, o: joined(mixed(x, q, k, v, 1)) @ o, "nothing"),
    (
        check_sizes,
        lambda x, q, k, v, o: joined(mixed(x, q, k, v, x.size(-1) // len(q))) @ o,
        "numbers are not",
    ),
    (
        check_sizes,
        lambda x, q, k, v, o: mixed(x, q, k, v).reshape(len(x), -1) @ o,
        "mixes several words",
    ),
    (
        check_sizes,
        lambda x, q, k, v, o: mixed(x, q, k, v).permute(1, 2, 0).flatten(1) @ o,
        "interleaved",
    ),
    (
        check_sizes,
        lambda x, q, k, v, o: joined(mixed(x, q, k, v, axis=-2)) @ o,
        "over the queries",
    ),
    (check_sizes, lambda x, q, k, v, o: joined(mixed(x, q, k, v)), "not projected"),
    (
        check_sizes,
        lambda x, q, k, v, o: (
            joined((x @ q) @ (x @ k).mT / q.size(-1) ** 0.5 @ (x @ v)) @ o
        ),
        "softmax is missing",
    ),
    (check_sizes, lambda x, q, k, v, o: mixed(x, q, k, v), "shape"),
    (check_sizes, lambda x, q, k, v, o: joined(mixed(x, q, q, v)) @ o, "one matrix"),
    (
        check_sizes,
        lambda x, q, k, v, o: joined(mixed(x, k, q, v)) @ o,
        "keys are swapped",
    ),
    (check_sizes, lambda x, q, k, v, o: x, "compare one head"),
    (
        check_sizes,
        lambda x, q, k, v, o: joined(mixed(x, q, k, v).flip(0)) @ o,
        "reverse order",
    ),
    (
        check_sizes,
        lambda x, q, k, v, o: x + joined(mixed(x, q, k, v)) @ o,
        "You added x",
    ),
]


@pytest.mark.parametrize(("check", "answer"), RIGHT)
def test_right(check, answer):
    assert repr(check(answer)).startswith("✓")


@pytest.mark.parametrize(("check", "answer", "words"), WRONG)
def test_mistake_is_named(check, answer, words):
    verdict = repr(check(answer))
    assert verdict.startswith("✗")
    assert words in verdict


@pytest.mark.parametrize(
    ("check", "stub"),
    [
        (check_split, lambda x, h: ...),
        (check_merge, lambda h: ...),
        (check_question, ...),
        (check_sizes, lambda x, q, k, v, o: None),
    ],
)
def test_unanswered(check, stub):
    assert repr(check(...)).startswith("○")
    assert repr(check(stub)).startswith("○")


def test_an_error_becomes_a_verdict():
    verdict = repr(check_split(lambda x, h: x.view(7)))
    assert verdict.startswith("✗")
    assert "RuntimeError" in verdict
