"""One examination: what is asked, what was found, and what a finding explains.

Made from book/workshop/examination.md: edit the chapter, not this file.
"""

import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

from transformer.doctor.findings import Finding, Report
from transformer.doctor.subject import Refused, Subject, one_line
from transformer.doctor.xray import Attention, Xray

__all__ = ["Answer", "Examination"]


# A check answers with what it proved, or with what it found.
Answer = str | Finding | list[Finding] | None


# What a cause found earlier explains: then these checks are not asked for another.
_EXPLAINS = {
    "lengths-must-agree": "padding",
    "batch-first-forgotten": "future padding positions source residuals",
    "batch-mixed": "padding mixing",
    "positions-along-batch": "batch padding positions future",
    "softmax-over-queries": "future padding batch",
    "softmax-over-heads": "future padding batch",
    "softmax-axis": "future padding batch",
    "softmax-missing": "future padding batch",
    "softmax-over-time": "batch mixing future padding",
    "scale-length": "batch padding",
    "mask-after-softmax": "future padding batch",
    "mask-multiplied": "padding",
    "mask-added": "padding",
    "mask-dropped": "padding",
    "mask-too-weak": "padding",
    "mask-not-minus": "padding",
    "heads-by-view": "future padding batch positions residuals",
    "norm-over-batch": "future padding batch positions norms residuals",
    "mixed-outside-attention": "future padding batch residuals",
    "future-leak-no-mask": "positions",
    "future-leak-inverted": "positions source weights padding",
    "future-leak-encoder-reads-target": "source positions padding",
    "future-leak-with-padding": "padding batch",
    "padding-inverted": "source positions weights",
    "target-ignored": "positions weights",
    "source-ignored": "weights positions",
    "cross-reads-target": "weights positions",
    "layers-shared": "weights",
    "values-from-keys": "weights",
    "no-positions": "weights",
    "dropout-in-eval": "dropout",
    "layers-not-registered": "dropout",
    "values-from-queries": "weights",
    "queries-are-keys": "weights",
    "not-finite": "batch mixing future padding source positions",
}


class Examination:
    """One examination: the subject, the report that grows, and what the x-ray saw."""

    def __init__(self, subject: Subject, report: Report, limit: float) -> None:
        self.subject, self.report = subject, report
        self.until = time.process_time() + limit
        self.inputs: list[Tensor] = []
        self.trace: Xray | None = None
        self.attentions: list[Attention] = []
        self.layers: list[str] = []
        self.plain: Finding | None = None
        self.form = "logits"

    def add(self, check: str, found: Finding | list[Finding]) -> bool:
        """Put findings into the report; whether there was a bug among them."""
        found = [found] if isinstance(found, Finding) else found
        for one in found:
            if one.cause not in {f.cause for f in self.report.findings}:
                self.report.findings.append(one)
        bug = any(f.level == "bug" for f in found)
        if bug:
            self.report.failed[check] = found[0].cause
        return bug

    def explained(self, check: str) -> bool:
        """Whether a cause that was found explains a failure of this check."""
        causes = [f.cause for f in self.report.findings]
        return any(check in _EXPLAINS.get(cause, "").split() for cause in causes)

    def check(self, name: str, ask: Callable[..., Answer], *given: Any) -> None:
        """Ask one check, and put its answer into the report."""
        if time.process_time() > self.until:
            self.report.untested[name] = "out of time"
            return
        try:
            answer = ask(*given)
        except Refused as reason:
            self.report.untested[name] = str(reason)
        except Exception as error:  # theirs: anything may be raised
            self.report.untested[name] = one_line(error)
        else:
            if isinstance(answer, str):
                self.report.proved[name] = answer
            elif answer:
                self.add(name, answer)

    def width(self) -> int:
        """The width of the model: from build's sizes, or from what layers pass on."""
        if self.subject.build is None and self.trace is not None:
            for name in self.layers:
                given = self.trace.calls[name][0][0]
                if given is not None:
                    return given.size(-1)
        return self.subject.sizes.d_model

    def run_last(self, ids: Tensor, **how: Any) -> Tensor:
        """The outputs, with these ids as the last input."""
        return self.subject.run(*self.inputs[:-1], ids, **how)
