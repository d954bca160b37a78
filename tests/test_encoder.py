import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import seeds
from torch import nn

from transformer import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    Residual,
)


def double(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def test_dropout_falls_on_the_sublayer_alone() -> None:
    residual = Residual(50, dropout=0.5, norm_first=True).train()
    x = torch.randn(1, 20, 50)
    change = residual(x, torch.ones_like) - x
    kept = change > 1
    assert 0.4 < kept.float().mean() < 0.6
    torch.testing.assert_close(change[kept], torch.full_like(change[kept], 2.0))
    torch.testing.assert_close(change[~kept], torch.zeros_like(change[~kept]))


@given(st.booleans(), st.integers(1, 3), seeds)
def test_without_positions_order_is_invisible(norm_first, layers, seed) -> None:
    torch.manual_seed(seed)
    encoder = Encoder(8, 2, 12, layers, norm_first=norm_first).double().eval()
    x, order = double(2, 6, 8), torch.randperm(6)
    torch.testing.assert_close(encoder(x[:, order]), encoder(x)[:, order])


def test_by_default_the_norm_comes_last_as_in_the_paper() -> None:
    x = 5 + 3 * torch.randn(2, 4, 8)
    inputs_of = {
        Encoder: (x,),
        EncoderLayer: (x,),
        Decoder: (x, x),
        DecoderLayer: (x, x),
    }
    for kind, inputs in inputs_of.items():
        sizes = (8, 2, 12, 2) if kind in (Encoder, Decoder) else (8, 2, 12)
        out = kind(*sizes)(*inputs)
        torch.testing.assert_close(out, nn.functional.layer_norm(out, (8,)))
