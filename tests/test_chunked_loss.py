"""Chapter 15's training tools: the chunked loss and bfloat16."""

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from tests.strategies import models, seeds, token_ids
from transformer.masks import causal_mask
from transformer.text.batches import Batch
from transformer.text.words import PAD_ID
from transformer.training.chunked_loss import chunked_loss
from transformer.training.loss import label_smoothed_loss
from transformer.training.precision import bf16_autocast, supports_bf16
from transformer.training.state import LossModule

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}


def inputs(seed=0, batch=3, length=5, width=4, tokens=11, dtype=torch.float64):
    """Hidden states, an output weight, and labels of which some are padding."""
    torch.manual_seed(seed)
    hidden = torch.randn(batch, length, width, dtype=dtype, requires_grad=True)
    weight = torch.randn(tokens, width, dtype=dtype, requires_grad=True)
    labels = torch.randint(0, tokens, (batch, length))
    labels[-1, -1] = PAD_ID
    labels[0, 0] = 1  # at least one is no padding
    return hidden, weight, labels


def plain_loss(hidden, weight, labels, smoothing=0.1):
    return label_smoothed_loss(hidden @ weight.T, labels, smoothing)


def gradients(loss, *tensors):
    return torch.autograd.grad(loss, tensors)


@given(
    seeds,
    st.integers(1, 4),
    st.integers(1, 9),
    st.integers(1, 8),
    st.integers(2, 12),
    st.integers(1, 40),
    st.sampled_from([0.0, 0.1, 0.7]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_the_chunked_loss_is_the_plain_one(
    seed, batch, length, width, tokens, chunk_size, smoothing, dtype
):
    hidden, weight, labels = inputs(seed, batch, length, width, tokens, dtype)
    plain = plain_loss(hidden, weight, labels, smoothing)
    ours = chunked_loss(hidden, weight, labels, smoothing, chunk_size=chunk_size)
    near = {"rtol": 4 * TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(ours, plain, **near)
    for one, other in zip(
        gradients(ours, hidden, weight), gradients(plain, hidden, weight), strict=True
    ):
        torch.testing.assert_close(one, other, **near)


def test_it_is_torchs_loss_at_the_size_of_a_real_vocabulary():
    hidden, weight, labels = inputs(1, 4, 80, 32, 5000, torch.float32)
    real = labels.flatten() != PAD_ID
    theirs = F.cross_entropy(
        (hidden @ weight.T).flatten(0, 1)[real], labels.flatten()[real]
    )
    ours = chunked_loss(hidden, weight, labels, smoothing=0.0)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    for one, other in zip(
        gradients(ours, hidden, weight), gradients(theirs, hidden, weight), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6, check_stride=True)


def test_the_sum_is_the_mean_times_the_count():
    hidden, weight, labels = inputs(7)
    total = chunked_loss(hidden, weight, labels, reduction="sum")
    mean = chunked_loss(hidden, weight, labels)
    torch.testing.assert_close(total, mean * (labels != PAD_ID).sum())
    rows = hidden.flatten(0, 1), weight, labels.flatten()
    torch.testing.assert_close(chunked_loss(*rows), mean)


def test_a_scaled_loss_has_a_scaled_gradient():
    hidden, weight, labels = inputs(3)
    once = gradients(chunked_loss(hidden, weight, labels), hidden, weight)
    thrice = gradients(3 * chunked_loss(hidden, weight, labels), hidden, weight)
    for one, other in zip(once, thrice, strict=True):
        torch.testing.assert_close(3 * one, other)


def test_two_backward_passes_give_the_gradient_twice():
    hidden, weight, labels = inputs(4)
    loss = chunked_loss(hidden, weight, labels)
    loss.backward(retain_graph=True)
    first = hidden.grad.clone()
    loss.backward()
    torch.testing.assert_close(hidden.grad, 2 * first)


def test_extreme_logits_stay_finite():
    hidden, weight, labels = inputs(5, dtype=torch.float32)
    far = (1e4 * hidden).detach().requires_grad_()
    loss = chunked_loss(far, weight, labels)
    torch.testing.assert_close(loss, plain_loss(far, weight, labels))
    assert all(each.isfinite().all() for each in gradients(loss, far, weight))


def test_without_gradients_the_loss_is_the_same():
    hidden, weight, labels = inputs(6)
    with torch.no_grad():
        loss = chunked_loss(hidden, weight, labels)
    assert not loss.requires_grad
    assert loss == chunked_loss(hidden, weight, labels)


def test_no_second_derivative_is_pretended():
    hidden, weight, labels = inputs(10)
    loss = chunked_loss(hidden, weight, labels)
    for one in (loss, loss.square()):  # the slope of the first is a constant
        with pytest.raises(RuntimeError, match="no second derivative"):
            torch.autograd.grad(one, hidden, create_graph=True)


@pytest.mark.parametrize("chunk_size", [1, 16, 4096])
def test_under_autocast_the_sums_stay_in_float32(chunk_size):
    hidden, weight, labels = inputs(8, 4, 20, 16, 300, torch.float32)
    exact = chunked_loss(hidden, weight, labels)
    with torch.autocast("cpu", torch.bfloat16):
        halved = chunked_loss(hidden, weight, labels, chunk_size=chunk_size)
    assert halved.dtype == torch.float32
    assert halved != exact  # the products are in bfloat16
    torch.testing.assert_close(halved, exact, rtol=1e-2, atol=0)
    for one, other in zip(
        gradients(halved, hidden, weight), gradients(exact, hidden, weight), strict=True
    ):
        assert one.dtype == torch.float32
        assert (one - other).norm() < 0.01 * other.norm()


def test_under_autocast_the_logarithm_is_in_float32():
    """In bfloat16 a loss of 5 would be rounded by up to 0.016."""
    hidden, weight, labels = inputs(8, 4, 20, 16, 300, torch.float32)
    rows, weight = hidden.flatten(0, 1).bfloat16(), weight.bfloat16()
    logits = (rows @ weight.T).float()
    for row, logit, label in zip(rows.float(), logits, labels.flatten(), strict=True):
        for smoothing in (0.0, 0.1):
            with torch.autocast("cpu", torch.bfloat16):
                loss = chunked_loss(
                    row[None], weight.float(), label[None], smoothing, pad_id=-1
                )
            exact = F.cross_entropy(logit, label, label_smoothing=smoothing)
            assert (loss - exact).abs() < 0.004


@pytest.mark.parametrize("ahead", [8, 10, 12, 14])
def test_a_label_that_is_all_but_certain_keeps_its_loss_and_gradient(ahead):
    """In bfloat16 no number lies between 0.996 and 1, but the loss is not 0 there."""
    logits = torch.zeros(1, 50)
    logits[0, 3] = ahead
    exact = F.cross_entropy(logits, torch.tensor([3])).item()
    weight, hidden = torch.eye(50), logits.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        loss = chunked_loss(hidden, weight, torch.tensor([3]), smoothing=0.0)
    assert loss.item() == pytest.approx(exact, rel=0.01)
    (grad,) = gradients(loss, hidden)
    slope = F.softmax(logits.detach(), dim=-1)[0, 3].item() - 1
    assert grad[0, 3].item() == pytest.approx(slope, rel=0.01)


def test_half_precision_weights_are_served_too():
    # As many rows as it takes for a sum kept in half precision to stand still.
    hidden, weight, labels = inputs(9, 20, 100, 16, 300, torch.float32)
    exact = gradients(chunked_loss(hidden, weight, labels), hidden, weight)
    low = [x.detach().bfloat16().requires_grad_() for x in (hidden, weight)]
    halved = gradients(chunked_loss(*low, labels, chunk_size=16), *low)
    for one, other in zip(halved, exact, strict=True):
        assert one.dtype == torch.bfloat16
        assert (one.float() - other).norm() < 0.01 * other.norm()


@pytest.mark.plain
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"smoothing": 1.0}, r"smoothing must lie in \[0, 1\), got 1.0"),
        ({"chunk_size": 0}, "chunk_size must be a whole number of at least 1"),
        ({"reduction": "none"}, "reduction must be mean or sum, got 'none'"),
        (
            {"labels": torch.ones(3, 4, dtype=torch.int64)},
            r"each label needs a row of hidden, got \(3, 5, 4\) and \(3, 4\)",
        ),
        ({"labels": torch.zeros(3, 5, dtype=torch.int64)}, "got only padding"),
        ({"labels": torch.full((3, 5), 11)}, r"labels must lie in 0..10, got 11"),
        ({"labels": torch.full((3, 5), -1)}, r"labels must lie in 0..10, got -1"),
        ({"weight": torch.zeros(11, 6)}, "equally wide, got 4 and 6"),
    ],
)
def test_what_cannot_be_is_refused(change, message):
    hidden, weight, labels = inputs()
    with pytest.raises(ValueError, match=message):
        chunked_loss(**{"hidden": hidden, "weight": weight, "labels": labels} | change)


def shifted(source, decoder_input):
    """A batch of any ids, whose labels are the decoder's input one position on."""
    rows = min(len(source), len(decoder_input))
    source, decoder_input = source[:rows], decoder_input[:rows]
    labels = decoder_input.roll(-1, dims=1)
    return Batch(source, decoder_input, labels.masked_fill(decoder_input == PAD_ID, 0))


@settings(max_examples=20)
@given(models(), token_ids(padded=True), token_ids(padded=True))
def test_a_loss_module_has_the_plain_loss_and_gradient(model, source, decoder_input):
    batch = shifted(source, decoder_input)
    parameters = list(model.parameters())
    count = (batch.labels != PAD_ID).sum()
    if not count:
        return
    logits = model(batch.source, batch.decoder_input)
    plain = label_smoothed_loss(logits, batch.labels)
    ours = LossModule(model, label_smoothing=0.1, bf16=False)(*batch) / count
    torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)
    for one, other in zip(
        gradients(ours, *parameters), gradients(plain, *parameters), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@settings(max_examples=10)
@given(models(), token_ids(padded=True))
def test_bf16_gives_nearly_the_same_loss(model, ids):
    batch, model = Batch(ids, ids, ids), model.float()
    exact = LossModule(model, 0.1, bf16=False)(*batch)
    halved = LossModule(model, 0.1, bf16=True)(*batch)
    assert halved.dtype == torch.float32
    torch.testing.assert_close(halved, exact, rtol=0.05, atol=0.05)


def test_attention_in_bf16_runs_where_sequences_are_short():
    query = torch.randn(1, 2, 3, 4)
    exact = F.scaled_dot_product_attention(query, query, query)
    for part in (query, query.bfloat16()):  # to autocast, and as a linear map gives it
        with bf16_autocast("cpu"):
            halved = F.scaled_dot_product_attention(part, part, part)
            assert (part[0, 0] @ part[0, 0].T).dtype == torch.bfloat16
        torch.testing.assert_close(halved.float(), exact, rtol=0.05, atol=0.05)


@given(seeds, st.integers(1, 6), st.integers(1, 6), st.booleans())
def test_attention_in_bf16_is_torchs_in_float32_rounded(seed, queries, keys, masked):
    torch.manual_seed(seed)
    query, key = 3 * torch.randn(2, 2, queries, 8), torch.randn(2, 2, keys, 8)
    value, upstream = torch.randn(2, 2, keys, 5), torch.randn(2, 2, queries, 5)
    halves = [part.bfloat16().requires_grad_() for part in (query, key, value)]
    parts = [half.detach().float().requires_grad_() for half in halves]
    mask = torch.rand(2, 1, queries, keys) < 0.6 if masked else None  # with empty rows
    with bf16_autocast("cpu"):
        found = F.scaled_dot_product_attention(*halves, mask, 0.0)
    exact = F.scaled_dot_product_attention(*parts, mask)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), exact, rtol=0.02, atol=0.02)
    if masked:
        empty = (~mask.any(dim=-1)).expand(found.shape[:-1])
        assert (found[empty] == 0).all()
    ours = torch.autograd.grad(found, halves, upstream.bfloat16())
    theirs = torch.autograd.grad(exact, parts, upstream.bfloat16().float())
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == torch.bfloat16
        torch.testing.assert_close(one.float(), other, rtol=0.05, atol=0.08)


def test_attention_in_bf16_has_a_second_derivative():
    query = torch.randn(1, 2, 3, 4, requires_grad=True)
    with bf16_autocast("cpu"):
        found = F.scaled_dot_product_attention(query, query, query)
    (slope,) = torch.autograd.grad(found.square().sum(), query, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), query)
    assert second.isfinite().all()


def test_autocast_in_two_threads_leaves_no_switch_behind():
    """PyTorch's own choice of kernels is process-wide: ours must not touch it."""
    before = torch.backends.cuda.flash_sdp_enabled()
    entered, left = threading.Event(), threading.Event()

    def other():
        with bf16_autocast("cpu"):
            entered.set()
            left.wait(60)

    thread = threading.Thread(target=other)
    with bf16_autocast("cpu"):
        thread.start()
        entered.wait(60)
        assert torch.backends.cuda.flash_sdp_enabled() == before
    left.set()
    thread.join()
    assert torch.backends.cuda.flash_sdp_enabled() == before
    assert torch.backends.cuda.mem_efficient_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled()


def test_heads_shared_by_queries_in_bf16_have_their_gradients():
    torch.manual_seed(0)
    parts = torch.randn(2, 4, 3, 8), torch.randn(2, 1, 5, 8), torch.randn(2, 1, 5, 8)
    halves = [part.bfloat16().requires_grad_() for part in parts]
    singles = [half.detach().float().requires_grad_() for half in halves]
    query, key, value = singles
    with bf16_autocast("cpu"):
        found = F.scaled_dot_product_attention(*halves)
    key, value = (each.expand(2, 4, 5, 8) for each in (key, value))
    exact = F.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(found.float(), exact, rtol=0.05, atol=0.05)
    ours = torch.autograd.grad(found.float().square().sum(), halves)
    theirs = torch.autograd.grad(exact.square().sum(), singles)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.float(), other, rtol=0.05, atol=0.1)


@pytest.mark.parametrize(
    ("positional", "named"),
    [
        ((None, 0.0, True), {}),
        ((), {"is_causal": True}),
        ((torch.zeros(3, 3).masked_fill(~causal_mask(3), -torch.inf),), {}),
    ],
    ids=["causal", "causal by name", "a mask of floats"],
)
def test_other_calls_of_attention_in_bf16_stay_torchs(positional, named):
    query = torch.randn(1, 2, 3, 4)
    exact = F.scaled_dot_product_attention(query, query, query, causal_mask(3))
    with bf16_autocast("cpu"):
        found = F.scaled_dot_product_attention(
            query, query, query, *positional, **named
        )
    torch.testing.assert_close(found.float(), exact, rtol=0.05, atol=0.05)


def test_attention_in_bf16_drops_weights_where_asked_to():
    weights = torch.eye(64).expand(1, 1, 64, 64)
    with bf16_autocast("cpu"):
        found = F.scaled_dot_product_attention(
            99 * weights, 99 * weights, weights, None, 0.5
        )
    assert 0.2 < (found == 0).all(dim=-1).float().mean() < 0.8


@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda")])
def test_a_gpu_answers_for_itself(device, monkeypatch):
    for answer in (True, False):
        monkeypatch.setattr(
            torch.cuda, "is_bf16_supported", lambda answer=answer, **_: answer
        )
        assert supports_bf16(device) is answer


def test_autocast_takes_a_device_by_name_or_as_it_is() -> None:
    x = torch.ones(2, 2)
    for device in ("cpu", torch.device("cpu"), torch.device("cpu", 0)):
        with bf16_autocast(device):
            assert (x @ x).dtype is torch.bfloat16


@pytest.mark.plain
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")  # torch's, of its own parts
def test_the_chunked_loss_compiles_to_machine_code():
    """Also where oneDNN would multiply, whose product cannot be compiled."""
    hidden, weight, labels = inputs(dtype=torch.float32)
    expected = chunked_loss(hidden, weight, labels)
    found = torch.compile(chunked_loss)(hidden, weight, labels)
    torch.testing.assert_close(found, expected)
