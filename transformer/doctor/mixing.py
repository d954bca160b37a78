"""Where words meet: in attention alone, rightly scaled, and never across sentences.

Made from book/workshop/examination.md: edit the chapter, not this file.
"""

from torch import nn

from transformer.doctor.examination import Answer, Examination
from transformer.doctor.findings import Finding, finding
from transformer.doctor.gates import rows_differ
from transformer.doctor.naming import (
    output_projection,
    projection_faults,
    scale_faults,
    softmax_faults,
)
from transformer.doctor.properties import batch_leak, moved, others
from transformer.doctor.structure import norm_faults
from transformer.doctor.subject import Refused

__all__ = ["attention", "batch", "mixing"]


def batch(x: Examination) -> Answer:
    """Sentences keep apart."""
    s = x.subject
    leaks, what = batch_leak(x.run_last, x.inputs[-1], s.allowed), "sentence"
    if not leaks and s.reads_source:
        source, target = x.inputs
        leaks = batch_leak(lambda ids: s.run(ids, target), source, s.allowed)
        what = "source"
    differ = rows_differ(x)
    if not leaks and not differ:
        return "Sentences keep apart: none changes another."
    seen = "the same sentence, three times in a batch, gives three outputs"
    if leaks:
        one, other, size = leaks[0]
        seen = f"another {what} {other} moves sentence {one}'s outputs by {size:.2g}"
    n = len(x.inputs[0])
    for a in x.attentions:
        if n == a.size[1]:
            return finding("batch-first-forgotten", seen, a.where)
    if not leaks:
        return finding("positions-along-batch", seen)
    x.check("attention", attention, x)
    x.check("mixing", mixing, x)
    return None if x.explained("batch") else finding("batch-mixed", seen)


def attention(x: Examination) -> Answer:
    """Scale, softmax, and the three projections."""
    s, sizes = x.subject, x.subject.sizes
    if not x.attentions or x.trace is None:
        raise Refused("no attention was recognised among the products")
    n, target = x.inputs[-1].shape
    found = softmax_faults(x.attentions, n)
    if not found:
        dims = {"the length": target, "the source's length": 7, "the batch": n}
        dims["the number of heads"] = sizes.num_heads
        spread = (lambda number: _spread(x, number)) if s.build else None
        found += scale_faults(x.attentions, x.width(), dims, spread)
    found += projection_faults(x.attentions)
    first = x.attentions[0]
    if not output_projection(x.trace, first):
        seen = "no linear map follows the heads"
        found.append(finding("output-projection-missing", seen, first.where))
    if s.build and not s.alone:
        found += _size_faults(x)
    if x.add("attention", found):
        return None
    said = f", scores times {first.scale:.3g}" if first.scale is not None else ""
    return f"{len(x.attentions)} attentions: weights sum to 1{said}."


def _spread(x: Examination, number: int) -> float:
    """How much further scores spread when heads are 16 times as wide."""

    def size(width: int) -> float:
        trace = x.subject.trace(*x.inputs, model=x.subject.make(d_model=width))
        return trace.attentions()[number].scores.value.float().std().item()

    narrow = x.subject.sizes.d_model
    return size(16 * narrow) / max(size(narrow), 1e-9)


def _size_faults(x: Examination) -> list[Finding]:
    """Sizes that were asked for and change nothing, and a map that serves all heads."""
    s, found = x.subject, []
    assert x.trace is not None
    maps = [node for node in x.trace.order if node.op in ("mm", "addmm")]
    square = (s.sizes.d_head,) * 2
    for node in maps:
        if tuple(node.parents[-1].value.shape) == square:
            seen = f"a matrix of {s.sizes.d_head} × {s.sizes.d_head}"
            found.append(finding("projection-per-head", seen, node.where))
            break

    def heads(**changes: int) -> int:
        attentions = s.trace(*x.inputs, model=s.make(**changes)).attentions()
        return sum(a.weights.size(0) // len(x.inputs[-1]) for a in attentions)

    count = heads()
    try:
        if heads(num_heads=4) == count:
            at = x.attentions[0].where
            seen = f"{count} heads in all, with num_heads 2 and 4"
            found.append(finding("heads-unused", seen, at, heads=2))
        if heads(num_layers=3) == count:
            seen = f"{len(x.attentions)} attentions, with 2 layers and with 3"
            found.append(finding("layers-unused", seen, None, layers=3))
    except Exception:  # theirs: other sizes fail, which is said elsewhere
        pass
    widths = {size for node in maps for size in node.parents[-1].value.shape}
    if not widths & {s.sizes.d_ff, 2 * s.sizes.d_ff}:
        found.append(finding("d-ff-unused", f"asked for {s.sizes.d_ff}"))
    return found


def mixing(x: Examination) -> Answer:
    """With attention held still, a word moves nothing but its own place."""
    s = x.subject
    if not x.attentions:
        raise Refused("no attention was recognised among the products")
    if x.explained("mixing"):
        return None
    seen = _held_mix(x, s.make())
    if seen is None:
        return "Positions meet in attention alone."
    norms = norm_faults(s.make(), x.trace) if x.trace else []
    if over := [f for f in norms if f.cause == "norm-over-batch"]:
        return over
    cause = "mixed-outside-attention"
    if s.build is not None:
        try:
            if _held_mix(x, s.make(num_heads=1)) is None:
                cause, seen = "heads-by-view", f"{seen}; with one head it does not"
        except Exception:  # theirs
            pass
    elif x.attentions[0].weights.size(0) > len(x.inputs[-1]):
        cause = "heads-by-view"
    return finding(cause, seen, x.attentions[0].scores.module or None)


def _held_mix(x: Examination, model: nn.Module) -> str | None:
    """What moves beyond its own place while attention is held; None: nothing."""
    s, place = x.subject, 3
    changed = [others(ids, place, s.allowed) for ids in x.inputs]
    for hold, held in (("self", "itself"), ("first", "the first word")):
        base = s.held(*x.inputs, hold=hold, model=model)
        change = moved(base, s.held(*changed, hold=hold, model=model)).amax(0)
        if s.last_alone:
            return None
        change[place : place + 2] = 0  # one further if the model shifts inside
        if change.max() > 1e-4:
            return (
                f"every word attends to {held} alone, and word {place} moves "
                f"output {int(change.argmax())} by {change.max():.2g}"
            )
    return None
