"""Print the rendered book as one PDF with bookmarks: `make pdf`.

python tools/pdf.py [PAGE …] [--site _build/html] [--out _build/book.pdf]

A browser lays all pages, in the order of the contents, into one document and prints it.
Links between pages become links within the document.
"""

import argparse
import functools
import re
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from browser import find
from playwright.sync_api import sync_playwright
from pypdf import PdfWriter
from pypdf.generic import NameObject, TextStringObject

ROOT = Path(__file__).resolve().parent.parent

# Ids get the number of their page in front, so that none comes twice; links follow.
GATHER = r"""async ([pages, title, authors]) => {
  const book = document.createElement("main");
  book.id = "whole-book";
  const cover = document.createElement("section");
  cover.className = "cover";
  cover.innerHTML = "<p class='title'></p><p></p><ul></ul>";
  cover.children[0].textContent = title;
  cover.children[1].textContent = authors;
  book.append(cover);
  const addresses = pages.map(page => new URL(page, location).pathname);
  for (const [number, address] of addresses.entries()) {
    const text = await (await fetch(address)).text();
    const page = new DOMParser().parseFromString(text, "text/html");
    const article = page.querySelector("article.bd-article");
    const own = id => `p${number}-${id}`;
    let outputs = 0;
    const ids = new Set([...article.querySelectorAll("[id]")].map(e => e.id));
    article.querySelectorAll("script, .headerlink, .take-home, .toctree-wrapper")
      .forEach(e => e.remove());
    for (const e of article.querySelectorAll("*")) {
      if (e.id) e.id = own(e.id);
      for (const name of e.getAttributeNames()) {
        const value = e.getAttribute(name);
        if (/^(for|aria-labelledby|aria-describedby|aria-controls|headers)$/.test(name))
          e.setAttribute(name, value.split(/\s+/).map(own).join(" "));
        else if (name === "name") e.setAttribute(name, own(value));
        else if (/url\(#/.test(value))
          e.setAttribute(name, value.replaceAll("url(#", `url(#${own("")}`));
        else if (/^(href|src|xlink:href)$/.test(name) && !value.startsWith("data:")) {
          const url = new URL(value, new URL(address, location));
          const there = addresses.indexOf(url.pathname);
          const inside = there >= 0 && url.origin === location.origin;
          // A file beside the pages is not in the document.
          if (!inside && e.matches("a") && url.origin === location.origin)
            e.removeAttribute(name);
          else e.setAttribute(name, !inside ? url.href
            : url.hash ? `#p${there}-${decodeURIComponent(url.hash.slice(1))}`
            : `#page-${there}`);
        }
      }
    }
    for (const style of article.querySelectorAll("style")) {
      const rules = style.textContent.replace(
        /#([A-Za-z][\w-]*)/g, (all, id) => ids.has(id) ? `#${own(id)}` : all);
      // A view's rules are for that view alone: the next one has another width.
      const output = style.closest(".output");
      if (style.closest("svg") || !output) { style.textContent = rules; continue; }
      output.id ||= own(`output-${outputs++}`);
      style.textContent = `#${output.id} {${rules}}`;
    }
    for (const fold of article.querySelectorAll("details"))
      fold.open = fold.matches("[open], .fold-deeper, .toggle-details, .said details");
    article.id = `page-${number}`;
    book.append(article);
    const entry = document.createElement("li");
    const link = document.createElement("a");
    link.href = `#page-${number}`;
    link.textContent = article.querySelector("h1").textContent;
    entry.append(link);
    cover.querySelector("ul").append(entry);
  }
  document.body.replaceChildren(book);
  document.documentElement.dataset.theme = "light";
  delete document.documentElement.dataset.served;  // paper waits for its fonts
  document.title = title;
  await document.fonts.ready;
  return [...book.querySelectorAll("h1, h2, h3, h4, h5, h6")].map(e => e.textContent);
}"""
STYLE = """
@page { size: A4; margin: 18mm 17mm 20mm; }
html, body { display: block; height: auto; overflow: visible; background: #fff; }
#whole-book > article { break-before: page; padding: 0; max-width: none; }
#whole-book p, #whole-book li { orphans: 2; widows: 2; }
#whole-book :is(.admonition, .highlight, [class*=highlight-], pre) {
  break-inside: auto; display: block; }
#whole-book pre { orphans: 5; widows: 5; }
#whole-book :is(.admonition-title, summary, dt) { break-after: avoid; }
#whole-book :is(tr, .sd-container-fluid, .output.text_html) { break-inside: avoid; }
#whole-book > article > section:last-child, #whole-book > article :last-child {
  margin-bottom: 0; }
#whole-book svg.figure { max-width: 135mm; max-height: 130mm; }
#whole-book figure.diagram > svg { max-width: 135mm; max-height: 125mm; }
#whole-book .cell:not(:has(.cell_output, .fold-claim, .cell_input:not(details *))) {
  margin: 0; }
#whole-book > .cover { padding-top: 50mm; font-family: var(--pst-font-family-base); }
#whole-book > .cover .title { font-size: 30pt; font-weight: 600; margin: 0 0 4mm; }
#whole-book > .cover ul { margin-top: 22mm; padding: 0; list-style: none;
  columns: 2; font-size: 9.5pt; line-height: 1.7; }
"""
FOOT = (
    "<div style='width: 100%; text-align: center; font: 9px sans-serif'>"
    "<span class='pageNumber'></span></div>"
)


class Quiet(SimpleHTTPRequestHandler):
    """The file server, without a line for every request."""

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def contents(root: Path) -> tuple[list[str], str, str]:
    """The pages in reading order, the book's title and its authors."""
    pages = re.findall(r"(?:root|file): *(\S+)", (root / "_toc.yml").read_text("utf-8"))
    config = (root / "_config.yml").read_text("utf-8")
    title, authors = (
        re.search(rf"^{key}: (.+)$", config, re.MULTILINE)[1]  # type: ignore[index]
        for key in ("title", "author")
    )
    return pages, title, authors


def write(site: Path, out: Path, pages: list[str], title: str, authors: str) -> None:
    """Print pages of the site into one PDF.

    Raises:
        ValueError: for a page that the site does not have, or where no browser is.
    """
    for page in pages:
        if not (site / f"{page}.html").exists():
            raise ValueError(f"{site} has no page {page}: run `make book` first")
    chromium = find()
    if chromium is None:
        raise ValueError("there is no Chromium here: run `python tools/browser.py`")
    handler: Any = functools.partial(Quiet, directory=site)
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        sync_playwright() as playwright,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"]
        )
        page = browser.new_page()
        page.set_default_timeout(600_000)
        page.goto(f"http://127.0.0.1:{server.server_port}/{pages[0]}.html")
        names = [f"/{name}.html" for name in pages]
        headings = page.evaluate(GATHER, [names, title, authors])
        page.add_style_tag(content=STYLE)
        page.emulate_media(media="print")
        out.parent.mkdir(parents=True, exist_ok=True)
        page.pdf(
            path=out,
            prefer_css_page_size=True,
            print_background=True,
            outline=True,
            tagged=True,
            display_header_footer=True,
            header_template="<span></span>",
            footer_template=FOOT,
        )
        browser.close()
        server.shutdown()
    name_bookmarks(out, headings)


def name_bookmarks(path: Path, headings: list[str]) -> None:
    """Give each bookmark its heading's text: Chromium doubles that of a broken line.

    Raises:
        ValueError: when there are not as many bookmarks as headings.
    """
    pdf = PdfWriter(clone_from=path)
    bookmarks = list(in_order(pdf.root_object["/Outlines"].get("/First")))
    if len(bookmarks) != len(headings):
        raise ValueError(f"{len(bookmarks)} bookmarks for {len(headings)} headings")
    for bookmark, heading in zip(bookmarks, headings, strict=True):
        bookmark[NameObject("/Title")] = TextStringObject(" ".join(heading.split()))
    pdf.write(path)


def in_order(first: Any) -> Iterator[Any]:
    """A list of bookmarks, each followed by those below it."""
    while first is not None:
        bookmark = first.get_object()
        yield bookmark
        yield from in_order(bookmark.get("/First"))
        first = bookmark.get("/Next")


def main(arguments: list[str] | None = None) -> int:
    """Read the command line and print the book."""
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("pages", nargs="*", metavar="PAGE", help="only these")
    ask.add_argument("--site", type=Path, default=ROOT / "_build" / "html")
    ask.add_argument("--out", type=Path, default=ROOT / "_build" / "book.pdf")
    options = ask.parse_args(arguments)
    pages, title, authors = contents(ROOT)
    try:
        write(options.site, options.out, options.pages or pages, title, authors)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"The book is at {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
