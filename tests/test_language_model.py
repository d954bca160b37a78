"""Language models: equal to GPT-2 of transformers, causal, cached as uncached."""

import itertools
import json
import sys
from pathlib import Path

import pytest
import torch
from test_pretrained import GPT, library
from test_search import ALiBi, Deaf, HostReads
from test_ties_and_wrappers import LoRA
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.flop_counter import FlopCounterMode

from bookkit.texts import alice
from transformer import Llama, LlamaConfig, Transformer, TransformerConfig
from transformer.beyond.gpt2 import GPT2, LearnedPositions
from transformer.beyond.language_model import (
    LanguageModel,
    LanguageModelConfig,
    PromptDecoder,
)
from transformer.beyond.modern import PARTS, GroupedQueryAttention, exchange_parts
from transformer.beyond.ngrams import NGramModel
from transformer.beyond.plain_text import context_losses, train_on_text
from transformer.beyond.text_generator import TextGenerator
from transformer.decoding.beam import beam_search
from transformer.decoding.search import greedy_search, sample
from transformer.multi_head import MultiHeadAttention
from transformer.positional import PositionalEncoding
from transformer.pretrained.gpt2 import from_gpt2, to_gpt2
from transformer.text.subwords import SubwordTokenizer
from transformer.weights import files
from transformer.weights.files import read_tensors, write_tensors

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))
import language_model as benchmark

SIZES = {"d_model": 16, "num_heads": 4, "num_layers": 2, "d_ff": 24, "max_length": 24}


def config(**overrides) -> LanguageModelConfig:
    return LanguageModelConfig(**({"vocab_size": 13} | SIZES | overrides))


def small(seed=0, kind=LanguageModel, **overrides) -> LanguageModel:
    torch.manual_seed(seed)
    model = kind(config(dropout=0.1, **overrides)).eval()
    for weight in model.parameters():  # far from the start: no two tokens tie
        nn.init.normal_(weight, std=0.4)
    return model


def theirs(**sizes):
    """A GPT-2 of the library transformers."""
    return library("GPT2", **GPT | sizes)


@pytest.mark.parametrize(
    "sizes",
    [
        {"n_embd": 24, "n_head": 2, "n_layer": 3, "n_inner": 40},
        {"n_embd": 12, "n_head": 1, "n_layer": 1, "vocab_size": 7, "n_positions": 20},
    ],
    ids=str,
)
def test_gpt2_of_transformers_is_ours(sizes) -> None:
    other = theirs(**sizes)
    state, size = other.state_dict(), other.config
    ours = from_gpt2(state, size)
    ids = torch.randint(size.vocab_size, (3, 9))
    with torch.no_grad():
        expected = other(ids).logits
        assert expected.std() > 0.5
        torch.testing.assert_close(ours(ids), expected, atol=1e-5, rtol=1e-5)
    everything = torch.ones_like(ids)
    for beams in (1, 3):
        found = other.generate(
            ids,
            attention_mask=everything,
            max_new_tokens=10,
            num_beams=beams,
            do_sample=False,
            pad_token_id=0,
        )
        assert beam_search(PromptDecoder(ours), ids, 10, beams, 0.0) == (
            found[:, 9:].tolist()
        )
    back = to_gpt2(ours)
    assert back.keys() == state.keys()
    assert all(back[name].equal(state[name]) for name in state)
    other.load_state_dict(back)


def test_gpt2_in_double_precision_to_twelve_digits() -> None:
    other = theirs().double()
    ids = torch.randint(40, (2, 20))
    with torch.no_grad():
        found = from_gpt2(other.state_dict(), other.config)(ids)
        torch.testing.assert_close(found, other(ids).logits, atol=1e-12, rtol=1e-12)


def test_gpt2_weights_of_a_file_have_no_prefix_and_may_have_masks() -> None:
    other = theirs()
    state = other.transformer.state_dict()
    assert "wte.weight" in state
    state["h.0.attn.bias"] = torch.ones(1, 1, 32, 32)
    state["h.0.attn.masked_bias"] = torch.tensor(-1e4)
    ids = torch.randint(40, (1, 5))
    found, whole = (
        from_gpt2(each, other.config) for each in (state, other.state_dict())
    )
    assert found(ids).equal(whole(ids))


def test_gpt2_weights_are_copied_and_one_table_stays_one() -> None:
    other = theirs(eos_token_id=3)
    state = other.state_dict()
    ours = from_gpt2(state, other.config)
    assert ours.config == LanguageModelConfig(40, 16, 4, 2, 64, max_length=32, eos_id=3)
    assert not ours.training
    assert ours.output.weight is ours.embedding.weight
    before = {name: weight.clone() for name, weight in state.items()}
    with torch.no_grad():
        for weight in ours.parameters():
            weight.add_(1.0)
    assert all(state[name].equal(before[name]) for name in state)


@pytest.mark.parametrize("kind", [LanguageModel, GPT2])
def test_a_token_changes_nothing_before_it(kind) -> None:
    model = small(kind=kind)
    ids = torch.randint(13, (4, 12))
    with torch.no_grad():
        before = model(ids)
        for place in range(12):
            changed = ids.clone()
            changed[:, place] = (changed[:, place] + 1) % 13
            moved = (model(changed) - before).abs().amax(dim=(0, 2))
            assert (moved[:place] < 1e-5).all()
            assert (moved[place:] > 1e-3).all()
        torch.testing.assert_close(model(ids[:, :5]), before[:, :5])


def uncached(model, prompt, count, eos_id=None):
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
            if ids[-1] == eos_id:
                return ids[len(prompt) : -1]
    return ids[len(prompt) :]


PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11], [12, 0]]


@pytest.mark.plain  # checked shapes would make it slow
@pytest.mark.parametrize("kind", [LanguageModel, GPT2])
@pytest.mark.parametrize("seed", range(3))
def test_cached_generation_is_uncached(kind, seed) -> None:
    model = small(seed, kind)
    expected = [uncached(model, prompt, 15) for prompt in PROMPTS]
    decoder = PromptDecoder(model)
    assert greedy_search(decoder, PROMPTS, 15) == expected
    padded = torch.full((4, 9), 13)  # the number behind the vocabulary
    for row, prompt in enumerate(PROMPTS):
        padded[row, : len(prompt)] = torch.tensor(prompt)
    assert greedy_search(decoder, padded, 15) == expected
    generator = torch.Generator().manual_seed(0)
    cold = sample(decoder, PROMPTS, 15, temperature=1e-7, generator=generator)
    assert cold == expected


@pytest.mark.parametrize("kind", [LanguageModel, GPT2])
def test_cached_logits_of_random_tokens_also_when_rows_change_places(kind) -> None:
    model = small(kind=kind).double()
    rows = [list(prompt) for prompt in PROMPTS]
    padded = nn.utils.rnn.pad_sequence(
        [torch.tensor(row) for row in rows], batch_first=True, padding_value=13
    )
    orders = {3: [2, 0, 0, 3], 6: [1, 3], 9: [1, 1, 0]}
    with torch.inference_mode():
        state = PromptDecoder(model).prefill(padded, 14)
        logits = state.step(torch.full((4,), 14))  # a search's bos
        for step in range(13):
            assert (logits[:, 13:] == -torch.inf).all()
            for row, found in zip(rows, logits, strict=True):
                whole = model(torch.tensor([row]))[0, -1]
                torch.testing.assert_close(found[:13], whole, rtol=0, atol=1e-12)
            if step in orders:
                rows = [list(rows[i]) for i in orders[step]]
                state.reorder(torch.tensor(orders[step]))
            tokens = torch.randint(13, (len(rows),))
            for row, token in zip(rows, tokens.tolist(), strict=True):
                row.append(token)
            logits = state.step(tokens)


@pytest.mark.parametrize("early", [True, False])
def test_rows_can_be_made_before_the_first_step_and_after(early) -> None:
    model, rows = small().double(), torch.tensor([0, 0, 1, 1])
    prompts = torch.tensor([[3, 4, 5], [6, 13, 13]])
    with torch.inference_mode():
        state = PromptDecoder(model).prefill(prompts, 4, 2)
        if early:
            state.reorder(rows)
        logits = state.step(torch.full((4 if early else 2,), 14))
        if not early:
            state.reorder(rows)
            logits = logits[rows]
        for row, prompt in zip(rows.tolist(), logits, strict=True):
            whole = model(prompts[row : row + 1, : [3, 1][row]])[0, -1]
            torch.testing.assert_close(prompt[:13], whole, rtol=0, atol=1e-12)
        new = torch.tensor([7, 8, 9, 10])
        for row, token, found in zip(rows.tolist(), new, state.step(new), strict=True):
            ids = torch.cat((prompts[row, : [3, 1][row]], token[None]))
            whole = model(ids[None])[0, -1]
            torch.testing.assert_close(found[:13], whole, rtol=0, atol=1e-12)


def test_rows_that_end_leave_the_batch() -> None:
    free = [uncached(small(), prompt, 15) for prompt in PROMPTS]
    eos_id = free[0][4]
    model = small(eos_id=eos_id)
    expected = [uncached(model, prompt, 15, eos_id) for prompt in PROMPTS]
    assert len({len(each) for each in expected}) > 1
    assert greedy_search(PromptDecoder(model), PROMPTS, 15) == expected


def test_beams_do_not_mix_and_one_is_greedy() -> None:
    decoder = PromptDecoder(small())
    together = beam_search(decoder, PROMPTS, 10, 4)
    assert together == [beam_search(decoder, [each], 10, 4)[0] for each in PROMPTS]
    assert beam_search(decoder, PROMPTS, 10, 1) == greedy_search(decoder, PROMPTS, 10)


@pytest.mark.plain  # checked shapes would make it slow
def test_samples_have_the_models_probabilities() -> None:
    model = small()
    generator = torch.Generator().manual_seed(0)
    drawn = sample(PromptDecoder(model), [[3, 4]] * 4000, 1, generator=generator)
    with torch.no_grad():
        expected = model(torch.tensor([[3, 4]]))[0, -1].softmax(dim=-1)
    found = torch.bincount(torch.tensor(drawn).flatten(), minlength=13) / 4000
    assert ((found - expected).abs() < 4 * (expected / 4000).sqrt() + 1e-3).all()
    assert expected.max() > 2 / 13  # uneven


@pytest.mark.parametrize("kind", [LanguageModel, GPT2])
def test_a_file_gives_the_model_back(kind, tmp_path) -> None:
    model = small(kind=kind, eos_id=2)
    path = tmp_path / "model.safetensors"
    model.save(path, {"tokens": "letters"})
    again, metadata = kind.load_with_metadata(path)
    assert type(again) is kind
    assert again.config == model.config
    assert not again.training
    ids = torch.randint(13, (2, 8))
    assert again(ids).equal(model(ids))
    assert kind.load(path)(ids).equal(model(ids))
    again.save(tmp_path / "again.safetensors", metadata)
    assert path.read_bytes() == (tmp_path / "again.safetensors").read_bytes()
    assert metadata == {"tokens": "letters"}
    if kind is GPT2:
        assert again.output.weight is again.embedding.weight
        assert "output.weight" not in read_tensors(path)[0]


@pytest.mark.parametrize("part", PARTS)
def test_a_model_with_other_parts_is_loaded_into_one_that_has_them(
    part, tmp_path
) -> None:
    path, model = tmp_path / "model", exchange_parts(config(), [part]).eval()
    model.save(path)
    with pytest.raises(ValueError, match=r" in the file and the package"):
        LanguageModel.load(path)
    ids, again = torch.randint(13, (2, 8)), exchange_parts(config(), [part])
    assert LanguageModel.load(path, into=again)(ids).equal(model(ids))


def test_a_gpt2_that_is_no_longer_tied_is_not_saved(tmp_path) -> None:
    model = small(kind=GPT2)
    model.output.weight = nn.Parameter(model.output.weight.detach().clone())
    model.save(tmp_path / "model")  # two equal weights are one, for a file
    assert "output.weight" not in read_tensors(tmp_path / "model")[0]
    with torch.no_grad():
        model.output.weight[0] += 1
    with pytest.raises(ValueError, match=r"differs from embedding\.weight"):
        model.save(tmp_path / "model")


def spoilt(fields=None, tensors=None):
    """What makes a bad file of a good one: other config fields, other tensors."""

    def write(path):
        small().save(path)
        found, metadata = read_tensors(path)
        config = json.loads(metadata["config"]) | (fields or {})
        metadata["config"] = json.dumps(config)
        write_tensors(path, found | (tensors or {}), metadata)

    return write


def other_file(path):
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    Transformer(TransformerConfig(9, 9, 8, 2, **layers, d_ff=8)).save(path)


@pytest.mark.plain
@pytest.mark.parametrize("kind", [LanguageModel, GPT2])
def test_a_text_generators_file_is_read_once(kind, tmp_path, monkeypatch) -> None:
    tokenizer = SubwordTokenizer.train(["ab ba"], 8, "tok")
    model, path = small(kind=kind, vocab_size=tokenizer.vocab_size), tmp_path / "text"
    TextGenerator(model, tokenizer).save(path)
    reads, read = [], files._read
    monkeypatch.setattr(files, "_read", lambda *of: reads.append(of) or read(*of))
    text = TextGenerator.load(path)
    assert len(reads) == 1
    assert type(text.model) is kind
    assert text.model.config == model.config


def test_under_hooks_on_all_modules_a_model_is_decoded_without_a_cache() -> None:
    decoder = PromptDecoder(small())
    expected = greedy_search(decoder, PROMPTS, 8)
    with (
        FlopCounterMode(display=False) as counter,
        pytest.warns(UserWarning, match="without a cache: there are hooks on all"),
    ):
        assert greedy_search(decoder, PROMPTS, 8) == expected
    assert counter.get_total_flops() > 0


@pytest.mark.plain
@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: None, "no checkpoint at"),
        (lambda path: path.write_bytes(b"x" * 500), "not a whole safetensors file"),
        (other_file, "holds the model Transformer, no LanguageModel"),
        (
            lambda path: small(kind=GPT2).save(path),
            "holds the model GPT2, no LanguageModel: "
            r"transformer\.beyond\.gpt2\.GPT2\.load reads it",
        ),
        (spoilt({"vocab_size": 14}), "size mismatch"),
        (spoilt({"num_layers": 10**9}), "more layers than"),
        (spoilt({"num_layers": 3}), "Missing key"),
        (spoilt({"norm_first": "no"}), "norm_first must be True or False, got 'no'"),
        (spoilt({"dropout": "x"}), r"\[0, 1\), got 'x'"),
        (spoilt({"d_model": 10**30}), "has a config that no LanguageModel has"),
        (spoilt({"colour": 1}), "colour"),
        (spoilt(tensors={"more": torch.ones(2)}), "Unexpected key"),
        (
            spoilt(tensors={"output.weight": torch.full((13, 16), torch.nan)}),
            "output.weight holds a number that is not finite",
        ),
        (
            spoilt(tensors={"output.weight": torch.ones(13, 16, dtype=torch.int64)}),
            "output.weight should be floats, got torch.int64",
        ),
        (
            spoilt(
                tensors={"output.weight": torch.ones(13, 16).to(torch.float8_e4m3fn)}
            ),
            "output.weight should be floats, got torch.float8_e4m3fn",
        ),
    ],
)
def test_files_that_are_refused(write, message, tmp_path) -> None:
    path = tmp_path / "model.safetensors"
    write(path)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        LanguageModel.load(path)


@pytest.mark.plain
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocab_size": 0}, "vocab_size .* got 0"),
        ({"d_model": 15, "num_heads": 3}, "d_model must be even, got 15"),
        ({"num_heads": 3}, "num_heads must divide d_model, got 3 and 16"),
        ({"num_layers": 0}, "num_layers .* got 0"),
        ({"d_ff": 2.5}, "d_ff .* got 2.5"),
        ({"max_length": 0}, "max_length .* got 0"),
        ({"dropout": 1.0}, r"\[0, 1\), got 1.0"),
        ({"eos_id": 13}, "eos_id must lie in 0..12 or be None, got 13"),
        ({"eos_id": -1}, "got -1"),
        ({"eos_id": True}, "got True"),
    ],
)
def test_sizes_that_are_refused(fields, message) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        config(**fields)


@pytest.mark.plain
@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda m: m(torch.tensor([[13]])), "0..12, got 13"),
        (lambda m: m(torch.tensor([[0.5]])), "int64 or int32"),
        (lambda m: m(torch.tensor([1, 2])), r"\(batch, length\)"),
        (lambda m: m(torch.zeros(1, 25, dtype=torch.int64)), "positions .* 0..24"),
        (lambda m: greedy_search(PromptDecoder(m), [[14]], 3), "got 14"),
        (lambda m: greedy_search(PromptDecoder(m), [[]], 3), "at least one id"),
        (lambda m: greedy_search(PromptDecoder(m), [], 3), "at least one id"),
        (lambda m: greedy_search(PromptDecoder(m), [[1]], 0), "max_length .* got 0"),
        (lambda m: greedy_search(PromptDecoder(m), [[1]], 25), "at most 24"),
        (
            lambda m: greedy_search(PromptDecoder(m), [[1] * 20], 6),
            "prompt of 20 ids and 6 more need 25 positions, the model has 24",
        ),
        (lambda m: greedy_search(m, [[1]], 3), "PromptDecoder for a language model"),
        (lambda m: PromptDecoder(m.encoder), "needs a LanguageModel, got an Encoder"),
        (lambda m: GPT2(config(norm_first=False)), "pre-norm, got norm_first=False"),
        (lambda m: LearnedPositions(0), "d_model .* got 0"),
        (lambda m: LearnedPositions(8, dropout=1.0), "got 1.0"),
        (lambda m: LearnedPositions(8, 0.0, 4)(torch.ones(1, 3, 8), 2), "got 2..4"),
        (lambda m: to_gpt2(m), "needs a GPT2, got a LanguageModel"),
        (lambda m: list(train_on_text(m, torch.arange(9), 1)), "at least 65 ids"),
        (lambda m: list(train_on_text(m, torch.ones(2, 99), 1)), r"shape \(2, 99\)"),
        (lambda m: list(train_on_text(m, torch.arange(99), 0)), "steps .* got 0"),
        (
            lambda m: list(train_on_text(m, torch.arange(99), 1, learning_rate=0)),
            "learning_rate must be above 0, got 0",
        ),
        (
            lambda m: context_losses(m, torch.arange(9), torch.tensor([2]), 3),
            "targets must lie in 3..8, got 2..2",
        ),
        (
            lambda m: context_losses(m, torch.arange(9), torch.tensor([9]), 3),
            "got 9..9",
        ),
        (lambda m: NGramModel("text", 0, 4), "order .* got 0"),
        (lambda m: NGramModel("text", 2, 4, 1.0), r"discount .* got 1.0"),
        (lambda m: NGramModel("te", 3, 4), "at least 3 tokens, got 2"),
        (
            lambda m: NGramModel("text", 2, 4).probability("te", 2),
            "place must lie in 0..1, got 2",
        ),
        (
            lambda m: PromptDecoder(m).prefill(torch.tensor([[1, 2], [13, 13]]), 4),
            "at least one id, got padding alone",
        ),
    ],
)
def test_bad_input(action, message) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        action(small())


def hooked(model):
    model.encoder.layers[1].register_forward_hook(lambda *_: None)


def patched(model):
    layer = model.encoder.layers[0]
    layer.forward = lambda x, mask=None: x


def shared(model):
    """Grouped queries, which are another class of attention, with a hook."""
    attention = GroupedQueryAttention(16, 4, 2)
    model.encoder.layers[0].self_attention = attention
    attention.register_forward_hook(lambda _, __, output: -30 * output)


class Twice(MultiHeadAttention):
    def forward(self, query, key, value, mask=None):
        return 2 * super().forward(query, key, value, mask)


def doubled(model):
    model.encoder.layers[1].self_attention = Twice(16, 4)


class Rolled(nn.Identity):
    """An identity by name alone."""

    def forward(self, x):
        return torch.roll(x, 3, -1)


def deaf(model):
    model.encoder.layers[0].self_attention = Deaf(16, 4)


def rolled(model):
    model.position = Rolled()


def dropped(model):
    model.position = nn.Dropout(0.1)


CHANGES = {
    hooked: r"encoder.layers.1, an EncoderLayer, has hooks of its own",
    patched: r"encoder.layers.0, an EncoderLayer, has forward of its own",
    shared: r"encoder.layers.0.self_attention, a GroupedQuery\w+, has hooks of its own",
    doubled: r"encoder.layers.1.self_attention, a Twice, has forward of its own",
    deaf: r"layers.0.self_attention, a Deaf, takes no positions in keys_values",
    rolled: "position, a Rolled, has forward of its own",
    dropped: "position is of the class Dropout",
}


@pytest.mark.plain  # checked shapes would make it slow
@pytest.mark.parametrize("change", CHANGES)
def test_what_a_cache_would_pass_over_is_decoded_without_one(change) -> None:
    """As the model computes it, also where it is changed after its decoder was made."""
    model = small()
    decoder = PromptDecoder(model)
    greedy_search(decoder, PROMPTS, 3)
    change(model)
    model.eval()
    plain = [uncached(model, prompt, 8) for prompt in PROMPTS]
    message = f"decoding without a cache: .*{CHANGES[change]}"
    for each in (decoder, PromptDecoder(model)):
        with pytest.warns(UserWarning, match=message):
            assert greedy_search(each, PROMPTS, 8) == plain
    with pytest.warns(UserWarning, match=message):
        found = beam_search(decoder, PROMPTS, 6, 3)
    with pytest.warns(UserWarning, match=message):
        alone = [beam_search(decoder, [prompt], 6, 3)[0] for prompt in PROMPTS]
    assert found == alone


@pytest.mark.plain
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize(
    "parts", [["rotary"], ["rotary", "grouped queries"], set(PARTS) - {"rotary"}, PARTS]
)
def test_a_model_of_other_parts_is_decoded_as_it_reads(parts, added) -> None:
    torch.manual_seed(0)
    model = exchange_parts(config(), parts)
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.4)
    model.position = PositionalEncoding(16) if added else nn.Identity()
    expected = [uncached(model.eval(), prompt, 8) for prompt in PROMPTS]
    decoder = PromptDecoder(model)
    assert greedy_search(decoder, PROMPTS, 8) == expected
    padded = torch.tensor([[*each, *[13] * (7 - len(each))] for each in PROMPTS])
    with torch.no_grad():
        state = decoder.prefill(padded, 4)
        for more in ([], [5], [5, 9]):
            logits = state.step(torch.tensor([more[-1] if more else 14] * 4))
            for row, prompt in zip(logits, PROMPTS, strict=True):
                whole = model(torch.tensor([[*prompt, *more]]))[0, -1]
                torch.testing.assert_close(row[:13], whole, atol=1e-4, rtol=1e-4)


@pytest.mark.plain
@pytest.mark.parametrize(
    "wrap",
    [lambda m: torch.compile(m, backend="eager"), nn.DataParallel, AveragedModel],
)
def test_a_wrapped_language_model_is_unwrapped(wrap) -> None:
    model = small()
    expected = [uncached(model, prompt, 8) for prompt in PROMPTS]
    assert greedy_search(PromptDecoder(wrap(model)), PROMPTS, 8) == expected


def test_parts_may_be_exchanged() -> None:
    model = small()
    model.position = LearnedPositions(16, max_length=24)
    model.encoder.layers[0].residuals[0].norm = nn.Identity()
    expected = [uncached(model.eval(), prompt, 8) for prompt in PROMPTS]
    assert greedy_search(PromptDecoder(model), PROMPTS, 8) == expected


@pytest.mark.parametrize("name", ["key_proj", "value_proj"])
def test_a_projection_may_be_wrapped(name) -> None:
    model = small()
    for layer in model.encoder.layers:
        attention = layer.self_attention
        setattr(attention, name, LoRA(getattr(attention, name)))
    expected = [uncached(model, prompt, 8) for prompt in PROMPTS]
    assert greedy_search(PromptDecoder(model), PROMPTS, 8) == expected


def test_cached_generation_works_under_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        for kind in (LanguageModel, GPT2):
            model = small(1, kind)
            state = PromptDecoder(model).prefill(torch.tensor(PROMPTS[:1]), 4)
            first = state.step(torch.tensor([model.config.bos_id]))[0, :13]
            then = state.step(torch.tensor([5]))[0, :13]
            whole = model(torch.tensor([[*PROMPTS[0], 5]]))[0, -2:]
            found = torch.stack([first, then])
            torch.testing.assert_close(found.float(), whole.float(), atol=0.1, rtol=0.1)


@pytest.mark.plain
def test_an_attention_may_be_compiled() -> None:
    model = small()
    expected = [uncached(model, prompt, 8) for prompt in PROMPTS]
    layer = model.encoder.layers[0]
    layer.self_attention = torch.compile(layer.self_attention, backend="eager")
    assert greedy_search(PromptDecoder(model), PROMPTS, 8) == expected


def test_training_on_a_text_learns_it_and_is_repeatable() -> None:
    ids = torch.arange(200) % 7
    losses = []
    for steps in (150, 20):
        model = LanguageModel(config(dropout=0.0)).eval()
        torch.manual_seed(1)
        for weight in model.parameters():
            nn.init.normal_(weight, std=0.1)
        run = train_on_text(model, ids, 150, 4, 12, 0.01, seed=3)
        losses.append(list(itertools.islice(run, steps)))
        run.close()
        assert not model.training
    assert losses[0][:20] == losses[1]
    assert losses[0][0] > 1.5 > 0.3 > losses[0][-1]


def test_a_loss_by_context_is_that_of_the_last_position() -> None:
    model, ids = small().train(), torch.randint(13, (60,))
    targets = torch.tensor([9, 20, 59])
    found = context_losses(model, ids, targets, 4, batch_size=2)
    assert model.training
    with torch.no_grad():
        for loss, target in zip(found, targets, strict=True):
            logits = model.eval()(ids[None, target - 4 : target])[0, -1]
            expected = nn.functional.cross_entropy(logits, ids[target])
            torch.testing.assert_close(loss, expected)
    assert (found * 2).requires_grad is False


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_ngram_probabilities_sum_to_one(order) -> None:
    text = "Xanadu: banana bandana and a cabana"
    model = NGramModel(text, order, len(set(text)))
    for context in ("", "b", "ba", "nan", "dcb", " a b", "X", "Xa", "anX"):
        total = sum(
            model.probability(context + each, len(context)) for each in set(text)
        )
        assert total == pytest.approx(1)


def test_a_bigram_by_hand_and_of_any_tokens() -> None:
    model = NGramModel("abab", 2, 3, discount=0.5)
    unigram = (1 - 0.5 + 0.5 * 2 / 3) / 2  # b came behind a alone, and a behind b
    assert model.probability("b", 0) == pytest.approx(unigram)
    assert model.probability("ab", 1) == pytest.approx((2 - 0.5 + 0.5 * unigram) / 2)
    assert model.probability("cb", 1) == pytest.approx(unigram)  # c was never seen
    same = NGramModel((7, 8, 7, 8), 2, 3, discount=0.5)
    assert same.probability((7, 8), 1) == model.probability("ab", 1)
    exact = NGramModel("abab", 2, 3, discount=0.0)
    assert exact.probability("ab", 1) == 1


def test_a_kneser_ney_trigram_by_hand() -> None:
    """Of abc twice, bca, cab, bcx, cxb and xbd, with five letters and half a count."""
    model = NGramModel("abcabcxbd", 3, 5, discount=0.5)
    c = (1 - 0.5 + 0.5 * 5 / 5) / 6  # six pairs, of which bc alone ends in c
    after_b = (1 - 0.5 + 0.5 * 2 * c) / 2  # only a came before bc, only x before bd
    assert model.probability("abc", 2) == pytest.approx((2 - 0.5 + 0.5 * after_b) / 2)
    assert model.probability("xbc", 2) == pytest.approx(0.5 * after_b)  # was xbd, once
    assert model.probability("dbc", 2) == pytest.approx(after_b)  # db never came
    assert model.probability("c", 0) == pytest.approx(c) == pytest.approx(1 / 6)


def test_a_frequent_word_of_one_context_is_no_guess_behind_others() -> None:
    text = (*("san", "francisco") * 3, "a", "glass", "b", "glass")
    model = NGramModel(text, 2, 5)
    assert text.count("francisco") > text.count("glass")
    found = {
        word: model.probability(("new", word), 1) for word in ("francisco", "glass")
    }
    assert found["glass"] > 1.9 * found["francisco"]
    assert model.probability(("san", "francisco"), 1) > 0.7


@pytest.mark.parametrize("order", [2, 4])
def test_lower_orders_count_the_tokens_before(order) -> None:
    text = "banana bandana and a cabana, a nab"
    model = NGramModel(text, order, 26)
    for n in range(1, order + 1):
        for i in range(len(text) - n + 1):
            ngram = text[i : i + n]
            starts = [k for k in range(len(text)) if text[k : k + n] == ngram]
            before = {text[k - 1] for k in starts if k}
            expected = len(starts) if n == order else len(before)
            assert model.count[ngram] == expected


def test_alice_is_whole_and_split_at_chapter_eleven() -> None:
    train, held_out = alice()
    assert train.startswith("CHAPTER I\nDown the Rabbit-Hole\nAlice was beginning")
    assert held_out.startswith("CHAPTER XI\nWho Stole the Tarts?\n")
    assert held_out.endswith("happy summer days.\n")
    assert (train + held_out).count("CHAPTER ") == 12
    assert len(set(train + held_out)) == 70
    assert "  " not in train + held_out


def test_the_stored_run_on_a_small_text() -> None:
    texts = alice()[0][:3000], alice()[1][:400]
    sizes = {"d_model": 8, "num_heads": 2, "num_layers": 1, "d_ff": 8}
    found = benchmark.train_and_measure(texts, sizes, 2, 2, 0)
    assert found["characters_read"] == 2 * 2 * 64
    assert set(found["bits"]) == set(benchmark.CONTEXTS)
    assert 0 < found["induction"] < 0.2
    counted = benchmark.count(texts)["bits"]
    assert counted[1] > counted[2] > 1
    found = benchmark.gpt2({"n_layer": 1, "n_embd": 24, "n_head": 2, "vocab_size": 99})
    assert found["same_tokens"]
    assert found["weights_come_back"]
    assert found["largest_difference"] < 1e-5


@pytest.mark.plain
def test_an_alibi_language_model_trains_and_generates_with_a_cache() -> None:
    torch.manual_seed(0)
    model = LanguageModel(config(dropout=0.0))
    model.position = nn.Identity()
    for layer in model.encoder.layers:
        layer.self_attention = ALiBi(16, 4)
    ids = torch.arange(200) % 7
    losses = list(train_on_text(model, ids, 100, 4, 12, 0.01))
    assert losses[-1] < losses[0] / 2
    prompts = [[3, 4, 5], [0], [1, 2, 3, 4, 5, 6]]
    expected = [uncached(model.eval(), prompt, 10) for prompt in prompts]
    decoder = PromptDecoder(model)
    assert greedy_search(decoder, prompts, 10) == expected  # and no warning
    state = decoder.prefill(torch.tensor([[3, 4, 5], [0, 13, 13]]), 4)
    rows = [[3, 4, 5], [0]]
    with torch.no_grad():
        for token in (14, 9, 1, 12):
            logits = state.step(torch.tensor([token, token]))
            rows = rows if token == 14 else [[*row, token] for row in rows]
            for row, found in zip(rows, logits, strict=True):
                whole = model(torch.tensor([row]))[0, -1]
                torch.testing.assert_close(found[:13], whole, atol=1e-5, rtol=1e-5)


@pytest.mark.plain
@pytest.mark.parametrize("kind", [LanguageModel, GPT2, Llama])
def test_host_reads_do_not_grow_with_layers_and_tokens(kind) -> None:
    sizes = {"vocab_size": 9, "d_model": 8, "num_heads": 2, "d_ff": 8}

    def reads(layers, steps, prompts):
        made = LlamaConfig if kind is Llama else LanguageModelConfig
        model = kind(made(**sizes, num_layers=layers, max_length=32)).eval()
        tokens = torch.zeros(len(prompts), dtype=torch.int64)
        with torch.no_grad(), HostReads() as mode:
            state = PromptDecoder(model).prefill(prompts, 20, 2)
            state.reorder(torch.arange(len(prompts)))
            for _ in range(steps):
                state.step(tokens)
        return mode.reads

    same, ragged = torch.tensor([[1, 2], [3, 4]]), torch.tensor([[1, 2], [3, 9]])
    assert reads(12, 10, same) == reads(1, 1, same) <= 4
    assert reads(12, 10, ragged) == reads(1, 1, ragged) <= 4


def test_a_config_that_the_file_could_not_give_back_is_not_written(tmp_path) -> None:
    sizes = {
        "d_model": 16,
        "num_heads": 2,
        "num_layers": 1,
        "d_ff": 16,
        "max_length": 8,
    }
    model = LanguageModel(LlamaConfig(9, num_kv_heads=1, **sizes))
    with pytest.raises(ValueError, match="a LanguageModel has no LlamaConfig"):
        model.save(tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())
