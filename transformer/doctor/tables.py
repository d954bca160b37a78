"""Sinusoidal tables: the paper's, its harmless relatives, and its misreadings.

Made from book/workshop/museum.md: edit the chapter, not this file.
"""

import torch
from torch import Tensor

from transformer.doctor.findings import Finding, finding
from transformer.doctor.xray import Node, Xray, learned

__all__ = ["misreading", "table_fault"]


_COLUMN_NOT_PAIR = (
    "The exponent uses the column where the formula has the pair: columns 2i and 2i + "
    "1 share the rate of pair i."
)


_DOUBLED = "The exponent is doubled: the even column is 2i already."


_OWN_RATES = (
    "Every column has a rate of its own: a sine and its cosine share one angle."
)


_HALVED = "The exponent is i / d_model: the 2 of 2i is missing."


_SIGN = "The exponent has the wrong sign: later clocks turn slower, not faster."


_FROM_ONE = "Pairs are counted from 0: the rate of the first is 1."


_BASE = "The base is 10000, not {base}."


_ONE_RATE = "Every clock turns at the same speed: does // cut the exponent down to 0?"


_ALL_SINES = "All columns are sines: the odd ones should be cosines."


_ANGLES = "The table holds the angles, not their sines and cosines."


_NO_COSINES = "The odd columns are 0: they should hold the cosines."


def _clocks(rates: Tensor, positions: Tensor) -> Tensor:
    """Sines in even columns and cosines in odd ones, of position · rate."""
    angle = torch.outer(positions, rates)
    even = torch.arange(len(rates)) % 2 == 0
    return torch.where(even, angle.sin(), angle.cos())


def misreading(table: Tensor, start: int = 0) -> str | None:
    """What a table makes of the paper's formula; "" if it is right, None: unknown."""
    rows, d_model = table.shape
    table = table.double()
    positions = torch.arange(start, start + rows, dtype=torch.float64)
    column = torch.arange(d_model)
    pair = column // 2

    def near(other: Tensor) -> bool:
        return bool((table - other).abs().max() < 2e-3)

    def layouts(rates: Tensor) -> list[Tensor]:
        side = _clocks(rates, positions)
        even, odd = side[:, 0::2], side[:, 1::2]
        swapped = torch.stack((odd, even), -1).flatten(1)
        return [side, swapped, torch.cat((even, odd), 1), torch.cat((odd, even), 1)]

    paper = 10_000.0 ** (-2 * pair / d_model)
    tensor2tensor = 10_000.0 ** (-pair / max(d_model / 2 - 1, 1))
    if any(
        near(layout) for rates in (paper, tensor2tensor) for layout in layouts(rates)
    ):
        return ""
    exponents = [
        (2 * column / d_model, _COLUMN_NOT_PAIR),
        (
            torch.where(column % 2 == 0, 2 * column, 2 * (column + 1)) / d_model,
            _COLUMN_NOT_PAIR,
        ),
        (torch.where(column % 2 == 0, column, column + 1) / d_model, _OWN_RATES),
        (4 * pair / d_model, _DOUBLED),
        (column / d_model, _OWN_RATES),
        (pair / d_model, _HALVED),
        (-2 * pair / d_model, _SIGN),
        (2 * (pair + 1) / d_model, _FROM_ONE),
        (torch.zeros(d_model), _ONE_RATE),
    ]
    for exponent, said in exponents:
        if any(near(layout) for layout in layouts(10_000.0 ** -exponent.double())):
            return said
    for base in (100, 1_000, 100_000, 1_000_000):
        rates = float(base) ** (-2.0 * pair / d_model)
        if any(near(layout) for layout in layouts(rates)):
            return _BASE.format(base=base)
    angles = torch.outer(positions, paper)
    if near(angles.sin()):
        return _ALL_SINES
    if near(angles):
        return _ANGLES
    if near(_clocks(paper, positions) * (column % 2 == 0)):
        return _NO_COSINES
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
        said = None
        for start in range(3):
            said = misreading(table, start)
            if said is not None:
                break
        if said == "":
            right += 1
        elif said is not None:
            row = ", ".join(f"{x:.3f}" for x in table[1, :4].tolist())
            seen = f"position 1 begins {row}; the paper's 0.841, 0.540, "
            seen += f"{torch.tensor(10_000.0 ** (-2 / d_model)).sin():.3f}, "
            seen += f"{torch.tensor(10_000.0 ** (-2 / d_model)).cos():.3f}"
            where = ", ".join(x for x in (node.module, node.line) if x) or None
            return [finding("sinusoids", seen, where, misreading=said)], right
    return [], right
