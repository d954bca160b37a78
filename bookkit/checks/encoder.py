"""Checks for the exercises of chapter 07, What does one layer do, and why stack six?"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bookkit.exercises import (
    Verdict,
    exercise,
    explain,
    near,
    number,
    right,
    wrong,
)
from transformer.encoder import Residual
from transformer.multi_head import MultiHeadAttention

NAN = "Some entries are NaN, not a number. Is epsilon inside the root?"


def _normed(x: Tensor, dim: Any, unbiased: bool = False, eps: float = 1e-5) -> Tensor:
    """Normalise over `dim`, rightly or wrongly."""
    mean = x.mean(dim, keepdim=True)
    variance = x.var(dim, keepdim=True, correction=int(unbiased))
    return (x - mean) / torch.sqrt(variance + eps)


@exercise
def check_layer_norm(answer: Callable[[Tensor], Tensor]) -> Verdict:
    """Layer normalisation over the last axis, biased variance, epsilon inside."""
    g = torch.Generator().manual_seed(0)
    usual = torch.randn(3, 5, 8, generator=g) * 2 + 1
    equal = torch.full((3, 5, 8), 3.0)
    for x in (usual, usual / 1000, equal):
        spread = x.var(-1, keepdim=True, correction=0)
        centred = x - x.mean(-1, keepdim=True)
        expected = centred / torch.sqrt(spread + 1e-5)
        mistakes = {
            "You divided by d - 1: `std` and `var` do so unless told correction=0. "
            "Layer norm divides by d.": _normed(x, -1, unbiased=True),
            "You used std, which divides by d - 1, and put epsilon outside the root.": (
                centred / (x.std(-1, keepdim=True) + 1e-5)
            ),
            "Epsilon is outside the root: add it to the variance, before the root.": (
                centred / (spread.sqrt() + 1e-5)
            ),
            "Epsilon is missing, or far too small to matter.": _normed(x, -1, eps=0),
            "You averaged over the words. Layer norm looks at one word and averages "
            "over its features.": _normed(x, -2),
            "You averaged over the sentences of the batch: that is near to batch "
            "norm. Average over the last axis.": _normed(x, 0),
            "That is batch norm: each feature, over all words of all sentences. "
            "Average over the last axis.": _normed(x, (0, 1)),
            "You averaged over the whole sentence: one mean for each word.": (
                _normed(x, (1, 2))
            ),
            "You averaged over everything: one mean for each word.": (
                _normed(x, (0, 1, 2))
            ),
            "One mean and one deviation for all words together: give each word its "
            "own, with dim=-1 and keepdim=True.": (x - x.mean()) / x.std(),
            "You divided by the variance: take its root.": centred / (spread + 1e-5),
            "You subtracted the mean but did not divide.": centred,
            "You divided but did not subtract the mean.": (
                x / torch.sqrt(spread + 1e-5)
            ),
            "That is the root mean square: subtract the mean first.": (
                x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
            ),
        }
        result = answer(x)
        if not near(result, expected):
            return wrong(explain(result, expected, mistakes, NAN))
    return right("Each word by itself, divided by d, epsilon inside the root.")


@exercise
def check_pre_norm(
    answer: Callable[[Tensor, nn.Module, Callable[[Tensor], Tensor]], Tensor],
) -> Verdict:
    """The pre-norm residual, with any sublayer and any norm."""
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8) * 3 + 1
    norm, sublayer = nn.LayerNorm(8), nn.Linear(8, 8)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    told, said = norm(x), sublayer(x)
    expected = x + sublayer(told)
    mistakes = {
        "That is post-norm: the norm stands on the main road, after the sum.": (
            norm(x + said)
        ),
        "The norm is on the main road: add the untouched x, not norm(x).": (
            told + sublayer(told)
        ),
        "You replaced x by the sublayer's answer: add x.": sublayer(told),
        "The norm comes after the sublayer: the sublayer should be told norm(x).": (
            x + norm(said)
        ),
        "There is no norm: the sublayer should be told norm(x).": x + said,
        "Nobody asks the sublayer: it should be told norm(x).": x + told,
        "You normalised twice: in pre-norm nothing normalises the sum.": norm(expected),
        "That is a norm of your own: use the one given, which has weights.": (
            x + sublayer(nn.functional.layer_norm(x, x.shape[-1:]))
        ),
    }
    result = answer(x, norm, sublayer)
    if not near(result, expected):
        return wrong(explain(result, expected, mistakes, NAN))
    return right("The sum is left as it is; the sublayer's input is normalised.")


@exercise
def check_reaches(answer: float) -> Verdict:
    """How many of six layers change their output when layer 3's weights change."""
    layers = number(answer)
    if layers == 4:
        return right(
            "Layers 3, 4, 5 and 6: its own output, and all that is built on it."
        )
    mistakes: dict[float, str] = {
        1: "Layer 3's output is the input of layer 4: what follows changes too.",
        3: "You forgot layer 3's own output, or counted the layers below it.",
        6: "All six would change only if the layers shared their parameters, or if "
        "outputs flowed down.",
        2: "Layers 1 and 2 come before layer 3: they are the ones that do not change.",
    }
    return wrong(mistakes.get(layers, "Count layer 3 and the layers after it."))


@exercise
def check_look_at(answer: Callable[..., Tensor]) -> Verdict:
    """A residual around attention to a memory, by a closure, in both orders."""
    torch.manual_seed(0)
    attention = MultiHeadAttention(8, 2)
    x, memory = torch.randn(1, 3, 8) * 3 + 1, torch.randn(1, 5, 8)
    for norm_first in (False, True):
        residual = Residual(8, norm_first=norm_first)
        norm = residual.norm
        expected = residual(x, lambda told: attention(told, memory, memory))
        mistakes = {
            "Your closure ignores its argument and uses the outer x. In pre-norm the "
            "residual hands it norm(x): use what it is given.": (
                residual(x, lambda told: attention(x, memory, memory))
            ),
            "You looked at x itself: keys and values should come from the memory.": (
                residual(x, lambda told: attention(told, told, told))
            ),
            "Keys and values come from x, not from the memory.": (
                residual(x, lambda told: attention(told, x, x))
            ),
            "You normalised once more: the residual does that for you.": (
                residual(
                    x, lambda told, norm=norm: attention(norm(told), memory, memory)
                )
            ),
            "There is no residual: call `residual(x, …)`.": (
                attention(x, memory, memory)
            ),
            "That is post-norm by hand: `residual` knows where its norm stands.": (
                norm(x + attention(x, memory, memory))
            ),
            "x plus attention, and no norm: call `residual(x, …)`.": (
                x + attention(x, memory, memory)
            ),
            "x was added twice: the residual adds it for you.": (
                residual(x, lambda told: told + attention(told, memory, memory))
            ),
        }
        try:
            result = answer(residual, attention, x, memory)
        except TypeError as error:
            if "not callable" in str(error) and callable(answer):
                return wrong(
                    "You passed a tensor, the result of attention. Pass a function: "
                    "the residual decides when to call it, and on what."
                )
            if "'sublayer'" in str(error):
                return wrong("`residual` takes two things: x, and a function.")
            if "'key' and 'value'" in str(error):
                return wrong(
                    "The residual calls its sublayer with one argument; attention "
                    "wants three. Pass a function of one that adds the memory."
                )
            raise
        except RuntimeError as error:
            if "size of tensor" in str(error):
                return wrong(
                    "The result has a row for each word of the memory, so it cannot be "
                    "added to x: the queries come from x."
                )
            raise
        if not near(result, expected):
            return wrong(explain(result, expected, mistakes, NAN))
    return right("The same residual, another closure: this is chapter 09's second one.")
