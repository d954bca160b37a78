"""Parts of today's language models, each in place of one of the Transformer's.

Made from book/19-since-2017.md: edit the chapter, not this file.
"""

from collections.abc import Collection

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from transformer.attention import attention_weights
from transformer.beyond.language_model import LanguageModel, LanguageModelConfig
from transformer.checks import (
    require_above_zero,
    require_divides,
    require_mask,
    require_positive,
    require_same_length,
)
from transformer.encoder import Residual
from transformer.multi_head import KeysValues
from transformer.weights.state import tie_parameters

__all__ = [
    "RMSNorm",
    "RotaryEmbedding",
    "GroupedQueryAttention",
    "SwiGLU",
    "PARTS",
    "exchange_parts",
]


class RMSNorm(nn.Module):
    """Root mean square norm: scale to mean square 1, then by a gain for each column.

    Zhang and Sennrich (2019). Unlike layer norm, it subtracts no mean and adds no bias.

    Raises:
        ValueError: for a size below 1, or an `eps` that is not above 0.
    """

    def __init__(self, d_model: int, eps: float = 1e-6) -> None:
        super().__init__()
        require_positive(d_model=d_model)
        require_above_zero(eps=eps)
        self.weight = nn.Parameter(torch.ones(d_model))
        self.eps = eps

    def forward(
        self, x: Float[Tensor, "*batch d_model"]
    ) -> Float[Tensor, "*batch d_model"]:
        # In float16 the squares would overflow.
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        mean_square = exact.square().mean(dim=-1, keepdim=True)
        return self.weight * (exact * (mean_square + self.eps).rsqrt()).to(x.dtype)


class RotaryEmbedding(nn.Module):
    """Rotary position embedding: turn each pair of columns by position times its rate.

    Su et al. (2021). Column i of the first half and column i of the second are a pair,
    turned by base^(-2i / d_k) radians from each position to the next. There are no
    parameters and no longest length.

    Raises:
        ValueError: for an odd number of columns, or a base that is not above 0.
    """

    def __init__(self, base: float = 10_000.0) -> None:
        super().__init__()
        require_above_zero(base=base)
        self.base = base

    def forward(
        self,
        x: Float[Tensor, "batch heads length d_k"],
        positions: Int[Tensor, "#batch length"] | None = None,
    ) -> Float[Tensor, "batch heads length d_k"]:
        """Turn vectors by their positions, which are 0, 1, 2, … if not given."""
        if x.size(-1) % 2:
            raise ValueError(f"d_k must be even, to make pairs, got {x.size(-1)}")
        if positions is None:
            positions = torch.arange(x.size(-2), device=x.device)
        exact = torch.promote_types(torch.get_default_dtype(), torch.float32)
        pairs = torch.arange(0, x.size(-1), 2, dtype=exact, device=x.device)
        exponents = pairs / x.size(-1)
        angle = positions[..., None, :, None] * self.base**-exponents
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class GroupedQueryAttention(nn.Module):
    """Multi-head attention whose query heads share keys and values in groups.

    Ainslie et al. (2023). With `num_kv_heads` equal to `num_heads` it is multi-head
    attention, with 1 it is multi-query attention (Shazeer 2019). `rotary`, if there is
    one, turns queries and keys by their positions.

    Raises:
        ValueError: when num_heads does not divide d_model or num_kv_heads does not
            divide num_heads, a size is below 1, d_k is odd though vectors are to be
            turned, or a mask does not fit.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        num_kv_heads: int,
        rotary: RotaryEmbedding | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__()
        require_positive(
            d_model=d_model, num_heads=num_heads, num_kv_heads=num_kv_heads
        )
        require_divides(num_heads=num_heads, d_model=d_model)
        require_divides(num_kv_heads=num_kv_heads, num_heads=num_heads)
        self.num_heads, self.d_k = num_heads, d_model // num_heads
        if rotary is not None and self.d_k % 2:
            raise ValueError(f"d_k must be even, to make pairs, got {self.d_k}")
        self.rotary = rotary
        self.query_proj = nn.Linear(d_model, d_model, bias)
        self.key_proj = nn.Linear(d_model, num_kv_heads * self.d_k, bias)
        self.value_proj = nn.Linear(d_model, num_kv_heads * self.d_k, bias)
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
        """Project keys and values, and turn the keys: a cache keeps the result.

        `positions` are the places of the keys, 0, 1, 2, … if they are not given.
        """
        require_same_length(key, value)
        keys = self._turn(self._split(self.key_proj(key)), positions)
        return KeysValues(keys, self._split(self.value_proj(value)))

    def attend(
        self,
        query: Float[Tensor, "batch queries d_model"],
        keys_values: KeysValues,
        mask: Bool[Tensor, "..."] | None = None,
        positions: Int[Tensor, "#batch queries"] | None = None,
    ) -> Float[Tensor, "batch queries d_model"]:
        """Attention over keys and values that are projected and turned already.

        `positions` are the places of the queries, 0, 1, 2, … if they are not given.
        """
        queries = self._turn(self._split(self.query_proj(query)), positions)
        require_same_length(*keys_values)
        keys = keys_values.keys
        batch = torch.broadcast_shapes(queries.shape[:-3], keys.shape[:-3])
        require_mask(mask, (*batch, *queries.shape[-3:-1], keys.size(-2)))
        if mask is not None:
            mask = torch.atleast_2d(mask)
        heads = F.scaled_dot_product_attention(
            queries, *keys_values, mask, enable_gqa=True
        )
        return self.output_proj(heads.transpose(-3, -2).flatten(-2))

    def weights(
        self,
        query: Float[Tensor, "batch queries d_model"],
        key: Float[Tensor, "batch keys d_model"],
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch heads queries keys"]:
        """The attention weights of every query head, for plots and analysis."""
        queries = self._turn(self._split(self.query_proj(query)), None)
        keys = self._turn(self._split(self.key_proj(key)), None)
        shared = self.num_heads // keys.size(-3)  # by so many query heads
        exact = torch.promote_types(query.dtype, torch.float32)  # float16 may overflow
        keys = keys.to(exact).repeat_interleave(shared, -3)
        return attention_weights(queries.to(exact), keys, mask).to(query.dtype)

    def _split(
        self, x: Float[Tensor, "batch length columns"]
    ) -> Float[Tensor, "batch heads length d_k"]:
        return torch.unflatten(x, -1, (-1, self.d_k)).transpose(-3, -2)

    def _turn(self, x: Tensor, positions: Tensor | None) -> Tensor:
        return x if self.rotary is None else self.rotary(x, positions)


class SwiGLU(nn.Module):
    """Gated feed-forward network: contract(silu(gate(x)) · expand(x)), Shazeer (2020).

    Raises:
        ValueError: for a size below 1.
    """

    def __init__(self, d_model: int, d_ff: int, bias: bool = False) -> None:
        super().__init__()
        require_positive(d_model=d_model, d_ff=d_ff)
        self.gate = nn.Linear(d_model, d_ff, bias)
        self.expand = nn.Linear(d_model, d_ff, bias)
        self.contract = nn.Linear(d_ff, d_model, bias)

    def forward(
        self, x: Float[Tensor, "batch length d_model"]
    ) -> Float[Tensor, "batch length d_model"]:
        return self.contract(F.silu(self.gate(x)) * self.expand(x))


PARTS = ("RMSNorm", "rotary", "grouped queries", "SwiGLU", "no biases", "tied")


def exchange_parts(
    config: LanguageModelConfig, parts: Collection[str]
) -> LanguageModel:
    """Make a language model with some of its parts exchanged for those of later years.

    `parts` are among `PARTS`; the config chooses pre-norm. "grouped queries" puts two
    heads into a group, and "tied" makes one table of input and output, as the paper of
    2017 does. Linear maps begin with Xavier's weights and zero biases.

    Raises:
        ValueError: for a part of another name, or grouped queries of an odd number of
            heads.
    """
    if unknown := sorted(set(parts) - set(PARTS)):
        raise ValueError(f"parts must be among {', '.join(PARTS)}, got {unknown[0]!r}")
    if "grouped queries" in parts and config.num_heads % 2:
        raise ValueError(
            f"grouped queries need an even number of heads, got {config.num_heads}"
        )
    model, width, heads = LanguageModel(config), config.d_model, config.num_heads
    rotary = RotaryEmbedding() if "rotary" in parts else None
    if rotary is not None:
        model.position = nn.Identity()
    kv_heads = heads // 2 if "grouped queries" in parts else heads
    for layer in model.encoder.layers:
        layer.self_attention = GroupedQueryAttention(
            width, heads, kv_heads, rotary, bias=True
        )
        if "SwiGLU" in parts:
            layer.feed_forward = SwiGLU(width, config.d_ff, bias=True)
    for module in list(model.modules()):
        if "RMSNorm" in parts and isinstance(module, Residual):
            module.norm = RMSNorm(width)  # type: ignore[assignment]
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    if "RMSNorm" in parts and config.norm_first:
        model.encoder.norm = RMSNorm(width)  # type: ignore[assignment]
    if "no biases" in parts:
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.LayerNorm):
                module.register_parameter("bias", None)
    if "tied" in parts:
        _tie(model)
        model.register_load_state_dict_post_hook(_tie)  # type: ignore[no-untyped-call]
    return model


def _tie(model: nn.Module, *_: object) -> None:
    tie_parameters(model, "embedding.table.weight", "output.weight")
