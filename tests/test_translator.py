"""The translator: sentences in, sentences out, over words, subwords or your own."""

import json
import math
import random
import typing

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from transformer.beyond.text_generator import TextGenerator
from transformer.checks import InvalidValue
from transformer.decoding.beam import beam_search, n_best
from transformer.decoding.search import greedy_search
from transformer.decoding.translator import Translator, length_ratio_of
from transformer.model import Transformer, TransformerConfig
from transformer.phrasebook.grammar import phrasebook_tokenizers, sample_pairs
from transformer.text.subwords import SubwordTokenizer
from transformer.text.words import (
    Tokenizer,
    UnknownWordError,
    Vocabulary,
    WordTokenizer,
)
from transformer.weights.files import read_tensors

# A random model seldom ends: what is said of that is tested where it matters.
pytestmark = pytest.mark.filterwarnings("ignore:.*translations reached no end")
WORDS = (*("le", "chat", "est", "noir", "elle", "a"), *("deux", "les", "chiens"))


@pytest.fixture(scope="module")
def phrasebook():
    return Translator.phrasebook()


def random_model(source, target=None, seed=0, **options):
    torch.manual_seed(seed)
    target = source if target is None else target
    choices = {"max_length": 64, "tie_embeddings": source == target} | options
    model = Transformer(TransformerConfig(source, target, 16, 2, 1, 1, 16, **choices))
    with torch.no_grad():  # sure of itself, and different for every source
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.6)
    return model.eval()


@pytest.fixture(scope="module")
def subwords():
    sentences = [" ".join(side) for pair in sample_pairs(60, 0) for side in pair]
    return SubwordTokenizer.train(sentences, 110, "tok")


@pytest.fixture
def joint(subwords):
    """Nothing that it outputs makes sense, but each sentence has its own output."""
    model = random_model(subwords.vocab_size, tie_embeddings=False)
    return Translator(model, subwords, subwords)


# Translating


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_sentence_or_several(phrasebook, beam_size):
    french = ["Jane visite l'Afrique en septembre.", "Il a deux chats noirs"]
    english = ["Jane visits Africa in September", "He has two black cats"]
    assert phrasebook.translate(french[0], beam_size) == english[0]
    assert phrasebook.translate(french, beam_size) == english
    assert phrasebook.translate(tuple(french[1:]), beam_size) == english[1:]
    assert phrasebook.translate([], beam_size) == []


def test_a_blank_sentence_stays_blank(phrasebook, joint):
    for translator, sentence in ((phrasebook, "Je suis malade"), (joint, "le chat")):
        assert translator.translate("") == ""
        found = translator.translate(["", sentence, " \t", "\ufeff\n"])
        assert found == ["", translator.translate(sentence), "", ""]


def test_a_translation_is_what_the_searches_find(joint, subwords):
    source = subwords.encode("le chat est noir")
    room = 16 * math.ceil(len(source) / 8) + 10
    (greedy,) = greedy_search(joint.model, [source], room)
    assert joint.translate("Le chat est noir") == subwords.decode(greedy)
    (best,) = beam_search(joint.model, [source], room, 3, 1.5)
    assert joint.translate(["le chat est noir"], 3, 1.5) == [subwords.decode(best)]


def test_n_best_lists_are_what_the_search_finishes(joint, subwords):
    sentences = ["le chat est noir", " ", "elle a deux chiens", "le chat " * 9]
    found = joint.n_best(sentences, 3, 1.5, batch_size=2)
    assert found[1] == []
    for index in (0, 2, 3):
        source = subwords.encode(sentences[index])
        room = min(64, 16 * math.ceil(len(source) / 8) + 10)
        (wanted,) = n_best(joint.model, [source], room, 3, 1.5)
        assert found[index] == [
            (
                subwords.decode(ids),
                pytest.approx(total),
                pytest.approx(score),
                len(ids) < room,
            )
            for ids, total, score in wanted
        ]
        assert found[index][0].text == joint.translate(sentences[index], 3, 1.5)
    three = Translator.phrasebook().n_best("Il est malade", 3)
    assert len({each.text for each in three}) == 3
    assert all(each.is_complete for each in three)
    assert [three] == Translator.phrasebook().n_best(["Il est malade"], 3)
    assert joint.n_best(" ") == []


@pytest.mark.plain
def test_n_best_names_what_is_wrong(phrasebook):
    for sentences, options, message in (
        ("xyz", {}, "^unknown word 'xyz'"),
        (["Il est malade", "xyz"], {}, "sentence 2: unknown word 'xyz'"),
        ([], {"beam_size": 0}, "beam_size must be .* got 0"),
        ([], {"batch_size": 0}, "batch_size must be .* got 0"),
        ([], {"max_length": 999}, "max_length must be at most 32.*got 999"),
    ):
        with pytest.raises(ValueError, match=message):
            phrasebook.n_best(sentences, **options)


@pytest.mark.plain  # checked shapes would make it slow
@pytest.mark.parametrize("beam_size", [1, 3])
def test_each_translation_is_the_same_alone_and_in_a_batch(joint, beam_size):
    rng = random.Random(0)
    sentences = [" ".join(rng.choices(WORDS, k=k % 6 + 1)) for k in range(30)]
    alone = [joint.translate(sentence, beam_size) for sentence in sentences]
    assert len(set(alone)) > 10
    for batch_size in (1, 4, 64):
        found = joint.translate([*sentences, "chat " * 20], beam_size, 0.6, batch_size)
        assert found[:-1] == alone


@pytest.mark.plain  # checked shapes would make it slow
def test_its_source_alone_decides_how_long_a_translation_may_become(joint, subwords):
    def never_end(module, inputs, logits):
        return logits.index_fill(-1, torch.tensor(2), -1e9)

    def room(sentence):
        return min(64, 16 * math.ceil(len(subwords.encode(sentence)) / 8) + 10)

    joint.model.output.register_forward_hook(never_end)
    sentences = ["le chat", "le chat est noir et elle a deux chiens", "chien " * 15]
    found = []
    joint.target_tokenizer = Recorder(found)
    joint.translate(sentences)
    assert found == sorted(room(sentence) for sentence in sentences)
    assert found[-1] == 64 > found[0]
    found.clear()
    joint.translate(sentences, max_length=40)
    assert found == [40] * 3


@pytest.mark.plain  # checked shapes would make it slow
@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_translation_that_was_cut_is_said_to_be(joint, beam_size):
    def never_end(module, inputs, logits):
        return logits.index_fill(-1, torch.tensor(2), -1e9)

    sentences = ["le chat", "", "elle a deux chiens"]
    hook = joint.model.output.register_forward_hook(never_end)
    cut = []
    joint.translate(sentences, beam_size, on_cut=cut.append)
    joint.translate(sentences[2], beam_size, on_cut=cut.append)
    assert cut == [0, 2, 0]
    with pytest.warns(UserWarning, match="^2 of 3 translations reached no end"):
        joint.translate(sentences, beam_size, max_length=5)
    with pytest.warns(UserWarning, match="^2 of 3 translations reached no end"):
        lists = joint.n_best(sentences, beam_size)
    assert [[each.is_complete for each in found] for found in lists] == [
        [False],
        [],
        [False],
    ]
    hook.remove()

    def end(module, inputs, logits):
        return logits.index_fill(-1, torch.tensor(2), 1e9)

    joint.model.output.register_forward_hook(end)
    assert joint.translate(sentences, beam_size, on_cut=cut.append) == [""] * 3
    assert len(cut) == 3


def test_the_limit_comes_from_the_data(subwords, tmp_path):
    model = random_model(subwords.vocab_size)
    translator = Translator(model, subwords, subwords)
    assert translator.max_length_for([3]) == 26
    assert translator.max_length_for([3] * 17) == 58
    assert length_ratio_of([([3] * 7, [3] * 9), ([], [3])]) == 2
    examples = [([3] * 5, [4] * 39), ([3], [4] * 8), ([3] * 9, [4] * 20)]
    ratio = length_ratio_of(iter(examples))
    assert ratio == 6  # of the first: 39 and eos are 6 · 5 + 10
    longer = Translator(model, subwords, subwords, ("fr", "en"), ratio)
    for source, target in examples:
        assert len(target) < longer.max_length_for(source)
    longer.save(tmp_path / "m")
    assert Translator.load(tmp_path / "m").length_ratio == ratio
    with pytest.raises(ValueError, match=r"length_ratio must be .* got 0"):
        Translator(model, subwords, subwords, ("fr", "en"), 0.0)
    model.save(tmp_path / "bad", longer.metadata() | {"length_ratio": "much"})
    with pytest.raises(ValueError, match=r"/bad: .*'much'"):
        Translator.load(tmp_path / "bad")


def test_unknown_characters_are_named(joint):
    sentences, found = ["le chat", "漢 chat", "字漢"], {}
    joint.translate(sentences, on_unknown=found.__setitem__)
    assert found == {1: ["漢"], 2: ["字", "漢"]}
    with pytest.warns(UserWarning, match="unknown ones, in 2 sentences: 漢, 字$"):
        joint.translate(sentences)
    with pytest.warns(UserWarning, match="in 1 sentence: 漢$"):
        joint.n_best("漢 chat")


class Recorder(Tokenizer):
    """A target tokenizer that notes how many ids it is given."""

    vocab_size = 110

    def __init__(self, found):
        self.found = found

    def encode(self, sentence):
        raise NotImplementedError

    def decode(self, ids):
        self.found.append(len(ids))
        return ""

    def to_json(self):
        raise NotImplementedError


def test_a_sentence_that_is_no_text_leaves_the_others_alone(joint):
    errors = []
    sentences = ["le chat", "le \ud83d chat", "le chat"]
    found = joint.translate(sentences, on_error=lambda *each: errors.append(each))
    assert found == [joint.translate("le chat"), "", joint.translate("le chat")]
    ((index, error),) = errors
    assert (index, type(error)) == (1, InvalidValue)
    assert "the lone surrogate '\\ud83d'" in str(error)


def test_weights_may_change_between_sentences(joint, subwords):
    sentences = ["le chat", "nous aimons les chiens", "elle a deux chiens"]
    before = joint.translate(sentences)
    other = random_model(subwords.vocab_size, seed=1, tie_embeddings=False)
    joint.model.load_state_dict(other.state_dict())
    after = joint.translate(sentences)
    assert after == Translator(other, subwords, subwords).translate(sentences) != before


def test_wrapped_models_are_unwrapped(joint, subwords):
    wrapped = AveragedModel(joint.model)
    translator = Translator(wrapped, subwords, subwords)
    assert translator.model is wrapped.module
    assert translator.translate("le chat") == joint.translate("le chat")
    with pytest.raises(
        ValueError, match=r"^a Translator needs a Transformer, got a Linear$"
    ):
        Translator(nn.Linear(2, 2), subwords, subwords)


class Letters(Tokenizer):
    """A tokenizer of one's own: letters, with special ids of its own."""

    vocab_size = 29
    pad_id, bos_id, eos_id = 26, 27, 28

    def encode(self, sentence):
        return [ord(letter) - 97 for letter in sentence if letter != " "]

    def decode(self, ids):
        return "".join(chr(index + 97) for index in ids)

    def to_json(self):
        return '{"kind": "letters"}'


def test_any_tokenizer_serves_if_its_special_ids_are_the_models(tmp_path):
    letters = Letters()
    model = random_model(29, pad_id=26, bos_id=27, eos_id=28)
    translator = Translator(model, letters, letters, ("xx", "yy"))
    found = translator.translate(["abc", "hello", "x"])
    assert all(translation.isalpha() for translation in found)
    assert [translator.translate(each) for each in ("abc", "hello", "x")] == found
    translator.save(tmp_path / "mine")
    with pytest.raises(ValueError, match=r"/mine: .* words or .* got 'letters'$"):
        Translator.load(tmp_path / "mine")


@pytest.mark.plain
def test_a_tokenizer_without_a_description_translates_but_cannot_be_saved(tmp_path):
    class Mute:
        vocab_size, pad_id, bos_id, eos_id = 29, 26, 27, 28
        encode, decode = Letters().encode, Letters().decode

    model = random_model(29, pad_id=26, bos_id=27, eos_id=28)
    for pair in ((Mute(), Letters()), (Letters(), Mute())):
        translator = Translator(model, *pair)
        assert translator.translate("abc").isalpha()
        with pytest.raises(ValueError, match=r"needs `to_json`, Mute lacks `to_json`"):
            translator.save(tmp_path / "mine")
    Mute.to_json = lambda self: None  # as of a Protocol's empty body
    with pytest.raises(TypeError, match=r"what Mute\.to_json gives must be text"):
        Translator(model, Letters(), Mute()).save(tmp_path / "mine")
    assert not list(tmp_path.iterdir())


def test_languages_that_are_not_named_are_a_source_and_a_target(tmp_path):
    words = WordTokenizer(Vocabulary(WORDS))
    translator = Translator(random_model(words.vocab_size), words, words)
    assert repr(translator).startswith("Translator('source' to 'target', ")
    translator.save(tmp_path / "m")
    assert Translator.load(tmp_path / "m").languages == ("source", "target")


# What is refused


def test_an_unknown_word_is_named_with_its_sentence(phrasebook):
    with pytest.raises(UnknownWordError, match=r"^unknown word 'Londre' .*Londres"):
        phrasebook.translate("Jane visite Londre")
    with pytest.raises(
        UnknownWordError, match=r"^sentence 2: unknown word 'xyz'"
    ) as no:
        phrasebook.translate(["Jane visite Londres", "xyz"])
    assert no.value.word == "xyz"


def test_an_error_with_its_own_words_is_named_with_its_sentence_too():
    class Ascii(Letters):
        def encode(self, sentence):
            return super().encode(sentence.encode("ascii").decode())

    model = random_model(29, pad_id=26, bos_id=27, eos_id=28)
    translator = Translator(model, Ascii(), Ascii())
    with pytest.raises(
        ValueError, match=r"^sentence 2: 'ascii' codec can't .* '\\xe9'"
    ):
        translator.translate(["abc", "né"])
    with pytest.raises(UnicodeEncodeError, match=r"^'ascii' codec can't"):
        translator.translate("né")


def test_a_sentence_longer_than_the_models_positions_is_refused(phrasebook, joint):
    longest = phrasebook.model.config.max_length
    ids = phrasebook.encode("Jane " * longest)
    assert ids == phrasebook.encode("Jane") * longest
    message = f"too long: {longest + 1} tokens, at most {longest} fit"
    with pytest.raises(ValueError, match=rf"^the sentence is {message}$"):
        phrasebook.translate("Jane " * (longest + 1))
    with pytest.raises(ValueError, match=r"^sentence 2: .* too long: .* 64 fit"):
        joint.translate(["le chat", "漢 " * 99])


def test_the_others_are_translated_where_errors_are_handed_on(phrasebook):
    errors = []
    found = phrasebook.translate(
        ["Jane visite Londre", "Je suis malade", "", "Paul " * 99, "Il a deux chats"],
        on_error=lambda index, error: errors.append((index, str(error)[:16])),
    )
    assert found == ["", "I am ill", "", "", "He has two cats"]
    assert errors == [(0, "unknown word 'Lo"), (3, "the sentence is ")]
    errors.clear()
    one = phrasebook.translate("xyz", on_error=lambda *found: errors.append(found))
    assert (one, [index for index, _ in errors]) == ("", [0])
    errors.clear()
    sentences = ["xyz", "Je suis malade"]
    lists = phrasebook.n_best(sentences, 2, on_error=lambda *it: errors.append(it))
    assert lists == [[], *phrasebook.n_best(sentences[1:], 2)]
    assert lists[1][0].text == "I am ill"
    assert [index for index, _ in errors] == [0]


@pytest.mark.plain
def test_options_are_checked_even_without_sentences(phrasebook):
    for options, message in (
        ({"beam_size": 0}, "beam_size must be .* got 0"),
        ({"length_penalty": -1.0}, "length_penalty must be .* got -1"),
        ({"length_penalty": math.nan}, "length_penalty must be .* got nan"),
        ({"batch_size": 0}, "batch_size must be .* got 0"),
        ({"max_length": 0}, "max_length must be .* got 0"),
        ({"max_length": 999}, "max_length must be at most 32.*got 999"),
    ):
        with pytest.raises(ValueError, match=message):
            phrasebook.translate([], **options)


@pytest.mark.plain
def test_tokenizers_that_do_not_fit_are_refused(phrasebook):
    french, english = phrasebook_tokenizers()
    with pytest.raises(ValueError, match=r"tables of 260 and 163 .* have 163 and 260$"):
        Translator(phrasebook.model, english, french)
    letters = WordTokenizer(Vocabulary("abcdef"))
    for name, number in (("pad_id", 3), ("bos_id", 4), ("eos_id", 5)):
        model = random_model(9, **{name: number})
        message = rf"^{name} is {number} in the model's config, but \d in the tokenizer"
        with pytest.raises(ValueError, match=message):
            Translator(model, letters, letters)
    model = random_model(9)
    few = (("fr",), ("fr", ""), ("fr", "e n"), ("a", "b", "c"), "fr", ("fr", 2), None)
    for languages in few:
        with pytest.raises(ValueError, match="languages must be two codes, got"):
            Translator(model, letters, letters, languages)


# Files


def test_two_word_tokenizers_are_kept_with_the_model(phrasebook, tmp_path):
    path = tmp_path / "deep" / "mine.safetensors"
    phrasebook.save(path)
    again = Translator.load(str(path))
    assert again.translate("Il a deux chats noirs") == "He has two black cats"
    assert again.languages == phrasebook.languages == ("fr", "en")
    assert not again.model.training
    _, metadata = read_tensors(path)
    sides = ["source_tokenizer", "target_tokenizer"]
    assert sorted(metadata) == ["class", "config", "languages", "parts", *sides]
    assert '"sœur"' in metadata["source_tokenizer"]
    again.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


@pytest.mark.plain  # checked shapes would make it slow
def test_the_shipped_phrasebook_has_the_grammars_words(phrasebook):
    kept = phrasebook.source_tokenizer, phrasebook.target_tokenizer
    for ours, grammar in zip(kept, phrasebook_tokenizers(), strict=True):
        assert ours.to_json() == grammar.to_json()


@pytest.mark.plain  # checked shapes would make it slow
@pytest.mark.parametrize("text", ["tok", "raw"])
def test_a_joint_tokenizer_is_kept_once(tmp_path, text):
    subwords = SubwordTokenizer.train(["Le chat, the cat", "漢字"], 40, text)
    model = random_model(subwords.vocab_size)
    Translator(model, subwords, subwords, ("de", "en")).save(tmp_path / "m")
    _, metadata = read_tensors(tmp_path / "m")
    assert sorted(metadata) == ["class", "config", "languages", "parts", "tokenizer"]
    (tmp_path / "m").rename(tmp_path / "model.safetensors")
    for path in (tmp_path, tmp_path / "model.safetensors"):  # the folder of a run
        again = Translator.load(path)
        assert again.languages == ("de", "en")
        assert again.source_tokenizer is again.target_tokenizer
        assert again.source_tokenizer.text == text
        sentences = ["Le chat", "the cat, the cat"]
        mine = Translator(model, subwords, subwords)
        assert again.translate(sentences) == mine.translate(sentences)


def test_words_on_one_side_and_subwords_on_the_other(tmp_path, subwords):
    words = WordTokenizer(Vocabulary(WORDS))
    model = random_model(words.vocab_size, subwords.vocab_size)
    translator = Translator(model, words, subwords)
    translator.save(tmp_path / "m")
    again = Translator.load(tmp_path / "m")
    assert again.translate(["Le chat", "elle a deux chiens"]) == translator.translate(
        ["le chat", "Elle a deux chiens."]
    )


WORD_FILE = {
    "languages": "fr en",
    "source_tokenizer": json.dumps({"kind": "words", "words": list("abcdef")}),
    "target_tokenizer": json.dumps({"kind": "words", "words": list("ghijkl")}),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source_tokenizer": None}, "a model without its tokenizers"),
        ({"source_tokenizer": ""}, "not the description of a tokenizer"),
        ({"source_tokenizer": "["}, "not the description of a tokenizer"),
        ({"source_tokenizer": "[" * 100_000}, "not the description of a tokenizer"),
        ({"source_tokenizer": "7"}, "not the description of a tokenizer"),
        ({"source_tokenizer": '{"kind": "runes"}'}, "words or subwords .* got 'runes'"),
        ({"target_tokenizer": '{"kind": ["words"]}'}, "words or subwords .* got "),
        ({"target_tokenizer": '{"kind": "words"}'}, "not the description of words"),
        ({"target_tokenizer": '{"kind": "words", "words": ["a"]}'}, "have 9 and 4"),
        ({"target_tokenizer": '{"kind": "subwords"}'}, "not the description of subw"),
        ({"languages": None}, "languages must be two codes"),
        ({"languages": "fr"}, "languages must be two codes"),
        ({"languages": "fr en de"}, "languages must be two codes"),
    ],
)
def test_files_without_tokenizers_of_ours_are_refused(tmp_path, change, message):
    metadata = {k: v for k, v in (WORD_FILE | change).items() if v is not None}
    random_model(9).save(tmp_path / "model", metadata)
    with pytest.raises(ValueError, match=rf"/model: .*{message}"):
        Translator.load(tmp_path / "model")


def test_a_translator_without_a_name_is_refused(tmp_path, monkeypatch) -> None:
    """An unset variable is no reason to take what lies in this folder."""
    Translator.phrasebook().save(tmp_path / "model.safetensors")
    monkeypatch.chdir(tmp_path)
    assert Translator.load(".").languages == ("fr", "en")
    for kind in (Translator, TextGenerator):
        with pytest.raises(ValueError, match="got the name ''"):
            kind.load("")


@pytest.mark.plain
def test_a_tokenizer_that_lacks_something_is_refused_at_once():
    class Half:
        vocab_size, pad_id, bos_id = 29, 0, 1
        encode = decode = to_json = None

    with pytest.raises(ValueError, match=r"tokenizer needs .*, Half lacks `eos_id`$"):
        Translator(random_model(29), Half(), Half())


@pytest.mark.plain
def test_what_is_no_sentence_is_named(phrasebook):
    with pytest.raises(TypeError, match=r"^sentence 2: a sentence must be text, got"):
        phrasebook.translate(["Jane", None])
    with pytest.raises(TypeError, match=r"^a sentence must be text, got 7$"):
        phrasebook.translate(7)


def test_a_translator_says_what_it_is(phrasebook):
    assert repr(phrasebook) == (
        "Translator('fr' to 'en', WordTokenizer(257 words), WordTokenizer(160 words))"
    )


@pytest.mark.plain  # checked types are refused before
def test_types_tell_one_sentence_from_several():
    one, several = typing.get_overloads(Translator.translate)
    assert typing.get_type_hints(one)["return"] is str
    assert typing.get_type_hints(several)["return"] == list[str]
