"""The recurrent network of one number, with a slider on each of its numbers."""

import hashlib
import html
import json
import math
from pathlib import Path
from string import Template

_PAGE = Template(
    Path(__file__).with_name("one_number.html").read_text(encoding="utf-8")
)
_LEFT, _STEP, _BAR = 44.0, 25.0, 14.0  # where the first word stands, and how wide
_TOP, _TALL = 24.0, 84.0  # the upper panel: from 0 to 1
_LOW, _DEEP, _ONE = 140.0, 120.0, 24.0  # the lower one: from 10 to 1e-9, 1 a bit below
_DECADES = 10.0
_DECADE = (_DEEP - _ONE / 2) / (_DECADES - 1)  # how tall one is
SCORE = 4.0  # what Jane scores where attention looks, the other words score 0


def one_number(u: float, jane: float, words: int) -> list[tuple[float, float]]:
    """State after each word, and what a nudge of *Jane* moves in it.

    The first word is `jane`, all others are 0; w is 1.
    """
    state, left = 0.0, 1.0
    trail = []
    for word in range(words):
        state = math.tanh((jane if word == 0 else 0.0) + u * state)
        left *= (1.0 if word == 0 else u) * (1 - state * state)
        trail.append((state, left))
    return trail


class OneNumber:
    """A recurrent network of one number that the reader can turn: u, and *Jane*.

    Above, its state after each word; below, what a nudge of the first word still moves
    in it, on a logarithmic scale. A line shows both for attention. It is one piece of
    HTML that needs no network; without scripts it is the picture of the given numbers,
    with the same numbers as a table below.

    Raises:
        ValueError: for u outside 0..3, `jane` outside 0.1..1 or fewer than 2 words.
    """

    def __init__(self, u: float = 0.5, jane: float = 1.0, words: int = 12) -> None:
        if not 0 <= u <= 3:
            raise ValueError(f"u must lie in 0..3, got {u}")
        if not 0.1 <= jane <= 1:
            raise ValueError(f"jane must lie in 0.1..1, got {jane}")
        if words < 2:
            raise ValueError(f"there must be two words at least, got {words}")
        self.u, self.jane, self.words = u, jane, words

    def __repr__(self) -> str:
        return f"OneNumber(u={self.u:g}, jane={self.jane:g}, {self.words} words)"

    def say(self) -> str:
        """What the picture shows after the last word, in a sentence."""
        state, left = one_number(self.u, self.jane, self.words)[-1]
        return (
            f"u = {self.u:.1f}, Jane = {self.jane:.1f}. After {self.words} words the "
            f"state is {_short(state)}; a nudge of Jane moves it by {_short(left)} "
            "times as much."
        )

    def _repr_html_(self) -> str:
        trail = one_number(self.u, self.jane, self.words)
        places = [_LEFT + _STEP * word for word in range(self.words)]
        bars = "\n".join(
            f'<rect x="{x - _BAR / 2:g}" y="{_TOP + _TALL * (1 - state):.1f}" '
            f'width="{_BAR:g}" height="{_TALL * state:.1f}"/>'
            for x, (state, _) in zip(places, trail, strict=True)
        )
        foot = _LOW + _DEEP
        dots = "\n".join(
            f'<circle{_off(not _below(left))} cx="{x:g}" '
            f'cy="{_height(left):.1f}" r="4.5"/>'
            f"<polygon{_off(_below(left))} "
            f'points="{x - 5:g},{foot - 5:g} {x + 5:g},{foot - 5:g} '
            f'{x:g},{foot + 5:g}"/>'
            for x, (_, left) in zip(places, trail, strict=True)
        )
        looks = [1 / (1 + n / math.exp(SCORE)) for n in range(self.words)]
        kept, passed = (
            " ".join(
                f"{x:g},{height(look):.1f}"
                for x, look in zip(places, looks, strict=True)
            )
            for height in (
                lambda look: _TOP + _TALL * (1 - look * self.jane),
                _height,
            )
        )
        end = places[-1] + _BAR
        axis = "\n".join(
            f'<path d="M{_LEFT - _BAR:g} {y:.1f}H{end:g}"/>'
            f'<text class="one-tick" x="{_LEFT - _BAR - 5:g}" y="{y + 4:.1f}">'
            f"{label}</text>"
            for y, label in (
                (_TOP, "1"),
                (_TOP + _TALL, "0"),
                (_height(1), "1"),
                (_height(1e-3), "10⁻³"),
                (_height(1e-6), "10⁻⁶"),
                (_height(1e-9), "10⁻⁹"),
            )
        )
        rows = "\n".join(
            f"<tr><th scope=row>{word}</th><td>{_short(state)}</td>"
            f"<td>{_short(left)}</td></tr>"
            for word, (state, left) in enumerate(trail, start=1)
        )
        numbers = f"{self.u}/{self.jane}/{self.words}"
        return _PAGE.substitute(
            key=hashlib.sha256(numbers.encode()).hexdigest()[:10],
            u=f"{self.u:g}",
            jane=f"{self.jane:g}",
            words=self.words,
            width=f"{end + 4:g}",
            axis=axis,
            bars=bars,
            dots=dots,
            kept=kept,
            passed=passed,
            foot=f"{_LOW + _DEEP + 20:g}",
            first=f"{_LEFT:g}",
            last=f"{places[-1]:g}",
            second=f"{_LOW - 9:g}",
            height=f"{_LOW + _DEEP + 28:g}",
            say=html.escape(self.say()),
            rows=rows,
            shape=json.dumps(
                {
                    "top": _TOP,
                    "tall": _TALL,
                    "one": _LOW + _ONE / 2,
                    "low": _LOW + _DEEP,
                    "decade": _DECADE,
                    "score": SCORE,
                    "least": 1 - _DECADES,
                }
            ),
        )


def _height(left: float) -> float:
    """Where a gradient stands in the lower panel; nothing lies below its foot."""
    if left <= 0:
        return _LOW + _DEEP
    return min(_LOW + _DEEP, _LOW + _ONE / 2 - _DECADE * math.log10(left))


def _below(left: float) -> bool:
    """Whether a gradient is too small for the panel: an arrow stands for it."""
    return left <= 0 or math.log10(left) < 1 - _DECADES


def _off(shown: bool) -> str:
    """The class of a mark that is not the one to show."""
    return "" if shown else ' class="one-off"'


def _short(value: float) -> str:
    """Two decimals where they say something, else a power of ten: 0.36, 2 · 10⁻⁹."""
    if value == 0 or value >= 0.01:
        return f"{value:.2f}"
    digit, power = f"{value:.0e}".split("e")
    raised = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{digit} · 10{raised}"
