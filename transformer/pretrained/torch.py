"""Weights from and to `torch.nn.Transformer`.

Made from book/10-model.md: edit the chapter, not this file.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from transformer.decoder import Decoder
from transformer.encoder import Encoder
from transformer.weights.state import load_strictly, require_state_dict, shapes_only

__all__ = [
    "from_torch",
    "to_torch",
]


_TORCH_NAMES = (
    ("self_attn", "self_attention"),
    ("multihead_attn", "cross_attention"),
    ("out_proj", "output_proj"),
    ("linear1", "feed_forward.expand"),
    ("linear2", "feed_forward.contract"),
    ("norm1", "residuals.0.norm"),
    ("norm2", "residuals.1.norm"),
    ("norm3", "residuals.2.norm"),
)
_ROLES = ("query", "key", "value")


def from_torch(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the weights of a `torch.nn.Transformer` to those of our two stacks.

    Takes its `state_dict()` and gives the `encoder.…` and `decoder.…` part of ours;
    torch's class has neither embeddings nor an output projection. Its packed query, key
    and value projections come apart into three. The last norms of both stacks come
    along if they are there; our post-norm stacks have none, and refuse them when
    loaded. What weights do not show must agree: ReLU, heads, the order of the norms.

    Raises:
        ValueError: naming the first tensor that is missing, unknown or misshapen.
    """
    require_state_dict(state)
    d_model, d_ff = _sizes(state, "norm1.weight", "linear1.bias")
    with shapes_only():
        layer = nn.TransformerEncoderLayer(d_model, 1, d_ff)
        depth = _depth(state, "encoder")
        encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        decoder_layer = nn.TransformerDecoderLayer(d_model, 1, d_ff)
        decoder = nn.TransformerDecoder(decoder_layer, _depth(state, "decoder"))
    _require_stacks(state, encoder, decoder, d_model)
    ours: dict[str, Tensor] = {}
    for name, weight in state.items():
        for torch_name, our_name in _TORCH_NAMES:
            name = name.replace(torch_name, our_name)
        layer_name, packed, kind = name.partition(".in_proj_")
        names = [f"{layer_name}.{role}_proj.{kind}" for role in _ROLES]
        names = names if packed else [name]
        ours.update(zip(names, weight.chunk(len(names)), strict=True))
    return ours


def to_torch(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The way back from `from_torch`: our stacks' weights under torch's names.

    Takes a whole `state_dict()` of ours too, and leaves out what torch does not have.

    Raises:
        ValueError: naming the first tensor that is missing, unknown or misshapen.
    """
    require_state_dict(state)
    sides = ("encoder.", "decoder.")
    stacks = {name: weight for name, weight in state.items() if name.startswith(sides)}
    d_model, d_ff = _sizes(
        stacks, "residuals.0.norm.weight", "feed_forward.expand.bias"
    )
    with shapes_only():
        encoder = Encoder(d_model, 1, d_ff, _depth(stacks, "encoder"))
        decoder = Decoder(d_model, 1, d_ff, _depth(stacks, "decoder"))
    _require_stacks(stacks, encoder, decoder, d_model)
    theirs: dict[str, Tensor] = {}
    for name, weight in stacks.items():
        layer_name, query, kind = name.partition(".query_proj.")
        if query:
            parts = [stacks[f"{layer_name}.{role}_proj.{kind}"] for role in _ROLES]
            name, weight = f"{layer_name}.in_proj_{kind}", torch.cat(parts)
        elif ".key_proj." in name or ".value_proj." in name:
            continue
        for torch_name, our_name in _TORCH_NAMES:
            name = name.replace(our_name, torch_name)
        theirs[name] = weight
    return theirs


def _sizes(state: Mapping[str, Tensor], norm: str, bias: str) -> list[int]:
    """d_model and d_ff, as two tensors of the first layer have them."""
    names = [f"encoder.layers.0.{name}" for name in (norm, bias)]
    for name in names:
        if name not in state:
            raise ValueError(f"not the weights of an encoder and a decoder: no {name}")
    return [max(1, state[name].numel()) for name in names]


def _depth(state: Mapping[str, Tensor], side: str) -> int:
    start = f"{side}.layers."
    return max(1, len({name.split(".")[2] for name in state if name.startswith(start)}))


def _require_stacks(
    state: Mapping[str, Tensor], encoder: nn.Module, decoder: nn.Module, d_model: int
) -> None:
    """Refuse weights that these two stacks, on the meta device, cannot load."""
    stacks = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
    for side, stack in stacks.items():
        if f"{side}.norm.weight" in state:
            stack.norm = nn.LayerNorm(d_model, device="meta")
    # Detached: what a module loads as a parameter, it gives its own requires_grad.
    load_strictly(stacks, {name: weight.detach() for name, weight in state.items()})
