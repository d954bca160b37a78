"""A language model with its tokenizer: prompts in, continued texts out.

Made from book/workshop/real-training.md: edit the chapter, not this file.
"""

import os
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from transformer.beyond.gpt2 import GPT2
from transformer.beyond.language_model import LanguageModel, PromptDecoder
from transformer.beyond.llama import Llama
from transformer.checks import require_positive
from transformer.decoding.search import sample
from transformer.text.subwords import SubwordTokenizer
from transformer.text.words import require_parts
from transformer.weights.files import model_file

__all__ = [
    "encode_text",
    "decode_text",
    "TextGenerator",
]


def encode_text(tokenizer: SubwordTokenizer, text: str) -> list[int]:
    """The ids of a text; eos stands for the end of a line."""
    ids: list[int] = []
    for line in text.split("\n"):
        ids += [*tokenizer.encode(line), tokenizer.eos_id]
    return ids[:-1]


def decode_text(tokenizer: SubwordTokenizer, ids: Sequence[int]) -> str:
    """The text of the ids: `encode_text` undone.

    White space within lines becomes single spaces, and characters that the tokenizer
    never saw are lost.
    """
    lines: list[list[int]] = [[]]
    for index in ids:
        if index == tokenizer.eos_id:
            lines.append([])
        else:
            lines[-1].append(index)
    return "\n".join(map(tokenizer.decode, lines))


class TextGenerator:
    """Text generator: a language model with its tokenizer; a prompt in, a text out.

    Raises:
        ValueError: for a model that `PromptDecoder` refuses, or a tokenizer of another
            size or one that lacks something, as those of words do.
    """

    def __init__(self, model: nn.Module, tokenizer: SubwordTokenizer) -> None:
        self.decoder = PromptDecoder(model)
        parts = "eos_id", "vocab_size", "normalize", "encode", "decode"
        require_parts(tokenizer, *parts)
        self.model: LanguageModel = self.decoder.model
        if tokenizer.vocab_size != self.model.config.vocab_size:
            raise ValueError(
                f"the model has {self.model.config.vocab_size} tokens, "
                f"but the tokenizer {tokenizer.vocab_size}"
            )
        self.tokenizer = tokenizer

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], into: LanguageModel | None = None
    ) -> "TextGenerator":
        """Read what `save` wrote: a file, or the folder of a run.

        A model with parts of one's own is loaded `into` one that has the same.

        Raises:
            ValueError: for a file without a tokenizer of ours, and for what
                `LanguageModel.load` refuses.
        """
        path = model_file(path)
        model, metadata = LanguageModel.load_with_metadata(path, GPT2, Llama, into=into)
        tokenizer = metadata.get("tokenizer")
        try:
            if tokenizer is None:
                raise ValueError("it has a model without its tokenizer")
            return cls(model, SubwordTokenizer.from_json(tokenizer))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write model and tokenizer to one file, whole or not at all."""
        self.model.save(path, {"tokenizer": self.tokenizer.to_json()})

    def generate(
        self,
        prompt: str,
        length: int = 100,
        temperature: float = 1.0,
        top_p: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> str:
        """The prompt, continued by sampling `length` tokens.

        Fewer, if the config has an `eos_id` and the model ends the text with it. A text
        that fills the model's positions goes on from the last half of them. Characters
        that no training text had are one unknown subword to the model: those of the
        prompt stay in the result, and no others come.

        Raises:
            ValueError: for a `length` below 1, a prompt without tokens, and what
                `sample` refuses.
        """
        choices = temperature, top_p, generator
        return "".join(self.stream(prompt, length, *choices, at_once=length))

    def stream(
        self,
        prompt: str,
        length: int = 100,
        temperature: float = 1.0,
        top_p: float = 1.0,
        generator: torch.Generator | None = None,
        at_once: int = 4,
    ) -> Iterator[str]:
        """The same in pieces: the prompt, then what each `at_once` tokens add to it."""
        require_positive(length=length, at_once=at_once)
        ids = encode_text(self.tokenizer, prompt)
        if not ids:
            raise ValueError("a prompt needs at least one token, got none")
        yield "\n".join(map(self.tokenizer.normalize, prompt.split("\n")))
        written = len(decode_text(self.tokenizer, ids))
        room, end, first = self.model.config.max_length, len(ids) + length, 0
        while len(ids) < end:
            if len(ids) - first > room:
                first = len(ids) - max(room // 2, 1)
            free = min(end - len(ids), room + 1 - (len(ids) - first), room, at_once)
            (found,) = sample(
                self.decoder, [ids[first:]], free, temperature, top_p, generator
            )
            ids += found
            text = decode_text(self.tokenizer, ids)
            yield text[written:]
            written = len(text)
            if len(found) < free:  # the model's eos
                return
