"""A compiled step finds what plain decoding finds."""

import random

import pytest
import torch
from torch import nn

from tests.test_fast_decoding import BATCH, agree
from tests.test_search import random_case, random_model
from transformer.decoding import compiled
from transformer.decoding.beam import beam_search
from transformer.decoding.compiled import CompiledDecoder, CompiledState
from transformer.decoding.fast import FastState
from transformer.decoding.search import greedy_search
from transformer.decoding.step import CachedState

pytestmark = pytest.mark.plain  # the checker of shapes is not compiled
SOURCE = torch.tensor([[3, 4, 5]])


@pytest.fixture
def as_written(monkeypatch):
    """The step as it is written: compiling each would take ten seconds."""
    monkeypatch.setattr(
        compiled, "_compile", lambda step, options: lambda inputs: step(*inputs)
    )


def test_random_models_are_decoded_the_same(as_written) -> None:
    rng = random.Random(2)
    for seed in range(40):
        model = random_model(seed, rng.choice([1, 4]), norm_first=seed % 2 == 0)
        batch, length = random_case(rng)
        beam_size, penalty = rng.randint(1, 12), rng.choice([0.0, 0.6, 1.5])
        decoder = CompiledDecoder(model)
        agree(model, batch, length, beam_size, penalty, decoder)
        assert decoder._steps


@pytest.mark.parametrize("first", [0, 2])  # steps before the beam
@pytest.mark.parametrize("beam_size", [1, 3])
def test_each_logit_is_the_whole_models(as_written, beam_size, first) -> None:
    model = random_model(5).eval()
    source = torch.tensor([[3, 4, 5], [6, 0, 0], [7, 8, 0]])
    with torch.inference_mode():
        state = CompiledDecoder(model).prefill(source, 6, beam_size)
        assert isinstance(state, CompiledState)
        tokens, width = torch.ones(3, 1, dtype=torch.int64), 1
        for place in range(5):
            logits = state.step(tokens[:, -1])
            rows = source.repeat_interleave(width, 0)
            expected = model(rows, tokens)[:, -1]
            torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
            kept = [[0, 2], [0, 1], [1], [0], [0]][place - first]
            if place < first:
                new = torch.randint(2, 9, (3, 1))
                tokens = torch.cat((tokens, new), dim=1)
                continue
            parents = torch.tensor(
                [
                    row * width + torch.randint(width, ()).item()
                    for row in kept
                    for _ in range(beam_size)
                ]
            )
            state.reorder(parents)
            width = beam_size
            source = source[kept]
            new = torch.randint(2, 9, (len(parents), 1))
            tokens = torch.cat((tokens[parents], new), dim=1)


NIGHTLY = pytest.mark.nightly  # what is slower to compile


@pytest.mark.parametrize(
    "who",
    [
        "PyTorch",
        pytest.param("the compiler", marks=NIGHTLY),
        pytest.param("oneDNN", marks=NIGHTLY),
    ],
)
def test_compiled_code_decodes_the_same(monkeypatch, who) -> None:
    """For one source and many, of any length, with any beam."""
    if who == "oneDNN":  # as for a larger model, on a processor that is not Intel's
        monkeypatch.setattr(compiled, "_LARGE", 0)
        monkeypatch.setattr("transformer.onednn._INTELS", False)
    if who == "the compiler":  # for any number of rows, not for few alone
        monkeypatch.setattr(compiled, "_FEW", 99)
    model = random_model(3, num_decoder_layers=1)
    decoder = CompiledDecoder(model)
    agree(model, BATCH + [[8, 3, 9, 5, 7]] * 5, beam_size=4, decoder=decoder)
    for batch, length in (([[3, 4, 5]], 8), ([[3]], 1)):
        how = batch, length, 5, 0.6
        assert beam_search(decoder, *how) == beam_search(model, *how)
    if who == "the compiler":
        agree(model, [[3, 4, 5]], beam_size=3, decoder=decoder)
        agree(model, [[3]], 1, beam_size=1, decoder=decoder)
    assert [*decoder._steps] == [who]


def test_who_makes_the_products_depends_on_the_rows(monkeypatch, as_written) -> None:
    monkeypatch.setattr(compiled, "onednn_pays", lambda weight: True)
    monkeypatch.setattr(compiled, "onednn_worth", lambda: 2**20)
    decoder = CompiledDecoder(random_model(3))
    for rows, large, whose in (
        (4, 0, ["the compiler"]),
        (5, 4, ["the compiler", "PyTorch"]),
        (5, 0, ["the compiler", "PyTorch", "oneDNN"]),
        (1, 0, ["the compiler", "PyTorch", "oneDNN"]),
    ):
        monkeypatch.setattr(compiled, "_LARGE", large)
        decoder.prefill(SOURCE.repeat(rows, 1), 4)
        assert [*decoder._steps] == whose
    last = [step.output is not None for step in decoder._steps.values()]
    assert last == [False, True, True]  # few rows need no product but the compiled


def test_the_default_dtype_does_not_matter(as_written) -> None:
    model = random_model(3)
    torch.set_default_dtype(torch.float64)
    try:
        agree(model, decoder=CompiledDecoder(model))
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_changed_last_norm_is_compiled_again(as_written) -> None:
    model = random_model(1, norm_first=True)
    decoder = CompiledDecoder(model)
    agree(model, decoder=decoder)
    first = [*decoder._steps.values()]
    model.decoder.norm.eps = 9.0  # compiled code has the old one as a constant
    agree(model, decoder=decoder)
    assert not {*map(id, first)} & {*map(id, decoder._steps.values())}


def test_a_changed_model_is_compiled_again(as_written) -> None:
    model = random_model(1)
    decoder = CompiledDecoder(model)
    before = greedy_search(decoder, BATCH, 8)
    (first,) = decoder._steps.values()
    assert greedy_search(decoder, BATCH, 8) == before
    assert [*decoder._steps.values()] == [first]
    with torch.no_grad():
        model.output.weight.mul_(-1)
    assert greedy_search(decoder, BATCH, 8) == greedy_search(model, BATCH, 8) != before


def test_what_cannot_be_compiled_is_decoded_without() -> None:
    half, double, hooked = random_model(1).bfloat16(), random_model(1), random_model(1)
    double.double()
    hooked.output.register_forward_hook(lambda module, args, output: -output)
    for model, kind in (
        (half, CachedState),
        (double, FastState),
        (hooked, CachedState),
    ):
        decoder = CompiledDecoder(model.eval())
        with torch.inference_mode():
            assert type(decoder.prefill(SOURCE, 4)) is kind
        agree(model, decoder=decoder)


def test_what_it_needs_is_said() -> None:
    from torch._inductor import config as inductor  # for seconds: not at the top

    no_compiler = inductor.patch({"cpp.cxx": (None, "/no/compiler")})
    with (
        no_compiler,
        pytest.raises(RuntimeError, match=r"needs a C\+\+ compiler, such as g"),
    ):
        greedy_search(CompiledDecoder(random_model()), BATCH, 4)
    with pytest.raises(ValueError, match="needs a Transformer, got a Linear"):
        CompiledDecoder(nn.Linear(2, 2))
