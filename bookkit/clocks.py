"""The clocks of a table of sinusoids, with a slider for the position."""

import html
import json
import math

import torch
from torch import Tensor

from bookkit.touch import Guess, piece


class Clocks:
    """A clock for each pair of sine and cosine, at a position that the reader chooses.

    `table` is (positions, features), a sine and a cosine for each clock; a second hand
    shows the position that it is compared with. It is one piece of HTML that needs no
    network; without scripts it is a picture of the two positions that it starts with.

    Raises:
        ValueError: when the table is none of hands that turn evenly from twelve, or a
            position is not in it.
    """

    def __init__(self, table: Tensor, guess: Guess, first: int, second: int) -> None:
        table = table.double()
        if table.dim() != 2 or len(table) < 2 or table.size(1) % 2:
            raise ValueError(f"no table of sines and cosines: {tuple(table.shape)}")
        self.rates = torch.atan2(table[1, 0::2], table[1, 1::2]).tolist()
        angle = torch.outer(torch.arange(len(table)), torch.tensor(self.rates).double())
        again = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)
        if not torch.allclose(table, again, atol=1e-4):
            raise ValueError("the hands of this table do not turn evenly from twelve")
        self.last = len(table) - 1
        if not 0 <= min(first, second) <= max(first, second) <= self.last:
            raise ValueError(
                f"positions must lie in 0..{self.last}, got {first} and {second}"
            )
        self.guess, self.first, self.second = guess, first, second

    def __repr__(self) -> str:
        return f"Clocks({len(self.rates)} of them, positions 0..{self.last})"

    def say(self) -> str:
        """How alike the two positions are, in a sentence."""
        p, q = self.first, self.second
        cosine = sum(math.cos((p - q) * rate) for rate in self.rates) / len(self.rates)
        return (
            f"Positions {p} and {q}, {abs(p - q)} apart: "
            f"their cosine is {_number(cosine)}."
        )

    def _repr_html_(self) -> str:
        return piece(
            "clocks",
            self.guess,
            last=self.last,
            first=self.first,
            second=self.second,
            label=f"{len(self.rates)} clocks, each slower than the one before, with "
            "the sine and the cosine of its hand",
            clocks="\n".join(self._clock(rate) for rate in self.rates),
            say=html.escape(self.say()),
            rates=json.dumps([round(rate, 8) for rate in self.rates]),
        )

    def _clock(self, rate: float) -> str:
        """A clock with its two hands, its two numbers, and how long a turn takes."""
        hands = "".join(
            f'<line class="{name}" x1="30" y1="30" x2="{30 + 24 * math.sin(at):.1f}" '
            f'y2="{30 - 24 * math.cos(at):.1f}"/>'
            for name, at in (("other", self.second * rate), ("hand", self.first * rate))
        )
        cells = "".join(
            f'<b class="heat-{"minus" if value < 0 else "plus"}" '
            f'style="--w: {abs(value):.2f}">{_number(value)}</b>'
            for value in (math.sin(self.first * rate), math.cos(self.first * rate))
        )
        turn = 2 * math.pi / rate
        words = f"{turn:.1f}" if turn < 10 else f"{turn:,.0f}"
        return (
            f'<div class="clock"><svg viewBox="0 0 60 60" aria-hidden="true">'
            f'<circle cx="30" cy="30" r="28"/>{hands}</svg>{cells}'
            f"<small>a turn in<br>{words} words</small></div>"
        )


def _number(value: float) -> str:
    """Two decimals, with a true minus."""
    return f"{'−' if value < -0.004999 else ''}{abs(value):.2f}"
