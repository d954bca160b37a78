"""One look for every figure: inline SVG that follows the page's light or dark theme."""

import hashlib
import html
import io
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
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

# Okabe and Ito's palette: told apart by colour-blind readers. The page's style sheet
# gives --fig-1 … --fig-6 a brighter shade in the dark, and words a darker one on white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
STYLE = Path(__file__).with_name("book.mplstyle")


def begin(seed: int = 0) -> None:
    """Start a chapter: the same random numbers, digits and figure style every time.

    Numbers are made on one thread, since more add in another order, and so in other
    digits. `BOOK_THREADS=2` in the environment shows how much that matters. Plots of
    your own appear as they do in any notebook.
    """
    random.seed(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(int(os.environ.get("BOOK_THREADS", "1")))
    torch.set_printoptions(precision=3, sci_mode=False)
    plt.style.use(["default", STYLE])
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
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


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
        height *= 0.8 * grid.ncols
    figure.set_size_inches(PHONE, height)


def _themed(svg: str, alt: str) -> str:
    """Matplotlib's SVG, made to scale, to follow the theme, to stand beside others."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    unique = "f" + hashlib.sha256(svg.encode()).hexdigest()[:8]
    # Its style sheet would hold for the whole page, so its one rule moves to the root.
    svg = re.sub(r"<style\b.*?</style>", "", svg, flags=re.DOTALL)
    # Cells with numbers in them are darker at night: the style sheet finds them.
    svg = svg.replace('<g id="heat">', '<g class="heat">')
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{unique}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{unique}-\1)", svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{unique}-\1"', svg)
    for number, colour in enumerate(COLOURS, 1):
        svg = re.sub(colour, f"var(--fig-{number}, {colour})", svg, flags=re.IGNORECASE)
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


def heatmap(
    ax: Axes,
    values: Tensor,
    rows: Sequence[str] | None = None,
    cols: Sequence[str] | None = None,
    digits: int = 2,
    numbers: bool = True,
    limit: float | None = None,
    weights: bool = False,
    hollow: bool = False,
) -> None:
    """Draw a matrix as squares: blue for positive, vermilion for negative.

    The stronger the colour the larger the number; `limit` is the size drawn fullest.
    Attention `weights` are amber, as in diagrams and in the live model. A `hollow`
    map, as one of weights, leaves the square of an exact zero empty.
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
            strength = min(abs(value) / largest, 1.0)
            colour = COLOURS[4] if weights else COLOURS[0] if value >= 0 else COLOURS[1]
            # A number stays legible on its square; without one the scale is full.
            shade = 0.08 + (0.62 if numbers else 0.9) * strength
            square = Rectangle((j, i), 0.96, 0.96, facecolor=colour, alpha=shade)
            square.set_gid("heat" if numbers else None)
            ax.add_patch(square)
            if numbers:
                text = f"{value:.{digits}f}"
                text = text.removeprefix("-") if float(text) == 0 else text
                text = text.replace("-", "−")
                drawn = ax.text(j + 0.48, i + 0.48, text, ha="center", va="center")
                if len(text) > 4:
                    drawn.set_fontsize(10)
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
