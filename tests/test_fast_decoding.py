"""Packed decoding finds what plain decoding finds, or leaves it to plain decoding."""

import copy
import pickle
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations, prune

from tests.test_search import DTYPES, fixed_logits, random_case, random_model
from transformer.decoding.beam import beam_search
from transformer.decoding.fast import FastDecoder, FastState
from transformer.decoding.search import greedy_search, sample
from transformer.decoding.step import CachedDecoder, CachedState
from transformer.decoding.support import packable
from transformer.encoder import Residual
from transformer.model import Transformer

BATCH = [[3, 4, 5], [6], [7, 8], [9, 3, 10, 4]]
# Checked shapes make a search several times as slow. A few tests have them here.
quick = pytest.mark.plain


def agree(model, batch=BATCH, length=8, beam_size=3, penalty=0.6, decoder=None) -> None:
    """Plain and fast: greedy, beam and, with the same generator, sampling."""
    fast = decoder or FastDecoder(model)
    greedy = greedy_search(model, batch, length)
    assert greedy_search(fast, batch, length) == greedy
    how = batch, length, beam_size, penalty
    assert beam_search(fast, *how) == beam_search(model, *how)
    drawn = [
        sample(each, batch, length, 1.3, 0.9, torch.Generator().manual_seed(length))
        for each in (model, fast)
    ]
    assert drawn[0] == drawn[1]


@quick
@pytest.mark.parametrize("dtype", DTYPES)
def test_random_models_are_decoded_the_same_in_every_precision(dtype):
    rng = random.Random(1)
    packed = dtype in (torch.float32, torch.float64)
    for seed in range(40 if packed else 8):  # not packed, both ways are the plain one
        model = random_model(seed, rng.choice([1, 4]), norm_first=seed % 2 == 0)
        model.to(dtype)
        assert packable(model) is packed
        beam_size, penalty = rng.randint(1, 12), rng.choice([0.0, 0.6, 1.5])
        agree(model, *random_case(rng), beam_size, penalty)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("beam_size", [1, 2, 20])  # at last more than there are tokens
def test_a_few_sources_in_checked_shapes(norm_first, beam_size):
    model = random_model(13, sharp=12, norm_first=norm_first).double()
    agree(model, beam_size=beam_size)
    agree(model, torch.tensor([[3, 4, 0], [5, 0, 0]]), beam_size=beam_size)


@settings(max_examples=15)
@given(st.randoms(use_true_random=False), st.integers(1, 4), st.integers(0, 2))
def test_every_logit_is_that_of_the_whole_model(rng, beam_size, first):
    """Through reordered hypotheses and dropped sources."""
    model = random_model(rng.randrange(99)).double().eval()
    batch, _ = random_case(rng)
    source = torch.tensor([ids + [0] * (7 - len(ids)) for ids in batch])
    with torch.inference_mode():
        state = FastDecoder(model).prefill(source, 6, beam_size)
        assert isinstance(state, FastState)
        rows = torch.arange(len(source))
        tokens = torch.ones(len(rows), 1, dtype=torch.int64)
        width = 1
        for place in range(5):
            logits = state.step(tokens[:, -1])
            torch.testing.assert_close(logits, model(source[rows], tokens)[:, -1])
            if width == 1 and place < first:  # a longer beginning before the beam
                new = torch.randint(2, 9, (len(rows), 1))
                tokens = torch.cat((tokens, new), dim=1)
                continue
            kept = sorted(rng.sample(range(len(source)), rng.randint(1, len(source))))
            if rng.random() < 0.7:
                kept = list(range(len(source)))
            source = source[kept]
            parents = torch.tensor(
                [
                    row * width + rng.randrange(width)
                    for row in kept
                    for _ in range(beam_size)
                ]
            )
            state.reorder(parents)
            width = beam_size
            rows = torch.arange(len(source)).repeat_interleave(beam_size)
            new = torch.randint(2, 9, (len(rows), 1))
            tokens = torch.cat((tokens[parents], new), dim=1)


@quick
@pytest.mark.parametrize("search", [greedy_search, sample, beam_search])
def test_a_fast_search_refuses_what_the_plain_one_refuses(search):
    fast = FastDecoder(random_model())
    for sources, length, message in (
        ([[3]], 13, "max_length must be at most 12"),
        ([[3], []], 4, "every source needs at least one id"),
        ([[11]], 4, r"must lie in 0..10, got 11"),
    ):
        with pytest.raises(ValueError, match=message):
            search(fast, sources, length)
    with pytest.raises(ValueError, match="needs a Transformer, got a Linear"):
        FastDecoder(nn.Linear(2, 2))


def test_the_model_is_left_as_it_was():
    model = random_model(dropout=0.5).train()
    before = copy.deepcopy(model.state_dict())
    agree(model)
    assert model.training
    assert all(weight.requires_grad for weight in model.parameters())
    for name, weight in model.state_dict().items():
        assert weight.equal(before[name])


@quick
@pytest.mark.parametrize("search", [greedy_search, beam_search])
def test_a_fast_search_makes_nothing_on_another_device(search):
    fast = FastDecoder(random_model(1))
    expected = search(fast, BATCH, 8)
    fast = FastDecoder(random_model(1))
    with torch.device("meta"):
        assert search(fast, BATCH, 8) == expected


@pytest.mark.parametrize("beam_size", [1, 3])
def test_nothing_is_masked_where_nothing_is_padded(beam_size):
    decoder = FastDecoder(random_model(1).eval())
    state = decoder.prefill(torch.tensor([[3, 4], [5, 6]]), 4, beam_size)
    assert state.source_mask is None
    assert (state.ancestry is None) is (beam_size == 1)


# Weights that change


@quick
@pytest.mark.parametrize("made", [False, True])  # in inference mode
def test_a_decoder_keeps_the_weights_that_it_was_made_with(made):
    """All of them, so that it never mixes two models; a new one has the new ones."""
    with torch.inference_mode(made):
        model = random_model(29, sharp=8, norm_first=True)
    fast, twin = FastDecoder(model), copy.deepcopy(model)
    with torch.inference_mode(made):
        for weight in model.parameters():
            weight.detach().neg_()
        model.encoder.norm.eps = 9.0
    agree(twin, decoder=fast)
    agree(model)
    assert greedy_search(model, BATCH, 8) != greedy_search(twin, BATCH, 8)


def _norms_in_place_of_dropout(model):
    for residual in model.decoder.modules():
        if isinstance(residual, Residual):
            residual.dropout = nn.LayerNorm(model.config.d_model)
            nn.init.normal_(residual.dropout.weight, std=3)


@quick
@pytest.mark.parametrize(
    "change",
    [
        _norms_in_place_of_dropout,
        lambda model: setattr(
            model.position, "dropout", nn.LayerNorm(model.config.d_model, eps=9.0)
        ),
        lambda model: setattr(
            model.encoder.layers[0].residuals[0], "norm", nn.Identity()
        ),
        lambda model: setattr(model.decoder.layers[0], "feed_forward", nn.Identity()),
        lambda model: setattr(
            model,
            "target_embedding",
            nn.Embedding(model.config.target_vocab_size, model.config.d_model),
        ),
    ],
)
def test_a_known_module_in_another_place_is_not_packed(change):
    model = random_model(29)
    change(model)
    assert not packable(model)
    agree(model.eval())


def test_a_decoder_packed_by_a_search_can_be_stepped_outside_of_inference_mode():
    model = random_model().eval()
    fast = FastDecoder(model)
    greedy_search(fast, BATCH, 8)
    first = torch.tensor([1])
    logits = fast.prefill(torch.tensor([[3, 4]]), 4).step(first)
    assert not logits.requires_grad
    plain = CachedDecoder(model).prefill(torch.tensor([[3, 4]]), 4).step(first)
    torch.testing.assert_close(logits, plain.detach())


@quick
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_decoder_that_was_used_can_be_copied(copied):
    model = random_model(29, sharp=8)
    fast = FastDecoder(model)
    greedy_search(fast, BATCH, 8)
    other = copied(fast)
    assert other.model is not model
    agree(model, decoder=other)


@quick
def test_several_threads_may_share_a_decoder():
    model = random_model(29, sharp=8).eval()
    expected = greedy_search(model, BATCH, 8)
    for _ in range(10):  # each time, all pack at once
        fast = FastDecoder(model)
        with ThreadPoolExecutor(4) as pool:
            searches = [pool.submit(greedy_search, fast, BATCH, 8) for _ in range(8)]
            assert all(each.result() == expected for each in searches)


# What cannot be packed


class Doubled(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


class Gelu(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner.contract(nn.functional.gelu(self.inner.expand(x)))


def with_lora(model) -> None:
    model.decoder.layers[0].self_attention.query_proj.__class__ = Doubled


def with_a_hook(model) -> None:
    projection = model.decoder.layers[1].cross_attention.value_proj
    projection.register_forward_hook(lambda _, __, out: out * 2)


def with_a_hook_on_the_encoder(model) -> None:
    expand = model.encoder.layers[0].feed_forward.expand
    expand.register_forward_hook(lambda _, __, out: -out)


def with_an_encode_of_its_own(model) -> None:
    model.encode = lambda ids: -Transformer.encode(model, ids)


class Reversed(Transformer):
    def encode(self, source_ids):
        return -super().encode(source_ids)


def with_an_encode_of_its_class(model) -> None:
    model.__class__ = Reversed


def with_gelu(model) -> None:
    for layer in model.decoder.layers:
        layer.feed_forward = Gelu(layer.feed_forward)


def pruned(model) -> None:
    prune.random_unstructured(
        model.decoder.layers[0].feed_forward.expand, "weight", 0.5
    )


def parametrized(model) -> None:
    parametrizations.weight_norm(model.decoder.layers[0].feed_forward.contract)


def with_an_output_of_its_own(model) -> None:
    fixed_logits(model, [0, 0, 0.1, 0.2, 0.3, 0.1, 0.1, 0.1, 0.1])


def without_a_bias(model) -> None:
    model.decoder.layers[0].self_attention.key_proj.bias = None


def with_an_output_bias(model) -> None:
    model.output.bias = nn.Parameter(torch.randn(9) * 3)


def with_an_attend_of_its_own(model) -> None:
    attention = model.decoder.layers[0].self_attention
    usual = attention.attend
    attention.attend = lambda *inputs: -9 * usual(*inputs)


class AlwaysDropout(nn.Dropout):
    """Monte-Carlo dropout, here of everything: in evaluation mode, too."""

    def forward(self, x):
        return torch.zeros_like(x)


def with_dropout_in_evaluation(model) -> None:
    model.decoder.layers[0].residuals[2].dropout = AlwaysDropout()


def with_shortened_embeddings(model) -> None:
    model.target_embedding.table.max_norm = 0.01


@quick
@pytest.mark.parametrize(
    "change",
    [
        with_lora,
        with_a_hook,
        with_a_hook_on_the_encoder,
        with_an_encode_of_its_own,
        with_an_encode_of_its_class,
        with_gelu,
        pruned,
        parametrized,
        with_an_output_of_its_own,
        with_dropout_in_evaluation,
        with_shortened_embeddings,
        with_an_attend_of_its_own,
    ],
)
def test_what_cannot_be_packed_is_decoded_plainly(change):
    model = random_model(29, sharp=8).eval()
    change(model)
    fast = FastDecoder(model.eval())
    with torch.inference_mode():
        assert isinstance(fast.prefill(torch.tensor([[3]]), 4), CachedState)
    agree(model, decoder=fast)


@quick
@pytest.mark.parametrize("change", [without_a_bias, with_an_output_bias])
def test_biases_may_be_missing_or_more(change):
    model = random_model(29, sharp=8)
    change(model)
    agree(model.eval())


@quick
def test_hooks_that_come_later_are_followed():
    model = random_model(29, sharp=8).eval()
    fast = FastDecoder(model)
    before = greedy_search(fast, BATCH, 8)
    with_a_hook_on_the_encoder(model)
    agree(model, decoder=fast)
    assert greedy_search(fast, BATCH, 8) != before


def test_layers_with_different_numbers_of_heads_are_not_packed():
    model = random_model()
    assert packable(model)
    model.decoder.layers[1].cross_attention.num_heads = 1
    assert not packable(model)


def test_under_autocast_decoding_is_plain():
    model = random_model(29, sharp=8)
    fast = FastDecoder(model)
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        assert isinstance(fast.prefill(torch.tensor([[3]]), 4), CachedState)
        agree(model, decoder=fast)


@quick
def test_a_quantised_model_is_decoded_plainly():
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        pytest.skip("no engine for quantised maps here")
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.ao.quantization.quantize_dynamic(
            random_model(29, sharp=8).eval(), {nn.Linear}, dtype=torch.qint8
        )
    agree(model)
