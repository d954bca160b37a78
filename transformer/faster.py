"""Made from book/15-faster.md: edit the chapter, not this file."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from transformer.data import PAD, Batch
from transformer.decoder import DecoderLayer
from transformer.decoding import (
    layers_of,
    penalised,
    ready,
    require_beam,
    speaking,
)
from transformer.embedding import require_positive
from transformer.encoder import Residual
from transformer.masks import padding_mask
from transformer.model import Transformer
from transformer.multi_head import KeysValues

__all__ = [
    "ChunkedLoss",
    "summed_loss",
    "chunked_loss",
    "lesson_loss",
    "CoarseDropout",
    "coarse_dropout",
    "half_precision",
    "Side",
    "Talk",
    "Around",
    "LeanLayer",
    "Beams",
    "Speaker",
]


class ChunkedLoss(torch.autograd.Function):
    """The smoothed losses of some rows, summed; their gradient is made at once."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Float[Tensor, "rows d_model"],
        table: Float[Tensor, "vocabulary d_model"],
        wanted: Int[Tensor, "rows"],
        smoothing: float,
        rows_at_once: int,
        learning: bool,
    ) -> Float[Tensor, ""]:
        device = hidden.device.type
        exact = torch.promote_types(table.dtype, torch.float32)  # what sums are kept in
        autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if autocast else table.dtype
        words = table.to(dtype)
        loss = torch.zeros((), dtype=exact, device=hidden.device)
        grad_hidden = torch.zeros_like(hidden, dtype=exact)
        grad_table = torch.zeros_like(table, dtype=exact)
        # One block of memory for all rows: asking for a new one each time costs more
        # than the softmax in it.
        block = min(rows_at_once, len(hidden)), len(words)
        room = words.new_empty(block), words.new_empty(block)
        with torch.autocast(device, enabled=False):
            for start in range(0, len(hidden), rows_at_once):
                some = slice(start, start + rows_at_once)
                rows, right = hidden[some].to(dtype), wanted[some, None]
                logits = torch.mm(rows, words.T, out=room[0][: len(rows)])
                chances = torch.softmax(logits, dim=-1, out=room[1][: len(rows)])
                of_right = logits.gather(-1, right).squeeze(-1).to(exact)
                chance = chances.gather(-1, right).squeeze(-1)
                log_sum = of_right - chance.to(exact).log()  # ln Σ exp(z)
                lost = chance == 0  # too unlikely for a number: then by its definition
                log_sum[lost] = logits[lost].to(exact).logsumexp(-1)
                loss += (log_sum - (1 - smoothing) * of_right).sum()
                if learning:
                    each = torch.arange(len(rows), device=hidden.device)
                    chances[each, right[:, 0]] -= 1 - smoothing  # p - q, but for ε / V
                    grad_hidden[some] = (chances @ words).to(exact)
                    if dtype == exact:
                        grad_table.addmm_(chances.T, rows)
                    else:  # a product in half precision cannot add to a whole one
                        grad_table += chances.T @ rows
            share = smoothing / len(table)
            every_word = table.sum(0, dtype=exact)
            every_row = hidden.sum(0, dtype=exact)
            loss -= share * (every_word @ every_row)
            grad_hidden -= share * every_word
            grad_table -= share * every_row
        ctx.save_for_backward(grad_hidden.to(hidden.dtype), grad_table.to(table.dtype))
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Float[Tensor, ""]) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_table = ctx.saved_tensors
        return slope * grad_hidden, slope * grad_table, None, None, None, None


def summed_loss(
    hidden: Float[Tensor, "targets d_model"],
    table: Float[Tensor, "vocabulary d_model"],
    wanted: Int[Tensor, "targets"],
    smoothing: float = 0.1,
    rows_at_once: int = 256,
) -> Float[Tensor, ""]:
    """The smoothed losses of targets, summed, in nats; none of them may be padding.

    Never more than `rows_at_once` rows of logits exist, and the gradient is made in the
    same pass. `table` is the weight of the output map.

    Raises:
        ValueError: for smoothing outside [0, 1), sizes that disagree, `rows_at_once`
            below 1, no targets, or one that the table has no row for.
    """
    require_positive(rows_at_once=rows_at_once)
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing must lie in [0, 1), got {smoothing}")
    if hidden.shape[:-1] != wanted.shape:
        shapes = f"{tuple(hidden.shape)} and {tuple(wanted.shape)}"
        raise ValueError(f"each target needs a row of hidden, got {shapes}")
    if hidden.size(-1) != table.size(-1):
        widths = f"{hidden.size(-1)} and {table.size(-1)}"
        raise ValueError(f"hidden and table must be equally wide, got {widths}")
    if not len(wanted):
        raise ValueError("a loss needs at least one target, got only padding")
    low, high = (int(bound) for bound in wanted.aminmax())
    if low < 0 or high >= len(table):
        wrong = low if low < 0 else high
        raise ValueError(f"targets must lie in 0..{len(table) - 1}, got {wrong}")
    learning = torch.is_grad_enabled()
    return ChunkedLoss.apply(  # type: ignore[no-untyped-call]
        hidden, table, wanted, smoothing, rows_at_once, learning
    )


def chunked_loss(
    hidden: Float[Tensor, "batch length d_model"],
    table: Float[Tensor, "vocabulary d_model"],
    wanted: Int[Tensor, "batch length"],
    smoothing: float = 0.1,
    pad_id: int = PAD,
    rows_at_once: int = 256,
) -> Float[Tensor, ""]:
    """What `label_smoothed_loss(hidden @ table.T, wanted)` says, without the logits.

    Raises:
        ValueError: for what `summed_loss` refuses, or targets that are all padding.
    """
    if hidden.shape[:-1] != wanted.shape:
        shapes = f"{tuple(hidden.shape)} and {tuple(wanted.shape)}"
        raise ValueError(f"each target needs a row of hidden, got {shapes}")
    real = wanted != pad_id
    total = summed_loss(hidden[real], table, wanted[real], smoothing, rows_at_once)
    return total / real.sum()


def lesson_loss(
    model: Transformer, batch: Batch, smoothing: float = 0.1, rows_at_once: int = 256
) -> Float[Tensor, ""]:
    """The smoothed loss of a batch, with logits only where there is a target."""
    pad_id = model.config.pad_id
    source_mask = padding_mask(batch.source, pad_id)
    hidden = model.decode(batch.given, model.encode(batch.source), source_mask)
    table = model.output.weight
    return chunked_loss(hidden, table, batch.wanted, smoothing, pad_id, rows_at_once)


class CoarseDropout(nn.Dropout):
    """Dropout that decides about a number by 16 random bits, four numbers a draw.

    The share dropped is the multiple of 1/65536 nearest to `p`, and below 1; what is
    kept is divided by the share kept, so nothing is added or lost on average. Only a
    processor is sped up: elsewhere, and in evaluation, this is PyTorch's own.
    """

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        if not self.training or x.device.type != "cpu":
            return super().forward(x)
        dropped = min(round(self.p * 2**16), 2**16 - 1)
        draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device)
        draws.random_(-(2**63), None)
        bits = draws.view(torch.int16)  # -32768 to 32767, evenly
        kept = bits[: x.numel()].view(x.shape) >= dropped - 2**15
        return x * kept.to(x.dtype).mul_(2**16 / (2**16 - dropped))


def coarse_dropout(model: nn.Module) -> None:
    """Let every dropout inside a model draw fewer bits."""
    for part in list(model.modules()):
        for name, child in part.named_children():
            if type(child) is nn.Dropout:
                setattr(part, name, CoarseDropout(child.p).train(child.training))


@contextmanager
def half_precision(device: str) -> Iterator[None]:
    """Large products in bfloat16; on a processor, attention spelled out.

    There, fused attention in bfloat16 is slow where sequences are short.
    """
    attention = sdpa_kernel(SDPBackend.MATH) if device == "cpu" else nullcontext()
    with torch.autocast(device, torch.bfloat16), attention:
        yield


class Side(NamedTuple):
    """Linear maps of one input side by side, stored as few rows read them best."""

    weight: Float[Tensor, "inputs outputs"]
    bias: Float[Tensor, "outputs"]

    @classmethod
    def by_side(cls, *maps: nn.Linear, first: float = 1.0) -> "Side":
        """Lay maps side by side, the first of them multiplied by a number."""
        factors = [first] + [1.0] * (len(maps) - 1)
        pairs = list(zip(maps, factors, strict=True))
        weight = torch.cat([one.weight * factor for one, factor in pairs])
        bias = torch.cat([one.bias * factor for one, factor in pairs])
        return cls(weight.detach().T.contiguous(), bias.detach())

    def __call__(
        self, x: Float[Tensor, "rows inputs"]
    ) -> Float[Tensor, "rows outputs"]:
        return torch.addmm(self.bias, x, self.weight)


@dataclass
class Talk:
    """What some sentences, each with `beams` beginnings, have heard and said.

    Stores hold the positions one after the other, each with a cell for every beginning.
    `seen` is 0 where a beginning may look and -∞ elsewhere; a single one sees all.
    Logits are written on one of the `sheets`, what is made of them on the other.
    """

    memory: list[KeysValues]
    source_mask: Bool[Tensor, "sources 1 1 length"] | None
    past: list[Float[Tensor, "2 sources heads cells d_k"]]  # keys, values
    seen: Float[Tensor, "sources 1 beams cells"] | None
    sheets: Float[Tensor, "2 rows vocabulary"]
    beams: int
    filled: int = 0

    def keep(self, rows: Int[Tensor, "kept"]) -> None:
        """Go on with these sentences alone."""
        for past in self.past:
            past[:, : len(rows), :, : self.filled] = past[:, rows, :, : self.filled]
        self.past = [past[:, : len(rows)] for past in self.past]
        self.memory = [KeysValues(k[rows], v[rows]) for k, v in self.memory]
        if self.source_mask is not None:
            self.source_mask = self.source_mask[rows]
        if self.seen is not None:
            self.seen = self.seen[rows]

    def follow(self, parents: Int[Tensor, "sources beams"]) -> None:
        """Each beginning goes on from one of the earlier ones, and sees what it saw."""
        if self.seen is not None:
            before = self.seen[:, 0, :, : self.filled]
            before.copy_(before.gather(1, parents[:, :, None].expand_as(before)))


class Around(NamedTuple):
    """A residual and its norm, laid out: looking things up in modules takes time."""

    shape: tuple[int, ...]
    weight: Float[Tensor, "d_model"]
    bias: Float[Tensor, "d_model"]
    eps: float
    norm_first: bool

    @classmethod
    def of(cls, residual: Residual) -> "Around":
        """Read it off a residual."""
        norm = residual.norm
        weight, bias = norm.weight.detach(), norm.bias.detach()
        return cls(norm.normalized_shape, weight, bias, norm.eps, residual.norm_first)

    def normed(self, x: Float[Tensor, "rows d_model"]) -> Float[Tensor, "rows d_model"]:
        """Layer normalisation."""
        return torch.layer_norm(x, self.shape, self.weight, self.bias, self.eps)

    def told(self, x: Float[Tensor, "rows d_model"]) -> Float[Tensor, "rows d_model"]:
        """What the sublayer is given."""
        return self.normed(x) if self.norm_first else x

    def add(
        self, x: Float[Tensor, "rows d_model"], said: Float[Tensor, "rows d_model"]
    ) -> Float[Tensor, "rows d_model"]:
        """What the residual gives on; `said` is used up."""
        both = said.add_(x)
        return both if self.norm_first else self.normed(both)


class LeanLayer:
    """A decoder layer at one new position, in as few operations as it takes."""

    def __init__(self, layer: DecoderLayer) -> None:
        own, other = layer.self_attention, layer.cross_attention
        self.heads = own.num_heads
        scale = (own.query_proj.in_features // own.num_heads) ** -0.5
        own_maps = own.query_proj, own.key_proj, own.value_proj
        self.own = Side.by_side(*own_maps, first=scale)
        self.own_output = Side.by_side(own.output_proj)
        self.query = Side.by_side(other.query_proj, first=scale)
        self.other_output = Side.by_side(other.output_proj)
        self.expand = Side.by_side(layer.feed_forward.expand)
        self.contract = Side.by_side(layer.feed_forward.contract)
        self.around = [Around.of(cast("Residual", one)) for one in layer.residuals]

    def __call__(
        self,
        x: Float[Tensor, "rows d_model"],
        talk: Talk,
        past: Float[Tensor, "2 sources heads cells d_k"],
        memory: KeysValues,
    ) -> Float[Tensor, "rows d_model"]:
        first, second, third = self.around
        x = first.add(x, self.look_back(first.told(x), talk, past))
        x = second.add(x, self.look_across(second.told(x), talk, memory))
        wide = self.expand(third.told(x)).relu_()
        return third.add(x, self.contract(wide))

    def look_back(
        self,
        x: Float[Tensor, "rows d_model"],
        talk: Talk,
        past: Float[Tensor, "2 sources heads cells d_k"],
    ) -> Float[Tensor, "rows d_model"]:
        """Self-attention: write this position down, then look at all of them."""
        start, end = talk.filled, talk.filled + talk.beams
        split = self.own(x).view(-1, talk.beams, 3, self.heads, past.size(-1))
        split = split.permute(2, 0, 3, 1, 4)
        past[:, :, :, start:end] = split[1:]
        keys, values = past[:, :, :, :end]
        seen = None if talk.seen is None else talk.seen[..., :end]
        heads = F.scaled_dot_product_attention(split[0], keys, values, seen, scale=1.0)
        return self.own_output(heads.transpose(1, 2).reshape(x.shape))

    def look_across(
        self, x: Float[Tensor, "rows d_model"], talk: Talk, memory: KeysValues
    ) -> Float[Tensor, "rows d_model"]:
        """Cross-attention: all beginnings of a sentence ask its one memory."""
        split = self.query(x).view(-1, talk.beams, self.heads, memory.keys.size(-1))
        heads = F.scaled_dot_product_attention(
            split.transpose(1, 2), *memory, talk.source_mask, scale=1.0
        )
        return self.other_output(heads.transpose(1, 2).reshape(x.shape))


@dataclass
class Beams:
    """The beginnings of some sentences, `beams` each; a closed place totals -∞."""

    words: Int[Tensor, "sources beams"]
    totals: Float[Tensor, "sources beams"]
    said: Int[Tensor, "sources beams length"]
    places: Int[Tensor, "sources 1"]

    @classmethod
    def begin(cls, words: Int[Tensor, "sources beams"]) -> "Beams":
        """Nothing is said yet, so only one beginning of each sentence counts."""
        totals = torch.full(words.shape, -math.inf, device=words.device).double()
        totals[:, 0] = 0.0
        places = torch.full_like(words[:, :1], words.size(1))
        return cls(words, totals, words[:, :, None][:, :, :0], places)

    def grow(
        self, log_chances: Float[Tensor, "rows vocabulary"]
    ) -> Int[Tensor, "sources beams"]:
        """Keep the likeliest continuations; say which beginning each goes on from."""
        beams = self.words.size(1)
        best = log_chances.topk(min(beams, log_chances.size(-1)))
        grown = self.totals[..., None] + best.values.view(*self.words.shape, -1)
        self.totals, found = grown.flatten(1).topk(beams)
        closed = torch.arange(beams, device=found.device) >= self.places
        self.totals = self.totals.masked_fill(closed, -math.inf)
        self.words = best.indices.view(len(found), -1).gather(1, found)
        parents = found // best.values.size(-1)
        before = self.said.gather(1, parents[..., None].expand_as(self.said))
        self.said = torch.cat((before, self.words[..., None]), dim=-1)
        return parents

    def close(self, eos_id: int) -> list[tuple[int, float, list[int]]]:
        """Take out those that have ended: the row, the total and the ids of each."""
        over = (self.words == eos_id) & (self.totals > -math.inf)
        ended = [
            (row, self.totals[row, beam].item(), self.said[row, beam].tolist())
            for row, beam in over.nonzero().tolist()
        ]
        self.totals = self.totals.masked_fill(over, -math.inf)
        self.places = self.places - over.sum(dim=1, keepdim=True)
        return ended

    def keep(self, rows: Int[Tensor, "kept"]) -> None:
        """Go on with these sentences alone."""
        self.words, self.totals = self.words[rows], self.totals[rows]
        self.said, self.places = self.said[rows], self.places[rows]


class Speaker:
    """A model laid out for speaking. Its searches say what the plain ones say.

    Most weights are copied when it is made: a model that learns on needs a new one.
    """

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.layers = [LeanLayer(layer) for layer in layers_of(model)]
        special = [model.config.pad_id, model.config.bos_id]
        self.never = torch.tensor(special, device=model.output.weight.device)
        self.output = model.output.weight.detach().T.contiguous()

    def hear(
        self, source: Int[Tensor, "sources length"], room: int, beams: int
    ) -> Talk:
        """Encode the sources, once, and make room for `beams` beginnings of each."""
        model = self.model
        encoded = model.encode(source)
        memory = [
            layer.cross_attention.keys_values(encoded, encoded)
            for layer in layers_of(model)
        ]
        sources, heads, _, d_k = memory[0].keys.shape
        past = [encoded.new_empty(2, sources, heads, room * beams, d_k) for _ in memory]
        real = padding_mask(source, model.config.pad_id)
        seen = None
        if beams > 1:  # at each position, its own cell: later ones come by descent
            own = torch.eye(beams, dtype=encoded.dtype, device=encoded.device).log()
            seen = own.repeat(len(source), 1, 1, room)
        sheets = encoded.new_empty(2, len(source) * beams, self.output.size(1))
        return Talk(memory, None if real.all() else real, past, seen, sheets, beams)

    def next_logits(
        self, words: Int[Tensor, "sources beams"], talk: Talk
    ) -> Float[Tensor, "rows vocabulary"]:
        """Give each beginning its newest word, and hear how it might go on.

        The answer stands on a sheet that the next call writes over.
        """
        model = self.model
        place = talk.filled // talk.beams
        rows = F.embedding(words.flatten(), model.target_embedding.table.weight)
        scale = math.sqrt(model.config.d_model)
        x = torch.add(model.position.table[place], rows, alpha=scale)
        for layer, past, memory in zip(
            self.layers, talk.past, talk.memory, strict=True
        ):
            x = layer(x, talk, past, memory)
        talk.filled += talk.beams
        return torch.mm(
            model.decoder.norm(x), self.output, out=talk.sheets[0, : len(x)]
        )

    def rule_out(
        self, scores: Float[Tensor, "rows vocabulary"]
    ) -> Float[Tensor, "rows vocabulary"]:
        """Padding and bos are never said, however the model scores them."""
        return scores.index_fill_(1, self.never, -math.inf)

    def greedy_search(
        self, source_ids: Sequence[Sequence[int]], max_length: int
    ) -> list[list[int]]:
        """What `greedy_search` answers, sooner.

        Raises:
            ValueError: for what `greedy_search` refuses.
        """
        source = ready(self.model, source_ids, max_length)
        answers: list[list[int]] = [[] for _ in source_ids]
        with speaking(self.model):
            talk = self.hear(source, max_length, beams=1)
            speakers = list(range(len(source)))
            words = source.new_full((len(source), 1), self.model.config.bos_id)
            for _ in range(max_length):
                logits = self.rule_out(self.next_logits(words, talk))
                words = logits.max(dim=-1, keepdim=True).indices
                said = words[:, 0].tolist()
                going = [
                    row
                    for row, word in enumerate(said)
                    if word != self.model.config.eos_id
                ]
                for row in going:
                    answers[speakers[row]].append(said[row])
                if not going:
                    break
                if len(going) < len(said):
                    rows = torch.tensor(going, device=words.device)
                    talk.keep(rows)
                    words, speakers = words[rows], [speakers[row] for row in going]
        return answers

    def beam_search(
        self,
        source_ids: Sequence[Sequence[int]],
        max_length: int,
        beam_size: int = 4,
        length_penalty: float = 0.6,
    ) -> list[list[int]]:
        """What `beam_search` answers, sooner.

        Raises:
            ValueError: for what `beam_search` refuses.
        """
        require_beam(beam_size, length_penalty)
        source = ready(self.model, source_ids, max_length)
        bos, eos = self.model.config.bos_id, self.model.config.eos_id
        speakers = list(range(len(source)))
        best = [(-math.inf, [bos]) for _ in speakers]
        with speaking(self.model):
            talk = self.hear(source, max_length, beam_size)
            beams = Beams.begin(source.new_full((len(source), beam_size), bos))
            for length in range(1, max_length + 1):
                logits = self.next_logits(beams.words, talk)
                sheet = talk.sheets[1, : len(logits)]
                chances = torch.log_softmax(logits, dim=-1, out=sheet)
                talk.follow(beams.grow(self.rule_out(chances)))
                for row, total, ids in beams.close(eos):
                    worth = penalised(total, length, length_penalty)
                    if worth > best[speakers[row]][0]:
                        best[speakers[row]] = worth, ids
                going = (beams.totals > -math.inf).any(dim=1).nonzero().squeeze(1)
                if not len(going):
                    break
                if len(going) < len(speakers):
                    talk.keep(going)
                    beams.keep(going)
                    speakers = [speakers[row] for row in going.tolist()]
            else:  # cut: the likeliest beginning counts where none has ended
                for speaker, ids in zip(
                    speakers, beams.said[:, 0].tolist(), strict=True
                ):
                    if best[speaker][0] == -math.inf:
                        best[speaker] = 0.0, ids
        return [[i for i in ids if i not in (bos, eos)] for _, ids in best]
