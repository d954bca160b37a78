"""Which class stands where in a model, and which parts are not the package's own.

Made from book/workshop/checkpoints.md: edit the chapter, not this file.
"""

import functools
from collections.abc import Iterator
from typing import Any, TypeVar

from torch import nn

from transformer.checks import InvalidValue
from transformer.weights.state import shapes_only

__all__ = [
    "register_model",
    "registered_class",
    "registered_classes",
    "as_built",
    "class_name",
    "foreign_parts",
    "require_known_parts",
]


_REGISTERED: set[type] = set()
_Kind = TypeVar("_Kind", bound=type[nn.Module])


def register_model(kind: _Kind) -> _Kind:
    """Class decorator: this class makes a model from its `config` alone.

    What its constructor builds is the yardstick of `foreign_parts`.
    """
    _REGISTERED.add(kind)
    return kind


def registered_class(kind: type) -> type[nn.Module] | None:
    """The registered class that a class is or inherits from first; None without one."""
    return next((each for each in kind.__mro__ if each in _REGISTERED), None)


def registered_classes() -> dict[str, type]:
    """The classes that make a model from its config, by their names."""
    return {kind.__name__: kind for kind in _REGISTERED}


def class_name(kind: type) -> str:
    """The name of a class with its module: "my_module.GELUFeedForward"."""
    return f"{kind.__module__}.{kind.__qualname__}"


def foreign_parts(model: nn.Module) -> dict[str, str]:
    """Each part of a model that the package's own class would not have put there.

    Maps its place to the name of its class: {"encoder.layers.0.feed_forward":
    "my_module.GELUFeedForward"}. The place of the model itself is "". Each module is
    compared with the one that the registered class (Transformer, Marian, LanguageModel,
    GPT2, Llama) builds from `model.config`. A part is foreign if

    - its class is another one, a subclass included (dropout of any rate is known);
    - it has a method of its own, such as an exchanged `forward`;
    - it was made with another constant, such as a norm's `eps`.

    A subclass of a registered class is foreign itself only where it overrides a method,
    `__init__` apart. Below a part of another class nothing is listed. Hooks are not
    looked at, and a part that `torch.compile` wrapped counts as what it wraps.
    """
    known: Any = registered_class(type(model))
    if known is None:
        return {"": class_name(type(model))}
    found = dict(_overridden(model, known))
    for place, part, expected in _pairs(model, as_built(known, model.config)):
        found |= _difference(place, part, expected)
    return found


def require_known_parts(model: nn.Module, what: str) -> None:
    """Refuse a model with foreign parts, for `what` knows only the package's own.

    Raises:
        ValueError: naming the first foreign part's class and place.
    """
    for place, name in foreign_parts(model).items():
        at = f" at {place}" if place else ""
        raise InvalidValue(f"{what} does not know the class {name}{at}")


@functools.lru_cache(maxsize=16)
def as_built(known: Any, config: Any) -> nn.Module:
    """The model of a config as its class builds it, without memory for its weights."""
    with shapes_only():
        return known(config)


def _compiled_away(module: nn.Module | None) -> nn.Module | None:
    """The module itself, or the one inside what `torch.compile` made of it."""
    if module is not None and type(module).__module__.startswith("torch._dynamo."):
        return getattr(module, "_orig_mod", module)
    return module


def _pairs(
    model: nn.Module, expected: nn.Module, place: str = ""
) -> Iterator[tuple[str, nn.Module | None, nn.Module | None]]:
    """Each part of either model with its counterpart; below a foreign part none."""
    for name in dict.fromkeys([*expected._modules, *model._modules]):
        part = _compiled_away(model._modules.get(name))
        other = expected._modules.get(name)
        inside = f"{place}.{name}" if place else name
        yield inside, part, other
        if part is not None and other is not None and type(part) is type(other):
            yield from _pairs(part, other, inside)


def _overridden(model: nn.Module, known: type) -> Iterator[tuple[str, str]]:
    """The model itself, if a subclass or the object overrides one of its methods."""
    methods = {
        name
        for kind in known.__mro__
        if kind in _REGISTERED
        for name, value in vars(kind).items()
        if callable(value) and not isinstance(value, type)
    }
    methods = methods - {"__init__"} | {"__call__"}
    if any(getattr(type(model), name) is not getattr(known, name) for name in methods):
        yield "", class_name(type(model))
    for name in sorted(methods & vars(model).keys()):
        yield "", f"{class_name(type(model))} with its own {name}"


def _difference(
    place: str, part: nn.Module | None, expected: nn.Module | None
) -> dict[str, str]:
    """A part and how it differs from the expected one; empty if it does not."""
    if part is None:
        return {} if expected is None else {place: "None"}
    kind, name = type(part), class_name(type(part))
    own = [method for method in vars(part) if _is_method(method, kind)]
    if own:
        return {place: f"{name} with its own {own[0]}"}
    if isinstance(part, nn.Dropout) and isinstance(expected, nn.Dropout):
        known = name.startswith(("torch.", "transformer."))
        return {} if known else {place: name}
    if kind is not type(expected):
        return {place: name}
    for constant, value in vars(expected).items():
        if constant[0] == "_" or constant == "training":
            continue
        if isinstance(value, bool | int | float | str | tuple | None):
            found = getattr(part, constant, None)
            if type(found) is not type(value) or found != value:
                return {place: f"{name} with {constant}={found!r}"}
    return {}


def _is_method(name: str, kind: type) -> bool:
    """Whether a class, or one that it inherits from before nn.Module, defines this."""
    if name[0] == "_":
        return False
    owners = (each for each in kind.__mro__ if name in vars(each))
    owner = next(owners, nn.Module)
    return owner is not nn.Module and callable(vars(owner)[name])
