"""Chapter 06's exercises: the answer is right, likely mistakes are named."""

import math

import torch

from bookkit.checks.positional import (
    check_ahead,
    check_start,
    check_table,
    check_wavelengths,
)
from tests.exercises import named_mistakes, right_answers
from transformer import sinusoids

TURN, MOST = 2 * math.pi, 10_000 ** (510 / 512)


def table(exponent, base=10_000, first=0):
    """A reader's table: `exponent(column, d_model)` of each column."""

    def make(length, d_model):
        rows = torch.empty(length, d_model)
        position = torch.arange(first, first + length)
        for column in range(d_model):
            angle = position * base ** -exponent(column, d_model)
            rows[:, column] = angle.cos() if column % 2 else angle.sin()
        return rows

    return make


def pair(column, d_model):
    return 2 * (column // 2) / d_model


def halves(length, d_model):
    rows = sinusoids(length, d_model)
    return torch.cat((rows[:, 0::2], rows[:, 1::2]), dim=1)


def swapped(length, d_model):
    return sinusoids(length, d_model).view(length, -1, 2).flip(-1).flatten(1)


def all_sines(length, d_model):
    rates = 10_000.0 ** (
        -torch.arange(d_model).div(2, rounding_mode="floor") * 2 / d_model
    )
    return torch.outer(torch.arange(length), rates).sin()


def shifted(length, d_model):
    rows = sinusoids(length, d_model)
    rows[3] = 0
    return rows


def rotation(k, d_model):
    blocks = []
    for i in range(d_model // 2):
        angle = k * 10_000 ** (-2 * i / d_model)
        sin, cos = math.sin(angle), math.cos(angle)
        blocks.append(torch.tensor([[cos, sin], [-sin, cos]]))
    return torch.block_diag(*blocks)


def some_clocks(columns, factor):
    """A head whose query keeps the first columns only, the fastest clocks."""

    def looks_ahead(d_model):
        kept = torch.zeros(d_model)
        kept[:columns] = 1
        return factor * rotation(2, d_model) @ torch.diag(kept)

    return looks_ahead


def angles(length, d_model):
    rates = 10_000.0 ** (-(torch.arange(d_model) // 2) * 2 / d_model)
    return torch.outer(torch.arange(length), rates)


def no_cosines(length, d_model):
    rows = sinusoids(length, d_model)
    rows[:, 1::2] = 0
    return rows


def from_lengths(start):
    """Chunks of a text, each from `start(place in the list, chunk, chunks)`."""

    def encode_chunks(encode, chunks):
        starts = (start(i, chunk, chunks) for i, chunk in enumerate(chunks))
        return [encode(c, start=s) for c, s in zip(chunks, starts, strict=True)]

    return encode_chunks


def forwards(encode, chunks):
    return chunked()(encode.forward, chunks)


def fitted_step(k, d_model, places=42):
    """The least matrix that carries the first positions k on: no rotation."""
    rows = sinusoids(places, d_model).double()
    return torch.linalg.lstsq(rows[:-k], rows[k:], driver="gelsd").solution.T


def chunked(first=0, step="words"):
    def encode_chunks(encode, chunks):
        results, start = [], 0
        for number, chunk in enumerate(chunks):
            at = {"words": start, "chunks": number, "none": 0}[step]
            results.append(encode(chunk, start=max(at + first, 0)))
            start += chunk.size(1)
        return results

    return encode_chunks


def from_ends(encode, chunks):
    results, start = [], 0
    for chunk in chunks:
        start += chunk.size(1)
        results.append(encode(chunk, start=start))
    return results


def each_word(encode, chunks):
    results, start = [], 0
    for chunk in chunks:
        words = chunk.split(1, dim=1)
        parts = [encode(word, start=start + i) for i, word in enumerate(words)]
        results.append(torch.cat(parts, dim=1))
        start += chunk.size(1)
    return results


def by_hand(encode, chunks):
    text = torch.cat(chunks, 1)
    text = text + sinusoids(text.size(1), text.size(2))
    return text.split([chunk.size(1) for chunk in chunks], 1)


def by_its_parts(encode, chunks):
    start, found = 0, []
    for chunk in chunks:
        places = sinusoids(start + chunk.size(1), chunk.size(2))[start:]
        found.append(encode.dropout(chunk + places))
        start += chunk.size(1)
    return found


def turns(fastest, slowest):
    return {"fastest": fastest, "slowest": slowest}


def at_once(encode, chunks):
    return encode(torch.cat(chunks, 1)).split([chunk.size(1) for chunk in chunks], 1)


RIGHT = [
    (check_table, table(pair)),
    (check_wavelengths, turns(6.28, 60_600)),
    (check_ahead, lambda d: 100 * rotation(2, d).double()),
    (check_ahead, lambda d: 1e6 * rotation(2, d)),
    (check_ahead, lambda d: (64 * rotation(2, d)).numpy()),
    (check_table, lambda length, d: sinusoids(length, d).tolist()),
    (check_table, lambda length, d: list(sinusoids(length, d))),
    (check_start, each_word),
]

WRONG = [
    (check_table, table(lambda c, d: 2 * c / d), "column where the formula"),
    (check_table, table(lambda c, d: 4 * (c // 2) / d), "doubled"),
    (check_table, table(lambda c, d: c / d), "share one angle"),
    (check_table, table(lambda c, d: (c // 2) / d), "2 of 2i is missing"),
    (check_table, table(lambda c, d: -pair(c, d)), "sign"),
    (check_table, table(pair, first=1), "start at 0"),
    (check_table, table(lambda c, d: pair(c + 2, d)), "Pairs are counted from 0"),
    (check_table, lambda length, d: sinusoids(20, 8), "not for"),
    (check_table, table(pair, base=1_000), "base"),
    (check_table, table(lambda c, d: 2 * (c // 2) // d), "down to 0"),
    (check_table, all_sines, "All columns are sines"),
    (check_table, swapped, "swapped"),
    (check_table, halves, "layout"),
    (check_table, angles, "Those are the angles"),
    (check_table, no_cosines, "odd columns are 0"),
    (check_table, lambda n, d: sinusoids(n, d).T, "transposed"),
    (check_table, lambda n, d: sinusoids(n + 1, d), "shape"),
    (check_table, shifted, "position 3"),
    (check_table, lambda n, d: 0, "tensor"),
    (check_wavelengths, turns(TURN * MOST, TURN), "swapped"),
    (check_wavelengths, turns(1, MOST), "2π radians"),
    (check_wavelengths, turns(1 / TURN, 1 / TURN / MOST), "words per turn"),
    (check_wavelengths, turns(360, 5), "radians"),
    (check_wavelengths, turns(TURN, TURN * 10_000), "510/512"),
    (check_wavelengths, turns(TURN, TURN * 10_000 ** (255 / 512)), "with the 2"),
    (check_wavelengths, turns(TURN, 5), "last pair"),
    (check_wavelengths, turns(17, 5), "one radian per word"),
    (check_wavelengths, {"fastest": TURN}, "Nothing stands under 'slowest'"),
    (check_wavelengths, turns("2π", TURN), "without quotes"),
    (check_ahead, lambda d: 64 * rotation(-2, d), "two words back"),
    (check_ahead, lambda d: 2 * rotation(2, d), "larger factor"),
    (check_ahead, lambda d: 64 * torch.eye(d), "not rotated"),
    (check_ahead, lambda d: 64 * rotation(1, d), "distance +1"),
    (check_ahead, lambda d: 64 * rotation(4, d), "distance +4"),
    (check_ahead, lambda d: torch.zeros(d, d), "No one distance"),
    (check_ahead, lambda d: torch.eye(3), "shape"),
    (check_ahead, lambda d: 64 * fitted_step(2, d), "first words"),
    (check_ahead, some_clocks(2, 20_000), "as little as 0.12"),
    (check_ahead, some_clocks(4, 2000), "as little as 0.19"),
    (check_ahead, some_clocks(8, 200), "as little as 0.54"),
    (check_table, lambda length, d: torch.full((length, d), torch.nan), "position 0"),
    (check_ahead, lambda d: "forward", "tensor"),
    (check_start, chunked(step="none"), "`start` is missing"),
    (check_start, chunked(step="chunks"), "counted chunks"),
    (check_start, from_ends, "its own length"),
    (check_start, chunked(first=1), "One too far"),
    (check_start, chunked(first=-1), "One too few"),
    (check_start, chunked(first=5), "Some words"),
    (check_start, at_once, "called 1 of 5 times"),
    (check_start, by_hand, "never called"),
    (check_start, forwards, "neither encode.forward(…) nor"),
    (check_start, by_its_parts, "nor its parts"),
    (check_start, from_lengths(lambda i, c, _: i * c.size(1)), "differ in length"),
    (
        check_start,
        from_lengths(lambda i, _, all_: all_[i - 1].size(1) if i else 0),
        "only the length of the chunk before",
    ),
    (check_ahead, lambda d: 64 * rotation(2, 64), "64, not for 32. The shape"),
    (check_ahead, lambda d: 4096 / d * rotation(2, d), "64, not for 512."),
    (check_start, lambda encode, chunks: torch.cat(chunks, 1), "list"),
    (check_start, lambda encode, chunks: chunks, "as it went in"),
    (check_start, lambda encode, chunks: [c[:, :1] for c in chunks], "shape"),
]


test_right = right_answers(RIGHT)


test_mistake_is_named = named_mistakes(WRONG)
