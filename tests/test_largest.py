"""The largest logits by stretches are PyTorch's, of any number of columns."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.test_search import DTYPES
from transformer.decoding import largest
from transformer.decoding.largest import argmax, topk

SEEDS = st.integers(0, 2**32)


@pytest.fixture(autouse=True, scope="module")
def by_stretches():
    """However few the numbers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(largest, "_pays", lambda logits, count: True)
        yield


@given(st.integers(1, 5), st.integers(1, 800), st.integers(1, 9), SEEDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_they_are_pytorchs(dtype, rows, columns, kinds, seed):
    """With few kinds of numbers, many are equal: of these argmax takes the first."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(kinds, (rows, columns), generator=generator).to(dtype)
    logits[logits == 0] = -torch.inf
    assert argmax(logits).equal(logits.argmax(dim=-1))
    for count in {1, 2, columns // 2, columns - 1, columns} & {*range(1, columns + 1)}:
        values, ids = topk(logits, count)
        assert values.equal(logits.topk(count).values)
        assert values.equal(logits.gather(1, ids))
        assert all(len({*row}) == count for row in ids.tolist())


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_no_number_is_lost(number):
    """NaN counts as the largest, as in PyTorch: searches refuse what they find so."""
    logits = torch.randn(3, 300)
    logits[1, 200], logits[2] = number, -torch.inf
    assert argmax(logits).equal(logits.argmax(dim=-1))
    found, expected = topk(logits, 3)[0], logits.topk(3).values
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
