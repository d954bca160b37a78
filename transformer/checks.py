"""Checks of arguments: each refuses a wrong one in a line that names the value.

Made from book/workshop/checks.md: edit the chapter, not this file.
"""

import importlib
import math
from collections.abc import Sequence, Sized
from numbers import Real
from operator import index, itemgetter
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "TransformerError",
    "InvalidValue",
    "InvalidType",
    "require_positive",
    "require_divides",
    "require_above_zero",
    "require_probability",
    "require_bool",
    "require_string",
    "require_texts",
    "require_not_empty",
    "require_device",
    "require_not_meta",
    "require_ids",
    "require_labels",
    "require_mask",
    "require_same_length",
    "require_same_batch",
    "require_examples",
    "require_beam",
    "is_number",
    "with_article",
    "optional_import",
]


class TransformerError(Exception):
    """What this package refuses: the class to catch it by, and no other error."""


class InvalidValue(TransformerError, ValueError):  # noqa: N818
    """A ValueError of this package."""


class InvalidType(TransformerError, TypeError):  # noqa: N818
    """A TypeError of this package."""


def _kind(known: bool) -> type[TransformerError]:
    """The error for a wrong value of a known type, or for one of another type."""
    return InvalidValue if known else InvalidType


def require_positive(**sizes: int) -> None:
    """Require, by name, whole numbers of at least 1. True is not a number here."""
    for name, size in sizes.items():
        # While torch exports a model, a length is a symbol that stands for a number.
        whole = isinstance(size, int | torch.SymInt) and not isinstance(size, bool)
        if not whole or size < 1:
            said = f"{name} must be a whole number of at least 1, got {size!r}"
            raise _kind(whole)(said)


def require_divides(**sizes: int) -> None:
    """Require of two sizes, by name, that the first divides the second."""
    (part, number), (whole, total) = sizes.items()
    if total % number:
        raise InvalidValue(f"{part} must divide {whole}, got {number} and {total}")


def require_above_zero(**numbers: float) -> None:
    """Require, by name, finite numbers above 0."""
    for name, number in numbers.items():
        known = isinstance(number, int | float) and not isinstance(number, bool)
        if not known or not 0 < number < math.inf:
            said = f"{name} must be a finite number above 0, got {number!r}"
            raise _kind(known)(said)


def require_probability(**shares: float) -> None:
    """Require, by name, numbers in [0, 1)."""
    for name, share in shares.items():
        known = isinstance(share, int | float) and not isinstance(share, bool)
        if not known or not 0 <= share < 1:
            raise _kind(known)(f"{name} must lie in [0, 1), got {share!r}")


def is_number(value: object) -> bool:
    """Whether a value is a real number, Python's or NumPy's; True is not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def require_beam(beam_size: int, length_penalty: float) -> None:
    """Require a beam of at least one hypothesis and a finite penalty of at least 0."""
    require_positive(beam_size=beam_size)
    known = is_number(length_penalty)
    if not known or not 0 <= length_penalty < math.inf:
        raise _kind(known)(
            f"length_penalty must be finite and at least 0, got {length_penalty!r}"
        )


def require_bool(**flags: bool) -> None:
    """Require, by name, True or False."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise InvalidType(f"{name} must be True or False, got {flag!r}")


def require_string(name: str, text: object) -> None:
    """Require a text."""
    if not isinstance(text, str):
        raise InvalidType(f"{name} must be text, got {text!r:.60}")


def require_texts(name: str, texts: object) -> None:
    """Require several texts, and not one: its letters would be taken for them."""
    if isinstance(texts, str):
        raise InvalidType(f"{name} must be several, got the text {texts!r:.60}")


def require_not_empty(name: str, things: Sized) -> None:
    """Require at least one thing; `name` is what one of them is called."""
    if len(things) == 0:
        raise InvalidValue(f"at least one {name} is needed, got none")


def require_device(device: str | torch.device) -> torch.device:
    """The device, if there is one by that name here."""
    try:
        return torch.empty(0, device=device).device
    except (AssertionError, ImportError, RuntimeError):
        raise InvalidValue(
            f"no device {str(device)!r} was found here, expected one such as 'cpu'"
        ) from None


def require_not_meta(*devices: torch.device) -> None:
    """Refuse the meta device, on which a model has shapes and no numbers."""
    if any(device.type == "meta" for device in devices):
        raise InvalidValue("the model is on the meta device, without numbers")


def require_ids(ids: Tensor, vocab_size: int, name: str = "token ids") -> None:
    """Require (batch, length) ids that a table of `vocab_size` rows can look up.

    Their values are read only where that is free: on the CPU, and not while a model is
    compiled or exported. An accelerator would have to stop and wait.
    """
    if not isinstance(ids, Tensor):
        kind = with_article(type(ids).__name__)
        raise InvalidType(f"{name} must be a tensor, (batch, length), got {kind}")
    if ids.dtype not in (torch.int32, torch.int64):
        raise InvalidType(f"{name} must be int64 or int32, got {ids.dtype}")
    if ids.dim() != 2 or 0 in ids.shape:
        shape = tuple(ids.shape)
        raise InvalidValue(
            f"{name} must be (batch, length), neither empty, got {shape}"
        )
    _require_rows(name, ids, vocab_size)


def require_labels(labels: Tensor, vocab_size: int) -> None:
    """Require labels that have a logit, of which there are `vocab_size`."""
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise InvalidType(f"labels must be whole numbers, got {labels.dtype}")
    _require_rows("labels", labels, vocab_size)


def _require_rows(name: str, ids: Tensor, vocab_size: int) -> None:
    if ids.device.type != "cpu" or torch.compiler.is_compiling():
        return
    try:
        low, high = (int(bound) for bound in ids.aminmax())
    except RuntimeError:  # a tensor without numbers: of torch.func, or a fake one
        return
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise InvalidValue(f"{name} must lie in 0..{vocab_size - 1}, got {wrong}")


def require_mask(mask: Tensor | None, scores_shape: tuple[int, ...]) -> None:
    """Require a boolean mask, if there is one, that broadcasts to the scores' shape."""
    if mask is None:
        return
    if not isinstance(mask, Tensor):
        kind = with_article(type(mask).__name__)
        raise InvalidType(f"mask must be a boolean tensor, got {kind}")
    if mask.dtype != torch.bool:
        raise InvalidType(f"mask must be boolean, True = may attend, got {mask.dtype}")
    aligned = zip(reversed(mask.shape), reversed(scores_shape), strict=False)
    if mask.dim() > len(scores_shape) or any(
        size not in (1, expected) for size, expected in aligned
    ):
        raise InvalidValue(
            f"mask must broadcast to (…, queries, keys) = {scores_shape}, "
            f"got {tuple(mask.shape)}"
        )


def require_same_length(keys: Tensor, values: Tensor) -> None:
    """Require as many keys as values: a kernel would read beyond its input."""
    if keys.size(-2) != values.size(-2):
        raise InvalidValue(
            "every key needs one value, "
            f"got {keys.size(-2)} keys and {values.size(-2)} values"
        )


def require_same_batch(memory: Tensor, target_ids: Tensor) -> None:
    """Require as many targets as sources; one source may serve all targets."""
    if torch.compiler.is_compiling() or memory.size(0) in (1, target_ids.size(0)):
        return
    raise InvalidValue(
        "every target needs one source, "
        f"got {target_ids.size(0)} targets and {memory.size(0)} sources"
    )


_SIDES = ("source", "target")


def require_examples(
    name: str, examples: Sequence[Any], config: Any, **limits: int
) -> None:
    """Require examples that a model can learn from, before any has changed it.

    Each is the ids of a source and of its target. `limits` are the most tokens that a
    side may have, by the name of what sets them, such as `max_length`. The error names
    the first example at fault by its number, from 1.
    """
    require_not_empty(name, examples)
    setting, most = min(limits.items(), key=itemgetter(1))
    for number, example in enumerate(examples, start=1):
        try:
            source, target = ([index(one) for one in ids] for ids in example)
        except (TypeError, ValueError):
            raise InvalidValue(
                f"{name} {number} must be two lists of ids, got {example!r:.60}"
            ) from None
        sizes = config.source_vocab_size, config.target_vocab_size
        fault = "" if source else "has an empty source"
        for side, ids, size in zip(_SIDES, (source, target), sizes, strict=True):
            end = side == "target"  # which goes with bos or eos
            if wrong := [one for one in ids if not 0 <= one < size]:
                fault = f"has a {side} id outside 0..{size - 1}, got {wrong[0]}"
            elif config.pad_id in ids:
                fault = f"has the padding id {config.pad_id} in its {side}"
            elif (tokens := len(ids) + end) > most:
                found = f"has {tokens} {side} tokens" + " with its end" * end
                fault = f"{found}, {setting} is {most}"
            if fault:
                raise InvalidValue(f"{name} {number} {fault}")


def with_article(name: str) -> str:
    """The name of a class with "a" or "an" before it."""
    return f"{'an' if name[:1].upper() in 'AEIOU' else 'a'} {name}"


def optional_import(module: str) -> Any:
    """Import a module of a package that this one can do without.

    Raises:
        ImportError: naming the package to install.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        name = (error.name or module).partition(".")[0]
        raise ImportError(f"this needs {name}: pip install {name}") from None
