import json
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from transformer import Transformer, TransformerConfig
from transformer.data import (
    BOS,
    EOS,
    PAD,
    Vocabulary,
    detokenize,
    sample_pairs,
    to_examples,
    vocabularies,
)
from transformer.decoding import Translator, greedy_search
from transformer.training import translated_exactly


@pytest.fixture(scope="module")
def translator():
    return Translator.phrasebook()


def random_model(seed=0, **overrides) -> Transformer:
    torch.manual_seed(seed)
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 32, "max_length": 12}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 2}
    return Transformer(TransformerConfig(11, 9, **(sizes | layers | overrides)))


def by_hand(model, source, max_length):
    """Greedy search in the plainest way: one sentence, the whole model each time."""
    model.eval()
    said = [BOS]
    with torch.no_grad():
        for _ in range(max_length):
            logits = model(torch.tensor([source]), torch.tensor([said]))[0, -1]
            logits[[PAD, BOS]] = -torch.inf
            said.append(int(logits.argmax()))
            if said[-1] == EOS:
                break
    return [index for index in said[1:] if index != EOS]


sources = st.lists(
    st.lists(st.integers(3, 10), min_size=1, max_size=7), min_size=1, max_size=4
)


@settings(max_examples=8)
@given(sources, st.integers(0, 5), st.integers(1, 8))
def test_ragged_batches_equal_one_at_a_time(batch, seed, max_length):
    model = random_model(seed)
    together = greedy_search(model, batch, max_length)
    assert together == [by_hand(model, source, max_length) for source in batch]
    for ids in together:
        assert len(ids) <= max_length
        assert not {PAD, BOS, EOS} & set(ids)


def test_the_source_is_encoded_once():
    model = random_model()
    runs = []
    model.encoder.register_forward_hook(lambda *_: runs.append("encoder"))
    model.decoder.register_forward_hook(lambda *_: runs.append("decoder"))
    with torch.no_grad():  # a model that never ends
        model.output.weight[EOS] = 0
        model.output.weight[3:] = torch.randn(6, 16).abs()
    greedy_search(model, [[3, 4]], max_length=6)
    assert runs.count("encoder") == 1
    assert 1 <= runs.count("decoder") <= 6


def test_it_stops_early_when_all_have_ended():
    model = random_model()
    runs = []
    model.decoder.register_forward_hook(lambda *_: runs.append(1))
    model.output.forward = lambda x: torch.eye(9)[EOS].repeat(len(x), 1)
    assert greedy_search(model, [[3], [4, 5]], max_length=10) == [[], []]
    assert len(runs) == 1


def test_it_leaves_the_model_as_it_was():
    model = random_model(dropout=0.5).train()
    first = greedy_search(model, [[3, 4, 5]], 8)
    assert all(greedy_search(model, [[3, 4, 5]], 8) == first for _ in range(5))
    assert model.training
    with pytest.raises(ValueError, match="got 99"):
        greedy_search(model, [[99]], 8)
    assert model.training


@pytest.mark.plain
@pytest.mark.parametrize(
    ("batch", "max_length", "message"),
    [
        ([], 5, "at least one id"),
        ([[3], []], 5, r"at least one id, got lengths \[1, 0\]"),
        ([[3]], 0, "max_length .* got 0"),
        ([[3]], 2.5, "max_length .* got 2.5"),
        ([[3]], 13, "at most 12.*got 13"),
        ([[11]], 5, r"0\.\.10, got 11"),
        ([[-1]], 5, r"0\.\.10, got -1"),
        ([[3] * 13], 5, r"0\.\.11"),
    ],
)
def test_bad_questions_are_refused(batch, max_length, message):
    with pytest.raises(ValueError, match=message):
        greedy_search(random_model(), batch, max_length)


def test_the_running_sentence(translator):
    for text in (
        "Jane visite l'Afrique en septembre",
        " Jane visite  l’Afrique en septembre. ",
    ):
        assert translator.translate(text) == "Jane visits Africa in September"


@pytest.mark.plain  # checked shapes would make it slow
def test_held_out_sentences_are_translated(translator):
    pairs = sample_pairs(1000, seed=2024, held_out=True)
    examples = to_examples(pairs, translator.source, translator.target)
    answers = greedy_search(translator.model, [source for source, _ in examples], 32)
    right = [
        ours == target for ours, (_, target) in zip(answers, examples, strict=True)
    ]
    assert right == translated_exactly(translator.model, examples)
    assert sum(right) >= 980
    for pair, (_, target) in zip(pairs[:20], examples[:20], strict=True):
        if target in answers:
            printed = translator.translate(detokenize(pair.french))
            assert printed == detokenize(pair.english)


def test_the_shipped_words_are_the_grammars(translator):
    french, english = vocabularies()
    assert list(translator.source) == list(french)
    assert list(translator.target) == list(english)


def test_the_shipped_weights_are_small():
    from importlib.resources import files

    weights = files("transformer") / "weights" / "phrasebook.safetensors"
    assert len(weights.read_bytes()) <= 2_000_000


@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        ("", "at least one word"),
        (" . ", "at least one word"),
        ("Jane visite Zanzibar", "unknown word 'Zanzibar'"),
        ("Jane visite Londre", "did you mean Londres"),
        ("Jane <eos> visite Rome", "unknown word '<eos>'"),
        ("Jane visite Rome?", r"unknown word '\?'"),
        ("Jane\x07 visite Rome", "control character"),
        ("Jane " * 33, "at most 32 words, got 33"),
    ],
)
def test_sentences_that_cannot_be_read(translator, sentence, message):
    with pytest.raises(ValueError, match=message):
        translator.translate(sentence)


def test_save_and_load(translator, tmp_path):
    path = tmp_path / "deep" / "mine.safetensors"
    translator.save(path)
    again = Translator.load(path)
    assert list(again.source) == list(translator.source)
    assert again.translate("Il a deux chats noirs") == "He has two black cats"


def test_a_translator_refuses_words_that_do_not_fit(translator):
    french, english = vocabularies()
    with pytest.raises(ValueError, match=r"260 and 163.* have 163 and 260"):
        Translator(translator.model, english, french)
    with pytest.raises(ValueError, match="have 4 and 163"):
        Translator(translator.model, Vocabulary("a"), english)
    other = random_model(pad_id=2, eos_id=0)
    with pytest.raises(ValueError, match=r"\(0, 1, 2\), got \(2, 1, 0\)"):
        Translator(other, Vocabulary("abcdefgh"), Vocabulary("abcdef"))


def damaged(translator, path, change):
    translator.save(path)
    with safe_open(path, framework="pt") as file:
        notes = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(notes)
    save_file(tensors, path, notes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda notes: notes.pop("source_words"), "without its words"),
        (lambda notes: notes.update(source_words="["), "weights.safetensors: "),
        (lambda notes: notes.update(source_words="7"), "weights.safetensors: "),
        (lambda notes: notes.update(target_words="[1, 2]"), "weights.safetensors: "),
        (lambda notes: notes.update(target_words='["a"]'), "have 260 and 4"),
        (lambda notes: notes.update(version="99"), "version '99'"),
        (
            lambda notes: notes.update(
                target_words=json.dumps(2 * json.loads(notes["target_words"])[:80])
            ),
            "once",
        ),
    ],
)
def test_damaged_checkpoints_are_refused(translator, tmp_path, change, message):
    path = tmp_path / "weights.safetensors"
    damaged(translator, path, change)
    with pytest.raises(ValueError, match=message):
        Translator.load(path)


def test_missing_and_foreign_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no checkpoint at"):
        Translator.load(tmp_path / "nothing")
    with pytest.raises(ValueError, match="no checkpoint at"):
        Translator.load(tmp_path)
    text = tmp_path / "text"
    text.write_text("not weights")
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        Translator.load(text)
    random_model().save(tmp_path / "wordless")
    with pytest.raises(ValueError, match="without its words"):
        Translator.load(tmp_path / "wordless")
    from importlib.resources import files

    shutil.copy(
        files("transformer") / "weights" / "phrasebook.safetensors", tmp_path / "cut"
    )
    with (tmp_path / "cut").open("r+b") as file:
        file.truncate(100_000)
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        Translator.load(tmp_path / "cut")
