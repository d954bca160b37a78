"""Layers, norms and weights: what is asked of the modules, and of their numbers.

Made from book/workshop/museum.md: edit the chapter, not this file.
"""

import contextlib
from collections.abc import Iterator
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
def _zeroed(layers: list[nn.Module]) -> Iterator[None]:
    """The layers with all their linear maps at zero, biases too; norms stay."""
    kept = []
    for module in (module for layer in layers for module in layer.modules()):
        own = list(module.parameters(recurse=False))
        if any(p.dim() >= 2 for p in own):
            kept += [(p, p.detach().clone()) for p in own]
    with torch.no_grad():
        for p, _ in kept:
            p.zero_()
    try:
        yield
    finally:
        with torch.no_grad():
            for p, old in kept:
                p.copy_(old)


def _alike(one: Tensor, other: Tensor, tolerance: float = 1e-3) -> bool:
    """Whether two tensors are the same to three digits or so."""
    size = other.abs().max().clamp(min=1e-6)
    return bool((one - other).abs().max() / size < tolerance)


def _normalised(x: Tensor) -> list[Tensor]:
    """The input, normalised in each of the usual ways."""
    centred = x - x.mean(-1, keepdim=True)
    return [
        F.layer_norm(x, x.shape[-1:]),
        x / x.pow(2).mean(-1, keepdim=True).sqrt().clamp(min=1e-6),
        centred / centred.std(-1, keepdim=True).clamp(min=1e-6),
    ]


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
    with _zeroed([model.get_submodule(name) for name in layers]):
        empty = subject.trace(*inputs, model=model)
    for name in layers:
        _, result = trace.calls[name][0]
        x, y = empty.calls[name][0]
        assert result is not None
        assert x is not None
        assert y is not None
        at = f"{name} ({type(model.get_submodule(name)).__name__})"
        if _alike(y, x, 1e-4):
            if style is None and not any(_alike(x, n, 0.02) for n in _normalised(x)):
                style = "first"
            continue
        if _same_rows(y):
            seen = "weights at zero: the layer gives the same for every word"
            return [finding("residual-missing", seen, at)], style
        if any(_alike(y, n, 0.05) for n in _normalised(x)):
            if not even_rows(result):
                seen = "weights at zero: the layer returns norm(x), not x; and its "
                seen += "ordinary output is not normalised"
                return [finding("residual-from-norm", seen, at)], style
            style = "last"
    return [], style


def _same_rows(x: Tensor) -> bool:
    """Whether every word has the same vector."""
    rows = x.reshape(-1, x.size(-1))
    return _alike(rows, rows[:1].expand_as(rows))


def residual_dropout(
    subject: Subject, inputs: list[Tensor], layers: list[str]
) -> Finding | None:
    """Whether a layer whose weights are zero is random in training."""
    model = subject.make(dropout=0.5)
    with _zeroed([model.get_submodule(name) for name in layers]):
        empty = subject.trace(*inputs, model=model, train=True)
    for name in layers:
        x, y = empty.calls.get(name, [(None, None)])[0]
        if x is None or y is None or _alike(y, x) or _same_rows(y):
            continue
        if not any(_alike(y, n, 0.05) for n in _normalised(x)):
            seen = "weights at zero, dropout 0.5, training: the layer's input does not "
            seen += "come through whole"
            at = f"{name} ({type(model.get_submodule(name)).__name__})"
            return finding("dropout-on-residual", seen, at)
    return None


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


def _norm_fault(name: str, norm: nn.Module, like: Tensor) -> Finding | None:
    """What a norm does that no norm should: asked with random numbers."""
    at = f"{name} ({type(norm).__name__})"
    random = torch.Generator().manual_seed(3)
    x = torch.randn(like.shape, generator=random) * 2 + 0.5
    kept = {n: p.detach().clone() for n, p in norm.named_parameters()}
    training = norm.training
    norm.train()
    try:
        with torch.no_grad():
            y = norm(x)
            changed = x.clone()
            changed[(0,) * (x.dim() - 1)] += torch.randn(x.size(-1), generator=random)
            far = (norm(changed) - y).abs().amax(-1).flatten()[1:].max()
            if far > 1e-4:
                seen = f"another position's input moves an output by {far:.2f}"
                return finding("norm-over-batch", seen, at)
            if not _alike(norm(3 * x), y, 0.05):
                what = "The norm's output grows with its input: it does not divide by "
                what += "the deviation."
                return finding("norm-wrong", "norm(3x) is not norm(x)", at, what=what)
            size = y.pow(2).mean(-1).sqrt().mean()
            for one, parameter in norm.named_parameters():
                if parameter.numel() not in (1, x.size(-1)):
                    continue
                parameter.add_(1.0)
                moved = norm(x) - y
                parameter.copy_(kept[one])
                shift = bool((moved - 1).abs().max() < 1e-3)
                gain = any(_alike(moved, y * k, 0.02) for k in (1.0,))
                if not shift and not gain and parameter.abs().max() > 0:
                    gain = _alike(moved * parameter.abs().max(), y, 0.02)
                if not shift and not gain:
                    what = f"The norm's {one} is neither a factor of its output nor "
                    what += "added to it."
                    seen = f"{one} + 1 changes outputs by {moved.min():.2f} … "
                    seen += f"{moved.max():.2f}"
                    return finding("norm-wrong", seen, at, what=what)
            width = x.size(-1)
            centred = y.mean(-1).abs().max() < 1e-3
            if (
                centred
                and abs(size - ((width - 1) / width) ** 0.5) < 2e-3
                and width > 4
            ):
                seen = f"outputs have a deviation of {size:.3f}, not 1"
                return finding("norm-unbiased", seen, at)
    except (RuntimeError, TypeError, ValueError):
        return None
    finally:
        norm.train(training)
        with torch.no_grad():
            for one, parameter in norm.named_parameters():
                parameter.copy_(kept[one])
    return None


def norm_faults(model: nn.Module, trace: Xray) -> list[Finding]:
    """The faults of the norms, one for each kind of norm."""
    found = []
    for name, norm, like in _norms_in(model, trace):
        buffers = [b.detach().clone() for b in norm.buffers()]
        if fault := _norm_fault(name, norm, like):
            found.append(fault)
        for buffer, old in zip(norm.buffers(), buffers, strict=True):
            buffer.copy_(old)
    return found


def hidden_layers(model: nn.Module) -> Finding | None:
    """Modules in plain lists, tuples or dictionaries, which nothing registers."""
    known = {id(module) for module in model.modules()}
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute.startswith("_") and attribute in vars(nn.Module()):
                continue
            held: list[Any] = []
            if isinstance(value, list | tuple):
                held = list(value)
            elif isinstance(value, dict):
                held = list(value.values())
            lost = [
                m
                for m in held
                if isinstance(m, nn.Module)
                and id(m) not in known
                and any(True for _ in m.parameters())
            ]
            if lost:
                at = f"{name + '.' if name else ''}{attribute}"
                seen = f"{len(lost)} × {type(lost[0]).__name__} outside parameters()"
                return finding("layers-not-registered", seen, at)
    return None


def plain_tensors(model: nn.Module) -> Finding | None:
    """Tensors that are attributes, and neither parameters nor buffers."""
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if isinstance(value, Tensor) and value.numel() > 1:
                at = f"{name + '.' if name else ''}{attribute}"
                seen = f"a tensor of shape {tuple(value.shape)}"
                return finding("tensor-not-registered", seen, at)
    return None


def shared_layers(model: nn.Module) -> Finding | None:
    """Lists whose members are one object."""
    for name, members in _lists_in(model):
        weighty = [m for m in members if any(True for _ in m.parameters())]
        if len(weighty) > len({id(m) for m in weighty}):
            seen = f"{len(weighty)} members, {len({id(m) for m in weighty})} object"
            return finding("layers-shared", seen, name)
    return None


def equal_starts(model: nn.Module) -> Finding | None:
    """Lists whose members start with the same matrices."""
    for name, members in _lists_in(model):
        matrices = [[p for p in m.parameters() if p.dim() > 1] for m in members]
        first = matrices[0]
        if len(members) < 2 or len({id(m) for m in members}) < 2 or not first:
            continue
        others = [m for m in matrices[1:] if len(m) == len(first)]
        if any(
            all(
                p.shape == q.shape and torch.equal(p, q)
                for p, q in zip(first, o, strict=True)
            )
            and first[0].std() > 0
            for o in others
        ):
            seen = "the first two have equal matrices before any training"
            return finding("layers-start-equal", seen, name)
    return None


def shared_modules(
    model: nn.Module, trace: Xray, attentions: list[Attention]
) -> Finding | None:
    """Modules with weights of their own that one pass calls more than once."""
    inside = {a.scores.module for a in attentions}
    shared: list[tuple[str, str, int]] = []
    for name, module in model.named_modules():
        calls = len(trace.calls.get(name, []))
        kind = type(module).__name__
        weighty = any(True for _ in module.parameters())
        embeds = any(isinstance(m, nn.Embedding) for m in module.modules())
        if calls < 2 or not weighty or embeds or "pos" in (name + kind).lower():
            continue
        if any(name.startswith(other + ".") for other, _, _ in shared):
            continue
        shared.append((name, kind, calls))
    for name, kind, calls in shared:
        lower = kind.lower()
        if any(m == name or m.startswith(name + ".") for m in inside):
            what = "attention"
        elif "norm" in lower:
            what = "norm"
        elif "linear" in lower:
            what = "linear map"
        else:
            what = kind
        seen = f"called {calls} times in one pass"
        return finding("module-shared", seen, f"{name} ({kind})", what=what)
    return None


def made_in_forward(subject: Subject, inputs: list[Tensor]) -> Finding | None:
    """Modules with weights that are made while the model runs."""
    made: list[nn.Module] = []
    original = nn.Module.__init__

    def counting(self: nn.Module, *args: Any, **kwargs: Any) -> None:
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
    given = [ids.T for ids in inputs] if subject.time_first else list(inputs)
    with torch.enable_grad():
        raw = subject.raw(model, *given)
        batch, length = given[-1].shape[:2]
        out = subject.output(raw, batch, length)
        random = torch.Generator().manual_seed(2)
        if not out.requires_grad:
            return [
                finding("gradient-cut", "no output has a gradient", name="The model")
            ]
        total = (out * torch.randn(out.shape, generator=random)).sum()
        grads = torch.autograd.grad(total, list(named.values()), allow_unused=True)
    silent = [
        name
        for name, grad in zip(named, grads, strict=True)
        if grad is None or not bool(grad.abs().max() > 0)
    ]
    silent = [
        n for n in silent if not any(w in n.lower() for w in ("pooler", "token_type"))
    ]
    if not silent:
        return []
    before = subject.run(*inputs)
    cut = []
    for name in silent:
        p = named[name]
        old = p.detach().clone()
        with torch.no_grad():
            p.add_(torch.randn(p.shape, generator=random) * p.std().clamp(min=0.1))
        if not torch.equal(subject.run(*inputs), before):
            cut.append(name)
        with torch.no_grad():
            p.copy_(old)
    if cut:
        seen = f"{len(cut)} of {len(named)} matrices have a gradient of 0"
        return [finding("gradient-cut", seen, cut[0], name=cut[0])]
    for layer in layers:
        own = [n for n in named if n.startswith(layer + ".")]
        if own and all(n in silent for n in own):
            return [
                finding("layer-bypassed", f"all {len(own)} matrices have none", layer)
            ]
    seen = "its gradient is 0, and no output moves with it"
    if len(silent) > 1:
        seen += f" (nor with {len(silent) - 1} more)"
    return [finding("parameter-unused", seen, silent[0], name=silent[0])]
