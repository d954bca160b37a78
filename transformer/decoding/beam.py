"""Beam search and n-best lists, over any incremental decoder.

Made from book/13-decoding.md: edit the chapter, not this file.
"""

import math
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from transformer.checks import InvalidValue, require_beam
from transformer.decoding.search import (
    NOT_FINITE,
    Sources,
    as_batch,
    as_decoder,
    next_logits,
)
from transformer.decoding.step import IncrementalDecoder, evaluating

__all__ = [
    "best_tokens",
    "expand",
    "kept_first",
    "length_normalised",
    "Candidate",
    "Beams",
    "n_best",
    "beam_search",
]


def best_tokens(
    logits: Float[Tensor, "rows vocabulary"], count: int
) -> tuple[Float[Tensor, "rows found"], Int[Tensor, "rows found"]]:
    """Log-probabilities and ids of each row's most probable tokens, best first.

    Of equals the lowest id comes first; what has no probability comes last, at -inf.
    Where a logit is NaN or +inf, the row's log-probabilities are NaN.
    """
    count = min(count, logits.size(-1))
    values, ids = logits.topk(min(count + 1, logits.size(-1)))
    least, ids = values[:, count - 1 : count], ids[:, :count]
    # `topk` leaves open which of several equals it takes. On a CPU it costs nothing to
    # ask whether there are any; for the answer of a GPU the loop would have to wait.
    if logits.device.type != "cpu" or (least == values[:, -1:]).any():
        ids = _lowest_of_equals(logits, least, count)
    ids = ids.sort(dim=1).values  # so that the next sort has equals in their order
    values, order = logits.gather(1, ids).sort(dim=1, descending=True, stable=True)
    ids = ids.gather(1, order)
    log_probabilities = logits.log_softmax(dim=-1).gather(1, ids)
    nowhere = values[:, :1] == -math.inf  # a row in which nothing is possible
    return log_probabilities.masked_fill(nowhere, -math.inf), ids


def _lowest_of_equals(
    logits: Float[Tensor, "rows vocabulary"], least: Float[Tensor, "rows 1"], count: int
) -> Int[Tensor, "rows found"]:
    """The ids of the `count` largest logits, of which the least is known."""
    larger, equal = logits > least, logits == least
    missing = count - larger.sum(dim=1, keepdim=True)
    chosen = larger | (equal & (equal.cumsum(dim=1) <= missing))
    places = (chosen.cumsum(dim=1) - 1).where(chosen, count)  # the others: a last place
    ids = torch.arange(logits.size(1), device=logits.device).expand_as(logits)
    found = ids.new_zeros(len(logits), count + 1)
    return found.scatter(1, places, ids)[:, :count]


def expand(
    totals: Float[Tensor, "sources places"],
    log_probabilities: Float[Tensor, "sources places found"],
    ids: Int[Tensor, "sources places found"],
    beam_size: int,
) -> tuple[
    Float[Tensor, "sources beam"],
    Int[Tensor, "sources beam"],
    Int[Tensor, "sources beam"],
]:
    """The best continuations of each source: log-probabilities, parents and new tokens.

    A parent is the place of the hypothesis that is continued. The best comes first; of
    equals that of the earlier hypothesis, and in it the lower id.
    """
    every = (totals[:, :, None] + log_probabilities).flatten(1)
    missing = max(0, beam_size - every.size(1))  # with fewer tokens than places
    every = F.pad(every, (0, missing), value=-math.inf)
    best, order = every.sort(dim=1, descending=True, stable=True)
    best, order = best[:, :beam_size], order[:, :beam_size]
    parents = (order // ids.size(2)).clamp(max=totals.size(1) - 1)
    return best, parents, F.pad(ids.flatten(1), (0, missing)).gather(1, order)


def kept_first(
    kept: Bool[Tensor, "sources places"],
) -> Int[Tensor, "sources places"]:
    """An order with the kept places in front; the first of them fills the rest."""
    order = kept.logical_not().to(torch.uint8).sort(dim=1, stable=True).indices
    places = torch.arange(kept.size(1), device=kept.device)
    return order.where(places < kept.sum(dim=1, keepdim=True), order[:, :1])


def length_normalised(
    log_probability: float, length: int, length_penalty: float
) -> float:
    """A log-probability over ((5 + length) / 6)^α (Wu et al. 2016).

    Raises:
        ValueError: for a penalty beyond what a float can divide by.
    """
    try:
        return log_probability / ((5 + length) / 6) ** length_penalty
    except OverflowError:
        raise InvalidValue(
            f"length_penalty is too large for {length} tokens, got {length_penalty}"
        ) from None


class Candidate(NamedTuple):
    """A translation in an n-best list, as ids without bos and eos.

    The log-probability is that of all its tokens, eos included, where neither padding
    nor bos can come; the score is `length_normalised`. One that was cut, the only one
    of its list, has no eos to include: it has `max_length` ids, a finished one fewer.
    """

    ids: list[int]
    log_probability: float
    score: float


@dataclass
class Beams:
    """The hypotheses of a beam search, as tensors: all sources take a step at once.

    `tokens`, bos first, and `totals`, their log-probabilities, are those of the
    unfinished hypotheses of the `sources` that are not done. A place without one has a
    total of -inf and repeats the tokens of another. Finished hypotheses close their
    places: `closed` counts them for each source, and the rest holds them, in the order
    in which they ended; behind the last place is one for what is thrown away.
    """

    eos_id: int
    sources: Int[Tensor, " sources"]
    tokens: Int[Tensor, "sources places length"]
    totals: Float[Tensor, "sources places"]
    closed: Int[Tensor, " all"]
    ended_tokens: Int[Tensor, "all slots longest"]
    ended_lengths: Int[Tensor, "all slots"]
    ended_totals: Float[Tensor, "all slots"]
    failed: Bool[Tensor, ""]

    @classmethod
    def begin(
        cls,
        source: Int[Tensor, "all length"],
        bos_id: int,
        eos_id: int | None,
        beam_size: int,
        max_length: int,
    ) -> "Beams":
        """One hypothesis for each source, and none finished."""
        count, slots = len(source), beam_size + 1
        float32 = source.device.type == "mps"  # which has no float64
        totals = source.new_zeros(
            count, 1, dtype=torch.float32 if float32 else torch.float64
        )
        return cls(
            -1 if eos_id is None else eos_id,
            torch.arange(count, device=source.device),
            source.new_full((count, 1, 1), bos_id),
            totals,
            source.new_zeros(count),
            source.new_zeros(count, slots, max_length + 1),
            source.new_zeros(count, slots),
            totals.new_zeros(count, slots),
            torch.zeros((), dtype=torch.bool, device=source.device),
        )

    def extend(
        self,
        log_probabilities: Float[Tensor, "rows found"],
        ids: Int[Tensor, "rows found"],
    ) -> Int[Tensor, " kept"]:
        """Go on with the best continuations; the rows of the batch that they continue.

        The rows are those of the sources, one after the other, a row for each place.
        """
        count, width = self.totals.shape
        beam_size = self.ended_totals.size(1) - 1
        log_probabilities = log_probabilities.view(count, width, -1).to(self.totals)
        possible = self.totals[:, :, None] > -math.inf
        self.failed |= (log_probabilities.isnan() & possible).any()
        totals, parents, new = expand(
            self.totals, log_probabilities, ids.view(count, width, -1), beam_size
        )
        before = self.tokens.take_along_dim(parents[:, :, None], dim=1)
        tokens = torch.cat([before, new[:, :, None]], dim=2)

        places = torch.arange(beam_size, device=tokens.device)
        closed = self.closed[self.sources][:, None]
        taken = (places < beam_size - closed) & (totals > -math.inf)
        ends = taken & (new == self.eos_id)
        self._finish(ends, tokens, totals)

        goes_on = taken & ~ends
        order = kept_first(goes_on)
        self.tokens = tokens.take_along_dim(order[:, :, None], dim=1)
        empty = places >= goes_on.sum(dim=1, keepdim=True)
        self.totals = totals.gather(1, order).masked_fill(empty, -math.inf)
        first_rows = width * torch.arange(count, device=tokens.device)[:, None]
        return (first_rows + parents.gather(1, order)).flatten()

    def _finish(
        self,
        ends: Bool[Tensor, "sources beam"],
        tokens: Int[Tensor, "sources beam length"],
        totals: Float[Tensor, "sources beam"],
    ) -> None:
        """Keep the hypotheses that end, each behind those that ended before it."""
        sources, last = self.sources[:, None], ends.size(1)
        slots = self.closed[sources] + ends.cumsum(dim=1) - 1
        slots = slots.where(ends, last)
        length = tokens.size(2)
        self.ended_tokens[sources, slots, :length] = tokens
        self.ended_lengths[sources, slots] = length
        self.ended_totals[sources, slots] = totals
        self.closed[self.sources] += ends.sum(dim=1)

    def drop_done(self, rows: Int[Tensor, " rows"]) -> Int[Tensor, " kept"]:
        """Leave out the sources that are done, and their rows of these.

        This alone waits for the device, to be told which.

        Raises:
            ValueError: where the logits of a hypothesis were not finite.
        """
        unfinished = self.totals[:, 0] > -math.inf
        failed, *goes_on = torch.cat([self.failed[None], unfinished]).tolist()
        if failed:
            raise InvalidValue(NOT_FINITE)
        if all(goes_on):
            return rows
        numbers = [number for number, on in enumerate(goes_on) if on]
        kept = torch.tensor(numbers, dtype=torch.int64, device=rows.device)
        self.sources, self.tokens = self.sources[kept], self.tokens[kept]
        self.totals = self.totals[kept]
        return rows.view(len(goes_on), -1)[kept].flatten()

    def candidates(self, length_penalty: float) -> list[list[Candidate]]:
        """What was finished for each source, in that order; else what was cut.

        Raises:
            ValueError: for a source without either.
        """
        ended = zip(
            *(self.ended_tokens.tolist(), self.ended_lengths.tolist()),
            *(self.ended_totals.tolist(), self.closed.tolist()),
            strict=True,
        )
        found = [
            [(tokens[i][1 : lengths[i]], totals[i]) for i in range(closed)]
            for tokens, lengths, totals, closed in ended
        ]
        cut = self.tokens[:, 0, 1:].tolist(), self.totals[:, 0].tolist()
        for source, *best in zip(self.sources.tolist(), *cut, strict=True):
            if not found[source] and best[1] > -math.inf:
                found[source] = [(best[0], best[1])]
        if not all(found):
            raise InvalidValue(NOT_FINITE)
        return [
            [
                Candidate(
                    [token for token in ids if token != self.eos_id],
                    total,
                    length_normalised(total, len(ids), length_penalty),
                )
                for ids, total in each
            ]
            for each in found
        ]


def n_best(
    decoder: nn.Module | IncrementalDecoder,
    source_ids: Sources,
    max_length: int,
    beam_size: int = 4,
    length_penalty: float = 0.6,
) -> list[list[Candidate]]:
    """N-best lists: all that a beam search finishes for each source, best score first.

    At most `beam_size` for each. One that is cut at `max_length` counts only where none
    has finished: it is then the only one. Sources are as in `greedy_search`.

    Raises:
        ValueError: for whatever `beam_search` refuses.
    """
    require_beam(beam_size, length_penalty)
    decoder = as_decoder(decoder)
    config = decoder.model.config
    source = as_batch(decoder.model, source_ids, max_length)
    length_normalised(0.0, max_length, length_penalty)  # refused now, or never
    beams = Beams.begin(source, config.bos_id, config.eos_id, beam_size, max_length)
    # To drop the sources that are done, the loop waits for the device: seldom on a GPU.
    every = 1 if source.device.type == "cpu" else 8
    with evaluating(decoder.model):
        state = decoder.prefill(source, max_length, beam_size)
        for step in range(1, max_length + 1):
            logits = next_logits(state, beams.tokens[:, :, -1].flatten(), config)
            rows = beams.extend(*best_tokens(logits, beam_size))
            if step % every == 0 or step == max_length:
                rows = beams.drop_done(rows)
                if not len(rows):
                    break
            state.reorder(rows)
    return [  # of equals the first stays first
        sorted(found, key=attrgetter("score"), reverse=True)
        for found in beams.candidates(length_penalty)
    ]


def beam_search(
    decoder: nn.Module | IncrementalDecoder,
    source_ids: Sources,
    max_length: int,
    beam_size: int = 4,
    length_penalty: float = 0.6,
) -> list[list[int]]:
    """Beam search: the `beam_size` most probable hypotheses of each source at once.

    Each step keeps the likeliest continuations. One that ends is finished and closes
    its place; when all places are closed, the best by `length_normalised` is the
    result, its length counting eos. Sources and results are as in `greedy_search`,
    which is a beam of 1; a hypothesis that is cut counts only where none has finished.
    Of equals the earlier hypothesis wins, and in it the lowest id.

    Raises:
        ValueError: for a `beam_size` that is no whole number of at least 1, a
            `length_penalty` that is not finite, below 0 or too large, and whatever
            `greedy_search` refuses.
    """
    found = n_best(decoder, source_ids, max_length, beam_size, length_penalty)
    return [candidates[0].ids for candidates in found]
