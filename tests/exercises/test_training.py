"""The exercises of chapter 12: right answers pass, likely wrong ones are named."""

import pytest
import torch

from bookkit.checks.training import (
    check_broken,
    check_clip,
    check_smoothed,
)


def smoothed(logits, target, epsilon):
    surprise = -logits.log_softmax(dim=-1)
    return (1 - epsilon) * surprise[target] + epsilon * surprise.mean()


def without_the_right_one(logits, target, epsilon):
    surprise = -logits.log_softmax(dim=-1)
    others = (surprise.sum() - surprise[target]) / (len(logits) - 1)
    return (1 - epsilon) * surprise[target] + epsilon * others


def summed(logits, target, epsilon):
    surprise = -logits.log_softmax(dim=-1)
    return (1 - epsilon) * surprise[target] + epsilon * surprise.sum()


def length(gradients):
    return float(sum((gradient**2).sum() for gradient in gradients) ** 0.5)


def norm(gradient):
    return gradient.norm()


def clip(gradients, max_norm):
    factor = min(1.0, max_norm / length(gradients)) if length(gradients) > 0 else 1.0
    return [gradient * factor for gradient in gradients]


def in_place(gradients, max_norm):
    factor = min(1.0, max_norm / (length(gradients) + 1e-9))
    return [gradient.mul_(factor) for gradient in gradients]


def unguarded(gradients, max_norm):
    factor = (max_norm / torch.tensor(length(gradients))).clamp(max=1.0)
    return [gradient * factor for gradient in gradients]


def nothing_over_nothing(gradients, max_norm):
    scale = torch.tensor(length(gradients))
    return [gradient / scale * scale.clamp(max=max_norm) for gradient in gradients]


LACKING = {"A": "causal mask", "B": "warm-up", "C": "positions", "D": "residuals"}


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (check_smoothed, smoothed),
        (check_clip, clip),
        (check_clip, unguarded),
        (check_broken, LACKING),
        (check_broken, LACKING | {"A": "Causal-mask", "B": "Warm up"}),
        (check_broken, LACKING | {"A": "causal_mask", "B": "warmup"}),
        (check_broken, LACKING | {"A": "the mask", "B": "no warm-up"}),
        (check_broken, LACKING | {"C": "Position", "D": "residual connection"}),
        (check_broken, LACKING | {"B": "warmup_steps", "C": "positional encoding"}),
    ],
)
def test_model_solutions_are_right(check, answer):
    assert check(answer).kind == "right", check(answer)


@pytest.mark.parametrize(
    ("check", "answer", "key"),
    [
        (check_smoothed, lambda z, t, e: -z.log_softmax(-1)[t], "plain loss"),
        (check_smoothed, without_the_right_one, "wrong words only"),
        (check_smoothed, summed, "mean, not the sum"),
        (check_smoothed, lambda z, t, e: -smoothed(z, t, e), "sign"),
        (check_smoothed, lambda z, t, e: smoothed(z, t, e) / 0.6931472, "bits"),
        (check_smoothed, lambda z, t, e: -(1 - e) * z[t] - e * z.mean(), "log-softmax"),
        (check_smoothed, lambda z, t, e: smoothed(z, t, 1 - e), "swapped"),
        (
            check_smoothed,
            lambda z, t, e: -(1 - e) * z.log_softmax(-1)[t],
            "second part",
        ),
        (check_smoothed, lambda z, t, e: torch.tensor(7.0), "got 7.000"),
        (check_smoothed, lambda z, t, e: -z.log_softmax(-1), "not a tensor of shape"),
        (check_smoothed, lambda z, t, e: smoothed(z, 2, 0.2), "With epsilon = 0"),
        (check_clip, in_place, "changed `gradients` in place"),
        (check_clip, nothing_over_nothing, "Gradients of zeros"),
        (check_clip, lambda g, m: clip(g, 1.0), "is max_norm used"),
        (check_clip, lambda g, m: g[:1], "one tensor for each"),
        (check_clip, lambda g, m: [x.flatten() for x in clip(g, m)], "keep its shape"),
        (check_clip, lambda g, m: [x.tolist() for x in clip(g, m)], "not a list"),
        (check_clip, lambda g, m: [x / 9 for x in g], "absolute values"),
        (check_clip, lambda g, m: [x / 4 for x in g], "largest number"),
        (check_clip, lambda g, m: [x / sum(map(norm, g)) for x in g], "two norms"),
        (check_clip, lambda g, m: [x / 3 for x in g], "five times too long"),
        (check_clip, lambda g, m: [x.clamp(-m, m) for x in g], "Each number was"),
        (check_clip, lambda g, m: [m * x / x.norm() for x in g], "Each gradient was"),
        (check_clip, lambda g, m: [m * x / length(g) for x in g], "lengthened"),
        (check_clip, lambda g, m: [x.clone() for x in g], "Nothing was shortened"),
        (check_clip, lambda g, m: [m * x / length(g) ** 2 for x in g], "its root"),
        (check_broken, LACKING | {"A": "residuals"}, "A does not lack"),
        (check_broken, {"A": "causal mask"}, "Nothing stands under 'B'"),
        (check_broken, "warm-up", "Fill in the dictionary"),
        (check_broken, LACKING | {"A": "dropout"}, "none of the five"),
        (check_broken, LACKING | {"B": "root"}, "first step"),
        (check_broken, LACKING | {"C": "causal mask"}, "word came first"),
        (check_broken, LACKING | {"D": "positions"}, "averaging"),
    ],
)
def test_wrong_answers_are_named(check, answer, key):
    verdict = check(answer)
    assert verdict.kind == "wrong"
    assert key in verdict.message


def test_a_model_not_looked_at_is_no_mistake():
    assert check_broken(LACKING | {"C": ...}).kind == "unanswered"


@pytest.mark.parametrize("check", [check_smoothed, check_clip])
def test_no_answer_is_no_mistake(check):
    assert check(...).kind == "unanswered"
    assert check(lambda *_: ...).kind in ("unanswered", "wrong")
