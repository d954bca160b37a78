"""Wrong answers to the exercises, each with the mistake that its verdict names."""

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from bookkit.exercises import Verdict

Check = Callable[[Any], Verdict]


def right_answers(rows: Sequence[tuple[Check, Any]]) -> Callable[..., None]:
    """A test of answers that are right, each with the check that must say so."""

    @pytest.mark.parametrize(("check", "answer"), rows)
    def test(check: Check, answer: Any) -> None:
        verdict = check(answer)
        assert verdict.ok, verdict

    return test


def named_mistakes(rows: Sequence[tuple[Check, Any, str]]) -> Callable[..., None]:
    """A test of answers that are wrong, each with words of what its check must say."""

    @pytest.mark.parametrize(("check", "answer", "words"), rows)
    def test(check: Check, answer: Any, words: str) -> None:
        verdict = check(answer)
        assert verdict.kind == "wrong", verdict
        assert words in verdict.message, verdict

    return test


def tried() -> Iterator[tuple[Any, ...]]:
    """What the tests beside this try: check, answer, and of a mistake its words."""
    for module in pkgutil.iter_modules(__path__):
        beside = importlib.import_module(f"{__name__}.{module.name}")
        for test in vars(beside).values():
            for mark in getattr(test, "pytestmark", []):
                if mark.name == "parametrize":
                    yield from (row for row in mark.args[1] if isinstance(row, tuple))
