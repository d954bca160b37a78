"""The exercises of chapter 12: right answers pass, likely wrong ones are named."""

import math

import numpy as np
import torch

from bookkit.checks.training import check_broken, check_clip, check_gap
from tests.exercises import named_mistakes, right_answers


def gap(vocab_size, epsilon):
    others = epsilon / vocab_size
    return math.log((1 - epsilon + others) / others)


def by_torch(vocab_size, epsilon):
    q = torch.full((vocab_size,), epsilon / vocab_size)
    q[0] += 1 - epsilon
    return q.log()[0] - q.log()[1]


def own(v, e):
    return 1 - e + e / v


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


def of_the_first_two(gradients, max_norm):
    factor = min(1.0, max_norm / max(length(gradients[:2]), 1e-9))
    return [gradient * factor for gradient in gradients]


def as_torch_does(gradients, max_norm):
    factor = min(1.0, max_norm / (length(gradients) + 1e-6))
    return [gradient * factor for gradient in gradients]


LACKING = {"A": "causal mask", "B": "warm-up", "C": "positions", "D": "residuals"}


test_model_solutions_are_right = right_answers(
    [
        (check_gap, by_torch),
        (check_gap, lambda v, e: np.float32(math.log(own(v, e)) - math.log(e / v))),
        (check_clip, unguarded),
        (check_clip, as_torch_does),
        (check_broken, LACKING),
        (check_broken, LACKING | {"A": "Causal-mask", "B": "Warm up"}),
        (check_broken, LACKING | {"A": "causal_mask", "B": "warmup"}),
        (check_broken, LACKING | {"A": "the mask", "B": "no warm-up"}),
        (check_broken, LACKING | {"C": "Position", "D": "residual connection"}),
        (check_broken, LACKING | {"B": "warmup_steps", "C": "positional encoding"}),
    ]
)


test_wrong_answers_are_named = named_mistakes(
    [
        (check_gap, lambda v, e: math.inf, "the plain loss asks for"),
        (check_gap, lambda v, e: -gap(v, e), "sign"),
        (check_gap, lambda v, e: math.log((1 - e) / (e / v)), "share of ε, too"),
        (check_gap, lambda v, e: math.log((1 - e) / e * (v - 1)), "wrong words only"),
        (check_gap, lambda v, e: math.log(own(v, e) / (1 - own(v, e))), "together"),
        (check_gap, lambda v, e: math.log((1 - e) / e), "V has to appear"),
        (check_gap, lambda v, e: math.exp(gap(v, e)), "ratio of two probabilities"),
        (check_gap, lambda v, e: 1 - e, "difference of two probabilities"),
        (check_gap, own, "not a logit"),
        (check_gap, lambda v, e: -math.log(own(v, e)), "compare it"),
        (check_gap, lambda v, e: math.log(own(v, e)), "one probability"),
        (check_gap, lambda v, e: -math.log(e / v), "surprise at a wrong word"),
        (check_gap, lambda v, e: math.log2(math.exp(gap(v, e))), "in bits"),
        (check_gap, lambda v, e: math.log10(math.exp(gap(v, e))), "base 10"),
        (
            check_gap,
            lambda v, e: gap(v, e) * (v - 1) * e / v - math.log(own(v, e)),
            "the floor",
        ),
        (check_gap, lambda v, e: math.log(v), "log V"),
        (check_gap, lambda v, e: 7.0, "got 7.000"),
        (check_gap, lambda v, e: math.log(1 / e), "1 with all of ε"),
        (check_gap, lambda v, e: math.log1p(5 * 0.7 / 0.3), "Right for V = 5"),
        (check_gap, lambda v, e: torch.zeros(3), "not a tensor of shape"),
        (check_clip, in_place, "changed `gradients` in place"),
        (check_clip, nothing_over_nothing, "Gradients of zeros"),
        (check_clip, lambda g, m: clip(g, 1.0), "is max_norm used"),
        (check_clip, lambda g, m: g[:1], "one tensor for each"),
        (check_clip, lambda g, m: [x.flatten() for x in clip(g, m)], "keep its shape"),
        (check_clip, lambda g, m: [x.tolist() for x in clip(g, m)], "tensor, not a li"),
        (check_clip, lambda g, m: [x.numpy() for x in clip(g, m)], "not a NumPy array"),
        (
            check_clip,
            lambda g, m: [x * m / 5 if length(g) > m else x for x in g],
            "three of norm 7",
        ),
        (check_clip, of_the_first_two, "three of norm 7"),
        (check_clip, lambda g, m: [x / 9 for x in g], "absolute values"),
        (check_clip, lambda g, m: [x / 4 for x in g], "largest number"),
        (check_clip, lambda g, m: [x / sum(map(norm, g)) for x in g], "two norms"),
        (
            check_clip,
            lambda g, m: [x * min(1, m / max(map(norm, g))) for x in g],
            "largest of the norms",
        ),
        (check_clip, lambda g, m: [x * length(g) / m for x in g], "upside down"),
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
    ]
)


def test_a_model_not_looked_at_is_no_mistake():
    assert check_broken(LACKING | {"C": ...}).kind == "unanswered"
