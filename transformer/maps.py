"""Attention maps and head ablation: look at every head, switch heads off.

Made from book/14-attention-maps.md: edit the chapter, not this file.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import combinations
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transformer.beyond.language_model import LanguageModel
from transformer.decoder import Decoder
from transformer.decoding.support import overridden, unwrap, unwrap_to
from transformer.encoder import Encoder
from transformer.model import Transformer
from transformer.pretrained.torch import Stacks

__all__ = [
    "attention_layers",
    "AttentionMaps",
    "maps_by_kind",
    "attention_maps",
    "self_attention_maps",
    "Head",
    "all_heads",
    "ablate_heads",
]


_WITH_LAYERS = (Transformer, LanguageModel, Stacks, Encoder, Decoder)


def attention_layers(model: nn.Module) -> dict[str, list[Any]]:
    """The attention sublayers of a model by kind, each from the lowest layer up.

    A Transformer has three kinds, a language model one: masked. A stack alone, or what
    `from_torch` makes of an `nn.Transformer`, has those of its layers.
    """
    inner: Any = unwrap_to(_WITH_LAYERS, model, "attention_layers")
    sides = [getattr(inner, side, None) for side in ("encoder", "decoder")]
    kinds: dict[str, list[Any]] = {}
    for stack in filter(None, sides if any(sides) else [inner]):
        own = [layer.self_attention for layer in stack.layers]
        if isinstance(stack, Decoder):
            cross = [layer.cross_attention for layer in stack.layers]
            kinds |= {"masked": own, "cross": cross}
        else:
            kinds["masked" if isinstance(inner, LanguageModel) else "encoder"] = own
    return kinds


class AttentionMaps(NamedTuple):
    """All attention weights of a forward pass; `maps.encoder[0]` are one sentence's.

    The rows of padding queries are there too: computed, but without effect.
    """

    encoder: Float[Tensor, "batch layers heads source source"]
    masked: Float[Tensor, "batch layers heads target target"]
    cross: Float[Tensor, "batch layers heads target source"]

    def __repr__(self) -> str:
        shapes = [
            f"{kind}={tuple(maps.shape)}" for kind, maps in self._asdict().items()
        ]
        return f"AttentionMaps({', '.join(shapes)})"


def _twin(module: nn.Module, twins: dict[nn.Module, nn.Module]) -> nn.Module:
    """A module with the same weights, not compiled, in evaluation mode, parts included.

    Whoever uses the original meanwhile does not notice what is done to its twin.
    """
    inner: nn.Module = getattr(module, "_orig_mod", module)  # of a compiled one
    if inner not in twins:
        twin = twins[inner] = object.__new__(type(inner))
        parts = {
            name: None if part is None else _twin(part, twins)
            for name, part in inner._modules.items()
        }
        changed = {"_modules": parts, "_compiled_call_impl": None, "training": False}
        vars(twin).update(vars(inner) | changed)
    return twins[inner]


def _require_true_weights(kind: str, attention: nn.Module) -> None:
    """Refuse a layer whose `weights` may be others than those it attends by."""
    name = f"{kind} attention, {type(attention).__name__},"
    if not hasattr(attention, "weights"):
        raise ValueError(f"{name} has no weights(query, key, mask)")
    changed = overridden(attention, "weights", "forward", "attend", "keys_values")
    if changed:
        raise ValueError(
            f"{name} overrides {changed} and inherits weights, which may not be those "
            "it uses: override weights as well"
        )


def _weights(
    attention: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
) -> Float[Tensor, "batch heads queries keys"]:
    """The weights of a layer, from all that its forward pass is given."""
    return cast("Tensor", attention.weights(query, key, mask))


def maps_by_kind(
    model: nn.Module, *inputs: Tensor | None
) -> dict[str, Float[Tensor, "batch layers heads queries keys"]]:
    """The weights of each kind of layer while a model or a stack reads its inputs.

    A stack reads vectors and masks, as its `forward` does: this gives the maps of what
    `from_torch` makes. For a model see `attention_maps`, which says what is refused.
    """
    twin = _twin(unwrap_to(_WITH_LAYERS, model, "maps_by_kind"), {})
    kinds = attention_layers(twin)
    if any({*one} & {*other} for one, other in combinations(kinds.values(), 2)):
        raise ValueError("one attention layer is in two kinds of place")
    found: dict[str, list[Tensor]] = {kind: [] for kind in kinds}

    def catching(kind: str, attention: Any) -> Callable[..., Tensor]:
        forward = attention.forward

        def catch(*inputs: Any, **named: Any) -> Tensor:
            found[kind].append(_weights(attention, *inputs, **named))
            return cast("Tensor", forward(*inputs, **named))

        return catch

    for kind, layers in kinds.items():
        for attention in dict.fromkeys(layers):  # one layer may stand in two places
            _require_true_weights(kind, attention)
            attention.forward = catching(kind, attention)
    with torch.inference_mode():
        twin(*inputs)
    for kind, layers in kinds.items():
        if len(found[kind]) < len(layers):
            ran = f"ran in {len(found[kind])} of {len(layers)} layers"
            raise ValueError(f"{kind} attention {ran}: there are no maps of the others")
    return {kind: torch.stack(weights, 1) for kind, weights in found.items()}


def attention_maps(
    model: nn.Module,
    source_ids: Int[Tensor, "batch source"],
    target_ids: Int[Tensor, "batch target"],
) -> AttentionMaps:
    """Attention weights of every head, for these sources and decoder inputs.

    In evaluation mode, without dropout, and as the model is written, also where it was
    compiled. The model itself is left as it is.

    Raises:
        ValueError: for ids that the model refuses, not one target for each source, a
            layer in two kinds of place, whose maps would be mixed, one that does not
            run, and one that has no `weights` or inherits those of another class but
            not that class's way to attend.
    """
    unwrap(model, "attention_maps", " (self_attention_maps takes a LanguageModel)")
    if len(source_ids) != len(target_ids):
        raise ValueError(
            "each source needs one target, "
            f"got {len(source_ids)} sources and {len(target_ids)} targets"
        )
    return AttentionMaps(**maps_by_kind(model, source_ids, target_ids))


def self_attention_maps(
    model: nn.Module, ids: Int[Tensor, "batch length"]
) -> Float[Tensor, "batch layers heads length length"]:
    """Attention weights of every head of a language model, for these texts.

    As `attention_maps`, for a model that has one kind of attention.

    Raises:
        ValueError: for ids that the model refuses, and anything but a LanguageModel.
    """
    unwrap_to(LanguageModel, model, "self_attention_maps")
    return maps_by_kind(model, ids)["masked"]


def _zero_head(number: int, count: int) -> Callable[[nn.Module, tuple[Tensor]], Tensor]:
    def hook(_: nn.Module, inputs: tuple[Tensor]) -> Tensor:
        heads = inputs[0].unflatten(-1, (count, -1)).clone()
        heads[..., number, :] = 0
        return heads.flatten(-2)

    return hook


class Head(NamedTuple):
    """One head: its kind (encoder, masked or cross), layer and number, from 0."""

    kind: str
    layer: int
    number: int


def all_heads(model: nn.Module) -> list[Head]:
    """Every head of a model, encoder first, from the lowest layer up."""
    return [
        Head(kind, layer, number)
        for kind, layers in attention_layers(model).items()
        for layer, attention in enumerate(layers)
        for number in range(attention.num_heads)
    ]


@contextmanager
def ablate_heads(model: nn.Module, *heads: Head) -> Iterator[None]:
    """Ablate heads inside a `with`: their outputs are zero before W^O.

    This holds for all who use the model meanwhile, in other threads as well. Code that
    `torch.compile` made of the model has all its heads.

    Raises:
        ValueError: for a head that is no (kind, layer, number), or naming what of one
            does not exist, and for a model that is compiled, as a whole or in parts.
    """
    for module in model.modules():
        if hasattr(module, "_orig_mod") or module._compiled_call_impl is not None:
            raise ValueError(
                "ablate_heads needs a model that is not compiled, in none of its parts"
            )
    with ExitStack() as afterwards:
        for head in heads:
            if not isinstance(head, tuple) or len(head) != 3:
                got = f"got {head!r:.60}"
                raise ValueError(f"a head is (kind, layer, number), {got}")
            kind, layer, number = head
            kinds = attention_layers(model)
            if kind not in kinds:
                raise ValueError(
                    f"a head's kind is one of {', '.join(kinds)}, got {kind!r}"
                )
            layers = kinds[kind]
            if layer not in range(len(layers)):
                raise ValueError(
                    f"{kind} attention has layers 0..{len(layers) - 1}, got {layer!r}"
                )
            count = layers[layer].num_heads
            if number not in range(count):
                raise ValueError(
                    f"layer {layer} of {kind} attention has heads 0..{count - 1}, "
                    f"got {number!r}"
                )
            hook = layers[layer].output_proj.register_forward_pre_hook(
                _zero_head(number, count)
            )
            afterwards.callback(hook.remove)
        yield
