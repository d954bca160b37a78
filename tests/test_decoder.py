import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import seeds
from torch import nn

from transformer import Decoder, causal_mask, from_torch


def double(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@given(st.booleans(), st.integers(1, 4), st.booleans(), st.booleans(), seeds)
def test_equals_torch_with_copied_weights(
    norm_first, layers, causal, padded, seed
) -> None:
    torch.manual_seed(seed)
    layer = nn.TransformerDecoderLayer(
        8, 2, 12, 0.0, batch_first=True, norm_first=norm_first
    )
    theirs = nn.TransformerDecoder(
        layer, layers, nn.LayerNorm(8) if norm_first else None
    )
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.5)
    theirs.double()
    ours = Decoder(8, 2, 12, layers, norm_first=norm_first).double()
    ours.load_state_dict(from_torch(theirs.state_dict()))
    may = torch.ones(3, 5, dtype=torch.bool)
    if padded:
        may[1, 3:] = may[2, 1:] = False
    target_mask = causal_mask(4) if causal else None
    a = [double(3, 4, 8).requires_grad_(), double(3, 5, 8).requires_grad_()]
    b = [x.detach().clone().requires_grad_() for x in a]
    out = ours(*a, may[:, None, None, :], target_mask)
    expected = theirs(
        *b,
        tgt_mask=None if target_mask is None else ~target_mask,
        memory_key_padding_mask=~may,
    )
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-10)
    grad = torch.randn_like(out)
    out.backward(grad)
    expected.backward(grad)
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x.grad, y.grad, rtol=0, atol=1e-10)
    grads = {name: p.grad for name, p in theirs.named_parameters()}
    for name, grad in from_torch(grads).items():
        torch.testing.assert_close(
            ours.get_parameter(name).grad, grad, rtol=0, atol=1e-10
        )


@given(st.booleans(), st.integers(1, 3), seeds)
def test_the_order_of_the_memory_does_not_matter(norm_first, layers, seed) -> None:
    torch.manual_seed(seed)
    decoder = Decoder(8, 2, 12, layers, norm_first=norm_first).double().eval()
    x, memory, order = double(2, 3, 8), double(2, 6, 8), torch.randperm(6)
    mask = causal_mask(3)
    torch.testing.assert_close(
        decoder(x, memory[:, order], None, mask), decoder(x, memory, None, mask)
    )


def test_the_memory_is_heard() -> None:
    decoder = Decoder(8, 2, 12, 1).double().eval()
    x, memory = double(1, 3, 8), double(1, 6, 8)
    assert not decoder(x, memory).allclose(decoder(x, 2 * memory))
