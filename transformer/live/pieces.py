"""How a unigram model of SentencePiece cuts a sentence: what its file says of it."""

import base64
import struct
from collections.abc import Iterator
from typing import Any

__all__ = ["read_pieces"]

NORMAL, UNUSED, UNIGRAM = 1, 5, 1
HARMLESS = {NORMAL, 2, 3, UNUSED}  # and those that no text has: unknown, control


def read_pieces(model: bytes) -> dict[str, Any]:
    """The pieces with their scores, and the table of what is replaced before.

    Raises:
        ValueError: for another kind of model, or one that reads a text otherwise.
    """
    scores: list[tuple[str, float]] = []
    kinds = set()
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for number, value in _fields(model):
        if number == 1:
            piece = dict(_fields(value))
            kinds.add(kind := piece.get(3, NORMAL))
            if kind == NORMAL:
                (score,) = struct.unpack("<f", piece.get(2, bytes(4)))
                scores.append((piece[1].decode(), score))
        if number == 2:
            trainer = dict(_fields(value))
        if number == 3:
            normalizer = dict(_fields(value))
    usual = (
        trainer.get(3, UNIGRAM) == UNIGRAM
        and not trainer.get(24, 0)  # a space ends a word instead
        and all(normalizer.get(each, 1) for each in (3, 4, 5))
        and kinds <= HARMLESS
    )
    if not usual:
        raise ValueError(
            "of SentencePiece the page reads unigram models with its usual treatment "
            "of spaces and no pieces of one's own"
        )
    charsmap = base64.b64encode(normalizer.get(2, b"")).decode()
    return {"scores": scores, "charsmap": charsmap}


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """The numbered fields of a message of protocol buffers: whole numbers, or bytes."""
    at = 0

    def whole() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            value |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                return value

    while at < len(message):
        number, kind = divmod(whole(), 8)
        if kind == 0:
            yield number, whole()
            continue
        size = {1: 8, 5: 4}.get(kind) or whole()
        yield number, message[at : at + size]
        at += size
