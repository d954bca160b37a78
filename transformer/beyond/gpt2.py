"""GPT-2: learned positions, GELU, pre-norm, one table for input and output.

Made from book/17-language-model.md: edit the chapter, not this file.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from transformer.beyond.language_model import LanguageModel, LanguageModelConfig
from transformer.checks import require_dropout, require_positive
from transformer.encoder import FeedForward
from transformer.weights.classes import register_model
from transformer.weights.state import (
    load_strictly,
    require_one_dtype,
    require_state_dict,
    shapes_only,
    tie_parameters,
)

__all__ = [
    "GELUFeedForward",
    "LearnedPositions",
    "GPT2",
    "from_gpt2",
    "to_gpt2",
]


class GELUFeedForward(FeedForward):
    """Position-wise feed-forward network with a GELU, by its tanh approximation."""

    def forward(
        self, x: Float[Tensor, "batch length d_model"]
    ) -> Float[Tensor, "batch length d_model"]:
        return self.contract(F.gelu(self.expand(x), approximate="tanh"))


class LearnedPositions(nn.Module):
    """Learned positions: add a row of a trained table at each position, then dropout.

    Raises:
        ValueError: when asked for positions beyond `max_length`, for a size below 1 or
            dropout outside [0, 1).
    """

    def __init__(
        self, d_model: int, dropout: float = 0.0, max_length: int = 1024
    ) -> None:
        super().__init__()
        require_positive(d_model=d_model, max_length=max_length)
        require_dropout(dropout)
        self.dropout = nn.Dropout(dropout)
        self.table = nn.Embedding(max_length, d_model)
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(
        self, x: Float[Tensor, "batch length d_model"], start: int = 0
    ) -> Float[Tensor, "batch length d_model"]:
        """Add positions to `x`, whose first vector is at position `start`."""
        end, room = start + x.size(-2), self.table.num_embeddings
        if start < 0 or end > room:
            raise ValueError(
                f"positions must lie in 0..{room - 1}, got {start}..{end - 1}"
            )
        return self.dropout(x + self.table.weight[start:end])


@register_model
class GPT2(LanguageModel):
    """GPT-2 (Radford et al. 2019): a language model with three parts exchanged.

    Raises:
        ValueError: for a config that is not pre-norm, and what `LanguageModel` refuses.
    """

    def __init__(self, config: LanguageModelConfig) -> None:
        if not config.norm_first:
            raise ValueError("GPT-2 is pre-norm, got norm_first=False")
        super().__init__(config)
        width = config.d_model
        table = nn.Embedding(config.vocab_size, width)  # not multiplied by √d_model
        nn.init.normal_(table.weight, std=0.02)
        self.embedding = table
        self.position = LearnedPositions(width, config.dropout, config.max_length)
        for layer in self.encoder.layers:
            layer.feed_forward = GELUFeedForward(width, config.d_ff)
        self.tie_weights()

    def tie_weights(self) -> None:
        """Make the embedding table and the output projection one weight."""
        tie_parameters(self, "embedding.weight", "output.weight")


_GPT2_NAMES = (  # the longer first: mlp.c_proj is not attn.c_proj
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


def from_gpt2(
    state: Mapping[str, Tensor], num_heads: int, eos_id: int | None = None
) -> GPT2:
    """A GPT-2 of ours from the weights of one of the library transformers.

    Takes the `state_dict()` of its GPT2LMHeadModel or GPT2Model, or what a file of
    weights holds. Sizes are those of the tensors; the number of heads cannot be seen in
    them (GPT-2 small has 12). Nor can other settings, which are taken to be GPT-2's:
    tanh-approximated GELU, norms with an epsilon of 1e-5, and scores divided by √d_k
    alone. The model is in evaluation mode.

    Raises:
        ValueError: naming the first tensor that is missing, unknown, misshapen or of
            another dtype, an output projection that is not the embedding table, and
            what `LanguageModelConfig` refuses.
    """
    require_state_dict(state)
    theirs = {
        name.removeprefix("transformer."): weight
        for name, weight in state.items()
        if not name.endswith(_MASKS)
    }
    for name in ("wte.weight", "wpe.weight", "h.0.mlp.c_fc.weight"):
        if name not in theirs or theirs[name].dim() != 2:
            raise ValueError(f"not the weights of a GPT-2: no matrix {name}")
    require_one_dtype(theirs)
    table = theirs["wte.weight"]
    if not theirs.pop("lm_head.weight", table).equal(table):
        raise ValueError("a GPT-2 has one table: lm_head.weight is not wte.weight")
    config = LanguageModelConfig(
        vocab_size=table.size(0),
        d_model=table.size(1),
        num_heads=num_heads,
        num_layers=len({name.split(".")[1] for name in theirs if name[:2] == "h."}),
        d_ff=theirs["h.0.mlp.c_fc.weight"].size(1),
        max_length=len(theirs["wpe.weight"]),
        eos_id=eos_id,
    )
    ours: dict[str, Tensor] = {}
    for name, weight in theirs.items():
        if name.startswith("h."):
            name = f"encoder.layers.{name[2:]}"
            weight = weight.t()  # its matrices are (in, out); vectors stay as they are
        for their_name, our_name in _GPT2_NAMES:
            name = name.replace(their_name, our_name)
        layer, packed, kind = name.partition(".attn.c_attn.")
        names = [f"{layer}.self_attention.{role}_proj.{kind}" for role in _ROLES]
        names = names if packed else [name]
        for one, part in zip(names, weight.chunk(len(names)), strict=True):
            ours[one] = part.detach().clone(memory_format=torch.contiguous_format)
    ours["output.weight"] = ours["embedding.weight"]
    with shapes_only():
        model = GPT2(config)
    load_strictly(model, ours)
    return model.eval()


def to_gpt2(model: GPT2) -> dict[str, Tensor]:
    """The way back from `from_gpt2`: our weights under the names of a GPT2LMHeadModel.

    Raises:
        ValueError: for anything but a GPT2.
    """
    if not isinstance(model, GPT2):
        raise ValueError(f"to_gpt2 needs a GPT2, got a {type(model).__name__}")
    state = model.state_dict()
    theirs = {"lm_head.weight": state.pop("output.weight")}
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
        for their_name, our_name in _GPT2_NAMES:
            name = name.replace(our_name, their_name)
        if name.startswith("encoder.layers."):
            name, weight = name.replace("encoder.layers.", "h."), weight.t()
        theirs[f"transformer.{name}"] = weight
    return theirs
