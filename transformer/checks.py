"""Checks of arguments: what is refused at the door, in one line that names the value.

Made from book/workshop/checks.md: edit the chapter, not this file.
"""

import importlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

__all__ = [
    "require_positive",
    "require_above_zero",
    "require_dropout",
    "require_probability",
    "require_bool",
    "require_ids",
    "require_labels",
    "require_mask",
    "require_pairs",
    "require_memories",
    "require_beam",
    "shapes_only",
    "load_strictly",
    "tied_names",
    "tie_parameters",
    "require_floats",
    "require_state",
    "loadable",
    "restored",
    "optional_import",
]


def require_positive(**sizes: int) -> None:
    """Refuse, by name, any size that is not a whole number of at least 1.

    Raises:
        ValueError: naming the first size at fault and its value.
    """
    for name, size in sizes.items():
        # While torch exports a model, a length is a symbol that stands for a number.
        whole = isinstance(size, int | torch.SymInt) and not isinstance(size, bool)
        if not whole or size < 1:
            raise ValueError(
                f"{name} must be a whole number of at least 1, got {size!r}"
            )


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
        if not isinstance(share, int | float) or not 0 <= share < 1:
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


def require_ids(ids: Tensor, vocab_size: int, name: str = "token ids") -> None:
    """Refuse token ids that an embedding table of `vocab_size` rows cannot look up.

    The ids themselves are read only where that is free: on the CPU, and not while a
    model is compiled or exported. An accelerator would have to stop and wait.

    Raises:
        ValueError: when `ids` is not a (batch, length) tensor of int32 or int64, is
            empty, or holds an id below 0 or beyond the table.
    """
    if ids.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{name} must be int64 or int32, got {ids.dtype}")
    if ids.dim() != 2 or 0 in ids.shape:
        shape = tuple(ids.shape)
        raise ValueError(f"{name} must be (batch, length), neither empty, got {shape}")
    _require_range(name, ids, vocab_size)


def require_labels(labels: Tensor, vocab_size: int) -> None:
    """Refuse labels that have no logit. They are read only where that is free.

    Raises:
        ValueError: naming a label below 0 or beyond the vocabulary.
    """
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


def require_pairs(keys: Tensor, values: Tensor) -> None:
    """Refuse keys and values of unequal number: a kernel would read beyond its input.

    Raises:
        ValueError: naming both numbers.
    """
    if keys.size(-2) != values.size(-2):
        raise ValueError(
            "every key needs one value, "
            f"got {keys.size(-2)} keys and {values.size(-2)} values"
        )


def require_memories(memory: Tensor, target_ids: Tensor) -> None:
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


def require_beam(beam_size: int, length_penalty: float) -> None:
    """Refuse a beam search without a beam, or with a penalty below 0 or not finite.

    Raises:
        ValueError: for a `beam_size` that is no whole number of at least 1, or a
            `length_penalty` that is not finite or below 0.
    """
    require_positive(beam_size=beam_size)
    if not 0 <= length_penalty < math.inf:
        raise ValueError(
            f"length_penalty must be finite and at least 0, got {length_penalty}"
        )


class _WithoutNormal(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is nn.init.normal_ and kwargs["tensor"].is_meta:
            return kwargs["tensor"]
        return func(*args, **(kwargs or {}))


@contextmanager
def shapes_only() -> Iterator[None]:
    """Modules made here are on the meta device: their tensors have no memory.

    Normal random numbers are passed over. On that device they have no effect but to
    import PyTorch's compiler, which takes a second.
    """
    with torch.device("meta"), _WithoutNormal():
        yield


def load_strictly(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Give a module, which may be on the meta device, exactly these tensors.

    Raises:
        ValueError: naming the first tensor that is missing, unknown or misshapen.
    """
    try:
        module.load_state_dict(state, strict=True, assign=True)
    except RuntimeError as error:  # a title, then a line for each kind of fault
        fault = str(error).split("\n")[1].strip()
        first = re.match(r'(Missing|Unexpected) key[^"]*"[^"]*"', fault)
        raise ValueError(first[0] if first else fault) from None


_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def require_floats(state: Mapping[str, Tensor]) -> None:
    """Refuse tensors that hold anything but finite floats.

    Raises:
        ValueError: naming the first tensor at fault.
    """
    for name, tensor in state.items():
        dtype = getattr(tensor, "dtype", type(tensor))
        if dtype not in _FLOATS:
            raise ValueError(f"{name} should be floats, got {dtype}")
        if tensor.is_meta:
            raise ValueError(f"{name} is on the meta device, without numbers")
        if tensor.numel() and not torch.stack(tensor.aminmax()).isfinite().all():
            raise ValueError(f"{name} holds a number that is not finite")


def tied_names(model: nn.Module) -> dict[str, str]:
    """Each further name of a weight that has several, and the first."""
    first: dict[nn.Parameter, str] = {}
    named = model.named_parameters(remove_duplicate=False)
    names = {name: first.setdefault(weight, name) for name, weight in named}
    return {name: kept for name, kept in names.items() if name != kept}


def tie_parameters(model: nn.Module, name: str, *others: str) -> None:
    """Make parameters one. A part with a wrapper around it has none of these names."""
    found = dict(model.named_parameters(remove_duplicate=False))
    for other in others:
        if name in found and other in found:
            owner, _, last = other.rpartition(".")
            setattr(model.get_submodule(owner), last, found[name])


def require_state(
    state: Mapping[str, Tensor], one_layer: nn.Module, **layers: int
) -> None:
    """Refuse tensors that are not, by name and shape, all the weights of a model.

    `one_layer` is that model with one layer in each stack, and `layers` are how many
    each has: so a claim of many thousand layers is refused before they are made. A
    weight that has several names is expected under the first.

    Raises:
        ValueError: naming the first tensor that is missing, unknown or misshapen.
    """
    unknown, tied = dict.fromkeys(state), tied_names(one_layer)
    for found, one in one_layer.state_dict().items():
        if found in tied:
            continue
        stack, in_stack, rest = found.partition(".layers.0.")
        for layer in range(layers[stack] if in_stack else 1):
            name = f"{stack}.layers.{layer}.{rest}" if in_stack else found
            if name not in state:
                raise ValueError(f'Missing key(s) in state_dict: "{name}"')
            if state[name].shape != one.shape:
                shapes = f"got {tuple(state[name].shape)}, expected {tuple(one.shape)}"
                raise ValueError(f"size mismatch for {name}: {shapes}")
            unknown.pop(name)
    for name in unknown:
        shown = name.encode("unicode_escape").decode()[:200]
        raise ValueError(f'Unexpected key(s) in state_dict: "{shown}"')


_Model = TypeVar("_Model", bound=nn.Module)


def restored(
    make: Callable[[], _Model],
    state: Mapping[str, Tensor],
    one_layer: nn.Module,
    **layers: int,
) -> _Model:
    """The model that `make` gives with the tensors of a file, in evaluation mode.

    Raises:
        ValueError: for what `require_state` refuses.
    """
    require_state(state, one_layer, **layers)
    # In memory of its own, aligned as any tensor is: sums add in the same order.
    tensors = {name: tensor.clone() for name, tensor in state.items()}
    tensors |= {name: tensors[first] for name, first in tied_names(one_layer).items()}
    with shapes_only():
        model = make()
    load_strictly(model, tensors)
    return model.eval()


def loadable(
    state: Mapping[str, Tensor], one_layer: nn.Module, **layers: int
) -> dict[str, Tensor]:
    """What a file of this state is to hold: a weight that has several names, once.

    Raises:
        ValueError: naming the first tensor for which the file could not be loaded, as
            in `require_floats` and `require_state`, or one that should be equal to
            another and is not.
    """
    require_floats(state)
    kept = dict(state)
    for name, first in tied_names(one_layer).items():
        if name in kept and first in kept:
            if not kept[name].equal(kept[first]):
                raise ValueError(f"{name} differs from {first}, which its config ties")
            del kept[name]
    try:
        require_state(kept, one_layer, **layers)
    except ValueError as error:
        raise ValueError(f"the model is not what its config says: {error}") from None
    return kept


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
