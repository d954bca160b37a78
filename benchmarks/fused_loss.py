"""The chunked loss for a GPU: what follows a product of logits in one compiled kernel.

The package's loss waits for the GPU to learn which rows are padding, and in each chunk
which probabilities underflowed. Here padding counts as zero, a loss is made from the
logits, and nothing waits.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from transformer.text.words import PAD_ID

Piece = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]


def cost_and_gradient(
    logits: Tensor, labels: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """The losses of some rows, summed, and the gradient of their logits: p - q.

    But for what smoothing takes from every word alike, which needs no logits.
    """
    logits, dtype = logits.float(), logits.dtype
    real = labels != PAD_ID
    top = logits.amax(dim=-1, keepdim=True)
    exponentials = (logits - top).exp()
    total = exponentials.sum(dim=-1, keepdim=True)
    label_logits = logits.gather(-1, labels)
    losses = top + total.log() - (1 - smoothing) * label_logits
    words = torch.arange(logits.size(-1), device=logits.device)
    gradient = exponentials / total - (1 - smoothing) * (words == labels)
    return (losses * real).sum(), (gradient * real).to(dtype)


class FusedLoss(torch.autograd.Function):
    """`ChunkedLoss` with a compiled middle, and products under autocast's type."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        smoothing: float,
        chunk_size: int,
        piece: Piece,
    ) -> Tensor:
        device = hidden.device.type
        rows, table = (x.to(torch.get_autocast_dtype(device)) for x in (hidden, weight))
        real = (labels != PAD_ID).float()[:, None]
        loss = torch.zeros((), device=hidden.device)
        grad_hidden, grad_weight = torch.empty_like(rows), torch.zeros_like(weight)
        with torch.autocast(device, enabled=False):
            for start in range(0, len(rows), chunk_size):
                chunk = slice(start, start + chunk_size)
                logits = rows[chunk] @ table.T
                part, gradient = piece(logits, labels[chunk, None], smoothing)
                loss += part
                torch.mm(gradient, table, out=grad_hidden[chunk])
                grad_weight += gradient.T @ rows[chunk]
            share = smoothing / len(weight)
            weight_sum, hidden_sum = weight.sum(0), (hidden * real).sum(0)
            loss -= share * (weight_sum @ hidden_sum)
            grad_weight -= share * hidden_sum
            grad_hidden = grad_hidden - share * weight_sum * real
        count = real.sum()
        ctx.save_for_backward(
            (grad_hidden / count).to(hidden.dtype), grad_weight / count
        )
        return loss / count

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_loss * grad_hidden, grad_loss * grad_weight, None, None, None, None


def fused_loss(
    hidden: Tensor, weight: Tensor, labels: Tensor, chunk_size: int, piece: Piece
) -> Tensor:
    """What `chunked_loss` gives under autocast, with smoothing of a tenth."""
    hidden, labels = hidden.flatten(0, -2), labels.flatten()
    loss: Tensor = FusedLoss.apply(  # type: ignore[no-untyped-call]
        hidden, weight, labels, 0.1, chunk_size, piece
    )
    return loss
