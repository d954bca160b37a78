"""Greedy search, sampling and beam search, against the plainest ones that there are."""

import copy
import itertools
import math
import random
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from transformer.beyond.language_model import (
    LanguageModel,
    LanguageModelConfig,
    PromptDecoder,
)
from transformer.beyond.modern import GroupedQueryAttention, RotaryEmbedding
from transformer.decoder import DecoderLayer
from transformer.decoding.beam import (
    beam_search,
    best_tokens,
    length_normalised,
    n_best,
)
from transformer.decoding.fast import FastDecoder
from transformer.decoding.search import (
    as_batch,
    greedy_search,
    mask_special,
    sample,
    top_p_filter,
)
from transformer.decoding.step import CachedDecoder, UncachedDecoder
from transformer.decoding.support import packable
from transformer.decoding.translator import Translator
from transformer.model import Transformer, TransformerConfig
from transformer.multi_head import MultiHeadAttention

PAD, BOS, EOS = 0, 1, 2
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def random_model(seed=0, sharp=1, **overrides) -> Transformer:
    """Random weights, with biases and norms that do something.

    The larger `sharp`, the more the logits depend on the tokens before.
    """
    torch.manual_seed(seed)
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 24, "max_length": 12}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 2}
    model = Transformer(TransformerConfig(11, 9, **(sizes | layers | overrides)))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(torch.randn_like(weight), alpha=0.3)
        model.output.weight *= sharp
    return model


def random_case(rng: random.Random) -> tuple[list[list[int]], int]:
    """Sources of different lengths and a `max_length`."""
    batch = [
        [rng.randint(3, 10) for _ in range(rng.randint(1, 7))]
        for _ in range(rng.randint(1, 3))
    ]
    return batch, rng.randint(1, 8)


def fixed_logits(model: Transformer, *steps: list[float]) -> Transformer:
    """Make a model output these probabilities step by step, the last for ever."""
    left = list(steps)

    def forward(x: torch.Tensor) -> torch.Tensor:
        now = left.pop(0) if len(left) > 1 else left[0]
        return torch.tensor(now).log().expand(*x.shape[:2], 9).clone()

    model.output.forward = forward
    return model


def shapes_seen(part: nn.Module) -> list[tuple[int, int]]:
    """The rows and positions of each input of a module."""
    seen = []
    part.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape[:2]))
    return seen


# The plainest searches: one source, the whole model at each step, no cache


@torch.no_grad()
def next_logits(model, source, tokens):
    logits = model(torch.tensor([source]), torch.tensor([tokens]))[0, -1].float()
    logits[[model.config.pad_id, model.config.bos_id]] = -torch.inf
    return logits


def uncached_greedy(model, source, max_length):
    tokens = [model.config.bos_id]
    for _ in range(max_length):
        tokens.append(int(next_logits(model, source, tokens).argmax()))
        if tokens[-1] == model.config.eos_id:
            return tokens[1:-1]
    return tokens[1:]


def uncached_n_best(model, source, max_length, beam_size, length_penalty):
    """Ids, log-probability and score of all that a beam finishes, best score first."""
    bos, eos = model.config.bos_id, model.config.eos_id
    active, finished = [(0.0, [bos])], []
    for _ in range(max_length):
        longer = [
            (total + log_p, [*tokens, token])
            for total, tokens in active
            for token, log_p in enumerate(
                next_logits(model, source, tokens).log_softmax(-1).tolist()
            )
            if log_p > -math.inf
        ]
        longer.sort(key=lambda each: -each[0])
        longer = longer[: beam_size - len(finished)]
        finished += [each for each in longer if each[1][-1] == eos]
        active = [each for each in longer if each[1][-1] != eos]
    found = [
        (
            [token for token in tokens[1:] if token != eos],
            pytest.approx(total, abs=1e-5),
            pytest.approx(
                total / ((5 + len(tokens) - 1) / 6) ** length_penalty, abs=1e-5
            ),
        )
        for total, tokens in finished or active[:1]
    ]
    return sorted(found, key=lambda each: -each[2].expected)


@settings(max_examples=12)
@given(st.randoms(use_true_random=False))
def test_greedy_search_is_the_uncached_one_in_any_company(rng):
    model = random_model(rng.randrange(99), rng.choice([1, 4])).double().eval()
    batch, longest = random_case(rng)
    found = greedy_search(model, batch, longest)
    assert found == [uncached_greedy(model, source, longest) for source in batch]
    assert all(len(ids) <= longest and not {0, 1, 2} & set(ids) for ids in found)


@pytest.mark.plain  # checked shapes would make it slow
@settings(max_examples=25)
@given(st.randoms(use_true_random=False))
def test_beam_search_is_the_uncached_one_in_any_company(rng):
    model = random_model(rng.randrange(99), rng.choice([1, 4])).double().eval()
    batch, longest = random_case(rng)
    how = rng.randint(1, 12), rng.choice([0.0, 0.6, 1.0, 3.0])
    found = n_best(model, batch, longest, *how)
    assert found == [uncached_n_best(model, source, longest, *how) for source in batch]
    best = beam_search(model, batch, longest, *how)
    assert best == [candidates[0].ids for candidates in found]


@pytest.mark.plain  # checked shapes would make it slow
@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
@pytest.mark.parametrize("seed", [3, 4])
def test_a_beam_wide_enough_for_all_finds_the_best_of_all(length_penalty, seed):
    model = random_model(seed, 2, num_decoder_layers=1).double().eval()
    source, longest = [5, 3], 3

    @torch.no_grad()
    def score(ids):
        logits = model(torch.tensor([source]), torch.tensor([[BOS, *ids]]))[0]
        log_p = mask_special(logits, model.config).log_softmax(dim=-1)
        total = log_p.gather(1, torch.tensor([*ids, EOS])[:, None]).sum().item()
        return length_normalised(total, len(ids) + 1, length_penalty)

    every = [
        list(tokens)
        for length in range(longest)  # with eos, three ids at most
        for tokens in itertools.product(range(3, 9), repeat=length)
    ]
    (found,) = n_best(model, [source], longest, 400, length_penalty)
    assert [each.ids for each in found] == sorted(every, key=score, reverse=True)
    assert [each.score for each in found] == pytest.approx(
        [score(each.ids) for each in found]
    )


@pytest.mark.plain
@pytest.mark.parametrize("dtype", DTYPES)
def test_greedy_search_is_a_beam_of_one_in_every_precision(dtype):
    rng = random.Random(0)
    for seed in range(16):
        model = random_model(seed, rng.choice([1, 2]), norm_first=seed % 2 == 0)
        model.to(dtype)
        batch, longest = random_case(rng)
        penalty = rng.choice([0.0, 0.6, 3.0])
        greedy = greedy_search(model, batch, longest)
        assert beam_search(model, batch, longest, 1, penalty) == greedy, seed


def test_of_equal_logits_the_lowest_id_wins():
    model = random_model()
    with torch.no_grad():
        model.output.weight[3:] = model.output.weight[3]  # all but the special tokens
        model.output.weight[EOS] = -model.output.weight[3]
        model.output.weight *= 5
    for tokens in greedy_search(model, [[3, 4], [5]], 4):
        assert set(tokens) <= {3}
    for beam_size in (1, 2, 4):
        (found,) = beam_search(model, [[3, 4]], 4, beam_size)
        assert set(found) <= {3}
    torch.manual_seed(0)
    for _ in range(50):
        logits = torch.randint(-2, 2, (3, 40)).float()
        log_p, ids = best_tokens(logits, 5)
        order = [sorted(range(40), key=lambda i: (-row[i], i))[:5] for row in logits]
        assert ids.tolist() == order
        assert ids[:, 0].equal(logits.max(dim=-1).indices)
        torch.testing.assert_close(log_p, logits.log_softmax(-1).gather(1, ids))


def test_no_token_is_among_the_likeliest_twice():
    """A beam wider than what is possible ends with impossible tokens, each once."""
    out = -math.inf
    logits = torch.tensor([[0.0, out, out, 1.0], [2.0, 2.0, 2.0, out], [out] * 4])
    log_p, ids = best_tokens(logits, 4)
    assert ids.tolist() == [[3, 0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert log_p[:2].isinf().sum(dim=1).tolist() == [2, 1]


def test_double_precision_is_kept():
    model = random_model().double()
    logits = torch.full((9,), -99.0, dtype=torch.float64)
    logits[3], logits[5] = 1.0, 1.0 + 1e-9  # the same in float32
    model.output.forward = lambda x: logits.expand(*x.shape[:2], 9).clone()
    assert greedy_search(model, [[3]], 1) == [[5]]
    assert beam_search(model, [[3]], 1, beam_size=2) == [[5]]


# What a search costs, and what it leaves behind


@pytest.mark.parametrize("search", [greedy_search, sample, beam_search])
def test_nothing_is_computed_twice(search):
    never_ends = [0, 0, 0, 0.5, 0.1, 0.1, 0.1, 0.1, 0.1]
    model = fixed_logits(random_model(), never_ends)
    layer = model.decoder.layers[1]
    encoded = shapes_seen(model.encoder)
    source = shapes_seen(layer.cross_attention.key_proj)
    new = shapes_seen(layer.self_attention.key_proj)
    (found,) = search(model, [[3, 4]], max_length=6)
    assert len(found) == 6
    assert encoded == source == [(1, 2)]
    rows = 4 if search is beam_search else 1  # but for the first token, one
    assert new == [(1, 1)] * 2 + [(rows, 1)] * 5  # once for the shape of the store


def test_a_candidate_that_was_cut_is_told_by_its_length():
    ends, never = [0, 0, 0.2, 0.5, 0.3] + 4 * [0], [0, 0, 0, 0.5, 0.5] + 4 * [0]
    for probabilities, lengths in ((ends, [0, 1, 1, 2, 2, 2, 2]), (never, [3])):
        model = fixed_logits(random_model(), probabilities)
        (found,) = n_best(model, [[3, 4]], 3, 20)
        assert sorted(len(each.ids) for each in found) == lengths
        ended = [len(each.ids) < 3 for each in found]
        for each, by_eos in zip(found, ended, strict=True):
            left = [probabilities[token] for token in [*each.ids, *[EOS] * by_eos]]
            assert each.log_probability == pytest.approx(math.log(math.prod(left)))


@pytest.mark.parametrize("search", [greedy_search, sample])
def test_rows_leave_the_batch_when_they_end(search):
    model = random_model(seed=29, sharp=8)
    rows = shapes_seen(model.output)
    batch = [[3], [4, 5], [6, 7, 8], [9], [10, 3], [5, 5]]
    lengths = [len(found) + 1 for found in search(model, batch, 12)]  # with eos
    assert len(set(lengths)) > 2
    steps = range(1, min(max(lengths), 12) + 1)
    assert rows == [(sum(length >= step for length in lengths), 1) for step in steps]


def test_a_beam_search_stops_when_all_places_are_closed():
    ends = [0, 0, 0.9, 0.05, 0.01, 0.01, 0.01, 0.01, 0.01]
    model = fixed_logits(random_model(), ends)
    rows = shapes_seen(model.output)
    assert beam_search(model, [[3], [4, 5]], 12, 3) == [[], []]
    assert len(rows) < 12


@pytest.mark.parametrize("search", [greedy_search, sample, beam_search])
def test_the_model_keeps_its_mode(search):
    model = random_model(dropout=0.5).train()
    model.encoder.eval()  # one part was set apart
    modes = [module.training for module in model.modules()]
    torch.manual_seed(3)
    first = search(model, [[3, 4, 5]] * 3, 8)
    torch.manual_seed(3)
    assert search(model, [[3, 4, 5]] * 3, 8) == first  # without dropout
    with pytest.raises(ValueError, match="got 99"):
        search(model, [[99]], 8)
    assert [module.training for module in model.modules()] == modes
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("search", [greedy_search, sample, beam_search])
def test_a_search_makes_nothing_on_another_device(search):
    model = random_model()
    torch.manual_seed(3)
    expected = search(model, [[3, 4, 5], [6]], 6)
    torch.manual_seed(3)
    with torch.device("meta"):
        assert search(model, [[3, 4, 5], [6]], 6) == expected


# Sources


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("search", [greedy_search, beam_search])
def test_a_padded_tensor_is_searched_as_its_lists_are(search, dtype):
    model = random_model(seed=1, pad_id=3, bos_id=4, eos_id=5)
    lists = [[1, 2, 7], [8], [9, 10]]
    padded = torch.tensor([[1, 2, 7, 3, 3], [8, *[3] * 4], [9, 10, 3, 3, 3]])
    assert search(model, padded.to(dtype), 8) == search(model, lists, 8)
    assert as_batch(model, padded, 8).equal(padded[:, :3])
    assert as_batch(model, lists, 8).equal(padded[:, :3])


@pytest.mark.plain  # checked shapes would make it slow
def test_special_ids_come_from_the_config():
    model = random_model(seed=1, sharp=3, pad_id=6, bos_id=7, eos_id=8).double().eval()
    for source in ([0, 1, 2], [3], [9, 10, 4, 5]):
        assert greedy_search(model, [source], 9) == [uncached_greedy(model, source, 9)]
        how = 9, 3, 0.6
        assert beam_search(model, [source], *how) == [
            uncached_n_best(model, source, *how)[0][0]
        ]
        for found in sample(model, [source] * 20, 9):
            assert not {6, 7, 8} & set(found)


@pytest.mark.plain
@pytest.mark.parametrize("search", [greedy_search, sample, beam_search])
@pytest.mark.parametrize(
    ("sources", "max_length", "message"),
    [
        ([], 5, "at least one id"),
        ([[3], []], 5, r"at least one id, got lengths \[1, 0\]"),
        ([[3], [0]], 5, "at least one id, got one of padding alone"),
        ([3, 4], 5, r"lists of token ids, .* got \[3, 4\]"),
        (["ab"], 5, r"lists of token ids, .* got \['ab'\]"),
        ([[2.5]], 5, "int64 or int32, got torch.float32"),
        ([[3, 4], [7.9]], 5, "int64 or int32, got torch.float32"),
        ([[3, 10**30]], 5, "lists of token ids"),
        ([[3]], 0, "max_length .* got 0"),
        ([[3]], 2.5, "max_length .* got 2.5"),
        ([[3]], 13, "max_length must be at most 12.*got 13"),
        ([[11]], 5, r"0\.\.10, got 11"),
        ([[-1]], 5, r"0\.\.10, got -1"),
        ([[3] * 13], 5, r"12|0\.\.11"),
        ([[3, 0, 4]], 5, "padded on the right, got an id after padding"),
        (torch.tensor([[0, 3], [3, 4]]), 5, "padded on the right"),
        (torch.tensor([[3, 4], [0, 0]]), 5, "one of padding alone"),
        (torch.tensor([3, 4]), 5, r"\(batch, length\).* got \(2,\)"),
        (torch.tensor([[3.0]]), 5, "int64 or int32, got torch.float32"),
        (torch.empty(0, 3, dtype=torch.int64), 5, r"got \(0, 3\)"),
    ],
)
def test_bad_sources_are_refused(search, sources, max_length, message):
    with pytest.raises((TypeError, ValueError), match=message):
        search(random_model(), sources, max_length)


# Which models


def test_wrapped_models_are_searched():
    model = random_model()
    expected = beam_search(model, [[3, 4]], 6)
    wrapped = [
        torch.compile(model, backend="eager"),
        nn.DataParallel(model),
        torch.optim.swa_utils.AveragedModel(model),
    ]
    for each in wrapped:
        assert beam_search(each, [[3, 4]], 6) == expected


def test_a_wrapper_that_computes_something_itself_is_not_passed_over():
    """FSDP keeps a part of each weight, and puts them together in its forward pass."""
    shards = type("FullyShardedDataParallel", (nn.Module,), {"__module__": "torch.x"})
    wrapped = shards()
    wrapped.module = random_model()
    with pytest.raises(ValueError, match="inside a FullyShardedDataParallel"):
        greedy_search(wrapped, [[3]], 2)


def test_what_is_no_transformer_is_refused():
    for wrong in (nn.Linear(2, 2), nn.Sequential()):
        with pytest.raises(ValueError, match=r"needs a Transformer .* got a (Lin|Seq)"):
            greedy_search(wrong, [[3]], 2)


# Without a cache


@pytest.mark.plain  # checked shapes would make it slow
def test_a_decoder_without_a_cache_finds_the_same():
    rng = random.Random(3)
    for seed in range(12):
        model = random_model(seed, rng.choice([1, 4]), norm_first=seed % 2 == 0)
        model.double().eval()
        batch, longest = random_case(rng)
        slow, how = UncachedDecoder(model), (longest, rng.randint(1, 6), 0.6)
        assert greedy_search(slow, batch, longest) == greedy_search(
            model, batch, longest
        )
        assert beam_search(slow, batch, *how) == beam_search(model, batch, *how)
        drawn = [
            sample(each, batch, longest, 1.3, 0.9, torch.Generator().manual_seed(seed))
            for each in (slow, model)
        ]
        assert drawn[0] == drawn[1]


class Cold(Transformer):
    """Has a decode of its own."""

    def decode(self, *arguments, **options):
        return super().decode(*arguments, **options) / 2


class Negated(Transformer):
    """Has a forward of its own."""

    def forward(self, *ids):
        return -super().forward(*ids)


class Backwards(nn.Module):
    """Attends to nothing; it has no `attend`."""

    def forward(self, query, key, value, mask=None):
        return -query


class Deaf(MultiHeadAttention):
    """Its `attend` takes no positions, as before there were any to take."""

    def attend(self, query, keys_values, mask=None):
        return super().attend(-query, keys_values, mask)


def cold(model):
    model.__class__ = Cold


def negated(model):
    model.__class__ = Negated


def patched(model):
    layer = model.decoder.layers[0]
    layer.forward = lambda *inputs: -DecoderLayer.forward(layer, *inputs)


def hooked(model):
    attention = model.decoder.layers[1].self_attention
    attention.register_forward_hook(lambda _, __, output: -30 * output)


def hooked_as_a_whole(model):
    model.register_forward_hook(lambda _, __, logits: -logits)


def backwards(model):
    model.decoder.layers[1].cross_attention = Backwards()


def deaf(model):
    model.decoder.layers[0].self_attention.__class__ = Deaf


def dropped(model):
    model.position = nn.Dropout(0.1)


NOT_CACHED = {
    cold: "the model, a Cold, has decode of its own",
    negated: "the model, a Negated, has forward of its own",
    patched: r"decoder.layers.0, a DecoderLayer, has forward of its own",
    hooked: r"decoder.layers.1.self_attention, a \w+, has hooks of its own",
    hooked_as_a_whole: "the model, a Transformer, has hooks of its own",
    backwards: r"layers.1.cross_attention must be .* MultiHeadAttention, got Backw",
    deaf: r"layers.0.self_attention, a Deaf, takes no positions in keys_values",
    dropped: "position is of the class Dropout, whose forward",
}


@pytest.mark.plain  # checked shapes would make it slow
@pytest.mark.parametrize("change", NOT_CACHED)
def test_what_a_cache_would_pass_over_is_decoded_without_one(change):
    """And a warning says why, also where the change comes after the decoder."""
    model = random_model(seed=4, sharp=4).double().eval()
    fast, cached = FastDecoder(model), CachedDecoder(model)
    change(model)
    model.eval()
    batch = [[3, 4, 5], [6], [9, 10, 3, 7]]
    expected = [uncached_greedy(model, source, 8) for source in batch]
    best = [uncached_n_best(model, source, 8, 3, 0.6)[0][0] for source in batch]
    message = f"decoding without a cache: .*{NOT_CACHED[change]}"
    for decoder in (model, FastDecoder(model)):
        with pytest.warns(UserWarning, match=message):
            assert greedy_search(decoder, batch, 8) == expected
        with pytest.warns(UserWarning, match=message):
            assert beam_search(decoder, batch, 8, 3) == best
    if change in (hooked, hooked_as_a_whole):  # a hook is looked for at each search
        with pytest.warns(UserWarning, match=message):
            assert greedy_search(fast, batch, 8) == expected
    with pytest.raises(ValueError, match=NOT_CACHED[change]):
        greedy_search(cached, batch, 8)


@pytest.mark.plain
def test_a_translator_translates_while_its_operations_are_counted():
    """FlopCounterMode has hooks on all modules."""
    translator, french = Translator.phrasebook(), "Jane visite l'Afrique en septembre"
    with (
        FlopCounterMode(display=False) as counter,
        pytest.warns(UserWarning, match="without a cache: there are hooks on all"),
    ):
        found = translator.translate([french, "Il a deux chats"], 2)
    assert found == ["Jane visits Africa in September", "He has two cats"]
    assert counter.get_total_flops() > 0
    assert translator.translate(french) == found[0]  # with a cache again


class ALiBi(MultiHeadAttention):
    """Scores fall with the distance (Press et al. 2022): the recipe of a user."""

    def attend(self, query, keys_values, mask=None, positions=None):
        queries, (keys, values) = self._split(self.query_proj(query)), keys_values
        if positions is None:
            positions = torch.arange(query.size(1))[None]
        distance = (positions[..., None] - torch.arange(keys.size(2))).abs()
        slopes = 2.0 ** -torch.arange(1, self.num_heads + 1)
        scores = queries @ keys.mT / keys.size(-1) ** 0.5
        scores = scores - slopes[:, None, None] * distance[:, None]
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        heads = scores.softmax(dim=-1) @ values
        return self.output_proj(heads.transpose(1, 2).flatten(2))


@pytest.mark.plain  # checked shapes would make it slow
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("part", ["self_attention", "cross_attention"])
def test_attention_that_knows_positions_is_cached(part, turned):
    model = random_model(seed=4, sharp=4).double().eval()
    for layer in model.decoder.layers:
        attention = GroupedQueryAttention(16, 4, 2, RotaryEmbedding(), bias=True)
        setattr(layer, part, attention.double() if turned else getattr(layer, part))
        if not turned:
            getattr(layer, part).__class__ = ALiBi
    source, how = [3, 4, 5], (8, 3, 0.6)
    assert greedy_search(model, [source], 8) == [uncached_greedy(model, source, 8)]
    assert n_best(model, [source], *how) == [uncached_n_best(model, source, *how)]


@pytest.mark.parametrize("part", ["self_attention", "cross_attention"])
def test_grouped_queries_are_cached_once_for_each_group(part):
    for num_kv_heads in (1, 2):
        model = random_model(seed=4, sharp=4).double().eval()
        for layer in model.decoder.layers:
            shared = GroupedQueryAttention(16, 4, num_kv_heads, bias=True).double()
            setattr(layer, part, shared)
        agreed = n_best(model, [[3, 4, 5]], 5, 2, 0.6)
        assert agreed == [uncached_n_best(model, [3, 4, 5], 5, 2, 0.6)]
        fast = FastDecoder(model)
        kept = fast.prefill(torch.tensor([[3, 4, 5]]), 8, 3).past[0]
        shape = (num_kv_heads, 8, 4) if part == "self_attention" else (2, 8, 8)
        assert kept.keys.shape == kept.values.shape == (3, *shape)


def test_hooks_on_all_modules_leave_nothing_to_a_cache():
    model = random_model()
    for register in (
        nn.modules.module.register_module_forward_hook,
        nn.modules.module.register_module_forward_pre_hook,
    ):
        hook = register(lambda *_: None)
        try:
            with pytest.raises(ValueError, match="hooks on all modules"):
                CachedDecoder(model)
            assert not packable(model)
        finally:
            hook.remove()
    CachedDecoder(model)


class LowRank(nn.Linear):
    """LoRA as a subclass: the map, and a small one beside it."""

    def forward(self, x):
        return super().forward(x) + super().forward(x.roll(1, dims=-1)) / 2


@pytest.mark.plain  # checked shapes would make it slow
def test_every_linear_map_is_called_as_it_is():
    """With LoRA, or a hook, on any map the search still follows the whole model."""
    linear = [
        name
        for name, module in random_model().named_modules()
        if isinstance(module, nn.Linear) and "encoder" not in name
    ]
    for number, name in enumerate(linear):
        model = random_model(seed=4, sharp=4).double().eval()
        module = model.get_submodule(name)
        if number % 2:
            module.register_forward_hook(lambda _, __, out: out * 2 + out.roll(1, -1))
        else:
            module.__class__ = LowRank
        found = greedy_search(model, [[3, 4, 5]], 8)
        assert found == [uncached_greedy(model, [3, 4, 5], 8)], name


@pytest.mark.plain  # the checker of shapes is not compiled
def test_a_step_compiles_whole():
    model = random_model(seed=4).eval()
    source = torch.tensor([[3, 4, 5], [6, PAD, PAD]])
    target = torch.randint(3, 9, (2, 5))
    torch.compiler.reset()
    with torch.no_grad():
        plain, compiled = (CachedDecoder(model).prefill(source, 5) for _ in range(2))
        step = torch.compile(
            lambda tokens: compiled.step(tokens), fullgraph=True, backend="aot_eager"
        )
        for tokens in target.T:
            torch.testing.assert_close(step(tokens), plain.step(tokens))
    torch.compiler.reset()


# Sampling


@given(st.lists(st.floats(-8, 8), min_size=1, max_size=9), st.floats(0.01, 1.0))
def test_a_nucleus_is_the_smallest_that_reaches_top_p(logits, top_p):
    probabilities = torch.tensor([logits], dtype=torch.float64).softmax(dim=-1)
    kept = top_p_filter(probabilities, top_p)
    inside = kept > 0
    torch.testing.assert_close(kept.sum(), torch.ones((), dtype=torch.float64))
    held = probabilities[inside].sum()
    assert held >= top_p - 1e-9
    assert held - probabilities[inside].min() < top_p + 1e-9
    if not inside.all():
        assert probabilities[inside].min() >= probabilities[~inside].max()
    torch.testing.assert_close(kept[inside], probabilities[inside] / held)


def test_nuclei_by_hand():
    probabilities = torch.tensor([[0.25, 0.5, 0.25], [0.5, 0.5, 0.0]])
    expected = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    found = top_p_filter(probabilities, 0.5)
    least = top_p_filter(probabilities, 1e-300)  # in float32 that is 0
    assert (least.amax(-1) == 1).all()
    torch.testing.assert_close(found.sort()[0], expected.sort()[0])
    many = torch.randn(4, 9).softmax(dim=-1)
    torch.testing.assert_close(top_p_filter(many, 1.0), many)


PROBABILITIES = [0.2, 0.1, 0.05, 0.05, 0.3, 0.2, 0.06, 0.04, 0.0]


@pytest.mark.parametrize(
    ("temperature", "top_p", "tokens"),
    [
        (1.0, 1.0, {3, 4, 5, 6, 7}),
        (1.0, 0.6, {4, 5}),
        (3.0, 0.6, {4, 5, 6}),
        (1e-40, 1.0, {4}),
        (1e-300, 1.0, {4}),
    ],
)
def test_samples_follow_the_probabilities(temperature, top_p, tokens):
    model = fixed_logits(random_model(), PROBABILITIES)
    generator = torch.Generator().manual_seed(1)
    drawn = sample(model, [[3]] * 6000, 1, temperature, top_p, generator)
    counts = torch.bincount(
        torch.tensor([ids[0] if ids else EOS for ids in drawn]), minlength=9
    )
    assert {i for i in range(3, 9) if counts[i]} == tokens
    scaled = torch.tensor(PROBABILITIES).double().log() / temperature
    scaled[[PAD, BOS]] = -torch.inf
    expected = top_p_filter((scaled - scaled.max()).softmax(-1), top_p)
    assert ((counts / 6000 - expected).abs() < 0.03).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_extreme_temperatures(dtype):
    model = random_model(seed=5).to(dtype)
    greedy = greedy_search(model, [[3, 4], [5]], 6)
    assert sample(model, [[3, 4], [5]], 6, temperature=1e-40) == greedy
    hot = sample(model, [[3, 4]] * 200, 1, temperature=1e300)
    assert {ids[0] if ids else EOS for ids in hot} == set(range(2, 9))


def test_the_same_generator_draws_the_same_and_another_does_not():
    model = random_model()

    def drawn(seed):
        generator = torch.Generator().manual_seed(seed)
        return sample(model, [[3, 4]] * 30, 8, generator=generator)

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)
    assert len({tuple(ids) for ids in drawn(0)}) > 10


# Beams


@pytest.mark.parametrize(
    ("second", "best"),
    [(-1.18, []), (-1.155, [3])],  # -1/6 against -1.18/7 and -1.155/7
)
def test_the_length_that_is_weighed_counts_eos_and_not_bos(second, best):
    end = math.exp(-1)  # at once, or after a 3 with `second` in all
    then = math.exp(second) / (1 - end)
    model = fixed_logits(
        random_model(),
        [0, 0, end, 1 - end, 0, 0, 0, 0, 0],
        [0, 0, then, 0, *([(1 - then) / 5] * 5)],
    )
    assert beam_search(model, [[4]], 5, beam_size=2, length_penalty=1.0) == [best]


def test_the_default_penalty_is_that_of_its_inventors():
    """With 0.6 the shorter translation is the better one; with 1.6 it is not."""
    end = math.exp(-1)
    then = math.exp(-1.15) / (1 - end)
    steps = (
        [0, 0, 0, 1, 0, 0, 0, 0, 0],
        [0, 0, end, 0, 1 - end, 0, 0, 0, 0],
        [0, 0, then, 0, *([(1 - then) / 5] * 5)],
    )
    assert beam_search(fixed_logits(random_model(), *steps), [[4]], 5, 2) == [[3]]
    longer = beam_search(fixed_logits(random_model(), *steps), [[4]], 5, 2, 1.6)
    assert longer == [[3, 4]]


class HostReads(TorchDispatchMode):
    """Counts operations, and those of them that a GPU would have to be waited for."""

    operations = reads = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        aten = torch.ops.aten
        read = (
            aten._local_scalar_dense.default,
            aten.nonzero.default,
            aten.equal.default,
        )
        self.operations += 1
        self.reads += func in read
        return func(*args, **(kwargs or {}))


@pytest.mark.plain  # checked shapes would add operations
@pytest.mark.parametrize("kind", [CachedDecoder, FastDecoder, UncachedDecoder, "text"])
def test_a_step_of_many_beams_is_a_step_of_one(kind):
    """Neither operations nor what is read of the device grow with the sources."""

    def count(sources, length):
        config = {"d_model": 8, "num_heads": 2, "d_ff": 8, "dropout": 0.0}
        if kind == "text":
            text = LanguageModelConfig(9, num_layers=1, max_length=40, **config)
            decoder = PromptDecoder(LanguageModel(text).eval())
        else:
            decoder = kind(random_model(max_length=40).eval())
            ends = torch.tensor(EOS)
            decoder.model.output.register_forward_hook(
                lambda _, __, logits: logits.index_fill(-1, ends, -1e9)
            )
            if kind is FastDecoder:
                decoder.model.output._forward_hooks.clear()
        with HostReads() as watch:
            beam_search(decoder, torch.full((sources, 4), 5), length, 3)
        return watch

    few, many, longer = count(2, 8), count(64, 8), count(2, 16)
    steps = longer.operations - few.operations
    assert many.operations <= few.operations + steps / 4  # less than two steps more
    assert many.reads <= few.reads + 1
    assert (longer.reads - few.reads) / 8 <= 2.5  # a step: equals, and what is done


def test_a_beam_refuses_a_hypothesis_without_probabilities():
    """One of several: greedy search may never meet it, a beam would hide it."""
    model = random_model(2).eval()
    for token in (3, 5, 7):
        changed = copy.deepcopy(model)
        with torch.no_grad():
            changed.target_embedding.table.weight[token] = math.nan
        with pytest.raises(ValueError, match="logits are not finite"):
            beam_search(changed, [[3, 4]], 6, beam_size=4)


def test_a_hypothesis_that_nothing_may_follow_is_dropped():
    class State:
        """Tokens 3 and 4 at first, 5 after a 4, the end after that; nothing after 3."""

        def step(self, tokens):
            logits = torch.full((len(tokens), 8), -math.inf)
            logits[tokens == 1, 3] = 5.0
            logits[tokens == 1, 4] = 1.0
            logits[tokens == 4, 5] = 0.0
            logits[tokens == 5, 2] = 0.0
            return logits

        def reorder(self, rows):
            pass

    class Decoder:
        model = Transformer(TransformerConfig(8, 8, 8, 2, 1, 1, 8)).eval()

        def prefill(self, source_ids, max_length, beam_size=1):
            return State()

    assert beam_search(Decoder(), [[3, 4]], 6, beam_size=3) == [[4, 5]]


class Constant:
    """A decoder and its state: the same logits for each row of any batch."""

    def __init__(self, logits):
        self.model, self.logits = nn.Module(), logits
        self.model.config = TransformerConfig(11, 9, 16, 2, 1, 1, 24, max_length=12)

    def prefill(self, source_ids, max_length, beam_size=1):
        return self

    def step(self, tokens):
        return self.logits(len(tokens))

    def reorder(self, rows):
        pass


@pytest.mark.parametrize("search", [greedy_search, sample, beam_search])
def test_a_model_without_parameters_is_searched_where_its_sources_are(search):
    """N-grams, or a network that another library runs."""
    decoder = Constant(lambda rows: torch.tensor([[0, 0, -math.inf, 50, 0]] * rows))
    for sources in ([[3], [4, 5]], torch.tensor([[3, 0], [4, 5]])):
        assert search(decoder, sources, 3) == [[3, 3, 3]] * 2


@pytest.mark.parametrize("search", [greedy_search, sample, beam_search])
def test_a_model_without_a_padding_id_is_searched_from_sources_of_one_length(search):
    decoder = Constant(lambda rows: torch.tensor([[50, 0, -math.inf, 0, 0]] * rows))
    decoder.model.config = SimpleNamespace(
        source_vocab_size=5, max_length=12, pad_id=None, bos_id=1, eos_id=2
    )
    for sources in ([[0], [4]], torch.tensor([[0, 3], [4, 0]])):
        assert search(decoder, sources, 3) == [[0, 0, 0]] * 2
    with pytest.raises(ValueError, match=r"one length, got \[1, 2\]$"):
        search(decoder, [[0], [4, 0]], 3)


@pytest.mark.parametrize("search", [greedy_search, sample, beam_search])
@pytest.mark.parametrize("missing", [lambda rows: (1, 9), lambda rows: (rows, 1, 9)])
def test_logits_that_are_not_a_row_each_are_refused(search, missing):
    decoder = Constant(lambda rows: torch.zeros(missing(rows)))
    with pytest.raises(ValueError, match=r"\(2, vocabulary\), got \((1|2, 1), 9\)$"):
        search(decoder, [[3], [4]], 3)


@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("search", [greedy_search, sample, beam_search])
def test_logits_that_are_no_numbers_are_named(search, number):
    model = random_model()
    with torch.no_grad():
        model.output.weight.fill_(number)
    with pytest.raises(ValueError, match="logits are not finite"):
        search(model, [[3]], 3)


@pytest.mark.plain
@pytest.mark.parametrize(
    ("search", "options", "message"),
    [
        (beam_search, {"beam_size": 0}, "beam_size must be .* at least 1, got 0"),
        (beam_search, {"beam_size": 2.5}, "beam_size .* got 2.5"),
        (beam_search, {"beam_size": True}, "beam_size .* got True"),
        (beam_search, {"length_penalty": -0.1}, "length_penalty .* got -0.1"),
        (beam_search, {"length_penalty": math.inf}, "length_penalty .* got inf"),
        (beam_search, {"length_penalty": math.nan}, "length_penalty .* got nan"),
        (beam_search, {"length_penalty": 5000}, "too large for 5 tokens, got 5000"),
        (beam_search, {"length_penalty": "x"}, "length_penalty .* got 'x'"),
        (beam_search, {"length_penalty": True}, "length_penalty .* got True"),
        (sample, {"temperature": True}, "temperature .* got True"),
        (sample, {"top_p": True}, "top_p .* got True"),
        (sample, {"temperature": 0}, "temperature must be .* above 0, got 0"),
        (sample, {"temperature": "x"}, "temperature .* got 'x'"),
        (sample, {"temperature": None}, "temperature .* got None"),
        (sample, {"top_p": "x"}, "top_p .* got 'x'"),
        (sample, {"temperature": -1.0}, "temperature .* got -1.0"),
        (sample, {"temperature": math.inf}, "temperature .* got inf"),
        (sample, {"temperature": math.nan}, "temperature .* got nan"),
        (sample, {"top_p": 0}, r"top_p must lie in \(0, 1\], got 0"),
        (sample, {"top_p": 1.01}, "top_p .* got 1.01"),
        (sample, {"top_p": math.nan}, "top_p .* got nan"),
    ],
)
def test_bad_options_are_refused(search, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        search(random_model(), [[3]], max_length=5, **options)


@pytest.mark.plain  # checked types are refused before
def test_half_a_decoder_is_none():
    class Half:
        model = random_model()

    class Other:
        def prefill(self, source_ids, max_length, beam_size):
            raise NotImplementedError

    needs = r"^a search needs a Transformer or a decoder \(.*\), got"
    with pytest.raises(ValueError, match=rf"{needs} a Half: give half\.model$"):
        greedy_search(Half(), [[3]], 2)
    with pytest.raises(ValueError, match=f"{needs} an Other$"):
        greedy_search(Other(), [[3]], 2)
    with pytest.raises(ValueError, match=rf"{needs} .*: give translator\.model$"):
        greedy_search(Translator.phrasebook(), [[3]], 2)
