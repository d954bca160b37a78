"""The Tested Transformer: the package that the book builds, chapter by chapter.

Each module is made from one chapter and explained there. Every public name can be
imported from here: `from transformer import Transformer, TransformerConfig`.
"""

from transformer.attention import attention_weights, scaled_dot_product_attention
from transformer.decoder import Decoder, DecoderLayer
from transformer.embedding import TokenEmbedding
from transformer.encoder import Encoder, EncoderLayer, FeedForward, Residual
from transformer.maps import (
    AttentionMaps,
    Head,
    ablate_heads,
    all_heads,
    attention_layers,
    attention_maps,
)
from transformer.masks import causal_mask, padding_mask
from transformer.model import Transformer, TransformerConfig
from transformer.multi_head import KeysValues, MultiHeadAttention
from transformer.positional import PositionalEncoding, sinusoids
from transformer.torch_weights import from_torch, to_torch

__all__ = [
    "AttentionMaps",
    "Decoder",
    "DecoderLayer",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "Head",
    "KeysValues",
    "MultiHeadAttention",
    "PositionalEncoding",
    "Residual",
    "TokenEmbedding",
    "Transformer",
    "TransformerConfig",
    "ablate_heads",
    "all_heads",
    "attention_layers",
    "attention_maps",
    "attention_weights",
    "causal_mask",
    "from_torch",
    "padding_mask",
    "scaled_dot_product_attention",
    "sinusoids",
    "to_torch",
]
