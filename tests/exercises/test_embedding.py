"""The exercises of chapter 2: right answers pass, likely wrong ones are named."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bookkit.checks.embedding import check_moved, check_never, check_table_gradient
from tests.exercises import named_mistakes, right_answers


def by_one_hot(ids, gradient, vocab_size):
    one_hot = F.one_hot(ids.flatten(), vocab_size).float()
    return one_hot.T @ gradient.flatten(0, 1) * gradient.size(-1) ** 0.5


def by_einsum(ids, gradient, vocab_size):
    one_hot = F.one_hot(ids, vocab_size).to(gradient)
    return torch.einsum("blv,bld->vd", one_hot, gradient) * gradient.shape[-1] ** 0.5


def by_numpy(ids, gradient, vocab_size):
    table = np.zeros((vocab_size, gradient.shape[-1]))
    np.add.at(table, ids.numpy(), gradient.numpy())
    return table * gradient.shape[-1] ** 0.5


def by_autograd(ids, gradient, vocab_size):
    table = torch.zeros(vocab_size, gradient.size(-1), requires_grad=True)
    vectors = table[ids] * gradient.size(-1) ** 0.5
    return torch.autograd.grad(vectors, table, gradient)[0]


def plus_equals(ids, gradient, vocab_size):
    table = torch.zeros(vocab_size, gradient.size(-1))
    table[ids] += gradient * gradient.size(-1) ** 0.5
    return table


def put(ids, gradient, vocab_size):
    table = torch.zeros(vocab_size, gradient.size(-1))
    for word, row in zip(ids.flatten(), gradient.flatten(0, 1), strict=True):
        table[word] = row
    return table


def averaged(ids, gradient, vocab_size):
    counts = torch.bincount(ids.flatten(), minlength=vocab_size).clamp(min=1)
    return by_one_hot(ids, gradient, vocab_size) / counts[:, None]


def times(power):
    """The gradient, the root of d_model taken to a wrong power."""
    return lambda ids, g, v: by_one_hot(ids, g, v) * g.size(-1) ** (power - 0.5)


test_the_model_solution_is_right = right_answers(
    [
        (check_moved, lambda ids, v, tied: list(range(v)) if tied else ids.unique()),
        (check_table_gradient, by_einsum),
        (check_table_gradient, by_numpy),
        (check_table_gradient, by_autograd),
        (check_never, (3.5, -0.2)),
        (check_never, np.array([3.3, 0.4])),
        (check_never, [[3.5, 0]]),
    ]
)


test_a_wrong_answer_is_named = named_mistakes(
    [
        (check_table_gradient, times(0), "left out √d_model"),
        (check_table_gradient, times(-0.5), "a factor multiplies"),
        (check_table_gradient, times(1), "the factor is its root"),
        (check_table_gradient, plus_equals, "keeps one"),
        (check_table_gradient, put, "And √d_model is missing"),
        (check_table_gradient, averaged, "took the mean"),
        (
            check_table_gradient,
            lambda ids, g, v: averaged(ids, g, v) / g.size(-1) ** 0.5,
            "and left out √d_model",
        ),
        (
            check_table_gradient,
            lambda ids, g, v: by_one_hot(ids[:1], g[:1], v),
            "Only the first sentence",
        ),
        (
            check_table_gradient,
            lambda ids, g, v: F.one_hot(ids, v).float().mT @ g * g.size(-1) ** 0.5,
            "a table for each sentence",
        ),
        (check_table_gradient, lambda ids, g, v: g * 4, "a row for each token. The"),
        (check_table_gradient, lambda ids, g, v: g, "row for each token. A row"),
        (
            check_table_gradient,
            lambda ids, g, v: F.one_hot(ids.flatten(), v).sum(0),
            "how often each word occurs",
        ),
        (check_table_gradient, lambda ids, g, v: by_one_hot(ids, g, v).T, "transposed"),
        (
            check_table_gradient,
            lambda ids, g, v: 4 * by_one_hot(ids, g, v) / g.size(-1) ** 0.5,
            "Right for a vocabulary of 8",
        ),
        (
            check_table_gradient,
            lambda ids, g, v: F.one_hot(ids, v).float().T @ g,
            "your code raised",
        ),
        (
            check_table_gradient,
            lambda ids, g, v: torch.zeros(8, 16).index_add_(
                0, ids.flatten(), 4 * g.flatten(0, 1)
            ),
            "runs on the first example, but for `ids` = [[0, 2, 0, 0]], `g` of shape",
        ),
        (check_never, [0.0, 4.0], "lies farthest in the direction of h"),
        (check_never, [2.0, 3.0], "With h = (3, 5) its score is 21"),
        (check_never, [2.5, 2.5], "never farthest"),
        (check_never, [5.0, 0.0], "longer than all others always wins"),
        (check_never, [-3.5, 0.0], "point away from it"),
        (check_never, [0.0, 0.0], "has the length 0"),
        (check_never, [1.0, 1.0], "longer than √10"),
        (check_never, [4.0, 0.0], "the two tie for every h"),
        (check_never, [4, 0.0001], "its score is 12.0005, and the others' at most 12"),
        (check_never, [3.5], "two numbers"),
        (check_moved, lambda ids, v, tied: set(range(v)), "only read"),
        (check_moved, lambda ids, v, tied: ids.unique(), "every row gets"),
        (
            check_moved,
            lambda ids, v, tied: torch.bincount(ids.flatten(), minlength=v) > 0,
            "That is a mask",
        ),
        (
            check_moved,
            lambda ids, v, tied: range(v) if tied else (2, 6),
            "looked up twice",
        ),
        (
            check_moved,
            lambda ids, v, tied: range(v) if tied else (1, 4),
            "looked up once",
        ),
        (
            check_moved,
            lambda ids, v, tied: range(v) if tied else (1,),
            "enter the loss",
        ),
        (
            check_moved,
            lambda ids, v, tied: range(v) if tied else ids[0].tolist(),
            "first sentence",
        ),
        (
            check_moved,
            lambda ids, v, tied: range(1, v) if tied else ids.unique(),
            "candidates at the output",
        ),
        (
            check_moved,
            lambda ids, v, tied: range(v) if tied else ids[ids > 0],
            "Id 0 has a row",
        ),
        (
            check_moved,
            lambda ids, v, tied: range(int(ids.max()) + 2) if tied else ids.unique(),
            "[0, 1, 2, 3] when tied",
        ),
        (
            check_moved,
            lambda ids, v, tied: range(8) if tied else [1, 2, 4, 6],
            "Right for a vocabulary of 8",
        ),
    ]
)


@pytest.mark.parametrize("answer", [[..., ...], [3.5, ...]])
def test_three_dots_in_a_list_are_no_answer_yet(answer):
    assert check_never(answer).kind == "unanswered"
