"""Llama: RMSNorm, rotary positions, grouped queries and SwiGLU in a language model.

Made from book/19-since-2017.md: edit the chapter, not this file.
"""

from dataclasses import dataclass

from torch import nn

from transformer.beyond.language_model import LanguageModel, LanguageModelConfig
from transformer.beyond.modern import (
    GroupedQueryAttention,
    RMSNorm,
    RotaryEmbedding,
    SwiGLU,
)
from transformer.checks import (
    require_above_zero,
    require_bool,
    require_divides,
    require_positive,
)
from transformer.encoder import Residual
from transformer.weights.classes import register_model
from transformer.weights.state import tie_parameters

__all__ = [
    "LlamaConfig",
    "Llama",
]


@dataclass(frozen=True)
class LlamaConfig(LanguageModelConfig):
    """Llama configuration: a language model's, and what its exchanged parts need.

    `num_kv_heads` is the number of sets of keys and values, which must divide
    `num_heads`. If it is None, every head has a set of its own.

    Raises:
        ValueError: naming the first field that no model could be built from.
    """

    dropout: float = 0.0
    num_kv_heads: int | None = None
    rope_base: float = 10_000.0
    norm_eps: float = 1e-6
    tie_embeddings: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        sets = self.num_heads if self.num_kv_heads is None else self.num_kv_heads
        require_positive(num_kv_heads=sets)
        require_bool(tie_embeddings=self.tie_embeddings)
        require_above_zero(rope_base=self.rope_base, norm_eps=self.norm_eps)
        d_k = self.d_model // self.num_heads
        if d_k % 2:
            raise ValueError(f"d_k must be even, to make pairs, got {d_k}")
        require_divides(num_kv_heads=sets, num_heads=self.num_heads)
        if not self.norm_first or self.dropout:
            raise ValueError(
                "a Llama is pre-norm and has no dropout, "
                f"got norm_first={self.norm_first} and dropout={self.dropout}"
            )


@register_model
class Llama(LanguageModel):
    """Llama (Touvron et al. 2023a, b): a language model with its parts exchanged.

    The forward pass accepts texts longer than `config.max_length`, but may predict
    badly far beyond what it was trained on; cached decoding does not accept them.

    Raises:
        ValueError: for token ids outside the vocabulary, of the wrong dtype or empty.
    """

    config: LlamaConfig
    config_class = LlamaConfig

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        width, heads = config.d_model, config.num_heads
        sets = config.num_kv_heads or heads
        self.embedding = nn.Embedding(config.vocab_size, width)
        nn.init.normal_(self.embedding.weight, std=0.02)  # also an output, if tied
        self.position = nn.Identity()
        rotary = RotaryEmbedding(config.rope_base)
        for layer in self.encoder.layers:
            layer.self_attention = GroupedQueryAttention(width, heads, sets, rotary)
            layer.feed_forward = SwiGLU(width, config.d_ff)
        for module in list(self.modules()):
            if isinstance(module, Residual):
                module.norm = RMSNorm(width, config.norm_eps)  # type: ignore[assignment]
        norm = RMSNorm(width, config.norm_eps)
        self.encoder.norm = norm  # type: ignore[assignment]
        self.tie_weights()

    def tie_weights(self) -> None:
        """Make the embedding table and the output projection one, if they are to be."""
        if self.config.tie_embeddings:
            tie_parameters(self, "embedding.weight", "output.weight")
