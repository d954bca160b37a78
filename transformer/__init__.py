"""The Tested Transformer: the package that the book builds, chapter by chapter.

Each module is made from one chapter and explained there. Every public name can be
imported from here: `from transformer import Transformer, TransformerConfig`.
"""

from transformer.attention import attention_weights, scaled_dot_product_attention
from transformer.data import (
    Batch,
    Vocabulary,
    batches_by_tokens,
    count_sentences,
    detokenize,
    is_held_out,
    make_batch,
    pad,
    sample_pairs,
    to_examples,
    tokenize,
    vocabularies,
)
from transformer.decoder import Decoder, DecoderLayer
from transformer.embedding import TokenEmbedding
from transformer.encoder import Encoder, EncoderLayer, FeedForward, Residual
from transformer.maps import (
    AttentionMaps,
    Head,
    all_heads,
    attention_maps,
    attentions,
    switched_off,
)
from transformer.masks import causal_mask, padding_mask
from transformer.model import Transformer, TransformerConfig, from_torch, to_torch
from transformer.multi_head import KeysValues, MultiHeadAttention
from transformer.positional import PositionalEncoding, sinusoids
from transformer.training import (
    Progress,
    Recipe,
    exact_match,
    label_smoothed_loss,
    load_training,
    phrasebook_examples,
    phrasebook_model,
    save_training,
    train,
    translated_exactly,
    warmup_rate,
)

__all__ = [
    "AttentionMaps",
    "Batch",
    "Decoder",
    "DecoderLayer",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "Head",
    "KeysValues",
    "MultiHeadAttention",
    "PositionalEncoding",
    "Progress",
    "Recipe",
    "Residual",
    "TokenEmbedding",
    "Transformer",
    "TransformerConfig",
    "Vocabulary",
    "all_heads",
    "attention_maps",
    "attention_weights",
    "attentions",
    "batches_by_tokens",
    "causal_mask",
    "count_sentences",
    "detokenize",
    "exact_match",
    "from_torch",
    "is_held_out",
    "label_smoothed_loss",
    "load_training",
    "make_batch",
    "pad",
    "padding_mask",
    "phrasebook_examples",
    "phrasebook_model",
    "sample_pairs",
    "save_training",
    "scaled_dot_product_attention",
    "sinusoids",
    "switched_off",
    "to_examples",
    "to_torch",
    "tokenize",
    "train",
    "translated_exactly",
    "vocabularies",
    "warmup_rate",
]
