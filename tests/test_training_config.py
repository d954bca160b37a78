import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer.training.config import (
    SCHEDULES,
    TrainingConfig,
    noam_learning_rate,
)


@given(st.integers(1, 1024), st.integers(1, 8000))
def test_the_papers_learning_rate_peaks_at_the_end_of_the_warmup(width, warmup):
    peak = noam_learning_rate(warmup, width, warmup)
    assert math.isclose(peak, (width * warmup) ** -0.5)
    assert noam_learning_rate(4 * warmup, width, warmup) == pytest.approx(peak / 2)
    for step in (1, warmup // 2, warmup - 1, warmup + 1, 2 * warmup):
        if step >= 1:
            assert noam_learning_rate(step, width, warmup) <= peak * (1 + 1e-12)


def test_the_paper_has_a_peak_of_seven_ten_thousandths():
    assert noam_learning_rate(4000, 512) == pytest.approx(6.99e-4, rel=1e-3)


@pytest.mark.plain
@pytest.mark.parametrize("name", ["step", "d_model", "warmup_steps"])
def test_a_learning_rate_needs_sizes(name):
    with pytest.raises(ValueError, match=f"^{name} must be .* got 0$"):
        noam_learning_rate(**{"step": 1, "d_model": 8, "warmup_steps": 4, name: 0})


def test_without_a_learning_rate_the_papers_is_used():
    config = TrainingConfig(warmup_steps=10, cooldown=0.0)
    for step in (1, 9, 10, 11, 100):
        paper = noam_learning_rate(step, 64, 10)
        assert config.learning_rate_at(step, 100, 64) == paper
        peak = noam_learning_rate(10, 64, 10)
        own = dataclasses.replace(config, learning_rate=peak)
        assert own.learning_rate_at(step, 100, 64) == pytest.approx(paper)
    cosine = dataclasses.replace(config, schedule="cosine")
    assert cosine.learning_rate_at(10, 100, 64) == noam_learning_rate(10, 64, 10)


def test_schedules_rise_to_the_peak_and_fall():
    config = TrainingConfig(learning_rate=0.01, warmup_steps=10, cooldown=0.0)
    cosine = dataclasses.replace(config, schedule="cosine")
    for each in (config, cosine):
        assert each.learning_rate_at(5, 90, 64) == pytest.approx(0.005)
        assert each.learning_rate_at(10, 90, 64) == 0.01
    assert config.learning_rate_at(40, 90, 64) == pytest.approx(0.005)
    assert cosine.learning_rate_at(50, 90, 64) == pytest.approx(0.005)
    assert cosine.learning_rate_at(90, 90, 64) == 0.0


def test_the_cooldown_ends_at_zero():
    config = TrainingConfig(warmup_steps=10, cooldown=0.5)
    assert config.learning_rate_at(100, 100, 64) == 0
    for step in (25, 50):
        assert config.learning_rate_at(step, 100, 64) == noam_learning_rate(
            step, 64, 10
        )
    half = noam_learning_rate(75, 64, 10) / 2
    assert config.learning_rate_at(75, 100, 64) == pytest.approx(half)
    whole = TrainingConfig(warmup_steps=10, cooldown=1.0)
    assert whole.learning_rate_at(50, 100, 64) == noam_learning_rate(50, 64, 10) / 2


def test_a_schedule_of_ones_own_is_chosen_by_its_name(monkeypatch):
    monkeypatch.setitem(SCHEDULES, "constant", lambda step, total, warmup: 1.0)
    config = TrainingConfig(
        schedule="constant", learning_rate=0.01, warmup_steps=10, cooldown=0.0
    )
    assert config.learning_rate_at(5, 100, 64) == pytest.approx(0.005)
    assert config.learning_rate_at(90, 100, 64) == 0.01


@pytest.mark.plain
def test_numbers_of_numpy_become_pythons():
    config = TrainingConfig(
        learning_rate=np.float32(0.5), label_smoothing=np.float64(0.25)
    )
    assert (config.learning_rate, config.label_smoothing) == (0.5, 0.25)
    json.dumps(dataclasses.asdict(config))


def test_every_field_is_documented():
    for field in dataclasses.fields(TrainingConfig):
        assert f"        {field.name}: " in TrainingConfig.__doc__


@pytest.mark.plain
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "epochs .* got 0"),
        ({"batch_tokens": -1}, "batch_tokens .* got -1"),
        ({"micro_batch_tokens": -1}, "micro_batch_tokens .* got -1"),
        ({"warmup_steps": 0}, "warmup_steps .* got 0"),
        ({"patience": 0}, "patience .* got 0"),
        ({"cooldown": 1.5}, r"\[0, 1\], got 1.5"),
        ({"cooldown": -0.5}, r"\[0, 1\], got -0.5"),
        ({"label_smoothing": 1}, r"label_smoothing must lie in \[0, 1\), got 1"),
        ({"ema_decay": 1.0}, r"ema_decay must lie in \[0, 1\), got 1.0"),
        ({"learning_rate": 0.0}, "learning_rate must be a number above 0, got 0.0"),
        ({"max_grad_norm": 0}, "max_grad_norm must be a number above 0, got 0"),
        ({"max_grad_norm": None}, "max_grad_norm must be a number above 0, got None"),
        ({"max_grad_norm": float("nan")}, "above 0, got nan"),
        ({"max_grad_norm": "1"}, "above 0, got '1'"),
        ({"learning_rate": float("inf")}, "learning_rate must be finite, got inf"),
        ({"learning_rate": "high"}, "must be a number above 0, got 'high'"),
        ({"cooldown": "half"}, r"\[0, 1\], got 'half'"),
        ({"seed": "a"}, "seed must be a whole number, got 'a'"),
        ({"seed": 2.5}, "seed must be a whole number, got 2.5"),
        ({"seed": True}, "seed must be a whole number, got True"),
        ({"learning_rate": True}, "learning_rate must be .* above 0, got True"),
        ({"max_grad_norm": True}, "max_grad_norm must be .* above 0, got True"),
        ({"cooldown": True}, r"\[0, 1\], got True"),
        ({"cooldown": False}, r"\[0, 1\], got False"),
        ({"ema_decay": False}, r"ema_decay must lie in \[0, 1\), got False"),
        ({"bf16": "x"}, "bf16 must be True or False, got 'x'"),
        ({"schedule": "linear"}, "inverse-sqrt or cosine, got 'linear'"),
    ],
)
def test_what_no_training_could_follow_is_refused(change, message):
    with pytest.raises((TypeError, ValueError), match=message):
        TrainingConfig(**change)
