"""oneDNN, a library inside PyTorch, multiplies matrices where that is faster.

Made from book/15-faster.md: edit the chapter, not this file.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

__all__ = [
    "onednn_pays",
    "onednn_product",
    "onednn_linears",
]


def _is_intels() -> bool:
    """Whether Intel made the processor and MKL, its own library, is at hand."""
    known: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return torch.backends.mkl.is_available() and "Intel" in known.get("cpu_name", "")


_INTELS = _is_intels()


def onednn_pays(weight: Tensor) -> bool:
    """Whether oneDNN multiplies by a weight faster than PyTorch's default does.

    In float32 on a CPU, if PyTorch has oneDNN, unless the processor is known to be
    Intel's and MKL is at hand. We tried AMD's and Intel's.
    """
    plain = weight.device.type == "cpu" and weight.dtype == torch.float32
    has_op = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return plain and has_op and torch.backends.mkldnn.is_available() and not _INTELS


def onednn_product(
    a: Float[Tensor, "n k"], b: Float[Tensor, "k m"]
) -> Float[Tensor, "n m"]:
    """The matrix product a b."""
    return _linear(a.contiguous(), b.T, None)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    linear = torch.ops.mkldnn._linear_pointwise
    return cast("Tensor", linear(x, weight, bias, "none", [], ""))


_LARGE = 2**22  # multiplications from which on oneDNN is worth its call


class _Linear(torch.autograd.Function):
    """A linear layer by oneDNN, and its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        # If a gradient of the gradient is wanted, the products must have one.
        multiply = torch.mm if torch.is_grad_enabled() else onednn_product
        rows = grad.reshape(-1, grad.size(-1))
        return (
            multiply(rows, weight).view(x.shape) if of_x else None,
            multiply(rows.T, x.reshape(-1, x.size(-1))) if of_weight else None,
            rows.sum(dim=0) if of_bias else None,
        )


def _pays_for(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN is faster for this layer, and what it makes is the same."""
    return (
        not torch.compiler.is_compiling()
        and x.numel() * weight.size(0) >= _LARGE
        and x.dtype == weight.dtype
        and x.shape[-1:] == weight.shape[1:]
        and onednn_pays(weight)
        and not torch.is_autocast_enabled("cpu")
    )


class _Linears(TorchFunctionMode):
    """Linear layers by oneDNN in the place of PyTorch's, called as `nn.Linear` does."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is F.linear and len(args) == 3 and not types and _pays_for(*args[:2]):
            return _Linear.apply(*args)  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


def onednn_linears(device: str | torch.device = "cpu") -> AbstractContextManager[Any]:
    """While it lasts, oneDNN makes the products of large `nn.Linear` layers.

    Those of the backward pass, too: only the forward pass need be inside. Where
    PyTorch's default is as fast, on another device or an Intel processor, nothing
    changes. Results differ by rounding; `torch.func` cannot transform the layers.
    """
    usual = _INTELS or torch.device(device).type != "cpu"
    return nullcontext() if usual else _Linears()
