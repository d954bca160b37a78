"""Checks for the exercises of chapter 21, on the program in plain Python."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bookkit.exercises import (
    Refused,
    Verdict,
    array,
    exercise,
    explain,
    near,
    right,
    truth,
    wrong,
)
from transformer import micro

Rows = list[list[float]]
Operation = Callable[[Any], Any]
Chain = Callable[[Tensor, Tensor, Tensor], Tensor]  # of output, input and gradient


def _with_chain(operation: Operation, chain: Chain) -> Operation:
    """The same operation with another chain."""

    def broken(a: Any) -> Any:
        rows = operation(a).rows
        return micro.Value(
            rows,
            (a,),
            lambda grad: [chain(*map(torch.tensor, (rows, a.rows, grad))).tolist()],
        )

    return broken


def _half(a: Any) -> Any:
    return micro.scale(a, 0.5)


def _twice(a: Any) -> Any:
    return micro.lookup(a, [1, 0, 1])


def _normed(a: Any) -> Any:
    return micro.norm(a, micro.Value([[0.5, 2.0, 1.5]]), micro.Value([[0.1, 0.2, 0.3]]))


def _overwritten(output: Tensor, rows: Tensor, grad: Tensor) -> Tensor:
    found = torch.zeros_like(rows)
    found[1], found[0] = grad[2], grad[1]
    return found


def _last_is_wrong(output: Tensor, rows: Tensor, grad: Tensor) -> Tensor:
    found = 0.5 * grad
    found[-1, -1] *= 2
    return found


_HONEST: dict[str, Operation] = {
    "a softmax": micro.softmax,
    "a layer norm": _normed,
    "a sum of a value with itself": lambda a: micro.add(a, a),
    "a product of a value with itself": lambda a: micro.dots(a, a),
    "a lookup that takes a row twice": _twice,
    "a ReLU": micro.relu,
    "a factor": _half,
}
_BROKEN: dict[str, Operation] = {
    "You miss a softmax whose gradient is right only if all its outputs count alike. "
    "Their sum is always 1, so it does not move: give every output a factor of its "
    "own before you add them up.": _with_chain(
        micro.softmax, lambda output, rows, grad: grad - grad.mean(1, keepdim=True)
    ),
    "You miss a chain that is wrong only for the last number of the last row: move "
    "every number in turn.": _with_chain(_half, _last_is_wrong),
    "You miss a gradient that is off by a hundredth: your tolerance is too wide. "
    "With a step of 1e-5 on both sides, finite differences are right to many more "
    "digits.": _with_chain(_half, lambda output, rows, grad: 0.505 * grad),
    "You miss a softmax whose scores get weight times gradient, as if a higher score "
    "took nothing from the others.": _with_chain(
        micro.softmax, lambda output, rows, grad: output * grad
    ),
    "You miss a sum of a value with itself that counts only one of the two "
    "gradients.": _with_chain(
        lambda a: micro.add(a, a), lambda output, rows, grad: grad
    ),
    "You miss a lookup that takes a row twice and keeps the last gradient "
    "only.": _with_chain(_twice, _overwritten),
    "You miss a ReLU that lets the gradient of negative numbers pass.": _with_chain(
        micro.relu, lambda output, rows, grad: grad
    ),
    "You miss a factor whose gradient has the wrong sign: compare the numbers, not "
    "their sizes.": _with_chain(_half, lambda output, rows, grad: -0.5 * grad),
}


@exercise
def check_finder(answer: Callable[[Operation, Rows], Any]) -> Verdict:
    """Does it tell broken chains from right ones?"""

    def found(operation: Operation) -> bool:
        return truth(answer(operation, [[0.4, -1.1, 0.7], [1.3, 0.2, -0.5]]))

    alarms = {name: found(operation) for name, operation in _HONEST.items()}
    caught = {message: found(operation) for message, operation in _BROKEN.items()}
    if all(alarms.values()) and not any(caught.values()):
        return wrong("It is the wrong way round: True means that the chain is broken.")
    if all(alarms.values()) and all(caught.values()):
        return wrong(
            "It calls every gradient broken. Does the sum that you measure have the "
            "factors that `backward` starts from?"
        )
    if not any(alarms.values()) and not any(caught.values()):
        return wrong("It finds nothing broken, not even where a sign is wrong.")
    for name, alarm in alarms.items():
        if alarm:
            return wrong(
                f"It calls {name} broken, and its chain is right. Is your step too "
                "large, your tolerance too small, or did a number stay moved?"
            )
    for message, seen in caught.items():
        if not seen:
            return wrong(message)
    return right(
        f"It finds all {len(caught)} broken chains and leaves {len(alarms)} right ones "
        "alone."
    )


def _rows_of(answer: Any) -> Tensor:
    """A Value's rows, or rows given in any other way, as a tensor."""
    answer = getattr(answer, "rows", answer)
    if isinstance(answer, list | tuple):
        answer = [list(row) if isinstance(row, tuple) else row for row in answer]
    found = array(answer, "a list of rows")
    if not found.is_floating_point() and found.dtype != torch.int64:
        raise Refused("Give back a list of rows of numbers.")
    return found.double()


@exercise
def check_softmax(answer: Callable[[Rows, Rows], Any]) -> Verdict:
    """The backward pass of a softmax."""
    given = [
        (
            [[0.75, 0.25], [0.5, 0.5], [0.1, 0.9]],
            [[2.0, -2.0], [1.0, 3.0], [0.3, -0.7]],
        ),
        ([[0.2, 0.3, 0.5], [0.7, 0.2, 0.1]], [[1.0, -1.0, 0.5], [0.4, 2.0, -3.0]]),
    ]
    for weights, grad in given:
        w, g = torch.tensor(weights).double(), torch.tensor(grad).double()
        mean = (w * g).sum(1, keepdim=True)
        mistakes = {
            "That is weight times gradient: a higher score also takes weight from the "
            "others of its row, so take the mean gradient out first.": w * g,
            "You have only what a score does to its own weight, w(1 − w). It "
            "also moves the other weights of the row.": w * (1 - w) * g,
            "The sign is turned round.": w * (mean - g),
            "The mean is taken out, but a score moves the weights in proportion to its "
            "own weight: multiply by it.": g - mean,
            "The mean is to be weighed: a weight that is nearly 0 counts for nearly "
            "nothing.": w * (g - g.mean(1, keepdim=True)),
            "Each row has a mean of its own: yours goes down the columns.": w
            * (g - (w * g).sum(0, keepdim=True)),
            "Each row has a mean of its own: yours is one for the whole table.": w
            * (g - (w * g).sum()),
            "That is share minus target, the way back through softmax and "
            "cross-entropy together. Here any gradient may arrive.": w - g,
            "You differentiate the logarithm of the softmax.": g
            - w * g.sum(1, keepdim=True),
            "The mean is multiplied twice: w(g − mean), not w·g − w²·g.": w * g
            - w * w * g,
        }
        result = _rows_of(answer(weights, grad))
        expected = w * (g - mean)
        if not near(result, expected):
            return wrong(explain(result, expected, mistakes))
    return right("Each row sums to 0: raising all scores alike changes nothing.")


def _continued(
    model: Any,
    ids: Sequence[int],
    *,
    sees: Callable[[int, int], bool] | None = lambda i, j: j <= i,
    output: bool = True,
    embed: Callable[[Any, Any], Any] = micro.embed,
    feed: bool = True,
) -> Tensor:
    """A decoder-only model, or a mistaken idea of it."""
    x = embed(model, ids)
    places = range(len(ids))
    mask = [[sees(i, j) for j in places] for i in places] if sees else None
    for layer in [f"encoder.layers.{n}" for n in range(micro.LAYERS)]:
        heard = micro.attention(model, layer + ".self", x, x, mask)
        x = micro.residual(model, layer, 0, x, heard)
        if feed:
            x = micro.residual(model, layer, 1, x, micro.feed_forward(model, layer, x))
    x = micro.dots(x, model[micro.TABLE]) if output else x
    return torch.tensor(x.rows, dtype=torch.float64)


def _unplaced(model: Any, ids: Sequence[int]) -> Any:
    looked_up = micro.lookup(model[micro.TABLE], ids)
    return micro.scale(looked_up, micro.D_MODEL**0.5)


def _unscaled(model: Any, ids: Sequence[int]) -> Any:
    whole, scaled = micro.embed(model, ids), _unplaced(model, ids)
    waves = micro.add(whole, micro.scale(scaled, -1.0))
    return micro.add(micro.lookup(model[micro.TABLE], ids), waves)


_LAST_ALONE = "That is the last place's row alone: give the logits at every place."


@exercise
def check_decoder_only(answer: Callable[[Any, list[int]], Any]) -> Verdict:
    """A language model from the parts of the page."""
    for number, text in enumerate(("2017", "7 jul 2017", "x")):
        model, ids = micro.new_model(random.Random(number)), micro.ids(text)
        expected = _continued(model, ids)
        result = _rows_of(answer(model, list(ids)))
        if near(result, expected):
            continue
        shares, one_sublayer = expected.softmax(-1), _continued(model, ids, feed=False)
        mistakes = {
            "It sees the future: attention needs the mask of `decode`, without which "
            "the next character stands in the input.": _continued(
                model, ids, sees=None
            ),
            "The mask is turned round: True is where a character *may* look, at itself "
            "and before it.": _continued(model, ids, sees=lambda i, j: j >= i),
            "Those are the vectors after the last layer. Compare them with the rows of "
            "the table, as `decode` does.": _continued(model, ids, output=False),
            "Those are probabilities: logits come before the softmax.": shares,
            _LAST_ALONE: expected[-1:],
            "The positions are missing: use `embed`.": _continued(
                model, ids, embed=_unplaced
            ),
            "The rows of the table enter times √d_model: use `embed`.": _continued(
                model, ids, embed=_unscaled
            ),
            "The feed-forward network is missing: a layer has two sublayers.": (
                one_sublayer
            ),
            "Those layers are the decoder's, which wants cross-attention: use the "
            "weights under `encoder`.": torch.tensor(
                micro.decode(model, ids, micro.encode(model, ids)).rows
            ).double(),
        }
        first = expected[-1]
        if result.shape == first.shape and near(result, first):
            return wrong(_LAST_ALONE)
        return wrong(explain(result, expected, mistakes))
    return right("An encoder with a causal mask and a table at the end: a decoder.")
