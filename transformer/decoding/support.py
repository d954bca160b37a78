"""Which models a cache can follow, and which of these packed weights can.

Made from book/workshop/fast-decoding.md: edit the chapter, not this file.
"""

import inspect
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from transformer.checks import InvalidValue, with_article
from transformer.decoder import Decoder, DecoderLayer
from transformer.model import Transformer
from transformer.multi_head import MultiHeadAttention
from transformer.weights.classes import foreign_parts, registered_class

__all__ = [
    "unwrap",
    "unwrap_to",
    "has_global_hooks",
    "has_hooks",
    "overridden",
    "attention_class",
    "require_followed",
    "require_attention",
    "require_places",
    "require_cacheable",
    "packable",
]


_Model = TypeVar("_Model", bound=nn.Module)


def unwrap(model: nn.Module, taker: str = "this", other: str = "") -> Transformer:
    """The Transformer inside a compiled, distributed or averaged model.

    Raises:
        ValueError: for what `unwrap_to` refuses.
    """
    return unwrap_to(Transformer, model, taker, other)


def unwrap_to(
    kind: type[_Model] | tuple[type[_Model], ...],
    model: nn.Module,
    taker: str = "this",
    other: str = "",
) -> _Model:
    """The model of one of these kinds in a compiled, distributed or averaged one.

    An error says that `taker` needs one, or what `other` says could be given, too.

    Raises:
        ValueError: for what neither is one nor holds one, or a wrapper that is not
            PyTorch's.
    """
    inner: object = model
    while not isinstance(inner, kind):
        wrapper = inner
        inner = getattr(inner, "_orig_mod", getattr(inner, "module", None))
        if inner is None:
            kinds = kind if isinstance(kind, tuple) else (kind,)
            needed = " or ".join(with_article(each.__name__) for each in kinds)
            got = with_article(type(model).__name__)
            if isinstance(getattr(model, "model", None), kind):
                got += f": give {type(model).__name__.lower()}.model"
            raise InvalidValue(f"{taker} needs {needed}{other}, got {got}")
        if not _is_transparent(wrapper):
            raise InvalidValue(
                f"the model is inside a {type(wrapper).__name__}, whose own forward "
                "pass this would pass over: give the model that is inside"
            )
    return inner


_TRANSPARENT = {
    "AveragedModel",
    "DataParallel",
    "DistributedDataParallel",
    "OptimizedModule",  # what torch.compile makes
}


def _is_transparent(wrapper: object) -> bool:
    """Whether a wrapper only passes on what it is given; FSDP puts weights together."""
    kind = type(wrapper)
    return kind.__module__.startswith("torch.") and kind.__name__ in _TRANSPARENT


def has_global_hooks() -> bool:
    """Whether PyTorch calls hooks of somebody's at every module's forward pass."""
    known = nn.modules.module
    return bool(known._global_forward_hooks or known._global_forward_pre_hooks)


def has_hooks(module: nn.Module) -> bool:
    """Whether hooks are called at the forward pass of a module or of its parts."""
    return has_global_hooks() or any(
        part._forward_hooks or part._forward_pre_hooks for part in module.modules()
    )


def overridden(module: nn.Module, method: str, *others: str) -> str | None:
    """Which of the other methods a class overrides while it inherits `method`, if any.

    Then `method` was written for another class, and may not know what this one does.
    """
    owners = [vars(module), *map(vars, type(module).__mro__)]

    def depth(name: str) -> int:
        return next((i for i, owner in enumerate(owners) if name in owner), len(owners))

    return next((other for other in others if depth(other) < depth(method)), None)


def attention_class(attention: nn.Module) -> type[nn.Module]:
    """MultiHeadAttention, or another class with an `attend`, whose place this has."""
    inner = getattr(attention, "_orig_mod", attention)  # of a compiled one
    kinds = (MultiHeadAttention, *type(inner).__mro__)
    of_its_own = (k for k in kinds if isinstance(inner, k) and "attend" in vars(k))
    return next(of_its_own, MultiHeadAttention)


def require_followed(name: str, module: nn.Module, known: type[nn.Module]) -> None:
    """Refuse a module whose forward pass a decoder that takes it apart would not do.

    Raises:
        ValueError: naming the module, if it is not of the `known` class or has a
            forward pass or hooks of its own; for hooks on all modules.
    """
    if has_global_hooks():
        raise InvalidValue("there are hooks on all modules")
    inner = getattr(module, "_orig_mod", module)
    kind = type(inner).__name__
    if not isinstance(inner, known):
        raise InvalidValue(f"{name} must be of the class {known.__name__}, got {kind}")
    own = [
        method
        for method in ("forward", "decode")
        if method in vars(inner)
        or getattr(type(inner), method, None) != getattr(known, method, None)
    ]
    for each in (module, inner):
        if each._forward_hooks or each._forward_pre_hooks:
            own.append("hooks")
    if own:
        raise InvalidValue(f"{name}, {with_article(kind)}, has {own[0]} of its own")


def require_attention(name: str, attention: nn.Module) -> None:
    """Refuse attention that is not its `attend` over its `keys_values`.

    Raises:
        ValueError: naming the layer, for what `require_followed` refuses, or for
            methods that cannot be told positions.
    """
    require_followed(name, attention, attention_class(attention))
    inner: Any = getattr(attention, "_orig_mod", attention)
    try:
        inspect.signature(inner.keys_values).bind(None, None, None)
        inspect.signature(inner.attend).bind(None, None, None, None)
    except TypeError:
        raise InvalidValue(
            f"{name}, {with_article(type(inner).__name__)}, takes no positions in "
            "keys_values or attend"
        ) from None


def require_places(position: nn.Module) -> None:
    """Refuse a module that cannot add the position of one token at a time.

    Raises:
        ValueError: for a forward that cannot be called as (x, start).
    """
    try:
        inspect.signature(position.forward).bind(None, 0)
    except TypeError:
        raise InvalidValue(
            f"position is of the class {type(position).__name__}, whose forward cannot "
            "be called as (x, start)"
        ) from None


def require_cacheable(model: Transformer) -> None:
    """Refuse a decoder with a forward pass of its own, which no cache can follow.

    Embeddings, linear layers, norms and feed-forward layers are called as they are:
    those may be replaced, and have hooks.

    Raises:
        ValueError: for what `require_followed`, `require_attention` and
            `require_places` refuse.
    """
    require_followed("the model", model, Transformer)
    require_followed("decoder", model.decoder, Decoder)
    for number, layer in enumerate(model.decoder.layers):
        name = f"decoder.layers.{number}"
        require_followed(name, layer, DecoderLayer)
        for part in ("self_attention", "cross_attention"):
            require_attention(f"{name}.{part}", getattr(layer, part))
    require_places(model.position)


def packable(model: Transformer) -> bool:
    """Whether packed weights compute what the modules of a model compute.

    They do not with hooks, parts that are not those of chapter 10 (LoRA, quantisation,
    another activation) or weights that are no plain tensors. In half precision rounding
    depends on the order of operations, so that even a token may change.
    """
    usual = registered_class(type(model)) is Transformer and not foreign_parts(model)
    tensors = [*model.parameters(), *model.buffers()]
    plain = all(type(each) in (nn.Parameter, Tensor) for each in tensors)
    exact = {each.dtype for each in tensors} in ({torch.float32}, {torch.float64})
    return plain and exact and usual and not has_hooks(model)
