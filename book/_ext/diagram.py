"""`{diagram} figures/x.svg`: a hand-drawn SVG set into the page itself.

Inline, it takes the page's colours, light or dark. It is numbered and captioned like
any figure, and a diagram without alt text is an error. `:narrow: figures/y.svg` is
another drawing of the same, for a phone. `{bookmap}` is a diagram whose parts are
links to chapters, and on a phone a list of them. A chapter that builds a part of the
model shows the map in small beside its title, with its own part filled.
"""

import html
import re
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class Diagram(SphinxDirective):
    """A figure whose picture is an SVG file, written into the HTML."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {
        "name": directives.unchanged_required,
        "alt": directives.unchanged_required,
        "narrow": directives.unchanged_required,
    }

    def run(self) -> list[nodes.Node]:
        """Make the figure."""
        relative = self.arguments[0]
        alt = " ".join(self.options.get("alt", "").split())
        if not alt:
            raise self.error(f"the diagram {relative} needs :alt: text")
        figure = nodes.figure(classes=["diagram"])
        figure += self.pictures(relative, alt)
        if "narrow" in self.options:
            figure["classes"].append("two-widths")
        caption = nodes.Element()
        self.state.nested_parse(self.content, self.content_offset, caption)
        if len(caption) != 1 or not isinstance(caption[0], nodes.paragraph):
            raise self.error(f"the diagram {relative} needs a caption of one paragraph")
        figure += nodes.caption("", "", *caption[0].children)
        self.set_source_info(figure)
        self.add_name(figure)
        return [figure]

    def pictures(self, name: str, alt: str) -> list[nodes.Node]:
        """The drawing, and the one for a phone if there is one."""
        names = [name, *([narrow] if (narrow := self.options.get("narrow")) else [])]
        drawings = [described(self.drawing(each), alt) for each in names]
        return [nodes.raw("", drawing, format="html") for drawing in drawings]

    def drawing(self, name: str) -> str:
        """The text of an SVG file, which the page from then on depends on."""
        relative, absolute = self.env.relfn2path(name)
        self.env.note_dependency(relative)
        if not Path(absolute).is_file():
            raise self.error(f"no diagram at {relative}")
        return Path(absolute).read_text("utf-8")


class BookMap(Diagram):
    """A diagram of links to chapters; those that are not in the book are left out."""

    def pictures(self, name: str, alt: str) -> list[nodes.Node]:
        """The drawing, and the chapters' titles as a list for a phone."""
        here = Path(self.env.docname).parent
        chapters = sorted(
            Path(docname).name
            for docname in self.env.found_docs
            if Path(docname).parent == here and docname.split("/")[-1][:2].isdigit()
        )
        drawing = re.sub(
            r' *<a href="([^"]*)\.html">.*?</a>\n',
            lambda link: link[0] if link[1] in chapters else "",
            self.drawing(name),
        )
        items = []
        for chapter in chapters:
            path = Path(self.env.srcdir) / here / f"{chapter}.md"
            title = re.search(r"^# (.+)$", path.read_text("utf-8"), re.MULTILINE)
            words = html.escape(title[1] if title else chapter, quote=False)
            link = f'<a href="{chapter}.html">{words}</a>'
            items.append(f'<li value="{int(chapter[:2])}">{link}</li>')
        listed = f'<ol class="map-list">{"".join(items)}</ol>'
        drawn = described(drawing, alt, role="group")
        return [nodes.raw("", each, format="html") for each in (drawn, listed)]


MAP = "figures/map.svg"
BOX = re.compile(r'<a href="([^"]*)\.html">(<rect [^>]*/>)')
BUILT = range(2, 11)  # the chapters that build the model; the others only use it


def you_are_here(app: Sphinx, doctree: nodes.document) -> None:
    """Set the map in small beside the title of a chapter that builds a part."""
    chapter = Path(app.env.docname).name
    if not chapter[:2].isdigit() or int(chapter[:2]) not in BUILT:
        return
    path = Path(app.env.doc2path(app.env.docname)).parent / MAP
    app.env.note_dependency(str(path))
    small = here(path.read_text("utf-8"), chapter)
    title = next(iter(doctree.findall(nodes.title)))
    title.parent.insert(title.parent.index(title) + 1, small)


def here(drawing: str, chapter: str) -> nodes.raw:
    """The model's boxes and the two stacks, the chapter's own box filled."""
    boxes = []
    for name, box in BOX.findall(drawing):
        if int(name[:2]) in BUILT:
            fill = "var(--pst-color-link)" if name == chapter else "none"
            box = re.sub(r' (fill|fill-opacity|stroke-width)="[^"]*"', "", box)
            boxes.append(box.replace("<rect", f'<rect fill="{fill}"', 1))
    stacks = re.search(r"<g [^>]*dasharray.*?</g>", drawing, re.DOTALL)
    picture = (
        '<svg viewBox="14 86 692 422" stroke="currentColor" stroke-width="5" '
        f'aria-hidden="true">{stacks[0] if stacks else ""}{"".join(boxes)}</svg>'
    )
    link = (
        '<a class="you-are-here" href="intro.html#fig-intro-map" '
        f'aria-label="You are here, on the map of the book">{picture}'
    )
    return nodes.raw("", f"{link}<span>you are here</span></a>", format="html")


def described(svg: str, alt: str, role: str = "img") -> str:
    """The `<svg>` element alone, with its description for those who cannot see it."""
    element = svg[svg.index("<svg") :].strip()
    label = html.escape(alt, quote=True)
    return element.replace("<svg", f'<svg role="{role}" aria-label="{label}"', 1)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives and the small map."""
    app.add_directive("diagram", Diagram)
    app.add_directive("bookmap", BookMap)
    app.connect("doctree-read", you_are_here)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
