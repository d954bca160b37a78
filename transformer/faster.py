"""Made from book/15-faster.md: edit the chapter, not this file."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel

from transformer.data import PAD, Batch
from transformer.embedding import require_positive
from transformer.masks import padding_mask
from transformer.model import Transformer

__all__ = [
    "ChunkedLoss",
    "summed_loss",
    "chunked_loss",
    "lesson_loss",
    "half_precision",
]


class ChunkedLoss(torch.autograd.Function):
    """The smoothed losses of some rows, summed; their gradient is made at once."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Float[Tensor, "rows d_model"],
        table: Float[Tensor, "vocabulary d_model"],
        wanted: Int[Tensor, "rows"],
        smoothing: float,
        rows_at_once: int,
        learning: bool,
    ) -> Float[Tensor, ""]:
        device = hidden.device.type
        exact = torch.promote_types(table.dtype, torch.float32)  # what sums are kept in
        autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if autocast else table.dtype
        words = table.to(dtype)
        loss = torch.zeros((), dtype=exact, device=hidden.device)
        grad_hidden = torch.zeros_like(hidden, dtype=exact)
        grad_table = torch.zeros_like(table, dtype=exact)
        with torch.autocast(device, enabled=False):
            for start in range(0, len(hidden), rows_at_once):
                some = slice(start, start + rows_at_once)
                rows, right = hidden[some].to(dtype), wanted[some, None]
                logits = rows @ words.T
                chances = logits.softmax(dim=-1)
                # ln Σ exp(z) is z - ln p of any word: here of the likeliest.
                log_sum = logits.amax(-1).to(exact) - chances.amax(-1).to(exact).log()
                of_right = logits.gather(-1, right).squeeze(-1)
                loss += (log_sum - (1 - smoothing) * of_right).sum()
                if learning:
                    less = chances.new_full(right.shape, smoothing - 1)
                    chances.scatter_add_(-1, right, less)  # p - q, but for ε / V
                    grad_hidden[some] = (chances @ words).to(exact)
                    if dtype == exact:
                        grad_table.addmm_(chances.T, rows)
                    else:  # a product in half precision cannot add to a whole one
                        grad_table += chances.T @ rows
            share = smoothing / len(table)
            every_word, every_row = (
                table.sum(0, dtype=exact),
                hidden.sum(0, dtype=exact),
            )
            loss -= share * (every_word @ every_row)
            grad_hidden -= share * every_word
            grad_table -= share * every_row
        ctx.save_for_backward(grad_hidden.to(hidden.dtype), grad_table.to(table.dtype))
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Float[Tensor, ""]) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_table = ctx.saved_tensors
        return slope * grad_hidden, slope * grad_table, None, None, None, None


def summed_loss(
    hidden: Float[Tensor, "targets d_model"],
    table: Float[Tensor, "vocabulary d_model"],
    wanted: Int[Tensor, "targets"],
    smoothing: float = 0.1,
    rows_at_once: int = 256,
) -> Float[Tensor, ""]:
    """The smoothed losses of targets, summed, in nats; none of them may be padding.

    Never more than `rows_at_once` rows of logits exist, and the gradient is made in the
    same pass. `table` is the weight of the output map.

    Raises:
        ValueError: for smoothing outside [0, 1), sizes that disagree, `rows_at_once`
            below 1, no targets, or one that the table has no row for.
    """
    require_positive(rows_at_once=rows_at_once)
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing must lie in [0, 1), got {smoothing}")
    if hidden.shape[:-1] != wanted.shape:
        shapes = f"{tuple(hidden.shape)} and {tuple(wanted.shape)}"
        raise ValueError(f"each target needs a row of hidden, got {shapes}")
    if hidden.size(-1) != table.size(-1):
        widths = f"{hidden.size(-1)} and {table.size(-1)}"
        raise ValueError(f"hidden and table must be equally wide, got {widths}")
    if not len(wanted):
        raise ValueError("a loss needs at least one target, got only padding")
    low, high = (int(bound) for bound in wanted.aminmax())
    if low < 0 or high >= len(table):
        wrong = low if low < 0 else high
        raise ValueError(f"targets must lie in 0..{len(table) - 1}, got {wrong}")
    learning = torch.is_grad_enabled()
    return ChunkedLoss.apply(  # type: ignore[no-untyped-call]
        hidden, table, wanted, smoothing, rows_at_once, learning
    )


def chunked_loss(
    hidden: Float[Tensor, "batch length d_model"],
    table: Float[Tensor, "vocabulary d_model"],
    wanted: Int[Tensor, "batch length"],
    smoothing: float = 0.1,
    pad_id: int = PAD,
    rows_at_once: int = 256,
) -> Float[Tensor, ""]:
    """What `label_smoothed_loss(hidden @ table.T, wanted)` says, without the logits.

    Raises:
        ValueError: for what `summed_loss` refuses, or targets that are all padding.
    """
    if hidden.shape[:-1] != wanted.shape:
        shapes = f"{tuple(hidden.shape)} and {tuple(wanted.shape)}"
        raise ValueError(f"each target needs a row of hidden, got {shapes}")
    real = wanted != pad_id
    total = summed_loss(hidden[real], table, wanted[real], smoothing, rows_at_once)
    return total / real.sum()


def lesson_loss(
    model: Transformer, batch: Batch, smoothing: float = 0.1, rows_at_once: int = 256
) -> Float[Tensor, ""]:
    """The smoothed loss of a batch, with logits only where there is a target."""
    pad_id = model.config.pad_id
    source_mask = padding_mask(batch.source, pad_id)
    hidden = model.decode(batch.given, model.encode(batch.source), source_mask)
    table = model.output.weight
    return chunked_loss(hidden, table, batch.wanted, smoothing, pad_id, rows_at_once)


@contextmanager
def half_precision(device: str) -> Iterator[None]:
    """Large products in bfloat16; on a processor, attention spelled out.

    There, fused attention in bfloat16 is slow where sequences are short.
    """
    kernels = list(SDPBackend.__members__.values())
    if device == "cpu":
        kernels = [SDPBackend.MATH]
    with torch.autocast(device, torch.bfloat16), sdpa_kernel(kernels):
        yield
