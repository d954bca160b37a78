"""Weights of the library transformers: what our classes are not is refused by name."""

import json
import warnings

import pytest
import torch
from torch import nn

from transformer.beyond.gpt2 import GPT2
from transformer.beyond.language_model import LanguageModelConfig
from transformer.beyond.llama import Llama, LlamaConfig
from transformer.pretrained.config import read_config
from transformer.pretrained.gpt2 import from_gpt2, to_gpt2
from transformer.pretrained.llama import from_llama, to_llama

pytestmark = pytest.mark.plain  # no shapes here that a chapter's tests do not check

LLAMA = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
}
GPT = {
    "vocab_size": 40,
    "n_positions": 32,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": None,
    "eos_token_id": None,
}


def library(kind, **settings):
    """A tiny model of the library with random weights, its gains and biases too."""
    with warnings.catch_warnings():  # of progress bars, where there is no notebook
        warnings.simplefilter("ignore")
        import transformers
    config = getattr(transformers, f"{kind}Config")(**settings)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for weight in model.parameters():
        nn.init.normal_(weight, mean=1.0 if weight.dim() == 1 else 0.0, std=0.2)
    return model.eval()


def largest_difference(ours, theirs):
    ids = torch.randint(40, (2, 24))
    with torch.no_grad():
        expected = theirs(ids).logits
        assert expected.std() > 0.3
        return (ours(ids) - expected).abs().max().item()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"rms_norm_eps": 1e-5},
        {"rms_norm_eps": 0.3},  # far enough from any default to be seen
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}},
        {"tie_word_embeddings": True},
        {"num_key_value_heads": None},
        {"max_position_embeddings": 24, "eos_token_id": 7},
        {"hidden_act": "swish"},
    ],
    ids=str,
)
def test_a_llama_is_read_as_its_config_says(settings, tmp_path):
    theirs = library("Llama", **LLAMA | settings)
    theirs.config.save_pretrained(tmp_path)
    ours = from_llama(theirs.state_dict(), tmp_path)
    assert largest_difference(ours, theirs) < 1e-5
    file = tmp_path / "config.json"
    for config in (theirs.config, theirs.config.to_dict(), file, str(file)):
        assert from_llama(theirs.state_dict(), config).config == ours.config
    assert ours.config.max_length == theirs.config.max_position_embeddings
    assert ours.config.eos_id == theirs.config.eos_token_id
    assert ours.config.tie_embeddings == theirs.config.tie_word_embeddings
    assert not ours.training


def test_a_config_of_the_library_before_its_fifth_version_is_read():
    theirs = library("Llama", **LLAMA, rope_parameters={"rope_theta": 500.0})
    old = {**LLAMA, "model_type": "llama", "rope_theta": 500.0, "rope_scaling": None}
    assert largest_difference(from_llama(theirs.state_dict(), old), theirs) < 1e-5
    older = {name: x for name, x in old.items() if name != "rope_theta"}  # Llama 1
    assert from_llama(theirs.state_dict(), older).config.rope_base == 10_000.0
    old["rope_scaling"] = {"type": "linear", "factor": 2.0}
    with pytest.raises(ValueError, match="rope_type is 'linear', expected 'default'"):
        from_llama(theirs.state_dict(), old)


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        ("Gemma", {"head_dim": 8}, "model_type is 'gemma', expected 'llama'"),
        ("Granite", {}, "model_type is 'granite', expected 'llama'"),
        ("Mistral", {"sliding_window": 4}, "model_type is 'mistral', expected 'llama'"),
        (
            "Llama",
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
            "rope_type is 'linear', expected 'default'",
        ),
        (
            "Llama",
            {
                "rope_parameters": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 32,
                }
            },
            "rope_type is 'llama3', expected 'default'",
        ),
        ("Llama", {"head_dim": 16}, "head_dim is 16, expected 8"),
        ("Llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu', expected 'silu'"),
        ("Llama", {"attention_bias": True}, "attention_bias is True, expected False"),
        ("Llama", {"mlp_bias": True}, "mlp_bias is True, expected False"),
        ("Llama", {"eos_token_id": [1, 2]}, r"eos_token_id is \[1, 2\], expected one"),
    ],
)
def test_what_is_no_plain_llama_is_refused(kind, settings, said):
    rope = {"rope_theta": 10_000.0} | settings.pop("rope_parameters", {})
    theirs = library(kind, **LLAMA | settings, rope_parameters=rope)
    with pytest.raises(ValueError, match=said):
        from_llama(theirs.state_dict(), theirs.config)


def llama_weights(**changes):
    settings = {**LLAMA, "model_type": "llama", **changes}
    names = ("vocab_size", "d_model", "d_ff", "num_layers", "num_heads")
    sizes = dict(zip(names, [*settings.values()][:5], strict=True))
    return to_llama(Llama(LlamaConfig(**{**sizes, "d_ff": 48}, num_kv_heads=2)))


CONFIG = {**LLAMA, "model_type": "llama"}
LAYER = "model.layers.1"


@pytest.mark.parametrize(
    ("state", "config", "error", "said"),
    [
        ({"lm_head.weight": None}, {}, ValueError, "lm_head.weight is missing"),
        (
            {f"{LAYER}.mlp.up_proj.weight": None},
            {},
            ValueError,
            f"{LAYER}.mlp.up_proj.weight is missing",
        ),
        (
            {f"{LAYER}.self_attn.q_norm.weight": torch.ones(8)},
            {},
            ValueError,
            f"{LAYER}.self_attn.q_norm.weight is unknown",
        ),
        (
            {},
            {"num_key_value_heads": 4},
            ValueError,
            r"model.layers.0.self_attn.k_proj.weight has the shape \(16, 32\), the "
            r"config says \(32, 32\)",
        ),
        (
            {},
            {"num_attention_heads": 8},
            ValueError,
            r"k_proj.weight has the shape \(16, 32\), the config says \(8, 32\)",
        ),
        ({}, {"num_attention_heads": 5}, ValueError, "num_heads must divide d_model"),
        ({}, {"num_hidden_layers": 3}, ValueError, "model.layers.2.* is missing"),
        ({}, {"num_hidden_layers": 1}, ValueError, "model.layers.1.* is unknown"),
        ({}, {"num_hidden_layers": 10**9}, ValueError, "1000000000 layers"),
        ({}, {"rms_norm_eps": None}, ValueError, "the config has no rms_norm_eps"),
        ({}, {"rms_norm_eps": "x"}, TypeError, "norm_eps must be a finite number"),
        ({}, {"model_type": None}, ValueError, "model_type is None, expected 'llama'"),
        (
            {},
            {"tie_word_embeddings": True},
            ValueError,
            "lm_head.weight differs from model.embed_tokens.weight",
        ),
        (
            {"model.norm.weight": torch.ones(32).half()},
            {},
            ValueError,
            "model.norm.weight is torch.float16 beside torch.float32",
        ),
        (
            {"model.norm.weight": torch.ones(32, dtype=torch.int64)},
            {},
            ValueError,
            "model.norm.weight is torch.int64 beside torch.float32",
        ),
        ({"model.norm.weight": [1.0]}, {}, TypeError, "model.norm.weight is a list"),
    ],
)
def test_weights_and_config_that_do_not_fit_are_refused(state, config, error, said):
    weights = {**llama_weights(), **state}
    weights = {name: x for name, x in weights.items() if x is not None}
    with pytest.raises(error, match=said):
        from_llama(weights, {**CONFIG, **config})


def test_an_eos_beyond_the_vocabulary_never_comes():
    config = {**CONFIG, "eos_token_id": 50}
    assert from_llama(llama_weights(), config).config.eos_id is None
    assert (
        from_llama(llama_weights(), {**config, "eos_token_id": [4]}).config.eos_id == 4
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx is True, expected False",
        ),
        ({"scale_attn_weights": False}, "scale_attn_weights is False, expected True"),
        (
            {"activation_function": "gelu"},
            "activation_function is 'gelu', expected 'gelu_new'",
        ),
        ({"layer_norm_epsilon": 0.1}, "layer_norm_epsilon is 0.1, expected 1e-05"),
    ],
)
def test_what_is_no_plain_gpt2_is_refused(settings, said):
    theirs = library("GPT2", **GPT | settings)
    with pytest.raises(ValueError, match=said):
        from_gpt2(theirs.state_dict(), theirs.config)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"n_inner": 24, "resid_pdrop": 0.0},
        {"activation_function": "gelu_pytorch_tanh", "eos_token_id": 3},
        {"reorder_and_upcast_attn": True},
    ],
    ids=str,
)
def test_a_gpt2_is_read_as_its_config_says(settings):
    theirs = library("GPT2", **GPT | settings)
    ours = from_gpt2(theirs.state_dict(), theirs.config)
    assert largest_difference(ours, theirs) < 1e-5
    assert ours.config.dropout == theirs.config.resid_pdrop
    assert ours.config.eos_id == theirs.config.eos_token_id
    assert ours.config.max_length == 32


GPT_CONFIG = {**GPT, "model_type": "gpt2"}


@pytest.mark.parametrize("prefix", ["", "transformer."])
@pytest.mark.parametrize(
    ("name", "weight", "said"),
    [
        ("h.1.ln_2.bias", None, "h.1.ln_2.bias is missing"),
        ("h.0.attn.c_attn.weight", None, "h.0.attn.c_attn.weight is missing"),
        ("h.0.more", torch.ones(1), "h.0.more is unknown"),
        (
            "h.0.mlp.c_proj.weight",
            torch.ones(3, 3),
            r"h.0.mlp.c_proj.weight has the shape \(3, 3\), the config says \(64, 16\)",
        ),
    ],
)
def test_a_tensor_at_fault_has_the_name_that_it_came_with(prefix, name, weight, said):
    state = to_gpt2(GPT2(LanguageModelConfig(40, 16, 4, 2, 64, max_length=32)))
    state = {each.replace("transformer.", prefix): x for each, x in state.items()}
    state.pop(prefix + name, None)
    if weight is not None:
        state[prefix + name] = weight
    with pytest.raises(ValueError, match=f"^{prefix}{said}"):
        from_gpt2(state, GPT_CONFIG)


def test_where_a_config_is_looked_for(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no config\.json .*nowhere"):
        read_config(tmp_path / "nowhere", "llama")
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        read_config(tmp_path, "llama")
    path = tmp_path / "config.json"
    for text in ("[1]", "{", '"x"', "\udcff"):
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(ValueError, match=r"config\.json is not a JSON object"):
            read_config(path, "llama")
    path.write_text(json.dumps({"model_type": "llama", "x": 1}))
    assert read_config(path, "llama") == {"model_type": "llama", "x": 1}
    for other in (12, None, LlamaConfig(50)):
        with pytest.raises(TypeError, match="a config of the library transformers"):
            read_config(other, "llama")


def test_a_model_is_not_its_state_dict():
    for way in (from_llama, from_gpt2):
        with pytest.raises(TypeError, match=r"a Linear: give its state_dict\(\)$"):
            way(nn.Linear(2, 2), CONFIG)


def test_weights_made_in_inference_mode_can_be_trained_here():
    plain = to_gpt2(GPT2(LanguageModelConfig(40, 16, 4, 2, 64, max_length=32)))
    with torch.inference_mode():
        state = {name: weight.clone() for name, weight in plain.items()}
    model = from_gpt2(state, GPT_CONFIG)
    model(torch.tensor([[1, 2]])).sum().backward()
    assert model.output.weight.grad is not None
