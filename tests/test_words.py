"""Words: tokenize, detokenize, vocabularies and the tokenizer made of one."""

import copy
import json
import pickle
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer.phrasebook.grammar import phrasebook_tokenizers, sample_pairs
from transformer.text.words import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    Tokenizer,
    UnknownWordError,
    Vocabulary,
    WordTokenizer,
    detokenize,
    tokenize,
)

RUNNING = ["Jane", "visite", "l'", "Afrique", "en", "septembre"]


@pytest.mark.parametrize(
    "sentence",
    [
        "Jane visite l'Afrique en septembre",
        "Jane visite l’Afrique en septembre.",
        "  Jane\tvisite\u00a0l'Afrique\u202fen\nseptembre . ",
        unicodedata.normalize("NFD", "Jane visite l'Afrique en septembre"),
        "Jane visite l' Afrique en septembre",
        "\ufeffJane visite l'Afrique en septembre\r",
    ],
)
def test_one_sentence_in_many_spellings(sentence):
    assert tokenize(sentence) == RUNNING


def test_punctuation_is_kept_apart():
    assert tokenize("Jane?") == ["Jane", "?"]
    assert tokenize("Jane, Paul!") == ["Jane", ",", "Paul", "!"]
    assert tokenize("... ") == [".", "."]
    assert tokenize("l''Afrique") == ["l'", "'", "Afrique"]
    assert tokenize(unicodedata.normalize("NFD", "été, sœur")) == ["été", ",", "sœur"]


@given(st.text(max_size=40))
def test_tokens_are_whole(text):
    if any(unicodedata.category(c) in ("Cc", "Cs") and not c.isspace() for c in text):
        with pytest.raises(ValueError, match="control character"):
            tokenize(text)
        return
    kept = unicodedata.normalize("NFC", text.replace("\ufeff", "")).replace("’", "'")
    kept = "".join(kept.split())
    if kept in ("", "."):
        with pytest.raises(ValueError, match="at least one word"):
            tokenize(text)
        return
    tokens = tokenize(text)
    assert all(token and token.split() == [token] for token in tokens)
    assert "".join(tokens) in (kept, kept.removesuffix("."))


@pytest.mark.parametrize("text", ["", "   ", "\n", ".", "\ufeff"])
def test_an_empty_sentence_is_refused(text):
    with pytest.raises(ValueError, match="at least one word"):
        tokenize(text)


@pytest.mark.parametrize("text", ["Jane\x00", "\x1b[31mJane", "Jane\udcff", "\x7f"])
def test_control_characters_are_refused(text):
    with pytest.raises(ValueError, match="control character '"):
        tokenize(text)


def test_detokenize_closes_gaps():
    words = ["en", "mai", ",", "Jane", "visite", "l'", "Afrique"]
    assert detokenize(words) == "En mai, Jane visite l'Afrique"
    assert detokenize([]) == ""


def test_vocabulary_is_a_collection():
    words = ["a", "b", "c"]
    vocabulary = Vocabulary(words)
    assert list(vocabulary) == words
    assert len(vocabulary) == 3
    assert vocabulary.size == 6
    assert "a" in vocabulary
    assert "<pad>" not in vocabulary
    assert 3 not in vocabulary


@given(st.lists(st.sampled_from(sorted("abcdef"))))
def test_encode_and_decode_are_inverse(words):
    vocabulary = Vocabulary("abcdef")
    ids = vocabulary.encode(words)
    assert vocabulary.decode(ids) == words
    assert vocabulary.decode([BOS_ID, *ids, EOS_ID, PAD_ID]) == words
    assert not {PAD_ID, BOS_ID, EOS_ID} & set(ids)


@pytest.mark.plain
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "at least one word"),
        (["a", ""], "got ''"),
        (["a", "b c"], "got 'b c'"),
        (["a", 7], "got 7"),
        (["a", "b", "a"], "'a' again"),
        (["<pad>"], "'<pad>' is a special symbol"),
        (["a", "<eos>"], "'<eos>' is a special symbol"),
    ],
)
def test_bad_vocabularies_are_refused(words, message):
    with pytest.raises(ValueError, match=message):
        Vocabulary(words)


@pytest.mark.parametrize("index", [-1, 6])
def test_decode_refuses_ids_of_no_word(index):
    with pytest.raises(ValueError, match=rf"0\.\.5, got {index}"):
        Vocabulary("abc").decode([index])


@pytest.mark.parametrize(
    ("word", "similar"),
    [
        ("Londre", "Londres"),
        ("jane", "Jane"),
        ("soeur", "sœur"),
        ("afrique", "Afrique"),
    ],
)
def test_an_unknown_word_is_named_with_similar_ones(word, similar):
    french, _ = phrasebook_tokenizers()
    with pytest.raises(
        UnknownWordError, match=rf"'{word}' .*{similar}.* words$"
    ) as error:
        french.encode(f"Jane {word}")
    assert error.value.word == word
    assert similar in error.value.suggestions
    assert "python -m" not in str(error.value)  # a command adds its own hint


def test_a_small_vocabulary_is_listed_whole():
    with pytest.raises(
        ValueError,
        match=r"^unknown word 'q'; the vocabulary has 9 words: a, b, c, d, e, .* i$",
    ):
        Vocabulary("abcdefghi").encode(["q"])
    with pytest.raises(ValueError, match=r"the vocabulary has 10 words$"):
        Vocabulary("abcdefghij").encode(["q"])
    with pytest.raises(ValueError, match=r"did you mean Rome or Roma\?\); the"):
        Vocabulary(["Rome", "Roma"]).encode(["Rom"])


def test_a_huge_unknown_word_makes_a_short_message():
    with pytest.raises(UnknownWordError, match=f"'{'x' * 40}'") as error:
        phrasebook_tokenizers()[0].encode("x" * 1_000_000)
    assert len(str(error.value)) < 200


@pytest.mark.plain  # checked types would make it slow
def test_every_sentence_survives_decoding_and_encoding():
    for pair in sample_pairs(2000, seed=11, held_out=None):
        for words, tokenizer in zip(pair, phrasebook_tokenizers(), strict=True):
            ids = tokenizer.vocabulary.encode(words)
            sentence = tokenizer.decode(ids)
            assert sentence[0].isupper()
            assert tokenizer.encode(sentence) == ids


def test_only_a_capital_that_hides_a_known_word_is_undone():
    tokenizer = WordTokenizer(Vocabulary(["le", "chat", "Paul"]))
    assert tokenizer.encode("Le chat") == tokenizer.encode("le chat") == [3, 4]
    assert tokenizer.encode("Paul") == [5]
    for sentence in ("Zorro", "le Chat"):
        with pytest.raises(UnknownWordError, match=r"unknown word '[ZC]"):
            tokenizer.encode(sentence)


def test_a_word_tokenizer_is_kept_as_json():
    tokenizer = WordTokenizer(Vocabulary(["sœur", "l'", ","]))
    assert json.loads(tokenizer.to_json()) == {
        "kind": "words",
        "words": ["sœur", "l'", ","],
    }
    again = WordTokenizer.from_json(tokenizer.to_json())
    assert list(again.vocabulary) == ["sœur", "l'", ","]
    assert again.vocab_size == 6
    assert (again.pad_id, again.bos_id, again.eos_id) == (PAD_ID, BOS_ID, EOS_ID)


@pytest.mark.plain
@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "7",
        "{}",
        "[" * 100_000,
        '{"kind": "words"}',
        '{"kind": "words", "words": "abc"}',
        '{"kind": "words", "words": [["a"]]}',
        '{"kind": "subwords", "words": ["a"]}',
    ],
)
def test_what_describes_no_words_is_refused(text):
    with pytest.raises(
        ValueError, match=r"not the description of words|a word must be"
    ):
        WordTokenizer.from_json(text)


def test_a_tokenizer_of_ones_own_inherits_the_usual_special_ids():
    class Letters(Tokenizer):
        vocab_size = 29

        def encode(self, sentence):
            return [ord(letter) - 94 for letter in sentence]

        def decode(self, ids):
            return "".join(chr(index + 94) for index in ids)

        def to_json(self):
            return "{}"

    letters = Letters()
    assert letters.decode(letters.encode("abc")) == "abc"
    assert (letters.pad_id, letters.bos_id, letters.eos_id) == (0, 1, 2)


def test_an_unknown_word_reaches_another_process() -> None:
    with pytest.raises(UnknownWordError) as raised:
        Vocabulary(["Jane", "Paul"]).encode(["jane"])
    for error in (
        copy.copy(raised.value),
        pickle.loads(pickle.dumps(raised.value)),
    ):
        assert type(error) is UnknownWordError
        assert str(error) == str(raised.value)
        assert (error.word, error.suggestions) == ("jane", ["Jane"])


def test_a_capital_hides_no_similar_word():
    known = Vocabulary(["il", "voit", "Rome"])
    with pytest.raises(UnknownWordError, match=r"'Il' \(did you mean il\?\)"):
        WordTokenizer(known).encode("Rome Il")
    with pytest.raises(UnknownWordError, match=r"'ROME' \(did you mean Rome\?\)"):
        known.encode(["ROME"])
