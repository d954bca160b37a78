"""Linear maps packed for fast decoding, and the library that multiplies by them.

Made from book/workshop/fast-decoding.md: edit the chapter, not this file.
"""

import functools
import timeit
from typing import NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer.onednn import onednn_linear, onednn_pays

__all__ = [
    "PackedLinear",
    "onednn_worth",
]


class PackedLinear(NamedTuple):
    """Linear maps of one input side by side: one matrix product for all of them.

    `blocked` is the same weight in the order that oneDNN reads it in, if there is one.
    """

    weight: Float[Tensor, "inputs outputs"]
    bias: Float[Tensor, " outputs"] | None
    blocked: Tensor | None

    @classmethod
    def pack(cls, *maps: nn.Linear, first: float = 1.0) -> "PackedLinear":
        """Lay maps side by side, the first of them multiplied by a number."""
        factors = [first] + [1.0] * (len(maps) - 1)
        pairs = list(zip(maps, factors, strict=True))
        weight = torch.cat([one.weight.detach() * factor for one, factor in pairs])
        biases = [
            one.bias.detach() * factor for one, factor in pairs if one.bias is not None
        ]
        bias = torch.cat(biases) if biases else None
        return cls(weight.T.contiguous(), bias, _blocked(weight))

    def __call__(
        self, x: Float[Tensor, "rows inputs"]
    ) -> Float[Tensor, "rows outputs"]:
        if self.blocked is not None and self.is_worth_onednn(len(x)):
            return onednn_linear(x, self.blocked, self.bias)
        if self.bias is None:
            return x @ self.weight
        return torch.addmm(self.bias, x, self.weight)

    def is_worth_onednn(self, rows: int) -> bool:
        """Whether a product with so many rows is large enough for oneDNN."""
        return rows * self.weight.numel() >= onednn_worth()


@functools.cache
def onednn_worth() -> int:
    """From how many multiplications on oneDNN is worth its call: 2²⁰, or twice as many.

    The call costs more than PyTorch's own, and how soon the product makes up for that
    depends on the processor: one of 2²⁰ multiplications is timed both ways, once, on
    the threads that there are then.
    """
    ones = torch.ones(64 + 128, 128, dtype=torch.float32, device="cpu")
    x, weight = ones.split((64, 128))
    blocked = _blocked(weight)
    ways = (
        lambda: torch.addmm(weight[0], x, weight),
        lambda: onednn_linear(x, weight if blocked is None else blocked, weight[0]),
    )
    usual, onednn = (min(timeit.repeat(way, number=5, repeat=20)) for way in ways)
    return 2**20 if onednn < usual else 2**21


def _blocked(weight: Float[Tensor, "outputs inputs"]) -> Tensor | None:
    """The weight as oneDNN wants it, where oneDNN is the faster library."""
    reorder = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
    if reorder is None or not onednn_pays(weight):
        return None
    return cast("Tensor", reorder(weight))
