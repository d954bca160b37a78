"""Checks for the exercises of chapter 13, How does it write a translation?"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bookkit.exercises import (
    Verdict,
    exercise,
    explain,
    near,
    number,
    right,
    wrong,
)
from transformer.text.words import BOS_ID, EOS_ID, PAD_ID


@exercise
def check_score(log_probability: Callable[[Tensor, Tensor], Any]) -> Verdict:
    """Exercise: the log-probability of a whole sentence."""
    rows = [
        [1.0, 0.0, -1.5, 2.0, -1.0, 0.75],
        [0.5, 0.25, 0.0, 1.5, 1.0, -0.5],
        [0.0, -1.0, 2.0, 1.0, -2.0, 0.75],
    ]
    logits, labels = torch.tensor(rows), torch.tensor([5, 3, EOS_ID])
    masked = logits.clone()
    masked[:, [PAD_ID, BOS_ID]] = -math.inf
    log_probabilities = logits.log_softmax(dim=-1)
    words = log_probabilities.gather(-1, labels[:, None]).squeeze(-1)
    answer = number(log_probability(logits, labels), "a logarithm, one number")
    across = logits.log_softmax(dim=0).gather(-1, labels[:, None]).sum()
    whole = logits.flatten().log_softmax(dim=-1).view_as(logits)
    known = {
        float(words.mean()): (
            "That is the mean over the tokens. The sentence's is the sum: each token "
            "makes it less probable."
        ),
        float(
            words.sum().exp()
        ): "That is the probability; its logarithm is asked for.",
        -float(words.mean()): (
            "That is cross_entropy's default, the mean surprise: the sum is asked for, "
            "with the other sign."
        ),
        float(words.sum()) / math.log(2): "That is to base 2: take base e.",
        float(words.sum()) / math.log(10): "That is to base 10: take base e.",
        -float(words.sum()): (
            "The sign is wrong: a probability is at most 1, so its logarithm is never "
            "positive."
        ),
        float(masked.log_softmax(-1).gather(-1, labels[:, None]).sum()): (
            "You masked pad and bos. Here no token is masked: the softmax runs over "
            "the whole vocabulary."
        ),
        float(words[:-1].sum()): "The end is missing: eos has a probability, too.",
        float(log_probabilities[:-1].gather(-1, labels[1:, None]).sum()): (
            "You shifted the labels against the logits: row t already belongs to label "
            "t."
        ),
        float(whole.gather(-1, labels[:, None]).sum()): (
            "Your softmax runs over all rows together: take a softmax for each row."
        ),
        float(log_probabilities[:, labels].sum()): (
            "`[:, labels]` takes all labels at every position: take one in each row, "
            "as [range(len(labels)), labels] does."
        ),
        float(words.exp().sum()): (
            "You added probabilities. They multiply, and their logarithms add."
        ),
        float(logits.gather(-1, labels[:, None]).sum()): (
            "You added logits. They are not yet logarithms of probabilities: "
            "log_softmax makes them so."
        ),
        float(
            across
        ): "Your softmax runs over the positions: it should run over the vocabulary.",
        float(log_probabilities.max(dim=-1).values.sum()): (
            "You took the most probable token of each row, not the label."
        ),
    }
    if math.isclose(answer, float(words.sum()), abs_tol=1e-5):
        other = torch.tensor([4, PAD_ID, 4, EOS_ID])
        four = logits[[0, 1, 2, 0]]
        log_probabilities = four.log_softmax(dim=-1)
        value = float(log_probabilities.gather(-1, other[:, None]).sum())
        found = number(log_probability(four, other))
        if not math.isclose(found, value, abs_tol=1e-5):
            return wrong(
                f"Right for one example, but for the labels {other.tolist()} it is "
                f"{value:.3f}; got {found:.3f}. Does every label count?"
            )
        four = -40 * F.one_hot(other, 6).float()  # each label has e^-40 / 5
        try:
            low = float(log_probability(four, other))
        except (ArithmeticError, ValueError):
            low = -math.inf
        if not math.isfinite(low):
            return wrong(
                "The product of many small probabilities is rounded to 0: add their "
                "logarithms."
            )
        value = float(four.log_softmax(dim=-1).gather(-1, other[:, None]).sum())
        if not math.isclose(low, value, rel_tol=1e-3):
            return wrong(
                f"Where every label is very improbable, it is {value:.2f}; got "
                f"{low:.2f}. Nothing is added to a probability: log_softmax needs no "
                "epsilon."
            )
        return right("Probabilities multiply, logarithms add, and the end counts.")
    for value, message in known.items():
        if math.isclose(answer, value, abs_tol=1e-4):
            return wrong(message)
    return wrong(f"For the example it is {words.sum():.3f}; got {answer:.3f}.")


@exercise
def check_beam_step(beam_step: Callable[[Tensor, Tensor], Any]) -> Verdict:
    """Exercise: the k best continuations of k hypotheses, by row and token."""
    totals = torch.tensor([-2.0, -2.1, -2.6])
    probabilities = torch.tensor(
        [[0.04, 0.3, 0.34, 0.32], [0.5, 0.02, 0.36, 0.12], [0.37, 0.04, 0.08, 0.51]]
    )
    logs = probabilities.log()
    flat = totals[:, None] + logs
    first = int(totals.argmax())

    def best(scores: Tensor) -> list[tuple[int, int]]:
        k, vocabulary = scores.shape
        order = scores.flatten().argsort(descending=True)[:k].tolist()
        return [divmod(index, vocabulary) for index in order]

    answer = beam_step(totals.clone(), logs.clone())
    try:
        both = [torch.as_tensor(each).flatten() for each in answer]
        rows, tokens = (each.tolist() for each in both)
    except (TypeError, ValueError):
        return wrong("Return two tensors, the rows and the tokens.")
    if len(rows) != 3 or len(tokens) != 3:
        return wrong(
            f"Three hypotheses go on, got {len(rows)} rows, {len(tokens)} tokens."
        )
    found = list(
        zip((int(row) for row in rows), (int(each) for each in tokens), strict=True)
    )
    expected = best(flat)
    known = {
        "You took the best token of each row. All continuations compete: one row may "
        "go on twice, and another not at all.": [
            (row, int(logs[row].argmax())) for row in range(3)
        ],
        "You compared the new tokens alone: add the log-probability of the hypothesis "
        "that each continues.": best(logs),
        "You continued only the most probable hypothesis. All continuations of all "
        "hypotheses compete.": [
            (first, token) for token in logs[first].topk(3).indices.tolist()
        ],
        "You added a probability to a log-probability, or let a token continue one "
        "hypothesis alone: add logarithms, and compare all pairs.": best(
            totals[:, None] + probabilities
        ),
        "You added probabilities. They multiply, and their logarithms add.": best(
            totals.exp()[:, None] + probabilities
        ),
        "You multiplied logarithms: they add.": best(totals[:, None] * logs),
        "These are the least probable continuations.": best(-flat),
        "These are the tokens and then the rows: return the rows first.": [
            (token, row) for row, token in expected
        ],
        "The index in the flattened table is not a token: take the remainder after "
        "dividing by the size of the vocabulary.": [
            (row, 4 * row + each) for row, each in expected
        ],
        "You divided by the number of hypotheses. A row of the flattened table is as "
        "long as the vocabulary.": [
            divmod(4 * row + each, 3) for row, each in expected
        ],
    }
    if found == expected:
        if any(each.is_floating_point() for each in both):
            return wrong(
                "Rows and tokens are indices, whole numbers: divide with //, and take "
                "the remainder with %."
            )
        two, three = torch.tensor([-1.0, -0.5]), logs[:2, :3]
        sizes = (
            "It fails with two hypotheses and three tokens: read the sizes from the "
            "arguments."
        )
        try:
            again = beam_step(two.clone(), three.clone())
        except (IndexError, RuntimeError, TypeError, ValueError):
            return wrong(sizes)
        rows, tokens = (torch.as_tensor(each).flatten().tolist() for each in again)
        pairs = list(zip(rows, tokens, strict=False))
        if not len(rows) == len(tokens) == 2:
            return wrong(sizes)
        if not all(row in (0, 1) and token in (0, 1, 2) for row, token in pairs):
            return wrong(sizes)
        wanted = best(two[:, None] + three)
        if pairs != wanted:
            if sorted(pairs) == sorted(wanted):
                return wrong("The right ones, but not in order: the best comes first.")
            return wrong(
                "Right for three hypotheses. With two hypotheses and three tokens, the "
                f"best (row, token) pairs are {wanted}, got {pairs}."
            )
        one_row = torch.tensor([-0.1, -9.0, -9.0])
        third = beam_step(one_row.clone(), logs.clone())
        pairs = list(zip(*(torch.as_tensor(x).tolist() for x in third), strict=True))
        if pairs != best(one_row[:, None] + logs):
            return wrong(
                "It fails where all continuations come from one hypothesis: take "
                "the best of the whole table, not a fixed number from each row."
            )
        return right("All continuations compete; the rows are the cache's new order.")
    for message, mistaken in known.items():
        if found == mistaken or sorted(found) == sorted(mistaken) != sorted(expected):
            return wrong(message)
    if sorted(found) == sorted(expected):
        return wrong("The right ones, but not in order: the best comes first.")
    return wrong(f"The best (row, token) pairs are {expected}, got {found}.")


@exercise
def check_top_k(top_k: Callable[[Tensor, int], Any]) -> Verdict:
    """Exercise: probabilities from the k most probable tokens alone."""
    logits, k = torch.tensor([0.5, 2.0, -1.0, 1.0, 0.0]), 2
    largest = torch.tensor([False, True, False, True, False])
    expected = logits.masked_fill(~largest, -torch.inf).softmax(dim=-1)
    probabilities = logits.softmax(dim=-1)
    zeroed = probabilities * largest
    mistakes = {
        "You set the rest to zero and did not renormalise: what is left must add up to "
        "one.": zeroed,
        "You set the rest of the logits to 0, and e to the 0 is 1: take minus "
        "infinity.": (logits * largest).softmax(dim=-1),
        "You kept the most probable token alone, not k of them.": (
            (logits == logits.max()).float()
        ),
        "Nothing was cut off.": probabilities,
        "These are the ids of the k tokens: their probabilities are asked for.": (
            logits.topk(k).indices
        ),
        "These are the k probabilities alone: one for each token is asked for, zero "
        "for those that are cut.": expected[largest].sort(descending=True).values,
        "You kept one token too many: with k = 2, two can be drawn.": (
            logits.masked_fill(logits < 0.5, -torch.inf).softmax(dim=-1)
        ),
        "The right probabilities, in the order of rank: put each back at its token's "
        "place.": expected.sort(descending=True).values,
        "You kept the first k tokens, not the k most probable.": (
            logits.masked_fill(torch.arange(5) >= k, -torch.inf).softmax(dim=-1)
        ),
        "You applied softmax twice: once is enough.": (
            probabilities.masked_fill(~largest, -torch.inf).softmax(dim=-1)
        ),
        "You divided the logits by their sum: softmax makes probabilities of logits.": (
            logits * largest / (logits * largest).sum()
        ),
        "You kept the least probable tokens.": (
            logits.masked_fill(logits > 0.0, -torch.inf).softmax(dim=-1)
        ),
    }
    answer = top_k(logits.clone(), k)
    if not near(answer, expected):
        return wrong(explain(answer, expected, mistakes))
    if answer[~largest].any():
        return wrong(
            "The tokens that are cut still have a small probability, so they can be "
            "drawn: set their logits to minus infinity."
        )
    if not near(top_k(logits.clone(), 5), probabilities):
        return wrong("With k as large as the vocabulary, nothing should change.")
    if not near(top_k(logits.clone(), 1), (logits == logits.max()).float()):
        return wrong("With k = 1 only the most probable token can be drawn.")
    return right("A mask before the softmax; what is left is renormalised.")
