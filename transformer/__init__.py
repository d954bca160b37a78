"""The Tested Transformer: the package that the book builds, chapter by chapter.

Each module is made from one chapter and explained there. Every public name can be
imported from here: `from transformer import Transformer, TransformerConfig`.
"""

from transformer.attention import attention_weights, scaled_dot_product_attention
from transformer.data import (
    Vocabulary,
    batches_by_tokens,
    detokenize,
    make_batch,
    pad,
    sample_pairs,
    tokenize,
    vocabularies,
)
from transformer.decoder import Decoder, DecoderLayer
from transformer.decoding import Translator, greedy_search
from transformer.embedding import TokenEmbedding
from transformer.encoder import Encoder, EncoderLayer, FeedForward, Residual
from transformer.masks import causal_mask, padding_mask
from transformer.model import Transformer, TransformerConfig, from_torch, to_torch
from transformer.multi_head import KeysValues, MultiHeadAttention
from transformer.positional import PositionalEncoding, sinusoids
from transformer.training import (
    Progress,
    Recipe,
    exact_match,
    label_smoothed_loss,
    train,
    warmup_rate,
)

__all__ = [
    "Decoder",
    "DecoderLayer",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "KeysValues",
    "MultiHeadAttention",
    "PositionalEncoding",
    "Progress",
    "Recipe",
    "Residual",
    "TokenEmbedding",
    "Transformer",
    "TransformerConfig",
    "Translator",
    "Vocabulary",
    "attention_weights",
    "batches_by_tokens",
    "causal_mask",
    "detokenize",
    "exact_match",
    "from_torch",
    "greedy_search",
    "label_smoothed_loss",
    "make_batch",
    "pad",
    "padding_mask",
    "sample_pairs",
    "scaled_dot_product_attention",
    "sinusoids",
    "to_torch",
    "tokenize",
    "train",
    "vocabularies",
    "warmup_rate",
]
