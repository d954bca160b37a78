"""`{live}`: the phrasebook's model on a page.

With a title, `:state:` and `:show:` it is one view of the model, such as a chapter
needs: the state as the model's page writes it into its address, the sections by their
names in `page.js`; the text says what to try. All stand as a picture, made at build
time by the model itself. The model, its weights and what shows them are one script
beside the pages, `_static/live/phrasebook.js`, which is written at build time too, and
which a page asks for when its reader comes to it.
"""

import html
import re
from functools import cache
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

NAME = "phrasebook"
SCRIPT = f"_static/live/{NAME}.js"
PAGE = "book/explore.html"
SENTENCE = "Jane visite l'Afrique en septembre"
UNSCRIPTED = (
    "<noscript><p>This view needs JavaScript; the picture shows the trained model, "
    "with nothing switched off.</p></noscript>"
)
LOADER = """<script>{
const place = document.currentScript, model = place.previousElementSibling;
const load = () => {
  const script = document.createElement("script"), note = document.createElement("p");
  note.textContent = "Loading the model …";
  note.setAttribute("role", "status");
  model.prepend(note);
  script.onerror = () => {
    note.textContent = "The model could not be loaded; its picture stays.";
  };
  script.src = "%s";
  document.head.append(script);
};
new IntersectionObserver((seen, observer) => {
  if (!seen.some((each) => each.isIntersecting)) return;
  observer.disconnect();
  if (!("ready" in model.dataset)) load();
}, { rootMargin: "200px" }).observe(model);
}</script>"""


@cache
def translator() -> Any:
    """The translator that ships with the package."""
    from transformer.decoding.translator import Translator

    return Translator.phrasebook()


def folder() -> Path:
    """Where the live model's parts are."""
    import transformer.live

    return Path(transformer.live.__file__).parent


def sections() -> set[str]:
    """The names of what a view can show."""
    script = (folder() / "page.js").read_text("utf-8")
    (found,) = re.findall(r"const SECTIONS = \{(.+?)\};", script, re.DOTALL)
    return set(re.findall(r'"(\w+)"', found))


class Live(SphinxDirective):
    """The live model, which its script fills; until then a picture and a table."""

    optional_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {
        "state": directives.unchanged_required,
        "show": directives.unchanged_required,
    }

    def run(self) -> list[nodes.Node]:
        """Make the picture, and what loads the rest."""
        if not self.arguments:
            return [self.model(SENTENCE, {"class": "live"})]
        state = {k: v[0] for k, v in parse_qs(self.options.get("state", "")).items()}
        show = self.options.get("show", "")
        if "s" not in state or not show:
            raise self.error("a view of the model needs :state: with s=… and :show:")
        if unknown := {*show.split()} - sections():
            raise self.error(f"no section is called {', '.join(sorted(unknown))}")
        place = nodes.container(classes=["live-place"])
        title = nodes.paragraph("", "", nodes.strong("", self.arguments[0]))
        attributes = {
            "class": "live live-small",
            "role": "group",
            "aria-label": self.arguments[0],
            "data-state": self.options["state"],
            "data-show": show,
            "data-page": f"{self.up}{PAGE}",
        }
        place += [title, *self.parse_content_to_nodes()]
        place += self.model(state["s"], attributes, *self.seen(state))
        return [place]

    @property
    def up(self) -> str:
        """The way from this page to the top of the site."""
        return "../" * self.env.docname.count("/")

    @staticmethod
    def seen(state: dict[str, str]) -> tuple[int, Any]:
        """Which token's attention a view begins with, and of which head, if of one.

        What the view has switched off is on in the picture.
        """
        from transformer.maps import Head

        at = re.fullmatch(r"([ed])(\d+)\.(self|cross)", state.get("at", ""))
        if not at or "h" not in state:
            return int(state.get("t", 1)), None
        side, layer, sublayer = at.groups()
        kind = "cross" if sublayer == "cross" else {"e": "encoder", "d": "masked"}[side]
        token = int(state.get("w" if side == "e" else "t", 0))
        return token, Head(kind, int(layer) - 1, int(state["h"]) - 1)

    def model(self, sentence: str, attributes: dict[str, str], *seen: Any) -> nodes.raw:
        """The place that a script fills, and what asks for the script."""
        attributes["data-live"] = NAME
        opening = " ".join(f'{k}="{html.escape(v)}"' for k, v in attributes.items())
        style = f"<style>{(folder() / 'still.css').read_text('utf-8')}</style>"
        picture = self.still(sentence, *seen).html
        text = f"<div {opening}>\n{style}\n{UNSCRIPTED}\n{picture}\n</div>\n"
        return nodes.raw("", text + LOADER % f"{self.up}{SCRIPT}", format="html")

    def still(self, sentence: str, chosen: int = 1, head: Any = None) -> Any:
        """A translation with what each token attended to, or what a head did."""
        from transformer.live import still

        for path in folder().iterdir():
            self.env.note_dependency(str(path))
        key = f"live-{self.env.new_serialno('live')}"
        try:
            return still(translator(), sentence, key, chosen, head)
        except ValueError as error:
            raise self.error(str(error)) from None


def write_script(app: Sphinx, failure: Exception | None) -> None:
    """Lay the model beside the pages."""
    if failure is None and app.builder.format == "html":
        from transformer.live import script

        path = Path(app.outdir) / SCRIPT
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script(translator(), NAME, links=""), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive and the script."""
    app.add_directive("live", Live)
    app.connect("build-finished", write_script)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
