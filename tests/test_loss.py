import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from transformer.text.words import PAD_ID
from transformer.training.chunked_loss import chunked_loss
from transformer.training.loss import label_smoothed_loss


@given(
    st.integers(0, 2**16),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(2, 9),
    st.floats(0, 0.9),
)
def test_loss_equals_torchs_with_its_gradient(seed, batch, length, tokens, smoothing):
    torch.manual_seed(seed)
    logits = torch.randn(batch, length, tokens, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, tokens, (batch, length))
    labels[0, 0] = 1  # not all padding
    ours = label_smoothed_loss(logits, labels, smoothing)
    theirs = F.cross_entropy(
        logits.flatten(0, 1),
        labels.flatten(),
        ignore_index=PAD_ID,
        label_smoothing=smoothing,
    )
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        torch.autograd.grad(ours, logits)[0], torch.autograd.grad(theirs, logits)[0]
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("tokens", [2, 163])
def test_no_logits_get_below_the_entropy_of_the_smoothed_label(tokens, smoothing):
    q = torch.full((tokens,), smoothing / tokens, dtype=torch.float64)
    q[1] += 1 - smoothing
    entropy = -torch.special.xlogy(q, q).sum()
    label = torch.tensor([[1]])
    for scale in (0.0, 1.0, 3.0, 8.0):
        logits = scale * torch.randn(50, 1, tokens, dtype=torch.float64)
        for one in logits:
            assert label_smoothed_loss(one[None], label, smoothing) >= entropy - 1e-12
    best = q.clamp(min=1e-300).log()[None, None]
    torch.testing.assert_close(label_smoothed_loss(best, label, smoothing), entropy)


def test_padding_has_no_part_in_the_loss():
    logits, labels = torch.randn(2, 3, 9), torch.tensor([[3, 4, 2], [5, 2, PAD_ID]])
    before = label_smoothed_loss(logits, labels)
    assert before == label_smoothed_loss(logits, labels, smoothing=0.1, pad_id=0)
    logits[1, 2] = float("nan")
    assert label_smoothed_loss(logits, labels) == before
    renamed = labels.masked_fill(labels == PAD_ID, 8)
    assert label_smoothed_loss(logits, renamed, pad_id=8) == before


def test_no_tensor_is_larger_than_the_logits():
    class Largest(TorchDispatchMode):
        numbers = 0

        def __torch_dispatch__(self, function, _, args=(), kwargs=None):
            made = function(*args, **(kwargs or {}))
            if isinstance(made, torch.Tensor):
                self.numbers = max(self.numbers, made.numel())
            return made

    logits, labels = torch.randn(2, 50, 5), torch.randint(1, 5, (2, 50))
    with Largest() as largest:
        label_smoothed_loss(logits, labels)
    assert largest.numbers == logits.numel()


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
def test_labels_may_be_of_any_whole_numbers(dtype):
    logits, labels = torch.randn(2, 3, 5), torch.randint(1, 5, (2, 3))
    expected = label_smoothed_loss(logits, labels)
    assert label_smoothed_loss(logits, labels.to(dtype)) == expected
    hidden, weight = torch.randn(2, 3, 4), torch.randn(5, 4)
    expected = chunked_loss(hidden, weight, labels)
    assert chunked_loss(hidden, weight, labels.to(dtype)) == expected


@pytest.mark.plain
def test_what_cannot_be_is_refused():
    logits, labels = torch.randn(1, 2, 4), torch.ones(1, 2, dtype=torch.long)
    for smoothing in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match=rf"\[0, 1\), got {smoothing}"):
            label_smoothed_loss(logits, labels, smoothing)
    with pytest.raises(ValueError, match=r"got \(1, 2, 4\) and \(1, 3\)"):
        label_smoothed_loss(logits, torch.ones(1, 3, dtype=torch.long))
    with pytest.raises(ValueError, match="only padding"):
        label_smoothed_loss(logits, torch.zeros_like(labels))
    for wrong in (4, -1):
        with pytest.raises(
            ValueError, match=rf"labels must lie in 0\.\.3, got {wrong}"
        ):
            label_smoothed_loss(logits, torch.full_like(labels, wrong))
    beyond = torch.tensor([[-100, 3]])  # padding may be any number
    assert label_smoothed_loss(logits, beyond, pad_id=-100) > 0


def test_a_loss_of_half_precision_is_summed_in_float32():
    logits, labels = 9 * torch.randn(2, 300, 40), torch.randint(1, 40, (2, 300))
    for dtype in (torch.bfloat16, torch.float16):
        half = logits.to(dtype)
        loss = label_smoothed_loss(half, labels)
        assert loss.dtype == torch.float32
        torch.testing.assert_close(loss, label_smoothed_loss(half.float(), labels))
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(
            label_smoothed_loss(logits @ torch.eye(40), labels),
            label_smoothed_loss(logits.bfloat16().float(), labels),
        )
