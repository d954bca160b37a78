"""Read the rendered book in a browser: wide and narrow, by day and by night.

The site must have been built: `make book`. Whatever is wrong with a page is collected
and reported together.
"""

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from urllib.parse import urljoin

import pytest
from playwright.sync_api import Browser, Locator, Page, Request
from pypdf import PdfReader

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "_build" / "html"
AXE = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
CONTENTS = (ROOT / "_toc.yml").read_text(encoding="utf-8")
PAGES = re.findall(r"(?:root|file): *(\S+)", CONTENTS)
ATTENTION = "book/04-attention"
CHAPTERS = [page for page in PAGES if (ROOT / f"{page}.md").name[:2].isdigit()]
WORKSHOP = [page for page in PAGES if "/workshop/" in page]
# Two views on a page; queries of one sentence and keys of another; layers and heads.
VIEWS = ["book/03-queries-keys-values", "book/09-decoder", "book/14-attention-maps"]
# The inside of a picture is hidden from assistive technology, and the hues of code are
# looked at on one page alone: without both, axe is ten times as fast.
PLAIN = """() => {
  for (const e of document.querySelectorAll("article svg[role=img]"))
    e.replaceChildren();
  for (const e of document.querySelectorAll("article pre")) e.textContent = e.innerText;
}"""

OPEN = """document.documentElement.dataset.folds = "All";
document.querySelectorAll("details.fold").forEach(e => { e.open = true })"""

# What stands in the same place of the same kinds of elements has the same colours: of
# each kind that other pages had not shown yet three are kept, and the contrast of pages
# is read twenty times as fast. Of what is one letter long axe says nothing.
THREE_OF_A_KIND = """([within, shown]) => {
  const seen = new Map(Object.entries(shown));
  const kind = e => e === null || e.matches("article") ? ""
    : `${kind(e.parentElement)} ${e.tagName}.${e.getAttribute("class")}`
      + (e.getAttribute("style") ?? "");
  for (const e of document.querySelectorAll(within)) {
    const words = [...e.childNodes].filter(n => n.nodeType === Node.TEXT_NODE);
    if (!words.some(n => n.data.trim())) continue;
    const short = e.textContent.trim().length < 2, found = seen.get(kind(e)) ?? 0;
    if (short || found === 3) words.forEach(n => n.remove());
    else seen.set(kind(e), found + 1);
  }
  for (const e of document.querySelectorAll(within))
    if (!e.textContent.trim()) e.remove();
  return Object.fromEntries(seen);
}"""
SHOWN: dict[str, int] = {}  # how many of each kind, on the pages so far

# What a page must not hold. Each returns a list of complaints.
TOO_WIDE = """() => {
  const scrolls = e => e && (/auto|scroll|hidden/.test(getComputedStyle(e).overflowX)
    || scrolls(e.parentElement));
  const found = [...document.querySelectorAll("article *")].filter(e =>
    e.getBoundingClientRect().right > innerWidth + 1
    && e.checkVisibility() && !scrolls(e.parentElement)
    && !e.closest(".headerlink, math"));
  const page = document.documentElement.scrollWidth - innerWidth;
  return found.slice(0, 5).map(e => `${e.tagName} .${e.className}`)
    .concat(page > 1 ? [`the page itself, by ${page} px`] : []);
}"""
CUT_OFF = """() => [...document.querySelectorAll("div.cell_input pre, div.math")]
  .map(e => [e.scrollWidth - e.clientWidth, e])
  .filter(([over, e]) => over > 1 && e.checkVisibility())
  .map(([over, e]) => `${over} px: ${e.innerText.trim().slice(0, 60)}`)"""
UNTYPESET = r"""() => {
  const all = selector => [...document.querySelectorAll(selector)];
  const missing = all("article div.math").filter(e => !e.querySelector("math"))
    .map(e => e.innerText);
  const words = document.createTreeWalker(
    document.querySelector("article"), NodeFilter.SHOW_TEXT);
  const raw = [];
  while (words.nextNode()) {
    const node = words.currentNode;
    if (node.parentElement.closest("pre, code, script, style")) continue;
    if (/\\\(|\\\[|\\begin\{|\$/.test(node.data)) raw.push(node.data.trim());
  }
  return missing.concat(raw).map(text => text.slice(0, 60));
}"""
SILENT = """() => [...document.querySelectorAll("article img, article svg")]
  .filter(e => !e.closest("button, summary, [aria-hidden=true]"))
  .filter(e => !(e.getAttribute("alt") || e.getAttribute("aria-label") || "").trim())
  .map(e => e.outerHTML.slice(0, 80))"""
BROKEN = """() => [...document.images].filter(i => i.complete && !i.naturalWidth)
  .map(i => i.src)"""
INACCESSIBLE = """async ([within, rules, but]) => {
  const options = {preload: false, resultTypes: ["violations"]};
  if (rules) options.runOnly = rules;
  for (const rule of but || []) options.rules = {[rule]: {enabled: false}};
  const {violations} = await axe.run(within, options);
  return violations.flatMap(v => v.nodes.map(n => `${v.id}: ${n.target.join(" ")} `
    + [...n.any, ...n.all, ...n.none].map(a => a.message).join(" ").slice(0, 160)));
}"""


class Quiet(SimpleHTTPRequestHandler):
    """The file server, without a line for every request."""

    late = 0.0  # by how many seconds a font comes later than a page

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        if self.path.endswith(".woff2"):
            time.sleep(self.late)
        super().do_GET()


# How far things move by themselves while a page loads, as browsers count it.
SHIFT = """window.shift = 0;
new PerformanceObserver(list => {
  for (const each of list.getEntries()) if (!each.hadRecentInput) shift += each.value;
}).observe({type: "layout-shift", buffered: true})"""


@pytest.fixture(scope="session")
def home() -> Iterator[str]:
    """The address of the book, served from this machine."""
    if not (SITE / "index.html").exists():
        pytest.fail(f"there is no book at {SITE}: run `make book` first")
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Quiet, directory=SITE)
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="session", params=[1200, 400], ids="{} px".format)
def watched(
    browser: Browser, home: str, request: pytest.FixtureRequest
) -> Iterator[tuple[Page, list[str]]]:
    """A reader's window, a desk's or a phone's, and what the browser says of pages."""
    context = browser.new_context(
        viewport={"width": request.param, "height": 900}, has_touch=request.param < 500
    )
    context.add_init_script(SHIFT)
    page, wrong = context.new_page(), []
    said = {
        "pageerror": lambda error: f"script error: {error}",
        "requestfailed": lambda request: f"failed: {request.url}",
        "console": lambda m: m.type == "error" and f"console: {m.text}",
        "request": lambda request: (
            not request.url.startswith((home, "data:", "blob:"))
            and f"asks the network for {request.url}"
        ),
        "response": lambda r: r.status >= 400 and f"{r.status}: {r.url}",
    }
    for event, complaint in said.items():
        page.on(event, lambda x, c=complaint: wrong.append(c(x)) if c(x) else None)
    yield page, wrong
    context.close()


@pytest.fixture(scope="session")
def window(browser: Browser) -> Iterator[Page]:
    """One for all who look at one thing: each costs more than what is looked at."""
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    yield page
    page.close()


@pytest.fixture
def page(window: Page) -> Iterator[Page]:
    """A wide page for looking at one thing, as if nobody had been there before."""
    yield window
    if window.evaluate("origin") != "null" or window.url.startswith("file:"):
        window.evaluate("localStorage.clear(); sessionStorage.clear()")
    window.goto("about:blank")
    window.emulate_media(
        media="null", color_scheme="light", reduced_motion="no-preference"
    )
    window.set_viewport_size({"width": 1200, "height": 900})
    window.mouse.move(0, 0)


@pytest.fixture
def phone(page: Page) -> Page:
    """A narrow one."""
    page.set_viewport_size({"width": 400, "height": 900})
    return page


@pytest.fixture(scope="session")
def unscripted(browser: Browser) -> Iterator[Page]:
    """A page of a browser that runs no scripts, and so keeps nothing."""
    page = browser.new_page(
        viewport={"width": 1200, "height": 900}, java_script_enabled=False
    )
    yield page
    page.close()


CENSUS = r"""() => {
  const seen = e => e.checkVisibility() && e.offsetHeight > 0;
  const all = selector =>
    [...document.querySelectorAll(`article ${selector}`)].filter(seen);
  const pen = document.createElement("canvas").getContext("2d");
  const letters = e => {
    const text = e.innerText.replaceAll("\n", " ");
    pen.font = getComputedStyle(e).font;
    return e.getBoundingClientRect().width * text.length / pen.measureText(text).width;
  };
  const cut = e => e.scrollHeight > e.clientHeight + 2;
  const helps = text => /^show(_math)?\(/m.test(text);
  const top = e => e.getBoundingClientRect().top;
  const code = all("div.cell_input pre");
  const plain = all("section > p:not([class], :has(*))");
  const long = plain.filter(e => e.innerText.length > 150);
  return {
    cut: all(".fold-claim > summary").filter(cut).map(e => e.innerText),
    helpers: code.map(e => e.innerText).filter(helps),
    measure: Math.max(...long.map(letters)),
    code: Math.min(...code.map(e => parseFloat(getComputedStyle(e).fontSize))),
    picture: Math.min(...all(":is(figure, .tag_plot)").map(top)),
  };
}"""


def stands_in_the_way(page: Page) -> Iterator[str]:
    """What comes between the reader and the idea, as the page opens."""
    page.evaluate("document.fonts.ready")
    found = page.evaluate(CENSUS)
    yield from (f"cut: {words}" for words in found["cut"])
    yield from (f"helps the book, not the reader: {code}" for code in found["helpers"])
    if found["measure"] > 75:
        yield f"lines of {found['measure']:.0f} letters"
    if found["code"] < 14:
        yield f"code of {found['code']} px"
    if found["picture"] >= 800:
        yield "no picture in the first screen"


BARS = """() => [...document.querySelectorAll(
  "article :is(.fold:not(.fold-claim, .fold-plot, .fold-deeper) > summary, .doors)"
)].filter(e => e.checkVisibility() && e.offsetHeight > 0).length"""


def test_the_lessons_have_few_bars_to_open(home: str, page: Page) -> None:
    bars = {}
    for name in CHAPTERS:
        page.goto(f"{home}/{name}.html")
        bars[name] = page.evaluate(BARS)
    assert sum(bars.values()) <= 160, bars


@pytest.mark.parametrize("name", PAGES)
def test_page(home: str, watched: tuple[Page, list[str]], name: str) -> None:
    page, wrong = watched
    page.goto("about:blank")
    wrong.clear()
    page.goto(f"{home}/{name}.html", wait_until="load")
    wide = page.viewport_size["width"] > 1000
    if wide and name in CHAPTERS:
        wrong += stands_in_the_way(page)
    if (shift := page.evaluate("shift")) > 0.1:
        wrong.append(f"moves while it loads, by {shift:.2f}")
    wait_for_live_models(page)
    checks = {
        "wider than the screen": TOO_WIDE,
        "not typeset": UNTYPESET,
        "no alt text": SILENT,
        "broken": BROKEN,
    }
    if wide:
        checks["cut off"] = CUT_OFF
    for scheme, state in (("light", "folded"), ("dark", "open")):
        wear(page, scheme)
        if state == "open":
            page.evaluate(OPEN)
            checks.pop("cut off", None)  # what is folded may scroll
        for label, check in checks.items():
            wrong += [f"{label}, {state}: {hit}" for hit in page.evaluate(check)]
    if wide and name in CHAPTERS:
        shows_where_it_is(page, name)
    page.evaluate(AXE)
    if not wide:  # other boxes scroll; names and colours are the same
        scrolls = ["article", ["scrollable-region-focusable"], []]
        wrong += [f"axe: {hit}" for hit in page.evaluate(INACCESSIBLE, scrolls)]
    else:
        page.evaluate(PLAIN)
        wear(page, "light")
        contrast = ["color-contrast"]
        found = page.evaluate(INACCESSIBLE, ["article", None, contrast])
        wrong += [f"axe: {hit}" for hit in found]
        SHOWN.update(page.evaluate(THREE_OF_A_KIND, ["article *", SHOWN]))
        for scheme in ("light", "dark"):
            wear(page, scheme)
            found = page.evaluate(INACCESSIBLE, ["article", contrast, []])
            wrong += [f"axe, {scheme}: {hit}" for hit in found]
    assert not wrong, f"{name}:\n" + "\n".join(wrong)


def shows_where_it_is(page: Page, chapter: str) -> None:
    """The part that it builds is filled on a small map; others have none."""
    here = page.get_by_role("link", name="You are here")
    number = int(Path(chapter).name[:2])
    assert here.count() == (2 <= number <= 10), chapter
    if here.count():
        filled = here.locator('svg > rect[fill^="var"]')
        assert filled.count() == (2 if number in (2, 7) else 1), chapter
        assert here.locator('svg > rect[fill="none"]').count() > 8


def wait_for_live_models(page: Page) -> None:
    """Go where live models are, so that they load."""
    for model in page.locator("[data-live]").all():
        model.scroll_into_view_if_needed()
        model.locator(".live-words button").first.wait_for()
    page.evaluate("Promise.all(document.getAnimations().map(each => each.finished))")


# Colours that fade from day to night arrive at once.
FADED = """document.getAnimations()
  .filter(each => each instanceof CSSTransition).forEach(each => each.finish())"""


def wear(page: Page, scheme: str) -> None:
    """Let night fall, or day break, and the page follow."""
    page.emulate_media(color_scheme=scheme)
    follows = "scheme => document.documentElement.dataset.theme === scheme"
    page.wait_for_function(follows, arg=scheme)
    page.evaluate(FADED)


def test_a_page_is_light_without_its_drawings_and_can_be_shared() -> None:
    for name in PAGES:
        text = html_of(name)
        words = re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL)
        assert len(words.encode()) < 300_000, name
        for said in ("viewport", 'description" content=".{20,}'):
            assert len(re.findall(f'<meta[^>]*name="{said}"', text)) == 1, name
        (card,) = re.findall(r'property="og:image" content="([^"]+)"', text)
        assert (SITE / urljoin(f"{name}.html", card)).exists(), name


def test_the_colours_of_code_have_contrast(home: str, page: Page) -> None:
    page.goto(f"{home}/{CHAPTERS[-1]}.html")
    page.evaluate(OPEN)
    kinds = page.evaluate(THREE_OF_A_KIND, ["div.cell_input pre span[class]", {}])
    assert len(kinds) > 15
    page.evaluate(AXE)
    for scheme in ("light", "dark"):
        wear(page, scheme)
        assert not page.evaluate(INACCESSIBLE, ["div.cell_input", ["color-contrast"]])


@pytest.mark.parametrize("name", VIEWS)
def test_attention_views_move(home: str, page: Page, name: str) -> None:
    page.goto(f"{home}/{name}.html")
    page.evaluate(OPEN)
    views = page.locator(".attnview").all()
    assert views
    for view in views:
        say = view.locator("[aria-live]")
        here = view.locator("rect.attn-here")
        rows = 1 + int(view.locator("rect[data-q]").last.get_attribute("data-q"))
        cols = 1 + int(view.locator("rect[data-q]").last.get_attribute("data-k"))
        corner = view.locator(f"rect[data-q='{rows - 1}'][data-k='{cols - 1}']")
        first = view.locator("rect[data-q='0'][data-k='0']")
        first.click()
        corner.hover()
        assert at(here) == (rows - 1, cols - 1)
        assert "weight" in say.inner_text()
        page.mouse.move(0, 0)  # as on the way to a slider
        assert at(here) == (0, 0), "what was chosen is lost"
        corner.click()
        page.mouse.move(0, 0)
        view.locator(".attn-grid").focus()
        for key, place in (
            ("ArrowLeft", (rows - 1, cols - 2)),
            ("ArrowUp", (rows - 2, cols - 2)),
            ("ArrowRight", (rows - 2, cols - 1)),
            ("ArrowRight", (rows - 2, cols - 1)),  # the edge holds
            ("ArrowDown", (rows - 1, cols - 1)),
            ("Home", (rows - 1, 0)),
            ("End", (rows - 1, cols - 1)),
        ):
            page.keyboard.press(key)
            assert at(here) == place, key
        for choice in view.locator("input[type=range]:visible").all():
            before = [view.locator(".attn-bars").inner_text(), say.inner_text()]
            choice.focus()
            last = choice.input_value() == choice.get_attribute("max")
            page.keyboard.press("ArrowLeft" if last else "ArrowRight")
            after = [view.locator(".attn-bars").inner_text(), say.inner_text()]
            assert after != before, "choosing a head or a layer changes nothing"
    # Views on one page are independent.
    for view, other in pairwise(views):
        say = other.locator("[aria-live]")
        before = say.inner_text()
        view.locator("rect[data-q]").last.hover()
        view.locator("rect[data-q]").first.hover()
        assert say.inner_text() == before


NUMBERED = sorted(
    page
    for page in PAGES
    if re.search(
        r"\bheatmap\(|AttentionView\(", (ROOT / f"{page}.md").read_text("utf-8")
    )
)
# Squares of heat maps that have a number in them, and the width or height of the least.
# A query, a key or a value drawn as squares is a list of numbers, and always has them.
LEAST_NUMBERED = """() => {
  const box = e => e.getBoundingClientRect(), shown = e => box(e).width > 0;
  const within = (b, x, y) => b.left < x && x < b.right && b.top < y && y < b.bottom;
  const sides = [];
  for (const svg of document.querySelectorAll("svg.figure, .attnview svg")) {
    const squares = [...svg.querySelectorAll("g.heat, rect[data-q]")].map(box);
    const listed = ":not(.heat-query, .heat-key, .heat-value)";
    for (const number of svg.querySelectorAll(`g.number${listed}, .attn-value`)) {
      if (!shown(number)) continue;
      const { x, y, width, height } = box(number);
      const square = squares.find(b => within(b, x + width / 2, y + height / 2));
      sides.push(square ? Math.min(square.width, square.height) : 0);
    }
  }
  return [sides.length, Math.min(...sides)];
}"""


@pytest.mark.parametrize("width", [1200, 400])
def test_numbers_stand_only_in_squares_with_room(
    home: str, page: Page, width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    numbers = 0
    for name in NUMBERED:
        page.goto(f"{home}/{name}.html")
        page.evaluate(OPEN)
        found, least = page.evaluate(LEAST_NUMBERED)
        numbers += found
        assert not found or least >= 27.5, name
    assert numbers > 500


def test_an_attention_view_opens_at_its_start(home: str, page: Page) -> None:
    page.goto(f"{home}/book/14-attention-maps.html")
    view = page.locator(".attnview").first
    assert at(view.locator("rect.attn-here")) == (2, 0)
    assert view.locator("output").all_inner_texts() == ["2", "1"]
    said = view.locator("[aria-live]").inner_text()
    words = r"“sa” gives “Jane” weight [\d.]+ \(layer 2, head 1\)\."
    assert re.fullmatch(words + " Choose another square.", said)
    view.locator("rect[data-q]").first.hover()
    assert "Choose" not in view.locator("[aria-live]").inner_text()


def at(cell: Locator) -> tuple[int, int]:
    """The query and the key of a view's chosen square."""
    q, k = cell.get_attribute("data-q"), cell.get_attribute("data-k")
    return int(q or -1), int(k or -1)


def test_an_attention_view_is_a_picture_and_a_table_without_scripts(
    home: str, unscripted: Page
) -> None:
    page = unscripted
    page.goto(f"{home}/{ATTENTION}.html")
    view = page.locator(".attnview").first
    squares = view.locator("rect[data-q]")
    assert squares.count() == 9
    assert squares.first.is_visible()
    assert "gives" in view.locator(".attn-say").inner_text()
    view.locator("summary").click()
    row = [
        float(text)
        for text in view.locator("tr").nth(1).locator("td").all_inner_texts()
    ]
    assert sum(row) == pytest.approx(1, abs=0.002)
    assert view.locator("input:visible").count() == 0


def test_the_map_leads_to_every_chapter(home: str, page: Page) -> None:
    for width, links in ((1200, "figure svg a"), (400, ".map-list a")):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(f"{home}/{PAGES[0]}.html")
        shown = page.locator(f"article {links}:visible")
        addresses = shown.evaluate_all("all => all.map(a => a.href.baseVal || a.href)")
        assert {Path(address).stem for address in addresses} == {
            Path(chapter).name for chapter in CHAPTERS
        }
        assert page.locator("article .map-list").is_visible() == (width == 400)


def test_the_small_map_leads_to_the_large(home: str, page: Page) -> None:
    page.goto(f"{home}/{ATTENTION}.html")
    page.get_by_role("link", name="You are here").click()
    assert page.url.endswith("/intro.html#fig-intro-map")


def test_a_phone_shows_sources_as_cards_the_verdict_first(
    home: str, phone: Page
) -> None:
    phone.goto(f"{home}/book/sources.html")
    note, verdict = (
        phone.locator(f"#sources tbody tr td:nth-child({column})").first.bounding_box()
        for column in (2, 3)
    )
    assert verdict["y"] < note["y"]
    assert verdict["width"] > 300


@pytest.mark.parametrize(
    ("query", "term"), [("residual", "residual connection"), ("beam", "beam search")]
)
def test_search_puts_the_glossary_first_and_quotes_sentences(
    home: str, page: Page, query: str, term: str
) -> None:
    page.goto(f"{home}/search.html?q={query}")
    results = page.locator("#search-results li")
    results.nth(3).locator(".context").wait_for(timeout=20_000)
    assert results.first.locator("a").inner_text() == f"Glossary: {term}"
    first = [results.nth(i) for i in range(4)]
    assert not any("transformer." in each.locator("a").inner_text() for each in first)
    for each in first:
        excerpt = each.locator(".context").inner_text()
        assert not re.search(r"\bimport \w|\bdef \w|assert |:tags:", excerpt), excerpt


# What a reader types, a page that must be among the first three, the section there.
FOUND = [
    ("warmup", "12-training", "the-learning-rate-warm-up-then-decay"),
    ("why layer normalization", "07-encoder", "layer-normalisation-by-hand"),
    ("BPE", "16-translation", "byte-pair-encoding-by-hand"),
    ("GQA", "19-since-2017", "fewer-keys-and-values"),
    ("KV cache", "13-decoding", "keys-and-values-are-computed-once"),
    (
        "label smoothing loss not zero",
        "12-training",
        "label-smoothing-a-target-that-is-not-certain",
    ),
    ("loss does not decrease", "12-training", "when-a-training-goes-wrong"),
    ("loss stuck plateau", "12-training", "when-a-training-goes-wrong"),
    (
        "why separate query and key",
        "03-queries-keys-values",
        "all-words-at-once",
    ),
    ("how many parameters base model", "10-model", "every-parameter-counted"),
    ("quadratic complexity", "01-why-attention", "what-attention-does-not-give"),
    ("src_key_padding_mask", "08-masks", "pytorchs-masks-true-may-or-may-not"),
    ("attn_mask boolean", "glossary", "term-mask"),
    ("past_key_values", "glossary", "term-key-value-cache"),
    ("multi head attention", "glossary", "term-multi-head-attention"),
    ("from_pretrained", "how-to", "save-and-load-a-model"),
    ("multiple GPUs DDP", "how-to", "a-gpu-several-gpus-ddp-mixed-precision"),
    ("replace attention", "how-to", "your-own-attention-replace-it-in-a-model"),
    ("resume training", "how-to", "resume-a-training-from-a-checkpoint"),
]
# The place of the page among the results, the section's address and the excerpt, as the
# search page itself makes them: one page is read for a query, not fifteen.
SEARCHED = """async ([query, wanted]) => {
  const results = Search._performSearch(...Search._parseQuery(query)).reverse();
  const place = results.findIndex(([page]) => page === "book/" + wanted);
  if (place < 0) return [999, "", "", ""];
  const [page, title, anchor] = results[place];
  const item = document.createElement("li"), link = document.createElement("a");
  link.href = page + ".html" + anchor;
  link.innerHTML = title;
  const html = await (await fetch(page + ".html")).text();
  item.append(link, Search.makeSearchSummary(html, new Set(), anchor));
  await null;
  return [place, link.hash.slice(1), link.innerText, item.lastChild.innerText];
}"""


def test_search_finds_what_readers_type_and_its_section(home: str, page: Page) -> None:
    page.goto(f"{home}/search.html")
    page.wait_for_function("Search.hasIndex()")
    wrong = []
    for query, name, section in FOUND:
        place, at, title, excerpt = page.evaluate(SEARCHED, [query, name])
        named = "›" in title or "Glossary:" in title
        if place > 2 or at != section or not named or not 40 < len(excerpt) < 300:
            wrong.append(f"{query}: {place + 1}. {title}, #{at}: {excerpt}")
    assert not wrong
    *_, excerpt = page.evaluate(SEARCHED, FOUND[1][:2])
    assert "vector x with its d numbers" in excerpt, "a short formula stays"
    assert "standard deviation: …" in excerpt, "where a long one stands"
    for query, name in (("attention", "04-attention"), ("KV cache", "13-decoding")):
        pages = page.evaluate(
            """query => Search._performSearch(...Search._parseQuery(query)).reverse()
              .map(([page]) => page).filter(page => page !== "book/glossary")""",
            query,
        )
        assert pages[0] == f"book/{name}", pages
    excerpt = page.evaluate(SEARCHED, ["query of sa", "14-attention-maps"])[-1]
    assert "0." not in excerpt, "the table of a view that stands still"


def test_the_search_page_says_plainly_what_it_found(home: str, page: Page) -> None:
    page.goto(f"{home}/search.html?q=zzzqqq")
    status = page.locator("#search-results .search-summary, #search-results p").first
    page.get_by_text("Nothing was found. Try a single word").wait_for(timeout=20_000)
    assert "categories" not in page.locator("#search-results").inner_text()
    assert status.count()
    weight = "e => getComputedStyle(e).fontWeight"
    assert page.locator("h1").evaluate(weight) == "600"
    overlap = page.locator("form.bd-search:visible").evaluate(
        """form => { const box = form.querySelector("input");
          return form.querySelector("i").getBoundingClientRect().right
            - box.getBoundingClientRect().left
            - parseFloat(getComputedStyle(box).paddingLeft); }"""
    )
    assert overlap < 0, "the magnifier lies on the first letter"


def test_a_result_leads_to_its_section_and_opens_it(home: str, page: Page) -> None:
    page.goto(f"{home}/search.html?q=what one bad gradient does")
    result = page.locator(
        "#search-results a[href$='#deeper-what-one-bad-gradient-does-to-adam']"
    )
    result.wait_for(timeout=20_000)
    assert result.inner_text().endswith("› Deeper: what one bad gradient does to Adam")
    result.click()
    section = page.locator("#deeper-what-one-bad-gradient-does-to-adam")
    section.locator("details[open] p").first.wait_for()
    page.wait_for_function("scrollY > 500")
    assert -5 < section.bounding_box()["y"] < 200


def test_search_from_the_disk_leads_to_sections_by_their_headings(
    browser: Browser,
) -> None:
    page, thrown = browser.new_page(), list[str]()
    page.on("pageerror", lambda error: thrown.append(str(error)))
    page.goto(f"{(SITE / 'search.html').as_uri()}?q=warm-up learning rate")
    section = "#the-learning-rate-warm-up-then-decay"
    page.locator(f"#search-results a[href$='{section}']").wait_for(timeout=20_000)
    page.locator("#search-results li").nth(3).wait_for()
    page.evaluate("fetch('index.html')")  # as each result did, and lost
    assert not thrown
    page.close()


def test_the_target_of_a_link_is_marked_for_a_moment(home: str, page: Page) -> None:
    page.goto(f"{home}/{ATTENTION}.html#the-formula")
    ground = "e => getComputedStyle(e).backgroundColor"
    heading = page.locator("#the-formula > h2")
    assert heading.evaluate("e => getComputedStyle(e).animationName") == "found"
    heading.evaluate("e => e.getAnimations().forEach(each => each.finish())")
    assert heading.evaluate(ground) == "rgba(0, 0, 0, 0)"


@pytest.mark.parametrize("width", [1200, 400])
def test_fonts_that_come_late_move_little(
    home: str, browser: Browser, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr(Quiet, "late", 0.3)
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.add_init_script(SHIFT)
    page.goto(f"{home}/{ATTENTION}.html", wait_until="load")
    assert page.evaluate("document.fonts.ready.then(() => document.fonts.size)") > 3
    page.wait_for_timeout(100)
    assert page.evaluate("shift") <= 0.1
    page.close()


def test_a_chapter_asks_for_little(home: str, browser: Browser) -> None:
    sizes: dict[str, int] = {}
    page = browser.new_page()  # nothing is at hand yet
    page.on("response", lambda r: sizes.update({r.url: len(r.body())}))
    page.goto(f"{home}/{ATTENTION}.html", wait_until="networkidle")
    assert not [url for url in sizes if re.search("MathJax|fontawesome|index.js", url)]
    assert sum(sizes.values()) < 900_000
    styles = [size for url, size in sizes.items() if ".css" in url]
    assert sum(styles) < 220_000
    page.close()


def test_the_pages_contents_follow_the_reader(home: str, page: Page) -> None:
    page.goto(f"{home}/{ATTENTION}.html")
    address = "#the-code-that-we-keep"  # far down in the contents, and not folded
    page.evaluate(
        "id => scrollTo(0, document.getElementById(id).getBoundingClientRect().top"
        " + scrollY - 120)",
        address[1:],
    )
    page.wait_for_function(
        """address => {
          const marked = document.querySelectorAll("#pst-page-toc-nav a.active");
          const {top, bottom} = marked[0]?.getBoundingClientRect() ?? {};
          return marked.length === 1 && marked[0].hash === address
            && top > 0 && bottom < innerHeight;
        }""",
        arg=address,
        timeout=5000,
    )


def test_the_keyboard_stops_at_links_and_folds_not_at_copying(
    home: str, page: Page
) -> None:
    page.goto(f"{home}/{ATTENTION}.html", wait_until="load")
    assert page.locator("button.copybtn").count() > 3
    assert page.locator("button.copybtn:not([tabindex='-1'])").count() == 0
    page.locator("article div.math[tabindex='0']").first.wait_for(state="detached")
    names = page.locator("article details > summary").all_text_contents()
    assert all(name.strip() for name in names)
    assert not [n for n in names if "Toggle" in n or "Show code" in n]


# The article by night has been looked at with its page.
AROUND = {"include": [["html"]], "exclude": [["article"]]}


@pytest.mark.parametrize("name", [PAGES[0], ATTENTION, "search"])
def test_what_is_around_the_article_is_accessible(
    home: str, page: Page, name: str
) -> None:
    page.emulate_media(reduced_motion="reduce")
    page.goto(f"{home}/{name}.html?q=softmax", wait_until="load")
    if name == "search":
        page.locator("#search-results .highlighted").first.wait_for(timeout=20_000)
    page.evaluate(AXE)
    page.evaluate(PLAIN)
    around = "html" if name == "search" else AROUND
    schemes = ("light", ["html", None, []]), ("dark", [around, ["color-contrast"], []])
    for scheme, how in schemes:
        wear(page, scheme)
        assert page.evaluate(INACCESSIBLE, how) == []


def test_ctrl_k_opens_the_search(home: str, page: Page) -> None:
    page.goto(f"{home}/{PAGES[0]}.html")
    page.keyboard.press("Control+k")
    page.keyboard.type("softmax")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?q=softmax*")


def test_next_leads_through_the_whole_book_and_previous_back(
    home: str, page: Page
) -> None:
    for direction, order in (("right-next", PAGES), ("left-prev", PAGES[::-1])):
        for here, there in pairwise(order):
            text = page.request.get(f"{home}/{here}.html").text()
            link = re.search(rf'<a class="{direction}"\s+href="([^"]+)"', text)
            assert link, f"{direction} is missing on {here}"
            assert urljoin(f"/{here}.html", link[1]) == f"/{there}.html"
        assert direction not in page.request.get(f"{home}/{order[-1]}.html").text()
    page.goto(f"{home}/{PAGES[0]}.html")
    page.locator("a.right-next").click()
    page.wait_for_url(f"**/{PAGES[1]}.html")


def test_a_chapter_can_be_taken_home_as_a_notebook() -> None:
    for name in [*CHAPTERS, *WORKSHOP, "book/how-to"]:
        (links,) = re.findall(r'<p class="take-home">(.*?)</p>', html_of(name))
        addresses = re.findall(r'href="([^"]+)"', links)
        notebook, how, text = (urljoin(f"{name}.html", each) for each in addresses)
        assert (SITE / text).exists(), name
        page, _, section = how.partition("#")
        assert f'id="{section}"' in (SITE / page).read_text(encoding="utf-8"), name
        stored = ROOT / "book" / "notebooks" / f"{name.removeprefix('book/')}.ipynb"
        both = (path.read_text(encoding="utf-8") for path in (SITE / notebook, stored))
        found, expected = map(json.loads, both)
        assert found == expected, name


def test_code_can_be_copied(browser: Browser, home: str) -> None:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(f"{home}/{CHAPTERS[0]}.html")
    page.evaluate(OPEN)
    cell = page.locator("div.cell_input").first
    cell.hover()
    cell.locator("button.copybtn").click()
    page.wait_for_function(
        "text => navigator.clipboard.readText().then(got => got.trim() === text)",
        arg=cell.locator("pre").inner_text().strip(),
    )
    context.close()


def test_the_reader_chooses_light_or_dark(home: str, page: Page) -> None:
    page.goto(f"{home}/{CHAPTERS[0]}.html")
    switch = page.locator("button.theme-switch-button:visible")
    seen = set()
    for _ in range(3):
        switch.first.click()
        seen.add(page.evaluate("document.documentElement.dataset.theme"))
    assert seen == {"light", "dark"}


def test_the_table_of_contents_can_be_put_away(home: str, page: Page) -> None:
    page.goto(f"{home}/{PAGES[0]}.html")
    left = "document.querySelector('article').getBoundingClientRect().left"
    before = page.evaluate(left)
    page.locator("button.primary-toggle:visible").first.click()
    page.wait_for_function(f"{left} < {before}")
    page.locator(".bd-sidebar-primary").wait_for(state="hidden")
    assert page.evaluate(left) >= 0, "the text is cut off"


def test_a_phone_opens_the_table_of_contents(home: str, phone: Page) -> None:
    phone.goto(f"{home}/{PAGES[0]}.html")
    entry = phone.locator(
        f".bd-sidebar-primary a[href*='{Path(CHAPTERS[0]).name}']"
    ).first
    assert not entry.is_visible()
    phone.locator("button.primary-toggle:visible").first.click()
    entry.click()
    phone.wait_for_url(f"**/{CHAPTERS[0]}.html")


def test_on_paper_solutions_are_open_and_the_page_is_white(
    home: str, page: Page
) -> None:
    page.goto(f"{home}/{CHAPTERS[0]}.html")
    wear(page, "dark")
    solution = page.locator("div.solution div.cell_input").first
    assert not solution.is_visible()
    page.emulate_media(media="print", color_scheme="dark")
    assert solution.is_visible()
    for furniture in (".bd-sidebar-primary", ".bd-header-article", ".prev-next-area"):
        assert not page.locator(furniture).first.is_visible(), furniture
    assert page.locator("article h1").first.is_visible()
    claim = page.locator("details.fold-claim").first
    assert claim.locator("summary").is_visible()
    size = "e => getComputedStyle(e).fontSize"
    text = page.locator("article section > p:not([class])").first.evaluate(size)
    assert claim.locator("summary").evaluate(size) == text
    assert not claim.locator("pre").first.is_visible()
    for bar in ("details.fold-setup > summary", "details.fold-export > summary"):
        assert not page.locator(f"{bar}:visible").count(), bar
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(255, 255, 255)"
    page.emulate_media(media="screen", color_scheme="dark")
    wear(page, "dark")


def test_on_paper_what_is_deeper_is_open(home: str, page: Page) -> None:
    page.goto(f"{home}/{ATTENTION}.html")
    words = page.locator("details.fold-deeper > p").first
    assert not words.is_visible()
    page.emulate_media(media="print")
    words.wait_for(timeout=5000)
    page.emulate_media(media="screen")
    words.wait_for(state="hidden", timeout=5000)


def test_a_claim_is_its_whole_sentence_and_opens_onto_the_assertion(
    home: str, page: Page
) -> None:
    page.goto(f"{home}/{ATTENTION}.html")
    page.get_by_role("button", name="Code", exact=True).click()
    claim = page.locator("div.cell.tag_claim >> visible=true").first
    summary = claim.locator("summary")
    assert re.match(r"✓ [A-Z].*\.", summary.inner_text())
    assert not claim.locator("pre").first.is_visible()
    summary.focus()
    page.keyboard.press("Enter")
    assert "assert " in claim.locator("pre").first.inner_text()
    library = page.locator("details.fold-export > summary").nth(1).inner_text()
    assert re.match(
        r"transformer/attention\.py · attention_weights · \d+ lines", library
    )


def test_a_tick_shows_what_is_asserted(home: str, page: Page) -> None:
    marked = [name for name in CHAPTERS if '<a class="tick"' in html_of(name)]
    assert len(marked) >= 9
    page.goto(f"{home}/{marked[0]}.html")
    tick = page.locator("article a.tick >> visible=true").first
    note = page.locator("#checked")
    tick.focus()
    page.keyboard.press("Enter")
    assert "assert" in note.locator("pre").inner_text()
    page.keyboard.press("Escape")
    assert not note.is_visible()
    tick.hover()
    note.wait_for()
    note.get_by_role("link").click()
    assert page.locator("details.fold-claim[open] pre >> visible=true").count()


def html_of(name: str) -> str:
    """The text of a page's file."""
    return (SITE / f"{name}.html").read_text(encoding="utf-8")


def test_a_reader_chooses_how_much_is_open(home: str, page: Page) -> None:
    address = f"{home}/{ATTENTION}.html"
    page.goto(address)
    folds = page.locator("article details.fold")
    opened = page.locator("article details.fold[open]")
    # The code that is the lesson is in view: attention, its weights and its softmax.
    hearts = page.locator("article details.fold-export[open]").count()
    assert opened.count() == hearts == 3
    page.get_by_role("button", name="Code", exact=True).click()
    assert hearts < opened.count() < folds.count()
    closed = "details.fold-claim[open], details.fold-deeper[open]"
    assert page.locator(closed).count() == 0
    page.get_by_role("button", name="All", exact=True).click()
    assert opened.count() == folds.count()
    page.reload()
    assert opened.count() == folds.count(), "the choice is remembered"
    page.get_by_role("button", name="Read", exact=True).click()
    assert opened.count() == hearts


def test_a_link_to_something_folded_opens_it(home: str, page: Page) -> None:
    page.goto(f"{home}/{ATTENTION}.html")
    inside = page.locator("details.fold-deeper [id]").first.get_attribute("id")
    page.goto(f"{home}/{ATTENTION}.html#{inside}")
    page.reload()
    page.wait_for_function(
        f"document.getElementById({inside!r}).closest('details').open"
    )


def test_links_and_buttons_have_their_colours_without_scripts(
    home: str, unscripted: Page
) -> None:
    unscripted.goto(f"{home}/{PAGES[0]}.html")
    colours = """all => [...new Set(all.map(e => getComputedStyle(e))
      .map(({color, backgroundColor}) => `${color} on ${backgroundColor}`))]"""
    inside = unscripted.locator("article p a:visible").evaluate_all(colours)
    assert not any("rgb(0, 0, 0)" in pair for pair in inside), inside
    around = unscripted.locator(".bd-sidebar-primary a:visible")
    assert not any("rgb(0, 0, 0)" in c for c in around.evaluate_all(colours))


def test_folds_work_without_scripts(home: str, unscripted: Page) -> None:
    page = unscripted
    page.goto(f"{home}/{ATTENTION}.html")
    fold = page.locator("details.fold-deeper").first
    assert not fold.locator("p").first.is_visible()
    fold.locator("summary").first.click()
    assert fold.locator("p").first.is_visible()


def test_pages_print_as_one_pdf_with_bookmarks(tmp_path: Path) -> None:
    out = tmp_path / "two.pdf"
    pages = [ATTENTION, "book/glossary"]
    command = [sys.executable, ROOT / "tools" / "pdf.py", *pages]
    command += ["--site", SITE, "--out", out]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pdf = PdfReader(out)
    texts = [" ".join(sheet.extract_text().split()) for sheet in pdf.pages]
    assert all(len(text) > 20 for text in texts), "a page is empty"
    chapters = [each for each in pdf.outline if not isinstance(each, list)]
    titles = [str(chapter.title) for chapter in chapters]
    assert titles == ["4. How much should each word count?", "Glossary"]
    sections = pdf.outline[1]
    assert str(sections[0].title).startswith("4.1. ")
    assert pdf.get_destination_page_number(sections[0]) >= 1
    assert any(isinstance(each, list) for each in sections), "sections have sections"
    whole = " ".join(texts)
    assert "✓ All weights are positive and every row sums to one" in whole
    assert "assert torch.allclose(weights" not in whole, "claims stay closed"
    links = [
        note.get_object()
        for sheet in pdf.pages
        for note in sheet.get("/Annots", [])
        if note.get_object().get("/Subtype") == "/Link"
    ]
    inside = [link for link in links if "/Dest" in link]
    assert len(inside) > 50
    away = [str(link["/A"].get("/URI")) for link in links if "/A" in link]
    assert not [address for address in away if "127.0.0.1" in address]
    unknown = [*command[:2], "book/nothing", *command[-4:]]
    done = subprocess.run(unknown, capture_output=True, text=True)
    assert done.returncode == 1
    assert "has no page book/nothing" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_beam_tree_can_be_walked(home: str, page: Page, unscripted: Page) -> None:
    address = f"{home}/book/13-decoding.html"
    page.goto(address)
    tree = page.locator(".beamtree")
    say, slider = tree.locator("[aria-live]"), tree.locator("input")
    on_the_way = tree.locator("svg g.beam-on")
    turns = int(slider.get_attribute("max") or 0)
    assert "this is the answer" in say.inner_text()
    assert on_the_way.count() == turns
    tree.locator(".beam-grid").focus()
    for _ in range(2 * turns):
        page.keyboard.press("ArrowUp")
    assert say.inner_text().startswith("“bos” → ")
    assert on_the_way.count() == 1
    first = say.inner_text()
    page.keyboard.press("ArrowRight")
    assert say.inner_text() != first
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert say.inner_text() == first
    page.keyboard.press("ArrowDown")
    assert on_the_way.count() == 2
    slider.focus()
    for _ in range(turns):
        page.keyboard.press("ArrowLeft")
    assert tree.locator("svg g.beam-node:visible").count() == 5
    assert slider.input_value() == "1"
    tree.locator("svg g.beam-node").nth(3).hover()
    assert "Dropped" in say.inner_text()
    plain = unscripted
    plain.goto(address)
    tree = plain.locator(".beamtree")
    assert tree.locator("svg g.beam-node").last.is_visible()
    assert "this is the answer" in tree.locator(".beam-say").inner_text()
    assert not tree.locator("input").is_visible()


def test_a_network_of_one_number_can_be_turned(
    home: str, page: Page, unscripted: Page
) -> None:
    from bookkit import OneNumber  # here: it brings PyTorch

    address = f"{home}/book/01-why-attention.html"
    page.goto(address)
    folded = page.locator("details", has=page.locator(".onenumber"))
    folded.locator("summary").first.click()
    one = page.locator(".onenumber")
    say, u, jane = one.locator("[aria-live]"), *one.locator("input").all()
    assert say.inner_text() == OneNumber().say()
    u.focus()
    for _ in range(15):
        page.keyboard.press("ArrowRight")
    assert say.inner_text() == OneNumber(u=2.0).say()
    jane.click(position={"x": 1, "y": 5})  # a mouse or a finger
    assert say.inner_text() == OneNumber(u=2.0, jane=0.1).say()
    told = one.locator("td").all_text_contents()
    drawn = OneNumber(u=2.0, jane=0.1)._repr_html_()
    assert told == re.findall(r"<td>(.*?)</td>", drawn)
    for part, place in (("rect", "y"), ("circle", "cy")):
        here = [e.get_attribute(place) for e in one.locator(part).all()]
        assert here == re.findall(rf'<{part}[^>]* {place}="([\d.]+)"', drawn)
    plain = unscripted
    plain.goto(address)
    folded = plain.locator("details", has=plain.locator(".onenumber"))
    folded.locator("summary").first.click()
    one = plain.locator(".onenumber")
    assert one.locator("circle").count() == 12
    assert one.locator(".one-say").inner_text() == OneNumber().say()
    assert not one.locator("input").first.is_visible()


def test_a_card_is_guessed_at_and_then_opened(
    home: str, phone: Page, unscripted: Page
) -> None:
    address = f"{home}/book/misconceptions.html"
    phone.goto(address)
    for verdict in ("true", "in-part", "false"):
        assert phone.locator(f".said-{verdict}").count() > 3
    linked = phone.locator(".said:has(details a.reference)")  # to where it is shown
    assert linked.count() == phone.locator(".said").count()
    wrong, right = phone.locator(".said-true").first, phone.locator(".said-false").first
    for card, (told, count) in (
        (wrong, ("Not quite.", "So far 0 of 1")),
        (right, ("Right.", "So far 1 of 2")),
    ):
        card.get_by_role("button", name="False").focus()
        phone.keyboard.press("Enter")
        assert card.locator("details p").first.inner_text() == told
        assert card.locator("details p").last.inner_text().startswith(count)
    assert right.locator("details p").nth(1).inner_text().startswith("False. ")
    unscripted.goto(address)
    card = unscripted.locator(".said").first
    assert not card.get_by_role("button", name="False").is_visible()
    card.locator("summary").click()
    assert card.locator("details p").first.is_visible()


def test_the_lab_switches_parts_off_and_links_to_what_fails(
    home: str, page: Page
) -> None:
    page.goto(f"{home}/book/12-training.html")
    lab = page.locator(".breaklab")
    switches = lab.locator("input[type=radio]")
    assert switches.count() == 6
    assert lab.locator(".lab-panel:visible").count() == 1
    assert lab.locator(".lab-curve:visible").count() == 1  # the causal mask is off
    assert lab.locator("input:checked + label").inner_text() == "causal mask"
    lab.locator("label").first.click()
    assert lab.locator(".lab-curve:visible").count() == 0
    lab.locator("label").nth(2).click()  # a mouse or a finger
    seen = [lab.locator(".lab-panel:visible").inner_text()]
    for _ in range(3):
        page.keyboard.press("ArrowRight")
        assert lab.locator(".lab-panel:visible").count() == 1
        assert lab.locator(".lab-curve:visible").count() == 1
        seen.append(lab.locator(".lab-panel:visible").inner_text())
    assert len(set(seen)) == 4
    assert lab.locator(".lab-panel a:visible").count() == 1  # the page, no notebook
    assert lab.locator(".lab-panel a:visible.lab-page").count() == 1
    for link in lab.locator(".lab-panel a.lab-page").all():
        address = link.evaluate("a => a.href")
        name = address.partition("#")[2]
        text = page.request.get(address).text()
        assert f'id="{name}"' in text, address


# The live model


EXPLORE = "book/explore"
WITH_A_LIVE_VIEW = [
    page
    for page in CHAPTERS
    if "{live} " in (ROOT / f"{page}.md").read_text(encoding="utf-8")
]


class Model:
    """A live model on a page that was opened from the disk, as a reader uses it."""

    def __init__(self, page: Page, name: str, state: str = "") -> None:
        self.page = page
        page.goto("about:blank")
        page.goto(f"{(SITE / name).as_uri()}.html{state}")
        wait_for_live_models(page)
        self.place = page.locator("[data-live]")

    def key(self, key: str) -> Locator:
        return self.place.locator(f'[data-key="{key}"]')

    @property
    def words(self) -> str:
        buttons = self.place.locator(".live-words button")
        texts = buttons.evaluate_all("all => all.map(e => e.firstChild.data)")
        return " ".join(text for text in texts if text != "<eos>")

    def rows(self) -> dict[str, float]:
        """The weights of the row in hand, by key."""
        rows = self.place.locator(".live-row-table tbody tr").evaluate_all(
            "all => all.map(row => ['button', 'b']"
            ".map(each => row.querySelector(each).innerText))"
        )
        return {token: float(weight) for token, weight in rows}


def test_the_front_page_leads_on(page: Page) -> None:
    page.goto((SITE / "book" / "intro.html").as_uri())
    start = page.get_by_role("link", name="Start reading")
    assert start.bounding_box()["y"] < 300
    assert (start.get_attribute("href") or "").startswith("01-")
    page.get_by_label("Who", exact=True).select_option(index=3)
    page.get_by_role("link", name="Open this sentence").click()
    page.locator(".live-words button").first.wait_for()
    assert page.locator(".live-input").input_value() == "Paul vend sa voiture"
    words = page.locator(".live-words button").all_inner_texts()
    assert [text.split()[0] for text in words][:4] == ["Paul", "sells", "his", "car"]


def test_pictures_stand_without_scripts(unscripted: Page) -> None:
    page = unscripted
    page.goto((SITE / "book" / "intro.html").as_uri())
    hero = page.locator(".hero")
    assert hero.locator(".hero-said").all_inner_texts() == [
        *["Jane", "sells", "her", "car"]
    ]
    assert hero.locator(".hero-flow g.on path").count() == 4
    assert hero.locator("button, select").count() == 0
    assert "Change a word" not in hero.inner_text()
    page.goto((SITE / f"{EXPLORE}.html").as_uri())
    assert page.locator(".live-pair svg").is_visible()


def test_a_live_model_loads_when_its_reader_comes_to_it(page: Page) -> None:
    asked: list[str] = []

    def note(request: Request) -> None:
        asked.append(request.url)

    page.on("request", note)
    page.goto((SITE / f"{WITH_A_LIVE_VIEW[0]}.html").as_uri(), wait_until="load")
    picture = page.locator("[data-live] .live-still")
    assert picture.count() == 1
    assert not [url for url in asked if url.endswith("phrasebook.js")]
    wait_for_live_models(page)
    assert picture.count() == 0
    assert len([url for url in asked if url.endswith("phrasebook.js")]) == 1
    page.remove_listener("request", note)


def test_what_chapters_say_of_their_live_views_is_so(page: Page) -> None:
    assert {Path(name).name[:2] for name in WITH_A_LIVE_VIEW} == {
        *["03", "04", "05", "07", "09", "13", "14"]
    }
    by_number = {Path(name).name[:2]: name for name in WITH_A_LIVE_VIEW}

    search = Model(page, by_number["03"])
    weights = search.rows()
    assert max(weights, key=weights.__getitem__) == "Jane"
    search.key("key-3").click()
    assert "“voiture” for “sa”" in search.place.locator(".live-number").inner_text()

    root = Model(page, by_number["04"])
    before, words = max(root.rows().values()), root.words
    root.key("here-scale").uncheck()
    assert before < 0.7 < 0.95 < max(root.rows().values())
    assert root.words == words == "Jane visits Africa in September"

    heads = Model(page, by_number["05"])
    found = heads.place.locator(".live-heads small").all_inner_texts()
    assert [text.split()[0] for text in found] == ["visite", "en", "Afrique", "Afrique"]

    stream = Model(page, by_number["07"])
    stream.key("off-norm:e1.self").uncheck()
    assert stream.words == words
    stream.key("off-norm:e1.self").check()
    stream.key("off-residual:e1.self").uncheck()
    assert stream.words != words

    masked = Model(page, by_number["09"])
    never = masked.place.locator(".live-matrix .live-never")
    assert never.count() == 4 * 3 / 2
    masked.key("forth").click()
    assert never.count() == 5 * 4 / 2
    masked.key("here-causal").uncheck()
    assert never.count() == 0

    tokens = Model(page, by_number["13"])
    for token, written in (
        ("dog", "the big dog likes the small white cat"),
        ("black", "the big black dog likes the small white cat"),
    ):
        tokens.place.locator(".live-next button", has_text=token).click()
        assert tokens.words == written
        tokens.key("unforce").click()

    owners = Model(page, by_number["14"])
    assert owners.words == "Jane sells his car"
    for head, owner in ((1, "his"), (2, "her"), (3, "his")):
        owners.key(f"off-head:e2.self.{head}").check()
        assert owners.words == f"Jane sells {owner} car"
        owners.key(f"off-head:e2.self.{head}").uncheck()
    whole = owners.key("link").get_attribute("href")
    owners.key("link").click()
    page.wait_for_url(f"**/{(whole or '').removeprefix('../')}")
    wait_for_live_models(page)
    assert owners.words == "Jane sells his car"


def test_an_exercise_is_answered_on_the_page(home: str, page: Page) -> None:
    page.goto(f"{home}/book/03-queries-keys-values.html")
    form = page.locator("form.answer").first
    said, fields = form.get_by_role("status"), form.locator("input")
    for written, words in (
        (["", ""], "○ Not answered yet: fill in every field."),
        (["5", ""], "○ Not answered yet: fill in every field."),
        (["5", "five"], "✗ “five” is no number"),
        (["5", "10/2"], "✗ You only stretched (1, 1)"),
        (["0", "9"], "✓ Right. Longer, and at a wider angle"),
    ):
        for field, text in zip(fields.all(), written, strict=True):
            field.fill(text)
        fields.last.press("Enter")
        page.wait_for_function(
            "words => document.querySelector('.verdict').textContent.startsWith(words)",
            arg=words,
        )
        invalid = form.locator("[aria-invalid]")
        assert invalid.count() == (1 if "no number" in words else 0)
    page.evaluate(AXE)
    for text in ("9", "8"):  # right, then wrong
        fields.last.fill(text)
        form.get_by_role("button", name="Check").click()
        assert said.inner_text().strip() or said.wait_for() is None
        for scheme in ("light", "dark"):
            wear(page, scheme)
            assert not page.evaluate(INACCESSIBLE, ["form.answer"])


def test_a_thumb_answers_with_choices_lists_and_a_matrix(
    home: str, phone: Page
) -> None:
    for name, give, words in (
        ("12-training", "causal mask", "✗ B does not lack the causal mask"),
        ("09-decoder", "3–5", "✗ For septembre: The causal mask is for the target."),
        ("05-multi-head", "0", "✗ All entries are 0"),
    ):
        phone.goto(f"{home}/book/{name}.html")
        form = phone.locator("form.answer").first
        for field in form.locator("select").all():
            field.select_option(give)
        for field in form.locator("input").all():
            field.fill(give)
        assert phone.evaluate(TOO_WIDE) == []
        for box in form.locator("input, select, button").all():
            assert box.bounding_box()["height"] >= 32
        form.get_by_role("button").click()
        form.get_by_role("status").get_by_text(words).wait_for()


def test_without_scripts_an_exercise_names_its_cell(
    home: str, page: Page, unscripted: Page
) -> None:
    for reader in (page, unscripted):
        reader.goto(f"{home}/book/03-queries-keys-values.html")
        scripts = reader is page
        assert reader.locator("form.answer").first.is_visible() == scripts
        lines = reader.locator(".answer-elsewhere")
        seen = [line.is_visible() for line in lines.all()]
        assert seen == [not scripts, not scripts, True]
        assert reader.locator(".wanted").is_visible() == scripts
        assert reader.locator(".stub").is_visible() != scripts
        book = lines.last.get_by_role("link", name="notebook").get_attribute("href")
        assert (SITE / "book" / book).resolve().exists()
    lines = page.locator(".answer-elsewhere:visible")
    lines.get_by_role("link", name="cell").click()
    assert page.locator(".stub").is_visible()
    assert "check_attend_others(" in page.locator(".stub").inner_text()


def test_notebooks_words_stay_in_notebooks() -> None:
    shown = r'<div class="[^"]*wanted[^"]*">(.*?)</pre>'
    for name in CHAPTERS:
        text = html_of(name)
        assert "not answered yet" not in text, name
        exercises = len(re.findall(r'<div class="[^"]*tag_exercise', text))
        assert exercises >= 3, name
        answered = text.count('<form class="answer"')
        told = text.count('<p class="answer-elsewhere ">')
        assert answered + told >= exercises, name
        wanted = re.findall(shown, text, re.DOTALL)
        assert len(wanted) == told, name
        assert not re.search(r"\.\.\.|check_|import", "".join(wanted)), name


def test_the_book_is_one_text_too_without_solutions() -> None:
    listing = (SITE / "llms.txt").read_text(encoding="utf-8")
    whole = (SITE / "llms-full.txt").read_text(encoding="utf-8")
    for address in re.findall(r"\]\((\S+\.(?:md|txt))\)", listing.split("# For")[0]):
        assert (SITE / address).exists(), address
    assert listing.count("](text/") == len(PAGES)
    for text in (listing, whole):
        assert "Hints before answers" in text
    for chapter in CHAPTERS:
        title = (ROOT / f"{chapter}.md").read_text("utf-8")
        heading = re.search(r"^# (.+)$", title, re.MULTILINE)[1]
        assert f"# {heading}" in whole, heading
    assert "The query is $(2, 1)$ and there is one key" in whole
    assert "loud_key = ..." in whole
    assert "Turn away from the query" not in whole  # its solution
    assert "✓ Longer, and at a wider angle" not in whole
    assert re.search(r"\[Figure: The whole Transformer", whole)
