"""Chapter 04's exercises: the answer is right, likely mistakes are named."""

import math

import torch

from bookkit.checks.attention import (
    check_backward,
    check_scale,
    check_softmax,
)
from tests.exercises import named_mistakes, right_answers


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


def back(weights, gradient, dim=-1):
    mean = (weights * gradient).sum(dim=dim, keepdim=True)
    return weights * (gradient - mean)


def jacobians(weights):
    return torch.diag_embed(weights) - weights[:, :, None] * weights[:, None, :]


def by_jacobian(weights, gradient):
    return torch.einsum("qij,qi->qj", jacobians(weights), gradient)


def by_row(weights, gradient):
    pairs = zip(weights, gradient, strict=True)
    return torch.stack([w * g - w * (w @ g) for w, g in pairs])


def by_numpy(weights, gradient):
    w, g = weights.double().numpy(), gradient.double().numpy()
    return w * (g - (w * g).sum(axis=1, keepdims=True))


def by_autograd(weights, gradient):
    scores = weights.log().requires_grad_()
    return torch.autograd.grad(scores.softmax(-1), scores, gradient)[0]


def off_diagonal(weights, gradient):
    return back(weights, gradient) - weights * (1 - weights) * gradient


def from_two(query, key, weights):
    scores, logs = dots(query, key), weights.log()
    return (scores[0, 0] - scores[0, 1]) / (logs[0, 0] - logs[0, 1])


def safe(scores, added):
    return lowered(scores) / (lowered(scores).sum(-1, keepdim=True) + added)


def row_by_row(scores):
    """Right for two dimensions only."""
    return torch.stack(
        [(r - r.max()).exp() / (r - r.max()).exp().sum() for r in scores]
    )


def lowered(scores):
    return (scores - scores.amax(-1, keepdim=True)).exp()


def with_logarithm(log):
    def scale(query, key, weights):
        scores = dots(query, key)
        return (scores[0, 0] - scores[0, 1]) / (log(weights[0, 0] / weights[0, 1]))

    return scale


def across_rows(query, key, weights):
    scores, logs = dots(query, key), weights.log()
    return (scores[0, 0] - scores[1, 2]) / (logs[0, 0] - logs[1, 2])


RIGHT = [
    (check_softmax, lambda s: stable(s).numpy()),
    (check_softmax, lambda s: list(stable(s))),
    (check_softmax, lambda s: s.softmax(dim=-1)),
    (check_scale, from_two),
    (check_backward, by_jacobian),
    (check_backward, by_row),
    (check_backward, by_numpy),
    (check_backward, lambda w, g: list(by_row(w, g))),
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
    (check_softmax, lambda s: safe(s, 1e-3), "added to the sum"),
    (check_softmax, lambda s: 0.95 * stable(s), "0.95 times what it should be"),
    (check_softmax, lambda s: s.softmax(dim=0), "over the first dimension"),
    (check_softmax, lambda s: s.exp() / s.exp().sum(), "all rows together"),
    (check_softmax, lambda s: s / s.sum(-1, keepdim=True), "left out"),
    (check_softmax, lambda s: s.log_softmax(-1), "logarithms"),
    (check_softmax, lambda s: s.exp() / s.exp().sum(-1), "keepdim"),
    (check_softmax, row_by_row, "is a row of yours a table?"),
    (
        check_softmax,
        lambda s: (s / s.amax(-1, keepdim=True)).softmax(-1),
        "divided by the maximum",
    ),
    (
        check_softmax,
        lambda s: lowered(s) / s.exp().sum(-1, keepdim=True),
        "in the numerator only",
    ),
    (
        check_softmax,
        lambda s: lowered(s) / lowered(s).sum(),
        "but normalised over all rows together",
    ),
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
    (check_scale, across_rows, "from one row"),
    (check_scale, with_logarithm(torch.log2), "natural logarithm"),
    (check_scale, with_logarithm(lambda ratio: ratio), "the logarithm of the ratio"),
    (check_backward, lambda w, g: w * (1 - w) * g, "only the terms with i = j"),
    (check_backward, off_diagonal, "only the terms with i ≠ j"),
    (check_backward, lambda w, g: w * g, "for a constant"),
    (
        check_backward,
        lambda w, g: -w * (w * g).sum(-1, keepdim=True),
        "the first is missing",
    ),
    (check_backward, lambda w, g: -back(w, g), "sign"),
    (check_backward, lambda w, g: w * (g - g.mean(-1, keepdim=True)), "plain mean"),
    (check_backward, lambda w, g: w * (g - g.sum(-1, keepdim=True)), "row's sum"),
    (check_backward, lambda w, g: g - (w * g).sum(-1, keepdim=True), "in front"),
    (check_backward, lambda w, g: back(w, g, 0), "down the columns"),
    (check_backward, lambda w, g: w * (g - (w * g).sum()), "over all rows together"),
    (check_backward, lambda w, g: back(w.softmax(-1), g), "softmax again"),
    (check_backward, lambda w, g: jacobians(w), "the derivatives of each weight"),
    (check_backward, lambda w, g: jacobians(w).sum(1), "They add up to 0"),
    (check_backward, by_autograd, "not for a row of zeros"),
    (check_backward, lambda w, g: back(w, g) + 0 * w.log(), "its logarithm"),
    (check_backward, lambda w, g: back(w, g).nan_to_num() + (w == 0), "weights of 0"),
    (check_backward, lambda w, g: w * (g - (w * g).sum(-1)), "keepdim"),
    (
        check_backward,
        lambda w, g: w * (g - 5 * (w * g).mean(-1, keepdim=True)),
        "but not for four",
    ),
    (
        check_backward,
        lambda w, g: w * g - (w * g).sum(-1, keepdim=True),
        "its factor w_j",
    ),
    (
        check_backward,
        lambda w, g: w * (g - (w * g).mean(-1, keepdim=True)),
        "You took the mean of the w_i g_i",
    ),
    (check_backward, lambda w, g: 1.0, "a tensor, not a float"),
    (check_backward, lambda w, g: [[0.1], [0.2, 0.3]], "a tensor, not a list"),
    (check_backward, lambda w, g: [w[0], g], "a tensor, not a list"),
]


test_right = right_answers(RIGHT)


test_mistake_is_named = named_mistakes(WRONG)
