"""The largest logits of each row, found by stretches.

Made from book/workshop/fast-decoding.md: edit the chapter, not this file.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = [
    "argmax",
    "topk",
]


_WIDTH = 64  # logits in a stretch: quickest in trials with 6,000 to 37,000 tokens


def _pays(logits: Float[Tensor, "rows vocabulary"], count: int) -> bool:
    """Whether to search by stretches: for few of many, on a CPU."""
    vocabulary = logits.size(1)
    many = vocabulary >= 6_000 and logits.numel() >= 2**17
    few = 8 * count * _WIDTH <= vocabulary
    return many and few and logits.device.type == "cpu"


def argmax(logits: Float[Tensor, "rows vocabulary"]) -> Int[Tensor, " rows"]:
    """The id of each row's largest logit: as `torch.argmax`, of equals the lowest."""
    if not _pays(logits, 1):
        return logits.argmax(dim=-1)
    ids = _candidates(logits, 1)
    best = logits.gather(1, ids).argmax(dim=-1, keepdim=True)
    return ids.gather(1, best).squeeze(1)


def topk(
    logits: Float[Tensor, "rows vocabulary"], count: int
) -> tuple[Float[Tensor, "rows count"], Int[Tensor, "rows count"]]:
    """Each row's `count` largest logits and their ids, as `torch.topk` has them."""
    if not _pays(logits, count):
        values, ids = logits.topk(count)
        return values, ids
    ids = _candidates(logits, count)
    values, places = logits.gather(1, ids).topk(count)
    return values, ids.gather(1, places)


def _candidates(
    logits: Float[Tensor, "rows vocabulary"], count: int
) -> Int[Tensor, "rows candidates"]:
    """The ids of those stretches among which the `count` largest logits are.

    A stretch with a smaller maximum than `count` others has none of them.
    """
    vocabulary = logits.size(1)
    width = min(_WIDTH, vocabulary)
    rest = vocabulary // width * width
    maxima = logits[:, :rest].unflatten(1, (-1, width)).amax(dim=-1)
    if count == 1:
        best = maxima.argmax(dim=-1, keepdim=True)
    else:
        best = maxima.topk(min(count, maxima.size(1))).indices
    ids = torch.arange(vocabulary, device=logits.device)
    inside = best[:, :, None] * width + ids[:width]
    return torch.cat((inside.flatten(1), ids[rest:].expand(len(logits), -1)), dim=1)
