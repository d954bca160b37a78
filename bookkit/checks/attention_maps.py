"""Checks for the exercises of chapter 14, What do the heads attend to?"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bookkit.exercises import (
    Verdict,
    exercise,
    explain,
    holds,
    near,
    numbers,
    right,
    wrong,
)


def _some_weights(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(*shape, generator=generator)).softmax(dim=-1)


def _padded_maps(lengths: Tensor, heads: int, seed: int) -> Tensor:
    """Maps of a padded batch: padding gets no weight."""
    longest = int(lengths.max())
    weights = _some_weights(len(lengths), heads, longest, longest, seed=seed)
    for sentence, length in enumerate(lengths.tolist()):
        weights[sentence, ..., length:] = 0
    return weights / weights.sum(dim=-1, keepdim=True)


@exercise
def check_score(score: Callable[..., Any]) -> Verdict:
    """Exercise: the weight from query word to key word, beyond an even share."""
    lengths = torch.tensor([4, 6, 5])
    weights = _padded_maps(lengths, heads=2, seed=1)
    queries, keys = torch.tensor([1, 3, 4]), torch.tensor([2, 0, 1])
    sentences = torch.arange(3)
    found = weights[sentences, :, queries, keys]
    turned = weights[sentences, :, keys, queries]
    luck = (1 / lengths)[:, None]
    expected = (found - luck).mean(dim=0)
    answer = score(weights, queries, keys, lengths)
    if near(answer, expected):
        lengths = torch.tensor([7, 3, 6, 5])
        weights = _padded_maps(lengths, heads=3, seed=2)
        queries, keys = torch.tensor([5, 2, 0, 4]), torch.tensor([1, 0, 3, 4])
        found = weights[torch.arange(4), :, queries, keys]
        expected = (found - 1 / lengths[:, None]).mean(dim=0)
        sizes = (
            "Right for three sentences and two heads, but not for four sentences and "
            "three heads: read the sizes from the arguments, such as len(weights)."
        )
        if not holds(score, (weights, queries, keys, lengths), expected):
            return wrong(sizes)
        return right("A score above zero means more attention than an even share.")
    mistakes = {
        "Rows and columns are swapped: the row belongs to the query word.": (
            (turned - luck).mean(dim=0)
        ),
        "You used one word as both query and key: index the rows by `queries`, the "
        "columns by `keys`.": (
            (weights[sentences, :, queries, queries] - luck).mean(dim=0)
        ),
        "You added an even share: subtract it.": (found + luck).mean(dim=0),
        "You subtracted nothing: an even share would already score above zero.": (
            found.mean(dim=0)
        ),
        "Padding gets no weight, so an even share is one over the sentence's own "
        "length, not over the batch's.": (found - 1 / 6).mean(dim=0),
        "The mean of 1/length is not 1 over the mean length.": (
            found.mean(dim=0) - 1 / lengths.float().mean()
        ),
        "The heads are averaged: each has a score of its own.": expected.mean(),
        "The sentences are not averaged yet: one score for each head.": found - luck,
        "The sign is wrong: more than an even share should be above zero.": -expected,
    }
    every = weights[:, :, queries, keys]
    crossed = (
        "Each sentence was read at the positions of all three. Index the sentences as "
        "well: weights[torch.arange(len(weights)), :, queries, keys]."
    )
    for guess in (every, every - 1 / lengths):
        if any(near(answer, x) for x in (guess, guess.mean(0), guess.mean((0, 2)))):
            return wrong(crossed)
    return wrong(explain(answer, expected, mistakes))


@exercise
def check_followed(
    followed: Callable[[Tensor, Sequence[Tensor], float], Any],
) -> Verdict:
    """Exercise: attention followed back through the encoder's layers."""
    cross, own, same = _some_weights(3, 5, seed=2), 0.3, torch.eye(5)
    layers = [_some_weights(5, 5, seed=seed) for seed in (3, 4)]

    def mixed(layer: Tensor, own: float) -> Tensor:
        return own * same + (1 - own) * layer

    low, high = (mixed(layer, own) for layer in layers)
    expected = cross @ high @ low
    answer = followed(cross, layers, own)
    if near(answer, expected):
        third = _some_weights(5, 5, seed=5)
        more = cross @ mixed(third, own) @ high @ low
        if not near(followed(cross, [*layers, third], own), more):
            return wrong("Right for two layers, but not for three.")
        return right("The weights lead from the target token down to the source words.")
    mistakes = {
        "The layers are in the wrong order: go from the highest layer down to the "
        "lowest.": cross @ low @ high,
        "The positions themselves are missing: each counts as itself with the share "
        "`own`.": cross @ layers[1] @ layers[0],
        "The rows sum to more than one: what a position attends to counts with the "
        "share 1 - own.": cross @ (layers[1] + own * same) @ (layers[0] + own * same),
        "The rows sum to two: a position counts with the share `own`, and what it "
        "attends to with 1 - own.": cross @ (layers[1] + same) @ (layers[0] + same),
        "The rows sum to less than one: a position counts with the share `own`, and "
        "what it attends to with 1 - own.": (
            cross @ (layers[1] + own * same) @ (layers[0] + own * same) / 4
        ),
        "You added `own` to every entry: it belongs on the diagonal (torch.eye).": (
            cross @ (own + (1 - own) * layers[1]) @ (own + (1 - own) * layers[0])
        ),
        "Keep the share `own` of the weights so far, not of `cross`.": (
            own * cross + (1 - own) * cross @ high @ layers[0]
        ),
        "The share that stays with the position, `own`, is missing.": (
            (1 - own) ** 2 * cross @ layers[1] @ layers[0]
        ),
        "You counted a position half as itself: use `own`.": (
            cross @ mixed(layers[1], 0.5) @ mixed(layers[0], 0.5)
        ),
        "`own` and 1 - own are swapped: `own` is the share of the position itself.": (
            cross @ mixed(layers[1], 1 - own) @ mixed(layers[0], 1 - own)
        ),
        "Only the highest layer is followed.": cross @ high,
        "Only the lowest layer is followed.": cross @ low,
        "The encoder's maps are transposed: a row holds one query's weights.": (
            cross @ high.mT @ low.mT
        ),
        "Nothing is followed yet: these are the weights you were given.": cross,
    }
    return wrong(explain(answer, expected, mistakes))


def _as_tensor(answer: Any) -> Tensor:
    """A tensor as it is; two numbers in anything else as a tensor."""
    if isinstance(answer, Tensor):
        return answer
    return torch.tensor(numbers(answer, "two numbers"), dtype=torch.float64)


@exercise
def check_each(accuracy_of_each: Callable[[Tensor, Tensor], Any]) -> Verdict:
    """Exercise: the accuracy on each of two labels."""
    labels = torch.tensor([0, 1, 1, 0, 1, 0, 1, 1, 0, 1])
    predicted = torch.tensor([0, 0, 1, 0, 1, 1, 0, 1, 0, 1])
    same = (predicted == labels).double()

    def of(groups: Tensor) -> Tensor:
        return torch.stack([same[groups == label].mean() for label in (0, 1)])

    expected = of(labels)
    answer = _as_tensor(accuracy_of_each(predicted, labels))
    mistakes = {
        "You grouped by the prediction: that says how far to trust a prediction "
        "(precision). Group by the label.": of(predicted),
        "Each is divided by all examples: divide by those with that label.": (
            torch.stack([same[labels == i].sum() for i in (0, 1)]) / len(labels)
        ),
        "Those are counts: divide each by the number of examples with that label.": (
            torch.stack([same[labels == i].sum() for i in (0, 1)])
        ),
        "That is one accuracy for both labels, and a coin may have the same: give "
        "each label its own.": same.mean(),
        "These are the shares of 0 and 1 among the predictions: compare them with the "
        "labels.": torch.stack([(predicted == i).double().mean() for i in (0, 1)]),
        "Those are the shares predicted as 1: on label 0 these are the errors.": (
            torch.stack([1 - expected[0], expected[1]])
        ),
        "The two are in the wrong order: label 0 comes first.": expected.flip(0),
        "These are error rates: an accuracy counts what is right.": 1 - expected,
    }
    if not near(answer, expected):
        return wrong(explain(answer, expected, mistakes))
    constant = _as_tensor(accuracy_of_each(torch.zeros_like(labels), labels))
    if not near(constant, torch.tensor([1.0, 0.0])):
        return wrong("A model that always predicts 0 should have 1 and 0.")
    return right("A constant has 1 and 0, a coin about a half twice: now they differ.")
