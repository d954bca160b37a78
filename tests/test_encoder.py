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
    FeedForward,
    Residual,
)


def double(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def test_feed_forward_is_the_same_map_at_every_position() -> None:
    feed_forward = FeedForward(6, 10).double()
    x = double(2, 4, 6)
    conv1, conv2 = nn.Conv1d(6, 10, 1).double(), nn.Conv1d(10, 6, 1).double()
    with torch.no_grad():
        for conv, linear in (
            (conv1, feed_forward.expand),
            (conv2, feed_forward.contract),
        ):
            conv.weight.copy_(linear.weight[..., None])
            conv.bias.copy_(linear.bias)
    expected = conv2(conv1(x.transpose(1, 2)).relu()).transpose(1, 2)
    torch.testing.assert_close(feed_forward(x), expected)


def test_post_norm_normalises_the_sum_and_pre_norm_what_goes_in() -> None:
    x = 5 + 3 * double(2, 4, 6)
    post = Residual(6).double()
    pre = Residual(6, norm_first=True).double()

    def tenfold(y: torch.Tensor) -> torch.Tensor:
        return 10 * y

    norm = nn.functional.layer_norm
    torch.testing.assert_close(post(x, tenfold), norm(11 * x, (6,)))
    torch.testing.assert_close(pre(x, tenfold), x + 10 * norm(x, (6,)))


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


def test_layers_own_their_parameters() -> None:
    encoder = Encoder(8, 2, 12, num_layers=3)
    one = sum(p.numel() for p in EncoderLayer(8, 2, 12).parameters())
    assert sum(p.numel() for p in encoder.parameters()) == 3 * one
    with torch.no_grad():
        encoder.layers[0].feed_forward.expand.weight.zero_()
    assert encoder.layers[1].feed_forward.expand.weight.abs().sum() > 0


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
