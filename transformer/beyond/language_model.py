"""A decoder-only language model: causal self-attention over a text's own tokens.

Made from book/17-language-model.md: edit the chapter, not this file.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transformer.checks import (
    require_bool,
    require_divides,
    require_dropout,
    require_ids,
    require_positive,
    with_article,
)
from transformer.decoding.support import (
    attention_class,
    require_followed,
    require_places,
    unwrap_to,
)
from transformer.embedding import TokenEmbedding
from transformer.encoder import Encoder, EncoderLayer
from transformer.masks import causal_mask
from transformer.multi_head import KeysValues, MultiHeadAttention
from transformer.positional import PositionalEncoding
from transformer.weights.classes import register_model
from transformer.weights.saved_model import SavedModel

__all__ = [
    "LanguageModelConfig",
    "LanguageModel",
    "append_tokens",
    "PromptState",
    "PromptDecoder",
]


@dataclass(frozen=True)
class LanguageModelConfig:
    """Language model configuration: its sizes; the defaults are those of GPT-2 small.

    `eos_id` is the id that ends a text, if one does. The searches of chapter 13 also
    want ids for padding and for where the prompt ends: they are given the two numbers
    behind the vocabulary, which the model never reads and never generates.

    Raises:
        ValueError: naming the first field that no model could be built from.
    """

    vocab_size: int
    d_model: int = 768
    num_heads: int = 12
    num_layers: int = 12
    d_ff: int = 3072
    dropout: float = 0.1
    norm_first: bool = True
    max_length: int = 1024
    eos_id: int | None = None

    def __post_init__(self) -> None:
        require_positive(
            vocab_size=self.vocab_size,
            d_model=self.d_model,
            num_heads=self.num_heads,
            num_layers=self.num_layers,
            d_ff=self.d_ff,
            max_length=self.max_length,
        )
        require_dropout(self.dropout)
        require_bool(norm_first=self.norm_first)
        if self.d_model % 2:
            raise ValueError(f"d_model must be even, got {self.d_model}")
        require_divides(num_heads=self.num_heads, d_model=self.d_model)
        if self.eos_id is not None and (
            type(self.eos_id) is not int or not 0 <= self.eos_id < self.vocab_size
        ):
            raise ValueError(
                f"eos_id must lie in 0..{self.vocab_size - 1} or be None, "
                f"got {self.eos_id!r}"
            )

    @property
    def pad_id(self) -> int:
        """What pads prompts of unequal length: the first number no token has."""
        return self.vocab_size

    @property
    def bos_id(self) -> int:
        """What a search puts behind a prompt: the second number no token has."""
        return self.vocab_size + 1

    @property
    def source_vocab_size(self) -> int:
        """How many ids a batch of prompts may hold: the tokens' and the padding's."""
        return self.vocab_size + 1


@register_model
class LanguageModel(SavedModel):
    """Decoder-only language model: an encoder stack under a causal mask.

    From token ids, (batch, length), to a score for every token that could follow each
    of them. Padding on the right changes nothing before it.

    Raises:
        ValueError: for token ids outside the vocabulary, of the wrong dtype, empty, or
            longer than `config.max_length`.
    """

    config: LanguageModelConfig
    config_class = LanguageModelConfig

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding: nn.Module = TokenEmbedding(config.vocab_size, config.d_model)
        self.position: nn.Module = PositionalEncoding(
            config.d_model, config.dropout, config.max_length
        )
        self.encoder = Encoder(
            config.d_model,
            config.num_heads,
            config.d_ff,
            config.num_layers,
            config.dropout,
            config.norm_first,
        )
        self.output = nn.Linear(config.d_model, config.vocab_size, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(
        self, ids: Int[Tensor, "batch length"]
    ) -> Float[Tensor, "batch length vocabulary"]:
        require_ids(ids, self.config.vocab_size)
        x = self.position(self.embedding(ids))
        return self.output(self.encoder(x, causal_mask(ids.size(1), ids.device)))


def append_tokens(
    layer: EncoderLayer,
    x: Float[Tensor, "rows new d_model"],
    past: KeysValues,
    positions: Int[Tensor, "rows new"],
) -> Float[Tensor, "rows new d_model"]:
    """An encoder layer at new positions, over the keys and values of earlier ones.

    Writes the new keys and values into `past`, (rows, heads, room, d_k). Each position
    attends to those up to its own, so that a whole prompt can come at once. Attention
    that turns queries and keys (chapter 19) is told the positions.
    """
    rows, end = torch.arange(len(x), device=x.device)[:, None], int(positions.max()) + 1
    slots = torch.arange(end, device=x.device)
    mask = (slots <= positions[..., None])[:, None]  # (rows, 1, new, end)
    attention: Any = layer.self_attention
    at = (positions,) if getattr(attention, "rotary", None) is not None else ()

    def attend_to_past(x: Tensor) -> Tensor:
        new = attention.keys_values(x, x, *at)
        for store, fresh in zip(past, new, strict=True):
            store[rows, :, positions] = fresh.transpose(1, 2)
        kept = KeysValues(*(store[: len(x), :, :end] for store in past))
        return cast("Tensor", attention.attend(x, kept, mask, *at))

    x = layer.residuals[0](x, attend_to_past)
    return layer.residuals[1](x, layer.feed_forward)


def _adds_none(position: nn.Module) -> bool:
    """Whether an identity stands where positions are added, compiled or not."""
    return isinstance(getattr(position, "_orig_mod", position), nn.Identity)


@dataclass
class PromptState:
    """Texts that are being continued: keys and values, lengths, and the next logits.

    `past` has room for all tokens that may come; `lengths` are how many each row has.
    `logits` are those of the token behind each prompt, until a search takes them.
    """

    model: LanguageModel
    past: list[KeysValues]
    lengths: Int[Tensor, " rows"]
    logits: Float[Tensor, "rows vocabulary"] | None = None

    def append(self, ids: Int[Tensor, "rows new"]) -> Float[Tensor, "rows new d_model"]:
        """Hidden states of new tokens, each row's behind those that it has."""
        x, starts = self.model.embedding(ids), self.lengths.tolist()
        if _adds_none(self.model.position):
            pass  # attention may know positions
        elif len(set(starts)) == 1:
            x = self.model.position(x, starts[0])
        else:
            placed = zip(x.split(1), starts, strict=True)
            x = torch.cat([self.model.position(row, start) for row, start in placed])
        positions = torch.arange(ids.size(1), device=ids.device) + self.lengths[:, None]
        for layer, past in zip(self.model.encoder.layers, self.past, strict=True):
            x = append_tokens(cast("EncoderLayer", layer), x, past, positions)
        return self.model.encoder.norm(x)

    def step(self, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocabulary"]:
        """Append a token to each row; the logits of the next.

        A search begins with a step of its own bos id: that returns the prompts' logits.
        """
        logits, self.logits = self.logits, None
        if logits is None:
            hidden = self.append(tokens[:, None])
            self.lengths = self.lengths + 1
            logits = self.model.output(hidden[:, 0])
        beyond = logits.new_full((len(logits), 2), -torch.inf)  # padding, and bos
        return torch.cat([logits, beyond], dim=1)

    def reorder(self, rows: Int[Tensor, " kept"]) -> None:
        """Go on with these rows, in this order; one may come twice, or not at all."""
        end = int(self.lengths.max())
        for past in self.past:
            for store in past:
                store[: len(rows), :, :end] = store[rows, :, :end]
        self.lengths = self.lengths[rows]
        if self.logits is not None:
            self.logits = self.logits[rows]


class PromptDecoder:
    """Cached decoding of a language model, for every search of chapter 13.

    Give it to `greedy_search`, `sample` or `beam_search` in place of a Transformer:
    prompts are the sources, and the results are what follows them. A tensor of prompts
    is padded with the config's `pad_id`: 0 is a token like any other.

    A compiled, distributed or averaged model is unwrapped.

    Raises:
        ValueError: for anything but a LanguageModel, and one in which a module has a
            forward pass or hooks of its own, which the cache would pass over: at each
            `prefill` too.
    """

    # What a search reads of it: its config, its mode, and where its parameters are.
    model: Any

    def __init__(self, model: nn.Module) -> None:
        self.model = unwrap_to(LanguageModel, model, "a PromptDecoder")
        self._require_cacheable()

    def _require_cacheable(self) -> None:
        """Refuse what decoding would not follow; hooks may come at any time."""
        model = self.model
        require_followed("the model", model, LanguageModel)
        require_followed("encoder", model.encoder, Encoder)
        for number, layer in enumerate(model.encoder.layers):
            name, attention = f"encoder.layers.{number}", layer.self_attention
            kind = attention_class(attention)
            require_followed(name, layer, EncoderLayer)
            require_followed(f"{name}.self_attention", attention, kind)
            own = type(getattr(attention, "_orig_mod", attention))
            plain = all(
                getattr(own, method) is getattr(MultiHeadAttention, method)
                for method in ("keys_values", "attend")
            )
            told = plain or hasattr(attention, "rotary")
            if _adds_none(model.position) and not told:
                raise ValueError(
                    f"{name}.self_attention is {with_article(own.__name__)}, which "
                    "cannot be told positions, and none are added to the embeddings"
                )
        if _adds_none(model.position):
            require_followed("position", model.position, nn.Identity)
        else:
            require_places(model.position)

    def prefill(
        self,
        source_ids: Int[Tensor, "prompts length"],
        max_length: int,
        beam_size: int = 1,
    ) -> PromptState:
        """Read the prompts, once, and make room for `beam_size` rows of each.

        Raises:
            ValueError: for a prompt without ids, or one that leaves too few positions
                for `max_length`.
        """
        self._require_cacheable()
        model = self.model
        lengths = (source_ids != model.config.pad_id).sum(dim=1)
        if not lengths.all():
            raise ValueError("every prompt needs at least one id, got padding alone")
        needed, room = source_ids.size(1) + max_length - 1, model.config.max_length
        if needed > room:
            raise ValueError(
                f"a prompt of {source_ids.size(1)} ids and {max_length} more need "
                f"{needed} positions, the model has {room}"
            )
        ids = source_ids.where(source_ids != model.config.pad_id, 0)
        token = next(model.parameters()).new_zeros(1, 1, model.config.d_model)
        past = []
        for layer in model.encoder.layers:  # room of the shape and dtype that they have
            kept = layer.self_attention.keys_values(token, token)
            rows = len(ids) * beam_size
            room = (x.new_zeros(rows, x.size(1), needed, x.size(3)) for x in kept)
            past.append(KeysValues(*room))
        state = PromptState(model, past, torch.zeros_like(lengths))
        hidden = state.append(ids)
        prompts = torch.arange(len(ids), device=ids.device)
        state.logits = model.output(hidden[prompts, lengths - 1])
        state.lengths = lengths
        return state
