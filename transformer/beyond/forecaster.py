"""Time-series forecasts: the encoder over patches of numbers.

Made from book/18-not-only-words.md: edit the chapter, not this file.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer.checks import require_positive
from transformer.encoder import Encoder
from transformer.positional import PositionalEncoding

__all__ = [
    "Forecast",
    "forecast_loss",
    "Forecaster",
    "ScaledByWindow",
]


class Forecast(NamedTuple):
    """Forecast: a normal distribution for each of the coming steps."""

    mean: Float[Tensor, "batch horizon"]
    std: Float[Tensor, "batch horizon"]


def forecast_loss(
    forecast: Forecast, actual: Float[Tensor, "batch horizon"]
) -> Float[Tensor, ""]:
    """Gaussian negative log-likelihood: the mean over all steps, without its constant.

    For an error of a given size, the loss is least if the deviation has that size.

    Raises:
        ValueError: for a mean, deviation and values that are not of one shape.
    """
    shape, mean, std = (tuple(x.shape) for x in (actual, *forecast))
    if not shape == mean == std:
        raise ValueError(
            "actual values, mean and std must have one shape, "
            f"got {shape}, {mean} and {std}"
        )
    errors = (actual - forecast.mean) / forecast.std
    return (errors.square() / 2 + forecast.std.log()).mean()


def _require_history(history: Tensor, patch_size: int) -> None:
    shape = tuple(history.shape)
    if history.dim() != 2 or 0 in shape or shape[1] % patch_size:
        raise ValueError(
            "history must be (batch, length), the length a multiple of "
            f"patch_size = {patch_size}, got {shape}"
        )
    if not history.is_floating_point():
        raise ValueError(f"history must be floating point, got {history.dtype}")


class Forecaster(nn.Module):
    """Time-series forecaster: an encoder over patches (Nie et al. 2023).

    It takes the latest values of a series, (batch, length), and gives a normal
    distribution for each of the `horizon` values that follow. `length` is any multiple
    of `patch_size`. Unlike theirs, patches do not overlap, and only the output of the
    last one is read. `ScaledByWindow` adds their scaling.

    Raises:
        ValueError: for sizes or a dropout rate that its parts refuse, and a history
            that cannot be cut into patches or is longer than the positions reach.
    """

    def __init__(
        self,
        patch_size: int,
        horizon: int,
        d_model: int,
        num_heads: int,
        d_ff: int,
        num_layers: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        require_positive(patch_size=patch_size, horizon=horizon, d_model=d_model)
        self.patch_size = patch_size
        self.embedding = nn.Linear(patch_size, d_model)
        self.position = PositionalEncoding(d_model, dropout)
        self.encoder = Encoder(
            d_model, num_heads, d_ff, num_layers, dropout, norm_first=True
        )
        self.output = nn.Linear(d_model, 2 * horizon)

    def forward(self, history: Float[Tensor, "batch length"]) -> Forecast:
        _require_history(history, self.patch_size)
        patches = torch.unflatten(history, 1, (-1, self.patch_size))
        x = self.position(self.embedding(patches))  # (batch, patches, d_model)
        last = self.encoder(x)[:, -1]  # has attended to every other
        mean, log_std = self.output(last).chunk(2, dim=-1)
        # Neither 0 nor infinite, in float16 either, whose numbers end at 65,504.
        largest = min(15.0, math.log(torch.finfo(log_std.dtype).max) - 0.1)
        return Forecast(mean, log_std.clamp(-15.0, largest).exp())


class ScaledByWindow(nn.Module):
    """A forecaster for which every window has mean 0 and deviation 1.

    The forecast is scaled back afterwards (Kim et al. 2022; their learned scale and
    shift are left out). If a window is shifted and stretched, so is its forecast. The
    forecast for a constant window is its value, to about 1e-5.

    Raises:
        ValueError: for a history that the forecaster refuses.
    """

    def __init__(self, forecaster: Forecaster) -> None:
        super().__init__()
        self.forecaster = forecaster

    def forward(self, history: Float[Tensor, "batch length"]) -> Forecast:
        _require_history(history, self.forecaster.patch_size)
        center = history.mean(dim=1, keepdim=True)
        deviation = history.std(dim=1, correction=0, keepdim=True).clamp(min=1e-5)
        mean, std = self.forecaster((history - center) / deviation)
        return Forecast(center + deviation * mean, deviation * std)
