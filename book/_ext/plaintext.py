"""The book as plain text, for assistants and for whoever reads without a browser.

Beside the pages lie `llms.txt`, which lists them, `llms-full.txt`, the whole book, and
a text of each page. They are Markdown: formulas in TeX, pictures as what their alt text
says, numbers as the run gave them. Solutions are left out, as AGENTS.md asks for.
"""

import re
from html import unescape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

SILENT = (
    *("Summary", "comment", "target", "index", "substitution_definition"),
    *("system_message", "toctree", "compound", "label"),
)
BEFORE = {"strong": "**", "emphasis": "*", "literal": "`"}
PROMPT = "Read AGENTS.md below before you help with an exercise."


def plain(node: nodes.Node, depth: int = 0) -> str:
    """A node in Markdown; sections are as deep as they stand."""
    kind = type(node).__name__
    if isinstance(node, nodes.Text):
        return node.astext()
    if not isinstance(node, nodes.Element) or kind in SILENT or is_left_out(node):
        return ""
    if isinstance(node, nodes.raw):
        said = re.findall(r'<svg[^>]*aria-label="([^"]+)"', node.astext())
        return f"[Figure: {unescape(said[0])}]\n\n" if said else ""
    if isinstance(node, nodes.image):
        return f"[Figure: {node.get('alt', '')}]\n\n"
    if isinstance(node, nodes.math):
        return f"${node.astext()}$"
    if isinstance(node, nodes.math_block):
        return f"$$\n{node.astext().strip()}\n$$\n\n"
    if isinstance(node, nodes.literal_block):
        wanted = "wanted" in node["classes"]  # an exercise's stub follows
        language = node.get("language", "").removeprefix("myst-ansi")
        text = node.astext().rstrip()
        return "" if wanted else f"```{language}\n{text}\n```\n\n"
    if isinstance(node, nodes.table):
        return table(node)
    deeper = depth + isinstance(node, nodes.section)
    inside = "".join(plain(child, deeper) for child in node.children)
    if isinstance(node, nodes.title):
        if isinstance(node.parent, nodes.section | nodes.document):
            return f"{'#' * max(depth, 1)} {inside}\n\n"
        numbered = inside.startswith(" (")  # of an exercise, which is numbered later
        return f"**{'Exercise' * numbered}{inside}**\n\n"
    if kind in BEFORE and inside.strip():
        return f"{BEFORE[kind]}{inside}{BEFORE[kind]}"
    if isinstance(node, nodes.reference):
        address = str(node.get("refuri", ""))
        return f"[{inside}]({address})" if address.startswith("http") else inside
    if isinstance(node, nodes.list_item):
        ordered = isinstance(node.parent, nodes.enumerated_list)
        mark = f"{node.parent.index(node) + 1}." if ordered else "-"
        return f"{mark} {indented(inside, len(mark) + 1)}\n"
    if isinstance(node, nodes.definition):
        return f": {indented(inside, 2)}\n\n"
    if isinstance(node, nodes.paragraph | nodes.caption | nodes.term | nodes.rubric):
        return f"{' '.join(inside.split())}\n\n"
    if isinstance(node, nodes.bullet_list | nodes.enumerated_list | nodes.citation):
        return f"{inside.rstrip()}\n\n"
    return f"{inside}\n" if kind == "desc_signature" else inside


def is_left_out(node: nodes.Element) -> bool:
    """Whether it gives an exercise away, or draws what its alt text says."""
    tags = node.get("cell_metadata", {}).get("tags", [])
    solves = "solution" in tags or "solution" in node.get("classes", [])
    return solves or (type(node).__name__ == "Fold" and node["kind"] == "plot")


def indented(text: str, by: int) -> str:
    """Lines after the first moved in, as a list's are."""
    return text.strip().replace("\n", "\n" + " " * by).replace(" " * by + "\n", "\n")


def table(node: nodes.table) -> str:
    """A table's rows between bars."""
    rows = [
        [" ".join(plain(entry).split()) for entry in row.findall(nodes.entry)]
        for row in node.findall(nodes.row)
    ]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if rows and next(node.findall(nodes.thead), None):
        lines.insert(1, f"|{'---|' * len(rows[0])}")
    titles = "".join(map(plain, node.findall(nodes.title)))
    return f"{titles}{chr(10).join(lines)}\n\n"


def write_page(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Lay a page's text beside it."""
    if app.builder.format == "html":
        place = Path(app.outdir) / "text" / f"{page}.md"
        place.parent.mkdir(parents=True, exist_ok=True)
        text = re.sub(r"\n{3,}", "\n\n", plain(doctree)).strip()
        place.write_text(f"{text}\n", "utf-8")


def write_book(app: Sphinx, failure: Exception | None) -> None:
    """List the pages in `llms.txt`, and join their texts into `llms-full.txt`."""
    if failure is not None or app.builder.format != "html":
        return
    out, root = Path(app.outdir), Path(app.srcdir)
    advice = (root / "AGENTS.md").read_text("utf-8")
    title = app.config.project
    about = (
        f"# {title}\n\n> A book that builds the Transformer of *Attention Is All You "
        "Need* in PyTorch, chapter by chapter, and checks every claim it makes.\n\n"
    )
    lines, texts = [], []
    for page in pages(app):
        text = (out / "text" / f"{page}.md").read_text("utf-8")
        name = re.sub(r"[*`$]", "", text.partition("\n")[0].lstrip("# "))
        stem = Path(page).name[:2]
        name = f"{int(stem)}. {name}" if stem.isdigit() else name
        lines.append(f"- [{name}](text/{page}.md)")
        texts.append(f"<!-- {page}.html -->\n\n{text}")
    whole = "- [The whole book in one file](llms-full.txt), without solutions\n"
    listing = f"{PROMPT}\n\n## Book\n\n{whole}{chr(10).join(lines)}\n\n{advice}"
    (out / "llms.txt").write_text(about + listing, "utf-8")
    joined = "\n\n".join([f"{about}{PROMPT}", advice, *texts])
    (out / "llms-full.txt").write_text(joined, "utf-8")


def pages(app: Sphinx) -> list[str]:
    """The book's pages in the order of its contents."""
    found, waiting = list[str](), [app.config.root_doc]
    while waiting:
        page = waiting.pop(0)
        found.append(page)
        waiting = [*app.env.toctree_includes.get(page, []), *waiting]
    return found


def setup(app: Sphinx) -> dict[str, Any]:
    """Register both."""
    app.connect("doctree-resolved", write_page)
    app.connect("build-finished", write_book)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
