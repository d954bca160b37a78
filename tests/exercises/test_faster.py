"""The exercises of chapter 15: right answers pass, likely wrong ones are named."""

import math

import torch

from bookkit.checks.faster import check_gradient, check_logits, check_pieces
from tests.exercises import named_mistakes, right_answers


def at(labels):
    return torch.arange(len(labels)), labels


def target(logits, labels, smoothing):
    q = torch.full_like(logits, smoothing / logits.size(-1))
    q[at(labels)] += 1 - smoothing
    return q


def gradient(logits, labels, smoothing):
    return logits.softmax(dim=-1) - target(logits, labels, smoothing)


def by_loop(logits, labels, smoothing):
    rows = logits.softmax(dim=-1) - smoothing / logits.shape[1]
    for row, label in zip(rows, labels.tolist(), strict=True):
        row[label] -= 1 - smoothing
    return rows


def by_autograd(logits, labels, smoothing):
    logits.requires_grad_()
    torch.nn.functional.cross_entropy(
        logits, labels, label_smoothing=smoothing, reduction="sum"
    ).backward()
    return logits.grad


def of_the_mean(logits, labels, smoothing):
    return by_autograd(logits, labels, smoothing) / len(labels)


def less_one(logits, labels, smoothing):
    return gradient(logits, labels, 0.0)


def share_forgotten(logits, labels, smoothing):
    p = logits.softmax(dim=-1)
    p[at(labels)] -= 1 - smoothing
    return p


def not_shared(logits, labels, smoothing):
    return share_forgotten(logits, labels, smoothing) - smoothing


def by_rows(logits, labels, smoothing):
    return share_forgotten(logits, labels, smoothing) - smoothing / len(logits)


def too_much(logits, labels, smoothing):
    return gradient(logits, labels, 0.0) - smoothing / logits.size(-1)


def wrong_words_alone(logits, labels, smoothing):
    answer = gradient(logits, labels, smoothing)
    answer[at(labels)] += smoothing / logits.size(-1)
    return answer


def among_the_others(logits, labels, smoothing):
    q = torch.full_like(logits, smoothing / (logits.size(-1) - 1))
    q[at(labels)] = 1 - smoothing
    return logits.softmax(dim=-1) - q


def among_one_less(logits, labels, smoothing):
    return share_forgotten(logits, labels, smoothing) - smoothing / (
        logits.size(-1) - 1
    )


def every_label(logits, labels, smoothing):
    answer = logits.softmax(dim=-1) - smoothing / logits.size(-1)
    answer[:, labels] -= 1 - smoothing
    return answer


def unshifted(logits, labels, smoothing):
    powers = logits.exp()
    return powers / powers.sum(-1, keepdim=True) - target(logits, labels, smoothing)


def for_five_words(logits, labels, smoothing):
    wanted = torch.full_like(logits, smoothing / 5)
    wanted[at(labels)] += 1 - smoothing
    return logits.softmax(dim=-1) - wanted


def for_three_rows(logits, labels, smoothing):
    answer = logits.softmax(dim=-1) - smoothing / logits.size(-1)
    answer[[0, 1, 2], labels] -= 1 - smoothing
    return answer


def not_rescaled(parts):
    top, total = torch.tensor(-torch.inf), 0.0
    for part in parts:
        top = torch.maximum(top, part.max())
        total += (part - top).exp().sum()
    return top + total.log()


def not_rescaled_by_logit(parts):
    top, total = -math.inf, 0.0
    for part in parts:
        for z in part.tolist():
            top = max(top, z)
            total += math.exp(z - top)
    return top + math.log(total)


def largest_forgotten(parts):
    """Each piece replaces the largest, which may be that of an earlier one."""
    top, total = -math.inf, torch.zeros(())
    for part in parts:
        largest = part.max()
        total = total * (top - largest).exp() + (part - largest).exp().sum()
        top = largest
    return top + total.log()


def from_zero(parts):
    total = torch.tensor(0.0)
    for part in parts:
        total = torch.logaddexp(total, part.logsumexp(dim=-1))
    return total


def inverted(parts):
    top, total = parts[0].max(), torch.zeros(())
    for part in parts:
        old, top = top, torch.maximum(top, part.max())
        total = total * (top - old).exp() + (part - top).exp().sum()
    return top + total.log()


def overflowing_by_math(parts):
    return math.log(sum(math.exp(z) for part in parts for z in part.tolist()))


def underflowing_by_math(parts):
    top = max(0.0, max(float(part.max()) for part in parts))
    powers = (math.exp(z - top) for part in parts for z in part.tolist())
    return top + math.log(sum(powers))


def by_the_first(parts):
    highest = parts[0].max()
    return highest + sum((part - highest).exp().sum() for part in parts).log()


def all_at_once(parts):
    return torch.cat(parts).logsumexp(dim=-1)


def joined_in_a_list(parts):
    row = [z for part in parts for z in part.tolist()]
    return max(row) + math.log(sum(math.exp(z - max(row)) for z in row))


def not_added_back(parts):
    top = max(part.max() for part in parts)
    return sum((part - top).exp().sum() for part in parts).log()


def joined(parts):
    return torch.stack([part.logsumexp(dim=-1) for part in parts]).logsumexp(dim=-1)


def recursive(parts):
    head, *rest = parts
    found = head.logsumexp(-1)
    return torch.logaddexp(found, recursive(rest)) if rest else found


def overflowing(parts):
    return sum(part.exp().sum() for part in parts).log()


def underflowing(parts):
    large = max(0.0, max(float(part.max()) for part in parts))
    return sum((part - large).exp().sum() for part in parts).log() + large


test_model_solutions_are_right = right_answers(
    [
        (check_logits, 25_000 * 37_000 * 4 / 1e9),
        (check_gradient, by_autograd),
        (check_gradient, by_loop),
        (check_pieces, joined),
        (check_pieces, recursive),
    ]
)


test_wrong_answers_are_named = named_mistakes(
    [
        (check_logits, 0.925, "takes four bytes"),
        (check_logits, 25_000 * 37_000 * 4 / 2**30, "2³⁰"),
        (check_logits, 29.6, "in bits"),
        (check_logits, 1.85, "half precision"),
        (check_logits, 7.4, "eight bytes for a number"),
        (check_logits, 3700, "megabytes"),
        (check_logits, 25_000 * 37_000 * 4, "in bytes"),
        (check_logits, 11.1, "once"),
        (check_logits, 100, "Not 100"),
        (check_logits, "3.7 GB", "without quotes"),
        (check_gradient, lambda z, w, e: -gradient(z, w, e), "sign"),
        (check_gradient, less_one, "without smoothing"),
        (check_gradient, share_forgotten, "term ε/V is missing"),
        (check_gradient, not_shared, "gave all of ε"),
        (check_gradient, too_much, "more than one"),
        (check_gradient, wrong_words_alone, "the right word gets it, too"),
        (check_gradient, lambda z, w, e: z - target(z, w, e), "from the logits"),
        (check_gradient, target, "That is the target q"),
        (check_gradient, lambda z, w, e: z.softmax(-1), "That is p"),
        (
            check_gradient,
            lambda z, w, e: z.log_softmax(-1) - target(z, w, e),
            "logarithms",
        ),
        (check_gradient, lambda z, w, e: gradient(z, w, e) / 2, "0.5 times"),
        (check_gradient, lambda z, w, e: gradient(z, w, 1 - e), "are swapped"),
        (
            check_gradient,
            lambda z, w, e: z.softmax(dim=-1) + target(z, w, e),
            "added q",
        ),
        (check_gradient, lambda z, w, e: gradient(z, w, e)[at(w)], "shape is (3,)"),
        (check_gradient, among_the_others, "among the V - 1 wrong words"),
        (check_gradient, among_one_less, "divided ε by V - 1"),
        (check_gradient, by_rows, "by the number of rows"),
        (check_gradient, every_label, "labels of all rows"),
        (check_gradient, of_the_mean, "mean over the rows"),
        (check_gradient, lambda z, w, e: gradient(z, w, e).sum(0), "rows are added up"),
        (
            check_gradient,
            lambda z, w, e: z.softmax(0) - target(z, w, e),
            "runs over the rows",
        ),
        (check_gradient, unshifted, "with 200 the exponential overflows"),
        (check_gradient, for_five_words, "two rows and eight words"),
        (check_gradient, for_three_rows, "two rows and eight words"),
        (
            check_pieces,
            lambda parts: sum(p.logsumexp(-1) for p in parts),
            "added the logarithms",
        ),
        (check_pieces, lambda parts: sum(p.exp().sum() for p in parts), "missing"),
        (check_pieces, lambda parts: parts[-1].logsumexp(-1), "only the last piece"),
        (check_pieces, lambda parts: parts[0].logsumexp(-1), "only the first piece"),
        (
            check_pieces,
            lambda parts: torch.cat(parts).max(),
            "That is the largest logit",
        ),
        (check_pieces, all_at_once, "one tensor of 320"),
        (
            check_pieces,
            lambda parts: torch.cat(parts).exp().mean().log(),
            "took the mean",
        ),
        (check_pieces, overflowing, "overflows"),
        (check_pieces, by_the_first, "A later piece may hold the largest"),
        (check_pieces, lambda parts: [p.logsumexp(-1) for p in parts], "shape is (3,)"),
        (check_pieces, underflowing, "below zero"),
        (check_pieces, overflowing_by_math, "with 900 the exponential overflows"),
        (check_pieces, underflowing_by_math, "below zero"),
        (check_pieces, lambda parts: max(p.logsumexp(0) for p in parts), "largest of"),
        (check_pieces, not_rescaled, "rescale the sum so far"),
        (check_pieces, not_rescaled_by_logit, "rescale the sum so far"),
        (check_pieces, inverted, "factor is inverted"),
        (check_pieces, largest_forgotten, "After 900 and then 0"),
        (check_pieces, not_added_back, "did not add it back"),
        (check_pieces, joined_in_a_list, "in a list or an array"),
        (check_pieces, from_zero, "begin with -inf"),
    ]
)
