"""Weights by name: tied ones, loaded strictly, and what a file may hold.

Made from book/workshop/checks.md: edit the chapter, not this file.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from transformer.checks import with_article

__all__ = [
    "shapes_only",
    "load_strictly",
    "require_floats",
    "require_merged",
    "require_state_dict",
    "require_one_dtype",
    "tied_names",
    "tie_parameters",
    "require_state",
    "restored",
    "loadable",
]


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


def _require_unwrapped(missing: str, state: Mapping[str, Tensor]) -> None:
    """Refuse a wrapper, such as LoRA's, in which a weight has a longer name."""
    parts = missing.split(".")
    for end in range(len(parts) - 1, 0, -1):
        layer, rest = ".".join(parts[:end]), ".".join(parts[end:])
        longer = re.compile(rf"{re.escape(layer)}\.[^.]+\.{re.escape(rest)}")
        if any(map(longer.fullmatch, state)):
            raise ValueError(
                f"{layer} is inside a wrapper: first put the plain layer back in its "
                "place, with a LoRA merged into it (PEFT: merge_and_unload)"
            )


def load_strictly(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Give a module, which may be on the meta device, exactly these tensors.

    Raises:
        ValueError: naming the first tensor that is missing, unknown or misshapen, or a
            wrapped layer.
    """
    try:
        module.load_state_dict(state, strict=True, assign=True)
        return
    except RuntimeError as error:  # a title, then a line for each kind of fault
        fault = str(error).split("\n")[1].strip()
    first = re.match(r'(Missing|Unexpected) key[^"]*"([^"]*)"', fault)
    if first and first[1] == "Missing":
        _require_unwrapped(first[2], state)
    raise ValueError(first[0] if first else fault)


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


def require_state_dict(state: object) -> None:
    """Refuse a module, whose weights its `state_dict` has.

    Raises:
        ValueError: for anything but a mapping.
    """
    if not isinstance(state, Mapping):
        advice = ": give its state_dict()" if hasattr(state, "state_dict") else ""
        kind = with_article(type(state).__name__)
        raise ValueError(f"a state_dict is needed, got {kind}{advice}")


def require_one_dtype(state: Mapping[str, Tensor]) -> None:
    """Refuse weights of several dtypes, which no layer could multiply.

    Raises:
        ValueError: naming the first that differs from those before it.
    """
    first = next(iter(state.values())).dtype
    for name, weight in state.items():
        if weight.dtype != first:
            raise ValueError(
                f"{name} is {weight.dtype} beside {first}, expected one dtype"
            )


def require_merged(state: Mapping[str, Tensor]) -> None:
    """Refuse weights that are computed from others, as LoRA's and pruned ones are.

    Raises:
        ValueError: naming the module and how to make its weights plain.
    """
    for name in state:
        module, found, _ = name.partition(".parametrizations.")
        if found:
            raise ValueError(
                f"the model has a parametrization on {module}: merge it with "
                "torch.nn.utils.parametrize.remove_parametrizations before saving"
            )
        weight = name.removesuffix("_orig")
        if weight != name and f"{weight}_mask" in state:
            module = weight.rpartition(".")[0]
            raise ValueError(
                f"the model has pruned weights on {module}: make them plain with "
                "torch.nn.utils.prune.remove before saving"
            )


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
        ValueError: naming the first tensor that is missing, unknown or misshapen, or a
            wrapped layer.
    """
    unknown, tied = dict.fromkeys(state), tied_names(one_layer)
    for found, one in one_layer.state_dict().items():
        stack, in_stack, rest = found.partition(".layers.0.")
        for layer in range(layers[stack] if in_stack else 1):
            name = f"{stack}.layers.{layer}.{rest}" if in_stack else found
            if name not in state:
                _require_unwrapped(name, state)
            if found in tied:
                continue
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
            in `require_floats`, `require_merged` and `require_state`, or one that
            should be equal to another and is not.
    """
    require_floats(state)
    require_merged(state)
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
