import pytest
import torch
from hypothesis import given
from strategies import attention_inputs
from torch.nn import functional as F

from transformer import attention_weights, scaled_dot_product_attention

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def test_the_worked_example_by_hand() -> None:
    query = torch.tensor([[2.0, 0.0]])
    key = torch.tensor([[1.0, 5.0], [0.0, 7.0]])
    value = torch.tensor([[10.0], [20.0]])
    # Scores 2/√2 and 0; e^√2 = 4.1133, so the weights are 4.1133/5.1133 and the rest.
    first = 4.1132503787829275 / 5.1132503787829275
    weights = attention_weights(query, key)
    torch.testing.assert_close(weights, torch.tensor([[first, 1 - first]]))
    torch.testing.assert_close(
        scaled_dot_product_attention(query, key, value),
        torch.tensor([[10 * first + 20 * (1 - first)]]),
    )


@given(attention_inputs())
def test_equals_the_fused_kernel_forward_and_backward(inputs) -> None:
    *tensors, mask = inputs
    ours = [x.clone().requires_grad_() for x in tensors]
    theirs = [x.clone().requires_grad_() for x in tensors]
    out = scaled_dot_product_attention(*ours, mask)
    fused = F.scaled_dot_product_attention(*theirs, mask)
    torch.testing.assert_close(out, fused, rtol=0, atol=1e-10)
    grad = torch.randn_like(out)
    out.backward(grad)
    fused.backward(grad)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@given(attention_inputs())
def test_in_half_precision_it_is_near_the_exact_mean(dtype, inputs) -> None:
    *tensors, mask = inputs
    tensors = [x.to(dtype) for x in tensors]
    found = scaled_dot_product_attention(*tensors, mask)
    assert found.dtype == dtype
    exact = scaled_dot_product_attention(*(x.double() for x in tensors), mask)
    close = 16 * torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), exact, rtol=close, atol=close)


@given(attention_inputs())
def test_a_masked_key_may_hold_anything(inputs) -> None:
    query, key, value, mask = inputs
    never = ~mask.any(dim=-2).squeeze(1)
    other_key, other_value = key.clone(), value.clone()
    for row in range(len(key)):
        other_key[row, :, never[row]] = 1e3
        other_value[row, :, never[row]] = -1e3
    torch.testing.assert_close(
        scaled_dot_product_attention(query, other_key, other_value, mask),
        scaled_dot_product_attention(query, key, value, mask),
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scores_too_large_for_exp_still_give_weights(dtype) -> None:
    query = torch.tensor([[100.0]], dtype=dtype)
    key = torch.tensor([[100.0], [90.0], [-100.0]], dtype=dtype)
    expected = torch.tensor([[1.0, 0.0, 0.0]], dtype=dtype)
    assert attention_weights(query, key).equal(expected)
