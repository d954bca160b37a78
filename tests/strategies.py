"""Random shapes, masks and models for the property tests."""

from typing import Any

import torch
from hypothesis import strategies as st

from transformer import Transformer, TransformerConfig

seeds = st.integers(0, 2**16)
lengths = st.integers(1, 7)
batches = st.integers(1, 3)
vocab_size = 13


@st.composite
def attention_inputs(draw: Any) -> tuple[torch.Tensor, ...]:
    """Query, key, value and a random mask, in float64."""
    torch.manual_seed(draw(seeds))
    batch, heads, d_k, d_v = (draw(st.integers(1, 3)) for _ in range(4))
    queries, keys = draw(lengths), draw(lengths)
    query = torch.randn(batch, heads, queries, d_k, dtype=torch.float64)
    key = torch.randn(batch, heads, keys, d_k, dtype=torch.float64)
    value = torch.randn(batch, heads, keys, d_v, dtype=torch.float64)
    mask = torch.rand(batch, 1, queries, keys) < draw(st.sampled_from([0.2, 0.6, 1.0]))
    return query, key, value, mask


@st.composite
def models(draw: Any) -> Transformer:
    """A small model with random sizes, in evaluation mode and float64."""
    torch.manual_seed(draw(seeds))
    heads = draw(st.integers(1, 3))
    config = TransformerConfig(
        vocab_size,
        vocab_size,
        d_model=heads * draw(st.sampled_from([2, 4])),
        num_heads=heads,
        num_encoder_layers=draw(st.integers(1, 3)),
        num_decoder_layers=draw(st.integers(1, 3)),
        d_ff=draw(st.integers(1, 9)),
        norm_first=draw(st.booleans()),
        tie_embeddings=draw(st.booleans()),
    )
    return Transformer(config).double().eval()


@st.composite
def token_ids(draw: Any, padded: bool = False) -> torch.Tensor:
    """(batch, length) ids without padding, or with rows padded to the longest."""
    torch.manual_seed(draw(seeds))
    ids = torch.randint(3, vocab_size, (draw(batches), draw(lengths)))
    if padded:
        for row in range(1, len(ids)):
            ids[row, draw(st.integers(1, ids.size(1))) :] = 0
    return ids
