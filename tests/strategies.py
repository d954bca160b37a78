"""Random shapes, masks and models for the property tests."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from transformer import (
    MultiHeadAttention,
    Transformer,
    TransformerConfig,
    attention_weights,
    scaled_dot_product_attention,
)

seeds = st.integers(0, 2**16)
lengths = st.integers(1, 7)
batches = st.integers(1, 3)
vocab_size = 13
depths = st.integers(1, 3)
# Heads, width and inner width. Below four numbers, a layer norm forgets nearly all.
sizes = st.tuples(st.integers(1, 4), st.integers(2, 5), st.integers(1, 12)).map(
    lambda each: (each[0], 2 * each[0] * each[1], each[2])
)


def shake(model: nn.Module) -> None:
    """Biases that are not zero, norms that are not one, no two layers alike."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                nn.init.xavier_normal_(weight)
            else:
                weight.add_(torch.randn_like(weight), alpha=0.3)


def torch_model(
    heads: int = 2,
    width: int = 8,
    inner: int = 12,
    depths: tuple[int, int] = (1, 1),
    last: str = "kept",
    **options: Any,
) -> nn.Transformer:
    """One of torch's models, shaken; its last norms are there or `removed`."""
    with warnings.catch_warnings():  # about a fast path that pre-norm does not have
        warnings.simplefilter("ignore")
        theirs = nn.Transformer(
            width, heads, *depths, inner, 0.0, batch_first=True, **options
        )
    shake(theirs)
    if last == "removed":
        theirs.encoder.norm = theirs.decoder.norm = None
    return theirs


@st.composite
def attention_inputs(draw: Any) -> tuple[Tensor, ...]:
    """Query, key, value and a random mask, in float64."""
    torch.manual_seed(draw(seeds))
    batch, heads, d_k, d_v = (draw(st.integers(1, 3)) for _ in range(4))
    queries, keys = draw(lengths), draw(lengths)
    query = torch.randn(batch, heads, queries, d_k, dtype=torch.float64)
    key = torch.randn(batch, heads, keys, d_k, dtype=torch.float64)
    value = torch.randn(batch, heads, keys, d_v, dtype=torch.float64)
    mask = torch.rand(batch, 1, queries, keys) < draw(st.sampled_from([0.2, 0.6, 1.0]))
    return query, key, value, mask


class Attending(NamedTuple):
    """A way to attend, its weights, and inputs for it with positions in axis -2."""

    attend: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    weights: Callable[[Tensor, Tensor, Tensor], Tensor]
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor


@st.composite
def several_heads(draw: Any) -> Attending:
    """Multi-head attention, which takes the fused path, and a mask for each head."""
    torch.manual_seed(draw(seeds))
    heads = draw(st.integers(1, 4))
    width = heads * draw(st.integers(1, 4))
    layer = MultiHeadAttention(width, heads)
    shake(layer)
    layer.double()
    batch, queries, keys = draw(batches), draw(lengths), draw(lengths)
    inputs = [
        torch.randn(batch, n, width, dtype=torch.float64) for n in (queries, keys, keys)
    ]
    density = draw(st.sampled_from([0.2, 0.6, 1.0]))
    mask = torch.rand(batch, heads, queries, keys) < density
    return Attending(layer, layer.weights, *inputs, mask)


one_head = attention_inputs().map(
    lambda inputs: Attending(scaled_dot_product_attention, attention_weights, *inputs)
)


@st.composite
def models(
    draw: Any,
    encoder_layers: st.SearchStrategy[int] = depths,
    decoder_layers: st.SearchStrategy[int] = depths,
    dropout: float = 0.1,
) -> Transformer:
    """A small model with random sizes, in evaluation mode and float64."""
    torch.manual_seed(draw(seeds))
    heads = draw(st.integers(1, 3))
    config = TransformerConfig(
        vocab_size,
        vocab_size,
        d_model=heads * draw(st.sampled_from([4, 6])),
        num_heads=heads,
        num_encoder_layers=draw(encoder_layers),
        num_decoder_layers=draw(decoder_layers),
        d_ff=draw(st.integers(1, 9)),
        dropout=dropout,
        norm_first=draw(st.booleans()),
        tie_embeddings=draw(st.booleans()),
        max_length=32,
    )
    model = Transformer(config)
    shake(model)
    return model.double().eval()


@st.composite
def token_ids(
    draw: Any, padded: bool = False, batch: int | None = None, least: int = 1
) -> Tensor:
    """(batch, length) ids without padding, or with rows padded to the longest."""
    torch.manual_seed(draw(seeds))
    rows = draw(batches) if batch is None else batch
    ids = torch.randint(3, vocab_size, (rows, draw(st.integers(least, 7))))
    if padded:
        for row in range(1, len(ids)):
            ids[row, draw(st.integers(1, ids.size(1))) :] = 0
    return ids


ragged = st.lists(
    st.lists(st.integers(3, vocab_size - 1), min_size=1, max_size=7),
    min_size=1,
    max_size=4,
)
