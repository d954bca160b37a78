"""One attention, or one positional encoding, examined by itself.

Made from book/workshop/examination.md: edit the chapter, not this file.
"""

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from transformer.doctor.examination import Answer, Examination
from transformer.doctor.findings import finding
from transformer.doctor.properties import future_leak
from transformer.doctor.subject import TARGET, Refused, Subject
from transformer.doctor.tables import misreading

__all__ = ["give_table", "read_table"]


class _WithTable(nn.Module):
    """An attention, and a table with a vector for each id."""

    def __init__(self, attention: nn.Module, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, d_model)
        self.attention = attention


def give_table(subject: Subject) -> str:
    """Make a language model of an attention; what True means in its masks, if clear."""
    call, build, alone = subject.call, subject.build, subject.model
    subject.kind, subject.alone = "language model", True
    if build is not None:
        subject.build = lambda **sizes: _WithTable(
            build(**sizes), sizes["vocab_size"], sizes["d_model"]
        )
    elif alone is not None:
        widths = [p.size(-1) for p in alone.parameters() if p.dim() == 2]
        width = min(widths, default=subject.sizes.d_model)
        subject.sizes = replace(subject.sizes, d_model=width)
        subject.model = _WithTable(alone, subject.sizes.vocab_size, width)

    def with_mask(model: Any, ids: Tensor, hides: bool) -> Any:
        may = torch.ones(ids.size(1), ids.size(1), dtype=torch.bool).tril()
        return call(model.attention, model.table(ids), may ^ hides)

    for meaning, hides in ((" (True = may attend)", False), (" (True = hidden)", True)):
        subject.call = partial(with_mask, hides=hides)
        with suppress(Exception):  # theirs: the checks will say so
            if not future_leak(subject.run, subject.inputs()[0], subject.allowed):
                return meaning
    subject.call = partial(with_mask, hides=False)
    return ""


def read_table(x: Examination) -> Answer:
    """The rows that a positional encoding, `call(module, x)`, adds to zeros."""
    zeros = torch.zeros(1, TARGET, x.subject.sizes.d_model)
    with torch.no_grad():
        raw = x.subject.raw(x.subject.make(), zeros)
    if not isinstance(raw, Tensor) or raw.size(-1) != zeros.size(-1):
        raise Refused("no tensor of the width of the vectors was returned")
    rows = raw.reshape(-1, raw.size(-1))
    if len(rows) < 2:
        raise Refused(f"one row was returned for {TARGET} positions")
    said = misreading(rows)
    if said == "":
        return "The table is the paper's."
    if said is not None:
        row = ", ".join(f"{v:.3f}" for v in rows[1, :4].tolist())
        return finding("sinusoids", f"position 1 begins {row}", misreading=said)
    if len(rows.unique(dim=0)) < len(rows):
        return finding("no-positions", "two positions have one row", what="words")
    raise Refused("the table is not one of sinusoids")
