"""Our parts beside torch's, with the same weights: outputs and every gradient."""

import copy
import math
import statistics
import warnings
from collections.abc import Callable, Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import lengths, seeds, shake
from torch import Tensor, nn
from torch.testing import assert_close

from transformer import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    MultiHeadAttention,
    Transformer,
    TransformerConfig,
    from_torch,
    to_torch,
)

TOLERANCES = [(torch.float32, 1e-5), (torch.float64, 1e-10)]
MASKS = ["none", "padding", "causal", "both"]
few = settings(max_examples=6)

each_precision = pytest.mark.parametrize(
    ("dtype", "tolerance"), TOLERANCES, ids=["float32", "float64"]
)
each_mask = pytest.mark.parametrize("masks", MASKS)
each_order = pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
each_depth = pytest.mark.parametrize("depth", [1, 2, 3, 4])
# Heads, width and inner width. Below four numbers, a layer norm forgets nearly all.
sizes = st.tuples(st.integers(1, 4), st.integers(2, 5), st.integers(1, 12)).map(
    lambda each: (each[0], 2 * each[0] * each[1], each[2])
)


def renamed(theirs: nn.Module, what: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """`what` of every parameter of one of torch's classes, under our names."""
    names = {
        "self_attn": "self_attention",
        "multihead_attn": "cross_attention",
        "out_proj": "output_proj",
        "linear1": "feed_forward.expand",
        "linear2": "feed_forward.contract",
        "norm1": "residuals.0.norm",
        "norm2": "residuals.1.norm",
        "norm3": "residuals.2.norm",
    }
    found = {}
    for name, parameter in theirs.named_parameters():
        for torch_name, our_name in names.items():
            name = name.replace(torch_name, our_name)
        if "in_proj_" in name:
            parts = what(parameter).chunk(3)
            for role, part in zip(("query", "key", "value"), parts, strict=True):
                found[name.replace("in_proj_", f"{role}_proj.")] = part
        else:
            found[name] = what(parameter)
    return found


def results(
    model: nn.Module,
    run: Callable[..., Tensor],
    inputs: list[Tensor],
    pull: Tensor,
    name: Callable[..., Mapping[str, Tensor]],
) -> dict[str, Tensor]:
    """The output and all gradients, by name."""
    mine = [x.clone().requires_grad_() for x in inputs]
    out = run(*mine)
    out.backward(pull)
    found = {"output": out.detach()}
    found |= {f"input {place}": x.grad for place, x in enumerate(mine)}
    return found | dict(name(model, lambda parameter: parameter.grad))


def by_name(ours: nn.Module, what: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    return {name: what(weight) for name, weight in ours.named_parameters()}


def agree(
    ours: nn.Module,
    theirs: nn.Module,
    run_ours: Callable[..., Tensor],
    run_theirs: Callable[..., Tensor],
    inputs: list[Tensor],
    tolerance: float,
) -> None:
    """The same weights and inputs must give the same output and gradients.

    Gradients may be large, and a number is rounded by a share of itself: on a processor
    that adds in another order, one of 7 was 1.1e-5 off. Ten such roundings are allowed.
    """
    pull = torch.randn_like(run_ours(*inputs))
    found = results(ours, run_ours, inputs, pull, by_name)
    wanted = results(theirs, run_theirs, inputs, pull, renamed)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert tensor.isfinite().all()
        assert_close(
            found[name],
            tensor,
            rtol=0 if name == "output" else 10 * torch.finfo(tensor.dtype).eps,
            atol=tolerance,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def words(masks: str, batch: int, length: int) -> Tensor | None:
    """(batch, length), True at words: the first of each row and others by chance."""
    if masks not in ("padding", "both"):
        return None
    may = torch.rand(batch, length) < 0.6
    may[:, 0] = True
    return may


def past(masks: str, queries: int, keys: int) -> Tensor | None:
    """(queries, keys), True up to the query's own place."""
    if masks not in ("causal", "both"):
        return None
    return torch.ones(queries, keys, dtype=torch.bool).tril()


def both(may: Tensor | None, seen: Tensor | None) -> Tensor | None:
    """Our one mask: True where a query may attend."""
    if may is None or seen is None:
        return seen if may is None else may[:, None, None]
    return may[:, None, None] & seen


def hidden(mask: Tensor | None) -> Tensor | None:
    """Torch's classes take True for what is hidden."""
    return None if mask is None else ~mask


@each_precision
@pytest.mark.parametrize("masks", [*MASKS, "any"])
@few
@given(sizes, lengths, lengths, st.booleans(), seeds)
def test_multi_head_attention_equals_torchs(
    dtype, tolerance, masks, sizes, queries, keys, bias, seed
) -> None:
    torch.manual_seed(seed)
    heads, width, _ = sizes
    theirs = nn.MultiheadAttention(width, heads, bias=bias, batch_first=True)
    shake(theirs)
    theirs.to(dtype)
    ours = MultiHeadAttention(width, heads, bias=bias).to(dtype)
    ours.load_state_dict(renamed(theirs, lambda weight: weight.data))
    may, seen = words(masks, 3, keys), past(masks, queries, keys)
    mask, theirs_seen = both(may, seen), hidden(seen)
    if masks == "any":  # each sentence and head its own
        mask = torch.rand(3, heads, queries, keys) < 0.6
        mask[..., 0] = True
        theirs_seen = ~mask.flatten(0, 1)

    def run_theirs(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out, weights = theirs(
            query,
            key,
            value,
            key_padding_mask=hidden(may),
            attn_mask=theirs_seen,
            average_attn_weights=False,
        )
        found = ours.weights(query, key, mask)
        assert_close(found, weights, rtol=0, atol=tolerance)
        return out

    inputs = [torch.randn(3, n, width, dtype=dtype) for n in (queries, keys, keys)]
    agree(ours, theirs, lambda *x: ours(*x, mask), run_theirs, inputs, tolerance)


def encoders_agree(ours, theirs, masks, length, dtype, tolerance) -> None:
    """Give ours the weights of theirs, a layer or a stack, and the same sentences."""
    ours.to(dtype).load_state_dict(renamed(theirs, lambda weight: weight.data))
    may, seen = words(masks, 3, length), past(masks, length, length)
    agree(
        ours,
        theirs,
        lambda x: ours(x, both(may, seen)),
        lambda x: theirs(x, hidden(seen), hidden(may)),
        [torch.randn(3, length, width_of(ours), dtype=dtype)],
        tolerance,
    )


def decoders_agree(ours, theirs, masks, target, source, dtype, tolerance) -> None:
    """The same for a layer or a stack that looks at a memory."""
    ours.to(dtype).load_state_dict(renamed(theirs, lambda weight: weight.data))
    seen = past(masks, target, target)
    said, heard = words(masks, 3, target), words(masks, 3, source)
    agree(
        ours,
        theirs,
        lambda x, memory: ours(x, memory, both(heard, None), both(said, seen)),
        lambda x, memory: theirs(
            x, memory, hidden(seen), None, hidden(said), hidden(heard)
        ),
        [torch.randn(3, n, width_of(ours), dtype=dtype) for n in (target, source)],
        tolerance,
    )


def width_of(module: nn.Module) -> int:
    """d_model of a layer or a stack."""
    return next(
        one.in_features for one in module.modules() if isinstance(one, nn.Linear)
    )


@each_precision
@each_mask
@each_order
@few
@given(sizes, lengths, seeds)
def test_an_encoder_layer_equals_torchs(
    dtype, tolerance, masks, norm_first, sizes, length, seed
) -> None:
    torch.manual_seed(seed)
    heads, width, inner = sizes
    theirs = nn.TransformerEncoderLayer(
        width, heads, inner, 0.0, batch_first=True, norm_first=norm_first
    )
    shake(theirs)
    ours = EncoderLayer(width, heads, inner, norm_first=norm_first)
    encoders_agree(ours, theirs.to(dtype), masks, length, dtype, tolerance)


@each_precision
@each_depth
@each_order
@few
@given(sizes, lengths, st.sampled_from(MASKS), seeds)
def test_an_encoder_equals_torchs(
    dtype, tolerance, depth, norm_first, sizes, length, masks, seed
) -> None:
    torch.manual_seed(seed)
    heads, width, inner = sizes
    layer = nn.TransformerEncoderLayer(
        width, heads, inner, 0.0, batch_first=True, norm_first=norm_first
    )
    last = nn.LayerNorm(width) if norm_first else None
    theirs = nn.TransformerEncoder(layer, depth, last, enable_nested_tensor=False)
    shake(theirs)
    ours = Encoder(width, heads, inner, depth, norm_first=norm_first)
    encoders_agree(ours, theirs.to(dtype), masks, length, dtype, tolerance)


@each_precision
@each_mask
@each_order
@few
@given(sizes, lengths, lengths, seeds)
def test_a_decoder_layer_equals_torchs(
    dtype, tolerance, masks, norm_first, sizes, source, target, seed
) -> None:
    torch.manual_seed(seed)
    heads, width, inner = sizes
    theirs = nn.TransformerDecoderLayer(
        width, heads, inner, 0.0, batch_first=True, norm_first=norm_first
    )
    shake(theirs)
    ours = DecoderLayer(width, heads, inner, norm_first=norm_first)
    decoders_agree(ours, theirs.to(dtype), masks, target, source, dtype, tolerance)


@each_precision
@each_depth
@each_order
@few
@given(sizes, lengths, lengths, st.sampled_from(MASKS), seeds)
def test_a_decoder_equals_torchs(
    dtype, tolerance, depth, norm_first, sizes, source, target, masks, seed
) -> None:
    torch.manual_seed(seed)
    heads, width, inner = sizes
    layer = nn.TransformerDecoderLayer(
        width, heads, inner, 0.0, batch_first=True, norm_first=norm_first
    )
    last = nn.LayerNorm(width) if norm_first else None
    theirs = nn.TransformerDecoder(layer, depth, last)
    shake(theirs)
    ours = Decoder(width, heads, inner, depth, norm_first=norm_first)
    decoders_agree(ours, theirs.to(dtype), masks, target, source, dtype, tolerance)


class Stacks(nn.Module):
    """Our model without embeddings and output map, as torch's class is."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.encoder, self.decoder = model.encoder, model.decoder

    def forward(self, x, y, heard, mask) -> Tensor:
        return self.decoder(y, self.encoder(x, heard), heard, mask)


def torch_model(heads=2, width=8, inner=12, depths=(1, 1), last="kept", **options):
    with warnings.catch_warnings():  # about a fast path that pre-norm does not have
        warnings.simplefilter("ignore")
        theirs = nn.Transformer(
            width, heads, *depths, inner, 0.0, batch_first=True, **options
        )
    shake(theirs)
    if last == "removed":
        theirs.encoder.norm = theirs.decoder.norm = None
    return theirs


def our_model(theirs, heads, width, inner, depths, last, norm_first) -> Stacks:
    config = TransformerConfig(
        5, 5, width, heads, *depths, inner, dropout=0.0, norm_first=norm_first
    )
    ours = Transformer(config)
    if last == "kept" and not norm_first:
        ours.encoder.norm, ours.decoder.norm = nn.LayerNorm(width), nn.LayerNorm(width)
    state = theirs.state_dict()
    ours.to(next(iter(state.values())).dtype)
    ours.load_state_dict(ours.state_dict() | from_torch(state))
    return Stacks(ours)


@each_precision
@each_depth
@pytest.mark.parametrize(
    ("norm_first", "last"), [(False, "removed"), (False, "kept"), (True, "kept")]
)
@few
@given(sizes, st.integers(1, 4), lengths, lengths, st.sampled_from(MASKS), seeds)
def test_a_transformer_equals_torchs_through_its_state_dict(
    dtype,
    tolerance,
    depth,
    norm_first,
    last,
    sizes,
    other_depth,
    source,
    target,
    masks,
    seed,
) -> None:
    torch.manual_seed(seed)
    depths = depth, other_depth
    theirs = torch_model(*sizes, depths, last, norm_first=norm_first).to(dtype)
    ours = our_model(theirs, *sizes, depths, last, norm_first)
    seen = past(masks, target, target)
    said, heard = words(masks, 3, target), words(masks, 3, source)
    agree(
        ours,
        theirs,
        lambda x, y: ours(x, y, both(heard, None), both(said, seen)),
        lambda x, y: theirs(
            x,
            y,
            tgt_mask=hidden(seen),
            src_key_padding_mask=hidden(heard),
            tgt_key_padding_mask=hidden(said),
            memory_key_padding_mask=hidden(heard),
        ),
        [torch.randn(3, n, sizes[1], dtype=dtype) for n in (source, target)],
        tolerance,
    )


# Rounding to eight or eleven bits. One draw says little, so each is compared on many:
# how far we are from the reference in float64, over how far torch is. The ratio is
# taken draw by draw, since what makes a draw hard for one makes it hard for the other,
# and its logarithm varies by a few hundredths. "No larger" is then the mean of the
# logarithms, known to a hundredth or two: at most zero, or above it by chance.
# One thing has to be kept out. The gradient of a ReLU jumps at zero: a unit that
# rounding carries over the kink moves whole gradients, by chance, in either model. So
# every unit is far from it, half of them on each side.
DRAWS = 40
HEADS, WIDTH, INNER = 4, 16, 24


def ratios(
    draw: Callable[[int], tuple[Mapping[str, Tensor], ...]],
) -> dict[str, tuple[float, float]]:
    """Of outputs and gradients: the mean log-ratio, and the standard error of it."""
    logs: dict[str, list[float]] = {}
    for seed in range(DRAWS):
        torch.manual_seed(seed)
        *both, exact = draw(seed)
        far: dict[str, list[float]] = {}
        for name in exact:
            kind = name.split()[0] if name[:6] in ("output", "input ") else "parameter"
            sums = far.setdefault(kind, [0.0, 0.0])
            for place, near in enumerate(both):
                gap = near[name].double() - exact[name]
                sums[place] += gap.square().sum().item()
        for kind, (ours, theirs) in far.items():
            logs.setdefault(kind, []).append(math.log(ours / theirs) / 2)
    return {
        kind: (statistics.fmean(some), statistics.stdev(some) / math.sqrt(DRAWS))
        for kind, some in logs.items()
    }


each_low_precision = pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"]
)


@each_low_precision
def test_attention_rounds_no_worse_than_torchs(dtype) -> None:
    mask = past("causal", 6, 7)

    def draw(seed: int) -> tuple[dict[str, Tensor], ...]:
        theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        shake(theirs)
        theirs.to(dtype)
        exact = copy.deepcopy(theirs).double()
        ours = MultiHeadAttention(WIDTH, HEADS).to(dtype)
        ours.load_state_dict(renamed(theirs, lambda weight: weight.data))
        *inputs, pull = (torch.randn(3, n, WIDTH, dtype=dtype) for n in (6, 7, 7, 6))
        wide = [x.double() for x in inputs]

        def run(model: nn.Module) -> Callable[..., Tensor]:
            return lambda *x: model(*x, attn_mask=~mask, need_weights=False)[0]

        return (
            results(ours, lambda *x: ours(*x, mask), inputs, pull, by_name),
            results(theirs, run(theirs), inputs, pull, renamed),
            results(exact, run(exact), wide, pull.double(), renamed),
        )

    for kind, (mean, error) in ratios(draw).items():
        assert error < 0.03, kind
        assert mean <= 3 * error, kind


@pytest.mark.plain  # checked shapes would make it slow
@each_low_precision
@each_order
def test_a_transformer_rounds_no_worse_than_torchs(dtype, norm_first) -> None:
    last = "kept" if norm_first else "removed"
    seen, heard = past("causal", 6, 6), torch.ones(3, 7, dtype=torch.bool)
    heard[1, 4:] = heard[2, 2:] = False

    def draw(seed: int) -> tuple[dict[str, Tensor], ...]:
        options = {"depths": (2, 2), "last": last, "norm_first": norm_first}
        theirs = torch_model(HEADS, WIDTH, INNER, **options)
        for name, weight in theirs.named_parameters():
            if name.endswith("linear1.bias"):
                weight.data = 6 * torch.randn_like(weight).sign()
        theirs.to(dtype)
        exact = copy.deepcopy(theirs).double()
        ours = our_model(theirs, HEADS, WIDTH, INNER, **options)
        *inputs, pull = (torch.randn(3, n, WIDTH, dtype=dtype) for n in (7, 6, 6))
        wide = [x.double() for x in inputs]

        def run(model: nn.Module) -> Callable[..., Tensor]:
            return lambda x, y: model(
                x,
                y,
                tgt_mask=~seen,
                src_key_padding_mask=~heard,
                memory_key_padding_mask=~heard,
            )

        return (
            results(
                ours,
                lambda *x: ours(*x, heard[:, None, None], seen),
                inputs,
                pull,
                by_name,
            ),
            results(theirs, run(theirs), inputs, pull, renamed),
            results(exact, run(exact), wide, pull.double(), renamed),
        )

    found = ratios(draw)
    assert all(error < 0.03 for _, error in found.values())
    for kind, (mean, error) in found.items():
        assert mean <= 3 * error, kind


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
            r"^decoder\.layers\.1\.multihead_attn\.in_proj_bias should be \(24,\), "
            "got absent$",
        ),
        (
            gone("decoder.norm.bias"),
            r"decoder\.norm\.bias should be \(8,\), got absent",
        ),
        (
            gone("encoder.norm.weight"),
            r"encoder\.norm\.bias should be absent, got \(8,\)",
        ),
        (shaped("extra", 3), r"extra should be absent, got \(3,\)"),
        (
            shaped("encoder.layers.3.norm1.weight", 8),
            r"encoder\.layers\.2\.linear1\.bias should be \(12,\), got absent",
        ),
        (
            shaped("encoder.layers.0.norm1.weight", 6),
            r"decoder\.layers\.0\.linear1\.weight should be \(12, 6\), got \(12, 8\)",
        ),
        (
            shaped("encoder.layers.1.self_attn.in_proj_weight", 25, 8),
            r"in_proj_weight should be \(24, 8\), got \(25, 8\)",
        ),
        (
            shaped("decoder.layers.0.linear2.weight", 12, 8),
            r"linear2\.weight should be \(8, 12\), got \(12, 8\)",
        ),
        (
            shaped("encoder.layers.0.norm1.weight"),
            r"should be \(12, 1\), got \(12, 8\)",
        ),
        (shaped("encoder.layers.0.linear1.bias", 0), r"should be \(1,\), got \(12,\)"),
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
    with pytest.raises(ValueError, match=r"decoder\.layers\.0\..* got absent"):
        from_torch(one_side)
    with pytest.raises(ValueError, match=r"no encoder\.layers\.0\.linear1\.bias"):
        from_torch(torch_model(bias=False).state_dict())
    with pytest.raises(ValueError, match=r"no encoder\.layers\.0\.norm1\.weight"):
        from_torch(ours)
    with pytest.raises(ValueError, match=r"no encoder\.layers\.0\.residuals\.0\.norm"):
        to_torch(theirs)
    for role in ("query", "key", "value"):
        name = f"decoder.layers.0.cross_attention.{role}_proj.weight"
        with pytest.raises(ValueError, match=rf"{name} should be \(8, 8\), got absent"):
            to_torch({n: weight for n, weight in ours.items() if n != name})
    with pytest.raises(
        ValueError, match=r"key_proj\.bias should be \(8,\), got \(7,\)"
    ):
        to_torch(
            {**ours, "encoder.layers.0.self_attention.key_proj.bias": torch.ones(7)}
        )


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
