"""Scaled dot-product attention.

Made from book/04-attention.md: edit the chapter, not this file.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from transformer.checks import require_mask, require_same_length

__all__ = [
    "attention_weights",
    "masked_softmax",
    "scaled_dot_product_attention",
]


def attention_weights(
    query: Float[Tensor, "*batch queries d_k"],
    key: Float[Tensor, "*batch keys d_k"],
    mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*batch queries keys"]:
    """Attention weights: softmax(q kᵀ / √d_k) (paper, section 3.2.1).

    `mask` is True where a query may attend to a key. Each row sums to 1, unless its
    query may attend to nothing: then the row is all zeros.

    Raises:
        ValueError: when query and key differ in d_k, or the mask does not fit.
    """
    d_k = query.size(-1)
    if key.size(-1) != d_k:
        raise ValueError(f"query and key must share d_k, got {d_k} and {key.size(-1)}")
    scores = query @ key.transpose(-2, -1) / math.sqrt(d_k)
    require_mask(mask, tuple(scores.shape))
    return masked_softmax(scores, mask)


def masked_softmax(
    scores: Float[Tensor, "*batch queries keys"],
    mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*batch queries keys"]:
    """Softmax of each row over the keys that `mask` allows; zeros where it allows none.

    Without a mask it allows all.
    """
    if mask is None:
        return scores.softmax(dim=-1)
    # The lowest finite number: with -inf an empty row would be NaN until the last
    # fill, on the way forward and on the way back.
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~mask, lowest).softmax(dim=-1).masked_fill(~mask, 0.0)


def scaled_dot_product_attention(
    query: Float[Tensor, "*batch queries d_k"],
    key: Float[Tensor, "*batch keys d_k"],
    value: Float[Tensor, "*batch keys d_v"],
    mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*batch queries d_v"]:
    """Scaled dot-product attention: softmax(q kᵀ / √d_k) v (paper, equation 1).

    A weighted mean of the values for each query. For finite numbers equal to
    `torch.nn.functional.scaled_dot_product_attention`, spelled out; but scores of
    float16 numbers may overflow here where PyTorch's function stays finite.

    Raises:
        ValueError: when query and key differ in d_k, the numbers of keys and values
            differ, or the mask does not fit.
    """
    require_same_length(key, value)
    return attention_weights(query, key, mask) @ value
