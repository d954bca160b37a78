"""`{said} A sentence.` with `:so: false`: a sentence to guess at before it is answered.

The answer is a native `<details>`, so that it opens without scripts; with them, a
guess opens it. Its first words are the verdict: true, in part, or false.
"""

from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

VERDICTS = ("true", "in part", "false")
BUTTONS = "".join(
    f'<button type="button">{verdict.capitalize()}</button>' for verdict in VERDICTS
)
OPENING = (
    f'<p class="said-guess" role="group" aria-label="Your guess">{BUTTONS}</p>'
    "<details><summary>What the experiment says</summary>"
)


class Said(SphinxDirective):
    """A card: what is said, three guesses, and what is so."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {
        "so": lambda word: directives.choice(word, VERDICTS)
    }

    def run(self) -> list[nodes.Node]:
        """Make the card."""
        if "so" not in self.options or not self.content:
            raise self.error("a card needs :so: and an answer")
        so = self.options["so"]
        card = nodes.container(classes=["said", f"said-{so.replace(' ', '-')}"])
        self.set_source_info(card)
        words, _ = self.parse_inline(f"“{self.arguments[0]}”")
        card += nodes.paragraph("", "", *words, classes=["said-words"])
        answer = self.parse_content_to_nodes()
        if not answer or not isinstance(answer[0], nodes.paragraph):
            raise self.error("the answer of a card begins with a paragraph")
        answer[0].insert(0, nodes.Text(" "))
        answer[0].insert(0, nodes.strong("", f"{so.capitalize()}."))
        card += nodes.raw("", OPENING, format="html")
        card += answer
        card += nodes.raw("", "</details>", format="html")
        return [card]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("said", Said)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
