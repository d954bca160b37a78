"""A translator: a model with the tokenizers of both its languages.

Made from book/workshop/translator.md: edit the chapter, not this file.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import resources
from itertools import groupby
from typing import NamedTuple, overload

from torch import nn

from transformer.checks import require_beam, require_positive, require_string
from transformer.decoding.beam import beam_search, n_best
from transformer.decoding.fast import FastDecoder
from transformer.decoding.search import greedy_search, require_length
from transformer.decoding.support import unwrap
from transformer.model import Transformer, TransformerConfig
from transformer.text.subwords import SubwordTokenizer
from transformer.text.words import Tokenizer, WordTokenizer, require_parts
from transformer.weights.files import model_file

__all__ = [
    "Translation",
    "Translator",
]


_OnError = Callable[[int, ValueError], None] | None


class Translation(NamedTuple):
    """A sentence of an n-best list, with its log-probability and its score.

    One that was cut is alone in its list, and its log-probability is without eos.
    """

    text: str
    log_probability: float
    score: float


class Translator:
    """Translator: a model with its two tokenizers; sentences in, sentences out.

    The tokenizers may be one and the same. `languages` are the codes of source and
    target, such as fr and en: names, which change no translation. The model stays in
    the mode it is in. It may be trained between calls: each call packs its weights.

    Raises:
        ValueError: when a tokenizer has another size than the model's table or other
            special ids than its config, or for languages that are not two codes.
    """

    def __init__(
        self,
        model: nn.Module,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        languages: tuple[str, str] = ("source", "target"),
    ) -> None:
        self.model: Transformer = unwrap(model, "a Translator")
        _require_fitting(self.model.config, source_tokenizer, target_tokenizer)
        codes = languages if isinstance(languages, tuple | list) else ()
        if len(codes) != 2 or any(str(code).split() != [code] for code in codes):
            raise ValueError(f"languages must be two codes, got {languages!r}")
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.languages: tuple[str, str] = (codes[0], codes[1])

    def __repr__(self) -> str:
        source, target = self.languages
        tokenizers = f"{self.source_tokenizer!r}, {self.target_tokenizer!r}"
        return f"Translator({source!r} to {target!r}, {tokenizers})"

    @classmethod
    def phrasebook(cls) -> "Translator":
        """The translator that ships with this package, trained as chapter 12 does."""
        weights = resources.files("transformer") / "weights" / "phrasebook.safetensors"
        return cls.load(str(weights))

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], into: Transformer | None = None
    ) -> "Translator":
        """Read a translator that `save` wrote: a file, or the folder of a run.

        A model with parts of one's own is loaded `into` one that has the same.

        Raises:
            ValueError: for a file without tokenizers of ours, and for what
                `Transformer.load` refuses.
        """
        path = model_file(path)
        model, metadata = Transformer.load_with_metadata(path, into=into)
        joint = metadata.get("tokenizer")
        texts = [metadata.get(f"{side}_tokenizer") for side in ("source", "target")]
        try:
            if joint is not None:
                source = target = _read_tokenizer(joint)
            elif None not in texts:
                source, target = (_read_tokenizer(text or "") for text in texts)
            else:
                raise ValueError("it has a model without its tokenizers")
            first, _, second = metadata.get("languages", "").partition(" ")
            return cls(model, source, target, (first, second))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write model, tokenizers and languages to one file, whole or not at all.

        `load` cannot read a tokenizer of one's own, whose code no file holds.

        Raises:
            ValueError: for a tokenizer without `to_json`, and what `SavedModel.save`
                refuses.
        """
        self.model.save(path, self.metadata())

    def metadata(self) -> dict[str, str]:
        """What a file keeps beside the model: the languages, and the tokenizers.

        Raises:
            ValueError: for a tokenizer without `to_json`, or whose `to_json` gives no
                text.
        """
        tokenizers = {
            "source_tokenizer": self.source_tokenizer,
            "target_tokenizer": self.target_tokenizer,
        }
        if self.source_tokenizer is self.target_tokenizer:
            tokenizers = {"tokenizer": self.source_tokenizer}
        metadata = {"languages": " ".join(self.languages)}
        for name, tokenizer in tokenizers.items():
            require_parts(tokenizer, "to_json")
            text = tokenizer.to_json()
            require_string(f"what {type(tokenizer).__name__}.to_json gives", text)
            metadata[name] = text
        return metadata

    def encode(self, sentence: str) -> list[int]:
        """The token ids of a source sentence; a blank one has none.

        Raises:
            ValueError: when it is longer than the model's positions, and for what the
                tokenizer refuses, such as an unknown word.
        """
        require_string("a sentence", sentence)
        if not sentence.replace("\ufeff", "").strip():
            return []
        ids = self.source_tokenizer.encode(sentence)
        longest = self.model.config.max_length
        if len(ids) > longest:
            raise ValueError(
                f"the sentence is too long: {len(ids)} tokens, at most {longest} fit"
            )
        return ids

    @overload
    def translate(  # type: ignore[overload-overlap]  # a str holds str, too
        self,
        sentences: str,
        beam_size: int = 1,
        length_penalty: float = 0.6,
        batch_size: int = 64,
        on_error: _OnError = None,
        max_length: int | None = None,
    ) -> str: ...

    @overload
    def translate(
        self,
        sentences: Sequence[str],
        beam_size: int = 1,
        length_penalty: float = 0.6,
        batch_size: int = 64,
        on_error: _OnError = None,
        max_length: int | None = None,
    ) -> list[str]: ...

    def translate(
        self,
        sentences: str | Sequence[str],
        beam_size: int = 1,
        length_penalty: float = 0.6,
        batch_size: int = 64,
        on_error: _OnError = None,
        max_length: int | None = None,
    ) -> str | list[str]:
        """Translate a sentence, or each of several, by beam search; 1 beam is greedy.

        A blank sentence stays blank. A translation is cut after `max_length` tokens; if
        that is not given, after ten more than twice the tokens of its own source,
        these rounded up to eights, or at the model's positions.
        Batches are of similar length. With `on_error`, a sentence that cannot be
        encoded stays blank too, and its index (0 for a sentence alone) and the error
        are passed on; without, the error is raised.

        Raises:
            ValueError: for a sentence that is no text, is too long or has an unknown
                word, naming its number among several, for a `batch_size` below 1, and
                for what `beam_search` refuses of the other numbers.
        """
        self._require_options(beam_size, length_penalty, batch_size, max_length)
        sources = self._encode_all(sentences, on_error)
        translations = [""] * len(sources)
        decoder = FastDecoder(self.model)
        for indices, batch, room in self._batches(sources, batch_size, max_length):
            if beam_size == 1:
                found = greedy_search(decoder, batch, room)
            else:
                found = beam_search(decoder, batch, room, beam_size, length_penalty)
            for index, ids in zip(indices, found, strict=True):
                translations[index] = self.target_tokenizer.decode(ids)
        return translations[0] if isinstance(sentences, str) else translations

    def n_best(
        self,
        sentences: Sequence[str],
        beam_size: int = 4,
        length_penalty: float = 0.6,
        batch_size: int = 64,
        on_error: _OnError = None,
        max_length: int | None = None,
    ) -> list[list[Translation]]:
        """N-best lists: what a beam search finishes for each sentence, best first.

        At most `beam_size` of each, none of a sentence that `translate` leaves blank;
        the options are `translate`'s. A list may hold the empty translation.

        Raises:
            ValueError: for a sentence that is not in a list, and for what `translate`
                refuses.
        """
        self._require_options(beam_size, length_penalty, batch_size, max_length)
        if isinstance(sentences, str):
            raise ValueError(f"a list of sentences is expected, got {sentences!r:.60}")
        sources = self._encode_all(sentences, on_error)
        lists: list[list[Translation]] = [[] for _ in sources]
        decoder = FastDecoder(self.model)
        for indices, batch, room in self._batches(sources, batch_size, max_length):
            found = n_best(decoder, batch, room, beam_size, length_penalty)
            for index, candidates in zip(indices, found, strict=True):
                lists[index] = [
                    Translation(self.target_tokenizer.decode(ids), *judged)
                    for ids, *judged in candidates
                ]
        return lists

    def _require_options(
        self,
        beam_size: int,
        length_penalty: float,
        batch_size: int,
        max_length: int | None,
    ) -> None:
        """Refuse bad options even where there is nothing to translate."""
        require_beam(beam_size, length_penalty)
        require_positive(batch_size=batch_size)
        if max_length is not None:
            require_length(self.model.config, max_length)

    def _encode_all(
        self, sentences: str | Sequence[str], on_error: _OnError = None
    ) -> list[list[int]]:
        """The ids of each sentence; of several, an error names the one at fault."""
        if not isinstance(sentences, Iterable):
            raise TypeError(f"a sentence must be text, got {sentences!r:.60}")
        alone = isinstance(sentences, str)
        several = [sentences] if isinstance(sentences, str) else sentences
        sources: list[list[int]] = []
        for index, sentence in enumerate(several):
            try:
                sources.append(self.encode(sentence))
            except (TypeError, ValueError) as error:
                if on_error is None or isinstance(error, TypeError):
                    if alone:
                        raise
                    named = f"sentence {index + 1}: {error}"
                    error.args = (named,)
                    if str(error) != named:  # a class that prints something else
                        raise ValueError(named) from error
                    raise
                on_error(index, error)
                sources.append([])
        return sources

    def room(self, source: Sequence[int]) -> int:
        """How many tokens a translation may have: about twice those of its source.

        In steps, so that sources of similar length can share a batch; and from nothing
        but the source, so that no other sentence changes a translation.
        """
        eights = math.ceil(len(source) / 8)
        return min(self.model.config.max_length, 16 * eights + 10)

    def _batches(
        self, sources: Sequence[list[int]], batch_size: int, max_length: int | None
    ) -> Iterator[tuple[list[int], list[list[int]], int]]:
        """Batches of similar length: which sentences, their ids, and their room."""
        rooms = [max_length or self.room(source) for source in sources]
        order = [index for index, source in enumerate(sources) if source]
        order.sort(key=lambda index: len(sources[index]))
        for room, group in groupby(order, lambda index: rooms[index]):
            indices = list(group)
            for start in range(0, len(indices), batch_size):
                chosen = indices[start : start + batch_size]
                yield chosen, [sources[index] for index in chosen], room


_IDS = ("pad_id", "bos_id", "eos_id")


def _require_fitting(
    config: TransformerConfig, source: Tokenizer, target: Tokenizer
) -> None:
    """Refuse tokenizers that lack something or have other ids than the model."""
    for tokenizer in (source, target):
        require_parts(tokenizer, *_IDS, "vocab_size", "encode", "decode")
    sizes = config.source_vocab_size, config.target_vocab_size
    found = source.vocab_size, target.vocab_size
    if found != sizes:
        raise ValueError(
            f"the model has tables of {sizes[0]} and {sizes[1]} ids, "
            f"but the tokenizers have {found[0]} and {found[1]}"
        )
    for tokenizer in (source, target):
        for name in _IDS:
            expected, got = getattr(config, name), getattr(tokenizer, name)
            if got != expected:
                raise ValueError(
                    f"{name} is {expected} in the model's config, "
                    f"but {got} in the tokenizer"
                )


def _read_tokenizer(text: str) -> Tokenizer:
    """The tokenizer that a file describes."""
    try:
        kind = json.loads(text)["kind"]
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"not the description of a tokenizer: {error!r:.80}") from None
    if kind == "words":
        return WordTokenizer.from_json(text)
    if kind == "subwords":
        return SubwordTokenizer.from_json(text)
    raise ValueError(
        f"a tokenizer of kind words or subwords was expected, got {kind!r:.40}"
    )
