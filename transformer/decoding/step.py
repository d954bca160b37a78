"""Incremental decoding, with a cache of keys and values or without one.

Made from book/13-decoding.md: edit the chapter, not this file.
"""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, cast, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformer.decoder import DecoderLayer
from transformer.decoding.support import require_cacheable, unwrap
from transformer.masks import padding_mask
from transformer.model import Transformer
from transformer.multi_head import KeysValues

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
    "UncachedState",
    "UncachedDecoder",
    "plain_decoder",
    "evaluating",
]


@runtime_checkable
class DecoderState(Protocol):
    """A batch of unfinished sequences, as a search sees it.

    `step` appends a token to each row and returns logits for the next one, which the
    caller may overwrite and which last until the next step. `reorder` lets row i go on
    from what row `rows[i]` was. It may repeat or drop rows of a source and drop whole
    sources; it never moves a row to another source or changes the sources' order. Each
    source that it keeps has as many rows afterwards as `prefill` made room for.
    """

    def step(
        self, tokens: Int[Tensor, " rows"]
    ) -> Float[Tensor, "rows vocabulary"]: ...

    def reorder(self, rows: Int[Tensor, " kept"]) -> None: ...


@runtime_checkable
class SearchConfig(Protocol):
    """What a search reads of a model's config: its special ids and two sizes.

    Without a `pad_id`, sources are of one length.
    """

    @property
    def source_vocab_size(self) -> int: ...

    @property
    def max_length(self) -> int: ...

    @property
    def pad_id(self) -> int | None: ...

    @property
    def bos_id(self) -> int: ...

    @property
    def eos_id(self) -> int | None: ...


@runtime_checkable
class SearchModel(Protocol):
    """What a search reads of a model: its config, its device and its mode.

    A model without parameters, such as n-gram counts, works on the sources' device.
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
    positions = torch.full((1, 1), position, device=x.device)

    def attend_to_past(x: Tensor) -> Tensor:
        new = layer.self_attention.keys_values(x, x, positions)
        past_and_new = append(past, new, position)
        return layer.self_attention.attend(x, past_and_new, None, positions)

    def attend_to_memory(x: Tensor) -> Tensor:
        return layer.cross_attention.attend(x, memory, source_mask, positions)

    x = layer.residuals[0](x, attend_to_past)
    x = layer.residuals[1](x, attend_to_memory)
    return layer.residuals[2](x, layer.feed_forward)


def decoder_layers(model: Transformer) -> list[DecoderLayer]:
    """The decoder's layers, from the lowest up."""
    return [cast("DecoderLayer", layer) for layer in model.decoder.layers]


@dataclass
class CachedState:
    """The keys and values of each layer that need not be computed again.

    `memory` holds those of each row's source. `past` holds those of the tokens so far,
    in stores with room for all that may come; `position` counts the positions filled.
    Until the first reordering each source has a single row.
    """

    model: Transformer
    memory: list[KeysValues]
    source_mask: Bool[Tensor, "rows 1 1 source"]
    past: list[KeysValues]
    position: int = 0
    single: bool = True

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
        # Sources keep their order and their number of rows: if as many rows are left,
        # each has its memory already.
        if self.single or len(rows) < len(self.source_mask):
            self.single, self.source_mask = False, self.source_mask[rows]
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
        memory, past = [], []
        for layer in decoder_layers(model):
            keys, values = layer.cross_attention.keys_values(encoded, encoded)
            memory.append(KeysValues(keys, values))
            # The first position's keys and values, for their shapes alone.
            first = layer.self_attention.keys_values(encoded[:1, :1], encoded[:1, :1])
            rows = len(source_ids) * beam_size
            room = (x.new_empty(rows, x.size(1), max_length, x.size(3)) for x in first)
            past.append(KeysValues(*room))
        return CachedState(model, memory, mask, past)


@dataclass
class UncachedState:
    """Unfinished targets without a cache: each step runs the whole model on them."""

    model: Transformer
    source_ids: Int[Tensor, "rows source"]
    target_ids: Int[Tensor, "rows target"]

    def step(self, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocabulary"]:
        """Append a token to each row; the logits of the next."""
        self.target_ids = torch.cat([self.target_ids, tokens[:, None]], dim=1)
        logits: Tensor = self.model(self.source_ids, self.target_ids)
        return logits[:, -1]

    def reorder(self, rows: Int[Tensor, " kept"]) -> None:
        """Go on with these rows, in this order; one may come twice, or not at all."""
        self.source_ids = self.source_ids[rows]
        self.target_ids = self.target_ids[rows]


class UncachedDecoder:
    """Decoding without a cache: slow, and right whatever a model does in its forward.

    Raises:
        ValueError: for anything but a Transformer.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = unwrap(model, f"an {type(self).__name__}")

    def prefill(
        self,
        source_ids: Int[Tensor, "sources length"],
        max_length: int,
        beam_size: int = 1,
    ) -> UncachedState:
        """Begin a target, still empty, for each source."""
        none = source_ids.new_empty(len(source_ids), 0)
        return UncachedState(self.model, source_ids, none)


def plain_decoder(model: nn.Module) -> CachedDecoder | UncachedDecoder:
    """The decoder that calls a model's own modules, with a cache if one can follow it.

    If not, a warning names the part at which a cache would go wrong.

    Raises:
        ValueError: for anything but a Transformer.
    """
    inner = unwrap(model, "a search")
    try:
        return CachedDecoder(inner)
    except ValueError as reason:
        warnings.warn(f"decoding without a cache: {reason}", stacklevel=2)
        return UncachedDecoder(inner)


# The modules that were in training and are being evaluated: how often at once.
_evaluated: dict[nn.Module, int] = {}
_lock = threading.Lock()


@contextmanager
def evaluating(model: nn.Module | SearchModel) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards each module's own mode again.

    While this runs, the model is in evaluation mode for every thread. When several
    evaluations overlap, the last to finish restores the modes.
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
