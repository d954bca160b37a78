"""The compiled step of the benchmarks finds what plain decoding finds."""

import random
import sys
from pathlib import Path

import pytest
import torch

from tests.test_fast_decoding import BATCH, agree
from tests.test_search import random_case, random_model
from transformer.decoding.beam import beam_search

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

import compiled

pytestmark = pytest.mark.plain  # the checker of shapes is not compiled


def test_random_models_are_decoded_the_same(monkeypatch) -> None:
    """By the step as it is written: compiling each would take ten seconds."""
    monkeypatch.setattr(
        compiled, "_compile", lambda step, options: lambda inputs: step(*inputs)
    )
    rng = random.Random(2)
    for seed in range(20):
        model = random_model(seed, rng.choice([1, 4]), norm_first=seed % 2 == 0)
        batch, length = random_case(rng)
        beam_size, penalty = rng.randint(1, 12), rng.choice([0.0, 0.6, 1.5])
        decoder = compiled.CompiledDecoder(model.eval())
        agree(model, batch, length, beam_size, penalty, decoder)


@pytest.mark.nightly  # it takes minutes
@pytest.mark.parametrize("few", [0, 99])  # products by PyTorch, or by the compiler
def test_compiled_code_decodes_the_same(monkeypatch, few) -> None:
    """For one source and many, of any length, with any beam."""
    monkeypatch.setattr(compiled, "_FEW", few)
    model = random_model(3, num_decoder_layers=1).eval()
    decoder = compiled.CompiledDecoder(model)
    agree(model, BATCH + [[8, 3, 9, 5, 7]] * 5, beam_size=4, decoder=decoder)
    for batch, length in (([[3, 4, 5]], 8), ([[3]], 1)):
        how = batch, length, 5, 0.6
        assert beam_search(decoder, *how) == beam_search(model, *how)
    assert torch.is_grad_enabled()
