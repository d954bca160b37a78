"""GPT-2 from and to the weights of the library transformers.

Made from book/17-language-model.md: edit the chapter, not this file.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from transformer.beyond.gpt2 import GPT2
from transformer.beyond.language_model import LanguageModelConfig
from transformer.pretrained.config import (
    end_id,
    layer_count,
    read_config,
    require_setting,
    require_tensors,
    setting,
)
from transformer.weights.state import load_strictly, require_state_dict, shapes_only

__all__ = [
    "from_gpt2",
    "to_gpt2",
]


_NAMES = (  # the longer first: mlp.c_proj is not attn.c_proj
    ("ln_f", "encoder.norm"),
    ("wte", "embedding"),
    ("wpe", "position.table"),
    ("ln_1", "residuals.0.norm"),
    ("ln_2", "residuals.1.norm"),
    ("attn.c_proj", "self_attention.output_proj"),
    ("mlp.c_fc", "feed_forward.expand"),
    ("mlp.c_proj", "feed_forward.contract"),
)
_ROLES = ("query", "key", "value")
_MASKS = (".attn.bias", ".attn.masked_bias")  # stored by old files, no weights


def from_gpt2(state: Mapping[str, Tensor], config: object) -> GPT2:
    """Make a GPT2 from the weights and the config of a GPT-2 of transformers.

    `state` is the `state_dict()` of the library's GPT2LMHeadModel or GPT2Model, or what
    a file of its weights holds. `config` is the model's `config`, a dictionary, or the
    path of its config.json. The weights keep their dtype and are copied; the model is
    in evaluation mode.

    Raises:
        FileNotFoundError: for a path without a config.json.
        TypeError: for what is no config, or no tensor.
        ValueError: naming the first setting that this class cannot follow, and the
            first tensor that is missing, unknown, misshapen or of another dtype, by the
            name that it came with.
    """
    require_state_dict(state)
    settings = read_config(config, "gpt2")
    require_setting(settings, "activation_function", "gelu_new", "gelu_pytorch_tanh")
    require_setting(settings, "layer_norm_epsilon", 1e-5)
    require_setting(settings, "scale_attn_weights", True)
    require_setting(settings, "scale_attn_by_inverse_layer_idx", False)
    require_setting(settings, "add_cross_attention", False)
    width = setting(settings, "n_embd")
    ours = LanguageModelConfig(
        vocab_size=setting(settings, "vocab_size"),
        d_model=width,
        num_heads=setting(settings, "n_head"),
        num_layers=layer_count(settings, "n_layer", state),
        d_ff=settings.get("n_inner") or 4 * width,
        dropout=settings.get("resid_pdrop", 0.1),
        max_length=setting(settings, "n_positions"),
        eos_id=end_id(settings, setting(settings, "vocab_size")),
    )
    with shapes_only():
        model = GPT2(ours)
    theirs = {name: x for name, x in state.items() if not name.endswith(_MASKS)}
    whole = any(name.startswith("transformer.") for name in theirs)
    prefix = "transformer." if whole else ""  # of a GPT2LMHeadModel, or a GPT2Model
    expected = {
        name.replace("transformer.", prefix): x for name, x in to_gpt2(model).items()
    }
    if "lm_head.weight" not in theirs:
        del expected["lm_head.weight"]
    require_tensors(theirs, expected)
    table = theirs[f"{prefix}wte.weight"]
    if not theirs.pop("lm_head.weight", table).equal(table):
        raise ValueError("a GPT-2 has one table: lm_head.weight is not wte.weight")
    weights: dict[str, Tensor] = {}
    for name, weight in theirs.items():
        name = name.removeprefix(prefix)
        if name.startswith("h."):
            name = f"encoder.layers.{name[2:]}"
            weight = weight.t()  # its matrices are (in, out); vectors stay as they are
        for their_name, our_name in _NAMES:
            name = name.replace(their_name, our_name)
        layer, packed, kind = name.partition(".attn.c_attn.")
        names = [f"{layer}.self_attention.{role}_proj.{kind}" for role in _ROLES]
        names = names if packed else [name]
        for one, part in zip(names, weight.chunk(len(names)), strict=True):
            weights[one] = part.detach().clone(memory_format=torch.contiguous_format)
    weights["output.weight"] = weights["embedding.weight"]
    load_strictly(model, weights)
    return model.eval()


def to_gpt2(model: GPT2) -> dict[str, Tensor]:
    """The weights of a GPT2 under the names that a GPT2LMHeadModel has for them.

    This is the way back from `from_gpt2`.

    Raises:
        ValueError: for anything but a GPT2.
    """
    if not isinstance(model, GPT2):
        raise ValueError(f"to_gpt2 needs a GPT2, got a {type(model).__name__}")
    state = model.state_dict()
    output = state.pop("output.weight")
    theirs = {}
    for name, weight in state.items():
        layer, query, kind = name.partition(".self_attention.query_proj.")
        if query:
            parts = [f"{layer}.self_attention.{role}_proj.{kind}" for role in _ROLES]
            name, weight = (
                f"{layer}.attn.c_attn.{kind}",
                torch.cat([state[part] for part in parts]),
            )
        elif ".key_proj." in name or ".value_proj." in name:
            continue
        for their_name, our_name in _NAMES:
            name = name.replace(our_name, their_name)
        if name.startswith("encoder.layers."):
            name, weight = name.replace("encoder.layers.", "h."), weight.t()
        theirs[f"transformer.{name}"] = weight
    return {**theirs, "lm_head.weight": output}
