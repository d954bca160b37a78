"""Chapter 09's exercises: the answer is right, likely mistakes are named."""

import math

import torch
from torch.nn.utils.rnn import pad_sequence

from bookkit.checks.decoder import (
    check_cross,
    check_notices,
    check_shift,
)
from tests.exercises import named_mistakes, right_answers
from transformer.text.words import BOS_ID as BOS
from transformer.text.words import EOS_ID as EOS
from transformer.text.words import PAD_ID as PAD


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


def rows(sentences, *begin, end=None, fill=PAD):
    """The sentences as rows, with ids before and behind them, filled up."""
    ends = [] if end is None else [end]
    ids = [torch.tensor([*begin, *one, *ends]) for one in sentences]
    return pad_sequence(ids, batch_first=True, padding_value=fill)


def framed(sentences):
    return rows(sentences, BOS, end=EOS)


def shift(sentences):
    return framed(sentences)[:, :-1], framed(sentences)[:, 1:]


def column(sentences, value):
    return torch.full((len(sentences), 1), value)


def padded_in_front(sentences):
    width = max(map(len, sentences)) + 2
    ids = [[PAD] * (width - 2 - len(one)) + [BOS, *one, EOS] for one in sentences]
    return torch.tensor(ids)[:, :-1], torch.tensor(ids)[:, 1:]


def fixed_to_two_rows(sentences):
    first, last = shift(sentences)
    return first[:2], last[:2]


def two_only(sentences):
    first, second = sentences
    return shift([first, second])


def in_place(sentences):
    for one in sentences:
        one.append(EOS)
    labels = rows(sentences)
    return rows([one[:-1] for one in sentences], BOS), labels


def everyone(africa, september):
    return {"Africa": africa, "septembre": september}


RIGHT = [
    (check_shift, lambda s: list(shift(s))),
    (check_shift, lambda s: torch.stack(shift(s))),
    (check_shift, lambda s: (rows(s, BOS).int(), rows(s, end=EOS).int())),
    (check_notices, everyone((5, 4, 3), list(range(6)))),
    (check_cross, cross()),
    (check_cross, lambda *given: cross()(*given).tolist()),
]

WRONG = [
    (check_shift, lambda s: (rows(s, BOS), rows(s, BOS)), "repeat"),
    (check_shift, lambda s: (framed(s), framed(s)), "the same"),
    (check_shift, lambda s: (rows(s, end=EOS), rows(s, BOS)), "wrong way"),
    (check_shift, lambda s: (framed(s), framed(s)[:, 1:]), "whole target"),
    (check_shift, lambda s: (rows(s), rows(s, end=EOS)), "must read <bos> first"),
    (check_shift, lambda s: (rows(s, BOS), rows(s)), "learns to stop"),
    (check_shift, lambda s: (rows(s)[:, :-1], rows(s)[:, 1:]), "add <bos> and <eos>"),
    (
        check_shift,
        lambda s: (rows(s, BOS), torch.cat([rows(s), column(s, EOS)], dim=1)),
        "after the padding",
    ),
    (
        check_shift,
        lambda s: (rows(s, BOS), rows(s, end=EOS, fill=EOS)),
        "the loss would count",
    ),
    (check_shift, lambda s: (rows(s, BOS), rows(s, end=EOS, fill=-100)), "with -100"),
    (check_shift, padded_in_front, "in front of the words"),
    (
        check_shift,
        lambda s: (framed(s), torch.cat([framed(s)[:, 1:], column(s, PAD)], dim=1)),
        "one column more",
    ),
    (check_shift, lambda s: shift([x[:1] for x in s]), "cut off the longer"),
    (check_shift, lambda s: (rows(s, BOS), framed(s)[:, 2:]), "which <bos> predicts"),
    (check_shift, lambda s: (rows(s, BOS), rows(s, end=EOS) + 1), "labels are not"),
    (check_shift, lambda s: (rows(s, BOS) + 1, rows(s, end=EOS)), "input is not"),
    (check_shift, lambda s: (rows(s, BOS) + 1, rows(s, BOS) + 2), "predict word t + 1"),
    (check_shift, lambda s: rows(s, end=EOS), "two tensors"),
    (check_shift, lambda s: s[9], "does the index count one too far"),
    (check_shift, lambda s: tuple(x.tolist() for x in shift(s)), "not a list"),
    (check_shift, lambda s: [x.float() for x in shift(s)], "but as float32: ids are"),
    (check_shift, lambda s: torch.stack(shift(s)).double(), "but as float64: ids are"),
    (check_shift, two_only, "but for `sentences` = [[4], [3, 5], [6, 7, 8, 9]] your"),
    (check_shift, lambda s: (torch.tensor(s), 0), "fill up the shorter ones first"),
    (check_shift, fixed_to_two_rows, "Right for 2 sentences"),
    (check_shift, in_place, "changed `sentences` in place"),
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
    (check_cross, cross(swap=True), "reversed"),
    (check_cross, lambda t, m, q, k, v: cross()(t, t, q, k, v), "of the target"),
    (check_cross, lambda t, m, q, k, v: cross()(m, m, q, k, v), "of the memory"),
    (check_cross, cross(scale=1.0), "missing"),
    (check_cross, cross(scale=4.0), "square root"),
    (check_cross, cross(scale=0.5), "multiplied by √d_k"),
    (check_cross, cross(scale=2.0), "not for other sizes"),
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
    (check_cross, lambda t, m, q, k, v: (t @ q) @ (m @ k) @ m @ v, "want transposing"),
    (check_cross, lambda t, m, q, k, v: (t @ q) @ (m @ k).T / 2 @ m @ v, "no softmax"),
    (check_cross, lambda t, m, q, k, v: m @ q, "One vector for each query"),
]


test_right = right_answers(RIGHT)


test_mistake_is_named = named_mistakes(WRONG)


def test_three_dots_for_both_are_no_answer_yet():
    assert check_shift(lambda sentences: (..., ...)).kind == "unanswered"
