"""Checks for the exercises of chapter 8, Who may look at whom?"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from bookkit.exercises import (
    Verdict,
    array,
    exercise,
    number,
    right,
    truth,
    wrong,
)
from bookkit.forms import form


@exercise
def check_both(both_masks: Callable[[Tensor, int], Tensor]) -> Verdict:
    """Exercise: padding and causal mask in one, (batch, 1, length, length)."""
    ids = torch.tensor([[4, 5, 1, 7, 8], [3, 3, 2, 9, 5], [0, 9, 5, 3, 3]])
    answer = array(both_masks(ids, 3), "a tensor of booleans")
    past = torch.ones(5, 5, dtype=torch.bool).tril()
    words = (ids != 3)[:, None, None, :]
    mask = words & past
    if answer.shape == (3, 5, 5):
        return wrong(
            "The shape is (batch, length, length). Broadcast with (batch, heads, "
            "queries, keys), the batch would line up with the heads: add an axis of "
            "size 1 for them."
        )
    if answer.dtype != torch.bool:
        return wrong(
            f"The mask should be boolean, got {answer.dtype}: True means may attend, "
            "and nothing is added to the scores."
        )
    if answer.shape == (3, 1, 1, 5):
        return wrong("That is the padding mask alone: the future is still visible.")
    if answer.shape in ((5, 5), (1, 1, 5, 5)):
        return wrong("That is the causal mask alone: the padding is still visible.")
    if answer.shape != mask.shape:
        return wrong(
            "The shape should be (batch, 1, length, length) = (3, 1, 5, 5), got "
            f"{tuple(answer.shape)}."
        )
    if torch.equal(answer, mask):
        # another padding id, so that 3 cannot be built in
        other = torch.tensor([[7, 3, 0]])
        wanted = (other != 0)[:, None, None, :] & past[:3, :3]
        if torch.equal(array(both_masks(other, 0)), wanted):
            return right("A query may attend to a key only if both masks allow it.")
        return wrong("Right for padding id 3, but not for 0: use pad_id.")
    if torch.equal(answer, ~mask):
        return wrong(
            "Inverted: True must mean may attend. Yours is the convention of "
            "nn.MultiheadAttention."
        )
    if torch.equal(answer, (ids != 0)[:, None, None, :] & past):
        return wrong("You masked id 0; here padding is id 3: use pad_id.")
    if torch.equal(answer, (ids > 3)[:, None, None, :] & past):
        return wrong("Every id but pad_id is a word, smaller ones too.")
    if torch.equal(answer, words | past):
        return wrong(
            "You combined the masks with or, so one of them is enough to allow a "
            "pair. Both must allow it: use &."
        )
    if torch.equal(answer, words & past.T):
        return wrong(
            "Your triangle is the upper one: each position attends to the future, "
            "and not to the past."
        )
    if torch.equal(answer, words & ~past):
        return wrong("Your triangle allows the future alone: <= became >.")
    if torch.equal(answer, ~words & ~past):
        return wrong(
            "Both masks are inverted, True for what is hidden, and joined with &: True "
            "must mean may attend."
        )
    if torch.equal(answer, ~words & past):
        return wrong("You allow the padding and mask the words: != became ==.")
    if torch.equal(answer, words.transpose(-2, -1) & past):
        return wrong(
            "You masked padded queries, the rows. Words still attend to padded keys: "
            "mask the columns."
        )
    if torch.equal(answer, words & words.transpose(-2, -1) & past):
        real = torch.tensor([True, True, False])
        wanted = (real & real[:, None] & past[:3, :3])[None, None]
        if not torch.equal(array(both_masks(torch.tensor([[7, 3, 0]]), 0)), wanted):
            return wrong("Right for padding id 3, but not for 0: use pad_id.")
        return right(
            "You also masked padded queries. That changes no real word, but those "
            "rows may attend to nothing, so the attention must return zeros for them."
        )
    off_by_one = torch.ones(5, 5, dtype=torch.bool)
    if torch.equal(answer, words & off_by_one.tril(1)):
        return wrong(
            "Off by one: each position attends to the token that it should predict."
        )
    if torch.equal(answer, words & off_by_one.tril(-1)):
        return wrong(
            "Off by one: a position may attend to itself, and the first could "
            "otherwise attend to nothing."
        )
    if torch.equal(answer, words.expand_as(mask)):
        return wrong("The padding is hidden, but the future is still visible.")
    if torch.equal(answer, past.expand_as(mask)):
        return wrong("The future is hidden, but the padding is still visible.")
    return wrong("The shape is right; compare your rows with the figure of both masks.")


_FEATURES = torch.randn(10, 4, generator=torch.Generator().manual_seed(8))


def _model(
    sees: Callable[[int], Tensor], features: Tensor = _FEATURES
) -> Callable[[Tensor], Tensor]:
    """Each output is a weighted sum of the tokens that `sees(length)` lets it see."""

    def model(ids: Tensor) -> Tensor:
        length = ids.size(1)
        weights = sees(length).float() * torch.arange(1.0, length + 1)
        return weights @ features[ids]

    return model


def _lower(diagonal: int) -> Callable[[int], Tensor]:
    return lambda length: torch.ones(length, length).tril(diagonal)


def _last_to_first(length: int) -> Tensor:
    sees = torch.ones(length, length).tril()
    sees[0, -1] = 1
    return sees


def _second_to_first(length: int) -> Tensor:
    sees = torch.ones(length, length).tril()
    sees[0, 1:2] = 1  # also where a detector shows the model one token alone
    return sees


def _middle(length: int) -> Tensor:
    sees = torch.ones(length, length).tril()
    sees[length // 2 - 1, length // 2] = 1
    return sees


def _everything(length: int) -> Tensor:
    return torch.ones(length, length)


@exercise
def check_detector(sees_future: Callable[..., bool]) -> Verdict:
    """Exercise: does an output change when a later token does?"""
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])

    def caught(sees: Callable[[int], Tensor], features: Tensor = _FEATURES) -> bool:
        return truth(sees_future(_model(sees, features), ids))

    if caught(_lower(0)):
        if not caught(_everything):
            return wrong(
                "Your detector is the wrong way round: True means that a later token "
                "matters."
            )
        if caught(lambda length: torch.zeros(length, length)):
            return wrong(
                "Your detector calls every model leaking, even one that ignores its "
                "tokens."
            )
        return wrong(
            "Your detector reports a leak in an honest causal model. The output at "
            "the changed token, and those after it, may change: compare only the "
            "outputs before it."
        )
    if caught(_lower(-1)):
        return wrong(
            "Your detector reports a leak in a model that attends only to strictly "
            "earlier tokens."
        )
    # Whatever the last token becomes, the first output falls, or rises.
    falls = (torch.arange(10) == ids[0, -1]).float()[:, None]
    signs = [
        {caught(_last_to_first, each) for _ in range(3)} for each in (falls, -falls)
    ]
    if signs in ([{True}, {False}], [{False}, {True}]):
        return wrong(
            "A leak that makes an output smaller passes, or one that makes it "
            "larger: take the absolute value of each change, abs()."
        )
    if not caught(_everything):
        return wrong("A model without any mask passes your detector.")
    if not caught(lambda length: torch.ones(length, length).triu()):
        return wrong(
            "A model that attends only to the current token and the future passes "
            "your detector."
        )
    if not caught(_lower(1)):
        return wrong(
            "A mask off by one passes. The output just before the changed token must "
            "be compared too."
        )
    if not caught(_middle):
        return wrong(
            "A leak from one token in the middle passes: change every token in turn, "
            "not only the first or the last, each to a different one, and compare all "
            "outputs before it."
        )
    if not caught(_last_to_first):
        return wrong(
            "A leak from the last token to the first output passes: compare all "
            "earlier outputs, and change the last token too, to a different one."
        )
    if not caught(_second_to_first):
        return wrong(
            "A leak from the second token to the first output passes: change every "
            "token but the first, each to a different one."
        )
    leak = _model(_second_to_first)
    # Whatever a detector puts in its place, it may be there; at random, now and then.
    for token in [*range(10)] * 6:
        if not truth(sees_future(leak, torch.tensor([[3, token, 4, 1, 5, 9, 2, 6]]))):
            return wrong(
                f"A leak from the second token passes where that token is {token}: "
                "change each token to a different one (a fixed token, or a random "
                "one, may be the same), and compare numbers, not the place of the "
                "largest."
            )
    if not caught(_last_to_first, _FEATURES / 5000):
        return wrong(
            "A small leak passes: outputs that change by a thousandth have changed. "
            "Use a tolerance for rounding errors only."
        )
    unmasked, honest = _model(_everything), _model(_lower(0))
    if not truth(sees_future(lambda ids: F.layer_norm(unmasked(ids), (4,)), ids)):
        return wrong(
            "A leak passes that leaves the sum, or the length, of each output "
            "unchanged: compare number by number, (a - b).abs().max()."
        )
    for name, at in ("last", 3), ("first", 0):
        one = torch.arange(4) == at

        def leaks_into(ids: Tensor, one: Tensor = one) -> Tensor:
            return torch.where(one, unmasked(ids), honest(ids))

        if not truth(sees_future(leaks_into, ids)):
            return wrong(
                f"A leak into the {name} number of each output passes: compare all "
                "numbers of an output."
            )
    return right(
        "Fourteen models judged, two honest and twelve leaking in different ways."
    )


def _window_mistake(mask: list[list[bool]], length: int, window: int) -> str:
    """What is wrong with a mask that reaches `window` tokens; empty if nothing is."""

    def drawn(sees: Callable[[int], bool]) -> list[list[bool]]:
        return [[sees(key - query) for key in range(length)] for query in range(length)]

    expected = drawn(lambda ahead: -window < ahead <= 0)
    if mask == expected:
        return ""
    if mask == drawn(lambda ahead: -window <= ahead <= 0):
        return (
            "One column too many: the window includes the position itself, so "
            "window 3 is the position and the two before it."
        )
    if mask == drawn(lambda ahead: abs(ahead) < window):
        return "Your window reaches ahead too: the future is visible."
    if mask == drawn(lambda ahead: ahead <= 0):
        return "That is the causal mask: positions before the window are still visible."
    if mask == [[not sees for sees in row] for row in expected]:
        return "Inverted: True must mean may attend."
    if mask == drawn(lambda ahead: 1 - window < ahead <= 0):
        return (
            "One column too few: the window includes the position itself, so "
            "window 3 is the position and the two before it."
        )
    if mask == drawn(lambda ahead: 0 <= ahead < window):
        return "Your triangle is the upper one: each position attends to the future."
    if mask in (
        drawn(lambda ahead: -window < ahead < 0),
        drawn(lambda ahead: -window <= ahead < 0),
    ):
        return "A position attends to itself, too."
    return f"Wrong for length {length} and window {window}: draw the rows."


def _window_by_hand(mask: list[list[bool]]) -> Verdict:
    """The verdict on the mask that a reader ticks for six tokens."""
    message = _window_mistake(mask, 6, 3)
    if message:
        return wrong(message)
    return right("Each row has at most as many True as the window is wide.")


@exercise
@form(
    "matrix",
    *("0", "1", "2", "3", "4", "5"),
    columns=("0", "1", "2", "3", "4", "5"),
    ticks=True,
    by_hand="By hand first, for a length of 6 and a window of 3. Each row is a "
    "position: tick the positions that it may attend to.",
    judge=_window_by_hand,
)
def check_window(window_mask: Callable[[int, int], Tensor]) -> Verdict:
    """Exercise: a causal mask that reaches `window` tokens and no more."""
    for length, window in ((6, 3), (5, 2), (4, 9)):
        answer = array(window_mask(length, window), "a tensor of booleans")
        if answer.dtype != torch.bool or answer.shape != (length, length):
            return wrong(
                f"The mask should be boolean, of shape ({length}, {length}); got "
                f"{answer.dtype} of shape {tuple(answer.shape)}."
            )
        if message := _window_mistake(answer.tolist(), length, window):
            return wrong(message)
    return right("Each row has at most as many True as the window is wide.")


def _layers_mistake(answer: float, length: int, window: int) -> str:
    """The idea behind a wrong number of layers; empty where there is none."""
    places = (length - 1) / (window - 1)
    if answer in (places, (length - 1) // (window - 1)):
        return "Round up: the remainder needs a layer of its own."
    if answer == places - 1:
        return (
            "One layer too few: the first layer, too, carries information "
            "over window - 1 places, from the first token."
        )
    if length > 1 and answer == -(-length // window):
        return (
            "A layer carries information over window - 1 places, because the "
            "window includes the position itself."
        )
    if length > 1 and answer in (places + 1, length / (window - 1)):
        return (
            "One layer too many where it divides evenly: the first token is "
            "length - 1 places away, not length. Divide, and round up."
        )
    return ""


def _layers_by_hand(answer: float) -> Verdict:
    """The verdict on the layers that a reader counts for ten tokens."""
    layers = number(answer, "a whole number of layers")
    if layers == 5:
        return right("Nine places, two for each layer: four and a half, rounded up.")
    message = _layers_mistake(layers, 10, 3)
    if message:
        return wrong(message)
    return wrong("From the last position, how many places back does each layer reach?")


@exercise
@form(
    "one",
    "layers",
    by_hand="By hand first, for a length of 10 and a window of 3: how many layers?",
    judge=_layers_by_hand,
)
def check_layers(layers_needed: Callable[[int, int], int]) -> Verdict:
    """Exercise: how many windowed layers carry the first token to the last output."""
    for length, window in ((21, 3), (10, 3), (1, 2), (100, 2), (7, 7), (5, 4)):
        sees = torch.ones(length, length).tril().triu(1 - window)
        reach, layers = torch.eye(length), 0
        while reach[-1, 0] == 0:
            reach, layers = ((sees @ reach) > 0).float(), layers + 1
        answer = number(layers_needed(length, window), "a whole number of layers")
        if answer != layers:
            if message := _layers_mistake(answer, length, window):
                return wrong(message)
            return wrong(
                f"Measured for length {length} and window {window}: {layers} layers, "
                f"not {answer:g}."
            )
    return right("Each answer agrees with following the mask through the layers.")
