"""Which class stands where: every part that is not the package's own is named."""

import pytest
import torch
from test_saved_model import GELU, SIZES, OwnDecode, OwnParts, small
from torch import nn

from transformer import (
    LanguageModel,
    LanguageModelConfig,
    Llama,
    LlamaConfig,
    MultiHeadAttention,
)
from transformer.beyond.gpt2 import GPT2
from transformer.beyond.modern import RMSNorm, exchange_parts
from transformer.weights.classes import foreign_parts, require_known_parts

pytestmark = pytest.mark.plain
HERE = GELU.__module__

MODELS = {
    "post-norm": small,
    "pre-norm": lambda: small(norm_first=True, tie_embeddings=True, dropout=0.0),
    "language model": lambda: LanguageModel(
        LanguageModelConfig(13, num_layers=2, **SIZES)
    ),
    "GPT-2": lambda: GPT2(LanguageModelConfig(13, num_layers=2, **SIZES)),
    "Llama": lambda: Llama(LlamaConfig(13, num_layers=2, num_kv_heads=1, **SIZES)),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_the_package_knows_its_own_models(make) -> None:
    model = make()
    assert foreign_parts(model) == {}
    require_known_parts(model, "this")
    model.half().eval()
    assert foreign_parts(model) == {}


@pytest.mark.parametrize(
    ("place", "part"),
    [
        ("encoder.layers.1.feed_forward", GELU(8, 12)),
        ("decoder.layers.0.self_attention", type("A", (MultiHeadAttention,), {})(8, 2)),
        ("encoder.layers.0.residuals.1.norm", RMSNorm(8)),
        ("decoder.layers.0.residuals.2.norm", nn.LayerNorm(8, eps=1e-3)),
        ("position", nn.Identity()),
        ("encoder.layers.0.residuals.0.dropout", nn.AlphaDropout(0.1)),
        ("encoder.layers.0.adapter", nn.Linear(8, 8)),
    ],
)
def test_a_part_put_in_is_named_with_its_place(place, part) -> None:
    model, (owner, _, last) = small(), place.rpartition(".")
    setattr(model.get_submodule(owner), last, part)
    (found,) = foreign_parts(model).items()
    assert found[0] == place
    kind = type(part)
    assert found[1].startswith(f"{kind.__module__}.{kind.__qualname__}")
    with pytest.raises(ValueError, match=f"^explore does not know.* at {place}$"):
        require_known_parts(model, "explore")


def test_parts_are_told_from_those_that_the_config_asks_for() -> None:
    parts = ["RMSNorm", "SwiGLU"]
    model = exchange_parts(LanguageModelConfig(13, num_layers=1, **SIZES), parts)
    assert {
        place: name.rpartition(".")[2] for place, name in foreign_parts(model).items()
    } == {
        "encoder.layers.0.self_attention": "GroupedQueryAttention",
        "encoder.layers.0.feed_forward": "SwiGLU",
        "encoder.layers.0.residuals.0.norm": "RMSNorm",
        "encoder.layers.0.residuals.1.norm": "RMSNorm",
        "encoder.norm": "RMSNorm",
    }


def test_a_method_of_ones_own_makes_a_part_foreign() -> None:
    model = small()
    network, attention = model.encoder.layers[0].feed_forward, model.decoder.layers[0]
    network.forward = lambda x: x
    attention.cross_attention.attend = lambda *_: None
    model.encode = lambda ids: ids
    assert foreign_parts(model) == {
        "": "transformer.model.Transformer with its own encode",
        "encoder.layers.0.feed_forward": (
            "transformer.encoder.FeedForward with its own forward"
        ),
        "decoder.layers.0.cross_attention": (
            "transformer.multi_head.MultiHeadAttention with its own attend"
        ),
    }


def test_a_subclass_is_foreign_where_it_computes() -> None:
    config = small().config
    assert foreign_parts(OwnDecode(config)) == {"": f"{HERE}.OwnDecode"}
    place = "encoder.layers.1.feed_forward"
    assert foreign_parts(OwnParts(config)) == {place: f"{HERE}.GELU"}
    assert foreign_parts(nn.Linear(2, 2)) == {"": "torch.nn.modules.linear.Linear"}


def test_a_part_that_is_missing_is_named() -> None:
    model = small()
    model.encoder.layers = model.encoder.layers[:1]
    assert foreign_parts(model) == {"encoder.layers.1": "None"}


def test_a_parametrized_or_quantised_weight_is_foreign() -> None:
    model = small()
    nn.utils.parametrizations.weight_norm(model.output)
    assert list(foreign_parts(model)) == ["output"]


@pytest.mark.filterwarnings("ignore")  # torch's, of its own parts
def test_dropout_and_compiled_parts_are_known() -> None:
    model = small()
    model.encoder.layers[0].residuals[0].dropout = nn.Dropout(0.7)
    model.encoder.layers[1] = torch.compile(model.encoder.layers[1])
    model.decoder.compile()
    model.encoder.layers[0].register_forward_hook(lambda *_: None)
    assert foreign_parts(model) == {}
    inner = model.encoder.layers[1]._orig_mod
    inner.feed_forward.__class__ = GELU
    assert foreign_parts(model) == {"encoder.layers.1.feed_forward": f"{HERE}.GELU"}
