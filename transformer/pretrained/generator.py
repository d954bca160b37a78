"""Text from pretrained language models, in the files that they come in.

Made from book/19-since-2017.md: edit the chapter, not this file.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from transformer.beyond.language_model import LanguageModel, PromptDecoder
from transformer.checks import optional_import, require_positive
from transformer.decoding.search import sample
from transformer.pretrained.config import read_config
from transformer.pretrained.gpt2 import from_gpt2
from transformer.pretrained.llama import from_llama
from transformer.pretrained.llama2c import Llama2cTokenizer, from_llama2c

__all__ = [
    "read_weights",
    "LibraryTokenizer",
    "PretrainedGenerator",
]


def _require_file(path: Path) -> Path:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    return path


_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def read_weights(folder: Path) -> Mapping[str, Tensor]:
    """The tensors of a folder by name, from one file or from its shards.

    Those of model.safetensors are read where they are, else those of pytorch_model.bin.
    Of a .bin, tensors alone are taken: no code runs.

    Raises:
        FileNotFoundError: naming the first file that is missing.
        ValueError: for a file that is cut off, or an index that names no shards.
    """
    found = [
        name
        for name in _WEIGHTS
        if any((folder / each).is_file() for each in (name, f"{name}.index.json"))
    ]
    name = next(iter(found), _WEIGHTS[0])
    names, index = [name], folder / f"{name}.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
            inside = all(Path(name).name == name for name in names)
        except (AttributeError, KeyError, TypeError, ValueError):
            inside = False
        if not inside:
            raise ValueError(f"{index} does not name the files of its folder")
    read = _read_safetensors if name == _WEIGHTS[0] else _read_bin
    state: dict[str, Tensor] = {}
    for each in names:
        state |= read(_require_file(folder / each))
    return state


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from None


def _read_bin(path: Path) -> Mapping[str, Tensor]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (EOFError, OSError, RuntimeError, ValueError, UnpicklingError):
        more = "or holds more than weights"
        raise ValueError(f"{path} is not a whole file of weights, {more}") from None
    if not isinstance(state, Mapping):
        raise ValueError(f"{path} holds {type(state).__name__}, no weights by name")
    return state


class LibraryTokenizer:
    """The tokenizer.json of a model of the library transformers.

    It adds the special tokens that the file says, such as one at the beginning.

    Raises:
        FileNotFoundError: for a path without a file.
        ImportError: if the package tokenizers is not installed.
        ValueError: for a file that it cannot read, or more tokens than `vocab_size`.
    """

    def __init__(self, path: Path, vocab_size: int) -> None:
        library = optional_import("tokenizers")
        text = _require_file(path).read_text(encoding="utf-8")
        try:
            self._tokenizer = library.Tokenizer.from_str(text)
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"{path} is not a tokenizer: {error}") from None
        found = self._tokenizer.get_vocab_size()
        if found > vocab_size:
            raise ValueError(f"{path} has {found} tokens, the model {vocab_size}")

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        return list(self._tokenizer.encode(text).ids)

    def decode(self, ids: list[int]) -> str:
        """The text of the ids, without special tokens."""
        return str(self._tokenizer.decode(ids))


class _Continued:
    """A decoder that goes on where it stopped, for searches of one token each.

    It keeps the keys and values of the first search, with room for `length` tokens.
    """

    def __init__(self, decoder: PromptDecoder, length: int) -> None:
        self.model, self._decoder, self._length = decoder.model, decoder, length
        self._state: Any = None
        self._last: Any = None

    def prefill(self, source_ids: Tensor, *_: int) -> "_Continued":
        """Read the prompt, the first time; later its last token is the new one."""
        if self._state is None:
            self._state = self._decoder.prefill(source_ids, self._length)
        self._last = source_ids[:, -1]
        return self

    def step(self, _: Tensor) -> Tensor:
        """The logits after the last token."""
        return cast("Tensor", self._state.step(self._last))

    def reorder(self, rows: Tensor) -> None:
        """One row alone has no other order."""


class PretrainedGenerator:
    """Text generator from pretrained weights: a prompt in, the continued text out."""

    def __init__(
        self, model: LanguageModel, tokenizer: LibraryTokenizer | Llama2cTokenizer
    ) -> None:
        self.decoder = PromptDecoder(model)
        self.model: LanguageModel = self.decoder.model
        self.tokenizer = tokenizer

    @classmethod
    def reads(cls, path: str | os.PathLike[str]) -> bool:
        """Whether this is a file such as llama2.c's, or a folder such as GPT-2's.

        That has a config.json and a tokenizer.json, or one of them: `load` names what
        is missing. A folder of MarianMT has a config.json, but is a translator's.
        """
        path = Path(path)
        names = "config.json", "tokenizer.json"
        if not any((path / name).is_file() for name in names):
            return path.suffix == ".bin"
        try:
            read_config(path, "marian")
        except (OSError, ValueError):
            return True
        return False

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "PretrainedGenerator":
        """Read the folder of a GPT-2 or a Llama, or a file of llama2.c.

        The folder holds config.json, model.safetensors or pytorch_model.bin (or shards
        with their index) and tokenizer.json. The tokenizer of llama2.c is looked for in
        the folder of the model, as tok512.bin (with the size of the vocabulary) or
        tokenizer.bin.

        Raises:
            FileNotFoundError: naming the first file that is missing.
            ImportError: if a folder's tokenizer needs a package that is missing.
            ValueError: naming what is damaged, does not fit, or is asked for by the
                config and not what our classes do.
        """
        path = Path(path)
        if not path.is_dir():
            llama = from_llama2c(path)
            size = llama.config.vocab_size
            beside = path.with_name("tokenizer.bin")
            if not beside.is_file():
                beside = path.with_name(f"tok{size}.bin")
            return cls(llama, Llama2cTokenizer.load(beside, size))
        config = read_config(path, "gpt2", "llama")
        make: Any = from_gpt2 if config["model_type"] == "gpt2" else from_llama
        model = make(read_weights(path), config)
        size = model.config.vocab_size
        return cls(model, LibraryTokenizer(path / "tokenizer.json", size))

    def generate(
        self,
        prompt: str,
        length: int = 100,
        temperature: float = 1.0,
        top_p: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> str:
        """The prompt, continued by sampling `length` tokens.

        The text ends earlier if the model ends it, or fills its positions.

        Raises:
            ValueError: for a `length` below 1, a prompt without tokens or longer than
                the positions, and what `sample` refuses.
        """
        ids, length = self._encode(prompt, length)
        (new,) = sample(self.decoder, [ids], length, temperature, top_p, generator)
        return self.tokenizer.decode([*ids, *new])

    def stream(
        self,
        prompt: str,
        length: int = 100,
        temperature: float = 1.0,
        top_p: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Iterator[str]:
        """The same in pieces: the prompt, then what each token adds to it.

        A token that is a part of a character waits for the rest of it.
        """
        ids, length = self._encode(prompt, length)
        decoder, text = _Continued(self.decoder, length), self.tokenizer.decode(ids)
        yield text
        for left in reversed(range(length)):
            (new,) = sample(decoder, [ids], 1, temperature, top_p, generator)
            ids = [*ids, *new]
            longer = self.tokenizer.decode(ids)
            if not left or not new or not longer.endswith("\ufffd"):
                yield longer[len(text) :]
                text = longer
            if not new:  # the model's eos
                return

    def _encode(self, prompt: str, length: int) -> tuple[list[int], int]:
        """The ids of a prompt, and how many of `length` more the positions leave."""
        require_positive(length=length)
        ids, room = self.tokenizer.encode(prompt), self.model.config.max_length
        if not ids:
            raise ValueError("a prompt needs at least one token, got none")
        if len(ids) > room:
            raise ValueError(
                f"the model has {room} positions, the prompt needs {len(ids)}"
            )
        return ids, min(length, room + 1 - len(ids))
