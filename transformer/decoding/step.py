"""Incremental decoding with a cache of keys and values.

Made from book/13-decoding.md: edit the chapter, not this file.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, cast, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformer.decoder import DecoderLayer
from transformer.decoding.support import attention_class, require_cacheable, unwrap
from transformer.masks import padding_mask
from transformer.model import Transformer
from transformer.multi_head import KeysValues, MultiHeadAttention

__all__ = [
    "DecoderState",
    "SearchConfig",
    "SearchModel",
    "IncrementalDecoder",
    "append",
    "decoder_layer_step",
    "decoder_layers",
    "CachedState",
    "CachedDecoder",
    "evaluating",
]


@runtime_checkable
class DecoderState(Protocol):
    """A batch of unfinished sequences, as a search sees it.

    `step` appends a token to each row and returns logits for the next one, which the
    caller may overwrite and which last until the next step. `reorder` lets row i go on
    from what row `rows[i]` was. A source's rows may be repeated and left out among
    themselves, and sources dropped, but the sources keep their order. Each source
    that `reorder` keeps has as many rows afterwards as `prefill` made room for.
    """

    def step(
        self, tokens: Int[Tensor, " rows"]
    ) -> Float[Tensor, "rows vocabulary"]: ...

    def reorder(self, rows: Int[Tensor, " kept"]) -> None: ...


@runtime_checkable
class SearchConfig(Protocol):
    """What a search reads of a model's config: its special ids and two sizes."""

    @property
    def source_vocab_size(self) -> int: ...

    @property
    def max_length(self) -> int: ...

    @property
    def pad_id(self) -> int: ...

    @property
    def bos_id(self) -> int: ...

    @property
    def eos_id(self) -> int | None: ...


@runtime_checkable
class SearchModel(Protocol):
    """What a search reads of a model: its config, its device and its mode.

    One without parameters, such as n-gram counts, takes sources on their own device.
    """

    @property
    def config(self) -> SearchConfig: ...

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...

    def modules(self) -> Iterator[nn.Module]: ...


@runtime_checkable
class IncrementalDecoder(Protocol):
    """A model that decodes step by step.

    `prefill` encodes the sources, a row each, with room for `beam_size` rows of each,
    made by `reorder`: those of a source stay side by side, and sources never mix.
    """

    @property
    def model(self) -> SearchModel: ...

    def prefill(
        self, source_ids: Int[Tensor, "sources length"], max_length: int, beam_size: int
    ) -> DecoderState: ...


def append(past: KeysValues, new: KeysValues, position: int) -> KeysValues:
    """Write one position's keys and values behind the earlier ones; return them all."""
    rows = len(new.keys)
    for store, fresh in zip(past, new, strict=True):
        store[:rows, :, position : position + 1] = fresh
    return KeysValues(*(store[:rows, :, : position + 1] for store in past))


def decoder_layer_step(
    layer: DecoderLayer,
    x: Float[Tensor, "rows 1 d_model"],
    past: KeysValues,
    position: int,
    memory: KeysValues,
    source_mask: Bool[Tensor, "rows 1 1 source"],
) -> Float[Tensor, "rows 1 d_model"]:
    """A decoder layer at one new position: its residuals, with other closures."""

    def attend_to_past(x: Tensor) -> Tensor:
        new = layer.self_attention.keys_values(x, x)
        return layer.self_attention.attend(x, append(past, new, position))

    x = layer.residuals[0](x, attend_to_past)
    x = layer.residuals[1](
        x, lambda x: layer.cross_attention.attend(x, memory, source_mask)
    )
    return layer.residuals[2](x, layer.feed_forward)


def decoder_layers(model: Transformer) -> list[DecoderLayer]:
    """The decoder's layers, from the lowest up."""
    return [cast("DecoderLayer", layer) for layer in model.decoder.layers]


@dataclass
class CachedState:
    """The keys and values of each layer that need not be computed again.

    `memory` holds those of each row's source. `past` holds those of the tokens so far,
    in stores with room for all that may come; `position` counts the positions filled.
    `sources` is the number of each row's source.
    """

    model: Transformer
    memory: list[KeysValues]
    source_mask: Bool[Tensor, "rows 1 1 source"]
    past: list[KeysValues]
    sources: Int[Tensor, " rows"]
    position: int = 0

    def step(self, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocabulary"]:
        """Append a token to each row; the logits of the next."""
        model = self.model
        x = model.position(model.target_embedding(tokens[:, None]), self.position)
        caches = zip(decoder_layers(model), self.past, self.memory, strict=True)
        for layer, past, memory in caches:
            x = decoder_layer_step(
                layer, x, past, self.position, memory, self.source_mask
            )
        self.position += 1
        return model.output(model.decoder.norm(x))[:, 0]

    def reorder(self, rows: Int[Tensor, " kept"]) -> None:
        """Go on with these rows, in this order; one may come twice, or not at all."""
        for past in self.past:
            for store in past:
                store[: len(rows), :, : self.position] = store[rows, :, : self.position]
        sources = self.sources[rows]
        if not sources.equal(self.sources):  # else each row has its memory already
            self.sources, self.source_mask = sources, self.source_mask[rows]
            self.memory = [
                KeysValues(keys[rows], values[rows]) for keys, values in self.memory
            ]


class CachedDecoder:
    """Plain cached decoding: the model's own modules, one position at a time.

    Raises:
        ValueError: for a model whose decoder computes what the cache would miss.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = unwrap(model, f"a {type(self).__name__}")
        require_cacheable(self.model)

    def prefill(
        self,
        source_ids: Int[Tensor, "sources length"],
        max_length: int,
        beam_size: int = 1,
    ) -> CachedState:
        """Encode the sources, once, and make room for `beam_size` rows of each."""
        model = self.model
        require_cacheable(model)  # again: hooks may have come since
        encoded = model.encode(source_ids)
        mask = padding_mask(source_ids, model.config.pad_id)
        sources = torch.arange(len(source_ids), device=encoded.device)
        memory, past = [], []
        for layer in decoder_layers(model):
            keys, values = layer.cross_attention.keys_values(encoded, encoded)
            memory.append(KeysValues(keys, values))
            own, rows = layer.self_attention, len(sources) * beam_size
            if attention_class(own) is MultiHeadAttention:
                d_k = encoded.size(-1) // own.num_heads
                kept = KeysValues(*[keys.new_empty(1, own.num_heads, 1, d_k)] * 2)
            else:  # of another class only its own keys and values tell the shapes
                kept = own.keys_values(encoded[:1, :1], encoded[:1, :1])
            room = (x.new_empty(rows, x.size(1), max_length, x.size(3)) for x in kept)
            past.append(KeysValues(*room))
        return CachedState(model, memory, mask, past, sources)


# The modules that were in training and are being evaluated: how often at once.
_evaluated: dict[nn.Module, int] = {}
_lock = threading.Lock()


@contextmanager
def evaluating(model: nn.Module | SearchModel) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards each module's own mode again.

    A model in training mode is another one meanwhile, for other threads as well; the
    last of several that evaluate it at once gives it back its modes.
    """
    with _lock:
        modules = [
            module
            for module in model.modules()
            if module.training or module in _evaluated
        ]
        for module in modules:
            _evaluated[module] = _evaluated.get(module, 0) + 1
            module.training = False
    try:
        with torch.inference_mode():
            yield
    finally:
        with _lock:
            for module in modules:
                _evaluated[module] -= 1
                if not _evaluated[module]:
                    del _evaluated[module]
                    module.training = True
