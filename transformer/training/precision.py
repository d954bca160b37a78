"""Mixed precision: matrix products in bfloat16, sums and weights in float32.

Made from book/15-faster.md: edit the chapter, not this file.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

__all__ = [
    "bf16_autocast",
    "made_for_bf16",
]


@contextmanager
def bf16_autocast(device: str | torch.device) -> Iterator[None]:
    """Autocast to bfloat16; on a CPU, attention is spelled out.

    There, fused attention in bfloat16 is slow where sequences are short.
    """
    kind = torch.device(device).type
    attention = sdpa_kernel(SDPBackend.MATH) if kind == "cpu" else nullcontext()
    with torch.autocast(kind, torch.bfloat16), attention:
        yield


def made_for_bf16(device: str | torch.device) -> bool:
    """Whether a device has instructions for products of bfloat16 matrices."""
    if torch.device(device).type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    names = "_is_amx_tile_supported", "_is_avx512_bf16_supported"
    return any(getattr(torch.cpu, name, lambda: False)() for name in names)
