"""What the views that a reader touches share: a question first, and one look."""

import hashlib
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from transformer.live.colours import shade

_HERE = Path(__file__).parent
_STYLE = (_HERE / "touch.css").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Guess:
    """A question to guess at before touching: what to choose from, and what is right.

    `answer` is shown once something was chosen, or where styles are not understood.
    Words between asterisks are set in italics.

    Raises:
        ValueError: when `right` is not the place of a choice.
    """

    question: str
    choices: Sequence[str]
    right: int
    answer: str

    def __post_init__(self) -> None:
        if not 0 <= self.right < len(self.choices):
            last = len(self.choices) - 1
            raise ValueError(f"right must lie in 0..{last}, got {self.right}")

    def html(self, key: str) -> str:
        """The question, its choices, and the answer below them."""
        choices = "\n".join(
            f'<input type="radio" name="guess-{key}" id="guess-{key}-{place}"'
            f"{' data-right' if place == self.right else ''}>"
            f'<label for="guess-{key}-{place}">{_set(choice)}</label>'
            for place, choice in enumerate(self.choices)
        )
        return (
            '<fieldset class="touch-ask"><legend><strong>Guess first.</strong> '
            f"{_set(self.question)}</legend>\n{choices}\n"
            '<p role="status"><span class="touch-yes">Yes.</span> '
            f'<span class="touch-no">No.</span> {_set(self.answer)}</p>'
            "</fieldset>"
        )


def _set(words: str) -> str:
    """Words as HTML, with italics for what stands between asterisks."""
    return re.sub(r"\*(.+?)\*", r"<em>\1</em>", html.escape(words))


def piece(name: str, guess: Guess, **fields: Any) -> str:
    """The HTML of a view: its template, filled, with the shared look and a question.

    `name.html` gets `$key`, which no other view on a page has, `$style`, `$ask`, the
    grounds `$weight`, `$plus` and `$minus` of squares whose size is `--w`, and the
    `fields`, in which `@key` is that key as well.
    """
    template = Template((_HERE / f"{name}.html").read_text(encoding="utf-8"))
    key = hashlib.sha256(repr((name, guess, fields)).encode()).hexdigest()[:10]
    filled = {field: str(text).replace("@key", key) for field, text in fields.items()}
    grounds = {name: shade(name) for name in ("weight", "plus", "minus")}
    return template.substitute(
        filled, key=key, style=_STYLE, ask=guess.html(key), **grounds
    )
