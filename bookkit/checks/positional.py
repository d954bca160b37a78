"""Checks for the exercises of chapter 06, positions."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from bookkit.exercises import (
    Verdict,
    array,
    blanks,
    exercise,
    near,
    number,
    right,
    tensor,
    wrong,
)
from bookkit.forms import form
from transformer.positional import PositionalEncoding, sinusoids


def _table(
    length: int, exponents: Tensor, base: float = 10_000, first: int = 0
) -> Tensor:
    """Sines in even columns, cosines in odd ones, of position · base^(-exponent)."""
    position = torch.arange(first, first + length, dtype=torch.float64)
    angle = torch.outer(position, base ** -exponents.double())
    even = torch.arange(len(exponents)) % 2 == 0
    return torch.where(even, angle.sin(), angle.cos()).float()


@exercise
def check_table(table: Callable[[int, int], Tensor]) -> Verdict:
    """Compare a table with the formula, and with its likely misreadings."""
    length, d_model = 20, 8
    answer = array(table(length, d_model))
    expected = sinusoids(length, d_model)
    if near(answer, expected):
        if not near(array(table(7, 12)), sinusoids(7, 12)):
            return wrong("Right for (20, 8), but not for (7, 12): use both arguments.")
        return right("A sine and a cosine for every clock.")
    if answer.shape == (d_model, length):
        return wrong("The table is transposed: a row is a position.")
    if answer.shape != expected.shape:
        return wrong(
            f"The shape should be {(length, d_model)}, but is {tuple(answer.shape)}."
        )
    column = torch.arange(d_model)
    pair = column // 2
    swapped = expected.view(length, -1, 2).flip(-1).flatten(1)
    angles = torch.outer(torch.arange(length), 10_000 ** (-2 * pair / d_model))
    halves = torch.cat((expected[:, 0::2], expected[:, 1::2]), dim=1)
    misreadings = [
        (
            _table(length, 2 * column / d_model),
            "The exponent uses the column where the formula has the pair: columns 2i "
            "and 2i + 1 share the rate of pair i.",
        ),
        (
            _table(length, 4 * pair / d_model),
            "The exponent is doubled: the even column is 2i already.",
        ),
        (
            _table(length, column / d_model),
            "Every column has a rate of its own: the sine and the cosine of a pair "
            "must share one angle.",
        ),
        (
            _table(length, pair / d_model),
            "The exponent is pair / d_model: the 2 of 2i is missing.",
        ),
        (
            _table(length, -2 * pair / d_model),
            "The exponent has the wrong sign: later clocks turn slower, not faster.",
        ),
        (
            _table(length, 2 * (pair + 1) / d_model),
            "Pairs are counted from 0: in the first, i = 0, the rate is 1.",
        ),
        (
            _table(length, 2 * pair / d_model, first=1),
            "Positions start at 0, not at 1.",
        ),
        (
            _table(length, 2 * pair / d_model, base=1_000),
            "The base is 10000, but yours is 1000.",
        ),
        (
            _table(length, torch.zeros(d_model)),
            "Every clock turns at the same speed: does // cut the exponent down to 0?",
        ),
        (
            angles.sin(),
            "All columns are sines: the odd ones should be cosines.",
        ),
        (angles, "Those are the angles: take their sines and cosines."),
        (
            expected * (column % 2 == 0),
            "The odd columns are 0: they should hold the cosines.",
        ),
        (swapped, "Sine and cosine are swapped: the sine is in the even columns."),
        (
            halves,
            "The sines come first, then the cosines: the same columns in another "
            "layout. Here the sine and the cosine of a clock are side by side.",
        ),
    ]
    for misreading, message in misreadings:
        if near(answer, misreading):
            return wrong(message)
    rows = ~((answer - expected).abs().amax(dim=1) <= 1e-4)  # NaN differs too
    first = int(rows.nonzero()[0])
    return wrong(f"The first row that differs is that of position {first}.")


@exercise
@form("dictionary", "fastest", "slowest")
def check_wavelengths(words_for_a_turn: Mapping[str, Any]) -> Verdict:
    """How many words the fastest and the slowest clock need, d_model = 512."""
    given = blanks(words_for_a_turn, ("fastest", "slowest"))
    fastest, slowest = map(number, given)

    def near(one: float, other: float) -> bool:
        return math.isclose(one, other, rel_tol=0.015)

    turn, most = 2 * math.pi, 10_000 ** (510 / 512)
    if near(fastest, turn) and near(slowest, turn * most):
        return right("From 6.3 words to about 60,600.")
    if near(slowest, turn) and near(fastest, turn * most):
        return wrong("The two are swapped: the pair with i = 0 is the fastest.")
    if near(fastest, 1) or near(slowest, most) or near(slowest, 10_000):
        return wrong(
            "That is one over the rate: a full turn is 2π radians, not one radian."
        )
    if near(fastest, 1 / turn) or near(slowest, 1 / (turn * most)):
        return wrong("That is turns per word: you are asked for words per turn.")
    if near(fastest, 360):
        return wrong("The rate is in radians: a full turn is 2π of them.")
    if not near(fastest, turn):
        return wrong("The fastest is wrong: i = 0 gives a rate of one radian per word.")
    if near(slowest, turn * 10_000):
        return wrong(
            "Nearly right: the last pair is i = 255, so the exponent is 510/512, not 1."
        )
    if near(slowest, turn * 10_000 ** (255 / 512)):
        return wrong("The slowest is wrong: the exponent is 2i / d_model, with the 2.")
    return wrong(
        "The slowest is wrong: take i = 255, the last pair, and divide 2π by its rate."
    )


def _ahead(d_model: int, weight: Tensor) -> Verdict:
    """The verdict on the query projection for one d_model."""
    length = 40
    if weight.shape != (d_model, d_model):
        shape = tuple(weight.shape)
        return wrong(f"The shape should be {(d_model, d_model)}, but is {shape}.")

    def attended(table: Tensor) -> Tensor:
        scores = (table @ weight.float().T) @ table.T / math.sqrt(d_model)
        return scores.softmax(dim=-1)

    weights = attended(sinusoids(length, d_model))
    shares = {k: weights.diagonal(k)[2:-2].mean().item() for k in range(-20, 21)}
    if weights.diagonal(2).min() >= 0.9:
        far = attended(sinusoids(1000 + length, d_model)[1000:])
        if far.diagonal(2).min() < 0.9:
            return wrong(
                "It attends two words ahead in the first words of a text, but not at "
                "position 1000: a matrix fitted to some positions need not be the "
                "rotation."
            )
        least = attended(sinusoids(1000, d_model)).diagonal(2).min()
        if least < 0.9:
            return wrong(
                "Right for 40 words, not for 1000, where the word two ahead gets as "
                f"little as {least:.2f}: fast clocks come round again, and far words "
                "look near. Turn all clocks."
            )
        return right("One rotation, and every position attends two words ahead.")
    if shares[-2] > 0.5:
        return wrong(
            "It attends two words back. Rotate the query forward, or do not transpose: "
            "query_proj computes x @ weight.T."
        )
    most = max(shares, key=lambda k: shares[k])
    if most == 2:
        least = weights.diagonal(2).min()
        return wrong(
            f"It attends two words ahead, but a word with only {least:.3f} of its "
            "weight: the scores need a larger factor."
        )
    if shares[most] < 0.5:
        return wrong(
            f"No one distance gets most of the weight, and +2 gets {shares[2]:.2f}."
        )
    if most == 0:
        return wrong(
            "Every position attends mostly to itself: the query is not rotated."
        )
    return wrong(f"Most of the weight falls on distance {most:+d}, not on +2.")


@exercise
def check_ahead(looks_ahead: Callable[[int], Tensor]) -> Verdict:
    """Check the query projection of a head that attends two words ahead."""
    verdict = _ahead(64, array(looks_ahead(64)))
    if not verdict.ok:
        return verdict
    for d_model in 32, 512:
        other = _ahead(d_model, array(looks_ahead(d_model)))
        if not other.ok:
            return wrong(
                f"Right for a d_model of 64, not for {d_model}. {other.message}"
            )
    return verdict


@exercise
def check_start(encode_chunks: Callable[..., Any]) -> Verdict:
    """Check that chunks of a text get the positions that the whole text would."""
    encode = PositionalEncoding(d_model=8, max_length=32)
    text = torch.randn(2, 10, 8, generator=torch.Generator().manual_seed(7))
    sizes = [3, 1, 1, 4, 1]
    chunks = list(text.split(sizes, dim=1))
    calls: list[Any] = []
    ran: list[Any] = []
    encode.register_forward_hook(lambda *call: calls.append(call))
    encode.dropout.register_forward_hook(lambda *call: ran.append(call))
    answer = encode_chunks(encode, chunks)
    called, forwards = len(calls), len(ran)
    if not isinstance(answer, list | tuple) or len(answer) != len(chunks):
        return wrong("A list is wanted, with one tensor for each chunk.")
    parts = [tensor(part, "a list of tensors") for part in answer]
    if [part.shape for part in parts] != [chunk.shape for chunk in chunks]:
        return wrong("Every result should have the shape of its chunk.")
    if any(map(near, parts, chunks)):
        return wrong("A chunk came back as it went in: call `encode` on each of them.")
    answer = torch.cat(parts, dim=1)

    def from_starts(starts: list[int]) -> Tensor:
        parts = [encode(c, start=s) for c, s in zip(chunks, starts, strict=True)]
        return torch.cat(parts, dim=1)

    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    starts = [0, *ends[:-1]]
    if near(answer, from_starts(starts)):
        if forwards and not called:
            return wrong(
                "The numbers are right: now call encode(chunk, start=…), neither "
                "encode.forward(…) nor its parts."
            )
        if not called:
            return wrong(
                "The numbers are right, but you never called `encode`: call it as "
                "encode(chunk, start=…) for each chunk."
            )
        if called < len(chunks):
            return wrong(
                f"The numbers are right, but `encode` was called {called} of "
                f"{len(chunks)} times. A text that is still being written has no "
                "later chunks yet: encode each chunk by itself, with its `start`."
            )
        return right("However the text is cut, every word keeps its position.")
    if near(answer, from_starts([0] * len(chunks))):
        return wrong("Every chunk starts at position 0: `start` is missing.")
    if near(answer, from_starts(list(range(len(chunks))))):
        return wrong("You counted chunks, not words: a chunk may hold several words.")
    if near(answer, from_starts([len(text) * i for i in range(len(chunks))])):
        return wrong(
            "`len` gives the sentences of a chunk, not its words: `size(1)` does that."
        )
    if near(answer, from_starts(ends)):
        return wrong(
            "`start` is where the chunk begins: you added its own length first."
        )
    if near(answer, from_starts([0, *sizes[:-1]])):
        return wrong(
            "You kept only the length of the chunk before: add up those of all before."
        )
    for lengths in sizes, sizes[:1] * len(sizes):
        if near(answer, from_starts([i * n for i, n in enumerate(lengths)])):
            return wrong("Chunks differ in length: add up those of all before.")
    if near(answer, from_starts([s + 1 for s in starts])):
        return wrong("One too far: the first word of a text has position 0.")
    if near(answer, from_starts([max(s - 1, 0) for s in starts])):
        return wrong("One too few: a chunk starts after the last word before it.")
    return wrong("Some words did not get their own position added.")
