"""The views that a reader touches, as pieces of HTML."""

import re
from collections.abc import Iterator

import pytest
import torch
from playwright.sync_api import Browser, Page

from bookkit import Clocks, Guess, MaskBoard, PartsMap, Piece, WordPlane
from bookkit.mask_board import moves
from transformer import Transformer, TransformerConfig
from transformer.encoder import Encoder
from transformer.positional import sinusoids

GUESS = Guess("What <b> now?", ("this & that", "those"), right=1, answer="Those.")
WORDS = ["a", "<b>", "c"]
CAUSAL = torch.ones(3, 3).tril().bool()


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    """A phone, on which a script's error is a test's."""
    page, wrong = browser.new_page(viewport={"width": 400, "height": 900}), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    yield page
    page.close()
    assert not wrong


def touch(page: Page, view: object) -> None:
    """Lay a view before the reader; it must fit, and its question must wait."""
    page.set_content(f"<!doctype html><html lang=en>{view._repr_html_()}")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    answer = page.locator(".touch-ask p")
    assert answer.evaluate("e => getComputedStyle(e).visibility") == "hidden"
    page.locator(".touch-ask label").last.click()
    assert answer.inner_text().startswith("Yes.")


def test_a_guess_says_what_is_right_and_is_no_markup() -> None:
    page = GUESS.html("x")
    assert "What &lt;b&gt; now?" in page
    assert "this &amp; that" in page
    assert re.findall(r'id="([^"]+)" data-right>', page) == ["guess-x-1"]
    with pytest.raises(ValueError, match=r"right must lie in 0\.\.1, got 2"):
        Guess("?", ("a", "b"), right=2, answer="")


def test_a_piece_is_small_and_tells_itself_apart() -> None:
    pages = [MaskBoard(WORDS, mask, GUESS)._repr_html_() for mask in (CAUSAL, ~CAUSAL)]
    keys = {re.search(r'data-maskboard="(\w+)"', page)[1] for page in pages}
    assert len(keys) == 2
    assert max(len(page.encode()) for page in pages) < 15_000
    for page in pages:
        assert page.count("</script>") == 1
        assert "<b>" not in page.partition("<script>")[0]
        assert "http" not in page


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_an_output_moves_with_what_allowed_steps_lead_to(layers: int) -> None:
    encoder = Encoder(d_model=8, num_heads=1, d_ff=8, num_layers=layers).double()
    mask = torch.rand(6, 6) < 0.2
    x = torch.randn(1, 6, 8, dtype=torch.float64, requires_grad=True)
    y = encoder(x, mask) @ torch.randn(8, dtype=torch.float64)
    rows = [torch.autograd.grad(out, x, retain_graph=True)[0][0] for out in y[0]]
    moved = torch.stack(rows).abs().sum(-1) > 1e-12
    assert torch.equal(moved, moves(mask, layers))


def test_a_mask_without_a_script_is_a_picture_and_words() -> None:
    mask = CAUSAL.clone()
    mask[0, 2] = True
    board = MaskBoard(WORDS, mask, GUESS, layers=2)
    assert board.say() == (
        "A leak: after 2 layers a later word moves 2 of the 3 outputs, a and <b>."
    )
    drawn = board._repr_html_().partition("<script>")[0]
    assert drawn.count("<td class=on>●</td>") == 7
    assert drawn.count("<td class=early>✕</td>") == 3
    assert "a moves with a, &lt;b&gt;, and c: a leak, of &lt;b&gt; and c." in drawn
    honest = MaskBoard(WORDS, CAUSAL, GUESS)
    assert honest.say() == "After 1 layer no later word moves an output."
    assert repr(honest) == "MaskBoard(a, <b>, c; 6 allowed)"
    with pytest.raises(ValueError, match=r"3 rows and columns .* \(2, 3\)"):
        MaskBoard(WORDS, CAUSAL[:2], GUESS)


def test_a_mask_can_be_painted_with_a_finger_and_with_keys(page: Page) -> None:
    mask, words = torch.ones(5, 5).tril().bool(), list("abcde")
    touch(page, MaskBoard(words, mask, GUESS))
    say, cells = page.locator("[aria-live]"), page.locator(".mask-grid tbody td")
    cells.nth(4).click()
    mask[0, 4] = True
    assert say.inner_text() == MaskBoard(words, mask, GUESS).say()
    page.locator("input[type=range]").focus()
    page.keyboard.press("ArrowRight")
    two = MaskBoard(words, mask, GUESS, layers=2)
    assert say.inner_text() == two.say()
    told = page.locator("li").all_text_contents()
    assert told == re.findall(r"<li>(.*)</li>", two._repr_html_())
    page.locator(".mask-grid").focus()
    for key in ("ArrowLeft", " "):  # from the last key to the one before
        page.keyboard.press(key)
    mask[0, 3] = True
    said = MaskBoard(words, mask, GUESS, layers=2).say()
    assert say.inner_text() == f"a may see d. {said}"
    page.get_by_role("button", name="causal").click()
    assert say.inner_text() == "After 2 layers no later word moves an output."


def test_clocks_show_the_sinusoids_and_their_likeness() -> None:
    table = sinusoids(20, 6)
    clocks = Clocks(table, GUESS, first=7, second=2)
    drawn = clocks._repr_html_().partition("<script>")[0]
    cells = [float(x.replace("−", "-")) for x in re.findall(r">([−\d.]+)</b>", drawn)]
    assert cells == pytest.approx(table[7].tolist(), abs=0.006)
    cosine = torch.cosine_similarity(table[7], table[2], dim=0)
    assert clocks.say() == f"Positions 7 and 2, 5 apart: their cosine is {cosine:.2f}."
    assert re.findall(r"a turn in<br>(\S+) words", drawn) == ["6.3", "135", "2,916"]
    assert len(Clocks(sinusoids(101, 16), GUESS, 8, 3)._repr_html_()) < 15_000


@pytest.mark.parametrize(
    ("table", "first", "message"),
    [
        (torch.zeros(3), 0, r"no table of sines and cosines: \(3,\)"),
        (torch.rand(5, 4), 0, "do not turn evenly from twelve"),
        (sinusoids(5, 4), 5, r"must lie in 0\.\.4, got 5 and 0"),
    ],
)
def test_what_are_no_clocks_is_refused(table, first, message) -> None:
    with pytest.raises(ValueError, match=message):
        Clocks(table, GUESS, first, 0)


def test_clocks_turn_with_the_slider(page: Page) -> None:
    table = sinusoids(101, 16)
    touch(page, Clocks(table, GUESS, first=8, second=3))
    page.locator("input[type=range]").first.focus()
    for key in ("End", "ArrowLeft", "ArrowLeft"):
        page.keyboard.press(key)
    there = Clocks(table, GUESS, first=98, second=3)
    assert page.locator("[aria-live]").inner_text() == there.say()
    drawn = there._repr_html_()
    told = page.locator(".clock b").all_text_contents()
    assert told == re.findall(r">([−\d.]+)</b>", drawn)
    hands = [hand.get_attribute("y2") for hand in page.locator("line").all()]
    assert hands == re.findall(r' y2="([\d.]+)"', drawn)


def plane() -> WordPlane:
    """Six words in four dimensions, with what is expected before and after them."""
    torch.manual_seed(0)
    vectors, axes = torch.randn(6, 4), torch.eye(4)[:, :2]
    sides = {side: torch.nn.Linear(4, 6) for side in ("before", "after")}
    kinds = {"vowels": ["a", "e"], "the rest": ["b", "c", "d"]}
    return WordPlane(vectors, axes, sides, list("abcde·"), kinds, ["b", "a"], GUESS)


def test_a_word_in_its_place_is_expected_beside_what_the_maps_say() -> None:
    torch.manual_seed(0)
    vectors = torch.randn(6, 4)
    before = torch.nn.Linear(4, 6)
    shares = before(vectors[1]).softmax(-1)
    found = plane().expected("before", "b")
    assert found["vowels"] == pytest.approx((shares[0] + shares[4]).item(), abs=1e-3)
    assert sum(found.values()) == pytest.approx(1 - shares[5].item(), abs=1e-3)
    assert f"other .{100 * shares[5].item():.0f} before it" in plane().say("b")
    drawn = plane()._repr_html_().partition("<script>")[0]
    assert drawn.count("●</text>") == 2
    assert drawn.count("■</text>") == 3
    assert repr(plane()) == "WordPlane(6 words; b, a)"
    with pytest.raises(ValueError, match="not in the vocabulary: z"):
        WordPlane(vectors, torch.eye(4)[:, :2], {}, list("abcde·"), {}, ["z"], GUESS)


def test_a_word_is_dragged_moved_with_keys_and_put_back(page: Page) -> None:
    view = plane()
    touch(page, view)
    say = page.locator("[aria-live]")
    assert say.inner_text() == view.say("b")
    star = page.locator(".word circle").bounding_box()
    x, y = star["x"] + star["width"] / 2, star["y"] + star["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 30, y - 20)
    page.mouse.up()
    assert say.inner_text().startswith("With b here, the model expects ")
    page.get_by_role("button", name="back").click()
    assert say.inner_text() == view.say("b")
    page.locator(".plane").focus()
    page.keyboard.press("ArrowUp")
    assert "here" in say.inner_text()
    page.keyboard.press("Home")
    assert say.inner_text() == view.say("b")
    page.locator("select").select_option("a")
    assert say.inner_text() == view.say("a")


def parts() -> PartsMap:
    """A small model of two layers in each stack, taken apart."""
    layer = "encoder.layers.0"
    inside = [
        Piece(f"<{name}>", f"{layer}.{name}", "It works.", "07-encoder")
        for name in ("feed_forward", "self_attention")
    ]
    table = Piece("table", "source_embedding", "A row.", "02-embedding")
    model = Transformer(TransformerConfig(9, 9, 8, 2, 2, 2, 16))
    softmax = Piece("softmax", "", "Shares.", "10-model")
    return PartsMap(model, [inside, table], [softmax], GUESS, first=1)


def test_parts_hold_what_the_model_holds() -> None:
    view = parts()
    feed_forward, attention, table, softmax = view.parts()
    assert [view.times(part) for part in view.parts()] == [2, 2, 1, 1]
    assert view.size(attention) == 4 * (8 * 8 + 8)
    assert view.shapes(attention) == "4 matrices of 8 × 8, 4 vectors of 8"
    wide, narrow = "a matrix of 16 × 8, a vector of 16", "a matrix of 8 × 16"
    assert view.shapes(feed_forward) == f"{wide}, {narrow}, a vector of 8"
    assert (view.size(table), view.size(softmax)) == (72, 0)
    page = view._repr_html_()
    assert "&lt;self_attention&gt;" in page
    assert "together 288. The 2 layers hold 576." in page
    assert page.count(" checked>") == 1
    assert "<script" not in page
    assert "@key" not in page
    assert repr(view).startswith("PartsMap(4 parts, ")
    gone = [Piece("x", "encoder.rest", "", "07-encoder")]
    with pytest.raises(ValueError, match=r"the model has no part encoder\.rest"):
        PartsMap(Transformer(TransformerConfig(9, 9, 8, 2, 1, 1, 16)), gone, [], GUESS)


def test_a_part_is_chosen_with_a_finger_and_with_keys(page: Page) -> None:
    touch(page, parts())
    panel = page.locator(".panel:visible")
    assert panel.inner_text().startswith("<self_attention>. It works.")
    page.locator(".two label").first.click()
    assert panel.inner_text().startswith("<feed_forward>")
    for _ in range(2):
        page.keyboard.press("ArrowDown")
    assert panel.inner_text().startswith("table. A row.")
    assert panel.get_by_role("link").get_attribute("href") == "02-embedding.ipynb"
