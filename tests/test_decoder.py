import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import seeds

from transformer import Decoder, causal_mask


def double(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@given(st.booleans(), st.integers(1, 3), seeds)
def test_the_order_of_the_memory_does_not_matter(norm_first, layers, seed) -> None:
    torch.manual_seed(seed)
    decoder = Decoder(8, 2, 12, layers, norm_first=norm_first).double().eval()
    x, memory, order = double(2, 3, 8), double(2, 6, 8), torch.randperm(6)
    mask = causal_mask(3)
    torch.testing.assert_close(
        decoder(x, memory[:, order], None, mask), decoder(x, memory, None, mask)
    )
