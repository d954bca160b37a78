"""What must hold of any Transformer, asked from outside: change an input, compare.

Made from book/20-doctor.md: edit the chapter, not this file.
"""

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["moved", "others", "future_leak", "batch_leak", "padding_leak"]


def moved(one: Tensor, other: Tensor) -> Tensor:
    """How far each position of each sentence moved, in shares of the usual size."""
    usual = one.detach().float().abs().mean().clamp(min=1e-6)
    change = (one - other).detach().float().abs().amax(dim=-1) / usual
    return change.nan_to_num(nan=float("inf"))


def others(
    ids: Tensor, place: int, allowed: list[int], row: int | None = None
) -> Tensor:
    """The ids with another token at one place, in one sentence or in all."""
    changed = ids.clone()
    rows = range(len(ids)) if row is None else [row]
    for i in rows:
        old = int(ids[i, place])
        at = (allowed.index(old) if old in allowed else 0) + len(allowed) // 2 + i
        new = allowed[at % len(allowed)]
        changed[i, place] = new if new != old else allowed[(at + 1) % len(allowed)]
    return changed


def future_leak(
    run: Callable[[Tensor], Tensor],
    ids: Tensor,
    allowed: list[int],
    tolerance: float = 1e-4,
    real: Tensor | None = None,
) -> list[tuple[int, int, float]]:
    """Each (output, later token, change): outputs that a later token moves."""
    before = run(ids)
    leaks = []
    for later in range(1, ids.size(1)):
        change = moved(before, run(others(ids, later, allowed)))[:, :later]
        if real is not None:
            change = change * real[:, :later]
        for place, size in enumerate(change.amax(dim=0).tolist()):
            if size > tolerance:
                leaks.append((place, later, size))
    return leaks


def batch_leak(
    run: Callable[[Tensor], Tensor],
    ids: Tensor,
    allowed: list[int],
    tolerance: float = 1e-4,
) -> list[tuple[int, int, float]]:
    """Each (sentence, other sentence, change): a sentence that another one moves."""
    before = run(ids)
    leaks = []
    for row in range(len(ids)):
        changed = ids
        for place in range(ids.size(1)):
            changed = others(changed, place, allowed, row)
        change = moved(before, run(changed)).amax(dim=-1).tolist()
        leaks += [
            (sentence, row, size)
            for sentence, size in enumerate(change)
            if sentence != row and size > tolerance
        ]
    return leaks


def padding_leak(
    run: Callable[[Tensor], Tensor], ids: Tensor, pad_id: int, extra: int = 2
) -> float:
    """How far padding at the end of the sentences moves the outputs of real words."""
    padding = torch.full((len(ids), extra), pad_id)
    alone = run(ids)
    padded = run(torch.cat((ids, padding), dim=1))[:, : alone.size(1)]
    return moved(alone, padded).max().item()
