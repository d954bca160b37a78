"""The exercises of chapter 11: right answers pass, likely wrong ones are named."""

import numpy as np
import torch

from bookkit.checks.data import (
    check_duplicates,
    check_lengths,
    check_tokens,
)
from tests.exercises import named_mistakes, right_answers
from transformer.text.batches import split_by_tokens


def mask(lengths):
    return torch.arange(int(lengths.max()))[None] < lengths[:, None]


def mask_by_rows(lengths):
    result = torch.zeros(len(lengths), int(lengths.max()), dtype=torch.bool)
    for row, length in enumerate(lengths.tolist()):
        result[row, :length] = True
    return result


def keep_unless(near):
    def without(training, test):
        return [one for one in training if not any(near(one, other) for other in test)]

    return without


def changed(one, other):
    return sum(a != b for a, b in zip(one, other, strict=False))


def near_duplicate(one, other):
    return len(one) == len(other) and changed(one, other) <= 1


def by_gaps(training, test):
    def gaps(one):
        return {(*one[:i], None, *one[i + 1 :]) for i in range(len(one))}

    known = set().union(*map(gaps, test))
    return tuple(tuple(one) for one in training if not gaps(one) & known)


def within_training(training, test):
    kept = []
    for one in keep_unless(near_duplicate)(training, test):
        if not any(near_duplicate(one, other) for other in kept):
            kept.append(one)
    return kept


def each_once(training, test):
    kept = []
    for one in keep_unless(near_duplicate)(training, test):
        if one not in kept:
            kept.append(one)
    return kept


def fill(fits, sort=lambda n: -n):
    """Greedy filling; `fits` gets a batch's lengths, with the one to be added."""

    def longest_first(lengths, batch_tokens):
        batches = []
        for index in sorted(range(len(lengths)), key=lambda i: sort(lengths[i])):
            last = [lengths[i] for i in batches[-1]] if batches else []
            if last and fits([*last, lengths[index]], batch_tokens):
                batches[-1].append(index)
            else:
                batches.append([index])
        return batches

    return longest_first


def rectangle(group, budget):
    return len(group) * max(group) <= budget


longest_first = fill(rectangle)


def places(reverse):
    """The right batches, of places in a sorted list."""

    def answer(lengths, batch_tokens):
        order = sorted(lengths, reverse=reverse)
        return longest_first(order, batch_tokens)

    return answer


def drops_what_does_not_fit(lengths, batch_tokens):
    batches, batch = [], []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > batch_tokens:
            batches.append(batch)
            batch = []
            continue
        batch.append(index)
    return [*batches, batch]


test_model_solutions_are_right = right_answers(
    [
        (check_lengths, mask_by_rows),
        (check_lengths, lambda n: ~(torch.arange(n.max().item()) >= n.unsqueeze(1))),
        (check_duplicates, by_gaps),
        (check_tokens, lambda n, b: [np.array(x) for x in longest_first(n, b)]),
    ]
)


test_wrong_answers_are_named = named_mistakes(
    [
        (check_lengths, lambda n: torch.arange(4) <= n[:, None], "One position too"),
        (check_lengths, lambda n: torch.arange(4) < n[:, None] - 1, "position too few"),
        (check_lengths, lambda n: ~mask(n), "inverted"),
        (check_lengths, lambda n: mask(n).T, "transposed"),
        (check_lengths, lambda n: mask(n).int(), "A mask is Boolean"),
        (check_lengths, lambda n: mask(n).float(), "A mask is Boolean"),
        (check_lengths, lambda n: mask(n).flip(1), "on the left"),
        (
            check_lengths,
            lambda n: torch.arange(int(n.max()) + 1) < n[:, None],
            "positions are 0, 1, 2, 3",
        ),
        (check_lengths, lambda n: torch.arange(4) < n[:, None], "but not for [2, 2]"),
        (check_lengths, lambda n: mask(n).tolist(), "not a list"),
        (check_duplicates, keep_unless(lambda a, b: a == b), "Only equal"),
        (
            check_duplicates,
            keep_unless(lambda a, b: len(a) == len(b) and changed(a, b) == 1),
            "A test sentence itself",
        ),
        (check_duplicates, keep_unless(lambda a, b: changed(a, b) <= 1), "`zip` stops"),
        (
            check_duplicates,
            keep_unless(
                lambda a, b: len(a) == len(b) and len({*a} - {*b}) <= 1,
            ),
            "another order",
        ),
        (
            check_duplicates,
            keep_unless(lambda a, b: len(a) == len(b) and changed(a, b) <= 2),
            "differ in two words",
        ),
        (
            check_duplicates,
            lambda a, b: [x for x in a if x not in keep_unless(near_duplicate)(a, b)],
            "Swapped",
        ),
        (
            check_duplicates,
            keep_unless(
                lambda a, b: len(a) == len(b) and (a[1:] == b[1:] or a[:-1] == b[:-1])
            ),
            "single word are still there: Jane adore Rome en mai",
        ),
        (
            check_duplicates,
            keep_unless(lambda a, b: a[1:] == b[1:]),
            "still there: Jane visite Rome en juin",
        ),
        (
            check_duplicates,
            lambda a, b: [
                i for i, one in enumerate(a) if one in keep_unless(near_duplicate)(a, b)
            ],
            "the sentences themselves",
        ),
        (
            check_duplicates,
            lambda a, b: [
                x for x, y in zip(a, b, strict=False) if not near_duplicate(x, y)
            ],
            "compared with one test sentence",
        ),
        (check_duplicates, each_once, "stands twice in training"),
        (check_duplicates, within_training, "only another training sentence"),
        (check_duplicates, lambda a, b: a, "still in training"),
        (check_duplicates, lambda a, b: [], "may stay"),
        (
            check_duplicates,
            lambda a, b: keep_unless(near_duplicate)(a, b) * 2,
            "more often than training",
        ),
        (check_tokens, fill(lambda g, b: sum(g) <= b), "Padding counts too"),
        (
            check_tokens,
            fill(lambda g, b: len(g) * g[-1] <= b),
            "not the one to be added",
        ),
        (
            check_tokens,
            fill(lambda g, b: (len(g) - 1) * g[0] <= b),
            "Count the sentence to be added",
        ),
        (check_tokens, lambda n, b: split_by_tokens(n, b)[::-1], "shortest up"),
        (check_tokens, split_by_tokens, "shortest come first"),
        (check_tokens, fill(lambda g, b: len(g) * max(g) < b), "exactly 12"),
        (check_tokens, lambda n, b: [[i] for i in range(len(n))], "sort by length"),
        (check_tokens, lambda n, b: longest_first(n, b)[:-1], "forgotten"),
        (check_tokens, lambda n, b: longest_first(n, b)[:-2], "forgotten"),
        (check_tokens, places(reverse=True), "places in your sorted list"),
        (check_tokens, drops_what_does_not_fit, "must begin the next batch"),
        (check_tokens, lambda n, b: [], "There is no batch"),
        (check_tokens, lambda n, b: longest_first(n, b)[::-1][:-1], "forgotten"),
        (
            check_tokens,
            lambda n, b: [[n[i] for i in x] for x in longest_first(n, b)],
            "Return the sentences' indices",
        ),
        (check_tokens, lambda n, b: [[], *longest_first(n, b)], "empty"),
    ]
)
