"""Mixed precision: matrix products in bfloat16, sums and weights in float32.

Made from book/15-faster.md: edit the chapter, not this file.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from transformer.attention import masked_softmax

__all__ = [
    "InPlaceOf",
    "bf16_autocast",
    "made_for_bf16",
]


class _Attention(torch.autograd.Function):
    """Attention with products in bfloat16, a softmax in float32, and its gradient."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
    ) -> Tensor:
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        scores = (query @ key.transpose(-2, -1)).float()
        weights = masked_softmax(scores.div_(math.sqrt(query.size(-1))), mask)
        rounded = weights.to(query.dtype)
        ctx.save_for_backward(query, key, value, weights, rounded)
        return rounded @ value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # for a graph of the gradient, which has none here
            raise RuntimeError(
                "bf16_autocast has no second derivative on a CPU: use torch.autocast"
            )
        query, key, value, weights, rounded = ctx.saved_tensors
        grad = grad.contiguous()
        grad_scores = (grad @ value.transpose(-2, -1)).float().mul_(weights)
        grad_scores -= weights * grad_scores.sum(dim=-1, keepdim=True)
        grad_scores = grad_scores.div_(math.sqrt(query.size(-1))).to(grad.dtype)
        grad_query, grad_key = grad_scores @ key, grad_scores.transpose(-2, -1) @ query
        return grad_query, grad_key, rounded.transpose(-2, -1) @ grad, None


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    *more: Any,
) -> Tensor:
    """Ours for equal leading sizes in bfloat16, a boolean mask or none, and no dropout.

    Else PyTorch's.
    """
    parts = query, key, value
    usual = not dropout and not more and (mask is None or mask.dtype == torch.bool)
    halves = all(part.dtype == torch.bfloat16 for part in parts)
    if usual and halves and query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        return cast("Tensor", _Attention.apply(*parts, mask))  # type: ignore[no-untyped-call]
    return F.scaled_dot_product_attention(*parts, mask, dropout, *more)


class InPlaceOf(TorchFunctionMode):
    """While it lasts, one of PyTorch's functions is ours if nothing is passed by name.

    Modules call their functions like that: `nn.Linear` and `MultiHeadAttention` do.
    """

    def __init__(self, theirs: Callable[..., Any], ours: Callable[..., Any]) -> None:
        super().__init__()
        self.theirs, self.ours = theirs, ours

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is self.theirs and not kwargs:
            func = self.ours
        return func(*args, **(kwargs or {}))


@contextmanager
def bf16_autocast(device: str | torch.device) -> Iterator[None]:
    """Autocast to bfloat16; on a CPU, attention is spelled out.

    There, fused attention in bfloat16 is slow where sequences are short; ours has no
    second derivative, `torch.func` cannot transform it, and checkpoints of activations
    (`torch.utils.checkpoint`) must be reentrant.
    """
    kind = torch.device(device).type
    with ExitStack() as stack:
        stack.enter_context(torch.autocast(kind, torch.bfloat16))
        if kind == "cpu":
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            stack.enter_context(InPlaceOf(F.scaled_dot_product_attention, _attention))
        yield


def made_for_bf16(device: str | torch.device) -> bool:
    """Whether a device has instructions for products of bfloat16 matrices."""
    if torch.device(device).type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    names = "_is_amx_tile_supported", "_is_avx512_bf16_supported"
    return any(getattr(torch.cpu, name, lambda: False)() for name in names)
