"""The Transformer: an encoder, a decoder and an output projection.

Made from book/10-model.md: edit the chapter, not this file.
"""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformer.checks import (
    require_bool,
    require_divides,
    require_ids,
    require_positive,
    require_probability,
    require_same_batch,
)
from transformer.decoder import Decoder
from transformer.embedding import TokenEmbedding
from transformer.encoder import Encoder
from transformer.masks import causal_mask, padding_mask
from transformer.positional import PositionalEncoding
from transformer.weights.classes import register_model
from transformer.weights.saved_model import SavedModel
from transformer.weights.state import tie_parameters

__all__ = [
    "TransformerConfig",
    "Transformer",
]


@dataclass(frozen=True)
class TransformerConfig:
    """Model configuration: sizes and choices; the default sizes are the paper's base.

    `tie_embeddings` shares one table between source, target and output (paper, section
    3.4); `max_length` is the longest sequence, in tokens, that has positions.

    Raises:
        ValueError: naming the first field that no model could be built from.
        TypeError: naming the first field of a wrong type.
    """

    source_vocab_size: int
    target_vocab_size: int
    d_model: int = 512
    num_heads: int = 8
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    d_ff: int = 2048
    dropout: float = 0.1
    norm_first: bool = False
    tie_embeddings: bool = False
    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    max_length: int = 1024

    def __post_init__(self) -> None:
        require_positive(
            source_vocab_size=self.source_vocab_size,
            target_vocab_size=self.target_vocab_size,
            d_model=self.d_model,
            num_heads=self.num_heads,
            num_encoder_layers=self.num_encoder_layers,
            num_decoder_layers=self.num_decoder_layers,
            d_ff=self.d_ff,
            max_length=self.max_length,
        )
        require_probability(dropout=self.dropout)
        if self.d_model % 2:
            raise ValueError(f"d_model must be even, got {self.d_model}")
        require_divides(num_heads=self.num_heads, d_model=self.d_model)
        if self.tie_embeddings and self.source_vocab_size != self.target_vocab_size:
            sizes = f"{self.source_vocab_size} and {self.target_vocab_size}"
            raise ValueError(f"tied embeddings need one vocabulary, got sizes {sizes}")
        require_bool(norm_first=self.norm_first, tie_embeddings=self.tie_embeddings)
        special = (self.pad_id, self.bos_id, self.eos_id)
        last = self.target_vocab_size - 1
        whole = all(type(i) is int and 0 <= i <= last for i in special)
        if not whole or len(set(special)) < 3:
            raise ValueError(
                "pad_id, bos_id and eos_id must be three different ids in "
                f"0..{last}, got {special}"
            )
        if self.pad_id >= self.source_vocab_size:
            raise ValueError(
                "pad_id must be an id of both vocabularies, got "
                f"{self.pad_id} with source_vocab_size {self.source_vocab_size}"
            )

    @classmethod
    def base(
        cls, source_vocab_size: int, target_vocab_size: int, **overrides: Any
    ) -> "TransformerConfig":
        """The paper's base model (table 3)."""
        return cls(source_vocab_size, target_vocab_size, **overrides)

    @classmethod
    def big(
        cls, source_vocab_size: int, target_vocab_size: int, **overrides: Any
    ) -> "TransformerConfig":
        """The paper's big model (table 3)."""
        sizes = {"d_model": 1024, "num_heads": 16, "d_ff": 4096, "dropout": 0.3}
        return cls(source_vocab_size, target_vocab_size, **(sizes | overrides))

    @classmethod
    def tiny(
        cls, source_vocab_size: int, target_vocab_size: int, **overrides: Any
    ) -> "TransformerConfig":
        """A model for small corpora: 4 + 4 layers of width 128 (Wu et al. 2021)."""
        sizes = {"d_model": 128, "num_heads": 4, "d_ff": 256, "dropout": 0.3}
        layers = {"num_encoder_layers": 4, "num_decoder_layers": 4}
        return cls(source_vocab_size, target_vocab_size, **(sizes | layers | overrides))


@register_model
class Transformer(SavedModel):
    """Transformer encoder–decoder: the model of *Attention Is All You Need*.

    Ids outside the vocabulary are refused where reading them is free: on the CPU, and
    not in a model that is compiled or exported.

    Raises:
        ValueError: for token ids outside the vocabulary, of the wrong dtype, empty, or
            longer than `config.max_length`, and for targets that are not as many as the
            sources, unless there is one source for all.
    """

    config: TransformerConfig
    config_class = TransformerConfig

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        width, heads, d_ff = config.d_model, config.num_heads, config.d_ff
        rest = config.dropout, config.norm_first
        self.source_embedding = TokenEmbedding(config.source_vocab_size, width)
        self.target_embedding = TokenEmbedding(config.target_vocab_size, width)
        self.position = PositionalEncoding(width, config.dropout, config.max_length)
        self.encoder = Encoder(width, heads, d_ff, config.num_encoder_layers, *rest)
        self.decoder = Decoder(width, heads, d_ff, config.num_decoder_layers, *rest)
        self.output = nn.Linear(width, config.target_vocab_size, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        self.tie_weights()

    def tie_weights(self) -> None:
        """Make one weight of the three tables, if the config wants one."""
        if self.config.tie_embeddings:
            names = "target_embedding.table.weight", "output.weight"
            tie_parameters(self, "source_embedding.table.weight", *names)

    def encode(
        self, source_ids: Int[Tensor, "batch source"]
    ) -> Float[Tensor, "batch source d_model"]:
        """Encode the source, once: the memory that every decoding step attends to."""
        require_ids(source_ids, self.config.source_vocab_size, "source ids")
        x = self.position(self.source_embedding(source_ids))
        return self.encoder(x, padding_mask(source_ids, self.config.pad_id))

    def decode(
        self,
        target_ids: Int[Tensor, "batch target"],
        memory: Float[Tensor, "batch source d_model"],
        source_mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch target d_model"]:
        """Decode: a hidden state for each target token, from it and those before it.

        `source_mask` is `padding_mask(source_ids, pad_id)`: without it, the source's
        padding is attended to.
        """
        require_ids(target_ids, self.config.target_vocab_size, "target ids")
        require_same_batch(memory, target_ids)
        x = self.position(self.target_embedding(target_ids))
        causal = causal_mask(target_ids.size(1), target_ids.device)
        target_mask = causal & padding_mask(target_ids, self.config.pad_id)
        return self.decoder(x, memory, source_mask, target_mask)

    def forward(
        self,
        source_ids: Int[Tensor, "batch source"],
        target_ids: Int[Tensor, "batch target"],
    ) -> Float[Tensor, "batch target vocabulary"]:
        """Logits: for each target token, a score for every token that could follow."""
        memory = self.encode(source_ids)
        source_mask = padding_mask(source_ids, self.config.pad_id)
        return self.output(self.decode(target_ids, memory, source_mask))
