"""Exercises on the page: a form where the answer is a number, a list or a choice.

A check with a form (bookkit/forms.py) is compiled and laid beside its exercise, and its
cell is left to *Code*. Of all other exercises *Read* shows what function is wanted, and
a line that says where to write it. "Not answered yet" is for notebooks alone.
"""

import ast
import importlib
import re
from html import escape
from typing import Any

from docutils import nodes
from folds import Fold, Summary, counted
from javascript import compiled
from sphinx.application import Sphinx

from bookkit.forms import Form

IMPORT = re.compile(
    r"^from bookkit\.checks\.(\w+) import (\([^)]*\)|.+)$", re.MULTILINE
)
ASKED = re.compile(r"^(check_\w+)\((\w+)\)", re.MULTILINE)


def field(form: Form, label: str, name: str, spoken: str = "") -> str:
    """One field, with the name that a screen reader says where no label stands."""
    said = f' aria-label="{escape(spoken)}"' if spoken else ""
    if form.ticks:
        return f'<label><input type="checkbox" name="{escape(name)}"{said}></label>'
    if form.choices:
        options = "".join(f"<option>{escape(each)}</option>" for each in form.choices)
        return (
            f'<label><span>{escape(label)}</span> <select name="{escape(name)}">'
            f'<option value="">choose</option>{options}</select></label>'
        )
    box = (
        f'<input name="{escape(name)}"{said} size="{12 if form.several else 8}" '
        'autocomplete="off" autocapitalize="off" spellcheck="false">'
    )
    return box if spoken else f"<label><span>{escape(label)}</span> {box}</label>"


def fields(form: Form) -> str:
    """All fields of a form: a table for a matrix, else side by side."""
    if form.gives != "matrix":
        return "\n".join(field(form, label, label) for label in form.labels)
    heads = "".join(f'<th scope="col">{escape(each)}</th>' for each in form.columns)
    rows = []
    for i, label in enumerate(form.labels):
        cells = (
            f"<td>{field(form, '', f'{i} {j}', f'row {label}, column {column}')}</td>"
            for j, column in enumerate(form.columns)
        )
        rows.append(f'<tr><th scope="row">{escape(label)}</th>{"".join(cells)}</tr>')
    return f"<table><tr><td></td>{heads}</tr>{''.join(rows)}</table>"


def registered(name: str, form: Form) -> str:
    """The script that lays a compiled check where the page's forms find it."""
    script = compiled(form.judge).replace("</", "<\\/")
    return f'(window.checks ??= {{}})["{name}"] = () => {script};'


def drawn(name: str, form: Form) -> str:
    """The form of an exercise, with the check that judges what is written into it."""
    about = f'data-check="{name}" data-gives="{form.gives}"'
    about += " data-several" * form.several
    if form.columns:
        about += f' data-columns="{len(form.columns)}"'
    asked = f"<p>{escape(form.by_hand)}</p>\n" if form.by_hand else ""
    return (
        f'<form class="answer" {about} novalidate>\n{asked}'
        '<div class="answer-fields" role="group" aria-label="Your answer">\n'
        f"{fields(form)}\n"
        '<button type="submit">Check</button>\n</div>\n'
        '<p class="verdict" role="status"></p>\n</form>\n'
        f"<script>{registered(name, form)}</script>"
    )


def signature(source: str) -> str:
    """What a reader is to write: the head of a function, and what is said of it."""
    heads = []
    for node in ast.parse(source).body:
        if not isinstance(node, ast.FunctionDef):
            continue
        heads.append(f"def {node.name}({ast.unparse(node.args)}):")
        if told := ast.get_docstring(node):
            heads.append(f'    """{told}"""')
        part = ast.get_source_segment(source, node) or ""
        after = source[source.index(part) + len(part) :].partition("\n")[0]
        for comment in re.findall(r"#(.*)", part + after):
            words = re.sub(r"[;:,]?\s*your (?:code|answer) here[;:]?", "", comment)
            if words.strip():
                heads.append(f"    # {words.strip()}")
    return "\n".join(heads)


def elsewhere(page: str, cell: str, wanted: str, kind: str) -> nodes.raw:
    """The line that says where to write an answer."""
    up = "../" * page.count("/")
    book = f"{up}notebooks/{page.removeprefix('book/')}.ipynb"
    words = f"{wanted} in" if wanted else "Answer it in"
    line = (
        f'<p class="answer-elsewhere {kind}">{words} '
        f'<a href="{book}" download>this chapter’s notebook</a>; '
        f'<a class="to-cell" href="#{cell}">its cell</a> checks it.</p>'
    )
    return nodes.raw("", line, format="html")


def ask(app: Sphinx, doctree: nodes.document) -> None:
    """Give each exercise its form, or the line that says where to write the answer."""
    modules: dict[str, str] = {}
    for cell in list(doctree.findall(nodes.container)):
        tags = cell.get("cell_metadata", {}).get("tags", [])
        if "exercise" not in tags or cell.get("nb_element") != "cell_code":
            continue
        code = cell.children[0]
        source = code.astext()
        imported = []
        for module, names in IMPORT.findall(source):
            imported.append(names)
            modules |= dict.fromkeys(re.findall(r"check_\w+", names), module)
        asked = ASKED.search(source)
        if asked is None:
            continue
        for output in cell.children[1:]:
            if output.astext().lstrip().startswith("○"):
                cell.remove(output)
        name, wanted = asked.groups()
        module = importlib.import_module(f"bookkit.checks.{modules[name]}")
        app.env.note_dependency(str(module.__file__))
        found: Form | None = getattr(getattr(module, name), "form", None)
        label = f"cell-{modules[name]}-{name}".replace("_", "-")
        cell["ids"].append(label)
        page, at = app.env.docname, cell.parent.index(cell)
        made = drawn(f"{modules[name]}.{name}", found) if found else ""
        if found and not found.by_hand:
            fold = Fold(kind="setup", opened=False)
            summary = Summary("", f"In the notebook · {counted(source)}")
            cell.replace(code, fold)
            fold += [summary, code]
            tools = re.findall(r"\b(?!check_)\w+", ",".join(imported))
            tried = f"Try <code>{tools[0]}</code>" if tools else ""  # a patient
            line = elsewhere(page, label, tried, "tried" if tools else "unscripted")
            cell.parent[at:at] = [nodes.raw("", made, format="html"), line]
            continue
        block = code.next_node(nodes.literal_block)
        head = block.deepcopy()
        head.children = [nodes.Text(signature(source))]
        head.rawsource = signature(source)
        head["classes"].append("wanted")
        block["classes"].append("stub")
        block.parent.insert(block.parent.index(block), head)
        line = elsewhere(page, label, f"Write <code>{wanted}</code>", "")
        cell.parent.insert(at + 1, line)
        if made:
            cell.parent.insert(at, nodes.raw("", made, format="html"))


def add_script(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Load the forms' script where an exercise is."""
    if "answer-elsewhere" in context.get("body", ""):
        app.add_js_file("answers.js", loading_method="defer")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register all of it."""
    app.connect("doctree-read", ask)
    app.connect("html-page-context", add_script)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
