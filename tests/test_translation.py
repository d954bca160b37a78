"""Chapter 16's parts: corpus, subwords, a step, translating and measuring."""

import contextlib
import dataclasses
import gzip
import hashlib
import http.server
import io
import json
import math
import random
import re
import sys
import threading
import types
from pathlib import Path

import pytest
import torch
from small_runs import REAL, SMALL, partly, write_corpus
from torch import nn

from transformer import Transformer, TransformerConfig, translation
from transformer.__main__ import main
from transformer.data import make_batch
from transformer.faster import CoarseDropout
from transformer.training import label_smoothed_loss
from transformer.translation import (
    MULTI30K_SHA256,
    PRESETS,
    Crew,
    Lesson,
    Settings,
    Subwords,
    SubwordTranslator,
    Trainee,
    as_tokenized,
    fetch_multi30k,
    made_for_bf16,
    mean_loss,
    prepare,
    read_pairs,
    score,
)

with_multi30k = pytest.mark.skipif(not REAL.is_dir(), reason="Multi30k is not here")


# Reading


def test_names_of_multi30k_and_plain_names_packed_or_not(tmp_path):
    names = "tok/val.lc.norm.tok.en", "val.lc.norm.tok.en", "tok/val.en", "val.en"
    for name in names:
        for packed in (False, True):
            folder = tmp_path / name.replace("/", "-") / str(packed)
            for language in ("en", "de"):
                text = f"one {language}\ntwo\n".encode()
                path = folder / (name[:-2] + language + ".gz" * packed)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(gzip.compress(text) if packed else text)
            pairs = read_pairs(folder, "tok", "val", "en", "de")
            assert pairs == [("one en", "one de"), ("two", "two")]


def test_pairs_that_cannot_be_read_say_which(tmp_path):
    with pytest.raises(ValueError, match=r"neither raw/train\.en, nor train\.en"):
        read_pairs(tmp_path, "raw", "train", "en", "de")
    (tmp_path / "val.en").write_text("one\ntwo\n")
    (tmp_path / "val.de").write_text("eins\n")
    said = r"val\.en and .*val\.de should pair, but have 2 and 1 lines"
    with pytest.raises(ValueError, match=said):
        read_pairs(tmp_path, "raw", "val", "en", "de")
    (tmp_path / "val.de").write_text("eins\n\n")
    assert read_pairs(tmp_path, "raw", "val", "en", "de") == [("one", "eins")]
    (tmp_path / "val.de").write_text("\n \n")
    with pytest.raises(ValueError, match=r"val\.en holds no sentences"):
        read_pairs(tmp_path, "raw", "val", "en", "de")
    (tmp_path / "val.de").write_bytes(b"\xff\xfe\n")
    with pytest.raises(ValueError, match=r"val\.de cannot be read as text"):
        read_pairs(tmp_path, "raw", "val", "en", "de")
    packed = gzip.compress(b"one\n" * 99)
    (tmp_path / "test.de").write_text("eins\n")
    false_block = packed[:10] + b"\xff" + packed[11:]  # zlib's own error
    flipped = packed[:12] + b"\xff" + packed[13:]
    for broken in (b"not packed", packed[:-9], false_block, flipped):
        (tmp_path / "test.en.gz").write_bytes(broken)
        with pytest.raises(ValueError, match=r"test\.en\.gz cannot be read as text"):
            read_pairs(tmp_path, "raw", "test", "en", "de")


# Fetching


@contextlib.contextmanager
def served(files, cut=None, length=True):
    """A web server that knows some files, and may break off in one of them."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            data = files.get(self.path.lstrip("/"))
            if data is None:
                self.send_error(404)
                return
            self.send_response(200)
            if length:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2] if self.path[1:] == cut else data)

        def log_message(self, *_):
            pass

    asked = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def repository(monkeypatch):
    """Small files in place of Multi30k's, and their checksums."""
    files = {}
    for split, name in translation.SPLITS.items():
        for language in ("en", "de"):
            text = f"{split} {language}\n".encode() * 12_000  # more than one piece
            files[f"raw/{name}.{language}.gz"] = gzip.compress(text, mtime=0)
            files[f"tok/{name}.lc.norm.tok.{language}"] = text
            for kind in ("raw", "tok"):
                key, digest = f"{kind}/{split}.{language}", hashlib.sha256(text)
                monkeypatch.setitem(MULTI30K_SHA256, key, digest.hexdigest())
    return files


@pytest.mark.parametrize("text", ["raw", "tok"])
def test_fetching_brings_what_is_missing_once(tmp_path, repository, text):
    heard = []
    with served(repository) as (address, asked):
        for _ in range(2):
            fetch_multi30k(
                tmp_path, text, ("en", "de"), lambda *now: heard.append(now), address
            )
    assert len(asked) == 6
    last = {name: (done, total) for name, done, total in heard}
    assert len(last) == 6
    assert all(done == total > 0 for done, total in last.values())
    if text == "tok":
        assert len(heard) >= 12  # progress, not only the end
    pairs = read_pairs(tmp_path, text, "test", "en", "de")
    assert pairs == [("test en", "test de")] * 12_000
    (tmp_path / translation.multi30k_name(text, "val", "de")).unlink()
    with served(repository) as (address, asked):
        fetch_multi30k(tmp_path, text, ("en", "de"), address=address)
    assert len(asked) == 1  # what is there is not asked for


def test_what_was_fetched_by_hand_is_used(tmp_path, repository):
    for name, data in repository.items():
        if name.startswith("raw"):
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
    fetch_multi30k(tmp_path, "raw", ("en", "de"), address="http://127.0.0.1:9")
    assert len(read_pairs(tmp_path, "raw", "val", "en", "de")) == 12_000


def test_a_packed_file_with_false_bits_is_refused(tmp_path, repository):
    name = "raw/train.en.gz"
    repository[name] = repository[name][:10] + b"\xff" + repository[name][11:]
    with (
        served(repository) as (address, _),
        pytest.raises(ValueError, match=r"no Multi30k \(.*invalid block.*\): fetch"),
    ):
        fetch_multi30k(tmp_path, "raw", ("en",), address=address)


def test_a_language_that_is_not_there_is_named_before_anything_is_fetched(
    tmp_path, repository
):
    with (
        served(repository) as (address, asked),
        pytest.raises(ValueError, match="text in de, en, fr, got cs"),
    ):
        fetch_multi30k(tmp_path, "raw", ("en", "cs"), address=address)
    assert not asked


def test_a_wrong_file_is_refused_and_not_kept(tmp_path, repository):
    repository["tok/val.lc.norm.tok.en"] += b"one more line\n"
    with (
        served(repository) as (address, _),
        pytest.raises(ValueError, match="not the file expected: its SHA-256 is"),
    ):
        fetch_multi30k(tmp_path, "tok", ("en",), address=address)
    kept = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert kept == ["train.lc.norm.tok.en"]


@pytest.mark.parametrize("name", ["raw/val.en.gz", "tok/val.lc.norm.tok.en"])
@pytest.mark.parametrize("length", [True, False])
def test_a_broken_connection_leaves_no_half_file(tmp_path, repository, name, length):
    text = name[:3]
    told = r"no Multi30k .*: fetch .*val.* yourself"
    if length:
        told = r"no Multi30k \(the connection broke off after \d+ of \d+ bytes\): fetch"
    elif text == "tok":
        told = "is not the file expected"
    with (
        served(repository, cut=name, length=length) as (address, _),
        pytest.raises(ValueError, match=told),
    ):
        fetch_multi30k(tmp_path, text, ("en",), address=address)
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(kept) == 1  # the first was whole, and stayed
    with served(repository) as (address, asked):
        fetch_multi30k(tmp_path, text, ("en",), address=address)
    assert len(asked) == 2


def test_a_file_that_the_server_does_not_have(tmp_path, repository):
    del repository["tok/train.lc.norm.tok.en"]
    with (
        served(repository) as (address, _),
        pytest.raises(ValueError, match=r"no Multi30k \(.*Not Found.*\): fetch http"),
    ):
        fetch_multi30k(tmp_path, "tok", ("en",), address=address)


def elsewhere(monkeypatch, address):
    """What is asked of Multi30k's repository is asked of another address."""
    own = translation.download
    monkeypatch.setattr(
        translation,
        "download",
        lambda url, say: own(url.replace(translation.MULTI30K, address), say),
    )


def test_without_network_one_line_says_what_to_fetch(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("MULTI30K", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    elsewhere(monkeypatch, "http://127.0.0.1:9")
    assert main(["train", "--device", "cpu", "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "tok/train.lc.norm.tok.en yourself into" in said
    assert str(tmp_path / "cache") in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("length", [True, False])
def test_the_commands_fetch_with_progress_into_the_cache(
    tmp_path, monkeypatch, capsys, repository, length
):
    monkeypatch.delenv("MULTI30K", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(translation, "prepare", lambda *_: sys.exit(7))
    with served(repository, length=length) as (address, asked):
        elsewhere(monkeypatch, address)
        with pytest.raises(SystemExit, match="7"):
            main(["train", "--device", "cpu", "--out", str(tmp_path / "run")])
    assert len(asked) == 6
    lines = capsys.readouterr().err.splitlines(keepends=True)
    ends = [line.rpartition("\r")[2] for line in lines if line.endswith("\n")]
    assert len(ends) == 6
    assert ends[0] == "fetching tok/train.lc.norm.tok.en: 100%\n"
    assert any(" bytes\r" in line for line in lines) is not length
    assert (tmp_path / "cache/tested-transformer/multi30k/tok").is_dir()


# Subwords


def test_subwords_give_every_sentence_back(lessons, corpus):
    for split in ("train", "val", "test"):
        for pair in read_pairs(corpus, "tok", split, "fr", "en"):
            for sentence in pair:
                ids = lessons.subwords.encode(sentence)
                assert lessons.subwords.decode(ids) == sentence


def test_raw_text_keeps_its_spaces_and_its_punctuation_apart():
    sentences = ["Ein Hund, zwei Hunde; drei Hunde.", "»Was?«, sagt der Hund."] * 3
    subwords = Subwords.learn(sentences, 80, tokenized=False)
    for sentence in sentences:
        assert subwords.decode(subwords.encode(sentence)) == sentence
    words = subwords.pieces(sentences[0])
    assert all(piece in (",", ";", ".") or piece.strip(",;.") for piece in words)
    assert not any(len(piece) > 1 and set(piece) & set(",;.") for piece in words)


def test_subwords_come_from_the_training_sentences_alone(tmp_path):
    folder = write_corpus(tmp_path / "corpus")
    few = prepare(folder, SMALL, "fr", "en").subwords.to_json()
    for language in ("fr", "en"):
        (folder / f"val.{language}").write_text("xylophone xylophone\n" * 99)
    lessons = prepare(folder, SMALL, "fr", "en")
    assert lessons.subwords.to_json() == few
    assert translation.UNKNOWN in lessons.subwords.encode("ξylophone")


def test_pairs_too_long_for_the_model_are_left_out(tmp_path, lessons):
    folder = write_corpus(tmp_path / "corpus")
    path = folder / "train.fr"
    path.write_text(path.read_text("utf-8").replace("\n", " chat" * 99 + "\n", 1))
    assert len(prepare(folder, SMALL, "fr", "en").train) == len(lessons.train) - 1
    tight = dataclasses.replace(SMALL, part_tokens=2)
    with pytest.raises(ValueError, match="has no pairs of at most 2 subwords"):
        prepare(folder, tight, "fr", "en")


def test_special_symbols_in_a_sentence_are_letters(lessons):
    ids = lessons.subwords.encode("<eos> <pad> le chat")
    assert not {0, 1, 2} & set(ids)


def test_a_description_of_subwords_is_checked(lessons):
    described = lessons.subwords.to_json()
    assert Subwords(described).encode("le chat") == lessons.subwords.encode("le chat")
    with pytest.raises(ValueError, match="no description of subwords"):
        Subwords(described[:-9])
    with pytest.raises(ValueError, match="must be special"):
        Subwords(described.replace("<bos>", "<sos>"))
    with pytest.raises(ValueError, match="types must be at least"):
        Subwords.learn(["some letters"], 5)
    with pytest.raises(ValueError, match="sentences must be"):
        Subwords.learn([], 50)


def test_tokenizing_what_is_tokenized_changes_nothing():
    raw = 'A man\'s dog, "Rex", sits in the A&W stand-in.'
    once = as_tokenized(raw)
    assert once == (
        "a man &apos;s dog , &quot; rex &quot; , sits in the a & w stand-in ."
    ).replace(" & ", " &amp; ")
    assert as_tokenized(once) == once


def test_signs_that_people_type_become_those_of_the_corpus():
    assert as_tokenized("The man’s dog – “Rex” … — runs!") == (
        "the man &apos;s dog - &quot; rex &quot; ... - runs !"
    )
    assert as_tokenized("L’homme attend...", "fr") == "l&apos; homme attend ..."
    assert as_tokenized("Dr. No waits .") == "dr. no waits ."


def test_an_apostrophe_goes_where_its_language_puts_it():
    raw = "L'homme n'a qu'une main."
    once = as_tokenized(raw, "fr")
    assert once == "l&apos; homme n&apos; a qu&apos; une main ."
    assert as_tokenized(once, "fr") == once
    assert as_tokenized("The man's dog", "de") == as_tokenized("The man's dog")


# Settings, and who learns what


def test_the_recipes():
    wanted = {
        "tiny": (9712, 4, 128, 4, 256, 0.3, True, 256, 80, 2048, 2048, 0.005, 2000),
        "small": (9712, 3, 256, 4, 512, 0.3, True, 256, 80, 2048, 2048, 0.0035, 2000),
        "base": (9712, 6, 512, 8, 2048, 0.3, False, 256, 80, 4096, 4096, 0.0007, 4000),
        "toy": (300, 2, 64, 4, 128, 0.1, False, 256, 10, 1024, 4096, 0.003, 100),
        "": (9712, 4, 128, 4, 256, 0.3, False, 256, 80, 4096, 4096, 0.003, 800),
    }
    recipes = PRESETS | {"": Settings()}
    assert recipes.keys() == wanted.keys()
    for name, (*sizes, peak, warmup) in wanted.items():
        rate, rest = ("inverse-sqrt", peak, warmup), (0.1, 1.0, 0.999, 10, False, 1)
        assert recipes[name] == Settings(*sizes, *rate, *rest), name


def test_a_digest_stands_for_every_file():
    languages, splits = ("de", "en", "fr"), ("test", "train", "val")
    names = [f"{t}/{s}.{x}" for t in ("raw", "tok") for s in splits for x in languages]
    assert list(MULTI30K_SHA256) == names
    for digest in MULTI30K_SHA256.values():
        assert len(bytes.fromhex(digest)) == 32
    assert len(set(MULTI30K_SHA256.values())) == 18
    address = r"https://raw\.githubusercontent\.com/multi30k/dataset/\w{40}/data/task1"
    assert re.fullmatch(address, translation.MULTI30K)


def test_tiny_has_the_published_size():
    tiny = PRESETS["tiny"]
    for norm_first, size in ((False, 2_568_192), (True, 2_568_192 + 2 * 256)):
        settings = dataclasses.replace(tiny, norm_first=norm_first)
        trainee = Trainee(settings, tiny.types, Crew())
        assert sum(w.numel() for w in trainee.model.parameters()) == size


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        *(
            ({name: 0}, f"{name} must be a whole number of at least 1, got 0")
            for name in ("types", "epochs", "step_tokens", "part_tokens")
        ),
        ({"warmup": 0}, "warmup must be"),
        ({"patience": 0}, "patience must be"),
        ({"layers": 0}, "num_encoder_layers must be"),
        ({"max_length": 0}, "max_length must be"),
        ({"dropout": 1.0}, "dropout must lie"),
        ({"d_model": 17}, "d_model must be even"),
        ({"smoothing": 1.0}, r"smoothing must lie in \[0, 1\), got 1.0"),
        ({"smoothing": -0.5}, r"smoothing must lie in \[0, 1\), got -0.5"),
        ({"memory": 1.0}, r"memory must lie in \[0, 1\), got 1.0"),
        ({"memory": -0.1}, "memory must lie"),
        ({"peak": 0.0}, "peak must be above 0, got 0.0"),
        ({"max_norm": -1.0}, "max_norm must be above 0, got -1.0"),
        ({"max_norm": math.nan}, "max_norm must be above 0"),
        ({"schedule": "linear"}, "inverse-sqrt or cosine, got 'linear'"),
    ],
)
def test_settings_that_no_run_could_follow(wrong, said):
    with pytest.raises(ValueError, match=said):
        dataclasses.replace(SMALL, **wrong)


def test_schedules_climb_to_the_peak_and_fall():
    for schedule, last in (("inverse-sqrt", 0.1), ("cosine", 0.0)):
        settings = dataclasses.replace(SMALL, schedule=schedule, peak=1.0, warmup=10)
        rates = [settings.rate(step, 1000) for step in range(1, 1001)]
        assert max(rates) == rates[9] == 1.0
        assert rates[4] == 0.5
        assert sorted(rates[9:], reverse=True) == rates[9:]
        assert rates[-1] == pytest.approx(last, abs=1e-9)


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_a_step_is_shared_without_loss(lessons, size):
    batch = lessons.train[:5]
    shares = [Crew(rank, size).share(batch, 30) for rank in range(size)]
    learnt = [one for parts in shares for part in parts for one in part]
    assert sorted(map(str, learnt)) == sorted(map(str, batch))
    for part in (part for parts in shares for part in parts):
        assert len(part) * max(map(translation._length, part)) <= 30


def test_a_trainees_dropouts_draw_few_bits_at_the_settings_rate(lessons):
    trainee = Trainee(SMALL, lessons.subwords.size, Crew())
    dropouts = [m for m in trainee.model.modules() if isinstance(m, torch.nn.Dropout)]
    assert dropouts
    assert all(type(one) is CoarseDropout for one in dropouts)
    assert {one.p for one in dropouts} == {SMALL.dropout}


def test_parts_add_up_to_the_whole_step(lessons):
    still = dataclasses.replace(SMALL, dropout=0.0)
    after = []
    for part in (400, 40):
        settings = dataclasses.replace(still, part_tokens=part)
        trainee = Trainee(settings, lessons.subwords.size, Crew())
        batch = lessons.train[:8]
        assert (len(Crew().share(batch, part)) > 1) is (part == 40)
        losses = [trainee.step(batch, number, 0.001)[0] for number in range(1, 6)]
        after.append(torch.tensor(losses))
    torch.testing.assert_close(*after, rtol=1e-5, atol=0)


def test_a_process_finds_its_place_in_the_crew(monkeypatch):
    started = []
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setattr(torch.distributed, "init_process_group", started.append)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 2)
    assert Crew.join("cpu") == Crew(2, 3, torch.device("cpu"))
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert Crew.join("cuda") == Crew(2, 3, torch.device("cuda", 1))
    assert started == ["gloo", "nccl"]


def test_only_a_crew_shares_its_lesson(monkeypatch, lessons):
    monkeypatch.setattr(nn.parallel, "DistributedDataParallel", lambda one: [one])
    alone, one = (Trainee(SMALL, lessons.subwords.size, Crew(0, n)) for n in (1, 2))
    assert isinstance(alone.lesson, Lesson)
    assert isinstance(one.lesson[0], Lesson)
    assert one.lesson[0].model is one.model


def test_numbers_are_summed_where_the_crew_is(monkeypatch):
    summed = []
    monkeypatch.setattr(torch.distributed, "all_reduce", summed.append)
    assert Crew(0, 2).total(1 / 3) == 1 / 3  # whole, not as a float32 has it
    with pytest.raises(RuntimeError, match="meta"):  # which holds no numbers
        Crew(0, 2, torch.device("meta")).total(1.0)
    assert [number.device.type for number in summed] == ["cpu", "meta"]
    assert Crew(device=torch.device("meta")).total(0.5) == 0.5
    assert len(summed) == 2


def test_a_steps_loss_is_that_of_a_target(lessons):
    settings = dataclasses.replace(SMALL, dropout=0.0)
    trainee = Trainee(settings, lessons.subwords.size, Crew())
    source, given, wanted = make_batch(lessons.train[:5])
    with torch.no_grad():
        expected = label_smoothed_loss(trainee.model(source, given), wanted)
    loss, _ = trainee.step(lessons.train[:5], 1, 0.01)
    assert loss == pytest.approx(expected.item(), rel=1e-5)


def test_a_step_draws_and_adds_up_where_the_crew_is(lessons, monkeypatch):
    trainee = Trainee(SMALL, lessons.subwords.size, Crew())
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 1)
    where, zeros = [], torch.zeros

    def fork(devices):
        where.extend(devices)
        raise InterruptedError

    monkeypatch.setattr(torch.random, "fork_rng", fork)
    monkeypatch.setattr(
        torch, "zeros", lambda size, device: where.append(device) or zeros(size)
    )
    for device, expected in ((cpu, [cpu]), (gpu, [gpu, gpu])):
        where.clear()
        trainee.crew = Crew(device=device)
        with pytest.raises(InterruptedError):
            trainee.step(lessons.train[:5], 1, 0.01)
        assert where == expected


@pytest.mark.parametrize("size", [1, 2])
def test_a_crew_meets_at_a_steps_last_part_alone(lessons, monkeypatch, size):
    class Shared(nn.Module):
        def __init__(self, lesson):
            super().__init__()
            self.lesson = lesson

        def forward(self, *ids):
            events.append("part")
            return self.lesson(*ids)

        @contextlib.contextmanager
        def no_sync(self):
            events.append("alone")
            yield

    events = []
    monkeypatch.setattr(nn.parallel, "DistributedDataParallel", Shared)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda number: None)
    settings = dataclasses.replace(SMALL, part_tokens=40)
    trainee = Trainee(settings, lessons.subwords.size, Crew(0, size))
    if size == 1:
        trainee.lesson = Shared(trainee.lesson)
    parts = trainee.crew.share(lessons.train[:12], 40)
    assert len(parts) > 1
    trainee.step(lessons.train[:12], 1, 0.01)
    before = ["alone", "part"] if size > 1 else ["part"]
    assert events == [*before * (len(parts) - 1), "part"]


def test_each_step_has_a_gradient_of_its_own(lessons):
    settings = dataclasses.replace(SMALL, dropout=0.0)
    trainee = Trainee(settings, lessons.subwords.size, Crew())
    first, second = (trainee.step(lessons.train[:5], n, 0.0) for n in (1, 2))
    assert first == second


@pytest.mark.parametrize("one", [Crew(), SMALL])
def test_crews_and_settings_stay_as_they_are(one):
    field = dataclasses.fields(one)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(one, field, 5)


def test_lessons_are_english_and_german_unless_told(lessons):
    untold = translation.Lessons([], [], [], lessons.subwords)
    assert untold[4:] == (("en", "de"), "tok", 0)


def test_a_part_takes_all_that_it_can():
    batch = [([3] * 5, [3] * 4)] * 5 + [([3], [3] * 9)]
    assert [len(part) for part in Crew().share(batch, 10)] == [2, 2, 1, 1]
    assert [len(part) for part in Crew().share(batch[:5], 25)] == [5]


def test_validation_is_added_up_in_one_order(lessons):
    lesson, orders = Lesson(SMALL.model(lessons.subwords.size), 0.0, False), []
    lesson.register_forward_pre_hook(lambda _, ids: orders[-1].append(ids[0].tolist()))
    for _ in range(3):
        orders.append([])
        mean_loss(lesson, lessons.train, 40)
    assert len(orders[0]) > 5
    assert orders[0] == orders[1] == orders[2]


def test_a_seed_stands_for_weights_and_disturbs_nobody():
    state = torch.get_rng_state()
    one, same, other = (
        torch.cat([weight.flatten() for weight in settings.model(30).parameters()])
        for settings in (SMALL, SMALL, dataclasses.replace(SMALL, seed=6))
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(SMALL.seed)  # whatever the caller draws
    drawn = Transformer(SMALL.config(30)).parameters()
    assert torch.equal(torch.cat([weight.flatten() for weight in drawn]), one)


def test_a_runs_settings_can_be_read_by_people(tmp_path):
    translation.RunFolder(tmp_path, SMALL, {"text": "tok"})
    said = (tmp_path / "run.json").read_text("utf-8")
    assert said == json.dumps(json.loads(said), indent=1)
    assert json.loads(said).keys() >= {"text", "types", "seed", "peak"}


def test_validation_goes_where_the_model_is(lessons):
    lesson, seen = Lesson(SMALL.model(lessons.subwords.size), 0.0, False), []
    lesson.to("meta").register_forward_pre_hook(
        lambda _, ids: seen.extend(x.device.type for x in ids)
    )
    with pytest.raises(RuntimeError, match="meta"):  # which holds no answers
        mean_loss(lesson, lessons.check, 200)
    assert seen == ["meta"] * 3


def test_tokenised_text_is_cut_at_its_spaces_alone(corpus, lessons):
    sentences = [
        side for pair in read_pairs(corpus, "tok", "train", "fr", "en") for side in pair
    ]
    untold, told, raw = (
        Subwords.learn(sentences, SMALL.types, *tokenized).to_json()
        for tokenized in ((), (True,), (False,))
    )
    assert lessons.subwords.to_json() == untold == told != raw
    for split, found in (("train", lessons.train), ("val", lessons.check)):
        french, english = read_pairs(corpus, "tok", split, "fr", "en")[0]
        encode = lessons.subwords.encode
        assert found[0] == (encode(french), encode(english))
    assert lessons.check_pairs == read_pairs(corpus, "tok", "val", "fr", "en")
    assert lessons.subwords.pieces("漢")[-1] == "<unk>"
    in_raw = prepare(corpus, SMALL, "fr", "en", "raw")
    assert in_raw.subwords.to_json() == raw


def test_one_who_has_no_share_adds_nothing(lessons):
    settings = dataclasses.replace(SMALL, dropout=0.0, memory=0.0)
    # The second of one: nothing is left for it.
    trainee = Trainee(settings, lessons.subwords.size, Crew(rank=1))
    loss, gradient = trainee.step(lessons.train[:1], 1, 0.01)
    assert (loss, gradient) == (0.0, 0.0)


def test_bf16_learns_the_same_lesson(lessons):
    losses = []
    for bf16 in (False, True):
        settings = dataclasses.replace(SMALL, dropout=0.0, bf16=bf16)
        trainee = Trainee(settings, lessons.subwords.size, Crew())
        losses.append(
            [trainee.step(lessons.train[:12], n, 0.01)[0] for n in range(1, 9)]
        )
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert losses[1] != losses[0]


def test_which_device_bf16_is_for(monkeypatch):
    for answer in (True, False):
        monkeypatch.setattr(
            torch.cuda,
            "is_bf16_supported",
            lambda including_emulation, a=answer: a or including_emulation,
        )
        monkeypatch.setattr(
            torch.cpu, "_is_amx_tile_supported", lambda a=answer: a, raising=False
        )
        assert made_for_bf16("cuda") is made_for_bf16("cpu") is answer
    monkeypatch.setattr(torch, "cpu", types.SimpleNamespace())  # an older torch
    assert made_for_bf16("cpu") is False


def test_a_crew_of_one_goes_where_it_is_sent(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert Crew.join() == Crew()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="no GPU was found here"):
        Crew.join("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert Crew.join("cuda") == Crew(device=torch.device("cuda", 0))


def test_validation_is_not_smoothed_and_counts_every_target(lessons):
    model = Trainee(SMALL, lessons.subwords.size, Crew()).model
    lesson = Lesson(model, smoothing=0.1, bf16=False)
    found = mean_loss(lesson, lessons.check, 60)
    total, count = 0.0, 0
    with torch.inference_mode():
        for source, target in lessons.check:
            given, wanted = [1, *target], [*target, 2]
            logits = model(torch.tensor([source]), torch.tensor([given]))[0]
            chances = logits.log_softmax(-1)
            total -= sum(chances[at, word].item() for at, word in enumerate(wanted))
            count += len(wanted)
    assert found == pytest.approx(total / count, rel=1e-5)


def test_the_running_mean_disturbs_nobody(lessons):
    trainee = Trainee(SMALL, lessons.subwords.size, Crew())
    trainee.step(lessons.train[:5], 1, 0.01)
    trainee.step(lessons.train[:5], 2, 0.01)
    own = [weight.detach().clone() for weight in trainee.model.parameters()]
    with trainee.averaged() as model:
        assert any(
            not one.equal(two) for one, two in zip(model.parameters(), own, strict=True)
        )
        assert not model.training
    assert all(
        one.equal(two) for one, two in zip(trainee.model.parameters(), own, strict=True)
    )


def test_the_running_mean_is_one(lessons):
    trainee = Trainee(SMALL, lessons.subwords.size, Crew())
    name, weight = next(iter(trainee.model.named_parameters()))
    mean = weight.detach().clone()
    for number in range(1, 40):
        trainee.step(lessons.train[:5], number, 0.01)
        share = min(SMALL.memory, number / (10 + number))
        mean = share * mean + (1 - share) * weight.detach()
    torch.testing.assert_close(trainee.mean[name], mean)
    assert not torch.allclose(mean, weight)


# Translating and measuring


@pytest.mark.plain  # checked shapes would make it slow
def test_each_translation_is_the_same_alone_and_in_a_batch(learned, lessons):
    translator = SubwordTranslator.load(learned)
    sentences = [source for source, _ in lessons.check_pairs] + ["", "le chat"]
    together = translator.translate(sentences, beam_size=1, batch=4)
    assert together[-2] == ""
    assert all(together[:-2])
    assert together == translator.translate(sentences, beam_size=1)
    alone = [translator.translate([one], beam_size=1)[0] for one in sentences]
    assert together == alone


@pytest.mark.plain  # checked shapes would make it slow
def test_a_beam_finds_the_same_whoever_shares_the_batch(lessons, tmp_path):
    partly(lessons, tmp_path, settings=dataclasses.replace(SMALL, epochs=12))
    translator = SubwordTranslator.load(tmp_path)
    with torch.no_grad():
        translator.model.output.weight.mul_(2)  # sure of itself: it talks on and on
    words = "le chat est noir nous aimons les chiens elle a deux amis"
    rng = random.Random(0)
    sentences = [" ".join(rng.choices(words.split(), k=k % 4 + 1)) for k in range(40)]
    together = translator.translate([*sentences, "nous aimons " * 5], 5, 2.0)
    alone = [translator.translate([one], 5, 2.0)[0] for one in sentences]
    assert together[:-1] == alone
    assert len(set(alone)) > 5


def test_what_a_search_is_asked_for(learned, monkeypatch):
    """In which company, how far, with how many beams; answers go to their sentences."""
    translator, asked = SubwordTranslator.load(learned), []

    class Echo:
        def beam_search(self, sources, *how):
            asked.append((sorted(map(len, sources)), *how))
            return sources

    monkeypatch.setattr(translator, "speaker", Echo)
    words = ["le chat", "la maison est noire", "", "nous aimons les chiens"] * 18
    long = " ".join(["le chat est noir"] * 4)
    assert translator.translate([*words, long], 3, 0.5, 20) == [*words, long]
    lengths = sorted(len(translator.subwords.encode(one)) for one in [*words, long])
    assert max(lengths) > 24  # so that the model's table is the limit
    assert sorted(n for some, *_ in asked for n in some) == [n for n in lengths if n]
    for some, most, *how in asked:
        assert len({min(64, 16 * math.ceil(n / 8) + 10) for n in some}) == 1
        assert most == min(64, 16 * math.ceil(some[0] / 8) + 10)
        assert how == [3, 0.5]
    assert max(len(some) for some, *_ in asked) == 20
    asked.clear()
    assert translator.translate(["le chat"] * 70) == ["le chat"] * 70
    assert [(len(some), *how) for some, _, *how in asked] == [(64, 5, 1.0), (6, 5, 1.0)]


@pytest.mark.parametrize(
    ("typed", "language", "tokenised"),
    [
        *((f"ein {sign}hund", "de", "ein &quot; hund") for sign in "“”„«»"),
        *((f"man{sign}s", "en", "man &apos;s") for sign in "’‘'"),
        ("L’eau", "fr", "l&apos; eau"),
        ("a–b", "en", "a-b"),
        ("a—b", "en", "a - b"),
        ("Wait…", "en", "wait ..."),
        ("No. 5.", "en", "no. 5 ."),
        ("ends..", "en", "ends .."),
        ("ends.  ", "en", "ends ."),
        ("AT&T &amp; co", "en", "at &amp; t &amp; co"),
        ("Why?! (so)", "en", "why ? ! ( so )"),
        ("nai\u0308ve", "en", "na\u00efve"),
        ("well-known", "en", "well-known"),
        ("&#88;ylophon &#201;te&#769;", "de", "xylophon \u00e9t\u00e9"),
    ],
)
def test_a_typed_sentence_becomes_one_of_the_corpus(typed, language, tokenised):
    assert as_tokenized(typed, language) == tokenised
    assert as_tokenized(tokenised, language) == tokenised


def test_a_server_is_waited_for_half_a_minute(monkeypatch):
    waited = []
    answer = io.BytesIO(b"abc")
    answer.headers = {"Content-Length": "3"}
    monkeypatch.setattr(
        translation.urllib.request,
        "urlopen",
        lambda url, timeout: waited.append((url, timeout)) or answer,
    )
    heard = []
    assert translation.download("there", lambda *so: heard.append(so)) == b"abc"
    assert (waited, heard) == ([("there", 30)], [(3, 3)])


def test_a_sentence_too_long_is_named_before_any_is_translated(learned, monkeypatch):
    translator = SubwordTranslator.load(learned)
    monkeypatch.setattr(translator, "speaker", lambda: None)
    with pytest.raises(ValueError, match=r"sentence 2 is too long: .* at most 64 fit"):
        translator.translate(["le chat", "x " * 99], batch=1)


def test_a_translator_and_its_subwords_must_fit(learned, tmp_path):
    translator = SubwordTranslator.load(learned)
    other = Subwords.learn(["quite another language"], 40)
    ours, theirs = translator.subwords.size, other.size
    said = f"tables of {ours} and {ours} ids, but there are {theirs} subwords"
    with pytest.raises(ValueError, match=said):
        SubwordTranslator(translator.model, other)
    wide = Transformer(TransformerConfig(theirs, theirs + 1, 16, 2, 1, 1, 16))
    with pytest.raises(ValueError, match=f"tables of {theirs} and {theirs + 1} ids"):
        SubwordTranslator(wide, other)
    with pytest.raises(ValueError, match="no checkpoint at"):
        SubwordTranslator.load(tmp_path / "nothing")
    translator.model.save(tmp_path / "bare.safetensors")
    with pytest.raises(ValueError, match="without subwords"):
        SubwordTranslator.load(tmp_path / "bare.safetensors")


def test_scores_of_known_translations():
    wanted = ["the cat sat on the mat .", "a dog ran ."]
    same = score(wanted, wanted)
    assert same.bleu == pytest.approx(100)
    assert same.chrf == pytest.approx(100)
    # 5 of 7 words, 3 of 6 pairs, 2 of 5 triples, 1 of 4 fours; no brevity penalty.
    found = score(["the cat sat on a rug ."], ["the cat sat on the mat ."])
    by_hand = 100 * (5 / 7 * 3 / 6 * 2 / 5 * 1 / 4) ** 0.25
    assert found.bleu == pytest.approx(by_hand)
    short = score(["the cat sat on the"], ["the cat sat on the mat ."])
    assert short.bleu == pytest.approx(100 * math.exp(1 - 7 / 5))
    with pytest.raises(ValueError, match="one reference, got 1 and 2"):
        score(wanted[:1], wanted)
    with pytest.raises(ValueError, match="sentences must be"):
        score([], [])


def test_the_signature_says_how_was_counted():
    import sacrebleu

    wanted = ["the cat sat on the mat .", "A dog ran."]
    tok, raw = (score(wanted, wanted, text) for text in ("tok", "raw"))
    version = f"version:{sacrebleu.__version__}"
    assert score(wanted, wanted) == tok
    assert tok.bleu_signature == (
        f"nrefs:1|case:mixed|eff:no|tok:none|smooth:exp|{version}"
    )
    assert raw.bleu_signature == (
        f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|{version}"
    )
    assert version in tok.chrf_signature


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(ValueError, match=r'needs sacrebleu: pip install "tested-tr'):
        score(["a"], ["a"])


# Multi30k itself, where it is


@with_multi30k
@pytest.mark.parametrize("text", ["raw", "tok"])
def test_the_files_here_are_the_ones_that_fetching_expects(text):
    for split in translation.SPLITS:
        for language in ("en", "de", "fr"):
            data = translation.read_text(
                translation.find_text(REAL, text, split, language)
            ).encode()
            expected = MULTI30K_SHA256[f"{text}/{split}.{language}"]
            assert hashlib.sha256(data).hexdigest() == expected


@with_multi30k
def test_multi30k_in_subwords():
    lessons = prepare(REAL, PRESETS["tiny"])
    assert (len(lessons.train), len(lessons.check)) == (29_000, 1014)
    assert lessons.subwords.size == PRESETS["tiny"].types
    for pair in lessons.check_pairs[:200]:
        for sentence in pair:
            ids = lessons.subwords.encode(sentence)
            assert translation.UNKNOWN in ids or (
                lessons.subwords.decode(ids) == sentence
            )
    settings = dataclasses.replace(SMALL, step_tokens=512, dropout=0.0)
    trainee = Trainee(settings, lessons.subwords.size, Crew())
    rng = random.Random(0)
    losses = [
        trainee.step(rng.sample(lessons.train, 8), number, 0.01)[0]
        for number in range(1, 13)
    ]
    assert losses[-1] < losses[0] - 0.5


def test_what_the_book_counted_is_what_the_package_expects():
    root = Path(__file__).resolve().parent.parent
    stored = json.loads((root / "benchmarks/results/multi30k.json").read_text("utf-8"))
    assert stored["subwords"] == PRESETS["tiny"].types
