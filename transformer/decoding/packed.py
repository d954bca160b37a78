"""Linear layers packed side by side for fast decoding.

Made from book/workshop/fast-decoding.md: edit the chapter, not this file.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

__all__ = [
    "PackedLinear",
]


class PackedLinear(NamedTuple):
    """Linear layers of one input side by side: one matrix product for all of them."""

    weight: Float[Tensor, "inputs outputs"]
    bias: Float[Tensor, " outputs"] | None

    @classmethod
    def pack(cls, *layers: nn.Linear, scale_first: float = 1.0) -> "PackedLinear":
        """Copy the weights of layers, those of the first multiplied by a number."""
        weights = [layer.weight.detach().T for layer in layers]
        weights[0] = weights[0] * scale_first
        bias = None
        if any(layer.bias is not None for layer in layers):
            biases = [
                weight.new_zeros(weight.size(1)) if layer.bias is None else layer.bias
                for layer, weight in zip(layers, weights, strict=True)
            ]
            bias = torch.cat([biases[0] * scale_first, *biases[1:]]).detach()
        return cls(torch.cat(weights, dim=1), bias)

    def __call__(
        self, x: Float[Tensor, "rows inputs"]
    ) -> Float[Tensor, "rows outputs"]:
        if self.bias is None:
            return x @ self.weight
        return torch.addmm(self.bias, x, self.weight)
