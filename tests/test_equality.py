"""Our parts beside torch's, with the same weights: outputs and every gradient."""

import copy
import math
import statistics
from collections.abc import Callable, Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import lengths, seeds, shake, sizes, torch_model
from torch import Tensor, nn
from torch.testing import assert_close

from transformer import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    MultiHeadAttention,
    from_torch,
)

TOLERANCES = [(torch.float32, 1e-5), (torch.float64, 1e-10)]
MASKS = ["none", "padding", "causal", "both"]
few = settings(max_examples=4)

each_precision = pytest.mark.parametrize(
    ("dtype", "tolerance"), TOLERANCES, ids=["float32", "float64"]
)
each_mask = pytest.mark.parametrize("masks", MASKS)
each_order = pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
each_depth = pytest.mark.parametrize("depth", [1, 2, 3, 4])


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
    expected = results(theirs, run_theirs, inputs, pull, renamed)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert tensor.isfinite().all()
        assert_close(
            found[name],
            tensor,
            rtol=0 if name == "output" else 10 * torch.finfo(tensor.dtype).eps,
            atol=tolerance,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def padding(masks: str, batch: int, length: int) -> Tensor | None:
    """(batch, length), True at tokens: the first of each row and others at random."""
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
    may, seen = padding(masks, 3, keys), past(masks, queries, keys)
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
    may, seen = padding(masks, 3, length), past(masks, length, length)
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
    of_target, of_source = padding(masks, 3, target), padding(masks, 3, source)
    agree(
        ours,
        theirs,
        lambda x, memory: ours(x, memory, both(of_source, None), both(of_target, seen)),
        lambda x, memory: theirs(
            x, memory, hidden(seen), None, hidden(of_target), hidden(of_source)
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


@pytest.mark.plain  # checked shapes would make it slow
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


@pytest.mark.plain  # checked shapes would make it slow
@each_precision
@each_depth
@pytest.mark.parametrize(
    ("norm_first", "last"), [(False, "removed"), (False, "kept"), (True, "kept")]
)
@few
@given(sizes, st.integers(1, 4), lengths, lengths, st.sampled_from(MASKS), seeds)
def test_what_is_made_of_torchs_transformer_equals_it(
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
    ours = from_torch(theirs)
    seen = past(masks, target, target)
    of_target, of_source = padding(masks, 3, target), padding(masks, 3, source)
    agree(
        ours,
        theirs,
        lambda x, y: ours(x, y, both(of_source, None), both(of_target, seen)),
        lambda x, y: theirs(
            x,
            y,
            tgt_mask=hidden(seen),
            src_key_padding_mask=hidden(of_source),
            tgt_key_padding_mask=hidden(of_target),
            memory_key_padding_mask=hidden(of_source),
        ),
        [torch.randn(3, n, sizes[1], dtype=dtype) for n in (source, target)],
        tolerance,
    )


# Rounding to eight or eleven bits. One draw says little, so each is compared on many:
# how far we are from the reference in float64, over how far torch is. The ratio is
# taken draw by draw, since what makes a draw hard for one makes it hard for the other,
# and its logarithm varies by a few hundredths. "No larger" is then the mean of the
# logarithms, known to a hundredth or two: at most zero, or above it by chance.
# Two things have to be kept out. The gradient of a ReLU jumps at zero: a unit that
# rounding carries over the kink moves whole gradients, by chance, in either model. So
# every unit is far from it, half of them on each side. And where queries, keys and
# values come from one tensor, torch makes them in one product, whose gradient at that
# tensor is rounded once; ours are three products, each rounded. Post-norm, on 144
# draws, that took our gradients at the inputs 7 % farther from the exact ones in
# bfloat16 and 4 % in float16, both by 4 standard errors or more, and by less than one
# where torch made three products too. So here it does.
DRAWS = 36
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


def project_apart(model: nn.Module) -> None:
    """Let torch make queries, keys and values in three products, as ours does."""

    def part(attention: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        query, key, value = given
        return query, key.clone(), value.clone()  # no two are one tensor

    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):
            module.register_forward_pre_hook(part)


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
    seen, words = past("causal", 6, 6), torch.tensor([7, 4, 2] * 4)
    of_source = torch.arange(7) < words[:, None]

    def draw(seed: int) -> tuple[dict[str, Tensor], ...]:
        options = {"depths": (2, 2), "last": last, "norm_first": norm_first}
        theirs = torch_model(HEADS, WIDTH, INNER, **options)
        for name, weight in theirs.named_parameters():
            if name.endswith("linear1.bias"):
                weight.data = 6 * torch.randn_like(weight).sign()
        theirs.to(dtype)
        exact = copy.deepcopy(theirs).double()
        ours = from_torch(theirs)
        project_apart(theirs)
        *inputs, pull = (torch.randn(12, n, WIDTH, dtype=dtype) for n in (7, 6, 6))
        wide = [x.double() for x in inputs]

        def run(model: nn.Module) -> Callable[..., Tensor]:
            return lambda x, y: model(
                x,
                y,
                tgt_mask=~seen,
                src_key_padding_mask=~of_source,
                memory_key_padding_mask=~of_source,
            )

        return (
            results(
                ours,
                lambda *x: ours(*x, of_source[:, None, None], seen),
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
