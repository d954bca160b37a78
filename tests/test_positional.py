import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from transformer import PositionalEncoding, sinusoids

widths = st.integers(1, 16).map(lambda half: 2 * half)


@given(st.integers(1, 50), widths)
def test_every_entry_is_the_papers_formula(length, d_model) -> None:
    table = sinusoids(length, d_model)
    for position in {0, length // 2, length - 1}:
        for pair in range(d_model // 2):
            angle = position / 10_000 ** (2 * pair / d_model)
            assert math.isclose(
                table[position, 2 * pair].item(), math.sin(angle), abs_tol=1e-6
            )
            assert math.isclose(
                table[position, 2 * pair + 1].item(), math.cos(angle), abs_tol=1e-6
            )


def test_far_positions_are_as_exact_as_near_ones() -> None:
    table = sinusoids(20_000, 6)
    for position in (9_999, 19_999):
        for pair in range(3):
            angle = position / 10_000 ** (2 * pair / 6)
            sine, cosine = table[position, 2 * pair : 2 * pair + 2].tolist()
            assert math.isclose(sine, math.sin(angle), abs_tol=1e-6)
            assert math.isclose(cosine, math.cos(angle), abs_tol=1e-6)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 20), widths)
def test_similarity_depends_on_distance_alone(p, q, shift, d_model) -> None:
    table = sinusoids(128, d_model)
    torch.testing.assert_close(
        table[p] @ table[q], table[p + shift] @ table[q + shift], rtol=1e-4, atol=1e-4
    )


def test_start_continues_where_the_sequence_stopped() -> None:
    encode = PositionalEncoding(8)
    x = torch.randn(2, 6, 8)
    pieces = [encode(x[:, at : at + 1], start=at) for at in range(6)]
    assert torch.cat(pieces, dim=1).equal(encode(x))


def test_the_same_word_differs_by_position_and_only_by_its_encoding() -> None:
    encode = PositionalEncoding(8)
    word = torch.randn(8)
    out = encode(word.expand(1, 5, 8))[0]
    torch.testing.assert_close(out - word, sinusoids(5, 8))


def test_dropout_falls_on_the_sum_in_training_only() -> None:
    encode = PositionalEncoding(64, dropout=0.5)
    x = torch.ones(1, 10, 64)
    clean = encode.eval()(x)
    noisy = encode.train()(x)
    dropped = noisy == 0
    assert 0.3 < dropped.float().mean() < 0.7
    torch.testing.assert_close(noisy[~dropped], 2 * clean[~dropped])


def test_the_table_is_no_parameter_but_a_part_of_the_state() -> None:
    encode = PositionalEncoding(8, max_length=5)
    assert list(encode.parameters()) == []
    assert encode.state_dict()["table"].equal(sinusoids(5, 8))
    with torch.device("meta"):
        empty = PositionalEncoding(8, max_length=5)
    filled = empty.to_empty(device="cpu")
    filled.load_state_dict(encode.state_dict())
    assert filled.table.equal(encode.table)


def test_by_default_there_are_1024_positions_and_no_dropout() -> None:
    encode = PositionalEncoding(2).train()
    assert encode(torch.zeros(1, 1024, 2)).equal(sinusoids(1024, 2)[None])
    with pytest.raises(ValueError, match=r"0\.\.1023, got 0\.\.1024"):
        encode(torch.zeros(1, 1025, 2))


def test_the_table_is_of_the_default_dtype_like_weights() -> None:
    torch.set_default_dtype(torch.bfloat16)
    try:
        encode = PositionalEncoding(8)
    finally:
        torch.set_default_dtype(torch.float32)
    assert encode.table.equal(sinusoids(1024, 8).bfloat16())


def test_on_a_device_without_64_bits_the_table_is_made_on_the_cpu() -> None:
    """As Apple's GPUs are; a fake tensor has a device, but no numbers."""
    made = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found = func(*args, **(kwargs or {}))
            made.extend(one for one in tree_leaves(found) if isinstance(one, Tensor))
            return found

    with FakeTensorMode(), Watch(), torch.device("cuda"):
        table = sinusoids(4, 6)
    assert table.device.type == "cuda"
    assert {one.device.type for one in made if one.dtype == torch.float64} == {"cpu"}
