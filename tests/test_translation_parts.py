"""Chapter 16's parts one by one, on a few words: what they ask, keep and say."""

import collections
import contextlib
import dataclasses
import gzip
import hashlib
import inspect
import io
import json
import math
import random
import re
import types
import urllib.error
import urllib.request
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import nn

from transformer import Transformer, TransformerConfig, translation
from transformer.model import read_checkpoint
from transformer.translation import (
    MULTI30K,
    MULTI30K_SHA256,
    SUBWORD_SYMBOLS,
    Crew,
    Lesson,
    Lessons,
    Moment,
    RunFolder,
    Score,
    Settings,
    Subwords,
    SubwordTranslator,
    Trainee,
    download,
    extra,
    fetch_multi30k,
    find_text,
    mean_loss,
    prepare,
    read_metrics,
    read_note,
    read_pairs,
    read_text,
    score,
    train_translator,
)

pytestmark = pytest.mark.plain  # stand-ins are not of the types they stand in for

PAIRS = [
    ("le chat dort", "the cat sleeps"),
    ("le chien dort", "the dog sleeps"),
    ("la maison est noire", "the house is black"),
    ("il a deux chats noirs", "he has two black cats"),
]
FEW = Settings(
    types=60,
    layers=1,
    d_model=8,
    num_heads=2,
    d_ff=8,
    dropout=0.0,
    max_length=32,
    epochs=3,
    step_tokens=40,
    part_tokens=40,
    peak=0.01,
    warmup=2,
)


@pytest.fixture(scope="module")
def subwords():
    return Subwords.learn([side for pair in PAIRS for side in pair], FEW.types)


@pytest.fixture(scope="module")
def lessons(subwords):
    train = [tuple(map(subwords.encode, pair)) for pair in PAIRS]
    return Lessons(train, train[:2], PAIRS[:2], subwords, ("fr", "en"))


def exactly(text):
    """For `match`: this message and no other."""
    return f"^{re.escape(text)}$"


# Fetching and reading


class Answer(io.BytesIO):
    """What a server says."""

    def __init__(self, data, length):
        super().__init__(data)
        self.headers = {} if length is None else {"Content-Length": str(length)}


@pytest.mark.parametrize("length", [None, 150_000])
def test_a_download_in_pieces(monkeypatch, length):
    data, heard = random.Random(0).randbytes(150_000), []
    monkeypatch.setattr(
        urllib.request, "urlopen", lambda url, timeout: Answer(data, length)
    )
    assert download("there", lambda *now: heard.append(now)) == data
    ends = [65_536, 131_072, 150_000]
    expected = [(end, length or 0) for end in ends]
    assert heard == expected + ([] if length else [(150_000, 150_000)])


def test_a_download_that_breaks_off(monkeypatch):
    monkeypatch.setattr(
        urllib.request, "urlopen", lambda url, timeout: Answer(b"12345", 6)
    )
    said = "the connection broke off after 5 of 6 bytes"
    with pytest.raises(OSError, match=exactly(said)):
        download("there", lambda *_: None)


@pytest.fixture
def server(monkeypatch):
    """Files by address, and what was asked; an error in a file's place is raised."""
    files, asked = {}, []

    def fetch(url, say):
        asked.append(url)
        say(3, 7)
        if isinstance(files[url], Exception):
            raise files[url]
        return files[url]

    monkeypatch.setattr(translation, "download", fetch)
    return files, asked


@pytest.mark.parametrize("text", ["raw", "tok"])
def test_what_is_fetched_from_where(tmp_path, monkeypatch, server, text):
    files, asked = server
    heard, names = [], []
    middle, end = (".lc.norm.tok", "") if text == "tok" else ("", ".gz")
    for split in ("train", "val", "test_2016_flickr"):
        for language in ("fr", "de"):
            names.append(name := f"{text}/{split}{middle}.{language}")
            data = f"{name}\n".encode()
            files[f"{MULTI30K}/{name}{end}"] = gzip.compress(data) if end else data
            key = f"{text}/{split.partition('_')[0]}.{language}"
            monkeypatch.setitem(MULTI30K_SHA256, key, hashlib.sha256(data).hexdigest())
    found = fetch_multi30k(
        str(tmp_path), text, ("fr", "de"), lambda *now: heard.append(now)
    )
    assert found == tmp_path
    assert asked == list(files)
    assert heard == [(name, 3, 7) for name in names]
    for name in names:
        assert (tmp_path / name).read_text() == f"{name}\n"
    assert sum(path.is_file() for path in tmp_path.rglob("*")) == 6


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (urllib.error.URLError("no route"), "no route"),
        (TimeoutError("too slow"), "too slow"),
        (OSError("a plain one"), "a plain one"),
        (b"not packed", "Not a gzipped file (b'no')"),
    ],
)
def test_why_nothing_came(tmp_path, server, trouble, reason):
    url = "home/raw/train.en.gz"
    server[0][url] = trouble
    said = f"no Multi30k ({reason}): fetch {url} yourself into {tmp_path / 'raw'}"
    with pytest.raises(ValueError, match=exactly(said)) as told:
        fetch_multi30k(tmp_path, "raw", ("en",), address="home")
    assert told.value.__suppress_context__
    assert not list(tmp_path.iterdir())


def test_why_what_came_is_not_kept(tmp_path, server):
    url = "home/tok/train.lc.norm.tok.en"
    server[0][url] = b"other words"
    found = hashlib.sha256(b"other words").hexdigest()[:12]
    expected = MULTI30K_SHA256["tok/train.en"][:12]
    said = (
        f"{url} is not the file expected: its SHA-256 is {found}…, not {expected}…; "
        f"the right one belongs in {tmp_path / 'tok'}"
    )
    with pytest.raises(ValueError, match=exactly(said)):
        fetch_multi30k(tmp_path, "tok", ("en",), address="home")
    assert not list(tmp_path.iterdir())
    said = "Multi30k has tok text in de, en, fr, got cs"
    with pytest.raises(ValueError, match=exactly(said)):
        fetch_multi30k(tmp_path, "tok", ("en", "cs"), address="home")


def test_the_first_name_that_is_there_is_read(tmp_path):
    names = ["tok/val.lc.norm.tok.en", "val.lc.norm.tok.en", "tok/val.en", "val.en"]
    there = [f"{name}{end}" for name in names for end in ("", ".gz")]
    (tmp_path / "tok").mkdir()
    for name in reversed(there):
        (tmp_path / name).touch()
        assert find_text(tmp_path, "tok", "val", "en") == tmp_path / name
    said = f"{tmp_path} has neither raw/val.en, nor val.en, packed (.gz) or not"
    for name in there:
        (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=exactly(said)):
        find_text(tmp_path, "raw", "val", "en")
    for code in ("", "en us", "a/b", "../x"):
        said = f"a language has a code, like en or pt-BR, got {code!r}"
        with pytest.raises(ValueError, match=exactly(said)):
            find_text(tmp_path, "raw", "val", code)
    (tmp_path / "val.pt-BR").touch()
    assert find_text(tmp_path, "raw", "val", "pt-BR") == tmp_path / "val.pt-BR"


def test_why_a_file_is_no_text(tmp_path):
    (tmp_path / "x.en").write_bytes(b"a\xff")
    with pytest.raises(ValueError, match=r"x\.en cannot be read as text: ") as told:
        read_text(tmp_path / "x.en")
    assert str(told.value).endswith("0xff in position 1: invalid start byte")
    assert told.value.__suppress_context__
    (tmp_path / "x.gz").write_bytes(gzip.compress("né\n".encode()))
    assert read_text(tmp_path / "x.gz") == "né\n"


def test_pairs_are_stripped_and_blank_ones_left_out(tmp_path):
    (tmp_path / "val.fr").write_text(" un \n\ndeux\nd\u2028\u2028eux\n \n\n", "utf-8")
    (tmp_path / "val.en").write_text("one\ntwo\n\ttwo\r\nt\nfive\n\n", "utf-8")
    pairs = read_pairs(str(tmp_path), "raw", "val", "fr", "en")
    assert pairs == [("un", "one"), ("deux", "two"), ("d\u2028\u2028eux", "t")]
    (tmp_path / "val.fr").write_text("one\n" * 1234)
    said = (
        f"{tmp_path / 'val.fr'} and {tmp_path / 'val.en'} should pair, but have 1,234 "
        "and 6 lines"
    )
    with pytest.raises(ValueError, match=exactly(said)):
        read_pairs(tmp_path, "raw", "val", "fr", "en")
    (tmp_path / "val.fr").write_text("\n")
    (tmp_path / "val.en").write_text("one\n")
    said = f"{tmp_path / 'val.fr'} holds no sentences"
    with pytest.raises(ValueError, match=exactly(said)):
        read_pairs(tmp_path, "raw", "val", "fr", "en")


def test_a_missing_library_is_asked_for_by_name():
    said = 'this needs no_such: pip install "tested-transformer[train]"'
    with pytest.raises(ValueError, match=exactly(said)) as told:
        extra("no_such.part")
    assert told.value.__suppress_context__
    with pytest.raises(ValueError, match=r"^this needs no_such: pip install"):
        extra("no_such")
    assert extra("json.decoder") is json.decoder


# Subwords


def test_special_symbols_come_first(subwords):
    first = tuple(subwords._tokenizer.id_to_token(i) for i in range(4))
    assert first == SUBWORD_SYMBOLS == ("<pad>", "<bos>", "<eos>", "<unk>")
    assert subwords.pieces("le 漢")[-1] == "<unk>"
    assert subwords.encode("漢")[-1] == 3
    assert subwords.decode([1, *subwords.encode("le chat"), 2, 0]) == "le chat"


def test_no_symbols_are_added_whatever_a_description_wants(subwords):
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    eager = Tokenizer.from_str(subwords.to_json())
    symbols = [("<bos>", 1), ("<eos>", 2)]
    eager.post_processor = TemplateProcessing("<bos> $A <eos>", None, symbols)
    assert eager.encode("le chat").ids[0] == 1
    other = Subwords(eager.to_str())
    assert other.encode("le chat") == subwords.encode("le chat")
    assert other.pieces("le chat") == subwords.pieces("le chat")


def test_composed_and_decomposed_letters_are_the_same():
    learnt = Subwords.learn(["né né née", "e\u0301te\u0301"], 30)
    assert learnt.encode("ne\u0301") == learnt.encode("né")
    assert learnt.decode(learnt.encode("e\u0301te\u0301")) == "été"


@pytest.mark.parametrize("tokenized", [True, False])
def test_where_sentences_are_cut_before_any_merging(tokenized):
    text = "«Né en 1990, l'été?» ▁ na\u0303o  x3y\u0303"
    learnt = Subwords.learn([text] * 3, 500, tokenized)
    cut = [piece for piece, _ in learnt._tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    words = ["▁«Né", "▁en", "▁1990,", "▁l'été?»"]
    if not tokenized:
        words = ["▁«", "Né", "▁en", "▁1990", ",", "▁l", "'", "été", "?", "»"]
    assert cut[: len(words)] == words
    assert cut[-1] == "▁x3y\u0303"
    assert "▁na\u0303o" in cut
    assert learnt.pieces(text) == [
        piece.replace("a\u0303", "ã").replace("y\u0303", "ỹ") for piece in cut
    ]


def test_the_fewest_pieces_are_named_and_will_do():
    with pytest.raises(ValueError, match="types must be at least") as told:
        Subwords.learn(["abc cab"], 5)
    least = int(str(told.value).split()[5].rstrip(","))
    assert str(told.value) == f"types must be at least {least}, a piece a letter"
    assert Subwords.learn(["abc cab"], least).size == least == 8
    with pytest.raises(ValueError, match="types must be at least"):
        Subwords.learn(["abc cab"], least - 1)
    assert Subwords.learn(["abc cab"] * 2, least + 1).size == least + 1
    for nothing in ({"types": 0}, {"sentences": []}):
        said = f"{next(iter(nothing))} must be a whole number of at least 1, got 0"
        with pytest.raises(ValueError, match=exactly(said)):
            Subwords.learn(**{"sentences": ["abc"], "types": 9, **nothing})


def test_learning_subwords_is_quiet(monkeypatch):
    import tokenizers

    asked = []

    def trainer(**how):
        asked.append(how)
        return tokenizers.trainers.BpeTrainer(**how)

    parts = {name: getattr(tokenizers, name) for name in dir(tokenizers)}
    parts["trainers"] = types.SimpleNamespace(BpeTrainer=trainer)
    monkeypatch.setattr(
        translation, "extra", lambda module: types.SimpleNamespace(**parts)
    )
    Subwords.learn(["abc cab"] * 9, 12)
    (how,) = asked
    assert how["show_progress"] is False
    assert how["vocab_size"] == 12
    assert how["special_tokens"] == list(SUBWORD_SYMBOLS)


def test_why_a_description_is_none(subwords):
    for wrong in ("", "{}", "nothing"):
        with pytest.raises(ValueError, match=r"^no description of subwords: .") as told:
            Subwords(wrong)
        assert told.value.__suppress_context__
    other = subwords.to_json().replace("<bos>", "<sos>")
    said = (
        "the first four subwords must be special, got ['<pad>', '<sos>', '<eos>', "
        "'<unk>']"
    )
    with pytest.raises(ValueError, match=exactly(said)):
        Subwords(other)
    again = Subwords(subwords.to_json())
    assert again.to_json() == subwords.to_json()
    assert type(again.to_json()) is str
    assert again.encode("<eos> le") == subwords.encode("<eos> le")
    assert 2 not in again.encode("<eos> le")


# Settings, crew, lessons


def test_each_setting_has_its_place_in_the_model():
    settings = Settings(
        layers=3,
        d_model=24,
        num_heads=3,
        d_ff=40,
        dropout=0.25,
        norm_first=True,
        max_length=33,
    )
    assert settings.config(77) == TransformerConfig(
        77,
        77,
        d_model=24,
        num_heads=3,
        num_encoder_layers=3,
        num_decoder_layers=3,
        d_ff=40,
        dropout=0.25,
        norm_first=True,
        tie_embeddings=True,
        max_length=33,
    )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"smoothing": 1.0}, "smoothing must lie in [0, 1), got 1.0"),
        ({"smoothing": -0.5}, "smoothing must lie in [0, 1), got -0.5"),
        ({"memory": 1.5}, "memory must lie in [0, 1), got 1.5"),
        ({"peak": 0.0}, "peak must be above 0, got 0.0"),
        ({"peak": math.nan}, "peak must be above 0, got nan"),
        ({"max_norm": -1.0}, "max_norm must be above 0, got -1.0"),
        ({"schedule": "steep"}, "schedule must be inverse-sqrt or cosine, got 'steep'"),
        *(
            ({name: 0}, f"{name} must be a whole number of at least 1, got 0")
            for name in (
                *(
                    "types",
                    "epochs",
                    "step_tokens",
                    "part_tokens",
                    "warmup",
                    "patience",
                ),
            )
        ),
    ],
)
def test_why_no_run_could_follow(wrong, said):
    with pytest.raises(ValueError, match=exactly(said)):
        dataclasses.replace(FEW, **wrong)
    dataclasses.replace(FEW, smoothing=0.0, memory=0.0, peak=0.5, max_norm=0.5)


def test_rates_of_both_schedules():
    falls = dataclasses.replace(FEW, warmup=4, peak=0.5)
    rates = [falls.rate(step, 10) for step in (1, 2, 4, 5, 16, 100)]
    assert rates == [0.125, 0.25, 0.5, 0.5 * math.sqrt(4 / 5), 0.25, 0.1]
    third = dataclasses.replace(FEW, warmup=3, peak=0.1)
    assert third.rate(3, 10) == 0.1 * 3 / 3 != 0.1  # to the last bit
    cosine = dataclasses.replace(falls, schedule="cosine")
    rates = [cosine.rate(step, 10) for step in (1, 4, 7, 10)]
    assert rates == pytest.approx([0.125, 0.5, 0.25, 0.0])
    assert cosine.rate(6, 10) == pytest.approx(0.25 * (1 + math.cos(math.pi / 3)))
    assert cosine.rate(5, 5) == pytest.approx(0.0)  # one step to fall in
    assert cosine.rate(4, 4) == 0.5
    assert cosine.rate(3, 3) == 0.375


def test_a_crew_is_told_where_it_is(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert Crew.join() == Crew.join("cpu") == Crew() == Crew(0, 1, torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = "no GPU was found here: try --device cpu"
    with pytest.raises(ValueError, match=exactly(said)):
        Crew.join("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert Crew.join("cuda") == Crew(0, 1, torch.device("cuda", 0))
    monkeypatch.setenv("LOCAL_RANK", "1")
    said = "each process needs a GPU of its own: process 2 of this machine found 1"
    with pytest.raises(ValueError, match=exactly(said)):
        Crew.join("cuda")
    assert Crew.join("cpu") == Crew()


@pytest.mark.parametrize("size", [1, 2])
def test_only_who_has_others_leaves_them(monkeypatch, size):
    left = []
    monkeypatch.setattr(
        torch.distributed, "destroy_process_group", lambda: left.append(1)
    )
    Crew(0, size).leave()
    assert len(left) == size - 1


def test_a_share_is_every_sizeth_sentence_in_pieces_that_fit():
    def of(length):
        return [9] * length, [9] * (length - 1)

    batch = [of(length) for length in (5, 3, 4, 2, 6, 3)]

    def shared(rank, size, room):
        parts = Crew(rank, size).share(batch, room)
        return [[len(source) for source, _ in part] for part in parts]

    assert shared(0, 1, 100) == [[2, 3, 3, 4, 5, 6]]
    assert shared(0, 1, 12) == [[2, 3, 3], [4, 5], [6]]
    assert shared(0, 1, 9) == [[2, 3, 3], [4], [5], [6]]
    assert shared(0, 1, 1) == [[2], [3], [3], [4], [5], [6]]
    assert shared(0, 2, 100) == [[4, 5, 6]]
    assert shared(1, 2, 8) == [[2, 3], [3]]
    assert shared(7, 8, 100) == []
    longer = [([9], [9] * 4)] * 3  # it is the target, and a symbol, that counts
    assert [len(part) for part in Crew().share(longer, 10)] == [2, 1]
    assert [len(part) for part in Crew().share(longer, 9)] == [1, 1, 1]


def test_a_digest_is_of_all_that_is_learnt_from(lessons, subwords):
    data = json.dumps([lessons.train, lessons.check, subwords.to_json()])
    assert lessons.digest() == hashlib.sha256(data.encode()).hexdigest()[:16]
    other = Subwords.learn(["other words"], 30)
    changed = (
        lessons._replace(train=lessons.train[1:]),
        lessons._replace(check=lessons.check[1:]),
        lessons._replace(subwords=other),
    )
    assert len({one.digest() for one in (lessons, *changed)}) == 4


def test_lessons_of_a_folder(tmp_path):
    long = ("x " * 40).strip()
    for split, pairs in (
        ("train", [*PAIRS, (long, "short"), ("court", long)]),
        ("val", [*PAIRS[:2], (long, long)]),
    ):
        for side, language in enumerate(("fr", "en")):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (tmp_path / f"{split}.{language}").write_text(text)
    settings = dataclasses.replace(FEW, types=70)
    found = prepare(tmp_path, settings, "fr", "en", "tok")
    sentences = [
        side for pair in [*PAIRS, (long, "short"), ("court", long)] for side in pair
    ]
    learnt = Subwords.learn(sentences, 70)
    assert found.subwords.to_json() == learnt.to_json()
    assert found.train == [tuple(map(learnt.encode, pair)) for pair in PAIRS]
    assert found.check == found.train[:2]
    assert found.check_pairs == PAIRS[:2]
    assert found[4:] == (("fr", "en"), "tok", 3)
    for limit in ("max_length", "part_tokens", "step_tokens"):
        widest = max(max(len(a), len(b) + 1) for a, b in found.train)
        for room in (widest, widest - 1):
            tight = dataclasses.replace(settings, **{limit: room})
            some = prepare(tmp_path, tight, "fr", "en")
            assert (len(some.train) < 4) is (room < widest), limit
    none = dataclasses.replace(settings, step_tokens=2)
    said = f"{tmp_path} has no pairs of at most 2 subwords"
    with pytest.raises(ValueError, match=exactly(said)):
        prepare(tmp_path, none, "fr", "en")
    for language in ("fr", "en"):
        (tmp_path / f"val.{language}").write_text(f"{long}\n")
    said = f"{tmp_path} has no pairs of at most 32 subwords"
    with pytest.raises(ValueError, match=exactly(said)):
        prepare(tmp_path, settings, "fr", "en")
    for split in ("train", "val"):
        for language, side in (("en", "one two"), ("de", "eins zwei")):
            (tmp_path / f"{split}.{language}").write_text(f"{side}\n" * 9)
    plain = prepare(tmp_path, dataclasses.replace(FEW, types=30))
    assert plain[4:] == (("en", "de"), "tok", 0)
    assert plain.check_pairs[0] == ("one two", "eins zwei")


@pytest.mark.parametrize("text", ["raw", "tok"])
def test_lessons_of_a_text(tmp_path, text):
    for split, pairs in (("train", PAIRS), ("val", PAIRS[:2])):
        for side, language in enumerate(("fr", "en")):
            for kind in ("raw", "tok"):
                name = tmp_path / translation.multi30k_name(kind, split, language)
                name.parent.mkdir(exist_ok=True)
                name.write_text(f"{kind}, no?\n" * len(pairs))
            right = tmp_path / translation.multi30k_name(text, split, language)
            right.write_text("".join(f"{pair[side]}, no?\n" for pair in pairs))
    found = prepare(tmp_path, FEW, "fr", "en", text)
    sentences = [f"{side}, no?" for pair in PAIRS for side in pair]
    learnt = Subwords.learn(sentences, FEW.types, text == "tok")
    assert found.subwords.to_json() == learnt.to_json()
    assert found.check_pairs == [(f"{a}, no?", f"{b}, no?") for a, b in PAIRS[:2]]
    assert len(found.train) == 4
    assert found.text == text


# Scores


def test_what_sacrebleu_is_asked():
    said, wanted = ["a cat sat .", "dogs"], ["a cat sits.", "dogs"]
    import sacrebleu.metrics as metrics

    for text, tokenize in (("tok", "none"), ("raw", "13a")):
        bleu = metrics.BLEU(tokenize=tokenize, force=True)
        chrf = metrics.CHRF()
        expected = Score(
            bleu.corpus_score(said, [wanted]).score,
            chrf.corpus_score(said, [wanted]).score,
            str(bleu.get_signature()),
            str(chrf.get_signature()),
        )
        assert score(tuple(said), tuple(wanted), text) == expected
    assert score(said, wanted) == score(said, wanted, "tok") != expected
    with pytest.raises(
        ValueError,
        match=exactly("sentences must be a whole number of at least 1, got 0"),
    ):
        score([], [])
    said = "each translation needs one reference, got 1 and 2"
    with pytest.raises(ValueError, match=exactly(said)):
        score(["one"], ["one", "two"])


def test_a_score_of_tokenised_text_raises_no_alarm(caplog):
    score(["a cat sat ."] * 200, ["a cat sits ."] * 200)
    assert not caplog.records


# Translators


def test_why_a_translator_and_its_subwords_do_not_fit(subwords):
    size = subwords.size
    for sizes in ((size, size + 1), (size + 1, size)):
        model = Transformer(TransformerConfig(*sizes, 8, 2, 1, 1, 8))
        said = (
            f"the model has tables of {sizes[0]} and {sizes[1]} ids, but there are "
            f"{size} subwords"
        )
        with pytest.raises(ValueError, match=exactly(said)):
            SubwordTranslator(model, subwords)


def test_a_translator_is_kept_with_all_it_needs(subwords, tmp_path):
    translator = SubwordTranslator(FEW.model(subwords.size), subwords)
    assert not translator.model.training
    assert (translator.languages, translator.text) == (("en", "de"), "tok")
    other = SubwordTranslator(translator.model, subwords, ("fr", "en"), "raw")
    other.save(tmp_path / "model.safetensors")
    for path in (tmp_path, tmp_path / "model.safetensors", str(tmp_path)):
        again = SubwordTranslator.load(path)
        assert (again.languages, again.text) == (("fr", "en"), "raw")
        assert again.subwords.to_json() == subwords.to_json()
        weights, same = (one.model.state_dict() for one in (other, again))
        assert all(weights[name].equal(same[name]) for name in weights)
    _, notes = read_checkpoint(tmp_path / "model.safetensors")
    assert notes["languages"] == "fr en"
    translator.model.save(tmp_path / "old", {"subwords": subwords.to_json()})
    old = SubwordTranslator.load(tmp_path / "old")
    assert (old.languages, old.text) == (("", ""), "tok")
    translator.model.save(tmp_path / "none", {})
    said = f"{tmp_path / 'none'} holds a model without subwords"
    with pytest.raises(ValueError, match=exactly(said)):
        SubwordTranslator.load(tmp_path / "none")


def test_the_mean_of_the_last_epochs_weights(subwords, tmp_path):
    models = []
    for epoch in (2, 9, 10):
        model = dataclasses.replace(FEW, seed=epoch).model(subwords.size)
        translator = SubwordTranslator(model, subwords, ("fr", "en"), "raw")
        translator.save(tmp_path / f"epoch-{epoch:04}.safetensors")
        models.append(model)
    mean = SubwordTranslator.load(tmp_path, average=2)
    assert (mean.languages, mean.text) == (("fr", "en"), "raw")
    for mine, *theirs in zip(
        *(model.parameters() for model in (mean.model, *models[1:])), strict=True
    ):
        assert torch.equal(mine, (theirs[0] + theirs[1]) / 2)
        assert mine.requires_grad
    mean = SubwordTranslator.load(tmp_path, 3).model.output.weight
    ends = torch.stack([model.output.weight for model in models])
    assert torch.equal(mean, ends.mean(dim=0))
    last = SubwordTranslator.load(tmp_path, 1).model.output.weight
    assert torch.equal(last, models[-1].output.weight)
    said = f"{tmp_path} keeps 3 epochs, not 4"
    with pytest.raises(ValueError, match=exactly(said)):
        SubwordTranslator.load(tmp_path, 4)
    file = tmp_path / "epoch-0002.safetensors"
    said = f"{file} is no folder of a run, and holds no epochs"
    with pytest.raises(ValueError, match=exactly(said)):
        SubwordTranslator.load(file, 1)
    others = {"num_heads": 4}, {"layers": 2}, {"d_ff": 9}, {"norm_first": True}
    for other in others:
        model = dataclasses.replace(FEW, **other).model(subwords.size)
        SubwordTranslator(model, subwords).save(tmp_path / "epoch-0011.safetensors")
        said = f"{tmp_path} keeps epochs of different models"
        with pytest.raises(ValueError, match=exactly(said)):
            SubwordTranslator.load(tmp_path, 2)


class Asked:
    """What searches, and keeps what it was asked; its answers are the questions."""

    def __init__(self):
        self.calls = []

    def beam_search(self, sources, *how):
        self.calls.append((sources, *how))
        return sources


def test_what_is_searched_for_together(subwords, monkeypatch):
    just, more = (" ".join("x" * n) for n in (60, 61))
    room = len(subwords.encode(just))
    settings = dataclasses.replace(FEW, max_length=room)
    translator = SubwordTranslator(settings.model(subwords.size), subwords)
    monkeypatch.setattr(translator, "speaker", lambda: asked)
    letters = {n: " ".join("x" * n) for n in (3, 4, 5, 8, 9, 12, 17, 40)}
    counts = {n: len(subwords.encode(text)) for n, text in letters.items()}
    assert list(counts.values()) == [2 * n for n in counts]
    asked = Asked()
    sentences = [letters[n] for n in (8, 3, 12, 4, 5, 9, 40, 4, 17)]
    said = translator.translate(["", *sentences, " "], 3, 0.5, batch=2)
    assert said[0] == said[-1] == ""
    assert said[1:-1] == [
        subwords.decode(subwords.encode(sentence)) for sentence in sentences
    ]
    seen = [len(one) for some, *_ in asked.calls for one in some]
    assert seen == sorted(seen)
    for some, most, *how in asked.calls:
        assert how == [3, 0.5]
        assert len(some) <= 2
        assert {min(room, 16 * math.ceil(len(one) / 8) + 10) for one in some} == {most}
    assert {most for _, most, *_ in asked.calls} == {26, 42, 58, 90, 120}
    asked = Asked()
    assert translator.translate(sentences[:1] * 65) == said[1:2] * 65
    assert [(len(some), *how) for some, _, *how in asked.calls] == [
        (64, 5, 1.0),
        (1, 5, 1.0),
    ]
    said = f"sentence 3 is too long: {len(subwords.encode(more))} subwords, at most "
    with pytest.raises(ValueError, match=exactly(f"{said}{room} fit")):
        translator.translate(["le", just, more, more])
    monkeypatch.setattr(asked, "beam_search", lambda *_: [])
    with pytest.raises(ValueError, match="shorter than"):  # an answer is missing
        translator.translate(sentences)


def test_who_searches_is_made_of_the_model_as_it_is(subwords, monkeypatch):
    monkeypatch.setattr(translation, "Speaker", lambda *what: what)
    translator = SubwordTranslator(FEW.model(subwords.size), subwords)
    assert translator.speaker() == (translator.model,)


def test_a_translator_of_a_run(lessons):
    raw = lessons._replace(text="raw")
    model = FEW.model(lessons.subwords.size)
    made = FEW.translator(model, raw)
    assert made.model is model
    assert made.subwords is lessons.subwords
    assert (made.languages, made.text) == (("fr", "en"), "raw")


# Runs


def run(lessons, folder, settings=FEW, steps=99, **options):
    """A run of a few steps, or the beginning of one."""
    going = train_translator(lessons, settings, folder, **options)
    moments = [now for _, now in zip(range(steps), going, strict=False)]
    going.close()
    return moments


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def test_the_files_of_a_run(lessons, tmp_path):
    moments = run(lessons, tmp_path, every=1, keep=2)
    per_epoch = moments[-1].total // 3
    assert [now.step for now in moments] == list(range(1, 3 * per_epoch + 1))
    assert per_epoch > 1
    assert [now.epoch for now in moments] == [
        epoch for epoch in (1, 2, 3) for _ in range(per_epoch)
    ]
    last = 3 * per_epoch
    kept = ["run.json", "run.lock", "metrics.jsonl", "model.safetensors"]
    kept += [f"training-{step:08}.safetensors" for step in (last - 1, last)]
    kept += [f"epoch-{epoch:04}.safetensors" for epoch in (2, 3)]
    assert names(tmp_path) == sorted(kept)
    about = {
        "languages": "fr en",
        "text": "tok",
        "lessons": lessons.digest(),
        **dataclasses.asdict(FEW),
    }
    del about["epochs"], about["patience"]
    assert read_note(tmp_path / "run.json") == about
    for now in moments:
        assert now.rate == FEW.rate(now.step, last)
        assert (now.checked is None) == (now.bleu is None) == bool(now.step % per_epoch)
    again = run(lessons, None)
    strip = {"seconds": 0.0}
    assert [now._replace(**strip) for now in again] == [
        now._replace(**strip) for now in moments
    ]


def test_one_writes_at_a_time(tmp_path, monkeypatch):
    made = []

    class Lock:
        trouble = None

        def __init__(self, path, is_singleton):
            made.append((path, is_singleton))

        def acquire(self, blocking):
            made.append(blocking)
            if self.trouble:
                raise self.trouble

    monkeypatch.setattr(translation, "FileLock", Lock)
    folder = RunFolder(tmp_path, FEW, {})
    folder.hold()
    assert made == [(tmp_path / "run.lock", True), False]
    assert isinstance(folder.lock, Lock)
    for trouble, said in (
        (translation.Timeout("x"), f"another training is writing to {tmp_path}"),
        (OSError("no locks"), f"cannot keep a run in {tmp_path}: no locks"),
    ):
        Lock.trouble = trouble
        with pytest.raises(ValueError, match=exactly(said)) as told:
            folder.hold()
        assert told.value.__suppress_context__


def test_what_a_run_does_unless_told():
    told = inspect.signature(train_translator).parameters
    assert (told["every"].default, told["keep"].default) == (200, 10)
    assert told["say"].default("nobody hears") is None


def test_what_stands_in_tables_and_types():
    assert get_args(translation.SentencePair) == (str, str)
    assert set(translation.PLAIN_SIGNS) == set(map(ord, "’‘“”„«»–—…"))


def test_which_sentences_each_step_learns_from(lessons, monkeypatch):
    batches, step = [], Trainee.step
    monkeypatch.setattr(
        Trainee,
        "step",
        lambda self, batch, *how: (
            batches.append((batch, *how)) or step(self, batch, *how)
        ),
    )
    settings = dataclasses.replace(FEW, schedule="cosine")
    moments = run(lessons, None, settings)
    lengths = [max(len(a), len(b) + 1) for a, b in lessons.train]
    number = 0
    for epoch in (1, 2, 3):
        rng = random.Random(f"{FEW.seed} {epoch}")
        for indices in translation.batches_by_tokens(lengths, FEW.step_tokens, rng):
            batch, *how = batches[number]
            assert batch == [lessons.train[index] for index in indices]
            assert how == [number + 1, settings.rate(number + 1, len(moments))]
            assert moments[number].tokens == sum(len(b) + 1 for _, b in batch)
            number += 1
    assert number == len(batches) == len(moments)


def test_a_checkpoint_every_so_many_steps_and_at_an_epochs_end(
    lessons, tmp_path, monkeypatch
):
    saved = []
    monkeypatch.setattr(
        RunFolder, "save", lambda self, trainee, step: saved.append(step)
    )
    moments = run(lessons, tmp_path, every=3)
    ends = [now.step for now in moments if now.checked is not None]
    assert saved == sorted({*ends, *range(3, len(moments) + 1, 3)})
    saved.clear()
    run(lessons, tmp_path / "other")
    assert saved == ends


class Alone(nn.Module):
    """In place of what meets other processes."""

    def __init__(self, lesson):
        super().__init__()
        self.lesson = lesson

    def forward(self, *ids):
        return self.lesson(*ids)

    def no_sync(self):
        return contextlib.nullcontext()


def test_who_is_not_the_first_writes_nothing(lessons, tmp_path, monkeypatch):
    monkeypatch.setattr(nn.parallel, "DistributedDataParallel", Alone)
    monkeypatch.setattr(Crew, "total", lambda self, number: number * self.size)
    run(lessons, tmp_path / "run", steps=3, every=1)
    there = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    assert run(lessons, tmp_path / "run", crew=Crew(1, 2), every=1)[0].step == 4
    assert there == {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    monkeypatch.setattr(Crew, "total", lambda self, number: number + 1)
    said = f"not all processes find the same run in {tmp_path / 'run'}"
    with pytest.raises(ValueError, match=exactly(said)):
        run(lessons, tmp_path / "run", crew=Crew(1, 2), every=1)
    monkeypatch.setattr(Crew, "total", lambda self, number: number * self.size)
    tmp_path /= "other"
    moments = run(lessons, tmp_path, crew=Crew(1, 2), every=1)
    assert names(tmp_path) == ["run.json"]  # the settings, which are everybody's
    ends = [now for now in moments if now.checked is not None]
    assert len(ends) == 3
    assert {(now.checked, now.bleu) for now in ends} == {(0.0, 0.0)}  # others measure


def test_what_a_run_is_refused_for(lessons, tmp_path):
    run(lessons, tmp_path, steps=2, every=1)
    other = dataclasses.replace(FEW, peak=0.02)
    said = f"{tmp_path} holds another run: its peak is 0.01, here 0.02"
    with pytest.raises(ValueError, match=exactly(said)):
        run(lessons, tmp_path, other)
    raw = lessons._replace(text="raw")
    said = f"{tmp_path} holds another run: its text is tok, here raw"
    with pytest.raises(ValueError, match=exactly(said)):
        run(raw, tmp_path)
    damaged = list(tmp_path.glob("training-*"))
    for path in damaged:
        path.write_bytes(path.name.encode())
    with pytest.raises(ValueError, match="no checkpoint can be read") as told:
        run(lessons, tmp_path)
    said = f"no checkpoint can be read: {max(damaged)} is not a whole safetensors file"
    assert str(told.value).startswith(said)
    for name in ("every", "keep"):
        said = f"{name} must be a whole number of at least 1, got 0"
        with pytest.raises(ValueError, match=exactly(said)):
            run(lessons, tmp_path, **{name: 0})
    astray = dataclasses.replace(FEW, peak=1e30, warmup=1, max_norm=1e30)
    with pytest.raises(ValueError, match=r"^step \d+ went astray: try a lower peak$"):
        run(lessons, None, astray)


def test_a_run_goes_on_where_it_was(lessons, tmp_path):
    said = []
    whole = run(lessons, tmp_path / "whole", every=1)
    part = run(lessons, tmp_path / "run", steps=4, every=1)
    assert len(part) == 4
    last = tmp_path / "run" / "training-00000004.safetensors"
    last.write_bytes(b"")
    rest = run(lessons, tmp_path / "run", every=1, say=said.append)
    assert rest[0].step == 4
    (why,) = said
    assert why.startswith(f"{last} ")
    assert why.endswith("; going on from training-00000003.safetensors instead")
    lines = [read_metrics(tmp_path / name) for name in ("run", "whole")]
    for one, other in zip(*lines, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
    seconds = [line["seconds"] for line in lines[0]]
    assert seconds == sorted(seconds)
    assert len(whole) == len(lines[0])


def test_a_run_that_is_not_kept_counts_its_seconds(lessons, monkeypatch):
    ticks = iter(range(5, 99))
    clock = types.SimpleNamespace(perf_counter=lambda: next(ticks))
    monkeypatch.setattr(translation, "time", clock)
    moments = run(lessons, None)
    assert [now.seconds for now in moments] == list(range(1, len(moments) + 1))


@pytest.mark.parametrize(("patience", "last"), [(1, 3), (2, 4), (3, 9)])
def test_when_a_run_ends(lessons, monkeypatch, patience, last):
    losses = iter([3.0, 2.0, 2.5, 2.0, 1.0, 0.9, 0.8, 0.7, 0.6])
    monkeypatch.setattr(translation, "mean_loss", lambda *_: next(losses))
    monkeypatch.setattr(SubwordTranslator, "translate", lambda self, those, *_: those)
    settings = dataclasses.replace(FEW, epochs=9, patience=patience)
    said = []
    assert run(lessons, None, settings, say=said.append)[-1].epoch == last
    ends = [f"no better for {patience} epochs: the run ends"]
    assert said == (ends if last < 9 else [])


def test_a_run_that_is_over_has_no_more_epochs_to_do_without(
    lessons, tmp_path, monkeypatch
):
    losses = iter([1.0, 2.0, 3.0])
    monkeypatch.setattr(translation, "mean_loss", lambda *_: next(losses))
    said = []
    assert len(run(lessons, tmp_path)) > 3
    impatient = dataclasses.replace(FEW, patience=1)
    assert run(lessons, tmp_path, impatient, say=said.append) == []
    assert said == []
    longer = dataclasses.replace(impatient, epochs=4)
    assert run(lessons, tmp_path, longer, say=said.append) == []
    assert said == ["no better for 1 epochs: the run ends"]


@pytest.mark.parametrize("there", [True, False])
def test_which_devices_are_made_for_bf16(monkeypatch, there):
    asked = []

    def gpu(**how):
        asked.append(how)
        return there

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", gpu)
    monkeypatch.setattr(
        torch.cpu, "_is_amx_tile_supported", lambda: not there, raising=False
    )
    assert translation.made_for_bf16("cuda") is there
    assert asked == [{"including_emulation": False}]
    assert translation.made_for_bf16("cpu") is not there
    assert len(asked) == 1
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported")
    assert translation.made_for_bf16("cpu") is False


def test_what_is_gone_already_need_not_be_removed(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path, FEW, {})
    gone = tmp_path / "training-00000009.safetensors"
    monkeypatch.setattr(RunFolder, "checkpoints", lambda self: [gone])
    assert folder.forget(3) == 0.0


def test_what_is_written_after_the_last_checkpoint_is_forgotten(lessons, tmp_path):
    run(lessons, tmp_path, steps=4, every=2)
    about = {"languages": "fr en", "text": "tok", "lessons": lessons.digest()}
    folder = RunFolder(tmp_path, FEW, about)
    lines = read_metrics(tmp_path)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    (tmp_path / "half.part").touch()
    before = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = names(tmp_path)
    assert folder.forget(3) == max(line["seconds"] for line in lines[:3])
    assert (tmp_path / "metrics.jsonl").read_text() == "".join(before[:3])
    gone = {"half.part", "training-00000004.safetensors"}
    assert names(tmp_path) == sorted(set(kept) - gone)
    (tmp_path / "training-12345678.safetensors").touch()
    folder.forget(3_000_000)
    assert names(tmp_path) == sorted(set(kept) - gone)
    folder.forget(2)
    assert "training-00000002.safetensors" in names(tmp_path)
    assert len(read_metrics(tmp_path)) == 2
    assert folder.forget(0) == 0.0
    assert (tmp_path / "metrics.jsonl").read_text() == ""
    assert not [name for name in names(tmp_path) if name.startswith("training")]


def test_a_line_of_metrics_has_what_there_is(tmp_path):
    folder = RunFolder(tmp_path, FEW, {})
    plain = Moment(1, 9, 1, 2.5, 0.1, 1.0, 7, 0.5)
    checked = plain._replace(step=2, checked=1.5, bleu=30.0)
    folder.note(plain)
    folder.note(checked)
    lines = (tmp_path / "metrics.jsonl").read_text().split("\n")
    said = plain._asdict()
    del said["checked"], said["bleu"]
    assert lines == [json.dumps(said), json.dumps(checked._asdict()), ""]
    assert read_metrics(str(tmp_path)) == [said, checked._asdict()]
    with (tmp_path / "metrics.jsonl").open("a") as file:
        for wrong in (
            *(
                "[" * 99_999,
                "7",
                "[]",
                "{}",
                "{",
                "null",
                json.dumps({**said, "step": "1"}),
            ),
            json.dumps({**said, "checked": 1.0}),
            json.dumps({**said, "more": 1.0}),
        ):
            file.write(wrong + "\n")
    assert len(read_metrics(tmp_path)) == 2
    assert read_metrics(tmp_path / "nowhere") == []


def test_why_nothing_can_be_written(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path, FEW, {})
    rest = "and the same command goes on from it once there is room"
    for error, why in (
        (OSError(28, "No space"), "No space"),
        (OSError("odd"), "odd"),
    ):
        for name, kept in (
            ("", "no checkpoint is kept yet"),
            ("training-00000007.safetensors", "training-00000007.safetensors is kept"),
        ):
            for old in tmp_path.glob("training-*"):
                old.unlink()
            if name:
                (tmp_path / name).touch()
            said = f"cannot write to {tmp_path}: {why}; {kept}, {rest}"
            with pytest.raises(ValueError, match=exactly(said)), folder._explained():
                raise error
    with pytest.raises(KeyError), folder._explained():
        raise KeyError


def test_a_note_that_is_none(tmp_path):
    for text, why in (
        ("[]", r"a dictionary should be in it$"),
        ("7", r"a dictionary should be in it$"),
        ("{", r"Expecting property name"),
        ("[" * 99_999, r"."),
    ):
        (tmp_path / "note").write_text(text)
        with pytest.raises(ValueError, match=rf"/note is damaged: {why}"):
            read_note(tmp_path / "note")


def test_checkpoints_the_newest_first(tmp_path):
    folder = RunFolder(tmp_path, FEW, {})
    for step in (9, 10, 8):
        (tmp_path / f"training-{step:08}.safetensors").touch()
    for other in ("best.safetensors", "x0000011.safetensors", "00000011.other"):
        (tmp_path / f"training-{other}").touch()
    found = [int(path.stem[9:]) for path in folder.checkpoints()]
    assert found == [10, 9, 8]


class Fixed:
    """A trainee that cannot learn: what the end of an epoch does with it shows."""

    def __init__(self, lessons, best):
        self.settings, self.crew = dataclasses.replace(FEW, bf16=True), Crew()
        self.model = FEW.model(lessons.subwords.size)
        self.best, self.best_epoch = best, 1

    def averaged(self):
        return contextlib.nullcontext(self.model)


@pytest.mark.parametrize(("best", "better"), [(3.0, True), (2.5, False), (2.0, False)])
@pytest.mark.parametrize("kept", [True, False])
def test_the_end_of_an_epoch(lessons, tmp_path, monkeypatch, best, better, kept):
    asked = collections.defaultdict(list)

    def watch(place, name, answer):
        monkeypatch.setattr(
            place, name, lambda *what, **how: asked[name].append((what, how)) or answer
        )

    watch(translation, "mean_loss", 2.5)
    watch(translation, "score", Score(33.0, 50.0, "", ""))
    watch(SubwordTranslator, "translate", ["said", "words"])
    folder = RunFolder(tmp_path, FEW, {}) if kept else None
    for epoch in (5, 6, 7):
        (tmp_path / f"epoch-{epoch:04}.safetensors").touch()
    trainee = Fixed(lessons, best)
    before = Moment(8, 9, 8, 2.5, 0.1, 1.0, 7, 0.5)
    after = translation._end_epoch(trainee, lessons, before, folder, 2)
    assert after == before._replace(checked=2.5, bleu=33.0)
    assert (trainee.best, trainee.best_epoch) == ((2.5, 8) if better else (best, 1))
    (((lesson, check, room), _),) = asked["mean_loss"]
    assert lesson.model is trainee.model
    assert (lesson.smoothing, lesson.bf16) == (0.0, True)
    assert (check, room) == (lessons.check, FEW.part_tokens)
    (((sentences, beam), how),) = [(what[-2:], how) for what, how in asked["translate"]]
    assert (sentences, beam, how) == ([a for a, _ in PAIRS[:2]], 1, {})
    assert asked["score"] == [
        ((["said", "words"], [b for _, b in PAIRS[:2]], "tok"), {})
    ]
    files = [
        f"epoch-{epoch:04}.safetensors" for epoch in ((7, 8) if kept else (5, 6, 7))
    ]
    files += ["run.json"] * kept + ["model.safetensors"] * (kept and better)
    assert names(tmp_path) == sorted(files)
    if kept:
        assert SubwordTranslator.load(tmp_path / files[1]).languages == ("fr", "en")


def test_a_step_by_hand(lessons):
    settings = dataclasses.replace(FEW, part_tokens=99, max_norm=0.5, memory=0.9)
    size = lessons.subwords.size
    trainee = Trainee(settings, size, Crew())
    model = settings.model(size)
    lesson = Lesson(model, 0.1, False)
    adam = translation.papers_adam(model)
    mean = [weight.detach().clone() for weight in model.parameters()]
    for number, rate in ((1, 0.01), (2, 0.02), (300, 0.005)):
        batch = lessons.train[number % 2 :]
        lesson.train()
        adam.zero_grad()
        tokens = sum(len(b) + 1 for _, b in batch)
        loss = lesson(*translation.make_batch(sorted(batch, key=translation._length)))
        (loss * (1 / tokens)).backward()
        gradient = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for group in adam.param_groups:
            group["lr"] = rate
        adam.step()
        share = min(0.9, number / (10 + number))
        for old, new in zip(mean, model.parameters(), strict=True):
            old.mul_(share).add_(new.detach(), alpha=1 - share)
        trainee.lesson.eval()  # as a validation leaves it
        found = trainee.step(batch, number, rate)
        assert found == pytest.approx((loss.item() / tokens, gradient.item()), rel=1e-5)
        pairs = [
            *zip(trainee.model.parameters(), model.parameters(), strict=True),
            *zip(trainee.mean.values(), mean, strict=True),
        ]
        for one, other in pairs:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    own = [weight.detach().clone() for weight in trainee.model.parameters()]
    assert trainee.lesson.training
    with trainee.averaged() as averaged:
        assert not averaged.training
        for one, other in zip(averaged.parameters(), mean, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    for one, other in zip(trainee.model.parameters(), own, strict=True):
        assert torch.equal(one, other)


def test_what_a_steps_dropout_draws_from(lessons, monkeypatch):
    def drawn(number, rank, seed):
        settings = dataclasses.replace(FEW, seed=seed)
        trainee = Trainee(settings, lessons.subwords.size, Crew())
        trainee.crew = Crew(rank, 2)
        with pytest.raises(InterruptedError):
            trainee.step(lessons.train, number, 0.01)
        return seeds.pop()

    def manual_seed(number):
        seeds.append(number)
        raise InterruptedError

    seeds = []
    monkeypatch.setattr(torch, "manual_seed", manual_seed)
    asked = [(n, r, s) for n in (1, 2, 11) for r in (0, 1) for s in (1, 11, 12)]
    found = [drawn(*one) for one in asked]
    assert len(set(found)) == len(asked)
    assert found == [drawn(*one) for one in asked]
    assert max(found) < 2**60  # which every generator takes
    assert max(found) >= 2**59


def test_a_crews_loss_is_everybodys(lessons, monkeypatch):
    trainee = Trainee(FEW, lessons.subwords.size, Crew())
    trainee.crew = Crew(1, 3)
    lesson = Lesson(FEW.model(lessons.subwords.size), FEW.smoothing, False)
    monkeypatch.setattr(Crew, "total", lambda self, number: number + 6.0)
    (mine,) = lessons.train[1::3]
    own = lesson(*translation.make_batch([mine])).item()
    tokens = sum(len(b) + 1 for _, b in lessons.train)
    loss, _ = trainee.step(lessons.train, 1, 0.01)
    assert loss == pytest.approx((3 * own / tokens + 6.0) / 3, rel=1e-5)


def test_a_trainee_is_where_its_crew_is(lessons):
    there = Trainee(FEW, lessons.subwords.size, Crew(device=torch.device("meta")))
    for weight in (*there.model.parameters(), *there.mean.values()):
        assert weight.device.type == "meta"
    here = Trainee(FEW, lessons.subwords.size, Crew())
    assert (here.best, here.best_epoch) == (math.inf, 0)


class Told(nn.Module):
    """In a lesson's place: keeps where the ids are and how many, and stops there."""

    def forward(self, *ids):
        self.where = [one.device.type for one in ids]
        self.sentences = [len(one) for one in ids]
        raise InterruptedError


def test_sentences_go_where_the_crew_is(lessons):
    trainee = Trainee(FEW, lessons.subwords.size, Crew())
    trainee.crew, trainee.lesson = Crew(device=torch.device("meta")), Told()
    with pytest.raises(InterruptedError):
        trainee.step(lessons.train, 1, 0.01)
    assert trainee.lesson.where == ["meta"] * 3
    trainee.crew = Crew(2, 3)  # without a share: one sentence, which counts nothing
    with pytest.raises(InterruptedError):
        trainee.step(lessons.train[:2], 1, 0.01)
    assert trainee.lesson.sentences == [1, 1, 1]


class Halves(nn.Module):
    """A model of which only what a lesson asks of it is there."""

    def __init__(self):
        super().__init__()
        self.config = types.SimpleNamespace(pad_id=0)
        self.output = nn.Linear(2, 5)
        self.asked = []

    def encode(self, source):
        return source

    def decode(self, *asked):
        self.asked = asked
        return torch.arange(6.0).view(1, 3, 2)


@pytest.mark.parametrize("bf16", [True, False])
@pytest.mark.parametrize(("device", "rows"), [("cpu", 512), ("meta", 8192)])
def test_what_a_lesson_asks(monkeypatch, device, rows, bf16):
    asked, halved = [], []
    monkeypatch.setattr(
        translation, "summed_loss", lambda *what: asked.append(what) or torch.zeros(())
    )
    monkeypatch.setattr(
        translation,
        "half_precision",
        lambda where: halved.append(where) or contextlib.nullcontext(),
    )
    masks, padding_mask = [], translation.padding_mask
    monkeypatch.setattr(
        translation,
        "padding_mask",
        lambda *what: masks.append(what) or padding_mask(*what),
    )
    model = Halves()
    lesson = Lesson(model, 0.3, bf16)
    source = torch.tensor([[4, 0]], device=device)
    given, wanted = torch.tensor([[1, 4, 3]]), torch.tensor([[4, 0, 2]])
    lesson.train()(source, given, wanted)
    lesson.eval()(source, given, wanted)
    assert halved == [device] * 2 * bf16
    assert [what[3:] for what in asked] == [(0.3, rows), (0.0, rows)]
    for hidden, table, real, *_ in asked:
        assert hidden.tolist() == [[0.0, 1.0], [4.0, 5.0]]
        assert table is model.output.weight
        assert real.tolist() == [4, 2]
    words, memory, mask = model.asked
    assert words is given
    assert memory is source
    assert mask.device.type == device
    assert masks[0][0] is source
    assert masks[0][1] == 0
    if device == "cpu":
        assert torch.equal(mask, padding_mask(source, 0))


def test_which_sentences_are_validated_together(lessons):
    examples = lessons.train * 6
    lesson, seen = Lesson(FEW.model(lessons.subwords.size), 0.0, False), []
    lesson.register_forward_pre_hook(
        lambda _, ids: seen.append([*map(torch.Tensor.tolist, ids)])
    )
    mean_loss(lesson, examples, 30)
    planned = translation.plan_batches(examples, 30, epochs=1, seed=0)
    assert seen == [
        [one.tolist() for one in translation.make_batch([examples[i] for i in indices])]
        for indices in planned
    ]


def test_a_validation_loss_by_hand(lessons):
    lesson = Lesson(FEW.model(lessons.subwords.size), 0.3, False)
    alone = Lesson(lesson.model, 0.0, False)
    total = 0.0
    for example in lessons.train:
        total += alone.eval()(*translation.make_batch([example])).item()
    tokens = sum(len(b) + 1 for _, b in lessons.train)
    lesson.train()
    modes = []
    lesson.register_forward_pre_hook(
        lambda *_: modes.append(torch.is_inference_mode_enabled())
    )
    found = mean_loss(lesson, lessons.train, 20)
    assert set(modes) == {True}  # nothing is remembered for a gradient
    assert found == pytest.approx(total / tokens, rel=1e-5)
    assert not lesson.training
