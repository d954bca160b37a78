"""The gates: does the model run, in which layout, and the same way twice?

Made from book/workshop/examination.md: edit the chapter, not this file.
"""

import torch
from torch import Tensor

from transformer.doctor.examination import Answer, Examination
from transformer.doctor.findings import Finding, finding
from transformer.doctor.properties import batch_leak, moved
from transformer.doctor.structure import hidden_layers, layers_of, plain_tensors
from transformer.doctor.subject import Refused, one_line

__all__ = ["evaluation", "look_inside", "rows_differ", "runs"]


def runs(x: Examination) -> Answer:
    """Which lengths and batches run; the layout of inputs and outputs."""
    s = x.subject
    x.plain = plain_tensors(s.make())  # before it leaves any of its own
    failed = s.failure(*s.inputs())
    if failed is not None and s.reads_source:
        failed = _otherwise(x, failed)
    if failed is not None:
        _one_length(x, failed)
    x.inputs = s.inputs()
    if not s.time_first and batch_leak(x.run_last, x.inputs[-1], s.allowed):
        _works_turned(x, apart=True)
    base = s.run(*x.inputs)
    if not bool(base.isfinite().all()):
        x.add("runs", _infinite(x, base))
        raise Refused("the outputs are not finite")
    if s.kind in ("encoder-decoder", "language model"):
        _read_form(x, base)
    if x.report.failed.get("runs"):
        return None
    for length in (2, 9, 1):
        s.source_length = length + 2
        failed = s.failure(*s.inputs(target=length))
        s.source_length = 7
        if failed is not None and length > 1:
            seen = f"length {length}: {one_line(failed)}"
            return finding("one-length-only", seen)
    if failed := s.failure(*s.inputs(batch=1)):
        return finding("batch-of-one-fails", one_line(failed))
    return "It runs at several lengths, and on one sentence alone."


def _otherwise(x: Examination, failed: Exception) -> Exception | None:
    """The failure, unless (length, batch) or equal lengths make it go away."""
    s = x.subject
    if _works_turned(x, apart=False):
        return None
    s.lengths_agree = True
    if s.failure(*s.inputs()) is None:
        x.add("runs", finding("lengths-must-agree", one_line(failed)))
        return None
    s.lengths_agree = False
    return failed


def _works_turned(x: Examination, apart: bool) -> bool:
    """Whether it runs on (length, batch), and sentences keep apart there, if asked."""
    x.subject.time_first = True
    x.inputs = x.subject.inputs()
    try:
        leaks = batch_leak(x.run_last, x.inputs[-1], x.subject.allowed)
        if not apart or not (leaks or rows_differ(x)):
            return True
    except Exception:  # theirs
        pass
    x.subject.time_first = False
    return False


def rows_differ(x: Examination) -> bool:
    """Whether a sentence's output depends on its place in the batch."""
    same = [ids[:1].expand_as(ids).contiguous() for ids in x.inputs]
    out = x.subject.run(*same)
    return moved(out, out[:1].expand_as(out)).max().item() > 1e-3


def _one_length(x: Examination, failed: Exception) -> None:
    """Look for the one length that a model may work at, and give up."""
    s = x.subject
    for length in (8, 10, 16, 20, 32, 64):
        s.source_length = length
        if s.failure(*s.inputs(target=length)) is None:
            seen = f"length {length} runs; length 5: {one_line(failed)}"
            x.add("runs", finding("one-length-only", seen))
            raise Refused("it runs at one length alone")
    s.lengths_agree, s.source_length = True, 7
    if s.failure(*s.inputs(target=4, batch=4)) is None:
        seen = "4 sentences of 4 words run, 3 of 5 do not: " + one_line(failed)
        x.add("runs", finding("batch-first-forgotten", seen))
    raise Refused(f"it does not run: {one_line(failed)}")


def _infinite(x: Examination, out: Tensor) -> Finding:
    """Why outputs are not finite: a mask that leaves a query nothing, perhaps."""
    shown = " and ".join(str(ids[0].tolist()) for ids in x.inputs)
    seen = f"{int((~out.isfinite()).sum())} of {out.numel()} outputs, for {shown}"
    length = x.inputs[-1].size(1)
    try:
        attentions = x.subject.trace(*x.inputs).attentions()
    except Exception:  # theirs
        attentions = []
    for attention in attentions:
        at = attention.softmax_at
        before = attention.steps[at - 1].value if at else attention.scores.value
        sees = ~before.isinf().reshape(-1, *before.shape[-2:]).all(0)
        if bool(sees.any(-1).all()) or before.size(-2) != attention.size[0]:
            continue
        seen += "; a query may attend to nothing"
        square = attention.size == (length, length)
        if square and bool(sees.triu(1).any()) and not bool(sees.tril(-1).any()):
            return finding("future-leak-inverted", seen, attention.where)
        if not bool(sees.any()) and x.subject.pad_id is not None:
            return finding("padding-inverted", seen, attention.where)
        return finding("not-finite", seen, attention.where)
    return finding("not-finite", seen)


def _read_form(x: Examination, out: Tensor) -> None:
    """Logits, log-probabilities or probabilities: from their sums."""

    def is_one(sums: Tensor) -> bool:
        return torch.allclose(sums, torch.ones(()), atol=1e-3)

    positive = bool((out >= 0).all())
    if positive and is_one(out.sum(-1)):
        x.form = "probabilities"
        x.add("runs", finding("output-probabilities", "each row sums to 1"))
    elif is_one(out.logsumexp(-1).exp()):
        x.form = "log-probabilities"
    elif out.size(1) > 1 and (
        is_one(out.logsumexp(1).exp()) or (positive and is_one(out.sum(1)))
    ):
        seen = "the sums over the positions are 1, those over the vocabulary are not"
        x.add("runs", finding("softmax-over-time", seen))


def evaluation(x: Examination) -> Answer:
    """Two runs in evaluation mode, from different random numbers."""
    s = x.subject
    model = s.make(dropout=0.5) if s.build else s.make()
    one = s.run(*x.inputs, model=model)
    change = moved(one, s.run(*x.inputs, model=model, seed=99)).max().item()
    if change <= 1e-6:
        return "Evaluation is fixed: two runs give the same."
    seen = f"the same input, eval(): outputs move by {change:.2g} of their size"
    drawn = (
        node.where
        for node in s.trace(*x.inputs, model=model).order
        if "dropout" in node.op or node.op.startswith("bernoulli")
    )
    fault = finding("dropout-in-eval", seen, next(drawn, None))
    x.add("evaluation", hidden_layers(model) or fault)  # eval() does not reach them
    s.still = True
    return None


def look_inside(x: Examination) -> None:
    """The x-ray that later checks read; they do without if it fails."""
    s = x.subject
    try:
        x.trace = s.trace(*x.inputs)
        x.attentions = x.trace.attentions()
        x.layers = layers_of(s.make(), x.trace, x.attentions)
    except Exception:  # theirs: then nothing is named
        x.trace, x.attentions = None, []
