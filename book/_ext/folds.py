"""What a page folds: claims, library code, imports, figure code and *Deeper* sections.

Decided by cell tags when a page is read. Each fold is a native `<details>`, so it works
without scripts; its summary says what one sees by opening it. In *Read* the style sheet
hides what is no part of the lesson: see `html[data-folds="Read"]` in book.css.

A claim's summary is the sentence that it proves, the comment at its head. Where the
prose says that sentence itself, it ends in ✓: the mark belongs to the next claim below
it that no earlier mark has taken, and becomes a button that shows the assertion.
"""

import ast
import itertools
import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)
DRAWING = re.compile(
    r"^from (?:bookkit[\w.]*|myst_nb|IPython[\w.]*) import (\([^)]*\)|[^\n]*)", re.M
)
LABELS = {"setup": "Setup", "plot": "Figure code", "hide-input": "Code"}
INLINE = re.compile(r"(`[^`]+`|\*[^*]+\*|\$[^$]+\$)")


class Fold(nodes.General, nodes.Element):
    """A `<details>` of some kind; its first child is the `Summary`."""


class Summary(nodes.General, nodes.TextElement):
    """The line that opens a fold."""


class Doors(nodes.General, nodes.Element):
    """The *Deeper* sections that stand in one row."""


class Tick(nodes.Inline, nodes.TextElement):
    """The ✓ at the end of a sentence that a claim proves."""


def visit_doors(self: HTML5Translator, node: Doors) -> None:
    """Open the row."""
    self.body.append('<div class="doors"><span class="doors-name">Deeper</span>\n')


def leave_doors(self: HTML5Translator, node: Doors) -> None:
    """Close the row."""
    self.body.append("</div>\n")


def visit_tick(self: HTML5Translator, node: Tick) -> None:
    """Write a link to the claim, which the page's script makes a button of."""
    self.body.append(
        f'<a class="tick" href="#{node["claim"]}" '
        'aria-label="checked: show the assertion">✓'
    )


def leave_tick(self: HTML5Translator, node: Tick) -> None:
    """Close the link."""
    self.body.append("</a>")


def visit_fold(self: HTML5Translator, node: Fold) -> None:
    """Open the details."""
    opened = " open" if node.get("opened") else ""
    named = f' id="{node["name"]}"' if node.get("name") else ""
    marked = " marked" if node.get("marked") else ""
    kinds = f"fold fold-{node['kind']}{marked}"
    self.body.append(f'<details class="{kinds}"{named}{opened}>\n')


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


def drawing_names(cells: list[nodes.container]) -> set[str]:
    """What a page's cells import to draw and typeset with: no part of the lesson."""
    names = set()
    for cell in cells:
        for found in DRAWING.finditer(cell.children[0].astext()):
            names |= set(re.findall(r"\w+", found[1]))
    return names


def split_drawing(source: str, names: set[str]) -> list[tuple[bool, str]]:
    """A cell in pieces: whether each only draws or typesets, and its lines.

    A comment or a blank line goes with the statement below it.
    """
    try:
        body = ast.parse(source).body
    except SyntaxError:  # a notebook's own commands, such as %pip
        return [(False, source)]
    lines, pieces, start = source.splitlines(), list[tuple[bool, str]](), 0
    for statement in body:
        value = getattr(statement, "value", None)
        call = value.func if isinstance(value, ast.Call) else None
        while isinstance(call, ast.Attribute):
            call = call.value
        draws = isinstance(call, ast.Name) and call.id in names
        end = statement.end_lineno or start
        piece = "\n".join(lines[start:end])
        if pieces and pieces[-1][0] == draws:
            piece = f"{pieces.pop()[1]}\n{piece}"
        pieces.append((draws, piece))
        start = end
    if rest := "\n".join(lines[start:]).strip():
        pieces.append((False, rest))
    return pieces


def hide_drawing(code: nodes.container, names: set[str]) -> bool:
    """Mark the lines of a cell that only draw; whether nothing else is left."""
    block = code.next_node(nodes.literal_block)
    if block is None:
        return False
    pieces = split_drawing(block.astext(), names)
    if all(draws for draws, _ in pieces):
        return True
    if any(draws for draws, _ in pieces):
        apart = []
        for draws, piece in pieces:
            part = block.deepcopy()
            part.children = [nodes.Text(piece.strip("\n"))]
            part.rawsource = piece.strip("\n")
            if draws:
                part["classes"].append("drawing")
            apart.append(part)
        at = block.parent.index(block)
        block.parent[at : at + 1] = apart
        code["classes"].append("in-pieces")
    return False


def kind_of_titled(cell: nodes.container) -> str:
    """How code with a title of its own is shown: by what follows it.

    Printed text needs its title to be read, a figure speaks for itself, and code
    without any output prepares something.
    """
    if len(cell.children) < 2:
        return "setup"
    kinds = {node.get("mime_type") for node in cell.findall(nodes.container)}
    drawn = bool(kinds & {"text/html", "text/latex"})
    if drawn:
        cell["classes"].append("tag_plot")
    return "plot" if drawn else "titled"


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
    drawing = drawing_names(cells)
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
            kind = kind_of_titled(cell)
            summary += nodes.Text(f"{metadata['fold']} · {counted(source)}")
        else:
            if number == 0 and only_imports(source):
                tags.add("setup")
            for tag, label in LABELS.items():
                if tag in tags:
                    kind = "setup" if tag != "plot" else "plot"
                    summary += nodes.Text(f"{label} · {counted(source)}")
                    break
        asked = tags & {"exercise", "solution"}
        if not kind and not asked and hide_drawing(code, drawing):
            kind = "plot"
            cell["classes"].append("tag_plot")
            summary += nodes.Text(f"{LABELS['plot']} · {counted(source)}")
        if not kind:
            continue
        failed = any(
            "traceback" in node["classes"] for node in cell.findall(nodes.Element)
        )
        fold = Fold(kind=kind, opened="heart" in tags or failed)
        cell.replace(code, fold)
        fold += [summary, code]


def fold_sections(app: Sphinx, doctree: nodes.document) -> None:
    """Wrap the body of each section whose title begins with *Deeper:*.

    Those that follow one another stand in one row of doors.
    """
    deeper = []
    for section in doctree.findall(nodes.section):
        title = section.next_node(nodes.title)
        if title is None or title.parent is not section:
            continue
        if title.astext().startswith("Deeper:"):
            deeper.append((section, title))
    for section, title in deeper:
        body = section.children[section.index(title) + 1 :]
        del section.children[section.index(title) + 1 :]
        section["classes"].append("deeper")
        fold = Fold(kind="deeper", opened=False)
        name = title.deepcopy()
        name.children = [*name.children]
        first = name.children[0] if name.children else None
        if isinstance(first, nodes.Text):
            begun = first.astext().removeprefix("Deeper:").lstrip()
            name.children[0] = nodes.Text(begun[:1].upper() + begun[1:])
        fold += Summary("", "", *name.children)
        fold += body
        section += fold
    for section, _ in deeper:
        parent = section.parent
        if isinstance(parent, Doors):
            continue
        at = parent.index(section)
        row = list(
            itertools.takewhile(
                lambda node: (
                    isinstance(node, nodes.section) and "deeper" in node["classes"]
                ),
                parent.children[at:],
            )
        )
        parent[at : at + len(row)] = [Doors("", *row)]


def place_ticks(app: Sphinx, doctree: nodes.document) -> None:
    """Join each ✓ that ends a sentence of the prose to the claim that it stands for."""
    folds = list(doctree.findall(Fold))
    if not any(fold["kind"] == "claim" for fold in folds):
        return
    waiting: list[Tick] = []
    number = 0
    for node in list(doctree.findall()):
        if isinstance(node, Fold) and node["kind"] == "claim":
            number += 1
            node["name"] = f"claim-{number}"
            if waiting:
                waiting.pop(0)["claim"] = node["name"]
                node["marked"] = True
        elif isinstance(node, nodes.Text) and "✓" in node and in_prose(node):
            parts: list[nodes.Node] = []
            # The space before a ✓ does not break: it ends the sentence's last line.
            for piece in re.split(
                "(✓)", node.astext().replace(" ✓", "\N{NO-BREAK SPACE}✓")
            ):
                if piece == "✓":
                    waiting.append(Tick("", "", claim=""))
                    parts.append(waiting[-1])
                elif piece:
                    parts.append(nodes.Text(piece))
            at = node.parent.index(node)
            node.parent[at : at + 1] = parts
    for tick in waiting:
        logger.warning("a ✓ without a claim below it", location=tick.parent)


def in_prose(text: nodes.Text) -> bool:
    """Whether a text is a sentence's own: in no cell, summary, title or code."""
    apart = (nodes.container, nodes.literal, nodes.literal_block, nodes.title, Summary)
    node = text.parent
    while node is not None and not isinstance(node, nodes.section | nodes.document):
        if isinstance(node, apart):
            return False
        node = node.parent
    return True


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
    app.add_node(Doors, html=(visit_doors, leave_doors))
    app.add_node(Tick, html=(visit_tick, leave_tick))
    app.connect("doctree-read", fold_cells)
    app.connect("doctree-read", place_ticks)
    app.connect("doctree-read", fold_sections)
    app.connect("doctree-read", name_chapters)
    app.connect("doctree-resolved", tell_titles)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
