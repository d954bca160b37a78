"""The exercises of chapter 13: right answers pass, likely wrong ones are named."""

import math

import torch
from torch.nn import functional as F

from bookkit.checks.decoding import (
    check_beam_step,
    check_score,
    check_top_k,
)
from tests.exercises import named_mistakes, right_answers


def two_of_each(totals, log_probabilities):
    values, tokens = log_probabilities.topk(2)
    best = (totals[:, None] + values).flatten().topk(len(totals)).indices
    return best // 2, tokens.flatten()[best]


def filled_in_place(logits, k):
    logits[logits < logits.topk(k).values[-1]] = -math.inf
    return logits.softmax(dim=-1)


def top_k(logits, k):
    smallest = logits.topk(k).values[-1]
    return logits.masked_fill(logits < smallest, -math.inf).softmax(dim=-1)


def renormalised(logits, k):
    probabilities = logits.softmax(dim=-1)
    kept = probabilities * (probabilities >= probabilities.topk(k).values[-1])
    return kept / kept.sum()


def zeroed(logits, k):
    probabilities = logits.softmax(dim=-1)
    return probabilities * (probabilities >= probabilities.topk(k).values[-1])


def zero_logits(logits, k):
    return (logits * (logits >= logits.topk(k).values[-1])).softmax(dim=-1)


def one_too_many(logits, k):
    return top_k(logits, k + 1)


def least(logits, k):
    largest_kept = logits.sort().values[k - 1]
    return logits.masked_fill(logits > largest_kept, -math.inf).softmax(dim=-1)


def always_two(logits, k):
    return top_k(logits, 2)


def hardly_possible(logits, k):
    smallest = logits.topk(k).values[-1]
    return logits.masked_fill(logits < smallest, -10).softmax(dim=-1)


def until_eos(logits, labels):
    total = 0.0
    for row, label in zip(logits.log_softmax(-1), labels.tolist(), strict=True):
        total += row[label]
        if label == 2:
            break
    return total


def as_in_the_search(logits, labels):
    logits[..., [0, 1]] = -math.inf
    return words(logits, labels).sum()


def words(logits, labels):
    return logits.log_softmax(dim=-1).gather(-1, labels[:, None])


def shifted(logits, labels):
    return words(logits[:-1], labels[1:]).sum()


def product(logits, labels):
    """Right, until the product is too small for the precision."""
    probabilities = logits.softmax(dim=-1)
    return probabilities[range(len(labels)), labels].prod().log()


def guarded(guard):
    """A probability kept from 0, before its logarithm is taken."""

    def answer(logits, labels):
        probabilities = logits.softmax(dim=-1)
        return guard(probabilities[range(len(labels)), labels]).log().sum()

    return answer


def over_everything(logits, labels):
    logs = logits.flatten().log_softmax(dim=-1).view_as(logits)
    return logs[range(len(labels)), labels].sum()


def in_order_of_rank(logits, k):
    return top_k(logits, k).sort(descending=True).values


def first(logits, k):
    return logits.masked_fill(torch.arange(len(logits)) >= k, -math.inf).softmax(-1)


def scattered(logits, k, weigh):
    """Zeros, but for what `weigh` makes of the k largest."""
    best = logits.topk(k)
    return torch.zeros_like(logits).scatter(0, best.indices, weigh(best.values))


def beam_step(totals, log_probabilities):
    k, vocabulary = log_probabilities.shape
    best = (totals[:, None] + log_probabilities).flatten().topk(k).indices
    return best // vocabulary, best % vocabulary


def beam_step_by_sorting(totals, log_probabilities):
    found = [
        (total + more, row, token)
        for row, total in enumerate(totals.tolist())
        for token, more in enumerate(log_probabilities[row].tolist())
    ]
    best = sorted(found, reverse=True)[: len(totals)]
    return torch.tensor([r for _, r, _ in best]), torch.tensor([t for _, _, t in best])


def beam_step_as_lists(totals, log_probabilities):
    return tuple(each.tolist() for each in beam_step(totals, log_probabilities))


def one_each(totals, log_probabilities):
    return torch.arange(len(totals)), log_probabilities.argmax(dim=-1)


def flat_index(totals, log_probabilities):
    k, vocabulary = log_probabilities.shape
    best = (totals[:, None] + log_probabilities).flatten().topk(k).indices
    return best // vocabulary, best


def divided_by_k(totals, log_probabilities):
    best = (totals[:, None] + log_probabilities).flatten().topk(len(totals)).indices
    return best // len(totals), best % len(totals)


def greedy_row(totals, log_probabilities):
    row = totals.argmax()
    tokens = log_probabilities[row].topk(len(totals)).indices
    return row.expand(len(totals)), tokens


def added_probabilities(totals, log_probabilities):
    k, vocabulary = log_probabilities.shape
    scores = totals.exp()[:, None] + log_probabilities.exp()
    best = scores.flatten().topk(k).indices
    return best // vocabulary, best % vocabulary


def floored(totals, log_probabilities):
    k, vocabulary = log_probabilities.shape
    best = (totals[:, None] + log_probabilities).flatten().topk(k).indices
    return torch.floor(best / vocabulary), best % vocabulary


def multiplied(totals, log_probabilities):
    k, vocabulary = log_probabilities.shape
    best = (totals[:, None] * log_probabilities).flatten().topk(k).indices
    return best // vocabulary, best % vocabulary


def fixed_view(totals, log_probabilities):
    best = (totals[:, None] + log_probabilities).view(12).topk(3).indices
    return best // 4, best % 4


def wrong_for_two(totals, log_probabilities):
    if len(totals) == 2:
        return torch.tensor([0, 0]), torch.tensor([0, 1])
    return beam_step(totals, log_probabilities)


def always_four(totals, log_probabilities):
    best = (totals[:, None] + log_probabilities).flatten().topk(3).indices
    return best // 4, best % 4


test_model_solutions_are_right = right_answers(
    [
        (check_score, until_eos),
        (check_score, lambda z, w: product(z.double(), w)),
        (check_beam_step, beam_step_by_sorting),
        (check_beam_step, beam_step_as_lists),
        (check_top_k, renormalised),
        (
            check_top_k,
            lambda z, k: z.masked_fill(z < z.topk(k).values[-1], -1e9).softmax(-1),
        ),
    ]
)


test_wrong_answers_are_named = named_mistakes(
    [
        (check_score, lambda z, w: words(z, w).mean(), "mean"),
        (check_score, words, "not a tensor of shape (3, 1)"),
        (check_score, lambda z, w: F.cross_entropy(z, w), "default, the mean"),
        (check_score, shifted, "shifted the labels"),
        (
            check_score,
            lambda z, w: sum(z.log_softmax(-1)[t, w[t]] for t in range(3)),
            "Does every label count",
        ),
        (
            check_score,
            lambda z, w: -F.cross_entropy(z, w, reduction="sum", ignore_index=0),
            "Does every label count",
        ),
        (check_score, product, "add their logarithms"),
        (check_score, lambda z, w: math.log(product(z, w).exp()), "add their logar"),
        (check_score, guarded(lambda p: p + 1e-9), "needs no epsilon"),
        (check_score, over_everything, "a softmax for each row"),
        (check_score, lambda z, w: words(z, w).sum() / math.log(2), "base 2"),
        (check_score, lambda z, w: words(z, w).sum() / math.log(10), "base 10"),
        (
            check_score,
            lambda z, w: z.softmax(-1).gather(-1, w[:, None]).prod(),
            "asked for",
        ),
        (check_score, lambda z, w: words(z, w).sum().exp(), "logarithm is asked for"),
        (check_score, lambda z, w: -words(z, w).sum(), "sign is wrong"),
        (check_score, lambda z, w: words(z, w)[:-1].sum(), "end is missing"),
        (check_score, as_in_the_search, "no token is masked"),
        (check_score, lambda z, w: words(z, w).exp().sum(), "They multiply"),
        (check_score, lambda z, w: z.gather(-1, w[:, None]).sum(), "added logits"),
        (
            check_score,
            lambda z, w: z.log_softmax(0).gather(-1, w[:, None]).sum(),
            "over the positions",
        ),
        (
            check_score,
            lambda z, w: z.log_softmax(-1).max(-1).values.sum(),
            "most probable token",
        ),
        (check_beam_step, one_each, "All continuations compete"),
        (check_beam_step, lambda t, z: beam_step(0 * t, z), "compared the new tokens"),
        (check_beam_step, lambda t, z: beam_step(t, z.exp()), "add logarithms"),
        (check_beam_step, lambda t, z: beam_step(-t, -z), "least probable"),
        (check_beam_step, lambda t, z: beam_step(t, z)[::-1], "rows first"),
        (check_beam_step, flat_index, "take the remainder"),
        (check_beam_step, divided_by_k, "as long as the vocabulary"),
        (check_beam_step, lambda t, z: beam_step(t, z)[0], "Return two tensors"),
        (check_beam_step, lambda t, z: beam_step(t[:2], z[:2]), "Three hypotheses"),
        (
            check_beam_step,
            lambda t, z: [each.flip(0) for each in beam_step(t, z)],
            "not in order",
        ),
        (check_beam_step, floored, "divide with //"),
        (
            check_beam_step,
            lambda t, z: (beam_step(t, z)[0], beam_step(t, z)[1].float()),
            "whole numbers",
        ),
        (check_beam_step, multiplied, "multiplied logarithms"),
        (check_beam_step, always_four, "read the sizes"),
        (check_beam_step, fixed_view, "read the sizes"),
        (check_beam_step, wrong_for_two, "Right for three hypotheses"),
        (check_beam_step, greedy_row, "only the most probable hypothesis"),
        (check_beam_step, added_probabilities, "They multiply"),
        (check_beam_step, two_of_each, "come from one hypothesis"),
        (check_top_k, hardly_possible, "can be drawn"),
        (check_top_k, zeroed, "must add up to one"),
        (check_top_k, zero_logits, "e to the 0 is 1"),
        (check_top_k, lambda z, k: top_k(z, 1), "most probable token alone"),
        (check_top_k, lambda z, k: z.softmax(dim=-1), "Nothing was cut"),
        (check_top_k, lambda z, k: 1 - top_k(z, k), "off by up to"),
        (check_top_k, least, "least probable tokens"),
        (check_top_k, lambda z, k: z.topk(k).values.softmax(-1), "one for each token"),
        (check_top_k, one_too_many, "one token too many"),
        (check_top_k, always_two, "as large as the vocabulary"),
        (check_top_k, lambda z, k: top_k(z, max(k, 2)), "With k = 1"),
        (check_top_k, in_order_of_rank, "at its token's place"),
        (check_top_k, first, "kept the first k"),
        (
            check_top_k,
            lambda z, k: scattered(z.softmax(-1), k, lambda p: p.softmax(0)),
            "applied softmax twice",
        ),
        (
            check_top_k,
            lambda z, k: scattered(z, k, lambda best: best / best.sum()),
            "divided the logits by their sum",
        ),
        (check_top_k, lambda z, k: z.topk(k).indices, "ids of the k tokens"),
        (check_top_k, filled_in_place, "changed `logits` in place"),
    ]
)


def test_two_stubs_are_no_answer_yet():
    assert check_beam_step(lambda t, z: (..., ...)).kind == "unanswered"
