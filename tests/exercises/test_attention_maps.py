"""Chapter 14's exercises: the answer is right, likely mistakes are named."""

import pytest
import torch

from bookkit.checks.attention_maps import (
    check_followed,
    check_hidden,
    check_ranks,
    check_score,
)


def given(weights, asks, answers):
    return weights[torch.arange(len(weights)), :, asks, answers]


def score(weights, asks, answers, lengths):
    return (given(weights, asks, answers) - 1 / lengths[:, None]).mean(dim=0)


def score_by_loop(weights, asks, answers, lengths):
    found = [
        weights[s, :, asks[s], answers[s]] - 1 / lengths[s] for s in range(len(asks))
    ]
    return torch.stack(found).mean(dim=0)


def correlation(one, other):
    one, other = one.double() - one.double().mean(), other.double() - other.mean()
    return (one @ other) / (one.norm() * other.norm())


def places(values):
    return values.argsort().argsort().double()


def followed(cross, layers, own=1.0, divide=2.0, down=True):
    for layer in reversed(layers) if down else layers:
        cross = cross @ (layer + own * torch.eye(len(layer))) / divide
    return cross


RIGHT = [
    (check_score, score),
    (check_score, score_by_loop),
    (check_ranks, lambda a, b: correlation(places(a), places(b))),
    (check_ranks, lambda a, b: correlation(places(a), places(b)).item()),
    (check_ranks, lambda a, b: correlation(places(-a), places(-b))),
    (check_followed, followed),
    (check_hidden, "her"),
    (check_hidden, " Her."),
]

WRONG = [
    (check_score, lambda w, a, b, n: score(w, b, a, n), "swapped"),
    (check_score, lambda w, a, b, n: given(w, a, b).mean(0), "taken away"),
    (check_score, lambda w, a, b, n: given(w, a, b).mean(0) - 1 / 6, "Padding"),
    (check_score, lambda w, a, b, n: score(w, a, b, n).mean(), "heads are averaged"),
    (
        check_score,
        lambda w, a, b, n: given(w, a, b) - 1 / n[:, None],
        "sentences are not averaged",
    ),
    (check_score, lambda w, a, b, n: -score(w, a, b, n), "sign"),
    (check_score, lambda w, a, b, n: w, "shape"),
    (check_score, lambda w, a, b, n: score(w, a, a, n), "The same word asks"),
    (check_score, lambda w, a, b, n: 3 * score(w, a, b, n), "3 times"),
    (
        check_score,
        lambda w, a, b, n: (given(w, a, b) + 1 / n[:, None]).mean(0),
        "share was added",
    ),
    (check_score, lambda w, a, b, n: w[:, :, a, b].mean(0), "places of all three"),
    (
        check_score,
        lambda w, a, b, n: (w[:, :, a, b] - 1 / n).mean((0, 2)),
        "places of all three",
    ),
    (
        check_score,
        lambda w, a, b, n: given(w, a, b).mean(0) - 1 / n,
        "keepdim",
    ),
    (check_score, lambda w, a, b, n: 0.5, "tensor"),
    (check_ranks, correlation, "correlation of the values"),
    (
        check_ranks,
        lambda a, b: correlation(a.argsort().double(), b.argsort().double()),
        "once more",
    ),
    (check_ranks, lambda a, b: correlation(places(-a), places(b)), "other way"),
    (
        check_ranks,
        lambda a, b: torch.cosine_similarity(places(a) + 1, places(b) + 1, dim=0),
        "centred",
    ),
    (
        check_ranks,
        lambda a, b: torch.cosine_similarity(places(a), places(b), dim=0),
        "centred",
    ),
    (check_ranks, lambda a, b: 0.0, "off by"),
    (check_ranks, lambda a, b: correlation(places(a), places(a)), "with itself"),
    (check_ranks, lambda a, b: places(a) @ places(b), "between −1 and 1"),
    (
        check_ranks,
        lambda a, b: torch.corrcoef(torch.stack((places(a), places(b)))),
        "two by two",
    ),
    (check_followed, lambda c, ls: followed(c, ls, down=False), "wrong order"),
    (check_followed, lambda c, ls: followed(c, ls, own=0, divide=1), "keeps itself"),
    (check_followed, lambda c, ls: followed(c, ls, divide=1), "more than one"),
    (check_followed, lambda c, ls: followed(c, ls[1:]), "Only the highest"),
    (check_followed, lambda c, ls: followed(c, ls[:1]), "Only the lowest"),
    (check_followed, lambda c, ls: followed(c, [x.mT for x in ls]), "transposed"),
    (check_followed, lambda c, ls: c, "Nothing is followed"),
    (check_followed, lambda c, ls: c[:1], "shape"),
    (check_followed, lambda c, ls: ls[1] @ c, "want transposing"),
    (check_hidden, "his", "has read Alice"),
    (check_hidden, "the", "still sees sa"),
    (check_hidden, 7, "in quotes"),
]


@pytest.mark.parametrize(("check", "answer"), RIGHT)
def test_right(check, answer):
    assert repr(check(answer)).startswith("✓")


@pytest.mark.parametrize(("check", "answer", "words"), WRONG)
def test_mistake_is_named(check, answer, words):
    verdict = repr(check(answer))
    assert verdict.startswith("✗")
    assert words in verdict


@pytest.mark.parametrize("check", [check_score, check_ranks, check_followed])
def test_unanswered(check):
    assert repr(check(...)).startswith("○")
    assert repr(check(lambda *_: ...)).startswith("○")
    assert repr(check_hidden(...)).startswith("○")


def test_an_error_becomes_a_verdict():
    verdict = repr(check_followed(lambda cross, layers: cross @ layers))
    assert verdict.startswith("✗")
    assert "TypeError" in verdict
