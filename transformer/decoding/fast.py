"""Fast decoding: weights packed, the decoder's for one position at a time.

Made from book/workshop/fast-decoding.md: edit the chapter, not this file.
"""

import copy
import math
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from transformer.checks import require_ids
from transformer.decoder import DecoderLayer
from transformer.decoding.packed import PackedLinear
from transformer.decoding.step import DecoderState, decoder_layers, plain_decoder
from transformer.decoding.support import has_hooks, packable, unwrap
from transformer.encoder import EncoderLayer, Residual
from transformer.masks import padding_mask
from transformer.model import Transformer

__all__ = [
    "FlatResidual",
    "FastEncoderLayer",
    "FastDecoderLayer",
    "PackedModel",
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
        """Copy the weights of a residual's norm."""
        norm = residual.norm
        weight, bias = (
            None if each is None else each.detach().clone()
            for each in (norm.weight, norm.bias)
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
        attention = layer.self_attention
        self.heads = attention.num_heads
        self.scale = (attention.query_proj.out_features // self.heads) ** -0.5
        self.self_proj = PackedLinear.pack(
            attention.query_proj,
            attention.key_proj,
            attention.value_proj,
            scale_first=self.scale,
        )
        self.self_output = PackedLinear.pack(attention.output_proj)
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
        self.cross_query = PackedLinear.pack(cross.query_proj, scale_first=self.scale)
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


class PackedModel:
    """A copy of a model's weights, laid out as fast decoding reads them.

    Training the model afterwards does not change the copy.
    """

    def __init__(self, model: Transformer) -> None:
        self.config = model.config
        encoder, decoder = model.encoder.layers, decoder_layers(model)
        cross = [layer.cross_attention for layer in decoder]
        memory_maps = [
            proj
            for attention in cross
            for proj in (attention.key_proj, attention.value_proj)
        ]
        with torch.inference_mode(False), torch.no_grad():  # also of use outside
            self.encoder_layers = [
                FastEncoderLayer(cast("EncoderLayer", layer)) for layer in encoder
            ]
            self.memory_proj = PackedLinear.pack(*memory_maps)
            self.decoder_layers = [FastDecoderLayer(layer) for layer in decoder]
            self.output = PackedLinear.pack(model.output)
            ends = model.encoder.norm, model.decoder.norm
            tables = model.source_embedding, model.target_embedding, model.position
            copied = copy.deepcopy(nn.ModuleList((*tables, *ends))).eval()
        rest: list[Any] = list(copied)
        self.source_embedding, self.target_embedding, self.position = rest[:3]
        self.encoder_norm, self.decoder_norm = rest[3:]

    @torch.no_grad()
    def encode(
        self, source_ids: Int[Tensor, "sources length"], mask: Tensor | None
    ) -> Float[Tensor, "layers 2 sources heads length d_k"]:
        """The keys and values of every decoder layer's cross-attention."""
        sources, length = source_ids.shape
        require_ids(source_ids, self.config.source_vocab_size, "source ids")
        x = self.position(self.source_embedding(source_ids)).flatten(0, 1)
        for layer in self.encoder_layers:
            x = layer(x, mask, length)
        keys_values = self.memory_proj(self.encoder_norm(x))
        heads, layers = self.config.num_heads, len(self.decoder_layers)
        parts = keys_values.view(sources, length, layers, 2, heads, -1)
        return parts.permute(2, 3, 0, 4, 1, 5).contiguous()


@dataclass
class FastState:
    """Some sources, some hypotheses of each, and the keys and values so far.

    Stores hold the positions one after the other, each with a slot for every
    hypothesis of its time. Nothing is moved when hypotheses are reordered: `ancestry`
    (which slots hold a hypothesis's own past), added to the scores of self-attention,
    is 0 there and -∞ elsewhere; a single hypothesis needs none, and attends to all. A
    source has `width` hypotheses: one until the first reordering, then `beam_size`.
    """

    packed: PackedModel
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
        packed, end = self.packed, self.filled + self.width
        if self.ancestry is not None:
            new = self.ancestry[:, 0, : self.width, self.filled : end]
            new.diagonal(dim1=1, dim2=2).zero_()  # each sees its own
        rows = F.embedding(tokens, packed.target_embedding.table.weight)
        scale = math.sqrt(packed.config.d_model)
        x = torch.add(packed.position.table[self.position], rows, alpha=scale)
        caches = zip(packed.decoder_layers, self.past, self.memory, strict=True)
        for layer, past, memory in caches:
            x = layer(x, self, past, memory)
        self.filled, self.position = end, self.position + 1
        return packed.output(packed.decoder_norm(x))

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


class FastDecoder:
    """A model packed for fast decoding: searches find what they find with the model.

    The weights are copied and packed once, when the decoder is made. After training, or
    any other change of the model, make a new one. What packed weights cannot follow
    exactly is left to the model's own modules, as `plain_decoder` calls them: half
    precision and autocast, hooks, and parts that are not the package's own (LoRA,
    quantisation, another activation). In float32, logits may differ from the model's in
    their last bits.

    Raises:
        ValueError: for anything but a Transformer.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = unwrap(model, f"a {type(self).__name__}")
        self.packed = PackedModel(self.model) if packable(self.model) else None

    def prefill(
        self,
        source_ids: Int[Tensor, "sources length"],
        max_length: int,
        beam_size: int = 1,
    ) -> DecoderState:
        """Encode the sources, once, with room for `beam_size` hypotheses of each."""
        autocast = torch.is_autocast_enabled(source_ids.device.type)
        if self.packed is None or autocast or has_hooks(self.model):
            plain = plain_decoder(self.model)
            return plain.prefill(source_ids, max_length, beam_size)
        mask = padding_mask(source_ids, self.packed.config.pad_id)
        hidden = None if mask.all() else mask
        memory = self.packed.encode(source_ids, hidden)
        layers, _, sources, heads, _, d_k = memory.shape
        slots = max_length * beam_size
        past = memory.new_empty(layers, 2, sources, heads, slots, d_k)
        ancestry = None
        if beam_size > 1:
            ancestry = memory.new_full((sources, 1, beam_size, slots), -math.inf)
        return FastState(self.packed, memory, hidden, list(past), ancestry, beam_size)
