"""The exercises of chapter 15: right answers pass, likely wrong ones are named."""

import pytest
import torch

from bookkit.checks.faster import check_gradient, check_logits, check_pieces


def target(logits, right, smoothing):
    q = torch.full_like(logits, smoothing / len(logits))
    q[right] += 1 - smoothing
    return q


def gradient(logits, right, smoothing):
    return logits.softmax(dim=-1) - target(logits, right, smoothing)


def by_autograd(logits, right, smoothing):
    logits.requires_grad_()
    torch.nn.functional.cross_entropy(
        logits[None], torch.tensor([right]), label_smoothing=smoothing
    ).backward()
    return logits.grad


def less_one(logits, right, smoothing):
    return gradient(logits, right, 0.0)


def share_forgotten(logits, right, smoothing):
    p = logits.softmax(dim=-1)
    p[right] -= 1 - smoothing
    return p


def not_shared(logits, right, smoothing):
    return share_forgotten(logits, right, smoothing) - smoothing


def too_much(logits, right, smoothing):
    return gradient(logits, right, 0.0) - smoothing / len(logits)


def wrong_words_alone(logits, right, smoothing):
    answer = gradient(logits, right, smoothing)
    answer[right] += smoothing / len(logits)
    return answer


def unshifted(logits, right, smoothing):
    powers = logits.exp()
    return powers / powers.sum() - target(logits, right, smoothing)


def for_five_words(logits, right, smoothing):
    wanted = torch.full_like(logits, smoothing / 5)
    wanted[right] += 1 - smoothing
    return logits.softmax(dim=-1) - wanted


def by_the_first(parts):
    highest = parts[0].max()
    return highest + sum((part - highest).exp().sum() for part in parts).log()


def pieces(parts):
    total = torch.tensor(-torch.inf)
    for part in parts:
        total = torch.logaddexp(total, part.logsumexp(dim=-1))
    return total


def all_at_once(parts):
    return torch.cat(parts).logsumexp(dim=-1)


def joined(parts):
    return torch.stack([part.logsumexp(dim=-1) for part in parts]).logsumexp(dim=-1)


def overflowing(parts):
    return sum(part.exp().sum() for part in parts).log()


def underflowing(parts):
    large = max(0.0, max(float(part.max()) for part in parts))
    return sum((part - large).exp().sum() for part in parts).log() + large


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (check_logits, 3.7),
        (check_logits, 25_000 * 37_000 * 4 / 1e9),
        (check_gradient, gradient),
        (check_gradient, by_autograd),
        (check_pieces, pieces),
        (check_pieces, joined),
    ],
)
def test_model_solutions_are_right(check, answer):
    assert check(answer).kind == "right", check(answer)


@pytest.mark.parametrize(
    ("check", "answer", "key"),
    [
        (check_logits, 0.925, "takes four bytes"),
        (check_logits, 25_000 * 37_000 * 4 / 2**30, "2³⁰"),
        (check_logits, 29.6, "in bits"),
        (check_logits, 1.85, "half precision"),
        (check_logits, 7.4, "double precision"),
        (check_logits, 3700, "megabytes"),
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
        (check_gradient, lambda z, w, e: gradient(z, w, e)[w], "shape is ()"),
        (check_gradient, unshifted, "with 200 the exponential overflows"),
        (check_gradient, for_five_words, "not for eight"),
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
        (
            check_pieces,
            lambda parts: sum(p.double().exp().sum() for p in parts).log(),
            "overflows",
        ),
        (check_pieces, by_the_first, "A later piece may hold the largest"),
        (check_pieces, lambda parts: [p.logsumexp(-1) for p in parts], "shape is (2,)"),
        (check_pieces, underflowing, "below zero"),
    ],
)
def test_wrong_answers_are_named(check, answer, key):
    verdict = check(answer)
    assert verdict.kind == "wrong"
    assert key in verdict.message, verdict


@pytest.mark.parametrize("check", [check_logits, check_gradient, check_pieces])
def test_no_answer_is_no_mistake(check):
    assert check(...).kind == "unanswered"
