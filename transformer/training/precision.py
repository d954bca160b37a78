"""Mixed precision: matrix products in bfloat16, sums and weights in float32.

Made from book/15-faster.md: edit the chapter, not this file.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from transformer.attention import scaled_dot_product_attention

__all__ = [
    "bf16_autocast",
    "supports_bf16",
]


class _SpelledOutAttention(TorchFunctionMode):
    """While it lasts, in this thread, chapter 4's attention stands in for PyTorch's."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is F.scaled_dot_product_attention and not kwargs and _is_plain(*args):
            parts, mask = args[:3], args[3:4]
            # Heads may share keys and values, as grouped queries do.
            shared = torch.broadcast_shapes(*(part.shape[:-2] for part in parts))
            whole = (part.expand(*shared, *part.shape[-2:]) for part in parts)
            return scaled_dot_product_attention(*whole, *mask)
        return func(*args, **(kwargs or {}))


def _is_plain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    *more: Any,
) -> bool:
    """Whether chapter 4's attention has all that a call asks for."""
    return not dropout and not more and (mask is None or mask.dtype == torch.bool)


@contextmanager
def bf16_autocast(device: str | torch.device, enabled: bool = True) -> Iterator[None]:
    """Autocast to bfloat16; on a CPU, attention is spelled out.

    PyTorch's fused attention is slow there in bfloat16 where sequences are short. The
    spelled-out one stores a table of weights, which grows with the square of the
    length. With `enabled` False, nothing changes.
    """
    kind = torch.device(device).type
    with ExitStack() as stack:
        if enabled:
            stack.enter_context(torch.autocast(kind, torch.bfloat16))
        if enabled and kind == "cpu":
            stack.enter_context(_SpelledOutAttention())
        yield


def supports_bf16(device: str | torch.device) -> bool:
    """Whether a device is known to have instructions for bfloat16 matrices.

    Older releases of PyTorch do not say what a CPU has: then the answer is no.
    """
    kind = torch.device(device).type
    if kind == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    known: dict[str, Any] = {}
    if kind == "cpu":
        known = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(known.get("amx_bf16") or known.get("avx512_bf16"))
