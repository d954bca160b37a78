"""Break pages on purpose, and see the strict build refuse each."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_notebook

ROOT = Path(__file__).resolve().parent.parent
PAGE = """\
(home)=
# A page

See {ref}`home`, {eq}`eq-one` and {numref}`fig-cat`.

$$ a = b $$ (eq-one)

```{diagram} cat.svg
:name: fig-cat
:alt: A cat.
A cat sits.
```
"""
CAT = '<svg viewBox="0 0 2 2"><circle r="1"/></svg>'
RAW = "```{raw} html\n<svg><path/></svg>\n```\n\nSee"
VIEW = "```{live} A view\n:state: s=Jane\n:show: row wings\n```\n\n"
BROKEN = {  # one page each, in one build
    "a-label": ("{ref}`home`", "{ref}`nowhere`", "undefined label: 'nowhere'"),
    "a-figure": ("{numref}`fig-cat`", "{numref}`fig-dog`", "label: 'fig-dog'"),
    "an-equation": ("{eq}`eq-one`", "{eq}`eq-two`", "equation not found: eq-two"),
    "a-work": ("See", "{cite}`nobody1999nothing` See", "nobody1999nothing"),
    "alt-of-a-diagram": (":alt: A cat.\n", "", "the diagram cat.svg needs :alt: text"),
    "alt-of-an-image": ("See", "![](cat.svg)\n\nSee", "an image without alt text"),
    "alt-of-raw": ("See", RAW, "a figure without alt text"),
    "a-caption": ("A cat sits.\n", "", "needs a caption"),
    "a-file": ("cat.svg", "dog.svg", "no diagram at book/dog.svg"),
    "a-view": ("See", VIEW + "See", "no section is called wings"),
    "a-view-of-words": (
        "See",
        VIEW.replace("Jane", "Jaane").replace(" wings", "") + "See",
        "Jaane",
    ),
    "a-count": ("See", "{count}`wonders` See", "nothing called 'wonders' is counted"),
}


def build(
    root: Path, pages: dict[str, str], repository: str = ""
) -> subprocess.CompletedProcess[str]:
    book = root / "book"
    book.mkdir(exist_ok=True)
    for name in ("_ext", "_static", "references.bib"):
        source, target = ROOT / "book" / name, book / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    text = (ROOT / "_config.yml").read_text(encoding="utf-8")
    text = text.replace('\n  url: ""', f'\n  url: "{repository}"')
    (root / "_config.yml").write_text(text, encoding="utf-8")
    (root / "vendor").mkdir()
    files = "".join(f"  - file: book/{name}\n" for name in pages if name != "intro")
    toc = "format: jb-book\nroot: book/intro\n" + (
        f"chapters:\n{files}" if files else ""
    )
    (root / "_toc.yml").write_text(toc)
    for name, page in pages.items():
        (book / f"{name}.md").write_text(page)
    (book / "cat.svg").write_text(CAT)
    command = [Path(sys.executable).with_name("jupyter-book"), "build", root]
    return subprocess.run(
        [*command, "-W", "--keep-going", "-n"], capture_output=True, text=True
    )


def test_a_good_page_is_built(tmp_path: Path) -> None:
    notebook = tmp_path / "book" / "notebooks" / "intro.ipynb"
    notebook.parent.mkdir(parents=True)
    nbformat.write(new_notebook(), notebook)
    result = build(tmp_path, {"intro": PAGE}, "https://github.com/who/where")
    assert result.returncode == 0, result.stdout + result.stderr
    html = (tmp_path / "_build" / "html" / "book" / "intro.html").read_text()
    assert '<svg role="img" aria-label="A cat." viewBox' in html
    assert "Fig. 1" in html
    links = re.findall(r'<a href="([^"]*/intro\.ipynb)"', html)
    assert [link.partition("intro")[0] for link in links] == [
        "../notebooks/",
        "https://colab.research.google.com/github/who/where/blob/main/book/notebooks/",
        "https://mybinder.org/v2/gh/who/where/main?urlpath=lab/tree/book/notebooks/",
    ]


@pytest.fixture(scope="module")
def refusal(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the build says of all broken pages, on one line."""
    pages = {"intro": PAGE}
    for name, (old, new, _) in BROKEN.items():
        page = PAGE.replace(old, new, 1)
        for label in ("home", "eq-one", "fig-cat"):  # each page's own
            page = re.sub(rf"\b{label}\b(?!\.svg)", f"{label}-{name}", page)
        pages[name] = page
    result = build(tmp_path_factory.mktemp("broken"), pages)
    assert result.returncode != 0
    return " ".join((result.stdout + result.stderr).split())


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_page_is_refused(refusal: str, name: str) -> None:
    page, message = re.escape(f"{name}.md"), re.escape(BROKEN[name][2])
    level = "(?:WARNING|ERROR):"
    assert re.search(rf"{page}\S* {level} (?:(?!{level}).)*{message}", refusal)
