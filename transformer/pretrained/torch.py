"""PyTorch's own Transformer modules as ours, and their weights back.

Made from book/10-model.md: edit the chapter, not this file.
"""

import copy
from collections.abc import Mapping
from functools import reduce
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from transformer.checks import InvalidType, InvalidValue, with_article
from transformer.decoder import Decoder, DecoderLayer
from transformer.encoder import Encoder, EncoderLayer, FeedForward, Residual
from transformer.multi_head import MultiHeadAttention
from transformer.weights.state import load_strictly, shapes_only

__all__ = [
    "Stacks",
    "from_torch",
    "to_torch",
    "mask_from_torch",
]


class Stacks(nn.Module):
    """Encoder and decoder over vectors, without embeddings: what `nn.Transformer` is.

    Masks are True where a query may attend, as everywhere in this book.
    """

    def __init__(self, encoder: Encoder, decoder: Decoder) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(
        self,
        source: Float[Tensor, "batch source d_model"],
        target: Float[Tensor, "batch target d_model"],
        source_mask: Bool[Tensor, "..."] | None = None,
        target_mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch target d_model"]:
        memory = self.encoder(source, source_mask)
        return self.decoder(target, memory, source_mask, target_mask)


_ACTIVATIONS: dict[Any, type[nn.Module]] = {
    F.relu: nn.ReLU,
    torch.relu: nn.ReLU,
    F.gelu: nn.GELU,
    F.silu: nn.SiLU,
}
_PARTS = (nn.Linear, nn.LayerNorm, nn.Dropout, nn.ModuleList, *_ACTIVATIONS.values())
_THEIRS = (
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
    nn.MultiheadAttention,
)
_OURS = (Stacks, Encoder, Decoder, EncoderLayer, DecoderLayer, MultiHeadAttention)
_ROLES = ("query", "key", "value")
_SIDES = ("encoder", "decoder")


def from_torch(theirs: nn.Module) -> Any:
    """Our module with the weights of one of PyTorch's, which are copied.

    An `nn.Transformer` becomes `Stacks`; a `TransformerEncoder`, `TransformerDecoder`,
    a layer of theirs or a `MultiheadAttention` becomes ours of that kind. The order of
    the norms, their `eps`, missing biases, dropout and the activation come along, and
    so do the last norms of post-norm stacks, which ours do not have otherwise. Ours
    takes (batch, length, d_model) whatever `batch_first` is, and masks of its own, as
    `mask_from_torch` makes them.

    Raises:
        TypeError: for anything but a module.
        ValueError: naming the first part of a class that this one does not know, such
            as a subclass or an activation, or an option that ours does not have.
    """
    if not isinstance(theirs, nn.Module):
        kind = with_article(type(theirs).__name__)
        raise InvalidType(f"from_torch takes one of PyTorch's modules, got {kind}")
    # What `out_proj` is: a linear layer under another name.
    linear = nn.modules.linear.NonDynamicallyQuantizableLinear
    _require_known(theirs, _THEIRS, (*_THEIRS, *_PARTS, linear))
    return _made(theirs).train(theirs.training)


def _require_known(
    module: nn.Module, whole: tuple[type, ...], parts: tuple[type, ...]
) -> None:
    """Refuse a module with a part whose forward pass is not that of a known class."""
    for place, part in module.named_modules():
        known = parts if place else whole
        if type(part) not in known or "forward" in vars(part):
            where = f" at {place}" if place else ""
            own = " with its own forward" if type(part) in known else ""
            name = f"{type(part).__module__}.{type(part).__qualname__}"
            raise InvalidValue(f"the class {name}{own}{where} is not known here")


def _made(theirs: Any) -> Any:
    if isinstance(theirs, nn.Transformer):
        return Stacks(_made(theirs.encoder), _made(theirs.decoder))
    if isinstance(theirs, nn.MultiheadAttention):
        return _attention(theirs)
    if isinstance(theirs, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
        return _layer(theirs)
    kind = Encoder if isinstance(theirs, nn.TransformerEncoder) else Decoder
    with shapes_only():
        stack = kind(2, 1, 1, 1)
    stack.layers = nn.ModuleList(map(_layer, theirs.layers))
    stack.norm = nn.Identity() if theirs.norm is None else copy.deepcopy(theirs.norm)
    return stack


def _attention(theirs: nn.MultiheadAttention) -> MultiHeadAttention:
    width = theirs.embed_dim
    for name, plain in (("kdim", width), ("vdim", width), ("add_zero_attn", False)):
        if getattr(theirs, name) != plain:
            raise InvalidValue(
                f"{name} is {getattr(theirs, name)!r}, expected {plain!r}: ours has "
                "no such attention"
            )
    if theirs.bias_k is not None:
        raise InvalidValue("add_bias_kv is True, expected False")
    bias = theirs.in_proj_bias is not None
    with shapes_only():
        ours = MultiHeadAttention(width, theirs.num_heads, theirs.dropout, bias)
    weights: dict[str, Tensor] = {}
    for name, weight in theirs.state_dict().items():
        kind = name.rpartition("_" if "in_proj" in name else ".")[2]
        names = [f"{role}_proj.{kind}" for role in _ROLES]
        names = names if "in_proj" in name else [f"output_proj.{kind}"]
        weights |= zip(names, weight.clone().chunk(len(names)), strict=True)
    load_strictly(ours, weights)
    return ours


def _layer(theirs: Any) -> EncoderLayer | DecoderLayer:
    attention = theirs.self_attn
    decodes = isinstance(theirs, nn.TransformerDecoderLayer)
    kind = DecoderLayer if decodes else EncoderLayer
    with shapes_only():  # all that has weights is replaced
        ours: Any = kind(attention.embed_dim, attention.num_heads, 1)
    ours.self_attention = _attention(attention)
    if decodes:
        ours.cross_attention = _attention(theirs.multihead_attn)
    ours.feed_forward.expand = copy.deepcopy(theirs.linear1)
    ours.feed_forward.contract = copy.deepcopy(theirs.linear2)
    ours.feed_forward.activation = _activation(theirs)
    for number, residual in enumerate(ours.residuals, 1):
        residual.norm = copy.deepcopy(getattr(theirs, f"norm{number}"))
        residual.dropout = copy.deepcopy(getattr(theirs, f"dropout{number}"))
        residual.norm_first = theirs.norm_first
    return ours


def _activation(layer: Any) -> nn.Module:
    """The activation, and the dropout that PyTorch's layers have after it."""
    found = layer.activation
    if isinstance(found, nn.Module):
        activation = copy.deepcopy(found)
    elif found in _ACTIVATIONS:
        activation = _ACTIVATIONS[found]()
    else:
        name = getattr(found, "__name__", type(found).__name__)
        raise InvalidValue(f"the activation {name} is not known here")
    if not layer.dropout.p:
        return activation
    return nn.Sequential(activation, copy.deepcopy(layer.dropout))


_TORCH_NAMES = (
    ("self_attention", "self_attn"),
    ("cross_attention", "multihead_attn"),
    ("output_proj", "out_proj"),
    ("feed_forward.expand", "linear1"),
    ("feed_forward.contract", "linear2"),
    ("residuals.0.norm", "norm1"),
    ("residuals.1.norm", "norm2"),
    ("residuals.2.norm", "norm3"),
)


def to_torch(ours: nn.Module | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The way back from `from_torch`: our weights under the names that PyTorch has.

    PyTorch's module of the same sizes takes them by `load_state_dict`. Of a whole
    `Transformer` these are the weights of its two stacks. Of other tensors by our
    names, such as gradients, only the names are changed.

    Raises:
        ValueError: naming the first part of a class that PyTorch's modules do not have.
    """
    if isinstance(ours, nn.Module):
        sides: list[Any] = [getattr(ours, name, None) for name in _SIDES]
        if all(sides):  # of a whole model
            ours = Stacks(*sides)
        parts = (*_OURS, *_PARTS, FeedForward, Residual, nn.Identity, nn.Sequential)
        _require_known(ours, _OURS, parts)
    state = ours.state_dict() if isinstance(ours, nn.Module) else ours
    theirs: dict[str, Tensor] = {}
    for name, weight in state.items():
        place, query, kind = name.partition("query_proj.")
        if query:
            packed = [state[f"{place}{role}_proj.{kind}"] for role in _ROLES]
            name, weight = f"{place}in_proj_{kind}", torch.cat(packed)
        elif "key_proj." in name or "value_proj." in name:
            continue
        for our_name, torch_name in _TORCH_NAMES:
            name = name.replace(our_name, torch_name)
        theirs[name] = weight
    return theirs


def mask_from_torch(
    attn_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    num_heads: int = 1,
) -> Bool[Tensor, "..."] | None:
    """Our mask, True where a query may attend, of those of PyTorch's modules.

    Theirs hide where they are True, or add -inf. An `attn_mask`, such as a `tgt_mask`,
    is (queries, keys) or, with `num_heads`, (batch · heads, queries, keys); a
    `key_padding_mask` is (batch, keys). With both, a key must be shown by both.

    Raises:
        ValueError: for a mask that adds anything but 0 and -inf.
    """
    shown = []
    if attn_mask is not None:
        mask = _shown(attn_mask)
        shown.append(mask.unflatten(0, (-1, num_heads)) if mask.dim() == 3 else mask)
    if key_padding_mask is not None:
        shown.append(_shown(key_padding_mask)[:, None, None, :])
    return reduce(torch.logical_and, shown) if shown else None


def _shown(mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        hidden = mask == -torch.inf
        if not mask.is_floating_point() or mask.masked_fill(hidden, 0).any():
            raise InvalidValue(
                "a mask must be boolean, or add 0 and -inf alone: ours hides or "
                "shows, and adds no bias to scores"
            )
        mask = hidden
    return ~mask
