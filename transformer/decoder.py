"""Transformer decoder: masked self-attention, cross-attention, feed-forward.

Made from book/09-decoder.md: edit the chapter, not this file.
"""

from jaxtyping import Bool, Float
from torch import Tensor, nn

from transformer.checks import require_positive
from transformer.encoder import FeedForward, Residual
from transformer.multi_head import MultiHeadAttention

__all__ = [
    "DecoderLayer",
    "Decoder",
]


class DecoderLayer(nn.Module):
    """Decoder layer: masked self-attention, cross-attention, feed-forward (paper, 3.1).

    Masks are True where a query may attend. `source_mask` is the `padding_mask` of the
    sources, (batch, 1, 1, source); `target_mask` is that of the targets & the
    `causal_mask`, (batch, 1, target, target).

    Raises:
        ValueError: for sizes, a dropout rate or a `norm_first` that its parts refuse.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        dropout: float = 0.0,
        norm_first: bool = False,
    ) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, num_heads)
        self.cross_attention = MultiHeadAttention(d_model, num_heads)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.residuals = nn.ModuleList(
            Residual(d_model, dropout, norm_first) for _ in range(3)
        )

    def forward(
        self,
        x: Float[Tensor, "batch target d_model"],
        memory: Float[Tensor, "batch source d_model"],
        source_mask: Bool[Tensor, "..."] | None = None,
        target_mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch target d_model"]:
        x = self.residuals[0](x, lambda x: self.self_attention(x, x, x, target_mask))
        x = self.residuals[1](
            x, lambda x: self.cross_attention(x, memory, memory, source_mask)
        )
        return self.residuals[2](x, self.feed_forward)


class Decoder(nn.Module):
    """Decoder: a stack of layers over one memory, each with its weights (paper, 3.1).

    Pre-norm leaves the last sum unnormalised, so such a stack ends with one more norm.
    Masks are True where a query may attend. `source_mask` is the `padding_mask` of the
    sources, (batch, 1, 1, source); `target_mask` is that of the targets & the
    `causal_mask`, (batch, 1, target, target).

    Raises:
        ValueError: for sizes, a dropout rate or a `norm_first` that its parts refuse.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        num_layers: int,
        dropout: float = 0.0,
        norm_first: bool = False,
    ) -> None:
        super().__init__()
        require_positive(num_layers=num_layers)
        self.layers = nn.ModuleList(
            DecoderLayer(d_model, num_heads, d_ff, dropout, norm_first)
            for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(d_model) if norm_first else nn.Identity()

    def forward(
        self,
        x: Float[Tensor, "batch target d_model"],
        memory: Float[Tensor, "batch source d_model"],
        source_mask: Bool[Tensor, "..."] | None = None,
        target_mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch target d_model"]:
        for layer in self.layers:
            x = layer(x, memory, source_mask, target_mask)
        return self.norm(x)
