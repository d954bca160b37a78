"""The folder of a run: what it keeps, survives and refuses."""

import dataclasses
import errno
import json
import math
import os
import subprocess
import sys

import pytest
import torch
from filelock import FileLock
from small_runs import (
    CONFIG,
    ENVIRONMENT,
    ROOT,
    assert_same_run,
    newest,
    run_steps,
    small_model,
)

from transformer.decoding.translator import Translator
from transformer.training.loop import StepMetrics
from transformer.training.run_folder import (
    RunFolder,
    load_run,
    read_metrics,
    read_run,
)
from transformer.training.trainer import train_translator

pytestmark = pytest.mark.plain  # shapes are checked where the trainer is tested
on_unix = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")


# Killed

# Each child is a copy of this process, which has loaded all it needs and warmed up.
SCRIPT = """
import itertools, os, random, signal, sys, time
from pathlib import Path
import torch
from small_runs import CONFIG, load_dataset, run_steps

torch.set_num_threads(1)
dataset, out = load_dataset(Path(sys.argv[1])), Path(sys.argv[2])
run_steps(dataset, None)

def start(folder, disturb=lambda: None):
    child = os.fork()
    if not child:
        try:
            disturb()
            run_steps(dataset, folder)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return child

def end(child):
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), status
    return status == 0

# At random times.
rng = random.Random(1)
began = time.monotonic()
assert end(start(out / "whole"))
duration = time.monotonic() - began
kills = runs = 0
while kills < 8:
    runs += 1
    done = False
    while not done:
        child = start(out / f"killed-{runs}")
        time.sleep(rng.uniform(0, duration))
        os.kill(child, signal.SIGKILL)
        done = end(child)
        kills += not done
print(kills)

# At each write, move and removal of a file.
def disturbed(count):
    def kill(before):
        nonlocal left
        left -= 1
        if not left:
            before()
            os.kill(os.getpid(), signal.SIGKILL)

    def fsync(file):
        kill(lambda: os.ftruncate(file, os.fstat(file).st_size // 2))
        own["fsync"](file)

    def replace(*paths):
        kill(lambda: None)
        own["replace"](*paths)
        kill(lambda: None)

    def unlink(path):
        kill(lambda: None)
        own["unlink"](path)

    left = count
    own = {"fsync": os.fsync, "replace": os.replace, "unlink": os.unlink}
    os.fsync, os.replace, os.unlink = fsync, replace, unlink

kills = 0
while not end(start(out / "killed", lambda: disturbed(kills + 1))):
    kills += 1
print(kills)
"""


@pytest.fixture(scope="module")
def killed(corpus, tmp_path_factory):
    """The folder of runs that were killed, and how often in both ways."""
    folder = tmp_path_factory.mktemp("killed")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(corpus), str(folder)],
        env=ENVIRONMENT,
        cwd=ROOT,
        capture_output=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return folder, *map(int, done.stdout.split())


@on_unix
def test_killed_at_random_times_it_ends_in_the_same_bits(killed, whole_run):
    folder, kills, _ = killed
    assert kills >= 8
    folders = sorted(folder.glob("killed-*"))
    assert folders
    for each in (folder / "whole", *folders):
        assert_same_run(each, whole_run)


@on_unix
def test_killed_at_each_write_move_and_removal_of_a_file(killed, whole_run):
    folder, _, kills = killed
    assert kills >= 10
    assert_same_run(folder / "killed", whole_run)


@pytest.mark.parametrize("steps", [1, 4, 5, 11])
def test_left_after_any_step_it_goes_on_to_the_same_bits(
    dataset, whole_run, tmp_path, steps
):
    run_steps(dataset, tmp_path, steps)
    # A checkpoint has weights of its own.
    model = small_model(dataset, seed=1 if steps >= 3 else 5)
    torch.manual_seed(steps)  # whatever happened in between
    metrics, reported = run_steps(dataset, tmp_path, model=model)
    assert reported == []
    assert metrics[0].step == max(steps // 3 * 3, steps // 5 * 5) + 1
    assert_same_run(tmp_path, whole_run)


def test_left_before_its_last_removal_of_a_checkpoint(
    dataset, whole_run, tmp_path, monkeypatch
):
    def interrupt(path):
        if os.fspath(path).endswith("training-00000010.pt"):
            raise KeyboardInterrupt
        unlink(path)

    unlink = os.unlink
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_steps(dataset, tmp_path)
    assert newest(tmp_path).name == "training-00000015.pt"
    assert run_steps(dataset, tmp_path) == ([], [])
    assert_same_run(tmp_path, whole_run)


# Damaged, full, taken


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(
    dataset, whole_run, tmp_path, damage
):
    run_steps(dataset, tmp_path, 7)
    older, last = sorted(tmp_path.glob("training-*.pt"))
    data = bytearray(last.read_bytes())
    data[-100] ^= 1
    last.write_bytes({"cut": data[:-40], "flipped": data, "empty": b""}[damage])
    metrics, reported = run_steps(dataset, tmp_path)
    assert len(reported) == 1
    assert last.name in reported[0]
    assert "\n" not in reported[0]
    assert f"going on from {older.name} instead" in reported[0]
    assert metrics[0].step == int(older.stem[9:]) + 1
    assert_same_run(tmp_path, whole_run)


def test_checkpoints_that_are_all_damaged_are_named(dataset, tmp_path):
    run_steps(dataset, tmp_path, 5)
    last = newest(tmp_path).name
    for path in tmp_path.glob("training-*.pt"):
        path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=rf"no checkpoint can be read: .*{last}"):
        run_steps(dataset, tmp_path, 1)


def test_a_checkpoint_of_another_run_is_refused(dataset, tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    run_steps(dataset, run, 4)
    run_steps(dataset, other, 4, dataclasses.replace(CONFIG, learning_rate=0.02))
    for path in other.glob("training-*"):
        (run / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ValueError, match=r"no checkpoint can be read: .*another run"):
        run_steps(dataset, run, 1)


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_one_line_and_the_run_goes_on_later(
    dataset, whole_run, tmp_path, monkeypatch
):
    run_steps(dataset, tmp_path, 5)
    # What follows the last checkpoint is taken again, and then the disk is full.
    run = train_translator(
        small_model(dataset), dataset, CONFIG, tmp_path, None, 3, keep_epochs=2
    )
    next(run)
    kept = newest(tmp_path).name
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        with pytest.raises(
            ValueError, match=rf"No space left.*{kept} is kept"
        ) as caught:
            list(run)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("*.part"))
    run_steps(dataset, tmp_path)
    assert_same_run(tmp_path, whole_run)


def test_a_disk_full_before_the_first_checkpoint(dataset, tmp_path, monkeypatch):
    run = train_translator(small_model(dataset), dataset, CONFIG, tmp_path)
    next(run)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ValueError, match=r"No space left.*no checkpoint is kept yet"):
        list(run)


def test_a_folder_that_cannot_be_written_is_refused_at_once(
    dataset, tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match="cannot keep a run in"):
        run_steps(dataset, tmp_path / "file" / "run", 1)
    (tmp_path / "locked" / "run.lock").mkdir(parents=True)
    with pytest.raises(ValueError, match=f"cannot keep a run in {tmp_path / 'locked'}"):
        run_steps(dataset, tmp_path / "locked", 1)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ValueError, match=r"cannot keep a run in .*No space"):
        run_steps(dataset, tmp_path / "run", 1)


def test_a_folder_with_other_files_is_refused_and_left_as_it_is(dataset, tmp_path):
    names = ["epoch-notes.safetensors", "model.safetensors", "thesis.part"]
    for name in names:
        (tmp_path / name).write_text("precious")
    with pytest.raises(ValueError, match=r"neither empty.*it has epoch-notes"):
        run_steps(dataset, tmp_path, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert {path.read_text() for path in tmp_path.iterdir()} == {"precious"}


def test_other_files_in_a_runs_folder_are_left_alone(dataset, whole_run, tmp_path):
    run_steps(dataset, tmp_path, 5)
    others = ["epoch-best.safetensors", "training-best.pt", "thesis.pdf.part"]
    others += ["epoch-0001.safetensors.bak", "training-00000003.pt.7.part.txt"]
    for name in others:
        (tmp_path / name).write_text("precious")
    (tmp_path / "training-00000006.pt.4711.part").write_text("of a killed process")
    run_steps(dataset, tmp_path)
    for name in others:
        assert (tmp_path / name).read_text() == "precious"
        (tmp_path / name).unlink()
    assert_same_run(tmp_path, whole_run)


def test_a_model_whose_checkpoints_are_gone_is_not_trained_over(dataset, tmp_path):
    run_steps(dataset, tmp_path)
    for path in tmp_path.glob("training-*.pt"):
        path.unlink()
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=r"has a model, but no training-\*\.pt to go"):
        run_steps(dataset, tmp_path, 1)
    assert kept == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_finished_run_gives_its_model_again(dataset, tmp_path, damage):
    run_steps(dataset, tmp_path)
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(whole[:100])
    assert run_steps(dataset, tmp_path)[0] == []
    assert file.read_bytes() == whole


def test_another_run_may_not_take_the_folder(dataset, tmp_path):
    run_steps(dataset, tmp_path, 3)
    other = dataclasses.replace(CONFIG, learning_rate=0.02)
    with pytest.raises(ValueError, match=r"its learning_rate is 0\.01, here 0\.02"):
        run_steps(dataset, tmp_path, 1, other)
    with pytest.raises(ValueError, match="its d_ff is 16, here 8"):
        run_steps(dataset, tmp_path, 1, model=small_model(dataset, d_ff=8))
    other = dataclasses.replace(CONFIG, schedule="cosine")  # its epochs count, too
    with pytest.raises(ValueError, match="its schedule is 'inverse-sqrt', here 'cosi"):
        run_steps(dataset, tmp_path, 1, other)
    fewer = dataset._replace(train=dataset.train[1:])
    with pytest.raises(ValueError, match="another run: its dataset"):
        run_steps(fewer, tmp_path, 1)
    moved = dataset._replace(folder="/elsewhere")
    assert run_steps(moved, tmp_path, 1)[0][0].step == 4
    assert read_run(tmp_path).data == "/elsewhere"


@pytest.mark.parametrize("steps", [1, None])
def test_a_first_try_that_failed_does_not_block_its_folder(
    dataset, whole_run, tmp_path, steps
):
    wild = dataclasses.replace(CONFIG, learning_rate=1e30, max_grad_norm=1e30)
    if steps:  # left before its first checkpoint
        run_steps(dataset, tmp_path, steps, wild)
    else:
        wild = dataclasses.replace(wild, warmup_steps=1)
        with pytest.raises(ValueError, match=r"diverged.*try a lower learning rate"):
            run_steps(dataset, tmp_path, config=wild, checkpoint_every=1)
        assert newest(tmp_path)
    run_steps(dataset, tmp_path)
    assert_same_run(tmp_path, whole_run)


def test_an_epoch_whose_validation_loss_is_not_finite_ends_a_run(dataset, tmp_path):
    """It is found before anything is decoded or kept."""
    wild = dataclasses.replace(
        CONFIG, learning_rate=1e30, warmup_steps=1, batch_tokens=99_999, epochs=1
    )
    with pytest.raises(ValueError, match=r"step 1 diverged, its validation loss is "):
        run_steps(dataset, tmp_path, config=wild)
    assert json.loads((tmp_path / "run.json").read_text())["diverged"] == 1
    assert not list(tmp_path.glob("*.safetensors"))


def test_metrics_are_json_whatever_they_measure(tmp_path):
    found = StepMetrics(1, 1, 1, 2.0, 0.1, 3.0, 9, 0.5, validation_loss=math.nan)
    RunFolder(tmp_path).append_metrics(found)

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=refuse)
    assert read_metrics(tmp_path) == [found._replace(validation_loss=None)]


def test_a_run_can_be_made_longer_but_not_where_its_end_shapes_it(dataset, tmp_path):
    short, longer = (dataclasses.replace(CONFIG, epochs=n) for n in (1, 2))
    first, _ = run_steps(dataset, tmp_path / "run", config=short)
    assert run_steps(dataset, tmp_path / "run", config=short)[0] == []
    second, _ = run_steps(dataset, tmp_path / "run", config=longer)
    assert second[0].step == first[-1].step + 1
    run_steps(dataset, tmp_path / "whole", config=longer)
    one, other = (tmp_path / n / "model.safetensors" for n in ("run", "whole"))
    assert one.read_bytes() == other.read_bytes()
    for change in ({"schedule": "cosine"}, {"cooldown": 0.5}):
        folder = tmp_path / next(iter(change))
        run_steps(dataset, folder, config=dataclasses.replace(short, **change))
        with pytest.raises(ValueError, match="its epochs is 1, here 2"):
            run_steps(dataset, folder, config=dataclasses.replace(longer, **change))


def test_a_training_keeps_other_processes_out_of_its_folder(dataset, tmp_path):
    other = FileLock(tmp_path / "run.lock", is_singleton=False)
    run = train_translator(small_model(dataset), dataset, CONFIG, tmp_path)
    next(run)
    again = train_translator(small_model(dataset), dataset, CONFIG, tmp_path)
    next(again)  # a notebook's cell that was stopped and is run again
    run.close()
    with pytest.raises(TimeoutError):
        other.acquire(blocking=False)
    again.close()
    with other, pytest.raises(ValueError, match="another training is writing to"):
        run_steps(dataset, tmp_path, 1)
    assert run_steps(dataset, tmp_path, 1)[0][0].step == 1


def test_of_two_trainings_in_one_process_the_later_has_the_folder(
    dataset, whole_run, tmp_path
):
    first = train_translator(small_model(dataset), dataset, CONFIG, tmp_path)
    next(first)
    again = train_translator(small_model(dataset), dataset, CONFIG, tmp_path)
    next(again)
    with pytest.raises(ValueError, match=r"another training has taken .* over"):
        next(first)
    assert [each.step for each in read_metrics(tmp_path)] == [1]
    again.close()
    left = train_translator(small_model(dataset), dataset, CONFIG, tmp_path)
    next(left)
    run_steps(dataset, tmp_path)  # to its end
    with pytest.raises(ValueError, match=r"another training has taken .* over"):
        next(left)
    assert_same_run(tmp_path, whole_run)


# What is read


def test_metrics_that_are_damaged_are_left_out(dataset, whole_run, tmp_path):
    run_steps(dataset, tmp_path, 7)
    lines = (tmp_path / "metrics.jsonl").read_bytes().splitlines()
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        for bad in (
            *(b"\xff", b"7", b"[]", b"{}", b'{"step": "7"}', b"[" * 9999),
            lines[3].replace(b'"step": 4', b'"step": ' + b"9" * 400),
            lines[3].replace(b'"step": 4', b'"step": ' + b"9" * 5000),
            lines[3].replace(b'"step": 4', b'"step": 4.5'),
            lines[3].replace(b'"step": 4', b'"step": true'),
            lines[3].replace(b'"step": ', b'"step": 1e999, "x": '),
            b'{"step": 7, ',
        ):
            file.write(bad + b"\n")
    found = read_metrics(tmp_path)
    assert [each.step for each in found] == [1, 2, 3, 4, 5, 6, 7]
    assert all(isinstance(each, StepMetrics) for each in found)
    run_steps(dataset, tmp_path)
    assert_same_run(tmp_path, whole_run)
    (tmp_path / "metrics.jsonl").unlink()
    assert read_metrics(tmp_path) == []
    with pytest.raises(ValueError, match=r"no folder of a run at .*nowhere"):
        read_metrics(tmp_path / "nowhere")


def test_fields_that_are_not_ours_stay_in_the_metrics(dataset, tmp_path):
    run_steps(dataset, tmp_path, 4)
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text().replace('"step": 2,', '"step": 2, "watts": 90,'))
    assert [each.step for each in read_metrics(tmp_path)] == [1, 2, 3, 4]
    run_steps(dataset, tmp_path, 1)
    lines = list(map(json.loads, path.read_text().splitlines()))
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert lines[1]["watts"] == 90


def test_a_finished_run_is_not_described_anew(dataset, tmp_path):
    run_steps(dataset, tmp_path)
    before = (tmp_path / "run.json").read_bytes()
    for change in ({"epochs": 2}, {"patience": 1}, {"micro_batch_tokens": 100}):
        config = dataclasses.replace(CONFIG, **change)
        assert run_steps(dataset, tmp_path, config=config)[0] == []
        assert (tmp_path / "run.json").read_bytes() == before
    longer = dataclasses.replace(CONFIG, epochs=4)
    run_steps(dataset, tmp_path, 1, longer)
    assert read_run(tmp_path).training["epochs"] == 4


def test_what_changes_no_result_may_change_on_the_way(dataset, tmp_path):
    run_steps(dataset, tmp_path, 4)
    parts = dataclasses.replace(CONFIG, micro_batch_tokens=100, bf16=True)
    assert run_steps(dataset, tmp_path, 1, parts)[0][0].step == 4
    assert read_run(tmp_path).training["bf16"] is True
    other = dataclasses.replace(CONFIG, label_smoothing=0.2)
    message = r"label_smoothing is 0\.1, here 0\.2 \(--label-smoothing\)"
    with pytest.raises(ValueError, match=message):
        run_steps(dataset, tmp_path, 1, other)
    fewer = small_model(dataset, num_encoder_layers=2)
    with pytest.raises(ValueError, match=r"is 1, here 2 \(--layers\)"):
        run_steps(dataset, tmp_path, 1, model=fewer)


def test_a_run_stops_where_it_is_asked_to_and_goes_on(dataset, whole_run, tmp_path):
    asked, reported = [], []
    run = train_translator(
        small_model(dataset),
        dataset,
        CONFIG,
        tmp_path,
        checkpoint_every=3,
        keep_epochs=2,
        report=reported.append,
        stop=lambda: bool(asked),
    )
    for metrics in run:
        if metrics.step == 7:
            asked.append(True)
    assert metrics.step == 7
    assert newest(tmp_path).name == "training-00000007.pt"
    assert reported == ["stopped after step 7 of 15"]
    again, _ = run_steps(dataset, tmp_path)
    assert again[0].step == 8
    assert_same_run(tmp_path, whole_run)


def test_a_damaged_description_is_one_line_and_left_as_it_is(dataset, tmp_path):
    wrongs = [b"{", b"{}", b"[]", b"\xff\xfe{}", b"[" * 99_999, b'{"name": 1}']
    (tmp_path / "metrics.jsonl").write_text("precious")
    for wrong in wrongs:
        (tmp_path / "run.json").write_bytes(wrong)
        with pytest.raises(ValueError, match=r"run\.json is damaged: .") as caught:
            read_run(tmp_path)
        assert "\n" not in str(caught.value)
        with pytest.raises(ValueError, match=r"run\.json is damaged: ."):
            run_steps(dataset, tmp_path, 1)
        assert (tmp_path / "run.json").read_bytes() == wrong
    assert (tmp_path / "metrics.jsonl").read_text() == "precious"


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"not the folder of a run: it has no run\."):
        read_run(tmp_path)
    with pytest.raises(ValueError, match="keeps 0 epochs, not 1"):
        load_run(tmp_path, average=1)


@pytest.mark.parametrize("keep", [1, 2, 4])
def test_as_many_epochs_are_kept_as_were_asked_for(dataset, tmp_path, keep):
    run_steps(dataset, tmp_path / "run", keep_epochs=keep)
    kept = sorted(path.name for path in (tmp_path / "run").glob("epoch-*"))
    assert kept == [f"epoch-{n:04}.safetensors" for n in (1, 2, 3)][-keep:]


def test_the_mean_of_the_last_epochs(whole_run):
    kept = sorted(whole_run.glob("epoch-*.safetensors"))
    assert [path.stem for path in kept] == ["epoch-0002", "epoch-0003"]
    mean = load_run(whole_run, average=2).model
    ends = [Translator.load(path).model for path in kept]
    for mine, *theirs in zip(
        mean.parameters(), *(end.parameters() for end in ends), strict=True
    ):
        torch.testing.assert_close(mine, (theirs[0] + theirs[1]) / 2)
    with pytest.raises(ValueError, match="keeps 2 epochs, not 3"):
        load_run(whole_run, average=3)


def test_the_description_can_be_read_by_people(whole_run):
    text = (whole_run / "run.json").read_text("utf-8")
    assert json.loads(text)["training"]["learning_rate"] == 0.01
    assert len(text.splitlines()) > 20
