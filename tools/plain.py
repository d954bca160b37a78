"""What a chapter's text says in a notebook, where no book is built around it.

Sphinx numbers figures, resolves references and fills in the numbers that cells glued.
Jupyter does none of that: here each such mark becomes plain Markdown.
"""

import base64
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from chapters import book_of, chapters, stored
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell
from pybtex.database import BibliographyData, parse_file

LABEL = re.compile(r"^\(([a-z0-9-]+)\)=\n?", re.MULTILINE)
EQUATION = re.compile(r"^\$\$ \(([a-z0-9-]+)\)$", re.MULTILINE)
DRAWN = re.compile(r"^:name: (fig-\S+)$", re.MULTILINE)
NAME = re.compile(r"^ *:?(?:name|label): ([a-z0-9-]+)$", re.MULTILINE)
TITLED = re.compile(r"^\(([a-z0-9-]+)\)=\n#+ (.+)$", re.MULTILINE)
EXERCISE = re.compile(
    r"^`{3,}\{exercise-start\} *(.+)\n:label: ([a-z0-9-]+)$", re.MULTILINE
)
ROLE = re.compile(r"\{([a-z:]+)\}`([^`]+)`")
TARGET = re.compile(r"(.*\S)\s*<([^<>]+)>", re.DOTALL)
BLOCK = re.compile(
    r"^(?P<fence>`{3,})\{(?P<kind>[a-z-]+)\}[ ]*(?P<title>[^\n]*)\n"
    r"(?P<body>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
SHEET = '<svg color="#000" ', '><rect width="100%" height="100%" fill="#fff"/>'
OPTION = re.compile(r"^:(\w+):[ ]*(.*)\n", re.MULTILINE)
LIVE = (
    "(On the book's page the model runs here. In a notebook, "
    "`bookkit.explore(Translator.phrasebook())` shows the whole of it.)"
)


class Book:
    """What a chapter may refer to: the labels of all chapters, and the bibliography."""

    def __init__(self, root: Path) -> None:
        self.where: dict[str, Path] = {}
        self.titles: dict[str, str] = {}
        for chapter in chapters(root):
            text = chapter.read_text(encoding="utf-8")
            for pattern in LABEL, EQUATION, NAME:
                self.where |= dict.fromkeys(pattern.findall(text), chapter)
            self.titles |= dict(TITLED.findall(text))
            self.titles |= {label: title for title, label in EXERCISE.findall(text)}
        path = root / "book" / "references.bib"
        self.works = parse_file(path) if path.exists() else BibliographyData()

    def link(self, text: str, label: str, here: Path) -> str:
        """Words that lead to the chapter where a label stands, if it is another one."""
        chapter = self.where.get(label)
        if chapter in (None, here):
            return text
        path = Path(os.path.relpath(stored(chapter), stored(here).parent))
        return f"[{text}]({path.as_posix()})"

    def cited(self, key: str, in_text: bool) -> str:
        """Authors and year of a work, leading to it where it is on the web."""
        work = self.works.entries.get(key)
        if work is None:
            return key
        people = [
            str(person.rich_last_names[0]) for person in work.persons.get("author", [])
        ]
        who = people[0] if people else work.fields.get("title", key)
        if len(people) == 2:
            who = f"{people[0]} and {people[1]}"
        elif len(people) > 2:
            who = f"{people[0]} et al."
        year = work.fields.get("year", "undated")
        said = f"{who} ({year})" if in_text else f"{who}, {year}"
        return f"[{said}]({work.fields['url']})" if "url" in work.fields else said


@cache
def book(root: Path) -> Book:
    """The book, read once."""
    return Book(root)


def glued(notebook: NotebookNode) -> dict[str, str]:
    """The numbers and words that a notebook's cells glued, by name."""
    values: dict[str, str] = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            name = output.get("metadata", {}).get("scrapbook", {}).get("name")
            if name:
                data = output.data
                said = next((data[k] for k in data if k.endswith("text/plain")), "")
                values[name] = said.strip("'\"")
    return values


class Words:
    """One chapter's words on their way into its notebook."""

    def __init__(
        self, chapter: Path, notebook: NotebookNode, values: Mapping[str, str]
    ) -> None:
        self.chapter = chapter
        self.known = book(book_of(chapter).parent)
        self.values = values
        equations: list[str] = []
        figures: list[str] = []
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                equations += EQUATION.findall(cell.source)
                figures += DRAWN.findall(cell.source)
            elif figure := figure_of(cell):
                figures.append(figure["name"])
        self.equations = {label: n for n, label in enumerate(equations, 1)}
        self.figures = {label: n for n, label in enumerate(figures, 1)}

    def rewrite(self, cell: NotebookNode) -> None:
        """Make a Markdown cell plain."""
        pictures: dict[str, dict[str, str]] = {}
        source = BLOCK.sub(lambda found: self.block(found, pictures), cell.source)
        source = EQUATION.sub(self.tag, source)
        source = ROLE.sub(self.role, LABEL.sub("", source))
        cell.source = re.sub(r"\n{3,}", "\n\n", source).strip()
        if pictures:
            cell.attachments = pictures

    def caption(self, label: str, text: str) -> str:
        """What stands below a figure."""
        return f"**Figure {self.figures[label]}.** {ROLE.sub(self.role, text)}"

    def tag(self, found: re.Match[str]) -> str:
        """An equation's number, from its label."""
        return rf"\tag{{{self.equations[found[1]]}}}" + "\n$$"

    def block(self, found: re.Match[str], pictures: dict[str, dict[str, str]]) -> str:
        """A directive as headings, quotations and pictures, which go into the cell."""
        options = dict(OPTION.findall(found["body"]))
        body = OPTION.sub("", found["body"]).strip()
        title = found["title"].strip()
        match found["kind"]:
            case "exercise-start":
                return f"### Exercise: {title}"
            case "solution-start":
                return "**Solution.** Try it yourself before you read on."
            case "exercise-end" | "solution-end":
                return ""
            case "diagram":
                path = self.chapter.parent / title
                pictures[path.name] = {"image/svg+xml": on_paper(path)}
                alt = options.get("alt", "")
                below = self.caption(options["name"], body)
                return f"![{alt}](attachment:{path.name})\n\n{below}"
            case "live":
                body += f" {LIVE}"
        stop = "" if title[-1:] in "?!." else "."
        text = f"**{title}{stop}** {body}"
        return "\n".join(f"> {line}" for line in text.splitlines())

    def role(self, found: re.Match[str]) -> str:
        """A reference, a citation or a number, in words."""
        kind, said = found[1], found[2]
        target = TARGET.fullmatch(said)
        words, label = (target[1], target[2]) if target else ("", said)
        match kind:
            case "glue:text":
                return self.values.get(said, "[?]")
            case "cite" | "cite:t":
                keys = [key.strip() for key in said.split(",")]
                if kind == "cite:t":
                    return ", ".join(self.known.cited(key, True) for key in keys)
                return f"({'; '.join(self.known.cited(key, False) for key in keys)})"
            case "eq" if label in self.equations:
                return f"({self.equations[label]})"
            case "eq":
                return self.known.link("an equation", label, self.chapter)
            case "numref" if label in self.figures:
                return f"Figure {self.figures[label]}"
            case "numref":
                return self.known.link("a figure", label, self.chapter)
            case "ref":
                title = self.known.titles.get(label, label)
                return self.known.link(words or title, label, self.chapter)
        return words or said


def on_paper(picture: Path) -> str:
    """An SVG drawing in black on white, as an attachment holds it."""
    drawing = picture.read_text(encoding="utf-8").replace("<svg", SHEET[0], 1)
    drawing = drawing.replace(">", SHEET[1], 1)
    return base64.b64encode(drawing.encode()).decode()


def figure_of(cell: NotebookNode) -> dict[str, str]:
    """Name and caption of the figure that a code cell draws, if it draws one."""
    return cell.metadata.get("mystnb", {}).get("figure", {})


def plain(notebook: NotebookNode, chapter: Path, values: Mapping[str, str]) -> None:
    """Make a notebook's words plain, in place, with a caption below each figure."""
    words = Words(chapter, notebook, values)
    cells: list[NotebookNode] = []
    for cell in notebook.cells:
        cells.append(cell)
        if cell.cell_type == "markdown":
            words.rewrite(cell)
        elif figure := figure_of(cell):
            below = new_markdown_cell(words.caption(figure["name"], figure["caption"]))
            below.id = f"{cell.id}-below"
            cells.append(below)
    notebook.cells = cells
