"""Transformer encoder: feed-forward, residual connections, layers.

Made from book/07-encoder.md: edit the chapter, not this file.
"""

from collections.abc import Callable

from jaxtyping import Bool, Float
from torch import Tensor, nn

from transformer.checks import require_bool, require_positive, require_probability
from transformer.multi_head import MultiHeadAttention

__all__ = [
    "FeedForward",
    "Residual",
    "EncoderLayer",
    "Encoder",
]


class FeedForward(nn.Module):
    """Position-wise feed-forward network: two linear maps, ReLU between (paper, eq. 2).

    Later models put another `activation` in the place of the ReLU.

    Raises:
        ValueError: for a size below 1.
    """

    def __init__(
        self, d_model: int, d_ff: int, activation: nn.Module | None = None
    ) -> None:
        super().__init__()
        require_positive(d_model=d_model, d_ff=d_ff)
        self.expand = nn.Linear(d_model, d_ff)
        self.activation = nn.ReLU() if activation is None else activation
        self.contract = nn.Linear(d_ff, d_model)

    def forward(
        self, x: Float[Tensor, "batch length d_model"]
    ) -> Float[Tensor, "batch length d_model"]:
        return self.contract(self.activation(self.expand(x)))


class Residual(nn.Module):
    """Residual connection with layer norm and dropout.

    Post-norm, as in the paper: norm(x + sublayer(x)). Pre-norm (`norm_first`):
    x + sublayer(norm(x)). Dropout falls on the sublayer's output (paper, section 5.4).

    Raises:
        ValueError: for a size below 1, or dropout outside [0, 1).
        TypeError: for a `norm_first` that is not True or False.
    """

    def __init__(
        self, d_model: int, dropout: float = 0.0, norm_first: bool = False
    ) -> None:
        super().__init__()
        require_positive(d_model=d_model)
        require_probability(dropout=dropout)
        require_bool(norm_first=norm_first)
        self.norm = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)
        self.norm_first = norm_first

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        sublayer: Callable[[Tensor], Tensor],
    ) -> Float[Tensor, "batch length d_model"]:
        if self.norm_first:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))

    def extra_repr(self) -> str:
        """What `print(residual)` says beside the parts."""
        return f"norm_first={self.norm_first}"


class EncoderLayer(nn.Module):
    """Encoder layer: self-attention and feed-forward, each in a residual (paper, 3.1).

    `mask` is True where a query may attend: `padding_mask` makes (batch, 1, 1, length).

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
        self.feed_forward = FeedForward(d_model, d_ff)
        self.residuals = nn.ModuleList(
            Residual(d_model, dropout, norm_first) for _ in range(2)
        )

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        x = self.residuals[0](x, lambda x: self.self_attention(x, x, x, mask))
        return self.residuals[1](x, self.feed_forward)


class Encoder(nn.Module):
    """Encoder: a stack of layers, each with parameters of its own (paper, section 3.1).

    Pre-norm leaves the last sum unnormalised, so such a stack ends with one more norm.
    `mask` is True where a query may attend: `padding_mask` makes (batch, 1, 1, length).

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
            EncoderLayer(d_model, num_heads, d_ff, dropout, norm_first)
            for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(d_model) if norm_first else nn.Identity()

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)
