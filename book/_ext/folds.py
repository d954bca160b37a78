"""What a page folds: claims, library code, imports, figure code and *Deeper* sections.

Decided by cell tags when a page is read. Each fold is a native `<details>`, so it works
without scripts; its summary says what one sees by opening it. A claim's summary is the
sentence that it proves, the comment at its head.
"""

import ast
import itertools
import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

LABELS = {"setup": "Setup", "plot": "Figure code", "hide-input": "Code"}
INLINE = re.compile(r"(`[^`]+`|\*[^*]+\*|\$[^$]+\$)")


class Fold(nodes.General, nodes.Element):
    """A `<details>` of some kind; its first child is the `Summary`."""


class Summary(nodes.General, nodes.TextElement):
    """The line that opens a fold."""


def visit_fold(self: HTML5Translator, node: Fold) -> None:
    """Open the details."""
    opened = " open" if node.get("opened") else ""
    self.body.append(f'<details class="fold fold-{node["kind"]}"{opened}>\n')


def visit_summary(self: HTML5Translator, node: Summary) -> None:
    """Open the summary."""
    self.body.append("<summary>")


def leave_fold(self: HTML5Translator, node: Fold) -> None:
    """Close the details."""
    self.body.append("</details>\n")


def leave_summary(self: HTML5Translator, node: Summary) -> None:
    """Close the summary."""
    self.body.append("</summary>\n")


def sentence(source: str) -> str:
    """The comment at the head of a cell, as one line."""
    head = list(itertools.takewhile(lambda line: line[:1] == "#", source.splitlines()))
    return " ".join(line.lstrip("# ").rstrip() for line in head)


def inline(text: str) -> list[nodes.Node]:
    """Text with `code`, *emphasis* and $mathematics$ in it."""
    made: list[nodes.Node] = []
    for part in INLINE.split(text):
        kind = {"`": nodes.literal, "*": nodes.emphasis, "$": nodes.math}.get(part[:1])
        if kind and len(part) > 2 and part[-1] == part[0]:
            made.append(kind("", part[1:-1]))
        elif part:
            made.append(nodes.Text(part))
    return made


def defined(source: str) -> list[str]:
    """The names that a cell of library code defines."""
    return [
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    ]


def counted(source: str) -> str:
    """How many lines a cell has."""
    count = len(source.strip().splitlines())
    return f"{count} line" + "s" * (count != 1)


def only_imports(source: str) -> bool:
    """Whether a cell imports, calls `begin`, and does nothing else."""
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return False
    rest = [n for n in body if not isinstance(n, ast.Import | ast.ImportFrom)]
    return len(rest) < len(body) and all("begin(" in ast.unparse(n) for n in rest)


def fold_cells(app: Sphinx, doctree: nodes.document) -> None:
    """Wrap the code of cells by their tags."""
    docname = app.env.docname
    stem = Path(docname).name
    module = re.sub(r"^\d\d-", "", stem).replace("-", "_")
    cells = [
        node
        for node in doctree.findall(nodes.container)
        if node.get("nb_element") == "cell_code" and node.children
    ]
    for number, cell in enumerate(cells):
        code = cell.children[0]
        if code.get("nb_element") != "cell_code_source":
            continue
        metadata = cell.get("cell_metadata", {})
        tags = set(metadata.get("tags", []))
        module = metadata.get("module", module)
        source = code.astext()
        cell.attributes.pop("hide_mode", None)
        summary = Summary()
        kind = ""
        if "claim" in tags:
            kind = "claim"
            summary += [nodes.inline("", "✓ ", classes=["tick"])]
            summary += inline(sentence(source) or f"Checked: {counted(source)}")
        elif "export" in tags:
            kind = "export"
            brings = re.search(r"^(from|import) ", source, re.MULTILINE)
            names = ", ".join(defined(source)) or ("imports" if brings else "constants")
            summary += nodes.literal("", f"transformer/{module}.py")
            summary += nodes.Text(f" · {names} · {counted(source)}")
        elif "fold" in metadata:
            kind = "setup"
            summary += nodes.Text(f"{metadata['fold']} · {counted(source)}")
        else:
            if number == 0 and only_imports(source):
                tags.add("setup")
            for tag, label in LABELS.items():
                if tag in tags:
                    kind = "setup" if tag != "plot" else "plot"
                    summary += nodes.Text(f"{label} · {counted(source)}")
                    break
        if not kind:
            continue
        failed = any(
            "traceback" in node["classes"] for node in cell.findall(nodes.Element)
        )
        fold = Fold(kind=kind, opened="heart" in tags or failed)
        cell.replace(code, fold)
        fold += [summary, code]


def fold_sections(app: Sphinx, doctree: nodes.document) -> None:
    """Wrap the body of each section whose title begins with *Deeper:*."""
    for section in list(doctree.findall(nodes.section)):
        title = section.next_node(nodes.title)
        if title is None or title.parent is not section:
            continue
        if not title.astext().startswith("Deeper:"):
            continue
        at = section.index(title) + 1
        body = section.children[at:]
        del section.children[at:]
        words = sum(len(node.astext().split()) for node in body_text(body))
        figures = sum(1 for node in body for _ in node.findall(nodes.figure))
        about = f": {words} words"
        if figures:
            about += f", {figures} figure" + "s" * (figures != 1)
        fold = Fold(kind="deeper", opened=False)
        named = nodes.inline("", f" {title.astext()}", classes=["visually-hidden"])
        fold += Summary("", "", nodes.Text("Open this section"), named)
        fold[0] += nodes.Text(about)
        fold += body
        section += fold


def body_text(body: list[nodes.Node]) -> list[nodes.Node]:
    """The paragraphs of a section's body."""
    return [found for node in body for found in node.findall(nodes.paragraph)]


def chapter_numbers(book: Path) -> dict[str, tuple[str, str]]:
    """The number and the title of each chapter by its label."""
    numbers = {}
    for path in sorted(book.glob("[0-9][0-9]-*.md")):
        first = re.search(
            r"^\((ch-[\w-]+)\)=\n+(?:\([\w-]+\)=\n+)*# (.+)$",
            path.read_text("utf-8"),
            re.MULTILINE,
        )
        if first:
            numbers[first[1]] = str(int(path.stem[:2])), first[2].strip()
    return numbers


def name_chapters(app: Sphinx, doctree: nodes.document) -> None:
    """Call a chapter that is linked without words of its own by its number."""
    numbers = chapter_numbers(Path(app.srcdir) / "book")
    for link in doctree.findall(addnodes.pending_xref):
        target = str(link.get("reftarget", ""))
        if link.get("refexplicit") or target not in numbers:
            continue
        before = link.parent.children[: link.parent.index(link)]
        text = "".join(node.astext() for node in before).rstrip()
        word = "Chapter" if not text or text[-1] in ".!?:" else "chapter"
        number, _ = numbers[target]
        link["refexplicit"] = True
        link.children = [nodes.inline("", f"{word} {number}")]


def tell_titles(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Show a chapter's title where a pointer rests on its number."""
    numbers = chapter_numbers(Path(app.srcdir) / "book")
    for link in doctree.findall(nodes.reference):
        _, _, label = link.get("refuri", "").partition("#")
        if label in numbers and link.astext().lower() == f"chapter {numbers[label][0]}":
            link["reftitle"] = numbers[label][1]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register all of it."""
    app.add_node(Fold, html=(visit_fold, leave_fold))
    app.add_node(Summary, html=(visit_summary, leave_summary))
    app.connect("doctree-read", fold_cells)
    app.connect("doctree-read", fold_sections)
    app.connect("doctree-read", name_chapters)
    app.connect("doctree-resolved", tell_titles)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
