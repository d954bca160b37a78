"""The phrasebook: its grammar, its words, and what is held out."""

import hashlib
import itertools
from collections import Counter

import pytest

from transformer.phrasebook import grammar
from transformer.phrasebook.grammar import (
    HELD_OUT,
    count_sentences,
    is_held_out,
    phrasebook_examples,
    phrasebook_tokenizers,
    root_words,
    sample_pairs,
    word_kinds,
)

pytestmark = pytest.mark.plain  # checked types would make it slow
RUNNING = ["Jane", "visite", "l'", "Afrique", "en", "septembre"]


@pytest.fixture(scope="module")
def pairs():
    return sample_pairs(20_000, seed=11, held_out=None)


def test_the_sentences_are_those_that_the_shipped_weights_learned():
    digest = hashlib.sha256()
    for held_out in (False, True):
        digest.update(repr([*map(tuple, sample_pairs(1000, 0, held_out))]).encode())
    assert digest.hexdigest()[:16] == "228d5063e52fef51"
    ids = phrasebook_examples(sample_pairs(1000, 1, None))
    assert hashlib.sha256(repr(ids).encode()).hexdigest()[:16] == "dc5759c1838474a0"
    words = [list(each.vocabulary) for each in phrasebook_tokenizers()]
    assert hashlib.sha256(repr(words).encode()).hexdigest()[:16] == "ff14c942d545b580"
    assert count_sentences() == 348_580_578


def test_the_vocabularies_hold_all_words_and_no_other(pairs):
    for side, tokenizer in enumerate(phrasebook_tokenizers()):
        words = {word for pair in pairs for word in pair[side]}
        assert words == set(tokenizer.vocabulary)


def test_an_example_is_a_pair_of_ids():
    (pair,) = sample_pairs(1, seed=3)
    ((source, target),) = phrasebook_examples([pair])
    french, english = phrasebook_tokenizers()
    assert french.vocabulary.decode(source) == list(pair.french)
    assert english.vocabulary.decode(target) == list(pair.english)
    with pytest.raises(ValueError, match="unknown word 'zut'"):
        phrasebook_examples([grammar.Pair(("zut",), ("darn",))])


def test_a_french_sentence_has_one_translation(pairs):
    translations = {}
    for french, english in pairs:
        assert translations.setdefault(french, english) == english


def test_the_count_is_the_number_of_different_sentences():
    for (kind, group), some in grammar._frames().items():
        step = max(1, len(some) // (15 if kind in ("object", "look") else 30))
        chosen = [frame for frame in some[::step] if frame.total() < 1000]
        made = [
            frame.build(*choice).french
            for frame in chosen
            for choice in itertools.product(*frame.slots)
        ]
        assert len(set(made)) == len(made) == sum(f.total() for f in chosen), group


def test_elision_leaves_no_gap(pairs):
    shrinks = {"le", "la", "je", "ne", "de", "ma", "ta", "sa"}
    vowel = tuple("aàâeéêiîoôuhAEÉIO")
    for french, _ in pairs:
        for word, following in itertools.pairwise(french):
            assert not (word in shrinks and following.startswith(vowel)), french
            if word.endswith("'"):
                assert following.startswith(vowel), french


@pytest.mark.parametrize(
    ("words", "elided"),
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
def test_elide(words, elided):
    assert grammar._elide(words.split()) == tuple(elided.split())


def test_adjectives_agree():
    adjectives = {one.english: one for one in grammar._SIZES + grammar._COLOURS}
    beautiful, old = adjectives["beautiful"], adjectives["old"]
    forms = [
        grammar._agree(beautiful, gender, plural)
        for gender in "mf"
        for plural in (False, True)
    ]
    assert forms == ["beau", "beaux", "belle", "belles"]
    assert grammar._agree(old, "m", False, "oiseau") == "vieil"
    assert grammar._agree(old, "m", True, "oiseaux") == "vieux"
    assert grammar._agree(old, "f", False, "horloge") == "vieille"
    assert grammar._agree(adjectives["grey"], "m", True) == "gris"
    assert grammar._agree(adjectives["grey"], "f", True) == "grises"


def test_articles_agree_with_nouns(pairs):
    plural = {"les", "des", "mes", "tes", "ses", "nos", "vos", "leurs"}
    singular = {"le", "la", "un", "une", "ma", "ta", "sa", "notre", "votre", "leur"}
    nouns = {noun.french for noun in (*grammar._NOUNS, *grammar._PEOPLE)}
    many = {grammar._french_plural(noun) for noun in nouns}
    for french, _ in pairs:
        for word, following in itertools.pairwise(french):
            if following in nouns | many:
                assert word not in (plural if following in nouns else singular), french


def test_english_has_a_and_an(pairs):
    for _, english in pairs:
        for word, following in itertools.pairwise(english):
            if word in ("a", "an"):
                assert (word == "an") == following.startswith(tuple("aeiou")), english


def test_only_new_combinations_are_held_out():
    assert is_held_out(RUNNING)
    assert not is_held_out([*RUNNING[:-1], "mai"])
    assert not is_held_out([*RUNNING[:2], "la", "France", "en", "septembre"])
    assert all(len(words) == 2 for words in HELD_OUT)
    roots, training = root_words(), sample_pairs(20_000, seed=14)
    known = Counter(word for french, _ in training for word in french)
    assert not any(is_held_out(french) for french, _ in training)
    for french, _ in sample_pairs(500, seed=15, held_out=True):
        assert is_held_out(french)
        assert known.keys() >= set(french)
    met = Counter()
    for word, count in known.items():
        met[roots.get(word, "")] += count
    assert all(met[word] > 20 for pair in HELD_OUT for word in pair)


def test_samples_repeat_and_differ():
    assert sample_pairs(50, seed=1) == sample_pairs(50, seed=1)
    assert sample_pairs(50, seed=1) != sample_pairs(50, seed=2)
    assert len(set(sample_pairs(2000, seed=1))) == 2000


@pytest.mark.parametrize("count", [0, -1, 2.5])
def test_a_bad_count_is_refused(count):
    with pytest.raises((TypeError, ValueError), match=f"count .* got {count}"):
        sample_pairs(count, seed=0)


@pytest.mark.parametrize("held_out", ["no", 2, 0.5])
def test_what_is_held_out_is_yes_no_or_either(held_out):
    with pytest.raises(TypeError, match=f"held_out must be .* got {held_out!r}"):
        sample_pairs(3, seed=0, held_out=held_out)


def test_words_of_a_kind_can_be_swapped():
    kinds = word_kinds()
    known = {*phrasebook_tokenizers()[0].vocabulary}
    listed = {word for kind in kinds for word in kind.words}
    assert listed <= known
    rest = {"au", "aux", "à", "en", "chaque", "de", "et", "ne", "pas", ","}
    rest |= {"bel", "nouvel", "vieil", "d'", "j'", "l'", "n'"}
    assert known - listed <= rest | {*grammar._BE}
    meanings = {kind.words["voiture"] for kind in kinds if "voiture" in kind.words}
    assert meanings == {"car"}
    (mine,) = [kind for kind in kinds if "sa" in kind.words]
    assert (mine.name, mine.tags) == ("opening", "fs")
    assert mine.words["sa"] == "his, her"
