"""The exercises of chapter 17: right answers pass, likely wrong ones are named."""

import math

import torch
from torch.nn import functional as F

from bookkit.checks.language_model import (
    check_induction,
    check_perplexity,
    check_prefix,
    check_vocabularies,
)
from tests.exercises import named_mistakes, right_answers


def surprise(logits, labels):
    return -logits.log_softmax(dim=-1).gather(-1, labels[:, None])


def stripe(weights, period, shift=1, start=0, end=0):
    t = torch.arange(period + start, 2 * period + end)
    return weights[:, t, (t - period + shift).clamp(min=0)].mean(dim=-1)


def diagonal(weights, period):
    return weights[:, period:].diagonal(1, dim1=1, dim2=2)[:, :period].mean(dim=-1)


def of_the_chapter(weights, period):
    return weights[:, 16:].diagonal(1, dim1=1, dim2=2).mean(dim=-1)


def fixed(weights):
    return weights.diagonal(-4, dim1=1, dim2=2)[:, 1:].mean(dim=-1)


def both(prefix, length):
    """Which positions belong to the prefix, and the causal mask."""
    past = torch.ones(length, length, dtype=torch.bool).tril()
    return torch.arange(length) < prefix, past


def square(prefix, length):
    mask = both(prefix, length)[1]
    mask[:prefix, :prefix] = True
    return mask


test_model_solutions_are_right = right_answers(
    [
        (check_prefix, square),
        (check_prefix, lambda n, m: both(n, m)[1] | both(n, m)[0]),
        (check_perplexity, lambda z, w: F.cross_entropy(z, w).exp().item()),
        (check_perplexity, lambda z, w: 2 ** (surprise(z, w).mean() / math.log(2))),
        (check_vocabularies, torch.tensor(2.06)),
        (check_vocabularies, 2.1),
        (check_induction, diagonal),
    ]
)


test_wrong_answers_are_named = named_mistakes(
    [
        (
            check_perplexity,
            lambda z, w: surprise(z, w).mean(),
            "the perplexity is its exponential",
        ),
        (
            check_perplexity,
            lambda z, w: surprise(z, w).mean() / math.log(2),
            "bits a token",
        ),
        (check_perplexity, lambda z, w: 2 ** surprise(z, w).mean(), "base is e"),
        (
            check_perplexity,
            lambda z, w: (surprise(z, w).mean() / math.log(2)).exp(),
            "e to the power of bits",
        ),
        (
            check_perplexity,
            lambda z, w: 1 / (-surprise(z, w)).exp().mean(),
            "averaged probabilities",
        ),
        (
            check_perplexity,
            lambda z, w: (-z.gather(-1, w[:, None]).mean()).exp(),
            "log_softmax first",
        ),
        (
            check_perplexity,
            lambda z, w: (-z.log_softmax(-1)[:, w].mean()).exp(),
            "labels of all rows",
        ),
        (
            check_perplexity,
            lambda z, w: (-surprise(z, w)).exp().prod() ** (-1 / len(w)),
            "the product of 2,000",
        ),
        (
            check_perplexity,
            lambda z, w: (
                math.prod((-surprise(z, w)).exp().flatten().tolist()) ** (-1 / len(w))
            ),
            "the product of 2,000",
        ),
        (
            check_perplexity,
            lambda z, w: surprise(z, w).exp().mean(),
            "mean of exponentials",
        ),
        (check_perplexity, lambda z, w: surprise(z, w).sum().exp(), "whole text"),
        (check_perplexity, lambda z, w: (-surprise(z, w).mean()).exp(), "inverse"),
        (
            check_perplexity,
            lambda z, w: (-z.log_softmax(0).gather(-1, w[:, None])).mean().exp(),
            "over the positions",
        ),
        (
            check_perplexity,
            lambda z, w: (-z.log_softmax(-1).max(-1).values).mean().exp(),
            "not the label",
        ),
        (
            check_perplexity,
            lambda z, w: (-(z.softmax(-1) * z.log_softmax(-1)).sum(-1).mean()).exp(),
            "labels are missing",
        ),
        (
            check_perplexity,
            lambda z, w: F.cross_entropy(z.softmax(-1), w).exp(),
            "softmax twice",
        ),
        (check_perplexity, lambda z, w: 3.0, "For the example"),
        (
            check_perplexity,
            lambda z, w: F.cross_entropy(z[:3, :4], w[:3].clamp(max=3)).exp(),
            "among seven",
        ),
        (check_vocabularies, math.log2(300), "a token has four"),
        (check_vocabularies, math.log2(5), "first model"),
        (check_vocabularies, math.log(300) / 4, "nats"),
        (check_vocabularies, math.log2(300 / 4), "divide its logarithm"),
        (check_vocabularies, 75, "logarithm first"),
        (check_vocabularies, 300**0.25, "perplexity of a character"),
        (check_vocabularies, 4 * math.log2(300), "You multiplied"),
        (check_vocabularies, 250 * math.log2(300), "whole text"),
        (check_vocabularies, 9, "how many bits is that"),
        (check_prefix, lambda n, m: both(n, m)[1], "causal mask"),
        (check_prefix, lambda n, m: square(n, n + m), "includes the prefix"),
        (check_prefix, lambda n, m: square(n, m)[None], "size 1 too many"),
        (check_prefix, lambda n, m: square(n, m).float(), "boolean"),
        (
            check_prefix,
            lambda n, m: both(n, m)[0] & both(n, m)[0][:, None],
            "Only the square",
        ),
        (
            check_prefix,
            lambda n, m: torch.ones(m, m, dtype=torch.bool),
            "attends to its future",
        ),
        (
            check_prefix,
            lambda n, m: both(n, m)[1] | both(n, m)[0][:, None],
            "attends to what follows",
        ),
        (check_prefix, lambda n, m: ~square(n, m), "Inverted"),
        (check_prefix, lambda n, m: square(n, m).mT, "mask is transposed"),
        (check_prefix, lambda n, m: both(n, m)[0].expand(m, m), "it alone"),
        (check_prefix, lambda n, m: square(n - 1, m), "too short"),
        (check_prefix, lambda n, m: square(n + 1, m), "too long"),
        (check_prefix, lambda n, m: square(3, m), "not for 2 of 7"),
        (check_prefix, lambda n, m: both(n, m)[1].mT, "row by row"),
        (check_induction, lambda w, n: stripe(w, n, 0), "occurrence itself"),
        (check_induction, lambda w, n: stripe(w, n, -1), "one after it"),
        (check_induction, lambda w, n: stripe(w, n, 2), "One column too far"),
        (check_induction, lambda w, n: stripe(w, n, n - 1), "previous token, whatever"),
        (check_induction, lambda w, n: stripe(w, n, start=-1), "repeats nothing"),
        (
            check_induction,
            lambda w, n: stripe(w, n, end=-1),
            "last position is missing",
        ),
        (check_induction, lambda w, n: stripe(w, n) * n, "You summed"),
        (check_induction, lambda w, n: stripe(w, n).mean(), "one score for each head"),
        (check_induction, lambda w, n: stripe(w.mT, n), "Queries and keys are swapped"),
        (check_induction, lambda w, n: fixed(w), "fails"),
        (check_induction, of_the_chapter, "16 was the chapter"),
    ]
)
