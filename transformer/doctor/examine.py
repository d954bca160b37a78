"""Is this Transformer right? All checks, on a model of anybody's.

Made from book/workshop/examination.md: edit the chapter, not this file.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from transformer.doctor.around import cached_faults, decoding_faults, loss_faults
from transformer.doctor.examination import Answer, Examination
from transformer.doctor.findings import Report
from transformer.doctor.gates import evaluation, look_inside, runs
from transformer.doctor.hiding import future, masks, padding
from transformer.doctor.mixing import attention, batch, mixing
from transformer.doctor.parts import give_table, read_table
from transformer.doctor.reading import positions, source
from transformer.doctor.stack import dropout, norms, residuals, start, weights
from transformer.doctor.subject import KINDS, Subject

__all__ = ["examine"]


_Check = Callable[[Examination], Answer]


# In this order: what is found by one check may explain what fails in the next.
_PROPERTIES: dict[str, _Check] = {
    "batch": batch,
    "attention": attention,
    "mixing": mixing,
    "future": future,
    "padding": padding,
    "source": source,
    "positions": positions,
    "residuals": residuals,
    "norms": norms,
    "weights": weights,
    "dropout": dropout,
    "start": start,
    "masks": masks,
}
_OF_ATTENTION = ("batch", "attention", "mixing", "future", "weights")


def examine(
    build: Callable[..., nn.Module] | None = None,
    call: Callable[..., Any] | None = None,
    *,
    model: nn.Module | None = None,
    kind: str = "encoder-decoder",
    pad_id: int | None = None,
    loss: Callable[..., Any] | None = None,
    greedy: Callable[..., Any] | None = None,
    beam: Callable[..., Any] | None = None,
    cached: Callable[..., Any] | None = None,
    window: int | None = None,
    name: str | None = None,
    seconds: float = 60.0,
) -> Report:
    """Examine a Transformer from outside and name what is wrong with it.

    `build(d_model, num_heads, num_layers, d_ff, dropout, vocab_size)` makes a model of
    these sizes; a `model` in its place is examined as it is, and less of it is named.
    `call(model, source, target)` runs it on ids, (batch, length), and returns what it
    returns: logits, log-probabilities or probabilities, flat or not, alone or among
    other things. A language model and an encoder are called with `call(model, ids)`,
    one attention with `call(module, x, mask)`, positions with `call(module, x)`.

    Raises:
        ValueError: for a kind that is not one of `KINDS`, or neither or both of `build`
            and `model`.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if (build is None) == (model is None):
        raise ValueError("give build or model, one of the two")
    if call is None:
        call = _direct
    report = Report(name or kind)
    subject = Subject(kind, call, build, model, pad_id, window)
    examination = Examination(subject, report, seconds)
    began = time.monotonic()
    modes = {} if model is None else {part: part.training for part in model.modules()}
    tables = [part.num_embeddings for part in modes if isinstance(part, nn.Embedding)]
    if tables:  # the smallest is one of tokens
        subject.sizes = replace(subject.sizes, vocab_size=min(tables))
    try:
        if kind == "positions":
            examination.check("positions", read_table, examination)
        elif kind == "attention":
            meaning = give_table(subject)
            _examine_model(examination, _OF_ATTENTION)
            if "future" in report.proved:
                report.proved["future"] += meaning
        else:
            _examine_model(examination, _PROPERTIES)
        _around(examination, loss, greedy, beam, cached)
    finally:
        for part, mode in modes.items():
            part.training = mode
    report.findings.sort(key=lambda found: found.level != "bug")
    report.seconds = time.monotonic() - began
    return report


def _direct(model: nn.Module, *inputs: Tensor) -> Any:
    """The call of a model that takes ids and nothing else."""
    return model(*inputs)


def _examine_model(x: Examination, names: Iterable[str]) -> None:
    """The checks, of these names, of a model that reads ids."""
    x.check("runs", runs, x)
    if "runs" in x.report.untested or not x.inputs:
        return
    x.check("evaluation", evaluation, x)
    look_inside(x)
    for name in names:
        if name not in x.report.failed and name not in x.report.proved:
            x.check(name, _PROPERTIES[name], x)


def _around(
    x: Examination,
    loss: Callable[..., Any] | None,
    greedy: Callable[..., Any] | None,
    beam: Callable[..., Any] | None,
    cached: Callable[..., Any] | None,
) -> None:
    """The checks of what was given beside the model."""
    s = x.subject

    def ask(name: str, proved: str, faults: Callable[..., Any], *given: Any) -> None:
        x.check(name, lambda: None if x.add(name, faults(*given)) else proved)

    if loss is not None:
        proved = "The loss's gradient is k (p − q)."
        ask("loss", proved, loss_faults, loss, s.pad_id, x.form, s.flat)
    if cached is not None and x.inputs:
        ask("cached", "Cached = uncached.", cached_faults, s, cached, x.inputs)
    if (greedy is not None or beam is not None) and x.inputs:
        proved = "Greedy decoding takes the likeliest token."
        ask("decoding", proved, decoding_faults, s, greedy, beam)
