"""Chapter 03's exercises: the answer is right, likely mistakes are named."""

import math

import numpy as np
import pytest
import torch

from bookkit.checks.queries_keys_values import (
    check_attend_others,
    check_loud_key,
    check_place_row,
)
from tests.exercises import named_mistakes, right_answers


def diagonal(x):
    return torch.eye(len(x), dtype=torch.bool)


def others(fill=float("-inf"), scale=1.0, dim=-1):
    """An answer to the last exercise, right unless told otherwise."""

    def answer(x, w_query, w_key, w_value):
        scores = (x @ w_query) @ (x @ w_key).T / scale
        return scores.masked_fill(diagonal(x), fill).softmax(dim) @ (x @ w_value)

    return answer


def weights(x, w_query, w_key):
    return ((x @ w_query) @ (x @ w_key).T).softmax(dim=-1)


def hidden(x, w_query, w_key):
    scores = (x @ w_query) @ (x @ w_key).T
    return scores.masked_fill(diagonal(x), -torch.inf).softmax(dim=-1)


def renormalised(x, q, k, v):
    kept = weights(x, q, k).masked_fill(diagonal(x), 0.0)
    return kept / kept.sum(dim=-1, keepdim=True) @ (x @ v)


def crossed_out(x, q, k):
    return weights(x, q, k).masked_fill(diagonal(x), 0.0)


def without_keepdim(x, q, k, v):
    kept = crossed_out(x, q, k)
    return kept / kept.sum(-1) @ (x @ v)


def exponentials(x, w_query, w_key, w_value):
    """Exact, without softmax."""
    raised = ((x @ w_query) @ (x @ w_key).T).exp() * ~diagonal(x)
    return raised @ (x @ w_value) / raised.sum(dim=1, keepdim=True)


def word_by_word(x, w_query, w_key, w_value):
    queries, keys, values = x @ w_query, x @ w_key, x @ w_value
    rows = []
    for i in range(len(x)):
        top, sum_ = torch.zeros(values.size(1)), torch.tensor(0.0)
        for j in range(len(x)):
            if j != i:
                raised = torch.exp(queries[i] @ keys[j])
                top, sum_ = top + raised * values[j], sum_ + raised
        rows.append(top / sum_)
    return torch.stack(rows)


def with_math(x, w_query, w_key, w_value):
    queries, keys, values = x @ w_query, x @ w_key, x @ w_value
    rows = []
    for i, query in enumerate(queries):
        raised = [math.exp(query @ key) * (i != j) for j, key in enumerate(keys)]
        each = zip(raised, values, strict=True)
        rows.append(sum(value * (one / sum(raised)) for one, value in each))
    return torch.stack(rows)


def guarded(x, w_query, w_key, w_value):
    raised = ((x @ w_query) @ (x @ w_key).T).exp() * ~diagonal(x)
    return raised @ (x @ w_value) / (raised.sum(dim=1, keepdim=True) + 1e-9)


def zero_times_infinity(x, w_query, w_key, w_value):
    scores = (x @ w_query) @ (x @ w_key).T - torch.inf * torch.eye(len(x))
    return scores.softmax(dim=-1) @ (x @ w_value)


def five_words(x, w_query, w_key, w_value):
    scores = (x @ w_query) @ (x @ w_key).T
    scores = scores.masked_fill(torch.eye(5).bool(), -torch.inf)
    return scores.softmax(dim=-1) @ (x @ w_value)


RIGHT = [
    (check_loud_key, torch.tensor([-1.0, 8.0])),
    (check_loud_key, [[0, 9]]),
    (check_loud_key, np.array([0, 9])),
    (check_place_row, [0, 0, 0, 5]),
    (check_place_row, [0, 0, 0, 4.34]),
    (check_place_row, torch.tensor([-1.0, -1.0, 0.0, 4.0])),
    (check_place_row, np.array([[0], [0], [0], [5]])),
    (check_attend_others, lambda *given: others()(*given).tolist()),
    (check_attend_others, others(fill=-1e9)),
    (check_attend_others, exponentials),
    (check_attend_others, word_by_word),
    (check_attend_others, with_math),
]

WRONG = [
    (check_attend_others, renormalised, "rounded to 0 beside it"),
    (check_loud_key, [5, 5], "stretched"),
    (check_loud_key, [4, 2], "but so is the cosine"),
    (check_loud_key, [0, 1], "too short"),
    (check_loud_key, [1.1, 0.8], "dot product 3 against 3"),
    (check_loud_key, [-5, -5], "no length makes"),
    (check_loud_key, [0.1, 0.1], "the direction of"),
    (check_loud_key, [1, 0.5], "other way round"),
    (check_loud_key, [0, 0], "length zero"),
    (check_loud_key, [1, 2, 3], "two numbers"),
    (check_loud_key, "loud", "two numbers"),
    (check_loud_key, ["4", "0"], "without quotes"),
    (check_loud_key, [0, float("inf")], "yours is inf"),
    (check_place_row, ["0", "0", "0", "5"], "without quotes"),
    (check_place_row, "when", "four numbers"),
    (check_place_row, [0, 0, 0, 1], "too short"),
    (check_place_row, [0, 0, 0, 4], "too short"),
    (check_place_row, [-0.28, 0.86, -0.28, 4.02], "septembre gets 0.920"),
    (check_place_row, [0, 3, 0, 3], "as well as septembre"),
    (check_place_row, [0, 0, -1, 0], "as well as septembre"),
    (check_place_row, [0, 3, 0, 1], "still largest in what"),
    (check_place_row, [4, 0, 0, 0], "largest in who,"),
    (check_place_row, [0, 0, 4, 0], "largest in where"),
    (check_place_row, [0, 0, 0, -4], "sign"),
    (check_place_row, [9, 9, 9, 9], "four words get the same score"),
    (check_place_row, [0, 0, 0, 0], "matches no key"),
    (check_place_row, [0, 0, 4, 0, 0, 0], "column"),
    (check_place_row, [4.0], "four numbers"),
    (check_attend_others, others(fill=0.0), "e⁰"),
    (check_attend_others, others(fill=-30.0), "low enough"),
    (check_attend_others, others(fill=-99.0), "low enough"),
    (
        check_attend_others,
        lambda x, q, k, v: (
            (x @ q @ (x @ k).T - 1e4 * torch.eye(len(x))).softmax(-1) @ x @ v
        ),
        "low enough",
    ),
    (check_attend_others, guarded, "added to the sum"),
    (check_attend_others, zero_times_infinity, "0 multiplied by ∞"),
    (check_attend_others, five_words, "use len(x)"),
    (check_attend_others, others(scale=2.0), "√d_k"),
    (check_attend_others, others(dim=0), "columns"),
    (check_attend_others, lambda x, q, k, v: weights(x, q, k) @ x @ v, "itself"),
    (
        check_attend_others,
        lambda x, q, k, v: weights(x, q, k).masked_fill(diagonal(x), 0.0) @ x @ v,
        "to 0 after the softmax",
    ),
    (check_attend_others, lambda x, q, k, v: others()(x, k, q, v), "transposed"),
    (check_attend_others, lambda x, q, k, v: hidden(x, q, k), "Those are the weights"),
    (check_attend_others, lambda x, q, k, v: hidden(x, q, k) @ x, "project"),
    (check_attend_others, lambda x, q, k, v: others()(x, q, q, v), "One matrix"),
    (check_attend_others, lambda x, q, k, v: x @ v, "kept the diagonal"),
    (check_attend_others, without_keepdim, "column j by the sum of row j"),
    (
        check_attend_others,
        lambda x, q, k, v: crossed_out(x, q, k).softmax(-1) @ x @ v,
        "a second softmax",
    ),
    (
        check_attend_others,
        lambda *given: others()(*given).T,
        "It is transposed. The shape is",
    ),
    (check_attend_others, lambda x, q, k, v: x[0], "shape"),
]


test_right = right_answers(RIGHT)


test_mistake_is_named = named_mistakes(WRONG)


@pytest.mark.parametrize(
    ("check", "answer"),
    [(check_loud_key, [..., ...]), (check_place_row, [0, 0, 0, ...])],
)
def test_three_dots_in_a_list_are_no_answer_yet(check, answer):
    assert repr(check(answer)).startswith("○")
