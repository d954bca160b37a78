"""The colours of figures, views and the live model, and what each one means.

A hue has a shade for lines and areas by day, another at night, and one for words on
white. Where it fills squares, the fuller the square the larger its number. By day the
fullest is still pale enough for the page's ink; at night it is as bright as a line, and
numbers in it turn from white to black.

Figures are drawn in the shades of the day, as `var(--name, #shade)`; a page's style
sheet takes `DAY`, `NIGHT` and `SQUARES` from here and has the last word.
"""

from typing import NamedTuple

__all__ = [
    "DAY",
    "HUES",
    "LEAST",
    "NIGHT",
    "SQUARES",
    "WORDS",
    "Hue",
    "Square",
    "shade",
]


class Square(NamedTuple):
    """The fullest square by day, and how full one is whose number turns at night."""

    day: str
    turn: float


class Hue(NamedTuple):
    """One meaning: its name in a style sheet, and its shades."""

    line: str
    day: str
    night: str
    word: str
    square: Square | None = None


# The first six are Okabe and Ito's, told apart by colour-blind readers. A plot of
# several lines takes them in this order too, each line with its name beside it.
HUES = {
    "query": Hue("fig-1", "#0072b2", "#5aaee8", "#0075cf", Square("#4a9fdc", 0.665)),
    "key": Hue("fig-2", "#d55e00", "#f08a4b", "#932b00", Square("#ee7b3c", 0.678)),
    "value": Hue("fig-3", "#009e73", "#3cc49a", "#008458", Square("#2cac82", 0.6305)),
    "residual": Hue("fig-4", "#cc79a7", "#e6a3c8", "#a2527e"),
    "weight": Hue("fig-5", "#e69f00", "#f2bd4d", "#ac6100", Square("#e09600", 0.5505)),
    "feed-forward": Hue("fig-6", "#56b4e9", "#8fd0f5", "#1a77ad"),
    "plus": Hue("plus", "#7b4fa3", "#b794d9", "#7b4fa3", Square("#a880d6", 0.684)),
    "minus": Hue("minus", "#9a5a2c", "#cf9a76", "#8a4f26", Square("#c08058", 0.67)),
    "right": Hue("right", "#0a6b41", "#4cc38a", "#0a6b41"),
    "wrong": Hue("wrong", "#b3261e", "#ff9a8d", "#b3261e"),
}
LEAST = 0.06  # how full the square of the smallest weight is; a masked one is empty


def shade(name: str = "weight") -> str:
    """The ground of a square in CSS, where `--w` is the size of its number, 0 to 1.

    Numbers with a sign have no colour at zero, where plus and minus meet.
    """
    square = HUES[name].square
    if square is None:
        raise ValueError(f"no squares are drawn in the hue of {name!r}")
    full = f"calc(100% * ({_full(name)}))"
    return f"color-mix(in srgb, var(--heat-{name}, {square.day}) {full}, transparent)"


def _full(name: str) -> str:
    least = LEAST if name == "weight" else 0
    return f"{least} + {1 - least} * var(--w)" if least else "var(--w)"


def _ink(name: str) -> str:
    """The colour of a square's number: black from where it turns."""
    black = f"clamp(0%, 1000000% * ({_full(name)} - var(--turn-{name})), 100%)"
    return f"color-mix(in srgb, #000 {black}, var(--under))"


_FILLED = {name: hue.square for name, hue in HUES.items() if hue.square}


def _declared(shades: dict[str, str]) -> str:
    return " ".join(f"--{name}: {shade};" for name, shade in shades.items())


DAY = _declared(
    {hue.line: hue.day for hue in HUES.values()}
    | {f"heat-{name}": square.day for name, square in _FILLED.items()}
    | {f"turn-{name}": "2" for name in _FILLED}  # never
    | {"under": "currentColor"}
)
NIGHT = _declared(
    {hue.line: hue.night for hue in HUES.values()}
    | {f"heat-{name}": HUES[name].night for name in _FILLED}
    | {f"turn-{name}": str(square.turn) for name, square in _FILLED.items()}
    | {"under": "#fff"}
)
WORDS = _declared({hue.line: hue.word for hue in HUES.values()})
# What has a size in `--w` has its ground and its number's colour from here: those of a
# weight, if no class names another hue.
SQUARES = "".join(
    f'[style*="--w:"]{f".heat-{name}" if name != "weight" else ""} '
    f"{{ --shade: {shade(name)}; --on: {_ink(name)}; }}\n"
    for name in sorted(_FILLED, key=lambda name: name != "weight")
)
SQUARES += "svg.figure .number text { fill: var(--on); }\n"
