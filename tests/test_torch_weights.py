"""Weights that come from torch.nn.Transformer, and go back without losing a bit."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import seeds, sizes, torch_model
from torch import Tensor, nn

from transformer import Transformer, TransformerConfig, from_torch, to_torch

BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(BITS[tensor.element_size()])


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
@settings(max_examples=10)
@given(
    sizes,
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.booleans(),
    st.sampled_from(["kept", "removed"]),
    seeds,
)
def test_the_round_trip_loses_no_bit(
    dtype, sizes, depths, norm_first, last, seed
) -> None:
    torch.manual_seed(seed)
    theirs = torch_model(*sizes, depths, last, norm_first=norm_first).to(dtype)
    state = theirs.state_dict()
    for weight in state.values():  # any bits: infinities, NaN, -0 and what is tiny
        random = torch.randint(-(2**15), 2**15, (weight.numel(), dtype.itemsize // 2))
        weight.copy_(random.to(torch.int16).view(dtype).view_as(weight))
    before = {name: bits(weight).clone() for name, weight in state.items()}
    back = to_torch(from_torch(state))
    assert list(back) == list(state)
    assert all(bits(back[name]).equal(before[name]) for name in before)
    assert {weight.dtype for weight in back.values()} == {dtype}
    theirs.load_state_dict(back)

    ours = from_torch(back)
    again = from_torch(to_torch({**ours, "output.weight": torch.ones(1)}))
    assert list(again) == list(ours)
    assert all(bits(again[name]).equal(bits(ours[name])) for name in ours)


def gone(name: str) -> Callable[[dict[str, Tensor]], object]:
    return lambda state: state.pop(name)


def shaped(name: str, *shape: int) -> Callable[[dict[str, Tensor]], object]:
    return lambda state: state.update({name: torch.ones(shape)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda state: state.clear(),
            r"not the weights .*: no encoder\.layers\.0\.nor",
        ),
        (gone("encoder.layers.0.linear1.bias"), "no encoder.layers.0.linear1.bias$"),
        (
            gone("decoder.layers.1.multihead_attn.in_proj_bias"),
            r'^Missing .*: "decoder\.layers\.1\.multihead_attn\.in_proj_bias"$',
        ),
        (
            gone("decoder.norm.bias"),
            r'^Missing .*: "decoder\.norm\.bias"$',
        ),
        (
            gone("encoder.norm.weight"),
            r'^Unexpected .*: "encoder\.norm\.bias"$',
        ),
        (shaped("extra", 3), '^Unexpected .*: "extra"$'),
        (
            shaped("encoder.layers.3.norm1.weight", 8),
            r'^Missing .*: "encoder\.layers\.2\.self_attn\.in_proj_weight"$',
        ),
        (
            shaped("encoder.layers.0.norm1.weight", 6),
            r"^size mismatch for encoder\.layers\.0\.\S+: .*\(24, 8\).*\(18, 6\)",
        ),
        (
            shaped("encoder.layers.1.self_attn.in_proj_weight", 25, 8),
            r"in_proj_weight: .*\(25, 8\).*\(24, 8\)",
        ),
        (
            shaped("decoder.layers.0.linear2.weight", 12, 8),
            r"linear2\.weight: .*\(12, 8\).*\(8, 12\)",
        ),
        (
            shaped("encoder.layers.0.norm1.weight"),
            r"^size mismatch for encoder\.layers\.0",
        ),
        (shaped("encoder.layers.0.linear1.bias", 0), "^size mismatch for encoder"),
    ],
)
def test_what_is_no_transformers_state_is_refused(change, message) -> None:
    state = dict(torch_model(depths=(2, 2)).state_dict())
    change(state)
    with pytest.raises(ValueError, match=message):
        from_torch(state)


def test_other_classes_and_the_wrong_direction_are_refused() -> None:
    theirs = torch_model().state_dict()
    ours = from_torch(theirs)
    one_side = {name: w for name, w in theirs.items() if name.startswith("encoder")}
    with pytest.raises(ValueError, match=r'^Missing .*"decoder\.layers\.0\.'):
        from_torch(one_side)
    with pytest.raises(ValueError, match=r"no encoder\.layers\.0\.linear1\.bias"):
        from_torch(torch_model(bias=False).state_dict())
    with pytest.raises(ValueError, match=r"no encoder\.layers\.0\.norm1\.weight"):
        from_torch(ours)
    with pytest.raises(ValueError, match=r"no encoder\.layers\.0\.residuals\.0\.norm"):
        to_torch(theirs)
    for role in ("query", "key", "value"):
        name = f"decoder.layers.0.cross_attention.{role}_proj.weight"
        with pytest.raises(ValueError, match=rf'^Missing .*: "{name}"$'):
            to_torch({n: weight for n, weight in ours.items() if n != name})
    with pytest.raises(ValueError, match=r"key_proj\.bias: .*\(7,\).*\(8,\)"):
        to_torch(
            {**ours, "encoder.layers.0.self_attention.key_proj.bias": torch.ones(7)}
        )


@pytest.mark.plain  # checked types are refused before
def test_a_module_is_not_its_state() -> None:
    for module, way in ((torch_model(), from_torch), (nn.Linear(2, 2), to_torch)):
        kind = type(module).__name__
        message = f"^a state_dict is needed, got an? {kind}: give its state_dict\\(\\)$"
        with pytest.raises(TypeError, match=message):
            way(module)


def test_frozen_weights_stay_frozen() -> None:
    theirs = torch_model().requires_grad_(requires_grad=False)
    ours = from_torch(dict(theirs.named_parameters()))
    assert not any(weight.requires_grad for weight in theirs.parameters())
    frozen = {name: nn.Parameter(w, requires_grad=False) for name, w in ours.items()}
    to_torch(frozen)
    assert not any(weight.requires_grad for weight in frozen.values())


def test_a_last_norm_is_refused_where_there_is_none() -> None:
    theirs = torch_model()  # post-norm, and a norm after each stack all the same
    ours = Transformer(
        TransformerConfig(
            5, 5, 8, 2, num_encoder_layers=1, num_decoder_layers=1, d_ff=12
        )
    )
    state = ours.state_dict() | from_torch(theirs.state_dict())
    with pytest.raises(RuntimeError, match=r"Unexpected.*encoder\.norm\.weight"):
        ours.load_state_dict(state)
