"""The Transformer without one of its parts, for the break-it lab of chapter 12.

The package has no switch for any of this. Each function takes a complete model or
configuration, replaces a part of it from outside, and returns it.
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
from transformer.training.config import TrainingConfig, noam_learning_rate

HALF = TrainingConfig(
    epochs=1, warmup_steps=150, learning_rate=noam_learning_rate(300, 96, 300)
)
"""The phrasebook's training at double speed: the same rates in half the steps."""


class Times(nn.Module):
    """Multiply by a number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def without_root(model: Transformer) -> Transformer:
    """Scores not divided by √d_k: each query is made √d_k times as long."""
    for part in list(model.modules()):
        if isinstance(part, MultiHeadAttention):
            root = math.sqrt(part.query_proj.out_features / part.num_heads)
            for name in ("weight", "bias"):
                register_parametrization(part.query_proj, name, Times(root))
    return model


class Unmasked(nn.Module):
    """A decoder in which every position attends to what the last one may: to all."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(
        self, x: Tensor, memory: Tensor, source_mask: Tensor, target_mask: Tensor
    ) -> Tensor:
        return self.decoder(x, memory, source_mask, target_mask[..., -1:, :])


def without_causal_mask(model: Transformer) -> Transformer:
    """A decoder that sees the tokens it should predict."""
    model.decoder = Unmasked(model.decoder)  # type: ignore[assignment]
    return model


def without_positions(model: Transformer) -> Transformer:
    """Embeddings without positions, in encoder and decoder."""
    model.position = model.position.dropout  # type: ignore[assignment]
    return model


class WithoutAddition(nn.Module):
    """Dropout and layer norm of a post-norm residual, without the addition."""

    def __init__(self, residual: Residual) -> None:
        super().__init__()
        self.residual = residual

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return self.residual(torch.zeros_like(x), lambda _: sublayer(x))


def without_residuals(model: Transformer) -> Transformer:
    """Each sublayer's output replaces its input instead of being added to it."""
    for stack in (model.encoder, model.decoder):
        for layer in stack.layers:
            parts: Any = layer.residuals
            layer.residuals = nn.ModuleList(WithoutAddition(each) for each in parts)
    return model


def without_warmup(config: TrainingConfig) -> TrainingConfig:
    """The same training with its peak learning rate from the first step."""

    class NoWarmup(type(config)):  # type: ignore[misc]
        def learning_rate_at(self, step: int, total_steps: int, d_model: int) -> float:
            rate = super().learning_rate_at
            return max(
                rate(later, total_steps, d_model)
                for later in range(step, total_steps + 1)
            )

    return NoWarmup(**asdict(config))
