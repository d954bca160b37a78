"""The fields in which a page asks for the answer to an exercise.

A check with a form is one whose answer is a number, a list, a choice or a small matrix.
The book's build compiles it to JavaScript, so that the page gives the same verdict as
the notebook: see book/_ext/javascript.py for the Python that can be compiled.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

Check = TypeVar("Check", bound=Callable[..., Any])


@dataclass(frozen=True)
class Form:
    """What a page shows, and what the check is given of it.

    `gives` is "one" value, a "list" of the fields, a "dictionary" with their labels as
    keys, or a "matrix" with a row for each label.
    """

    gives: Literal["one", "list", "dictionary", "matrix"]
    labels: tuple[str, ...]
    columns: tuple[str, ...]  # of a matrix
    choices: tuple[str, ...]  # a field is one of these, in place of a number
    several: bool  # a field holds numbers with commas between them
    ticks: bool  # a field is a box to tick, and what the check is given True or False
    by_hand: str  # what is asked first, of one example, where a function is wanted
    judge: Callable[..., Any]  # what is compiled


def form(
    gives: Literal["one", "list", "dictionary", "matrix"],
    *labels: str,
    columns: tuple[str, ...] = (),
    choices: tuple[str, ...] = (),
    several: bool = False,
    ticks: bool = False,
    by_hand: str = "",
    judge: Callable[..., Any] | None = None,
) -> Callable[[Check], Check]:
    """Let a check's exercise be answered on the page, in fields with these labels.

    Where the check itself needs more than a page has, `judge` is the part of it that is
    given lists of numbers. A function is written in the notebook; the page may ask what
    it gives back for one example, `by_hand`.
    """

    def marked(check: Check) -> Check:
        check.form = Form(  # type: ignore[attr-defined]
            gives, labels, columns, choices, several, ticks, by_hand, judge or check
        )
        return check

    return marked
