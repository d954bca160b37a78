"""The live model, driven as a person would: a browser, a keyboard, files on a disk."""

import dataclasses
import json
import math
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Dialog, Locator, Page, expect
from small_runs import load_dataset, run_steps, write_corpus
from test_marian import write_folder

from bookkit import BreakLab, explore
from bookkit.lab import Part, Runs
from transformer.cli import main
from transformer.decoding.search import greedy_search
from transformer.decoding.translator import Translator
from transformer.encoder import FeedForward
from transformer.live import LIMIT, describe, describe_model, page, script, still
from transformer.live.colours import HUES
from transformer.live.model import describe_tokenizer
from transformer.maps import Head, attention_maps
from transformer.model import Transformer, TransformerConfig
from transformer.phrasebook.grammar import sample_pairs, word_kinds
from transformer.text.subwords import SubwordTokenizer
from transformer.text.words import BOS_ID, Vocabulary, WordTokenizer, detokenize
from transformer.training.config import TrainingConfig
from transformer.training.loop import train

pytestmark = pytest.mark.plain  # nothing here is about shapes
BOOK = Path(__file__).parent.parent / "book"
SENTENCE = "Jane visite l'Afrique en septembre"
LABELS = "all => all.map(e => e.getAttribute('aria-label'))"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of the phrasebook's page, as the command writes it."""
    path = tmp_path_factory.mktemp("live") / "a folder" / "page.html"
    assert main(["explore", "--out", str(path)]) == 0
    return path.as_uri()


def test_sentences_to_try_are_those_of_its_run_that_fit(tmp_path, monkeypatch) -> None:
    data, run = write_corpus(tmp_path / "data"), tmp_path / "run"
    for language in ("fr", "en"):  # one sentence that is too long
        path = data / f"val.{language}"
        path.write_text("a " * 99 + "\n" + path.read_text("utf-8"), "utf-8")
    run_steps(load_dataset(data), run)
    sentences = (data / "val.fr").read_text("utf-8").splitlines()
    assert describe(run)["sentences"] == sentences[1:]
    described = json.loads((run / "run.json").read_text("utf-8"))
    (run / "run.json").write_text(json.dumps({**described, "data": None}), "utf-8")
    monkeypatch.chdir(data)  # other sentences by the same names
    assert describe(run)["sentences"] == []


def test_a_name_that_is_not_unicode_is_written_and_said(tmp_path, capsys) -> None:
    path = tmp_path / "a\udcff.html"
    assert main(["explore", "--out", str(path)]) == 0
    assert path.exists()
    assert r"a\udcff.html" in capsys.readouterr().out


class Reader:
    """A page, and a person at it. Complaints of the browser fail the test."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", self.dismiss)
        page.on(
            "request",
            lambda request: (
                request.url.startswith(("file:", "data:", "blob:"))
                or self.complaints.append(request.url)
            ),
        )

    def dismiss(self, dialog: Dialog) -> None:
        self.complaints.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, address: str) -> "Reader":
        self.page.goto("about:blank")
        self.page.goto(address)
        return self

    def type(self, sentence: str) -> None:
        self.input.fill(sentence)
        self.input.press("Enter")

    def press(self, name: str, exact: bool = True) -> None:
        self.page.get_by_role("button", name=name, exact=exact).first.click()

    def key(self, key: str) -> Locator:
        return self.page.locator(f'[data-key="{key}"]')

    @property
    def input(self) -> Locator:
        return self.page.locator(".live-input")

    @property
    def words(self) -> list[str]:
        """The tokens of the answer, without the end."""
        tokens = self.page.locator(".live-words button")
        texts = tokens.evaluate_all("all => all.map(e => e.firstChild.data)")
        return [text for text in texts if text != "<eos>"]

    @property
    def step(self) -> int:
        chosen = self.page.locator(".live-words button[aria-pressed=true]")
        return int((chosen.get_attribute("data-key") or "").removeprefix("step-"))

    @property
    def problem(self) -> str:
        return " ".join(self.page.locator(".live-problem").all_inner_texts())

    @property
    def detail(self) -> str:
        return self.page.locator(".live-detail").inner_text()

    @property
    def hash(self) -> str:
        return self.page.evaluate("location.hash")


@pytest.fixture(scope="module")
def desk(browser: Browser) -> Iterator[Reader]:
    """One window for all: to open another costs more than most tests."""
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    yield Reader(page)
    page.close()


@pytest.fixture
def reader(desk: Reader) -> Iterator[Reader]:
    """The window as new: each test opens its own page, and none leaves anything."""
    desk.complaints.clear()
    yield desk
    left = "origin === 'null' ? 0 : localStorage.length + sessionStorage.length"
    assert desk.page.evaluate(left) == 0
    desk.page.goto("about:blank")
    desk.page.emulate_media(color_scheme="light", reduced_motion="no-preference")
    desk.page.mouse.move(0, 0)
    desk.page.set_viewport_size({"width": 1200, "height": 900})
    assert not desk.complaints


@pytest.fixture(scope="module")
def book_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One view of the model between text: its address says which."""
    path = tmp_path_factory.mktemp("view") / "page.html"
    (path.parent / "live.js").write_text(
        script(Translator.phrasebook(), "view"), encoding="utf-8"
    )
    path.write_text(
        """<!DOCTYPE html><html lang="en"><meta charset="utf-8">
        <meta name="viewport" content="width=device-width, initial-scale=1">
        <title>A view</title><main style="max-width: 44rem; padding-block: 1000px">
        <div class="live live-small" data-live="view" data-page="x.html"></div></main>
        <script>
        const asked = new URLSearchParams(location.search), { dataset } =
          document.querySelector(".live");
        dataset.show = asked.get("show");
        asked.delete("show");
        dataset.state = `s=Jane+visite+l'Afrique+en+septembre&${asked}`;
        </script><script src="live.js"></script>""",
        encoding="utf-8",
    )
    return path.as_uri()


@pytest.fixture
def phrasebook(reader: Reader, file: str) -> Reader:
    return reader.open(file)


# Typing, stepping


def test_what_is_typed_is_translated_as_the_package_does(phrasebook: Reader) -> None:
    translator = Translator.phrasebook()
    assert " ".join(phrasebook.words) == "Jane visits Africa in September"
    for sentence in ("Il a deux chats noirs", "Ma sœur cherche son parapluie bleu."):
        phrasebook.type(sentence)
        english = translator.translate(sentence)
        assert " ".join(phrasebook.words).lower() == english.lower()
        status = phrasebook.page.locator("[role=status]")
        expect(status).to_have_text(f"Translation: {english}")
    sentence = "Le grand chien noir aime le petit chat blanc"
    phrasebook.type(sentence)
    for mode, size in (("greedy", 1), ("beam 4", 4)):
        phrasebook.press(mode)
        english = translator.translate(sentence, size)
        assert " ".join(phrasebook.words).lower() == english.lower()
    listed = phrasebook.page.locator(".live-beam li").all_inner_texts()
    for line, each in zip(listed, translator.n_best([sentence])[0], strict=True):
        score, probability, text = re.split(r"\s+", line, maxsplit=2)
        assert float(score.replace("−", "-")) == pytest.approx(each.score, abs=0.006)
        assert probability == f"{math.exp(each.log_probability):.1%}"
        assert text == each.text.lower()
    phrasebook.press("greedy")
    assert phrasebook.page.locator(".live-beam").count() == 0


def test_the_answer_is_stepped_through_by_mouse_and_keys(phrasebook: Reader) -> None:
    assert phrasebook.step == 1
    phrasebook.press("One token on")
    assert phrasebook.step == 2
    assert "after “Jane visits”" in phrasebook.page.locator(".live-nexts").inner_text()
    phrasebook.press("One token back")
    phrasebook.press("One token back")
    assert phrasebook.step == 0
    phrasebook.key("step-0").focus()
    for key, step in (
        ("ArrowRight", 1),
        ("End", 5),
        ("ArrowRight", 5),
        ("ArrowLeft", 4),
        ("Home", 0),
    ):
        phrasebook.page.keyboard.press(key)
        assert phrasebook.step == step
        focused = phrasebook.page.evaluate("document.activeElement.dataset.key")
        assert focused == f"step-{step}"
    expect(phrasebook.page.locator("[role=status]")).to_have_text("Step 1: Jane.")
    phrasebook.page.keyboard.press("End")
    phrasebook.page.keyboard.press("ArrowLeft")
    phrasebook.key("forth").focus()
    for _ in range(2):
        phrasebook.page.keyboard.press("Enter")
    assert phrasebook.step == 5
    expect(phrasebook.key("forth")).to_be_focused()
    expect(phrasebook.key("forth")).to_have_attribute("aria-disabled", "true")
    phrasebook.key("step-0").click()
    weights = phrasebook.page.locator(".live-pair ol").first.locator("li").first
    assert "Jane" in weights.inner_text()


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_playing_goes_through_the_model_for_each_word(
    phrasebook: Reader, motion: str
) -> None:
    """By the same stages with and without movement."""
    page = phrasebook.page
    page.emulate_media(reduced_motion=motion)
    phrasebook.type("Tu es fatiguée")
    page.evaluate(
        """() => {
          const live = document.querySelector(".live");
          [live.dataset.pace, window.lit] = [5, []];
          new MutationObserver((all) => all.forEach(({ target }) => {
            if (target.matches(".live-lit")) lit.push(target.dataset.at ?? "wire");
          })).observe(live, {
            attributes: true, attributeFilter: ["class"], subtree: true,
          });
        }"""
    )
    phrasebook.press("Play")
    if motion == "reduce":
        assert page.evaluate("document.getAnimations().length") == 0
    expect(page.locator(".live-playing")).to_have_count(0, timeout=20_000)
    side = {name: [] for name in "ed"}
    for at in page.locator("[data-at]").all():
        place = at.get_attribute("data-at") or ""
        side["e" if place[0] in "es" else "d"].append(place)
    words = len(phrasebook.words) + 1
    assert words == 4
    assert page.evaluate("lit") == side["e"] + words * ["wire", *side["d"]]
    assert phrasebook.step == words - 1
    page.evaluate("document.querySelector('.live').dataset.pace = 5000")
    phrasebook.press("Play")
    phrasebook.press("Stop")
    assert page.locator(".live-playing").count() == 0


# Looking


@pytest.mark.parametrize("tab", ["map", "detail", "number"])
def test_a_link_shows_what_it_is_about(reader: Reader, file: str, tab: str) -> None:
    """At first, from the page, and from the page once more."""
    state = f"#s=Jane+vend+sa+voiture&t=2&at=e2.self&w=2&tab={tab}"
    page = reader.open(file + state).page
    page.evaluate(
        "state => { const link = document.createElement('a'); link.href = state;"
        " link.id = 'to'; document.querySelector('main').append(link);"
        " link.textContent = 'a link'; }",
        state,
    )

    def in_view() -> None:
        pane = page.locator(f".live-{tab}").bounding_box()
        bar = page.locator(".live-top").bounding_box()
        assert 0 <= pane["y"] - bar["y"] - bar["height"] < 30

    in_view()
    for _ in range(2):
        page.locator("#to").click()
        page.wait_for_timeout(50)  # the address changes a moment later, if it does
        in_view()


def test_every_part_of_the_map_shows_its_numbers(phrasebook: Reader) -> None:
    buttons = phrasebook.page.locator(".live-map .live-block > button")
    names = buttons.evaluate_all(LABELS)
    assert len(names) == 13
    for index, name in enumerate(names):
        buttons.nth(index).click()
        part = phrasebook.page.locator(".live-detail")
        assert part.locator("h2").inner_text().lower() in (name or "").lower().replace(
            ", ", ": "
        ).replace("encoder: ", "").replace("decoder: ", "")
        strips = part.locator("svg[role=img]").evaluate_all(LABELS)
        assert strips
        assert len(part.locator(".live-say").inner_text()) > 30
        for label in strips:
            assert re.search(r"\d+ numbers from", label or "")
        text = phrasebook.page.locator(".live").inner_text()
        assert "NaN" not in text
        assert "undefined" not in text


def test_labels_are_set_as_the_chapters_set_them(phrasebook: Reader) -> None:
    phrasebook.page.add_style_tag(content="figcaption { font-weight: 300 }")
    caption = phrasebook.page.locator(".live-strip figcaption").first
    assert caption.evaluate("e => getComputedStyle(e).fontWeight") == "400"
    assert "_" not in phrasebook.page.locator(".live").inner_text()
    formulas = phrasebook.page.locator(".live :is(sub, sup)").all_inner_texts()
    assert {"k", "O"} <= {*formulas}
    names = phrasebook.page.locator("svg[role=img]").evaluate_all(LABELS)
    assert not [name for name in names if "object" in (name or "")]


def test_sentence_map_and_part_are_one_screen(reader: Reader, file: str) -> None:
    """And the two selections, a French and an English word, do not look alike."""
    reader.page.set_viewport_size({"width": 1200, "height": 700})
    reader.open(f"{file}#s=Jane+vend+sa+voiture&t=2&at=e2.self&w=2&tab=map")

    def box(selector: str) -> dict[str, float]:
        return reader.page.locator(selector).first.bounding_box() or {}

    row, towers, part = map(box, (".live-top", ".live-towers", ".live-detail"))
    assert row["height"] <= 56
    assert row["y"] >= 0
    assert towers["y"] >= row["y"] + row["height"]
    assert towers["y"] + towers["height"] <= 700
    assert part["x"] > towers["x"] + towers["width"]
    reader.page.evaluate("scrollBy(0, 500)")
    part = box(".live-detail")
    assert 0 < part["y"] < 100
    assert part["y"] + part["height"] <= 700
    colours = [
        reader.key(key).evaluate("e => getComputedStyle(e).backgroundColor")
        for key in ("word-2", "word-1", "step-2", "step-1")
    ]
    assert len({*colours}) >= 3
    reader.page.set_viewport_size({"width": 400, "height": 700})
    reader.open(file)
    words = box(".live-words")
    assert words["y"] + words["height"] < 500


def test_a_small_table_has_its_frame_around_it(phrasebook: Reader) -> None:
    """A head with two rows is drawn no larger than one with six."""
    sizes = phrasebook.page.locator(".live-heads canvas").evaluate_all(
        "all => all.map(each => each.height)"
    )
    assert sizes == 4 * [6 * 8 + 2]


def test_a_square_with_room_has_its_number(reader: Reader, file: str) -> None:
    """As in the book: 28 pixels are enough."""
    look = """() => [...document.querySelectorAll(".live-matrix rect:has(title)")]
      .map(each => [each.getBoundingClientRect().width, each.matches(".live-never")])"""
    for sentence, told in (
        ("Jane vend sa voiture", True),
        ("Elle ne lave pas sa vieille voiture bleue en septembre", False),
    ):
        reader.open(f"{file}#at=e1.self&s={sentence.replace(' ', '+')}")
        for width in (1200, 700, 400):
            reader.page.set_viewport_size({"width": width, "height": 900})
            squares = [each for each in reader.page.evaluate(look) if each[0]]
            numbers = reader.page.locator(".live-value:visible").all_text_contents()
            assert len(numbers) == told * sum(not never for _, never in squares)
            assert not told or all(side > 27.9 for side, _ in squares), squares
            assert all(re.fullmatch(r"1?\.\d\d", number) for number in numbers)


def test_small_squares_follow_day_and_night(reader: Reader, file: str) -> None:
    same = """wanted => {
        const canvas = document.querySelectorAll(".live-heads canvas")[1];
        const { data } = canvas.getContext("2d").getImageData(13, 13, 1, 1);
        return wanted.every((each, i) => Math.abs(each - data[i]) < 4);
    }"""
    hue = HUES["weight"]
    assert hue.square
    reader.open(f"{file}#s=Jane+vend+sa+voiture&at=e2.self")
    for scheme, shade in (
        ("light", hue.square.day),
        ("dark", hue.night),
        ("light", hue.square.day),
    ):
        reader.page.emulate_media(color_scheme=scheme)
        reader.page.wait_for_function(same, arg=[*bytes.fromhex(shade[1:])])


def test_a_weight_is_worked_out_from_its_query_and_key(phrasebook: Reader) -> None:
    phrasebook.page.locator('[data-key="at-d1.cross"]').click()
    phrasebook.key("head-3").click()
    phrasebook.key("key-4").click()
    text = phrasebook.page.locator(".live-number").inner_text()
    assert "the weight of “en” after “Jane”" in text

    def products() -> list[float]:
        texts = phrasebook.page.locator(".live-sum b").all_inner_texts()
        return [float(text.replace("−", "-")) for text in texts]

    few = products()
    largest, others = few[:5], few[5:]
    assert len(others) == 1
    phrasebook.key("numbers").check()
    assert products()[:5] == largest
    assert sum(products()[5:]) == pytest.approx(others[0], abs=0.1)
    assert [*map(abs, products())] == sorted(map(abs, products()), reverse=True)
    assert len(products()) == 24
    total, scaled, weight = (
        float(value.split("= ")[-1].replace("−", "-"))
        for value in phrasebook.page.locator(".live-steps-out dd").all_inner_texts()
    )
    assert sum(products()) == pytest.approx(total, abs=0.15)  # of 24 rounded numbers
    assert scaled == pytest.approx(total / 24**0.5, abs=1e-3)
    translator = Translator.phrasebook()
    from transformer.maps import attention_maps

    source = torch.tensor([translator.encode(SENTENCE)])
    target = torch.tensor([[1, *translator.target_tokenizer.encode("Jane")]])
    maps = attention_maps(translator.model, source, target)
    assert weight == pytest.approx(maps.cross[0, 0, 2, 1, 4].item(), abs=2e-3)
    row = phrasebook.page.locator(".live-row-table tbody tr").nth(4)
    assert float(row.locator("b").inner_text()) == pytest.approx(weight, abs=1e-3)


def test_a_view_is_restored_from_its_address(phrasebook: Reader) -> None:
    phrasebook.type("Paul vend sa voiture")
    phrasebook.key("step-2").click()
    phrasebook.page.locator('[data-key="at-e2.self"]').click()
    phrasebook.key("word-2").click()
    phrasebook.key("head-4").click()
    phrasebook.key("off-positions").uncheck()
    seen = [phrasebook.detail, phrasebook.words, phrasebook.hash]
    again = phrasebook.open(phrasebook.page.url)
    assert [again.detail, again.words, again.hash] == seen


@pytest.mark.parametrize(
    "odd",
    [
        "#s=%3Cimg+src%3Dx+onerror%3Dalert(1)%3E&t=99999999&at=e9.self&h=77&k=-1&off=x",
        "#s=Jane+visite+Paris&t=999&at=d2.cross&h=9&w=31&k=31&p=0.1.999999.5&set=a:b",
        "#s=Jane&off=head:d2.cross.99,causal,__proto__&set=d2.cross.1.0.0:1",
        "#%E0%A4%A&s=Jane",
        "#s=",
    ],
)
def test_no_address_breaks_the_page(reader: Reader, file: str, odd: str) -> None:
    reader.open(file + odd)
    reader.type("Jane visite Paris")
    assert len(reader.words) > 1


# Changing


def test_a_switch_shows_the_answer_before_and_after(phrasebook: Reader) -> None:
    for name in ("scale", "causal", "positions", "residual", "norm", "feed_forward"):
        switch = phrasebook.key(f"off-{name}")
        switch.uncheck()
        whole = phrasebook.page.locator(".live-whole").inner_text()
        assert "Jane" in whole
        assert "September" in whole
        same = phrasebook.words == ["Jane", "visits", "Africa", "in", "September"]
        assert ("the same words" in whole) == same
        assert f"off={name}" in phrasebook.hash
        assert phrasebook.page.locator(".live-next u").count() == 8
        phrasebook.press("Undo all changes")
        expect(phrasebook.page.locator(".live-whole")).to_have_count(0)
        expect(switch).to_be_checked()
    assert phrasebook.words == ["Jane", "visits", "Africa", "in", "September"]
    phrasebook.key("off-positions").uncheck()
    assert phrasebook.words != ["Jane", "visits", "Africa", "in", "September"]
    different = phrasebook.page.locator(".live-words .live-differs").all_inner_texts()
    assert [text.split()[0] for text in different] == phrasebook.words
    small = phrasebook.page.locator(".live-differs small")  # not underlined with it
    assert small.evaluate("e => getComputedStyle(e).display") == "inline-block"


def test_the_square_root_does_what_chapter_4_says_of_it(
    reader: Reader, file: str
) -> None:
    chapter = (BOOK / "04-attention.md").read_text(encoding="utf-8")
    state = re.search(r":state: (.*at=e1\.self.*)", chapter)
    said = re.search(r"weight on herself rises from (\d.\d+) to (\d.\d+)", chapter)
    assert state is not None
    assert said is not None
    reader.open(f"{file}#{state[1]}")
    words = reader.words
    jane = reader.page.locator(".live-row-table tbody tr").first.locator("b")
    for scale, weight in zip((True, False), said.groups(), strict=True):
        reader.key("off-scale").set_checked(scale)
        assert f"{float(jane.inner_text()):.2f}" == weight
        if scale:  # the same in a sentence
            share = f"{float(jane.inner_text()):.0%} of its attention to Jane"
            assert share in reader.detail
        assert reader.words == words


def test_the_weight_of_chapter_3_is_worth_a_drag(reader: Reader, file: str) -> None:
    """In the view as it opens, *her* depends on the weight that its slider sets."""
    chapter = (BOOK / "03-queries-keys-values.md").read_text(encoding="utf-8")
    state = re.search(r":state: (.*at=e2\.self.*)", chapter)
    assert state is not None
    reader.open(f"{file}#{state[1]}")
    assert "“Jane” for “sa”" in reader.page.locator(".live-number h2").inner_text()
    her = reader.page.locator(".live-words button[aria-pressed=true]")
    assert her.inner_text().split() == ["her", "91%"]
    reader.key("edit").press("Home")
    assert her.inner_text().split() == ["her", "46%"]
    was = reader.page.locator(".live-was").inner_text()
    assert was.strip() == "her had 91%, and now has 46%."


def test_heads_are_switched_in_their_part_and_in_the_grid(phrasebook: Reader) -> None:
    name = "head:d2.cross.1"
    phrasebook.key(f"off-{name}").uncheck()
    assert "head switched off: zeros" in phrasebook.detail
    grid = phrasebook.key(f"grid-{name}")
    expect(grid).to_have_attribute("aria-pressed", "false")
    assert "changed" in phrasebook.key("at-d2.cross").inner_text()
    grid.click()
    assert "zeros" not in phrasebook.detail


def test_padding_changes_nothing_until_its_mask_is_off(phrasebook: Reader) -> None:
    before = phrasebook.page.locator(".live-next").inner_text()
    phrasebook.key("pads").check()
    assert phrasebook.page.locator(".live-tokens").inner_text().count("<pad>") == 3
    assert phrasebook.page.locator(".live-next").inner_text() == before
    assert phrasebook.page.locator(".live-row-table").inner_text().count("masked") == 3
    phrasebook.key("off-padding").uncheck()
    assert phrasebook.page.locator(".live-next").inner_text() != before
    assert "masked" not in phrasebook.page.locator(".live-row-table").inner_text()


def test_an_edited_weight_changes_what_comes_out_and_can_be_undone(
    phrasebook: Reader,
) -> None:
    row = phrasebook.page.locator(".live-row-table tbody tr")
    for key in range(1, 5):  # all four heads of the last layer look elsewhere
        phrasebook.key(f"head-{key}").click()
        phrasebook.key("key-5").click()
        slider = phrasebook.key("edit")
        slider.focus()
        phrasebook.page.keyboard.press("End")
        assert "1.000 by hand" in row.nth(5).inner_text()
    assert "0.000" in row.nth(1).inner_text()
    assert phrasebook.words[1] != "visits"
    phrasebook.press("Undo all changes")
    assert phrasebook.words[1] == "visits"


def test_the_weight_that_is_dragged_stays_the_same_weight(
    reader: Reader, file: str
) -> None:
    """Even where another key becomes the largest on the way."""
    reader.open(f"{file}#s=Jane+vend+sa+voiture&t=2&at=e2.self&w=2&h=2")
    slider = reader.key("edit")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    mouse, middle = reader.page.mouse, box["y"] + box["height"] / 2
    mouse.move(box["x"] + 0.9 * box["width"], middle)
    mouse.down()
    for share in (0.7, 0.5, 0.3, 0.1, -0.1):
        mouse.move(box["x"] + share * box["width"], middle)
    mouse.up()
    assert reader.hash.endswith("set=e2.self.2.2.0%3A0")
    title = reader.page.locator(".live-number h2").inner_text()
    assert title == "One number: the weight of “Jane” for “sa”"
    assert "46%" in reader.page.locator(".live-next li", has_text="her").inner_text()


def test_words_that_stay_are_not_animated_again(phrasebook: Reader) -> None:
    phrasebook.page.evaluate(
        "Promise.all(document.getAnimations().map(each => each.finished))"
    )
    moving = "document.getAnimations().map(each => each.effect.target.firstChild.data)"
    phrasebook.press("One token on")
    assert phrasebook.page.evaluate(moving) == []
    phrasebook.type("Jane visite l'Afrique en avril")
    assert phrasebook.page.evaluate(moving) == ["April"]


@pytest.mark.parametrize(
    ("width", "anchor"), [(1200, "none"), (1200, "auto"), (400, "none")]
)
def test_a_switch_stays_where_it_is(
    reader: Reader, book_page: str, width: int, anchor: str
) -> None:
    """In a browser that keeps places by itself, and in one that does not."""
    reader.page.set_viewport_size({"width": width, "height": 900})
    reader.open(f"{book_page}?at=e1.self&w=0&h=2&show=row")
    reader.page.add_style_tag(content=f"* {{ overflow-anchor: {anchor} }}")
    switch = reader.key("here-scale")
    switch.scroll_into_view_if_needed()
    reader.page.evaluate("scrollBy(0, 150)")
    before = switch.bounding_box()["y"]
    for press in (switch.click, switch.click, lambda: switch.press("Space")):
        press()
        reader.page.wait_for_timeout(50)  # a frame or two
        assert abs(switch.bounding_box()["y"] - before) < 1
    expect(reader.page.locator(".live-whole")).to_be_visible()
    words = reader.page.locator(".live-words").bounding_box()
    assert 0 <= words["y"] < 60  # in view, and not over the switch
    assert words["y"] + words["height"] < before


def test_a_row_of_the_decoder_is_chosen_without_a_step_back(
    reader: Reader, book_page: str
) -> None:
    """And it is named after the token that it follows."""
    reader.open(f"{book_page}?t=3&at=d1.self&h=1&off=causal&show=matrix+row")
    square = reader.page.locator(".live-matrix rect:has(title)").nth(1 * 4 + 3)
    shown = (square.locator("title").text_content() or "").split(": ")
    assert shown[0] == "after Jane → Africa"
    square.click()
    assert reader.step == 3
    row = reader.page.locator(".live-row-table tbody tr")
    assert row.count() == 4
    assert f"{float(row.nth(3).locator('b').inner_text()):.2f}" == shown[1]
    assert "Head 1: the row after “Jane”" in reader.detail
    assert "after Jane → Africa" in reader.page.locator(".live-crumbs").inner_text()
    inside = """svg => [...svg.querySelectorAll('text')].every(text => {
      const [a, b] = [svg, text].map(each => each.getBoundingClientRect());
      return b.left >= a.left && b.top >= a.top && b.right <= a.right;
    })"""
    assert reader.page.locator(".live-matrix svg").evaluate(inside)
    labels = reader.page.locator(".live-matrix .live-axis").all_text_contents()
    assert labels == ["keys", "queries"]
    link = reader.key("link").get_attribute("href") or ""
    assert "q=1" in link
    assert link.endswith("tab=detail")


def test_a_switch_shows_the_weights_of_the_whole_model_too(phrasebook: Reader) -> None:
    weights = phrasebook.page.locator(".live-row-table td b")
    before = [float(weight) for weight in weights.all_inner_texts()]
    outlines = phrasebook.page.locator(".live-row-table u")
    assert outlines.count() == 0
    phrasebook.key("off-scale").uncheck()
    widths = outlines.evaluate_all("all => all.map(each => each.style.width)")
    shares = [float(width.removesuffix("%")) / 100 for width in widths]
    assert shares == pytest.approx(before, abs=6e-4)
    assert [float(each) for each in weights.all_inner_texts()] != before


def test_each_head_is_tried_alone(reader: Reader, file: str) -> None:
    reader.open(f"{file}#s=Jane+vend+sa+voiture&t=2&at=e2.self&w=2")
    reader.press("Try each head alone")
    found = reader.page.locator(".live-head-grid small").all_inner_texts()
    assert len(found) == 24
    for place, number in ((5, "e2.self.2"), (21, "d2.cross.2")):
        reader.key(f"grid-head:{number}").click()
        assert reader.page.locator(".live-head-grid small").count() == 0
        her = reader.page.locator(".live-next li", has_text="her").first
        assert her.locator("b").inner_text() == found[place]
        reader.key(f"grid-head:{number}").click()
    assert reader.page.locator(".live-head-grid small").count() == 24  # as they were


def test_the_first_picture_is_the_one_that_stood_there(phrasebook: Reader) -> None:
    def seen() -> list[str]:
        found = phrasebook.page.locator(".live-pair ol").first.locator("b")
        return [text for text in found.all_inner_texts() if text]

    heading = phrasebook.page.locator(".live-attended h2")
    shown = still(Translator.phrasebook(), SENTENCE, "key").weights[1].tolist()
    mean = [f"{weight:.2f}".removeprefix("0") for weight in shown if weight >= 0.005]
    assert seen() == mean
    assert "mean of all 8 heads of cross-attention" in heading.inner_text()
    phrasebook.press("One token on")
    phrasebook.press("One token back")
    phrasebook.open(phrasebook.page.url)
    assert seen() == mean
    phrasebook.key("head-1").click()
    assert seen() != mean
    assert "decoder 2, cross-attention, head 1" in heading.inner_text()
    phrasebook.open(phrasebook.page.url)
    assert seen() != mean


def test_a_part_of_the_lab_is_switched_on_again(reader: Reader) -> None:
    runs = Runs([[3.0, 1.0]], [1.0], [1.0])
    lab = BreakLab(runs, [Part("mask", runs, "", "")], step=1, floor=0.5)
    reader.page.set_content(lab._repr_html_())
    switch = reader.page.locator("label", has_text="mask")
    for off in (True, False, True):
        switch.click()
        assert reader.page.locator(".lab-0").is_checked() == off
        assert reader.page.locator(".lab-all").is_checked() != off


def test_a_token_can_be_forced_and_released(phrasebook: Reader) -> None:
    other = phrasebook.page.locator(".live-next button").nth(2)
    token = other.inner_text()
    other.click()
    assert phrasebook.words[:2] == ["Jane", token]
    phrasebook.press("Undo the choice")
    assert phrasebook.words[1] == "visits"


def test_sampling_repeats_by_seed_and_follows_the_temperature(
    phrasebook: Reader,
) -> None:
    phrasebook.press("sampling")
    drawn = []
    phrasebook.key("temperature").focus()
    phrasebook.page.keyboard.press("End")
    for _ in range(4):
        drawn.append(" ".join(phrasebook.words))
        address = phrasebook.page.url
        phrasebook.press("Draw again")
    assert len({*drawn}) == 4
    phrasebook.open(address)
    assert " ".join(phrasebook.words) == drawn[-1]
    phrasebook.key("temperature").focus()
    phrasebook.page.keyboard.press("Home")
    assert phrasebook.words == ["Jane", "visits", "Africa", "in", "September"]


# What cannot be translated


UNREADABLE = [
    ("", "Type a sentence in French."),
    ("   ", "Type a sentence in French."),
    (".", "There is no word in it."),
    ("Jane " * 40, "too long: 40 tokens, at most 32 fit"),
    ("x" * 5000, "too long: 5000 characters"),
    ("Jane visite 🦒", "“🦒” is not in the vocabulary. In its place:"),
    ("Джейн едет", "“джейн” and “едет” are not in the vocabulary"),
    ("<img src=x onerror=alert(1)>", "“<img”, “"),
    ("Jane\x07", "A sentence has the control character U+0007."),
]


def test_what_cannot_be_read_gets_a_line(phrasebook: Reader) -> None:
    readable = (
        (SENTENCE, "Jane visits Africa in September"),
        ("Jane vend sa voiture", "Jane sells her car"),
    )
    phrasebook.type(SENTENCE)
    for number, (typed, line) in enumerate(UNREADABLE):
        (before, _), (after, english) = readable[number % 2], readable[1 - number % 2]
        phrasebook.type(typed)
        assert line.lower() in phrasebook.problem.lower()
        assert phrasebook.page.locator("img, .live script").count() == 0
        still_shown = phrasebook.page.locator(".live-still-shown").inner_text()
        assert still_shown == f"Below you still see “{before}”."
        assert phrasebook.words[0] == "Jane"
        phrasebook.type(after)
        assert phrasebook.problem == ""
        assert " ".join(phrasebook.words) == english


def test_an_unknown_word_is_named_and_its_suggestion_taken(phrasebook: Reader) -> None:
    def offered() -> list[str]:
        choices = phrasebook.page.locator(".live-problem button")
        return [each.split()[0] for each in choices.all_inner_texts()]

    phrasebook.type("Jane visite l'Angl")  # half a word is completed
    phrasebook.press("Angleterre England")
    assert phrasebook.words[-1] == "England"
    phrasebook.type("Jane achète une bike")  # English is understood
    assert offered()[0] == "vélo"
    phrasebook.type("Le fromage est vert")  # a word of its kind, and of its gender
    assert "“fromage” is not in the vocabulary. In its place:" in phrasebook.problem
    things = [kind.words for kind in word_kinds() if kind.tags == "ms thing"]
    assert {*offered()} <= {*things[0]}
    assert len(offered()) == 6
    phrasebook.key("suggest-0").click()
    assert phrasebook.words[-2:] == ["is", "green"]


def test_a_sentence_is_translated_when_its_writer_pauses(phrasebook: Reader) -> None:
    first = phrasebook.words
    phrasebook.input.fill("")
    phrasebook.input.press_sequentially("Jane vend sa voiture")
    expect(phrasebook.page.locator(".live-waiting")).to_have_count(1)
    assert phrasebook.words == first
    expect(phrasebook.page.locator(".live-waiting")).to_have_count(0)
    assert phrasebook.words == ["Jane", "sells", "her", "car"]
    phrasebook.input.fill("Jane vend")  # no whole sentence, unless its writer says so
    expect(phrasebook.page.locator(".live-chips .live-note")).to_contain_text("Enter")
    assert phrasebook.words == ["Jane", "sells", "her", "car"]
    phrasebook.type("Elle")
    assert phrasebook.words == ["she", "she"]
    assert "and so on, 26 tokens" in phrasebook.page.locator(".live-words").inner_text()
    assert "It repeats itself" in phrasebook.page.locator(".live-remarks").inner_text()


def test_each_word_has_a_menu_of_its_kind(phrasebook: Reader) -> None:
    """And what agrees with it, or is shortened before it, changes along."""
    phrasebook.type("Jane vend sa voiture rouge")
    for place, word, english in (
        (0, "Paul", "Paul sells his red car"),
        (3, "horloge", "Paul sells his red clock"),
        (4, "blanche", "Paul sells his white clock"),
        (3, "robe", "Paul sells his white dress"),
        (1, "achète", "Paul buys his white dress"),
    ):
        phrasebook.key(f"swap-{place}").select_option(word)
        assert " ".join(phrasebook.words) == english
    assert phrasebook.input.input_value() == "Paul achète sa robe blanche"
    options = phrasebook.key("swap-4").locator("option").all_inner_texts()
    assert "grise: grey" in options
    assert not [each for each in options if each.startswith("gris:")]
    phrasebook.type("Marie n'achète pas de chien")
    phrasebook.key("swap-2").focus()
    phrasebook.key("swap-2").select_option("vend")
    assert phrasebook.input.input_value() == "Marie ne vend pas de chien"
    focused = phrasebook.page.evaluate("document.activeElement.dataset.key")
    assert focused == "swap-2"


def test_a_sentence_that_cannot_be_read_leaves_the_first_example(
    reader: Reader, file: str
) -> None:
    reader.open(f"{file}#s=Bonjour+Jane")
    assert "“Bonjour” is not in the vocabulary" in reader.problem
    still_shown = reader.page.locator(".live-still-shown").inner_text()
    assert still_shown == f"Below you still see “{SENTENCE}”."
    assert " ".join(reader.words) == "Jane visits Africa in September"
    assert reader.page.locator(".live-next li").count() == 8


def test_all_words_can_be_seen_and_chosen(phrasebook: Reader) -> None:
    vocabulary = Translator.phrasebook().source_tokenizer.vocabulary
    phrasebook.page.get_by_text(f"All {len(vocabulary)} words").click()
    words = phrasebook.page.locator(".live-all button")
    keys = words.evaluate_all("all => all.map(each => each.dataset.key.slice(4))")
    assert {*keys} == {*vocabulary}
    phrasebook.type("Jane visite.")
    for word in ("l'", "Afrique"):
        phrasebook.key(f"all-{word}").first.click()
    assert phrasebook.input.input_value() == "Jane visite l'Afrique"


def test_capitals_accents_and_last_signs_do_not_matter(phrasebook: Reader) -> None:
    for typed, english in (
        ("marie VISITE paris ?", "Marie visits Paris"),
        ("JANE VEND SA VOITURE!!", "Jane sells her car"),
        ("Ma soeur est fatiguee...", "my sister is tired"),
    ):
        phrasebook.type(typed)
        assert phrasebook.problem == ""
        assert " ".join(phrasebook.words) == english


def test_surprises_are_sentences_that_can_be_read(phrasebook: Reader) -> None:
    before = phrasebook.input.input_value()
    phrasebook.press("Surprise me")
    assert phrasebook.input.input_value() != before
    assert phrasebook.problem == ""


# The tour


def test_each_card_of_the_tour_asks_and_tells(phrasebook: Reader) -> None:
    """With *Show me* in place of the reader's own hands."""
    page = phrasebook.page
    told = page.locator(".live-tour-told")
    phrasebook.press("Take the tour")
    for card in range(1, 13):
        expect(page.locator(".live-tour-where")).to_contain_text(f"Card {card} of 12")
        assert f"tour={card}" in phrasebook.hash
        assert page.locator(".live-pointed").count() >= 1
        assert told.inner_text() == ""
        phrasebook.key("guess-0").click()
        phrasebook.key("tour-do").click()
        right = page.locator(".live-tour-options", has_text="✓").locator("button")
        is_right = "✓" in (right.first.text_content() or "")
        assert told.inner_text().startswith("✓ Right." if is_right else "Not quite: ")
        assert not re.search("undefined|NaN|null", told.inner_text())
        assert page.locator(".live-ticked").count() == card
        assert page.locator(".live-pointed").count() == 0
        phrasebook.key("tour-next").click()
    assert page.locator(".live-tour").is_hidden()
    assert "tour" not in phrasebook.hash
    expect(phrasebook.input).to_be_focused()
    expect(phrasebook.input).to_be_in_viewport()


def test_a_card_ticks_for_what_its_reader_does(reader: Reader, file: str) -> None:
    """And tells what came of it, in the model's own words and numbers."""
    told = reader.page.locator(".live-tour-told")
    reader.open(f"{file}#tour=1")
    reader.key("swap-0").select_option("Paul")
    expect(told).to_contain_text("It writes “Paul sells his car”.")
    reader.open(f"{file}#tour=6")
    reader.press("his")
    for head in (1, 2, 3):
        expect(told).to_be_empty()
        reader.key(f"off-head:e2.self.{head}").uncheck()
    expect(told).to_contain_text("Right. It was “Jane sells her car”.")
    shown = reader.page.locator(".live-next li").first.inner_text().split()
    assert shown[0] == "his"
    assert f"his has {shown[1]}" in told.inner_text()
    reader.open(f"{file}#tour=10")
    reader.key("guess-1").click()
    reader.key("at-d1.ff").click()
    expect(told).to_have_text("Not yet: after this part it would say his.")
    reader.key("at-d2.cross").click()
    expect(told).to_contain_text("✓ Right. From here on it would say her.")
    for other in ("#tour=13", "#tour=0"):
        reader.open(file + other)
        assert reader.page.locator(".live-tour").is_hidden()


@pytest.mark.parametrize("width", [1200, 400])
def test_a_card_hides_nothing_that_it_points_at(
    reader: Reader, file: str, width: int
) -> None:
    reader.page.set_viewport_size({"width": width, "height": 700})
    reader.page.emulate_media(reduced_motion="reduce")
    reader.open(file)
    for card in (1, 2, 3, 4, 5, 6, 7, 8, 12):
        reader.page.evaluate(f"location.hash = 'tour={card}'")
        expect(reader.page.locator(".live-tour")).to_contain_text(f"Card {card} of")
        reader.key("guess-1").click()
        pointed = reader.page.locator(".live-pointed").first.bounding_box()
        dock = reader.page.locator(".live-tour").bounding_box()
        middle = pointed["y"] + pointed["height"] / 2
        assert 0 < middle < 700
        assert width > 1000 or middle < dock["y"]
        reader.key("tour-do").click()
        nav = reader.page.locator(".live-tour-nav").bounding_box()
        assert nav["y"] + nav["height"] < 700  # the answer leaves *Next* in view
        assert reader.page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_card_is_done_by_keyboard(phrasebook: Reader) -> None:
    page = phrasebook.page
    phrasebook.key("tour").press("Enter")
    expect(page.locator(".live-tour h2")).to_be_focused()
    for _ in range(2):
        page.keyboard.press("Tab")
    expect(phrasebook.key("guess-1")).to_be_focused()
    page.keyboard.press("Enter")
    phrasebook.key("swap-0").focus()
    page.keyboard.type("Paul")  # as in any menu
    expect(page.locator(".live-tour-told")).to_contain_text("Right.")
    phrasebook.key("tour-next").press("Escape")
    assert page.locator(".live-tour").is_hidden()
    expect(phrasebook.key("tour")).to_be_focused()


def test_another_model_has_no_tour(
    subwords: Translator, reader: Reader, tmp_path
) -> None:
    (tmp_path / "x.html").write_text(page(subwords), "utf-8")
    reader.open((tmp_path / "x.html").as_uri() + "#tour=2")
    assert len(reader.words) > 0
    assert reader.page.get_by_text("Take the tour").count() == 0


def test_the_program_is_small() -> None:
    text = script(Translator.phrasebook(), "x")
    program = text[: text.index("const style = ")]
    assert len(program.encode()) < 120_000
    assert len(text.encode()) - len(program.encode()) < 1_300_000


# Any reader, any screen


def violations(page: Page, rules: list[str] | None = None) -> list[str]:
    options: dict = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = rules
    return [
        f"{found['id']}: {each['target']} {each['any']}"
        for found in Axe().run(page, options=options).response["violations"]
        for each in found["nodes"]
    ]


def test_axe_finds_nothing(phrasebook: Reader) -> None:
    for scheme, rules in (("light", None), ("dark", ["color-contrast"])):
        phrasebook.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        for place in ("source", "e1.self", "d2.cross", "d1.ff", "output"):
            phrasebook.key(f"at-{place}").click()
            phrasebook.key("numbers").check()
        phrasebook.key("off-positions").uncheck()
        assert violations(phrasebook.page, rules) == []
        phrasebook.press("Undo all changes")
    phrasebook.type("Jane regarde un éléphant")
    phrasebook.press("Take the tour")
    phrasebook.key("guess-0").click()
    assert violations(phrasebook.page) == []


def test_a_phone_shows_one_pane_at_a_time(browser: Browser, file: str) -> None:
    page = browser.new_page(viewport={"width": 400, "height": 800}, has_touch=True)
    page.goto(file)
    panes = page.locator(".live-pane:visible")
    for tab, heading in (
        ("Answer", "What the chosen token attended to"),
        ("Map", "The model"),
        ("Part", "Decoder layer 2"),
        ("Number", "One number"),
        ("Break it", "Break it"),
    ):
        page.get_by_role("button", name=tab, exact=True).tap()
        assert panes.count() == 1
        assert heading in panes.first.inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        small = page.locator(".live button:visible").evaluate_all(
            "all => all.map(e => [e.innerText, e.getBoundingClientRect()])"
            ".filter(([, box]) => Math.min(box.width, box.height) < 43)"
        )
        assert not small
        if tab == "Map":
            page.locator('[data-key="at-e1.ff"]').tap()  # leads to the part
            assert "Encoder layer 1" in panes.first.inner_text()
            page.locator('[data-key="tab-map"]').tap()
            page.locator('[data-key="at-d2.cross"]').tap()
    page.locator('[data-key="tab-map"]').tap()
    block = page.locator('[data-key="at-e1.self"]')
    block.scroll_into_view_if_needed()
    block.tap()
    tabs, part = page.locator(".live-tabs"), panes.first.bounding_box()
    below = tabs.bounding_box()
    assert 0 <= below["y"] < 100
    assert 0 <= part["y"] - below["y"] - below["height"] < 30
    page.evaluate("scrollTo(0, 1000)")
    assert 0 <= tabs.bounding_box()["y"] < 100  # whatever is scrolled
    answer = page.locator(".live-words").bounding_box()
    assert 0 <= answer["y"] < 10  # in view, whatever is scrolled
    page.close()


def test_without_scripts_there_is_a_picture_and_a_table(
    browser: Browser, file: str
) -> None:
    page = browser.new_page(java_script_enabled=False)
    page.goto(file)
    assert page.locator("b:visible").all_inner_texts().count(".63") == 1  # of visits
    page.get_by_text("Africa", exact=True).first.click()
    seen = {
        item.locator("span").inner_text(): "".join(
            item.locator("b:visible").all_inner_texts()
        )
        for item in page.locator(".live-pair ol").first.locator("li").all()
    }
    shown = still(Translator.phrasebook(), SENTENCE, "key")
    weights = shown.weights[shown.queries.index("Africa")]
    assert {word: float(text or 0) for word, text in seen.items()} == pytest.approx(
        dict(zip(shown.keys, weights.tolist(), strict=True)), abs=0.0051
    )
    page.locator("summary").click()
    assert page.locator("table tbody tr").count() == 6
    assert violations_without_scripts(page) == 0
    page.close()


def test_without_scripts_a_view_says_what_it_shows() -> None:
    live = runpy.run_path(str(BOOK / "_ext" / "live.py"))
    view = SimpleNamespace(
        up="", style=lambda: "", still=lambda *seen: SimpleNamespace(html="picture")
    )
    place = live["Live"].model(view, SENTENCE, {"class": "live"}).astext()
    said = re.search("<noscript>(.+)</noscript>\\s*picture", place)
    assert said is not None
    assert "with nothing switched off" in said[1]


@pytest.mark.parametrize(
    ("head", "chosen", "keys", "queries"),
    [
        (Head("encoder", 1, 1), 2, "Jane vend sa voiture", "Jane vend sa voiture"),
        (Head("masked", 0, 3), 3, *2 * ["<bos> Jane sells her car"]),
        (Head("cross", 1, 2), 3, "Jane vend sa voiture", "<bos> Jane sells her car"),
    ],
)
def test_a_picture_of_one_head_shows_its_weights(head, chosen, keys, queries) -> None:
    translator = Translator.phrasebook()
    shown = still(translator, "Jane vend sa voiture", "key", chosen, head)
    assert (shown.keys, shown.queries) == (keys.split(), queries.split())
    source = translator.encode("Jane vend sa voiture")
    target = translator.target_tokenizer.encode("Jane sells her car")
    maps = attention_maps(
        translator.model, torch.tensor([source]), torch.tensor([[BOS_ID, *target]])
    )
    expected = getattr(maps, head.kind)[0, head.layer, head.number]
    torch.testing.assert_close(shown.weights, expected)
    assert f'id="key-{chosen}" checked' in shown.html
    assert f"layer {head.layer + 1}, head {head.number + 1}" in shown.html


def test_a_head_that_is_not_there_is_refused() -> None:
    for head in (Head("encoder", 1, 4), Head("encoder", 2, 0), Head("cross", 0, -1)):
        with pytest.raises(ValueError, match=r"no Head\(kind="):
            still(Translator.phrasebook(), "Jane vend sa voiture", "key", 1, head)


def violations_without_scripts(page: Page) -> int:
    """What a script cannot look for here: pictures without words."""
    return page.locator("svg:not([aria-hidden]):not([aria-label])").count()


# Other models


@pytest.fixture(scope="module")
def subwords() -> Translator:
    """A small model with pieces of words, trained for a few seconds."""
    pairs = [tuple(map(detokenize, pair)) for pair in sample_pairs(300, 0)]
    sentences = [side for pair in pairs for side in pair]
    tokenizer = SubwordTokenizer.train(sentences, 200, "raw")
    torch.manual_seed(3)
    config = TransformerConfig(
        200,
        200,
        32,
        4,
        1,
        2,
        40,
        0.0,
        norm_first=True,
        tie_embeddings=True,
        max_length=48,
    )
    model = Transformer(config)
    examples = [tuple(map(tokenizer.encode, pair)) for pair in pairs]
    few = TrainingConfig(
        epochs=12, batch_tokens=1000, learning_rate=0.01, warmup_steps=20
    )
    for _ in train(model, examples, few):
        pass
    return Translator(model.eval(), tokenizer, tokenizer)


def test_a_model_with_few_subwords_and_no_sentences_is_described() -> None:
    tokenizer = SubwordTokenizer.train(["ab ba", "a b"], 8, "tok")
    config = TransformerConfig(8, 8, 8, 2, 1, 1, 8, max_length=32)
    described = describe(Translator(Transformer(config).eval(), tokenizer, tokenizer))
    (example,) = described["examples"]
    assert tokenizer.encode(example)


def test_the_example_is_one_that_the_tokenizer_can_read(tmp_path: Path) -> None:
    words = WordTokenizer(Vocabulary(["3.5", "chat", "noir", "le"]))
    model = Transformer(TransformerConfig(7, 7, 8, 2, 1, 1, 8, max_length=12))
    Translator(model, words, words).save(tmp_path / "words.safetensors")
    arguments = ["explore", "--weights", str(tmp_path / "words.safetensors")]
    assert main([*arguments, "--out", str(tmp_path / "words.html")]) == 0
    assert describe(Translator(model, words, words))["examples"] == ["Chat noir le"]
    unreadable = WordTokenizer(Vocabulary(["3.5", "4.2", "5.1", "6.7"]))
    with pytest.raises(ValueError, match="can read none of its own words"):
        explore(Translator(model, unreadable, unreadable))


@pytest.mark.parametrize("longest", [4, 2])
def test_the_example_is_as_short_as_the_model(
    subwords: Translator, longest: int
) -> None:
    tokenizer = subwords.source_tokenizer
    size = tokenizer.vocab_size
    sizes = TransformerConfig(size, size, 8, 2, 1, 1, 8, max_length=longest)
    (example,) = describe(Translator(Transformer(sizes), tokenizer, tokenizer))[
        "examples"
    ]
    assert 1 <= len(tokenizer.encode(example)) <= longest
    words = Translator.phrasebook()
    config = dataclasses.replace(words.model.config, max_length=4)
    short = Translator(
        Transformer(config), words.source_tokenizer, words.target_tokenizer
    )
    described = describe(short)
    assert described["sentences"]
    for sentence in (*described["sentences"], *described["examples"]):
        assert 1 <= len(words.source_tokenizer.encode(sentence)) <= 4


def test_a_model_with_subwords_has_a_page(
    subwords: Translator, reader: Reader, tmp_path: Path
) -> None:
    weights, out = tmp_path / "model.safetensors", tmp_path / "x.html"
    subwords.save(weights)
    assert main(["explore", "--weights", str(weights), "--out", str(out)]) == 0
    reader.open(out.as_uri())
    odd = "Où est-elle, 🦒?", "<b>été</b> &amp;", "ab"
    for sentence in ("Jane visite l'Afrique", *odd):
        reader.type(sentence)
        tokens = reader.page.locator(".live-tokens button").all_inner_texts()
        assert tokens == subwords.source_tokenizer.pieces(sentence)
        assert ("no training sentence" in reader.problem) == ("<unk>" in tokens)
        ids = subwords.target_tokenizer._tokenizer.token_to_id
        written = subwords.target_tokenizer.decode([ids(text) for text in reader.words])
        expected = subwords.translate(sentence, on_unknown=lambda *_: None)
        assert written == expected
    for index in range(reader.page.locator(".live-block > button").count()):
        reader.page.locator(".live-block > button").nth(index).click()
        assert reader.page.locator(".live-detail svg[role=img]").count() >= 1
    assert reader.page.locator(".live b").count() > 0
    assert reader.page.locator("img").count() == 0


def test_a_model_alone_reads_ids(reader: Reader, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(12, 12, 16, 2, 1, 1, 16, 0.1, max_length=12))
    live = explore(model)
    assert model.training
    assert repr(live) == f"LiveModel({len(live.page.encode()) / 1e6:.1f} MB)"
    live.save(tmp_path / "ids.html")
    reader.open((tmp_path / "ids.html").as_uri())
    reader.type("5 7 4 11")
    with torch.no_grad():
        from transformer.decoding.search import greedy_search

        (wanted,) = greedy_search(model, [[5, 7, 4, 11]], 12)
    assert [int(word) for word in reader.words] == wanted
    reader.type("5 12")
    assert "“12” is not in the vocabulary" in reader.problem


def test_in_a_notebook_it_is_a_frame_of_its_own(reader: Reader, tmp_path: Path) -> None:
    output = explore(Translator.phrasebook())._repr_html_()
    (tmp_path / "notebook.html").write_text(f"<!DOCTYPE html><p>Out:</p>{output}")
    reader.open((tmp_path / "notebook.html").as_uri())
    frame = reader.page.frame_locator("iframe[title]")
    frame.locator(".live-input").fill("Jane vend sa voiture")
    frame.locator(".live-input").press("Enter")
    frame.locator('[data-key="step-2"]').click()
    expect(frame.locator('[data-key="step-2"]')).to_contain_text("her")


def test_words_that_are_markup_stay_words(reader: Reader, tmp_path: Path) -> None:
    nasty = [
        "</script><img/src=x/onerror=alert(1)>",
        "<!--",
        "a&lt;b",
        "\u2028x"[1:],
        "$key",
    ]
    tokenizer = WordTokenizer(Vocabulary(nasty))
    torch.manual_seed(1)
    model = Transformer(TransformerConfig(8, 8, 8, 2, 1, 1, 8, max_length=8))
    sentence = "$key x"
    text = page(
        Translator(model, tokenizer, tokenizer), sentences=[sentence], title="<i>&"
    )
    (tmp_path / "nasty.html").write_text(text, encoding="utf-8")
    reader.open((tmp_path / "nasty.html").as_uri())
    reader.page.wait_for_selector(".live-words button")
    assert reader.page.locator("h1").inner_text() == "<i>&"
    assert reader.page.locator("img, i:not(.live i)").count() == 0
    assert "innerHTML" not in text


def test_what_has_no_page_is_refused_in_one_line(tmp_path: Path, capsys) -> None:
    with torch.device("meta"):
        large = Transformer(TransformerConfig.base(20_000, 20_000))
    with pytest.raises(ValueError, match=r"in a page \d+ MB; the limit is 20,"):
        describe_model(large)
    assert LIMIT == 20_000_000

    class Other(WordTokenizer):
        """Not the book's, but of its kind."""

    model = Transformer(TransformerConfig(5, 5, 8, 2, 1, 1, 8))
    hooked = Transformer(TransformerConfig(5, 5, 8, 2, 1, 1, 8))
    hooked.output.register_forward_hook(lambda *args: args[2] * 2)
    with pytest.raises(ValueError, match="this model computes something else"):
        describe_model(hooked)
    special = Transformer(TransformerConfig(5, 5, 8, 2, 1, 1, 8, pad_id=4))
    with pytest.raises(ValueError, match="pad_id is 4 in the model's config, but 0"):
        explore(special)
    model.save(tmp_path / "bare.safetensors")
    arguments = ["explore", "--weights", str(tmp_path / "bare.safetensors")]
    assert main([*arguments, "--out", str(tmp_path / "x.html")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "it has a model without its tokenizers" in error
    assert not (tmp_path / "x.html").exists()


class Clamped(FeedForward):
    """Another one only where numbers are large: on random ids it computes the same."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).clamp(-1e3, 1e3)


@dataclasses.dataclass(frozen=True)
class AlibiConfig(TransformerConfig):
    alibi: bool = True


def test_a_model_of_other_parts_is_refused_by_their_class() -> None:
    sizes = 5, 5, 8, 2, 1, 1, 8
    model = Transformer(TransformerConfig(*sizes))
    model.encoder.layers[0].feed_forward.__class__ = Clamped
    place = r"Clamped at encoder\.layers\.0\.feed_forward"
    with pytest.raises(ValueError, match=f"the page does not know the class .*{place}"):
        explore(model)
    with pytest.raises(ValueError, match="the page does not know the setting 'alibi'"):
        describe_model(Transformer(AlibiConfig(*sizes)))


def test_a_file_is_read_once_for_its_page(tmp_path: Path, monkeypatch) -> None:
    Translator.phrasebook().save(tmp_path / "model.safetensors")
    read, load = [], Translator.load
    monkeypatch.setattr(
        Translator, "load", lambda path: read.append(path) or load(path)
    )
    text = page(tmp_path, ["Jane vend sa voiture"])
    assert read == [tmp_path]
    assert "Jane vend sa voiture" in text
    out = tmp_path / "page.html"
    assert main(["explore", "--weights", str(tmp_path), "--out", str(out)]) == 0
    assert read == [tmp_path] * 2


def test_a_folder_of_marian_translates_on_its_page(
    reader: Reader, tmp_path: Path, monkeypatch, capsys
) -> None:
    made, out = write_folder(tmp_path / "opus"), tmp_path / "page.html"
    arguments = ["explore", "--weights", str(made), "--out", str(out)]
    assert main(arguments) == 0
    reader.open(out.as_uri())
    sentence = "the cat sleeps in a garden"
    reader.type(sentence)
    translator = Translator.load(made)
    ids = translator.encode(sentence)
    (wanted,) = greedy_search(translator.model, [ids], translator.max_length_for(ids))
    pieces = describe_tokenizer(translator.target_tokenizer)["pieces"]
    assert reader.words == [pieces[index] for index in wanted][: len(reader.words)]
    assert len(reader.words) > 1  # what is repeated is folded
    shown = reader.page.locator(".live-token").all_inner_texts()
    assert len(shown) == len(ids)
    assert shown[-1] == "</s>"
    monkeypatch.setattr("transformer.live.model.LIMIT", 10**4)
    capsys.readouterr()
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "the limit is 10,000 parameters" in said


def test_a_tokenizer_that_is_not_the_books_is_refused() -> None:
    class Digits:
        vocab_size, pad_id, bos_id, eos_id = 13, 0, 1, 2

        def encode(self, sentence: str) -> list[int]:
            return [int(digit) + 3 for digit in sentence]

        def decode(self, ids: list[int]) -> str:
            return "".join(str(index - 3) for index in ids)

    model = Transformer(TransformerConfig(13, 13, 8, 2, 1, 1, 8)).eval()
    translator = Translator(model, Digits(), Digits())
    for picture in (page, lambda model, _: still(model, "7", "key")):
        with pytest.raises(ValueError, match="words or subwords, got a Digits"):
            picture(translator, ["7"])


def test_half_precision_is_used_where_it_changes_no_word() -> None:
    translator = Translator.phrasebook()
    assert describe(translator)["dtype"] == "float16"
    model = translator.model
    with torch.no_grad():
        model.output.weight.mul_(1e6)  # more than half precision can hold
    assert describe_model(model)["dtype"] == "float32"
