import math

import torch

from transformer import TokenEmbedding


def test_ids_pick_rows_scaled_by_the_root_of_d_model() -> None:
    embed = TokenEmbedding(5, 9)
    out = embed(torch.tensor([[4, 0], [2, 2]]))
    rows = embed.table.weight * math.sqrt(9)
    torch.testing.assert_close(out[0], rows[[4, 0]])
    assert out[1, 0].equal(out[1, 1])


def test_entries_start_with_variance_one_whatever_the_width() -> None:
    for width in (16, 256):
        out = TokenEmbedding(4000, width)(torch.arange(4000)[None])
        assert abs(out.var().item() - 1) < 0.05


def test_only_rows_looked_up_learn() -> None:
    embed = TokenEmbedding(6, 4)
    embed(torch.tensor([[1, 3, 3]])).sum().backward()
    grad = embed.table.weight.grad
    assert grad is not None
    assert grad.abs().sum(-1).nonzero().flatten().tolist() == [1, 3]
    torch.testing.assert_close(grad[3], 2 * grad[1])  # looked up twice


def test_int32_ids_find_the_same_rows() -> None:
    embed = TokenEmbedding(6, 4)
    ids = torch.tensor([[1, 5]])
    assert embed(ids.int()).equal(embed(ids))
