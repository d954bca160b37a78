"""Checks for the exercises of chapter 20, Is my Transformer right?"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bookkit.exercises import (
    Verdict,
    blanks,
    exercise,
    number,
    right,
    truth,
    wrong,
)
from bookkit.forms import form

__all__ = ["patient", "check_patients", "check_padding_matters", "check_pairs"]

ILLNESSES = {1: "no mask", 2: "batch mixed", 3: "off by one"}
CHOICES = ["no mask", "off by one", "batch mixed", "no positions", "order of heads"]
_FEATURES = torch.randn(20, 8, generator=torch.Generator().manual_seed(20))


def patient(which: int) -> Callable[[Tensor], Tensor]:
    """One of three small models that are ill: ids (batch, length) to outputs.

    Raises:
        ValueError: for a patient that is not 1, 2 or 3.
    """
    if which not in ILLNESSES:
        raise ValueError(f"the patients are 1, 2 and 3, got {which!r}")
    illness = ILLNESSES[which]

    def model(ids: Tensor) -> Tensor:
        length = ids.size(1)
        diagonal = {"no mask": length, "off by one": 1}.get(illness, 0)
        sees = torch.ones(length, length).tril(diagonal)
        weights = sees * torch.arange(1.0, length + 1)
        outputs = weights / weights.sum(-1, keepdim=True) @ _FEATURES[ids]
        if illness == "batch mixed":
            outputs = outputs - outputs.mean(dim=0)
        return outputs

    return model


_WHY_NOT = {
    (1, "off by one"): "In patient 1 a token far ahead matters too, not only the next.",
    (1, "batch mixed"): "In patient 1 no sentence moves another: change one of two.",
    (2, "no mask"): "In patient 2 no later token matters: change one, and see.",
    (2, "off by one"): "In patient 2 no later token matters: change one, and see.",
    (3, "no mask"): "In patient 3 only one later token moves an output: which one?",
    (3, "batch mixed"): "In patient 3 no sentence moves another: change one of two.",
}


@exercise
@form("dictionary", "1", "2", "3", choices=tuple(CHOICES))
def check_patients(diagnosis: Mapping[Any, Any]) -> Verdict:
    """Exercise: which of five faults each of three models has."""
    answers = blanks(diagnosis, tuple(ILLNESSES))
    for (which, illness), answer in zip(ILLNESSES.items(), answers, strict=True):
        if answer == illness:
            continue
        if not isinstance(answer, str) or answer not in CHOICES:
            return wrong(f"Choose one of: {', '.join(CHOICES)}; got {answer!r}.")
        if answer == "no positions":
            return wrong(f"Patient {which} gives another answer for another order.")
        if answer == "order of heads":
            return wrong(f"Patient {which} has no heads to put in order.")
        return wrong(_WHY_NOT[which, answer])
    return right("Each was found by two inputs that differ in one place.")


def _reader(masked: bool, weight: float = 1.0) -> Callable[[Tensor], Tensor]:
    """A model whose outputs are means over the words, or over padding as well."""

    def run(ids: Tensor) -> Tensor:
        counted = (ids != 0).float() if masked else torch.ones_like(ids).float()
        total = (counted[..., None] * _FEATURES[ids]).sum(1, keepdim=True)
        mean = total / counted.sum(1)[:, None, None].clamp(min=1.0)
        return _FEATURES[ids] + weight * mean

    return run


def _first_place(ids: Tensor) -> Tensor:
    """Whatever stands last moves the first output, but no other."""
    outputs = _FEATURES[ids]
    return torch.cat((outputs[:, :1] + outputs[:, -1:], outputs[:, 1:]), dim=1)


def _at_padding(ids: Tensor) -> Tensor:
    """Outputs at padding are odd; those of words are right."""
    odd = torch.arange(ids.size(1), dtype=torch.float)[:, None]
    return _reader(True)(ids) + odd * (ids == 0)[..., None]


@exercise
def check_padding_matters(padding_matters: Callable[..., bool]) -> Verdict:
    """Exercise: does padding change the outputs of words?"""
    ids = torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]])

    def said(run: Callable[[Tensor], Tensor]) -> bool:
        return truth(padding_matters(run, ids.clone()))

    if said(_reader(True)) and not said(_reader(False)):
        return wrong("The wrong way round: True means that padding matters.")
    if said(_at_padding):
        return wrong(
            "You compared the outputs at the padding too: nobody reads those. Compare "
            "the words alone."
        )
    if said(_reader(True)):
        return wrong("A model that hides its padding is called wrong by yours.")
    if not said(_reader(False)):
        return wrong("A model that reads its padding passes: put padding behind.")
    if not said(_first_place):
        return wrong("Padding that moves the first output alone passes: compare all.")
    if not said(_reader(False, 1e-3)):
        return wrong("A small change passes: use a tolerance for rounding errors only.")
    if not said(lambda x: F.layer_norm(_reader(False)(x), (8,))):
        return wrong("Compare number by number: sums may agree by chance.")
    return right("Five models judged: two that hide their padding, three that do not.")


@exercise
@form("dictionary", "one layer", "two layers")
def check_pairs(pairs: Mapping[str, Any]) -> Verdict:
    """Exercise: how many pairs leak through a mask that is off by one."""
    one, two = map(number, blanks(pairs, ("one layer", "two layers")))
    if one == 8:
        return wrong("The last of eight tokens has no next one to see.")
    if one == 28:
        return wrong("28 are all pairs: the mask hides all but the next token.")
    if one != 7:
        return wrong("With one layer output t sees token t + 1, and no later one.")
    if two == 7:
        return wrong("The second layer reads outputs that have looked ahead already.")
    if two == 14:
        return wrong("Two places ahead there are only six pairs, not seven.")
    if two == 6:
        return wrong("Those are the pairs two places apart: the nearer ones stay.")
    if two != 13:
        return wrong("Follow output t: what has each position that it reads seen?")
    return right("Each layer carries the leak one place further.")
