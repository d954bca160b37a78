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
from transformer.onednn import onednn_pays, onednn_product
from transformer.text.words import PAD_ID

__all__ = [
    "ChunkedLoss",
    "chunked_loss",
]


class ChunkedLoss(torch.autograd.Function):
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
        exact = torch.promote_types(weight.dtype, torch.float32)  # sums are kept in it
        autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if autocast else weight.dtype
        table = weight.to(dtype)
        loss = torch.zeros((), dtype=exact, device=hidden.device)
        onednn = onednn_pays(table)
        grad_hidden = torch.zeros_like(hidden, dtype=exact)
        grad_weight = torch.zeros_like(weight.T if onednn else weight, dtype=exact)
        # One buffer serves all chunks; each product of oneDNN brings its own memory.
        buffer = table.new_empty(min(chunk_size, len(hidden)), len(table))
        with torch.autocast(device, enabled=False):
            for start in range(0, len(hidden), chunk_size):
                chunk = slice(start, start + chunk_size)
                rows, label = hidden[chunk].to(dtype), labels[chunk, None]
                if onednn:
                    logits = onednn_product(rows, table.T)
                else:
                    logits = torch.mm(rows, table.T, out=buffer[: len(rows)])
                label_logit = logits.gather(-1, label).squeeze(-1).to(exact)
                probs = torch.softmax(logits, dim=-1, out=logits)  # in their place
                label_prob = probs.gather(-1, label).squeeze(-1)
                log_sum = label_logit - label_prob.to(exact).log()  # log Σ exp(z)
                tiny = torch.finfo(label_prob.dtype).tiny
                underflow = label_prob < tiny  # then by its definition
                logits = rows[underflow] @ table.T
                log_sum[underflow] = logits.to(exact).logsumexp(-1)
                loss += (log_sum - (1 - smoothing) * label_logit).sum()
                if needs_grad:
                    each = torch.arange(len(rows), device=hidden.device)
                    probs[each, label[:, 0]] -= 1 - smoothing  # p - q, but for ε / V
                    if onednn:
                        grad_hidden[chunk] = onednn_product(probs, table)
                        grad_weight += onednn_product(rows.T, probs)  # transposed
                        continue
                    grad_hidden[chunk] = (probs @ table).to(exact)
                    if dtype == exact:
                        grad_weight.addmm_(probs.T, rows)
                    else:  # a half-precision product cannot add to a float32 tensor
                        grad_weight += probs.T @ rows
            if onednn:
                grad_weight = grad_weight.T.contiguous()
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

    What `label_smoothed_loss(hidden @ weight.T, labels)` gives, in nats, but no tensor
    has more than `chunk_size` rows of logits, and the loss is in float32 at least.
    `weight` is the output projection's. `reduction` is "mean", over the labels that are
    not padding, or "sum". A gradient with `create_graph` is refused.

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
    total = ChunkedLoss.apply(  # type: ignore[no-untyped-call]
        hidden, weight, labels.long(), smoothing, chunk_size, torch.is_grad_enabled()
    )
    return total / len(labels) if reduction == "mean" else total
