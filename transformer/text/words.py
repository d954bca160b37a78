"""Tokenization into words, and the vocabulary that numbers them.

Made from book/11-data.md: edit the chapter, not this file.
"""

import difflib
import json
import re
import unicodedata
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from transformer.checks import InvalidValue, require_string

__all__ = [
    "PAD_ID",
    "BOS_ID",
    "EOS_ID",
    "SPECIAL_SYMBOLS",
    "tokenize",
    "detokenize",
    "UnknownWordError",
    "Vocabulary",
    "Tokenizer",
    "require_parts",
    "WordTokenizer",
]


def tokenize(sentence: str) -> list[str]:
    """Tokenize: words and punctuation; what is elided is a word of its own: l' Afrique.

    Composed and decomposed accents, straight and curly apostrophes, and all kinds of
    white space are treated alike; a byte order mark is dropped, and so is a full stop
    at the end.

    Raises:
        ValueError: for what is no text, has no words, or has a control character.
    """
    require_string("a sentence", sentence)
    for character in sentence:
        if unicodedata.category(character) in ("Cc", "Cs") and not character.isspace():
            raise InvalidValue(f"a sentence has the control character {character!r}")
    text = (
        unicodedata.normalize("NFC", sentence).replace("’", "'").replace("\ufeff", "")
    )
    words = re.findall(r"[^\s',.!?;:]+'?|\S", text)
    if words and words[-1] == ".":
        words.pop()
    if not words:
        raise InvalidValue("a sentence needs at least one word, got none")
    return words


def detokenize(words: Iterable[str]) -> str:
    """Join words to a sentence: no gap at ' and before a comma; a capital first."""
    text = " ".join(words).replace("' ", "'").replace(" ,", ",")
    return text[:1].upper() + text[1:]


PAD_ID = 0
BOS_ID = 1
EOS_ID = 2
SPECIAL_SYMBOLS = ("<pad>", "<bos>", "<eos>")


class UnknownWordError(InvalidValue):
    """A word that a vocabulary does not have.

    `word` is that word, `suggestions` are words of the vocabulary that resemble it.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Copied whole, as from a process to another that asked for the word."""
        return ValueError.__new__, (type(self), *self.args), vars(self)

    def __init__(self, word: str, vocabulary: "Vocabulary") -> None:
        self.word = word
        self.suggestions: list[str] = []
        if len(word) <= 40:  # comparing takes the product of the lengths
            alike: dict[str, list[str]] = {}  # whatever their capitals
            for known in vocabulary:
                alike.setdefault(known.casefold(), []).append(known)
            found = difflib.get_close_matches(word.casefold(), alike, cutoff=0.6)
            self.suggestions = [known for folded in found for known in alike[folded]]
        similar = " or ".join(self.suggestions)
        hint = f" (did you mean {similar}?)" if similar else ""
        listed = f": {', '.join(vocabulary)}" if len(vocabulary) < 10 else ""
        super().__init__(
            f"unknown word {word[:40]!r}{hint}; "
            f"the vocabulary has {len(vocabulary)} words{listed}"
        )


class Vocabulary:
    """Vocabulary: a numbered list of words. Ids 0, 1 and 2 are padding, bos and eos.

    `len`, `in` and iteration concern the words; `size` counts the special symbols too,
    and is what a model's embedding table needs.

    Raises:
        ValueError: for no words, an empty word, one with a space, a special symbol
            such as <pad>, or a word that comes twice.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self._words = tuple(words)
        if not self._words:
            raise InvalidValue("a vocabulary needs at least one word, got none")
        self._ids: dict[str, int] = {}
        for word in self._words:
            if not isinstance(word, str) or word.split() != [word]:
                raise InvalidValue(
                    f"a word must be letters without spaces, got {word!r}"
                )
            if word in SPECIAL_SYMBOLS:
                raise InvalidValue(f"{word!r} is a special symbol and may be no word")
            if word in self._ids:
                raise InvalidValue(f"each word may come once, got {word!r} again")
            self._ids[word] = len(SPECIAL_SYMBOLS) + len(self._ids)

    def __len__(self) -> int:
        return len(self._words)

    def __iter__(self) -> Iterator[str]:
        return iter(self._words)

    def __contains__(self, word: object) -> bool:
        return word in self._ids

    @property
    def size(self) -> int:
        """How many ids there are: the words and the special symbols."""
        return len(SPECIAL_SYMBOLS) + len(self._words)

    def encode(self, words: Iterable[str]) -> list[int]:
        """The id of each word.

        Raises:
            UnknownWordError: (a ValueError) for the first word that it does not have.
        """
        ids = []
        for word in words:
            if word not in self._ids:
                raise UnknownWordError(word, self)
            ids.append(self._ids[word])
        return ids

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The word of each id; special symbols are left out.

        Raises:
            ValueError: for an id that no word has.
        """
        ids = list(ids)
        for index in ids:
            if not 0 <= index < self.size:
                raise InvalidValue(f"ids must lie in 0..{self.size - 1}, got {index}")
        first = len(SPECIAL_SYMBOLS)
        return [self._words[index - first] for index in ids if index >= first]


@runtime_checkable
class Tokenizer(Protocol):
    """Whatever turns sentences into token ids and back: words, subwords, or your own.

    `encode` adds no special ids and `decode` leaves them out. `vocab_size` counts them,
    and `pad_id`, `bos_id` and `eos_id` must be those of the model's config. A class
    that names `Tokenizer` as its base has the usual ones.
    """

    pad_id: int = PAD_ID
    bos_id: int = BOS_ID
    eos_id: int = EOS_ID

    @property
    def vocab_size(self) -> int:
        """How many ids there are, special ones included."""
        ...

    def encode(self, sentence: str) -> list[int]:
        """The ids of a sentence."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The sentence of the ids."""
        ...

    def to_json(self) -> str:
        """All that fixes this tokenizer, as text."""
        ...


def require_parts(tokenizer: object, *names: str) -> None:
    """Refuse a tokenizer that lacks something.

    Raises:
        ValueError: naming what it needs and what it lacks.
    """
    for name in names:
        if not hasattr(tokenizer, name):
            needed = ", ".join(f"`{each}`" for each in names)
            kind = type(tokenizer).__name__
            raise InvalidValue(f"the tokenizer needs {needed}, {kind} lacks `{name}`")


class WordTokenizer(Tokenizer):
    """A tokenizer whose tokens are the words of a vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    def __repr__(self) -> str:
        return f"WordTokenizer({len(self.vocabulary)} words)"

    @property
    def vocab_size(self) -> int:
        """How many ids there are: the words and the special symbols."""
        return self.vocabulary.size

    def encode(self, sentence: str) -> list[int]:
        """The id of each word; the first may have a capital.

        Raises:
            ValueError: for what `tokenize` refuses, or a word that is not known (then
                it is an `UnknownWordError`).
        """
        words = tokenize(sentence)
        return self.vocabulary.encode(_lower_first(words, self.vocabulary))

    def decode(self, ids: Sequence[int]) -> str:
        """The sentence that the words make; special symbols are left out."""
        return detokenize(self.vocabulary.decode(ids))

    def to_json(self) -> str:
        """The words in the order of their ids."""
        return json.dumps(
            {"kind": "words", "words": list(self.vocabulary)}, ensure_ascii=False
        )

    @classmethod
    def from_json(cls, text: str) -> "WordTokenizer":
        """The tokenizer that `to_json` described.

        Raises:
            ValueError: for text that `to_json` did not write.
        """
        try:
            found = json.loads(text)
            kind, words = found["kind"], found["words"]
        except (KeyError, RecursionError, TypeError, ValueError) as error:
            raise InvalidValue(f"not the description of words: {error!r:.80}") from None
        if kind != "words" or not isinstance(words, list):
            raise InvalidValue(f"not the description of words: kind {kind!r:.40}")
        return cls(Vocabulary(words))


def _lower_first(words: Sequence[str], known: Container[str]) -> list[str]:
    """Undo the capital of a sentence's first word, unless it is known with it."""
    first, *rest = words
    lowered = first[:1].lower() + first[1:]
    return [lowered if first not in known and lowered in known else first, *rest]
