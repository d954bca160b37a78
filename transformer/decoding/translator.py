"""A translator: a model with the tokenizers of both its languages.

Made from book/workshop/translator.md: edit the chapter, not this file.
"""

import json
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, overload

from torch import nn

from transformer.checks import (
    InvalidType,
    InvalidValue,
    require_above_zero,
    require_beam,
    require_positive,
    require_string,
)
from transformer.decoding.beam import beam_search, n_best
from transformer.decoding.fast import FastDecoder
from transformer.decoding.search import greedy_search, require_length
from transformer.decoding.support import unwrap
from transformer.model import Transformer, TransformerConfig
from transformer.pretrained.marian import Marian, MarianTokenizer, read_marian
from transformer.text.batches import Example
from transformer.text.subwords import UNKNOWN_ID, SubwordTokenizer
from transformer.text.words import Tokenizer, WordTokenizer, require_parts
from transformer.weights.files import model_file

__all__ = [
    "Translation",
    "Translator",
    "length_ratio_of",
]


_OnError = Callable[[int, ValueError], None] | None
_OnCut = Callable[[int], None] | None
_OnUnknown = Callable[[int, list[str]], None] | None

_LENGTH_RATIO = 2.0  # tokens of a translation for each of its source's
_MORE = 10  # tokens that any translation may have besides, however short its source


class Translation(NamedTuple):
    """A sentence of an n-best list, with its log-probability and its score.

    One that was cut is not complete: it is alone in its list, and its log-probability
    is without eos.
    """

    text: str
    log_probability: float
    score: float
    is_complete: bool


class Translator:
    """Translator: a model with its two tokenizers; sentences in, sentences out.

    The tokenizers may be one and the same. `languages` are the codes of source and
    target, such as fr and en: names, which change no translation. A translation has at
    most `length_ratio` tokens for each token of its source, which are counted in full
    eights, and ten more; `max_length` of `translate` sets another limit. The model
    stays in the mode it is in. It may be trained between calls: each call packs its
    weights.

    Raises:
        ValueError: when a tokenizer has another size than the model's table or other
            special ids than its config, for languages that are not two codes, or a
            `length_ratio` that is not above 0.
    """

    def __init__(
        self,
        model: nn.Module,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        languages: tuple[str, str] = ("source", "target"),
        length_ratio: float = _LENGTH_RATIO,
    ) -> None:
        self.model: Transformer = unwrap(model, "a Translator")
        _require_fitting(self.model.config, source_tokenizer, target_tokenizer)
        codes = languages if isinstance(languages, tuple | list) else ()
        if len(codes) != 2 or any(str(code).split() != [code] for code in codes):
            raise InvalidValue(f"languages must be two codes, got {languages!r}")
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.languages: tuple[str, str] = (codes[0], codes[1])
        require_above_zero(length_ratio=length_ratio)
        self.length_ratio = length_ratio

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

        A folder with a config.json is read as one of MarianMT: see `read_marian`. A
        model with parts of one's own is loaded `into` one that has the same.

        Raises:
            ValueError: for a file without tokenizers of ours, and for what
                `Transformer.load` and `read_marian` refuse.
        """
        if (Path(path) / "config.json").is_file() and into is None:
            return cls(*read_marian(Path(path)))
        path = model_file(path)
        model, metadata = Transformer.load_with_metadata(path, Marian, into=into)
        joint = metadata.get("tokenizer")
        texts = [metadata.get(f"{side}_tokenizer") for side in ("source", "target")]
        try:
            if joint is not None:
                source = target = _read_tokenizer(joint)
            elif None not in texts:
                source, target = (_read_tokenizer(text or "") for text in texts)
            else:
                raise InvalidValue("it has a model without its tokenizers")
            first, _, second = metadata.get("languages", "").partition(" ")
            ratio = float(metadata.get("length_ratio", _LENGTH_RATIO))
            return cls(model, source, target, (first, second), ratio)
        except ValueError as error:
            raise InvalidValue(f"{path}: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write model, tokenizers and the rest to one file, whole or not at all.

        `load` cannot read a tokenizer of one's own, whose code no file holds.

        Raises:
            ValueError: for a tokenizer without `to_json`, and what `SavedModel.save`
                refuses.
        """
        self.model.save(path, self.metadata())

    def metadata(self) -> dict[str, str]:
        """What a file keeps beside the model: languages, length ratio and tokenizers.

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
        if self.length_ratio != _LENGTH_RATIO:
            metadata["length_ratio"] = str(self.length_ratio)
        for name, tokenizer in tokenizers.items():
            require_parts(tokenizer, "to_json")
            text = tokenizer.to_json()
            require_string(f"what {type(tokenizer).__name__}.to_json gives", text)
            metadata[name] = text
        return metadata

    def encode(self, sentence: str) -> list[int]:
        """The token ids of a source sentence; a blank one has none.

        Raises:
            TypeError: for a sentence that is no text.
            ValueError: when it is longer than the model's positions, and for what the
                tokenizer refuses, such as an unknown word.
        """
        require_string("a sentence", sentence)
        if not sentence.replace("\ufeff", "").strip():
            return []
        ids = self.source_tokenizer.encode(sentence)
        longest = self.model.config.max_length
        if len(ids) > longest:
            raise InvalidValue(
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
        on_cut: _OnCut = None,
        on_unknown: _OnUnknown = None,
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
        on_cut: _OnCut = None,
        on_unknown: _OnUnknown = None,
    ) -> list[str]: ...

    def translate(
        self,
        sentences: str | Sequence[str],
        beam_size: int = 1,
        length_penalty: float = 0.6,
        batch_size: int = 64,
        on_error: _OnError = None,
        max_length: int | None = None,
        on_cut: _OnCut = None,
        on_unknown: _OnUnknown = None,
    ) -> str | list[str]:
        """Translate a sentence, or each of several, by beam search; 1 beam is greedy.

        A blank sentence stays blank. Batches are of similar length. Without
        `max_length`, a translation is cut after `max_length_for` its source.

        What goes wrong with a sentence is passed on with its index, 0 for a sentence
        alone. `on_error` is given the error of one that cannot be encoded, which then
        stays blank; without it the error is raised. `on_cut` is told of each that was
        cut before its end, and `on_unknown` of the characters that the tokenizer does
        not know; without these, a warning counts the sentences.

        Raises:
            TypeError: for a sentence that is no text.
            ValueError: for one that is too long or has an unknown word, naming its
                number among several, for a `batch_size` below 1, and for what
                `beam_search` refuses of the other numbers.
        """
        self._require_options(beam_size, length_penalty, batch_size, max_length)
        sources = self._encode_all(sentences, on_error, on_unknown)
        translations, cut = [""] * len(sources), []
        decoder = FastDecoder(self.model)
        for indices, batch, longest in self._batches(sources, batch_size, max_length):
            if beam_size == 1:
                found = greedy_search(decoder, batch, longest)
            else:
                found = beam_search(decoder, batch, longest, beam_size, length_penalty)
            for index, ids in zip(indices, found, strict=True):
                translations[index] = self.target_tokenizer.decode(ids)
                if len(ids) == longest:  # one that ended has room for its eos
                    cut.append(index)
        _report_cut(cut, len(sources), on_cut)
        return translations[0] if isinstance(sentences, str) else translations

    @overload
    def n_best(  # type: ignore[overload-overlap]
        self,
        sentences: str,
        beam_size: int = 4,
        length_penalty: float = 0.6,
        batch_size: int = 64,
        on_error: _OnError = None,
        max_length: int | None = None,
        on_cut: _OnCut = None,
        on_unknown: _OnUnknown = None,
    ) -> list[Translation]: ...

    @overload
    def n_best(
        self,
        sentences: Sequence[str],
        beam_size: int = 4,
        length_penalty: float = 0.6,
        batch_size: int = 64,
        on_error: _OnError = None,
        max_length: int | None = None,
        on_cut: _OnCut = None,
        on_unknown: _OnUnknown = None,
    ) -> list[list[Translation]]: ...

    def n_best(
        self,
        sentences: str | Sequence[str],
        beam_size: int = 4,
        length_penalty: float = 0.6,
        batch_size: int = 64,
        on_error: _OnError = None,
        max_length: int | None = None,
        on_cut: _OnCut = None,
        on_unknown: _OnUnknown = None,
    ) -> list[Translation] | list[list[Translation]]:
        """N-best lists: what a beam search finishes for a sentence, best first.

        Several sentences have a list each. There are at most `beam_size` in a list, and
        none for a sentence that `translate` leaves blank; the options are those of
        `translate`. A list may hold the empty translation.

        Raises:
            ValueError: for what `translate` refuses.
        """
        self._require_options(beam_size, length_penalty, batch_size, max_length)
        sources = self._encode_all(sentences, on_error, on_unknown)
        lists: list[list[Translation]] = [[] for _ in sources]
        decoder = FastDecoder(self.model)
        for indices, batch, longest in self._batches(sources, batch_size, max_length):
            found = n_best(decoder, batch, longest, beam_size, length_penalty)
            for index, candidates in zip(indices, found, strict=True):
                lists[index] = [
                    Translation(
                        self.target_tokenizer.decode(each.ids),
                        each.log_probability,
                        each.score,
                        is_complete=len(each.ids) < longest,
                    )
                    for each in candidates
                ]
        cut = [
            index
            for index, found in enumerate(lists)
            if not all(each.is_complete for each in found)
        ]
        _report_cut(cut, len(lists), on_cut)
        return lists[0] if isinstance(sentences, str) else lists

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
        self,
        sentences: str | Sequence[str],
        on_error: _OnError,
        on_unknown: _OnUnknown,
    ) -> list[list[int]]:
        """The ids of each sentence; of several, an error names the one at fault."""
        if not isinstance(sentences, Iterable):
            raise InvalidType(f"a sentence must be text, got {sentences!r:.60}")
        alone = isinstance(sentences, str)
        several = [sentences] if isinstance(sentences, str) else sentences
        sources: list[list[int]] = []
        unknown: dict[int, list[str]] = {}
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
                        raise InvalidValue(named) from error
                    raise
                on_error(index, error)
                sources.append([])
            if characters := self._unknown_characters(sentence, sources[-1]):
                unknown[index] = characters
        _report_unknown(unknown, on_unknown)
        return sources

    def _unknown_characters(self, sentence: str, ids: Sequence[int]) -> list[str]:
        tokenizer = self.source_tokenizer
        if isinstance(tokenizer, SubwordTokenizer) and UNKNOWN_ID in ids:
            return tokenizer.unknown_characters(sentence)
        return []

    def max_length_for(self, source: Sequence[int]) -> int:
        """How many tokens the translation of a source may have.

        In steps, so that sources of similar length can share a batch; and from nothing
        but the source, so that no other sentence changes a translation.
        """
        eights = math.ceil(len(source) / 8)
        longest = math.ceil(8 * eights * self.length_ratio) + _MORE
        return min(self.model.config.max_length, longest)

    def _batches(
        self, sources: Sequence[list[int]], batch_size: int, max_length: int | None
    ) -> Iterator[tuple[list[int], list[list[int]], int]]:
        """Batches of similar length: which sentences, their ids, and their limit."""
        limits = [max_length or self.max_length_for(source) for source in sources]
        order = [index for index, source in enumerate(sources) if source]
        order.sort(key=lambda index: len(sources[index]))
        for limit, group in groupby(order, lambda index: limits[index]):
            indices = list(group)
            for start in range(0, len(indices), batch_size):
                chosen = indices[start : start + batch_size]
                yield chosen, [sources[index] for index in chosen], limit


def length_ratio_of(examples: Iterable[Example]) -> float:
    """The `length_ratio` of a Translator that could write each of these targets.

    It is never below 2.
    """
    ratios = (
        (len(target) + 1 - _MORE) / len(source)
        for source, target in examples
        if len(source)  # an array of ids is neither true nor false
    )
    return max([_LENGTH_RATIO, *ratios])


def _report_cut(cut: list[int], count: int, on_cut: _OnCut) -> None:
    """Pass on which translations were cut, or warn how many."""
    if on_cut is not None:
        for index in sorted(cut):
            on_cut(index)
    elif cut:
        warnings.warn(
            f"{len(cut)} of {count} translations reached no end and were cut: "
            "max_length lets them become longer",
            stacklevel=3,
        )


def _report_unknown(unknown: dict[int, list[str]], on_unknown: _OnUnknown) -> None:
    """Pass on which sentences have unknown characters, or warn how many have which."""
    if on_unknown is not None:
        for index, characters in unknown.items():
            on_unknown(index, characters)
    elif unknown:
        every = [each for characters in unknown.values() for each in characters]
        names = [*dict.fromkeys(every)]
        listed = ", ".join(names[:5]) + ", …" * (len(names) > 5)
        warnings.warn(
            "characters that no training sentence had, read as unknown ones, in "
            f"{len(unknown)} sentence{'s' * (len(unknown) > 1)}: {listed}",
            stacklevel=4,
        )


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
        raise InvalidValue(
            f"the model has tables of {sizes[0]} and {sizes[1]} ids, "
            f"but the tokenizers have {found[0]} and {found[1]}"
        )
    for tokenizer in (source, target):
        for name in _IDS:
            expected, got = getattr(config, name), getattr(tokenizer, name)
            if got != expected:
                raise InvalidValue(
                    f"{name} is {expected} in the model's config, "
                    f"but {got} in the tokenizer"
                )


def _read_tokenizer(text: str) -> Tokenizer:
    """The tokenizer that a file describes."""
    try:
        kind = json.loads(text)["kind"]
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        reason = f"not the description of a tokenizer: {error!r:.80}"
        raise InvalidValue(reason) from None
    if kind == "words":
        return WordTokenizer.from_json(text)
    if kind == "subwords":
        return SubwordTokenizer.from_json(text)
    if kind == "marian":
        return MarianTokenizer.from_json(text)
    raise InvalidValue(
        f"a tokenizer of kind marian, words or subwords was expected, got {kind!r:.40}"
    )
