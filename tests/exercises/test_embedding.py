"""The exercises of chapter 2: right answers pass, likely wrong ones are named."""

import pytest
import torch
from torch.nn import functional as F

from bookkit.checks.embedding import (
    check_moved,
    check_scores,
    check_similar,
)


def cosines(word_id, table):
    directions = F.normalize(table, dim=1)
    return directions @ directions[word_id]


def most_similar(word_id, table, count):
    order = cosines(word_id, table).argsort(descending=True).tolist()
    return [number for number in order if number != word_id][:count]


def by_dot(word_id, table, count):
    order = (table @ table[word_id]).argsort(descending=True).tolist()
    return [number for number in order if number != word_id][:count]


def by_distance(word_id, table, count):
    order = (table - table[word_id]).norm(dim=1).argsort().tolist()
    return [number for number in order if number != word_id][:count]


def with_itself(word_id, table, count):
    return cosines(word_id, table).argsort(descending=True).tolist()[:count]


def first_in_the_line(word_id, table, count):
    order = cosines(word_id, table).argsort(descending=True).tolist()
    return order[1 : count + 1]


def by_size(word_id, table, count):
    order = cosines(word_id, table).abs().argsort(descending=True).tolist()
    return [number for number in order if number != word_id][:count]


def cut_too_early(word_id, table, count):
    order = cosines(word_id, table).argsort(descending=True).tolist()
    return [number for number in order[:count] if number != word_id]


def least_first(word_id, table, count):
    return cosines(word_id, table).argsort().tolist()[:count]


def hidden_by_zero(word_id, table, count):
    scores = cosines(word_id, table)
    scores[word_id] = 0
    return scores.argsort(descending=True, stable=True).tolist()[:count]


def row_removed(word_id, table, count):
    kept = torch.cat([table[:word_id], table[word_id + 1 :]])
    scores = F.normalize(kept, dim=1) @ table[word_id]
    return scores.argsort(descending=True).tolist()[:count]


def by_wrong_length(dim):
    def answer(word_id, table, count):
        return by_dot(word_id, table / table.norm(dim=dim), count)

    return answer


def moved(ids, vocab_size, tied):
    return set(range(vocab_size)) if tied else set(ids.flatten().tolist())


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (check_scores, lambda hidden, table: hidden @ table.T),
        (check_similar, most_similar),
        (check_moved, moved),
        (check_moved, lambda ids, v, tied: list(range(v)) if tied else ids.unique()),
    ],
)
def test_the_model_solution_is_right(check, answer):
    assert repr(check(answer)).startswith("✓")


@pytest.mark.parametrize(
    ("check", "answer", "named"),
    [
        (check_scores, lambda h, t: h @ t.T * 4, "multiplied by √d_model"),
        (check_scores, lambda h, t: h @ t.T / 4, "divided by √d_model"),
        (check_scores, lambda h, t: (h @ t.T).softmax(-1), "softmax"),
        (check_scores, lambda h, t: (h @ t.T).argmax(-1), "best word"),
        (
            check_scores,
            lambda h, t: F.normalize(h, dim=-1) @ F.normalize(t, dim=-1).T,
            "cosines",
        ),
        (check_scores, lambda h, t: h @ F.normalize(t, dim=-1).T, "normalised"),
        (check_scores, lambda h, t: t @ h.transpose(1, 2), "changed places"),
        (check_scores, lambda h, t: h.flatten(1) @ h.flatten(1).T, "(2, 3, 7)"),
        (check_scores, lambda h, t: h @ t, "want transposing"),
        (check_similar, by_dot, "dot products"),
        (check_similar, by_wrong_length(0), "not each row's length"),
        (check_similar, by_wrong_length(None), "not each row's length"),
        (check_similar, hidden_by_zero, "not low enough"),
        (check_similar, row_removed, "removed the word's row"),
        (check_similar, by_distance, "distances"),
        (check_similar, with_itself, "the word itself"),
        (check_similar, least_first, "least similar first"),
        (check_similar, lambda word_id, table, count: [1, 5, 2], "word 3"),
        (check_similar, lambda word_id, table, count: [1, 5, 2, 4], "three ids"),
        (check_similar, lambda word_id, table, count: [5, 1, 2], "wrong order"),
        (check_similar, first_in_the_line, "points the same way"),
        (check_similar, by_size, "ignored the sign"),
        (check_similar, cut_too_early, "before you count"),
        (check_similar, lambda i, t, n: cosines(i, t).topk(n).values, "are cosines"),
        (check_similar, lambda i, t, n: 1, "not what is asked for"),
        (check_moved, lambda ids, v, tied: set(range(v)), "only read"),
        (check_moved, lambda ids, v, tied: ids.unique(), "every row gets"),
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
    ],
)
def test_a_wrong_answer_is_named(check, answer, named):
    verdict = repr(check(answer))
    assert verdict.startswith("✗")
    assert named in verdict


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (check_scores, ...),
        (check_scores, lambda hidden, table: ...),
        (check_similar, lambda word_id, table, count: None),
        (check_moved, ...),
    ],
)
def test_no_answer_is_not_wrong(check, answer):
    assert repr(check(answer)).startswith("○")
