"""Mixed precision: matrix products in bfloat16, sums and weights in float32.

Made from book/15-faster.md: edit the chapter, not this file.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from transformer.attention import masked_softmax

__all__ = [
    "bf16_autocast",
    "made_for_bf16",
]


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    *more: Any,
) -> Tensor:
    """Attention with products in autocast's precision and a softmax in float32."""
    if dropout or more or not (mask is None or mask.dtype == torch.bool):
        return F.scaled_dot_product_attention(query, key, value, mask, dropout, *more)
    scores = query @ key.transpose(-2, -1)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return masked_softmax(scores / math.sqrt(query.size(-1)), mask) @ value


class _SpelledOut(TorchFunctionMode):
    """Attention spelled out in the place of PyTorch's, where nothing is passed by name.

    `MultiHeadAttention` calls it like that.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is F.scaled_dot_product_attention and not kwargs:
            func = _attention
        return func(*args, **(kwargs or {}))


@contextmanager
def bf16_autocast(device: str | torch.device) -> Iterator[None]:
    """Autocast to bfloat16; on a CPU, attention is spelled out.

    There, fused attention in bfloat16 is slow where sequences are short.
    """
    kind = torch.device(device).type
    with ExitStack() as stack:
        stack.enter_context(torch.autocast(kind, torch.bfloat16))
        if kind == "cpu":
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            stack.enter_context(_SpelledOut())
        yield


def made_for_bf16(device: str | torch.device) -> bool:
    """Whether a device has instructions for products of bfloat16 matrices."""
    if torch.device(device).type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    names = "_is_amx_tile_supported", "_is_avx512_bf16_supported"
    return any(getattr(torch.cpu, name, lambda: False)() for name in names)
