"""Multi-head attention.

Made from book/05-multi-head.md: edit the chapter, not this file.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from transformer.attention import attention_weights
from transformer.checks import (
    require_divides,
    require_mask,
    require_positive,
    require_probability,
    require_same_length,
)

__all__ = [
    "KeysValues",
    "MultiHeadAttention",
]


class KeysValues(NamedTuple):
    """Keys and values of a sequence, projected and split into heads: what is cached."""

    keys: Float[Tensor, "batch heads keys d_k"]
    values: Float[Tensor, "batch heads keys d_k"]


class MultiHeadAttention(nn.Module):
    """Multi-head attention: `num_heads` subspaces of d_k = d_model / num_heads.

    Section 3.2.2. `mask` is True where a query may attend to a key and broadcasts to
    (batch, heads, queries, keys): a mask of two dimensions is (queries, keys), never
    (batch, keys), for which `padding_mask` makes (batch, 1, 1, keys). `dropout` falls
    on the attention weights, and only in training.

    Raises:
        ValueError: when num_heads does not divide d_model, a size is below 1, dropout
            is outside [0, 1), keys and values differ in number, or a mask does not fit.
    """

    def __init__(
        self, d_model: int, num_heads: int, dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        require_positive(d_model=d_model, num_heads=num_heads)
        require_probability(dropout=dropout)
        require_divides(num_heads=num_heads, d_model=d_model)
        self.num_heads = num_heads
        self.dropout = dropout
        self.query_proj = nn.Linear(d_model, d_model, bias)
        self.key_proj = nn.Linear(d_model, d_model, bias)
        self.value_proj = nn.Linear(d_model, d_model, bias)
        self.output_proj = nn.Linear(d_model, d_model, bias)

    def forward(
        self,
        query: Float[Tensor, "batch queries d_model"],
        key: Float[Tensor, "batch keys d_model"],
        value: Float[Tensor, "batch values d_model"],
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch queries d_model"]:
        return self.attend(query, self.keys_values(key, value), mask)

    def keys_values(
        self,
        key: Float[Tensor, "batch keys d_model"],
        value: Float[Tensor, "batch values d_model"],
        positions: Int[Tensor, "#batch keys"] | None = None,
    ) -> KeysValues:
        """Project keys and values and split them into heads: once, for many queries.

        `positions` are the places of the keys in their sequence, 0, 1, 2, … if they
        are not given. This class does not use them: a subclass may.
        """
        require_same_length(key, value)
        return KeysValues(
            self._split(self.key_proj(key)), self._split(self.value_proj(value))
        )

    def attend(
        self,
        query: Float[Tensor, "batch queries d_model"],
        keys_values: KeysValues,
        mask: Bool[Tensor, "..."] | None = None,
        positions: Int[Tensor, "#batch queries"] | None = None,
    ) -> Float[Tensor, "batch queries d_model"]:
        """Attention over keys and values that are projected already.

        `positions` are the places of the queries, for a subclass that uses them; the
        keys are those at 0, 1, 2, …
        """
        queries, (keys, values) = self._split(self.query_proj(query)), keys_values
        require_same_length(keys, values)
        batch = torch.broadcast_shapes(queries.shape[:-2], keys.shape[:-2])
        require_mask(mask, (*batch, queries.size(-2), keys.size(-2)))
        if mask is not None:
            mask = torch.atleast_2d(mask)  # torch's kernel takes no fewer dimensions
        dropout = self.dropout if self.training else 0.0
        heads = F.scaled_dot_product_attention(queries, keys, values, mask, dropout)
        return self.output_proj(heads.transpose(-3, -2).flatten(-2))

    def weights(
        self,
        query: Float[Tensor, "batch queries d_model"],
        key: Float[Tensor, "batch keys d_model"],
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch heads queries keys"]:
        """The attention weights of every head, for plots and analysis."""
        queries = self._split(self.query_proj(query))
        keys = self._split(self.key_proj(key))
        exact = torch.promote_types(query.dtype, torch.float32)  # float16 may overflow
        weights = attention_weights(queries.to(exact), keys.to(exact), mask)
        return weights.to(query.dtype)

    def _split(
        self, x: Float[Tensor, "batch length d_model"]
    ) -> Float[Tensor, "batch heads length d_k"]:
        return torch.unflatten(x, -1, (self.num_heads, -1)).transpose(-3, -2)

    def extra_repr(self) -> str:
        """What `print(layer)` says beside the maps."""
        return f"num_heads={self.num_heads}, dropout={self.dropout}"
