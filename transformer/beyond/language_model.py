"""A decoder-only language model: causal self-attention over a text's own tokens.

Made from book/17-language-model.md: edit the chapter, not this file.
"""

import warnings
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from transformer.checks import (
    require_bool,
    require_divides,
    require_ids,
    require_positive,
    require_probability,
)
from transformer.decoding.support import (
    require_attention,
    require_followed,
    require_places,
    unwrap_to,
)
from transformer.embedding import TokenEmbedding
from transformer.encoder import Encoder, EncoderLayer
from transformer.masks import causal_mask
from transformer.multi_head import KeysValues
from transformer.positional import PositionalEncoding
from transformer.weights.classes import register_model
from transformer.weights.saved_model import SavedModel

__all__ = [
    "LanguageModelConfig",
    "LanguageModel",
    "append_tokens",
    "PromptState",
    "UncachedPromptState",
    "PromptDecoder",
]


@dataclass(frozen=True)
class LanguageModelConfig:
    """Language model configuration: the sizes of a model, by default of GPT-2 small.

    `eos_id` is the id that ends a text, if one does. The searches of chapter 13 also
    want an id for padding and one for where the prompt ends. They get the two numbers
    after the vocabulary, which the model never reads and never generates.

    Raises:
        ValueError: naming the first field that no model could be built from.
        TypeError: naming the first field of a wrong type.
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
        require_probability(dropout=self.dropout)
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
        """What a search puts after a prompt: the second number no token has."""
        return self.vocab_size + 1

    @property
    def source_vocab_size(self) -> int:
        """How many ids a batch of prompts may hold: the tokens' and the padding's."""
        return self.vocab_size + 1


@register_model
class LanguageModel(SavedModel):
    """Decoder-only language model: an encoder stack under a causal mask.

    It takes token ids, (batch, length), and gives logits for the token after each of
    them, (batch, length, vocabulary). Padding on the right changes nothing before it.

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
    mask: Bool[Tensor, "rows 1 new filled"],
) -> Float[Tensor, "rows new d_model"]:
    """An encoder layer at new positions, over the keys and values of earlier ones.

    It writes the new keys and values into `past`, whose tensors are (rows, heads, room,
    d_k), and attends to those of the filled places that `mask` allows. Several tokens
    of a row may come at once, so that a prompt is read in one pass.
    """
    rows = torch.arange(len(x), device=x.device)[:, None]
    attention: Any = layer.self_attention

    def attend_to_past(x: Tensor) -> Tensor:
        new = attention.keys_values(x, x, positions)
        for store, fresh in zip(past, new, strict=True):
            store[rows, :, positions] = fresh.transpose(1, 2)
        kept = KeysValues(*(store[: len(x), :, : mask.size(-1)] for store in past))
        return cast("Tensor", attention.attend(x, kept, mask, positions))

    x = layer.residuals[0](x, attend_to_past)
    return layer.residuals[1](x, layer.feed_forward)


def _adds_none(position: nn.Module) -> bool:
    """Whether an identity stands where positions are added, compiled or not."""
    return isinstance(getattr(position, "_orig_mod", position), nn.Identity)


@dataclass
class PromptState:
    """Texts that are being continued, with the keys and values of their tokens.

    `past` has room for all tokens that may come, and `filled` counts the places in use.
    `lengths` holds how many tokens each row has; as long as no prompt is shorter than
    another, `same_length` is True. `logits` are those of the token after each prompt,
    until a search takes them. No step waits for the device to know where it stands,
    unless prompts differ in length and their positions are added to the embeddings.
    """

    model: LanguageModel
    past: list[KeysValues]
    lengths: Int[Tensor, " rows"]
    filled: int = 0
    same_length: bool = True
    logits: Float[Tensor, "rows vocabulary"] | None = None

    def append(self, ids: Int[Tensor, "rows new"]) -> Float[Tensor, "rows new d_model"]:
        """Hidden states of new tokens, each row's after those that it has."""
        x = self._add_positions(self.model.embedding(ids))
        self.filled += ids.size(1)
        positions = torch.arange(ids.size(1), device=ids.device) + self.lengths[:, None]
        places = torch.arange(self.filled, device=ids.device)
        mask = (places <= positions[..., None])[:, None]  # (rows, 1, new, filled)
        for layer, past in zip(self.model.encoder.layers, self.past, strict=True):
            x = append_tokens(cast("EncoderLayer", layer), x, past, positions, mask)
        return self.model.encoder.norm(x)

    def _add_positions(self, x: Tensor) -> Tensor:
        position = self.model.position
        if _adds_none(position):
            return x  # the attention may know them
        if self.same_length:
            return cast("Tensor", position(x, self.filled))
        placed = zip(x.split(1), self.lengths.tolist(), strict=True)
        return torch.cat([position(row, start) for row, start in placed])

    def step(self, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocabulary"]:
        """Append a token to each row; the logits of the next.

        A search begins with a step of its own bos id: that returns the prompts' logits.
        """
        logits, self.logits = self.logits, None
        if logits is None:
            hidden = self.append(tokens[:, None])
            self.lengths = self.lengths + 1
            logits = self.model.output(hidden[:, 0])
        return logits

    def reorder(self, rows: Int[Tensor, " kept"]) -> None:
        """Go on with these rows, in this order; one may come twice, or not at all."""
        for past in self.past:
            for store in past:
                store[: len(rows), :, : self.filled] = store[rows, :, : self.filled]
        self.lengths = self.lengths[rows]
        if self.logits is not None:
            self.logits = self.logits[rows]


@dataclass
class UncachedPromptState:
    """Texts that are being continued without a cache: each step reads them whole.

    `ids`, (rows, room), has 0 where there is no token yet. What follows a token changes
    nothing at its place.
    """

    model: LanguageModel
    ids: Int[Tensor, "rows room"]
    lengths: Int[Tensor, " rows"]
    filled: int
    begun: bool = False

    def step(self, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocabulary"]:
        """Append a token to each row, the first time none; the logits of the next."""
        rows = torch.arange(len(tokens), device=tokens.device)
        if self.begun:
            self.ids[rows, self.lengths] = tokens
            self.lengths, self.filled = self.lengths + 1, self.filled + 1
        self.begun = True
        logits = self.model(self.ids[:, : self.filled])
        return logits[rows, self.lengths - 1]

    def reorder(self, rows: Int[Tensor, " kept"]) -> None:
        """Go on with these rows, in this order; one may come twice, or not at all."""
        self.ids, self.lengths = self.ids[rows], self.lengths[rows]


class PromptDecoder:
    """Cached decoding of a language model, for every search of chapter 13.

    Give it to `greedy_search`, `sample` or `beam_search` in place of a Transformer:
    prompts are the sources, and the results are what follows them. A tensor of prompts
    is padded with the config's `pad_id`: 0 is a token like any other.

    A compiled, distributed or averaged model is unwrapped. A model that the cache
    cannot follow, such as one with hooks on its layers or with another class of
    attention, is decoded without a cache, and a warning says why.

    Raises:
        ValueError: for anything but a LanguageModel.
    """

    # What a search reads of it: its config, its mode, and where its parameters are.
    model: Any

    def __init__(self, model: nn.Module) -> None:
        self.model = unwrap_to(LanguageModel, model, "a PromptDecoder")

    def _require_cacheable(self) -> None:
        """Refuse what a cache would not follow."""
        model = self.model
        require_followed("the model", model, LanguageModel)
        require_followed("encoder", model.encoder, Encoder)
        for number, layer in enumerate(model.encoder.layers):
            name = f"encoder.layers.{number}"
            require_followed(name, layer, EncoderLayer)
            require_attention(f"{name}.self_attention", layer.self_attention)
        if _adds_none(model.position):
            require_followed("position", model.position, nn.Identity)
        else:
            require_places(model.position)

    def prefill(
        self,
        source_ids: Int[Tensor, "prompts length"],
        max_length: int,
        beam_size: int = 1,
    ) -> PromptState | UncachedPromptState:
        """Read the prompts, once, and make room for `beam_size` rows of each.

        Raises:
            ValueError: for a prompt without ids, or one that leaves too few positions
                for `max_length`.
        """
        model, (prompts, longest) = self.model, source_ids.shape
        lengths = (source_ids != model.config.pad_id).sum(dim=1)
        shortest = int(lengths.min())
        if not shortest:
            raise ValueError("every prompt needs at least one id, got padding alone")
        needed, room = longest + max_length - 1, model.config.max_length
        if needed > room:
            raise ValueError(
                f"a prompt of {longest} ids and {max_length} more need "
                f"{needed} positions, the model has {room}"
            )
        ids = source_ids.where(source_ids != model.config.pad_id, 0)
        try:
            self._require_cacheable()  # at each search: hooks may come at any time
        except ValueError as reason:
            warnings.warn(f"decoding without a cache: {reason}", stacklevel=2)
            ids = F.pad(ids, (0, max_length - 1))
            return UncachedPromptState(model, ids, lengths, longest)
        token = next(model.parameters()).new_zeros(1, 1, model.config.d_model)
        past = []
        for layer in model.encoder.layers:  # room of the shape and dtype that they have
            kept = layer.self_attention.keys_values(token, token)
            rows = prompts * beam_size
            room = (x.new_zeros(rows, x.size(1), needed, x.size(3)) for x in kept)
            past.append(KeysValues(*room))
        state = PromptState(model, past, torch.zeros_like(lengths))
        hidden = state.append(ids)
        last = hidden[torch.arange(prompts, device=ids.device), lengths - 1]
        state.logits = model.output(last)
        state.lengths, state.same_length = lengths, shortest == longest
        return state
