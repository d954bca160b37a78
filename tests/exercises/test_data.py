"""The exercises of chapter 11: right answers pass, likely wrong ones are named."""

import pytest
import torch

from bookkit.checks.data import check_shift, check_split, check_waste
from transformer.data import BOS, EOS, pad


def framed(targets):
    return pad([[BOS, *target, EOS] for target in targets])


def shift(targets):
    return framed(targets)[:, :-1], framed(targets)[:, 1:]


def shift_without_end(targets):
    return pad([[BOS, *t] for t in targets]), pad([[*t, EOS] for t in targets])


def end_last(targets):
    given = pad([[BOS, *t] for t in targets])
    end = torch.full((len(targets), 1), EOS)
    return given, torch.cat((given[:, 1:], end), dim=1)


def written_into(targets):
    for target in targets:
        target.insert(0, BOS)
        target.append(EOS)
    rows = pad(targets)
    return rows[:, :-1], rows[:, 1:]


def waste(lengths, batches):
    return 1 - words(lengths, batches) / positions(lengths, batches)


def words(lengths, batches):
    return sum(lengths[i] for batch in batches for i in batch)


def positions(lengths, batches):
    return sum(len(batch) * max(lengths[i] for i in batch) for batch in batches)


def split_if(rule):
    def split(sentences, first, second):
        test = [words for words in sentences if rule(words, first, second)]
        return [words for words in sentences if words not in test], test

    return split


def both(sentence, first, second):
    return first in sentence and second in sentence


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (check_shift, shift),
        (check_shift, shift_without_end),
        (check_waste, waste),
        (check_split, split_if(both)),
        (check_split, lambda *a: list(split_if(both)(*a))),
    ],
)
def test_model_solutions_are_right(check, answer):
    assert check(answer).kind == "right", check(answer)


@pytest.mark.parametrize(
    ("check", "answer", "key"),
    [
        (check_shift, lambda t: shift(t)[::-1], "swapped"),
        (check_shift, lambda t: (framed(t), framed(t)), "same"),
        (check_shift, lambda t: (framed(t)[:, :-1], framed(t)), "one shape"),
        (check_shift, lambda t: (pad([[BOS, *x] for x in t]),) * 2, "same"),
        (
            check_shift,
            lambda t: (pad([[BOS, *x] for x in t]), pad([[*x, 0] for x in t])),
            "never learn to stop",
        ),
        (
            check_shift,
            lambda t: (framed(t)[:, :-1], framed(t)[:, :-1] * 1 + 0),
            "same",
        ),
        (
            check_shift,
            lambda t: (pad([[*x, EOS] for x in t]), framed(t)[:, :-1]),
            "swapped",
        ),
        (check_shift, lambda t: framed(t), "pair"),
        (check_shift, lambda t: (framed(t)[:-1], framed(t)[1:]), "cut off a sentence"),
        (check_shift, lambda t: (t, t), "be tensors"),
        (check_shift, end_last, "Padding stands before eos"),
        (check_shift, written_into, "changed `targets` in place"),
        (check_waste, lambda n, b: words(n, b) / positions(n, b), "share of words"),
        (
            check_waste,
            lambda n, b: positions(n, b) / words(n, b) - 1,
            "divided by the words",
        ),
        (
            check_waste,
            lambda n, b: 1 - words(n, b) / (max(n) * len(n)),
            "longest of all",
        ),
        (check_waste, lambda n, b: sum(waste(n, [x]) for x in b) / len(b), "mean of"),
        (check_waste, lambda n, b: positions(n, b) - words(n, b), "not their share"),
        (check_waste, lambda n, b: 100 * waste(n, b), "per cent"),
        (check_waste, lambda n, b: f"{waste(n, b):.0%}", "without quotes"),
        (check_split, split_if(lambda s, a, b: a in s or b in s), "either word"),
        (check_split, lambda *a: split_if(both)(*a)[::-1], "swapped"),
        (
            check_split,
            split_if(lambda s, a, b: both(s, a, b) and s.index(a) < s.index(b)),
            "either order",
        ),
        (check_split, lambda s, a, b: (s[:-1], s[-1:]), "leaked"),
        (check_split, lambda s, a, b: (s, s), "exactly once"),
        (
            check_split,
            split_if(lambda s, a, b: a in " ".join(s) and b in " ".join(s)),
            "looked for letters",
        ),
    ],
)
def test_wrong_answers_are_named(check, answer, key):
    verdict = check(answer)
    assert verdict.kind == "wrong"
    assert key in verdict.message


@pytest.mark.parametrize("check", [check_shift, check_waste, check_split])
def test_no_answer_is_no_mistake(check):
    assert check(...).kind == "unanswered"
    assert check(lambda *_: ...).kind == "unanswered"
