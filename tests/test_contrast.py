"""Words in figures stand out from their ground: 4.5 to 1 at least, as WCAG 2 asks."""

import re
from pathlib import Path

import pytest

from bookkit.figures import COLOURS

ROOT = Path(__file__).resolve().parent.parent
SHEET = (ROOT / "book" / "_static" / "book.css").read_text("utf-8")
ENOUGH = 4.5
# What the theme gives a page: its ground and its text.
THEME = {"light": ("#ffffff", "#222832"), "dark": ("#121212", "#ced6dd")}
NUMBERS = range(1, len(COLOURS) + 1)


def rule(selector: str) -> dict[str, str]:
    """The colours that a rule of the style sheet names."""
    found = re.findall(rf"^{re.escape(selector)} \{{(.*?)\}}", SHEET, re.M | re.S)
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", "\n".join(found)))


LINES = {"light": rule(":root"), "dark": rule('html[data-theme="dark"]')}
WORDS = {
    "light": rule('html:not([data-theme="dark"]) .bd-article svg text'),
    "dark": LINES["dark"],
}


def channels(colour: str) -> list[float]:
    return [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]


def luminance(colour: list[float]) -> float:
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour
    ]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: list[float], other: list[float]) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def over(colour: str, alpha: float, ground: str) -> list[float]:
    """A colour that lets some of the ground through."""
    both = zip(channels(colour), channels(ground), strict=True)
    return [alpha * c + (1 - alpha) * g for c, g in both]


def test_contrast_is_that_of_the_standard() -> None:
    black, white, grey = map(channels, ("#000000", "#ffffff", "#767676"))
    assert contrast(black, white) == pytest.approx(21)
    assert contrast(grey, white) == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("theme", THEME)
@pytest.mark.parametrize("number", NUMBERS)
def test_words_in_a_lines_colour_stand_out(theme: str, number: int) -> None:
    ground, _ = THEME[theme]
    word = channels(WORDS[theme][f"fig-{number}"])
    assert contrast(word, channels(ground)) >= ENOUGH


@pytest.mark.parametrize("theme", THEME)
@pytest.mark.parametrize("hue", ["heat-1", "heat-2", "heat-5"])
def test_a_number_in_a_square_stands_out(theme: str, hue: str) -> None:
    # From next to nothing to the strongest: what `heatmap` and `AttentionView` draw.
    ground, ink = THEME[theme]
    for percent in range(6, 71):
        square = over(LINES[theme][hue], percent / 100, ground)
        assert contrast(channels(ink), square) >= ENOUGH, percent


def test_the_page_and_the_figures_have_one_palette() -> None:
    assert [LINES["light"][f"fig-{number}"] for number in NUMBERS] == list(COLOURS)
    assert {*WORDS["light"]} == {f"fig-{number}" for number in NUMBERS}
