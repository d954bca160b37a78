"""Made from book/05-multi-head.md: edit the chapter, not this file."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from transformer.attention import attention_weights, require_mask
from transformer.embedding import require_positive

__all__ = [
    "require_dropout",
    "together",
    "KeysValues",
    "MultiHeadAttention",
]


def require_dropout(dropout: float) -> None:
    """Refuse a dropout rate outside [0, 1).

    Raises:
        ValueError: naming the rate.
    """
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must lie in [0, 1), got {dropout}")


def together(
    x: Float[Tensor, "*batch d_in"], *maps: nn.Linear
) -> tuple[Float[Tensor, "*batch d_out"], ...]:
    """What several maps of one size make of one input, by a single product."""
    weight = torch.cat([one.weight for one in maps])
    bias = None if maps[0].bias is None else torch.cat([one.bias for one in maps])
    return F.linear(x, weight, bias).chunk(len(maps), dim=-1)


class KeysValues(NamedTuple):
    """What a sequence offers to queries, projected and split into heads."""

    keys: Float[Tensor, "batch heads keys d_k"]
    values: Float[Tensor, "batch heads keys d_k"]


class MultiHeadAttention(nn.Module):
    """Attend in `num_heads` subspaces of d_k = d_model / num_heads, section 3.2.2.

    `dropout` falls on the attention weights, and only in training.

    Raises:
        ValueError: when num_heads does not divide d_model, a size is below 1, dropout
            is outside [0, 1), or a mask does not fit.
    """

    def __init__(
        self, d_model: int, num_heads: int, dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        require_positive(d_model=d_model, num_heads=num_heads)
        require_dropout(dropout)
        if d_model % num_heads:
            raise ValueError(
                f"num_heads must divide d_model, got {num_heads} and {d_model}"
            )
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
        value: Float[Tensor, "batch keys d_model"],
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch queries d_model"]:
        if query is key is value:
            maps = self.query_proj, self.key_proj, self.value_proj
            queries, *both = map(self._split, together(query, *maps))
            return self._answer(queries, KeysValues(*both), mask)
        return self.attend(query, self.keys_values(key, value), mask)

    def keys_values(
        self,
        key: Float[Tensor, "batch keys d_model"],
        value: Float[Tensor, "batch keys d_model"],
    ) -> KeysValues:
        """Project and split what queries will look at; computed once, used often."""
        return KeysValues(
            self._split(self.key_proj(key)), self._split(self.value_proj(value))
        )

    def attend(
        self,
        query: Float[Tensor, "batch queries d_model"],
        keys_values: KeysValues,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch queries d_model"]:
        """Answer each query from keys and values that are projected already."""
        return self._answer(self._split(self.query_proj(query)), keys_values, mask)

    def weights(
        self,
        query: Float[Tensor, "batch queries d_model"],
        key: Float[Tensor, "batch keys d_model"],
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch heads queries keys"]:
        """The attention weights of every head, for looking at."""
        queries = self._split(self.query_proj(query))
        return attention_weights(queries, self._split(self.key_proj(key)), mask)

    def _answer(
        self,
        queries: Float[Tensor, "batch heads queries d_k"],
        keys_values: KeysValues,
        mask: Bool[Tensor, "..."] | None,
    ) -> Float[Tensor, "batch queries d_model"]:
        require_mask(mask, (*queries.shape[:-1], keys_values.keys.size(-2)))
        if mask is not None:
            mask = torch.atleast_2d(mask)  # a row for every key, the same for all
        dropout = self.dropout if self.training else 0.0
        heads = F.scaled_dot_product_attention(queries, *keys_values, mask, dropout)
        return self.output_proj(heads.transpose(1, 2).flatten(2))

    def _split(
        self, x: Float[Tensor, "batch length d_model"]
    ) -> Float[Tensor, "batch heads length d_k"]:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
