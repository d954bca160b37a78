"""One attention, or one positional encoding, examined by itself.

Made from book/workshop/examination.md: edit the chapter, not this file.
"""

import torch
from torch import Tensor, nn

from transformer.doctor.examination import Answer, Examination
from transformer.doctor.findings import finding
from transformer.doctor.naming import (
    future_fault,
    projection_faults,
    scale_faults,
    softmax_faults,
)
from transformer.doctor.properties import moved
from transformer.doctor.structure import without_gradient
from transformer.doctor.subject import BATCH, TARGET, Refused
from transformer.doctor.tables import misreading
from transformer.doctor.xray import Xray

__all__ = ["examine_part"]


def examine_part(x: Examination) -> None:
    """The checks of an attention, `call(module, x, mask)`, or of positions."""
    part = _Positions(x) if x.subject.kind == "positions" else _AttentionPart(x)
    for name in part.checks:
        x.check(name, getattr(part, name))
        if name == "runs" and name in x.report.untested:
            return


def _vectors(width: int, seed: int = 0) -> Tensor:
    """Random vectors, (batch, length, width)."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, TARGET, width, generator=random)


class _AttentionPart:
    """One attention: vectors and a mask in, vectors out."""

    checks = ("runs", "evaluation", "batch", "attention", "mixing", "future", "weights")

    def __init__(self, x: Examination) -> None:
        self.x, self.subject = x, x.subject
        self.model = x.subject.make()
        self.width = x.subject.sizes.d_model
        sizes = [p.size(-1) for p in self.model.parameters() if p.dim() == 2]
        if x.subject.build is None and sizes:
            self.width = min(sizes)
        self.vectors = _vectors(self.width)

    def run(
        self,
        vectors: Tensor,
        mask: Tensor | None = None,
        model: nn.Module | None = None,
        seed: int = 0,
    ) -> Tensor:
        """The attention's output, (batch, length, width)."""
        with torch.no_grad():
            model = self.model if model is None else model
            raw = self.subject.raw(model, vectors, mask, seed=seed)
        return self.subject.output(raw, *vectors.shape[:2]).detach()

    def runs(self) -> Answer:
        """It runs on vectors without a mask."""
        try:
            self.run(self.vectors)
        except Exception as error:  # theirs
            raise Refused(f"it does not run: {error}") from None
        return "It runs."

    def evaluation(self) -> Answer:
        """Two runs in evaluation mode are the same."""
        build = self.subject.build
        model = self.subject.make(dropout=0.5) if build else self.model
        one, other = (self.run(self.vectors, None, model, seed) for seed in (1, 2))
        change = moved(one, other).max().item()
        if not change:
            return "Evaluation is fixed."
        if build is not None:
            self.model = self.subject.make(dropout=0.0)
        seen = f"the same input, eval(): outputs move by {change:.2g}"
        return finding("dropout-in-eval", seen)

    def trace(self, mask: Tensor | None = None) -> Xray:
        """The x-ray of one pass."""
        return self.subject.trace_of(self.model, self.vectors, mask)

    def batch(self) -> Answer:
        """One sentence does not move another."""
        changed = self.vectors.clone()
        changed[0] = _vectors(self.width, 5)[0]
        change = moved(self.run(self.vectors), self.run(changed))[1:].max().item()
        if change < 1e-4:
            return "Sentences keep apart."
        sizes = {a.size for a in self.trace().attentions()}
        cause = "batch-first-forgotten" if (BATCH, BATCH) in sizes else "batch-mixed"
        seen = f"another sentence 0 moves sentence 1 by {change:.2g}"
        self.x.check("attention", self.attention)
        return None if self.x.explained("batch") else finding(cause, seen)

    def attention(self) -> Answer:
        """Scale, softmax and projections."""
        attentions = self.trace().attentions()
        if not attentions:
            raise Refused("no attention was recognised among the products")
        dims = {"the length": TARGET, "the batch": BATCH}
        spread = self.spread if self.subject.build else None
        found = softmax_faults(attentions, BATCH)
        found = found or scale_faults(attentions, self.width, dims, spread)
        found += projection_faults(attentions)
        bug = self.x.add("attention", found)
        return None if bug else "Scale and softmax are right."

    def spread(self, number: int) -> float:
        """How much further scores spread in heads 16 times as wide."""

        def size(width: int) -> float:
            model = self.subject.make(d_model=width)
            trace = self.subject.trace_of(model, _vectors(width), None)
            return trace.attentions()[number].scores.value.float().std().item()

        return size(256) / max(size(16), 1e-9)

    def mixing(self) -> Answer:
        """Turned round, the words give the outputs turned round."""
        if self.x.explained("batch"):
            return None
        change = self.turned(self.model)
        if change < 1e-3:
            return "Words turned round give outputs turned round."
        seen = f"words turned round: outputs differ by {change:.2g}"
        build = self.subject.build
        if build is not None and self.turned(self.subject.make(num_heads=1)) < 1e-3:
            return finding("heads-by-view", seen + "; with one head they do not")
        return finding("mixed-outside-attention", seen)

    def turned(self, model: nn.Module) -> float:
        """By how much the outputs of turned words differ from turned outputs."""
        one = self.run(self.vectors, None, model).flip(1)
        return moved(one, self.run(self.vectors.flip(1), None, model)).max().item()

    def future(self) -> Answer:
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
        return future_fault(trace, trace.attentions(), TARGET, seen, "vectors")

    def leaks(self, mask: Tensor) -> list[tuple[int, int, float]]:
        """Outputs that later vectors move, under a mask."""
        before, other = self.run(self.vectors, mask), _vectors(self.width, 9)
        found = []
        for later in range(1, TARGET):
            changed = self.vectors.clone()
            changed[:, later] = other[:, 0]
            change = moved(before, self.run(changed, mask))[:, :later].amax(0)
            found += [(i, later, s) for i, s in enumerate(change.tolist()) if s > 1e-4]
        return found

    def weights(self) -> Answer:
        """Every matrix moves the output."""
        named = {n: p for n, p in self.model.named_parameters() if p.dim() > 1}
        raw = self.subject.raw(self.model, self.vectors, None)
        out = self.subject.output(raw, BATCH, TARGET)
        if not named or not out.requires_grad:
            raise Refused("it has no matrices that learn")
        silent = without_gradient(out, named)
        if not silent:
            return "Every matrix is used."
        if self.x.explained("weights"):
            return None
        return finding("parameter-unused", "its gradient is 0", name=silent[0])


class _Positions:
    """One positional encoding: `call(module, x)` with vectors of zeros."""

    checks = ("runs", "positions")

    def __init__(self, x: Examination) -> None:
        self.subject, self.table = x.subject, torch.zeros(0)

    def runs(self) -> Answer:
        """It gives a row for each position."""
        zeros = torch.zeros(1, TARGET, self.subject.sizes.d_model)
        with torch.no_grad():
            raw = self.subject.raw(self.subject.make(), zeros)
        if not isinstance(raw, Tensor) or raw.size(-1) != zeros.size(-1):
            raise Refused("no tensor of the width of the vectors was returned")
        self.table = raw.detach().reshape(-1, raw.size(-1))
        if len(self.table) < 2:
            raise Refused(f"one row was returned for {TARGET} positions")
        return "It runs."

    def positions(self) -> Answer:
        """The table is the paper's."""
        said = misreading(self.table)
        if said == "":
            return "The table is the paper's."
        if said is not None:
            row = ", ".join(f"{v:.3f}" for v in self.table[1, :4].tolist())
            return finding("sinusoids", f"position 1 begins {row}", misreading=said)
        if len(self.table.unique(dim=0)) < len(self.table):
            return finding("no-positions", "two positions have one row", what="words")
        raise Refused("the table is not one of sinusoids")
