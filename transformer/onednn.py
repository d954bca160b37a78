"""oneDNN, a library inside PyTorch, multiplies matrices where that is faster.

Made from book/15-faster.md: edit the chapter, not this file.
"""

from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = [
    "onednn_pays",
    "onednn_linear",
    "onednn_product",
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
    on = torch.backends.mkldnn.is_available() and torch._C._get_mkldnn_enabled()
    return plain and has_op and on and not _INTELS


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear layer's output; the weight may be stored in oneDNN's own order."""
    linear = torch.ops.mkldnn._linear_pointwise
    return cast("Tensor", linear(x, weight, bias, "none", [], ""))


def onednn_product(
    a: Float[Tensor, "n k"], b: Float[Tensor, "k m"]
) -> Float[Tensor, "n m"]:
    """The matrix product a b."""
    if torch.compiler.is_compiling():  # the compiler takes oneDNN's for constants alone
        return a @ b
    return onednn_linear(a.contiguous(), b.T)
