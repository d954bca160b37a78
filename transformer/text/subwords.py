"""Subwords: a joint vocabulary of word pieces, by byte-pair encoding.

Made from book/16-translation.md: edit the chapter, not this file.
"""

import copy
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from transformer.checks import (
    InvalidValue,
    optional_import,
    require_not_empty,
    require_positive,
    require_string,
    require_texts,
)
from transformer.text.multi30k import moses_style, require_text
from transformer.text.words import SPECIAL_SYMBOLS, Tokenizer

__all__ = [
    "UNKNOWN_ID",
    "SUBWORD_SYMBOLS",
    "SubwordTokenizer",
]


UNKNOWN_ID = 3
SUBWORD_SYMBOLS = (*SPECIAL_SYMBOLS, "<unk>")  # ids 0, 1, 2, 3
_LONGEST_WORD = 200  # in characters; learning from one takes the square of its length


class SubwordTokenizer(Tokenizer):
    """Byte-pair encoding (Sennrich et al. 2016): frequent words stay whole.

    A piece that opens a word begins with ▁, so that joining pieces gives the sentence
    back, spaces included, but for unknown letters and a ▁ of its own. With `text`
    "tok", every sentence is first lowercased and its punctuation set apart
    (`moses_style`); with "raw" it stays as it was written, but for composed accents and
    single spaces.

    Raises:
        ValueError: for a tokenizer whose first ids are not the special ones or that
            truncates, pads or drops merges, or another `text`.
    """

    def __init__(self, tokenizer: Any, text: str = "raw") -> None:
        require_text(text)
        symbols = [tokenizer.id_to_token(i) for i in range(len(SUBWORD_SYMBOLS))]
        if symbols != list(SUBWORD_SYMBOLS):
            raise InvalidValue(
                f"the first four subwords must be special, got {symbols}"
            )
        changes = {  # of the pieces, unseen
            "truncation": tokenizer.truncation,
            "padding": tokenizer.padding,
            "dropout of merges": getattr(tokenizer.model, "dropout", None),
        }
        for name, value in changes.items():
            if value:
                raise InvalidValue(f"subwords may have no {name}, got {value}")
        self._tokenizer = copy.deepcopy(tokenizer)  # the caller's stays as it is
        self._tokenizer.encode_special_tokens = True  # typed, <eos> is five letters
        self.text = text

    @classmethod
    def train(
        cls, sentences: Iterable[str], vocab_size: int, text: str = "raw"
    ) -> "SubwordTokenizer":
        """Merge the most frequent neighbours until there are `vocab_size` pieces.

        In raw text, punctuation is split from words first. More than 200 characters
        without a space are learned from in parts of 200.

        Raises:
            ValueError: for no sentences, a `vocab_size` below the number of characters,
                another `text`, or where the library tokenizers is not installed.
        """
        require_positive(vocab_size=vocab_size)
        require_text(text)
        tk = optional_import("tokenizers")
        tokenizer = tk.Tokenizer(tk.models.BPE(unk_token=SUBWORD_SYMBOLS[UNKNOWN_ID]))
        tokenizer.normalizer = tk.normalizers.NFC()
        steps = [tk.pre_tokenizers.Metaspace()]
        if text == "raw":
            pattern = tk.Regex(r"▁?[^\p{L}\p{M}\p{N}▁]")
            steps.append(tk.pre_tokenizers.Split(pattern, "isolated"))
        tokenizer.pre_tokenizer = tk.pre_tokenizers.Sequence(steps)
        tokenizer.decoder = tk.decoders.Metaspace()
        long_word = re.compile(rf"(\S{{{_LONGEST_WORD}}})(?=\S)")
        require_texts("sentences", sentences)
        texts = [long_word.sub(r"\1 ", _normalize(each, text)) for each in sentences]
        require_not_empty("sentence", texts)
        # The library makes room for all it is asked for. A letter is at most one piece,
        # and so is a merge, after which there is one less to merge.
        most = len(SUBWORD_SYMBOLS) + 2 * sum(len(each) + 1 for each in texts)
        trainer = tk.trainers.BpeTrainer(
            vocab_size=min(vocab_size, most),
            special_tokens=list(SUBWORD_SYMBOLS),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        least = tokenizer.get_vocab_size()
        if least > vocab_size:
            raise InvalidValue(
                f"vocab_size must be at least {least}, one piece for each character, "
                f"got {vocab_size}"
            )
        return cls(tokenizer, text)

    @classmethod
    def from_json(cls, description: str) -> "SubwordTokenizer":
        """The tokenizer that `to_json` described.

        Raises:
            ValueError: for text that `to_json` did not write, or where the library
                tokenizers is not installed.
        """
        tk = optional_import("tokenizers")
        try:
            found = json.loads(description)
            if found["kind"] != "subwords":
                raise InvalidValue(f"kind {found['kind']!r:.40}")
            tokenizer = tk.Tokenizer.from_str(json.dumps(found["tokenizer"]))
        except BaseException as error:  # a panic of the library is no Exception
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise InvalidValue(
                f"not the description of subwords: {error!r:.80}"
            ) from None
        return cls(tokenizer, found.get("text"))

    def __repr__(self) -> str:
        return f"SubwordTokenizer({self.vocab_size} subwords, text={self.text!r})"

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        """A copy reads typed symbols as this one does: the library's copies do not."""
        return type(self).from_json, (self.to_json(),)

    def to_json(self) -> str:
        """The pieces, the merges and the kind of text."""
        tokenizer = json.loads(self._tokenizer.to_str())
        return json.dumps(
            {"kind": "subwords", "text": self.text, "tokenizer": tokenizer},
            ensure_ascii=False,
        )

    @property
    def vocab_size(self) -> int:
        """How many ids there are: the pieces and the special symbols."""
        return int(self._tokenizer.get_vocab_size())

    def normalize(self, sentence: str) -> str:
        """The sentence as it is encoded, and as `decode` gives one back.

        Raises:
            ValueError: for what is no text, and for a lone surrogate, which is no
                character; so in `encode`.
        """
        return _normalize(sentence, self.text)

    def pieces(self, sentence: str) -> list[str]:
        """The sentence in pieces; a character never seen is <unk>."""
        return list(self._encoding(sentence).tokens)

    def encode(self, sentence: str) -> list[int]:
        """The id of each piece."""
        return list(self._encoding(sentence).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The sentence that the pieces make; special symbols are left out.

        Raises:
            ValueError: for an id that no piece has.
        """
        ids, last = list(ids), self.vocab_size - 1
        for index in ids:
            if not 0 <= index <= last:
                raise InvalidValue(f"ids must lie in 0..{last}, got {index}")
        return str(self._tokenizer.decode(ids))

    def unknown_characters(self, sentence: str) -> list[str]:
        """The characters that no training sentence had: each is <unk> to the model."""
        characters = dict.fromkeys("".join(self.normalize(sentence).split()))
        return [
            each for each in characters if self._tokenizer.token_to_id(each) is None
        ]

    def _encoding(self, sentence: str) -> Any:
        return self._tokenizer.encode(
            self.normalize(sentence), add_special_tokens=False
        )


def _normalize(sentence: str, text: str) -> str:
    """One way for text in training, in evaluation and in use."""
    require_string("a sentence", sentence)
    if lone := re.search("[\ud800-\udfff]", sentence):
        raise InvalidValue(
            f"a sentence has the lone surrogate {lone[0]!r}, which is no character"
        )
    if text == "tok":
        return moses_style(sentence)
    text = unicodedata.normalize("NFC", sentence.replace("\ufeff", ""))
    return " ".join(text.split())
