"""Attention masks: True where a query may attend to a key.

Made from book/08-masks.md: edit the chapter, not this file.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from transformer.checks import require_positive

__all__ = [
    "padding_mask",
    "causal_mask",
]


def padding_mask(
    ids: Int[Tensor, "batch length"], pad_id: int
) -> Bool[Tensor, "batch 1 1 length"]:
    """Padding mask: True at tokens that are not padding, for all heads and queries."""
    return (ids != pad_id)[:, None, None, :]


def causal_mask(
    length: int, device: torch.device | str | None = None
) -> Bool[Tensor, "length length"]:
    """Causal mask: True at the query's own position and before it (paper, section 3.1).

    Raises:
        ValueError: for a length below 1.
    """
    require_positive(length=length)
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()
