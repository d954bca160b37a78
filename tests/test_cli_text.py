"""The commands that train a language model on a text and continue a text with it."""

import io
import json
import math
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import ENVIRONMENT, ROOT, assert_same_run

from transformer.beyond.language_model import LanguageModel
from transformer.cli import main
from transformer.cli.resources import memory_needed
from transformer.training.run_folder import read_metrics
from transformer.training.text_trainer import TEXT_PRESET, language_model

pytestmark = pytest.mark.plain  # no shapes here
OPTIONS = [
    *("--device", "cpu", "--precision", "float32", "--vocab-size", "90"),
    *("--layers", "1", "--d-model", "16", "--num-heads", "2", "--d-ff", "16"),
    *("--max-length", "12", "--batch-tokens", "200", "--epochs", "3"),
    *("--warmup-steps", "5", "--learning-rate", "0.02", "--save-every", "4"),
]
PHRASEBOOK = str(ROOT / "transformer" / "weights" / "phrasebook.safetensors")


@pytest.fixture(scope="module")
def whole(book, tmp_path_factory):
    """A short run."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    arguments = ["train", "--task", "lm", "--data", book, *OPTIONS, "--out", out]
    assert main([str(each) for each in arguments]) == 0
    return out


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    return code, *capsys.readouterr()


def type_in(monkeypatch, data):
    stdin = io.TextIOWrapper(io.BytesIO(data), encoding="latin-1")
    monkeypatch.setattr(sys, "stdin", stdin)


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is POSIX")
def test_killed_unread_and_closed_in_the_end_the_same_bits(book, monkeypatch, tmp_path):
    """Killed once steps are on the disk, the same command goes on, though unread.

    So it does with standard error closed, and what complains then is no output.
    """
    options = {"env": ENVIRONMENT, "cwd": tmp_path, "stdout": subprocess.PIPE}
    command = [sys.executable, "-m", "transformer"]
    training = ["train", "--task", "lm", "--data", str(book), *OPTIONS]
    training += ["--epochs", "12", "--patience", "12", "--out"]
    cut = [*command, *training, "cut"]
    with subprocess.Popen(cut, stderr=subprocess.PIPE, **options) as killed:
        for line in killed.stderr:
            if line.startswith(b"epoch 1 ends"):
                break
        killed.send_signal(signal.SIGKILL)
    assert list((tmp_path / "cut").glob("training-*.pt"))
    done = len(read_metrics(tmp_path / "cut"))
    # As with `train 2>&1 | head -1`.
    with subprocess.Popen(cut, stderr=subprocess.STDOUT, **options) as unread:
        assert unread.stdout.readline()
        unread.stdout.close()
        assert unread.wait(timeout=240) == 0
    with monkeypatch.context() as streams:
        streams.setattr(sys, "stderr", None)
        assert main([*training, str(tmp_path / "whole")]) == 0
    assert 0 < done < len(read_metrics(tmp_path / "whole"))
    assert_same_run(tmp_path / "cut", tmp_path / "whole")
    code = "import os, sys; os.close(2); os.execv(sys.argv[1], sys.argv[1:])"
    generate = [*command, "generate", "--weights", "cut", "--length", "20"]
    closed = subprocess.run(
        [sys.executable, "-c", code, *generate],
        input="Jane likes\n日本\n".encode(),
        timeout=240,
        **options,
    )
    assert closed.returncode == 0
    assert closed.stdout.startswith(b"Jane likes")
    assert len(closed.stdout) > len(b"Jane likes\n\n")
    assert b"python -m transformer" not in closed.stdout


def test_train_says_how_it_goes_and_generate_uses_it(capsys, book, tmp_path):
    out = tmp_path / "a run"
    arguments = ["train", "--task", "lm", "--data", book, *OPTIONS, "--out", out]
    code, output, errors = run(capsys, *arguments)
    assert (code, output) == (0, "")
    lines = errors.splitlines()
    assert lines[0].endswith(f" bytes of text in {book}; cpu, float32; kept in {out}")
    assert lines[1] == f"reading {book}"
    assert lines[2].startswith("learning subwords from ")
    assert " held out; 90 subwords, " in lines[3]
    loss = read_metrics(out)[-1].validation_loss
    expected = f"epoch 3 ends: validation loss {loss:.3f}, perplexity "
    assert lines[-2] == f"{expected}{math.exp(loss):,.1f}"
    continued = f"generate --weights '{out}' \"A prompt\""
    assert lines[-1] == f"done: python -m transformer {continued}"
    found = [
        run(capsys, "generate", "--weights", weights, "--seed", seed, "Jane")
        for weights, seed in (
            *((out, 0), (out / "model.safetensors", 0)),
            (out, 1),
        )
    ]
    assert all(code == 0 and not errors for code, _, errors in found)
    assert found[0] == found[1] != found[2]
    # What was held out has the loss that training printed.
    text = book.read_text("utf-8").rstrip("\n")
    held_out = text[text.index("\n", len(text) * 9 // 10) + 1 :]
    (tmp_path / "held-out.txt").write_text(f"{held_out}\n", "utf-8")
    measured = run(capsys, "evaluate", out, "--data", tmp_path / "held-out.txt")
    assert (measured[0], measured[2]) == (0, "")
    result = json.loads(measured[1])
    best = min(m.validation_loss for m in read_metrics(out) if m.validation_loss)
    assert result["loss"] == pytest.approx(best, abs=1e-4)
    assert result["perplexity"] == pytest.approx(math.exp(best), rel=1e-3)
    assert result["characters"] == len(held_out)
    bits = result["loss"] * (result["tokens"] - 1) / math.log(2) / len(held_out)
    assert result["bits_per_character"] == pytest.approx(bits, abs=1e-3)
    pytest.importorskip("matplotlib")
    assert run(capsys, "plot", out, "--out", tmp_path / "curves.svg")[0] == 0


def test_generate_reads_a_prompt_a_line(capsys, monkeypatch, whole):
    type_in(monkeypatch, "\ufeffJane\r\n\n日本\nThe dog".encode())
    options = "--weights", whole, "--length", "1", "--top-p", "0.01"
    code, output, errors = run(capsys, "generate", *options)
    assert code == 0
    assert errors == (
        "python -m transformer: 1 sentence has characters that no training sentence "
        "had: 日, 本\n"
    )
    jane, blank, unknown, dog = output.removesuffix("\n").split("\n---\n")
    assert jane.startswith("Jane")
    assert (blank, unknown[:2]) == ("", "日本")
    assert dog.startswith("The dog")
    type_in(monkeypatch, b"\xff\n")
    code, _, errors = run(capsys, "generate", *options)
    assert (code, errors.count("\n")) == (2, 1)
    monkeypatch.setattr(sys, "stdin", None)
    code, _, errors = run(capsys, "generate", *options)
    assert (code, errors.count("\n")) == (2, 1)
    assert "no prompt given, and standard input is closed" in errors


def test_a_prompt_whose_end_would_be_lost_is_named(capsys, monkeypatch, whole):
    """The end is what generate goes on from."""
    long = b"Jane " * 100_000 + b"The dog"
    type_in(monkeypatch, b"Jane\n" + long + b"\nJane")
    options = "--weights", whole, "--length", "1", "--top-p", "0.01"
    code, output, errors = run(capsys, "generate", *options)
    assert code == 1
    expected = "line 2: a line may have 100,000 characters, this one has more\n"
    assert errors == f"python -m transformer: {expected}"
    first, blank, last = output.removesuffix("\n").split("\n---\n")
    assert (blank, first[:4], last[:4]) == ("", "Jane", "Jane")


@pytest.fixture(scope="module")
def files(book, whole, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    (folder / "empty").write_text("")
    (folder / "bytes").write_bytes(b"\xff\xfe")
    (folder / "short").write_text("one\ntwo\nthree")
    (folder / "run.json").write_bytes((whole / "run.json").read_bytes())
    LanguageModel.load(whole / "model.safetensors").save(folder / "bare")
    names = {"data": book, "lm": whole, "translator": PHRASEBOOK, "folder": folder}
    return {name: str(path) for name, path in names.items()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "train --task tune --out {folder}/x",
            "'tune' is not one of 'translation', 'lm'",
        ),
        ("train --task lm --out {folder}/x", "needs a text: give --data FILE"),
        (
            "train --task lm --out {folder}/x --data {folder}/nothing",
            "nothing: No such file",
        ),
        ("train --task lm --out {folder}/x --data {folder}/empty", "has no text in it"),
        ("train --task lm --out {folder}/x --data {folder}/bytes", "can't decode byte"),
        ("train --task lm --out {folder}/x --data {folder}", "Is a directory"),
        ("train --task lm --out {folder}/x --data {folder}/short", "too short"),
        (
            "train --task lm --out {folder}/x --data {data} --data {folder}/empty",
            "has no text in it",
        ),
        ("train --task lm --data {data} --out {folder}/x --source en", "--source is"),
        ("train --task lm --data {data} --out {folder}/x --keep-epochs 2", "--keep-ep"),
        ("train --task lm --data {data} --out {folder}/x --vocab-size 9", "at least"),
        (
            "train --task lm --data {data} --out {folder}/x --d-model 10000000",
            "memory, and there are",
        ),
        ("train --task lm --data {data} --out {folder}/empty", "got the file"),
        ("train --data {data} --data {data} --out {folder}/x", "give --data once"),
        ("train --task translation --out {folder}", "has a run of --task lm, not of"),
        ("translate --weights {lm} x", "is a language model: "),
        ("evaluate {lm} --split test", "--split is for translators"),
        ("words --weights {lm}", "is a language model: "),
        ("generate --weights {translator} x", "is a translator: "),
        ("generate x", "missing option '--weights'"),
        ("generate --weights {folder}/nothing x", "no checkpoint at"),
        ("generate --weights {folder}/bare x", "without its tokenizer"),
        ("generate --weights {lm} --length 0 x", "0 is not in the range x>=1"),
        ("generate --weights {lm} --temperature 0 Jane", "0.0 is not in the range x>0"),
        ("generate --weights {lm} --top-p 1.5 x", "1.5 is not in the range 0<x<=1"),
        ("generate --weights {lm} .\x1b\ud800", "has the lone surrogate '\\ud800'"),
        ("generate --weights {lm} \ufeff", "at least one token"),
    ],
)
def test_mistakes_take_one_line_and_exit_code_2(capsys, files, arguments, message):
    arguments = [each.format(**files) for each in arguments.split(" ")]
    code, output, errors = run(capsys, *arguments)
    assert (code, output) == (2, ""), errors
    *before, last = errors.splitlines()
    assert message in last
    assert last.startswith("python -m transformer")
    assert len(last) < 500
    status = " bytes of text in ", "reading ", "learning subwords ", " held out; "
    assert all(any(words in line for words in status) for line in before)
    out = Path(files["folder"]) / "x"
    assert not list(out.glob("*.safetensors"))
    shutil.rmtree(out, ignore_errors=True)


def test_several_processes_are_refused(capsys, monkeypatch, files, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "2")
    arguments = "train", "--task", "lm", "--data", files["data"]
    code, _, errors = run(capsys, *arguments, "--out", tmp_path / "run")
    assert (code, errors.count("\n")) == (2, 1)
    assert "trains in one process" in errors


def test_a_translators_run_is_not_gone_on_with(capsys, files, tmp_path):
    info = json.loads((ROOT / files["lm"] / "run.json").read_bytes())
    (tmp_path / "run.json").write_text(json.dumps({**info, "text": "raw"}))
    arguments = "train", "--task", "lm", "--data", files["data"], "--out", tmp_path
    code, _, errors = run(capsys, *arguments)
    assert code == 2
    assert "has a run of --task translation, not of --task lm" in errors


def test_memory_is_counted_for_a_language_model():
    model = language_model(1000, TEXT_PRESET.sizes)
    parameters = sum(weight.numel() for weight in model.parameters())
    needed = memory_needed(model.config)
    layers, positions = 4 * 100_000, 24 * 128 * 128
    assert 0.95 < (needed - layers - positions) / (20 * parameters) <= 1


def test_each_argument_is_a_prompt_of_its_own(capsys, whole):
    options = "--weights", whole, "--length", "3", "--temperature", "0.0001"
    prompts = "He has", "The", "The cat"
    apart = [run(capsys, "generate", *options, prompt)[1] for prompt in prompts]
    assert run(capsys, "generate", *options, *prompts) == (0, "---\n".join(apart), "")


def test_a_text_is_streamed_as_it_is_written_at_once(capsys, whole):
    """Also past the model's window of twelve tokens."""
    options = "--weights", whole, "--length", "40", "--seed", "3", "He has two"
    code, output, errors = run(capsys, "generate", *options)
    assert (code, errors) == (0, "")
    assert run(capsys, "generate", "--stream", *options) == (0, output, "")


def test_the_most_probable_text_has_no_chance_in_it(capsys, whole):
    options = "generate", "--weights", whole, "--greedy", "--length", "20", "He"
    texts = {run(capsys, *options, "--seed", seed)[1] for seed in range(3)}
    assert len(texts) == 1
    code, _, errors = run(capsys, *options, "--top-p", "0.5")
    assert (code, errors.count("\n")) == (2, 1)
    assert "--top-p is for drawing, not for --greedy" in errors


def test_the_held_out_text_is_that_of_training(capsys, whole):
    code, output, errors = run(capsys, "evaluate", whole)
    assert (code, errors) == (0, "")
    best = min(m.validation_loss for m in read_metrics(whole) if m.validation_loss)
    assert json.loads(output)["loss"] == pytest.approx(best, abs=1e-4)


def test_a_changed_text_is_named(capsys, book, tmp_path):
    text = tmp_path / "text"
    text.write_bytes(book.read_bytes())
    out = tmp_path / "run"
    options = "--task", "lm", "--data", text, *OPTIONS, "--epochs", "1", "--out", out
    assert run(capsys, "train", *options)[0] == 0
    text.write_text(book.read_text("utf-8").replace("a", "e"), "utf-8")
    _, _, errors = run(capsys, "evaluate", out)
    assert f"the validation set in {text} has changed since the training" in errors
    assert run(capsys, "train", "--out", out, "--epochs", "2")[0] == 2
