"""The runs that leave an ingredient out: one thing differs, and nothing else."""

import dataclasses
import sys

from small_runs import ROOT

from transformer.translation import TINY

sys.path.insert(0, str(ROOT / "benchmarks"))

from ingredients import VARIANTS


def test_each_leaves_out_what_its_name_says():
    differ = {
        name: {
            field: value
            for field, value in dataclasses.asdict(settings).items()
            if value != getattr(TINY, field, None)
        }
        for name, settings in VARIANTS.items()
    }
    assert differ == {
        "low-rate": {"peak": 0.003, "warmup": 400},
        "no-dropout": {"dropout": 0.0},
        "no-smoothing": {"smoothing": 0.0},
        "no-warmup": {"begin": "at the highest rate"},
        "post-norm": {"norm_first": False},
    }


def test_without_warm_up_the_rates_after_it_stay():
    rates = VARIANTS["no-warmup"].rate
    assert [rates(step, 9999) for step in (1, 2, TINY.warmup)] == [TINY.peak] * 3
    for step in (TINY.warmup + 1, 9998):
        assert rates(step, 9999) == TINY.rate(step, 9999) < TINY.peak
