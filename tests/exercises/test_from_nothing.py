import math

import numpy as np
import pytest
import torch

from bookkit.checks.from_nothing import check_decoder_only, check_finder, check_softmax
from transformer import micro


def start(rows):
    return micro.Value([list(row) for row in rows])


def factor(i, j):
    return math.sin(1 + i + 7 * j)


def finder(
    factor=factor, step=1e-5, tolerance=1e-6, places=None, both_sides=True, size=False
):
    """A finder in the way of the solution, with what can go wrong in it."""

    def is_broken(operation, rows):
        value = start(rows)
        output = operation(value)
        shape = range(len(output.rows)), range(len(output.rows[0]))
        output.backward([[factor(i, j) for j in shape[1]] for i in shape[0]])

        def weighed(rows):
            out = operation(start(rows)).rows
            return sum(factor(i, j) * out[i][j] for i in shape[0] for j in shape[1])

        all_places = [(i, j) for i in range(len(rows)) for j in range(len(rows[0]))]
        for i, j in places or all_places:
            up, down = ([list(row) for row in rows] for _ in range(2))
            up[i][j] += step
            down[i][j] -= step if both_sides else 0
            slope = (weighed(up) - weighed(down)) / (step * (1 + both_sides))
            got = value.grad[i][j]
            if size:
                slope, got = abs(slope), abs(got)
            if abs(slope - got) > tolerance:
                return True
        return False

    return is_broken


def one_by_one(operation, rows):
    """Another right finder: a backward pass for each output."""
    shape = start(rows), operation(start(rows)).rows
    for a in range(len(shape[1])):
        for b in range(len(shape[1][0])):
            only = finder(lambda i, j, a=a, b=b: float((i, j) == (a, b)))
            if only(operation, rows):
                return True
    return False


def mismatched(operation, rows):
    value = start(rows)
    output = operation(value)
    output.backward([[1.0] * len(output.rows[0]) for _ in output.rows])
    return True


def softmax_chain(w, g):
    return [
        [
            a * (b - sum(x * y for x, y in zip(ws, gs, strict=True)))
            for a, b in zip(ws, gs, strict=True)
        ]
        for ws, gs in zip(w, g, strict=True)
    ]


def of_tensors(change):
    def chain(w, g):
        return change(torch.tensor(w), torch.tensor(g)).tolist()

    return chain


def jacobian(w, g):
    w, g = np.array(w), np.array(g)
    return np.stack(
        [(np.diag(a) - np.outer(a, a)) @ b for a, b in zip(w, g, strict=True)]
    )


def continued(model, ids, mask="causal", table=True, pick=None):
    x = micro.embed(model, ids)
    n = len(ids)
    masks = {
        "causal": [[j <= i for j in range(n)] for i in range(n)],
        "none": None,
        "turned": [[j >= i for j in range(n)] for i in range(n)],
    }
    layer = "encoder.layers.0"
    heard = micro.attention(model, layer + ".self", x, x, masks[mask])
    x = micro.residual(model, layer, 0, x, heard)
    x = micro.residual(model, layer, 1, x, micro.feed_forward(model, layer, x))
    x = micro.dots(x, model[micro.TABLE]) if table else x
    return micro.Value([x.rows[pick]]) if pick is not None else x


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (check_finder, finder()),
        (check_finder, finder(step=1e-4, tolerance=1e-4)),
        (check_finder, finder(lambda i, j: 0.3 + i + 0.1 * j * j)),
        (check_finder, finder(step=1e-7, tolerance=1e-5, both_sides=False)),
        (check_finder, one_by_one),
        (check_softmax, softmax_chain),
        (check_softmax, jacobian),
        (
            check_softmax,
            of_tensors(lambda w, g: w * (g - (w * g).sum(1, keepdim=True))),
        ),
        (check_softmax, lambda w, g: torch.tensor(softmax_chain(w, g))),
        (check_softmax, lambda w, g: list(map(tuple, softmax_chain(w, g)))),
        (check_decoder_only, continued),
        (check_decoder_only, lambda m, i: continued(m, i).rows),
        (check_decoder_only, lambda m, i: torch.tensor(continued(m, i).rows)),
    ],
)
def test_a_right_answer_passes(check, answer):
    assert repr(check(answer)).startswith("✓")


WRONG = [
    (check_finder, finder(lambda i, j: 1.0), "Their sum is always 1"),
    (check_finder, finder(places=[(0, 0)]), "move every number in turn"),
    (check_finder, finder(tolerance=0.02), "your tolerance is too wide"),
    (check_finder, finder(size=True), "wrong sign"),
    (check_finder, finder(step=0.5), "Is your step too large"),
    (check_finder, lambda o, r: not finder()(o, r), "the wrong way round"),
    (check_finder, lambda o, r: True, "calls every gradient broken"),
    (check_finder, mismatched, "calls every gradient broken"),
    (check_finder, lambda o, r: False, "finds nothing broken"),
    (check_finder, lambda o, r: [True], "True or False, not"),
    (check_softmax, of_tensors(lambda w, g: w * g), "takes weight from the others"),
    (check_softmax, of_tensors(lambda w, g: w * (1 - w) * g), "its own weight, w(1"),
    (
        check_softmax,
        of_tensors(lambda w, g: w * ((w * g).sum(1, keepdim=True) - g)),
        "sign",
    ),
    (
        check_softmax,
        of_tensors(lambda w, g: g - (w * g).sum(1, keepdim=True)),
        "multiply by it",
    ),
    (
        check_softmax,
        of_tensors(lambda w, g: w * (g - g.mean(1, keepdim=True))),
        "to be weighed",
    ),
    (
        check_softmax,
        of_tensors(lambda w, g: w * (g - (w * g).sum(0, keepdim=True))),
        "down the columns",
    ),
    (
        check_softmax,
        of_tensors(lambda w, g: w * (g - (w * g).sum())),
        "for the whole table",
    ),
    (check_softmax, of_tensors(lambda w, g: w - g), "share minus target"),
    (
        check_softmax,
        of_tensors(lambda w, g: g - w * g.sum(1, keepdim=True)),
        "the logarithm",
    ),
    (check_decoder_only, lambda m, i: continued(m, i, "none"), "sees the future"),
    (check_decoder_only, lambda m, i: continued(m, i, "turned"), "turned round"),
    (check_decoder_only, lambda m, i: continued(m, i, table=False), "the last layer"),
    (check_decoder_only, lambda m, i: continued(m, i, pick=-1), "row alone"),
    (check_decoder_only, lambda m, i: continued(m, i).rows[-1], "row alone"),
    (
        check_decoder_only,
        lambda m, i: micro.softmax(continued(m, i)),
        "Those are probabilities",
    ),
    (
        check_decoder_only,
        lambda m, i: micro.decode(m, i, micro.encode(m, i)),
        "the decoder's",
    ),
]


@pytest.mark.parametrize(("check", "answer", "named"), WRONG)
def test_a_wrong_answer_is_named(check, answer, named):
    verdict = repr(check(answer))
    assert verdict.startswith("✗")
    assert named in verdict
