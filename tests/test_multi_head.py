import ast
import inspect
import textwrap

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import lengths, seeds

from transformer import MultiHeadAttention, scaled_dot_product_attention
from transformer.multi_head import KeysValues, together

heads_and_width = st.sampled_from([(1, 4), (2, 4), (2, 6), (4, 8), (3, 12)])


def double(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def separate_heads(attention, query, key, value, mask=None) -> torch.Tensor:
    """Each head on its own, with its own rows of the projections."""
    d_model = query.size(-1)
    d_k = d_model // attention.num_heads
    outputs = []
    for head in range(attention.num_heads):
        rows = slice(head * d_k, (head + 1) * d_k)
        q, k, v = (
            x @ proj.weight[rows].T + proj.bias[rows]
            for x, proj in (
                (query, attention.query_proj),
                (key, attention.key_proj),
                (value, attention.value_proj),
            )
        )
        outputs.append(scaled_dot_product_attention(q, k, v, mask))
    return attention.output_proj(torch.cat(outputs, dim=-1))


@given(heads_and_width, lengths, lengths, seeds)
def test_equals_separate_heads(sizes, queries, keys, seed) -> None:
    torch.manual_seed(seed)
    heads, d_model = sizes
    attention = MultiHeadAttention(d_model, heads).double()
    query, key, value = (double(2, n, d_model) for n in (queries, keys, keys))
    mask = torch.rand(queries, keys) < 0.7
    torch.testing.assert_close(
        attention(query, key, value, mask),
        separate_heads(attention, query, key, value, mask),
    )


@given(heads_and_width, lengths, lengths, seeds)
def test_weights_explain_the_output(sizes, queries, keys, seed) -> None:
    torch.manual_seed(seed)
    heads, d_model = sizes
    attention = MultiHeadAttention(d_model, heads).double()
    query, key = double(2, queries, d_model), double(2, keys, d_model)
    mask = torch.rand(2, 1, queries, keys) < 0.7
    values = attention.keys_values(key, key).values
    mixed = attention.weights(query, key, mask) @ values
    torch.testing.assert_close(
        attention.output_proj(mixed.transpose(1, 2).flatten(2)),
        attention(query, key, key, mask),
    )


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


@pytest.mark.parametrize("heads", [1, 2, 4, 8])
def test_the_number_of_parameters_does_not_depend_on_heads(heads) -> None:
    attention = MultiHeadAttention(16, heads)
    count = sum(p.numel() for p in attention.parameters())
    assert count == 4 * (16 * 16 + 16)


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


@pytest.mark.parametrize("bias", [False, True])
def test_one_product_makes_what_its_maps_make(bias):
    maps = [torch.nn.Linear(3, 5, bias).double() for _ in range(3)]
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    torch.testing.assert_close(together(x, *maps), tuple(one(x) for one in maps))


def test_one_map_may_go_alone() -> None:
    linear, x = torch.nn.Linear(4, 6), torch.randn(2, 4)
    (one,) = together(x, linear)
    assert one.equal(linear(x))


def test_values_of_their_own_are_heard_where_queries_are_the_keys() -> None:
    attention = MultiHeadAttention(8, 2).double()
    x, values = double(2, 5, 8), double(2, 5, 8)
    found = attention(x, x, values)
    torch.testing.assert_close(found, separate_heads(attention, x, x, values))
    torch.testing.assert_close(attention(x, x.clone(), values), found)


def test_the_layer_stays_short_enough_to_read():
    tree = ast.parse(textwrap.dedent(inspect.getsource(MultiHeadAttention)))
    parts = ast.FunctionDef | ast.ClassDef
    words = [node.body[0] for node in ast.walk(tree) if isinstance(node, parts)]
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    docstrings = [one for one in words if isinstance(one, ast.Expr)]
    code = [one for one in statements if not isinstance(one, parts)]
    assert len(code) - len(docstrings) <= 30
