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
CARD = "```{said} It is so.\n:so: maybe\n\nIs it?\n```\n\n"
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
    "a-card": ("See", CARD + "See", '"maybe" unknown; choose from "true"'),
    "a-count": ("See", "{count}`wonders` See", "nothing called 'wonders' is counted"),
}


GOOD = "intro"
REPOSITORY = "https://github.com/who/where"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of one build, of a good page and all broken ones; what it says."""
    root = tmp_path_factory.mktemp("strict")
    book = root / "book"
    book.mkdir()
    for name in ("_ext", "_static", "references.bib"):
        source, target = ROOT / "book" / name, book / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    shutil.copy(ROOT / "AGENTS.md", root)
    text = (ROOT / "_config.yml").read_text(encoding="utf-8")
    text = text.replace('\n  url: ""', f'\n  url: "{REPOSITORY}"')
    (root / "_config.yml").write_text(text, encoding="utf-8")
    (root / "vendor").mkdir()
    files = "".join(f"  - file: book/{name}\n" for name in BROKEN)
    toc = f"format: jb-book\nroot: book/{GOOD}\nchapters:\n{files}"
    (root / "_toc.yml").write_text(toc)
    (book / f"{GOOD}.md").write_text(PAGE)
    for name, (old, new, _) in BROKEN.items():
        page = PAGE.replace(old, new, 1)
        for label in ("home", "eq-one", "fig-cat"):  # each page's own
            page = re.sub(rf"\b{label}\b(?!\.svg)", f"{label}-{name}", page)
        (book / f"{name}.md").write_text(page)
    (book / "cat.svg").write_text(CAT)
    notebook = book / "notebooks" / f"{GOOD}.ipynb"
    notebook.parent.mkdir()
    nbformat.write(new_notebook(), notebook)
    command = [Path(sys.executable).with_name("jupyter-book"), "build", root]
    result = subprocess.run(
        [*command, "-W", "--keep-going", "-n"], capture_output=True, text=True
    )
    assert result.returncode != 0
    return root, " ".join((result.stdout + result.stderr).split())


def test_a_good_page_is_built(built: tuple[Path, str]) -> None:
    """The book itself shows that a build without any complaint succeeds."""
    root, said = built
    assert not re.search(rf"{GOOD}\.md\S* (?:WARNING|ERROR):", said)
    html = (root / "_build" / "html" / "book" / f"{GOOD}.html").read_text()
    assert '<svg role="img" aria-label="A cat." viewBox' in html
    assert "Fig. 1" in html
    links = re.findall(r'<a href="([^"]*/intro\.ipynb)"', html)
    assert [link.partition("intro")[0] for link in links] == [
        "../notebooks/",
        "https://colab.research.google.com/github/who/where/blob/main/book/notebooks/",
        "https://mybinder.org/v2/gh/who/where/main?urlpath=lab/tree/book/notebooks/",
    ]


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_page_is_refused(built: tuple[Path, str], name: str) -> None:
    page, message = re.escape(f"{name}.md"), re.escape(BROKEN[name][2])
    level = "(?:WARNING|ERROR):"
    assert re.search(rf"{page}\S* {level} (?:(?!{level}).)*{message}", built[1])
