"""One attention, or one positional encoding, examined by itself.

Made from book/workshop/examination.md: edit the chapter, not this file.
"""

from typing import Any

import torch
from torch import Tensor, nn

from transformer.doctor.examination import Examination
from transformer.doctor.findings import Finding, finding
from transformer.doctor.naming import (
    future_fault,
    projection_faults,
    scale_faults,
    softmax_faults,
)
from transformer.doctor.properties import moved
from transformer.doctor.subject import BATCH, TARGET, Refused
from transformer.doctor.tables import misreading

__all__ = ["examine_part"]


def examine_part(x: Examination) -> None:
    """The checks of an attention, `call(module, x, mask)`, or of positions."""
    part = _Positions(x) if x.subject.kind == "positions" else _AttentionPart(x)
    for name in part.checks:
        x.check(name, getattr(part, name))
        if name == "runs" and name in x.report.untested:
            return


def _width(x: Examination, model: nn.Module) -> int:
    """The width of the vectors that a part reads."""
    if x.subject.build is not None:
        return x.subject.sizes.d_model
    sizes = [p.size(-1) for p in model.parameters() if p.dim() == 2]
    return min(sizes) if sizes else x.subject.sizes.d_model


class _AttentionPart:
    """One attention: vectors and a mask in, vectors out."""

    checks = ("runs", "evaluation", "batch", "attention", "mixing", "future", "weights")

    def __init__(self, x: Examination) -> None:
        self.x = x
        self.model = x.subject.make()
        width = _width(x, self.model)
        self.vectors = self.random(width)
        self.mask: Tensor | None = None
        self.meaning = "True = may attend"

    def random(self, width: int, seed: int = 0) -> Tensor:
        """Random vectors, (batch, length, width)."""
        random = torch.Generator().manual_seed(seed)
        return torch.randn(BATCH, TARGET, width, generator=random)

    def run(
        self, vectors: Tensor, mask: Tensor | None = None, model: Any = None
    ) -> Tensor:
        """The attention's output, (batch, length, width)."""
        with torch.no_grad():
            raw = self.x.subject.raw(model or self.model, vectors, mask)
        return self.x.subject.output(raw, *vectors.shape[:2]).detach()

    def runs(self) -> str | None:
        """It runs without a mask and with one."""
        try:
            self.run(self.vectors)
        except Exception as error:  # theirs
            raise Refused(f"it does not run: {error}") from None
        return "It runs."

    def evaluation(self) -> str | None:
        """Two runs in evaluation mode are the same."""
        subject = self.x.subject
        model = subject.make(dropout=0.5) if subject.build else self.model
        model.eval()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            one = subject.output(subject.call(model, self.vectors, None), BATCH, TARGET)
            other = subject.output(
                subject.call(model, self.vectors, None), BATCH, TARGET
            )
        if change := moved(one, other).max().item():
            seen = f"the same input, eval(): outputs move by {change:.2g}"
            self.x.add("evaluation", [finding("dropout-in-eval", seen)])
            if subject.build is not None:
                self.model = subject.make(dropout=0.0)
            return None
        return "Evaluation is fixed."

    def trace(self, mask: Tensor | None = None) -> Any:
        """The x-ray of one pass."""
        return self.x.subject.trace_of(self.model, self.vectors, mask)

    def batch(self) -> str | None:
        """One sentence does not move another."""
        changed = self.vectors.clone()
        changed[0] = self.random(changed.size(-1), 5)[0]
        change = moved(self.run(self.vectors), self.run(changed))[1:].max().item()
        if change < 1e-4:
            return "Sentences keep apart."
        sizes = {a.size for a in self.trace().attentions()}
        cause = "batch-first-forgotten" if (BATCH, BATCH) in sizes else "batch-mixed"
        seen = f"another sentence 0 moves sentence 1 by {change:.2g}"
        self.attention()
        if not self.x.explained("batch"):
            self.x.add("batch", [finding(cause, seen)])
        return None

    def attention(self) -> str | None:
        """Scale, softmax and projections."""
        attentions = self.trace().attentions()
        if not attentions:
            raise Refused("no attention was recognised among the products")
        found = softmax_faults(attentions, BATCH)
        dims = {"the length": TARGET, "the batch": BATCH}
        width = self.vectors.size(-1)
        found = found or scale_faults(attentions, width, dims, self.spread_or_none())
        found += projection_faults(attentions)
        return (
            None if self.x.add("attention", found) else "Scale and softmax are right."
        )

    def spread_or_none(self) -> Any:
        """How much further scores spread in heads 16 times as wide, if one can ask."""
        subject = self.x.subject
        if subject.build is None:
            return None

        def spread(number: int) -> float:
            sizes = []
            for width in (16, 256):
                model = subject.make(d_model=width)
                trace = subject.trace_of(model, self.random(width), None)
                scores = trace.attentions()[number].scores.value
                sizes.append(scores.float().std().item())
            return sizes[1] / max(sizes[0], 1e-9)

        return spread

    def mixing(self) -> str | None:
        """Turned round, the words give the outputs turned round."""
        if self.x.explained("batch"):
            return None
        change = self.turned(self.model)
        if change < 1e-3:
            return "Words turned round give outputs turned round."
        seen = f"words turned round: outputs differ by {change:.2g}"
        cause, build = "mixed-outside-attention", self.x.subject.build
        if build is not None and self.turned(self.x.subject.make(num_heads=1)) < 1e-3:
            cause, seen = "heads-by-view", seen + "; with one head they do not"
        self.x.add("mixing", [finding(cause, seen)])
        return None

    def turned(self, model: nn.Module) -> float:
        """By how much the outputs of turned words differ from turned outputs."""
        one = self.run(self.vectors, None, model).flip(1)
        return moved(one, self.run(self.vectors.flip(1), None, model)).max().item()

    def future(self) -> str | None:
        """A causal mask hides what it should, whatever True means."""
        may = torch.ones(TARGET, TARGET, dtype=torch.bool).tril()
        before = self.leaks(may)
        if not before:
            return "A causal mask hides the future (True = may attend)."
        try:
            if not self.leaks(~may):
                return "A causal mask hides the future (True = hidden)."
        except Exception:  # theirs
            pass
        if self.x.explained("future"):
            return None
        trace = self.trace(may)
        place, later, size = before[0]
        seen = f"vector {later} moves output {place} by {size:.2g} under a causal mask"
        fault = future_fault(trace, trace.attentions(), TARGET, seen, "vectors")
        self.x.add("future", [fault])
        return None

    def leaks(self, mask: Tensor) -> list[tuple[int, int, float]]:
        """Outputs that later vectors move, under a mask."""
        before = self.run(self.vectors, mask)
        found = []
        for later in range(1, TARGET):
            changed = self.vectors.clone()
            changed[:, later] = self.random(changed.size(-1), 9)[:, 0]
            change = moved(before, self.run(changed, mask))[:, :later].amax(0)
            found += [(i, later, s) for i, s in enumerate(change.tolist()) if s > 1e-4]
        return found

    def weights(self) -> str | None:
        """Every matrix moves the output."""
        named = {n: p for n, p in self.model.named_parameters() if p.dim() > 1}
        raw = self.x.subject.raw(self.model, self.vectors, None)
        out = self.x.subject.output(raw, BATCH, TARGET)
        if not named or not out.requires_grad:
            raise Refused("it has no matrices that learn")
        total = (out * self.random(out.size(-1), 4)).sum()
        grads = torch.autograd.grad(total, list(named.values()), allow_unused=True)
        for name, grad in zip(named, grads, strict=True):
            if (
                grad is None or not bool(grad.abs().max() > 0)
            ) and not self.x.explained("weights"):
                seen = "its gradient is 0"
                self.x.add("weights", [finding("parameter-unused", seen, name=name)])
                return None
        return "Every matrix is used."


class _Positions:
    """One positional encoding: `call(module, x)` with vectors of zeros."""

    checks = ("runs", "positions")

    def __init__(self, x: Examination) -> None:
        self.x = x
        self.table = torch.zeros(0)

    def runs(self) -> str | None:
        """It gives a row for each position."""
        subject = self.x.subject
        model = subject.make()
        zeros = torch.zeros(1, TARGET, subject.sizes.d_model)
        with torch.no_grad():
            raw = subject.raw(model, zeros)
        if not isinstance(raw, Tensor) or raw.size(-1) != zeros.size(-1):
            raise Refused("no tensor of the width of the vectors was returned")
        self.table = raw.detach().reshape(-1, raw.size(-1))
        if len(self.table) < 2:
            raise Refused(f"one row was returned for {TARGET} positions")
        return "It runs."

    def positions(self) -> str | None:
        """The table is the paper's."""
        for start in range(3):
            said = misreading(self.table.float(), start)
            if said == "":
                return "The table is the paper's."
            if said is not None:
                row = ", ".join(f"{v:.3f}" for v in self.table[1, :4].tolist())
                found: list[Finding] = [
                    finding("sinusoids", f"position 1 begins {row}", misreading=said)
                ]
                self.x.add("positions", found)
                return None
        if len(self.table.unique(dim=0)) < len(self.table):
            same = [finding("no-positions", "two positions have one row", what="words")]
            self.x.add("positions", same)
            return None
        raise Refused("the table is not one of sinusoids")
