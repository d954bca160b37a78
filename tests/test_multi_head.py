import ast
import inspect
import textwrap

import pytest
import torch

from transformer import KeysValues, MultiHeadAttention, scaled_dot_product_attention


def double(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def test_keys_and_values_can_be_appended_one_at_a_time() -> None:
    attention = MultiHeadAttention(8, 2).double()
    x = double(2, 5, 8)
    whole = attention.keys_values(x, x)
    past = attention.keys_values(x[:, :1], x[:, :1])
    for at in range(1, 5):
        new = attention.keys_values(x[:, at : at + 1], x[:, at : at + 1])
        both = zip(past, new, strict=True)
        past = KeysValues(*(torch.cat(pair, dim=-2) for pair in both))
    torch.testing.assert_close(attention.attend(x, past), attention.attend(x, whole))


def test_dropout_acts_in_training_only() -> None:
    attention = MultiHeadAttention(8, 2, dropout=0.5)
    x = torch.randn(1, 6, 8)
    calm = attention.eval()(x, x, x)
    assert attention(x, x, x).equal(calm)
    attention.train()
    assert not attention(x, x, x).allclose(calm)


def test_a_mask_of_one_row_serves_every_query() -> None:
    attention = MultiHeadAttention(8, 2).double()
    x = double(2, 5, 8)
    row = torch.tensor([True, False, True, True, False])
    expected = attention(x, x, x, row.expand(5, 5))
    torch.testing.assert_close(attention(x, x, x, row), expected)
    mixed = attention.weights(x, x, row) @ attention.keys_values(x, x).values
    torch.testing.assert_close(
        attention.output_proj(mixed.transpose(1, 2).flatten(2)), expected
    )


def test_values_may_differ_from_keys_that_are_the_queries() -> None:
    attention = MultiHeadAttention(8, 2).double()
    x, values = double(2, 5, 8), double(2, 5, 8)
    torch.testing.assert_close(attention(x, x, values), attention(x, x.clone(), values))


@pytest.mark.parametrize("mask", [None, torch.ones(2, 1, 3, 4, dtype=torch.bool)])
@pytest.mark.parametrize("values", [3, 5])
@pytest.mark.plain
def test_unequal_numbers_of_keys_and_values_are_refused(mask, values) -> None:
    """Torch's kernel takes them, and reads beyond its input."""
    attention = MultiHeadAttention(8, 2)
    query, key, value = (torch.randn(2, n, 8) for n in (3, 4, values))
    message = f"every key needs one value, got 4 keys and {values} values"
    with pytest.raises(ValueError, match=message):
        attention(query, key, value, mask)
    with pytest.raises(ValueError, match=message):
        attention.keys_values(key, value)
    cached = attention.keys_values(key, key)
    cached = cached._replace(values=attention.keys_values(value, value).values)
    with pytest.raises(ValueError, match=message):
        attention.attend(query, cached, mask)
    with pytest.raises(ValueError, match=message):
        scaled_dot_product_attention(query, key, value)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str
)
def test_in_any_precision_it_is_near_the_exact_result(dtype) -> None:
    attention = MultiHeadAttention(16, 4).to(dtype)
    x = torch.randn(3, 7, 16).to(dtype)
    mask = torch.rand(3, 1, 7, 7) < 0.7
    found = attention(x, x, x, mask)
    weights = attention.weights(x, x, mask)
    assert found.dtype == weights.dtype == dtype
    exact = attention.double()
    close = {"rtol": 0, "atol": 8 * torch.finfo(dtype).eps}
    expected = exact(x.double(), x.double(), x.double(), mask)
    torch.testing.assert_close(found.double(), expected, **close)
    expected = exact.weights(x.double(), x.double(), mask)
    torch.testing.assert_close(weights.double(), expected, **close)


@pytest.mark.plain
@pytest.mark.parametrize("heads", [1, 4])
def test_a_sentence_without_a_batch_is_one_of_a_batch(heads) -> None:
    attention, x = MultiHeadAttention(8, heads), torch.randn(5, 8)
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    torch.testing.assert_close(
        attention(x, x, x, mask), attention(x[None], x[None], x[None], mask)[0]
    )


def test_the_layer_stays_short_enough_to_read() -> None:
    """At most thirty statements, and at most fifteen from queries to output."""

    def statements(source: str) -> list[ast.stmt]:
        nodes = list(ast.walk(ast.parse(textwrap.dedent(source))))
        parts = ast.FunctionDef | ast.ClassDef
        docs = [node.body[0] for node in nodes if isinstance(node, parts)]
        docs = [one for one in docs if isinstance(one, ast.Expr)]
        found = [node for node in nodes if isinstance(node, ast.stmt)]
        return [one for one in found if not isinstance(one, parts) and one not in docs]

    assert len(statements(inspect.getsource(MultiHeadAttention))) <= 30
    methods = "forward", "keys_values", "attend", "_split"
    path = [inspect.getsource(getattr(MultiHeadAttention, name)) for name in methods]
    assert sum(len(statements(one)) for one in path) <= 15
