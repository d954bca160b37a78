"""Greedy search and sampling: one token a step, over any incremental decoder.

Made from book/13-decoding.md: edit the chapter, not this file.
"""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from transformer.checks import (
    InvalidValue,
    is_number,
    require_ids,
    require_not_meta,
    require_positive,
)
from transformer.decoding.step import (
    DecoderState,
    IncrementalDecoder,
    SearchConfig,
    SearchModel,
    evaluating,
    plain_decoder,
)
from transformer.decoding.support import unwrap

__all__ = [
    "Sources",
    "as_decoder",
    "require_length",
    "as_batch",
    "mask_special",
    "next_logits",
    "NOT_FINITE",
    "generate",
    "greedy_search",
    "top_p_filter",
    "sample",
]


Sources = Sequence[Sequence[int]] | Tensor


def as_decoder(decoder: nn.Module | IncrementalDecoder) -> IncrementalDecoder:
    """The decoder itself, or for a model the plain one; else a ValueError."""
    if isinstance(decoder, IncrementalDecoder):
        return decoder
    other = " or a decoder (PromptDecoder for a language model)"
    return plain_decoder(unwrap(decoder, "a search", other))


def require_length(config: SearchConfig, max_length: int) -> None:
    """Refuse a `max_length` below 1 or beyond the positions of a model."""
    require_positive(max_length=max_length)
    if max_length > config.max_length:
        raise InvalidValue(
            f"max_length must be at most {config.max_length}, the positions that the "
            f"model has, got {max_length}"
        )


def as_batch(
    model: SearchModel, source_ids: Sources, max_length: int
) -> Int[Tensor, "sources length"]:
    """The sources as one batch, padded on the right, on the model's device.

    Raises:
        ValueError: for no sources, an empty one, ids that the model has no row for,
            padding before a token, a `max_length` below 1 or beyond its positions, or
            a model on the meta device.
    """
    config = model.config
    require_length(config, max_length)
    if not isinstance(source_ids, Tensor):
        source_ids = _padded(source_ids, config.pad_id)
    require_ids(source_ids, config.source_vocab_size)
    real = torch.ones_like(source_ids).bool()
    if config.pad_id is not None:
        real = source_ids != config.pad_id
    lengths = real.sum(dim=1, keepdim=True)
    if not lengths.all():
        raise InvalidValue(
            "every source needs at least one id, got one of padding alone"
        )
    if not (torch.arange(real.size(1), device=real.device) < lengths).equal(real):
        raise InvalidValue(
            "sources must be padded on the right, got an id after padding"
        )
    longest = int(lengths.max())
    weight = next(model.parameters(), source_ids)
    require_not_meta(weight.device)
    return source_ids[:, :longest].long().to(weight.device)


def _padded(source_ids: Sequence[Sequence[int]], pad_id: int | None) -> Tensor:
    try:
        lengths = [len(ids) for ids in source_ids]
        rows = [torch.as_tensor(ids, device="cpu") for ids in source_ids]
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidValue(
            "sources must be lists of token ids, or one padded tensor of them, "
            f"got {source_ids!r:.60}"
        ) from error
    if not lengths or not all(lengths):
        raise InvalidValue(f"every source needs at least one id, got lengths {lengths}")
    for row in rows:  # of mixed rows, padding would cut the fractions off
        if row.is_floating_point():
            raise InvalidValue(f"token ids must be int64 or int32, got {row.dtype}")
    if pad_id is None and len(set(lengths)) > 1:
        raise InvalidValue(f"without a pad_id, sources need one length, got {lengths}")
    return pad_sequence(rows, batch_first=True, padding_value=pad_id or 0)


def _at_least_float32(logits: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The logits in float32 or wider: in half precision too many are equal."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def mask_special(
    logits: Float[Tensor, "rows vocabulary"], config: SearchConfig
) -> Float[Tensor, "rows vocabulary"]:
    """Padding and bos, if they have logits, are never generated (changed in place)."""
    for index in (config.pad_id, config.bos_id):
        if index is not None and index < logits.size(1):
            logits[:, index] = -math.inf
    return logits


def next_logits(
    state: DecoderState, tokens: Tensor, config: SearchConfig
) -> Float[Tensor, "rows vocabulary"]:
    """The next logits, without padding and bos; the step after may reuse their memory.

    Raises:
        ValueError: for anything but a row of logits for each token.
    """
    logits = state.step(tokens)
    if logits.shape[:-1] != tokens.shape:
        raise InvalidValue(
            f"a step's logits must be ({len(tokens)}, vocabulary), "
            f"got {tuple(logits.shape)}"
        )
    return mask_special(_at_least_float32(logits), config)


NOT_FINITE = "no token has a probability: the model's logits are not finite"


def _require_finite(largest: Float[Tensor, "rows 1"]) -> None:
    """Refuse rows without a largest logit that is a number: NaN counts as larger."""
    if not all(map(math.isfinite, largest.flatten().tolist())):
        raise InvalidValue(NOT_FINITE)


def generate(
    decoder: nn.Module | IncrementalDecoder,
    source_ids: Sources,
    max_length: int,
    choose: Callable[[Tensor], Tensor],
) -> list[list[int]]:
    """Decode a batch one token a step; a row that ends leaves the batch.

    `choose` is given logits, (rows, vocabulary), and picks the next token of each row,
    an int64 id. It must itself refuse logits that are not finite.
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
            tokens = choose(next_logits(state, tokens, config))
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
        ValueError: for no sources, an empty one, one longer than the model's positions,
            ids that it has no row for, padding before a token, a `max_length` below 1
            or beyond its positions, or logits that are not finite.
    """

    def largest(logits: Tensor) -> Tensor:
        ids = logits.argmax(dim=-1)
        _require_finite(logits.gather(1, ids[:, None]))
        return ids

    return generate(decoder, source_ids, max_length, largest)


def top_p_filter(
    probabilities: Float[Tensor, "*rows vocabulary"], top_p: float
) -> Float[Tensor, "*rows vocabulary"]:
    """Nucleus: only the likeliest tokens that together reach `top_p`, renormalised."""
    ranked, order = probabilities.sort(dim=-1, descending=True)
    before = ranked.cumsum(dim=-1) - ranked  # held by likelier tokens
    # The likeliest always stays, also where `top_p` rounds to 0.
    ranked = ranked.masked_fill((before >= top_p) & (before > 0), 0.0)
    kept = torch.zeros_like(probabilities).scatter(-1, order, ranked)  # back in place
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
    if not is_number(temperature) or not 0 < temperature < math.inf:
        raise InvalidValue(
            f"temperature must be a finite number above 0, got {temperature!r}"
        )
    if not is_number(top_p) or not 0 < top_p <= 1:
        raise InvalidValue(f"top_p must lie in (0, 1], got {top_p!r}")
    divisor = min(max(temperature, 1e-30), 1e30)  # what float32 can divide by

    def draw(logits: Tensor) -> Tensor:
        best = logits.amax(dim=-1, keepdim=True)
        _require_finite(best)
        shares = ((logits - best) / divisor).softmax(dim=-1)
        if top_p < 1:
            shares = top_p_filter(shares, top_p)
        # Laid end to end, the shares are stretches: a point falls into one.
        # `torch.multinomial` would draw one random number a token, not one a row.
        # Rounding must open no stretch for a share of 0: float64 where a device has it.
        device = shares.device
        dtype = torch.float32 if device.type == "mps" else torch.float64
        ends = shares.cumsum(dim=-1, dtype=dtype)
        place = torch.rand(
            len(ends), 1, dtype=dtype, device=device, generator=generator
        )
        return torch.searchsorted(ends, place * ends[:, -1:], right=True).squeeze(1)

    return generate(decoder, source_ids, max_length, draw)
