"""The Transformer with one part taken out, for the break-it lab of chapter 12.

The package has no switch for any of this. Each function takes what is whole, replaces a
part of it from outside, and gives it back.
"""

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from transformer.decoder import Decoder
from transformer.encoder import Residual
from transformer.model import Transformer
from transformer.multi_head import MultiHeadAttention
from transformer.training import Recipe


class Times(nn.Module):
    """Multiply by a number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def without_root(model: Transformer) -> Transformer:
    """Scores that nobody divides by √d_k: each query is made √d_k times as long."""
    for part in list(model.modules()):
        if isinstance(part, MultiHeadAttention):
            root = math.sqrt(part.query_proj.out_features / part.num_heads)
            for name in ("weight", "bias"):
                register_parametrization(part.query_proj, name, Times(root))
    return model


class Peeking(nn.Module):
    """A decoder in which every word may see what the last one may: all of them."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(
        self, x: Tensor, memory: Tensor, source_mask: Tensor, target_mask: Tensor
    ) -> Tensor:
        return self.decoder(x, memory, source_mask, target_mask[..., -1:, :])


def without_causal_mask(model: Transformer) -> Transformer:
    """A decoder that sees the words it should predict."""
    model.decoder = Peeking(model.decoder)  # type: ignore[assignment]
    return model


def without_positions(model: Transformer) -> Transformer:
    """Words go in without their places, on both sides."""
    model.position = model.position.dropout  # type: ignore[assignment]
    return model


class Alone(nn.Module):
    """A post-norm residual that forgets to add what the sublayer was told."""

    def __init__(self, residual: Residual) -> None:
        super().__init__()
        self.residual = residual

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return self.residual(torch.zeros_like(x), lambda _: sublayer(x))


def without_residuals(model: Transformer) -> Transformer:
    """Each sublayer passes on what it says, and nothing of what it was told."""
    for stack in (model.encoder, model.decoder):
        for layer in stack.layers:
            parts: Any = layer.residuals
            layer.residuals = nn.ModuleList(Alone(each) for each in parts)
    return model


class Half(Recipe):
    """A recipe passed through at double speed: the same rates in half the steps."""

    def rate(self, step: int, total: int, d_model: int) -> float:
        return super().rate(2 * step, 2 * total, d_model)


def without_warmup(recipe: Recipe) -> Recipe:
    """The same recipe, its learning rate never rising: it starts at the peak."""

    class AtOnce(type(recipe)):  # type: ignore[misc]
        def rate(self, step: int, total: int, d_model: int) -> float:
            ahead = range(step, total + 1)
            return max(super(AtOnce, self).rate(s, total, d_model) for s in ahead)

    return AtOnce(**asdict(recipe))
