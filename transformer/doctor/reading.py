"""What must be read: the source, every earlier token, and the order of both.

Made from book/workshop/examination.md: edit the chapter, not this file.
"""

from typing import Any

import torch
from torch import Tensor

from transformer.doctor.examination import Answer, Examination
from transformer.doctor.findings import Finding, finding
from transformer.doctor.naming import visible
from transformer.doctor.properties import moved, others
from transformer.doctor.subject import Refused
from transformer.doctor.tables import table_fault
from transformer.doctor.xray import masks_of

__all__ = ["positions", "source"]


def source(x: Examination) -> Answer:
    """The source is read, and so is every earlier token of the target."""
    s = x.subject
    if x.explained("source") or "padding" in x.report.failed:
        return None
    if s.reads_source and (fault := _source_unread(x)):
        return fault
    if s.kind == "encoder" or s.last_alone:
        raise Refused("an encoder has no target")
    if "future" not in x.report.failed and (fault := _past_unread(x)):
        return fault
    if s.reads_source:
        return "The source and every earlier token are read."
    return "Every earlier token is read."


def _source_unread(x: Examination) -> Finding | None:
    """Why another source moves no output, if so."""
    s, (source, target) = x.subject, x.inputs
    other = s.inputs(seed=7)[0]
    if moved(s.run(source, target), s.run(other, target)).max() > 1e-6:
        return None
    seen = "another source leaves every output as it was"
    sizes = [a.size for a in x.attentions]
    reads = (target.size(1), source.size(1)) in sizes
    if sizes and not reads and sizes.count((target.size(1),) * 2) > len(sizes) // 2:
        return finding("cross-reads-target", seen)
    return finding("source-ignored", seen)


def _past_unread(x: Examination) -> Finding | None:
    """Why an earlier token does not move the last output, if so, and in no window."""
    s, ids = x.subject, x.inputs[-1]
    if s.window is not None:
        return None
    before, last = s.run(*x.inputs), ids.size(1) - 1
    silent = []
    for place in range(last):
        after = x.run_last(others(ids, place, s.allowed))
        if moved(before, after)[:, last].max() < 1e-7:
            silent.append(place)
    if len(silent) == last:
        seen = "changing any earlier token leaves the last output as it was"
        return finding("target-ignored", seen)
    if silent:
        seen = f"changing token {silent[0]} leaves output {last} as it was"
        words: dict[str, Any] = {"place": last, "token": silent[0]}
        return finding("causal-mask-too-strict", seen, None, **words)
    for attention in x.attentions:
        sees = visible(attention)
        if attention.size != (last + 1, last + 1) or not masks_of(attention):
            continue
        if not bool(sees.diagonal()[1:].any()) and bool(sees.tril(-1).any()):
            seen = "every weight on the diagonal is 0"
            return finding("self-hidden", seen, attention.where)
    return None


def positions(x: Examination) -> Answer:
    """Order matters, and a table of sinusoids is the paper's."""
    s, right = x.subject, 0
    if x.trace is not None:
        found, right = table_fault(x.trace, x.width())
        if found:
            return found
    if x.explained("positions"):
        return None
    if s.reads_source and "source" not in x.report.failed:
        source, target = x.inputs
        if moved(s.run(source, target), s.run(source.flip(1), target)).max() < 1e-4:
            seen = f"{source[0].tolist()} and the same turned round give the same "
            return finding("no-positions", seen + "outputs", None, what="source")
    if fault := _order_ignored(x, x.inputs[-1]):
        return fault
    return "Order matters." + (
        " Its table of sinusoids is the paper's." if right else ""
    )


def _order_ignored(x: Examination, ids: Tensor) -> Finding | None:
    """Whether two words swapped do no more than swap their weights, in layer 1."""
    s, n = x.subject, ids.size(1)
    first = next((a for a in x.attentions if a.size == (n, n)), None)
    if first is None:
        raise Refused("no attention over the tokens was recognised")
    if s.window is not None and s.window < 3:
        raise Refused("the window is too narrow to swap two words in it")
    order = torch.tensor([*range(n - 3), n - 2, n - 3, n - 1])
    trace = s.trace(*x.inputs[:-1], ids[:, order])
    swapped = trace.attentions()[first.number].weights[:, -1]
    if (swapped - first.weights[:, -1, order]).abs().max() >= 1e-6:
        return None
    what = "target" if s.reads_source else "tokens"
    seen = f"swapping tokens {n - 3} and {n - 2} swaps their weights, and no more"
    return finding("no-positions", seen, first.where, what=what)
