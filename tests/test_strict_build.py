"""Break a page on purpose, and see the strict build refuse it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


def build(root: Path, page: str) -> subprocess.CompletedProcess[str]:
    book = root / "book"
    book.mkdir()
    for name in ("_ext", "_static", "references.bib"):
        source, target = ROOT / "book" / name, book / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    shutil.copy(ROOT / "_config.yml", root)
    (root / "vendor").mkdir()
    (root / "_toc.yml").write_text("format: jb-book\nroot: book/intro\n")
    (book / "intro.md").write_text(page)
    (book / "cat.svg").write_text(CAT)
    command = [Path(sys.executable).with_name("jupyter-book"), "build", root]
    return subprocess.run(
        [*command, "-W", "--keep-going", "-n"], capture_output=True, text=True
    )


def test_a_good_page_is_built(tmp_path: Path) -> None:
    result = build(tmp_path, PAGE)
    assert result.returncode == 0, result.stdout + result.stderr
    html = (tmp_path / "_build" / "html" / "book" / "intro.html").read_text()
    assert '<svg role="img" aria-label="A cat." viewBox' in html
    assert "Fig. 1" in html


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{ref}`home`", "{ref}`nowhere`", "undefined label: 'nowhere'"),
        ("{numref}`fig-cat`", "{numref}`fig-dog`", "undefined label: 'fig-dog'"),
        ("{eq}`eq-one`", "{eq}`eq-two`", "equation not found: eq-two"),
        ("See", "{cite}`nobody1999nothing` See", "nobody1999nothing"),
        (":alt: A cat.\n", "", "the diagram book/cat.svg needs :alt: text"),
        ("See", "![](cat.svg)\n\nSee", "an image without alt text"),
        (
            "See",
            "```{raw} html\n<svg><path/></svg>\n```\n\nSee",
            "a figure without alt text",
        ),
        ("A cat sits.\n", "", "needs a caption"),
        ("cat.svg", "dog.svg", "no diagram at book/dog.svg"),
        ("See", "{count}`wonders` See", "nothing called 'wonders' is counted"),
    ],
)
def test_a_broken_page_is_refused(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    result = build(tmp_path, PAGE.replace(old, new, 1))
    assert result.returncode != 0
    assert message in (result.stdout + result.stderr).replace("\n", " ")
