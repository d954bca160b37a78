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


def moves(run, ids, compare=slice(None, 4), far=1e-5, measure=torch.abs):
    change = run(F.pad(ids, (0, 2)))[:, compare] - run(F.pad(ids, (0, 0)))[:, compare]
    return bool(measure(change).max() > far)


@pytest.mark.parametrize(
    ("check", "answer", "said"),
    [
        (check_patients, RIGHT | {1: "off by one"}, "far ahead"),
        (check_patients, RIGHT | {2: "no mask"}, "no later token"),
        (check_patients, RIGHT | {3: "no mask"}, "which one"),
        (check_patients, RIGHT | {3: "batch mixed"}, "no sentence moves"),
        (check_patients, RIGHT | {2: "no positions"}, "another order"),
        (check_patients, RIGHT | {2: "order of heads"}, "no heads"),
        (check_patients, RIGHT | {1: "flu"}, "Choose one of"),
        (check_patients, RIGHT | {1: ...}, "not answered"),
        (
            check_padding_matters,
            lambda run, ids: not moves(run, ids),
            "wrong way round",
        ),
        (check_padding_matters, lambda run, ids: True, "outputs at the padding"),
        (check_padding_matters, lambda run, ids: False, "reads its padding passes"),
        (
            check_padding_matters,
            lambda run, ids: moves(run, ids, slice(1, 4)),
            "first output alone",
        ),
        (
            check_padding_matters,
            lambda run, ids: moves(run, ids, far=0.05),
            "small change",
        ),
        (
            check_padding_matters,
            lambda run, ids: moves(run, ids, measure=lambda x: x.sum(-1).abs()),
            "number by number",
        ),
        (check_pairs, {"one layer": 8, "two layers": 13}, "no next one"),
        (check_pairs, {"one layer": 28, "two layers": 13}, "all pairs"),
        (check_pairs, {"one layer": 3, "two layers": 13}, "no later one"),
        (check_pairs, {"one layer": 7, "two layers": 7}, "looked ahead"),
        (check_pairs, {"one layer": 7, "two layers": 14}, "only six"),
        (check_pairs, {"one layer": 7, "two layers": 6}, "nearer"),
        (check_pairs, {"one layer": 7, "two layers": 20}, "Follow"),
    ],
)
def test_answers_are_told_apart(check, answer, said) -> None:
    assert said in repr(check(answer))


def test_right_answers_pass() -> None:
    assert "✓" in repr(check_patients(RIGHT))
    assert "✓" in repr(check_padding_matters(moves))
    assert "✓" in repr(check_pairs({"one layer": 7, "two layers": 13}))
