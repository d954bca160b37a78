"""Made from book/04-attention.md: edit the chapter, not this file."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

__all__ = [
    "require_mask",
    "attention_weights",
    "scaled_dot_product_attention",
]


def require_mask(mask: Tensor | None, scores: tuple[int, ...]) -> None:
    """Refuse a mask that is not boolean or does not broadcast to the scores' shape.

    Raises:
        ValueError: naming the mask's dtype or shape and what was expected.
    """
    if mask is None:
        return
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be boolean, True = may attend, got {mask.dtype}")
    aligned = zip(reversed(mask.shape), reversed(scores), strict=False)
    if mask.dim() > len(scores) or any(
        size not in (1, wanted) for size, wanted in aligned
    ):
        shape = tuple(mask.shape)
        raise ValueError(
            f"mask must broadcast to (…, queries, keys) = {scores}, got {shape}"
        )


def attention_weights(
    query: Float[Tensor, "*batch queries d_k"],
    key: Float[Tensor, "*batch keys d_k"],
    mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*batch queries keys"]:
    """How much each query attends to each key: softmax(q kᵀ / √d_k), section 3.2.1.

    `mask` is True where a query may attend to a key. Each row sums to 1, unless its
    query may attend to nothing: then the row is all zeros.

    Raises:
        ValueError: when query and key differ in d_k, or the mask does not fit.
    """
    d_k = query.size(-1)
    if key.size(-1) != d_k:
        raise ValueError(f"query and key must share d_k, got {d_k} and {key.size(-1)}")
    scores = query @ key.transpose(-2, -1) / math.sqrt(d_k)
    if mask is None:
        return scores.softmax(dim=-1)
    require_mask(mask, tuple(scores.shape))
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
    """Mix the values, each by its weight: softmax(q kᵀ / √d_k) v, equation 1.

    Equal to `torch.nn.functional.scaled_dot_product_attention`, spelled out.

    Raises:
        ValueError: when the sizes disagree, or the mask does not fit.
    """
    keys, values = key.size(-2), value.size(-2)
    if keys != values:
        raise ValueError(
            f"every key needs one value, got {keys} keys and {values} values"
        )
    return attention_weights(query, key, mask) @ value
