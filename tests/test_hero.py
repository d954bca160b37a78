"""The front page's translations: what the model says, and what the page shows of it."""

import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

BOOK = Path(__file__).resolve().parent.parent / "book"
sys.path.insert(0, str(BOOK / "_ext"))
import hero  # noqa: E402

pytestmark = pytest.mark.plain  # nothing here is about shapes


def test_the_model_says_what_the_glosses_say() -> None:
    pronouns = {"Elle": "She", "Il": "He"}
    found = hero.translations()
    assert len(found) == 108
    for sentence, (whole, owner, cut) in found.items():
        subject, verb, *thing = sentence.split()
        women = hero.SUBJECTS[subject] in ("a woman", "she")
        who, does = pronouns.get(subject, subject), hero.VERBS[verb]
        what = hero.THINGS[" ".join(thing)]
        assert (
            " ".join(whole.words) == f"{who} {does} {'her' if women else 'his'} {what}"
        )
        # Without its look at the subject, the owner's word means *his*: nothing else
        # changes, as the page says.
        assert " ".join(cut.words) == f"{who} {does} his {what}"
        owners = [each.weights[-2] for each in (whole, cut)]
        assert all(row[0] <= 2 and row[hero.OWNER] > 80 for row in owners), sentence
        assert owner[0] == max(owner) or not women
        assert owner[0] > 30, sentence


def test_ribbons_lie_side_by_side() -> None:
    for whole, _, _ in hero.translations().values():
        found = hero.ribbons(whole.weights)
        rows, cols = len(whole.weights), len(whole.weights[0])
        for i in range(rows):
            below = [found[i, j][2:] for j in range(cols)]
            assert all(a[1] == pytest.approx(b[0]) for a, b in pairwise(below))
            assert abs(below[-1][1] - below[0][0] - hero.FULL) <= 0.02 * hero.FULL
        for j in range(cols):
            above = [found[i, j][:2] for i in range(rows)]
            assert all(a[1] == pytest.approx(b[0]) for a, b in pairwise(above))
            assert above[-1][1] - above[0][0] < hero.WIDE / cols


@pytest.fixture(scope="module")
def window(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Page]:
    """The front page's first minute alone, opened from the disk."""
    file = tmp_path_factory.mktemp("hero") / "page.html"
    style, script = ((BOOK / "_static" / f"hero.{kind}") for kind in ("css", "js"))
    file.write_text(
        '<!DOCTYPE html><html lang="en"><meta charset="utf-8">'
        f"<style>{style.read_text('utf-8')}</style>{hero.markup()}"
        f"<script>{script.read_text('utf-8')}</script>",
        encoding="utf-8",
    )
    page = browser.new_page(viewport={"width": 400, "height": 900})
    page.goto(file.as_uri())
    yield page
    page.close()


@pytest.fixture
def page(window: Page) -> Page:
    """As if nobody had been there before, and nothing moves."""
    window.emulate_media(reduced_motion="reduce")
    window.reload()
    return window


def english(page: Page) -> str:
    return " ".join(page.locator(".hero-said").all_inner_texts())


def drawn(page: Page) -> list[list[float]]:
    """The outlines of the ribbons that are there."""
    paths = page.locator(".hero-flow path").evaluate_all(
        "all => all.map(e => e.getAttribute('d'))"
    )
    return with_width(paths)


def with_width(paths: list[str]) -> list[list[float]]:
    """The numbers of each outline whose two edges below are apart."""
    found = [[float(each) for each in re.findall(r"-?[\d.]+", d)] for d in paths]
    return [numbers for numbers in found if numbers[8] - numbers[6] > 0.2]


def test_the_page_draws_what_was_computed(page: Page) -> None:
    """Every menu, by the keyboard alone; the ribbons are those of the build."""
    for who, does, what in ((0, 0, 0), (3, 1, 5), (1, 2, 3), (1, 0, 3)):
        for name, index in (("Who", who), ("Does what", does), ("To what", what)):
            menu = page.get_by_label(name, exact=True)
            menu.focus()
            page.keyboard.press("Home")
            for _ in range(index):
                page.keyboard.press("ArrowDown")
        menus = hero.SUBJECTS, hero.VERBS, hero.THINGS
        sentence = " ".join(
            [*menu][n] for menu, n in zip(menus, (who, does, what), strict=True)
        )
        said = hero.translations()[sentence].whole
        assert " ".join(page.locator(".hero-word b").all_inner_texts()) == sentence
        assert english(page) == " ".join(said.words)
        paths = [hero.path(each) for each in hero.ribbons(said.weights).values()]
        for one, other in zip(drawn(page), with_width(paths), strict=True):
            assert one == pytest.approx(other, abs=0.15)  # both are rounded
        looked = page.locator(".hero-says").inner_text()
        written = hero.looked(sentence, said, len(said.words) - 2)
        assert looked == re.sub(r"<.*?>", "", written)


def test_ribbons_move_unless_the_reader_wants_them_still(page: Page) -> None:
    page.emulate_media(reduced_motion="no-preference")
    before = drawn(page)
    page.get_by_label("Does what").select_option(index=1)
    page.wait_for_timeout(60)
    between = drawn(page)
    page.wait_for_timeout(500)
    after = drawn(page)
    assert before != between != after
    page.emulate_media(reduced_motion="reduce")
    page.get_by_label("Does what").select_option(index=0)
    assert drawn(page) == before
    assert page.evaluate("document.getAnimations().length") == 0


def test_the_riddle_is_asked_before_it_is_answered(page: Page) -> None:
    card, arc = page.locator(".hero"), page.locator(".hero-arc path")
    assert "<eos>" not in card.inner_text()
    assert "ross-attention" not in card.inner_text()
    assert "carries its owner" not in card.inner_text()
    assert arc.count() == 0
    guesses = page.get_by_role("group", name="Your guess").get_by_role("button")
    for guess, first in (("sa", "That is where"), ("vend", "No"), ("Jane", "Yes")):
        guesses.filter(has_text=guess).click()
        assert guesses.filter(has_text=guess).evaluate(
            "e => e === document.activeElement"
        )
        assert page.locator(".hero-guesses + div").inner_text().startswith(first)
    assert "looked at Jane (71%, the arc)" in card.inner_text()
    assert arc.count() == 1
    page.get_by_role("button", name="Cut the arc").press("Enter")
    assert english(page) == "Jane sells his car"
    assert "No other word changed" in card.inner_text()
    page.get_by_label("Who", exact=True).select_option(index=3)
    assert english(page) == "Paul sells his car"
    assert "it still writes his" in card.inner_text()
    page.get_by_role("button", name="Mend the arc").press("Enter")
    page.get_by_label("Who", exact=True).select_option(index=2)
    assert english(page) == "She sells her car"


def test_fingers_have_room_on_a_phone(page: Page) -> None:
    buttons = page.locator(".hero button, .hero .hero-menu, .hero-doors a").all()
    assert len(buttons) > 10
    for button in buttons:
        assert (button.bounding_box() or {"height": 0})["height"] >= 40
    assert page.evaluate("document.documentElement.scrollWidth") == 400


def test_the_first_minute_is_small() -> None:
    assert len(hero.data().encode()) < 20_000
    script = (BOOK / "_static" / "hero.js").read_text(encoding="utf-8")
    assert len(script.encode()) < 15_000
