"""Chapter 07's exercises: the answer is right, likely mistakes are named."""

import torch
from torch import nn
from torch.nn import functional as F

from bookkit.checks.encoder import (
    check_layer_norm,
    check_look_at,
    check_reaches,
)
from tests.exercises import named_mistakes, right_answers


def layer_norm(dim=-1, correction=0, inside=1e-5, outside=0.0):
    def normalise(x):
        centred = x - x.mean(dim, keepdim=True)
        variance = x.var(dim, correction=correction, keepdim=True)
        return centred / (torch.sqrt(variance + inside) + outside)

    return normalise


def without_keepdim(x):
    return (x - x.mean(-1)) / torch.sqrt(x.var(-1, correction=0) + 1e-5)


def by_hand(residual, attention, x, memory):
    if residual.norm_first:
        return x + attention(residual.norm(x), memory, memory)
    return residual.norm(x + attention(x, memory, memory))


def divided_by_8(x):
    centred = x - x.sum(-1, keepdim=True) / 8
    return centred / torch.sqrt((centred**2).sum(-1, keepdim=True) / 8 + 1e-5)


def norm_the_memory_too(residual, attention, x, memory):
    """In pre-norm alone."""
    if residual.norm_first:
        memory = residual.norm(memory)
    return residual(x, lambda given: attention(given, memory, memory))


RIGHT = [
    (check_layer_norm, layer_norm()),
    (check_layer_norm, nn.LayerNorm(8)),
    (check_layer_norm, lambda x: layer_norm()(x).tolist()),
    (check_reaches, 4),
    (
        check_look_at,
        lambda residual, attention, x, memory: residual(
            x, lambda given: attention(given, memory, memory)
        ),
    ),
]

WRONG = [
    (check_layer_norm, layer_norm(correction=1), "pass correction=0"),
    (check_layer_norm, without_keepdim, "keepdim"),
    (check_layer_norm, lambda x: layer_norm()(x).int(), "whole numbers"),
    (
        check_layer_norm,
        layer_norm(correction=1, inside=0, outside=1e-5),
        "and put epsilon outside",
    ),
    (check_layer_norm, layer_norm(inside=0, outside=1e-5), "outside the root"),
    (check_layer_norm, layer_norm(inside=0), "Epsilon is missing"),
    (check_layer_norm, layer_norm(inside=1e-3), "epsilon is 0.001, not"),
    (check_layer_norm, layer_norm(inside=1e-4), "epsilon is 0.0001, not"),
    (check_layer_norm, layer_norm(inside=1e-6), "epsilon is 1e-06, not"),
    (check_layer_norm, layer_norm(inside=1e-8), "epsilon is 1e-08, not"),
    (check_layer_norm, layer_norm(dim=-2), "over the words"),
    (check_layer_norm, layer_norm(dim=(0, 1)), "batch norm"),
    (check_layer_norm, layer_norm(dim=(1, 2)), "whole sentence"),
    (check_layer_norm, lambda x: x - x.mean(-1, keepdim=True), "did not divide"),
    (
        check_layer_norm,
        lambda x: x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt(),
        "root mean square",
    ),
    (
        check_layer_norm,
        lambda x: (
            (x - x.mean(-1, keepdim=True))
            / (x.var(-1, correction=0, keepdim=True) + 1e-5)
        ),
        "take its root",
    ),
    (check_layer_norm, lambda x: 0, "a tensor"),
    (check_layer_norm, divided_by_8, "Right for d = 8 only"),
    (
        check_layer_norm,
        lambda x: F.layer_norm(x.reshape(3, 5, 8), (8,)),
        "Right for d = 8 only",
    ),
    (check_layer_norm, nn.LayerNorm, "That is a class"),
    (check_reaches, 1, "what follows"),
    (check_reaches, 6, "shared"),
    (check_reaches, 5, "after it"),
    (check_reaches, 3, "own output"),
    (check_reaches, [3, 4, 5, 6], "not a list"),
    (check_look_at, lambda r, a, x, m: r(x, a(x, m, m)), "Pass a function"),
    (check_look_at, lambda r, a, x, m: r(x, lambda _: a(x, m, m)), "outer x"),
    (check_look_at, lambda r, a, x, m: r(x, lambda t: a(t, t, t)), "self-attention"),
    (
        check_look_at,
        lambda r, a, x, m: r(x, lambda t: a(m, t, t)),
        "queries should come",
    ),
    (check_look_at, lambda r, a, x, m: a(x, m, m), "no residual"),
    (check_look_at, lambda r, a, x, m: r(x, a), "a function of one"),
    (check_look_at, lambda r, a, x, m: r(x, lambda y: a(y)), "got one argument"),
    (
        check_look_at,
        lambda r, a, x, m: r(m, lambda y: a(x, y, y)),
        "One side of the sum",
    ),
    (
        check_look_at,
        lambda r, a, x, m: r(m, lambda y: a(y, m, m)),
        "should come from x",
    ),
    (
        check_look_at,
        lambda r, a, x, m: x + a(r.norm(x), m, m),
        "pre-norm by hand",
    ),
    (
        check_look_at,
        lambda r, a, x, m: r(x, lambda y: a(y, r.norm(m), r.norm(m))),
        "You normalised the memory",
    ),
    (
        check_look_at,
        lambda r, a, x, m: r(x, lambda y: [a(y, m, m)].clear()),
        "lack its `return`",
    ),
    (check_look_at, norm_the_memory_too, "You normalised the memory"),
    (check_look_at, by_hand, "written by hand"),
    (
        check_look_at,
        lambda r, a, x, m: r(x, lambda t: a(t, x, x)),
        "come from the memory",
    ),
    (check_look_at, lambda r, a, x, m: r(x, lambda t: t + a(t, m, m)), "added twice"),
]


test_right = right_answers(RIGHT)


test_wrong_is_named = named_mistakes(WRONG)
