"""What the x-ray of one pass says of the attentions: causes, by name.

Made from book/workshop/museum.md: edit the chapter, not this file.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from transformer.doctor.findings import Finding, finding
from transformer.doctor.xray import (
    MOVES,
    SOFTMAXES,
    Attention,
    Mask,
    Node,
    Xray,
    dropped_masks,
    is_fixed,
    masks_of,
)

__all__ = ["scale_faults", "softmax_faults", "mask_fault", "future_fault"]


def _close(one: float, other: float) -> bool:
    """Whether two factors are the same but for rounding."""
    return math.isclose(one, other, rel_tol=1e-3)


def _width_of(attention: Attention) -> int:
    """The width of a head: what the products of queries and keys sum over."""
    return attention.scores.parents[-2].value.size(-1)


def _scale_fault(
    attention: Attention,
    d_model: int,
    sizes: dict[str, int],
    spread: Callable[[int], float] | None,
) -> Finding | None:
    """What is wrong with the number that an attention's scores are multiplied by."""
    scale, width = attention.scale, _width_of(attention)
    if scale is None or _close(abs(scale), width**-0.5):
        return None
    seen = f"scores / products = {scale:.4g}; 1/√d_head = {width**-0.5:.4g}"
    at = attention.where
    if _close(scale, d_model**-0.5) or _close(scale, 1 / d_model):
        return finding("scale-d-model", seen, at)
    if _close(scale, 1.0):
        if spread is None:
            return finding("scale-missing", seen, at, "look")
        growth = spread(attention.number)
        if growth < 2:
            return None  # the weights start small instead, as in T5
        seen += f"; with heads 16 times as wide the scores spread {growth:.1f}× as far"
        return finding("scale-missing", seen, at)
    if _close(scale, 1 / width):
        return finding("scale-not-root", seen, at)
    if _close(scale, width**0.5) or _close(scale, d_model**0.5):
        return finding("scale-multiplied", seen, at)
    for what, size in sizes.items():
        if _close(scale, size**-0.5) or _close(scale, 1 / size):
            return finding("scale-length", seen, at, what=what)
    return finding("scale-other", seen, at, scale=scale, right=width**-0.5)


def scale_faults(
    attentions: list[Attention],
    d_model: int,
    sizes: dict[str, int],
    spread: Callable[[int], float] | None,
) -> list[Finding]:
    """The first fault of a scale among all attentions."""
    for attention in attentions:
        if found := _scale_fault(attention, d_model, sizes, spread):
            return [found]
    return []


def _sums_to_one(weights: Tensor, dim: int) -> bool:
    """Whether the weights along a dimension sum to 1 (or to 0: a row hidden whole)."""
    sums = weights.float().nan_to_num(nan=1.0).sum(dim)
    return bool(((sums - 1).abs().lt(1e-3) | sums.abs().lt(1e-6)).all())


def _softmax_fault(attention: Attention, batch: int) -> Finding | None:
    """Over which axis the weights sum to one, where it is not the keys."""
    weights, at = attention.weights, attention.where
    if _sums_to_one(weights, -1):
        return None
    sums = weights.float().sum(-1)
    seen = f"the weights of a query sum to {sums.min():.2f} … {sums.max():.2f}"
    if any(mask.after for mask in masks_of(attention)):
        return finding("mask-after-softmax", seen, at)
    if _sums_to_one(weights, -2):
        return finding("softmax-over-queries", seen + "; those of a key to 1", at)
    heads = weights.size(0) // batch
    if heads > 1:
        by_batch = weights.view(batch, heads, *weights.shape[1:])
        by_head = weights.view(heads, batch, *weights.shape[1:])
        if _sums_to_one(by_batch, 1) or _sums_to_one(by_head, 0):
            return finding("softmax-over-heads", seen + "; over the heads to 1", at)
    if attention.softmax_at is None:
        return finding("softmax-missing", seen, at)
    return finding("softmax-axis", seen, at)


def softmax_faults(attentions: list[Attention], batch: int) -> list[Finding]:
    """The first attention whose weights do not sum to one."""
    for attention in attentions:
        if found := _softmax_fault(attention, batch):
            return [found]
    return []


def _same_numbers(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same numbers, in any order and of any scale."""
    if one.numel() != other.numel():
        one, other = one.unique(), other.unique()
        if one.numel() != other.numel():
            return False
    flat = [x.float().flatten().sort().values for x in (one, other)]
    sizes = [x.norm().clamp(min=1e-9) for x in flat]
    return bool(((flat[0] / sizes[0]) - (flat[1] / sizes[1])).abs().max() < 1e-5)


def projection_faults(attentions: list[Attention]) -> list[Finding]:
    """Whether values, keys and queries are numbers of their own."""
    for attention in attentions:
        queries, keys = (node.value for node in attention.scores.parents[-2:])
        values, at = attention.values.value, attention.where
        square = attention.size[0] == attention.size[1]
        seen = "the two tensors hold the same numbers"
        if square and _same_numbers(queries, keys):
            return [finding("queries-are-keys", seen, at)]
        if _same_numbers(keys, values):
            return [finding("values-from-keys", seen, at)]
        if square and _same_numbers(queries, values):
            return [finding("values-from-queries", seen, at)]
    return []


def visible(attention: Attention) -> Tensor:
    """Which keys some sentence and head lets each query attend to."""
    return attention.weights.nan_to_num(nan=1.0).amax(dim=0) > 1e-7


def _open_mask(mask: Mask) -> Finding | None:
    """How one mask acts on the scores, if it lets hidden keys through."""
    value, at = mask.value, mask.step.line
    seen = f"hidden scores: {value:g}"
    if mask.after:
        return finding("mask-after-softmax", "the softmax saw hidden scores", at)
    if mask.way == "multiply":
        return finding("mask-multiplied", seen, at)
    if mask.way == "add" and value >= 0:
        return finding("mask-added", f"the smallest number added: {value:g}", at)
    if value > -1e-3:
        return finding("mask-not-minus", seen, at, value=value)
    if value > -100:
        return finding("mask-too-weak", seen, at, value=value)
    return None


def mask_fault(trace: Xray, attentions: list[Attention]) -> Finding | None:
    """Why a mask that was applied does not hide: the way it acts on the scores."""
    for attention in attentions:
        for mask in masks_of(attention):
            if found := _open_mask(mask):
                return found
        for node in dropped_masks(trace, attention):
            return finding("mask-dropped", "nothing reads the result", node.line)
    return None


def mask_looks(trace: Xray, attentions: list[Attention]) -> list[Finding]:
    """Masks that work, with a number worth a second look."""
    found: dict[str, Finding] = {}
    for attention in attentions:
        for mask in masks_of(attention):
            value, seen = mask.value, f"hidden scores: {mask.value:g}"
            if -1e5 < value <= -100:
                cause = "mask-can-be-unlearned"
            elif mask.way == "fill" and -1e30 < value < -65504:
                cause = "mask-overflows-half"
            else:
                continue
            found.setdefault(cause, finding(cause, seen, mask.step.line, value=value))
    return list(found.values())


def names(attentions: list[Attention]) -> str:
    """The modules of some attentions, for a sentence."""
    unique = dict.fromkeys(
        a.scores.module or f"number {a.number + 1}" for a in attentions
    )
    return ", ".join(list(unique)[:3])


def future_fault(
    trace: Xray, attentions: list[Attention], length: int, seen: str, what: str
) -> Finding:
    """Why an output depends on later tokens, from the weights of each attention."""
    over = [a for a in attentions if a.size == (length, length)]
    upper = torch.ones(length, length, dtype=torch.bool).triu(1)
    open_ones = [a for a in over if bool((visible(a) & upper).any())]
    if not open_ones:
        return finding("future-leak", seen)
    if found := mask_fault(trace, open_ones):
        return finding(
            found.cause, f"{seen}; {found.evidence}", found.where, **gaps(open_ones)
        )
    first = open_ones[0]
    sees, at = visible(first), first.where
    eye = torch.eye(length, dtype=torch.bool)
    if torch.equal(sees[1:], (~upper & ~eye)[1:]):
        seen += "; no position attends to itself, and the first attends to all"
        return finding("self-hidden", seen, at)
    if not bool((sees & ~upper & ~eye)[:-1].any()):
        seen += "; no weight lies below the diagonal"
        return finding("future-leak-inverted", seen, at)
    ahead = sees & upper
    if not bool(ahead.triu(2).any()):
        seen += "; each position attends to the next one"
        return finding("future-leak-off-by-one", seen, at)
    if len(open_ones) < len(over):
        closed = [a for a in over if a not in open_ones]
        if _other_roles(closed, open_ones):
            weight = first.weights.amax(0)[upper].max().item()
            seen += f"; {names(open_ones)} puts up to {weight:.2f} on later tokens"
            return finding("future-leak-encoder-reads-target", seen, at)
        return finding("future-leak-some-layers", seen, at, layers=names(open_ones))
    return finding("future-leak-no-mask", seen, at, what=what)


def _other_roles(closed: list[Attention], open_ones: list[Attention]) -> bool:
    """Whether the unmasked attentions have other roles than the masked ones."""

    def role(attention: Attention) -> str:
        return re.sub(r"\d+", "*", attention.scores.module)

    return not {role(a) for a in closed} & {role(a) for a in open_ones}


def gaps(attentions: list[Attention]) -> dict[str, Any]:
    """The words that sentences about masks need: the number under the mask."""
    values = [mask.value for a in attentions for mask in masks_of(a)]
    return {"value": values[0]} if values else {}


def linear_feed_forward(trace: Xray, d_ff: int) -> Finding | None:
    """Two linear maps, of width d_ff between them, with nothing but shapes between."""
    for node in trace.order:
        if node.op not in ("mm", "addmm"):
            continue
        inner = node.parents[-2]
        if inner.value.size(-1) != d_ff or is_fixed(inner):
            continue
        here, sums = inner, ("add", "add_")
        while here.op in sums or (here.op in _SHAPES and len(here.parents) == 1):
            here = here.parents[0]
        if here.op in ("mm", "addmm"):
            seen = f"a map to {d_ff} numbers, then at once a map from them"
            return finding("feed-forward-linear", seen, node.where)
    return None


_SHAPES = MOVES - {"copy_", "slice", "select", "cat", "stack", "repeat", "index_select"}


def output_projection(trace: Xray, attention: Attention) -> bool:
    """Whether a linear map follows the heads."""
    product = next(
        n
        for n in trace.order
        if n.op in ("bmm", "baddbmm")
        and attention.values in n.parents
        and n is not attention.scores
    )
    reached: list[Node] = [product]
    for node in trace.order[trace.order.index(product) + 1 :]:
        if not any(parent in reached for parent in node.parents):
            continue
        if node.op in ("mm", "addmm", "convolution", "bmm", "baddbmm"):
            return True
        if node.op not in _SHAPES | SOFTMAXES | {"cat", "stack"}:
            return False
        reached.append(node)
    return True
