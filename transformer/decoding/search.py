"""Greedy search, sampling and beam search, over any incremental decoder.

Made from book/13-decoding.md: edit the chapter, not this file.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from transformer.checks import require_beam, require_ids, require_positive
from transformer.decoding.step import CachedDecoder, IncrementalDecoder, evaluating
from transformer.model import Transformer, TransformerConfig

__all__ = [
    "Sources",
    "as_decoder",
    "as_batch",
    "mask_special",
    "generate",
    "greedy_search",
    "top_p_filter",
    "sample",
    "Hypothesis",
    "likeliest",
    "expand",
    "length_normalised",
    "beam_search",
]

Sources = Sequence[Sequence[int]] | Tensor


def as_decoder(decoder: nn.Module | IncrementalDecoder) -> IncrementalDecoder:
    """A model decodes with a plain cache, unless a decoder was made of it."""
    return CachedDecoder(decoder) if isinstance(decoder, nn.Module) else decoder


def as_batch(
    model: Transformer, source_ids: Sources, max_length: int
) -> Int[Tensor, "sources length"]:
    """The sources as one batch, padded on the right, on the model's device.

    Raises:
        ValueError: for no sources, an empty one, ids that the model has no row for,
            padding before a token, or a `max_length` below 1 or beyond its positions.
    """
    require_positive(max_length=max_length)
    config = model.config
    if max_length > config.max_length:
        raise ValueError(
            f"max_length must be at most {config.max_length}, the positions that the "
            f"model has, got {max_length}"
        )
    if not isinstance(source_ids, Tensor):
        lengths = [len(ids) for ids in source_ids]
        if not lengths or not all(lengths):
            raise ValueError(f"every source needs at least one id, got lengths {lengths}")
        rows = [torch.as_tensor(ids, device="cpu") for ids in source_ids]
        source_ids = pad_sequence(rows, batch_first=True, padding_value=config.pad_id)
    require_ids(source_ids, config.source_vocab_size)
    real = source_ids != config.pad_id
    if not real[:, 0].all():
        raise ValueError("every source needs a token first: pad on the right")
    if (real[:, 1:] & ~real[:, :-1]).any():
        raise ValueError("no token may come after padding: pad on the right")
    longest = int(real.sum(dim=1).max())
    return source_ids[:, :longest].long().to(next(model.parameters()).device)


def mask_special(
    logits: Float[Tensor, "rows vocabulary"], config: TransformerConfig
) -> Float[Tensor, "rows vocabulary"]:
    """Padding and bos are never generated, whatever their logits (changed in place)."""
    for index in (config.pad_id, config.bos_id):
        logits[:, index] = -math.inf
    return logits


def generate(
    decoder: nn.Module | IncrementalDecoder,
    source_ids: Sources,
    max_length: int,
    choose: Callable[[Tensor], Tensor],
) -> list[list[int]]:
    """Decode a batch one token a step; a row that ends leaves the batch.

    `choose` is given logits, (rows, vocabulary), and picks the next token of each row.
    """
    decoder = as_decoder(decoder)
    config = decoder.model.config
    source = as_batch(decoder.model, source_ids, max_length)
    generated: list[list[int]] = [[] for _ in source]
    active = list(range(len(source)))
    with evaluating(decoder.model):
        state = decoder.prefill(source, max_length, 1)
        tokens = source.new_full((len(source),), config.bos_id)
        for _ in range(max_length):
            tokens = choose(mask_special(state.step(tokens).float(), config))
            chosen = tokens.tolist()
            rows = [row for row, token in enumerate(chosen) if token != config.eos_id]
            for row in rows:
                generated[active[row]].append(chosen[row])
            if not rows:
                break
            if len(rows) < len(active):
                active = [active[row] for row in rows]
                kept = torch.tensor(rows, device=source.device)
                tokens = tokens[kept]
                state.reorder(kept)
    return generated


def greedy_search(
    decoder: nn.Module | IncrementalDecoder, source_ids: Sources, max_length: int
) -> list[list[int]]:
    """Greedy decoding: the most probable next token at every step.

    `decoder` is a Transformer or a decoder made of one, such as `FastDecoder`.
    `source_ids` are lists of ids, or one tensor of them padded on the right. Each
    result has at most `max_length` ids, without bos, eos and padding; one that reaches
    no end is cut there. Of equal logits the lowest id wins.

    Raises:
        ValueError: for no sources, an empty one, ids that the model has no row for,
            padding before a token, or a `max_length` below 1 or beyond its positions.
    """
    return generate(
        decoder, source_ids, max_length, lambda logits: logits.argmax(dim=-1)
    )


def top_p_filter(
    probabilities: Float[Tensor, "*rows vocabulary"], top_p: float
) -> Float[Tensor, "*rows vocabulary"]:
    """Nucleus: only the likeliest tokens that together reach `top_p`, renormalised."""
    ranked, order = probabilities.sort(dim=-1, descending=True)
    before = ranked.cumsum(dim=-1) - ranked  # held by likelier tokens
    ranked = ranked.masked_fill(before >= top_p, 0.0)
    kept = torch.zeros_like(probabilities).scatter(-1, order, ranked)
    return kept / kept.sum(dim=-1, keepdim=True)


def sample(
    decoder: nn.Module | IncrementalDecoder,
    source_ids: Sources,
    max_length: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    generator: torch.Generator | None = None,
) -> list[list[int]]:
    """Sampling: each next token is drawn by its probability.

    A `temperature` below 1 sharpens the probabilities, one above 1 evens them out.
    Only the likeliest tokens that together hold `top_p` can be drawn (nucleus
    sampling). The generator, if any, must be on the model's device. Sources and
    results are as in `greedy_search`.

    Raises:
        ValueError: for a temperature that is not above 0 and finite, `top_p` outside
            (0, 1], and whatever `greedy_search` refuses.
    """
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be above 0 and finite, got {temperature}")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p must lie in (0, 1], got {top_p}")
    divisor = min(max(temperature, 1e-30), 1e30)  # what float32 can divide by

    def draw(logits: Tensor) -> Tensor:
        below_best = logits - logits.amax(dim=-1, keepdim=True)
        probabilities = (below_best / divisor).softmax(dim=-1)
        if top_p < 1:
            probabilities = top_p_filter(probabilities, top_p)
        return torch.multinomial(probabilities, 1, generator=generator).squeeze(1)

    return generate(decoder, source_ids, max_length, draw)


class Hypothesis(NamedTuple):
    """A beginning of a target for the source numbered `source`.

    `log_probability` is that of all its `tokens`, the first of which is bos; `row` is
    the row of the batch that held all but the last of them.
    """

    log_probability: float
    tokens: list[int]
    row: int
    source: int


def likeliest(
    logits: Float[Tensor, "rows vocabulary"], count: int
) -> tuple[Float[Tensor, "rows count"], Int[Tensor, "rows count"]]:
    """Log-probabilities and ids of each row's likeliest tokens, the lowest id first."""
    best = logits.topk(min(count + 1, logits.size(-1)))
    values, ids = best.values, best.indices
    if (values[:, 1:] == values[:, :-1]).any():  # topk leaves the order of equals open
        values, ids = logits.sort(dim=-1, descending=True, stable=True)
    total = logits.logsumexp(dim=-1, keepdim=True).double()
    return values[:, :count].double() - total, ids[:, :count]


def expand(
    beams: Sequence[Hypothesis],
    logits: Float[Tensor, "rows vocabulary"],
    beam_size: int,
) -> Iterator[Hypothesis]:
    """Each hypothesis with each of its `beam_size` likeliest next tokens."""
    log_probabilities, ids = likeliest(logits, beam_size)
    rows = zip(beams, log_probabilities.tolist(), ids.tolist(), strict=True)
    for row, (hypothesis, scores, tokens) in enumerate(rows):
        for score, token in zip(scores, tokens, strict=True):
            total = hypothesis.log_probability + score
            if total > -math.inf:
                longer = [*hypothesis.tokens, token]
                yield Hypothesis(total, longer, row, hypothesis.source)


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
    require_beam(beam_size, length_penalty)
    decoder = as_decoder(decoder)
    config = decoder.model.config
    source = as_batch(decoder.model, source_ids, max_length)
    length_normalised(0.0, max_length, length_penalty)  # refused now, or never
    finished: list[list[Hypothesis]] = [[] for _ in source]
    beams = _full(
        [[Hypothesis(0.0, [config.bos_id], 0, row)] for row in range(len(source))],
        beam_size,
    )
    with evaluating(decoder.model):
        state = decoder.prefill(source, max_length, beam_size)
        for _ in range(max_length):
            newest = source.new_tensor([each.tokens[-1] for each in beams])
            logits = mask_special(state.step(newest).float(), config)
            candidates: list[list[Hypothesis]] = [[] for _ in source]
            for each in expand(beams, logits, beam_size):
                candidates[each.source].append(each)
            active = []
            for found, done in zip(candidates, finished, strict=True):
                found.sort(key=lambda each: each.log_probability, reverse=True)
                best = found[: beam_size - len(done)]
                done += [each for each in best if each.tokens[-1] == config.eos_id]
                active.append([each for each in best if each.tokens[-1] != config.eos_id])
            beams = _full(active, beam_size)
            if not beams:
                break
            state.reorder(source.new_tensor([each.row for each in beams]))
    for each in beams:  # cut, the best first: they count where nothing has finished
        if not finished[each.source]:
            finished[each.source].append(each)

    def score(each: Hypothesis) -> float:
        length = len(each.tokens) - 1  # without bos, with eos
        return length_normalised(each.log_probability, length, length_penalty)

    special = config.bos_id, config.eos_id
    results = [max(found, key=score).tokens for found in finished]
    return [[token for token in tokens if token not in special] for tokens in results]


def _full(active: Sequence[Sequence[Hypothesis]], beam_size: int) -> list[Hypothesis]:
    """The beams one after the other, each that is not done with all of its rows.

    A place that is closed repeats the best hypothesis, with no probability left.
    """
    beams = []
    for beam in active:
        closed = [each._replace(log_probability=-math.inf) for each in beam[:1]]
        beams += [*beam, *closed * (beam_size - len(beam))]
    return beams
