"""Modules made of PyTorch's own, and their weights back without losing a bit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import seeds, shake, sizes, torch_model
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from transformer import (
    Head,
    Transformer,
    TransformerConfig,
    ablate_heads,
    from_torch,
    to_torch,
)
from transformer.maps import maps_by_kind
from transformer.pretrained.torch import mask_from_torch

BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(BITS[tensor.element_size()])


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
@settings(max_examples=4)
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
    ours = from_torch(theirs)
    for weight in theirs.parameters():
        weight.data.zero_()  # they are copied
    back = to_torch(ours)
    assert list(back) == list(state)
    assert all(bits(back[name]).equal(before[name]) for name in before)
    assert {weight.dtype for weight in back.values()} == {dtype}
    theirs.load_state_dict(back)


ACTIVATIONS = [F.relu, torch.relu, F.gelu, F.silu, nn.SiLU(), nn.GELU("tanh")]


def layers(norm_first: bool = False, **options) -> dict[str, nn.Module]:
    """A layer of each kind, and a stack of it, all shaken and in double precision."""
    options = {"dropout": 0.2, "norm_first": norm_first, **options}
    encoder = nn.TransformerEncoderLayer(8, 2, 12, **options)
    decoder = nn.TransformerDecoderLayer(8, 2, 12, **options)
    last = nn.LayerNorm(8, eps=0.01)
    made = {
        "encoder layer": encoder,
        "encoder": nn.TransformerEncoder(encoder, 2, last, enable_nested_tensor=False),
        "decoder layer": decoder,
        "decoder": nn.TransformerDecoder(decoder, 2),
    }
    for module in made.values():
        shake(module)
    return {name: module.double().eval() for name, module in made.items()}


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_each_part_alone_equals_torchs(norm_first, batch_first, bias) -> None:
    """Output, the maps of every head, and what is left without one."""
    torch.manual_seed(0)
    activation = ACTIVATIONS[4 * norm_first + 2 * batch_first + bias - 2]
    options = {"activation": activation, "layer_norm_eps": 0.1, "bias": bias}
    made = layers(norm_first, batch_first=batch_first, **options)
    x, memory = torch.randn(3, 5, 8).double(), torch.randn(3, 7, 8).double()
    future = nn.Transformer.generate_square_subsequent_mask(5)
    padding = torch.arange(7) >= torch.tensor([[7], [2], [4]])
    order = (lambda x: x) if batch_first else (lambda x: x.transpose(0, 1))
    of_heads = {"need_weights": True, "average_attn_weights": False}
    shown, past = mask_from_torch(None, padding), mask_from_torch(future)

    for name in ("encoder layer", "encoder"):
        theirs, ours = made[name], from_torch(made[name])
        expected = order(theirs(order(memory), src_key_padding_mask=padding))
        assert_close(
            ours(memory, shown)[~padding], expected[~padding], atol=1e-12, rtol=0
        )
    maps = maps_by_kind(ours, memory, shown)["encoder"]
    y = order(memory)
    for number, layer in enumerate(theirs.layers):
        read = layer.norm1(y) if norm_first else y
        _, weights = layer.self_attn(
            read, read, read, key_padding_mask=padding, **of_heads
        )
        assert_close(maps[:, number], weights, atol=1e-12, rtol=0)
        y = layer(y, src_key_padding_mask=padding)
    with ablate_heads(ours, Head("encoder", 1, 0)):
        found = ours(memory, shown)
    theirs.layers[1].self_attn.out_proj.weight.data[:, :4] = 0
    expected = order(theirs(order(memory), src_key_padding_mask=padding))
    assert_close(found[~padding], expected[~padding], atol=1e-12, rtol=0)

    options = {"tgt_mask": future.double(), "memory_key_padding_mask": padding}
    for name in ("decoder layer", "decoder"):
        theirs, ours = made[name], from_torch(made[name])
        expected = order(theirs(order(x), order(memory), **options))
        assert_close(ours(x, memory, shown, past), expected, atol=1e-12, rtol=0)
    maps = maps_by_kind(ours, x, memory, shown, past)
    y, z = order(x), order(memory)
    for number, layer in enumerate(theirs.layers):
        read = layer.norm1(y) if norm_first else y
        attended, masked = layer.self_attn(
            read, read, read, attn_mask=future.double(), **of_heads
        )
        asks = y + attended if norm_first else layer.norm1(y + attended)
        asks = layer.norm2(asks) if norm_first else asks
        _, cross = layer.multihead_attn(
            asks, z, z, key_padding_mask=padding, **of_heads
        )
        assert_close(maps["masked"][:, number], masked, atol=1e-12, rtol=0)
        assert_close(maps["cross"][:, number], cross, atol=1e-12, rtol=0)
        y = layer(y, z, **options)
    for theirs in made.values():
        back = to_torch(from_torch(theirs))
        assert list(back) == list(theirs.state_dict())
        assert all(back[name].equal(x) for name, x in theirs.state_dict().items())


def test_dropout_and_the_mode_come_along() -> None:
    (theirs, *_) = layers().values()
    attention = nn.MultiheadAttention(8, 2, 0.3)
    assert from_torch(attention).dropout == 0.3
    ours = from_torch(theirs)
    rates = [part.p for part in ours.modules() if isinstance(part, nn.Dropout)]
    assert rates == [0.2] * 3
    assert ours.self_attention.dropout == 0.2
    assert not ours.training
    assert from_torch(theirs.train()).training


def test_a_whole_models_stacks_go_back_alone() -> None:
    theirs = torch_model(width=16, heads=2, depths=(2, 1))
    stacks = from_torch(theirs)
    model = Transformer(TransformerConfig(5, 5, 16, 2, 2, 1, 12))
    model.encoder, model.decoder = stacks.encoder, stacks.decoder
    assert list(to_torch(model)) == list(theirs.state_dict())


def test_masks_are_turned_round() -> None:
    hide = torch.tensor([[False, True], [False, False]])
    adds = torch.zeros(2, 2).masked_fill(hide, -torch.inf)
    assert mask_from_torch() is None
    assert mask_from_torch(hide).equal(~hide)
    assert mask_from_torch(adds).equal(~hide)
    assert mask_from_torch(None, hide).equal(~hide[:, None, None])
    joined = mask_from_torch(hide, torch.tensor([[True, False]]))
    assert joined.equal(torch.tensor([[[[False, False], [False, True]]]]))
    by_head = torch.rand(6, 2, 2) < 0.5
    found = mask_from_torch(by_head, num_heads=3)
    assert found.equal(~by_head.view(2, 3, 2, 2))
    for mask in (torch.tensor([[0.0, -1.0]]), torch.tensor([[0, 1]])):
        with pytest.raises(ValueError, match="add 0 and -inf alone"):
            mask_from_torch(mask)


class OfOnesOwn(nn.TransformerEncoderLayer):
    pass


def with_part(place: str, part: nn.Module) -> nn.Module:
    model = torch_model()
    model.set_submodule(place, part)
    return model


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        (nn.Linear(2, 2), r"^the class torch\S+\.Linear is not known here$"),
        (OfOnesOwn(8, 2), r"^the class test_torch_weights\.OfOnesOwn is not known"),
        (
            with_part("decoder.layers.0.norm2", nn.RMSNorm(8)),
            r"RMSNorm at decoder\.layers\.0\.norm2 is not known here$",
        ),
        (torch_model(activation=torch.tanh), "^the activation tanh is not known here$"),
        (
            torch_model(activation=nn.Tanh()),
            r"Tanh at encoder\.layers\.0\.activation is not known here$",
        ),
        (nn.MultiheadAttention(8, 2, kdim=4), "^kdim is 4, expected 8"),
        (nn.MultiheadAttention(8, 2, add_zero_attn=True), "^add_zero_attn is True"),
        (nn.MultiheadAttention(8, 2, add_bias_kv=True), "^add_bias_kv is True"),
    ],
    ids=lambda each: each[-20:] if isinstance(each, str) else type(each).__name__,
)
def test_what_ours_would_not_compute_is_refused_by_name(theirs, message) -> None:
    with pytest.raises(ValueError, match=message):
        from_torch(theirs)


@pytest.mark.plain  # checked types are refused before
def test_what_is_not_theirs_or_ours_is_refused() -> None:
    theirs = torch_model()
    with pytest.raises(TypeError, match=r"takes one of PyTorch's modules, got a dict$"):
        from_torch(dict(theirs.state_dict()))
    theirs.encoder.forward = theirs.encoder.forward
    with pytest.raises(ValueError, match="with its own forward at encoder is not"):
        from_torch(theirs)
    ours = from_torch(nn.MultiheadAttention(8, 2))
    ours.query_proj = OfOnesOwn(8, 2)
    for wrong in (theirs, ours):
        with pytest.raises(ValueError, match="is not known here"):
            to_torch(wrong)
