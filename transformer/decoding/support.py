"""Which models incremental decoding can follow, and which with packed weights.

Made from book/workshop/fast-decoding.md: edit the chapter, not this file.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import nn

from transformer.decoder import Decoder, DecoderLayer
from transformer.model import Transformer, TransformerConfig
from transformer.multi_head import MultiHeadAttention

__all__ = [
    "unwrap",
    "refuse_global_hooks",
    "require_cacheable",
    "packable_weights",
]


def unwrap(model: nn.Module) -> Transformer:
    """The Transformer inside a compiled, distributed or averaged model.

    Raises:
        ValueError: for what neither is one nor holds one.
    """
    inner: object = model
    while not isinstance(inner, Transformer):
        inner = getattr(inner, "_orig_mod", getattr(inner, "module", None))
        if inner is None:
            kind = type(model).__name__
            raise ValueError(f"decoding needs a Transformer or a decoder, got a {kind}")
    return inner


_PASSED_OVER = (Transformer, Decoder, DecoderLayer, MultiHeadAttention)


def _has_global_hooks() -> bool:
    """Whether PyTorch calls hooks of somebody's at every module's forward pass."""
    known = nn.modules.module
    return bool(known._global_forward_hooks or known._global_forward_pre_hooks)


def refuse_global_hooks() -> None:
    """Refuse to decode while there are hooks on all modules.

    Raises:
        ValueError: for such hooks.
    """
    if _has_global_hooks():
        raise ValueError(
            "there are hooks on all modules, some of which cached decoding passes over"
        )


def require_cacheable(model: Transformer) -> None:
    """Refuse a decoder with a forward pass of its own, which no cache can follow.

    Embeddings, linear maps, norms and feed-forward layers are called as they are:
    those may be replaced, and have hooks.

    Raises:
        ValueError: naming the module whose forward pass or hooks would be passed over,
            or for hooks on all modules.
    """
    refuse_global_hooks()
    layers = list(model.decoder.layers)
    attentions = [
        attention
        for layer in layers
        for attention in (layer.self_attention, layer.cross_attention)
        if not hasattr(type(attention), "attend")  # as a class of its own would have
    ]
    for module, known in (
        (model.decoder, Decoder),
        *((layer, DecoderLayer) for layer in layers),
        *((attention, MultiHeadAttention) for attention in attentions),
    ):
        if not isinstance(getattr(module, "_orig_mod", module), known):
            raise ValueError(
                f"a {type(module).__name__} stands in the place of a "
                f"{known.__name__}: cached decoding would pass over it"
            )
    for name, module in model.named_modules():
        for known in _PASSED_OVER:
            if not isinstance(module, known) or name.startswith("encoder."):
                continue
            changed = [
                method
                for method in ("forward", "decode")
                if method in vars(module)
                or getattr(type(module), method, None) != getattr(known, method, None)
            ]
            if module._forward_hooks or module._forward_pre_hooks:
                changed.append("hooks")
            if changed:
                raise ValueError(
                    f"{name or 'the model'}, a {type(module).__name__}, has "
                    f"{changed[0]} of its own, which cached decoding would pass over"
                )


_WHOLE = {"encode", "decode", "forward"}
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
    if _has_global_hooks():
        return []
    if type(model).encode is not Transformer.encode or vars(model).keys() & _WHOLE:
        return []
    if model._forward_hooks or model._forward_pre_hooks:
        return []
    weights: list[nn.Parameter] = []
    heads, output = model.config.num_heads, model.output
    for owner, place, module in _placed(model):
        own = module.__dict__
        if (owner, place, _kind(module)) not in _known_places():
            return []
        if "forward" in own or module._forward_hooks or module._forward_pre_hooks:
            return []
        if isinstance(module, MultiHeadAttention) and own.keys() & _ATTENTION:
            return []
        if own.get("num_heads", heads) != heads:
            return []
        if own.get("max_norm") is not None:  # an embedding that shortens its rows
            return []
        if isinstance(module, nn.Linear | nn.Embedding) and (
            "weight" not in module._parameters  # but a buffer, or made anew
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
    home = type(module).__module__.split(".")[0]
    if isinstance(module, nn.Dropout) and home in ("torch", "transformer"):
        return nn.Dropout
    return type(module)


@functools.cache
def _known_places() -> set[tuple[type, str, type]]:
    """Which module stands where in the book's own models."""
    layers: dict[str, Any] = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    small = TransformerConfig(4, 4, d_model=2, num_heads=1, d_ff=2, **layers)
    found = set()
    with torch.device("meta"):
        for norm_first in (False, True):
            config = dataclasses.replace(small, norm_first=norm_first)
            for owner, name, module in _placed(Transformer(config)):
                found.add((owner, name, _kind(module)))
    return found
