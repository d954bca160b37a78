"""Linear layers by oneDNN, a library inside PyTorch, on AMD's processors.

Made from book/workshop/real-training.md: edit the chapter, not this file.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transformer.onednn import onednn_linear, onednn_pays, onednn_product
from transformer.training.precision import InPlaceOf, bf16_autocast

__all__ = [
    "onednn_linears",
    "fast_products",
]


_CPU: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
_AMDS = "AMD" in _CPU.get("cpu_name", "")
_LARGE = 2**22  # multiplications from which on oneDNN is worth its call


class _Linear(torch.autograd.Function):
    """A linear layer by oneDNN, and its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        of_x, of_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if of_weight else None, weight if of_x else None)
        return onednn_linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        # If a gradient of the gradient is wanted, the products must have one.
        multiply = torch.mm if torch.is_grad_enabled() else onednn_product
        rows = grad.reshape(-1, grad.size(-1))
        of_x = of_weight = None
        if weight is not None:
            of_x = multiply(rows, weight).view(*grad.shape[:-1], weight.size(1))
        if x is not None:
            of_weight = multiply(rows.T, x.view(-1, x.size(-1)))
        return of_x, of_weight, rows.sum(dim=0) if ctx.needs_input_grad[2] else None


def _pays_for(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether oneDNN is faster for this layer, and what it makes is the same."""
    parts = [x, weight] if bias is None else [x, weight, bias]
    return (
        not torch.compiler.is_compiling()
        and all(_is_plain(part, x) for part in parts)
        and x.shape[-1:] == weight.shape[1:]
        and x.numel() * weight.size(0) >= _LARGE
        and (bias is None or bias.shape == weight.shape[:1])
        and onednn_pays(weight)
        and not torch.is_autocast_enabled("cpu")
        and not _is_saved_elsewhere()
    )


def _is_plain(part: Tensor, x: Tensor) -> bool:
    """Whether oneDNN reads a tensor as PyTorch does, and as it does x."""
    return (
        type(part) in (Tensor, nn.Parameter)
        and (part.dtype, part.device) == (x.dtype, x.device)
        and part.layout is torch.strided
        and not part.is_nested
        and part.is_contiguous()
    )


def _is_saved_elsewhere() -> bool:
    """Whether hooks take what is saved: checkpointing saves it again, without us."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is None or top(True) is not None


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if _pays_for(x, weight, bias):
        return _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return F.linear(x, weight, bias)


def onednn_linears(device: str | torch.device = "cpu") -> AbstractContextManager[Any]:
    """While it lasts, oneDNN makes the products of large `nn.Linear` layers.

    Those of the backward pass, too: only the forward pass need be inside. On another
    device, and on a processor that is not AMD's, nothing changes. Results differ by
    rounding. What transforms or counts PyTorch's own operators, such as `torch.func`,
    `torch.jit.trace` or `FlopCounterMode`, must stay outside.
    """
    pays = _AMDS and torch.device(device).type == "cpu"
    return InPlaceOf(F.linear, _linear) if pays else nullcontext()


def fast_products(
    device: str | torch.device, bf16: bool
) -> AbstractContextManager[Any]:
    """Products in bfloat16, or those in float32 by the faster library."""
    return bf16_autocast(device) if bf16 else onednn_linears(device)
