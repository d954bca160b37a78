"""What a model computes, whatever its code looks like: products, scales and masks.

Made from book/20-doctor.md: edit the chapter, not this file.
"""

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import transformer

__all__ = ["Node", "Attention", "Xray", "xray", "warm_up"]


# Operations that hand their numbers on as they are, in another shape.
MOVES = frozenset(
    {"view", "_unsafe_view", "reshape", "_reshape_alias", "transpose", "transpose_"}
    | {"permute", "expand", "unsqueeze", "unsqueeze_", "squeeze", "squeeze_", "t", "t_"}
    | {"clone", "contiguous", "copy_", "_to_copy", "alias", "detach", "lift_fresh"}
    | {"slice", "select", "split", "split_with_sizes", "chunk", "unbind", "as_strided"}
    | {"cat", "stack", "repeat", "index_select"}
)


_PRODUCTS = frozenset({"bmm", "baddbmm"})


_STOPS = frozenset({"mm", "addmm", "embedding", "convolution", "native_layer_norm"})


SOFTMAXES = frozenset({"softmax", "_softmax", "_safe_softmax"})


# Kernels that attend in one operation, and where a mask and is_causal stand in them.
_FUSED = {
    "_scaled_dot_product_flash_attention_for_cpu": (None, 4),
    "_scaled_dot_product_flash_attention": (None, 4),
    "_scaled_dot_product_efficient_attention": (3, 6),
    "_scaled_dot_product_cudnn_attention": (3, 6),
}


_OTHERS_CODE = (
    str(Path(torch.__file__).parent),
    str(Path(transformer.__file__).parent / "doctor"),
)


@dataclass(eq=False)
class Node:
    """One operation: what it was computed from, its result, and who asked for it."""

    op: str
    parents: list["Node"]
    numbers: list[float]
    value: Tensor
    module: str = ""
    line: str | None = None
    used: bool = False
    learned: bool = False  # a parameter

    @property
    def where(self) -> str | None:
        """The module, and the line of code."""
        return ", ".join(part for part in (self.module, self.line) if part) or None


@dataclass(eq=False)
class Attention:
    """One attention: its weights, and the steps between the scores and them."""

    weights: Tensor  # (batch · heads, queries, keys), as the values meet them
    scores: Node
    steps: list[Node]  # from the scores to the weights
    values: Node
    scale: float | None  # None: not a plain number
    number: int

    @property
    def size(self) -> tuple[int, int]:
        """How many queries and keys it has."""
        return self.weights.size(1), self.weights.size(2)

    @property
    def softmax_at(self) -> int | None:
        """The place of the softmax among the steps."""
        for place, step in enumerate(self.steps):
            if step.op in SOFTMAXES or step.op == "exp":
                return place
        return None

    @property
    def where(self) -> str | None:
        """The module, and the line that computes the scores."""
        return self.scores.where


def _key(tensor: Tensor) -> tuple[Any, ...]:
    """What two Python objects share if they are the same numbers in memory."""
    return (
        tensor.untyped_storage().data_ptr(),
        tensor.storage_offset(),
        tuple(tensor.shape),
        tuple(tensor.stride()),
    )


def tensors_of(value: Any) -> Iterator[Tensor]:
    """The tensors in arguments, lists and dictionaries, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_of(part)
    elif isinstance(value, dict):
        yield from tensors_of(list(value.values()))


def _caller() -> str | None:
    """The line of the student's code that an operation comes from."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_OTHERS_CODE) and not name.startswith("<frozen"):
            return f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return None


class Xray(TorchDispatchMode):
    """A mode in which every operation leaves a node.

    With `hold`, every attention's weights are replaced: "self" lets a query attend to
    its own position alone, "first" to the first key alone.
    """

    def __init__(self, hold: Literal["self", "first"] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.hold = hold
        self.nodes: dict[tuple[Any, ...], Node] = {}
        self.kept: dict[tuple[Any, ...], Tensor] = {}
        self.order: list[Node] = []
        self.stack: list[str] = []
        self.given: list[Tensor | None] = []
        self.calls: dict[str, list[tuple[Tensor | None, Tensor | None]]] = {}
        self.held = 0
        self.output: Any = None

    def node(self, tensor: Tensor) -> Node:
        """The last operation that wrote these numbers; a leaf if there was none."""
        where = _key(tensor)
        if where not in self.nodes:
            self.kept[where] = tensor
            leaf = Node("leaf", [], [], tensor.detach(), learned=tensor.requires_grad)
            self.nodes[where] = leaf
        return self.nodes[where]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in _FUSED:  # spelled out, for this thread alone
            result = func(*args, **kwargs)
            with self:
                return _spelled(name, args, kwargs), *result[1:]
        parents = [self.node(tensor) for tensor in tensors_of([args, kwargs])]
        if self.hold and name in _PRODUCTS:
            args = self._held(name, args, parents)
        result = func(*args, **kwargs)
        numbers = [
            float(x)
            for x in [*args, *kwargs.values()]
            if isinstance(x, int | float) and not isinstance(x, bool)
        ]
        for parent in parents:
            parent.used = True
        for tensor in tensors_of(result):
            self._written(name, tensor, parents, numbers)
        return result

    def _written(
        self, name: str, tensor: Tensor, parents: list[Node], numbers: list[float]
    ) -> None:
        where = _key(tensor)
        if name in MOVES and self.nodes.get(where) in parents and name != "copy_":
            return  # the same numbers in the same shape
        module = self.stack[-1] if self.stack else ""
        line = None if name in MOVES else _caller()
        node = Node(name, parents, numbers, tensor.detach().clone(), module, line)
        if name.endswith("_") and not name.startswith("_"):  # written in place
            for other, old in list(self.nodes.items()):
                if other[0] == where[0] and other != where:
                    kept = self.kept[other].detach().clone()
                    again = [old, *parents[1:]]
                    self.nodes[other] = Node(name, again, numbers, kept, module, line)
        self.kept[where] = tensor
        self.nodes[where] = node
        self.order.append(node)

    def _held(self, name: str, args: Any, parents: list[Node]) -> Any:
        start = len(args) - 2
        for side in (0, 1):
            if not any(_scores_above(p) for p in parents[start + side :][:1]):
                continue
            if is_fixed(parents[start + 1 - side]):
                continue
            weights = args[start + side]
            queries, keys = weights.shape[1:] if side == 0 else weights.mT.shape[1:]
            fixed = torch.zeros(queries, keys, dtype=weights.dtype)
            if self.hold == "self" and queries == keys:
                fixed.fill_diagonal_(1.0)
            else:
                fixed[:, 0] = 1.0
            fixed = fixed if side == 0 else fixed.T
            self.held += 1
            args = list(args)
            args[start + side] = fixed.expand_as(weights)
            return tuple(args)
        return args

    def attentions(self) -> list[Attention]:
        """Every attention of the pass: a product whose one side comes from another."""
        found: list[Attention] = []
        for node in self.order:
            if node.op not in _PRODUCTS:
                continue
            left, right = node.parents[-2:]
            for side, (weights, values) in enumerate(((left, right), (right, left))):
                steps = _scores_above(weights)
                if not steps or is_fixed(values):
                    continue
                table = weights.value if side == 0 else weights.value.mT
                scores, steps = steps[0], steps[1:]
                scale = _scale_of(scores, steps)
                found.append(Attention(table, scores, steps, values, scale, len(found)))
                break
        return found


def _spelled(name: str, args: Any, kwargs: Any) -> Tensor:
    """The output of a fused kernel, in the operations that an x-ray knows."""
    (query, key, value), (mask_at, causal_at) = args[:3], _FUSED[name]
    batch, heads, length, width = query.shape
    if heads > key.size(1):  # some heads share their keys
        key, value = (x.repeat_interleave(heads // x.size(1), 1) for x in (key, value))
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in (query, key, value))
    scale = kwargs.get("scale")
    scores = torch.bmm(q, k.transpose(1, 2)) * (scale or width**-0.5)
    if len(args) > causal_at and args[causal_at]:
        seen = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    mask = kwargs.get("attn_mask") if mask_at is None else args[mask_at]
    if mask is not None:
        scores = scores.view(batch, heads, length, -1) + mask
    weights = scores.softmax(-1).reshape(batch * heads, length, -1)
    weights = weights.nan_to_num(nan=0.0)  # a row that is hidden whole, as in kernels
    return torch.bmm(weights, v).view(batch, heads, length, -1)


def is_fixed(node: Node) -> bool:
    """Whether it is a weight, or anything else that was there before the pass."""
    if node.op in MOVES and node.parents:
        joined = node.op in ("cat", "stack")
        return all(map(is_fixed, node.parents if joined else node.parents[:1]))
    return node.op == "leaf"


def _scores_above(node: Node) -> list[Node]:
    """The way from a product of two activations down to this node, that one first."""
    seen: set[int] = set()

    def search(here: Node) -> list[Node]:
        if id(here) in seen or here.op in _STOPS:
            return []
        seen.add(id(here))
        if here.op in _PRODUCTS:
            fixed = any(is_fixed(parent) for parent in here.parents[-2:])
            return [] if fixed else [here]
        for parent in here.parents:
            if way := search(parent):
                return [*way, here]
        return []

    return search(node)


def _factor(node: Node, main: Node) -> float | None:
    """By what a multiplication or division changes its main operand; None: unknown."""
    rest = [parent for parent in node.parents if parent is not main]
    if node.op.rstrip("_") in ("mul", "div", "true_divide"):
        if rest and rest[0].value.numel() != 1:
            return 1.0  # a mask, or weights for each key
        if rest and learned(rest[0]):
            return None
        by = rest[0].value.item() if rest else (node.numbers or [1.0])[0]
        if node.op.startswith("mul"):
            return float(by)
        return 1 / by if by else None
    return 1.0


def _scale_of(scores: Node, steps: list[Node]) -> float | None:
    """The one number that the products of queries and keys are multiplied by."""
    total = 1.0
    above = scores
    for step in steps:
        if step.op in SOFTMAXES or step.op == "exp":
            break
        by = _factor(step, above)
        if by is None:
            return None
        total *= by
        above = step
    if scores.op == "baddbmm" and len(scores.numbers) > 1:
        total *= scores.numbers[1]
    for side in scores.parents[-2:]:
        here = side
        while here.parents and (
            here.op in MOVES or here.op.rstrip("_") in ("mul", "div")
        ):
            first = max(here.parents, key=lambda parent: parent.value.numel())
            by = _factor(here, first)
            if by is None:
                return None
            total *= by
            here = first
    return total


@dataclass
class Mask:
    """One step that hides scores: how, with what number, and on which side."""

    way: str  # "fill", "add", "multiply"
    value: float  # the smallest that it puts on a score, or adds
    after: bool  # of the softmax
    step: Node = field(repr=False)


def masks_of(attention: Attention) -> list[Mask]:
    """The steps of an attention that treat some scores differently."""
    found: list[Mask] = []
    at = attention.softmax_at
    above = attention.scores
    if above.op == "baddbmm":
        found.append(Mask("add", above.parents[0].value.min().item(), False, above))
    for place, step in enumerate(attention.steps):
        after = at is not None and place > at
        rest = [p for p in step.parents if p is not above and p.value.numel() > 1]
        name = step.op.rstrip("_")
        if name == "masked_fill":
            filled = [p.value.item() for p in step.parents if p.value.numel() == 1]
            value = (step.numbers or filled or [math.nan])[-1]
            found.append(Mask("fill", value, after, step))
        elif name == "where":
            kept = [p for p in step.parents[1:] if p is not above]
            value = kept[0].value.min().item() if kept else math.nan
            found.append(Mask("fill", value, after, step))
        elif name == "index_put":
            found.append(Mask("fill", step.value.min().item(), after, step))
        elif name in ("add", "sub") and rest and not learned(rest[0]):
            added = rest[0].value.float() * (-1 if name == "sub" else 1)
            if bool((added != 0).any()):
                found.append(Mask("add", added.min().item(), after, step))
        elif name == "mul" and rest:
            flat = rest[0].value.float()
            if bool(((flat == 0) | (flat == 1)).all()):
                found.append(Mask("multiply", 0.0, after, step))
        above = step
    return found


def learned(node: Node) -> bool:
    """Whether a parameter or another activation stands behind a value."""
    seen: set[int] = set()
    todo = [node]
    while todo:
        here = todo.pop()
        if id(here) in seen:
            continue
        seen.add(id(here))
        if here.learned:
            return True
        if here.op == "embedding":
            todo.append(here.parents[0])
            continue
        todo += here.parents
    return False


def dropped_masks(trace: Xray, attention: Attention) -> list[Node]:
    """Masked scores that nobody reads: their result was thrown away."""
    return [
        node
        for node in trace.order
        if node.op in ("masked_fill", "where", "add")
        and not node.used
        and attention.scores in _scores_above(node)[:1]
    ]


def warm_up() -> None:
    """Let torch import what the first operation under a mode asks for: seconds."""
    with Xray():
        torch.empty(0).clone()


def xray(
    run: Callable[[], Any],
    model: nn.Module | None,
    hold: Literal["self", "first"] | None = None,
) -> Xray:
    """Run once and return all that happened; the model is left as it was."""
    trace = Xray(hold)
    handles = []

    def enter(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            given = next(tensors_of([args, kwargs]), None)
            trace.stack.append(name)
            trace.given.append(None if given is None else given.detach().clone())

        return hook

    def leave(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if trace.stack:
                trace.stack.pop()
                given, result = trace.given.pop(), next(tensors_of([output]), None)
                kept = None if result is None else result.detach().clone()
                trace.calls.setdefault(name, []).append((given, kept))

        return hook

    for name, module in model.named_modules() if model is not None else ():
        before = module.register_forward_pre_hook(enter(name), with_kwargs=True)
        after = module.register_forward_hook(leave(name), always_call=True)
        handles += [before, after]
    try:
        warm_up()
        with torch.enable_grad(), trace:
            trace.output = run()
    finally:
        for handle in handles:
            handle.remove()
    return trace
