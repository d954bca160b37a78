"""Answers that fit a check's first example and are wrong, and right ones like them."""

import math
from itertools import pairwise

import torch
from torch.nn import functional as F

from bookkit.checks.attention_maps import check_each, check_followed
from bookkit.checks.data import check_duplicates, check_lengths, check_tokens
from bookkit.checks.encoder import check_look_at
from bookkit.checks.faster import check_pieces
from bookkit.checks.masks import check_both, check_detector, check_layers
from bookkit.checks.model import check_detector as check_padding
from bookkit.checks.model import check_loss
from bookkit.checks.multi_head import check_question
from bookkit.checks.since import check_centred
from bookkit.checks.training import check_clip
from bookkit.checks.translation import check_corpus, check_encode
from tests.exercises import named_mistakes, right_answers
from tests.exercises.test_translation import grams


def bleu(hits, to_number=lambda score: score):
    """The BLEU of a corpus, by a way of counting its hits."""

    def corpus(said, references):
        precisions = [
            torch.tensor(hits(said, references, n))
            / sum(max(len(words) - n + 1, 0) for words in said)
            for n in range(1, 5)
        ]
        c, r = sum(map(len, said)), sum(map(len, references))
        whole = torch.stack(precisions).log().mean().exp()
        return to_number(100 * min(1.0, math.exp(1 - r / c)) * whole)

    return corpus


def clipped(said, references, n):
    pairs = zip(said, references, strict=True)
    return sum((grams(h, n) & grams(r, n)).total() for h, r in pairs)


def unclipped(said, references, n):
    pairs = zip(said, references, strict=True)
    return sum(
        sum(count for gram, count in grams(h, n).items() if gram in grams(r, n))
        for h, r in pairs
    )


def joined_letters(word, merges):
    pieces = list(word)
    for a, b in merges:
        at = 0
        while at < len(pieces) - 1:
            if pieces[at] + pieces[at + 1] == a + b:
                pieces[at : at + 2] = [a + b]
            at += 1
    return pieces


def one_at_a_time(word, merges):
    pieces, before = list(word), None
    while pieces != before:
        before = list(pieces)
        for pair in merges:
            for at, found in enumerate(pairwise(pieces)):
                if found == pair:
                    pieces[at : at + 2] = ["".join(pair)]
                    break
    return pieces


def running(pieces):
    total = pieces[0].logsumexp(0)
    for piece in pieces[1:]:
        total = torch.cat([total[None], piece]).logsumexp(0)
    return total


def shares(predicted, labels):
    return [(predicted[labels == c] == c).double().mean().item() for c in (0, 1)]


def by_threes(lengths, budget):
    """Longest first, but never more than three in a batch."""
    batches = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        last = batches[-1] if batches else []
        if last and len(last) < 3 and (len(last) + 1) * lengths[last[0]] <= budget:
            last.append(index)
        else:
            batches.append([index])
    return batches


RIGHT = [
    (check_pieces, running),
    (check_each, lambda p, y: torch.tensor(shares(p, y)).numpy()),
]


def to_zero(model, ids):
    """Looks whether an output changes when a later token becomes 0."""
    outputs = model(ids)
    for t in range(1, ids.size(1)):
        other = ids.clone()
        other[0, t] = 0
        if not torch.allclose(model(other)[:, :t], outputs[:, :t]):
            return True
    return False


def coarse(model, ids):
    outputs = model(ids)
    for t in range(1, ids.size(1)):
        other = ids.clone()
        other[0, t] = (other[0, t] + 1) % 10
        if (model(other)[:, :t] - outputs[:, :t]).abs().max() > 0.05:
            return True
    return False


def padded_logits(measure):
    source, target = torch.tensor([[3, 4, 5]]), torch.tensor([[1, 6, 7, 8]])

    def detects(model):
        padded = F.pad(source, (0, 3))
        return measure(model(source, target) - model(padded, target))

    return detects


def total_norm(gradients):
    return torch.cat([each.flatten() for each in gradients]).norm()


def two_layers(cross, layers, own):
    low, high = (own * torch.eye(5) + (1 - own) * layer for layer in layers[:2])
    return cross @ high @ low


def code_row():
    weight = torch.zeros(8, 4)
    weight[6, 1] = 12
    return weight


def remove_while_running(training, test):
    for words in training:
        if any(
            len(words) == len(other)
            and sum(a != b for a, b in zip(words, other, strict=True)) < 2
            for other in test
        ):
            training.remove(words)
    return training


WRONG = [
    (check_corpus, bleu(unclipped), "did not clip"),
    (check_corpus, bleu(clipped, lambda score: round(score.item(), 2)), "but rounded"),
    (check_encode, joined_letters, "two pieces, not the letters"),
    (check_encode, one_at_a_time, "before the next begins"),
    (check_question, code_row(), "belongs to the code"),
    (check_detector, to_zero, "where that token is 0"),
    (check_detector, coarse, "A small leak passes"),
    (check_layers, lambda n, w: (n - 1) // (w - 1), "Round up"),
    (
        check_both,
        lambda ids, pad: (
            (ids > pad)[:, None, None, :]
            & torch.ones(ids.size(1), ids.size(1)).tril().bool()
        ),
        "smaller ones too",
    ),
    (check_centred, lambda linear: lambda x: linear(x), "an nn.Linear"),
    (
        check_clip,
        lambda g, m: [x * min(m, m / total_norm(g)) for x in g],
        "should stay as it is",
    ),
    (
        check_clip,
        lambda g, m: [x * m / total_norm(g) if total_norm(g) > 1 else x for x in g],
        "should stay as it is",
    ),
    (
        check_lengths,
        lambda lengths: torch.arange(lengths[-1]) < lengths[:, None],
        "may stand anywhere",
    ),
    (
        check_lengths,
        lambda lengths: torch.arange(lengths[1]) < lengths[:, None],
        "but not for [4, 2]",
    ),
    (
        check_both,
        lambda ids, pad: (
            (ids != 3)[:, None, None, :]
            & (ids != 3)[:, None, :, None]
            & torch.ones(ids.size(1), ids.size(1)).tril().bool()
        ),
        "use pad_id",
    ),
    (check_tokens, by_threes, "closed too early"),
    (
        check_look_at,
        lambda r, attention, x, memory: r.norm(x + attention(x, memory, memory)),
        "post-norm by hand",
    ),
    (
        check_look_at,
        lambda r, attention, x, memory: x + attention(x, memory, memory),
        "no norm",
    ),
    (
        check_look_at,
        lambda r, attention, x, memory: r(x + attention(x, memory, memory)),
        "takes two things",
    ),
    (
        check_loss,
        lambda model, source, target: F.cross_entropy(
            model(source, target[:, :-1]).flatten(0, 1), target[:, 1:]
        ),
        "flatten both",
    ),
    (
        check_padding,
        padded_logits(lambda change: bool(change.sum() > 1e-4)),
        "abs() of each difference",
    ),
    (check_followed, two_layers, "not for three"),
    (check_duplicates, remove_while_running, "changed `training`"),
]


test_right_in_another_style = right_answers(RIGHT)


test_an_answer_that_fits_one_example_is_refused = named_mistakes(WRONG)


def test_unanswered_numbers_are_no_mistake():
    assert check_each(lambda p, y: (..., ...)).kind == "unanswered"
