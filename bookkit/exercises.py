"""Exercises that check themselves and name the misconception behind a wrong answer."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Verdict:
    """What a check says of an answer; its repr is the one line a reader sees."""

    kind: Literal["right", "wrong", "unanswered"]
    message: str

    @property
    def ok(self) -> bool:
        """Whether the answer is right."""
        return self.kind == "right"

    def __repr__(self) -> str:
        mark = {"right": "✓", "wrong": "✗", "unanswered": "○"}[self.kind]
        return f"{mark} {' '.join(self.message.split())}"


class _UnansweredError(Exception):
    """The reader's function still gives back nothing."""


def right(message: str) -> Verdict:
    """The answer is right; say what that shows."""
    return Verdict("right", message)


def wrong(message: str) -> Verdict:
    """The answer is wrong; name the idea behind it."""
    return Verdict("wrong", message)


def unanswered() -> Verdict:
    """There is no answer yet."""
    return Verdict("unanswered", "not answered yet: replace the three dots")


def near(answer: Any, expected: Tensor) -> bool:
    """Whether an answer is a tensor of this shape with nearly these numbers."""
    return (
        isinstance(answer, Tensor)
        and answer.shape == expected.shape
        and torch.allclose(answer.double(), expected.double(), atol=1e-4, rtol=1e-4)
    )


def explain(
    answer: Any,
    expected: Tensor,
    mistakes: dict[str, Tensor],
    on_nan: str = "Some entries are NaN, not a number.",
) -> str:
    """The message of the mistake that gives this answer, else how far off it is."""
    if not isinstance(answer, Tensor):
        return f"Give back a tensor, not a {type(answer).__name__}."
    for message, result in mistakes.items():
        if near(answer, result):
            return message
    if answer.shape != expected.shape:
        got, wanted = tuple(answer.shape), tuple(expected.shape)
        return f"The shape is {got}; it should be {wanted}."
    if answer.isnan().any():
        return on_nan
    gap = (answer.double() - expected.double()).abs().max().item()
    return f"The numbers are off by up to {gap:.2g}."


def _insistent(answer: Callable[..., Any]) -> Callable[..., Any]:
    """The reader's function, made to complain when it gives back nothing."""

    @wraps(answer)
    def ask(*args: Any, **kwargs: Any) -> Any:
        result = answer(*args, **kwargs)
        if result is None or result is ...:
            raise _UnansweredError
        return result

    return ask


def exercise(check: Callable[[Any], Verdict]) -> Callable[[Any], Verdict]:
    """Turn `check(answer)` into one that no answer can make raise.

    `...` and None, given or returned by the reader's function, are *not answered yet*;
    an exception in the reader's code becomes a verdict that names it.
    """

    @wraps(check)
    def safely(answer: Any) -> Verdict:
        if answer is None or answer is ...:
            return unanswered()
        if callable(answer) and not isinstance(answer, type):
            answer = _insistent(answer)
        try:
            return check(answer)
        except _UnansweredError:
            return unanswered()
        except Exception as error:
            return wrong(f"your code raised {type(error).__name__}: {error}")

    return safely
