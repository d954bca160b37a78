"""The runs that leave an ingredient out: one thing differs, and nothing else."""

import dataclasses
import json
import sys

from small_runs import ROOT, write_corpus

sys.path.insert(0, str(ROOT / "benchmarks"))

import ingredients
import pytest
import translation
from ingredients import TINY, VARIANTS

pytestmark = pytest.mark.plain  # no shapes here, and many steps


def choices(preset):
    """All that a preset fixes, in one dictionary."""
    training = dataclasses.asdict(preset.training)
    return {"vocab_size": preset.vocab_size, **preset.sizes, **training}


def test_each_leaves_out_what_its_name_says():
    recipe = choices(TINY)
    differ = {
        name: {
            field: value
            for field, value in choices(preset).items()
            if value != recipe.get(field)
        }
        for name, preset in VARIANTS.items()
    }
    assert differ == {
        "low-rate": {"learning_rate": 0.003, "warmup_steps": 400},
        "no-dropout": {"dropout": 0.0},
        "no-smoothing": {"label_smoothing": 0.0},
        "no-warmup": {"begin": "at the highest rate"},
        "no-warmup-lower": {"begin": "at the highest rate", "learning_rate": 0.0022},
        "post-norm": {"norm_first": False},
    }


def test_without_warm_up_the_rates_after_it_stay():
    recipe, rates = TINY.training, VARIANTS["no-warmup"].training.learning_rate_at
    last, width, peak = recipe.warmup_steps, 128, recipe.learning_rate
    assert [rates(step, 9999, width) for step in (1, 2, last)] == [peak] * 3
    for step in (last + 1, 9998):
        rate = rates(step, 9999, width)
        assert rate == recipe.learning_rate_at(step, 9999, width) < peak


def test_a_small_run_is_trained_measured_and_stored(tmp_path, monkeypatch, capsys):
    corpus, folder = write_corpus(tmp_path / "corpus"), tmp_path / "fr-en-no-warmup-3"
    where = ["--data", str(corpus), "--source", "fr", "--target", "en"]
    size = ["--vocab-size", "120", "--epochs", "1", "--seed", "3"]
    script = ["ingredients.py", "no-warmup", str(folder), *where, *size]
    monkeypatch.setattr(sys, "argv", script)
    ingredients.main()
    assert "epoch 1: training" in capsys.readouterr().out

    stored = tmp_path / "results.json"
    monkeypatch.setattr(translation, "RUNS", stored)
    script = ["translation.py", str(folder), *where, "--test", "--mistakes"]
    monkeypatch.setattr(sys, "argv", script)
    translation.main()
    found = json.loads(stored.read_text("utf-8"))
    run = found["runs"]["fr-en-no-warmup"]["3"]
    assert len(run["curve"]) == 1
    assert run["settings"]["types"] == 120
    assert run["settings"]["begin"] == "at the highest rate"
    assert {way["average"] for way in run["validation"]} == {0, 1}
    assert run["test"]["beam_size"] in (1, 5)
    assert found["mistakes"]["sentences"] == 6
