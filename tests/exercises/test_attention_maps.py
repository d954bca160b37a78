"""Chapter 14's exercises: the answer is right, likely mistakes are named."""

import torch

from bookkit.checks.attention_maps import (
    check_each,
    check_followed,
    check_score,
)
from tests.exercises import named_mistakes, right_answers


def found(weights, queries, keys):
    return weights[torch.arange(len(weights)), :, queries, keys]


def score(weights, queries, keys, lengths):
    return (found(weights, queries, keys) - 1 / lengths[:, None]).mean(dim=0)


def score_by_loop(weights, queries, keys, lengths):
    scores = [
        weights[s, :, queries[s], keys[s]] - 1 / lengths[s] for s in range(len(queries))
    ]
    return torch.stack(scores).mean(dim=0)


def followed(cross, layers, own, down=True, other=None):
    other = 1 - own if other is None else other
    for layer in reversed(layers) if down else layers:
        cross = cross @ (own * torch.eye(len(layer)) + other * layer)
    return cross


def each(predicted, labels, group=None):
    group = labels if group is None else group
    right = (predicted == labels).double()
    return torch.stack([right[group == label].mean() for label in (0, 1)])


def each_by_loop(predicted, labels):
    right, count = [0, 0], [0, 0]
    for one, label in zip(predicted.tolist(), labels.tolist(), strict=True):
        right[label] += one == label
        count[label] += 1
    return [one / all_ for one, all_ in zip(right, count, strict=True)]


def step_by_step(change):
    """Followed from the highest layer down; `change` is one step."""

    def follow(cross, layers, own):
        rollout = cross
        for layer in reversed(layers):
            rollout = change(rollout, layer, own, torch.eye(len(layer)), cross)
        return rollout

    return follow


RIGHT = [
    (check_score, score_by_loop),
    (check_followed, followed),
    (check_each, each),
    (check_each, lambda p, y: tuple(each(p, y))),
    (check_each, each_by_loop),
]

WRONG = [
    (check_score, lambda w, a, b, n: score(w, b, a, n), "swapped"),
    (check_score, lambda w, a, b, n: found(w, a, b).mean(0), "subtracted nothing"),
    (check_score, lambda w, a, b, n: found(w, a, b).mean(0) - 1 / 6, "Padding"),
    (check_score, lambda w, a, b, n: score(w, a, b, n).mean(), "heads are averaged"),
    (
        check_score,
        lambda w, a, b, n: found(w, a, b) - 1 / n[:, None],
        "sentences are not averaged",
    ),
    (check_score, lambda w, a, b, n: -score(w, a, b, n), "sign"),
    (check_score, lambda w, a, b, n: w, "shape"),
    (check_score, lambda w, a, b, n: score(w, a, a, n), "both query and key"),
    (check_score, lambda w, a, b, n: 3 * score(w, a, b, n), "3 times"),
    (
        check_score,
        lambda w, a, b, n: (found(w, a, b) + 1 / n[:, None]).mean(0),
        "added an even share",
    ),
    (check_score, lambda w, a, b, n: w[:, :, a, b].mean(0), "positions of all three"),
    (
        check_score,
        lambda w, a, b, n: found(w, a, b).mean(0) - 1 / n,
        "keepdim",
    ),
    (
        check_score,
        lambda w, a, b, n: found(w, a, b).mean(0) - 1 / n.float().mean(),
        "over the mean length",
    ),
    (check_score, lambda w, a, b, n: 0.5, "tensor"),
    (
        check_score,
        lambda w, a, b, n: (w[[0, 1, 2], :, a, b] - 1 / n[:, None]).mean(0),
        "not for four sentences",
    ),
    (
        check_score,
        lambda w, a, b, n: (found(w, a, b) - 1 / n[:, None]).sum(0) / 3,
        "not for four sentences",
    ),
    (check_followed, lambda c, ls, o: followed(c, ls, o, down=False), "wrong order"),
    (check_followed, lambda c, ls, o: followed(c, ls, 0.0), "positions themselves"),
    (check_followed, lambda c, ls, o: followed(c, ls, o, other=1), "more than one"),
    (check_followed, lambda c, ls, o: followed(c, ls, 0.5), "half as itself"),
    (check_followed, lambda c, ls, o: followed(c, ls, 1 - o), "are swapped"),
    (check_followed, lambda c, ls, o: followed(c, ls[1:], o), "Only the highest"),
    (check_followed, lambda c, ls, o: followed(c, ls[:1], o), "Only the lowest"),
    (
        check_followed,
        lambda c, ls, o: followed(c, [x.mT for x in ls], o),
        "transposed",
    ),
    (
        check_followed,
        step_by_step(lambda x, a, own, one, cross: x @ (a + own * one) / 2),
        "less than one",
    ),
    (
        check_followed,
        step_by_step(lambda x, a, own, one, cross: x @ (own + (1 - own) * a)),
        "to every entry",
    ),
    (
        check_followed,
        step_by_step(lambda x, a, own, one, cross: own * cross + (1 - own) * x @ a),
        "not of `cross`",
    ),
    (
        check_followed,
        step_by_step(lambda x, a, own, one, cross: (1 - own) * x @ a),
        "`own`, is missing",
    ),
    (check_followed, lambda c, ls, o: c, "Nothing is followed"),
    (check_followed, lambda c, ls, o: c[:1], "shape"),
    (check_each, lambda p, y: each(p, y, group=p), "precision"),
    (check_each, lambda p, y: (p == y).double().mean(), "one accuracy"),
    (check_each, lambda p, y: (p == y).double().mean().item(), "two numbers"),
    (
        check_each,
        lambda p, y: [((p == y) & (y == i)).sum() for i in (0, 1)],
        "Those are counts",
    ),
    (check_each, lambda p, y: each(p, y).flip(0), "wrong order"),
    (check_each, lambda p, y: 1 - each(p, y), "error rates"),
    (
        check_each,
        lambda p, y: [p[y == label].double().mean() for label in (0, 1)],
        "the shares predicted as 1",
    ),
    (check_each, lambda p, y: each(p, torch.ones_like(y)), "NaN"),
    (
        check_each,
        lambda p, y: [((p == y) & (y == i)).sum() / len(y) for i in (0, 1)],
        "divide by those",
    ),
    (
        check_each,
        lambda p, y: [(p == i).double().mean() for i in (0, 1)],
        "among the predictions",
    ),
    (
        check_each,
        lambda p, y: [each(p, y)[0], each(p, y)[1] if p.any() else 1.0],
        "always predicts 0",
    ),
]


test_right = right_answers(RIGHT)


test_mistake_is_named = named_mistakes(WRONG)
