"""Checks for the exercises of chapter 17, What comes next?"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from bookkit.exercises import (
    Verdict,
    exercise,
    explain,
    near,
    number,
    right,
    tensor,
    wrong,
)


@exercise
def check_perplexity(perplexity: Callable[[Tensor, Tensor], Any]) -> Verdict:
    """Exercise: the perplexity of a text."""
    rows = [[1.0, 0.0, 2.0, -1.0], [0.5, 0.5, 0.0, 1.5], [0.0, 2.0, 1.0, -2.0]]
    logits, labels = torch.tensor(rows), torch.tensor([2, 0, 1])
    logs = logits.log_softmax(dim=-1)
    surprise = -logs.gather(-1, labels[:, None]).squeeze(-1)
    across = -logits.log_softmax(dim=0).gather(-1, labels[:, None])
    expected = float(surprise.mean().exp())
    answer = number(perplexity(logits, labels), "a perplexity, one number")
    known = {
        float(
            surprise.mean()
        ): "That is the mean surprise: the perplexity is its exponential.",
        float(surprise.mean()) / math.log(2): (
            "That is the mean surprise in bits a token: the perplexity is two to "
            "that power."
        ),
        float(2 ** surprise.mean()): (
            "You took two to the power of nats: with natural logarithms the base is e."
        ),
        float(surprise.exp().mean()): (
            "You took the mean of exponentials: take the mean of the surprise first, "
            "and then the exponential."
        ),
        float(surprise.sum().exp()): (
            "You used the surprise of the whole text: perplexity uses the mean "
            "surprise of a token."
        ),
        float((-surprise.mean()).exp()): (
            "That is the inverse of the perplexity: the surprise has a minus sign."
        ),
        float(across.mean().exp()): (
            "Your softmax runs over the positions: it should run over the vocabulary."
        ),
        float((-logs.max(dim=-1).values).mean().exp()): (
            "You took the most probable token of each row, not the label."
        ),
        float((-(logs.exp() * logs).sum(dim=-1)).mean().exp()): (
            "That is how uncertain the predictions are, and the labels are missing: "
            "take the surprise of each label."
        ),
    }
    if math.isclose(answer, expected, abs_tol=1e-4):
        even = number(perplexity(torch.zeros(5, 7), torch.tensor([0, 6, 3, 3, 1])))
        if math.isclose(even, 7.0, abs_tol=1e-3):
            return right(
                "A uniform guess among seven tokens has a perplexity of seven."
            )
        return wrong(
            f"A uniform guess among seven tokens gives {even:.3f}; it should be 7."
        )
    for value, message in known.items():
        if math.isclose(answer, value, abs_tol=1e-4):
            return wrong(message)
    return wrong(f"For the example it should be {expected:.3f}; got {answer:.3f}.")


@exercise
def check_vocabularies(bits: Any) -> Verdict:
    """Exercise: bits a character of a model that reads subwords."""
    answer = number(bits)
    token = math.log2(300)
    if math.isclose(answer, token / 4, rel_tol=0.025):  # 2.1 will do
        return right(
            "2.06 bits, where the model of characters needs 2.32: the second is "
            "better, although its perplexity is sixty times as high."
        )
    known = {
        token: "These are the bits a token, and a token has four characters here.",
        math.log2(5): "These are the bits a character of the first model.",
        math.log(300) / 4: "These are nats: for bits, take the logarithm to base two.",
        math.log2(300 / 4): "You divided the perplexity: divide its logarithm.",
        300 / 4: "You divided the perplexity: take its logarithm first.",
        token * 4: "You multiplied by four: divide, because a character costs less "
        "than a token.",
        token * 250: "These are the bits of the whole text.",
    }
    for value, message in known.items():
        if math.isclose(answer, value, rel_tol=0.02):
            return wrong(message)
    return wrong(
        f"Got {answer:g}. The text costs 250 times the bits a token; how many bits is "
        "that a character?"
    )


@exercise
def check_bigram(bigram: Callable[[str, str, str, int], Any]) -> Verdict:
    """Exercise: a bigram with absolute discounting over the uniform guess."""
    text, size = "bandana banana b", 6

    followers = [b for a, b in pairwise(text) if a == "n"]
    count, kinds, total = followers.count("a"), len(set(followers)), len(followers)

    def smoothed(first: str, second: str) -> float:
        return _smoothed(text, first, second, size)

    found = number(bigram(text, "n", "a", size), "a probability")
    unigram = text.count("a") / len(text)
    known = {
        count / total: "That is the relative frequency: subtract δ from the count.",
        max(count - 0.75, 0) / total: (
            "You subtracted δ but did not redistribute it: the probabilities no "
            "longer sum to one."
        ),
        (count - 0.75 + 0.75 / size) / total: (
            "Each different follower gives up δ, not only one: redistribute δ times "
            "k(h)."
        ),
        (count - 0.75 + 0.75 * total / size) / total: (
            "k(h) is the number of different followers: count each of them once."
        ),
        (count - 0.75 + 0.75 * kinds) / total: (
            "What the counts give up is spread over the vocabulary: multiply it by "
            "the uniform guess, 1 / vocab_size."
        ),
        (count - 0.75 + 0.75 * kinds * unigram) / total: (
            "You multiplied by the unigram probability; in this exercise the lower "
            "order is the uniform guess, 1 / vocab_size."
        ),
        (count - 0.75 + 0.75 * kinds / len(set(text))) / total: (
            "You divided by the number of different characters in this text: "
            "vocab_size may be larger."
        ),
        (count - 0.75 + 0.75 * kinds / size) / len(text): (
            "You divided by the length of the text: divide by the number of pairs "
            "that begin with `first`."
        ),
    }
    if math.isclose(found, smoothed("n", "a"), abs_tol=1e-6):
        unseen = number(bigram(text, "n", "b", size))
        if unseen < 0 or math.isclose(unseen, (0.75 * kinds / size - 0.75) / total):
            return wrong(
                "For a pair that never occurred, the count minus δ is negative: use "
                "zero instead."
            )
        if not math.isclose(unseen, smoothed("n", "b"), abs_tol=1e-6):
            return wrong(
                "A pair that never occurred should still get δ · k(h) / (vocab_size "
                f"· c(h)) = {smoothed('n', 'b'):.4f}; got {unseen:.4f}."
            )
        others = [number(bigram(text, "a", each, 10)) for each in "bnd x"]
        wanted = [_smoothed(text, "a", each, 10) for each in "bnd x"]
        if torch.allclose(torch.tensor(others), torch.tensor(wanted)):
            if not math.isclose(
                number(bigram("aaab", "a", "a", 10)),
                _smoothed("aaab", "a", "a", 10),
                abs_tol=1e-6,
            ):
                return wrong(
                    "In aaab, a follows a twice: str.count skips overlapping pairs."
                )
            return right(
                "Every count is discounted, and no pair has probability zero any more."
            )
        return wrong("It fails for another context and a larger vocabulary.")
    if any(
        math.isclose(found, value, abs_tol=1e-6)
        for value in (count / total, max(count - 0.75, 0) / total)
    ):  # what an unseen pair gets tells apart what these are
        try:
            unseen = number(bigram(text, "n", "b", size))
        except (KeyError, ZeroDivisionError):
            unseen = 0.0
        if math.isclose(found, count / total, abs_tol=1e-6) and math.isclose(
            unseen, 0.75 / total, abs_tol=1e-6
        ):
            return wrong(
                "You subtracted δ, but for `a` after `n` you added δ / c(h), which "
                "brings it back: add δ · k(h) / (vocab_size · c(h)) to every pair."
            )
        spread = (0.75 * kinds / (total * each) for each in (size, size - kinds))
        if found < count / total and any(
            math.isclose(unseen, each, abs_tol=1e-6) for each in spread
        ):
            return wrong(
                "You gave what was subtracted to unseen pairs alone. Seen pairs get "
                "their part of it, too: interpolate, and add δ · k(h) / (vocab_size "
                "· c(h)) to every pair."
            )
    for value, message in known.items():
        if math.isclose(found, value, abs_tol=1e-6):
            return wrong(message)
    return wrong(f"For n, a it should be {smoothed('n', 'a'):.4f}; got {found:.4f}.")


def _smoothed(text: str, first: str, second: str, size: int) -> float:
    followers = [b for a, b in pairwise(text) if a == first]
    kept = max(followers.count(second) - 0.75, 0)
    return (kept + 0.75 * len(set(followers)) / size) / len(followers)


@exercise
def check_prefix(prefix_mask: Callable[[int, int], Any]) -> Verdict:
    """Exercise: a causal mask whose first positions all attend to one another."""
    answer = tensor(prefix_mask(3, 5), "a tensor of booleans")
    past = torch.ones(5, 5, dtype=torch.bool).tril()
    prefix = torch.arange(5) < 3
    expected = past | (prefix & prefix[:, None])
    if answer.shape != expected.shape:
        return wrong(
            "The mask should be (length, length) = (5, 5), got "
            f"{tuple(answer.shape)}: length includes the prefix."
        )
    if answer.dtype != torch.bool:
        return wrong(f"The mask should be boolean, got {answer.dtype}.")
    known = {
        "That is the causal mask: inside the prefix the first position should attend "
        "to the third, too.": past,
        "Only the square of the prefix is True: positions after it should attend to "
        "the prefix and to their own past.": prefix & prefix[:, None],
        "After the prefix a position attends to its future, which it should predict.": (
            torch.ones(5, 5, dtype=torch.bool)
        ),
        "The prefix attends to what follows it: in its rows only the columns of the "
        "prefix should be True.": past | prefix[:, None],
        "Inverted: True must mean may attend.": ~expected,
        "Your mask is transposed: rows are queries, and columns are keys.": expected.mT,
        "The positions after the prefix attend to it alone, and not to their own "
        "past.": prefix.expand(5, 5),
        "The prefix is one too short.": past
        | ((torch.arange(5) < 2) & (torch.arange(5) < 2)[:, None]),
        "The prefix is one too long.": past
        | ((torch.arange(5) < 4) & (torch.arange(5) < 4)[:, None]),
    }
    if torch.equal(answer, expected):
        seven = torch.arange(7) < 2
        wanted = torch.ones(7, 7, dtype=torch.bool).tril() | (seven & seven[:, None])
        if not torch.equal(prefix_mask(2, 7), wanted):
            return wrong("Right for 3 of 5 positions, but not for 2 of 7.")
        return right(
            "The prefix attends in both directions, as in an encoder, and the rest "
            "causally, as in a decoder."
        )
    for message, mask in known.items():
        if torch.equal(answer, mask):
            return wrong(message)
    return wrong(
        "Go row by row: which positions may the first attend to, and which the fourth?"
    )


@exercise
def check_induction(induction_scores: Callable[[Tensor, int], Any]) -> Verdict:
    """Exercise: the induction score of each head, from its weights."""
    generator = torch.Generator().manual_seed(3)
    period = 5
    weights = torch.rand(3, 2 * period, 2 * period, generator=generator).tril()
    weights = weights / weights.sum(dim=-1, keepdim=True)
    t = torch.arange(period, 2 * period)
    whole = torch.arange(period - 1, 2 * period)

    def at(queries: Tensor, keys: Tensor) -> Tensor:
        return weights[:, queries, keys].mean(dim=-1)

    expected = at(t, t - period + 1)
    mistakes = {
        "That is the weight on the earlier occurrence itself: take the token after "
        "it.": at(t, t - period),
        "That is the weight on the token before the earlier occurrence: take the one "
        "after it.": at(t, (t - period - 1).clamp(min=0)),
        "That is the weight on the previous token, whatever it is: take the one "
        "after the earlier occurrence.": at(t, t - 1),
        "You included the last position of the first half, which repeats nothing.": (
            at(whole, whole - period + 1)
        ),
        "The last position is missing: the token after its earlier occurrence is the "
        "first of the second half.": at(t[:-1], t[:-1] - period + 1),
        "You summed; the score is a mean over positions.": expected * period,
        "You took the mean over the heads too: return one score for each head.": (
            expected.mean()
        ),
        "Queries and keys are swapped: rows are queries, and columns are keys.": at(
            t - period + 1, t
        ),
    }
    answer = induction_scores(weights.clone(), period)
    if not near(answer, expected):
        on_nan = (
            "Some entries are NaN, as the mean of no entries is. Which positions did "
            "you take? The second half begins at `period`: 16 was the chapter's."
        )
        return wrong(explain(answer, expected, mistakes, on_nan))
    other = weights[:2, :6, :6].clone()
    t = torch.arange(3, 6)
    if not near(induction_scores(other, 3), other[:, t, t - 2].mean(dim=-1)):
        return wrong(
            "It fails for two heads and a block of three: take the sizes from the "
            "arguments."
        )
    return right(
        "The score is the mean of a diagonal, one column to the right of the earlier "
        "occurrences."
    )
