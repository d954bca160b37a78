"""Checks of arguments: what is refused at the door, in one line that names the value.

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
    "require_positive",
    "require_not_empty",
    "require_texts",
    "require_string",
    "require_divides",
    "require_above_zero",
    "require_dropout",
    "require_probability",
    "require_bool",
    "require_device",
    "require_not_meta",
    "require_ids",
    "require_labels",
    "require_mask",
    "require_same_length",
    "require_same_batch",
    "require_examples",
    "is_number",
    "require_beam",
    "with_article",
    "optional_import",
]


def require_positive(**sizes: int) -> None:
    """Refuse, by name, any size that is not a whole number of at least 1.

    Raises:
        ValueError: naming the first size at fault and its value.
    """
    for name, size in sizes.items():
        # While torch exports a model, a length is a symbol that stands for a number;
        # while it traces one, a tensor.
        whole = isinstance(size, int | torch.SymInt) and not isinstance(size, bool)
        if not whole or size < 1:
            if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
                continue
            advice = ""
            if hasattr(size, "__index__") and not isinstance(size, int):
                advice = ": give a Python int"  # NumPy's cannot be saved as JSON
            raise ValueError(
                f"{name} must be a whole number of at least 1, got {size!r}{advice}"
            )


def require_not_empty(name: str, things: Sized) -> None:
    """Refuse a collection without anything in it; `name` is what one of it is called.

    Raises:
        ValueError: naming what is needed.
    """
    if len(things) == 0:
        raise ValueError(f"at least one {name} is needed, got none")


def require_texts(name: str, texts: object) -> None:
    """Refuse one text where several are needed: its letters would be taken for them.

    Raises:
        ValueError: naming the text.
    """
    if isinstance(texts, str):
        raise ValueError(f"{name} must be several, got the text {texts!r:.60}")


def require_string(name: str, text: object) -> None:
    """Refuse anything but text; `name` is what it is called.

    Raises:
        ValueError: naming what was given.
    """
    if not isinstance(text, str):
        raise ValueError(f"{name} must be text, got {text!r:.60}")


def require_divides(**sizes: int) -> None:
    """Refuse, by name, the first of two sizes where it does not divide the second.

    Raises:
        ValueError: naming both and their values.
    """
    (part, number), (whole, total) = sizes.items()
    if total % number:
        raise ValueError(f"{part} must divide {whole}, got {number} and {total}")


def require_above_zero(**numbers: float) -> None:
    """Refuse, by name, anything but a finite number above 0.

    Raises:
        ValueError: naming the first value at fault.
    """
    for name, number in numbers.items():
        real = isinstance(number, int | float) and not isinstance(number, bool)
        if not real or not 0 < number < math.inf:
            raise ValueError(f"{name} must be a finite number above 0, got {number!r}")


def require_probability(**shares: float) -> None:
    """Refuse, by name, any number outside [0, 1).

    Raises:
        ValueError: naming the first number at fault and its value.
    """
    for name, share in shares.items():
        real = isinstance(share, int | float) and not isinstance(share, bool)
        if not real or not 0 <= share < 1:
            raise ValueError(f"{name} must lie in [0, 1), got {share!r}")


def require_bool(**flags: bool) -> None:
    """Refuse, by name, anything but True and False.

    Raises:
        ValueError: naming the first value at fault.
    """
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ValueError(f"{name} must be True or False, got {flag!r}")


def require_dropout(dropout: float) -> None:
    """Refuse a dropout probability outside [0, 1).

    Raises:
        ValueError: naming the probability.
    """
    require_probability(dropout=dropout)


def require_device(device: str | torch.device) -> torch.device:
    """The device, if there is one by that name here.

    Raises:
        ValueError: naming it.
    """
    try:
        return torch.empty(0, device=device).device
    except (AssertionError, ImportError, RuntimeError):
        raise ValueError(
            f"no device {str(device)!r} was found here, expected one such as 'cpu'"
        ) from None


def require_not_meta(*devices: torch.device) -> None:
    """Refuse the meta device, on which a model has shapes and no numbers.

    Raises:
        ValueError: when one of the devices is that.
    """
    if any(device.type == "meta" for device in devices):
        raise ValueError("the model is on the meta device, without numbers")


def require_ids(ids: Tensor, vocab_size: int, name: str = "token ids") -> None:
    """Refuse token ids that an embedding table of `vocab_size` rows cannot look up.

    The ids themselves are read only where that is free: on the CPU, and not while a
    model is compiled or exported. An accelerator would have to stop and wait.

    Raises:
        ValueError: when `ids` is not a (batch, length) tensor of int32 or int64, is
            empty, or holds an id below 0 or beyond the table.
    """
    if not isinstance(ids, Tensor):
        kind = with_article(type(ids).__name__)
        raise ValueError(f"{name} must be a tensor, (batch, length), got {kind}")
    if ids.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{name} must be int64 or int32, got {ids.dtype}")
    if ids.dim() != 2 or 0 in ids.shape:
        shape = tuple(ids.shape)
        raise ValueError(f"{name} must be (batch, length), neither empty, got {shape}")
    _require_range(name, ids, vocab_size)


def require_labels(labels: Tensor, vocab_size: int) -> None:
    """Refuse labels that have no logit. They are read only where that is free.

    Raises:
        ValueError: naming a dtype that is not of whole numbers, or a label below 0 or
            beyond the vocabulary.
    """
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(f"labels must be whole numbers, got {labels.dtype}")
    _require_range("labels", labels, vocab_size)


def _require_range(name: str, ids: Tensor, vocab_size: int) -> None:
    if ids.device.type != "cpu" or torch.compiler.is_compiling():
        return
    try:
        low, high = (int(bound) for bound in ids.aminmax())
    except RuntimeError:  # a tensor without numbers: of torch.func, or a fake one
        return
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise ValueError(f"{name} must lie in 0..{vocab_size - 1}, got {wrong}")


def require_mask(mask: Tensor | None, scores_shape: tuple[int, ...]) -> None:
    """Refuse a mask that is not boolean or does not broadcast to the scores' shape.

    Raises:
        ValueError: naming the mask's dtype or shape and what was expected.
    """
    if mask is None:
        return
    if not isinstance(mask, Tensor):
        kind = with_article(type(mask).__name__)
        raise ValueError(f"mask must be a boolean tensor, got {kind}")
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be boolean, True = may attend, got {mask.dtype}")
    aligned = zip(reversed(mask.shape), reversed(scores_shape), strict=False)
    if mask.dim() > len(scores_shape) or any(
        size not in (1, expected) for size, expected in aligned
    ):
        raise ValueError(
            f"mask must broadcast to (…, queries, keys) = {scores_shape}, "
            f"got {tuple(mask.shape)}"
        )


def require_same_length(keys: Tensor, values: Tensor) -> None:
    """Refuse keys and values of unequal number: a kernel would read beyond its input.

    Raises:
        ValueError: naming both numbers.
    """
    if keys.size(-2) != values.size(-2):
        raise ValueError(
            "every key needs one value, "
            f"got {keys.size(-2)} keys and {values.size(-2)} values"
        )


def require_same_batch(memory: Tensor, target_ids: Tensor) -> None:
    """Refuse targets that are not as many as the sources; one source serves them all.

    Raises:
        ValueError: naming both numbers.
    """
    if torch.compiler.is_compiling() or memory.size(0) in (1, target_ids.size(0)):
        return
    raise ValueError(
        "every target needs one source, "
        f"got {target_ids.size(0)} targets and {memory.size(0)} sources"
    )


_SIDES = ("source", "target")


def require_examples(
    name: str, examples: Sequence[Any], config: Any, **limits: int
) -> None:
    """Refuse examples that a model cannot learn from, before any has changed it.

    Each is the ids of a source and of its target. `limits` are the most tokens that a
    side may have, by the name of what sets them, such as `max_length`.

    Raises:
        ValueError: naming the first example at fault by its number, from 1.
    """
    require_not_empty(name, examples)
    setting, most = min(limits.items(), key=itemgetter(1))
    for number, example in enumerate(examples, start=1):
        try:
            source, target = ([index(one) for one in ids] for ids in example)
        except (TypeError, ValueError):
            raise ValueError(
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
                raise ValueError(f"{name} {number} {fault}")


def is_number(value: object) -> bool:
    """Whether a value is a real number, Python's or NumPy's; True is not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def require_beam(beam_size: int, length_penalty: float) -> None:
    """Refuse a beam search without a beam, or with a penalty below 0 or not finite.

    Raises:
        ValueError: for a `beam_size` that is no whole number of at least 1, or a
            `length_penalty` that is not finite or below 0.
    """
    require_positive(beam_size=beam_size)
    if not is_number(length_penalty) or not 0 <= length_penalty < math.inf:
        raise ValueError(
            f"length_penalty must be finite and at least 0, got {length_penalty!r}"
        )


def with_article(name: str) -> str:
    """The name of a class with "a" or "an" before it."""
    return f"{'an' if name[:1].upper() in 'AEIOU' else 'a'} {name}"


def optional_import(module: str) -> Any:
    """Import a module that the package does not require.

    Raises:
        ValueError: naming the package to install.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        name = (error.name or module).partition(".")[0]
        raise ValueError(f"this needs {name}: pip install {name}") from None
