"""Chapter 19's parts against torch's, and its Llama against that of `transformers`."""

import copy
import dataclasses
import math
import pickle

import pytest
import torch
from test_pretrained import LLAMA, library
from torch import nn

from transformer import greedy_search
from transformer.beyond.language_model import LanguageModelConfig, PromptDecoder
from transformer.beyond.llama import Llama, LlamaConfig
from transformer.beyond.modern import (
    PARTS,
    GroupedQueryAttention,
    RMSNorm,
    RotaryEmbedding,
    SwiGLU,
    exchange_parts,
)
from transformer.masks import causal_mask
from transformer.multi_head import KeysValues, MultiHeadAttention
from transformer.pretrained.llama import from_llama, to_llama

SMALL = LlamaConfig(
    vocab_size=50,
    d_model=32,
    num_heads=4,
    num_layers=2,
    d_ff=48,
    dropout=0.0,
    max_length=64,
    num_kv_heads=2,
)


def theirs(kv_heads=2, tied=False, base=10_000.0):
    """A Llama of the library transformers, as large as ours."""
    return library(
        "Llama",
        **LLAMA | {"num_key_value_heads": kv_heads, "eos_token_id": None},
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": base},
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rms_norm_equals_torchs(dtype):
    x = torch.randn(3, 5, 16, dtype=dtype) * 30
    ours, expected = RMSNorm(16).to(dtype), nn.RMSNorm(16, eps=1e-6).to(dtype)
    for norm in (ours, expected):
        nn.init.uniform_(norm.weight, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours(x), expected(x))


def test_rms_norm_is_exact_in_float64() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 5, 16, dtype=torch.float64, requires_grad=True)
    norm, expected = RMSNorm(16).double(), nn.RMSNorm(16, eps=1e-6).double()
    torch.testing.assert_close(norm(x), expected(x), rtol=1e-14, atol=1e-14)
    assert torch.autograd.gradcheck(norm, (x,))


def test_scores_of_rotated_vectors_depend_on_the_distance_alone():
    query, key = torch.randn(2, 1, 3, 1, 8).expand(2, 1, 3, 20, 8)
    rotary = RotaryEmbedding(base=100.0)
    here, there = (
        rotary(query, torch.arange(20)[None] + start)
        @ rotary(key, torch.arange(20)[None] + start).mT
        for start in (0, 31)
    )
    torch.testing.assert_close(here, there, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(here[..., :-1, :-1], here[..., 1:, 1:])
    assert (here[..., :, :-1] - here[..., :, 1:]).abs().max() > 0.01


@pytest.mark.parametrize("bias", [False, True])
def test_a_set_for_each_head_is_multi_head_attention(bias):
    ours = GroupedQueryAttention(24, 4, 4, bias=bias)
    expected = MultiHeadAttention(24, 4)
    weights = ours.state_dict()
    expected.load_state_dict(weights, strict=bias)
    if not bias:
        for projection in expected.children():
            nn.init.zeros_(projection.bias)
    x, memory = torch.randn(2, 5, 24), torch.randn(2, 7, 24)
    mask = torch.rand(2, 1, 5, 7) > 0.3
    mask[..., 0] = True
    torch.testing.assert_close(
        ours(x, memory, memory, mask), expected(x, memory, memory, mask)
    )


@pytest.mark.plain  # such a batch is outside of the shapes that are written down
def test_one_query_reads_several_masked_memories():
    ours = GroupedQueryAttention(24, 4, 2)
    x, memory = torch.randn(1, 5, 24), torch.randn(2, 7, 24)
    mask = torch.arange(7) < torch.tensor([7, 3])[:, None, None, None]
    torch.testing.assert_close(
        ours(x, memory, memory, mask), ours(x.expand(2, -1, -1), memory, memory, mask)
    )


@pytest.mark.parametrize("sets", [1, 2])
def test_groups_share_their_keys_and_values(sets):
    ours, full = GroupedQueryAttention(24, 4, sets), GroupedQueryAttention(24, 4, 4)
    state = ours.state_dict()
    for name in ("key_proj.weight", "value_proj.weight"):
        by_set = state[name].unflatten(0, (sets, -1))
        state[name] = by_set.repeat_interleave(4 // sets, dim=0).flatten(0, 1)
    full.load_state_dict(state)
    x = torch.randn(2, 6, 24)
    torch.testing.assert_close(
        ours(x, x, x, causal_mask(6)), full(x, x, x, causal_mask(6))
    )


@pytest.mark.parametrize(("kv_heads", "tied"), [(1, True), (2, False)])
def test_a_llama_is_that_of_transformers(kv_heads, tied):
    other = theirs(kv_heads, tied, base=500.0).double()
    state = other.state_dict()
    ours = from_llama(state, other.config)
    assert ours.config.num_kv_heads == kv_heads
    assert ours.config.tie_embeddings == tied
    ids = torch.randint(50, (3, 33))
    with torch.no_grad():
        expected = other(ids).logits
        assert expected.std() > 0.5
        torch.testing.assert_close(ours(ids), expected, atol=1e-5, rtol=0)
    back = to_llama(ours)
    assert back.keys() == state.keys()
    assert all(back[name].equal(weight) for name, weight in state.items())


def test_generation_is_theirs_from_prompts_of_unequal_length():
    other = theirs()
    ours = from_llama(other.state_dict(), other.config)
    prompts = [[3, 1, 4, 1, 5, 9], [2, 7], [1]]
    found = greedy_search(PromptDecoder(ours), prompts, 12)
    for prompt, continued in zip(prompts, found, strict=True):
        expected = other.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=12,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )
        assert continued == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_weights_may_have_any_one_dtype(dtype):
    other = theirs()
    state = {name: weight.to(dtype) for name, weight in other.state_dict().items()}
    state["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)  # old files
    logits = from_llama(state, other.config)(torch.tensor([[1, 2, 3]]))
    assert logits.dtype == dtype


def test_forward_reads_beyond_max_length_and_decoding_does_not():
    model = Llama(dataclasses.replace(SMALL, max_length=8)).eval()
    longer = Llama(SMALL).eval()
    longer.load_state_dict(model.state_dict())
    ids = torch.randint(50, (2, 50))
    torch.testing.assert_close(model(ids), longer(ids), rtol=0, atol=0)
    with pytest.raises(ValueError, match="need 9 positions, the model has 8"):
        greedy_search(PromptDecoder(model), ids[:, :8], 2)


def test_a_file_gives_the_same_model_back(tmp_path):
    for tied in (False, True):
        config = dataclasses.replace(SMALL, tie_embeddings=tied, rope_base=77.0)
        model = Llama(config).eval()
        model.save(tmp_path / "llama.safetensors")
        loaded = Llama.load(tmp_path / "llama.safetensors")
        assert loaded.config == config
        assert (loaded.output.weight is loaded.embedding.weight) == tied
        ids = torch.randint(50, (2, 9))
        torch.testing.assert_close(loaded(ids), model(ids), atol=0, rtol=0)


@pytest.mark.parametrize("tied", [False, True])
def test_untrained_it_guesses_evenly(tied):
    torch.manual_seed(0)
    model = Llama(dataclasses.replace(SMALL, tie_embeddings=tied))
    ids = torch.randint(SMALL.vocab_size, (8, 9))
    logits = model(ids[:, :-1]).transpose(1, 2)
    loss = nn.functional.cross_entropy(logits, ids[:, 1:])
    assert abs(loss.item() - math.log(SMALL.vocab_size)) < 0.5


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("norm_first", [False, True])
def test_each_part_leaves_the_future_out_and_learns(part, norm_first):
    config = LanguageModelConfig(
        20, 16, 4, 2, 32, dropout=0.0, norm_first=norm_first, max_length=12
    )
    torch.manual_seed(0)
    model = exchange_parts(config, [part])
    ids = torch.randint(20, (2, 10))
    changed = ids.clone()
    changed[:, 6] = (changed[:, 6] + 1) % 20
    difference = (model(ids) - model(changed)).abs().amax(dim=(0, 2))
    assert difference[:6].max() < 1e-5 < 1e-3 < difference[6]
    nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name
        assert weight.grad.any() or "key_proj.bias" in name, name


def test_parts_change_the_parameters_that_they_should():
    def parameters(*parts):
        config = LanguageModelConfig(20, 16, 4, 2, 32, max_length=12)
        model = exchange_parts(config, parts)
        return sum(weight.numel() for weight in model.parameters())

    base = parameters()
    assert parameters("rotary") == base
    assert parameters("RMSNorm") == base - 5 * 16
    assert parameters("tied") == base - 20 * 16
    assert parameters("grouped queries") == base - 2 * 2 * (16 * 8 + 8)
    assert parameters("SwiGLU") == base + 2 * (16 * 32 + 32)
    assert parameters("no biases") == base - 2 * (4 * 16 + 32 + 16) - 5 * 16


def test_tied_parts_are_tied_again_after_loading() -> None:
    model = exchange_parts(LanguageModelConfig(20, 16, 4, 2, 32), ["tied"])
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    for each in model, copy.deepcopy(model), pickle.loads(pickle.dumps(model)):
        assert each.output.weight is each.embedding.table.weight


def test_a_hook_that_a_cache_would_pass_over_is_followed_without_one() -> None:
    model = Llama(SMALL).eval()
    decoder = PromptDecoder(model)
    ids = torch.randint(50, (2, 9))
    plain = greedy_search(decoder, ids, 8)
    attention = model.encoder.layers[1].self_attention
    hook = attention.register_forward_hook(lambda _, __, output: -30 * output)
    with pytest.warns(UserWarning, match=r"1\.self_attention, a GroupedQueryAtt"):
        hooked = greedy_search(decoder, ids, 8)
    longer = torch.tensor([ids[0].tolist() + hooked[0]])
    with torch.no_grad():
        assert model(longer)[0, 8:-1].argmax(dim=-1).tolist() == hooked[0]
    hook.remove()
    assert plain == greedy_search(decoder, ids, 8) != hooked


@pytest.mark.plain
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RMSNorm(0), "d_model must be a whole number of at least 1, got 0"),
        (lambda: SwiGLU(8, -1), "d_ff must be a whole number of at least 1, got -1"),
        (
            lambda: GroupedQueryAttention(10, 4, 2),
            "num_heads must divide d_model, got 4 and 10",
        ),
        (
            lambda: GroupedQueryAttention(16, 4, 3),
            "num_kv_heads must divide num_heads, got 3 and 4",
        ),
        (
            lambda: RotaryEmbedding()(torch.zeros(1, 1, 2, 3)),
            "d_k must be even, to make pairs, got 3",
        ),
        (
            lambda: exchange_parts(LanguageModelConfig(9), ["ALiBi"]),
            "parts must be among RMSNorm, .*, got 'ALiBi'",
        ),
        (
            lambda: dataclasses.replace(SMALL, num_kv_heads=3),
            "num_kv_heads must divide num_heads, got 3 and 4",
        ),
        (
            lambda: dataclasses.replace(SMALL, dropout=0.1),
            "a Llama is pre-norm and has no dropout, got .* dropout=0.1",
        ),
        *(
            (
                lambda name=name, value=value: dataclasses.replace(
                    SMALL, **{name: value}
                ),
                f"{name} must be a finite number above 0, got {value!r}",
            )
            for name in ("rope_base", "norm_eps")
            for value in (-1, 0, -1e3, "x", None, True, float("nan"), float("inf"))
        ),
        (lambda: RMSNorm(8, -1.0), "eps must be a finite number above 0, got -1.0"),
        (lambda: RotaryEmbedding(0), "base must be a finite number above 0, got 0"),
        (
            lambda: dataclasses.replace(SMALL, d_model=36),
            "d_k must be even, to make pairs, got 9",
        ),
        (
            lambda: GroupedQueryAttention(36, 4, 2, RotaryEmbedding()),
            "d_k must be even, to make pairs, got 9",
        ),
        (
            lambda: exchange_parts(LanguageModelConfig(9, 36, 4), ["rotary"]),
            "d_k must be even, to make pairs, got 9",
        ),
        (lambda: to_llama(nn.Linear(1, 1)), "to_llama needs a Llama, got a Linear"),
    ],
)
def test_bad_input_is_named(make, said):
    with pytest.raises((TypeError, ValueError), match=said):
        make()


def test_grouped_attention_refuses_and_takes_what_multi_head_attention_does() -> None:
    plain = MultiHeadAttention(16, 4)
    grouped = GroupedQueryAttention(16, 4, 4, bias=True)
    grouped.load_state_dict(plain.state_dict())
    x, mask = torch.randn(2, 5, 16), torch.tensor([True, True, False, True, True])
    for layer in (plain, grouped):
        keys, values = layer.keys_values(x, x)
        with pytest.raises(ValueError, match=r"key needs one value, got 5 .* and 3"):
            layer.attend(x, KeysValues(keys, values[:, :, :3]))
    torch.testing.assert_close(grouped(x, x, x, mask), plain(x, x, x, mask))


def test_a_llama_needs_no_more_than_a_vocabulary() -> None:
    assert LlamaConfig(50).dropout == 0.0


def test_without_a_number_every_head_has_keys_and_values_of_its_own(tmp_path) -> None:
    model = Llama(LlamaConfig(50, d_model=32, num_heads=4, num_layers=1, d_ff=8))
    attention = model.encoder.layers[0].self_attention
    assert attention.key_proj.weight.shape == (32, 32)
    model.save(tmp_path / "llama")
    assert Llama.load(tmp_path / "llama").config == model.config
