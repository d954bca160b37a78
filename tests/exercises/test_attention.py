"""Chapter 04's exercises: the answer is right, likely mistakes are named."""

import math

import pytest
import torch

from bookkit.checks.attention import (
    check_masked_weights,
    check_scale,
    check_softmax,
)

LOWEST = torch.finfo(torch.float32).min


def dots(query, key):
    return query @ key.transpose(-2, -1)


def stable(scores):
    raised = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    return raised / raised.sum(dim=-1, keepdim=True)


def less(scores, what):
    raised = (scores - what).exp()
    return raised / raised.sum(dim=-1, keepdim=True)


def one_maximum(scores):
    raised = (scores - scores.max()).exp()
    return raised / raised.sum(dim=-1, keepdim=True)


def guarded(scores, mask):
    raised = scores.exp() * mask
    return raised / (raised.sum(dim=-1, keepdim=True) + 1e-9)


def renormalised(scores, mask):
    kept = scores.softmax(dim=-1) * mask
    return kept / kept.sum(dim=-1, keepdim=True)


def exponentials(scores, mask):
    raised = scores.exp() * mask
    return raised / raised.sum(dim=-1, keepdim=True)


def in_place(scores, mask):
    scores[~mask.expand_as(scores)] = LOWEST
    return scores.softmax(dim=-1).masked_fill(~mask, 0.0)


def wrong_shape(scores, mask):
    hidden = scores.clone()
    hidden[~mask] = LOWEST
    return hidden.softmax(dim=-1)


def from_two(query, key, weights):
    scores, logs = dots(query, key), weights.log()
    return (scores[0, 0] - scores[0, 1]) / (logs[0, 0] - logs[0, 1])


RIGHT = [
    (check_softmax, stable),
    (check_softmax, lambda s: s.softmax(dim=-1)),
    (check_scale, from_two),
    (
        check_masked_weights,
        lambda s, m: s.masked_fill(~m, LOWEST).softmax(-1).masked_fill(~m, 0.0),
    ),
    (
        check_masked_weights,
        lambda s, m: s.masked_fill(~m, -torch.inf).softmax(-1).masked_fill(~m, 0.0),
    ),
]

WRONG = [
    (check_softmax, lambda s: s.exp(), "exponential"),
    (check_softmax, lambda s: s.exp() / s.exp().sum(-1, keepdim=True), "maximum"),
    (check_softmax, one_maximum, "each row's own"),
    (check_softmax, lambda s: s.softmax(dim=-2), "You normalised along columns"),
    (check_softmax, lambda s: less(s, s.mean(-1, keepdim=True)), "not its mean"),
    (check_softmax, lambda s: less(s, s.amin(-1, keepdim=True)), "or its minimum"),
    (
        check_softmax,
        lambda s: stable(s) * stable(s).sum(-1, keepdim=True) / 2,
        "Every number is 0.5 times",
    ),
    (check_softmax, lambda s: s.softmax(dim=0), "over the first dimension"),
    (check_softmax, lambda s: s.exp() / s.exp().sum(), "all rows together"),
    (check_softmax, lambda s: s / s.sum(-1, keepdim=True), "left out"),
    (check_softmax, lambda s: s.log_softmax(-1), "logarithms"),
    (check_softmax, lambda s: s.exp() / s.exp().sum(-1), "keepdim"),
    (check_scale, lambda q, k, w: 1 / from_two(q, k, w), "1 over the scale"),
    (check_scale, lambda q, k, w: -from_two(q, k, w), "sign"),
    (check_scale, lambda q, k, w: dots(q, k)[0, 0] / w[0, 0].log(), "One logarithm"),
    (
        check_scale,
        lambda q, k, w: (dots(q, k)[0, 0] - dots(q, k)[0, 1]) / (w[0, 0] - w[0, 1]),
        "logarithm of the weights",
    ),
    (check_scale, lambda q, k, w: math.sqrt(q.size(-1)), "√d_k"),
    (check_scale, lambda q, k, w: q.size(-1), "returned d_k"),
    (check_scale, lambda q, k, w: from_two(q, k, w) ** 2, "had another scale"),
    (check_scale, lambda q, k, w: 123.0, "another scale"),
    (check_scale, lambda q, k, w: w, "One number"),
    (check_masked_weights, lambda s, m: s.softmax(-1) * m, "You masked words after"),
    (check_masked_weights, renormalised, "much larger than the rest"),
    (check_masked_weights, exponentials, "rounded to 0"),
    (check_masked_weights, guarded, "rounded to 0"),
    (
        check_masked_weights,
        lambda s, m: s.masked_fill(m, LOWEST).softmax(-1).masked_fill(m, 0.0),
        "The mask is inverted",
    ),
    (
        check_masked_weights,
        lambda s, m: s.masked_fill(m, -torch.inf).softmax(-1),
        "An inverted mask with −inf",
    ),
    (
        check_masked_weights,
        lambda s, m: s.masked_fill(m, LOWEST).softmax(-1),
        "also gets equal weights",
    ),
    (check_masked_weights, lambda s, m: (s * m).softmax(-1), "0 hides nothing"),
    (check_masked_weights, lambda s, m: (s * m).softmax(-1) * m, "too late"),
    (check_masked_weights, lambda s, m: s.softmax(-1), "ignored"),
    (
        check_masked_weights,
        lambda s, m: s.masked_fill(~m, -99.0).softmax(-1).masked_fill(~m, 0.0),
        "low enough",
    ),
    (
        check_masked_weights,
        lambda s, m: s.masked_fill(~m, LOWEST).softmax(-1),
        "to hidden words",
    ),
    (
        check_masked_weights,
        lambda s, m: s.masked_fill(~m, -torch.inf).softmax(-1),
        "NaN",
    ),
    (check_masked_weights, lambda s, m: (s + m).softmax(-1), "added the mask"),
    (
        check_masked_weights,
        lambda s, m: s.masked_fill(~m, LOWEST).softmax(-2) * m,
        "down the columns",
    ),
    (
        check_masked_weights,
        lambda s, m: s.masked_fill(~m, -torch.inf),
        "softmax is missing",
    ),
    (
        check_masked_weights,
        lambda s, m: s.masked_fill(m, LOWEST).softmax(-1).masked_fill(~m, 0.0),
        "One of your two fills",
    ),
    (
        check_masked_weights,
        lambda s, m: s.masked_fill(~m, LOWEST).softmax(-1).masked_fill(m, 0.0),
        "Your second fill",
    ),
    (check_masked_weights, lambda s, m: 1.0, "a tensor, not a float"),
    (check_masked_weights, wrong_shape, "masked_fill and where broadcast it"),
    (check_masked_weights, in_place, "changed `scores` in place"),
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
    ("check", "arguments"),
    [
        (check_softmax, 1),
        (check_scale, 3),
        (check_masked_weights, 2),
    ],
)
def test_unanswered(check, arguments):
    assert repr(check(...)).startswith("○")
    stub = [lambda a: ..., lambda a, b: ..., lambda a, b, c: ...][arguments - 1]
    assert repr(check(stub)).startswith("○")


def test_an_error_becomes_a_verdict():
    verdict = repr(check_scale(lambda q, k, w: q @ k))
    assert verdict.startswith("✗")
    assert "RuntimeError" in verdict
