"""What the pages know of the run: counts, module names, notebooks to download.

`{count}`claims`` in prose is the number of claims in the stored notebooks; a picture
without alt text is a warning, and the build is strict.
"""

import gc
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
from docutils import nodes
from pygments.formatters import HtmlFormatter
from pygments.token import Token
from sphinx.application import Sphinx
from sphinx.highlighting import PygmentsBridge
from sphinx.util import logging
from sphinx.util.docutils import SphinxRole

logger = logging.getLogger(__name__)
NUMBER = re.compile(r"(?<![\w.])[-−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w])")
FORMULA = r"<math>(?:(?!</math>).)*</math>"
BESIDE = re.compile(rf"[(\[“]+{FORMULA}[)\]”.,;:?!]*|{FORMULA}[)\]”.,;:?!]+")


@cache
def counts(notebooks: Path, pages: frozenset[str]) -> dict[str, int]:
    """What the pages' notebooks hold: claims, printed numbers, exercises and more."""
    found: Counter[str] = Counter()
    for path in in_the_book(notebooks, pages):
        found["chapters"] += 1
        for cell in nbformat.read(path, 4).cells:
            tags = cell.metadata.get("tags", [])
            found["claims"] += "claim" in tags
            found["exercises"] += "exercise" in tags
            if cell.cell_type != "code" or cell.id == "install":
                continue
            found["cells"] += 1
            for output in cell.outputs:
                data = output.get("data", {})
                found["figures"] += "<svg" in str(data.get("text/html", ""))
                if "nbval-ignore-output" not in tags:
                    found["numbers"] += len(NUMBER.findall(printed(output)))
    return dict(found)


def in_the_book(notebooks: Path, pages: Iterable[str]) -> list[Path]:
    """The notebooks that have a page; a draft has none yet."""
    paths = sorted(notebooks.glob("*.ipynb")) + sorted(
        notebooks.glob("workshop/*.ipynb")
    )
    return [
        path
        for path in paths
        if f"book/{path.relative_to(notebooks).with_suffix('').as_posix()}" in pages
    ]


def printed(output: Any) -> str:
    """The text that nbval compares: what a cell printed, typeset or glued."""
    if output.output_type == "stream":
        return str(output.text)
    data = output.get("data", {})
    if "text/html" in data:
        return ""
    return " ".join(str(data[kind]) for kind in data if kind.endswith("text/plain"))


class Count(SphinxRole):
    """A number of things in the stored notebooks, by name."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Look the number up."""
        root = Path(self.env.srcdir)
        known = counts(root / "book" / "notebooks", frozenset(self.env.found_docs))
        if self.text not in known:
            logger.warning(
                "nothing called %r is counted, only %s",
                self.text,
                ", ".join(sorted(known)),
                location=self.get_location(),
            )
            return [nodes.inline("", "?")], []
        return [nodes.inline("", f"{known[self.text]:,}")], []


def require_alt(app: Sphinx, doctree: nodes.document) -> None:
    """Warn of every picture that says nothing to a reader who cannot see it."""
    for image in doctree.findall(nodes.image):
        if not str(image.get("alt", "")).strip():
            logger.warning("an image without alt text", location=image)
    for raw in doctree.findall(nodes.raw):
        for opening in re.findall(r"<(?:svg|img)\b[^>]*>", raw.astext()):
            silent = 'aria-label=""' in opening or not re.search(
                r'(aria-label|alt)="[^"]+|aria-hidden="true"', opening
            )
            if silent:
                logger.warning("a figure without alt text", location=raw)


def launches(repository: str, branch: str, name: str) -> list[str]:
    """Links that open a notebook of a repository on a machine of others."""
    project = repository.removesuffix("/").removeprefix("https://github.com/")
    if not repository or project == repository:
        return []
    colab = f"https://colab.research.google.com/github/{project}/blob/{branch}"
    binder = f"https://mybinder.org/v2/gh/{project}/{branch}?urlpath=lab/tree"
    return [
        f'<a href="{colab}/book/notebooks/{name}">open it in Colab</a>',
        f'<a href="{binder}/book/notebooks/{name}">on Binder</a>',
    ]


def take_home(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Offer a chapter as a notebook, in a line below its title."""
    name = f"{page.removeprefix('book/')}.ipynb"
    if not (Path(app.srcdir) / "book" / "notebooks" / name).exists():
        return
    address = context["pathto"](f"notebooks/{name}", resource=True)
    links = [f'<a href="{address}" download>Download this notebook</a>']
    theme = app.config.html_theme_options  # of `repository:` in _config.yml
    branch = theme.get("repository_branch") or "main"
    links += launches(theme.get("repository_url", ""), branch, name)
    if "book/how-to" in app.env.found_docs:
        how = context["pathto"]("book/how-to").rstrip("#") + "#how-to-notebook"
        links.append(f'<a href="{how}">how to run it</a>')
    text = context["pathto"](f"text/{page}.md", resource=True)
    links.append(f'<a href="{text}">as plain text</a>')
    line = f'<p class="take-home">{" · ".join(links)}</p>'
    context["body"] = context["body"].replace("</h1>", f"</h1>\n{line}", 1)


def name_modules(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Say at a chapter's end which modules it makes, with a link to each whole file."""
    stem = page.removeprefix("book/")
    notebook = Path(app.srcdir) / "book" / "notebooks" / f"{stem}.ipynb"
    made = modules_of(notebook) if notebook.exists() else []
    if not made:
        return
    links = []
    for module in made:
        file = f"transformer/{module}.py"
        address = context["pathto"](f"code/{file}.txt", resource=True)
        lines = len((Path(app.srcdir) / file).read_text("utf-8").splitlines())
        links.append(f'<a href="{address}"><code>{file}</code></a> ({lines} lines)')
    many = len(links) > 1
    begun = "The modules that this chapter makes" if many else "The module it makes"
    line = f'<p class="made-here">{begun}: {", ".join(links)}.</p>'
    head, end, rest = context["body"].rpartition("</section>")
    context["body"] = f"{head}{line}\n{end}{rest}"


def modules_of(notebook: Path) -> list[str]:
    """The modules, such as `training/loss`, whose cells a notebook holds."""
    made, module = [], re.sub(r"^\d\d-", "", notebook.stem).replace("-", "_")
    for cell in nbformat.read(notebook, 4).cells:
        if "export" in cell.metadata.get("tags", []):
            module = cell.metadata.get("module", module)
            made.append(module)
    return list(dict.fromkeys(made))


def head(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Name one viewport, where theme and docutils name two; give a picture to share.

    The hues, which figures, views and the live model share, go with the page.
    """
    tags = re.sub(r'<meta[^>]*name="viewport"[^>]*>', "", context.get("metatags", ""))
    base = app.config.html_baseurl  # those who share a page want a whole address
    card = context["pathto"]("_static/card.png", resource=True)
    card = f"{base.rstrip('/')}/_static/card.png" if base else card
    context["metatags"] = (
        f"{tags}<style>{hues()}</style>"
        f'<meta property="og:image" content="{card}">'
        '<meta property="og:image:alt" content="The Tested Transformer: a map of its '
        'chapters beside the parts of the model that they build">'
        '<meta name="twitter:card" content="summary_large_image">'
    )


@cache
def hues() -> str:
    """The colours of a page's drawings, by day and at night; of words on white too."""
    from transformer.live import colours

    dark = 'html[data-theme="dark"]'
    return (
        f":root {{ {colours.DAY} }}\n{dark} {{ {colours.NIGHT} }}\n"
        f'html:not([data-theme="dark"]) .bd-article svg text {{ {colours.WORDS} }}\n'
        f"{colours.SQUARES}"
    )


def mend(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Mend generated markup that a screen reader trips over.

    Docutils gives bibliographies a role that ARIA has withdrawn; Sphinx breaks a long
    signature with a definition list that has no terms, inside another list's term;
    and a table's blank corner is no header. Marks that style nothing weigh something,
    and the space before a link to an exercise is no part of the link. A line does not
    break between a formula and the comma after it.
    """
    body = context.get("body", "")
    body = body.replace(' role="doc-biblioentry"', "")
    body = body.replace('<div role="list" class="citation-list">', "<div>")
    body = re.sub(r'<th class="head[^"]*">(<p>)?(</p>)?</th>', "<td></td>", body)
    for _ in range(2):  # one inside another
        body = re.sub(r'<span class="(?:pre|colon|[wnop])">([^<]*)</span>', r"\1", body)
    body = BESIDE.sub(r'<span class="kept">\g<0></span>', body)
    body = re.sub(r"(Solution to)(<a [^>]*>) ", r"\1 \2", body)
    context["body"] = re.sub(
        r'<dl>\s*(<dd><em class="sig-param.*?)</dl>',
        lambda lines: f"<span>{lines[1]}</span>".replace(
            "<dd>", '<span class="sig-line">'
        ).replace("</dd>", "</span>"),
        body,
        flags=re.DOTALL,
    )


def copy_notebooks(app: Sphinx, failure: Exception | None) -> None:
    """Lay the notebooks beside the pages that offer them."""
    if failure is None and app.builder.format == "html":
        source = Path(app.srcdir) / "book" / "notebooks"
        target = Path(app.outdir) / "notebooks"
        target.mkdir(exist_ok=True)
        for notebook in in_the_book(source, app.env.found_docs):
            place = target / notebook.relative_to(source)
            place.parent.mkdir(exist_ok=True)
            shutil.copy(notebook, place)


def copy_modules(app: Sphinx, failure: Exception | None) -> None:
    """Lay the package's modules beside the pages, as text that a browser shows."""
    if failure is None and app.builder.format == "html":
        source = Path(app.srcdir) / "transformer"
        for module in source.rglob("*.py"):
            place = Path(app.outdir) / "code" / module.relative_to(source.parent)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(module, place.with_name(f"{module.name}.txt"))


def index_prose(app: Sphinx) -> None:
    """Let the search index hold what is written, not code, drawings or what ran."""
    feed = getattr(app.builder, "index_page", None)
    if feed is None:
        return

    def lean(page: str, doctree: nodes.document, title: str) -> None:
        prose = doctree.deepcopy()
        cells = [
            node
            for node in prose.findall(nodes.container)
            if node.get("nb_element") == "cell_code"
        ]
        for node in [*prose.findall(nodes.raw), *cells]:
            node.parent.remove(node)
        feed(page, prose, title)

    app.builder.index_page = lean  # type: ignore[attr-defined]


PLAIN = (Token.Name, Token.Operator, Token.Punctuation, Token.Text.Whitespace)


class LeanFormatter(HtmlFormatter[str]):
    """Code without marks for what looks like its surroundings: half a page's weight."""

    def _get_css_classes(self, ttype: Any) -> str:
        if ttype in PLAIN:
            return ""
        return str(super()._get_css_classes(ttype))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register all of it."""
    # Pages are trees of many objects that stay: looking for garbage took a tenth.
    gc.set_threshold(100_000, 20)
    PygmentsBridge.html_formatter = LeanFormatter
    app.add_role("count", Count())
    app.connect("builder-inited", index_prose)
    app.connect("doctree-read", require_alt)
    app.connect("html-page-context", take_home)
    app.connect("html-page-context", name_modules)
    app.connect("html-page-context", head)
    app.connect("html-page-context", mend)
    app.connect("build-finished", copy_notebooks)
    app.connect("build-finished", copy_modules)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
