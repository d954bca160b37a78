"""One examination: gates, then properties, then the names of what failed.

Made from book/workshop/examination.md: edit the chapter, not this file.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transformer.doctor.findings import Finding, Report, finding
from transformer.doctor.naming import (
    future_fault,
    gaps,
    linear_feed_forward,
    mask_fault,
    mask_looks,
    names,
    output_projection,
    projection_faults,
    scale_faults,
    softmax_faults,
    visible,
)
from transformer.doctor.properties import batch_leak, future_leak, moved, others
from transformer.doctor.structure import (
    equal_starts,
    even_rows,
    hidden_layers,
    layer_faults,
    layers_of,
    made_in_forward,
    norm_faults,
    plain_tensors,
    residual_dropout,
    shared_layers,
    shared_modules,
    weight_faults,
)
from transformer.doctor.subject import OutOfTime, Plain, Refused, Subject, one_line
from transformer.doctor.tables import table_fault
from transformer.doctor.xray import Attention, Xray, masks_of

__all__ = ["CHECKS", "Examination"]


# The checks in their order: what is found by one may explain what fails in the next.
CHECKS = (
    *("runs", "evaluation", "batch", "attention", "mixing", "future", "padding"),
    *("source", "positions", "residuals", "norms", "weights", "dropout", "start"),
    *("masks", "loss", "schedule", "cached", "decoding"),
)


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
        self.style: str | None = None
        self.plain: Finding | None = None
        self.form = "logits"

    # telling

    def add(self, check: str, found: list[Finding]) -> bool:
        """Put findings into the report; whether there were any."""
        for one in found:
            if one.cause not in {f.cause for f in self.report.findings}:
                self.report.findings.append(one)
        if any(f.level == "bug" for f in found):
            self.report.failed[check] = found[0].cause
        return any(f.level == "bug" for f in found)

    def explained(self, check: str) -> bool:
        """Whether a cause that was found explains a failure of this check."""
        causes = [f.cause for f in self.report.findings]
        return any(check in _EXPLAINS.get(cause, "").split() for cause in causes)

    def check(self, name: str, ask: Callable[[], str | None]) -> None:
        """Run one check: it returns what was proved, or None after a finding."""
        if time.process_time() > self.until:
            self.report.untested[name] = "out of time"
            return
        try:
            proved = ask()
        except Refused as reason:
            self.report.untested[name] = str(reason)
        except OutOfTime as error:
            self.report.untested[name] = str(error)
            self.until = 0.0
        except Exception as error:  # theirs: anything may be raised
            self.report.untested[name] = one_line(error)
        else:
            if proved:
                self.report.proved[name] = proved

    # gates

    def runs(self) -> str | None:
        """Which lengths and batches run; the layout of inputs and outputs."""
        s = self.subject
        self.plain = plain_tensors(s.make())  # before it leaves any of its own
        failed: Exception | None = None
        try:
            s.run(*s.inputs())
        except Exception as error:
            failed = error
        if failed is not None and "boolean masks" in str(failed):
            s.bytes_too = True
            self.add("runs", [finding("byte-mask", one_line(failed))])
            failed = None
            try:
                s.run(*s.inputs())
            except Exception as error:
                failed = error
        if (
            failed is not None
            and s.reads_source
            and self.works_turned(batch_first=False)
        ):
            failed = None
        if failed is not None and s.reads_source:
            s.lengths_agree = True
            try:
                s.run(*s.inputs())
            except Exception:
                s.lengths_agree = False
            else:
                self.add("runs", [finding("lengths-must-agree", one_line(failed))])
                failed = None
        if failed is not None:
            self.one_length(failed)
        self.layout()
        self.inputs = s.inputs()
        base = s.run(*self.inputs)
        if not bool(base.isfinite().all()):
            seen = f"{int((~base.isfinite()).sum())} of {base.numel()} outputs, for "
            self.name_infinite(seen + _shown(self.inputs))
            raise Refused("the outputs are not finite")
        if s.kind in ("encoder-decoder", "language model"):
            self.read_form(base)
        if self.report.failed.get("runs"):
            return None
        worked = []
        for length in (2, 9, 1):
            s.source_length = length + 2
            try:
                s.run(*s.inputs(target=length))
                worked.append(length)
            except Exception as error:
                s.source_length = 7
                if length == 1:
                    continue
                self.add(
                    "runs",
                    [finding("one-length-only", f"length {length}: {one_line(error)}")],
                )
                return None
        s.source_length = 7
        try:
            s.run(*s.inputs(batch=1))
        except Exception as error:
            self.add("runs", [finding("batch-of-one-fails", one_line(error))])
            return None
        return "It runs at several lengths, and on one sentence alone."

    def name_infinite(self, seen: str) -> None:
        """Why outputs are not finite: a mask that leaves a query nothing, perhaps."""
        found = finding("not-finite", seen)
        length = self.inputs[-1].size(1)
        try:
            attentions = self.subject.trace(*self.inputs).attentions()
        except Exception:  # theirs
            attentions = []
        for attention in attentions:
            at = attention.softmax_at
            before = attention.steps[at - 1].value if at else attention.scores.value
            sees = ~before.isinf().reshape(-1, *before.shape[-2:]).all(0)
            if bool(sees.any(-1).all()) or before.size(-2) != attention.size[0]:
                continue
            seen += "; a query may attend to nothing"
            found = finding("not-finite", seen, attention.where)
            square = attention.size == (length, length)
            if square and bool(sees.triu(1).any()) and not bool(sees.tril(-1).any()):
                found = finding("future-leak-inverted", seen, attention.where)
            elif not bool(sees.any()) and self.subject.pad_id is not None:
                found = finding("padding-inverted", seen, attention.where)
            break
        self.add("runs", [found])

    def works_turned(self, batch_first: bool) -> bool:
        """Whether it runs on (length, batch), and sentences keep apart only so.

        Where (batch, length) does not run, to run is enough.
        """
        s = self.subject
        s.time_first = True
        try:
            inputs = s.inputs()
            leaks = batch_leak(
                lambda ids: s.run(*inputs[:-1], ids), inputs[-1], s.allowed
            )
            if not batch_first or not (leaks or self.rows_differ(inputs)):
                return True
        except Exception:  # theirs
            pass
        s.time_first = False
        return False

    def one_length(self, failed: Exception) -> None:
        """Look for the one length that a model may work at; else give up."""
        s = self.subject
        for length in (8, 10, 16, 20, 32, 64):
            s.source_length = length
            try:
                s.run(*s.inputs(target=length))
            except Exception:  # theirs
                continue
            seen = f"length {length} runs; length 5: {one_line(failed)}"
            self.add("runs", [finding("one-length-only", seen)])
            raise Refused("it runs at one length alone")
        s.lengths_agree, s.source_length = True, 7
        try:
            s.run(*s.inputs(target=4, batch=4))
        except Exception:  # theirs
            raise Refused(f"it does not run: {one_line(failed)}") from None
        seen = "4 sentences of 4 words run, 3 of 5 do not: " + one_line(failed)
        self.add("runs", [finding("batch-first-forgotten", seen)])
        raise Refused(f"it does not run: {one_line(failed)}")

    def layout(self) -> None:
        """Whether ids go in as (length, batch): sentences then keep apart only so."""
        s = self.subject
        if s.time_first:
            return
        inputs = s.inputs()
        if batch_leak(lambda ids: s.run(*inputs[:-1], ids), inputs[-1], s.allowed):
            self.works_turned(batch_first=True)

    def rows_differ(self, inputs: list[Tensor]) -> bool:
        """Whether a sentence's output depends on its place in the batch."""
        same = [ids[:1].expand_as(ids).contiguous() for ids in inputs]
        out = self.subject.run(*same)
        return moved(out, out[:1].expand_as(out)).max().item() > 1e-3

    def read_form(self, out: Tensor) -> None:
        """Logits, log-probabilities or probabilities: from their sums."""
        one = torch.ones(())
        if bool((out >= 0).all()) and torch.allclose(out.sum(-1), one, atol=1e-3):
            self.form = "probabilities"
            self.add("runs", [finding("output-probabilities", "each row sums to 1")])
        elif torch.allclose(out.logsumexp(-1), one * 0, atol=1e-3):
            self.form = "log-probabilities"
        elif out.size(1) > 1 and (
            torch.allclose(out.logsumexp(1), one * 0, atol=1e-3)
            or (bool((out >= 0).all()) and torch.allclose(out.sum(1), one, atol=1e-3))
        ):
            seen = (
                "the sums over the positions are 1, those over the vocabulary are not"
            )
            self.add("runs", [finding("softmax-over-time", seen)])

    def evaluation(self) -> str | None:
        """Two runs in evaluation mode, from different random numbers."""
        s = self.subject
        model = s.make(dropout=0.5) if s.build else s.make()
        one = s.run(*self.inputs, model=model)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(99)
            other = self.unseeded(model)
        change = moved(one, other).max().item()
        if change > 1e-6:
            seen = f"the same input, eval(): outputs move by {change:.2g} of their size"
            where = self.dropout_line(model)
            hidden = hidden_layers(model)  # eval() does not reach them
            self.add("evaluation", [hidden or finding("dropout-in-eval", seen, where)])
            s.still = True
            return None
        return "Evaluation is fixed: two runs give the same."

    def unseeded(self, model: nn.Module, train: bool = False) -> Tensor:
        """A run from whatever random numbers come next."""
        s = self.subject
        given = [ids.T for ids in self.inputs] if s.time_first else self.inputs
        model.train(train)
        with torch.no_grad(), s.quiet(), Plain(s.still, s.bytes_too):
            raw = s.call(model, *given)
        model.eval()
        if s.time_first and not s.flat:
            return s.output(raw, *given[-1].shape).transpose(0, 1)
        out = s.output(raw, *self.inputs[-1].shape)
        if s.time_first:
            length, batch = given[-1].shape
            out = out.reshape(length, batch, -1).transpose(0, 1)
        return out

    def dropout_line(self, model: nn.Module) -> str | None:
        """The line that draws random numbers."""
        for node in self.subject.trace(*self.inputs, model=model).order:
            if "dropout" in node.op or node.op.startswith("bernoulli"):
                return ", ".join(x for x in (node.module, node.line) if x)
        return None

    def look_inside(self) -> None:
        """The x-ray that later checks read; they do without if it fails."""
        s = self.subject
        try:
            self.trace = s.trace(*self.inputs)
            self.attentions = self.trace.attentions()
            self.layers = layers_of(s.make(), self.trace, self.attentions)
        except Exception:  # theirs: then nothing is named
            self.trace, self.attentions = None, []
        if not s.last_alone and s.kind != "encoder":
            self.find_shift(self.inputs[-1])

    # properties

    def batch(self) -> str | None:
        """Sentences keep apart."""
        s = self.subject
        sizes = {a.size for a in self.attentions}
        source = self.inputs[0]
        leaks = batch_leak(
            lambda ids: s.run(*self.inputs[:-1], ids), self.inputs[-1], s.allowed
        )
        what = "sentence"
        if not leaks and s.reads_source:
            leaks = batch_leak(
                lambda ids: s.run(ids, self.inputs[-1]), source, s.allowed
            )
            what = "source"
        differ = self.rows_differ(self.inputs)
        if not leaks and not differ:
            return "Sentences keep apart: none changes another."
        seen = "the same sentence, three times in a batch, gives three outputs"
        if leaks:
            one, other, size = leaks[0]
            seen = (
                f"another {what} {other} moves sentence {one}'s outputs by {size:.2g}"
            )
        n = len(source)
        if (n, n) in sizes or any(n == a.size[1] for a in self.attentions):
            at = next(a.where for a in self.attentions if n in a.size)
            self.add("batch", [finding("batch-first-forgotten", seen, at)])
            return None
        if differ and not leaks:
            self.add("batch", [finding("positions-along-batch", seen)])
            return None
        self.attention()
        self.mixing()
        if not self.explained("batch"):
            self.add("batch", [finding("batch-mixed", seen)])
        return None

    def attention(self) -> str | None:
        """Scale, softmax, and the three projections."""
        s, sizes = self.subject, self.subject.sizes
        if not self.attentions or self.trace is None:
            raise Refused("no attention was recognised among the products")
        n, target = self.inputs[-1].shape
        found = softmax_faults(self.attentions, n)
        if not found:
            dims = {"the length": target, "the source's length": 7, "the batch": n}
            dims["the number of heads"] = sizes.num_heads
            spread = self.spread if s.build else None
            d_model = self.width()
            found += scale_faults(self.attentions, d_model, dims, spread)
        found += projection_faults(self.attentions)
        if not output_projection(self.trace, self.attentions[0]):
            seen, at = "no linear map follows the heads", self.attentions[0].where
            found.append(finding("output-projection-missing", seen, at))
        for node in self.trace.order:
            if node.op in ("mm", "addmm"):
                weight = node.parents[-1].value
                if (
                    tuple(weight.shape) == (sizes.d_head,) * 2
                    and sizes.num_heads > 1
                    and s.build
                ):
                    seen = f"a matrix of {sizes.d_head} × {sizes.d_head}"
                    at = ", ".join(x for x in (node.module, node.line) if x)
                    found.append(finding("projection-per-head", seen, at))
                    break
        if s.build:
            found += self.size_faults()
        if self.add("attention", found):
            return None
        scale = self.attentions[0].scale
        said = f", scores times {scale:.3g}" if scale is not None else ""
        return f"{len(self.attentions)} attentions: weights sum to 1{said}."

    def width(self) -> int:
        """The width of the model: from build's sizes, or from what layers pass on."""
        if self.subject.build or self.trace is None:
            return self.subject.sizes.d_model
        for name in self.layers:
            given = self.trace.calls[name][0][0]
            if given is not None:
                return given.size(-1)
        return self.subject.sizes.d_model

    def spread(self, number: int) -> float:
        """How much further scores spread when heads are 16 times as wide."""

        def size(width: int) -> float:
            model = self.subject.make(d_model=width)
            trace = self.subject.trace(*self.inputs, model=model)
            return trace.attentions()[number].scores.value.float().std().item()

        narrow = self.subject.sizes.d_model
        return size(16 * narrow) / max(size(narrow), 1e-9)

    def size_faults(self) -> list[Finding]:
        """Sizes that were asked for and change nothing."""
        s, found = self.subject, []
        assert self.trace is not None
        n = len(self.inputs[-1])

        def heads(**changes: int) -> int:
            attentions = s.trace(*self.inputs, model=s.make(**changes)).attentions()
            return sum(a.weights.size(0) // n for a in attentions)

        count = heads()
        try:
            if heads(num_heads=4) == count:
                at = self.attentions[0].where
                seen = f"{count} heads in all, with num_heads 2 and 4"
                found.append(finding("heads-unused", seen, at, heads=2))
            if heads(num_layers=3) == count:
                seen = f"{len(self.attentions)} attentions, with 2 layers and with 3"
                found.append(finding("layers-unused", seen, None, layers=3))
        except Exception:  # theirs: other sizes fail, which is said elsewhere
            pass
        widths = {
            size
            for node in self.trace.order
            if node.op in ("mm", "addmm")
            for size in node.parents[-1].value.shape
        }
        if not widths & {s.sizes.d_ff, 2 * s.sizes.d_ff} and s.kind != "attention":
            found.append(finding("d-ff-unused", f"asked for {s.sizes.d_ff}"))
        return found

    def mixing(self) -> str | None:
        """With attention held still, a word moves nothing but its own place."""
        s = self.subject
        if not self.attentions:
            raise Refused("no attention was recognised among the products")
        if self.explained("mixing"):
            return None
        worst = self.held_mix(s.make())
        if worst is None:
            return "Positions meet in attention alone."
        seen = worst
        norms = norm_faults(s.make(), self.trace) if self.trace else []
        if over := [f for f in norms if f.cause == "norm-over-batch"]:
            self.add("mixing", over)
            return None
        cause = "mixed-outside-attention"
        if s.build is not None:
            try:
                if self.held_mix(s.make(num_heads=1)) is None:
                    cause = "heads-by-view"
                    seen += "; with one head it does not"
            except Exception:  # theirs
                pass
        elif self.attentions[0].weights.size(0) > len(self.inputs[-1]):
            cause = "heads-by-view"
        at = self.attentions[0].scores.module or None
        self.add("mixing", [finding(cause, seen, at)])
        return None

    def held_mix(self, model: nn.Module) -> str | None:
        """What moves beyond its own place while attention is held; None: nothing."""
        s, place = self.subject, 3
        changed = [others(ids, place, s.allowed) for ids in self.inputs]
        for hold in ("self", "first"):
            base = s.held(*self.inputs, hold=hold, model=model)
            change = moved(base, s.held(*changed, hold=hold, model=model)).amax(0)
            if s.last_alone:
                return None
            change[place : place + 2] = 0  # one further if the model shifts inside
            if change.max() > 1e-4:
                held = "itself" if hold == "self" else "the first word"
                return (
                    f"every word attends to {held} alone, and word {place} moves "
                    f"output {int(change.argmax())} by {change.max():.2g}"
                )
        return None

    def future(self) -> str | None:
        """No output moves with a later token, in training or evaluation."""
        s = self.subject
        if s.kind not in ("encoder-decoder", "language model"):
            raise Refused("an encoder may look ahead")
        if s.last_alone:
            raise Refused("it returns the last place alone")
        ids = self.inputs[-1]
        plain = s.make(dropout=0.0) if s.build else s.make()

        def run(train: bool) -> Callable[[Tensor], Tensor]:
            return lambda x: s.run(*self.inputs[:-1], x, model=plain, train=train)

        leaks = {mode: future_leak(run(mode), ids, s.allowed) for mode in (False, True)}
        if leaks[False] or leaks[True]:
            if not self.explained("future"):
                self.name_future(leaks, ids)
            return None
        if s.pad_id is not None and not s.lengths_agree:
            ragged = ids.clone()
            ragged[0, 3:] = s.pad_id
            real = (ragged != s.pad_id).float()
            found = future_leak(run(False), ragged, s.allowed, real=real)
            if found and self.explained("future"):
                return None
            if found:
                seen = self.leak_said(found, ragged)
                at = self.attentions[0].where if self.attentions else None
                self.add("future", [finding("future-leak-with-padding", seen, at)])
                return None
        return "No output depends on a later token, in training or evaluation."

    def find_shift(self, ids: Tensor) -> None:
        """Whether the model shifts the target itself: then its own token is later."""
        s = self.subject
        before = s.run(*self.inputs[:-1], ids)
        moves = [
            moved(before, s.run(*self.inputs[:-1], others(ids, j, s.allowed)))[
                :, j
            ].max()
            for j in range(ids.size(1))
        ]
        s.shift = int(all(move < 1e-6 for move in moves))

    def leak_said(self, leaks: list[tuple[int, int, float]], ids: Tensor) -> str:
        """The input pair that proves a leak, in words."""
        place, later, size = max(leaks, key=lambda leak: leak[2])
        other = others(ids, later, self.subject.allowed)
        return (
            f"token {later} of {ids[0].tolist()} changed to {int(other[0, later])} "
            f"moves output {place} by {size:.2g} of its size ({len(leaks)} such pairs)"
        )

    def name_future(
        self, leaks: dict[bool, list[tuple[int, int, float]]], ids: Tensor
    ) -> None:
        """Name the cause of a future leak."""
        s = self.subject
        seen = self.leak_said(leaks[False] or leaks[True], ids)
        if not leaks[False] or not leaks[True]:
            cause = (
                "future-leak-eval-only" if leaks[False] else "future-leak-train-only"
            )
            self.add("future", [finding(cause, seen)])
            return
        what = "target" if s.reads_source else "tokens"
        if self.trace is None:
            self.add("future", [finding("future-leak", seen)])
            return
        found = future_fault(self.trace, self.attentions, ids.size(1), seen, what)
        if found.cause == "future-leak" and s.build:
            found = self.by_one_head(found, seen)
        self.add("future", [found])

    def by_one_head(self, found: Finding, seen: str) -> Finding:
        """Whether a leak is gone with one head."""
        s = self.subject
        model = s.make(num_heads=1)
        ids = self.inputs[-1]
        leaks = future_leak(
            lambda x: s.run(*self.inputs[:-1], x, model=model), ids, s.allowed
        )
        if leaks:
            return found
        return finding("heads-by-view", seen + "; with one head it does not")

    # padding

    def padding(self) -> str | None:
        """Padding changes nothing for real words."""
        s = self.subject
        if s.pad_id is None:
            raise Refused("no pad_id was given")
        if s.kind == "language model":
            return self.ragged()
        if s.kind == "encoder-decoder":
            change = self.source_padding()
        else:
            ids = self.inputs[-1]
            alone = s.run(ids)
            padded = s.run(_with_padding(ids, s.pad_id, 2))[:, : alone.size(1)]
            change = moved(alone, padded).max().item()
        if change > 1e-4:
            if not self.explained("padding"):
                self.name_padding(change)
            return None
        self.hidden_words()
        if self.report.failed.get("padding"):
            return None
        return self.ragged()

    def source_padding(self) -> float:
        """How far two tokens of padding behind the source move the outputs."""
        s = self.subject
        assert s.pad_id is not None
        source, target = self.inputs
        if s.lengths_agree:
            return self.padding_vector()
        alone = s.run(source[:, :5], target)
        padded = s.run(_with_padding(source[:, :5], s.pad_id, 2), target)
        return moved(alone, padded).max().item()

    def padding_vector(self) -> float:
        """How far another vector for the padding token moves the outputs."""
        s = self.subject
        assert s.pad_id is not None
        source, target = self.inputs
        padded = source.clone()
        padded[:, -2:] = s.pad_id
        before = s.run(padded, target)
        tables = [
            p
            for p in s.make().parameters()
            if p.dim() == 2 and p.size(0) == s.sizes.vocab_size
        ]
        if not tables:
            raise Refused("no embedding of the vocabulary's size")
        old = [p.detach().clone() for p in tables[:1]]
        with torch.no_grad():
            tables[0][s.pad_id] = torch.randn(tables[0].size(1))
            after = s.run(padded, target)
            tables[0].copy_(old[0])
        return moved(before, after).max().item()

    def padded_trace(self) -> tuple[Xray, list[Attention], int, int]:
        """The x-ray of a batch whose sentences all end in two tokens of padding."""
        s = self.subject
        first = self.inputs[0]
        words = first[:1, : first.size(1) - 2].expand(len(first), -1)
        assert s.pad_id is not None
        padded = _with_padding(words, s.pad_id, 2)
        trace = s.trace(padded, *self.inputs[1:])
        return trace, trace.attentions(), words.size(1), padded.size(1)

    def name_padding(self, change: float) -> None:
        """Name the cause of a padding leak."""
        s = self.subject
        seen = f"two tokens of padding behind a source move the outputs by {change:.2g}"
        try:
            trace, attentions, n, length = self.padded_trace()
        except Exception:  # theirs
            self.add("padding", [finding("padding-leak", seen)])
            return
        reading = [a for a in attentions if a.size[1] == length]
        over = [a for a in reading if a.size[0] == length]
        cross = [a for a in reading if a.size[0] != length]

        def on_padding(a: Attention) -> float:
            rows = slice(0, n) if a.size[0] == length else slice(None)
            return a.weights[:, rows, n:].nan_to_num(nan=1.0).max().item()

        open_ones = [a for a in reading if on_padding(a) > 1e-7]
        if not open_ones:
            cause = "padding-leak"
            self.add("padding", [finding(cause, seen)])
            return
        first = open_ones[0]
        most = max(map(on_padding, open_ones))
        seen += f"; up to {most:.2f} of a word's attention is on padding"
        at = first.where
        if found := mask_fault(trace, open_ones):
            both = f"{seen}; {found.evidence}"
            filled = gaps(open_ones)
            self.add("padding", [finding(found.cause, both, found.where, **filled)])
            return
        table = first.weights.nan_to_num(nan=1.0).amax(0)
        rows = slice(0, n) if first.size[0] == length else slice(None)
        if float(table[rows, :n].max()) < 1e-6:
            self.add("padding", [finding("padding-inverted", seen, at)])
        elif float(table[rows, n + 1 :].max()) < 1e-7:
            self.add("padding", [finding("padding-late", seen, at)])
        elif masks_of(first) and self.odd_rows(first, n):
            self.add("padding", [finding("padding-rows", seen, at)])
        elif (token := self.hidden_token()) is not None:
            gap = {"hidden": token, "pad": s.pad_id}
            named = finding("padding-wrong-id", seen, at, None, **gap)
            self.add("padding", [named])
        elif (
            over
            and cross
            and not set(cross) & set(open_ones)
            and set(over) <= set(open_ones)
        ):
            self.add("padding", [finding("padding-encoder-unmasked", seen, at)])
        elif (
            over
            and cross
            and not set(over) & set(open_ones)
            and set(cross) <= set(open_ones)
        ):
            self.add("padding", [finding("padding-cross-unmasked", seen, at)])
        elif len(open_ones) < len(reading):
            layers = names(open_ones)
            self.add(
                "padding", [finding("padding-some-layers", seen, at, layers=layers)]
            )
        else:
            self.add("padding", [finding("padding-unmasked", seen, at)])

    def odd_rows(self, attention: Attention, n: int) -> bool:
        """Whether the rows of padded queries are hidden whole: even, zero or NaN."""
        if attention.size[0] != attention.size[1]:
            return False
        rows = attention.weights[:, n:]
        even = rows.max() - rows.min() < 1e-6
        return bool(even | rows.isnan().all())

    def columns(self, ids: Tensor) -> list[int]:
        """The places of a sentence that no attention over it gives any weight."""
        given = ids.expand(len(self.inputs[0]), -1)
        trace = self.subject.trace(given, *self.inputs[1:])
        reading = [a for a in trace.attentions() if a.size == (ids.size(1),) * 2]
        if not reading:
            return []
        sees = torch.stack([visible(a).any(0) for a in reading]).any(0)
        return [i for i, seen in enumerate(sees.tolist()) if not seen]

    def special(self) -> Tensor:
        """A sentence of special ids, padding apart, between ordinary words."""
        s = self.subject
        ids = [i for i in (0, 1, 2, 3, s.sizes.vocab_size - 1) if i != s.pad_id]
        return torch.tensor([[s.allowed[0], *ids, s.allowed[1]]])[
            :, : self.inputs[0].size(1)
        ]

    def hidden_token(self) -> int | None:
        """A token that is hidden although it is no padding."""
        ids = self.special()
        try:
            hidden = self.columns(ids)
        except Exception:  # theirs: a special id may be refused
            return None
        return int(ids[0, hidden[0]]) if hidden and len(hidden) < ids.size(1) else None

    def hidden_words(self) -> None:
        """Whether a real token is hidden as if it were padding."""
        if (token := self.hidden_token()) is not None:
            seen = f"no query gives token {token} any weight"
            self.add("padding", [finding("words-hidden", seen, None, token=token)])

    def ragged(self) -> str | None:
        """A sentence alone gives what it gives among others with other padding."""
        s = self.subject
        assert s.pad_id is not None
        inputs = [ids.clone() for ids in self.inputs]
        for ids in inputs:
            for row in range(1, len(ids)):
                ids[row, ids.size(1) - row :] = s.pad_id
        together = s.run(*inputs)
        for row in range(len(together)):
            alone = s.run(*[ids[row : row + 1] for ids in inputs])
            real = (inputs[-1][row] != s.pad_id) if not s.last_alone else torch.ones(1)
            change = (moved(together[row : row + 1], alone)[0] * real).max().item()
            if change > 1e-4:
                if not self.explained("batch") and not self.explained("padding"):
                    seen = (
                        f"sentence {row} of a ragged batch moves by {change:.2g} when "
                    )
                    seen += "it comes alone, with the same padding"
                    at = self.attentions[0].where if self.attentions else None
                    self.add("padding", [finding("mask-of-another-sentence", seen, at)])
                return None
        return "Padding changes no real word, alone or in a ragged batch."

    # what is read

    def source(self) -> str | None:
        """The source is read, and so is every earlier token of the target."""
        s = self.subject
        if self.explained("source") or "padding" in self.report.failed:
            return None
        if s.reads_source and not self.source_read():
            return None
        if s.kind == "encoder" or s.last_alone:
            raise Refused("an encoder has no target")
        if "future" not in self.report.failed:
            self.past()
        if self.report.failed.get("source"):
            return None
        read = "The source and every" if s.reads_source else "Every"
        return (
            f"{read} earlier token are read."
            if s.reads_source
            else f"{read} earlier token is read."
        )

    def source_read(self) -> bool:
        """Whether another source moves any output; if not, why."""
        s = self.subject
        source, target = self.inputs
        change = moved(s.run(source, target), s.run(s.inputs(seed=7)[0], target)).max()
        if change > 1e-6:
            return True
        seen = "another source leaves every output as it was"
        reads = any(a.size == (target.size(1), source.size(1)) for a in self.attentions)
        count = sum(a.size == (target.size(1),) * 2 for a in self.attentions)
        if self.attentions and not reads and count > len(self.attentions) // 2:
            self.add("source", [finding("cross-reads-target", seen)])
        else:
            self.add("source", [finding("source-ignored", seen)])
        return False

    def past(self) -> None:
        """Every earlier token moves the last output, unless a window is declared."""
        s, ids = self.subject, self.inputs[-1]
        if s.window is not None:
            return
        before = s.run(*self.inputs)
        silent = []
        last = ids.size(1) - 1
        for place in range(last):
            changed = others(ids, place, s.allowed)
            after = s.run(*self.inputs[:-1], changed)
            if moved(before, after)[:, last].max() < 1e-7:
                silent.append(place)
        if len(silent) == last:
            seen = "changing any earlier token leaves the last output as it was"
            self.add("source", [finding("target-ignored", seen)])
        elif silent:
            seen = f"changing token {silent[0]} leaves output {last} as it was"
            words: dict[str, Any] = {"place": last, "token": silent[0]}
            self.add("source", [finding("causal-mask-too-strict", seen, None, **words)])
        elif self.attentions:
            self.self_hidden(ids.size(1))

    def self_hidden(self, length: int) -> None:
        """Whether no position attends to itself."""
        for attention in self.attentions:
            sees = visible(attention)
            if attention.size != (length, length) or not masks_of(attention):
                continue
            if not bool(sees.diagonal()[1:].any()) and bool(sees.tril(-1).any()):
                seen = "every weight on the diagonal is 0"
                self.add("source", [finding("self-hidden", seen, attention.where)])
                return

    def positions(self) -> str | None:
        """Order matters, and a table of sinusoids is the paper's."""
        s = self.subject
        if self.trace is not None:
            found, right = table_fault(self.trace, self.width())
            if self.add("positions", found):
                return None
        else:
            right = 0
        if self.explained("positions"):
            return None
        if s.reads_source and "source" not in self.report.failed:
            source, target = self.inputs
            turned = source.flip(1)
            if moved(s.run(source, target), s.run(turned, target)).max() < 1e-4:
                self.add(
                    "positions",
                    [
                        finding(
                            "no-positions", _turned_said(source), None, what="source"
                        )
                    ],
                )
                return None
        over = self.first_over()
        if over is None:
            raise Refused("no attention over the tokens was recognised")
        ids = self.inputs[-1]
        n = ids.size(1)
        if s.window is not None and s.window < 3:
            raise Refused("the window is too narrow to swap two words in it")
        order = torch.tensor([*range(n - 3), n - 2, n - 3, n - 1])
        swapped = s.trace(*self.inputs[:-1], ids[:, order]).attentions()[over].weights
        change = (
            (swapped[:, -1] - self.attentions[over].weights[:, -1, order]).abs().max()
        )
        if change < 1e-6:
            what = "target" if s.reads_source else "tokens"
            seen = (
                f"swapping tokens {n - 3} and {n - 2} swaps their weights, and no more"
            )
            where = self.attentions[over].where
            self.add("positions", [finding("no-positions", seen, where, what=what)])
            return None
        table = " Its table of sinusoids is the paper's." if right else ""
        return "Order matters." + table

    def first_over(self) -> int | None:
        """The first attention over the last input."""
        length = self.inputs[-1].size(1)
        return next(
            (i for i, a in enumerate(self.attentions) if a.size == (length, length)),
            None,
        )

    # layers and weights

    def residuals(self) -> str | None:
        """Residual connections, by weights at zero."""
        s = self.subject
        if self.trace is None or not self.layers:
            raise Refused("no list of layers was recognised")
        if self.explained("residuals"):
            return None
        found, self.style = layer_faults(s, self.inputs, self.trace, self.layers)
        if not found and s.build:
            fault = residual_dropout(s, self.inputs, self.layers)
            found += [fault] if fault else []
        if self.style == "first":
            found += self.final_norm()
        if self.add("residuals", found):
            return None
        if self.style is None:
            raise Refused("the layers do not end in a plain residual")
        return f"Every sublayer has its residual; norms come {self.style}."

    def final_norm(self) -> list[Finding]:
        """Whether the numbers that make the logits are normalised."""
        assert self.trace is not None
        size = self.subject.sizes.vocab_size
        maps = [
            n
            for n in self.trace.order
            if n.op in ("mm", "addmm") and n.value.size(-1) == size
        ]
        if not maps or even_rows(maps[-1].parents[-2].value):
            return []
        return [finding("final-norm-missing", "the output map's inputs differ in size")]

    def norms(self) -> str | None:
        """Norms of the model's own making."""
        if self.trace is None:
            raise Refused("the x-ray failed")
        found = norm_faults(self.subject.make(), self.trace)
        if found and self.explained("norms"):
            return None
        return None if self.add("norms", found) else "Its norms are norms."

    def weights(self) -> str | None:
        """Every matrix is used, learns, and belongs to one place."""
        s = self.subject
        model = s.make()
        found: list[Finding] = []
        if fault := hidden_layers(model):
            found.append(fault)
        if fault := shared_layers(model):
            found.append(fault)
        elif self.trace and not self.explained("weights"):
            fault = shared_modules(model, self.trace, self.attentions)
            found += [fault] if fault else []
        if fault := made_in_forward(s, self.inputs):
            found.append(fault)
        found += self.padding_row()
        if (
            self.trace
            and s.build
            and (f := linear_feed_forward(self.trace, s.sizes.d_ff))
        ):
            found.append(f)
        if not self.explained("weights") and not found:
            found += weight_faults(s, self.inputs, self.layers)
        if self.plain is not None:
            found.append(self.plain)
        if fault := equal_starts(model):
            found.append(fault)
        bug = self.add("weights", found)
        return (
            None if bug else "Every matrix is used, gets a gradient, and is used once."
        )

    def padding_row(self) -> list[Finding]:
        """Whether the row that never learns is the padding's."""
        s = self.subject
        if s.pad_id is None or self.trace is None:
            return []
        for node in self.trace.order:
            if node.op != "embedding" or not node.numbers:
                continue
            row, size = int(node.numbers[0]), node.parents[0].value.size(0)
            if row >= 0 and row != s.pad_id and size == s.sizes.vocab_size:
                words: dict[str, Any] = {"found": row, "pad": s.pad_id}
                seen = f"the gradient of row {row} is always 0"
                return [
                    finding("padding-row-wrong", seen, node.module or None, **words)
                ]
        return []

    def dropout(self) -> str | None:
        """The rate that was asked for is the rate."""
        s = self.subject
        if self.explained("dropout"):
            return None
        if s.build is None:
            raise Refused("there is no build")

        def random(rate: float) -> bool:
            model = s.make(dropout=rate)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(1)
                one = self.unseeded(model, train=True)
                torch.manual_seed(2)
                other = self.unseeded(model, train=True)
            return bool(moved(one, other).max() > 1e-6)

        found = []
        if random(0.0):
            found.append(finding("dropout-fixed", "two runs in training differ"))
        elif not random(0.5):
            found.append(finding("dropout-never", "two runs in training are the same"))
        self.add("dropout", found)
        return None if found else "Dropout obeys: none at 0, some at 0.5."

    def start(self) -> str | None:
        """The untrained model's loss is about that of guessing."""
        s = self.subject
        if s.kind not in ("encoder-decoder", "language model"):
            raise Refused("there is no vocabulary to guess from")
        if s.build is None:
            raise Refused("there is no build")
        if self.form == "probabilities":
            raise Refused("it returns probabilities")
        size = 1000
        model = s.make(vocab_size=size, d_model=8 * s.sizes.d_model)
        logits = s.run(*self.inputs, model=model)
        labels = torch.randint(
            size, logits.shape[:2], generator=torch.Generator().manual_seed(1)
        )
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten()).item()
        guess = torch.tensor(float(size)).log().item()
        if loss > 2 * guess:
            words: dict[str, Any] = {"loss": loss, "guess": guess}
            seen = f"vocabulary {size}: logits have a deviation of {logits.std():.1f}"
            self.add("start", [finding("loss-at-start", seen, None, **words)])
            return None
        return f"It starts at a loss of {loss:.1f}; guessing gives {guess:.1f}."

    def masks(self) -> str | None:
        """The numbers under masks, and a source of padding alone."""
        s = self.subject
        if self.trace is None:
            raise Refused("the x-ray failed")
        found = mask_looks(self.trace, self.attentions)
        if s.pad_id is not None and s.kind != "language model":
            inputs = [ids.clone() for ids in self.inputs]
            inputs[0][0] = s.pad_id
            try:
                out = s.run(*inputs)
                if bool(out.isnan().any()):
                    found.append(
                        finding("empty-row", "one source of padding alone: NaN")
                    )
            except Exception:  # theirs: an empty sentence may be refused
                pass
        known = {f.cause for f in self.report.findings if f.level == "bug"}
        self.add("masks", [f for f in found if not known & {"mask-too-weak"}])
        return None if found else "Its masks hide for good."


def _with_padding(ids: Tensor, pad_id: int, count: int) -> Tensor:
    """Sentences with padding behind them."""
    return F.pad(ids, (0, count), value=pad_id)


def _shown(inputs: list[Tensor]) -> str:
    """The first sentence of each input."""
    return " and ".join(str(ids[0].tolist()) for ids in inputs)


def _turned_said(source: Tensor) -> str:
    """The pair of sources that should not give the same."""
    return f"{source[0].tolist()} and the same turned round give the same outputs"
