"""Positional encoding: sines and cosines of the position.

Made from book/06-positional.md: edit the chapter, not this file.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer.checks import require_positive, require_probability

__all__ = [
    "sinusoids",
    "PositionalEncoding",
]


def sinusoids(length: int, d_model: int) -> Float[Tensor, "length d_model"]:
    """Sinusoidal positions: sines in even columns, cosines in odd (paper, section 3.5).

    Columns 2i and 2i + 1 turn by 10000^(-2i / d_model) radians from one position to the
    next: the first once in 2π positions, the last once in 2π · 10000^(1 - 2 / d_model).

    Raises:
        ValueError: for a size below 1 or an odd d_model.
    """
    require_positive(length=length, d_model=d_model)
    if d_model % 2:
        raise ValueError(
            f"d_model must be even, a cosine for every sine, got {d_model}"
        )
    device = torch.empty(0).device
    if device.type == "meta":  # where tensors have shapes and no numbers
        return torch.empty(length, d_model)
    # On the CPU, because not every device has numbers of 64 bits.
    position = torch.arange(length, dtype=torch.float64, device="cpu")
    column = torch.arange(0, d_model, 2, dtype=torch.float64, device="cpu")
    rate = 10_000 ** (-column / d_model)
    angle = torch.outer(position, rate)
    table = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)
    return table.to(torch.get_default_dtype()).to(device)


class PositionalEncoding(nn.Module):
    """Positional encoding: add the sinusoids, then dropout (paper, section 5.4).

    The table is a buffer: no parameter, but a part of the state, so that a model made
    on the meta device is whole once its state is loaded.

    Raises:
        ValueError: when asked for positions beyond `max_length`, for an odd d_model, a
            size below 1 or dropout outside [0, 1).
    """

    table: Float[Tensor, "max_length d_model"]

    def __init__(
        self, d_model: int, dropout: float = 0.0, max_length: int = 1024
    ) -> None:
        super().__init__()
        require_positive(max_length=max_length)
        require_probability(dropout=dropout)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("table", sinusoids(max_length, d_model))

    def forward(
        self, x: Float[Tensor, "batch length d_model"], start: int = 0
    ) -> Float[Tensor, "batch length d_model"]:
        """Add positions to `x`, whose first vector is at position `start`."""
        end = start + x.size(-2)
        if start < 0 or end > len(self.table):
            last = len(self.table) - 1
            raise ValueError(f"positions must lie in 0..{last}, got {start}..{end - 1}")
        return self.dropout(x + self.table[start:end])
