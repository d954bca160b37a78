import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from transformer import Transformer, TransformerConfig
from transformer.data import EOS, PAD, make_batch
from transformer.training import (
    Recipe,
    exact_match,
    label_smoothed_loss,
    phrasebook_examples,
    phrasebook_model,
    plan_batches,
    train,
    translated_exactly,
    warmup_rate,
)

COPIES = [([a, b], [b, a]) for a, b in itertools.product(range(3, 8), repeat=2)]


def small_model(seed=0, **overrides) -> Transformer:
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 32, "max_length": 8}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1, "dropout": 0.0}
    torch.manual_seed(seed)
    return Transformer(TransformerConfig(9, 9, **(sizes | layers | overrides)))


def weights(model):
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


@given(
    st.integers(0, 2**16),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(2, 9),
    st.floats(0, 0.9),
)
def test_loss_equals_torchs_with_its_gradient(seed, batch, length, words, smoothing):
    torch.manual_seed(seed)
    logits = torch.randn(batch, length, words, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, words, (batch, length))
    targets[0, 0] = 1  # not all padding
    ours = label_smoothed_loss(logits, targets, smoothing)
    theirs = F.cross_entropy(
        logits.flatten(0, 1),
        targets.flatten(),
        ignore_index=PAD,
        label_smoothing=smoothing,
    )
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        torch.autograd.grad(ours, logits)[0], torch.autograd.grad(theirs, logits)[0]
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("words", [2, 163])
def test_no_logits_get_below_the_floor(words, smoothing):
    q = torch.full((words,), smoothing / words, dtype=torch.float64)
    q[1] += 1 - smoothing
    floor = -torch.special.xlogy(q, q).sum()
    target = torch.tensor([[1]])
    for scale in (0.0, 1.0, 3.0, 8.0):
        logits = scale * torch.randn(50, 1, words, dtype=torch.float64)
        for one in logits:
            assert label_smoothed_loss(one[None], target, smoothing) >= floor - 1e-12
    best = q.clamp(min=1e-300).log()[None, None]
    torch.testing.assert_close(label_smoothed_loss(best, target, smoothing), floor)


def test_padding_has_no_part_in_the_loss():
    logits, targets = torch.randn(2, 3, 9), torch.tensor([[3, 4, 2], [5, 2, PAD]])
    before = label_smoothed_loss(logits, targets)
    logits[1, 2] = float("nan")
    assert label_smoothed_loss(logits, targets) == before


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, float("nan")])
def test_loss_refuses_bad_smoothing(smoothing):
    with pytest.raises(ValueError, match=rf"\[0, 1\), got {smoothing}"):
        label_smoothed_loss(torch.randn(1, 1, 4), torch.tensor([[1]]), smoothing)


@pytest.mark.plain
def test_loss_refuses_sizes_that_disagree():
    with pytest.raises(
        ValueError, match=r"row of logits, got \(1, 2, 4\) and \(1, 3\)"
    ):
        label_smoothed_loss(torch.randn(1, 2, 4), torch.ones(1, 3, dtype=torch.long))


def test_loss_refuses_padding_alone():
    with pytest.raises(ValueError, match="only padding"):
        label_smoothed_loss(torch.randn(1, 2, 4), torch.zeros(1, 2, dtype=torch.long))


@given(st.integers(1, 1024), st.integers(1, 8000))
def test_rate_peaks_at_the_end_of_the_warmup(width, warmup):
    peak = warmup_rate(warmup, width, warmup)
    assert math.isclose(peak, (width * warmup) ** -0.5)
    assert warmup_rate(4 * warmup, width, warmup) == pytest.approx(peak / 2)
    for step in (1, warmup // 2, warmup - 1, warmup + 1, 2 * warmup):
        if step >= 1:
            assert warmup_rate(step, width, warmup) <= peak * (1 + 1e-12)


def test_the_papers_own_rate():
    assert warmup_rate(4000, 512) == pytest.approx(6.99e-4, rel=1e-3)


@pytest.mark.plain
def test_rate_refuses_step_zero():
    with pytest.raises(ValueError, match=r"step .* got 0"):
        warmup_rate(0, 512)


def test_recipe_cools_down_to_nothing():
    recipe = Recipe(warmup=10, cool_down=0.5)
    assert recipe.rate(100, 100, 64) == 0
    assert recipe.rate(50, 100, 64) == warmup_rate(50, 64, 10)
    assert recipe.rate(75, 100, 64) == pytest.approx(warmup_rate(75, 64, 10) / 2)
    assert Recipe(cool_down=0.0).rate(100, 100, 64) == warmup_rate(100, 64, 300)


@pytest.mark.plain
@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"epochs": 0}, "epochs .* got 0"),
        ({"max_tokens": -1}, "max_tokens .* got -1"),
        ({"warmup": 0}, "warmup .* got 0"),
        ({"cool_down": 1.5}, r"\[0, 1\], got 1.5"),
        ({"smoothing": 1}, r"\[0, 1\), got 1"),
        ({"max_norm": 0}, "above 0, got 0"),
        ({"max_norm": float("nan")}, "above 0, got nan"),
    ],
)
def test_recipe_refuses(choice, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**choice)


def test_a_plan_visits_every_example_in_every_epoch():
    plan = plan_batches(COPIES, max_tokens=9, epochs=3, seed=0)
    assert sorted(i for batch in plan for i in batch) == sorted(3 * [*range(25)])
    assert plan == plan_batches(COPIES, 9, 3, 0)
    assert plan != plan_batches(COPIES, 9, 3, 1)


@pytest.mark.plain  # checked shapes would make it slow
def test_training_learns_and_says_how_it_goes():
    model = small_model()
    recipe = Recipe(epochs=120, max_tokens=200, warmup=40)
    progress = list(train(model, COPIES, recipe))
    assert [now.step for now in progress] == list(range(1, len(progress) + 1))
    assert {now.total for now in progress} == {len(progress)}
    assert progress[-1].loss < 0.5 * progress[0].loss
    assert progress[-1].seconds_left == 0
    assert progress[0].seconds_left > 0
    assert all(now.tokens_per_second > 0 and now.gradient > 0 for now in progress)
    assert progress[-1].rate == 0
    assert exact_match(model, COPIES) == 1
    assert not model.training


def test_the_same_seed_gives_the_same_bits():
    runs = []
    for seed in (0, 0, 1):
        model = small_model()
        losses = [now.loss for now in train(model, COPIES, Recipe(epochs=3), seed)]
        runs.append((losses, weights(model)))
    assert runs[0][0] == runs[1][0]
    assert torch.equal(runs[0][1], runs[1][1])
    assert not torch.equal(runs[0][1], runs[2][1])


def test_nothing_happens_until_asked():
    model = small_model()
    before = weights(model)
    train(model, COPIES)
    assert torch.equal(weights(model), before)


def test_a_step_is_adams_on_the_clipped_gradient():
    model, twin = small_model(), small_model()
    recipe = Recipe(epochs=1, max_tokens=500, warmup=7, cool_down=0.0, max_norm=0.01)
    (now,) = train(model, COPIES[:10], recipe)
    (indices,) = plan_batches(COPIES[:10], 500, 1, 0)
    batch = make_batch([COPIES[index] for index in indices])
    label_smoothed_loss(twin(batch.source, batch.given), batch.wanted).backward()
    length = torch.cat([p.grad.flatten() for p in twin.parameters()]).norm()
    assert now.gradient == pytest.approx(length.item(), rel=1e-4)
    for weight in twin.parameters():
        weight.grad *= 0.01 / length
    torch.optim.Adam(
        twin.parameters(), lr=warmup_rate(1, 16, 7), betas=(0.9, 0.98), eps=1e-9
    ).step()
    torch.testing.assert_close(weights(model), weights(twin), rtol=1e-4, atol=1e-6)


@pytest.mark.plain
def test_training_refuses_no_examples():
    with pytest.raises(ValueError, match=r"examples .* got 0"):
        next(train(small_model(), []))
    with pytest.raises(ValueError, match=r"examples .* got 0"):
        exact_match(small_model(), [])


def test_training_refuses_an_example_longer_than_a_batch():
    with pytest.raises(ValueError, match=r"1\.\.4, got 6"):
        next(train(small_model(), [([3] * 6, [3])], Recipe(max_tokens=4)))


def test_exactness_is_all_words_and_the_end():
    model = small_model()
    batch = make_batch([([3, 4], [5, 6])])

    def insist(favourites):
        logits = F.one_hot(torch.tensor([favourites]), 9).float()
        model.forward = lambda *_: logits
        return translated_exactly(model, [([3, 4], [5, 6])])

    assert batch.wanted.tolist() == [[5, 6, EOS]]
    assert insist([5, 6, EOS]) == [True]
    assert insist([5, 7, EOS]) == [False]
    assert insist([5, 6, 7]) == [False]


def test_examination_leaves_the_model_as_it_was():
    model = small_model(dropout=0.5).train()
    seen = []
    model.encoder.register_forward_hook(
        lambda encoder, *_: seen.append(encoder.training)
    )
    assert len(translated_exactly(model, COPIES)) == len(COPIES)
    assert seen
    assert not any(seen)  # no dropout while it is examined
    assert model.training
    assert not any(weight.grad is not None for weight in model.parameters())
    with pytest.raises(ValueError, match="positions"):
        translated_exactly(model, [([3] * 9, [3])])
    assert model.training


def test_the_phrasebook_model_is_seeded_and_leaves_the_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, other = phrasebook_model(seed=1), phrasebook_model(seed=1)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(weights(one), weights(other))
    assert not torch.equal(weights(one), weights(phrasebook_model(seed=2)))


@pytest.mark.plain  # checked shapes would make it slow
def test_a_few_steps_of_the_phrasebook_reduce_its_loss():
    model = phrasebook_model()
    examples = phrasebook_examples(2000)
    losses = [now.loss for now in train(model, examples, Recipe(epochs=1, warmup=60))]
    assert losses[-1] < losses[0] - 1
