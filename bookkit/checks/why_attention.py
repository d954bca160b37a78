"""Checks for the exercises of chapter 01, Why look at every word at once?"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bookkit.exercises import (
    Verdict,
    array,
    exercise,
    explain,
    holds,
    near,
    number,
    numbers,
    right,
    wrong,
)
from bookkit.forms import form


def _read(inputs: Tensor, w: Tensor, u: Tensor, start: float = 0.0) -> Tensor:
    """The last state of a recurrent network."""
    state = torch.full((u.size(0),), start)
    for x in inputs:
        state = torch.tanh(x @ w + state @ u)
    return state


@exercise
def check_last_state(answer: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Verdict:
    """The last state of a recurrent network that starts from zeros."""
    g = torch.Generator().manual_seed(0)
    inputs = torch.randn(4, 6, generator=g)
    w = torch.randn(6, 3, generator=g) / 2
    u = torch.randn(3, 3, generator=g) / 2
    expected = _read(inputs, w, u)
    states = torch.stack([_read(inputs[: t + 1], w, u) for t in range(4)])
    no_tanh = torch.zeros(3)
    for x in inputs:
        no_tanh = x @ w + no_tanh @ u
    outside = torch.zeros(3)
    for x in inputs:
        outside = torch.tanh(x @ w) + outside @ u
    no_u = torch.zeros(3)
    for x in inputs:
        no_u = torch.tanh(x @ w + no_u)
    mistakes = {
        "Those are zeros: the words play no part.": torch.zeros(3),
        "U is missing: multiply the old state by it.": no_u,
        "You read the words backwards.": _read(inputs.flip(0), w, u),
        "The old state plays no part: is it still zeros at the last word?": _read(
            inputs[-1:], w, u
        ),
        "The tanh is missing.": no_tanh,
        "The old state belongs inside the tanh.": outside,
        "The state starts at zeros, not ones.": _read(inputs, w, u, start=1.0),
        "Those are all the states: return the last.": states,
        "That is the first state: return the last.": states[0],
        "You stopped one word early.": states[-2],
        "You left out the first word.": _read(inputs[1:], w, u),
        "Each step needs its own tanh.": no_tanh.tanh(),
        "U is transposed.": _read(inputs, w, u.T),
        "You added all words first: each word needs a step of its own.": (
            torch.tanh((inputs @ w).sum(0))
        ),
    }
    result = array(answer(inputs, w, u))
    if not near(result, expected):
        return wrong(explain(result, expected, mistakes))
    fewer = (
        (inputs[:3], w, u),
        "Right for four words, but not for three: use len(inputs).",
    )
    smaller = (
        (inputs, w[:, :2], u[:2, :2]),
        "Right for a state of three numbers, but not for one of two: take the size of "
        "the first state from U.",
    )
    for given, message in fewer, smaller:
        if not holds(answer, given, _read(*given)):
            return wrong(message)
    return right("Four words, one after another, in one vector of three numbers.")


def _contexts(scores: list[float], memory: list[list[float]]) -> dict[str, list[float]]:
    """The vectors that mistakes lead to, each with its message."""

    def mixed(weights: list[float]) -> list[float]:
        pairs = list(zip(weights, memory, strict=True))
        return [sum(w * row[j] for w, row in pairs) for j in range(len(memory[0]))]

    def softmax(scores: list[float]) -> list[float]:
        return [math.exp(s) / sum(math.exp(z) for z in scores) for s in scores]

    return {
        "There is no softmax: the scores themselves are not weights.": mixed(scores),
        "You took the exponentials and forgot to divide by their sum.": mixed(
            [math.exp(s) for s in scores]
        ),
        "You divided the scores by their sum: take their exponentials first.": mixed(
            [s / sum(scores) for s in scores]
        ),
        "That is the one entry with the highest score, a hard choice. Mix them all.": (
            memory[scores.index(max(scores))]
        ),
        "That is the plain mean: the scores play no part.": mixed(
            [1 / len(scores) for _ in scores]
        ),
        "You took the mean of the weighted vectors: take their sum, since the weights "
        "sum to one already.": [x / len(scores) for x in mixed(softmax(scores))],
        "You took the softmax of minus the scores: a high score should get a large "
        "weight.": mixed(softmax([-s for s in scores])),
    }


def _context_by_hand(answer: Sequence[float]) -> Verdict:
    """The verdict on the context vector of one example, (1, 6)."""
    found = numbers(answer, "two numbers")

    def is_near(other: list[float]) -> bool:
        return all(
            math.isclose(x, y, rel_tol=0.01, abs_tol=0.01)
            for x, y in zip(found, other, strict=True)
        )

    if is_near([1.0, 6.0]):
        return right("One vector from two, with the weights 1/4 and 3/4.")
    made = _contexts([math.log(2), math.log(6)], [[4.0, 0.0], [0.0, 8.0]])
    for message, other in made.items():
        if is_near(other):
            return wrong(message)
    return wrong(
        "Take the exponentials of the scores: what share of their sum is each?"
    )


@exercise
@form(
    "list",
    "first number",
    "second number",
    by_hand="By hand first: the scores are log 2 and log 6, and the rows of memory are "
    "(4, 0) and (0, 8). Which context vector comes out?",
    judge=_context_by_hand,
)
def check_context(answer: Callable[[Tensor, Tensor], Tensor]) -> Verdict:
    """The softmax-weighted sum of memory vectors, for any number of them."""
    g = torch.Generator().manual_seed(0)
    for length in (5, 3):
        memory = torch.randn(length, 3, generator=g)
        scores = torch.randn(length, generator=g) * 2
        weights = scores.softmax(0)
        expected = weights @ memory
        vectors = _contexts(scores.tolist(), memory.tolist()).items()
        mistakes = {
            "Those are the weights: mix the memory with them.": weights,
            **{message: torch.tensor(vector) for message, vector in vectors},
            "You weighted the vectors but did not add them up.": (
                weights[:, None] * memory
            ),
        }
        result = array(answer(scores, memory))
        if not near(result, expected):
            return wrong(explain(result, expected, mistakes))
    return right("One vector from many, each multiplied by its weight.")


@exercise
@form("one", "layers")
def check_layers(answer: float) -> Verdict:
    """Width-5 convolutions until the last of 41 words depends on the first."""
    layers = number(answer)
    if layers == 20:
        return right("40 words apart, two words a layer. Attention needs one layer.")
    mistakes: dict[float, str] = {
        10: "A width of 5 reaches four words in all, but only two of them backwards.",
        9: "Do not divide by the width: an output reads two words on either side.",
        40: "One word a layer: that is width 3. Width 5 reaches two words back.",
        41: "That is one layer a word. Width 5 reaches two words back.",
        21: "One too many: from word 41 to word 1 there are 40 steps.",
        19: "One too few: after 19 layers the last word depends on words 3 to 41.",
        1: "One layer would do for attention. A convolution reaches its width only.",
        20.5: "From word 41 to word 1 there are 40 steps, not 41.",
        8: "Do not divide by the width: an output reads two words on either side.",
        11: "A width of 5 reaches four words in all, but only two of them backwards.",
    }
    mistakes |= {41 / 5: mistakes[8], 41 / 4: mistakes[10]}
    return wrong(
        mistakes.get(layers, "How many words further back does each layer reach?")
    )


@exercise
@form("one", "words")
def check_cost(answer: float) -> Verdict:
    """Words at which attention and an LSTM, d = 512, multiply equally often."""
    length = number(answer)
    if length == 1024:
        return right(
            "n = 2d. Below that attention needs fewer multiplications than an LSTM, "
            "above it more."
        )
    mistakes: dict[float, str] = {
        2: "That is n in units of d: how many words is that with d = 512?",
        512: "n = d is where the paper's n²d and nd² meet. Count 2n²d + 4nd² against "
        "the LSTM's 8nd².",
        2048: "Two parts of attention make the n²d: scores and weighted sums. And its "
        "four matrices, 4nd², count too.",
        4096: "Both parts are missing: there are two products of n²d, and four "
        "matrices, 4nd².",
        1280: "One matrix is missing: besides queries, keys and values there is the "
        "one at the output.",
        1536: "Attention has four matrices, 4nd²: of the LSTM's 8nd², 4nd² are left "
        "for 2n²d.",
        2560: "Two parts of attention make the n²d, scores and weighted sums; and it "
        "has four matrices, not three.",
        256: "Did you divide by two where you should multiply? 2n = 4d.",
        0: "With no words both need no multiplications. Divide by n and solve for n.",
    }
    mistakes[-512] = "A length is positive: compare with the LSTM's 8nd², not 2nd²."
    return wrong(
        mistakes.get(length, "Set 2n²d + 4nd² equal to 8nd², and divide by nd.")
    )
