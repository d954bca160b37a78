"""Layers, norms and weights, and how the model starts.

Made from book/workshop/examination.md: edit the chapter, not this file.
"""

from typing import Any

import torch
from torch.nn import functional as F

from transformer.doctor.examination import Answer, Examination
from transformer.doctor.findings import Finding, finding
from transformer.doctor.naming import linear_feed_forward
from transformer.doctor.properties import moved
from transformer.doctor.structure import (
    equal_starts,
    even_rows,
    hidden_layers,
    layer_faults,
    made_in_forward,
    norm_faults,
    residual_dropout,
    shared_layers,
    shared_modules,
    weight_faults,
)
from transformer.doctor.subject import Refused

__all__ = ["dropout", "norms", "residuals", "start", "weights"]


def residuals(x: Examination) -> Answer:
    """Residual connections, by weights at zero."""
    s = x.subject
    if x.trace is None or not x.layers:
        raise Refused("no list of layers was recognised")
    if x.explained("residuals"):
        return None
    found, style = layer_faults(s, x.inputs, x.trace, x.layers)
    if not found and s.build:
        found += residual_dropout(s, x.inputs, x.layers)
    if style == "first":
        found += _final_norm(x)
    if x.add("residuals", found):
        return None
    if style is None:
        raise Refused("the layers do not end in a plain residual")
    return f"Every sublayer has its residual; norms come {style}."


def _final_norm(x: Examination) -> list[Finding]:
    """Whether the numbers that make the logits are normalised."""
    assert x.trace is not None
    size = x.subject.sizes.vocab_size
    maps = [
        n for n in x.trace.order if n.op in ("mm", "addmm") and n.value.size(-1) == size
    ]
    if not maps or even_rows(maps[-1].parents[-2].value):
        return []
    return [finding("final-norm-missing", "the output map's inputs differ in size")]


def norms(x: Examination) -> Answer:
    """Norms of the model's own making."""
    if x.trace is None:
        raise Refused("the x-ray failed")
    found = norm_faults(x.subject.make(), x.trace)
    if found and x.explained("norms"):
        return None
    return None if x.add("norms", found) else "Its norms are norms."


def weights(x: Examination) -> Answer:
    """Every matrix is used, learns, and belongs to one place."""
    s = x.subject
    model = s.make()
    found = [hidden_layers(model), shared_layers(model)]
    if found[1] is None and x.trace and not x.explained("weights"):
        found.append(shared_modules(model, x.trace, x.attentions))
    found += [made_in_forward(s, x.inputs), _padding_row(x)]
    if x.trace and s.build:
        found.append(linear_feed_forward(x.trace, s.sizes.d_ff))
    if not x.explained("weights") and not any(found):
        found += weight_faults(s, x.inputs, x.layers)
    found += [x.plain, equal_starts(model)]
    if x.add("weights", [fault for fault in found if fault]):
        return None
    return "Every matrix is used, gets a gradient, and is used once."


def _padding_row(x: Examination) -> Finding | None:
    """Whether the row that never learns is the padding's."""
    s = x.subject
    if s.pad_id is None or x.trace is None:
        return None
    for node in x.trace.order:
        if node.op != "embedding" or not node.numbers:
            continue
        row, size = int(node.numbers[0]), node.parents[0].value.size(0)
        if row >= 0 and row != s.pad_id and size == s.sizes.vocab_size:
            words: dict[str, Any] = {"found": row, "pad": s.pad_id}
            seen = f"the gradient of row {row} is always 0"
            return finding("padding-row-wrong", seen, node.module or None, **words)
    return None


def dropout(x: Examination) -> Answer:
    """The rate that was asked for is the rate."""
    s = x.subject
    if x.explained("dropout"):
        return None
    if s.build is None:
        raise Refused("there is no build")

    def random(rate: float) -> bool:
        model = s.make(dropout=rate)
        one, other = (
            s.run(*x.inputs, model=model, train=True, seed=seed) for seed in (1, 2)
        )
        return bool(moved(one, other).max() > 1e-6)

    if random(0.0):
        return finding("dropout-fixed", "two runs in training differ")
    if not random(0.5):
        return finding("dropout-never", "two runs in training are the same")
    return "Dropout obeys: none at 0, some at 0.5."


def start(x: Examination) -> Answer:
    """The untrained model's loss is about that of guessing."""
    s = x.subject
    if s.kind not in ("encoder-decoder", "language model"):
        raise Refused("there is no vocabulary to guess from")
    if s.build is None:
        raise Refused("there is no build")
    if x.form == "probabilities":
        raise Refused("it returns probabilities")
    size = 1000
    model = s.make(vocab_size=size, d_model=8 * s.sizes.d_model)
    logits = s.run(*x.inputs, model=model)
    random = torch.Generator().manual_seed(1)
    labels = torch.randint(size, logits.shape[:2], generator=random)
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten()).item()
    guess = torch.tensor(float(size)).log().item()
    if loss > 2 * guess:
        words: dict[str, Any] = {"loss": loss, "guess": guess}
        seen = f"vocabulary {size}: logits have a deviation of {logits.std():.1f}"
        return finding("loss-at-start", seen, None, **words)
    return f"It starts at a loss of {loss:.1f}; guessing gives {guess:.1f}."
