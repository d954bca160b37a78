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
        ): "That is the mean surprise: its power is still to come.",
        float(surprise.mean()) / math.log(2): (
            "These are the bits a token: two to that power is the perplexity."
        ),
        float(2 ** surprise.mean()): (
            "Two to the power of nats: with natural logarithms the base is e."
        ),
        float(surprise.exp().mean()): (
            "You took the mean of the perplexities. The mean comes first, and the "
            "power then."
        ),
        float(surprise.sum().exp()): (
            "That is of the whole text: perplexity is of the mean surprise of a token."
        ),
        float((-surprise.mean()).exp()): "That is its inverse: mind the sign.",
        float(across.mean().exp()): (
            "Your softmax runs over the positions: it should run over the vocabulary."
        ),
        float((-logs.max(dim=-1).values).mean().exp()): (
            "You took the most probable token of each row, not the label."
        ),
        float((-(logs.exp() * logs).sum(dim=-1)).mean().exp()): (
            "That is how unsure the model is, whatever came: the labels are missing."
        ),
    }
    if math.isclose(answer, expected, abs_tol=1e-4):
        even = number(perplexity(torch.zeros(5, 7), torch.tensor([0, 6, 3, 3, 1])))
        if math.isclose(even, 7.0, abs_tol=1e-3):
            return right("An even guess among seven has a perplexity of seven.")
        return wrong(f"An even guess among seven gives {even:.3f}; it should be 7.")
    for value, message in known.items():
        if math.isclose(answer, value, abs_tol=1e-4):
            return wrong(message)
    return wrong(f"For the example it is {expected:.3f}; got {answer:.3f}.")


@exercise
def check_vocabularies(bits: Any) -> Verdict:
    """Exercise: bits a character of a model that reads subwords."""
    answer = number(bits)
    token = math.log2(300)
    if math.isclose(answer, token / 4, rel_tol=0.005):
        return right(
            "2.06 bits, where the model of characters needs 2.32: the second is "
            "better, although its perplexity is sixty times as high."
        )
    known = {
        token: "These are the bits a token, and a token has four characters here.",
        math.log2(5): "These are the bits a character of the first model.",
        math.log(300) / 4: "These are nats: the logarithm of bits has base two.",
        math.log2(300 / 4): "You divided the perplexity: divide its logarithm.",
        300 / 4: "You divided the perplexity: take its logarithm first.",
        token * 4: "You multiplied: a character costs less than a token.",
        token * 250: "These are the bits of the whole text.",
    }
    for value, message in known.items():
        if math.isclose(answer, value, rel_tol=0.005):
            return wrong(message)
    return wrong(
        f"Got {answer:g}. The text costs 250 times the bits a token; what is that a "
        "character?"
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
        count / total: "That is the plain share. Nothing has been given up yet.",
        max(count - 0.75, 0) / total: (
            "What the counts gave up is lost: the probabilities no longer sum to one."
        ),
        (count - 0.75 + 0.75 / size) / total: (
            "Each kind of follower gives up a part, not only one: that is k(h)."
        ),
        (count - 0.75 + 0.75 * total / size) / total: (
            "k(h) counts different followers, each once."
        ),
        (count - 0.75 + 0.75 * kinds) / total: (
            "What is given up is shared: times the uniform guess, 1 / vocab_size."
        ),
        (count - 0.75 + 0.75 * kinds * unigram) / total: (
            "You shared by the unigram; in this exercise the lower order is the "
            "uniform guess."
        ),
        (count - 0.75 + 0.75 * kinds / len(set(text))) / total: (
            "You shared among the characters of this text: vocab_size may be larger."
        ),
        (count - 0.75 + 0.75 * kinds / size) / len(text): (
            "You divided by the whole text: only what follows the first one counts."
        ),
    }
    if math.isclose(found, smoothed("n", "a"), abs_tol=1e-6):
        unseen = number(bigram(text, "n", "b", size))
        if unseen < 0 or math.isclose(unseen, (0.75 * kinds / size - 0.75) / total):
            return wrong("What never followed has a negative part: stop at zero.")
        if not math.isclose(unseen, smoothed("n", "b"), abs_tol=1e-6):
            return wrong(
                "A pair that never came should get its share of what was given up: "
                f"{smoothed('n', 'b'):.4f}, got {unseen:.4f}."
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
                    "In aaab a follows a twice: str.count leaves overlaps out."
                )
            return right("Counts give up a part, and nothing is impossible any more.")
        return wrong("It fails for another context and a larger vocabulary.")
    for value, message in known.items():
        if math.isclose(found, value, abs_tol=1e-6):
            return wrong(message)
    return wrong(f"For n, a it is {smoothed('n', 'a'):.4f}; got {found:.4f}.")


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
            f"{tuple(answer.shape)}: length counts the prefix in."
        )
    if answer.dtype != torch.bool:
        return wrong(f"The mask should be boolean, got {answer.dtype}.")
    known = {
        "That is the causal mask: inside the prefix the first position should see "
        "the third, too.": past,
        "Nothing stands outside the prefix's own square: what comes behind it should "
        "see it and its own past.": prefix & prefix[:, None],
        "Behind the prefix a position sees its future, which it should predict.": (
            torch.ones(5, 5, dtype=torch.bool)
        ),
        "The prefix sees what follows it: its rows should end where the prefix ends.": (
            past | prefix[:, None]
        ),
        "Inverted: True must mean may attend.": ~expected,
        "Rows are queries: yours are the columns.": expected.mT,
        "The positions behind the prefix see it alone, and not their own past.": (
            prefix.expand(5, 5)
        ),
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
        return right("An encoder and a decoder in one mask.")
    for message, mask in known.items():
        if torch.equal(answer, mask):
            return wrong(message)
    return wrong("Row by row: who may the first position see, who the fourth?")


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
        "That is the weight to the earlier occurrence itself: the token behind it is "
        "asked for.": at(t, t - period),
        "That is the token before the earlier occurrence: take the one behind it.": (
            at(t, (t - period - 1).clamp(min=0))
        ),
        "That is the weight to the token before, whatever it is.": at(t, t - 1),
        "You counted the last position of the first half, which repeats nothing.": (
            at(whole, whole - period + 1)
        ),
        "The last position is missing: behind its earlier occurrence the second half "
        "begins.": at(t[:-1], t[:-1] - period + 1),
        "You summed; the score is a mean over positions.": expected * period,
        "That is the mean over heads too: one score a head.": expected.mean(),
        "You took queries for keys: rows are queries.": at(t - period + 1, t),
    }
    answer = induction_scores(weights.clone(), period)
    if not near(answer, expected):
        return wrong(explain(answer, expected, mistakes))
    other = weights[:2, :6, :6].clone()
    t = torch.arange(3, 6)
    if not near(induction_scores(other, 3), other[:, t, t - 2].mean(dim=-1)):
        return wrong("It fails for two heads and a block of three: take the sizes.")
    return right("A stripe of the table, one place above the repetition's own.")
