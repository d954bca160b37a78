"""Checks for the exercises of chapter 13, How does it write a translation?"""

import math
from collections.abc import Callable
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
    wrong,
)


@exercise
def check_score(log_probability: Callable[[Tensor, Tensor], Any]) -> Verdict:
    """Exercise: the log-probability of a whole sentence."""
    rows = [[1.0, 0.0, 2.0, -1.0], [0.5, 0.5, 0.0, 1.5], [0.0, 2.0, 1.0, -2.0]]
    logits, labels = torch.tensor(rows), torch.tensor([2, 3, 1])
    log_probabilities = logits.log_softmax(dim=-1)
    words = log_probabilities.gather(-1, labels[:, None]).squeeze(-1)
    answer = number(log_probability(logits, labels), "a logarithm, one number")
    across = logits.log_softmax(dim=0).gather(-1, labels[:, None]).sum()
    known = {
        float(words.mean()): (
            "That is the mean over the tokens. The sentence's is the sum: each token "
            "makes it less probable."
        ),
        float(
            words.sum().exp()
        ): "That is the probability; its logarithm is asked for.",
        -float(words.sum()): (
            "The sign is wrong: a probability is at most 1, so its logarithm is never "
            "positive."
        ),
        float(words[:-1].sum()): "The end is missing: eos has a probability, too.",
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
        other = torch.tensor([0, 0, 3])
        value = float(log_probabilities.gather(-1, other[:, None]).sum())
        found = number(log_probability(logits, other))
        if math.isclose(found, value, abs_tol=1e-5):
            return right("Probabilities multiply, logarithms add, and the end counts.")
        if math.isclose(found, float(log_probabilities.max(-1).values.sum())):
            return wrong("You took the most probable token of each row, not the label.")
        return wrong(
            "Right for one example, but for the labels [0, 0, 3] it is "
            f"{value:.3f}; got {found:.3f}. Does every label count?"
        )
    for value, message in known.items():
        if math.isclose(answer, value, abs_tol=1e-4):
            return wrong(message)
    return wrong(f"For the example it is {words.sum():.3f}; got {answer:.3f}.")


@exercise
def check_beam_step(beam_step: Callable[[Tensor, Tensor], Any]) -> Verdict:
    """Exercise: the k best continuations of k hypotheses, by row and token."""
    totals = torch.tensor([-1.0, -1.3, -1.6])
    probabilities = torch.tensor(
        [[0.45, 0.05, 0.1, 0.4], [0.2, 0.25, 0.3, 0.25], [0.3, 0.35, 0.3, 0.05]]
    )
    logs = probabilities.log()
    flat = (totals[:, None] + logs).flatten()

    def best(scores: Tensor) -> list[tuple[int, int]]:
        order = scores.flatten().argsort(descending=True)[:3].tolist()
        return [divmod(index, 4) for index in order]

    answer = beam_step(totals.clone(), logs.clone())
    try:
        rows, tokens = (torch.as_tensor(each).flatten().tolist() for each in answer)
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
        "You added a probability to a log-probability: add logarithms.": best(
            totals[:, None] + probabilities
        ),
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
        again = beam_step(torch.tensor([-1.0, -0.5]), logs[:2, :3].clone())
        if [torch.as_tensor(each).flatten().tolist() for each in again] == [
            [1, 0],
            [2, 0],
        ]:
            one_row = torch.tensor([-0.1, -9.0, -9.0])
            third = beam_step(one_row.clone(), logs.clone())
            pairs = zip(*(torch.as_tensor(x).tolist() for x in third), strict=True)
            if list(pairs) != best(one_row[:, None] + logs):
                return wrong(
                    "It fails where all continuations come from one hypothesis: take "
                    "the best of the whole table, not a fixed number from each row."
                )
            return right(
                "All continuations compete; the rows are the cache's new order."
            )
        if any(row != int(row) for row in rows):
            return wrong("A row is a whole number: divide with //.")
        pairs = zip(*(torch.as_tensor(each).tolist() for each in again), strict=True)
        if sorted(pairs) == [(0, 0), (1, 2)]:
            return wrong("The right ones, but not in order: the best comes first.")
        return wrong(
            "It fails with two hypotheses and three tokens: read the sizes from the "
            "arguments."
        )
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
        "You kept the least probable tokens.": (
            logits.masked_fill(logits > 0.0, -torch.inf).softmax(dim=-1)
        ),
    }
    answer = top_k(logits.clone(), k)
    if not near(answer, expected):
        return wrong(explain(answer, expected, mistakes))
    if not near(top_k(logits.clone(), 5), probabilities):
        return wrong("With k as large as the vocabulary, nothing should change.")
    return right("A mask before the softmax; what is left is renormalised.")
