"""Chapter 18's exercises: right answers pass, likely wrong ones are named."""

import pytest
import torch

from bookkit.checks.not_only_words import check_interval, check_join, check_starts
from tests.exercises import named_mistakes

NORMAL = torch.distributions.Normal(0.0, 1.0)


def around(reach):
    """An interval whose half width is `reach(std, share)`."""

    def interval(mean, std, share):
        return mean - reach(std, share), mean + reach(std, share)

    return interval


def quantile(share):
    return NORMAL.icdf(torch.tensor(share)).item()


def in_tensors(mean, std, share):
    normal = torch.distributions.Normal(torch.tensor(mean), torch.tensor(std))
    tail = torch.tensor((1 - share) / 2)
    return [normal.icdf(tail), normal.icdf(1 - tail)]


def in_one_tensor(mean, std, share):
    return torch.stack(in_tensors(mean, std, share))


@pytest.mark.parametrize(
    "answer",
    [
        around(lambda std, share: std * quantile((1 + share) / 2)),
        around(lambda std, share: std * {0.8: 1.2816, 0.5: 0.6745, 0.95: 1.96}[share]),
        around(lambda std, share: std * {0.8: 1.28, 0.5: 0.67, 0.95: 1.96}[share]),
        in_tensors,
        in_one_tensor,
    ],
)
def test_an_interval(answer):
    assert check_interval(answer).ok


def as_list(length, cut, history, horizon):
    window = history + horizon
    return [i for i in range(length) if i + window <= cut]


@pytest.mark.parametrize(
    "answer",
    [
        as_list,
        lambda length, cut, history, horizon: range(cut - history - horizon + 1),
        lambda *sizes: torch.tensor(as_list(*sizes)),
    ],
)
def test_starts_of_training_windows(answer):
    assert check_starts(answer).ok


def joined(patches, size):
    side = round(len(patches) ** 0.5)
    return patches.view(side, side, size, size).transpose(1, 2).flatten(2).flatten(0, 1)


def by_loops(patches, size):
    side = round(len(patches) ** 0.5)
    image = torch.zeros(side * size, side * size)
    for place, patch in enumerate(patches):
        row, column = place // side * size, place % side * size
        image[row : row + size, column : column + size] = patch.view(size, size)
    return image


def by_folding(patches, size):
    side = round(len(patches) ** 0.5)
    columns = patches.T[None]
    shape = (side * size, side * size)
    return torch.nn.functional.fold(columns, shape, size, stride=size)[0, 0]


def in_numpy(patches, size):
    return joined(patches, size).numpy()


def as_rows(patches, size):
    return joined(patches, size).tolist()


def sizes_exchanged(patches, size):
    side = round(len(patches) ** 0.5)
    grid = patches.view(size, size, side, side).transpose(1, 2)
    return grid.reshape(side * size, side * size)


@pytest.mark.parametrize("answer", [joined, by_loops, by_folding, in_numpy, as_rows])
def test_an_image_from_patches(answer):
    assert check_join(answer).ok


def axes(*order):
    """The grid's axes in this order, then joined."""

    def join(patches, size):
        side = round(len(patches) ** 0.5)
        grid = patches.view(side, side, size, size).permute(order)
        return grid.reshape(side * size, side * size)

    return join


test_a_wrong_answer_is_named = named_mistakes(
    [
        (check_interval, around(lambda std, share: std * abs(quantile(share))), "tail"),
        (check_interval, around(lambda std, share: std * share), "68%"),
        (
            check_interval,
            around(lambda std, share: std**2 * quantile((1 + share) / 2)),
            "variance",
        ),
        (
            check_interval,
            around(lambda std, share: std**0.5 * quantile((1 + share) / 2)),
            "needs no root",
        ),
        (
            check_interval,
            around(lambda std, share: std * quantile(1 - (1 - share) / 4)),
            "twice",
        ),
        (check_interval, around(lambda std, share: 1.96 * std), "always the same"),
        (check_interval, around(lambda std, share: 1.2816 * std), "always the same"),
        (check_interval, around(lambda std, share: NORMAL.icdf(share)), "torch.tensor"),
        (check_interval, around(lambda std, share: std), "whatever the share"),
        (
            check_interval,
            around(lambda std, share: quantile((1 + share) / 2)),
            "multiply by std",
        ),
        (
            check_interval,
            around(lambda std, share: -std * quantile((1 + share) / 2)),
            "comes first",
        ),
        (
            check_interval,
            around(lambda std, share: std * quantile(share / 2)),
            "half lies below the mean",
        ),
        (
            check_interval,
            lambda m, s, p: (max(0.0, in_tensors(m, s, p)[0]), in_tensors(m, s, p)[1]),
            "cut off the interval at 0",
        ),
        (
            check_interval,
            lambda m, s, p: [m - in_tensors(m, s, p)[1], m + in_tensors(m, s, p)[1]],
            "is an end already",
        ),
        (
            check_interval,
            around(lambda std, share: std * quantile((1 + share) / 2) / 2),
            "half as wide",
        ),
        (check_interval, lambda m, s, p: (0.0, m + s), "The middle"),
        (check_interval, around(lambda std, share: 3 * std * share), "should be"),
        (check_interval, lambda m, s, p: m + s, "two numbers"),
        (check_interval, lambda m, s, p: (m, m, s), "two numbers"),
        (check_interval, lambda m, s, p: torch.tensor([m, s, p]), "two numbers"),
        (check_starts, lambda n, c, h, f: range(n - h - f + 1), "end of the series"),
        (check_starts, lambda n, c, h, f: range(c - h + 1), "trained on"),
        (check_starts, lambda n, c, h, f: range(c - f + 1), "its history"),
        (check_starts, lambda n, c, h, f: range(c - h - f + 2), "too many"),
        (check_starts, lambda n, c, h, f: range(c - h - f), "leaves out its end"),
        (check_starts, lambda n, c, h, f: range(1, c - h - f + 1), "count from 0"),
        (check_starts, lambda n, c, h, f: range(0, c - h - f + 1, f), "There are gaps"),
        (check_starts, lambda n, c, h, f: range(0, c - h - f + 1, 5), "from 0 to 145"),
        (check_starts, lambda n, c, h, f: (0, c - h - f), "There are gaps"),
        (
            check_starts,
            lambda n, c, h, f: torch.arange(n) <= c - h - f,
            "That is a mask",
        ),
        (
            check_starts,
            lambda n, c, h, f: [i + h + f <= c for i in range(n)],
            "That is a mask",
        ),
        (
            check_starts,
            lambda n, c, h, f: [range(i, i + h + f) for i in range(c - h - f + 1)],
            "not the windows themselves",
        ),
        (
            check_starts,
            lambda n, c, h, f: torch.arange(c).unfold(0, h + f, 1),
            "not the windows themselves",
        ),
        (
            check_starts,
            lambda n, c, h, f: [0, *range(c - h - f + 1)],
            "more than once",
        ),
        (check_starts, lambda n, c, h, f: range(h, c - f + 1), "index 0"),
        (check_starts, lambda n, c, h, f: [0, 1, 5], "last start"),
        (check_starts, lambda n, c, h, f: [], "list is empty"),
        (check_starts, lambda n, c, h, f: c - h - f, "a list"),
        (check_join, axes(0, 1, 2, 3), "runs through several patches"),
        (check_join, axes(0, 3, 1, 2), "within itself"),
        (check_join, axes(1, 2, 0, 3), "column by column"),
        (check_join, axes(1, 3, 0, 2), "whole image"),
        (check_join, lambda p, size: joined(p, size).int(), "decimals are lost"),
        (check_join, sizes_exchanged, "two sizes are exchanged"),
        (check_join, lambda p, size: p, "shape"),
        (check_join, lambda p, size: 3, "Give back the image"),
    ]
)
