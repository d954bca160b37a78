"""Checks for the exercises of chapter 18, What can the encoder do alone?"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bookkit.exercises import (
    Refused,
    Verdict,
    array,
    exercise,
    explain,
    near,
    numbers,
    right,
    wrong,
)

_NORMAL = torch.distributions.Normal(0.0, 1.0)


def _quantile(share: float) -> float:
    return float(_NORMAL.icdf(torch.tensor(share)))


@exercise
def check_interval(interval: Callable[..., Any]) -> Verdict:
    """The interval around the mean that holds a share of a normal distribution."""
    cases = ((40.0, 25.0, 0.8), (-3.0, 0.5, 0.5), (0.0, 2.0, 0.95))
    for mean, std, share in cases:
        wanted = "two numbers: the lower and the upper end"
        ends = numbers(interval(mean, std, share), wanted)
        if len(ends) != 2:
            raise Refused(f"Give back {wanted}.")
        low, high = ends
        reach = _quantile((1 + share) / 2)

        # One per cent, because a quantile may come from a table: 1.28, 0.67.
        def is_half(other: float, low=low, high=high, mean=mean) -> bool:  # type: ignore[no-untyped-def]
            return bool(
                math.isclose(high - mean, other, rel_tol=1e-2)
                and math.isclose(mean - low, other, rel_tol=1e-2)
            )

        if is_half(std * reach):
            continue
        if is_half(-std * reach):
            return wrong("The lower end comes first.")
        if low == 0 and math.isclose(high, mean + std * reach, rel_tol=1e-2):
            return wrong("You cut off the interval at 0: its lower end is below.")
        off = std * _quantile(share / 2)
        if is_half(off) or is_half(-off):
            return wrong(
                "`icdf` takes the share below a point, and half lies below the mean: "
                "0.5 + share/2."
            )
        if is_half(mean + std * reach):
            return wrong("The quantile of Normal(mean, std) is an end already.")
        if is_half(std * reach / 2):
            return wrong(
                "That is half as wide as it should be: each end is std times the "
                "quantile from the mean."
            )
        if is_half(std):
            return wrong(
                "You took one standard deviation to either side, whatever the share: "
                "that holds 68%."
            )
        elsewhere = interval(mean, std, 0.5 if share != 0.5 else 0.8)
        if is_half((high - low) / 2) and numbers(elsewhere, wanted) == ends:
            return wrong("The factor depends on the share: yours is always the same.")
        if is_half(abs(std * _quantile(share))):
            return wrong(
                "One tail was forgotten: the share lies below the upper end, not "
                "between the two ends. Each tail should hold half of the rest."
            )
        if is_half(std * share):
            return wrong(
                "A share of the probability is not a share of the standard "
                "deviation: 68% lie within one standard deviation."
            )
        if is_half(std**2 * reach):
            return wrong("You multiplied by the variance: multiply by its root, std.")
        if is_half(std**0.5 * reach):
            return wrong("`std` is the standard deviation already: it needs no root.")
        if is_half(std * _quantile(1 - (1 - share) / 4)):
            return wrong("The share outside was halved twice.")
        if is_half(reach):
            return wrong("A wider distribution has a wider interval: multiply by std.")
        if abs((low + high) / 2 - mean) > 1e-3:
            return wrong("The middle of the interval should be the mean.")
        return wrong(
            f"For mean {mean:g}, standard deviation {std:g} and {share:.0%}, the ends "
            f"should be {mean - std * reach:.2f} and {mean + std * reach:.2f}."
        )
    return right("Each tail gets half of what is left outside.")


def _are_windows(answer: Any) -> bool:
    """Whether an answer is a series of series, not of numbers."""
    if hasattr(answer, "tolist"):
        answer = answer.tolist()
    if not isinstance(answer, list | tuple):
        return False
    parts = (one.tolist() if hasattr(one, "tolist") else one for one in answer)
    return any(
        isinstance(one, list | tuple | range | slice)
        and (isinstance(one, slice) or len(one) > 1)
        for one in parts
    )


@exercise
def check_starts(starts: Callable[..., Any]) -> Verdict:
    """Starts of the training windows that hold nothing of the test."""
    # A cut, not the length, decides; the last has one window that just fits.
    for length, cut, history, horizon in (
        (309, 200, 44, 11),
        (50, 30, 8, 3),
        (20, 11, 8, 3),
    ):
        answer = starts(length, cut, history, horizon)
        wanted = "the indices: a list, a range or a tensor"
        if _are_windows(answer):
            return wrong(
                "Give one index for each window, the one at which it starts, in one "
                "series: not the windows themselves, nor what `where` returns."
            )
        given = list(numbers(answer, wanted))
        if len(given) > 2 and set(given) <= {0, 1}:
            return wrong("That is a mask: give the indices.")
        found = sorted({int(start) for start in given})
        if any(start != int(start) for start in given):
            return wrong("A start is an index, a whole number.")
        if len(found) < len(given):
            return wrong("Some starts occur more than once: return each only once.")
        last = cut - history - horizon
        if found == list(range(last + 1)):
            continue
        if not found:
            return wrong("The list is empty, but there are windows that fit.")
        if found[0] != 0 and found[0] != 1:
            return wrong("The first window may start with the first value, index 0.")
        if found[-1] == length - history - horizon:
            return wrong(
                "Those windows run to the end of the series, into the test data."
            )
        if found[-1] in (cut - history, cut - history - 1):
            return wrong(
                "The histories end before the cut, but the values to be forecast "
                "belong to the test data: they would be trained on."
            )
        if found[-1] in (cut - horizon, cut - 1, cut):
            return wrong("A window needs room for its history too.")
        if found == list(range(1, last + 1)) or found == list(range(1, last + 2)):
            return wrong("The first window is missing: indices count from 0.")
        if found[-1] == last + 1:
            return wrong(
                "One window too many: its last value has the index `cut`, and "
                "belongs to the test data."
            )
        if found == list(range(last)):
            return wrong(
                "One more window fits: its last value is just before the cut. Note "
                "that range leaves out its end."
            )
        step = found[1] - found[0] if len(found) > 1 else 0
        if found[-1] == last or (step > 1 and found == list(range(0, last + 1, step))):
            return wrong(
                f"There are gaps: with a cut at {cut} a window may start at every "
                f"index from 0 to {last}, and all of them are wanted."
            )
        return wrong(f"With a cut at {cut} the last start should be {last}.")
    return right(
        "A window may start anywhere, as long as its last value comes before the cut."
    )


@exercise
def check_join(join: Callable[[Tensor, int], Tensor]) -> Verdict:
    """Patches, row by row, back to the image."""
    for side, size in ((4, 2), (3, 4), (2, 3)):
        length = side * size
        image = torch.arange(length**2).float().view(length, length) + 11.5
        grid = image.view(side, size, side, size).transpose(1, 2)
        patches = grid.reshape(side**2, size**2)
        answer = array(join(patches, size), "the image")
        if near(answer, image):
            continue
        inner = grid.mT.transpose(1, 2).reshape(length, length)
        outer = grid.transpose(0, 1).transpose(1, 2).reshape(length, length)
        joined = patches.view(length, length)
        mistakes = {
            "You joined one patch after the other: a row of the image runs through "
            "several patches, so exchange axes before joining.": joined,
            "Each patch is transposed within itself.": inner,
            "The patches are laid out column by column: they should be laid out row "
            "by row.": outer,
            "The whole image is transposed.": image.mT,
            "The two sizes are exchanged: the grid of patches comes first, then the "
            "numbers within a patch.": (
                patches.reshape(size, size, side, side)
                .transpose(1, 2)
                .reshape(length, length)
            ),
        }
        return wrong(explain(answer, image, mistakes))
    return right(
        "The axes are in the image's order: row of patches, row within the patch, "
        "column of patches, column within the patch."
    )
