"""The command that trains: interrupted, taken up again, and trained further."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading

import pytest
from small_runs import ENVIRONMENT, assert_same_run, write_corpus

from transformer.cli import main
from transformer.decoding.translator import Translator
from transformer.training.run_folder import read_metrics, read_run

pytestmark = pytest.mark.plain  # no shapes here
SIZES = [
    *("--preset", "toy", "--device", "cpu", "--precision", "float32"),
    *("--vocab-size", "120", "--layers", "1", "--d-model", "16", "--num-heads", "2"),
    *("--d-ff", "16", "--batch-tokens", "400", "--source", "fr", "--target", "en"),
    *("--learning-rate", "0.02", "--warmup-steps", "5"),
]


def run(capsys, *arguments):
    """Exit code, output and errors of a command in this process."""
    code = main([str(argument) for argument in arguments])
    return code, *capsys.readouterr()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Sentence pairs of the phrasebook."""
    return write_corpus(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """A run of three epochs."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    options = ["train", "--data", data, *SIZES, "--epochs", "3", "--out", out]
    assert main([str(each) for each in options]) == 0
    return out


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_a_checkpoint_and_says_how_to_go_on(
    data, whole, capsys, tmp_path, number
):
    """What follows is the same, to the last bit, as without the signal."""
    # A background job of a shell ignores Ctrl-C, and so would its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    out = tmp_path / "a run"
    options = ["train", "--data", str(data), *SIZES, "--epochs", "3", "--out", str(out)]
    command = [sys.executable, "-m", "transformer", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=ENVIRONMENT) as cut:
        for line in cut.stderr:
            if b" step 1 of " in line:
                break
        cut.send_signal(number)
        errors = cut.stderr.read().decode()
    assert cut.returncode == 128 + number
    *_, stopped, advice = errors.splitlines()
    done = read_metrics(out)[-1].step
    assert stopped == f"stopped after step {done} of {read_metrics(whole)[-1].step}"
    assert advice == f"to go on: python -m transformer train --out '{out}'"
    assert (out / f"training-{done:08}.pt").is_file()
    code, _, errors = run(capsys, "train", "--out", out)
    assert code == 0
    assert f"going on from step {done} of " in errors
    assert_same_run(out, whole)


def test_a_run_goes_on_from_its_folder_alone(data, whole, capsys, tmp_path):
    """Its sizes, choices, data and languages are those that it was begun with."""
    out = tmp_path / "run"
    options = "--data", data, *SIZES, "--epochs", "3", "--out", out
    code, _, errors = run(capsys, "train", *options, "--max-steps", "2")
    assert code == 0
    assert "stopped after step 2 of " in errors
    assert Translator.load(out)  # a model is kept even before the first epoch ends
    again = run(capsys, "train", "--out", out, "--max-steps", "2")
    assert "the run has taken 2 steps already" in again[2]
    code, _, errors = run(capsys, "train", "--out", out)
    assert code == 0
    assert f"60 pairs in {data}, fr to en, raw text; 1 × cpu, float32;" in errors
    assert_same_run(out, whole)
    code, _, errors = run(capsys, "train", "--out", out, "--epochs", "4")
    assert code == 0
    assert read_metrics(out)[-1].epoch == 4
    code, _, errors = run(capsys, "train", "--out", out, "--d-model", "32")
    assert (code, errors.splitlines()[-1].count("--d-model")) == (2, 1)
    code, _, errors = run(capsys, "train", "--out", out, "--task", "lm")
    assert (code, errors.count("\n")) == (2, 1)
    assert "has a run of --task translation, not of --task lm" in errors


def test_a_folder_without_a_run_is_not_gone_on_with(capsys, tmp_path):
    """A mistyped folder begins no training of Multi30k."""
    out = tmp_path / "mistyped"
    code, _, errors = run(capsys, "train", "--out", out, "--device", "cpu")
    assert (code, errors.count("\n")) == (2, 1)
    assert f"{out} has no run to go on with: give --data" in errors
    assert not out.exists()


def test_a_refused_vocabulary_leaves_the_runs_own(whole, capsys, tmp_path):
    """Subwords that belong to a run are not replaced before another is accepted."""
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    kept = (out / "run.subwords.json").read_bytes()
    code, _, errors = run(capsys, "train", "--out", out, "--vocab-size", "90")
    assert code == 2, errors
    assert (out / "run.subwords.json").read_bytes() == kept


def test_memory_that_ran_out_can_be_helped(data, whole, capsys, tmp_path):
    """The advice is to go on with smaller micro batches."""
    out = tmp_path / "run"
    options = "--data", data, *SIZES, "--epochs", "3", "--out", out
    assert run(capsys, "train", *options, "--max-steps", "2")[0] == 0
    less = "--micro-batch-tokens", "100", "--precision", "bf16"
    code, _, errors = run(capsys, "train", "--out", out, *less)
    assert code == 0, errors
    assert read_metrics(out)[-1].step == read_metrics(whole)[-1].step


def test_a_call_from_another_thread_trains_too(data, tmp_path):
    """Only the main thread may handle signals."""
    codes = []
    options = [
        "train",
        "--data",
        data,
        *SIZES,
        "--epochs",
        "1",
        "--out",
        tmp_path / "x",
    ]
    arguments = [str(each) for each in options]
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=lambda: codes.append(main(arguments)))
    thread.start()
    thread.join()
    assert codes == [0]
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_model_is_trained_further(whole, capsys, tmp_path):
    """On other pairs, with the tokenizer and the sizes that it has."""
    new = write_corpus(tmp_path / "new", sizes=(40, 5, 5))
    out = tmp_path / "run"
    more = "--from", whole, "--data", new, "--device", "cpu", "--precision", "float32"
    schedule = "--preset", "toy", "--epochs", "2", "--batch-tokens", "400"
    code, _, errors = run(capsys, "train", *more, *schedule, "--out", out)
    assert code == 0, errors
    assert "fr to en" in errors
    base, tuned = Translator.load(whole), Translator.load(out)
    assert tuned.source_tokenizer.to_json() == base.source_tokenizer.to_json()
    assert tuned.model.config == base.model.config
    # It began where the other had come to, not anew.
    assert read_metrics(out)[0].loss < read_metrics(whole)[0].loss - 0.3
    assert read_run(out).data == str(new.resolve())

    # Cut short, it goes on by itself, though the first model is gone.
    cut, gone = tmp_path / "cut", tmp_path / "gone"
    shutil.copytree(whole, gone)
    again = "--from", gone, *more[2:], *schedule, "--out", cut
    assert run(capsys, "train", *again, "--max-steps", "1")[0] == 0
    assert run(capsys, "train", *again, "--max-steps", "2")[0] == 0
    shutil.rmtree(gone)
    for path in cut.glob("training-*.pt"):  # before its first checkpoint, even
        path.unlink()
    (cut / "model.safetensors").unlink()
    assert run(capsys, "train", "--out", cut)[0] == 0
    assert_same_run(cut, out)
    for options, message in (
        (("--from", out, "--out", cut), "has a run that did not begin with"),
        (("--from", whole, "--out", whole), "has a run that did not begin with"),
        (
            ("--from", whole, "--out", tmp_path / "x", "--d-ff", "8"),
            "--d-ff is that of",
        ),
        (("--from", whole, "--out", tmp_path / "x", "--task", "lm"), "is a translator"),
        (("--from", tmp_path, "--out", tmp_path / "x"), "no checkpoint at"),
    ):
        code, _, errors = run(capsys, "train", *options)
        assert (code, errors.count("\n")) == (2, 1), errors
        assert message in errors


def test_a_new_attempt_forgets_the_model_of_one_that_failed(
    data, whole, capsys, tmp_path
):
    out = tmp_path / "run"
    code, _, _ = run(capsys, "train", "--from", whole, "--data", tmp_path, "--out", out)
    assert code == 2
    code, _, _ = run(
        *(capsys, "train", "--data", data, *SIZES, "--epochs", "3", "--out", out)
    )
    assert code == 0
    assert_same_run(out, whole)


def test_evaluate_says_when_the_sentences_have_changed(data, capsys, tmp_path):
    mine, out = tmp_path / "mine", tmp_path / "run"
    shutil.copytree(data, mine)
    options = "--data", mine, *SIZES, "--epochs", "1", "--out", out
    assert run(capsys, "train", *options)[0] == 0
    evaluate = "evaluate", out, "--max-length", "2"
    assert run(capsys, *evaluate)[2].count("\n") == 1  # translations are cut
    lines = (mine / "val.en").read_text("utf-8").splitlines()
    (mine / "val.en").write_text("\n".join(reversed(lines)) + "\n", "utf-8")
    code, output, errors = run(capsys, *evaluate)
    assert code == 0
    assert errors.startswith(
        f"python -m transformer: the validation set in {mine} has changed since the "
        "training\n"
    )
    assert json.loads(output)["sentences"] == 6
