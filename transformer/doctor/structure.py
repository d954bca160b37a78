"""Layers, norms and weights: what is asked of the modules, and of their numbers.

Made from book/workshop/museum.md: edit the chapter, not this file.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transformer.doctor.findings import Finding, finding
from transformer.doctor.subject import Subject
from transformer.doctor.xray import Attention, Xray

__all__ = ["layers_of", "layer_faults", "norm_faults", "weight_faults", "hidden_layers"]


def _lists_in(model: nn.Module) -> Iterator[tuple[str, list[nn.Module]]]:
    """Every list of modules in a model, by name."""
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 0:
            yield name, list(module)


def _learns(module: nn.Module) -> bool:
    """Whether a module has weights."""
    return any(True for _ in module.parameters())


def layers_of(model: nn.Module, trace: Xray, attentions: list[Attention]) -> list[str]:
    """The names of layers: members of a list that hold an attention, shape in = out."""
    inside = {a.scores.module for a in attentions}
    found = []
    for name, members in _lists_in(model):
        for number in range(len(members)):
            layer = f"{name}.{number}" if name else str(number)
            calls = trace.calls.get(layer, [])
            if not calls or None in calls[0]:
                continue
            given, result = calls[0]
            assert given is not None
            assert result is not None
            holds = any(m == layer or m.startswith(layer + ".") for m in inside)
            wide = given.is_floating_point() and given.dim() == 3
            if holds and wide and given.shape == result.shape:
                found.append(layer)
    return [n for n in found if not any(n.startswith(o + ".") for o in found if o != n)]


@contextlib.contextmanager
def changed(
    tensors: Iterable[Tensor], how: Callable[[Tensor], Any] | None = None
) -> Iterator[None]:
    """Tensors changed in place; whatever was done to them is undone at the end."""
    kept = [(tensor, tensor.detach().clone()) for tensor in tensors]
    try:
        if how is not None:
            with torch.no_grad():
                for tensor, _ in kept:
                    how(tensor)
        yield
    finally:
        with torch.no_grad():
            for tensor, old in kept:
                tensor.copy_(old)


def _zeroed(layers: Iterable[nn.Module]) -> AbstractContextManager[None]:
    """The layers with all their linear maps at zero, biases too; norms stay."""
    own = [
        list(module.parameters(recurse=False)) for m in layers for module in m.modules()
    ]
    maps = [p for some in own if any(p.dim() >= 2 for p in some) for p in some]
    return changed(maps, lambda p: p.zero_())


def _said(name: str, module: nn.Module) -> str:
    """A module's name and its kind."""
    return f"{name} ({type(module).__name__})"


def _alike(one: Tensor, other: Tensor, tolerance: float = 1e-3) -> bool:
    """Whether two tensors are the same to three digits or so."""
    size = other.abs().max().clamp(min=1e-6)
    return bool((one - other).abs().max() / size < tolerance)


def even_rows(x: Tensor) -> bool:
    """Whether all rows have the same size, as rows that leave a norm have."""
    size = x.float().pow(2).mean(-1).sqrt()
    return bool((size.max() - size.min()) / size.mean().clamp(min=1e-9) < 0.02)


def layer_faults(
    subject: Subject, inputs: list[Tensor], trace: Xray, layers: list[str]
) -> tuple[list[Finding], str | None]:
    """Residuals, by layers whose weights are zero; and whether norms come first."""
    model = subject.make()
    style: str | None = None
    with _zeroed(map(model.get_submodule, layers)):
        empty = subject.trace(*inputs, model=model)
    for name in layers:
        _, result = trace.calls[name][0]
        x, y = empty.calls[name][0]
        assert result is not None
        assert x is not None
        assert y is not None
        at = _said(name, model.get_submodule(name))
        if _alike(y, x, 1e-4):
            if style is None and not _is_normalised(x, x, 0.02):
                style = "first"
        elif _same_rows(y):
            seen = "weights at zero: the layer gives the same for every word"
            return [finding("residual-missing", seen, at)], style
        elif _is_normalised(y, x):
            if not even_rows(result):
                seen = "weights at zero: the layer returns norm(x), not x; and its "
                seen += "ordinary output is not normalised"
                return [finding("residual-from-norm", seen, at)], style
            style = "last"
    return [], style


def _is_normalised(y: Tensor, x: Tensor, tolerance: float = 0.05) -> bool:
    """Whether y is x, normalised in one of the usual ways."""
    centred = x - x.mean(-1, keepdim=True)
    norms = (
        F.layer_norm(x, x.shape[-1:]),
        x / x.pow(2).mean(-1, keepdim=True).sqrt().clamp(min=1e-6),
        centred / centred.std(-1, keepdim=True).clamp(min=1e-6),
    )
    return any(_alike(y, norm, tolerance) for norm in norms)


def _same_rows(x: Tensor) -> bool:
    """Whether every word has the same vector."""
    rows = x.reshape(-1, x.size(-1))
    return _alike(rows, rows[:1].expand_as(rows))


def residual_dropout(
    subject: Subject, inputs: list[Tensor], layers: list[str]
) -> list[Finding]:
    """Whether a layer whose weights are zero is random in training."""
    model = subject.make(dropout=0.5)
    with _zeroed(map(model.get_submodule, layers)):
        empty = subject.trace(*inputs, model=model, train=True)
    for name in layers:
        x, y = empty.calls.get(name, [(None, None)])[0]
        if x is None or y is None or _alike(y, x) or _same_rows(y):
            continue
        if not _is_normalised(y, x):
            seen = "weights at zero, dropout 0.5, training: the layer's input does not "
            seen += "come through whole"
            at = _said(name, model.get_submodule(name))
            return [finding("dropout-on-residual", seen, at)]
    return []


def _norms_in(model: nn.Module, trace: Xray) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """Each kind of norm in a model, once, with the shape of an input of its."""
    seen = set()
    for name, module in model.named_modules():
        kind = type(module)
        if "norm" not in kind.__name__.lower() or list(module.children()):
            continue
        calls = trace.calls.get(name, [])
        if kind in seen or not calls or calls[0][0] is None or calls[0][1] is None:
            continue
        given = calls[0][0]
        if given.shape == calls[0][1].shape and given.is_floating_point():
            seen.add(kind)
            yield name, module, given


def _norm_fault(norm: nn.Module, like: Tensor, at: str) -> Finding | None:
    """What a norm does that no norm should: asked with random numbers."""
    random = torch.Generator().manual_seed(3)
    x = torch.randn(like.shape, generator=random) * 2 + 0.5
    width, y = x.size(-1), norm(x)
    other = x.clone()
    other[(0,) * (x.dim() - 1)] += torch.randn(width, generator=random)
    far = (norm(other) - y).abs().amax(-1).flatten()[1:].max()
    if far > 1e-4:
        seen = f"another position's input moves an output by {far:.2f}"
        return finding("norm-over-batch", seen, at)
    if not _alike(norm(3 * x), y, 0.05):
        what = "The norm's output grows with its input: it does not divide by the "
        what += "deviation."
        return finding("norm-wrong", "norm(3x) is not norm(x)", at, what=what)
    for name, parameter in norm.named_parameters():
        if parameter.numel() not in (1, width):
            continue
        with changed([parameter], lambda p: p.add_(1.0)):
            moved = norm(x) - y
        shift = bool((moved - 1).abs().max() < 1e-3)
        size = parameter.abs().max()
        gain = _alike(moved, y, 0.02) or (size > 0 and _alike(moved * size, y, 0.02))
        if not shift and not gain:
            what = f"The norm's {name} is neither a factor of its output nor added to "
            what += "it."
            seen = f"{name} + 1 changes outputs by {moved.min():.2f} … "
            return finding("norm-wrong", f"{seen}{moved.max():.2f}", at, what=what)
    size = y.pow(2).mean(-1).sqrt().mean()
    centred = y.mean(-1).abs().max() < 1e-3
    if centred and width > 4 and abs(size - ((width - 1) / width) ** 0.5) < 2e-3:
        seen = f"outputs have a deviation of {size:.3f}, not 1"
        return finding("norm-unbiased", seen, at)
    return None


def norm_faults(model: nn.Module, trace: Xray) -> list[Finding]:
    """The faults of the norms, one for each kind of norm."""
    found = []
    for name, norm, like in _norms_in(model, trace):
        training = norm.training
        norm.train()
        try:
            with torch.no_grad(), changed(norm.buffers()):
                fault = _norm_fault(norm, like, _said(name, norm))
                found += [fault] if fault else []
        except (RuntimeError, TypeError, ValueError):
            pass  # theirs: a norm of another kind of input
        finally:
            norm.train(training)
    return found


def hidden_layers(model: nn.Module) -> Finding | None:
    """Modules in plain lists, tuples or dictionaries, which nothing registers."""
    known = {id(module) for module in model.modules()}
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute in vars(nn.Module()):
                continue
            held = value.values() if isinstance(value, dict) else value
            lost = [
                m
                for m in (held if isinstance(value, list | tuple | dict) else ())
                if isinstance(m, nn.Module) and id(m) not in known and _learns(m)
            ]
            if lost:
                at = f"{name}.{attribute}".lstrip(".")
                seen = f"{len(lost)} × {type(lost[0]).__name__} outside parameters()"
                return finding("layers-not-registered", seen, at)
    return None


def plain_tensors(model: nn.Module) -> Finding | None:
    """Tensors that are attributes, and neither parameters nor buffers."""
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if isinstance(value, Tensor) and value.numel() > 1:
                at = f"{name}.{attribute}".lstrip(".")
                seen = f"a tensor of shape {tuple(value.shape)}"
                return finding("tensor-not-registered", seen, at)
    return None


def shared_layers(model: nn.Module) -> Finding | None:
    """Lists whose members are one object."""
    for name, members in _lists_in(model):
        weighty = [m for m in members if _learns(m)]
        objects = len(set(map(id, weighty)))
        if len(weighty) > objects:
            seen = f"{len(weighty)} members, {objects} object"
            return finding("layers-shared", seen, name)
    return None


def equal_starts(model: nn.Module) -> Finding | None:
    """Lists whose members start with the same matrices."""
    for name, members in _lists_in(model):
        first, *rest = ([p for p in m.parameters() if p.dim() > 1] for m in members)
        if len(set(map(id, members))) < 2 or not first or not first[0].std() > 0:
            continue
        if any(len(m) == len(first) and all(map(torch.equal, first, m)) for m in rest):
            seen = "the first two have equal matrices before any training"
            return finding("layers-start-equal", seen, name)
    return None


def shared_modules(
    model: nn.Module, trace: Xray, attentions: list[Attention]
) -> Finding | None:
    """Modules with weights of their own that one pass calls more than once."""
    inside = {a.scores.module for a in attentions}
    for name, module in model.named_modules():  # a parent comes before its parts
        calls, kind = len(trace.calls.get(name, [])), type(module).__name__.lower()
        embeds = any(isinstance(m, nn.Embedding) for m in module.modules())
        if calls < 2 or not _learns(module) or embeds or "pos" in name.lower() + kind:
            continue
        if any(m == name or m.startswith(name + ".") for m in inside):
            what = "attention"
        elif "norm" in kind:
            what = "norm"
        else:
            what = "linear map" if "linear" in kind else type(module).__name__
        seen = f"called {calls} times in one pass"
        return finding("module-shared", seen, _said(name, module), what=what)
    return None


def made_in_forward(subject: Subject, inputs: list[Tensor]) -> Finding | None:
    """Modules with weights that are made while the model runs."""
    made: list[nn.Module] = []
    original, here = nn.Module.__init__, threading.get_ident()

    def counting(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        if threading.get_ident() == here:
            made.append(self)
        original(self, *args, **kwargs)

    model = subject.make()
    with mock.patch.object(nn.Module, "__init__", counting):
        subject.run(*inputs, model=model)
    known = {id(p) for p in model.parameters()}
    weighty = [m for m in made if any(id(p) not in known for p in m.parameters())]
    if not weighty:
        return None
    kinds = sorted({type(m).__name__ for m in weighty})
    return finding("made-in-forward", f"made in one pass: {', '.join(kinds)}")


def weight_faults(
    subject: Subject, inputs: list[Tensor], layers: list[str]
) -> list[Finding]:
    """Matrices that nothing uses, or that no gradient reaches."""
    model = subject.make()
    named = {
        n: p for n, p in model.named_parameters() if p.requires_grad and p.dim() > 1
    }
    given = subject.given(inputs)
    with torch.enable_grad():
        out = subject.output(subject.raw(model, *given), *given[-1].shape[:2])
    if not out.requires_grad:
        seen = "no output has a gradient"
        return [finding("gradient-cut", seen, name="The model")]
    spared = ("pooler", "token_type")
    silent = [
        name
        for name in _without_gradient(out, named)
        if not any(part in name.lower() for part in spared)
    ]
    if not silent:
        return []
    before = subject.run(*inputs)
    random = torch.Generator().manual_seed(2)

    def jolt(p: Tensor) -> None:
        p.add_(torch.randn(p.shape, generator=random) * p.std().clamp(min=0.1))

    for name in silent:
        with changed([named[name]], jolt):
            cut = not torch.equal(subject.run(*inputs), before)
        if cut:
            seen = f"{len(silent)} of {len(named)} matrices have a gradient of 0"
            return [finding("gradient-cut", seen, name, name=name)]
    for layer in layers:
        own = [n for n in named if n.startswith(layer + ".")]
        if own and set(own) <= set(silent):
            seen = f"all {len(own)} matrices have none"
            return [finding("layer-bypassed", seen, layer)]
    seen = "its gradient is 0, and no output moves with it"
    if len(silent) > 1:
        seen += f" (nor with {len(silent) - 1} more)"
    return [finding("parameter-unused", seen, silent[0], name=silent[0])]


def _without_gradient(out: Tensor, named: dict[str, nn.Parameter]) -> list[str]:
    """The names of the parameters that a random sum of the outputs does not reach."""
    random = torch.Generator().manual_seed(2)
    total = (out * torch.randn(out.shape, generator=random)).sum()
    grads = torch.autograd.grad(total, list(named.values()), allow_unused=True)
    return [
        name
        for name, grad in zip(named, grads, strict=True)
        if grad is None or not bool(grad.abs().max() > 0)
    ]
