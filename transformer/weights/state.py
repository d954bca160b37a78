"""A model's weights by name: shared ones, and loading that leaves nothing out.

Made from book/workshop/checkpoints.md: edit the chapter, not this file.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from transformer.checks import InvalidType, InvalidValue, with_article

__all__ = [
    "shapes_only",
    "tie_parameters",
    "tied_names",
    "require_same_weights",
    "load_strictly",
    "require_floats",
    "require_state_dict",
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


def tie_parameters(model: nn.Module, *names: str) -> None:
    """Make the parameters of these names one, the first.

    A name that the model does not have is passed over: a part in a wrapper, such as an
    adapter's, has other names.
    """
    found = dict(model.named_parameters(remove_duplicate=False))
    for name in names[1:]:
        if names[0] in found and name in found:
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, found[names[0]])


def tied_names(model: nn.Module) -> dict[str, str]:
    """Each further name of a weight that has several, and the first."""
    first: dict[nn.Parameter, str] = {}
    named = model.named_parameters(remove_duplicate=False)
    names = {name: first.setdefault(weight, name) for name, weight in named}
    return {name: kept for name, kept in names.items() if name != kept}


def require_same_weights(
    expected: Mapping[str, Tensor], found: Mapping[str, Tensor]
) -> None:
    """Refuse weights of other names, shapes or kinds of numbers than expected.

    Raises:
        ValueError: naming the first that is missing, unknown, misshapen or not floats.
    """
    for name, tensor in expected.items():
        if name not in found:
            raise InvalidValue(f'Missing key(s) in state_dict: "{name}"')
        if found[name].shape != tensor.shape:
            shapes = f"got {tuple(found[name].shape)}, expected {tuple(tensor.shape)}"
            raise InvalidValue(f"size mismatch for {name}: {shapes}")
        if tensor.is_floating_point() and not found[name].is_floating_point():
            raise InvalidValue(f"{name} should be floats, got {found[name].dtype}")
    for name in found:
        if name not in expected:
            shown = name.encode("unicode_escape").decode()[:200]
            raise InvalidValue(f'Unexpected key(s) in state_dict: "{shown}"')


def load_strictly(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Give a module, which may be on the meta device, exactly these tensors.

    Raises:
        ValueError: for what `require_same_weights` refuses.
    """
    require_same_weights(module.state_dict(), state)
    module.load_state_dict(state, assign=True)


_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def require_floats(state: Mapping[str, Tensor]) -> None:
    """Refuse tensors that hold anything but finite floats.

    Raises:
        ValueError: naming the first tensor at fault.
    """
    for name, tensor in state.items():
        dtype = getattr(tensor, "dtype", type(tensor))
        if dtype not in _FLOATS:
            raise InvalidValue(f"{name} should be floats, got {dtype}")
        if tensor.is_meta:
            raise InvalidValue(f"{name} is on the meta device, without numbers")
        if tensor.numel() and not torch.stack(tensor.aminmax()).isfinite().all():
            raise InvalidValue(f"{name} holds a number that is not finite")


def require_state_dict(state: object) -> None:
    """Refuse a module, whose weights its `state_dict` has.

    Raises:
        TypeError: for anything but a mapping.
    """
    if not isinstance(state, Mapping):
        advice = ": give its state_dict()" if hasattr(state, "state_dict") else ""
        kind = with_article(type(state).__name__)
        raise InvalidType(f"a state_dict is needed, got {kind}{advice}")
