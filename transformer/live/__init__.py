"""The live model: a model on a page that needs no server and no network.

`page` makes one self-contained file, `script` what a page of the book loads when its
reader comes to it, `still` the picture that stands there until then. All of it needs
no more than the package does.
"""

import html
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from transformer.live.colours import DAY, NIGHT, SQUARES
from transformer.live.model import (
    LIMIT,
    Explorable,
    as_translator,
    describe,
    describe_model,
    known_sentences,
)
from transformer.live.still import Still, still
from transformer.live.text import (
    Readable,
    Writer,
    describe_text,
    open_model,
    text_still,
)
from transformer.weights.files import write_atomically

__all__ = [
    "LIMIT",
    "LiveModel",
    "Still",
    "describe",
    "describe_model",
    "engine",
    "explore",
    "page",
    "script",
    "still",
]

_FOLDER = Path(__file__).parent
_VIEW = ("draw.js", "typing.js", "say.js", "play.js", "tour.js", "page.js")
_TEXT_VIEW = ("draw.js", "text.js", "text_page.js")  # of a language model


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _script_safe(data: Any) -> str:
    """Data as a script may hold it: no text can end the script."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return (
        text.replace("<", "\\u003c")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )


def _short(script: str) -> str:
    """A script without indentation and without lines that are comments."""
    lines = (line.strip() for line in script.splitlines())
    return "".join(f"{line}\n" for line in lines if line and line[:2] != "//")


def engine() -> str:
    """The forward pass in JavaScript: it defines one constant, `engine`."""
    return _read("engine.js")


def script(model: Explorable, name: str, links: str | None = None) -> str:
    """All that a page of the book loads: engine, view, style, and a model's data.

    It fills every element whose `data-live` is `name`. `links` is the folder of the
    chapters, as an address; without it they are named, not linked.
    """
    return _script(describe(model), name, links)


def _script(data: dict[str, Any], name: str, links: str | None) -> str:
    style = _read("still.css") + _read("page.css")
    return _assemble(_VIEW, style, {**data, "links": links}, "start", name)


def _assemble(
    view: Sequence[str], style: str, data: dict[str, Any], start: str, name: str
) -> str:
    program = _short(engine() + "".join(map(_read, view)))
    return (
        '(() => {\n"use strict";\n'
        f"{program}"
        f"const style = {_script_safe(style)};\n"
        f"const data = {_script_safe(data)};\n"
        f"{start}({_script_safe(name)}, data, style);\n"
        "})();\n"
    )


def page(
    model: Readable,
    sentences: Sequence[str] | None = None,
    title: str | None = None,
    links: str | None = None,
) -> str:
    """One HTML file: the model, and what shows it. It opens from a disk.

    `sentences` are offered to try (up to 60 of them are in the page), and half
    precision must keep the words of their translations; without them they are those of
    the phrasebook's grammar, or of a run's validation set. Of a language model they
    are beginnings of texts.

    Raises:
        ValueError: for a model that is too large or not the book's, a tokenizer that is
            not the book's, or a file that `Translator.load` refuses.
    """
    found = open_model(model)
    if isinstance(found, Writer):
        data = describe_text(found, sentences, title)
        style = _read("still.css") + _read("text.css")
        program = _assemble(_TEXT_VIEW, style, data, "startText", "model")
        return _document(data["title"], text_still(found, data["prompts"]), program)
    translator = as_translator(found)
    if sentences is None:
        sentences = known_sentences(translator, cast("Explorable", model))
    data = describe(translator, sentences, title)
    picture = still(translator, data["examples"][0], "still")
    return _document(data["title"], picture.html, _script(data, "model", links))


def _document(title: str, picture: str, program: str) -> str:
    """A page: its model's picture, which the program replaces."""
    night = f"@media (prefers-color-scheme: dark) {{ :root {{ {NIGHT} }} }}"
    hues = f":root {{ {DAY} }}\n{night}\n{SQUARES}"
    style = hues + _read("standalone.css") + _read("still.css")
    name = html.escape(title)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{name}</h1>\n"
        f'<div class="live" data-live="model">\n{picture}\n</div>\n'
        f"</main>\n<script>\n{program}</script>\n"
        "</body>\n</html>\n"
    )


class LiveModel:
    """A live model in a notebook's output, or a file: `save` writes it."""

    def __init__(self, model: Readable, sentences: Sequence[str] | None = None) -> None:
        self.page = page(model, sentences)

    def __repr__(self) -> str:
        return f"LiveModel({len(self.page.encode()) / 1e6:.1f} MB)"

    def _repr_html_(self) -> str:
        return (
            '<iframe title="The live model" style="width: 100%; height: 52rem; '
            f'border: 0" srcdoc="{html.escape(self.page)}"></iframe>'
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one self-contained HTML file, whole or not at all."""
        write_atomically(Path(path), self.page.encode())


def explore(model: Readable, sentences: Sequence[str] | None = None) -> LiveModel:
    """Show a live model: of a translator, a language model, its file or run, or alone.

    Raises:
        ValueError: for what `page` refuses.
    """
    return LiveModel(model, sentences)
