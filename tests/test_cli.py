"""The command line: a few real processes, and `main` on tiny real runs."""

import dataclasses
import errno
import importlib.util
import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from small_runs import write_corpus

from transformer.cli import app, main
from transformer.cli.console import read_lines
from transformer.cli.progress import Progress
from transformer.cli.resources import (
    find_device,
    is_out_of_memory,
    memory_needed,
    require_memory,
)
from transformer.decoding.translator import Translator
from transformer.model import Transformer, TransformerConfig
from transformer.phrasebook.grammar import sample_pairs
from transformer.text.multi30k import moses_style
from transformer.text.subwords import SubwordTokenizer
from transformer.training.config import SCHEDULES, TrainingConfig
from transformer.training.loop import StepMetrics
from transformer.training.run_folder import read_metrics, read_run
from transformer.training.trainer import PRESETS

pytestmark = pytest.mark.plain  # no shapes here, and many calls
ROOT = Path(__file__).resolve().parent.parent
RUN = [sys.executable, "-m", "transformer"]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
SIZES = [
    *("--preset", "toy", "--device", "cpu", "--precision", "float32"),
    *("--vocab-size", "120", "--layers", "1", "--d-model", "16", "--num-heads", "2"),
    *("--d-ff", "16", "--batch-tokens", "400", "--micro-batch-tokens", "400"),
]


def run(capsys, *arguments):
    """Exit code, output and errors of a command in this process."""
    code = main([str(argument) for argument in arguments])
    return code, *capsys.readouterr()


def start(*arguments, **options):
    """A real process."""
    return subprocess.Popen(
        [*RUN, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=options.pop("cwd", ROOT),
        env=ENVIRONMENT | options,
    )


class Keyboard(io.TextIOWrapper):
    """Standard input with somebody at it."""

    def isatty(self):
        return True


def type_in(monkeypatch, data, kind=io.TextIOWrapper):
    """Put bytes into standard input, in an encoding that is not ours."""
    monkeypatch.setattr(sys, "stdin", kind(io.BytesIO(data), encoding="latin-1"))


# Real processes


def test_the_running_sentence_from_any_folder_without_a_compiler(tmp_path):
    """PyTorch's takes a second; a model is made without it, and so is a decoder."""
    sentence = "Jane visite l'Afrique en septembre"
    process = start("translate", sentence, cwd=tmp_path, PYTHONPROFILEIMPORTTIME="1")
    output, errors = process.communicate(timeout=240)
    imports = errors.decode().splitlines()
    assert all(line.startswith("import time:") for line in imports), imports
    assert (process.returncode, output) == (0, b"Jane visits Africa in September\n")
    imported = {line.rpartition("|")[2].strip() for line in imports}
    assert "transformer.decoding.fast" in imported
    assert "torch._dynamo" not in imported


def test_a_pipe_is_answered_line_by_line_and_may_break():
    process = start("translate")
    for french, english in (("Il a deux chats", "He has two cats"), ("", "")):
        process.stdin.write(f"{french}\n".encode())
        process.stdin.flush()
        assert process.stdout.readline().decode() == f"{english}\n"
    process.stdout.close()
    _, errors = process.communicate(b"Il a deux chats\n" * 3, timeout=240)
    assert (process.returncode, errors) == (0, b"")


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX")
def test_ctrl_c_leaves_quietly(tmp_path):
    # A background job of a shell ignores Ctrl-C, and so would its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = start("train-phrasebook", "--out", str(tmp_path / "weights.safetensors"))
    assert process.stderr.readline().startswith(b"making 50,000 sentences")
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


# translate and words


def test_a_beam_finds_what_greedy_search_misses(capsys):
    hard = "Le grand chien noir aime le petit chat blanc"
    found = run(capsys, "translate", "--beam-size", "4", hard)
    assert found == (0, "The big dog likes the small white cat\n", "")
    _, greedy, _ = run(capsys, "translate", hard)
    assert greedy != found[1]


def test_n_best_translations_with_their_scores(capsys):
    sentences = "Le grand chien noir aime le petit chat blanc", "Il a deux chats"
    expected = Translator.phrasebook().n_best(sentences, 3)
    code, output, errors = run(capsys, "translate", "--n-best", "3", *sentences)
    lines = output.removesuffix("\n").split("\n")
    assert (code, errors, len(lines)) == (0, "", 6)
    texts = [[candidate.text for candidate in each] for each in expected]
    assert [lines[:3], lines[3:]] == [each + [""] * (3 - len(each)) for each in texts]
    options = "--n-best", "3", "--scores"
    _, output, _ = run(capsys, "translate", *options, *sentences)
    score, text = output.split("\n")[0].split("\t")
    assert (score, text) == (f"{expected[0][0].score:.4f}", texts[0][0])
    _, best, _ = run(capsys, "translate", "--scores", "Il a deux chats")
    assert best.endswith("\tHe has two cats\n")


def test_a_longest_translation_is_an_option(capsys):
    for command, expected in (([], "He has two cats"), (["--n-best", "2"], "He has")):
        options = "--max-length", "2", *command
        code, output, _ = run(capsys, "translate", *options, "Il a deux chats")
        assert (code, output.split("\n")[0]) == (0, "He has"), expected


def test_the_highest_penalty_is_a_number(capsys):
    options = "--beam-size", "2", "--length-penalty", "100"
    found = run(capsys, "translate", *options, "Il a deux chats")
    assert found == (0, "He has two cats\n", "")


LINES = "\ufeffJ’aime Rome\n\nIl visite\rle Brésil\r\n \nLe chat est noir.".encode()
TRANSLATED = "I like Rome\n\nHe visits Brazil\n\nThe cat is black\n"


def test_every_line_ending_and_a_byte_order_mark_on_both_paths(
    capsys, monkeypatch, tmp_path
):
    type_in(monkeypatch, LINES)
    assert run(capsys, "translate") == (0, TRANSLATED, "")
    (tmp_path / "lines").write_bytes(LINES)
    assert run(capsys, "translate", "--file", tmp_path / "lines") == (0, TRANSLATED, "")


@pytest.mark.parametrize("piped", [True, False])
def test_a_bad_line_is_named_and_left_blank(capsys, monkeypatch, tmp_path, piped):
    lines = ["Il a deux chats"] * 130
    lines[69], lines[99] = "Zorro", "Jane " * 33
    data = "\n".join(lines).encode()
    type_in(monkeypatch, data)
    (tmp_path / "lines").write_bytes(data)
    where = [] if piped else ["--file", tmp_path / "lines"]
    code, output, errors = run(capsys, "translate", *where)
    assert code == 1
    expected = ["He has two cats"] * 130
    expected[69] = expected[99] = ""
    assert output.split("\n") == [*expected, ""]
    unknown, long = errors.splitlines()
    assert unknown.startswith("python -m transformer: line 70: unknown word 'Zorro'")
    assert unknown.endswith('"python -m transformer words" lists them')
    assert long.startswith("python -m transformer: line 100: the sentence is too long")


def test_at_a_terminal_a_bad_line_is_explained_and_the_next_one_read(
    capsys, monkeypatch
):
    type_in(monkeypatch, b"Zorro\nIl a deux chats\n", Keyboard)
    code, output, errors = run(capsys, "translate")
    assert (code, output) == (0, "He has two cats\n")
    invitation, complaint = errors.splitlines()
    assert invitation.startswith("One sentence a line; end with Ctrl-D")
    assert complaint.startswith("unknown word 'Zorro'")


def test_a_line_without_end_takes_little_memory(capsys, monkeypatch):
    type_in(monkeypatch, b"Jane " * 1_000_000)
    code, output, errors = run(capsys, "translate")
    assert (code, output) == (1, "\n")
    expected = "line 1: a line may have 100,000 characters, this one has more\n"
    assert errors == f"python -m transformer: {expected}"


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
@pytest.mark.parametrize("over", [0, 1, 200_000])
def test_a_long_line_is_whole_or_known_to_be_too_long(tmp_path, over, end):
    """Never its beginning with something from behind its middle."""
    long = "".join(f"word {number} " for number in range(30_000))[: 100_000 + over]
    path = tmp_path / "lines"
    path.write_bytes(f"one\n{long}\ntwo\n{long}{end}".encode())
    one, first, two, last = itertools.chain(*read_lines(path))
    assert (one, two) == ("one", "two")
    assert first == last == long[:100_001]


def test_bytes_that_are_no_text_take_one_line(capsys, monkeypatch, tmp_path):
    type_in(monkeypatch, b"Il a\xff\xfe\n")
    message = "python -m transformer: standard input is not UTF-8 text\n"
    assert run(capsys, "translate") == (2, "", message)
    (tmp_path / "lines").write_bytes(b"Il a deux chats\n\xff\xfe\n")
    code, output, errors = run(capsys, "translate", "--file", tmp_path / "lines")
    assert (code, output, errors.count("\n")) == (2, "", 1)
    assert f"{tmp_path / 'lines'} cannot be read as text: " in errors


def test_closed_streams(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    code, output, errors = run(capsys, "translate")
    assert (code, output) == (2, "")
    assert errors.endswith("no sentence given, and standard input is closed\n")
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["translate", "Il a deux chats"]) == 0


def test_ctrl_c_while_reading(capsys, monkeypatch):
    class Interrupted(io.BytesIO):
        def read1(self, size=-1):
            raise KeyboardInterrupt

    keyboard = io.TextIOWrapper(Interrupted(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", keyboard)
    assert run(capsys, "translate") == (130, "", "\n")


def test_words(capsys):
    code, french, _ = run(capsys, "words")
    assert code == 0
    assert {"Afrique", "l'", "États-Unis", "sœur"} <= set(french.split("\n"))
    _, english, _ = run(capsys, "words", "--english")
    assert "September" in english.split("\n")
    assert "septembre" not in english.split("\n")


def test_train_the_phrasebook_then_translate(capsys, tmp_path, monkeypatch):
    files = [tmp_path / "new" / name for name in ("one", "two", "other")]
    threads = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    for file, seed in zip(files, (3, 3, 4), strict=True):
        options = "--out", file, "--sentences", "300", "--seed", seed
        code, output, errors = run(capsys, "train-phrasebook", *options)
        assert code == 0
        assert "of 1,000 held-out sentences translated exactly; wrote" in output
        assert " left\n" in errors
        # Translating 1,000 sentences once is enough.
        monkeypatch.setattr("transformer.cli.phrasebook.exact_match", lambda *_: 0.5)
    assert threads == []  # the caller's
    one, two, other = (file.read_bytes() for file in files)
    assert one == two != other
    assert sorted(path.name for path in files[0].parent.iterdir()) == [
        *("one", "other", "two")
    ]
    sentence = "--weights", files[0], "Il a deux chats"
    assert run(capsys, "translate", *sentence)[0] == 0
    assert run(capsys, "words", "--weights", files[0])[0] == 0


# train, evaluate, plot


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Somebody's own sentence pairs, with capitals and punctuation, and a short run."""
    folder = tmp_path_factory.mktemp("mine")
    for seed, split in enumerate(("train", "val", "test")):
        pairs = sample_pairs(60 if split == "train" else 12, seed)
        for language, side in (("fr", 0), ("en", 1)):
            lines = "".join(f"{' '.join(pair[side])}.\n" for pair in pairs)
            (folder / f"{split}.{language}").write_text(lines, "utf-8")
    return folder


def training(own, out, *more):
    return [
        *("train", "--data", own, "--source", "fr", "--target", "en"),
        *(*SIZES, "--epochs", "2", "--out", out, *more),
    ]


@pytest.fixture(scope="module")
def learned(own, tmp_path_factory):
    """A short run on them."""
    out = tmp_path_factory.mktemp("runs") / "a run"
    assert main([str(each) for each in training(own, out)]) == 0
    return out


def test_own_sentences_are_raw_and_the_closing_line_works(
    capsys, monkeypatch, own, learned, tmp_path
):
    """A finished run: the same command has nothing left to do and prints the end."""
    monkeypatch.delenv("MULTI30K", raising=False)
    code, output, errors = run(capsys, *training(own, learned))
    assert (code, output) == (0, "")
    last = errors.splitlines()[-1]
    assert last == f"done: python -m transformer evaluate '{learned}'"
    info = read_run(learned)
    assert (info.text, info.languages) == ("raw", ("fr", "en"))
    assert info.data == str(own.resolve())
    monkeypatch.setattr("transformer.text.multi30k.fetch_multi30k", None)  # never
    options = "--split", "test", "--out", tmp_path / "hypotheses"
    code, output, errors = run(capsys, "evaluate", learned, *options)
    assert (code, errors.count("\n")) == (0, 1)
    assert "12 translations were cut: " in errors
    scores = json.loads(output)
    assert scores["sentences"] == 12
    assert scores["bleu_margin"] >= 0
    assert "bs:1000|seed:12345|case:mixed|eff:no|tok:13a" in scores["bleu_signature"]
    hypotheses = (tmp_path / "hypotheses").read_text("utf-8")
    file = "--file", own / "test.fr"
    assert run(capsys, "translate", "--weights", learned, *file)[:2] == (0, hypotheses)
    given = "--split", "test", "--hypotheses", tmp_path / "hypotheses"
    code, output, errors = run(capsys, "evaluate", learned, *given)
    assert (code, errors) == (0, "")
    same = "bleu", "chrf", "bleu_margin", "bleu_signature", "sentences"
    assert all(json.loads(output)[name] == scores[name] for name in same)
    (tmp_path / "hypotheses").write_text("one\ntwo\n")
    code, _, errors = run(capsys, "evaluate", learned, *given)
    assert (code, errors.count("\n")) == (2, 1)
    assert "hypotheses has 2 lines for 12 sentences" in errors
    assert run(capsys, "evaluate", learned, "--average", "2")[0] == 0
    code, _, errors = run(capsys, "evaluate", learned, "--average", "3")
    assert (code, errors.count("\n")) == (2, 1)


def test_a_run_says_how_it_goes(capsys, own, tmp_path):
    out = tmp_path / "run"
    code, output, errors = run(capsys, *training(own, out, "--text", "tok"))
    assert (code, output) == (0, "")
    assert read_run(out).text == "tok"
    steps = read_metrics(out)
    assert errors.count(" left\n") >= min(10, len(steps)) - 1
    loss = steps[-1].validation_loss
    assert f"epoch 2 ends: validation loss {loss:.3f}, BLEU " in errors
    file = f"{out}/model.safetensors"
    for sentence, names in (
        ("日本語 こんにちは", "日, 本, 語, こ, ん, …"),
        ("Jane 日本", "日, 本"),
    ):
        code, _, errors = run(capsys, "translate", "--weights", file, sentence)
        assert code == 0
        assert (
            f"1 sentence has characters that no training sentence had: {names}\n"
            in errors
        )
    code, _, errors = run(capsys, "words", "--weights", out)
    assert code == 2
    assert "there is no list" in errors


def test_translations_of_tokenised_text_are_written_as_people_write(
    capsys, monkeypatch, tmp_path
):
    """`c&apos; est` and `&quot;` were printed."""
    french, english = "C'est un chien , qu'il a .", 'It\'s a "dog", he says.'
    tokenizer = SubwordTokenizer.train([french, english] * 9, 60, "tok")
    size = tokenizer.vocab_size
    model = Transformer(TransformerConfig(size, size, 8, 2, 1, 1, 8))
    Translator(model, tokenizer, tokenizer, ("fr", "en")).save(tmp_path / "model")

    def translate(self, sentences, *_, **options):
        return [moses_style(english) for _ in sentences]

    monkeypatch.setattr(Translator, "translate", translate)
    code, output, _ = run(capsys, "translate", "--weights", tmp_path / "model", french)
    assert (code, output) == (0, 'it\'s a "dog", he says.\n')
    for language, line in (("fr", french), ("en", english)):
        (tmp_path / f"val.{language}").write_text(f"{line}\n" * 5)
    options = "--data", tmp_path, "--out", tmp_path / "out"
    code, output, _ = run(capsys, "evaluate", tmp_path / "model", *options)
    assert code == 0
    assert json.loads(output)["bleu"] == 100.0  # of the tokenised text
    assert (tmp_path / "out").read_text() == 'it\'s a "dog", he says.\n' * 5
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    code, output, errors = run(capsys, "translate", "--weights", tmp_path / "model", "")
    assert (code, output, errors.count("\n")) == (2, "", 1)
    assert "this needs sacremoses: pip install sacremoses" in errors


def test_what_is_not_a_run_is_left_alone(capsys, own, tmp_path):
    (tmp_path / "thesis.part").write_text("years of work")
    (tmp_path / "model.safetensors").write_text("another")
    for out, message in (
        (tmp_path, "holds model.safetensors"),
        ("", "it must name a folder, got ''"),
        (tmp_path / "thesis.part", "got the file"),
    ):
        code, output, errors = run(capsys, *training(own, out))
        assert (code, output, errors.count("\n")) == (2, "", 1)
        assert message in errors
    assert (tmp_path / "thesis.part").read_text() == "years of work"


@pytest.mark.parametrize(
    ("module", "command"),
    [("sacrebleu", "train"), ("tokenizers", "train"), ("sacrebleu", "evaluate")],
)
def test_what_is_missing_is_said_first(
    capsys, monkeypatch, own, learned, tmp_path, module, command
):
    monkeypatch.setitem(sys.modules, module, None)
    arguments = training(own, tmp_path / "run")
    if command == "evaluate":
        arguments = ["evaluate", learned, "--data", tmp_path / "nothing"]
    code, output, errors = run(capsys, *arguments)
    assert (code, output) == (2, "")
    message = f"this needs {module}: pip install {module}"
    assert errors == f"python -m transformer: {message}\n"
    assert not (tmp_path / "run").exists()


def test_weights_that_do_not_know_their_sentences(
    capsys, monkeypatch, learned, tmp_path
):
    monkeypatch.delenv("MULTI30K", raising=False)
    alone = tmp_path / "alone.safetensors"
    alone.write_bytes((learned / "model.safetensors").read_bytes())
    code, _, errors = run(capsys, "evaluate", alone)
    assert code == 2
    assert errors.endswith("does not say which sentences to read: give --data\n")
    info = json.loads((learned / "run.json").read_bytes())
    (tmp_path / "run.json").write_text(json.dumps({**info, "data": "/nowhere"}))
    code, _, errors = run(capsys, "evaluate", alone)
    assert code == 2
    assert errors.endswith("sentences are no longer in /nowhere: give --data\n")


def test_translations_that_were_cut_are_counted(capsys) -> None:
    short = "translate", "--max-length", "2", "Il est malade", "Elle est malade"
    code, found, errors = run(capsys, *short)
    assert (code, len(found.splitlines())) == (0, 2)
    assert "2 translations were cut: --max-length lets them" in errors
    assert run(capsys, "translate", "Il est malade") == (0, "He is ill\n", "")


def test_a_sentence_that_cannot_be_evaluated_is_named_and_counts_as_blank(
    capsys, own, learned, tmp_path
):
    for language in ("fr", "en"):
        lines = (own / f"test.{language}").read_text("utf-8").splitlines() * 30
        lines[299] = "Jane " * 99 if language == "fr" else lines[299]
        text = "\n".join(lines) + "\n"
        (tmp_path / f"test.{language}").write_text(text, "utf-8")
    out = tmp_path / "hypotheses"
    options = "--data", tmp_path, "--split", "test", "--beam-size", "1", "--out", out
    model = Translator.load(learned)
    small = Transformer(dataclasses.replace(model.model.config, max_length=64))
    short = tmp_path / "short.safetensors"
    Translator(small, *[model.source_tokenizer] * 2, model.languages).save(short)
    code, output, errors = run(capsys, "evaluate", short, *options)
    assert code == 1
    assert json.loads(output)["sentences"] == 360
    assert errors.startswith("python -m transformer: sentence 300 counts as blank: the")
    assert "is too long" in errors
    hypotheses = out.read_text("utf-8").split("\n")
    assert (len(hypotheses), hypotheses[299]) == (361, "")


@pytest.mark.parametrize("text", ["raw", "tok"])
def test_tokenised_text_that_is_taken_as_raw_is_named(capsys, own, tmp_path, text):
    mine = tmp_path / "mine"
    mine.mkdir()
    for path in own.iterdir():
        lines = map(moses_style, path.read_text("utf-8").splitlines())
        (mine / path.name).write_text("\n".join(lines), "utf-8")
    out = tmp_path / "run"
    _, _, errors = run(capsys, *training(mine, out, "--epochs", "1", "--text", text))
    named = "tokenised already: --text tok would treat in the same way what is typed"
    assert (named in errors) == (text == "raw")


@pytest.mark.parametrize("option", ["--max-length", "--vocab-size", "--layers"])
def test_a_billion_is_refused_before_it_is_taken(capsys, own, tmp_path, option):
    began = time.perf_counter()
    code, output, errors = run(
        capsys, *training(own, tmp_path / "run", option, 1_000_000_000)
    )
    assert (code, output, errors.count("\n")) == (2, "", 1)
    assert " GB of memory, and there are " in errors
    assert time.perf_counter() - began < 10
    assert not (tmp_path / "run").exists()


def test_the_memory_that_a_model_needs():
    config = TransformerConfig(500, 500, 64, 4, 2, 3, 128, tie_embeddings=True)
    parameters = sum(each.numel() for each in Transformer(config).parameters())
    needed = memory_needed(config) - 100_000 * 5 - 24 * 64 * config.max_length
    assert 0.95 * 20 * parameters < needed <= 20 * parameters


def test_out_of_memory_takes_one_line(capsys, monkeypatch):
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50)
    errors = caught.value, MemoryError(), RuntimeError("CUDA out of memory. Tried")
    for error in errors:
        assert is_out_of_memory(error)

        def fail(error=error):
            raise error

        monkeypatch.setattr(Translator, "phrasebook", fail)
        code, output, said = run(capsys, "translate", "Jane")
        assert (code, output, said.count("\n")) == (2, "", 1)
        assert said.startswith("python -m transformer: out of memory")
    assert not is_out_of_memory(RuntimeError("another fault"))
    monkeypatch.setattr(Translator, "phrasebook", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # a fault of ours is not hidden
        main(["translate", "Jane"])


def test_plot(capsys, learned, tmp_path):
    out = tmp_path / "curves.svg"
    assert run(capsys, "plot", learned, "--out", out) == (0, f"wrote {out}\n", "")
    assert out.read_text().startswith("<?xml")
    code, _, errors = run(capsys, "plot", learned, "--out", tmp_path / "curves.doc")
    assert (code, errors.count("\n")) == (2, 1)
    assert "cannot draw" in errors
    code, _, errors = run(capsys, "plot", learned, "--out", tmp_path / "curves")
    assert (code, sorted(tmp_path.iterdir())) == (2, [out])
    assert "--out must end in .svg, .png or .pdf, got" in errors
    code, _, errors = run(capsys, "plot", learned, tmp_path, "--out", out)
    assert code == 2
    message = f"{tmp_path} has no metrics.jsonl with lines in it"
    assert errors == f"python -m transformer: {message}\n"


# Surroundings


def test_the_schedules_of_the_command_line_are_those_of_chapter_12(monkeypatch):
    monkeypatch.setitem(SCHEDULES, "constant", lambda step, total, warmup: 1.0)
    again = importlib.util.find_spec("transformer.cli.train")
    module = importlib.util.module_from_spec(again)
    again.loader.exec_module(module)  # as it would be with one schedule more
    (schedule,) = (p for p in module.train.params if p.name == "schedule")
    assert list(schedule.type.choices) == ["inverse-sqrt", "cosine", "constant"]


def test_every_choice_of_a_training_has_an_option():
    options = {option.name for option in app.commands["train"].params}
    fields = {field.name for field in dataclasses.fields(TrainingConfig)}
    assert fields - options == {"bf16", "cooldown"}  # --precision; the presets'
    assert set(PRESETS["tiny"].sizes) - options == {
        *("num_encoder_layers", "num_decoder_layers", "tie_embeddings")
    }


def test_a_call_from_python_leaves_the_process_as_it_was(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="latin-1", errors="strict")
    type_in(monkeypatch, "J’aime Rome\n".encode())
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", None)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert main(["translate"]) == 0
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert (out.encoding, out.errors) == ("latin-1", "strict")
    assert (sys.stdin.encoding, sys.stderr) == ("latin-1", None)


@pytest.mark.parametrize("kind", ["cuda", "mps", "xpu"])
def test_auto_is_the_accelerator_that_is_there(monkeypatch, kind):
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    monkeypatch.setattr(
        "torch.accelerator.current_accelerator", lambda: torch.device(kind)
    )
    assert find_device("auto") == find_device(kind) == kind
    assert find_device("cpu") == "cpu"
    others = {"cuda", "mps", "xpu"} - {kind}
    for other in others:
        with pytest.raises(ValueError, match=f"no device {other} .* --device {kind}$"):
            find_device(other)


def test_memory_is_asked_of_the_own_gpu_without_a_context(monkeypatch):
    """`mem_get_info` opened one on the first GPU from every process."""

    def properties(number):
        return SimpleNamespace(total_memory=1000 * (number + 1))

    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.get_device_properties", properties)
    monkeypatch.setattr("torch.cuda.mem_get_info", None)
    config = TransformerConfig(500, 500)
    with pytest.raises(ValueError, match=r"and there are 0\.0 GB"):
        require_memory(config, "cuda")
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda number: huge)
    huge = SimpleNamespace(total_memory=1 << 60)
    require_memory(config, "cuda")


def test_own_sentences_need_no_home_folder(capsys, monkeypatch, own, tmp_path):
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as without any
    for name in ("HOME", "XDG_CACHE_HOME", "MULTI30K"):
        monkeypatch.delenv(name, raising=False)
    out = tmp_path / "run"
    code, _, errors = run(capsys, *training(own, out, "--epochs", "1"))
    assert code == 0, errors
    assert run(capsys, "evaluate", out)[0] == 0
    code, _, errors = run(
        capsys, "train", "--preset", "tiny", "--out", tmp_path / "other"
    )
    assert (code, errors.count("\n")) == (2, 1)
    assert "there is no home folder to keep Multi30k in: give --data" in errors


def test_a_folder_called_tok_changes_no_text(capsys, own, tmp_path):
    mine = tmp_path / "mine"
    shutil.copytree(own, mine)
    (mine / "tok").mkdir()
    out = tmp_path / "run"
    code, _, errors = run(capsys, *training(mine, out, "--epochs", "1"))
    assert code == 0
    assert read_run(out).text == "raw"
    assert errors.splitlines()[0] == (
        f"60 pairs in {mine}, fr to en, raw text; 1 × cpu, float32; kept in {out}"
    )


def test_what_lies_at_out_is_named(capsys, own, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    code, _, errors = run(capsys, *training(own, tmp_path / "link"))
    assert (code, errors.count("\n")) == (2, 1)
    assert f"got a link to nothing: {tmp_path / 'link'}" in errors
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / "thesis").touch()
    code, _, errors = run(capsys, *training(own, folder))
    assert f"{folder} has no run in it and holds thesis" in errors
    (folder / "thesis").rename(folder / ".DS_Store")  # of macOS, not of its user
    assert run(capsys, *training(own, folder, "--epochs", "1"))[0] == 0


@pytest.mark.parametrize(
    "error", [TypeError("a b"), FileNotFoundError("a b"), ImportError("a b")]
)
def test_every_kind_of_refusal_takes_one_line(capsys, monkeypatch, error):
    def fail():
        raise error

    monkeypatch.setattr(Translator, "phrasebook", fail)
    found = run(capsys, "translate", "Jane")
    assert found == (2, "", "python -m transformer: a b\n")


def test_a_full_disk_is_named_with_the_file(capsys, monkeypatch, learned, tmp_path):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    for command in ("plot", "evaluate"):
        module = sys.modules[f"transformer.cli.{command}"]
        monkeypatch.setattr(module, "write_atomically", full)
        out = tmp_path / "new" / "out.svg"
        code, _, errors = run(capsys, command, learned, "--out", out)
        assert code == 2
        message = f"cannot write {out}: No space left on device"
        assert errors.splitlines()[-1] == f"python -m transformer: {message}"


# Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def steps(count):
    return [
        StepMetrics(step, count, 1, 2.5, 0.1, 1.0, 500, float(step))
        for step in range(1, count + 1)
    ]


def test_a_log_has_a_line_each_tenth(monkeypatch):
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    progress = Progress()
    for metrics in steps(200):
        progress.show(metrics)
    progress.close()
    lines = log.getvalue().splitlines()
    shown = [1, *range(20, 201, 20)]  # the first, because it shows that it runs
    assert [int(line.split()[3]) for line in lines] == shown
    assert all("loss 2.500" in line for line in lines)
    assert all(line.endswith(" left") for line in lines[1:])
    assert lines[-1].endswith("00:00 left")
    assert "\r" not in log.getvalue()


def test_a_terminal_has_a_bar(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    progress = Progress()
    first, *_, last = steps(200)
    progress.show(first)
    progress.show(last._replace(validation_loss=1.5, bleu=20.0))
    progress.close()
    assert "/200 [" in screen.getvalue()
    assert "epoch 1 ends: validation loss 1.500, BLEU 20.00" in screen.getvalue()
    screen.truncate(0)
    quiet = Progress(quiet=True)
    quiet.show(first)
    quiet.write("nothing")
    quiet.close()
    assert screen.getvalue() == ""


# Mistakes and help


@pytest.fixture
def bad_files(tmp_path):
    (tmp_path / "text").write_text("no weights")
    Transformer(TransformerConfig(9, 9, 8, 2, 1, 1, 8)).save(tmp_path / "wordless")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "missing command"),
        ("frobnicate", "no such command 'frobnicate'"),
        ("--frob", "no such option"),
        ("translate --frob", "no such option"),
        ("translate --beam-size", "requires an argument"),
        ("translate --file x Jane", "give a sentence or --file, not both"),
        ("translate --file {}/nothing", "nothing"),
        ("translate .", "at least one word"),
        ("translate Jane\x1b[2Jvisite", r"control character '\x1b'"),
        ("translate Zanzibar", "unknown word 'Zanzibar'"),
        ("translate " + "Jane\u3000" * 50, "the sentence is too long: 50 tokens"),
        ("translate " + "x" * 1_000_000, "unknown word 'xxx"),
        ("translate --beam-size 0 Jane", "0 is not in the range 1<=x<=1000"),
        ("translate --beam-size two Jane", "'two' is not a valid count"),
        ("translate --length-penalty -1 Jane", "not in the range 0<=x<=100"),
        ("translate --length-penalty nan Jane", "must be finite"),
        ("translate --length-penalty long Jane", "'long' is not a valid number"),
        ("translate --device tpu Jane", "'tpu' is not one of 'auto', 'cpu', 'cuda',"),
        ("translate --weights {}/nothing Jane", "no checkpoint at"),
        ("translate --weights {} Jane", "no checkpoint at"),
        ("translate --weights {}/text Jane", "not a whole safetensors"),
        ("words --weights {}/wordless", "without its tokenizers"),
        ("train-phrasebook", "missing option '--out'"),
        ("train-phrasebook --out {}", "must name a file, got the folder"),
        ("train-phrasebook --out {}/text/x", "text"),
        (
            "train-phrasebook --out {}/x --seed 9999999999999999999",
            "range 0<=x<=4294967295",
        ),
        ("train-phrasebook --out {}/x --sentences 1000000000", "range 1<=x<=1000000"),
        ("train", "missing option '--out'"),
        ("train --out {}/x --data {}/nothing", "no folder"),
        ("train --out {}/x --data {}", "has neither raw/train.en, nor train.en"),
        ("train --out {}/x --data {} --source ../en", "must be a code"),
        (
            "train --out {}/x --schedule linear",
            "'linear' is not one of 'inverse-sqrt', 'cosine'",
        ),
        (
            "train --out {}/x --preset huge",
            "'huge' is not one of 'tiny', 'small', 'base', 'toy'",
        ),
        ("train --out {}/x --text lower", "'lower' is not one of 'tok', 'raw'"),
        (
            "train --out {}/x --precision fp8",
            "'fp8' is not one of 'auto', 'float32', 'bf16'",
        ),
        ("train --out {}/x --epochs 0", "'--epochs': 0 is not in the range x>=1"),
        ("train --out {}/x --learning-rate 0", "0.0 is not in the range x>0"),
        ("train --out {}/x --learning-rate inf", "must be finite, got inf"),
        ("train --out {}/x --dropout 1.5", "1.5 is not in the range 0<=x<1"),
        ("train --out {}/x --d-model 7", "d_model must be even"),
        ("train --out {}/x --num-heads 3", "num_heads must divide d_model"),
        ("train --out=", "must name a folder, got ''"),
        ("train --out {}/x --data=", "must name a folder or file, got ''"),
        ("translate --weights= Jane", "must name a run or file, got ''"),
        ("translate --file=", "must name a file, got ''"),
        ("evaluate {} --out=", "must name a file, got ''"),
        ("plot {} --out=", "must name a file, got ''"),
        ("evaluate", "missing argument 'RUN'"),
        ("evaluate {}/nothing", "no checkpoint at"),
        ("evaluate {} --split train", "'train' is not one of 'val', 'test'"),
        ("evaluate {} --average -1", "-1 is not in the range x>=0"),
        ("evaluate {} --out {}", "must name a file, got the folder"),
        ("plot --out {}/x.svg", "missing argument"),
        ("plot {}", "missing option '--out'"),
    ],
)
def test_mistakes_take_one_line_and_exit_code_2(capsys, bad_files, arguments, message):
    arguments = [each.format(bad_files) for each in arguments.split(" ") if each]
    code, output, errors = run(capsys, *arguments)
    assert (code, output) == (2, "")
    assert message in errors
    assert errors.startswith("python -m transformer")
    assert errors.count("\n") == 1
    assert len(errors) < 500


def test_a_mistake_names_its_command(capsys):
    _, _, errors = run(capsys, "translate", "--beam-size", "0", "Jane")
    assert errors == (
        "python -m transformer translate: invalid value for '--beam-size': 0 is not in "
        "the range 1<=x<=1000 (python -m transformer translate --help explains)\n"
    )


COMMANDS = [
    *("translate", "words", "train-phrasebook", "train", "evaluate", "plot"),
    "generate",
]


def test_help_names_every_command_and_the_version(capsys):
    code, output, errors = run(capsys, "--help")
    assert (code, errors) == (0, "")
    for command in COMMANDS:
        assert f"\n  {command} " in output
        assert f"\n  python -m transformer {command}" in output  # not wrapped
    code, output, _ = run(capsys, "--version")
    assert (code, output) == (0, "tested-transformer 0.1.0\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(capsys, command):
    code, output, errors = run(capsys, command, "--help")
    assert (code, errors) == (0, "")
    assert output.startswith(f"Usage: python -m transformer {command} ")
    assert len(output) > 250
    assert " TEXT" not in output  # every value has a name that means something
    assert "[default: (" not in output
    assert run(capsys, command, "-h") == (0, output, "")


def test_each_argument_is_a_sentence_of_its_own(capsys):
    """Those of one word were merged into one, and so were dates such as 1.2.2000."""
    sentences = "Il a deux chats", "J'aime Rome", "Il est malade"
    expected = "".join(run(capsys, "translate", each)[1] for each in sentences)
    assert expected.startswith("He has two cats\nI like Rome\n")
    assert run(capsys, "translate", *sentences) == (0, expected, "")
    words = "Jane", "visite", "Rome"
    code, output, errors = run(capsys, "translate", *words)
    assert (code, output.count("\n")) == (0, 3)
    assert errors.splitlines()[0] == (
        "python -m transformer: each argument is taken as a text of its own; "
        'put quotes around a text of several words: "Jane visite Rome"'
    )
    code, output, errors = run(capsys, "translate", sentences[0], "Il a Zorro")
    assert (code, output) == (2, "")
    assert "sentence 2: unknown word 'Zorro'" in errors


def test_the_words_that_are_listed_are_the_translators(capsys, tmp_path):
    path = tmp_path / "mine.safetensors"
    Translator.phrasebook().save(path)
    _, _, errors = run(capsys, "translate", "--weights", path, "Zorro")
    assert f'"python -m transformer words --weights {path}" lists them' in errors


def test_one_pair_that_is_left_out_is_one(capsys, tmp_path):
    data = write_corpus(tmp_path / "data")
    for language in ("fr", "en"):
        with (data / f"train.{language}").open("a", encoding="utf-8") as file:
            file.write("le chat " * 200 + "\n")
    languages = "--source", "fr", "--target", "en"
    options = *SIZES, *languages, "--data", data, "--out", tmp_path / "run"
    code, _, errors = run(capsys, "train", *options, "--epochs", "1")
    assert code == 0
    assert "1 pair is left out: too long or empty" in errors
