import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from transformer import Transformer, TransformerConfig, training
from transformer.data import (
    EOS,
    PAD,
    Batch,
    make_batch,
    sample_pairs,
    to_examples,
    vocabularies,
)
from transformer.decoding import Translator
from transformer.model import read_checkpoint
from transformer.training import (
    Recipe,
    exact_match,
    label_smoothed_loss,
    load_training,
    papers_adam,
    phrasebook_examples,
    phrasebook_model,
    plan_batches,
    save_training,
    sweep,
    take_step,
    train,
    translated_exactly,
    warmup_rate,
)
from transformer.translation import TINY

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


@pytest.mark.plain
@pytest.mark.parametrize("name", ["step", "d_model", "warmup"])
def test_rate_refuses_what_is_nothing(name):
    with pytest.raises(ValueError, match=f"^{name} must be .* got 0$"):
        warmup_rate(**{"step": 1, "d_model": 8, "warmup": 4, name: 0})


def test_the_papers_own_rate():
    assert warmup_rate(4000, 512) == pytest.approx(6.99e-4, rel=1e-3)


@pytest.mark.plain
def test_the_seed_draws_the_phrasebooks_examples():
    french, english = vocabularies()
    for held_out in (False, True):
        pairs = sample_pairs(20, 1, held_out)
        examples = phrasebook_examples(20, 1, held_out)
        assert examples == to_examples(pairs, french, english)
        assert examples != phrasebook_examples(20, 0, held_out)


def test_a_recipe_stays_as_it_is():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Recipe().warmup = 9


def test_recipe_cools_down_to_nothing():
    recipe = Recipe(warmup=10, cool_down=0.5)
    assert recipe.rate(100, 100, 64) == 0
    assert recipe.rate(50, 100, 64) == warmup_rate(50, 64, 10)
    assert recipe.rate(75, 100, 64) == pytest.approx(warmup_rate(75, 64, 10) / 2)
    assert recipe.rate(25, 100, 64) == warmup_rate(25, 64, 10)
    assert Recipe(cool_down=1.0).rate(50, 100, 64) < warmup_rate(50, 64, 300)
    assert Recipe(cool_down=0.0).rate(100, 100, 64) == warmup_rate(100, 64, 300)


@pytest.mark.plain
@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"epochs": 0}, "epochs .* got 0"),
        ({"max_tokens": -1}, "max_tokens .* got -1"),
        ({"warmup": 0}, "warmup .* got 0"),
        ({"cool_down": 1.5}, r"\[0, 1\], got 1.5"),
        ({"cool_down": -0.5}, r"\[0, 1\], got -0.5"),
        ({"smoothing": 1}, r"\[0, 1\), got 1"),
        ({"smoothing": -0.5}, r"\[0, 1\), got -0.5"),
        ({"max_norm": 0}, "above 0, got 0"),
        ({"max_norm": float("nan")}, "above 0, got nan"),
    ],
)
def test_recipe_refuses(choice, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**choice)


def test_unless_told_otherwise_it_trains_as_the_shipped_weights_were():
    assert Recipe() == Recipe(2, 1024, 300, 0.5, 0.1, 1.0)
    logits, targets = torch.randn(2, 3, 9), torch.tensor([[3, 4, 2], [5, 2, PAD]])
    told = label_smoothed_loss(logits, targets, smoothing=0.1, pad_id=PAD)
    assert label_smoothed_loss(logits, targets) == told
    assert warmup_rate(7, 512) == warmup_rate(7, 512, 4000)
    shipped, seeded = phrasebook_model(), phrasebook_model(seed=0)
    assert torch.equal(weights(shipped), weights(seeded))
    torch.manual_seed(12345)  # which the model's own seed does not mind
    assert torch.equal(weights(shipped), weights(phrasebook_model(0)))
    assert not torch.equal(weights(shipped), weights(phrasebook_model(1)))
    assert phrasebook_examples(9) == phrasebook_examples(9, seed=0, held_out=False)
    recipe = Recipe(epochs=1, max_tokens=20)
    untold, zero, one = (
        [now.loss for now in train(small_model(), COPIES, recipe, *seed)]
        for seed in ((), (0,), (1,))
    )
    assert untold == zero != one


def test_unless_told_otherwise_there_are_50_000_examples(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "transformer.training.sample_pairs", lambda *those: asked.append(those) or []
    )
    assert phrasebook_examples() == []
    assert asked == [(50_000, 0, False)]


def test_a_plan_visits_every_example_in_every_epoch():
    plan = plan_batches(COPIES, max_tokens=9, epochs=3, seed=0)
    assert sorted(i for batch in plan for i in batch) == sorted(3 * [*range(25)])
    assert plan == plan_batches(COPIES, 9, 3, 0)
    assert plan != plan_batches(COPIES, 9, 3, 1)
    assert plan_batches([([3], [4, 5])], 3, 1, 0) == [[0]]  # two words and the end


def test_speed_and_time_left_by_hand(monkeypatch, tmp_path):
    lessons = [(source, target[:1]) for source, target in COPIES]
    clock = itertools.count(0, 0.25)
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))  # ¼ s a look

    def run():
        recipe = Recipe(epochs=1, max_tokens=10)
        return train(small_model(), lessons, recipe, 0, tmp_path / "run", every=1)

    begun = list(itertools.islice(run(), 2))
    progress = begun + list(run())  # which goes on after the two
    steps = len(progress)
    assert steps > 4
    assert [now.step for now in progress] == list(range(1, steps + 1))
    assert [now.seconds_left for now in progress] == [
        0.25 * (steps - now.step) for now in progress
    ]
    parts = (begun, progress[2:])
    read = sum(0.25 * len(part) * part[-1].tokens_per_second for part in parts)
    assert read == pytest.approx(2 * len(lessons))  # a word and the end of each


def test_a_step_minds_what_the_model_takes_for_padding():
    model = small_model(pad_id=8)
    batch = Batch(*(torch.tensor([ids]) for ids in ([3, 4], [1, 0, 5], [0, 5, 8])))
    wanted = label_smoothed_loss(model(*batch[:2]), batch.wanted, 0.1, pad_id=8)
    loss, _ = take_step(model, papers_adam(model), batch, 0.0, Recipe())
    assert loss == wanted.item()


def test_a_model_that_spoke_learns_with_dropout():
    model = small_model(dropout=0.5).eval()
    steps = train(model, COPIES, Recipe(epochs=1))
    next(steps)
    assert model.training


def test_what_another_has_swept_is_no_trouble(tmp_path, monkeypatch):
    gone = tmp_path / "run.1.part"
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: [gone])
    sweep(tmp_path / "run")
    assert not gone.exists()


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


def test_nothing_happens_until_asked():
    model = small_model()
    before = weights(model)
    train(model, COPIES)
    assert torch.equal(weights(model), before)


def test_steps_are_adams_on_the_clipped_gradients():
    model, twin = small_model(), small_model()
    recipe = Recipe(epochs=4, max_tokens=60, warmup=7, cool_down=0.0, max_norm=0.01)
    adam = torch.optim.Adam(twin.parameters(), betas=(0.9, 0.98), eps=1e-9)
    plan = plan_batches(COPIES, 60, 4, 0)
    assert len(plan) > 4  # the first alone does not know the betas
    for now, indices in zip(train(model, COPIES, recipe), plan, strict=True):
        batch = make_batch([COPIES[index] for index in indices])
        adam.zero_grad()
        label_smoothed_loss(twin(batch.source, batch.given), batch.wanted).backward()
        length = torch.cat([p.grad.flatten() for p in twin.parameters()]).norm()
        assert now.gradient == pytest.approx(length.item(), rel=1e-3)
        for weight in twin.parameters():
            weight.grad *= 0.01 / length
        assert now.rate == warmup_rate(now.step, 16, 7)
        adam.param_groups[0]["lr"] = now.rate
        adam.step()
    theirs = dict(twin.named_parameters())
    for name, ours in model.named_parameters():
        if "key_proj.bias" not in name:  # its gradient is 0, but for rounding
            torch.testing.assert_close(ours, theirs[name], rtol=1e-4, atol=1e-5)


@pytest.mark.plain
def test_the_papers_adam_moves_nothing_until_it_is_told_a_rate():
    model = small_model()
    before = weights(model)
    optimizer = papers_adam(model)
    label_smoothed_loss(
        model(*make_batch(COPIES)[:2]), make_batch(COPIES)[2]
    ).backward()
    optimizer.step()
    assert weights(model).equal(before)


def test_an_example_longer_than_4096_does_not_fit_unless_told():
    with pytest.raises(ValueError, match=r"1\.\.4096, got 4097"):
        translated_exactly(small_model(), [([3] * 4097, [4])])


def test_drawing_weights_asks_no_gpu_for_its_numbers(monkeypatch):
    asked, fork = [], torch.random.fork_rng
    monkeypatch.setattr(
        torch.random, "fork_rng", lambda devices: asked.append(devices) or fork(devices)
    )
    phrasebook_model()
    assert asked == [[]]


def test_sentences_go_where_the_model_is():
    model, seen = small_model().to("meta"), []
    model.register_forward_pre_hook(
        lambda _, ids: seen.extend(x.device.type for x in ids)
    )
    with pytest.raises(RuntimeError, match="meta"):  # which holds no answers
        translated_exactly(model, COPIES)
    with pytest.raises(RuntimeError, match="meta"):
        take_step(model, papers_adam(model), make_batch(COPIES), 0.1, Recipe())
    assert seen == ["meta"] * 4


def test_unless_told_otherwise_a_run_is_kept_each_hundred_steps(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(
        "transformer.training.save_training", lambda *those: kept.append(those[3])
    )
    recipe = Recipe(epochs=17, max_tokens=6)
    total = [
        one.step for one in train(small_model(), COPIES, recipe, 0, tmp_path / "run")
    ]
    assert kept == [100, 200, len(total)]  # and at the end


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


def test_a_plain_loss_holds_no_more_than_the_logits():
    class Widest(TorchDispatchMode):
        numbers = 0

        def __torch_dispatch__(self, function, _, args=(), how=None):
            made = function(*args, **(how or {}))
            if isinstance(made, torch.Tensor):
                self.numbers = max(self.numbers, made.numel())
            return made

    logits, targets = torch.randn(2, 50, 5), torch.randint(1, 5, (2, 50))
    with Widest() as widest:
        label_smoothed_loss(logits, targets)
    assert widest.numbers == logits.numel()


def test_adam_takes_its_step_in_one_pass():
    assert papers_adam(small_model()).defaults["fused"] is True


def test_examples_are_looked_at_once(monkeypatch):
    asked, plan = [], training.plan_batches
    monkeypatch.setattr(
        training,
        "plan_batches",
        lambda *what, **how: asked.append(how) or plan(*what, **how),
    )
    translated_exactly(phrasebook_model(), [([3, 4], [5]), ([3], [4, 5])])
    assert [how["epochs"] for how in asked] == [1]


def test_a_checkpoint_knows_its_lessons_by_twelve_digits(tmp_path):
    examples = [([3, 4], [5]), ([3], [4, 5])]
    recipe = Recipe(epochs=1)
    list(train(phrasebook_model(), examples, recipe, checkpoint=tmp_path / "kept"))
    _, about = read_checkpoint(tmp_path / "kept")
    whole = hashlib.sha256(json.dumps(examples).encode()).hexdigest()
    assert about["lessons"] == whole[:12]


@pytest.mark.parametrize("draw", [phrasebook_model, lambda: TINY.model(9)])
def test_drawing_weights_touches_no_gpu(draw, monkeypatch):
    touched = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for what in ("get_rng_state", "set_rng_state", "manual_seed_all"):
        monkeypatch.setattr(torch.cuda, what, lambda *_: touched.append("the GPU"))
    draw()
    assert not touched
    torch.manual_seed(0)
    assert touched  # so that the watch works


def test_the_translator_that_ships_is_the_phrasebook_model_trained():
    shipped = Translator.phrasebook().model
    assert shipped.config == phrasebook_model().config
    assert not torch.equal(weights(shipped), weights(phrasebook_model()))


@pytest.mark.plain  # checked shapes would make it slow
def test_a_few_steps_of_the_phrasebook_reduce_its_loss():
    model = phrasebook_model()
    examples = phrasebook_examples(2000)
    losses = [now.loss for now in train(model, examples, Recipe(epochs=1, warmup=60))]
    assert losses[-1] < losses[0] - 1


SHORT = Recipe(epochs=3, max_tokens=20, warmup=8)  # 15 steps


def noisy_model(seed=0) -> Transformer:
    """One whose training needs torch's random numbers, for dropout."""
    model = small_model(seed, dropout=0.3)
    torch.manual_seed(7)
    return model


def never_stopped():
    """The weights and losses of the short run, made in one go."""
    model = noisy_model()
    losses = [now.loss for now in train(model, COPIES, SHORT)]
    return weights(model), losses


def test_a_checkpoint_changes_nothing_about_a_run(tmp_path):
    expected, losses = never_stopped()
    model = noisy_model()
    path = tmp_path / "new" / "run.safetensors"
    steps = list(train(model, COPIES, SHORT, checkpoint=path, every=4))
    assert [now.loss for now in steps] == losses
    assert torch.equal(weights(model), expected)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("every", [1, 5])
def test_a_run_stopped_after_any_step_goes_on_to_the_same_bits(tmp_path, every):
    expected, losses = never_stopped()
    for stop in range(1, len(losses), 2):
        path = tmp_path / f"{stop}.safetensors"
        first = train(noisy_model(), COPIES, SHORT, checkpoint=path, every=every)
        assert [now.loss for now in itertools.islice(first, stop)] == losses[:stop]
        first.close()
        kept = stop - stop % every
        model = noisy_model(seed=9 if kept else 0)
        if kept:
            torch.manual_seed(stop)  # whatever happened in between
        rest = list(train(model, COPIES, SHORT, checkpoint=path, every=every))
        assert [now.loss for now in rest] == losses[kept:]
        assert [now.step for now in rest] == list(range(kept + 1, len(losses) + 1))
        assert all(now.seconds_left >= 0 for now in rest)
        assert torch.equal(weights(model), expected)
        assert not model.training


def test_a_finished_run_gives_its_weights_at_once(tmp_path):
    path, model = tmp_path / "run.safetensors", small_model()
    assert list(train(model, COPIES, SHORT, checkpoint=path))
    before = path.read_bytes()
    again = small_model(seed=3)
    assert list(train(again, COPIES, SHORT, checkpoint=path)) == []
    assert torch.equal(weights(again), weights(model))
    assert path.read_bytes() == before


NURSERY = """
import itertools, os, sys, torch
from safetensors import torch as _
from transformer import Transformer, TransformerConfig, Recipe, train

torch.set_num_threads(1)
torch.optim.Adam([torch.zeros(1)])  # which imports a good deal more
lessons = [([a, b], [b, a]) for a, b in itertools.product(range(3, 8), repeat=2)]
recipe = Recipe(epochs=20, max_tokens=20, warmup=8)

for line in sys.stdin:  # a line asks for one life; importing torch once is enough
    run, out = line.split()
    child = os.fork()
    if not child:
        torch.manual_seed(0)
        config = TransformerConfig(9, 9, 32, 4, 1, 1, 64, 0.3, max_length=8)
        model = Transformer(config)
        for now in train(model, lessons, recipe, checkpoint=run, every=2):
            print("step", now.step, repr(now.loss), flush=True)
        model.save(out)
        os._exit(0)
    print("born", child, flush=True)
    print("dead", os.waitpid(child, 0)[1], flush=True)
"""


@pytest.mark.plain  # real processes: the shape checker does not reach them
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
def test_killed_again_and_again_it_ends_in_the_same_bits(tmp_path):
    """SIGKILL at random moments: nothing of ours runs after it."""
    root, rng = Path(__file__).resolve().parent.parent, random.Random(0)
    nursery = subprocess.Popen(
        [sys.executable, "-c", NURSERY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        text=True,
    )
    assert nursery.stdin is not None
    assert nursery.stdout is not None

    def live(name: str, steps: int) -> tuple[int, dict[int, str]]:
        """One life, ended soon after so many steps: how it ended, and its losses."""
        print(tmp_path / name, tmp_path / f"{name}.model", file=nursery.stdin)
        nursery.stdin.flush()
        child, losses = 0, {}
        for line in nursery.stdout:
            what, *rest = line.split()
            if what == "dead":
                return int(rest[0]), losses
            if what == "born":
                child = int(rest[0])
            else:
                losses[int(rest[0])] = rest[1]
            if child and len(losses) >= steps:
                time.sleep(rng.uniform(0, 0.02))  # it computes, or it writes
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
                child = 0
        raise AssertionError("the nursery is gone")

    try:
        ended, expected = live("whole", 10**9)
        assert ended == 0
        seen: dict[int, str] = {}
        for kills in range(20):
            ended, losses = live("run", rng.randint(1, 8))
            assert ended == signal.SIGKILL, kills
            assert losses.items() <= expected.items()  # made twice, it is the same
            seen |= losses
        ended, losses = live("run", 10**9)
        assert ended == 0
        # Killed between writing and telling, a life takes a step's loss with it.
        untold = expected.keys() - (seen | losses).keys()
        assert all(step % 2 == 0 for step in untold), untold
        assert len(untold) <= 20
        assert losses.items() <= expected.items()
    finally:
        nursery.kill()
        nursery.communicate()
    whole, resumed = (
        Transformer.load(tmp_path / f"{n}.model") for n in ("whole", "run")
    )
    assert torch.equal(weights(whole), weights(resumed))
    assert not list(tmp_path.glob("*.part"))  # what the killed left is swept away


def test_what_a_killed_writer_left_is_swept_away_and_nothing_else(tmp_path):
    path = tmp_path / "run[1].safetensors"
    left = [f"{path.name}.{number}.part" for number in (7, 4711)]
    others = ["run1.safetensors.7.part", f"{path.name}.part", f"{path.name}.7"]
    for name in (*left, *others):
        (tmp_path / name).touch()
    next(train(small_model(), COPIES, SHORT, checkpoint=path))
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(others)


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_disk_that_fails_costs_no_more_than_the_steps_since(
    tmp_path, monkeypatch, failing
):
    expected, _ = never_stopped()
    path = tmp_path / "run.safetensors"
    run = train(noisy_model(), COPIES, SHORT, checkpoint=path, every=5)
    for _ in range(9):
        next(run)
    before = path.read_bytes()

    def full(*_) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, failing, full)
        with pytest.raises(OSError, match="No space left"):
            next(run)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    model = noisy_model(seed=4)
    list(train(model, COPIES, SHORT, checkpoint=path, every=5))
    assert torch.equal(weights(model), expected)


def half_way(tmp_path) -> Path:
    """A run's file after five of its steps."""
    path = tmp_path / "run.safetensors"
    for _ in itertools.islice(
        train(small_model(), COPIES, SHORT, checkpoint=path, every=5), 5
    ):
        pass
    return path


def refused(path, model=None, recipe=SHORT, seed=0, lessons=COPIES) -> str:
    """The one-line message; the model and the generator must be as they were."""
    model = model or small_model(seed=5)
    before, state = weights(model), torch.get_rng_state()
    with pytest.raises(ValueError, match=r"run\.safetensors") as caught:
        next(train(model, lessons, recipe, seed, checkpoint=path))
    assert torch.equal(weights(model), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.plain
def test_a_run_is_not_taken_up_by_another(tmp_path):
    path = half_way(tmp_path)
    assert "another run: its recipe is Recipe(epochs=3" in refused(
        path, recipe=Recipe(epochs=4, max_tokens=20, warmup=8)
    )
    assert "its seed is 0, here 1" in refused(path, seed=1)
    assert "its lessons is" in refused(path, lessons=COPIES[1:])
    assert "its config is" in refused(path, model=small_model(d_ff=64))
    changed = small_model()
    changed.output = torch.nn.Linear(16, 9)  # the same config, another part
    assert "of another model: model.output.bias does not fit" in refused(path, changed)
    changed.output = torch.nn.Linear(20, 9, bias=False)
    assert "model.output.weight does not fit" in refused(path, changed)
    assert len(list(train(small_model(), COPIES, SHORT, checkpoint=path))) == 10


def test_another_optimiser_does_not_take_it_up(tmp_path):
    path, model = half_way(tmp_path), small_model()
    with pytest.raises(ValueError, match="its optimizer is Adam, here SGD"):
        load_training(path, model, torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.plain
def test_a_damaged_file_is_named(tmp_path):
    path = half_way(tmp_path)
    whole = path.read_bytes()
    for cut in range(0, len(whole), len(whole) // 20):
        path.write_bytes(whole[:cut])
        assert "not a whole safetensors file" in refused(path)
    head = 8 + int.from_bytes(whole[:8], "little")
    for at in random.Random(0).sample(range(head, len(whole)), 20):
        path.write_bytes(
            whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]
        )
        assert "is damaged: it is not what was written" in refused(path)
    with_another_step = whole.replace(b'"step":"5"', b'"step":"6"')
    assert with_another_step != whole
    path.write_bytes(with_another_step)
    assert "is damaged" in refused(path)


@pytest.mark.plain
def test_a_file_of_something_else_is_named(tmp_path):
    path = tmp_path / "run.safetensors"
    small_model().save(path)
    assert "holds a model, not a training" in refused(path)
    save_file({"a": torch.ones(1)}, path)
    assert "not a checkpoint of this package" in refused(path)
    path.write_text("Dear reader")
    assert "not a whole safetensors file" in refused(path)
    with pytest.raises(ValueError, match="no checkpoint at"):
        load_training(tmp_path / "none", small_model(), papers_adam(small_model()))


def test_a_training_file_is_no_model(tmp_path):
    with pytest.raises(ValueError, match="does not match its config"):
        Transformer.load(half_way(tmp_path))


def test_what_else_a_run_needs_goes_with_it(tmp_path):
    model, path = small_model(tie_embeddings=True), tmp_path / "run"
    optimizer = papers_adam(model)
    mean = {"mean": torch.rand(3), "ids": torch.arange(4).int()}
    save_training(path, model, optimizer, 0, {"data": "copies"}, mean)
    step, more = load_training(path, model, optimizer, {"data": "copies"})
    assert step == 0
    assert more.keys() == mean.keys()
    assert all(torch.equal(more[name], mean[name]) for name in mean)
    assert load_training(path, model, optimizer)[0] == 0  # asks nothing of `about`
    with pytest.raises(ValueError, match="its data is copies, here other"):
        load_training(path, model, optimizer, {"data": "other"})
    with pytest.raises(ValueError, match="its seed is None, here 0"):
        load_training(path, model, optimizer, {"seed": "0"})


def test_the_file_can_be_read_by_anything_that_reads_safetensors(tmp_path):
    path = half_way(tmp_path)
    tensors = load_file(path)
    count = len(list(small_model().parameters()))
    kinds = [name.partition(".")[0] for name in tensors]
    assert kinds.count("model") == count
    assert kinds.count("optimizer") == 3 * count  # two means and a count for each
    with safe_open(path, framework="pt") as file:
        notes = file.metadata()
    assert notes["step"] == "5"
    assert json.loads(notes["config"])["d_model"] == 16


@pytest.mark.plain
def test_training_refuses_to_keep_a_file_every_zero_steps():
    with pytest.raises(ValueError, match=r"every .* got 0"):
        next(train(small_model(), COPIES, every=0))
