"""The label-smoothed loss without all the logits at once.

Made from book/15-faster.md: edit the chapter, not this file.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transformer.checks import (
    require_labels,
    require_positive,
    require_probability,
)
from transformer.text.words import PAD_ID

__all__ = ["chunked_loss"]


class _ChunkedLoss(torch.autograd.Function):
    """The sum of smoothed losses; its gradient is made in the same pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Float[Tensor, "rows d_model"],
        weight: Float[Tensor, "vocabulary d_model"],
        labels: Int[Tensor, " rows"],
        smoothing: float,
        chunk_size: int,
        needs_grad: bool,
    ) -> Float[Tensor, ""]:
        device = hidden.device.type
        # Products are made in `dtype`; probabilities and sums are `exact`.
        exact = torch.promote_types(weight.dtype, torch.float32)
        autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if autocast else weight.dtype
        table = weight.to(dtype)
        loss = torch.zeros((), dtype=exact, device=hidden.device)
        grad_hidden = torch.zeros_like(hidden, dtype=exact)
        grad_weight = torch.zeros_like(weight, dtype=exact)
        # All chunks use the same memory; probabilities are written over the logits
        # where both have the same type.
        all_logits = table.new_empty(min(chunk_size, len(hidden)), len(table))
        all_probs = all_logits if dtype == exact else all_logits.to(exact)
        with torch.autocast(device, enabled=False):
            for start in range(0, len(hidden), chunk_size):
                chunk = slice(start, start + chunk_size)
                rows, label = hidden[chunk].to(dtype), labels[chunk, None]
                logits, probs = all_logits[: len(rows)], all_probs[: len(rows)]
                torch.mm(rows, table.T, out=logits)
                label_logit = logits.gather(-1, label).squeeze(-1).to(exact)
                torch.softmax(logits, dim=-1, dtype=exact, out=probs)
                label_prob = probs.gather(-1, label).squeeze(-1)
                log_prob = label_prob.log()
                # A probability too small for its type has a logarithm all the same.
                tiny = label_prob < torch.finfo(exact).tiny
                log_sum = (rows[tiny] @ table.T).to(exact).logsumexp(-1)
                log_prob[tiny] = label_logit[tiny] - log_sum
                loss += (smoothing * label_logit - log_prob).sum()
                if needs_grad:
                    each = torch.arange(len(rows), device=hidden.device)
                    probs[each, label[:, 0]] -= 1 - smoothing  # p - q, but for ε / V
                    slopes = logits.copy_(probs)  # rounded only now
                    grad_hidden[chunk] = slopes @ table
                    if dtype == exact:
                        grad_weight.addmm_(slopes.T, rows)
                    else:  # a half-precision product cannot add to a float32 tensor
                        grad_weight += slopes.T @ rows
            share = smoothing / len(weight)
            weight_sum = weight.sum(0, dtype=exact)
            hidden_sum = hidden.sum(0, dtype=exact)
            loss -= share * (weight_sum @ hidden_sum)
            grad_hidden -= share * weight_sum
            grad_weight -= share * hidden_sum
        ctx.save_for_backward(
            grad_hidden.to(hidden.dtype), grad_weight.to(weight.dtype)
        )
        return loss

    @staticmethod
    def backward(ctx: Any, grad_loss: Float[Tensor, ""]) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # for a graph of the gradient, which has none here
            raise RuntimeError(
                "chunked_loss has no second derivative: use label_smoothed_loss"
            )
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_loss * grad_hidden, grad_loss * grad_weight, None, None, None, None


def chunked_loss(
    hidden: Float[Tensor, "*positions d_model"],
    weight: Float[Tensor, "vocabulary d_model"],
    labels: Int[Tensor, "*positions"],
    smoothing: float = 0.1,
    pad_id: int = PAD_ID,
    chunk_size: int = 512,
    reduction: str = "mean",
) -> Float[Tensor, ""]:
    """Label-smoothed cross-entropy of a linear map's outputs, chunk by chunk.

    This is `label_smoothed_loss(hidden @ weight.T, labels)`, in nats, but no tensor
    holds more than `chunk_size` rows of logits. Probabilities and sums are in float32
    at least, whatever the logits are in. `weight` is the output projection's.
    `reduction` is "mean", over the labels that are not padding, or "sum". A gradient
    with `create_graph` is refused.

    Raises:
        ValueError: for smoothing outside [0, 1), sizes that disagree, a `chunk_size`
            below 1, another `reduction`, labels that are all padding, or (on a CPU) one
            that `weight` has no row for.
    """
    require_positive(chunk_size=chunk_size)
    require_probability(smoothing=smoothing)
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction must be mean or sum, got {reduction!r}")
    if hidden.shape[:-1] != labels.shape:
        shapes = f"{tuple(hidden.shape)} and {tuple(labels.shape)}"
        raise ValueError(f"each label needs a row of hidden, got {shapes}")
    if hidden.size(-1) != weight.size(-1):
        widths = f"{hidden.size(-1)} and {weight.size(-1)}"
        raise ValueError(f"hidden and weight must be equally wide, got {widths}")
    real = labels != pad_id
    hidden, labels = hidden[real], labels[real]
    if not len(labels):
        raise ValueError("a loss needs at least one label, got only padding")
    require_labels(labels, len(weight))
    total = _ChunkedLoss.apply(  # type: ignore[no-untyped-call]
        hidden, weight, labels.long(), smoothing, chunk_size, torch.is_grad_enabled()
    )
    return total / len(labels) if reduction == "mean" else total
