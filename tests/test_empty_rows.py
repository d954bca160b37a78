"""Queries that may attend to nothing: zeros, and no gradient that they poison."""

import shutil
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import models, seeds, shake, token_ids
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from transformer import (
    Decoder,
    Encoder,
    MultiHeadAttention,
    Transformer,
    TransformerConfig,
    attention_maps,
    attention_weights,
    scaled_dot_product_attention,
)
from transformer.training.loss import label_smoothed_loss

# What two ways of adding the same numbers may differ by.
TOLERANCES = {
    torch.float64: 1e-10,
    torch.float32: 1e-4,
    torch.float16: 0.05,
    torch.bfloat16: 0.4,
}
each_dtype = pytest.mark.parametrize("dtype", TOLERANCES, ids=str)


def all_padding(queries: int, keys: int) -> Tensor:
    """(3, 1, 1, keys): the second source is padding alone, the third ends in it."""
    mask = torch.ones(3, 1, 1, keys, dtype=torch.bool)
    mask[1] = mask[2, ..., -1] = False
    return mask


def padded_queries(queries: int, keys: int) -> Tensor:
    """(3, 1, queries, keys): padding neither attends nor is attended to."""
    rows, columns = (torch.ones(3, n, dtype=torch.bool) for n in (queries, keys))
    rows[1:, -1:] = rows[2, 1:] = columns[1, -1:] = False
    return (rows[:, :, None] & columns[:, None, :])[:, None]


def strictly_past(queries: int, keys: int) -> Tensor:
    """(queries, keys): earlier positions only, of which the first query has none."""
    return torch.ones(queries, keys, dtype=torch.bool).tril(-1)


def everything_at_once(queries: int, keys: int) -> Tensor:
    """(3, 1, queries, keys): a strict mask, padding alone, padded queries."""
    kinds = all_padding, padded_queries, strictly_past
    full = (kind(queries, keys).expand(3, 1, queries, keys) for kind in kinds)
    alone, padded, past = full
    return torch.stack((past[0], alone[1], padded[2]))


each_mask = pytest.mark.parametrize(
    "make", [all_padding, padded_queries, strictly_past, everything_at_once]
)


def plain(dtype: torch.dtype) -> tuple[Callable[..., Tensor], Tensor, list[Tensor]]:
    """Our own attention, its output where there is no key, its parameters."""
    return scaled_dot_product_attention, torch.zeros(4, dtype=dtype), []


def fused(dtype: torch.dtype) -> tuple[Callable[..., Tensor], Tensor, list[Tensor]]:
    """Multi-head attention: of an empty row, only the output bias is left."""
    layer = MultiHeadAttention(4, 2)
    shake(layer)
    layer.to(dtype)
    return layer, layer.output_proj.bias.detach(), list(layer.parameters())


def gradients(out: Tensor, pull: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(out, tensors, pull))


def expect_zeros(path: Callable[..., tuple], mask: Tensor, dtype: torch.dtype) -> None:
    """Empty rows are zero and have no gradient."""
    attend, nothing, parameters = path(dtype)
    queries, keys = mask.shape[-2:]
    head = (1,) if path is plain else ()
    query, key, value = (
        torch.randn(3, *head, n, 4).to(dtype).requires_grad_()
        for n in (queries, keys, keys)
    )
    tensors = [query, key, value, *parameters]
    empty = ~mask.expand(3, 1, queries, keys).any(dim=-1)
    empty = empty if path is plain else empty[:, 0]
    assert empty.any()
    assert keys == 1 or not empty.all()

    out = attend(query, key, value, mask)  # as it is, to be broadcast
    assert out[empty].equal(nothing.expand_as(out[empty]))
    assert out.isfinite().all()
    pull = torch.randn_like(out)
    found = gradients(out, pull, tensors)
    assert all(grad.isfinite().all() for grad in found)
    assert (found[0][empty] == 0).all()

    # The same without those rows, sentence by sentence.
    expected = [torch.zeros_like(tensor) for tensor in tensors]
    full = mask.expand(3, 1, queries, keys)
    for row in range(3):
        some = full[row, 0].any(dim=-1)
        if some.any():
            one = slice(row, row + 1)
            without = attend(
                query[one][..., some, :], key[one], value[one], full[one][..., some, :]
            )
            close = TOLERANCES[dtype]
            assert_close(out[one][..., some, :], without, rtol=0, atol=close)
            part = gradients(without, pull[one][..., some, :], tensors)
            expected = [a + b for a, b in zip(expected, part, strict=True)]
    if path is fused:  # a constant: the output bias learns from every row
        expected[-1] = expected[-1] + pull[empty].sum(dim=0)
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs, rtol=0, atol=TOLERANCES[dtype])


@each_dtype
@pytest.mark.parametrize(
    ("make", "queries", "keys"),
    [  # the fused kernel works in blocks: less than one, and more
        (all_padding, 4, 6),
        (padded_queries, 4, 6),
        (strictly_past, 4, 6),
        (everything_at_once, 4, 6),
        (everything_at_once, 1, 1),
        (everything_at_once, 70, 530),
    ],
)
@pytest.mark.parametrize("path", [plain, fused])
def test_an_empty_row_is_zero_and_poisons_nothing(
    path, make, queries, keys, dtype
) -> None:
    mask = make(queries, keys)
    expect_zeros(path, mask, dtype)


@each_dtype
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_no_number_on_the_way_is_nan(dtype) -> None:
    """With -inf for what is hidden, NaN comes and goes; a debugger would stop there."""
    mask = everything_at_once(4, 6)
    inputs = [torch.randn(3, 1, n, 4).to(dtype).requires_grad_() for n in (4, 6, 6)]
    with torch.autograd.detect_anomaly(check_nan=True):
        scaled_dot_product_attention(*inputs, mask).sum().backward()


@each_dtype
@each_mask
def test_the_weights_of_an_empty_row_are_zero(make, dtype) -> None:
    mask = make(4, 6).expand(3, 1, 4, 6)
    query, key = torch.randn(3, 2, 4, 5).to(dtype), torch.randn(3, 2, 6, 5).to(dtype)
    weights = attention_weights(query, key, mask)
    sums = mask.any(dim=-1).expand(3, 2, 4).double()
    assert_close(weights.double().sum(-1), sums, rtol=0, atol=TOLERANCES[dtype] / 10)
    assert (weights[~mask.expand_as(weights)] == 0).all()
    layer = fused(dtype)[0]
    x, y = torch.randn(3, 4, 4).to(dtype), torch.randn(3, 6, 4).to(dtype)
    assert (layer.weights(x, y, mask)[~mask.expand(3, 2, 4, 6)] == 0).all()


# torch.compile reads through code that is checked with every call, and gives up.
compiles = pytest.mark.plain
quietly = pytest.mark.filterwarnings("ignore")  # torch's, of its own parts


@compiles
@quietly
@pytest.mark.parametrize(
    ("backend", "plain_in", "fused_in"),
    [
        ("aot_eager", list(TOLERANCES)[1:], [torch.float32, torch.bfloat16]),
        pytest.param(  # into kernels of its own; the fused one it only calls
            "inductor",
            [torch.float32],
            [],
            marks=pytest.mark.skipif(
                not (shutil.which("g++") or shutil.which("clang++")),
                reason="no C++ compiler",
            ),
        ),
    ],
)
def test_an_empty_row_is_zero_when_compiled(backend, plain_in, fused_in) -> None:
    # One program for all, since each compilation takes seconds.
    torch.compiler.reset()
    mask = everything_at_once(4, 6)
    empty = ~mask.any(dim=-1)
    dtypes = [*plain_in, *fused_in]
    alone = [plain(dtype)[0] for dtype in plain_in]
    ways = alone + [fused(dtype)[0] for dtype in fused_in]
    inputs = [
        [torch.randn(3, n, 4).to(dtype).requires_grad_() for n in (4, 6, 6)]
        for dtype in dtypes
    ]

    def attend(inputs: list[list[Tensor]]) -> list[Tensor]:
        pairs = zip(ways, inputs, strict=True)
        return [
            way(*qkv, mask) if isinstance(way, nn.Module) else way(*qkv, mask[:, 0])
            for way, qkv in pairs
        ]

    tensors = [x for qkv in inputs for x in qkv]
    tensors += [w for way in ways[len(alone) :] for w in way.parameters()]
    found = torch.compile(attend, backend=backend)(inputs)
    expected = attend(inputs)
    for out, plainly, way, dtype in zip(found, expected, ways, dtypes, strict=True):
        nothing = way.output_proj.bias if isinstance(way, nn.Module) else 0
        assert (out[empty[:, 0]] == nothing).all()
        assert_close(out, plainly, rtol=0, atol=TOLERANCES[dtype])
    pulls = [torch.randn_like(out) for out in expected]
    both = [torch.autograd.grad(outs, tensors, pulls) for outs in (found, expected)]
    for ours, theirs in zip(*both, strict=True):
        assert ours.isfinite().all()
        assert_close(ours, theirs, rtol=0, atol=TOLERANCES[ours.dtype])
    for grad in both[0][: 3 * len(dtypes) : 3]:  # of the queries
        assert (grad[empty[:, 0]] == 0).all()


# Whole layers and models


@pytest.fixture(params=["fused", "plain"])
def path(request, monkeypatch) -> str:
    """The layers with torch's kernel, and with our own attention in its place."""
    if request.param == "plain":

        def attend(query, key, value, mask, dropout) -> Tensor:
            assert dropout == 0
            return scaled_dot_product_attention(query, key, value, mask)

        monkeypatch.setattr(F, "scaled_dot_product_attention", attend)
    return request.param


def grads(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    """Every parameter's gradient."""
    names, weights = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, weights), strict=True))


def same(
    found: dict[str, Tensor], expected: dict[str, Tensor], dtype: torch.dtype
) -> None:
    largest = max(grad.abs().max().item() for grad in expected.values())
    for name, grad in expected.items():
        assert found[name].isfinite().all(), name
        close = TOLERANCES[dtype] * max(1.0, largest) / 4
        assert_close(found[name], grad, rtol=0, atol=close)


@each_dtype
@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
def test_an_encoder_passes_over_a_source_of_padding(path, norm_first, dtype) -> None:
    encoder = Encoder(8, 2, 12, 2, norm_first=norm_first)
    shake(encoder)
    encoder.to(dtype)
    x, mask = torch.randn(3, 5, 8).to(dtype).requires_grad_(), all_padding(5, 5)
    real = torch.tensor([0, 2])
    out = encoder(x, mask)
    pull = torch.randn_like(out)
    assert out.isfinite().all()
    everywhere = grads(encoder, (out * pull).sum())
    assert all(grad.isfinite().all() for grad in everywhere.values())
    found = grads(encoder, (encoder(x, mask) * pull)[real].sum())
    without = encoder(x[real], mask[real])
    same(found, grads(encoder, (without * pull[real]).sum()), dtype)
    same({"out": out[real]}, {"out": without}, dtype)


@each_dtype
@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize(
    "own", [strictly_past, padded_queries], ids=["strict", "padded"]
)
def test_a_decoder_passes_over_padding(path, own, norm_first, dtype) -> None:
    decoder = Decoder(8, 2, 12, 2, norm_first=norm_first)
    shake(decoder)
    decoder.to(dtype)
    x, memory = (torch.randn(3, n, 8).to(dtype).requires_grad_() for n in (5, 4))
    masks = all_padding(5, 4), own(5, 5).expand(3, 1, 5, 5)
    real = torch.tensor([0, 2])
    out = decoder(x, memory, *masks)
    pull = torch.randn_like(out)
    assert out.isfinite().all()
    everywhere = grads(decoder, (out * pull).sum())
    assert all(grad.isfinite().all() for grad in everywhere.values())
    (of_memory,) = torch.autograd.grad((decoder(x, memory, *masks)).sum(), [memory])
    assert of_memory.isfinite().all()
    assert (of_memory[1] == 0).all()
    found = grads(decoder, (decoder(x, memory, *masks) * pull)[real].sum())
    without = decoder(x[real], memory[real], *(mask[real] for mask in masks))
    same(found, grads(decoder, (without * pull[real]).sum()), dtype)
    same({"out": out[real]}, {"out": without}, dtype)


SOURCE = torch.tensor([[3, 4, 5, 6], [0, 0, 0, 0], [7, 8, 0, 0], [5, 9, 3, 0]])
# The third target is padding alone, the fourth begins with it.
TARGET = torch.tensor([[1, 5, 6], [1, 7, 8], [0, 0, 0], [0, 1, 9]])
LABELS = torch.tensor([[5, 6, 2], [7, 8, 2], [0, 0, 0], [0, 9, 2]])


def small(dtype: torch.dtype, **options) -> Transformer:
    sizes = {"d_model": 8, "num_heads": 2, "d_ff": 12, "dropout": 0.0}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    model = Transformer(TransformerConfig(13, 13, **sizes, **layers, **options))
    shake(model)
    return model.to(dtype)


def expect_a_whole_model(
    model: Transformer, run: Callable[..., Tensor], dtype: torch.dtype
) -> None:
    logits = run(SOURCE, TARGET)
    assert logits.isfinite().all()
    everywhere = grads(model, (logits * torch.randn_like(logits)).sum())
    assert all(grad.isfinite().all() for grad in everywhere.values())

    # The loss of two sentences, beside rows of padding and without them.
    real = torch.tensor([0, 3])
    labels = LABELS.clone()
    labels[1:3] = 0
    found = grads(model, label_smoothed_loss(run(SOURCE, TARGET), labels))
    alone = model(SOURCE[real], TARGET[real])
    expected = grads(model, label_smoothed_loss(alone, LABELS[real]))
    same(found, expected, dtype)
    same({"logits": logits[real]}, {"logits": alone}, dtype)


@each_dtype
@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
def test_a_model_passes_over_padding_alone(path, norm_first, dtype) -> None:
    model = small(dtype, norm_first=norm_first)
    expect_a_whole_model(model, model, dtype)


@compiles
@quietly
def test_a_compiled_model_passes_over_padding_alone() -> None:
    torch.compiler.reset()
    model = small(torch.float32)
    run = torch.compile(model, backend="aot_eager")
    expect_a_whole_model(model, run, torch.float32)


@settings(max_examples=15)
@given(models(dropout=0.0), token_ids(padded=True), st.data(), seeds)
def test_one_more_source_of_padding_changes_no_gradient(
    model, source, data, seed
) -> None:
    target = data.draw(token_ids(batch=len(source), least=2))
    decoder_input, labels = target[:, :-1], target[:, 1:]
    alone = grads(model, label_smoothed_loss(model(source, decoder_input), labels))
    source, labels = (
        torch.cat((ids, torch.zeros_like(ids[:1]))) for ids in (source, labels)
    )
    decoder_input = torch.cat((decoder_input, decoder_input[:1]))
    more = grads(model, label_smoothed_loss(model(source, decoder_input), labels))
    same(more, alone, torch.float64)


def test_maps_of_padding_alone_are_zero() -> None:
    maps = attention_maps(small(torch.float32), SOURCE, TARGET)
    assert (maps.encoder[1] == 0).all()
    assert (maps.cross[1] == 0).all()
    assert (maps.masked[2] == 0).all()
    assert (maps.masked[3, ..., 0, :] == 0).all()
    assert all(weights.isfinite().all() for weights in maps)
