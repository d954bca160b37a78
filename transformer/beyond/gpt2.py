"""GPT-2: learned positions, GELU, pre-norm, one table for input and output.

Made from book/17-language-model.md: edit the chapter, not this file.
"""

from jaxtyping import Float
from torch import Tensor, nn

from transformer.beyond.language_model import LanguageModel, LanguageModelConfig
from transformer.checks import require_positive, require_probability
from transformer.encoder import FeedForward
from transformer.weights.classes import register_model
from transformer.weights.state import tie_parameters

__all__ = [
    "LearnedPositions",
    "GPT2",
]


class LearnedPositions(nn.Module):
    """Learned positions: add a row of a trained table at each position, then dropout.

    Raises:
        ValueError: when asked for positions beyond `max_length`, for a size below 1 or
            dropout outside [0, 1).
    """

    def __init__(
        self, d_model: int, dropout: float = 0.0, max_length: int = 1024
    ) -> None:
        super().__init__()
        require_positive(d_model=d_model, max_length=max_length)
        require_probability(dropout=dropout)
        self.dropout = nn.Dropout(dropout)
        self.table = nn.Embedding(max_length, d_model)
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(
        self, x: Float[Tensor, "batch length d_model"], start: int = 0
    ) -> Float[Tensor, "batch length d_model"]:
        """Add positions to `x`, whose first vector is at position `start`."""
        end, room = start + x.size(-2), self.table.num_embeddings
        if start < 0 or end > room:
            raise ValueError(
                f"positions must lie in 0..{room - 1}, got {start}..{end - 1}"
            )
        return self.dropout(x + self.table.weight[start:end])


@register_model
class GPT2(LanguageModel):
    """GPT-2 (Radford et al. 2019): a language model with three parts exchanged.

    Raises:
        ValueError: for a config that is not pre-norm, and what `LanguageModel` refuses.
    """

    def __init__(self, config: LanguageModelConfig) -> None:
        if not config.norm_first:
            raise ValueError("GPT-2 is pre-norm, got norm_first=False")
        super().__init__(config)
        width = config.d_model
        table = nn.Embedding(config.vocab_size, width)  # not multiplied by √d_model
        nn.init.normal_(table.weight, std=0.02)
        self.embedding = table
        self.position = LearnedPositions(width, config.dropout, config.max_length)
        for layer in self.encoder.layers:
            layer.feed_forward = FeedForward(width, config.d_ff, nn.GELU("tanh"))
        self.tie_weights()

    def tie_weights(self) -> None:
        """Make the embedding table and the output projection one weight."""
        tie_parameters(self, "embedding.weight", "output.weight")
