"""What masks must hide, the future and padding; and what they must not hide.

Made from book/workshop/examination.md: edit the chapter, not this file.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from transformer.doctor.examination import Answer, Examination
from transformer.doctor.findings import Finding, finding
from transformer.doctor.naming import (
    future_fault,
    gaps,
    mask_fault,
    mask_looks,
    names,
    visible,
)
from transformer.doctor.properties import future_leak, moved, others, padding_leak
from transformer.doctor.structure import changed
from transformer.doctor.subject import Refused
from transformer.doctor.xray import Attention, masks_of

__all__ = ["future", "masks", "padding"]


_Leaks = list[tuple[int, int, float]]


def future(x: Examination) -> Answer:
    """No output moves with a later token, in training or evaluation."""
    s, ids = x.subject, x.inputs[-1]
    if s.kind not in ("encoder-decoder", "language model"):
        raise Refused("an encoder may look ahead")
    if s.last_alone:
        raise Refused("it returns the last place alone")
    plain = s.make(dropout=0.0) if s.build else s.make()

    def run(train: bool) -> Callable[[Tensor], Tensor]:
        return lambda ids: x.run_last(ids, model=plain, train=train)

    leaks, trained = (future_leak(run(mode), ids, s.allowed) for mode in (False, True))
    if leaks or trained:
        return None if x.explained("future") else _named(x, leaks, trained)
    if s.pad_id is not None and not s.lengths_agree:
        ragged = ids.clone()
        ragged[0, 3:] = s.pad_id
        real = (ragged != s.pad_id).float()
        leaks = future_leak(run(False), ragged, s.allowed, real=real)
        if leaks and x.explained("future"):
            return None
        if leaks:
            seen = _said(x, leaks, ragged)
            if x.trace and (weak := mask_fault(x.trace, x.attentions)):
                both = f"{seen}; {weak.evidence}"
                return finding(weak.cause, both, weak.where, **gaps(x.attentions))
            at = x.attentions[0].where if x.attentions else None
            return finding("future-leak-with-padding", seen, at)
    return "No output depends on a later token, in training or evaluation."


def _said(x: Examination, leaks: _Leaks, ids: Tensor) -> str:
    """The input pair that proves a leak, in words."""
    place, later, size = max(leaks, key=lambda leak: leak[2])
    other = others(ids, later, x.subject.allowed)
    return (
        f"token {later} of {ids[0].tolist()} changed to {int(other[0, later])} "
        f"moves output {place} by {size:.2g} of its size ({len(leaks)} such pairs)"
    )


def _named(x: Examination, leaks: _Leaks, trained: _Leaks) -> Finding:
    """The cause of a future leak, in evaluation, in training, or in both."""
    s, ids = x.subject, x.inputs[-1]
    seen = _said(x, leaks or trained, ids)
    if not trained:
        return finding("future-leak-eval-only", seen)
    if not leaks:
        return finding("future-leak-train-only", seen)
    if x.trace is None:
        return finding("future-leak", seen)
    what = "target" if s.reads_source else "tokens"
    found = future_fault(x.trace, x.attentions, ids.size(1), seen, what)
    if found.cause == "future-leak" and s.build:
        one_head = s.make(num_heads=1)
        if not future_leak(lambda ids: x.run_last(ids, model=one_head), ids, s.allowed):
            return finding("heads-by-view", seen + "; with one head it does not")
    return found


def padding(x: Examination) -> Answer:
    """Padding changes nothing for real words."""
    s = x.subject
    if s.pad_id is None:
        raise Refused("no pad_id was given")
    if s.kind != "language model":
        change = _change_by_padding(x, s.pad_id)
        if change > 1e-4:
            if x.explained("padding"):
                return None
            seen = "two tokens of padding behind a source move the outputs by "
            return _open_to_padding(x, s.pad_id, f"{seen}{change:.2g}")
        if (token := _hidden_token(x)) is not None:
            seen = f"no query gives token {token} any weight"
            return finding("words-hidden", seen, None, token=token)
    return _ragged(x, s.pad_id)


def _change_by_padding(x: Examination, pad_id: int) -> float:
    """How far two tokens of padding behind a source move the outputs."""
    s = x.subject
    if s.kind == "encoder":
        return padding_leak(s.run, x.inputs[-1], pad_id)
    source, target = x.inputs
    if not s.lengths_agree:
        alone = s.run(source[:, :5], target)
        padded = F.pad(source[:, :5], (0, 2), value=pad_id)
        return moved(alone, s.run(padded, target)).max().item()
    padded = source.clone()
    padded[:, -2:] = pad_id
    before = s.run(padded, target)
    for table in s.make().parameters():
        if table.dim() == 2 and table.size(0) == s.sizes.vocab_size:
            with changed([table]), torch.no_grad():
                table[pad_id] = torch.randn(table.size(1))
                return moved(before, s.run(padded, target)).max().item()
    raise Refused("no embedding of the vocabulary's size")


def _open_to_padding(x: Examination, pad_id: int, seen: str) -> Finding:
    """Why words attend to padding: from sentences that end in two tokens of it."""
    first = x.inputs[0]
    n, length = first.size(1) - 2, first.size(1)
    words = first[:1, :n].expand(len(first), -1)
    try:
        padded = F.pad(words, (0, 2), value=pad_id)
        trace = x.subject.trace(padded, *x.inputs[1:])
        attentions = trace.attentions()
    except Exception:  # theirs
        return finding("padding-leak", seen)

    def by_words(a: Attention) -> Tensor:
        """What some word gives each place, at most."""
        rows = slice(0, n) if a.size[0] == length else slice(None)
        return a.weights[:, rows].nan_to_num(nan=1.0).amax((0, 1))

    reading = [a for a in attentions if a.size[1] == length]
    over = [a for a in reading if a.size[0] == length]
    cross = [a for a in reading if a.size[0] != length]
    open_ones = [a for a in reading if by_words(a)[n:].max() > 1e-7]
    if not open_ones:
        return finding("padding-leak", seen)
    most = max(by_words(a)[n:].max().item() for a in open_ones)
    seen += f"; up to {most:.2f} of a word's attention is on padding"
    if found := mask_fault(trace, open_ones):
        both = f"{seen}; {found.evidence}"
        return finding(found.cause, both, found.where, **gaps(open_ones))
    given, at = by_words(open_ones[0]), open_ones[0].where
    words_for: dict[str, Any] = {}
    if given[:n].max() < 1e-6:
        cause = "padding-inverted"
    elif given[n + 1 :].max() < 1e-7:
        cause = "padding-late"
    elif masks_of(open_ones[0]) and _odd_rows(open_ones[0], n):
        cause = "padding-rows"
    elif (token := _hidden_token(x)) is not None:
        cause, words_for = "padding-wrong-id", {"hidden": token, "pad": pad_id}
    elif cross and open_ones == over:
        cause = "padding-encoder-unmasked"
    elif over and open_ones == cross:
        cause = "padding-cross-unmasked"
    elif len(open_ones) < len(reading):
        cause, words_for = "padding-some-layers", {"layers": names(open_ones)}
    else:
        cause = "padding-unmasked"
    return finding(cause, seen, at, None, **words_for)


def _odd_rows(attention: Attention, n: int) -> bool:
    """Whether the rows of padded queries are hidden whole: even, zero or NaN."""
    if attention.size[0] != attention.size[1]:
        return False
    rows = attention.weights[:, n:]
    even = rows.max() - rows.min() < 1e-6
    return bool(even | rows.isnan().all())


def _hidden_token(x: Examination) -> int | None:
    """A token that no attention over its sentence reads, although it is no padding."""
    s = x.subject
    special = [i for i in (0, 1, 2, 3, s.sizes.vocab_size - 1) if i != s.pad_id]
    sentence = [s.allowed[0], *special, s.allowed[1]][: x.inputs[0].size(1)]
    n = len(sentence)
    given = torch.tensor(sentence).expand(len(x.inputs[0]), -1)
    try:
        attentions = s.trace(given, *x.inputs[1:]).attentions()
    except Exception:  # theirs: a special id may be refused
        return None
    seen = [visible(a).any(0) for a in attentions if a.size == (n, n)]
    if not seen:
        return None
    hidden = (~torch.stack(seen).any(0)).nonzero().flatten().tolist()
    return sentence[hidden[0]] if 0 < len(hidden) < n else None


def _ragged(x: Examination, pad_id: int) -> Answer:
    """A sentence alone gives what it gives among others with other padding."""
    s = x.subject
    inputs = [ids.clone() for ids in x.inputs]
    for ids in inputs:
        for row in range(1, len(ids)):
            ids[row, ids.size(1) - row :] = pad_id
    together = s.run(*inputs)
    for row in range(len(together)):
        alone = s.run(*[ids[row : row + 1] for ids in inputs])
        real = (inputs[-1][row] != pad_id) if not s.last_alone else torch.ones(1)
        change = (moved(together[row : row + 1], alone)[0] * real).max().item()
        if change <= 1e-4:
            continue
        if x.explained("batch") or x.explained("padding"):
            return None
        seen = f"sentence {row} of a ragged batch moves by {change:.2g} when it comes "
        seen += "alone, with the same padding"
        at = x.attentions[0].where if x.attentions else None
        return finding("mask-of-another-sentence", seen, at)
    return "Padding changes no real word, alone or in a ragged batch."


def masks(x: Examination) -> Answer:
    """The numbers under masks, and a source of padding alone."""
    s = x.subject
    if x.trace is None:
        raise Refused("the x-ray failed")
    found = mask_looks(x.trace, x.attentions)
    if s.pad_id is not None and s.kind != "language model":
        inputs = [ids.clone() for ids in x.inputs]
        inputs[0][0] = s.pad_id
        try:
            if bool(s.run(*inputs).isnan().any()):
                seen = "one source of padding alone: NaN"
                found.append(finding("empty-row", seen))
        except Exception:  # theirs: an empty sentence may be refused
            pass
    if any(f.cause == "mask-too-weak" for f in x.report.findings):
        return None
    return found or "Its masks hide for good."
