"""Checks for the exercises of chapter 19, What has changed since 2017?"""

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bookkit.exercises import (
    Refused,
    Verdict,
    exercise,
    near,
    number,
    right,
    tensor,
    wrong,
)


@exercise
def check_cache(tokens: Any) -> Verdict:
    """How many tokens of keys and values fit into 16 GiB."""
    answer = number(tokens)
    exact = 2**34 / (2 * 32 * 8 * 128 * 2)  # 131,072

    def is_near(other: float) -> bool:
        return math.isclose(answer, other, rel_tol=0.01)

    if is_near(exact):
        return right("131,072 tokens; with a set for every head it would be 32,768")
    mistakes = {
        2 * exact: "keys *and* values are kept: two tables a layer, not one",
        exact / 4: "the 32 query heads are not kept: each of the 8 sets is, once",
        exact * 32: "every layer has keys and values of its own: 32 times as much",
        exact * 8: "there are 8 sets of keys and values in a layer, not one",
        exact * 16e9 / 2**34: "a GiB is 2³⁰ bytes, not a thousand million",
        exact * 16: "16 bits are 2 bytes, not an eighth of one; "
        "and 16 GiB are 2³⁴ bytes",
        exact / 8: "a number in 16 bits takes 2 bytes: 16 is its bits",
        exact / 2: "a number in 16 bits takes 2 bytes, not 4",
    }
    for other, message in mistakes.items():
        if is_near(other):
            return wrong(message)
    return wrong(
        "bytes a token: 2 tables · layers · sets · numbers a set · bytes a number; "
        "divide 16 · 2³⁰ by that"
    )


def _turned(x: Tensor, positions: Tensor, rates: Tensor, neighbours: bool) -> Tensor:
    angle = positions[:, None] * rates
    cos, sin = angle.cos(), angle.sin()
    if neighbours:
        a, b = x[:, 0::2], x[:, 1::2]
        pairs = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1)
        return pairs.flatten(1)
    a, b = x.chunk(2, dim=1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=1)


@exercise
def check_neighbours(rotate: Callable[[Tensor, Tensor], Tensor]) -> Verdict:
    """Rotary positions with columns 2i and 2i + 1 as a pair."""
    draw = torch.Generator().manual_seed(19)
    x = torch.randn(5, 8, generator=draw)
    positions = torch.tensor([0, 1, 2, 7, 30])
    answer = tensor(rotate(x.clone(), positions), "the rotated rows")
    rates = 10_000 ** (-torch.arange(0, 8, 2) / 8)
    if near(answer, _turned(x, positions, rates, neighbours=True)):
        few = 10_000 ** (-torch.arange(0, 6, 2) / 6)
        wanted = _turned(x[:, :6], positions, few, neighbours=True)
        try:
            narrow = rotate(x[:, :6].clone(), positions)
        except RuntimeError:  # sizes that do not fit
            narrow = None
        if not near(narrow, wanted):
            return wrong(
                "right for a width of 8, but not for 6: the rate of pair i is "
                "10000 to the power of -2i / d_k"
            )
        return right("each pair of neighbours turns by position times its rate")
    if answer.shape != x.shape:
        shape = tuple(answer.shape)
        return wrong(f"the shape should be that of x, (5, 8), and is {shape}")
    if near(answer, x):
        return wrong("nothing has turned: rows away from position 0 must change")
    shuffled = torch.cat(
        [
            _turned(x, positions, rates, neighbours=True)[:, 0::2],
            _turned(x, positions, rates, neighbours=True)[:, 1::2],
        ],
        dim=1,
    )
    angle = positions[:, None] * rates
    first = x[:, 0::2] * angle.cos() - x[:, 1::2] * angle.sin()
    second = x[:, 1::2] * angle.cos() + first * angle.sin()
    too_fast = _turned(x, positions, 1 / rates, neighbours=True)
    if near(answer[:2], too_fast[:2]):  # further on its angles are too large to compare
        return wrong("the exponent has the wrong sign: later pairs turn slower")
    mistakes = [
        (
            torch.stack((first, second), dim=-1).flatten(1),
            "the second of a pair was turned with the first as it is *after* turning",
        ),
        (
            _turned(x, positions, rates, neighbours=False),
            "those pairs are column i of one half and column i of the other; here "
            "neighbours are a pair",
        ),
        (
            _turned(x, -positions, rates, neighbours=True),
            "every pair turns backwards: the sign of the sines is swapped",
        ),
        (
            shuffled,
            "the turned numbers stand in two halves: put each back into its column",
        ),
        (
            _turned(x, positions, rates.square(), neighbours=True),
            "the exponent has the pair's number doubled once too often",
        ),
        (
            _turned(x, positions, rates.sqrt(), neighbours=True),
            "the exponent is i / d_k; it should be 2i / d_k",
        ),
        (
            _turned(x, torch.arange(5), rates, neighbours=True),
            "the rows' numbers were taken for their positions",
        ),
        (
            _turned(x, positions + 1, rates, neighbours=True),
            "one position too far: at position 0 nothing turns",
        ),
        (
            x + _turned(torch.ones_like(x), positions, rates, neighbours=True),
            "something was added: rotary positions only turn",
        ),
    ]
    for mistake, message in mistakes:
        if near(answer, mistake):
            return wrong(message)
    if near(answer.norm(dim=1), x.norm(dim=1)):
        return wrong("lengths are kept, but a pair turns by the wrong angle")
    return wrong("a rotation keeps each row's length, and here it changes")


@exercise
def check_centred(centre: Callable[[nn.Linear], nn.Linear]) -> Verdict:
    """Change a linear map so that its outputs have mean zero."""
    torch.manual_seed(19)
    linear = nn.Linear(6, 10)
    before = copy.deepcopy(linear)
    x = torch.randn(20, 6) + 1
    answer = centre(linear)
    if not isinstance(answer, nn.Linear):
        raise Refused("Give back an nn.Linear: the mean goes out of its weights.")
    with torch.no_grad():
        output, plain = tensor(answer(x)), before(x)
        if output.shape != plain.shape:
            shape = tuple(output.shape)
            return wrong(f"outputs should have shape (20, 10), and have {shape}")
        expected = plain - plain.mean(dim=-1, keepdim=True)
        if near(output, expected):
            small, few = nn.Linear(4, 7), torch.randn(5, 4)
            plain = small(few)
            wanted = plain - plain.mean(dim=-1, keepdim=True)
            other = centre(small)
            if other.weight.shape != (7, 4) or not near(other(few), wanted):
                return wrong("right for a map from 6 to 10, but not from 4 to 7")
            return right("the mean is a linear map, so the weights can subtract it")
        weight, bias = before.weight, before.bias
        columns = weight - weight.mean(dim=0)
        rows = weight - weight.mean(dim=1, keepdim=True)
        if near(output, x @ columns.T + bias):
            return wrong("the bias has a mean too, and adds it to every output")
        if near(output, x @ columns.T):
            return wrong("the bias was lost: only its mean has to go")
        by_input = x @ rows.T + bias
        if near(output, by_input) or near(output, by_input - bias.mean()):
            return wrong(
                "that is the mean over the inputs: weight is (out, in), and the mean "
                "over the outputs is wanted"
            )
        if near(output, x @ (weight - weight.mean()).T + bias - bias.mean()):
            return wrong(
                "one mean for the whole matrix: each input needs that of its own column"
            )
        if near(output, plain):
            return wrong("the outputs are as before")
        if near(output.mean(dim=-1), torch.zeros(20)):
            return wrong("the mean is zero, but something else has changed as well")
    return wrong("the outputs' mean is not zero")
