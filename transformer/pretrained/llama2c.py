"""Llamas in the files of llama2.c: weights and tokenizer as plain numbers on disk.

Made from book/19-since-2017.md: edit the chapter, not this file.
"""

import math
import os
import struct
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from transformer.beyond.llama import Llama, LlamaConfig
from transformer.weights.state import load_strictly, shapes_only

__all__ = [
    "from_llama2c",
    "Llama2cTokenizer",
]


_HEADER = struct.Struct("<7i")
_NEWER = 0x616B3432  # "ak42": how the later versions of such a file begin
_BY_LAYER = (
    "residuals.0.norm",
    "self_attention.query_proj",
    "self_attention.key_proj",
    "self_attention.value_proj",
    "self_attention.output_proj",
    "residuals.1.norm",
    "feed_forward.gate",
    "feed_forward.contract",
    "feed_forward.expand",
)


def from_llama2c(path: str | os.PathLike[str]) -> Llama:
    """Make a Llama from a file of Karpathy's llama2.c, such as stories260K.bin.

    The file begins with seven whole numbers of four bytes: width, d_ff, layers, heads,
    KV heads, vocabulary (below 0 if the output has a table of its own) and positions.
    After them come the weights in float32, each kind for all layers. A story begins and
    ends with id 1. The model is in evaluation mode.

    Raises:
        FileNotFoundError: for a path without a file.
        ValueError: for a file that is cut off or too long, a newer version of the
            format, or something else altogether.
    """
    path = Path(path)
    config = _read_header(path)
    width, layers = config.d_model, config.num_layers
    sets = (config.num_kv_heads or config.num_heads) * width // config.num_heads
    hidden, table = config.d_ff, (config.vocab_size, width)
    shapes = (
        (layers, width),
        (layers, width, width),
        (layers, sets, width),
        (layers, sets, width),
        (layers, width, width),
        (layers, width),
        (layers, hidden, width),
        (layers, width, hidden),
        (layers, hidden, width),
    )
    layout = {"embedding": table, **dict(zip(_BY_LAYER, shapes, strict=True))}
    layout["encoder.norm"] = (width,)
    # The cosines and sines of the rotation, which our class computes.
    layout["rotation"] = (config.max_length, width // config.num_heads)
    if not config.tie_embeddings:
        layout["output"] = table
    needed = _HEADER.size + 4 * sum(map(math.prod, layout.values()))
    found = path.stat().st_size
    if found != needed:
        raise ValueError(f"{path} has {found} bytes, but its header says {needed}")
    numbers = torch.from_file(str(path), size=needed // 4, dtype=torch.float32)
    weights: dict[str, Tensor] = {}
    start = _HEADER.size // 4
    for name, shape in layout.items():
        size = math.prod(shape)
        tensor = numbers[start : start + size].view(shape)
        start += size
        if name in _BY_LAYER:
            for layer, part in enumerate(tensor):
                if name.endswith(("query_proj", "key_proj")):
                    part = _halves(part, width // config.num_heads)
                weights[f"encoder.layers.{layer}.{name}.weight"] = part.clone()
        else:
            weights[f"{name}.weight"] = tensor.clone()
    del weights["rotation.weight"]
    weights.setdefault("output.weight", weights["embedding.weight"])
    with shapes_only():
        model = Llama(config)
    load_strictly(model, weights)
    return model.eval()


def _read_header(path: Path) -> LlamaConfig:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    with path.open("rb") as file:
        start = file.read(_HEADER.size)
    fields = _HEADER.unpack(start.ljust(_HEADER.size, b"\0"))
    if fields[0] == _NEWER:
        raise ValueError(f"{path} is of a later version: export it with version 0")
    width, hidden, layers, heads, sets, vocabulary, positions = fields
    try:
        return LlamaConfig(
            vocab_size=abs(vocabulary),
            d_model=width,
            num_heads=heads,
            num_layers=layers,
            d_ff=hidden,
            max_length=positions,
            eos_id=1,
            num_kv_heads=sets,
            norm_eps=1e-5,
            tie_embeddings=vocabulary > 0,
        )
    except ValueError as error:
        raise ValueError(f"{path} is not a model of llama2.c: {error}") from None


def _halves(rows: Tensor, d_k: int) -> Tensor:
    """Rows for a rotation of halves, of rows for one of neighbours.

    llama2.c turns columns 2i and 2i + 1 of a head together, as the article does. Our
    `RotaryEmbedding` turns columns i and i + d_k / 2. Moving the rows that make them
    changes no score.
    """
    return rows.unflatten(0, (-1, d_k // 2, 2)).transpose(1, 2).flatten(0, 2)


class Llama2cTokenizer:
    """The tokenizer of llama2.c: of neighbours that are a token, the best are merged.

    `pieces` has the bytes of each id and `scores` how early it is merged. A character
    without a piece of its own becomes its bytes, so that every text can be written.
    """

    bos_id = eos_id = 1

    def __init__(self, pieces: Sequence[bytes], scores: Sequence[float]) -> None:
        self.pieces, self.scores = list(pieces), list(scores)
        self.vocab_size = len(self.pieces)
        self._ids = {piece: index for index, piece in enumerate(self.pieces)}

    @classmethod
    def load(cls, path: str | os.PathLike[str], vocab_size: int) -> "Llama2cTokenizer":
        """Read a file such as tok512.bin; only the model knows the vocabulary's size.

        After the length of the longest piece come, for each id, its score, its length
        and its bytes.

        Raises:
            FileNotFoundError: for a path without a file.
            ValueError: for a file that has not exactly so many pieces.
        """
        if not Path(path).is_file():
            raise FileNotFoundError(f"there is no file {path}")
        content, place = Path(path).read_bytes(), 4
        pieces, scores = list[bytes](), list[float]()
        while place < len(content) and len(pieces) <= vocab_size:
            if place + 8 > len(content):
                break
            score, length = struct.unpack_from("<fi", content, place)
            piece = content[place + 8 : place + 8 + max(length, 0)]
            place += 8 + length
            if length < 0 or len(piece) < length:
                break
            scores.append(score)
            pieces.append(piece)
        if len(pieces) != vocab_size or place != len(content):
            raise ValueError(f"{path} is not a tokenizer of {vocab_size} pieces")
        return cls(pieces, scores)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, after the id with which every story begins."""
        ids = list[int]()
        for character in f" {text}" if text else "":
            piece = character.encode()
            whole = self._ids.get(piece)
            ids += [3 + byte for byte in piece] if whole is None else [whole]
        while merged := self._best_merge(ids):
            place, index = merged
            ids[place : place + 2] = [index]
        return [self.bos_id, *ids]

    def _best_merge(self, ids: Sequence[int]) -> tuple[int, int] | None:
        """Where two neighbours make the token of the best score, and its id."""
        found = [
            (place, self._ids[piece])
            for place, (left, right) in enumerate(pairwise(ids))
            if (piece := self.pieces[left] + self.pieces[right]) in self._ids
        ]
        return max(found, key=lambda each: self.scores[each[1]], default=None)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids; bytes that make no character become a question mark."""
        text = b"".join(map(self._bytes, ids)).decode(errors="replace")
        return text.removeprefix(" ")

    def _bytes(self, index: int) -> bytes:
        if index == self.bos_id:
            return b""
        piece = self.pieces[index]
        byte = piece.startswith(b"<0x") and len(piece) == 6
        return bytes.fromhex(piece[3:5].decode()) if byte else piece
