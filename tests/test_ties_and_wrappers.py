"""Parts exchanged for others: ties hold where they can, and nothing else is touched."""

import pytest
import torch
from torch import nn

from transformer import (
    LanguageModelConfig,
    Llama,
    LlamaConfig,
    MultiHeadAttention,
    PositionalEncoding,
    Transformer,
    TransformerConfig,
    Translator,
    attention_maps,
)
from transformer.beyond.gpt2 import GPT2
from transformer.beyond.modern import GroupedQueryAttention, RotaryEmbedding
from transformer.maps import all_heads

pytestmark = pytest.mark.plain
SIZES = {"d_model": 8, "num_heads": 2, "d_ff": 12, "max_length": 32}


class LoRA(nn.Module):
    """A linear map and a low-rank addition to it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def tied(kind: str) -> nn.Module:
    if kind == "GPT2":
        return GPT2(LanguageModelConfig(13, num_layers=1, dropout=0.0, **SIZES))
    if kind == "Llama":
        rest = {"num_layers": 1, "num_kv_heads": 1, "tie_embeddings": True}
        return Llama(LlamaConfig(13, **rest, **SIZES))
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    return Transformer(
        TransformerConfig(13, 13, tie_embeddings=True, **layers, **SIZES)
    )


kinds = pytest.mark.parametrize("kind", ["Transformer", "GPT2", "Llama"])


@kinds
def test_loading_adds_no_weight_to_a_wrapped_output(kind) -> None:
    model = tied(kind)
    model.output = LoRA(model.output)
    state = model.state_dict()
    model.load_state_dict(state)
    assert model.state_dict().keys() == state.keys()
    model.load_state_dict(state)


@kinds
@pytest.mark.filterwarnings("ignore")  # PyTorch is to drop this kind
def test_a_quantised_tied_model_is_loaded(kind) -> None:
    model = torch.ao.quantization.quantize_dynamic(tied(kind), {nn.Linear}, torch.qint8)
    model.load_state_dict(model.state_dict())


@kinds
def test_a_parametrized_tied_model_is_loaded(kind) -> None:
    model = tied(kind)
    nn.utils.parametrizations.weight_norm(model.output)
    model.load_state_dict(model.state_dict())


def test_loading_keeps_a_wrapped_target_embedding() -> None:
    model = tied("Transformer")
    model.target_embedding = nn.Sequential(model.target_embedding, nn.LayerNorm(8))
    model.load_state_dict(model.state_dict())
    assert isinstance(model.target_embedding, nn.Sequential)


@pytest.mark.parametrize("length", [1, 3, 8])
def test_positions_of_a_sentence_without_a_batch(length) -> None:
    x, position = torch.randn(length, 8), PositionalEncoding(8)
    torch.testing.assert_close(position(x), position(x[None])[0])


def test_a_table_in_double_precision_is_exact() -> None:
    try:
        torch.set_default_dtype(torch.float64)
        table = PositionalEncoding(8).table
    finally:
        torch.set_default_dtype(torch.float32)
    angle = torch.tensor(1000.0, dtype=torch.float64) * 10_000 ** (-2 / 8)
    assert abs(table[1000, 2] - angle.sin()) < 1e-12


def test_queries_of_one_sentence_serve_a_batch_of_keys() -> None:
    attention = MultiHeadAttention(8, 2)
    x, mask = torch.randn(2, 3, 8), torch.ones(2, 1, 1, 3, dtype=torch.bool)
    mask[0, ..., 2] = False
    one, each = attention(x[:1], x, x, mask), attention(x[:1].expand_as(x), x, x, mask)
    torch.testing.assert_close(one, each)


def test_a_translator_leaves_other_peoples_optimisers_alone() -> None:
    """Their step after a backward pass is theirs, fused or not."""
    Translator.phrasebook().translate("Jane visite Paris")
    x = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([x], fused=True)
    loss = (x * x).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    loss.backward()


def test_grouped_queries_of_a_sentence_without_a_batch() -> None:
    attention, x = GroupedQueryAttention(8, 2, 1, RotaryEmbedding()), torch.randn(3, 8)
    batch = attention(x[None], x[None], x[None])
    torch.testing.assert_close(attention(x, x, x), batch[0])


def test_flags_of_a_config_are_true_or_false() -> None:
    with pytest.raises(TypeError, match="norm_first must be True or False, got 'no'"):
        LanguageModelConfig(13, num_layers=1, norm_first="no", **SIZES)
    with pytest.raises(TypeError, match="tie_embeddings must be True or False, got 1"):
        LlamaConfig(13, num_layers=1, num_kv_heads=1, tie_embeddings=1, **SIZES)


def test_maps_of_a_wrapped_model_are_the_models() -> None:
    model, ids = tied("Transformer").eval(), torch.tensor([[3, 4]])
    found = attention_maps(nn.DataParallel(model), ids, ids)
    assert torch.equal(found.cross, attention_maps(model, ids, ids).cross)
    assert all_heads(nn.DataParallel(model)) == all_heads(model)
