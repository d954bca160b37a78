"""The exercises of chapter 17: right answers pass, likely wrong ones are named."""

import math
from collections import Counter
from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

from bookkit.checks.language_model import (
    check_bigram,
    check_induction,
    check_perplexity,
    check_prefix,
    check_vocabularies,
)


def surprise(logits, labels):
    return -logits.log_softmax(dim=-1).gather(-1, labels[:, None])


def followers(text, first):
    return Counter(b for a, b in pairwise(text) if a == first)


def bigram(text, first, second, size, delta=0.75, kinds=None, lower=None, total=None):
    counts = followers(text, first)
    kinds = len(counts) if kinds is None else kinds
    lower = 1 / size if lower is None else lower
    given_up = delta * kinds * lower
    kept = max(counts[second] - delta, 0)
    return (kept + given_up) / (total or counts.total())


def negative(text, first, second, size):
    counts = followers(text, first)
    return (counts[second] - 0.75 + 0.75 * len(counts) / size) / counts.total()


def seen_only(text, first, second, size):
    counts = followers(text, first)
    return bigram(text, first, second, size) if counts[second] else 1e-9


def per_follower(text, first, second, size):
    """δ is subtracted, and δ / c(h) is added: k(h) and the vocabulary are missing."""
    counts = followers(text, first)
    return (max(counts[second] - 0.75, 0) + 0.75) / counts.total()


def unseen_only(text, first, second, size, shared_by_unseen=True):
    """What is subtracted goes to the pairs that never occurred."""
    counts = followers(text, first)
    if counts[second]:
        return (counts[second] - 0.75) / counts.total()
    others = size - len(counts) if shared_by_unseen else size
    return 0.75 * len(counts) / others / counts.total()


def counted(text, first, second, size):
    total = sum(text.count(first + each) for each in {*text})
    kept = max(text.count(first + second) - 0.75, 0)
    kinds = len(followers(text, first))
    return (kept + 0.75 * kinds / size) / total


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


def prefix_mask(prefix, length):
    inside, past = both(prefix, length)
    return past | (inside & inside[:, None])


def square(prefix, length):
    mask = both(prefix, length)[1]
    mask[:prefix, :prefix] = True
    return mask


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (check_prefix, prefix_mask),
        (check_prefix, square),
        (check_prefix, lambda n, m: both(n, m)[1] | both(n, m)[0]),
        (check_perplexity, lambda z, w: surprise(z, w).mean().exp()),
        (check_perplexity, lambda z, w: F.cross_entropy(z, w).exp().item()),
        (check_perplexity, lambda z, w: 2 ** (surprise(z, w).mean() / math.log(2))),
        (check_vocabularies, 250 * math.log2(300) / 1000),
        (check_vocabularies, torch.tensor(2.06)),
        (check_vocabularies, 2.07),
        (check_vocabularies, 2.1),
        (check_bigram, bigram),
        (check_bigram, lambda *a: torch.tensor(bigram(*a))),
        (check_induction, stripe),
        (check_induction, diagonal),
    ],
)
def test_model_solutions_are_right(check, answer):
    assert check(answer).kind == "right", check(answer)


@pytest.mark.parametrize(
    ("check", "answer", "key"),
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
        (check_perplexity, lambda z, w: 3.0, "For the example"),
        (
            check_perplexity,
            lambda z, w: F.cross_entropy(z[:3, :4], w[:3].clamp(max=3)).exp(),
            "among seven",
        ),
        (check_vocabularies, math.log2(300), "a token has four"),
        (check_vocabularies, math.log2(5), "first model"),
        (check_vocabularies, 2.3, "first model"),
        (check_vocabularies, math.log(300) / 4, "nats"),
        (check_vocabularies, math.log2(300 / 4), "divide its logarithm"),
        (check_vocabularies, 75, "logarithm first"),
        (check_vocabularies, 4 * math.log2(300), "You multiplied"),
        (check_vocabularies, 250 * math.log2(300), "whole text"),
        (check_vocabularies, 9, "how many bits is that"),
        (check_bigram, counted, "str.count skips overlapping pairs"),
        (check_bigram, lambda *a: bigram(*a, delta=0), "relative frequency"),
        (check_bigram, lambda *a: bigram(*a, lower=0), "did not redistribute"),
        (check_bigram, per_follower, "brings it back"),
        (check_bigram, unseen_only, "unseen pairs alone"),
        (
            check_bigram,
            lambda *a: unseen_only(*a, shared_by_unseen=False),
            "unseen pairs alone",
        ),
        (check_bigram, lambda *a: bigram(*a, kinds=1), "not only one"),
        (
            check_bigram,
            lambda t, a, b, n: bigram(t, a, b, n, kinds=followers(t, a).total()),
            "each of them once",
        ),
        (check_bigram, lambda *a: bigram(*a, lower=1), "is spread"),
        (
            check_bigram,
            lambda t, a, b, n: bigram(t, a, b, n, lower=t.count(b) / len(t)),
            "by the unigram",
        ),
        (
            check_bigram,
            lambda t, a, b, n: bigram(t, a, b, n, lower=1 / len(set(t))),
            "may be larger",
        ),
        (
            check_bigram,
            lambda t, a, b, n: bigram(t, a, b, n, total=len(t)),
            "length of the text",
        ),
        (check_bigram, negative, "is negative"),
        (check_bigram, seen_only, "should still get"),
        (check_bigram, lambda t, a, b, n: bigram(t, a, b, 6), "larger vocabulary"),
        (check_bigram, lambda *a: 0.123, "For n, a"),
        (check_prefix, lambda n, m: both(n, m)[1], "causal mask"),
        (check_prefix, lambda n, m: square(n, n + m), "includes the prefix"),
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
        (
            check_induction,
            lambda w, n: w.diagonal(-15, dim1=1, dim2=2).mean(dim=-1),
            "16 was the chapter",
        ),
    ],
)
def test_wrong_answers_are_named(check, answer, key):
    verdict = check(answer)
    assert verdict.kind == "wrong"
    assert key in verdict.message, verdict
