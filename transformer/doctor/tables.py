"""Sinusoidal tables: the paper's, its harmless relatives, and its misreadings.

Made from book/workshop/museum.md: edit the chapter, not this file.
"""

import torch
from torch import Tensor

from transformer.doctor.findings import Finding, finding
from transformer.doctor.xray import Node, Xray, learned

__all__ = ["misreading", "table_fault"]


_MISREADINGS = {
    "column": "The exponent uses the column where the formula has the pair: columns 2i "
    "and 2i + 1 share the rate of pair i.",
    "own": "Every column has a rate of its own: a sine and its cosine share one angle.",
    "doubled": "The exponent is doubled: the even column is 2i already.",
    "halved": "The exponent is i / d_model: the 2 of 2i is missing.",
    "sign": "The exponent has the wrong sign: later clocks turn slower, not faster.",
    "from one": "Pairs are counted from 0: the rate of the first is 1.",
    "equal": "Every clock turns at the same speed: does // cut the exponent down to 0?",
    "sines": "All columns are sines: the odd ones should be cosines.",
    "angles": "The table holds the angles, not their sines and cosines.",
    "no cosines": "The odd columns are 0: they should hold the cosines.",
}


def _layouts(rates: Tensor, positions: Tensor) -> list[Tensor]:
    """Sines and cosines of position · rate, in the orders that people write."""
    angle = torch.outer(positions, rates)
    even, odd = angle[:, 0::2].sin(), angle[:, 1::2].cos()
    side, swapped = (
        torch.stack(pair, -1).flatten(1) for pair in ((even, odd), (odd, even))
    )
    return [side, swapped, torch.cat((even, odd), 1), torch.cat((odd, even), 1)]


def _misread(table: Tensor, start: int) -> str | None:
    """What a table that begins at a position makes of the paper's formula."""
    rows, d_model = table.shape
    positions = torch.arange(start, start + rows, dtype=torch.float64)
    column = torch.arange(d_model)
    pair = column // 2

    def near(other: Tensor) -> bool:
        return bool((table.double() - other).abs().max() < 2e-3)

    def turns(exponent: Tensor, base: float = 10_000.0) -> bool:
        return any(map(near, _layouts(base ** -exponent.double(), positions)))

    paper = 2 * pair / d_model
    if turns(paper) or turns(pair / max(d_model / 2 - 1, 1)):  # as in tensor2tensor
        return ""
    exponents = [
        ("column", 2 * column),
        ("column", 2 * (column + column % 2)),
        ("own", column),
        ("own", column + column % 2),
        ("doubled", 4 * pair),
        ("halved", pair),
        ("sign", -2 * pair),
        ("from one", 2 * pair + 2),
        ("equal", 0 * pair),
    ]
    for word, exponent in exponents:
        if turns(exponent / d_model):
            return _MISREADINGS[word]
    for base in (100, 1_000, 100_000, 1_000_000):
        if turns(paper, base):
            return f"The base is 10000, not {base}."
    angles = torch.outer(positions, 10_000.0**-paper)
    others = {
        "sines": angles.sin(),
        "angles": angles,
        "no cosines": angles.sin() * (column % 2 == 0),
    }
    found = (_MISREADINGS[word] for word, other in others.items() if near(other))
    return next(found, None)


def misreading(table: Tensor) -> str | None:
    """What a table makes of the paper's formula; "" if it is right, None: unknown."""
    for start in range(3):
        if (said := _misread(table, start)) is not None:
            return said
    return None


def _tables_in(trace: Xray, d_model: int) -> list[Node]:
    """Fixed numbers that are added to embeddings: one row for each position."""
    found = []
    for node in trace.order:
        if node.op.rstrip("_") != "add" or len(node.parents) < 2:
            continue
        for one, other in (node.parents[:2], node.parents[1::-1]):
            value = other.value
            wide = value.dim() >= 2 and value.size(-1) == d_model
            if wide and value.numel() > d_model and learned(one) and not learned(other):
                found.append(other)
    return found


def table_fault(trace: Xray, d_model: int) -> tuple[list[Finding], int]:
    """The first misread table among those added, and how many tables were right."""
    right = 0
    for node in _tables_in(trace, d_model):
        value = node.value.float()
        if value.dim() == 3 and value.size(0) > 1 and value.size(1) > 1:
            same = torch.equal(value[0], value[1])  # one table for each sentence
            value = value[0] if same else value[:, 0]
        table = value.reshape(-1, d_model)
        said = misreading(table)
        if said == "":
            right += 1
        elif said is not None:
            row = ", ".join(f"{x:.3f}" for x in table[1, :4].tolist())
            rate = torch.tensor(10_000.0 ** (-2 / d_model))
            seen = f"position 1 begins {row}; the paper's 0.841, 0.540, "
            seen += f"{rate.sin():.3f}, {rate.cos():.3f}"
            return [finding("sinusoids", seen, node.where, misreading=said)], right
    return [], right
