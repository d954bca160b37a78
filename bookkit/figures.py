"""One look for every figure: inline SVG that follows the page's light or dark theme."""

import hashlib
import html
import io
import itertools
import os
import random
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.colors import get_named_colors_mapping, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from torch import Tensor

from transformer.live.colours import HUES, LEAST

COLOURS = tuple(hue.day for hue in HUES.values())[:6]  # of lines, in this order
STYLE = Path(__file__).with_name("book.mplstyle")


def begin(seed: int = 0) -> None:
    """Start a chapter: the same random numbers, digits and figure style every time.

    Numbers are made on one thread, since more add in another order, and so in other
    digits. `BOOK_THREADS=2` in the environment shows how much that matters. Plots of
    your own appear as they do in any notebook. Colours go by what they mean as well,
    as `color="query"`: `transformer.live.colours` has their names.
    """
    random.seed(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(int(os.environ.get("BOOK_THREADS", "1")))
    torch.set_printoptions(precision=3, sci_mode=False)
    plt.style.use(["default", STYLE])
    known = {name: hue.day for name, hue in HUES.items()}
    get_named_colors_mapping().update(known)
    # Libraries with progress bars look for widgets, which a page has no use for.
    warnings.filterwarnings("ignore", message="IProgress not found")


class InlineFigure:
    """A drawn figure as one `<svg>` element with a description."""

    def __init__(self, svg: str, alt: str) -> None:
        self.svg = svg
        self.alt = alt

    def __repr__(self) -> str:
        return f"<figure: {self.alt[:60]}>"

    def _repr_html_(self) -> str:
        return self.svg


PHONE = 4.5  # inches: in 352 pixels its words have 13, those of 6 inches not quite 10
ROOM = 28  # pixels: on the page no smaller square has a number in it


def show(figure: Figure, alt: str, phone: bool = True) -> None:
    """Put the figure on the page, with what a reader who cannot see it needs to know.

    Raises:
        ValueError: for an empty `alt`.
    """
    display(drawn(figure, alt, phone))


def drawn(figure: Figure, alt: str, phone: bool = True) -> InlineFigure:
    """The figure as something to display, once or again and again in one place.

    A wide one is drawn twice, and the style sheet shows one of the two: for a `phone`
    on less width with words of the same size, the panels of a row one below another.

    Raises:
        ValueError: for an empty `alt`.
    """
    if not alt.strip():
        raise ValueError("a figure needs alt text: what it shows, and the finding")
    svg = _themed(_saved(figure), alt)
    if phone and figure.get_figwidth() > PHONE + 0.3:
        _narrow(figure)
        small = _themed(_saved(figure), alt)
        small = small.replace('class="figure"', 'class="figure phone"', 1)
        svg += small.replace('style="', 'style="display:none;', 1)  # in a notebook
    plt.close(figure)
    return InlineFigure(svg, alt)


def _saved(figure: Figure) -> str:
    _number(figure)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _number(figure: Figure) -> None:
    """Leave numbers only in squares that have room for them, on a phone too."""
    numbers = {ax: _numbers(ax) for ax in figure.axes}
    for text in itertools.chain(*numbers.values()):
        text.set_visible(False)
    figure.draw_without_rendering()  # which lays the panels out
    wide = figure.get_figwidth()
    scale = (96 if wide > PHONE + 0.3 else min(96, 352 / wide)) / figure.dpi
    for ax, texts in numbers.items():
        (left, top), (right, bottom) = ax.transData.transform([(0, 0), (0.96, 0.96)])
        room = scale * min(abs(right - left), abs(bottom - top))
        for text in texts:
            text.set_visible(room >= ROOM)


def _numbers(ax: Axes) -> list[Text]:
    return [text for text in ax.texts if (text.get_gid() or "").startswith("number")]


def _narrow(figure: Figure) -> None:
    """Fewer inches across; words keep their size."""
    height, panels = figure.get_figheight(), figure.axes
    grid = panels[0].get_gridspec() if panels else None
    if grid and grid.nrows == 1 < grid.ncols == len(panels):
        cells = figure.add_gridspec(grid.ncols, 1)
        for place, ax in enumerate(panels):
            ax.set_subplotspec(cells[place])
            if ax.get_shared_y_axes().joined(ax, panels[0]):
                ax.tick_params(labelleft=True)
                ax.set_ylabel(panels[0].get_ylabel())
        # Squares keep their height, in which a number may stand.
        height *= grid.ncols * (1 if any(map(_numbers, panels)) else 0.8)
    figure.set_size_inches(PHONE, height)


def _themed(svg: str, alt: str) -> str:
    """Matplotlib's SVG, made to scale, to follow the theme, to stand beside others."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    unique = "f" + hashlib.sha256(svg.encode()).hexdigest()[:8]
    # Its style sheet would hold for the whole page, so its one rule moves to the root.
    svg = re.sub(r"<style\b.*?</style>", "", svg, flags=re.DOTALL)
    # Squares and their numbers are many, and so have no id.
    svg = svg.replace('<g id="heat">', '<g class="heat">')
    number = r'<g class="number heat-\1" style="--w: \2">'
    svg = re.sub(r'<g id="number:(\w+):([\d.]+)">', number, svg)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{unique}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{unique}-\1)", svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{unique}-\1"', svg)
    for name, hue in HUES.items():
        shades = {hue.line: hue.day}
        if hue.square:
            shades[f"heat-{name}"] = hue.square.day
        for known, shade in shades.items():
            svg = re.sub(shade, f"var(--{known}, {shade})", svg, flags=re.IGNORECASE)
    svg = svg.replace("#000000", "currentColor")

    # An older matplotlib puts size and family into one word.
    svg = re.sub(
        r"font: ([\d.]+px) [^;\"]+", r"font-size: \1; font-family: inherit", svg
    )
    svg = re.sub(r"font-family: [^;\"]+", "font-family: inherit", svg)
    svg = re.sub(r"<text\b", '<text fill="currentColor"', svg)
    width = re.search(r'width="([\d.]+)pt"', svg)
    pixels = float(width[1]) * 4 / 3 if width else 640
    size = f"width:100%;max-width:{pixels:.0f}px;height:auto"
    svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg, count=2)
    described = html.escape(" ".join(alt.split()))
    opening = f'<svg class="figure" role="img" aria-label="{described}" style="{size}"'
    return svg.replace("<svg", f'{opening} stroke-linejoin="round"', 1)


def square(
    ax: Axes,
    x: float,
    y: float,
    hue: str,
    size: float,
    text: str = "",
    width: float = 0.96,
) -> None:
    """Draw one square of a heat map, with a number if there is room for it on the page.

    `x` and `y` are its corner, left and above, and `size` that of its number, 0 to 1.
    Sizes of weights begin with a pale square, since a masked one is empty; numbers
    with a sign have no colour at zero, where plus and minus meet.

    Raises:
        ValueError: for a hue in which no squares are drawn.
    """
    box = Rectangle((x, y), width, 0.96, facecolor=ground(hue, size), linewidth=0.6)
    box.set_edgecolor(to_rgba("#000000", 0.14))
    box.set_gid("heat")
    ax.add_patch(box)
    if text:
        drawn = ax.text(x + width / 2, y + 0.48, text, ha="center", va="center")
        drawn.set_gid(f"number:{hue}:{min(size, 1):.3f}")
        if len(text) > 4:
            drawn.set_fontsize(10)


def ground(hue: str, size: float) -> tuple[float, float, float, float]:
    """The colour of a square whose number has a `size` of 0 to 1.

    Raises:
        ValueError: for a hue in which no squares are drawn.
    """
    fullest = HUES[hue].square if hue in HUES else None
    if fullest is None:
        known = ", ".join(name for name, each in HUES.items() if each.square)
        raise ValueError(f"squares are drawn in the hues {known}, got {hue!r}")
    least = LEAST if hue == "weight" else 0
    return to_rgba(fullest.day, least + (1 - least) * min(size, 1))


def heatmap(
    ax: Axes,
    values: Tensor,
    rows: Sequence[str] | None = None,
    cols: Sequence[str] | None = None,
    digits: int = 2,
    limit: float | None = None,
    weights: bool = False,
    hollow: bool = False,
) -> None:
    """Draw a matrix as squares: purple for positive, brown for negative.

    The stronger the colour the larger the number; `limit` is the size drawn fullest.
    Attention `weights` are amber, as in diagrams and in the live model. A `hollow`
    map, as one of weights, leaves the square of an exact zero empty. On the page, a
    square of 28 pixels or more has its number in it.
    """
    height, width = values.shape
    largest = limit or values.abs().max().item() or 1.0
    for i in range(height):
        for j in range(width):
            value = values[i, j].item()
            if value == 0 and (weights or hollow):
                empty = Rectangle((j, i), 0.96, 0.96, fill=False, ls=":", lw=0.8)
                empty.set_edgecolor("#808080")
                ax.add_patch(empty)
                continue
            hue = "weight" if weights else "plus" if value >= 0 else "minus"
            text = f"{value:.{digits}f}"
            text = text.removeprefix("-") if float(text) == 0 else text
            text = text.removeprefix("0") if weights and digits else text
            text = text.replace("-", "−")
            square(ax, j, i, hue, abs(value) / largest, text)
    ax.set(xlim=(0, width), ylim=(height, 0), aspect="equal")
    ax.set_xticks(
        [j + 0.48 for j in range(width)], cols or [str(j) for j in range(width)]
    )
    ax.set_yticks(
        [i + 0.48 for i in range(height)], rows or [str(i) for i in range(height)]
    )
    ax.grid(False)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
