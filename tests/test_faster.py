import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformer.data import Batch, pad, sample_pairs, to_examples
from transformer.faster import (
    Speaker,
)

from tests.strategies import seeds
from transformer import Transformer, TransformerConfig, faster
from transformer.decoding import Translator, beam_search, greedy_search


@pytest.mark.parametrize("norm_first", [False, True])
def test_norms_divide_as_the_models_own_do(norm_first):
    model = talker(29, sharp=12, norm_first=norm_first)
    for part in model.modules():
        if isinstance(part, nn.LayerNorm):
            part.eps = 5.0
    sources = [[3, 4, 5], [6], [7, 8], [9, 3, 10, 4]]
    said = greedy_search(model, sources, 6)
    assert Speaker(model).greedy_search(sources, 6) == said


@pytest.mark.parametrize("search", ["greedy_search", "beam_search"])
def test_a_lean_search_makes_nothing_on_another_device(search, monkeypatch):
    model = talker(29, torch.float32, sharp=12)
    with torch.device("meta"):
        speaker = Speaker(model)
    sources = [[3, 4, 5], [6], [7, 8], [9, 3, 10, 4]]
    expected = getattr(speaker, search)(sources, 6)
    assert len({len(said) for said in expected}) > 1  # some end before others

    def pad_on_the_processor(*arguments):
        with torch.device("cpu"):
            return pad(*arguments)

    monkeypatch.setattr("transformer.decoding.pad", pad_on_the_processor)
    with torch.device("meta"):
        assert getattr(speaker, search)(sources, 6) == expected


def test_masks_are_made_of_ids_and_the_id_of_padding(monkeypatch):
    asked, own = [], faster.padding_mask

    def made(ids, pad_id):
        asked.append((tuple(ids.shape), pad_id))
        return own(ids, pad_id)

    monkeypatch.setattr(faster, "padding_mask", made)
    config = TransformerConfig(9, 9, 8, 2, 1, 1, 8, pad_id=5, bos_id=6, eos_id=7)
    model = Transformer(config)
    source, target = torch.tensor([[3, 4, 5]]), torch.tensor([[6, 4]])
    lesson_loss(model, Batch(source, target, torch.tensor([[4, 7]])))
    Speaker(model).greedy_search([[3, 4], [3]], 2)
    assert asked == [((1, 3), 5), ((2, 2), 5)]


def talker(seed=0, dtype=torch.float64, sharp=1, **overrides) -> Transformer:
    """A model with random weights, and with biases and norms that do something.

    The `sharp` times as large its logits, the more it minds what was said before.
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
    return model.to(dtype)


sources = st.lists(
    st.lists(st.integers(3, 10), min_size=1, max_size=7), min_size=1, max_size=4
)


@settings(max_examples=20)
@given(sources, seeds, st.integers(1, 9), st.booleans())
def test_the_speakers_greedy_search_is_the_plain_one(batch, seed, length, norm_first):
    model = talker(seed, norm_first=norm_first)
    assert Speaker(model).greedy_search(batch, length) == greedy_search(
        model, batch, length
    )


@given(
    sources,
    seeds,
    st.integers(1, 9),
    st.integers(1, 12),
    st.sampled_from([0.0, 0.6, 1.5]),
    st.booleans(),
)
def test_the_speakers_beam_search_is_the_plain_one(
    batch, seed, length, beam_size, penalty, norm_first
):
    model = talker(seed, norm_first=norm_first)
    ours = Speaker(model).beam_search(batch, length, beam_size, penalty)
    assert ours == beam_search(model, batch, length, beam_size, penalty)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("beams", [1, 2, 3, 20])  # at last more beams than words
def test_a_few_sentences_come_out_the_same(norm_first, beams):
    sources = [[3, 4, 5], [6], [7, 8], [9, 3, 10, 4]]
    for seed in (13, 29):
        model = talker(seed, sharp=12, norm_first=norm_first)
        speaker = Speaker(model)
        assert speaker.beam_search(sources, 6, beams) == beam_search(
            model, sources, 6, beams
        )
        assert speaker.greedy_search(sources, 6) == greedy_search(model, sources, 6)


@pytest.mark.plain  # checked shapes would make it slow
def test_many_models_beams_are_the_plain_ones():
    """Few of them tell a slip in the search; hypothesis would try the smallest."""
    rng = random.Random(0)
    for seed in range(80):
        batch = [
            [rng.randint(3, 10) for _ in range(rng.randint(1, 7))]
            for _ in range(rng.randint(1, 3))
        ]
        model = talker(seed, sharp=rng.choice([1, 2]), norm_first=seed % 2 == 0)
        how = rng.randint(2, 9), rng.randint(2, 12), rng.choice([0.0, 0.6, 1.5])
        ours = Speaker(model).beam_search(batch, *how)
        assert ours == beam_search(model, batch, *how), (seed, batch, how)


@settings(max_examples=15)
@given(sources, seeds, st.integers(2, 5))
def test_each_beginning_hears_what_the_whole_model_says(batch, seed, beams):
    """Through crossings of beginnings, every logit is that of the plain forward."""
    model = talker(seed).eval()
    speaker = Speaker(model)
    source = torch.tensor([ids + [0] * (7 - len(ids)) for ids in batch])
    said = torch.ones(len(source), beams, 1, dtype=torch.int64)
    with torch.inference_mode():
        talk = speaker.hear(source, 5, beams)
        for _ in range(4):
            logits = speaker.next_logits(said[..., -1], talk)
            whole = model(source.repeat_interleave(beams, 0), said.flatten(0, 1))[:, -1]
            torch.testing.assert_close(logits, whole)
            kept = speaker.rule_out(logits.clone())
            assert kept[:, 2:].equal(logits[:, 2:])
            assert kept[:, :2].eq(-torch.inf).all()
            parents = torch.randint(0, beams, said.shape[:2])
            said = said.gather(1, parents[..., None].expand_as(said))
            fresh = torch.randint(2, 9, said.shape[:2])
            said = torch.cat((said, fresh[..., None]), dim=-1)
            talk.follow(parents)


def test_sentences_of_the_phrasebook_come_out_the_same():
    translator = Translator.phrasebook()
    words = translator.source, translator.target
    batch = [ids for ids, _ in to_examples(sample_pairs(60, 3), *words)]
    for ids in batch[:20]:  # of what it has learnt it is sure; of nonsense it is not
        batch.append(random.Random(len(batch)).sample(ids + batch[0], len(ids)))
    model = translator.model.double()
    speaker = Speaker(model)
    plain = greedy_search(model, batch, 31)
    assert speaker.greedy_search(batch, 31) == plain
    assert speaker.beam_search(batch, 31) == beam_search(model, batch, 31)
    assert [speaker.greedy_search([ids], 31)[0] for ids in batch[:8]] == plain[:8]


def test_sentences_of_one_length_need_no_mask_and_leave_when_they_end():
    model = talker(1)
    batch = [[3, 4, 5], [6, 7, 8], [9, 10, 3], [4, 4, 4]]
    plain = greedy_search(model, batch, 9)
    assert len(set(map(len, plain))) > 1
    assert Speaker(model).greedy_search(batch, 9) == plain
    assert Speaker(model).beam_search(batch, 9) == beam_search(model, batch, 9)


def test_the_speaker_writes_its_logits_where_they_were(monkeypatch):
    """What is fast about it: no memory is asked for, no mask made in vain."""
    speaker = Speaker(talker(1))
    for beams in (1, 2):
        talk = speaker.hear(torch.tensor([[3, 4], [5, 6]]), 4, beams)
        assert talk.source_mask is None
        assert (talk.seen is None) is (beams == 1)
        assert talk.sheets.size(0) == 2
        words = torch.full((2, beams), 1)
        for _ in range(2):
            with torch.no_grad():
                logits = speaker.next_logits(words, talk)
            assert logits.data_ptr() == talk.sheets[0].data_ptr()
    talks, outs, hear, log_softmax = [], [], speaker.hear, torch.log_softmax

    def watched(logits, dim, out):
        outs.append(out.data_ptr())
        return log_softmax(logits, dim=dim, out=out)

    monkeypatch.setattr(
        speaker, "hear", lambda *what: talks.append(hear(*what)) or talks[0]
    )
    monkeypatch.setattr(torch, "log_softmax", watched)
    speaker.beam_search([[3, 4], [5, 6, 7]], 4, 2)
    assert talks[0].source_mask is not None
    assert set(outs) == {talks[0].sheets[1].data_ptr()}


@pytest.mark.parametrize("search", ["greedy_search", "beam_search"])
def test_who_has_ended_is_not_carried_along(search, monkeypatch):
    speaker = Speaker(talker(1))
    next_logits, rows = speaker.next_logits, []

    def one_ends(words, talk):
        rows.append(len(words))
        logits = next_logits(words, talk).fill_(0.0)
        logits[0, speaker.model.config.eos_id] = 9.0  # the first of those still there
        logits[1:, 5] = 9.0
        return logits

    monkeypatch.setattr(speaker, "next_logits", one_ends)
    how = (8,) if search == "greedy_search" else (8, 1)
    said = getattr(speaker, search)([[3, 4], [5], [6, 7]], *how)
    assert said == [[], [5], [5, 5]]
    assert rows == [3, 2, 1]


def test_speaking_leaves_the_model_as_it_was():
    model = talker(dtype=torch.float32)
    model.train()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    speaker = Speaker(model)
    first = speaker.beam_search([[3, 4], [5]], 8)
    assert speaker.beam_search([[3, 4], [5]], 8) == first  # nothing is left over
    assert model.training
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before[name])
        assert weight.requires_grad


@pytest.mark.plain
def test_the_speaker_refuses_what_the_searches_refuse():
    speaker = Speaker(talker())
    with pytest.raises(ValueError, match="beam_size must be a whole number"):
        speaker.beam_search([[3]], 4, beam_size=0)
    with pytest.raises(ValueError, match="length_penalty must be finite"):
        speaker.beam_search([[3]], 4, length_penalty=float("nan"))
    with pytest.raises(ValueError, match="max_length must be at most 12"):
        speaker.greedy_search([[3]], 13)
    with pytest.raises(ValueError, match="every source needs at least one id"):
        speaker.greedy_search([[3], []], 4)
    with pytest.raises(ValueError, match=r"token ids must lie in 0..10, got 11"):
        speaker.beam_search([[11]], 4)


def test_the_gpus_benchmark_runs_whole_where_there_is_no_gpu(tmp_path):
    script = Path(__file__).parent.parent / "benchmarks" / "gpu.py"
    done = subprocess.run(
        [sys.executable, script, "--smoke", "--out", tmp_path],
        capture_output=True,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "gpu-smoke.json").read_text("utf-8"))
    parts = found["parts"]
    assert not [part for part in parts.values() if {"failed", "skipped"} & set(part)]
    assert {"kernels", "training", "training, compiled", "decoding"} <= set(parts)
    assert parts["decoding"]["float32, batch 2"]["same words"]
    assert found["made"]["torch"] == torch.__version__
