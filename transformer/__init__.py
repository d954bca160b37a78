"""The Tested Transformer: the package that the book builds, chapter by chapter.

Each module is made from one page and explained there. What most programs need can
be imported from here: `from transformer import Transformer, TransformerConfig`.
"""

from transformer.attention import attention_weights, scaled_dot_product_attention
from transformer.beyond.gpt2 import GPT2
from transformer.beyond.language_model import (
    LanguageModel,
    LanguageModelConfig,
    PromptDecoder,
)
from transformer.beyond.llama import Llama, LlamaConfig
from transformer.beyond.text_generator import TextGenerator
from transformer.checks import TransformerError
from transformer.decoder import Decoder, DecoderLayer
from transformer.decoding.beam import beam_search, n_best
from transformer.decoding.fast import FastDecoder
from transformer.decoding.search import greedy_search, sample
from transformer.decoding.translator import Translator
from transformer.embedding import TokenEmbedding
from transformer.encoder import Encoder, EncoderLayer, FeedForward, Residual
from transformer.maps import Head, ablate_heads, attention_maps
from transformer.masks import causal_mask, padding_mask
from transformer.model import Transformer, TransformerConfig
from transformer.multi_head import KeysValues, MultiHeadAttention
from transformer.positional import PositionalEncoding, sinusoids
from transformer.pretrained.gpt2 import from_gpt2
from transformer.pretrained.llama import from_llama
from transformer.pretrained.torch import from_torch, to_torch
from transformer.text.batches import make_batch, pad
from transformer.text.subwords import SubwordTokenizer
from transformer.text.words import Tokenizer, Vocabulary, WordTokenizer
from transformer.training.config import TrainingConfig
from transformer.training.loop import train
from transformer.training.loss import label_smoothed_loss
from transformer.training.precision import bf16_autocast
from transformer.training.text_trainer import TextDataset, train_language_model
from transformer.training.trainer import PRESETS, TranslationDataset, train_translator

__version__ = "0.1.0"

__all__ = [
    "GPT2",
    "PRESETS",
    "Decoder",
    "DecoderLayer",
    "Encoder",
    "EncoderLayer",
    "FastDecoder",
    "FeedForward",
    "Head",
    "KeysValues",
    "LanguageModel",
    "LanguageModelConfig",
    "Llama",
    "LlamaConfig",
    "MultiHeadAttention",
    "PositionalEncoding",
    "PromptDecoder",
    "Residual",
    "SubwordTokenizer",
    "TextDataset",
    "TextGenerator",
    "TokenEmbedding",
    "Tokenizer",
    "TrainingConfig",
    "Transformer",
    "TransformerConfig",
    "TransformerError",
    "TranslationDataset",
    "Translator",
    "Vocabulary",
    "WordTokenizer",
    "ablate_heads",
    "attention_maps",
    "attention_weights",
    "beam_search",
    "bf16_autocast",
    "causal_mask",
    "from_gpt2",
    "from_llama",
    "from_torch",
    "greedy_search",
    "label_smoothed_loss",
    "make_batch",
    "n_best",
    "pad",
    "padding_mask",
    "sample",
    "scaled_dot_product_attention",
    "sinusoids",
    "to_torch",
    "train",
    "train_language_model",
    "train_translator",
]
