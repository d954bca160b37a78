"""Checks for the exercises of chapter 07, on the encoder."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bookkit.exercises import (
    Verdict,
    array,
    exercise,
    explain,
    holds,
    near,
    number,
    right,
    wrong,
)
from bookkit.forms import form
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
            "You divided by d - 1, the default of `std` and `var`. Layer norm "
            "divides by d: pass correction=0.": _normed(x, -1, unbiased=True),
            "Epsilon is outside the root: add it to the variance, before the root.": (
                centred / (spread.sqrt() + 1e-5)
            ),
            "Epsilon is missing, or far too small to matter.": _normed(x, -1, eps=0),
            "You averaged over the words. Layer norm averages over the features of "
            "each word.": _normed(x, -2),
            "You averaged over the sentences of the batch: that is close to batch "
            "norm. Average over the last axis.": _normed(x, 0),
            "That is batch norm: it averages each feature over all words of all "
            "sentences. Average over the last axis.": _normed(x, (0, 1)),
            "You averaged over the whole sentence: each word needs its own mean.": (
                _normed(x, (1, 2))
            ),
            "You averaged over everything: each word needs its own mean.": (
                _normed(x, (0, 1, 2))
            ),
            "You used one mean and one standard deviation for all words together: "
            "give each word its own, with dim=-1 and keepdim=True.": (
                (x - x.mean()) / x.std()
            ),
            "You divided by the variance: take its root.": centred / (spread + 1e-5),
            "You subtracted the mean but did not divide.": centred,
            "You divided but did not subtract the mean.": (
                x / torch.sqrt(spread + 1e-5)
            ),
            "You divided by the root mean square: subtract the mean first.": (
                x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
            ),
        }
        mistakes |= {
            f"Your epsilon is {eps:g}, not 1e-05: that counts where the numbers are "
            "small.": _normed(x, -1, eps=eps)
            for eps in (1e-3, 1e-4, 1e-6, 1e-8)
        }
        result = array(answer(x))
        if not near(result, expected):
            tiny = usual / 1000
            centred = tiny - tiny.mean(-1, keepdim=True)
            # Only where the numbers are small do the two mistakes differ from one.
            if holds(answer, [tiny], centred / (tiny.std(-1, keepdim=True) + 1e-5)):
                return wrong(
                    "You used std, which divides by d - 1, and put epsilon outside the "
                    "root: take the variance, with correction=0, and add it there."
                )
            return wrong(explain(result, expected, mistakes, NAN))
    # nn.LayerNorm(8) is made for one width; a function must read it from x.
    if not isinstance(getattr(answer, "answer", answer), nn.Module):
        narrow = torch.randn(2, 3, 6, generator=g)
        if not holds(answer, [narrow], _normed(narrow, -1)):
            return wrong("Right for d = 8 only: read d from x, as x.size(-1).")
    return right(
        "Each word is normalised by itself, with division by d and epsilon inside "
        "the root."
    )


@exercise
@form("one", "layers")
def check_reaches(answer: float) -> Verdict:
    """How many of six layers change their output when layer 3's weights change."""
    layers = number(answer)
    if layers == 4:
        return right(
            "Layers 3, 4, 5 and 6: its own output changes, and every output computed "
            "from it."
        )
    mistakes: dict[float, str] = {
        1: "Layer 3's output is the input of layer 4: what follows changes too.",
        3: "You forgot layer 3's own output, or counted up to it and not from it.",
        6: "All six would change only if the layers shared their parameters, or if "
        "lower layers read the outputs of higher ones.",
        2: "Layers 1 and 2 come before layer 3: they are the ones that do not change.",
    }
    return wrong(mistakes.get(layers, "Count layer 3 and the layers after it."))


@exercise
def check_look_at(answer: Callable[..., Tensor]) -> Verdict:
    """A residual around attention to a memory, by a closure, in both orders."""
    torch.manual_seed(0)
    attention = MultiHeadAttention(8, 2)
    x, memory = torch.randn(1, 3, 8) * 3 + 1, torch.randn(1, 5, 8)
    by_hand = False
    for norm_first in (False, True):
        residual = Residual(8, norm_first=norm_first)
        called: list[Any] = []
        residual.dropout.register_forward_hook(
            lambda *_, called=called: called.append(1)
        )
        norm = residual.norm
        expected = residual(x, lambda given: attention(given, memory, memory))
        mistakes = {
            "Your closure ignores its argument and uses the outer x. In pre-norm the "
            "argument is norm(x): use it.": (
                residual(x, lambda given: attention(x, memory, memory))
            ),
            "That is self-attention: keys and values should come from the memory.": (
                residual(x, lambda given: attention(given, given, given))
            ),
            "Keys and values come from x, not from the memory.": (
                residual(x, lambda given: attention(given, x, x))
            ),
            "You normalised once more: the residual does that for you.": (
                residual(
                    x, lambda given, norm=norm: attention(norm(given), memory, memory)
                )
            ),
            "There is no residual: call `residual(x, …)`.": (
                attention(x, memory, memory)
            ),
            "You normalised the memory: give it to attention as it is.": (
                residual(
                    x,
                    lambda given, norm=norm: attention(
                        given, norm(memory), norm(memory)
                    ),
                )
            ),
            "That is pre-norm by hand: call `residual(x, …)`, which applies its own "
            "norm.": x + attention(norm(x), memory, memory),
            "That is post-norm by hand: call `residual(x, …)`, which applies its own "
            "norm.": norm(x + attention(x, memory, memory)),
            "That is x plus attention, with no norm: call `residual(x, …)`.": (
                x + attention(x, memory, memory)
            ),
            "x was added twice: the residual adds it for you.": (
                residual(x, lambda given: given + attention(given, memory, memory))
            ),
        }
        called.clear()
        try:
            result = answer(residual, attention, x, memory)
        except TypeError as error:
            if "not callable" in str(error) and callable(answer):
                return wrong(
                    "You passed a tensor, the result of attention. Pass a function, "
                    "which the residual calls on x or on norm(x)."
                )
            if "'sublayer'" in str(error):
                return wrong("`residual` takes two things: x, and a function.")
            if "'key' and 'value'" in str(error):
                return wrong(
                    "Attention got one argument, and it takes three. Pass a function "
                    "of one argument that calls attention with the memory as keys and "
                    "values."
                )
            raise
        except RuntimeError as error:
            if "size of tensor a (5)" in str(error):
                return wrong(
                    "One side of the sum has a row for each word of the memory: call "
                    "`residual(x, …)`, and make the queries from x."
                )
            if "size of tensor" in str(error):
                return wrong(
                    "The result has a row for each word of the memory, so it cannot "
                    "be added to x: the queries should come from x."
                )
            raise
        if isinstance(result, Tensor) and result.shape == memory.shape:
            return wrong(
                "The result has a row for each word of the memory: queries, and what "
                "the residual adds to, should come from x."
            )
        if not near(result, expected):
            return wrong(explain(result, expected, mistakes, NAN))
        by_hand = by_hand or not called
    if by_hand:
        return wrong(
            "The numbers are right while dropout is 0, but the sum is written by hand, "
            "without the residual's dropout: call `residual(x, …)`."
        )
    return right(
        "The same residual with another closure: this is the second sublayer of "
        "chapter 09's decoder layer."
    )
