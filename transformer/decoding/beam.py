"""Beam search and n-best lists, over any incremental decoder.

Made from book/13-decoding.md: edit the chapter, not this file.
"""

import math
from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor, finfo, nn

from transformer.checks import require_beam
from transformer.decoding.search import (
    NOT_FINITE,
    Sources,
    as_batch,
    as_decoder,
    next_logits,
)
from transformer.decoding.step import IncrementalDecoder, evaluating

__all__ = [
    "Hypothesis",
    "likeliest",
    "expand",
    "fill",
    "length_normalised",
    "Candidate",
    "n_best",
    "beam_search",
]


class Hypothesis(NamedTuple):
    """The beginning of a target: its tokens, the first of them bos, and how likely.

    `row` is the row of the batch that held all but the last token.
    """

    log_probability: float
    tokens: list[int]
    row: int


def likeliest(
    logits: Float[Tensor, "rows vocabulary"], count: int
) -> tuple[Float[Tensor, "rows count"], Int[Tensor, "rows count"]]:
    """Log-probabilities and ids of each row's likeliest tokens, best first.

    Of equals the lowest id comes first; what has no probability comes last, at -inf.

    Raises:
        ValueError: for logits that are NaN or +inf.
    """
    values, ids = logits.topk(min(count + 1, logits.size(-1)))
    if not (values[:, 0] < math.inf).all():  # nor is NaN below it
        raise ValueError(NOT_FINITE)
    ids = ids[:, :count]
    tied = (values[:, 1:] == values[:, :-1]).any(dim=1)
    if tied.any():  # topk leaves the order of equals open: take one after another
        lowest = finfo(logits.dtype).min  # above what is taken, which is -inf
        left = logits[tied].clamp(min=lowest)
        for place in range(ids.size(1)):
            best = left.argmax(dim=-1, keepdim=True)  # of equals the lowest id
            ids[tied, place] = best.squeeze(1)
            left.scatter_(1, best, -math.inf)
    log_probabilities = logits.log_softmax(dim=-1).gather(1, ids)
    nowhere = log_probabilities.isnan()  # where every logit is -inf
    return log_probabilities.masked_fill(nowhere, -math.inf), ids


def expand(
    batch: Sequence[Hypothesis],
    rows: Sequence[int],
    log_probabilities: Sequence[Sequence[float]],
    ids: Sequence[Sequence[int]],
    count: int,
) -> list[Hypothesis]:
    """The `count` likeliest continuations of the hypotheses in `rows`, best first."""
    found = [
        (batch[row].log_probability + log_probability, row, token)
        for row in rows
        for log_probability, token in zip(log_probabilities[row], ids[row], strict=True)
    ]
    found.sort(key=itemgetter(0), reverse=True)  # of equals the first stays first
    return [
        Hypothesis(total, [*batch[row].tokens, token], row)
        for total, row, token in found[:count]
        if total > -math.inf
    ]


def fill(beam: Sequence[Hypothesis], beam_size: int) -> list[Hypothesis]:
    """A beam with all its rows: a closed one repeats the best, with probability 0."""
    closed = beam[0]._replace(log_probability=-math.inf)
    return [*beam, *[closed] * (beam_size - len(beam))]


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
        raise ValueError(
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
    start = [Hypothesis(0.0, [config.bos_id], 0)]
    beams = dict.fromkeys(range(len(source)), start)
    finished: list[list[Hypothesis]] = [[] for _ in source]
    with evaluating(decoder.model):
        state = decoder.prefill(source, max_length, beam_size)
        for _ in range(max_length):
            batch = [each for beam in beams.values() for each in beam]
            newest = source.new_tensor([each.tokens[-1] for each in batch])
            found = likeliest(next_logits(state, newest, config), beam_size)
            scores, ids = (each.tolist() for each in found)
            active: dict[int, list[Hypothesis]] = {}
            width = len(batch) // len(beams)  # 1 in the first step, then beam_size
            for place, sentence in enumerate(beams):
                rows = range(place * width, (place + 1) * width)
                count = beam_size - len(finished[sentence])
                for longer in expand(batch, rows, scores, ids, count):
                    if longer.tokens[-1] == config.eos_id:
                        finished[sentence].append(longer)
                    else:
                        active.setdefault(sentence, []).append(longer)
            beams = {key: fill(beam, beam_size) for key, beam in active.items()}
            if not beams:
                break
            parents = [each.row for beam in beams.values() for each in beam]
            state.reorder(source.new_tensor(parents))
    for sentence, beam in beams.items():  # cut: the best counts if none has finished
        finished[sentence] = finished[sentence] or beam[:1]
    if not all(finished):
        raise ValueError(NOT_FINITE)

    def judged(each: Hypothesis) -> Candidate:
        length = len(each.tokens) - 1  # with eos, without bos
        score = length_normalised(each.log_probability, length, length_penalty)
        special = config.bos_id, config.eos_id
        ids = [token for token in each.tokens if token not in special]
        return Candidate(ids, each.log_probability, score)

    return [  # of equals the first stays first
        sorted(map(judged, found), key=attrgetter("score"), reverse=True)
        for found in finished
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
