"""Chapter 19's exercises: right answers pass, likely wrong ones are named."""

import copy

import pytest
import torch
from torch import nn

from bookkit.checks.since import check_cache, check_centred, check_neighbours
from tests.exercises import named_mistakes

RIGHT = 24 * 2**30 / (2 * 32 * 8 * 128 * 2)


@pytest.mark.parametrize("answer", [RIGHT, 196608, torch.tensor(197_000.0)])
def test_the_cache_is_counted(answer):
    assert check_cache(answer).ok


def rotate(x, positions, sign=1, exponent=1.0, shift=0):
    rates = 10_000 ** (-torch.arange(0, x.size(1), 2) / x.size(1) * exponent)
    angle = (positions[:, None] + shift) * rates * sign
    turned = torch.empty_like(x)
    turned[:, 0::2] = x[:, 0::2] * angle.cos() - x[:, 1::2] * angle.sin()
    turned[:, 1::2] = x[:, 1::2] * angle.cos() + x[:, 0::2] * angle.sin()
    return turned


def as_complex(x, positions):
    rates = 10_000 ** (-torch.arange(0, x.size(1), 2) / x.size(1))
    angle = torch.outer(positions.float(), rates)
    pairs = torch.view_as_complex(x.view(len(x), -1, 2))
    return torch.view_as_real(
        pairs * torch.polar(torch.ones_like(angle), angle)
    ).flatten(1)


def in_halves(x, positions):
    order = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
    return rotate(x[:, order], positions)[:, order.argsort()]


def turned(x, angle):
    """Neighbouring columns as pairs, each turned by its angle."""
    pairs = torch.view_as_complex(x.reshape(len(x), -1, 2))
    turns = torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(pairs * turns).flatten(1)


def of_eight(x, positions):
    """The rates of a width of 8, whatever the width is."""
    return turned(x, positions[:, None] * 10.0 ** -torch.arange(x.size(1) // 2))


def of_eight_columns(x, positions):
    """The four rates of a width of 8, and no others."""
    return turned(x, positions[:, None] * 10.0 ** -torch.arange(4))


def angles_in_halves(x, positions):
    rates = 10_000 ** (-torch.arange(0, x.size(1), 2) / x.size(1))
    angle = (positions[:, None] * rates).repeat(1, 2)
    turned = torch.stack((-x[:, 1::2], x[:, 0::2]), dim=-1).flatten(1)
    return x * angle.cos() + turned * angle.sin()


def from_one(x, positions):
    rates = 10_000 ** (-torch.arange(2, x.size(1) + 2, 2) / x.size(1))
    return turned(x, positions[:, None] * rates)


def sine_for_cosine(x, positions):
    angle = positions[:, None] * 10_000 ** (-torch.arange(0, 8, 2) / 8)
    a, b = x[:, 0::2], x[:, 1::2]
    pairs = a * angle.sin() - b * angle.cos(), b * angle.sin() + a * angle.cos()
    return torch.stack(pairs, dim=-1).flatten(1)


def all_at_one_rate(x, positions):
    angle = positions[:, None].float()
    pairs = torch.view_as_complex(x.reshape(len(x), -1, 2))
    return torch.view_as_real(
        pairs * torch.polar(torch.ones_like(angle), angle)
    ).flatten(1)


def of_sizes(linear, inputs=6, outputs=10):
    answer = nn.Linear(inputs, outputs)
    with torch.no_grad():
        weight, bias = linear.weight[:outputs], linear.bias[:outputs]
        answer.weight[: len(weight), : weight.size(1)] = weight - weight.mean(dim=0)
        answer.bias[: len(bias)] = bias - bias.mean()
    return answer


def in_place(x, positions):
    rates = 10_000 ** (-torch.arange(0, x.size(1), 2) / x.size(1))
    angle = positions[:, None] * rates
    x[:, 0::2] = x[:, 0::2] * angle.cos() - x[:, 1::2] * angle.sin()
    x[:, 1::2] = x[:, 1::2] * angle.cos() + x[:, 0::2] * angle.sin()
    return x


@pytest.mark.parametrize("answer", [rotate, as_complex])
def test_neighbours_are_rotated(answer):
    assert check_neighbours(answer).ok


def centred(dim=0, bias="centre"):
    def centre(linear):
        new = nn.Linear(linear.in_features, linear.out_features)
        with torch.no_grad():
            mean = linear.weight.mean(dim=dim, keepdim=True)
            new.weight.copy_(linear.weight - mean)
            kept = {"centre": linear.bias - linear.bias.mean(), "keep": linear.bias}
            new.bias.copy_(kept.get(bias, torch.zeros_like(linear.bias)))
        return new

    return centre


def in_its_place(linear):
    with torch.no_grad():
        linear.weight -= linear.weight.mean(dim=0)
        linear.bias -= linear.bias.mean()
    return linear


def in_a_copy(linear):
    return in_its_place(copy.deepcopy(linear))


class Subtracting(nn.Linear):
    """The same weights: it is `forward` that subtracts the mean."""

    def __init__(self, linear):
        super().__init__(linear.in_features, linear.out_features)
        self.load_state_dict(linear.state_dict())

    def forward(self, x):
        output = super().forward(x)
        return output - output.mean(dim=-1, keepdim=True)


@pytest.mark.parametrize("answer", [centred(), in_a_copy])
def test_a_centred_map(answer):
    assert check_centred(answer).ok


test_a_wrong_answer_is_named = named_mistakes(
    [
        (check_cache, 2 * 32 * 8 * 128 * 2, "bytes of one token"),
        (check_cache, 24 * 2**30 / (3 * 32 * 8 * 128 * 2), "you kept queries"),
        (check_cache, 2 * RIGHT, "A factor of 2 is missing: both keys and values"),
        (check_cache, 4 * RIGHT, "Two factors of 2"),
        (check_cache, RIGHT / 4, "query heads"),
        (check_cache, 32 * RIGHT, "every layer"),
        (check_cache, 8 * RIGHT, "There are 8 sets"),
        (check_cache, 16 * RIGHT, "an eighth of one"),
        (check_cache, 24e9 / 131072, "A GiB is 2³⁰"),
        (check_cache, RIGHT / 8, "its bits"),
        (check_cache, RIGHT / 2, "not 4"),
        (check_cache, 7, "bytes per token"),
        (check_neighbours, in_halves, "neighbours are a pair"),
        (check_neighbours, of_eight, "but not for 6"),
        (check_neighbours, of_eight_columns, "but not for 6"),
        (check_neighbours, lambda x, p: rotate(x, p, sign=-1), "backwards"),
        (check_neighbours, lambda x, p: rotate(x, p, exponent=2), "too often"),
        (
            check_neighbours,
            lambda x, p: rotate(x, p, exponent=0.5),
            "should be -2i / d_k",
        ),
        (check_neighbours, lambda x, p: rotate(x, p, exponent=-1), "more slowly"),
        (
            check_neighbours,
            lambda x, p: rotate(x, torch.arange(len(x))),
            "row numbers as positions",
        ),
        (check_neighbours, lambda x, p: rotate(x, p, shift=1), "too far"),
        (check_neighbours, angles_in_halves, "twice in a row"),
        (check_neighbours, from_one, "counted from 0"),
        (check_neighbours, sine_for_cosine, "exchanged"),
        (check_neighbours, all_at_one_rate, "at the same rate"),
        (check_neighbours, lambda x, p: rotate(x, p, exponent=3), "wrong angle"),
        (check_neighbours, lambda x, p: rotate(x, p).flip(1), "wrong columns"),
        (check_neighbours, lambda x, p: 2 * x, "length"),
        (check_neighbours, lambda x, p: x, "Nothing is rotated"),
        (check_neighbours, in_place, "after its rotation"),
        (check_neighbours, lambda x, p: rotate(x, p)[:, :4], "shape"),
        (
            check_neighbours,
            lambda x, p: torch.cat((rotate(x, p)[:, 0::2], rotate(x, p)[:, 1::2]), 1),
            "two halves",
        ),
        (check_centred, centred(bias="keep"), "bias has a mean"),
        (check_centred, centred(bias="drop"), "bias was lost"),
        (check_centred, centred(dim=1), "over the inputs"),
        (check_centred, centred(dim=(0, 1)), "whole matrix"),
        (check_centred, lambda linear: linear, "as before"),
        (check_centred, in_its_place, "changed the weights of `linear` itself"),
        (check_centred, of_sizes, "not from 4 to 7"),
        (check_centred, lambda linear: Subtracting(linear), "weights are not centred"),
        (check_centred, lambda linear: nn.Linear(10, 6), "(6, 10), torch.float32"),
        (check_centred, lambda linear: in_a_copy(linear).double(), "torch.float64"),
        (check_centred, lambda linear: in_a_copy(linear).half(), "torch.float16"),
        (check_centred, lambda linear: 3, "Give back"),
    ]
)
