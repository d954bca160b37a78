"""Subwords: training, pieces, one normalisation everywhere, and text as JSON."""

import copy
import json
import random
import time

import pytest

from transformer.phrasebook.grammar import sample_pairs
from transformer.text.multi30k import moses_style
from transformer.text.subwords import (
    SUBWORD_SYMBOLS,
    UNKNOWN_ID,
    SubwordTokenizer,
)

SENTENCES = [
    *("le chat dort", "le chien dort", "la maison est noire", "il a deux chats noirs"),
    *("the cat sleeps", "the dog sleeps", "the house is black", "he has two cats"),
]


@pytest.fixture(scope="module")
def subwords():
    return SubwordTokenizer.train(SENTENCES, 60, "tok")


def test_special_symbols_come_first(subwords):
    assert SUBWORD_SYMBOLS == ("<pad>", "<bos>", "<eos>", "<unk>")
    assert subwords.vocab_size == 60
    assert (subwords.pad_id, subwords.bos_id, subwords.eos_id) == (0, 1, 2)
    assert subwords.pieces("le 漢")[-1] == "<unk>"
    assert subwords.encode("漢")[-1] == UNKNOWN_ID == 3
    assert subwords.decode([1, *subwords.encode("le chat"), 2, 0]) == "le chat"
    assert subwords.encode("") == []


def test_typed_symbols_are_letters(subwords):
    letters = SubwordTokenizer.train(["< > e o s p a d"] * 3, 60, "raw")
    for tokenizer in (subwords, letters, copy.deepcopy(letters)):
        assert not {0, 1, 2} & set(tokenizer.encode("<eos> <pad> le chat"))
    assert letters.decode(letters.encode("<eos>")) == "<eos>"


def test_every_sentence_of_the_phrasebook_comes_back():
    sentences = [" ".join(side) for pair in sample_pairs(100, 0) for side in pair]
    subwords = SubwordTokenizer.train(sentences, 150)
    for sentence in sentences:
        expected = subwords.normalize(sentence)
        assert subwords.decode(subwords.encode(sentence)) == expected


def test_frequent_words_are_one_piece():
    subwords = SubwordTokenizer.train(["maison maison maison", "mai son"], 30)
    assert subwords.pieces("maison") == ["▁maison"]
    assert "".join(subwords.pieces("sonmai")) == "▁sonmai"


def test_tok_text_is_normalised_in_training_and_in_use():
    ordinary = ["L'ami d'Éric attend.", "The man’s dog, “Rex”, waits."]
    normalised = [moses_style(sentence) for sentence in ordinary]
    one, other = (
        SubwordTokenizer.train(each, 90, "tok") for each in (ordinary, normalised)
    )
    assert one.to_json() == other.to_json()
    for sentence, expected in zip(ordinary, normalised, strict=True):
        assert one.encode(sentence) == one.encode(expected)
        assert UNKNOWN_ID not in one.encode(sentence)
        assert one.decode(one.encode(sentence)) == one.normalize(sentence) == expected


def test_raw_text_keeps_its_letters_and_splits_its_punctuation():
    sentences = ["Ein Hund, zwei Hunde; drei Hunde.", "»Was?«, sagt der Hund."] * 3
    subwords = SubwordTokenizer.train(sentences, 80, "raw")
    for sentence in sentences:
        assert subwords.decode(subwords.encode(sentence)) == sentence
    pieces = subwords.pieces(sentences[0])
    assert all(piece in (",", ";", ".") or piece.strip(",;.") for piece in pieces)
    assert not any(len(piece) > 1 and set(piece) & set(",;.") for piece in pieces)


@pytest.mark.parametrize("text", ["tok", "raw"])
def test_white_space_accents_and_byte_order_marks_are_treated_alike(text):
    subwords = SubwordTokenizer.train(["né né née", "e\u0301te\u0301"], 30, text)
    expected = subwords.encode("né été")
    for sentence in (
        "\ufeffne\u0301 \t été\r\n",
        " né\u00a0e\u0301te\u0301 ",
        "né\rété",
    ):
        assert subwords.encode(sentence) == expected
    assert subwords.decode(expected) == "né été"


@pytest.mark.parametrize("text", ["tok", "raw"])
@pytest.mark.parametrize("letters", ["x", "abcdefghijklmnop"])
def test_a_word_without_end_hangs_nothing(text, letters):
    word = "".join(random.Random(0).choices(letters, k=300_000))
    start = time.process_time()
    subwords = SubwordTokenizer.train([word, "le chat xyz"], 150, text)
    assert time.process_time() - start < 2
    assert all(len(piece) <= 201 for piece in subwords._tokenizer.get_vocab())
    assert subwords.decode(subwords.encode("le chat")) == "le chat"


def test_long_words_are_cut_for_training_alone():
    subwords = SubwordTokenizer.train(["a" * 300 + "b"], 300)
    assert max(map(len, subwords._tokenizer.get_vocab())) == 201
    assert "".join(subwords.pieces("a" * 300)) == "▁" + "a" * 300


@pytest.mark.parametrize("text", ["tok", "raw"])
def test_a_text_without_spaces_is_learned_to_its_last_letter(text):
    draw = random.Random(0)
    letters = [chr(0x4E00 + number) for number in range(600)]
    line = "".join(draw.choice(letters) + "，" * (draw.random() < 0.1) for _ in letters)
    line += "".join(letters)
    subwords = SubwordTokenizer.train([line], 2000, text)
    assert subwords.unknown_characters(line) == []
    assert subwords.decode(subwords.encode(line)) == subwords.normalize(line)


@pytest.mark.plain  # a generator is no Sequence
def test_a_generator_of_ids_is_decoded(subwords):
    ids = subwords.encode("le chat")
    assert subwords.decode(each for each in ids) == "le chat"


def test_a_script_that_no_training_sentence_had_is_named(subwords):
    assert subwords.unknown_characters("Le chat dort") == []
    assert subwords.unknown_characters("") == []
    assert subwords.unknown_characters("Да, да!") == ["д", "а", ",", "!"]
    assert subwords.unknown_characters("le né e\u0301") == ["é"]
    raw = SubwordTokenizer.train(["Le chat"], 20, "raw")
    assert raw.unknown_characters("LE CHAT") == ["E", "C", "H", "A", "T"]


def test_the_fewest_pieces_are_named_and_will_do():
    with pytest.raises(ValueError, match=r"must be at least 8, .* got 5$"):
        SubwordTokenizer.train(["abc cab"], 5)
    assert SubwordTokenizer.train(["abc cab"], 8).vocab_size == 8
    assert SubwordTokenizer.train(["abc cab"] * 2, 9).vocab_size == 9
    for arguments, message in (
        ((["abc"], 0), "vocab_size must be .* got 0"),
        (([], 9), "at least one sentence is needed, got none"),
        (("one string", 9), "sentences must be several, got the text 'one string'"),
        ((["abc"], 9, "Tok"), "text must be tok or raw"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            SubwordTokenizer.train(*arguments)


@pytest.mark.parametrize("text", ["tok", "raw"])
def test_a_tokenizer_is_kept_as_json(text):
    subwords = SubwordTokenizer.train(["L'été, «né»!", "漢字 <unk>"], 60, text)
    again = SubwordTokenizer.from_json(subwords.to_json())
    assert again.to_json() == subwords.to_json()
    assert again.text == json.loads(subwords.to_json())["text"] == text
    sentence = "L'été <eos>, «né»? 漢"
    assert again.encode(sentence) == subwords.encode(sentence)
    assert again.pieces(sentence) == subwords.pieces(sentence)


def test_no_symbols_are_added_whatever_a_description_asks_for(subwords):
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    found = json.loads(subwords.to_json())
    eager = Tokenizer.from_str(json.dumps(found["tokenizer"]))
    symbols = [("<bos>", 1), ("<eos>", 2)]
    eager.post_processor = TemplateProcessing("<bos> $A <eos>", None, symbols)
    assert eager.encode("le chat").ids[0] == 1
    other = SubwordTokenizer(eager)
    assert other.encode("le chat") == subwords.encode("le chat")
    assert other.pieces("le chat") == subwords.pieces("le chat")


@pytest.mark.plain
def test_what_describes_no_subwords_is_refused(subwords):
    good = json.loads(subwords.to_json())
    wrong = [
        *("", "{}", "nothing", "[]", "7", "[" * 100_000),
        json.dumps(good | {"kind": "words"}),
        json.dumps(good | {"tokenizer": {}}),
        subwords.to_json()[:-9],
    ]
    for text in wrong:
        with pytest.raises(ValueError, match=r"^not the description of subwords: ."):
            SubwordTokenizer.from_json(text)
    for text in ("../etc", None, 7):
        with pytest.raises(ValueError, match=r"^text must be tok or raw, got "):
            SubwordTokenizer.from_json(json.dumps(good | {"text": text}))
    other = subwords.to_json().replace("<bos>", "<sos>")
    with pytest.raises(ValueError, match=r"must be special, got \['<pad>', '<sos>'"):
        SubwordTokenizer.from_json(other)


TRUNCATION = {"direction": "Right", "strategy": "LongestFirst"}
PADDING = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None}
PADDING |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"}


@pytest.mark.plain
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"truncation": TRUNCATION | {"max_length": 2, "stride": 0}}, "truncation"),
        ({"truncation": TRUNCATION | {"max_length": 1, "stride": 5}}, "truncation"),
        ({"padding": PADDING}, "padding"),
        ({"model": {"dropout": 0.5}}, "dropout of merges, got 0.5"),
    ],
)
def test_what_would_change_its_pieces_unseen_is_refused(subwords, change, message):
    found = json.loads(subwords.to_json())
    model = found["tokenizer"]["model"] | change.get("model", {})
    found["tokenizer"] |= change | {"model": model}
    with pytest.raises(ValueError, match=f"^subwords may have no {message}"):
        SubwordTokenizer.from_json(json.dumps(found))


@pytest.mark.plain
def test_what_the_library_panics_at_is_refused(subwords):
    """Its PanicException is no Exception."""
    found = json.loads(subwords.to_json())
    broken = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    found["tokenizer"]["normalizer"] = broken
    with pytest.raises(
        ValueError, match=r"^not the description of subwords: (Exception|Panic)"
    ):
        SubwordTokenizer.from_json(json.dumps(found))


@pytest.mark.plain
def test_ctrl_c_while_a_description_is_read_goes_through(subwords, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("json.loads", interrupted)
    with pytest.raises(KeyboardInterrupt):
        SubwordTokenizer.from_json("{}")


@pytest.mark.plain
@pytest.mark.parametrize("text", ["tok", "raw"])
def test_a_lone_surrogate_is_refused(text):
    subwords = SubwordTokenizer.train(["le chat"], 30, text)
    message = r"^a sentence has the lone surrogate '\\ud83d', which is no character$"
    for use in (
        *(subwords.encode, subwords.pieces, subwords.unknown_characters),
        lambda sentence: SubwordTokenizer.train([sentence], 30, text),
    ):
        with pytest.raises(ValueError, match=message):
            use("le \ud83d chat")
    assert subwords.encode("le chat")


def test_ids_that_no_piece_has_are_refused(subwords):
    size = subwords.vocab_size
    assert subwords.decode([0, 1, 2]) == ""
    for wrong in (-1, size, 2**40):
        with pytest.raises(ValueError, match=rf"in 0\.\.{size - 1}, got {wrong}$"):
            subwords.decode([5, wrong])


@pytest.mark.plain
@pytest.mark.parametrize("text", ["tok", "raw"])
@pytest.mark.parametrize("vocab_size", [10**9, 2**70])
def test_more_pieces_than_a_text_can_give_take_no_memory(text, vocab_size):
    sentences = ["abcdefgh Hunde, was?", "x" * 64, "é", "l'été!"]
    found = SubwordTokenizer.train(sentences, vocab_size, text)
    assert found.to_json() == SubwordTokenizer.train(sentences, 10_000, text).to_json()


def test_subwords_say_how_many_they_are(subwords):
    size = subwords.vocab_size
    assert repr(subwords) == f"SubwordTokenizer({size} subwords, text='tok')"


def test_the_callers_tokenizer_stays_as_it_is(subwords):
    """Ours reads <eos> as five letters; the caller's still reads it as a symbol."""
    from tokenizers import Tokenizer

    theirs = Tokenizer.from_str(json.dumps(json.loads(subwords.to_json())["tokenizer"]))
    before = theirs.encode("a <eos>").tokens
    ours = SubwordTokenizer(theirs)
    assert ours.pieces("a <eos>") != before == theirs.encode("a <eos>").tokens
