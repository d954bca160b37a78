"""The recurrent translator of the benchmarks is what its description says."""

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transformer.decoding.beam import beam_search
from transformer.decoding.search import greedy_search
from transformer.masks import padding_mask
from transformer.model import Transformer, TransformerConfig
from transformer.phrasebook.grammar import sample_pairs
from transformer.text.batches import pad
from transformer.text.subwords import SubwordTokenizer
from transformer.training.config import TrainingConfig
from transformer.training.state import validation_loss
from transformer.training.trainer import PRESETS, TranslationDataset

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

import recurrent

pytestmark = pytest.mark.plain  # the package's functions are given another model


def model(seed=0, vocab_size=12):
    config = TransformerConfig(vocab_size, vocab_size, d_model=16, max_length=64)
    made = recurrent.recurrent_model(config, seed)
    with torch.no_grad():  # an embedding of small numbers would make all words alike
        made.embedding.weight.mul_(4)
    return made.eval()


sentences = st.lists(
    st.lists(st.integers(3, 11), min_size=1, max_size=7), min_size=1, max_size=4
)


def hidden(net, sources, targets):
    source = pad(sources, 0)
    return net.decode(pad(targets, 0), net.encode(source), padding_mask(source, 0))


@given(sentences, st.integers(0, 99), st.data())
def test_other_rows_and_padding_change_nothing(sources, seed, data):
    net = model(seed)
    targets = [data.draw(st.lists(st.integers(3, 11), min_size=1)) for _ in sources]
    together = hidden(net, sources, targets)
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        alone = hidden(net, [source], [target])[0]
        torch.testing.assert_close(together[row, : len(target)], alone)


@given(sentences, st.integers(0, 99))
def test_the_past_does_not_change_with_the_future(sources, seed):
    net = model(seed)
    one = hidden(net, sources, [[3, 4, 5, 6]] * len(sources))
    two = hidden(net, sources, [[3, 4, 9, 10]] * len(sources))
    assert torch.equal(one[:, :2], two[:, :2])
    assert not torch.equal(one[:, 2], two[:, 2])


@given(sentences, st.integers(0, 99))
def test_step_by_step_it_takes_the_likeliest_token(sources, seed):
    net = model(seed)
    found = greedy_search(net, sources, 9)
    assert beam_search(net, sources, 9, 1, 1.0) == found
    for source, tokens in zip(sources, found, strict=True):
        logits = net.output(hidden(net, [source], [[1, *tokens]]))[0]
        logits[:, :2] = -torch.inf
        likeliest = logits.argmax(dim=-1).tolist()
        assert likeliest == [*tokens, 2] or (
            len(tokens) == 9 and likeliest[:9] == tokens
        )


@given(sentences, st.integers(0, 99))
def test_a_beam_finds_together_what_it_finds_alone(sources, seed):
    net = model(seed)
    alone = [beam_search(net, [source], 9, 3, 1.0)[0] for source in sources]
    assert beam_search(net, sources, 9, 3, 1.0) == alone


def test_it_is_as_large_as_the_transformer_beside_it():
    preset = PRESETS["tiny"]
    config = TransformerConfig(preset.vocab_size, preset.vocab_size, **preset.sizes)
    sizes = [
        sum(weight.numel() for weight in made.parameters())
        for made in (Transformer(config), recurrent.recurrent_model(config, 0))
    ]
    assert abs(sizes[0] - sizes[1]) < 0.01 * sizes[0]


@pytest.fixture(scope="module")
def dataset():
    pairs = [(" ".join(one), " ".join(two)) for one, two in sample_pairs(72, 0)]
    tokenizer = SubwordTokenizer.train([s for p in pairs for s in p], 120, "tok")
    examples = [(tokenizer.encode(one), tokenizer.encode(two)) for one, two in pairs]
    return TranslationDataset(
        examples[:60],
        examples[60:],
        [(one, tokenizer.normalize(two)) for one, two in pairs[60:]],
        tokenizer,
        tokenizer,
        ("fr", "en"),
        "tok",
    )


CONFIG = TrainingConfig(
    epochs=3, batch_tokens=200, learning_rate=0.01, warmup_steps=10, cooldown=0.0
)


def trained(dataset, folder, epochs=99):
    net = recurrent.recurrent_model(
        TransformerConfig(120, 120, d_model=16, dropout=0.2, max_length=64), seed=5
    )
    run = recurrent.train(dataset, net, CONFIG, folder)
    points = [point for _, point in zip(range(epochs), run, strict=False)]
    run.close()
    return net, points


def test_a_run_that_was_cut_ends_in_the_same_weights(dataset, tmp_path):
    whole, points = trained(dataset, tmp_path / "whole")
    trained(dataset, tmp_path / "cut", epochs=1)
    resumed, rest = trained(dataset, tmp_path / "cut")
    assert [point["epoch"] for point in points] == [1, 2, 3]
    assert [point["epoch"] for point in rest] == [2, 3]
    assert points[-1]["loss"] < points[0]["loss"]
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


def test_it_ends_with_the_weights_of_the_lowest_loss(dataset, tmp_path):
    net, points = trained(dataset, tmp_path)
    loss = validation_loss(net, dataset.validation, CONFIG.batch_tokens)
    assert round(loss, 4) == min(point["checked"] for point in points)
    sources = [source for source, _ in dataset.validation_pairs]
    net.eval()
    together = recurrent.translate(net, dataset.source_tokenizer, sources)
    assert together == [
        recurrent.translate(net, dataset.source_tokenizer, [source])[0]
        for source in sources
    ]
