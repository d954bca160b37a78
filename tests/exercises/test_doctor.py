"""The exercises of chapter 20: right answers pass, likely wrong ones are named."""

import pytest
import torch
from torch.nn import functional as F

from bookkit.checks.doctor import (
    check_padding_matters,
    check_pairs,
    check_patients,
    patient,
)
from transformer.doctor.properties import batch_leak, future_leak

RIGHT = {1: "no mask", 2: "batch mixed", 3: "off by one"}


def test_the_patients_have_what_the_solution_says() -> None:
    ids, words = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 3]]), list(range(3, 20))
    ahead = {
        n: {b - a for a, b, _ in future_leak(patient(n), ids, words)} for n in RIGHT
    }
    assert ahead == {1: {1, 2, 3}, 2: set(), 3: {1}}
    mixed = [n for n in RIGHT if batch_leak(patient(n), ids, words)]
    assert mixed == [2]
    with pytest.raises(ValueError, match="1, 2 and 3"):
        patient(4)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "✓"),
        ({1: "off by one"}, "far ahead"),
        ({2: "no mask"}, "no later token"),
        ({3: "no mask"}, "which one"),
        ({3: "batch mixed"}, "no sentence moves"),
        ({2: "no positions"}, "another order"),
        ({2: "order of heads"}, "no heads"),
        ({1: "flu"}, "Choose one of"),
        ({1: ...}, "not answered"),
    ],
)
def test_diagnoses_are_answered(change, said) -> None:
    assert said in repr(check_patients(RIGHT | change))


def moves(run, ids, compare=slice(None, 4), far=1e-5, measure=torch.abs):
    change = run(F.pad(ids, (0, 2)))[:, compare] - run(F.pad(ids, (0, 0)))[:, compare]
    return bool(measure(change).max() > far)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (moves, "✓"),
        (lambda run, ids: not moves(run, ids), "wrong way round"),
        (lambda run, ids: True, "outputs at the padding"),
        (lambda run, ids: False, "reads its padding passes"),
        (lambda run, ids: moves(run, ids, slice(1, 4)), "first output alone"),
        (lambda run, ids: moves(run, ids, far=0.05), "small change"),
        (
            lambda run, ids: moves(run, ids, measure=lambda x: x.sum(-1).abs()),
            "number by number",
        ),
    ],
)
def test_properties_are_judged(answer, said) -> None:
    assert said in repr(check_padding_matters(answer))


@pytest.mark.parametrize(
    ("one", "two", "said"),
    [
        (7, 13, "✓"),
        (8, 13, "no next one"),
        (28, 13, "all pairs"),
        (3, 13, "no later one"),
        (7, 7, "looked ahead"),
        (7, 14, "only six"),
        (7, 6, "nearer"),
        (7, 20, "Follow"),
    ],
)
def test_pairs_are_counted(one, two, said) -> None:
    assert said in repr(check_pairs({"one layer": one, "two layers": two}))
