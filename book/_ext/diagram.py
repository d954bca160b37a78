"""`{diagram} figures/x.svg`: a hand-drawn SVG set into the page itself.

Inline, it takes the page's colours, light or dark. It is numbered and captioned like
any figure, and a diagram without alt text is an error. `:narrow: figures/y.svg` is
another drawing of the same, for a phone.
"""

import html
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
        figure += nodes.raw("", described(self.drawing(relative), alt), format="html")
        if narrow := self.options.get("narrow"):
            figure["classes"].append("two-widths")
            figure += nodes.raw("", described(self.drawing(narrow), alt), format="html")
        caption = nodes.Element()
        self.state.nested_parse(self.content, self.content_offset, caption)
        if len(caption) != 1 or not isinstance(caption[0], nodes.paragraph):
            raise self.error(f"the diagram {relative} needs a caption of one paragraph")
        figure += nodes.caption("", "", *caption[0].children)
        self.set_source_info(figure)
        self.add_name(figure)
        return [figure]

    def drawing(self, name: str) -> str:
        """The text of an SVG file, which the page from then on depends on."""
        relative, absolute = self.env.relfn2path(name)
        self.env.note_dependency(relative)
        if not Path(absolute).is_file():
            raise self.error(f"no diagram at {relative}")
        return Path(absolute).read_text("utf-8")


def described(svg: str, alt: str) -> str:
    """The `<svg>` element alone, with its description for those who cannot see it."""
    element = svg[svg.index("<svg") :].strip()
    label = html.escape(alt, quote=True)
    return element.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("diagram", Diagram)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
