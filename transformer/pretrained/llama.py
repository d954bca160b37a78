"""Llama from and to the weights of the library transformers.

Made from book/19-since-2017.md: edit the chapter, not this file.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from transformer.beyond.llama import Llama, LlamaConfig
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
    "from_llama",
    "to_llama",
]


_NAMES = (
    ("model.embed_tokens", "embedding"),
    ("model.layers", "encoder.layers"),
    ("model.norm", "encoder.norm"),
    ("self_attn.q_proj", "self_attention.query_proj"),
    ("self_attn.k_proj", "self_attention.key_proj"),
    ("self_attn.v_proj", "self_attention.value_proj"),
    ("self_attn.o_proj", "self_attention.output_proj"),
    ("mlp.gate_proj", "feed_forward.gate"),
    ("mlp.up_proj", "feed_forward.expand"),
    ("mlp.down_proj", "feed_forward.contract"),
    ("input_layernorm", "residuals.0.norm"),
    ("post_attention_layernorm", "residuals.1.norm"),
    ("lm_head", "output"),
)


def from_llama(state: Mapping[str, Tensor], config: object) -> Llama:
    """Make a Llama from the weights and the config of a Llama of transformers.

    `state` is the `state_dict()` of the library's LlamaForCausalLM, or what a file of
    its weights holds. `config` is the model's `config`, a dictionary, or the path of
    its config.json. The weights keep their dtype and are copied; the model is in
    evaluation mode.

    Raises:
        FileNotFoundError: for a path without a config.json.
        TypeError: for what is no config, or no tensor.
        ValueError: naming the first setting that this class cannot follow, such as a
            scaled rotation, and the first tensor that is missing, unknown, misshapen or
            of another dtype.
    """
    require_state_dict(state)
    settings = read_config(config, "llama")
    require_setting(settings, "hidden_act", "silu", "swish")  # one function's two names
    require_setting(settings, "attention_bias", False)
    require_setting(settings, "mlp_bias", False)
    ours = LlamaConfig(
        vocab_size=setting(settings, "vocab_size"),
        d_model=setting(settings, "hidden_size"),
        num_heads=setting(settings, "num_attention_heads"),
        num_layers=layer_count(settings, "num_hidden_layers", state),
        d_ff=setting(settings, "intermediate_size"),
        max_length=setting(settings, "max_position_embeddings"),
        eos_id=end_id(settings, setting(settings, "vocab_size")),
        num_kv_heads=settings.get("num_key_value_heads"),
        rope_base=_rope_base(settings),
        norm_eps=setting(settings, "rms_norm_eps"),
        tie_embeddings=settings.get("tie_word_embeddings", False),
    )
    require_setting(settings, "head_dim", ours.d_model // ours.num_heads, None)
    with shapes_only():
        model = Llama(ours)
    # Older files also keep the rates of the rotation, which are no weights.
    theirs = {n: x for n, x in state.items() if not n.endswith(".rotary_emb.inv_freq")}
    expected = to_llama(model)
    if ours.tie_embeddings and "lm_head.weight" not in theirs:
        del expected["lm_head.weight"]
    require_tensors(theirs, expected)
    table = theirs["model.embed_tokens.weight"]
    output = theirs.pop("lm_head.weight", table)
    if ours.tie_embeddings and not output.equal(table):
        raise ValueError(
            "lm_head.weight differs from model.embed_tokens.weight, which the config "
            "says is the same"
        )
    weights: dict[str, Tensor] = {"output.weight": output.detach().clone()}
    for name, weight in theirs.items():
        for their_name, our_name in _NAMES:
            name = name.replace(their_name, our_name)
        weights[name] = weight.detach().clone()
    load_strictly(model, weights)
    return model.eval()


def _rope_base(settings: Mapping[str, Any]) -> Any:
    """The base of the rotation, from a config of any version of the library."""
    base = settings.get("rope_theta")
    for name in ("rope_parameters", "rope_scaling"):
        rope = settings.get(name) or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default":
            raise ValueError(f"rope_type is {kind!r}, expected 'default'")
        require_setting({**settings, **rope}, "partial_rotary_factor", 1.0, None)
        base = rope.get("rope_theta", base)
    return 10_000.0 if base is None else base  # the first Llama's configs do not say


def to_llama(model: Llama) -> dict[str, Tensor]:
    """The weights of a Llama under the names that a LlamaForCausalLM has for them.

    This is the way back from `from_llama`.

    Raises:
        ValueError: for anything but a Llama.
    """
    if not isinstance(model, Llama):
        raise ValueError(f"to_llama needs a Llama, got a {type(model).__name__}")
    theirs = {}
    for name, weight in model.state_dict().items():
        for their_name, our_name in _NAMES:
            name = name.replace(our_name, their_name)
        theirs[name] = weight
    return theirs
