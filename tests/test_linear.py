"""Linear layers by oneDNN are PyTorch's, up to rounding."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_runs import CONFIG, assert_same_run, run_steps
from torch import nn
from torch.nn import functional as F
from torch.profiler import profile
from torch.utils.checkpoint import checkpoint

from transformer.training import linear
from transformer.training.linear import onednn_linears

pytestmark = pytest.mark.plain  # nothing here is about the package's shapes
NAME = "mkldnn::_linear_pointwise"


@pytest.fixture(autouse=True)
def everywhere(monkeypatch):
    """As on a processor of AMD's, for layers of any size."""
    monkeypatch.setattr("transformer.onednn._INTELS", False)
    monkeypatch.setattr(linear, "_AMDS", True)
    monkeypatch.setattr(linear, "_LARGE", 1)


def products(run):
    """How many products are oneDNN's while something runs."""
    with profile() as seen:
        run()
    return sum(one.count for one in seen.key_averages() if one.key == NAME)


def gradients(x, weight, bias, grad):
    """A layer's output, its gradients, and those of the sum of their squares."""
    inputs = [part for part in (x, weight, bias) if part is not None]
    output = F.linear(x, weight, bias)
    alone = torch.autograd.grad(output, inputs, grad, retain_graph=True)
    first = torch.autograd.grad(output, inputs, grad, create_graph=True)
    squares = sum(part.square().sum() for part in first)
    second = torch.autograd.grad(squares, [x, weight, grad], materialize_grads=True)
    return [output, *alone, *first, *second]


@given(
    st.lists(st.integers(1, 5), max_size=3),
    st.integers(1, 70),
    st.integers(1, 70),
    st.sampled_from(["none", "usual", "stepped", "expanded"]),
    st.booleans(),
)
def test_output_gradients_and_theirs_are_the_usual(lead, n, m, kind, stepped):
    x = torch.randn(*lead, 2 * n)[..., ::2] if stepped else torch.randn(*lead, n)
    weight = torch.randn(m, n)
    bias = {
        "none": None,
        "usual": torch.randn(m),
        "stepped": torch.randn(m, 3)[:, 1],
        "expanded": torch.randn(1).expand(m),
    }[kind]
    grad = torch.randn(*lead, m)
    inputs = [x, weight, bias, grad]
    exact = [part if part is None else part.double() for part in inputs]
    for parts in (inputs, exact):
        for part in parts:
            if part is not None:
                part.requires_grad_()
    expected = gradients(*exact)
    with onednn_linears():
        found = gradients(*inputs)
    for ours, theirs in zip(found, expected, strict=True):
        most = 1e-5 * max(1.0, theirs.abs().max().item())
        torch.testing.assert_close(ours, theirs.float(), atol=most, rtol=1e-5)


def test_all_three_products_are_onednns_and_only_inside() -> None:
    layer, x = nn.Linear(3, 4), torch.randn(5, 3, requires_grad=True)
    with onednn_linears():
        output = layer(x)
    assert products(lambda: output.sum().backward()) == 2
    assert products(lambda: layer(x)) == 0
    with onednn_linears():
        assert products(lambda: layer(x)) == 1


def test_what_is_changed_later_and_not_needed_does_no_harm() -> None:
    first, frozen = nn.Linear(3, 4), nn.Linear(4, 5).requires_grad_(False)
    x = torch.randn(6, 3)
    with onednn_linears():
        hidden = first(x)
        output = frozen(hidden)
        hidden.relu_()  # a frozen weight needs no input for its gradient
        first.weight.data.zero_()  # nor does an input without gradient need the weight
        output.sum().backward()
    torch.testing.assert_close(
        first.weight.grad, frozen.weight.sum(dim=0)[:, None] * x.sum(dim=0)
    )


def test_checkpoints_of_activations_work() -> None:
    layers, x = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), torch.randn(5, 3)
    x.requires_grad_()
    with onednn_linears():
        output = checkpoint(layers, x, use_reentrant=False)
    (found,) = torch.autograd.grad(output.sum(), x)
    (expected,) = torch.autograd.grad(layers(x).sum(), x)
    torch.testing.assert_close(found, expected)


def test_a_frozen_part_costs_no_product() -> None:
    layer, x = nn.Linear(3, 4).requires_grad_(False), torch.randn(5, 3)
    with onednn_linears():
        output = layer(x.requires_grad_())
    assert products(lambda: output.sum().backward()) == 1
    assert [part.grad for part in layer.parameters()] == [None, None]


class Opaque(torch.Tensor):
    """A tensor of another kind, which modes do not see."""

    __torch_function__ = torch._C._disabled_torch_function_impl


def usual_cases():
    """What is left to PyTorch, by name."""
    x = torch.randn(5, 3)
    yield "small", nn.Linear(3, 4), x, {"_LARGE": 61}
    yield "not AMD's", nn.Linear(3, 4), x, {"_AMDS": False}
    yield "double", nn.Linear(3, 4).double(), x.double(), {}
    yield "half", nn.Linear(3, 4).bfloat16(), x.bfloat16(), {}
    yield "a subclass", nn.Linear(3, 4), x.as_subclass(Opaque), {}
    yield "sparse", nn.Linear(3, 4), x.to_sparse(), {}


@pytest.mark.parametrize(
    ("layer", "x", "known"),
    [pytest.param(*case, id=name) for name, *case in usual_cases()],
)
def test_the_rest_is_pytorchs(monkeypatch, layer, x, known) -> None:
    for name, value in known.items():
        monkeypatch.setattr(linear, name, value)
    with onednn_linears():
        assert products(lambda: layer(x).sum().backward()) == 0
        assert layer(x).equal(F.linear(x, layer.weight, layer.bias))


def test_onednn_may_be_switched_off(monkeypatch) -> None:
    layer, x = nn.Linear(3, 4), torch.randn(5, 3)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    with onednn_linears():
        assert products(lambda: layer(x)) == 0


def test_autocast_stays_autocast() -> None:
    layer, x = nn.Linear(3, 4), torch.randn(5, 3)
    with onednn_linears(), torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16


def test_wrong_sizes_are_refused_as_ever() -> None:
    layer = nn.Linear(3, 4)
    with onednn_linears(), pytest.raises(RuntimeError, match="5x2 and 3x4"):
        layer(torch.randn(5, 2))
    with onednn_linears(), pytest.raises(RuntimeError, match="dtype"):
        layer(torch.randn(5, 3).double())
    layer.bias = nn.Parameter(torch.zeros(3))
    with onednn_linears(), pytest.raises(RuntimeError, match="size"):
        layer(torch.randn(5, 3))


def test_a_model_compiles_whole_inside() -> None:
    torch.compiler.reset()
    layers = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    compiled = torch.compile(layers, fullgraph=True, backend="aot_eager")
    x = torch.randn(5, 3)
    with onednn_linears():
        torch.testing.assert_close(compiled(x), layers(x))


def test_a_training_uses_it_and_is_taken_up_bit_for_bit(dataset, tmp_path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    once = dataclasses.replace(CONFIG, epochs=1)
    used = products(lambda: run_steps(dataset, whole, config=once))
    # In each of 5 steps 16 layers have three products, and so has the loss.
    assert used >= 5 * (16 + 1) * 3
    for steps in (4, None):
        run_steps(dataset, cut, steps, once)
    assert_same_run(cut, whole)
