"""The exercises of chapter 13: right answers pass, likely wrong ones are named."""

import pytest
import torch

from bookkit.checks.decoding import check_loop, check_positions, check_score


def greedy(next_logits, bos_id, eos_id, max_length, choose=torch.argmax):
    ids = [bos_id]
    for _ in range(max_length):
        best = int(choose(next_logits(ids)))
        if best == eos_id:
            break
        ids.append(best)
    return ids[1:]


def with_symbols(next_logits, bos_id, eos_id, max_length):
    return [bos_id, *greedy(next_logits, bos_id, eos_id, max_length), eos_id]


def with_the_end(next_logits, bos_id, eos_id, max_length):
    return [*greedy(next_logits, bos_id, eos_id, max_length), eos_id]


def with_the_start(next_logits, bos_id, eos_id, max_length):
    return [bos_id, *greedy(next_logits, bos_id, eos_id, max_length)]


def only_the_last(next_logits, bos_id, eos_id, max_length):
    return greedy(lambda ids: next_logits(ids[-1:]), bos_id, eos_id, max_length)


def least_likely(next_logits, bos_id, eos_id, max_length):
    return greedy(next_logits, bos_id, eos_id, max_length, torch.argmin)


def without_start(next_logits, bos_id, eos_id, max_length):
    return greedy(lambda ids: next_logits(ids[1:]), bos_id, eos_id, max_length)


def never_cut(next_logits, bos_id, eos_id, max_length):
    return greedy(next_logits, bos_id, eos_id, 2 * max_length)


def words(logits, wanted):
    return logits.log_softmax(dim=-1).gather(-1, wanted[:, None])


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (check_loop, greedy),
        (check_score, lambda z, w: words(z, w).sum()),
        (check_positions, 55),
    ],
)
def test_model_solutions_are_right(check, answer):
    assert check(answer).kind == "right", check(answer)


@pytest.mark.parametrize(
    ("check", "answer", "key"),
    [
        (check_loop, with_symbols, "bos and eos are still there"),
        (check_loop, with_the_start, "bos is still there"),
        (check_loop, with_the_end, "eos is still there"),
        (check_loop, only_the_last, "not the last one alone"),
        (check_loop, without_start, "begin with bos"),
        (check_loop, least_likely, "largest logit"),
        (check_loop, never_cut, "cut at max_length"),
        (check_score, lambda z, w: words(z, w).mean(), "mean"),
        (check_score, lambda z, w: words(z, w).sum().exp(), "logarithm is wanted"),
        (check_score, lambda z, w: -words(z, w).sum(), "sign"),
        (check_score, lambda z, w: words(z, w)[:-1].sum(), "end is missing"),
        (check_score, lambda z, w: words(z, w).exp().sum(), "They multiply"),
        (check_score, lambda z, w: z.gather(-1, w[:, None]).sum(), "added logits"),
        (
            check_score,
            lambda z, w: z.log_softmax(0).gather(-1, w[:, None]).sum(),
            "over the places",
        ),
        (
            check_score,
            lambda z, w: z.log_softmax(-1).max(-1).values.sum(),
            "likeliest word",
        ),
        (check_positions, 10, "number of turns"),
        (check_positions, 45, "The end takes a turn"),
        (check_positions, 100, "bos alone"),
        (check_positions, 7, "Not 7"),
    ],
)
def test_wrong_answers_are_named(check, answer, key):
    verdict = check(answer)
    assert verdict.kind == "wrong"
    assert key in verdict.message


@pytest.mark.parametrize("check", [check_loop, check_score, check_positions])
def test_no_answer_is_no_mistake(check):
    assert check(...).kind == "unanswered"
