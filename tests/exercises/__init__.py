"""Wrong answers to the exercises, each with the mistake that its verdict names."""

from collections.abc import Callable, Sequence
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
