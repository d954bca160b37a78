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
    holds,
    near,
    number,
    right,
    tensor,
    wrong,
)
from bookkit.forms import form


@exercise
@form("one", "tokens")
def check_cache(tokens: Any) -> Verdict:
    """How many tokens of keys and values fit into 24 GiB."""
    answer = number(tokens)
    token = 2 * 32 * 8 * 128 * 2  # bytes: 131,072
    exact = 24 * 2**30 / token  # 196,608

    def is_near(other: float) -> bool:
        return math.isclose(answer, other, rel_tol=0.01)

    if is_near(exact):
        return right("196,608 tokens; with a set for every head it would be 49,152.")
    mistakes = {
        token: "Those are the bytes of one token: divide 24 GiB by them; or, if that "
        "is what you did, you kept queries as well, a third table.",
        2 * exact: "A factor of 2 is missing: both keys and values are kept, two "
        "tables per layer, and a number in 16 bits takes 2 bytes.",
        4 * exact: "Two factors of 2 are missing: both keys and values are kept, two "
        "tables per layer, and a number in 16 bits takes 2 bytes.",
        exact / 4: "The 32 query heads are not kept: only the 8 sets are, once each.",
        exact * 32: "That is 32 times too much: every layer has keys and values of its "
        "own, and a set has 128 numbers, not 128 / 32.",
        exact * 8: "There are 8 sets of keys and values in a layer, not one; or did "
        "you take the memory in bits, and a number in bytes?",
        exact * 1e9 / 2**30: "A GiB is 2³⁰ bytes, not 10⁹.",
        exact * 16: "16 bits are 2 bytes, not an eighth of one; "
        "and 24 GiB are 24 · 2³⁰ bytes.",
        exact / 8: "A number in 16 bits takes 2 bytes: 16 is the number of its bits.",
        exact / 2: "A number in 16 bits takes 2 bytes, not 4.",
    }
    for other, message in mistakes.items():
        if is_near(other):
            return wrong(message)
    return wrong(
        "The bytes per token are 2 tables · layers · sets · numbers per set · bytes "
        "per number: divide 24 · 2³⁰ by that."
    )


def _rotated(x: Tensor, positions: Tensor, rates: Tensor, neighbours: bool) -> Tensor:
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
    if near(answer, _rotated(x, positions, rates, neighbours=True)):
        few = 10_000 ** (-torch.arange(0, 6, 2) / 6)
        wanted = _rotated(x[:, :6], positions, few, neighbours=True)
        if not holds(rotate, (x[:, :6], positions), wanted):
            return wrong(
                "Right for a width of 8, but not for 6: the rate of pair i is "
                "10000 to the power of -2i / d_k."
            )
        return right(
            "Each pair of neighbours is rotated by the position times its rate."
        )
    if answer.shape != x.shape:
        shape = tuple(answer.shape)
        return wrong(f"The shape should be that of x, (5, 8), but is {shape}.")
    if near(answer, x):
        return wrong("Nothing is rotated: rows at positions other than 0 must change.")
    shuffled = torch.cat(
        [
            _rotated(x, positions, rates, neighbours=True)[:, 0::2],
            _rotated(x, positions, rates, neighbours=True)[:, 1::2],
        ],
        dim=1,
    )
    angle = positions[:, None] * rates
    cos, sin, a, b = angle.cos(), angle.sin(), x[:, 0::2], x[:, 1::2]
    first = a * cos - b * sin
    second = b * cos + first * sin
    too_fast = _rotated(x, positions, 1 / rates, neighbours=True)
    if near(answer[:2], too_fast[:2]):  # further on its angles are too large to compare
        return wrong(
            "The exponent has the wrong sign: later pairs are rotated more slowly."
        )
    mistakes = [
        (
            torch.stack((first, second), dim=-1).flatten(1),
            "The second number of a pair was computed from the first after its "
            "rotation: use the first as it was before.",
        ),
        (
            _rotated(x, positions, rates, neighbours=False),
            "You paired column i of one half with column i of the other: here "
            "neighbours are a pair.",
        ),
        (
            _rotated(x, -positions, rates, neighbours=True),
            "Every pair is rotated backwards: the sign of the sines is wrong.",
        ),
        (
            shuffled,
            "The rotated numbers are in two halves: put each back into its column.",
        ),
        (
            _rotated(x, positions, rates.square(), neighbours=True),
            "The number of the pair is doubled once too often in the exponent.",
        ),
        (
            _rotated(x, positions, rates.sqrt(), neighbours=True),
            "The exponent is -i / d_k; it should be -2i / d_k.",
        ),
        (
            _rotated(x, positions, rates / 10, neighbours=True),
            "Pairs are counted from 0: the first turns by one radian a position.",
        ),
        (
            torch.stack((a * sin - b * cos, b * sin + a * cos), dim=-1).flatten(1),
            "Sine and cosine are exchanged: position 0 must change nothing.",
        ),
        (
            x * cos.repeat(1, 2)
            + torch.stack((-b, a), -1).flatten(1) * sin.repeat(1, 2),
            "The angles are laid out in two halves, and the pairs as neighbours: each "
            "angle belongs twice in a row, as repeat_interleave(2, 1) puts it.",
        ),
        (
            _rotated(x, positions, torch.ones(4), neighbours=True),
            "All pairs are rotated at the same rate: it falls with i.",
        ),
        (
            _rotated(x, torch.arange(5), rates, neighbours=True),
            "You used the row numbers as positions: use `positions` instead.",
        ),
        (
            _rotated(x, positions + 1, rates, neighbours=True),
            "One position too far: at position 0 nothing is rotated.",
        ),
        (
            x + _rotated(torch.ones_like(x), positions, rates, neighbours=True),
            "Something was added: rotary positions only rotate.",
        ),
    ]
    for mistake, message in mistakes:
        if near(answer, mistake):
            return wrong(message)
    if near(answer.norm(dim=1), x.norm(dim=1)):
        return wrong(
            "The lengths are kept, but a pair is rotated by the wrong angle, or its "
            "numbers are in the wrong columns."
        )
    return wrong("A rotation keeps each row's length, but here it changes.")


@exercise
def check_centred(centre: Callable[[nn.Linear], nn.Linear]) -> Verdict:
    """Change a linear map so that its outputs have mean zero."""
    torch.manual_seed(19)
    linear = nn.Linear(6, 10)
    before = copy.deepcopy(linear)
    x = torch.randn(20, 6) + 1
    answer = centre(linear)
    if not isinstance(answer, nn.Linear):
        raise Refused("Give back an nn.Linear: subtract the mean from its weights.")
    new, old = (
        f"{tuple(each.weight.shape)}, {each.weight.dtype}" for each in (answer, before)
    )
    if new != old:
        return wrong(
            f"The weight of your layer is {new}; it should be {old}, as in `linear`."
        )
    with torch.no_grad():
        output, plain = tensor(answer(x)), before(x)
        expected = plain - plain.mean(dim=-1, keepdim=True)
        if near(output, expected):
            kept = linear.weight.equal(before.weight) and linear.bias.equal(before.bias)
            if not kept:
                return wrong(
                    "The outputs are right, but your function changed the weights of "
                    "`linear` itself: put the new ones into an nn.Linear of their own."
                )
            if not near(answer.weight.mean(dim=0), torch.zeros(6)):
                return wrong("The outputs are right, but the weights are not centred.")
            small, few = nn.Linear(4, 7), torch.randn(5, 4)
            plain = small(few)
            wanted = plain - plain.mean(dim=-1, keepdim=True)
            other = centre(small)
            if other.weight.shape != (7, 4) or not near(other(few), wanted):
                return wrong("Right for a map from 6 to 10, but not from 4 to 7.")
            return right("The mean is a linear map, so the weights can subtract it.")
        weight, bias = before.weight, before.bias
        columns = weight - weight.mean(dim=0)
        rows = weight - weight.mean(dim=1, keepdim=True)
        if near(output, x @ columns.T + bias):
            return wrong("The bias has a mean too, which every output still contains.")
        if near(output, x @ columns.T):
            return wrong("The bias was lost: subtract only its mean.")
        by_input = x @ rows.T + bias
        if near(output, by_input) or near(output, by_input - bias.mean()):
            return wrong(
                "That is the mean over the inputs: `weight` is (out, in), and the mean "
                "over the outputs is wanted."
            )
        if near(output, x @ (weight - weight.mean()).T + bias - bias.mean()):
            return wrong(
                "You took one mean of the whole matrix: each input needs the mean of "
                "its own column."
            )
        if near(output, plain):
            return wrong("The outputs are the same as before.")
        if near(output.mean(dim=-1), torch.zeros(20)):
            return wrong("The mean is zero, but something else has changed as well.")
    return wrong("The outputs' mean is not zero.")
