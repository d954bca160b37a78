import hashlib
import itertools
import random
import unicodedata
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transformer import data
from transformer.data import (
    BOS,
    EOS,
    PAD,
    Vocabulary,
    batches_by_tokens,
    count_sentences,
    detokenize,
    is_held_out,
    lower_first,
    make_batch,
    pad,
    sample_pairs,
    to_examples,
    tokenize,
    vocabularies,
)

RUNNING = ["Jane", "visite", "l'", "Afrique", "en", "septembre"]


@pytest.fixture(scope="module")
def pairs():
    return sample_pairs(5000, seed=11, held_out=None)


@pytest.mark.parametrize(
    "sentence",
    [
        "Jane visite l'Afrique en septembre",
        "Jane visite l’Afrique en septembre.",
        "  Jane\tvisite\u00a0l'Afrique\u202fen\nseptembre . ",
        unicodedata.normalize("NFD", "Jane visite l'Afrique en septembre"),
        "Jane visite l' Afrique en septembre",
    ],
)
def test_one_sentence_in_many_spellings(sentence):
    assert tokenize(sentence) == RUNNING


def test_accents_are_composed():
    assert tokenize(unicodedata.normalize("NFD", "été, sœur")) == ["été", ",", "sœur"]


def test_punctuation_is_not_swallowed():
    assert tokenize("Jane?") == ["Jane", "?"]
    assert tokenize("Jane, Paul!") == ["Jane", ",", "Paul", "!"]
    assert tokenize("... ") == [".", "."]
    assert tokenize("l''Afrique") == ["l'", "'", "Afrique"]


@given(st.text(max_size=40))
def test_tokens_are_whole(text):
    if any(unicodedata.category(c) in ("Cc", "Cs") and not c.isspace() for c in text):
        with pytest.raises(ValueError, match="control character"):
            tokenize(text)
        return
    if not text.replace(".", "", 1).split():
        with pytest.raises(ValueError, match="at least one word"):
            tokenize(text)
        return
    tokens = tokenize(text)
    assert all(token and token.split() == [token] for token in tokens)
    joined = "".join(tokens)
    kept = unicodedata.normalize("NFC", text).replace("’", "'")
    kept = "".join(kept.split())
    assert joined in (kept, kept.removesuffix("."))


@pytest.mark.parametrize("text", ["", "   ", "\n", "."])
def test_an_empty_sentence_is_refused(text):
    with pytest.raises(ValueError, match="at least one word"):
        tokenize(text)


@pytest.mark.parametrize("text", ["Jane\x00", "\x1b[31mJane", "Jane\udcff", "\x7f"])
def test_control_characters_are_refused(text):
    with pytest.raises(ValueError, match="control character '"):
        tokenize(text)


@pytest.mark.plain  # checked shapes would make it slow
def test_every_sentence_survives_print_and_read(pairs):
    french, english = vocabularies()
    for pair in pairs:
        for words, known in zip(pair, (french, english), strict=True):
            printed = detokenize(words)
            assert printed[0].isupper()
            assert tuple(lower_first(tokenize(printed), known)) == words


def test_a_comma_stands_at_its_word():
    words = ["en", "mai", ",", "Jane", "visite", "l'", "Afrique"]
    assert detokenize(words) == "En mai, Jane visite l'Afrique"


def test_an_unknown_first_word_keeps_its_capital():
    assert lower_first(["Zorro", "va"], {"va"}) == ["Zorro", "va"]


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
    assert vocabulary.decode([BOS, *ids, EOS, PAD]) == words
    assert not {PAD, BOS, EOS} & set(ids)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "at least one word"),
        (["a", ""], "got ''"),
        (["a", "b c"], "got 'b c'"),
        (["a", "b", "a"], "'a' again"),
        (["<pad>"], "'<pad>' again"),
        (["<bos>"], "'<bos>' again"),
        (["a", "<eos>"], "'<eos>' again"),
    ],
)
def test_bad_vocabularies_are_refused(words, message):
    with pytest.raises(ValueError, match=message):
        Vocabulary(words)


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("Londre", "Londres"),
        ("jane", "Jane"),
        ("soeur", "sœur"),
        ("afrique", "Afrique"),
    ],
)
def test_an_unknown_word_is_named_with_its_neighbours(word, near):
    french, _ = vocabularies()
    with pytest.raises(ValueError, match=rf"'{word}'.*{near}.*known.*words") as caught:
        french.encode(["Jane", word])
    assert str(len(french)) in str(caught.value)


def test_a_small_vocabulary_is_listed_whole():
    with pytest.raises(
        ValueError,
        match=r"^unknown word 'q'; 9 words are known: a, b, c, d, e, f, g, h, i$",
    ):
        Vocabulary("abcdefghi").encode(["q"])
    with pytest.raises(ValueError, match='10 words are known: "python -m transformer'):
        Vocabulary("abcdefghij").encode(["q"])
    with pytest.raises(ValueError, match=r"did you mean Rome or Roma\?\); 2 words"):
        Vocabulary(["Rome", "Roma"]).encode(["Rom"])


def test_a_huge_unknown_word_makes_a_short_message():
    with pytest.raises(ValueError, match="unknown") as caught:
        vocabularies()[0].encode(["x" * 100_000])
    assert len(str(caught.value)) < 200
    assert f"'{'x' * 40}'" in str(caught.value)


@pytest.mark.parametrize("index", [-1, 6])
def test_decode_refuses_ids_of_no_word(index):
    with pytest.raises(ValueError, match=rf"0\.\.5, got {index}"):
        Vocabulary("abc").decode([index])


@pytest.mark.plain  # checked types would make it slow
def test_the_vocabularies_hold_all_words_and_no_other(pairs):
    more = sample_pairs(20_000, seed=12, held_out=None)
    for side, vocabulary in enumerate(vocabularies()):
        assert {word for pair in more for word in pair[side]} == set(vocabulary)
        assert len(vocabulary) <= 260


@pytest.mark.plain  # checked types would make it slow
def test_a_french_sentence_has_one_translation(pairs):
    translations = {}
    for french, english in sample_pairs(40_000, seed=13, held_out=None):
        assert translations.setdefault(french, english) == english


@pytest.mark.plain  # checked types would make it slow
def test_the_count_is_the_number_of_different_sentences():
    for (kind, group), some in data._frames().items():
        step = max(1, len(some) // (30 if kind in ("object", "look") else 60))
        chosen = [frame for frame in some[::step] if frame.total() < 3000]
        made = [
            frame.say(*choice).french
            for frame in chosen
            for choice in itertools.product(*frame.slots)
        ]
        assert len(set(made)) == len(made) == sum(f.total() for f in chosen), group
    assert count_sentences() > 1_000_000


def test_elision_leaves_no_gap(pairs):
    shrinks = {"le", "la", "je", "ne", "de", "ma", "ta", "sa"}
    vowel = tuple("aàâeéêiîoôuhAEÉIO")
    for french, _ in pairs:
        for word, following in itertools.pairwise(french):
            assert not (word in shrinks and following.startswith(vowel)), french
            if word.endswith("'"):
                assert following.startswith(vowel), french


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("la Afrique", "l' Afrique"),
        ("je ne aime pas", "je n' aime pas"),
        ("je habite à Rome", "j' habite à Rome"),
        ("ma amie", "mon amie"),
        ("sa petite amie", "sa petite amie"),
        ("pas de oiseaux", "pas d' oiseaux"),
        ("et Alice", "et Alice"),
        ("le chat", "le chat"),
    ],
)
def test_elide(words, wanted):
    assert data._elide(words.split()) == tuple(wanted.split())


def test_agreement():
    adjectives = {one.english: one for one in data._SIZES + data._COLOURS}
    beautiful, old = adjectives["beautiful"], adjectives["old"]
    forms = [
        data._agree(beautiful, gender, plural)
        for gender in "mf"
        for plural in (False, True)
    ]
    assert forms == ["beau", "beaux", "belle", "belles"]
    assert data._agree(old, "m", False, "oiseau") == "vieil"
    assert data._agree(old, "m", True, "oiseaux") == "vieux"
    assert data._agree(old, "f", False, "horloge") == "vieille"
    assert data._agree(adjectives["grey"], "m", True) == "gris"
    assert data._agree(adjectives["grey"], "f", True) == "grises"


def test_agreement_of_articles_and_nouns(pairs):
    plural = {"les", "des", "mes", "tes", "ses", "nos", "vos", "leurs"}
    singular = {"le", "la", "un", "une", "ma", "ta", "sa", "notre", "votre", "leur"}
    nouns = {noun.french for noun in (*data._NOUNS, *data._PEOPLE)}
    many = {data._french_plural(noun) for noun in nouns}
    for french, _ in pairs:
        for word, following in itertools.pairwise(french):
            if following in nouns | many:
                assert word not in (plural if following in nouns else singular), french


def test_english_says_a_and_an(pairs):
    for _, english in pairs:
        for word, following in itertools.pairwise(english):
            if word in ("a", "an"):
                assert (word == "an") == following.startswith(tuple("aeiou")), english


@pytest.mark.plain  # checked types would make it slow
def test_only_new_combinations_are_held_out():
    assert is_held_out(RUNNING)
    assert not is_held_out([*RUNNING[:-1], "mai"])
    assert not is_held_out([*RUNNING[:2], "la", "France", "en", "septembre"])
    for words in data.HELD_OUT:
        assert len(words) == 2
    training = sample_pairs(20_000, seed=14)
    known = {word for french, _ in training for word in french}
    assert not any(is_held_out(french) for french, _ in training)
    for french, _ in sample_pairs(1000, seed=15, held_out=True):
        assert is_held_out(french)
        assert known.issuperset(french)


@pytest.mark.plain  # checked types would make it slow
def test_each_part_of_a_held_out_pair_is_taught():
    roots = data.root_words()
    met = Counter(
        roots[word]
        for french, _ in sample_pairs(20_000, seed=16)
        for word in french
        if word in roots
    )
    assert all(met[word] > 20 for pair in data.HELD_OUT for word in pair)


def test_samples_repeat_and_differ():
    assert sample_pairs(50, seed=1) == sample_pairs(50, seed=1)
    assert sample_pairs(50, seed=1) != sample_pairs(50, seed=2)
    assert len(set(sample_pairs(2000, seed=1))) == 2000


@pytest.mark.plain
@pytest.mark.parametrize("count", [0, -1, 2.5])
def test_a_bad_count_is_refused(count):
    with pytest.raises(ValueError, match=f"count .* got {count}"):
        sample_pairs(count, seed=0)


sequences = st.lists(st.lists(st.integers(3, 9), max_size=6), min_size=1, max_size=5)


@given(sequences.filter(any), st.integers(0, 2))
def test_pad_keeps_every_sequence(rows, pad_id):
    table = pad(rows, pad_id)
    assert table.dtype == torch.int64
    assert table.shape == (len(rows), max(map(len, rows)))
    for row, ids in zip(table.tolist(), rows, strict=True):
        assert row[: len(ids)] == ids
        assert set(row[len(ids) :]) <= {pad_id}


@pytest.mark.parametrize("rows", [[], [[]], [[], []]])
def test_pad_refuses_nothing(rows):
    with pytest.raises(ValueError, match=f"got {len(rows)} sequences without"):
        pad(rows)


def test_a_batch_is_shifted_by_one(pairs):
    examples = to_examples(pairs[:20], *vocabularies())
    batch = make_batch(examples)
    assert batch.given.shape == batch.wanted.shape
    for (source, target), *rows in zip(examples, *(t.tolist() for t in batch)):  # noqa: B905
        read, given, wanted = rows
        assert [i for i in read if i != PAD] == source
        assert given[: len(target) + 1] == [BOS, *target]
        assert [i for i in wanted if i != PAD] == [*target, EOS]


lengths_and_budgets = st.integers(1, 12).flatmap(
    lambda longest: st.tuples(
        st.lists(st.integers(1, longest), max_size=60), st.integers(longest, 60)
    )
)


@given(lengths_and_budgets, st.integers(0, 99))
def test_batches_use_each_index_once_within_the_budget(case, seed):
    lengths, budget = case
    batches = batches_by_tokens(lengths, budget, random.Random(seed))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) * max(lengths[i] for i in batch) <= budget
    assert batches == batches_by_tokens(lengths, budget, random.Random(seed))


@pytest.mark.parametrize(
    ("lengths", "budget", "sizes"),
    [([2] * 5, 4, [1, 2, 2]), ([1, 1, 3, 3, 3], 6, [1, 2, 2]), ([5], 5, [1])],
)
def test_a_batch_takes_all_that_it_can(lengths, budget, sizes):
    batches = batches_by_tokens(lengths, budget, random.Random(0))
    assert sorted(map(len, batches)) == sizes


def test_equal_lengths_meet_by_chance():
    one, other = (batches_by_tokens([3] * 100, 30, random.Random(s)) for s in (0, 1))
    assert not {frozenset(batch) for batch in one} & {frozenset(b) for b in other}
    lengths = [*range(1, 41)]
    widths = [max(b) for b in batches_by_tokens(lengths, 80, random.Random(0))]
    assert widths != sorted(widths)  # not the short ones first


@pytest.mark.plain
@pytest.mark.parametrize(
    ("lengths", "budget", "message"),
    [
        ([3, 9], 8, r"1\.\.8, got 9"),
        ([1, 9], 8, r"1\.\.8, got 9"),
        ([0, 3], 8, r"1\.\.8, got 0"),
        ([3], 0, "max_tokens .* got 0"),
    ],
)
def test_batches_refuse_what_does_not_fit(lengths, budget, message):
    with pytest.raises(ValueError, match=message):
        batches_by_tokens(lengths, budget, random.Random(0))


@pytest.mark.plain  # checked types would make it slow
def test_the_sentences_are_those_that_the_shipped_weights_learned():
    said = hashlib.sha256()
    for held_out in (False, True):
        said.update(repr([*map(tuple, sample_pairs(1000, 0, held_out))]).encode())
    assert said.hexdigest()[:16] == "228d5063e52fef51"
