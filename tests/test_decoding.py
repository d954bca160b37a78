import itertools
import json
import math
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
    pad,
    sample_pairs,
    to_examples,
    vocabularies,
)
from transformer.decoding import (
    Beginning,
    Cache,
    Translator,
    beam_search,
    greedy_search,
    grow,
    nucleus,
    penalised,
    ready,
    sample,
)
from transformer.masks import padding_mask
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


def positions_seen(part):
    """How many rows and positions each run of a module was given."""
    seen = []
    part.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape[:2]))
    return seen


@pytest.mark.parametrize("search", [greedy_search, sample, beam_search])
def test_nothing_is_computed_twice(search):
    model = random_model()
    with torch.no_grad():  # a model that never ends
        model.position.register_forward_hook(lambda _, __, x: x * 0 + 1)
        model.output.weight[:] = torch.linspace(-1, 1, 9)[:, None]
        for residual in model.decoder.layers[-1].residuals:
            residual.norm.bias[:] = 1
    encoded = positions_seen(model.encoder)
    layer = model.decoder.layers[1]
    new = positions_seen(layer.self_attention.key_proj)
    source = positions_seen(layer.cross_attention.key_proj)
    (answer,) = search(model, [[3, 4]], max_length=6)
    assert len(answer) == 6
    assert encoded == source == [(1, 2)]
    assert len(new) == 6
    assert all(length == 1 for _, length in new)


def test_it_stops_early_when_all_have_ended():
    for search in (greedy_search, sample, beam_search):
        model = random_model()
        runs = positions_seen(model.decoder.layers[0].feed_forward)
        model.output.forward = lambda x: 99 * torch.eye(9)[EOS].expand(*x.shape[:2], 9)
        assert search(model, [[3], [4, 5]], max_length=10) == [[], []]
        assert runs[0] == (2, 1)
        if search is not beam_search:  # whose other beginnings go on for a while
            assert len(runs) == 1


def test_rows_leave_the_batch_when_they_end(translator):
    pairs = sample_pairs(20, seed=5)
    examples = to_examples(pairs, translator.source, translator.target)
    rows = []
    hook = translator.model.output.register_forward_hook(
        lambda _, inputs, __: rows.append(len(inputs[0]))
    )
    answers = greedy_search(translator.model, [source for source, _ in examples], 32)
    hook.remove()
    lengths = [len(answer) + 1 for answer in answers]  # with the end
    assert len(set(lengths)) > 3
    turns = range(1, max(lengths) + 1)
    assert rows == [sum(length >= turn for length in lengths) for turn in turns]


@pytest.mark.parametrize("search", [greedy_search, sample, beam_search])
def test_it_leaves_the_model_as_it_was(search):
    model = random_model(dropout=0.5).train()
    if search is sample:
        torch.manual_seed(0)
        assert sample(model, [[3, 4, 5]] * 3, 8, top_p=1e-9) == (
            greedy_search(model, [[3, 4, 5]] * 3, 8)
        )
    else:
        first = search(model, [[3, 4, 5]], 8)
        assert all(search(model, [[3, 4, 5]], 8) == first for _ in range(5))
    assert model.training
    with pytest.raises(ValueError, match="got 99"):
        search(model, [[99]], 8)
    assert model.training
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    model.encoder.eval()  # only a part of it learns
    search(model, [[3]], 2)
    assert model.training
    assert model.decoder.training
    assert not model.encoder.training
    search(model.eval(), [[3]], 2)
    assert not model.training
    assert not any(part.training for part in model.modules())


def test_the_cache_projects_the_memory_once_and_hides_padding():
    model = random_model().eval()
    source = pad([[3, 4, 5], [6]])
    with torch.no_grad():
        memory = model.encode(source)
        cache = Cache.read(model, source, room=4, beam_size=2)
    assert cache.source_mask.equal(padding_mask(source, PAD))
    for layer, found in zip(model.decoder.layers, cache.memory, strict=True):
        wanted = layer.cross_attention.keys_values(memory, memory)
        torch.testing.assert_close(found.keys, wanted.keys)
        torch.testing.assert_close(found.values, wanted.values)
    assert [past.keys.shape for past in cache.past] == [(4, 2, 4, 8)] * 2
    before = cache.memory
    cache.keep(torch.tensor([0, 1]))  # nobody's source has changed
    assert cache.memory is before
    cache.keep(torch.tensor([1, 1]))
    assert cache.owner.tolist() == [1, 1]
    assert cache.memory[0].keys.shape == (2, 2, 3, 8)


@torch.no_grad()
def log_probability(model, source, ids):
    """Of a whole answer, its end included, by the model itself."""
    logits = model(torch.tensor([source]), torch.tensor([[BOS, *ids]]))[0]
    chances = logits.log_softmax(dim=-1)
    return chances.gather(1, torch.tensor([*ids, EOS])[:, None]).sum().item()


def beam_by_hand(model, source, max_length, beam_size, length_penalty):
    """The same search in the plainest way: one sentence, the whole model each time."""
    model.eval()
    alive, ended = [(0.0, [BOS])], []
    for _ in range(max_length):
        grown = []
        for total, said in alive:
            with torch.no_grad():
                logits = model(torch.tensor([source]), torch.tensor([said]))[0, -1]
            for word, chance in enumerate(logits.log_softmax(-1).tolist()):
                if word not in (PAD, BOS):
                    grown.append((total + chance, [*said, word]))
        grown = sorted(grown, reverse=True)[: beam_size - len(ended)]
        ended += [branch for branch in grown if branch[1][-1] == EOS]
        alive = [branch for branch in grown if branch[1][-1] != EOS]
    if not ended:
        return alive[0][1][1:]
    lengths = [((5 + len(said) - 1) / 6) ** length_penalty for _, said in ended]
    scores = [total / length for (total, _), length in zip(ended, lengths, strict=True)]
    return ended[scores.index(max(scores))][1][1:-1]


@pytest.mark.plain  # checked shapes would make it slow
@settings(max_examples=12)
@given(
    batch=sources,
    seed=st.integers(0, 99),
    max_length=st.integers(1, 6),
    beam_size=st.integers(1, 5),
    length_penalty=st.sampled_from([0.0, 0.6, 1.0, 3.0]),
)
def test_beam_search_is_itself_in_any_company(
    batch, seed, max_length, beam_size, length_penalty
):
    model = random_model(seed).double()
    options = beam_size, length_penalty
    together = beam_search(model, batch, max_length, *options)
    assert together == [
        beam_by_hand(model, source, max_length, *options) for source in batch
    ]
    for ids in together:
        assert len(ids) <= max_length
        assert not {PAD, BOS, EOS} & set(ids)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_a_beam_wide_enough_for_all_finds_the_best_of_all(length_penalty):
    model = random_model(seed=3, num_decoder_layers=1).double().eval()
    source, longest = [5, 3], 3
    every = [
        list(words)
        for length in range(longest)  # with the end, three ids at most
        for words in itertools.product(range(3, 9), repeat=length)
    ]
    scores = [
        penalised(log_probability(model, source, ids), len(ids) + 1, length_penalty)
        for ids in every
    ]
    best = every[scores.index(max(scores))]
    (found,) = beam_search(model, [source], longest, 400, length_penalty)
    assert found == best


def says_in_turn(model, *turns):
    """Make a model say these probabilities, whatever it is given."""
    left = iter(turns)

    def say(x):
        return torch.tensor(next(left)).log().expand(*x.shape[:2], 9).clone()

    model.output.forward = say
    return model


@pytest.mark.parametrize(
    ("second", "best"),
    [(-1.18, []), (-1.155, [3])],  # -1/6 against -1.18/7 and -1.155/7
)
def test_the_length_that_is_weighed_counts_the_end_and_not_the_beginning(second, best):
    end = math.exp(-1)  # said at once, or after a 3 with `second` in all
    then = math.exp(second) / (1 - end)
    model = says_in_turn(
        random_model(),
        [0, 0, end, 1 - end, 0, 0, 0, 0, 0],
        [0, 0, then, 0, *([(1 - then) / 5] * 5)],
    )
    assert beam_search(model, [[4]], 5, beam_size=2, length_penalty=1.0) == [best]


def test_unless_told_otherwise_length_is_worth_what_it_was_to_its_inventors():
    """With 0.6 the shorter answer is the better one; with more it would not be."""
    end = math.exp(-1)
    then = math.exp(-1.15) / (1 - end)
    turns = (
        [0, 0, 0, 1, 0, 0, 0, 0, 0],
        [0, 0, end, 0, 1 - end, 0, 0, 0, 0],
        [0, 0, then, 0, *([(1 - then) / 5] * 5)],
    )

    def translator():
        model = says_in_turn(random_model(), *turns)
        return Translator(model, Vocabulary("abcdefgh"), Vocabulary("ijklmn"))

    assert beam_search(translator().model, [[4]], 5, 2) == [[3]]
    assert beam_search(translator().model, [[4]], 5, 2, 1.6) == [[3, 4]]
    assert translator().translate("a", 2) == "I"
    assert translator().translate("a", 2, 1.6) == "I j"


def test_a_cache_lives_where_its_model_does():
    """Whatever torch's default device is: "meta" holds no numbers at all."""
    model = random_model().eval()
    source = pad([[3, 4, 5], [6]])
    with torch.inference_mode(), torch.device("meta"):
        cache = Cache.read(model, source, room=4)
        assert cache.owner.device == source.device
        for stored in (*cache.memory[0], *cache.past[0], cache.source_mask):
            assert stored.device == source.device
    assert [past.values.shape for past in cache.past] == [(2, 2, 4, 8)] * 2


@pytest.mark.parametrize("search", [greedy_search, sample, beam_search])
def test_a_search_makes_nothing_on_another_device(search, monkeypatch):
    model = random_model()
    torch.manual_seed(3)
    expected = search(model, [[3, 4, 5], [6]], 6)

    def pad_on_the_processor(*arguments):
        with torch.device("cpu"):
            return pad(*arguments)

    monkeypatch.setattr("transformer.decoding.pad", pad_on_the_processor)
    torch.manual_seed(3)
    with torch.device("meta"):
        assert search(model, [[3, 4, 5], [6]], 6) == expected


def test_a_strong_penalty_prefers_longer_answers(translator):
    sentences = ["Elle est mon amie", "Je suis l'ami de Jane"]
    sources = [translator.read(sentence) for sentence in sentences]
    short = beam_search(translator.model, sources, 32, 10, 0.0)
    long = beam_search(translator.model, sources, 32, 10, 2.0)
    assert sum(map(len, short)) < sum(map(len, long))


def test_penalties_by_hand():
    assert penalised(-3.0, 1, 0.6) == -3.0
    assert penalised(-3.0, 7, 1.0) == -1.5
    assert penalised(-3.0, 7, 0.0) == -3.0
    assert math.isclose(penalised(-3.0, 13, 0.6), -3.0 / 3**0.6)


def test_beginnings_grow_by_their_likeliest_words():
    beginnings = [Beginning(-1.0, [1, 5], 7, 0), Beginning(-2.0, [1, 6], 8, 4)]
    chances = torch.tensor([[-3.0, -1.0, -2.0], [-math.inf, -math.inf, -0.5]])
    assert list(grow(beginnings, chances, 2)) == [
        Beginning(-2.0, [1, 5, 1], 0, 0),
        Beginning(-3.0, [1, 5, 2], 0, 0),
        Beginning(-2.5, [1, 6, 2], 1, 4),
    ]
    assert len(list(grow(beginnings, chances, 99))) == 4


@given(st.lists(st.floats(-8, 8), min_size=1, max_size=9), st.floats(0.01, 1.0))
def test_a_nucleus_is_the_smallest_that_reaches_top_p(logits, top_p):
    chances = torch.tensor([logits], dtype=torch.float64).softmax(dim=-1)
    kept = nucleus(chances, top_p)
    inside = kept > 0
    torch.testing.assert_close(kept.sum(), torch.ones((), dtype=torch.float64))
    held = chances[inside].sum()
    assert held >= top_p - 1e-9
    assert held - chances[inside].min() < top_p + 1e-9
    if not inside.all():
        assert chances[inside].min() >= chances[~inside].max()
    torch.testing.assert_close(kept[inside], chances[inside] / held)


def test_a_nucleus_of_all_changes_nothing():
    chances = torch.randn(4, 9).softmax(dim=-1)
    torch.testing.assert_close(nucleus(chances, 1.0), chances)


def certain(model, chances):
    """Make a model say the same probabilities whatever it is given."""
    logits = torch.tensor(chances).log()
    model.output.forward = lambda x: logits.expand(*x.shape[:2], 9).clone()
    return model


CHANCES = [0.2, 0.1, 0.05, 0.05, 0.3, 0.2, 0.06, 0.04, 0.0]


@pytest.mark.parametrize(
    ("temperature", "top_p", "words"),
    [(1.0, 1.0, {3, 4, 5, 6, 7}), (1.0, 0.6, {4, 5}), (3.0, 0.6, {4, 5, 6})],
)
def test_samples_follow_the_probabilities(temperature, top_p, words):
    model = certain(random_model(), CHANCES)
    generator = torch.Generator().manual_seed(1)
    drawn = sample(model, [[3]] * 6000, 1, temperature, top_p, generator)
    counts = torch.bincount(
        torch.tensor([ids[0] if ids else EOS for ids in drawn]), minlength=9
    )
    assert {i for i in range(3, 9) if counts[i]} == words
    expected = torch.tensor(CHANCES) ** (1 / temperature)
    expected[[PAD, BOS]] = 0
    expected = nucleus(expected / expected.sum(), top_p)
    assert ((counts / 6000 - expected).abs() < 0.03).all()


def test_the_same_generator_draws_the_same_and_another_does_not(translator):
    sources = [translator.read("Jane visite Paris")] * 30

    def drawn(seed):
        dice = torch.Generator().manual_seed(seed)
        return sample(translator.model, sources, 32, temperature=1.5, generator=dice)

    assert drawn(0) == drawn(0) != drawn(1)
    torch.manual_seed(5)
    first = sample(translator.model, sources, 32, temperature=1.5)
    torch.manual_seed(5)
    assert sample(translator.model, sources, 32, temperature=1.5) == first


@pytest.mark.plain
@pytest.mark.parametrize(
    ("search", "options", "message"),
    [
        (beam_search, {"beam_size": 0}, "beam_size must be .* at least 1, got 0"),
        (beam_search, {"beam_size": 2.5}, "beam_size .* got 2.5"),
        (beam_search, {"beam_size": True}, "beam_size .* got True"),
        (beam_search, {"length_penalty": -0.1}, "length_penalty .* got -0.1"),
        (beam_search, {"length_penalty": math.inf}, "length_penalty .* got inf"),
        (beam_search, {"length_penalty": math.nan}, "length_penalty .* got nan"),
        (beam_search, {"max_length": 0}, "max_length .* got 0"),
        (sample, {"temperature": 0}, "temperature must be above 0 .* got 0"),
        (sample, {"temperature": -1.0}, "temperature .* got -1.0"),
        (sample, {"temperature": math.inf}, "temperature .* got inf"),
        (sample, {"temperature": math.nan}, "temperature .* got nan"),
        (sample, {"top_p": 0}, r"top_p must lie in \(0, 1\], got 0"),
        (sample, {"top_p": 1.01}, "top_p .* got 1.01"),
        (sample, {"top_p": math.nan}, "top_p .* got nan"),
        (sample, {"max_length": 13}, "at most 12.*got 13"),
    ],
)
def test_bad_options_are_refused(search, options, message):
    with pytest.raises(ValueError, match=message):
        search(random_model(), [[3]], **{"max_length": 5, **options})


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


def test_a_translator_searches_as_wide_as_it_is_told(translator):
    hard = "Le grand chien noir aime le petit chat blanc"
    assert translator.translate(hard) == "The big white dog likes the small dog"
    wide = "The big dog likes the small white cat"
    assert translator.translate(hard, beam_size=4) == wide
    unsure = "Je suis l'ami de Jane"
    short = translator.translate(unsure, 10, 0.0)
    assert len(short.split()) < len(translator.translate(unsure, 10, 2.0).split())
    with pytest.raises(ValueError, match=r"beam_size .* got 0"):
        translator.translate(hard, beam_size=0)


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


def test_unless_told_otherwise_four_beginnings_are_in_play():
    model = certain(random_model(), [0, 0, 0, 0.3, 0.3, 0.1, 0.1, 0.1, 0.1])
    runs = positions_seen(model.decoder.layers[0].feed_forward)
    beam_search(model, [[3, 4]], 3)
    assert runs == [(1, 1), (4, 1), (4, 1)]


def test_unless_told_otherwise_probabilities_are_drawn_as_they_are():
    model = certain(random_model(), CHANCES)
    answers = [
        sample(model, [[3]] * 500, 1, *options, generator=torch.Generator())
        for options in ((), (1.0, 1.0), (2.0, 1.0), (1.0, 0.9))
    ]
    assert answers[0] == answers[1]
    assert answers[0] not in answers[2:]


def test_sources_are_padded_as_the_model_was_and_go_where_it_is():
    model = random_model(pad_id=2, eos_id=0)
    assert ready(model, [[3, 4], [5]], 5).tolist() == [[3, 4], [5, 2]]
    assert ready(model.to("meta"), [[3, 4]], 5).device.type == "meta"


def test_a_sentence_may_have_as_many_words_as_the_model_has_positions(translator):
    assert translator.read("Jane " * 32) == translator.read("Jane") * 32


def test_a_file_shows_its_words_as_they_are_written(translator, tmp_path):
    translator.save(tmp_path / "mine")
    with safe_open(tmp_path / "mine", framework="pt") as file:
        notes = file.metadata()
    assert "sœur" in json.loads(notes["source_words"])
    assert '"sœur"' in notes["source_words"]
    english = Vocabulary([f"é{number}" for number in range(translator.target.size - 3)])
    Translator(translator.model, translator.source, english).save(tmp_path / "other")
    with safe_open(tmp_path / "other", framework="pt") as file:
        assert '"é7"' in file.metadata()["target_words"]


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
    del notes["checksum"]  # as in the oldest files: the words themselves must be read
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


def test_the_word_that_comes_once_the_nucleus_is_full_stays_out():
    chances = torch.tensor([[0.25, 0.5, 0.25], [0.5, 0.5, 0.0]])
    expected = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    torch.testing.assert_close(nucleus(chances, 0.5).sort()[0], expected.sort()[0])
