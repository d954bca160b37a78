"""Chapter 01's exercises: the answer is right, likely mistakes are named."""

import torch

from bookkit.checks.why_attention import (
    check_context,
    check_cost,
    check_last_state,
    check_layers,
)
from tests.exercises import named_mistakes, right_answers


def read(inputs, w, u, start=0.0, bend=torch.tanh):
    state = torch.full((u.size(0),), start)
    for x in inputs:
        state = bend(x @ w + state @ u)
    return state


def all_states(inputs, w, u):
    return torch.stack([read(inputs[: t + 1], w, u) for t in range(len(inputs))])


def forgetful(inputs, w, u):
    return torch.tanh(inputs[-1] @ w)


def three_numbers(inputs, w, u):
    state = torch.zeros(3)
    for x in inputs:
        state = torch.tanh(x @ w + state @ u)
    return state


def four_words(inputs, w, u):
    state = torch.zeros(u.size(0))
    for i in range(4):
        state = torch.tanh(inputs[i] @ w + state @ u)
    return state


RIGHT = [
    (check_last_state, read),
    (check_last_state, lambda x, w, u: read(x, w, u).tolist()),
    (check_context, lambda s, m: list(s.softmax(0) @ m)),
    (check_context, lambda s, m: (s.softmax(0)[:, None] * m).sum(0)),
    (check_layers, 20.0),
    (check_layers, torch.tensor(20)),
    (check_cost, 2 * 512.0),
]

WRONG = [
    (check_last_state, forgetful, "old state plays no part"),
    (check_last_state, all_states, "return the last"),
    (check_last_state, lambda x, w, u: read(x, w, u, bend=lambda h: h), "tanh"),
    (check_last_state, lambda x, w, u: read(x, w, u, start=1.0), "zeros, not ones"),
    (check_last_state, lambda x, w, u: read(x.flip(0), w, u), "backwards"),
    (check_last_state, lambda x, w, u: read(x[:-1], w, u), "one word early"),
    (check_last_state, lambda x, w, u: read(x, w, u.T), "transposed"),
    (check_last_state, lambda x, w, u: x @ u, "want transposing"),
    (check_last_state, lambda x, w, u: torch.zeros(3), "words play no part"),
    (check_last_state, lambda x, w, u: [0.0, 0.0, 0.0], "words play no part"),
    (check_last_state, lambda x, w, u: "state", "a tensor, not text"),
    (check_last_state, lambda x, w, u: read(x, w, u)[None], "axis of size 1"),
    (check_last_state, lambda x, w, u: read(x, w, torch.eye(3)), "U is missing"),
    (check_last_state, three_numbers, "not for one of two"),
    (check_last_state, four_words, "not for three"),
    (check_last_state, lambda x, w, u: read(x[1:], w, u), "left out the first word"),
    (
        check_last_state,
        lambda x, w, u: read(x, w, u, bend=lambda h: h).tanh(),
        "its own tanh",
    ),
    (check_context, lambda s, m: s.softmax(0), "Those are the weights"),
    (check_context, lambda s, m: s @ m, "no softmax"),
    (check_context, lambda s, m: s.exp() @ m, "divide by their sum"),
    (check_context, lambda s, m: s / s.sum() @ m, "exponentials first"),
    (check_context, lambda s, m: m[s.argmax()], "hard choice"),
    (check_context, lambda s, m: m.mean(0), "plain mean"),
    (check_context, lambda s, m: (s.softmax(0)[:, None] * m).mean(0), "their sum"),
    (check_context, lambda s, m: s.softmax(0)[:, None] * m, "did not add"),
    (check_context, lambda s, m: (-s).softmax(0) @ m, "minus"),
    (check_layers, 10, "only two of them backwards"),
    (check_layers, 9, "divide by the width"),
    (check_layers, 40, "width 3"),
    (check_layers, 1, "attention"),
    (check_layers, 100, "How many words further"),
    (check_layers, 20.5, "40 steps, not 41"),
    (check_layers, "20", "without quotes"),
    (check_layers, 19, "words 3 to 41"),
    (check_cost, 2, "in units of d"),
    (check_cost, 512, "the paper's"),
    (check_cost, 2048, "four matrices"),
    (check_cost, 4096, "Both parts"),
    (check_cost, 1280, "at the output"),
    (check_cost, 1536, "four matrices, 4nd²"),
    (check_cost, 2560, "not three"),
    (check_cost, 256, "divide by two"),
    (check_cost, 0, "no words"),
    (check_cost, -512, "positive"),
    (check_cost, 7, "Set 2n²d"),
    (check_layers, lambda: 20, "not a function"),
    (check_layers, torch.nn.Linear(1, 20), "not a layer"),
    (check_context, lambda s, m: m @ s.softmax(0), "want transposing"),
    (check_context, lambda s, m: (s.softmax(0) @ m).item(), "raised"),
]


test_right = right_answers(RIGHT)


test_wrong_is_named = named_mistakes(WRONG)
