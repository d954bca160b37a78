"""What stands around a model: its loss, and how it decodes.

Made from book/workshop/museum.md: edit the chapter, not this file.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from transformer.doctor.findings import Finding, finding
from transformer.doctor.properties import moved
from transformer.doctor.subject import Subject

__all__ = ["loss_faults", "cached_faults", "decoding_faults"]


def loss_faults(
    loss: Callable[..., Any], pad_id: int | None, form: str, flat: bool
) -> list[Finding]:
    """What a loss teaches, from one gradient: at each logit it should be k (p − q)."""
    batch, length, size = 3, 6, 11
    random = torch.Generator().manual_seed(5)
    logits = torch.randn(batch, length, size, generator=random).requires_grad_()
    rows = [torch.randperm(size, generator=random)[:length] for _ in range(batch)]
    labels = torch.stack(rows)
    words = torch.ones_like(labels).bool()
    if pad_id is not None:
        labels[labels == pad_id] = size - 1 if pad_id != size - 1 else size - 2
        labels[0, 4:] = labels[1, 5:] = pad_id
        words = labels != pad_id
    given = logits
    if form == "log-probabilities":
        given = logits.log_softmax(-1)
    elif form == "probabilities":
        given = logits.softmax(-1)
    if flat:
        value = loss(given.reshape(-1, size), labels.reshape(-1))
    else:
        value = loss(given, labels)
    value = value[0] if isinstance(value, tuple) else value
    g, p = torch.autograd.grad(value, logits)[0], logits.detach().softmax(-1)
    if not bool(words.all()) and (at_pads := g[~words].abs().max().item()) > 1e-7:
        seen = f"labels that are padding have a gradient of {at_pads:.2g}"
        return [finding("loss-padding-counted", seen)]
    for token in range(size):
        asked = (labels == token) & words
        if bool(asked.any()) and g[asked].abs().max() < 1e-9:
            seen = f"where the label is {token} every gradient is 0"
            return [finding("loss-ignores-token", seen, token=token)]
    k, unexplained = _fitted(g[words], p[words], labels[words])
    if unexplained > 0.02:
        return [_other_loss(g, logits, labels, words, unexplained)]
    if k < 0:
        return [finding("loss-sign", f"k is {k:.3g}")]
    count = int(words.sum())
    if abs(k * labels.numel() - 1) < 0.02 and count < labels.numel():
        seen = f"divided by {labels.numel()} places, of which {count} are words"
        return [finding("loss-mean-over-padding", seen)]
    if abs(k - 1) < 0.02:
        return [finding("loss-summed", "k is 1: the gradient of each word is whole")]
    return []


def _other_loss(
    g: Tensor, logits: Tensor, labels: Tensor, words: Tensor, unexplained: float
) -> Finding:
    """What gradients are that are not k (p − q): a softmax twice, or a shift."""
    p = logits.softmax(-1)
    twice = F.cross_entropy(p[words], labels[words])
    other = torch.autograd.grad(twice, logits)[0]
    if torch.cosine_similarity(g[words].flatten(), other[words].flatten(), 0) > 0.999:
        return finding("loss-softmax-twice", "the gradient is that of a softmax twice")
    for shift, side in ((1, "later"), (-1, "earlier")):
        keep = words & words.roll(-shift, 1)
        keep[:, -1 if shift > 0 else 0] = False
        shifted = labels.roll(-shift, 1)[keep]
        if _fitted(g[keep], p.detach()[keep], shifted)[1] < 0.02:
            seen = f"the label that pulls at place t is that of t {shift:+d}"
            return finding("loss-shifted", seen, side=side)
    seen = f"a share of {unexplained:.0%} is not explained by k (p − q)"
    return finding("loss-other", seen)


def _fitted(rows: Tensor, probs: Tensor, labels: Tensor) -> tuple[float, float]:
    """The k of g = k (p − q), and the share that it leaves unexplained."""
    other = torch.ones_like(probs, dtype=torch.bool)
    other[torch.arange(len(labels)), labels] = False
    x, y = probs[other], rows[other]
    columns = torch.stack((x, torch.ones_like(x)), 1)
    line = torch.linalg.lstsq(columns, y[:, None]).solution.flatten()
    left = ((y - columns @ line).norm() / y.norm().clamp(min=1e-12)).item()
    k = line[0].item()
    at = probs.gather(1, labels[:, None]) - rows.gather(1, labels[:, None]) / (k or 1.0)
    spread = (at.max() - at.min()).item()
    return k, max(left, 0.0 if spread < 0.05 else spread)


def cached_faults(
    subject: Subject, cached: Callable[..., Tensor], inputs: list[Tensor]
) -> list[Finding]:
    """Whether decoding with a cache gives the numbers of a whole pass."""
    whole = subject.run(*inputs)
    batch, length = inputs[-1].shape
    model = subject.make()
    with torch.no_grad(), subject.quiet():
        found = subject.output(cached(model.eval(), *inputs), batch, length)
    change = moved(whole, found).amax(0).tolist()
    if max(change) < 1e-3:
        return []
    shown = ", ".join(f"{x:.2g}" for x in change)
    seen = f"cached − whole, place by place: {shown}"
    if change[0] < 1e-3 and min(change[1:]) > 1e-4:
        return [finding("cached-position", seen)]
    return [finding("cached-differs", seen)]


def _written(ids: Any) -> list[int]:
    """The tokens of one decoded sentence, from a tensor or a list."""
    ids = ids.tolist() if isinstance(ids, Tensor) else ids
    while isinstance(ids, list | tuple) and ids and isinstance(ids[0], list | tuple):
        ids = ids[0]
    return [int(token) for token in ids]


def decoding_faults(
    subject: Subject, greedy: Callable[..., Any] | None, beam: Callable[..., Any] | None
) -> list[Finding]:
    """Whether greedy decoding takes the likeliest token, and a beam of one does too."""
    model = subject.make()
    start = subject.inputs(batch=1)[:1]
    start = start if subject.reads_source else [start[0][:, :3]]
    found: list[Finding] = []
    with torch.no_grad(), subject.quiet():
        ids = _written(greedy(model.eval(), start[0], 6)) if greedy else []
        wide = _written(beam(model.eval(), start[0], 6, 1)) if beam else []
    first = 1 if subject.reads_source else start[0].size(1)
    for place in range(first, len(ids)):
        prefix = torch.tensor([ids[:place]])
        given = [start[0], prefix] if subject.reads_source else [prefix]
        logits = subject.run(*given)[0, -1]
        if logits.max() - logits[ids[place]] > 1e-4:
            seen = f"after {ids[:place]} it wrote {ids[place]}; the model's best is "
            seen += f"{int(logits.argmax())}"
            found.append(finding("greedy-differs", seen))
            break
    if ids and wide and ids != wide[: len(ids)]:
        seen = f"greedy {ids}, beam of one {wide}"
        found.append(finding("beam-differs", seen))
    return found
