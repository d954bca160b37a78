import inspect
import json
import math
import os
import random
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from tests.strategies import models, seeds, token_ids
from transformer import Transformer, TransformerConfig, faster
from transformer.data import PAD, Batch, pad, sample_pairs, to_examples
from transformer.decoding import Translator, beam_search, greedy_search
from transformer.faster import (
    CoarseDropout,
    Speaker,
    chunked_loss,
    coarse_dropout,
    half_precision,
    lesson_loss,
    summed_loss,
)
from transformer.training import label_smoothed_loss

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}


def lesson(seed=0, batch=3, length=5, width=4, words=11, dtype=torch.float64):
    """What a decoder says, a table, and targets of which some are padding."""
    torch.manual_seed(seed)
    hidden = torch.randn(batch, length, width, dtype=dtype, requires_grad=True)
    table = torch.randn(words, width, dtype=dtype, requires_grad=True)
    wanted = torch.randint(0, words, (batch, length))
    wanted[-1, -1] = PAD
    wanted[0, 0] = 1  # at least one is no padding
    return hidden, table, wanted


def plain_loss(hidden, table, wanted, smoothing=0.1):
    return label_smoothed_loss(hidden @ table.T, wanted, smoothing)


def gradients(loss, *inputs):
    return torch.autograd.grad(loss, inputs)


@given(
    seeds,
    st.integers(1, 4),
    st.integers(1, 9),
    st.integers(1, 8),
    st.integers(2, 12),
    st.integers(1, 40),
    st.sampled_from([0.0, 0.1, 0.7]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_the_chunked_loss_is_the_plain_one(
    seed, batch, length, width, words, rows_at_once, smoothing, dtype
):
    hidden, table, wanted = lesson(seed, batch, length, width, words, dtype)
    plain = plain_loss(hidden, table, wanted, smoothing)
    ours = chunked_loss(hidden, table, wanted, smoothing, rows_at_once=rows_at_once)
    near = {"rtol": 4 * TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(ours, plain, **near)
    for one, other in zip(
        gradients(ours, hidden, table), gradients(plain, hidden, table), strict=True
    ):
        torch.testing.assert_close(one, other, **near)


def test_it_is_torchs_loss_at_the_size_of_a_real_vocabulary():
    hidden, table, wanted = lesson(1, 4, 80, 32, 5000, torch.float32)
    real = wanted.flatten() != PAD
    theirs = F.cross_entropy(
        (hidden @ table.T).flatten(0, 1)[real], wanted.flatten()[real]
    )
    ours = chunked_loss(hidden, table, wanted, smoothing=0.0)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    for one, other in zip(
        gradients(ours, hidden, table), gradients(theirs, hidden, table), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_gradient_is_the_slope(smoothing):
    hidden, table, wanted = lesson(2)

    def loss(hidden, table):
        return chunked_loss(hidden, table, wanted, smoothing, rows_at_once=4)

    assert torch.autograd.gradcheck(loss, (hidden, table))


def test_a_loss_that_is_scaled_has_a_gradient_that_is_scaled():
    hidden, table, wanted = lesson(3)
    once = gradients(chunked_loss(hidden, table, wanted), hidden, table)
    thrice = gradients(3 * chunked_loss(hidden, table, wanted), hidden, table)
    for one, other in zip(once, thrice, strict=True):
        torch.testing.assert_close(3 * one, other)


def test_going_back_twice_changes_nothing():
    hidden, table, wanted = lesson(4)
    loss = chunked_loss(hidden, table, wanted)
    loss.backward(retain_graph=True)
    first = hidden.grad.clone()
    loss.backward()
    torch.testing.assert_close(hidden.grad, 2 * first)


def test_extreme_logits_stay_finite():
    hidden, table, wanted = lesson(5, dtype=torch.float32)
    far = (1e4 * hidden).detach().requires_grad_()
    loss = chunked_loss(far, table, wanted)
    torch.testing.assert_close(loss, plain_loss(far, table, wanted))
    assert all(one.isfinite().all() for one in gradients(loss, far, table))


def test_without_gradients_none_is_made(monkeypatch):
    hidden, table, wanted = lesson(6)
    loss = chunked_loss(hidden, table, wanted).detach()

    def made(*_, **__):
        raise AssertionError("a gradient was made")

    for name in ("scatter_add_", "addmm_"):
        monkeypatch.setattr(torch.Tensor, name, made)
    with torch.no_grad():
        quiet = chunked_loss(hidden, table, wanted)
    assert not quiet.requires_grad
    torch.testing.assert_close(quiet, loss)
    with pytest.raises(AssertionError, match="a gradient was made"):
        chunked_loss(hidden, table, wanted)


def test_the_sum_is_the_mean_times_the_count():
    hidden, table, wanted = lesson(7)
    real = wanted != PAD
    total = summed_loss(hidden[real], table, wanted[real])
    mean = chunked_loss(hidden, table, wanted)
    torch.testing.assert_close(total, mean * real.sum())


@pytest.mark.plain
def test_a_lesson_is_cut_as_it_is_told_to_be():
    model = talker(dtype=torch.float32)
    ids = torch.tensor([[3, 4]])
    with pytest.raises(ValueError, match=r"rows_at_once must be .* got 0"):
        lesson_loss(model, Batch(ids, ids, ids), rows_at_once=0)
    with pytest.raises(ValueError, match="each target needs a row"):
        summed_loss(torch.zeros(2, 3, 8), torch.zeros(9, 8), torch.tensor([3, 4]))


@pytest.mark.parametrize("norm_first", [False, True])
def test_norms_divide_as_the_models_own_do(norm_first):
    model = talker(29, sharp=12, norm_first=norm_first)
    for part in model.modules():
        if isinstance(part, nn.LayerNorm):
            part.eps = 5.0
    sources = [[3, 4, 5], [6], [7, 8], [9, 3, 10, 4]]
    said = greedy_search(model, sources, 6)
    assert Speaker(model).greedy_search(sources, 6) == said


def test_a_sum_takes_every_word_for_one():
    """Only `chunked_loss` knows of padding: to `summed_loss` 0 is a word."""
    hidden, table, _ = lesson()
    rows, wanted = hidden.flatten(0, 1), torch.arange(15) % 11
    expected = F.cross_entropy(
        rows @ table.T, wanted, reduction="sum", label_smoothing=0.1
    )
    torch.testing.assert_close(summed_loss(rows, table, wanted), expected)


@pytest.mark.parametrize("rows_at_once", [1, 16, 4096])
def test_under_autocast_the_sums_stay_exact(rows_at_once):
    hidden, table, wanted = lesson(8, 4, 20, 16, 300, torch.float32)
    exact = chunked_loss(hidden, table, wanted)
    with torch.autocast("cpu", torch.bfloat16):
        halved = chunked_loss(hidden, table, wanted, rows_at_once=rows_at_once)
    assert halved.dtype == torch.float32
    torch.testing.assert_close(halved, exact, rtol=1e-2, atol=0)
    for one, other in zip(
        gradients(halved, hidden, table), gradients(exact, hidden, table), strict=True
    ):
        assert one.dtype == torch.float32
        assert (one - other).norm() < 0.01 * other.norm()


def test_under_autocast_a_logarithm_is_whole():
    """In bfloat16 a loss of 5 would be rounded by up to 0.016."""
    hidden, table, wanted = lesson(8, 4, 20, 16, 300, torch.float32)
    rows, table = hidden.flatten(0, 1).bfloat16(), table.bfloat16()
    logits = (rows @ table.T).float()
    for row, logit, word in zip(rows.float(), logits, wanted.flatten(), strict=True):
        for share in (0.0, 0.1):
            with torch.autocast("cpu", torch.bfloat16):
                loss = summed_loss(row[None], table.float(), word[None], share)
            whole = F.cross_entropy(logit, word, label_smoothing=share)
            assert (loss - whole).abs() < 0.004


def test_autocast_does_halve_the_products():
    hidden, table, wanted = lesson(8, 4, 20, 16, 300, torch.float32)
    low = hidden.bfloat16().float(), table.bfloat16().float()
    with torch.autocast("cpu", torch.bfloat16):
        halved = chunked_loss(hidden, table, wanted)
        again = chunked_loss(*low, wanted)  # the products see the same numbers
    assert (halved - again).abs() < (halved - chunked_loss(hidden, table, wanted)).abs()


def test_a_loss_makes_nothing_on_another_device():
    hidden, table, wanted = lesson(2)
    expected = chunked_loss(hidden, table, wanted, rows_at_once=4)
    with torch.device("meta"):
        loss = chunked_loss(hidden, table, wanted, rows_at_once=4)
        made = gradients(loss, hidden, table)
    assert loss == expected
    for one, other in zip(made, gradients(expected, hidden, table), strict=True):
        assert torch.equal(one, other)


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


def test_a_table_in_half_precision_is_served_too():
    # As many rows as it takes for a sum kept in half precision to stand still.
    hidden, table, wanted = lesson(9, 20, 100, 16, 300, torch.float32)
    exact = gradients(chunked_loss(hidden, table, wanted), hidden, table)
    low = [x.detach().bfloat16().requires_grad_() for x in (hidden, table)]
    halved = gradients(chunked_loss(*low, wanted, rows_at_once=16), *low)
    for one, other in zip(halved, exact, strict=True):
        assert one.dtype == torch.bfloat16
        assert (one.float() - other).norm() < 0.01 * other.norm()


@pytest.mark.plain
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"smoothing": 1.0}, r"smoothing must lie in \[0, 1\), got 1.0"),
        ({"smoothing": -0.5}, r"smoothing must lie in \[0, 1\), got -0.5"),
        ({"rows_at_once": 0}, "rows_at_once must be a whole number of at least 1"),
        (
            {"wanted": torch.ones(3, 4, dtype=torch.int64)},
            r"each target needs a row of hidden, got \(3, 5, 4\) and \(3, 4\)",
        ),
        ({"wanted": torch.zeros(3, 5, dtype=torch.int64)}, "got only padding"),
        ({"wanted": torch.full((3, 5), 11)}, r"targets must lie in 0..10, got 11"),
        ({"wanted": torch.full((3, 5), -1)}, r"targets must lie in 0..10, got -1"),
        ({"table": torch.zeros(11, 6)}, "equally wide, got 4 and 6"),
    ],
)
def test_what_cannot_be_is_refused(change, message):
    hidden, table, wanted = lesson()
    with pytest.raises(ValueError, match=message):
        chunked_loss(**{"hidden": hidden, "table": table, "wanted": wanted} | change)


@pytest.mark.plain
def test_a_sum_needs_a_row_for_each_target():
    hidden, table, wanted = lesson()
    with pytest.raises(ValueError, match=r"row of hidden, got \(5, 4\) and \(4,\)"):
        summed_loss(hidden[0], table, wanted[0, :4])
    with pytest.raises(ValueError, match=r"targets must lie in 0\.\.10, got 11"):
        summed_loss(hidden[0], table, torch.tensor([0, 3, 11, 4, 5]))
    with pytest.raises(ValueError, match=r"targets must lie in 0\.\.10, got -1"):
        summed_loss(hidden[0], table, torch.tensor([0, 3, -1, 4, 5]))


@given(models(), token_ids(padded=True), token_ids(padded=True))
def test_a_lesson_costs_and_teaches_the_same(model, source, given_ids):
    rows = min(len(source), len(given_ids))
    source, given_ids = source[:rows], given_ids[:rows]
    wanted = given_ids.roll(-1, dims=1).masked_fill(given_ids == PAD, PAD)
    batch = Batch(source, given_ids, wanted)
    parameters = list(model.parameters())
    plain = label_smoothed_loss(model(source, given_ids), wanted)
    ours = lesson_loss(model, batch, rows_at_once=3)
    torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)
    for one, other in zip(
        gradients(ours, *parameters), gradients(plain, *parameters), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


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


@settings(max_examples=15)
@given(models(), token_ids(padded=True))
def test_half_precision_says_nearly_the_same(model, ids):
    model = model.float()
    batch = Batch(ids, ids, ids)
    exact = lesson_loss(model, batch)
    with half_precision("cpu"):
        halved = lesson_loss(model, batch)
    assert halved.dtype == torch.float32
    torch.testing.assert_close(halved, exact, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.5, 0.9])
def test_coarse_dropout_drops_its_share_and_adds_nothing(rate, dtype):
    torch.manual_seed(0)
    x = torch.full((333, 1001), 2.0, dtype=dtype, requires_grad=True)
    y = CoarseDropout(rate)(x)
    assert y.dtype == dtype
    assert y.shape == x.shape
    (slope,) = gradients(y.double().sum(), x)
    torch.testing.assert_close(2 * slope, y)  # what is dropped learns nothing
    share = (y == 0).double().mean().item()
    assert abs(share - rate) < 5 * (rate * (1 - rate) / x.numel()) ** 0.5 + 1e-5
    left = y[y != 0].double()
    torch.testing.assert_close(left.max(), left.min())
    assert abs(left[0] / 2 * (1 - rate) - 1) < (0.004 if dtype.itemsize == 2 else 1e-4)


@given(seeds, st.integers(0, 9), st.integers(0, 9), st.booleans())
def test_coarse_dropout_follows_the_seed_whatever_the_shape(
    seed, rows, columns, turned
):
    x = torch.randn(rows, columns).T if turned else torch.randn(columns, rows)
    coarse = CoarseDropout(0.4)
    torch.manual_seed(seed)
    first = coarse(x)
    torch.manual_seed(seed)
    assert torch.equal(coarse(x), first)
    kept = x.masked_fill(first == 0, 0.0) / 0.6
    torch.testing.assert_close(first, kept, rtol=1e-4, atol=0)
    assert torch.equal(coarse.eval()(x), x)


def test_neighbours_that_share_a_draw_are_dropped_apart():
    torch.manual_seed(0)
    gone = (CoarseDropout(0.25)(torch.ones(4, 100_000).T.contiguous()) == 0).double()
    expected = torch.full((4, 4), 0.0).fill_diagonal_(1.0)
    torch.testing.assert_close(gone.T.corrcoef().float(), expected, atol=0.02, rtol=0)


def test_a_rate_next_to_one_keeps_something_finite():
    torch.manual_seed(0)
    y = CoarseDropout(1 - 1e-9)(torch.ones(2**20))
    assert y.isfinite().all()
    assert set(y.unique().tolist()) == {0.0, 2.0**16}


@given(models())
def test_a_model_with_coarse_dropout_is_the_same_model(model):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    plain = [m for m in model.modules() if isinstance(m, torch.nn.Dropout)]
    for index, one in enumerate(plain):
        one.p = index / len(plain)  # no two alike
    rates = [one.p for one in plain]
    coarse_dropout(model)
    coarse_dropout(model)  # a second time changes nothing
    dropouts = [m for m in model.modules() if isinstance(m, torch.nn.Dropout)]
    assert [type(one) for one in dropouts] == [CoarseDropout] * len(rates)
    assert [one.p for one in dropouts] == rates
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_a_model_that_speaks_goes_on_without_dropout():
    part = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Dropout(0.5)).eval()
    part[0].train()
    coarse_dropout(part)
    assert [one.training for one in part] == [True, False]


def test_coarse_dropout_stays_where_the_numbers_are():
    x = torch.ones(64)
    with torch.device("meta"):
        y = CoarseDropout(0.5)(x)
    assert 0 < y.count_nonzero() < 64


def test_off_a_processor_coarse_dropout_is_torchs_own():
    x = torch.ones(3, 4, device="meta")
    assert CoarseDropout(0.5)(x).device.type == "meta"


def test_no_second_derivative_is_pretended():
    hidden, table, wanted = lesson(10)
    loss = chunked_loss(hidden, table, wanted).square()  # its slope is not a constant
    (slope,) = torch.autograd.grad(loss, hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        slope.sum().backward()


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


def test_a_loss_in_pieces_uses_the_same_memory_again(monkeypatch):
    outs, sums = {"mm": [], "softmax": []}, []
    for name in outs:
        own = getattr(torch, name)

        def watched(*what, own=own, to=outs[name], **how):
            to.append(how["out"].data_ptr())
            return own(*what, **how)

        monkeypatch.setattr(torch, name, watched)
    logsumexp = torch.Tensor.logsumexp
    monkeypatch.setattr(
        torch.Tensor,
        "logsumexp",
        lambda rows, dim: sums.append(len(rows)) or logsumexp(rows, dim),
    )
    hidden, table, wanted = lesson(batch=3, length=4)
    chunked_loss(hidden, table, wanted, rows_at_once=4)
    assert len(outs["mm"]) == len(outs["softmax"]) == 3
    assert len({*outs["mm"]}) == len({*outs["softmax"]}) == 1
    assert outs["mm"][0] != outs["softmax"][0]
    assert sums == [0, 0, 0]  # only for what is too unlikely for a number


@pytest.mark.parametrize("loss", [summed_loss, chunked_loss, lesson_loss])
def test_256_rows_at_once_unless_told(loss):
    assert inspect.signature(loss).parameters["rows_at_once"].default == 256


@pytest.mark.parametrize("size", [1, 4, 5, 4097])
def test_four_numbers_take_one_draw(size):
    dropout = CoarseDropout(0.5).train()
    torch.manual_seed(1)
    dropout(torch.ones(size))
    drawn = torch.rand(3)
    torch.manual_seed(1)
    torch.empty(math.ceil(size / 4), dtype=torch.int64).random_(-(2**63), None)
    assert torch.equal(drawn, torch.rand(3))


def test_only_on_a_processor_are_kernels_ruled_out():
    with half_precision("cpu"):
        assert not torch.backends.cuda.flash_sdp_enabled()
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no GPU here
        with half_precision("cuda"):
            assert torch.backends.cuda.flash_sdp_enabled()
            assert torch.backends.cuda.math_sdp_enabled()
            assert torch.get_autocast_dtype("cuda") == torch.bfloat16


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
