"""Exercises that check themselves and name the misconception behind a wrong answer."""

import dis
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bookkit.hints import described, raised


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
    """There is no answer yet."""


class Refused(Exception):  # noqa: N818
    """The answer is of a kind that no right answer is; the message says which."""


def right(message: str) -> Verdict:
    """The answer is right; say what that shows."""
    return Verdict("right", message)


def wrong(message: str) -> Verdict:
    """The answer is wrong; name the idea behind it."""
    return Verdict("wrong", message)


def unanswered() -> Verdict:
    """There is no answer yet."""
    return Verdict("unanswered", "not answered yet: replace the three dots")


def _is_array(value: Any) -> bool:
    """Whether it is an array of NumPy, which is not imported here."""
    return type(value).__name__ == "ndarray"


def _named(value: Any) -> str:
    """What kind of thing a value is, for a sentence."""
    value = value.answer if isinstance(value, _Asked) else value
    if isinstance(value, str):
        return "text"
    if isinstance(value, nn.Module):
        return "a layer"
    if isinstance(value, type):
        return "a class"
    if callable(value):
        return "a function"
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if _is_array(value):
        return "a NumPy array"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeio' else 'a'} {name}"


def number(answer: Any, wanted: str = "a number") -> float:
    """The one number that an answer is; anything else ends the check with a verdict."""
    if answer is None or answer is ...:
        raise _UnansweredError
    if isinstance(answer, str | bytes):
        raise Refused(f"The answer should be {wanted}, without quotes.")
    if isinstance(answer, Tensor) and answer.numel() != 1:
        raise Refused(f"The answer should be {wanted}, not {_named(answer)}.")
    try:
        value = float(answer.detach() if isinstance(answer, Tensor) else answer)
    except (TypeError, ValueError):
        kind = _named(answer)
        raise Refused(f"The answer should be {wanted}, not {kind}.") from None
    if not math.isfinite(value):
        raise Refused(f"The answer should be {wanted}; yours is {value}.")
    return value


def truth(answer: Any) -> bool:
    """The True or False of an answer, or the 0 or 1; anything else is refused."""
    value = number(answer, "True or False")
    if value not in (0, 1):
        raise Refused(f"The answer should be True or False, not {value:g}.")
    return bool(value)


def numbers(answer: Any, wanted: str) -> list[float]:
    """The numbers of an answer: a tensor's, an array's or those of any series."""
    if answer is None or answer is ...:
        raise _UnansweredError
    if isinstance(answer, Tensor) or _is_array(answer):
        answer = answer.flatten().tolist()
    if isinstance(answer, str | Mapping) or not isinstance(answer, Iterable):
        raise Refused(f"Give back {wanted}.")
    found = []
    for one in answer:
        row = isinstance(one, list | tuple) or _is_array(one)
        found += numbers(one, wanted) if row else [number(one)]
    return found


def tensor(answer: Any, wanted: str = "a tensor") -> Tensor:
    """An answer that is a tensor; anything else ends the check with a verdict."""
    if not isinstance(answer, Tensor):
        raise Refused(f"Give back {wanted}, not {_named(answer)}.")
    return answer


def array(answer: Any, wanted: str = "a tensor") -> Tensor:
    """A tensor, or an array, list or list of tensors as one; all else is refused."""
    if isinstance(answer, list | tuple) and all(isinstance(x, Tensor) for x in answer):
        if answer and len({part.shape for part in answer}) == 1:
            return torch.stack([part.detach() for part in answer])
    elif _is_array(answer) or isinstance(answer, list | tuple):
        try:
            return torch.as_tensor(answer)
        except (TypeError, ValueError, RuntimeError):
            pass
    return tensor(answer, wanted).detach()


def blanks(answer: Any, names: Sequence[Any]) -> list[Any]:
    """What was filled in under each name; a blank left open is no answer yet."""
    if not isinstance(answer, Mapping):
        keys = ", ".join(map(repr, names))
        raise Refused(f"Fill in the dictionary, with {keys}; got {_named(answer)}.")
    for name in names:
        if name not in answer:
            raise Refused(f"Nothing stands under {name!r}: fill in every line.")
    if any(answer[name] is None or answer[name] is ... for name in names):
        raise _UnansweredError
    return [answer[name] for name in names]


def near(answer: Any, expected: Tensor) -> bool:
    """Whether an answer is a tensor of this shape with nearly these numbers."""
    return (
        isinstance(answer, Tensor)
        and answer.shape == expected.shape
        and torch.allclose(answer.double(), expected.double(), atol=1e-4, rtol=1e-4)
    )


def holds(answer: Callable[..., Any], given: Sequence[Any], expected: Tensor) -> bool:
    """Whether an answer is right for other arguments, too, where it may even raise."""
    try:
        return near(array(answer(*given)), expected)
    except (RuntimeError, IndexError, ValueError):
        return False


def explain(
    answer: Any,
    expected: Tensor,
    mistakes: dict[str, Tensor],
    on_nan: str = "Some entries are NaN, not a number.",
) -> str:
    """The message of the mistake that gives this answer, else how far off it is."""
    if not isinstance(answer, Tensor):
        return f"Give back a tensor, not {_named(answer)}."
    for message, result in mistakes.items():
        if near(answer, result):
            return message
    if answer.shape != expected.shape:
        shapes = f"The shape is {tuple(answer.shape)}; it should be "
        shapes += f"{tuple(expected.shape)}."
        if near(answer.squeeze(), expected.squeeze()):
            return (
                "The numbers are right, but there is an axis of size 1 too many or "
                f"too few. {shapes}"
            )
        if answer.dim() > 1 and near(answer.mT, expected):
            return f"It is transposed. {shapes}"
        for message, result in mistakes.items():
            if near(answer.squeeze(), result.squeeze()):
                return message
        return shapes
    if answer.isnan().any():
        return on_nan
    if answer.isinf().any():
        return (
            "Some entries are infinite: was −∞ left in, or was there a division by 0?"
        )
    if not answer.is_floating_point() and expected.is_floating_point():
        return f"These are whole numbers, {answer.dtype}: the decimals are lost."
    found, wanted = answer.double(), expected.double()
    factor = ((found * wanted).sum() / wanted.square().sum()).item()
    times = f"{factor:.3g}"
    alike = abs(factor) > 0.01 and times != "1" and near(found, factor * wanted)
    if alike and found.numel() > 1:
        return f"Every number is {times} times what it should be."
    gap = (found - wanted).abs().max().item()
    return f"The numbers are off by up to {gap:.2g}."


def _copied(value: Any) -> Any:
    """A copy of tensors and lists, however deep; all else as it is."""
    if isinstance(value, Tensor):
        return value.clone()
    if type(value) in (list, tuple):
        return type(value)(_copied(part) for part in value)
    return value


def _changed(copy: Any, value: Any) -> bool:
    """Whether a copy is no longer what it was copied from."""
    if isinstance(value, Tensor):
        return not torch.equal(copy, value)
    if type(value) in (list, tuple):
        return len(copy) != len(value) or any(map(_changed, copy, value))
    return isinstance(value, int | float | str) and copy != value


_NOTHING = {"RESUME", "NOP", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE"}


def _does_nothing(answer: Callable[..., Any]) -> bool:
    """Whether a function is an untouched stub, without a line of code."""
    code = getattr(inspect.unwrap(answer), "__code__", None)
    return (
        code is None or {step.opname for step in dis.get_instructions(code)} <= _NOTHING
    )


def _parameter(answer: Callable[..., Any], position: int) -> str:
    """What the reader's function calls its argument."""
    try:
        found = list(inspect.signature(answer).parameters.values())[position]
    except (TypeError, ValueError, IndexError):
        return "what it was given"
    several = found.kind is found.VAR_POSITIONAL
    return "what it was given" if several else f"`{found.name}`"


@dataclass
class _Asked:
    """The reader's function under the check's questions, and what came of them.

    It is given copies, so that a function that writes into its arguments spoils
    nothing but its own copy, and can be told so.
    """

    answer: Callable[..., Any]
    errors: list[Exception] = field(default_factory=list)
    gave: list[Any] = field(default_factory=list)
    spoilt: str = ""
    first: tuple[Any, ...] = ()
    example: str = ""

    def _differs(self, args: tuple[Any, ...]) -> str:
        """What is new in the arguments since the first call, in words."""
        both = [tuple(map(described, each)) for each in (self.first, args)]
        return ", ".join(
            _parameter(self.answer, position) + new
            for position, (old, new) in enumerate(zip(*both, strict=False))
            if old != new
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        copies = [_copied(value) for value in args]
        self.first = self.first or args
        try:
            result = self.answer(*copies, **kwargs)
        except Exception as error:
            self.errors.append(error)
            self.example = self._differs(args) if self.gave else ""
            raise
        for position, (copy, value) in enumerate(zip(copies, args, strict=True)):
            if not self.spoilt and _changed(copy, value):
                self.spoilt = _parameter(self.answer, position)
        if result is None and not _does_nothing(self.answer):
            raise Refused("Your function gives back None: is `return` missing?")
        parts = result if isinstance(result, list | tuple) else [result]
        if result is None or any(part is ... for part in parts):
            raise _UnansweredError
        self.gave.append(result)
        return result


def exercise(check: Callable[[Any], Verdict]) -> Callable[[Any], Verdict]:
    """Turn `check(answer)` into one that no answer can make raise.

    `...` and None, given or returned by the reader's function, are *not answered yet*;
    an exception in the reader's code becomes a verdict that names it. An answer that
    the check cannot read is refused by its kind, and not blamed on the reader's code.
    A right function that changes its arguments in place is told so.
    """

    @wraps(check)
    def safely(answer: Any) -> Verdict:
        if answer is None or answer is ...:
            return unanswered()
        asked = None
        if callable(answer) and not isinstance(answer, type):
            answer = asked = _Asked(answer)
        try:
            verdict = check(answer)
        except _UnansweredError:
            return unanswered()
        except Refused as refused:
            return wrong(str(refused))
        except Exception as error:
            if asked and any(error is one for one in asked.errors):
                return wrong(raised(error, asked.example))
            if asked and asked.gave:
                kind = _named(asked.gave[-1])
                return wrong(f"Your function gave back {kind}: not what is asked for.")
            if asked:
                return wrong("A value is wanted here, not a function.")
            if isinstance(answer, type):
                return wrong("That is a class: give a function, or an instance of it.")
            if "not callable" in str(error):
                return wrong(
                    f"Give the function itself, not what it returns; got "
                    f"{_named(answer)}."
                )
            return wrong(f"That is {_named(answer)}: not what is asked for.")
        if asked and asked.spoilt and not verdict.ok:
            return wrong(
                f"{verdict.message} And your function changed {asked.spoilt} while it "
                "ran, which may be the reason."
            )
        if asked and asked.spoilt:
            return wrong(
                f"The result is right, but your function changed {asked.spoilt} in "
                "place, and the caller still needs it. Work on a copy, or use "
                "operations that make something new."
            )
        return verdict

    return safely
