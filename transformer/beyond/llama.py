"""Llama: RMSNorm, rotary positions, grouped queries and SwiGLU in a language model.

Made from book/19-since-2017.md: edit the chapter, not this file.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from transformer.beyond.language_model import LanguageModel, LanguageModelConfig
from transformer.beyond.modern import (
    GroupedQueryAttention,
    RMSNorm,
    RotaryEmbedding,
    SwiGLU,
)
from transformer.checks import (
    require_above_zero,
    require_bool,
    require_divides,
    require_positive,
)
from transformer.encoder import Residual
from transformer.weights.classes import register_model
from transformer.weights.state import (
    load_strictly,
    require_one_dtype,
    require_state_dict,
    shapes_only,
    tie_parameters,
)

__all__ = [
    "LlamaConfig",
    "Llama",
    "from_llama",
    "to_llama",
]


@dataclass(frozen=True)
class LlamaConfig(LanguageModelConfig):
    """Llama configuration: a language model's, and what its exchanged parts need.

    `num_kv_heads` is to be given with `num_heads`, which it must divide.

    Raises:
        ValueError: naming the first field that no model could be built from.
    """

    dropout: float = 0.0
    num_kv_heads: int = 12
    rope_base: float = 10_000.0
    norm_eps: float = 1e-6
    tie_embeddings: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(num_kv_heads=self.num_kv_heads)
        require_bool(tie_embeddings=self.tie_embeddings)
        require_above_zero(rope_base=self.rope_base, norm_eps=self.norm_eps)
        d_k = self.d_model // self.num_heads
        if d_k % 2:
            raise ValueError(f"d_k must be even, to make pairs, got {d_k}")
        require_divides(num_kv_heads=self.num_kv_heads, num_heads=self.num_heads)
        if not self.norm_first or self.dropout:
            raise ValueError(
                "a Llama is pre-norm and has no dropout, "
                f"got norm_first={self.norm_first} and dropout={self.dropout}"
            )


@register_model
class Llama(LanguageModel):
    """Llama (Touvron et al. 2023): a language model with its parts exchanged.

    The forward pass accepts texts longer than `config.max_length`, but may predict
    badly far beyond what it was trained on; cached decoding does not accept them.

    Raises:
        ValueError: for token ids outside the vocabulary, of the wrong dtype or empty.
    """

    config: LlamaConfig
    config_class = LlamaConfig

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        width, heads, sets = config.d_model, config.num_heads, config.num_kv_heads
        self.embedding = nn.Embedding(config.vocab_size, width)
        nn.init.normal_(self.embedding.weight, std=0.02)  # also an output, if tied
        self.position = nn.Identity()
        rotary = RotaryEmbedding(config.rope_base)
        for layer in self.encoder.layers:
            layer.self_attention = GroupedQueryAttention(width, heads, sets, rotary)
            layer.feed_forward = SwiGLU(width, config.d_ff)
        for module in list(self.modules()):
            if isinstance(module, Residual):
                module.norm = RMSNorm(width, config.norm_eps)  # type: ignore[assignment]
        norm = RMSNorm(width, config.norm_eps)
        self.encoder.norm = norm  # type: ignore[assignment]
        self.tie_weights()

    def tie_weights(self) -> None:
        """Make the embedding table and the output projection one, if they are to be."""
        if self.config.tie_embeddings:
            tie_parameters(self, "embedding.weight", "output.weight")


_LLAMA_NAMES = (
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


def from_llama(
    state: Mapping[str, Tensor],
    num_heads: int,
    rope_base: float = 10_000.0,
    norm_eps: float = 1e-6,
    max_length: int = 2048,
    eos_id: int | None = None,
) -> Llama:
    """A Llama of ours from the weights of one of the library transformers.

    Takes the `state_dict()` of its LlamaForCausalLM, or what a file of weights holds.
    Sizes are those of the tensors. What cannot be seen in them is asked for: the number
    of heads, and `rope_theta` and `rms_norm_eps` of its config; a config with another
    `rope_type` than "default", or with a `head_dim` of its own, is not ours. The model
    is in evaluation mode.

    Raises:
        ValueError: naming the first tensor that is missing, unknown, misshapen or of
            another dtype, and what `LlamaConfig` refuses.
    """
    require_state_dict(state)
    layer = "model.layers.0"
    need = (
        "model.embed_tokens.weight",
        f"{layer}.mlp.gate_proj.weight",
        f"{layer}.self_attn.k_proj.weight",
        f"{layer}.self_attn.q_proj.weight",
    )
    for name in need:
        if name not in state or state[name].dim() != 2:
            raise ValueError(f"not the weights of a Llama: no matrix {name}")
    table, gate, key, query = (state[name] for name in need)
    if query.size(0) != table.size(1):
        raise ValueError(
            "a head_dim of its own is not ours: queries have "
            f"{query.size(0)} numbers, embeddings {table.size(1)}"
        )
    # Older files keep the rates of the positions, in float32.
    state = {n: x for n, x in state.items() if not n.endswith(".rotary_emb.inv_freq")}
    require_one_dtype(state)
    require_positive(num_heads=num_heads)
    d_k = table.size(1) // num_heads
    output = state.get("lm_head.weight", table)
    config = LlamaConfig(
        vocab_size=table.size(0),
        d_model=table.size(1),
        num_heads=num_heads,
        num_layers=len({n.split(".")[2] for n in state if n[:13] == "model.layers."}),
        d_ff=gate.size(0),
        dropout=0.0,
        max_length=max_length,
        eos_id=eos_id,
        num_kv_heads=key.size(0) // max(d_k, 1),
        rope_base=rope_base,
        norm_eps=norm_eps,
        tie_embeddings=output.shape == table.shape and output.equal(table),
    )
    ours: dict[str, Tensor] = {"output.weight": output.detach().clone()}
    for name, weight in state.items():
        for their_name, our_name in _LLAMA_NAMES:
            name = name.replace(their_name, our_name)
        ours[name] = weight.detach().clone()
    with shapes_only():
        model = Llama(config)
    load_strictly(model, ours)
    return model.eval()


def to_llama(model: Llama) -> dict[str, Tensor]:
    """The way back from `from_llama`: our weights under a LlamaForCausalLM's names.

    Raises:
        ValueError: for anything but a Llama.
    """
    if not isinstance(model, Llama):
        raise ValueError(f"to_llama needs a Llama, got a {type(model).__name__}")
    theirs = {}
    for name, weight in model.state_dict().items():
        for their_name, our_name in _LLAMA_NAMES:
            name = name.replace(our_name, their_name)
        theirs[name] = weight
    return theirs
