"""Fast decoding: weights packed, the decoder's for one position at a time.

Made from book/workshop/fast-decoding.md: edit the chapter, not this file.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from transformer.checks import require_ids
from transformer.decoder import DecoderLayer
from transformer.decoding.packed import PackedLinear
from transformer.decoding.step import CachedDecoder, DecoderState, decoder_layers
from transformer.decoding.support import packable_weights, unwrap
from transformer.encoder import EncoderLayer, Residual
from transformer.masks import padding_mask

__all__ = [
    "FlatResidual",
    "FastEncoderLayer",
    "FastDecoderLayer",
    "FastState",
    "FastDecoder",
]


class FlatResidual(NamedTuple):
    """A residual connection and its norm as plain tensors, without calls of modules."""

    shape: tuple[int, ...]
    weight: Float[Tensor, " d_model"] | None
    bias: Float[Tensor, " d_model"] | None
    eps: float
    norm_first: bool

    @classmethod
    def of(cls, residual: Residual) -> "FlatResidual":
        """Read it off a residual."""
        norm = residual.norm
        weight, bias = (
            None if each is None else each.detach() for each in (norm.weight, norm.bias)
        )
        return cls(norm.normalized_shape, weight, bias, norm.eps, residual.norm_first)

    def normed(self, x: Float[Tensor, "rows d_model"]) -> Float[Tensor, "rows d_model"]:
        """Layer normalisation."""
        return torch.layer_norm(x, self.shape, self.weight, self.bias, self.eps)

    def before(self, x: Float[Tensor, "rows d_model"]) -> Float[Tensor, "rows d_model"]:
        """The sublayer's input."""
        return self.normed(x) if self.norm_first else x

    def after(
        self, x: Float[Tensor, "rows d_model"], output: Float[Tensor, "rows d_model"]
    ) -> Float[Tensor, "rows d_model"]:
        """The residual's output; the sublayer's `output` is written over."""
        both = output.add_(x)
        return both if self.norm_first else self.normed(both)


class _PackedLayer:
    """What encoder and decoder layers share: self-attention and feed-forward."""

    def __init__(self, layer: EncoderLayer | DecoderLayer) -> None:
        own = layer.self_attention
        self.heads = own.num_heads
        self.scale = (own.query_proj.out_features // own.num_heads) ** -0.5
        self_maps = own.query_proj, own.key_proj, own.value_proj
        self.self_proj = PackedLinear.pack(*self_maps, first=self.scale)
        self.self_output = PackedLinear.pack(own.output_proj)
        self.expand = PackedLinear.pack(layer.feed_forward.expand)
        self.contract = PackedLinear.pack(layer.feed_forward.contract)
        self.residuals = [
            FlatResidual.of(cast("Residual", residual)) for residual in layer.residuals
        ]

    def split(
        self, x: Float[Tensor, "rows d_model"], width: int
    ) -> Float[Tensor, "3 sources heads width d_k"]:
        """Queries, keys and values; `width` rows belong to a source."""
        d_k = x.size(-1) // self.heads
        split = self.self_proj(x).view(-1, width, 3, self.heads, d_k)
        return split.permute(2, 0, 3, 1, 4)

    def feed_forward(self, x: Float[Tensor, "rows d_model"]) -> Tensor:
        """The layer's last sublayer, in its residual."""
        residual = self.residuals[-1]
        return residual.after(x, self.contract(self.expand(residual.before(x)).relu_()))


class FastEncoderLayer(_PackedLayer):
    """An encoder layer, over all positions of all sources as rows of one matrix."""

    def __call__(
        self,
        x: Float[Tensor, "rows d_model"],
        mask: Bool[Tensor, "sources 1 1 length"] | None,
        length: int,
    ) -> Float[Tensor, "rows d_model"]:
        residual = self.residuals[0]
        queries, keys, values = self.split(residual.before(x), length)
        heads = F.scaled_dot_product_attention(queries, keys, values, mask, scale=1.0)
        output = self.self_output(heads.transpose(1, 2).reshape(x.shape))
        return self.feed_forward(residual.after(x, output))


class FastDecoderLayer(_PackedLayer):
    """A decoder layer at one new position, in as few operations as it takes."""

    def __init__(self, layer: DecoderLayer) -> None:
        super().__init__(layer)
        cross = layer.cross_attention
        self.cross_query = PackedLinear.pack(cross.query_proj, first=self.scale)
        self.cross_output = PackedLinear.pack(cross.output_proj)

    def __call__(
        self,
        x: Float[Tensor, "rows d_model"],
        state: "FastState",
        past: Float[Tensor, "2 sources heads slots d_k"],
        memory: Float[Tensor, "2 sources heads length d_k"],
    ) -> Float[Tensor, "rows d_model"]:
        first, second, _ = self.residuals
        x = first.after(x, self.attend_to_past(first.before(x), state, past))
        x = second.after(x, self.attend_to_memory(second.before(x), state, memory))
        return self.feed_forward(x)

    def attend_to_past(
        self,
        x: Float[Tensor, "rows d_model"],
        state: "FastState",
        past: Float[Tensor, "2 sources heads slots d_k"],
    ) -> Float[Tensor, "rows d_model"]:
        """Self-attention: store this position's keys and values, attend to all."""
        start, end = state.filled, state.filled + state.width
        split = self.split(x, state.width)
        past[:, :, :, start:end] = split[1:]
        keys, values = past[:, :, :, :end]
        mask = state.ancestry
        if mask is not None:
            mask = mask[:, :, : state.width, :end]
        heads = F.scaled_dot_product_attention(split[0], keys, values, mask, scale=1.0)
        return self.self_output(heads.transpose(1, 2).reshape(x.shape))

    def attend_to_memory(
        self,
        x: Float[Tensor, "rows d_model"],
        state: "FastState",
        memory: Float[Tensor, "2 sources heads length d_k"],
    ) -> Float[Tensor, "rows d_model"]:
        """Cross-attention: all hypotheses of a source attend to its one memory."""
        split = self.cross_query(x).view(-1, state.width, self.heads, memory.size(-1))
        keys, values = memory
        heads = F.scaled_dot_product_attention(
            split.transpose(1, 2), keys, values, state.source_mask, scale=1.0
        )
        return self.cross_output(heads.transpose(1, 2).reshape(x.shape))


@dataclass
class FastState:
    """Some sources, some hypotheses of each, and the keys and values so far.

    Stores hold the positions one after the other, each with a slot for every
    hypothesis of its time. Nothing is moved when hypotheses are reordered: `ancestry`
    (which slots hold a hypothesis's own past), added to the scores of self-attention,
    is 0 there and -∞ elsewhere; a single hypothesis needs none, and attends to all. A
    source has `width` hypotheses: one until the first reordering, then `beam_size`.
    """

    decoder: "FastDecoder"
    memory: Float[Tensor, "layers 2 sources heads length d_k"]  # keys, values
    source_mask: Tensor | None  # (sources, 1, 1, length)
    past: list[Float[Tensor, "2 sources heads slots d_k"]]  # keys, values
    ancestry: Tensor | None  # (sources, 1, beam_size, slots)
    beam_size: int
    width: int = 1
    filled: int = 0  # slots
    position: int = 0

    @torch.no_grad()
    def step(self, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocabulary"]:
        """Append a token to each row; the logits of the next."""
        model, end = self.decoder.model, self.filled + self.width
        if self.ancestry is not None:
            new = self.ancestry[:, 0, : self.width, self.filled : end]
            new.diagonal(dim1=1, dim2=2).zero_()  # each sees its own
        rows = F.embedding(tokens, model.target_embedding.table.weight)
        scale = math.sqrt(model.config.d_model)
        x = torch.add(model.position.table[self.position], rows, alpha=scale)
        for layer, past, memory in zip(
            self.decoder.layers, self.past, self.memory, strict=True
        ):
            x = layer(x, self, past, memory)
        self.filled, self.position = end, self.position + 1
        x = model.decoder.norm(x)
        return self.decoder.output(x)

    def reorder(self, rows: Int[Tensor, " kept"]) -> None:
        """Each hypothesis goes on from one of its source; sources may be dropped."""
        groups = rows.view(-1, self.beam_size)
        sources = groups[:, 0] // self.width
        if len(sources) < self.past[0].size(1):
            self._keep(sources)
        if self.ancestry is not None:
            parents = (groups % self.width)[:, :, None]
            before = self.ancestry[:, 0, :, : self.filled]
            before.copy_(before.gather(1, parents.expand_as(before)))
        self.width = self.beam_size

    def _keep(self, sources: Int[Tensor, " kept"]) -> None:
        for past in self.past:
            past[:, : len(sources), :, : self.filled] = past[
                :, sources, :, : self.filled
            ]
        self.past = [past[:, : len(sources)] for past in self.past]
        self.memory = self.memory[:, :, sources]
        if self.source_mask is not None:
            self.source_mask = self.source_mask[sources]
        if self.ancestry is not None:
            self.ancestry = self.ancestry[sources]


def _samples(weight: Tensor) -> list[Tensor]:
    """Views of a number of each row, in another column each time; or of a bias."""
    if weight.dim() < 2:
        return [weight]
    if weight.is_contiguous() and (step := weight.size(1) - 1):
        return [weight.view(-1)[step::step]]  # one column to the left in each row
    return [block.diagonal() for block in weight.split(weight.size(1))]


class FastDecoder:
    """A model packed for fast decoding: searches are to find what plain ones find.

    The weights are packed at the first search, and again at the next one
    after they have changed, in place or by replacement. A change through `.data` or by
    a fused optimiser is noticed by one number of each row, and in all of a bias:
    make a new FastDecoder after any other. What packed weights cannot follow exactly
    is decoded by the plain cache instead: half precision and autocast, modules with
    hooks, and those that are not the book's own (LoRA, quantisation, another
    activation). In float32 logits may differ from the plain ones in their last bits,
    and, where oneDNN multiplies, from one process to another.

    Raises:
        ValueError: for what `CachedDecoder` refuses.
    """

    encoder_layers: list[FastEncoderLayer]
    memory_proj: PackedLinear
    layers: list[FastDecoderLayer]
    output: PackedLinear

    def __init__(self, model: nn.Module) -> None:
        self.model = CachedDecoder(unwrap(model, f"a {type(self).__name__}")).model
        self._weights: list[nn.Parameter] = []
        self._versions: list[tuple[int, int, int]] = []
        self._settings: list[object] = []
        self._views: list[Tensor] = []
        self._probe = torch.empty(0)

    def __reduce__(self) -> tuple[type["FastDecoder"], tuple[nn.Module]]:
        """A copy, on disk too, has the model alone, and packs its weights again."""
        return type(self), (self.model,)

    def prefill(
        self,
        source_ids: Int[Tensor, "sources length"],
        max_length: int,
        beam_size: int = 1,
    ) -> DecoderState:
        """Encode the sources, once, with room for `beam_size` hypotheses of each."""
        model = self.model
        weights = packable_weights(model)
        if not weights:
            return CachedDecoder(model).prefill(source_ids, max_length, beam_size)
        self._pack(weights)
        mask = padding_mask(source_ids, model.config.pad_id)
        hidden = None if mask.all() else mask
        memory = self._encode(source_ids, hidden)
        return self._state(memory, hidden, max_length * beam_size, beam_size)

    def _state(
        self, memory: Tensor, hidden: Tensor | None, slots: int, beam_size: int
    ) -> DecoderState:
        """The sources with room for so many slots, all of them empty."""
        layers, _, sources, heads, _, d_k = memory.shape
        past = memory.new_empty(layers, 2, sources, heads, slots, d_k)
        ancestry = None
        if beam_size > 1:
            ancestry = memory.new_full((sources, 1, beam_size, slots), -math.inf)
        return FastState(self, memory, hidden, list(past), ancestry, beam_size)

    @torch.no_grad()
    def _encode(
        self, source_ids: Int[Tensor, "sources length"], mask: Tensor | None
    ) -> Float[Tensor, "layers 2 sources heads length d_k"]:
        """The keys and values of every decoder layer's cross-attention."""
        model, (sources, length) = self.model, source_ids.shape
        require_ids(source_ids, model.config.source_vocab_size, "source ids")
        x = model.position(model.source_embedding(source_ids)).flatten(0, 1)
        for layer in self.encoder_layers:
            x = layer(x, mask, length)
        keys_values = self.memory_proj(model.encoder.norm(x))
        heads, layers = self.layers[0].heads, len(self.layers)
        parts = keys_values.view(sources, length, layers, 2, heads, -1)
        return parts.permute(2, 3, 0, 4, 1, 5).contiguous()

    def _pack(self, weights: list[nn.Parameter]) -> None:
        """Pack the weights, unless those that are packed are still the model's.

        PyTorch counts the changes of each tensor, but not those through `.data` or by a
        fused optimiser: one number of each row is compared as well. Of a model
        made in inference mode no changes are counted: all numbers are compared. What
        norms have beside weights is compared, too, and the number of heads.
        """
        encoder, decoder = self.model.encoder.layers, decoder_layers(self.model)
        layers = cast("list[EncoderLayer | DecoderLayer]", [*encoder, *decoder])
        parts = [cast("Residual", one) for layer in layers for one in layer.residuals]
        ends = self.model.encoder.norm, self.model.decoder.norm
        settings: list[object] = [self.model.config.num_heads]
        settings += [(one.norm.eps, one.norm_first) for one in parts]
        settings += [getattr(norm, "eps", None) for norm in ends]
        counted = not any(weight.is_inference() for weight in weights)
        now = [
            (id(weight), weight.data_ptr(), weight._version if counted else 0)
            for weight in weights
        ]
        same = now == self._versions and settings == self._settings
        if same and torch.cat(self._views).equal(self._probe):
            return
        cross = [layer.cross_attention for layer in decoder]
        maps = [each for one in cross for each in (one.key_proj, one.value_proj)]
        with torch.inference_mode(False), torch.no_grad():  # of use outside of it
            self.encoder_layers = [
                FastEncoderLayer(cast("EncoderLayer", layer)) for layer in encoder
            ]
            self.memory_proj = PackedLinear.pack(*maps)
            self.layers = [FastDecoderLayer(layer) for layer in decoder]
            self.output = PackedLinear.pack(self.model.output)
        views = [weight.detach() for weight in weights]
        if counted:
            views = [one for view in views for one in _samples(view)]
        self._views = [view.flatten() for view in views]
        self._probe = torch.cat(self._views)
        # Last: another thread may look at them. Weights are kept, so their ids stay.
        self._weights, self._settings, self._versions = weights, settings, now
