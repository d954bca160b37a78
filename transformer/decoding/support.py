"""Which models incremental decoding can follow, and which with packed weights.

Made from book/workshop/fast-decoding.md: edit the chapter, not this file.
"""

import dataclasses
import functools
import inspect
from collections.abc import Iterator
from typing import Any, TypeVar, cast

import torch
from torch import nn

from transformer.checks import with_article
from transformer.decoder import Decoder, DecoderLayer
from transformer.model import Transformer, TransformerConfig
from transformer.multi_head import MultiHeadAttention
from transformer.weights.state import shapes_only

__all__ = [
    "unwrap",
    "unwrap_to",
    "unwrap_for_search",
    "attention_class",
    "require_followed",
    "require_places",
    "has_global_hooks",
    "overridden",
    "require_cacheable",
    "packable_weights",
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
            got = with_article(type(model).__name__) + _advice(kind, model, taker)
            raise ValueError(f"{taker} needs {needed}{other}, got {got}")
        if not _is_known(wrapper):
            raise ValueError(
                f"the model is inside a {type(wrapper).__name__}, whose own forward "
                "pass this would pass over: give the model that is inside"
            )
    return inner


def unwrap_for_search(model: Any) -> Transformer:
    """The Transformer that a search is given where it is given no decoder.

    Raises:
        ValueError: for what `unwrap` refuses, and for half of a decoder.
    """
    lacks = [part for part in ("model", "prefill") if not hasattr(model, part)]
    if not isinstance(model, nn.Module) and len(lacks) == 1:
        name = type(model).__name__
        advice = ""
        if hasattr(getattr(model, "decoder", None), "prefill"):
            advice = f": give {name.lower()}.decoder"
        elif isinstance(getattr(model, "model", None), Transformer):
            advice = f": give {name.lower()}.model"
        raise ValueError(
            f"a decoder needs `model` and `prefill`, {name} lacks `{lacks[0]}`{advice}"
        )
    other = " or a decoder (PromptDecoder for a language model)"
    return unwrap(model, "a search", other)


_TRAINERS = {"LanguageModel": "train_language_model", "Transformer": "train_translator"}


def _advice(kind: Any, model: object, taker: str) -> str:
    """Where the model of a kind is in what was given instead, or who trains that."""
    if isinstance(getattr(model, "model", None), kind):
        return f": give {type(model).__name__.lower()}.model"
    names = [each.__name__ for each in type(model).__mro__]
    trainer = next((_TRAINERS[name] for name in names if name in _TRAINERS), None)
    trains = trainer and taker.startswith("train")
    return f": {trainer} trains one" if trains else ""


def _is_known(module: object) -> bool:
    """Whether a class is PyTorch's or the book's: it computes what we know."""
    return type(module).__module__.partition(".")[0] in ("torch", "transformer")


def has_global_hooks() -> bool:
    """Whether PyTorch calls hooks of somebody's at every module's forward pass."""
    known = nn.modules.module
    return bool(known._global_forward_hooks or known._global_forward_pre_hooks)


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


_HOOKS_ELSEWHERE = (
    "remove them while it decodes, or put them on the linear maps, norms or "
    "feed-forward layers inside"
)


def require_followed(name: str, module: nn.Module, known: type[nn.Module]) -> None:
    """Refuse a module whose forward pass a decoder that takes it apart would not do.

    Raises:
        ValueError: naming the module, if it is not of the `known` class or has a
            forward pass or hooks of its own; for hooks on all modules.
    """
    if has_global_hooks():
        raise ValueError(
            "there are hooks on all modules, some of which cached decoding passes "
            f"over: {_HOOKS_ELSEWHERE}"
        )
    inner = getattr(module, "_orig_mod", module)
    kind = type(inner).__name__
    if not isinstance(inner, known):
        raise ValueError(
            f"{name} must be of the class {known.__name__}, got {kind}, which cached "
            "decoding would pass over"
        )
    changed = [
        method
        for method in ("forward", "decode")
        if method in vars(inner)
        or getattr(type(inner), method, None) != getattr(known, method, None)
    ]
    for each in (module, inner):
        if each._forward_hooks or each._forward_pre_hooks:
            changed.append("hooks")
    if changed:
        way = f": {_HOOKS_ELSEWHERE}" if changed[0] == "hooks" else ""
        raise ValueError(
            f"{name}, {with_article(kind)}, has {changed[0]} of its own, which cached "
            f"decoding would pass over{way}"
        )


def require_cacheable(model: Transformer) -> None:
    """Refuse a decoder with a forward pass of its own, which no cache can follow.

    Embeddings, linear maps, norms and feed-forward layers are called as they are:
    those may be replaced, and have hooks.

    Raises:
        ValueError: for what `require_followed` refuses, positions that cannot be
            added to one token alone, and attention that turns queries and keys.
    """
    require_followed("the model", model, Transformer)
    require_followed("decoder", model.decoder, Decoder)
    for number, layer in enumerate(model.decoder.layers):
        name = f"decoder.layers.{number}"
        require_followed(name, layer, DecoderLayer)
        for part in ("self_attention", "cross_attention"):
            attention = getattr(layer, part)
            require_followed(f"{name}.{part}", attention, attention_class(attention))
            if getattr(attention, "rotary", None) is not None:
                raise ValueError(
                    f"{name}.{part} turns queries and keys by their positions, which "
                    "cached decoding of a Transformer does not tell it"
                )
    require_places(model.position)


def require_places(position: nn.Module) -> None:
    """Refuse a module that cannot add the position of one token at a time.

    Raises:
        ValueError: for a forward that cannot be called as (x, start).
    """
    try:
        inspect.signature(position.forward).bind(None, 0)
    except TypeError:
        raise ValueError(
            f"position is of the class {type(position).__name__}, whose forward cannot "
            "be called as (x, start): cached decoding adds one position at a time"
        ) from None


_WHOLE = {"encode", "decode", "forward"}
_WEIGHTED = (nn.Linear, nn.Embedding, nn.LayerNorm)
_ATTENTION = {name for name in vars(MultiHeadAttention) if not name.startswith("__")}


def packable_weights(model: Transformer) -> list[nn.Parameter]:
    """All weights but the source embedding's, if packed ones compute the same.

    Empty otherwise: in half precision or under autocast, where rounding depends on the
    order of operations; with hooks, an `encode` of its own, other modules than the
    book's (LoRA, quantisation), another number of heads somewhere, or weights that are
    missing or no plain tensors.
    """
    if torch.is_autocast_enabled(next(model.parameters()).device.type):
        return []
    if has_global_hooks():
        return []
    if type(model).encode is not Transformer.encode or vars(model).keys() & _WHOLE:
        return []
    if model._forward_hooks or model._forward_pre_hooks:
        return []
    weights: list[nn.Parameter] = []
    heads, output, known = model.config.num_heads, model.output, _known_places()
    for owner, place, module in _placed(model):
        own = module.__dict__
        if (owner, place, _kind(module)) not in known:
            return []
        if "forward" in own or module._forward_hooks or module._forward_pre_hooks:
            return []
        if isinstance(module, MultiHeadAttention) and own.keys() & _ATTENTION:
            return []
        if own.get("num_heads", heads) != heads:
            return []
        if own.get("max_norm") is not None:  # an embedding that shortens its rows
            return []
        if isinstance(module, _WEIGHTED) and (
            "weight" not in module._parameters  # but a buffer, or made anew
            or {"weight", "bias"} & (own.keys() | module._buffers.keys())
        ):
            return []
        for name, weight in module._parameters.items():
            if module is output and name == "bias":
                plain = weight is None
            else:
                plain = type(weight) is nn.Parameter
            if not plain:
                return []
            if weight is not None:
                weights.append(weight)
    exact = {weight.dtype for weight in weights} in ({torch.float32}, {torch.float64})
    return weights if exact else []


def _placed(model: Transformer) -> Iterator[tuple[type, str, nn.Module]]:
    """Each module but the source embedding, with its owner's type and its name there.

    What a list holds has the place of the list.
    """
    parts: list[tuple[type, str, nn.Module]] = [
        (Transformer, name, getattr(model, name))
        for name in ("encoder", "target_embedding", "position", "decoder", "output")
    ]
    for owner, name, module in parts:  # which grows: a module's parts come behind it
        yield owner, name, module
        in_list = type(module) is nn.ModuleList
        for part, inside in module._modules.items():
            place = (owner, name) if in_list else (type(module), part)
            parts.append((*place, cast("nn.Module", inside)))


def _kind(module: nn.Module) -> type:
    """The module's type; dropout is PyTorch's or the book's.

    Another may drop in evaluation mode, too.
    """
    if isinstance(module, nn.Dropout) and _is_known(module):
        return nn.Dropout
    return type(module)


@functools.cache
def _known_places() -> set[tuple[type, str, type]]:
    """Which module stands where in the book's own models."""
    layers: dict[str, Any] = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    small = TransformerConfig(4, 4, d_model=2, num_heads=1, d_ff=2, **layers)
    found = set()
    with shapes_only():
        for norm_first in (False, True):
            config = dataclasses.replace(small, norm_first=norm_first)
            for owner, name, module in _placed(Transformer(config)):
                found.add((owner, name, _kind(module)))
    return found
