"""One set of colours: what stands on them is read, and each is the same everywhere."""

import io
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser, Page

from bookkit import AttentionView, Clocks, Guess, begin, heatmap
from bookkit.figures import COLOURS, drawn, ground
from transformer.live.colours import DAY, HUES, LEAST, NIGHT, SQUARES, shade
from transformer.positional import sinusoids

ROOT = Path(__file__).resolve().parent.parent
LIVE = ROOT / "transformer" / "live"
ENOUGH = 4.5  # to 1, as WCAG 2 asks
# The ground and the ink of a page of the book, and of a live model in a file.
THEMES = {
    "day": [("#ffffff", "#222832"), ("#ffffff", "#1c2024")],
    "night": [("#121212", "#ced6dd"), ("#14181d", "#e3e7ec")],
}
FILLED = {name: hue.square for name, hue in HUES.items() if hue.square}
# How the world looks without one of the eye's three receptors (Machado et al., 2009).
SIGHT = {
    "all three": torch.eye(3),
    "no red": torch.tensor(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "no green": torch.tensor(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "no blue": torch.tensor(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}


def channels(colour: str) -> torch.Tensor:
    return torch.tensor([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])


def linear(colour: torch.Tensor) -> torch.Tensor:
    return torch.where(
        colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4
    )


def contrast(one: torch.Tensor, other: torch.Tensor) -> float:
    weights = torch.tensor([0.2126, 0.7152, 0.0722])
    low, high = sorted((weights @ linear(each)).item() for each in (one, other))
    return (high + 0.05) / (low + 0.05)


def over(colour: str, alpha: float, paper: str) -> torch.Tensor:
    """A colour that lets some of the paper through."""
    return alpha * channels(colour) + (1 - alpha) * channels(paper)


def seen(colour: torch.Tensor) -> torch.Tensor:
    """A colour in Oklab, where equal distances look about equal."""
    cones = torch.tensor(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    mixed = torch.tensor(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    )
    return mixed @ (cones @ linear(colour)) ** (1 / 3)


def fullest(name: str, night: bool) -> str:
    return HUES[name].night if night else FILLED[name].day


def test_contrast_is_that_of_the_standard() -> None:
    black, white, grey = map(channels, ("#000000", "#ffffff", "#767676"))
    assert contrast(black, white) == pytest.approx(21)
    assert contrast(grey, white) == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("name", HUES)
def test_words_in_a_hue_stand_out(name: str) -> None:
    hue = HUES[name]
    for theme, word in (("day", hue.word), ("night", hue.night)):
        for paper, _ in THEMES[theme]:
            assert contrast(channels(word), channels(paper)) >= ENOUGH, theme


@pytest.mark.parametrize("night", [False, True], ids=["day", "night"])
@pytest.mark.parametrize("name", FILLED)
def test_a_number_in_a_square_stands_out(name: str, night: bool) -> None:
    for paper, ink in THEMES["night" if night else "day"]:
        for percent in range(101):
            square = over(fullest(name, night), percent / 100, paper)
            if night:
                ink = "#000000" if percent / 100 > FILLED[name].turn else "#ffffff"
            assert contrast(channels(ink), square) >= ENOUGH, percent


@pytest.mark.parametrize("night", [False, True], ids=["day", "night"])
@pytest.mark.parametrize("sight", SIGHT)
def test_plus_and_minus_are_told_apart_by_every_eye(sight: str, night: bool) -> None:
    paper, _ = THEMES["night" if night else "day"][0]

    def looks(name: str, size: float) -> torch.Tensor:
        square = over(fullest(name, night), size, paper)
        light = SIGHT[sight] @ linear(square)
        light = light.clamp(0, 1)
        shown = torch.where(
            light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055
        )
        return seen(shown)

    for size in (0.5, 1.0):
        assert (looks("plus", size) - looks("minus", size)).norm() > 0.05 * size
    for name in ("plus", "minus", "weight"):  # more is never taken for less
        steps = [looks(name, size / 10) for size in range(11)]
        from_paper = [(step - steps[0]).norm().item() for step in steps]
        assert all(a < b for a, b in itertools.pairwise(from_paper))


def test_no_two_hues_are_one() -> None:
    day = [*(hue.day for hue in HUES.values()), *(each.day for each in FILLED.values())]
    night = [hue.night for hue in HUES.values()]
    assert len({*day}) == len(day)
    assert len({*night}) == len(night)
    assert list(COLOURS) == [hue.day for hue in HUES.values()][:6]
    styled = (ROOT / "bookkit" / "book.mplstyle").read_text("utf-8")
    cycle = re.search(r'cycler\("color", \[(.*?)\]', styled)[1]
    assert re.findall(r"\w{6}", cycle) == [each[1:] for each in COLOURS]


def test_hues_are_written_down_once() -> None:
    """Elsewhere they have a name, and beside it the shade of the day at the most."""
    shades = {hue.line: hue.day for hue in HUES.values()}
    shades |= {f"heat-{name}": square.day for name, square in FILLED.items()}
    sheets = [
        *(ROOT / "bookkit").glob("*.html"),
        *(ROOT / "bookkit").glob("*.css"),
        *(ROOT / "book" / "_static").glob("*.css"),
        *(ROOT / "book" / "figures").glob("*.svg"),
        *LIVE.glob("*.css"),
        *LIVE.glob("*.js"),
    ]
    named = re.compile(r"var\(--([\w-]+), (#[0-9a-f]{6})\)", re.IGNORECASE)
    for sheet in sheets:
        text = sheet.read_text("utf-8")
        for name, beside in named.findall(text):
            # Words in drawings may be darker.
            word = {hue.word for hue in HUES.values() if hue.line == name}
            assert name not in shades or beside.lower() in {shades[name], *word}, sheet
        bare = {
            each.lower() for each in re.findall(r"#[0-9a-f]{6}", named.sub("", text))
        }
        assert not bare & {*shades.values()}, sheet
        # A drawing may say so of its words, for a reader who has it without the book.
        if sheet.suffix != ".svg":
            assert not re.search(r"--(?:fig-\d|heat-\w+|plus|minus|right|wrong):", text)
    (least,) = re.findall(r"=== 0 \? 0 : ([\d.]+) \+", (LIVE / "draw.js").read_text())
    assert float(least) == LEAST


def test_only_hues_of_squares_have_a_ground() -> None:
    assert ground("weight", 0)[3] == LEAST
    assert ground("plus", 0)[3] == ground("minus", 0)[3] == 0
    assert ground("plus", 7)[3] == 1
    with pytest.raises(ValueError, match=r"in the hues query, .*, got 'right'"):
        ground("right", 1)
    with pytest.raises(ValueError, match="got 'blue'"):
        ground("blue", 1)
    with pytest.raises(ValueError, match="no squares are drawn in the hue of 'wrong'"):
        shade("wrong")


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 500, "height": 700})
    yield page
    page.close()


def picked(page: Page, selector: str, x: float = 0.5, y: float = 0.2) -> torch.Tensor:
    """The colour on the screen at a place of an element, out of its number's way."""
    place = page.locator(selector).first
    place.scroll_into_view_if_needed()
    box = place.bounding_box()
    assert box is not None
    at = int(box["x"] + x * box["width"]), int(box["y"] + y * box["height"])
    clip = {"x": at[0], "y": at[1], "width": 1, "height": 1}
    image = Image.open(io.BytesIO(page.screenshot(clip=clip))).convert("RGB")
    return torch.tensor(image.getpixel((0, 0))) / 255


@pytest.mark.parametrize("night", [False, True], ids=["day", "night"])
@pytest.mark.parametrize("weight", [0.004, 0.37, 1.0])
def test_a_weight_has_one_colour_in_figure_view_and_model(
    page: Page, weight: float, night: bool
) -> None:
    begin()
    figure, ax = plt.subplots(figsize=(2, 2))
    heatmap(ax, torch.tensor([[weight]]), limit=1, weights=True)
    plot = drawn(figure, "One square.")._repr_html_()
    view = AttentionView(torch.tensor([[weight]]), ["a"])._repr_html_()
    style = "".join((LIVE / name).read_text() for name in ("still.css", "page.css"))
    paper, ink = THEMES["night" if night else "day"][0]
    page.set_content(
        f"""<!doctype html><html lang=en style="background: {paper}; color: {ink}">
        <style>:root {{ {NIGHT if night else DAY} }} {SQUARES} {style}</style>
        {plot}{view}<div class="live"><div class="live-matrix">
        <svg width=40 height=40><rect width=40 height=40 style="--w: {weight}"/></svg>
        </div><div id=small></div><b id=chip style="--w: {weight}">.00</b></div>
        <script>{{{(LIVE / "draw.js").read_text()}
        document.querySelector("#small").append(
          heat({{ rows: 1, cols: 1, data: [{weight}] }}, 0)); }}</script>
        <style>#chip {{ display: block; width: 40px; height: 40px; }}
        #chip {{ background: var(--shade) }}
        .attn-here {{ stroke: none !important }}</style>"""
    )
    shades = LEAST + (1 - LEAST) * weight
    wanted = over(fullest("weight", night), shades, paper)
    for selector, *at in (
        (".figure g.heat",),
        (".attnview rect[data-q]",),
        (".live-matrix rect",),
        ("#small canvas", 0.5, 0.5),
        ("#chip", 0.9, 0.9),
    ):
        found = picked(page, selector, *at)
        assert (found - wanted).abs().max() < 2.5 / 255, selector


@pytest.mark.parametrize("night", [False, True], ids=["day", "night"])
def test_a_sign_has_one_colour_in_figure_and_view(page: Page, night: bool) -> None:
    begin()
    table = sinusoids(9, 2)
    guess = Guess("?", ("a", "b"), right=0, answer="a")
    view = Clocks(table, guess, first=4, second=1)._repr_html_()
    figure, ax = plt.subplots(figsize=(4, 2))
    heatmap(ax, table[4:5], limit=1)
    plot = drawn(figure, "Two squares.")._repr_html_()
    paper, ink = THEMES["night" if night else "day"][0]
    page.set_content(
        f"""<!doctype html><html lang=en style="background: {paper}; color: {ink}">
        <style>:root {{ {NIGHT if night else DAY} }}</style>{plot}{view}"""
    )
    assert (table[4] < 0).all()  # the sine and the cosine of four radians
    for place, value in enumerate(table[4].tolist()):
        wanted = over(fullest("minus", night), abs(value), paper)
        for selector in (".figure g.heat", ".clock b"):
            found = picked(page, f"{selector} >> nth={place}", y=0.15)
            assert (found - wanted).abs().max() < 3 / 255, selector
