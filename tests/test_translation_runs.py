"""Chapter 16's runs: killed, damaged, shared, lengthened; and its commands."""

import dataclasses
import datetime
import errno
import functools
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
import types

import pytest
import torch
from filelock import FileLock
from small_runs import (
    ENVIRONMENT,
    FLAGS,
    ROOT,
    SMALL,
    equal,
    newest,
    partly,
    state,
    write_corpus,
)

import transformer.__main__ as commands
from transformer import translation
from transformer.model import read_checkpoint
from transformer.training import save_training
from transformer.translation import (
    Crew,
    SubwordTranslator,
    Trainee,
    read_metrics,
    read_pairs,
    score,
    train_translator,
)

RUN = [sys.executable, "-m", "transformer"]
on_unix = pytest.mark.skipif(
    sys.platform == "win32", reason="needs fork, SIGKILL, torchrun"
)


@pytest.fixture(scope="module")
def whole(lessons, tmp_path_factory):
    """A run that nothing disturbed: its folder and its moments."""
    folder = tmp_path_factory.mktemp("whole")
    moments, said = partly(lessons, folder, every=2, keep=3)
    assert said == []
    return folder, moments


def inside(capsys, *arguments):
    """A command in this process: exit code, output, errors."""
    try:
        code = commands.main([str(one) for one in arguments])
    except SystemExit as leaving:
        code = leaving.code
    return code, *capsys.readouterr()


def timeless(folder):
    """The metrics of a run, but for its seconds and for how long it may become."""
    return [{**line, "seconds": 0, "total": 0} for line in read_metrics(folder)]


def assert_same_run(folder, whole):
    """The same to the last bit: state, kept weights, metrics; and no rubbish."""
    names = {path.name for path in whole.iterdir()}
    assert {path.name for path in folder.iterdir()} == names
    assert equal(state(folder), state(whole))
    for path in whole.glob("[em]*.safetensors"):
        (ours, about), (theirs, too) = map(read_checkpoint, (path, folder / path.name))
        assert equal(ours, theirs)
        assert about == too
    assert timeless(folder) == timeless(whole)


# Killed

# Each child is a copy of this process, which has loaded all it needs and warmed up.
BEGIN = """
import os, random, signal, sys, time
sys.path.insert(0, "tests")
import sacrebleu.metrics
import torch
from small_runs import SMALL
from transformer.translation import prepare, read_metrics, train_translator

torch.set_num_threads(1)
corpus, out = sys.argv[1:3]
lessons = prepare(corpus, SMALL, "fr", "en")
if not torch.cuda.is_available():  # with a GPU, who has learnt cannot be copied
    for now in train_translator(lessons, SMALL):
        pass

def start(folder, disturb=lambda: None):
    child = os.fork()
    if not child:
        try:
            disturb()
            for now in train_translator(lessons, SMALL, folder, every=2, keep=3):
                pass
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return child

def end(child):
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), status
    return status == 0
"""

AT_RANDOM_MOMENTS = """
rng = random.Random(1)
began = time.monotonic()
assert end(start(f"{out}/whole"))
lasts = time.monotonic() - began
kills = runs = 0
while kills < 20:
    runs += 1
    done = False
    while not done:
        child = start(f"{out}/killed-{runs}")
        time.sleep(rng.uniform(0, lasts))
        os.kill(child, signal.SIGKILL)
        done = end(child)
        kills += not done
print(kills)
"""

AT_EACH_FILE = """
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
while not end(start(f"{out}/killed-0", lambda: disturbed(kills + 1))):
    kills += 1
print(kills)
"""


def run_script(script, *arguments):
    """What a script of its own says, in the end."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + script, *map(str, arguments)],
        env=ENVIRONMENT,
        cwd=ROOT,
        capture_output=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@on_unix
def test_killed_at_random_moments_it_ends_in_the_same_bits(corpus, whole, tmp_path):
    assert int(run_script(AT_RANDOM_MOMENTS, corpus, tmp_path)) >= 20
    folders = sorted(tmp_path.glob("killed-*"))
    assert folders
    for folder in (tmp_path / "whole", *folders):
        assert_same_run(folder, whole[0])


@on_unix
def test_killed_at_each_write_move_and_removal_of_a_file(corpus, whole, tmp_path):
    assert int(run_script(AT_EACH_FILE, corpus, tmp_path)) >= 10
    assert_same_run(tmp_path / "killed-0", whole[0])


@on_unix
def test_the_command_killed_and_given_again(corpus, tmp_path, capsys):
    flags = ["train", "--data", corpus, *FLAGS, "--every", "3", "--seed", "3"]
    flags += ["--step-tokens", "200", "--patience", "99999", "--epochs"]
    command = [*RUN, *map(str, flags), "99999", "--out", str(tmp_path / "killed")]
    with subprocess.Popen(command, env=ENVIRONMENT, stderr=-3) as process:
        try:
            while len(read_metrics(tmp_path / "killed")) < 15:
                assert process.poll() is None
                time.sleep(0.05)
        finally:
            process.kill()
    epochs = read_metrics(tmp_path / "killed")[-1]["epoch"] + 3
    for out in ("killed", "alone"):
        code, said, _ = inside(capsys, *flags, epochs, "--out", tmp_path / out)
        assert (code, said) == (0, "")
    assert_same_run(tmp_path / "killed", tmp_path / "alone")


# Damaged, full, taken


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(
    lessons, whole, tmp_path, damage
):
    partly(lessons, tmp_path, 8, every=2, keep=3)
    older, last = sorted(tmp_path.glob("training-*.safetensors"))
    data = bytearray(last.read_bytes())
    data[-100] ^= 1
    last.write_bytes({"cut": data[:-40], "flipped": data, "empty": b""}[damage])
    moments, said = partly(lessons, tmp_path, every=2, keep=3)
    assert len(said) == 1
    assert last.name in said[0]
    assert "\n" not in said[0]
    assert f"going on from {older.name} instead" in said[0]
    assert moments[0].step == int(older.stem[9:]) + 1
    assert_same_run(tmp_path, whole[0])


def test_no_checkpoint_that_can_be_read_is_said(lessons, tmp_path):
    partly(lessons, tmp_path, 5, every=2)
    last = newest(tmp_path).name
    for path in tmp_path.glob("training-*.safetensors"):
        path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=rf"no checkpoint can be read: .*{last}"):
        partly(lessons, tmp_path, 1)


def test_metrics_that_were_cut_off_and_other_files_do_no_harm(lessons, whole, tmp_path):
    partly(lessons, tmp_path, 6, every=2, keep=3)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(
            b'\xff\n7\n[]\n{}\n{"step": "7"}\n' + b"[" * 9999 + b'\n{"step": 7, '
        )
    assert len(read_metrics(tmp_path)) == 6
    (tmp_path / "training-best.safetensors").write_bytes(b"kept")
    partly(lessons, tmp_path, every=2, keep=3)
    assert (tmp_path / "training-best.safetensors").read_bytes() == b"kept"
    (tmp_path / "training-best.safetensors").unlink()
    assert_same_run(tmp_path, whole[0])


def test_a_full_disk_is_said_and_the_run_goes_on_later(
    lessons, whole, tmp_path, monkeypatch
):
    partly(lessons, tmp_path, 5, every=2, keep=3)

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # What follows the last checkpoint is taken again, and then the disk is full.
    rest = train_translator(lessons, SMALL, tmp_path, every=2, keep=3)
    next(rest)
    kept = newest(tmp_path).name
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ValueError, match=rf"No space left.*{kept} is kept") as told:
        list(rest)
    assert "\n" not in str(told.value)
    monkeypatch.undo()
    assert not list(tmp_path.glob("*.part"))
    partly(lessons, tmp_path, every=2, keep=3)
    assert_same_run(tmp_path, whole[0])


def test_a_disk_full_before_the_first_checkpoint(lessons, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run = train_translator(lessons, SMALL, tmp_path, every=99)
    next(run)
    monkeypatch.setattr(translation, "write_whole", full)
    monkeypatch.setattr(translation, "save_training", full)
    monkeypatch.setattr("transformer.model.write_whole", full)
    with pytest.raises(ValueError, match=r"No space left.*no checkpoint is kept yet"):
        list(run)


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits on a process")
def test_the_command_on_a_full_disk(corpus, tmp_path, capsys):
    import resource

    flags = ["train", "--data", corpus, *FLAGS, "--epochs", "2", "--every", "2"]
    flags += ["--step-tokens", "200"]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # bytes a file may have
    try:
        code, said, heard = inside(capsys, *flags, "--out", tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (code, said) == (2, "")
    *_, last = heard.splitlines()
    assert last.startswith(f"python -m transformer: cannot write to {tmp_path}/run: ")
    assert "no checkpoint is kept yet, and the same command goes on" in last
    assert "Traceback" not in heard
    assert not list((tmp_path / "run").glob("*.safetensors*"))
    assert inside(capsys, *flags, "--out", tmp_path / "run")[0] == 0
    assert inside(capsys, *flags, "--out", tmp_path / "other")[0] == 0
    assert_same_run(tmp_path / "run", tmp_path / "other")


def test_a_folder_that_cannot_be_written_is_said_at_once(
    lessons, tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match="cannot keep a run in"):
        partly(lessons, tmp_path / "file" / "run", 1)
    if sys.platform != "win32" and os.geteuid():  # root may write anywhere
        (tmp_path / "closed").mkdir(0o500)
        with pytest.raises(ValueError, match=r"cannot keep a run in.*Permission"):
            partly(lessons, tmp_path / "closed" / "run", 1)

    def read_only(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(translation, "write_whole", read_only)
    with pytest.raises(ValueError, match=r"cannot keep a run in .*Read-only"):
        partly(lessons, tmp_path / "run", 1)


def test_another_run_may_not_take_the_folder(lessons, tmp_path):
    partly(lessons, tmp_path, 3, every=2)
    other = dataclasses.replace(SMALL, peak=0.02)
    with pytest.raises(ValueError, match=r"its peak is 0\.01, here 0\.02"):
        partly(lessons, tmp_path, 1, other)
    fewer = lessons._replace(train=lessons.train[1:])
    with pytest.raises(ValueError, match="another run: its lessons"):
        partly(fewer, tmp_path, 1)
    for wrong in (b"{", b"[]", b"\xff\xfe{}", b"[" * 99_999):
        (tmp_path / "run.json").write_bytes(wrong)
        with pytest.raises(ValueError, match=r"run\.json is damaged: .") as told:
            partly(lessons, tmp_path, 1)
        assert "\n" not in str(told.value)


def test_a_checkpoint_of_other_settings_is_refused(lessons, tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    partly(lessons, run, 4, every=2)
    partly(lessons, other, 4, dataclasses.replace(SMALL, peak=0.02), every=2)
    for path in other.glob("training-*"):
        (run / path.name).write_bytes(path.read_bytes())
    with pytest.raises(
        ValueError, match=r"another run: its settings is .*0\.02.*0\.01"
    ):
        partly(lessons, run, 1)


def test_a_run_taken_up_notes_what_the_whole_one_does(lessons, tmp_path, monkeypatch):
    beams = []
    translate = translation.SubwordTranslator.translate
    monkeypatch.setattr(
        translation.SubwordTranslator,
        "translate",
        lambda self, those, beam: beams.append(beam) or translate(self, those, beam),
    )
    settings = dataclasses.replace(SMALL, epochs=1, schedule="cosine", warmup=2)
    clock = itertools.count(5)
    monkeypatch.setattr(
        translation, "time", types.SimpleNamespace(perf_counter=lambda: next(clock))
    )
    undisturbed, _ = partly(lessons, tmp_path / "whole", settings=settings, every=2)
    partly(lessons, tmp_path / "run", 3, settings, every=2)
    partly(lessons, tmp_path / "run", settings=settings, every=2)
    assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")
    lines = read_metrics(tmp_path / "run")
    steps = len(undisturbed)
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    assert [line["seconds"] for line in lines] == list(range(1, steps + 1))
    for now in undisturbed:
        assert now.rate == settings.rate(now.step, steps)
        assert now.total == steps
    assert beams == [1, 1]  # greedily, at the end of each run's epoch


@pytest.mark.parametrize("patience", [1, 2])
def test_what_is_not_lower_is_not_better(lessons, tmp_path, monkeypatch, patience):
    monkeypatch.setattr(translation, "mean_loss", lambda *_: 2.0)
    settings = dataclasses.replace(SMALL, epochs=9, patience=patience)
    moments, _ = partly(lessons, tmp_path, settings=settings)
    assert moments[-1].epoch == 1 + patience


def test_the_last_epochs_are_kept(tmp_path):
    folder = translation.RunFolder(tmp_path, SMALL, {})
    for epoch in (2, 9, 10, 11, 12):
        (tmp_path / f"epoch-{epoch:04}.safetensors").touch()
    folder.drop_epochs(2)
    left = sorted(path.name for path in tmp_path.glob("epoch-*"))
    assert left == ["epoch-0011.safetensors", "epoch-0012.safetensors"]


def test_the_best_so_far_is_remembered_to_the_last_bit(lessons, tmp_path):
    one, other = (Trainee(SMALL, lessons.subwords.size, Crew()) for _ in "12")
    one.step(lessons.train[:5], 1, 0.01)
    one.best, one.best_epoch = 1 / 3, 7
    one.save(tmp_path / "kept", 1, {})
    assert other.load(tmp_path / "kept", {}) == 1
    assert (other.best, other.best_epoch) == (1 / 3, 7)
    assert equal(other.mean, one.mean)
    assert equal(other.model.state_dict(), one.model.state_dict())


def test_a_folder_without_metrics_has_taken_no_time(tmp_path):
    assert translation.RunFolder(tmp_path, SMALL, {}).forget(0) == 0.0


def test_a_checkpoint_without_its_mean_is_refused(lessons, tmp_path):
    partly(lessons, tmp_path, 4, every=2)
    trainee = Trainee(SMALL, lessons.subwords.size, Crew())
    about = translation.RunFolder(
        tmp_path,
        SMALL,
        {
            "languages": "fr en",
            "text": "tok",
            "lessons": lessons.digest(),
        },
    ).about
    trainee.step(lessons.train[:5], 1, 0.01)
    save_training(newest(tmp_path), trainee.model, trainee.optimizer, 4, about)
    moments, said = partly(lessons, tmp_path, 1)
    assert "its running mean does not fit" in said[0]
    assert moments[0].step == 3


def test_a_loss_that_is_no_number_ends_the_run(lessons, tmp_path):
    wild = dataclasses.replace(SMALL, peak=1e30, warmup=1, max_norm=1e30)
    with pytest.raises(ValueError, match="went astray: try a lower peak"):
        partly(lessons, tmp_path, settings=wild)
    assert all(json.dumps(line, allow_nan=False) for line in read_metrics(tmp_path))


# The end of a run


def test_a_finished_run_can_be_made_longer_but_not_on_a_cosine(lessons, tmp_path):
    short, longer = (dataclasses.replace(SMALL, epochs=n) for n in (1, 2))
    first, _ = partly(lessons, tmp_path / "run", settings=short)
    assert partly(lessons, tmp_path / "run", settings=short)[0] == []
    second, _ = partly(lessons, tmp_path / "run", settings=longer)
    assert second[0].step == first[-1].step + 1
    partly(lessons, tmp_path / "whole", settings=longer)
    assert equal(state(tmp_path / "run"), state(tmp_path / "whole"))
    cosine = dataclasses.replace(short, schedule="cosine")
    partly(lessons, tmp_path / "cosine", 3, cosine, every=1)
    with pytest.raises(ValueError, match="its epochs is 1, here 2"):
        partly(lessons, tmp_path / "cosine", 1, dataclasses.replace(cosine, epochs=2))


def test_a_run_ends_when_validation_no_longer_improves(lessons, tmp_path, monkeypatch):
    losses = iter([3.0, 2.0, 2.5, 2.1, 1.0])
    monkeypatch.setattr(translation, "mean_loss", lambda *_: next(losses))
    settings = dataclasses.replace(SMALL, epochs=9, patience=2)
    moments, _ = partly(lessons, tmp_path, 18, settings, every=2)  # past two epochs
    assert moments[-1].epoch == 3
    best = (tmp_path / "model.safetensors").read_bytes()
    moments, said = partly(lessons, tmp_path, settings=settings)
    assert moments[-1].epoch == 4
    assert (tmp_path / "model.safetensors").read_bytes() == best
    assert said == ["no better for 2 epochs: the run ends"]
    again, said = partly(lessons, tmp_path, settings=settings)
    assert again == []
    assert said == ["no better for 2 epochs: the run ends"]


def test_the_best_weights_are_the_mean_ones_of_the_best_epoch(
    lessons, tmp_path, monkeypatch
):
    losses, means = iter([3.0, 2.0, 2.5]), {}
    monkeypatch.setattr(translation, "mean_loss", lambda *_: next(losses))
    for now in train_translator(lessons, SMALL, tmp_path):
        if now.checked is not None:
            found, _ = read_checkpoint(newest(tmp_path))
            means[now.epoch] = {
                name.removeprefix("more.mean."): value
                for name, value in found.items()
                if name.startswith("more.mean.")
            }
    best = SubwordTranslator.load(tmp_path).model
    assert equal(dict(best.named_parameters()), means[2])
    assert not equal(means[2], means[3])


def test_the_mean_of_the_last_epochs(lessons, tmp_path):
    partly(lessons, tmp_path, keep=2)
    kept = sorted(tmp_path.glob("epoch-*.safetensors"))
    assert [path.stem for path in kept] == ["epoch-0002", "epoch-0003"]
    mean = SubwordTranslator.load(tmp_path, average=2).model
    ends = [SubwordTranslator.load(path).model for path in kept]
    for mine, *theirs in zip(
        mean.parameters(), *(end.parameters() for end in ends), strict=True
    ):
        torch.testing.assert_close(mine, (theirs[0] + theirs[1]) / 2)
    with pytest.raises(ValueError, match="keeps 2 epochs, not 3"):
        SubwordTranslator.load(tmp_path, average=3)
    with pytest.raises(ValueError, match="holds no epochs"):
        SubwordTranslator.load(kept[0], average=1)


def test_training_leaves_the_callers_random_numbers_alone(lessons, tmp_path):
    for seed, folder in enumerate((None, tmp_path, tmp_path)):  # the last one resumes
        torch.manual_seed(seed)
        partly(lessons, folder, 9, every=2)
        drawn = torch.rand(1)
        torch.manual_seed(seed)
        assert drawn == torch.rand(1)


def test_a_line_of_metrics_a_step(whole):
    folder, moments = whole
    lines = read_metrics(folder)
    said = [
        {name: value for name, value in now._asdict().items() if value is not None}
        for now in moments
    ]
    assert lines == said
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    ends = [line for line in lines if "checked" in line]
    assert [line["epoch"] for line in ends] == [1, 2, 3]
    assert ends[-1]["checked"] < ends[0]["checked"]
    assert all(one["seconds"] > 0 for one in lines)


# Several processes


@on_unix
def test_two_processes_follow_one_for_fifty_steps(tmp_path, capsys):
    corpus = write_corpus(tmp_path / "corpus", (500, 4, 4))
    flags = ["train", "--data", str(corpus), *FLAGS, "--dropout", "0", "--epochs", "1"]
    flags += ["--step-tokens", "120", "--part-tokens", "60"]
    both = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    both += ["--nproc-per-node", "2", "-m", "transformer"]
    done = subprocess.run(
        [*both, *flags, "--out", str(tmp_path / "two")],
        env=ENVIRONMENT,
        capture_output=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert "2 × cpu" in done.stderr.decode()
    code, _, heard = inside(capsys, *flags, "--out", tmp_path / "one")
    assert code == 0
    assert "1 × cpu" in heard
    one, two = (timeless(tmp_path / name) for name in ("one", "two"))
    assert len(one) >= 50
    for alone, shared in zip(one, two, strict=True):
        assert shared["loss"] == pytest.approx(alone["loss"], rel=1e-5)
        assert shared["tokens"] == alone["tokens"]
    assert two[-1]["checked"] == pytest.approx(one[-1]["checked"], rel=1e-5)


@on_unix
def test_a_second_process_does_its_share_and_leaves_the_files_to_the_first(
    corpus, tmp_path, capsys, monkeypatch
):
    """The first is a process of its own; the second is this one."""
    flags = ["train", "--data", corpus, *FLAGS, "--dropout", "0", "--epochs", "2"]
    flags += ["--step-tokens", "200", "--part-tokens", "60", "--out", tmp_path / "two"]
    distributed = torch.distributed
    patience = datetime.timedelta(seconds=300)
    store = distributed.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=patience
    )
    place = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    for name, value in {**place, "RANK": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    meet = functools.partial(distributed.init_process_group, timeout=patience)
    monkeypatch.setattr(distributed, "init_process_group", meet)
    first = subprocess.Popen(
        [*RUN, *map(str, flags)],
        env=ENVIRONMENT | place | {"RANK": "0", "LOCAL_RANK": "0"},
        stderr=subprocess.PIPE,
    )
    try:
        code, said, heard = inside(capsys, *flags)
        errors = first.communicate(timeout=300)[1].decode()
    finally:
        first.kill()
        if distributed.is_initialized():
            distributed.destroy_process_group()
    assert first.returncode == 0, errors
    assert (code, said, heard) == (0, "", "")  # the first does the talking
    for name in (*place, "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name)
    flags[-1] = tmp_path / "one"
    assert inside(capsys, *flags)[0] == 0
    names = {path.name for path in (tmp_path / "one").iterdir()}
    assert {path.name for path in (tmp_path / "two").iterdir()} == names
    one, two = (timeless(tmp_path / name) for name in ("one", "two"))
    for alone, shared in zip(one, two, strict=True):
        assert shared["loss"] == pytest.approx(alone["loss"], rel=1e-5)


def test_processes_that_find_different_runs_stop(lessons, tmp_path, monkeypatch):
    partly(lessons, tmp_path, 4, every=2)
    monkeypatch.setattr(Crew, "total", lambda crew, number: number + 7)
    with pytest.raises(ValueError, match="not all processes find the same run"):
        partly(lessons, tmp_path, 1)


# The commands


def test_train_evaluate_plot_translate(corpus, tmp_path, capsys):
    out, data = tmp_path / "run", ("--data", corpus)
    code, said, heard = inside(
        capsys, "train", *data, "--out", out, *FLAGS, "--epochs", 2
    )
    assert (code, said) == (0, "")
    model = translation.SubwordTranslator.load(out).model
    size = sum(weight.numel() for weight in model.parameters())
    assert heard.startswith(
        f"60 sentence pairs, 120 subwords, {size:,} parameters; 1 × cpu, float32; "
        f"kept in {out}\n"
    )
    ends = r"^epoch 2 ends: validation loss \d\.\d{3}, BLEU \d+\.\d\d \(greedy\)$"
    assert re.search(ends, heard, re.MULTILINE)
    assert heard.endswith(f"\ndone: python -m transformer evaluate {out}\n")
    lines = read_metrics(out)
    assert [line["epoch"] for line in lines if "checked" in line] == [1, 2]

    code, said, _ = inside(
        capsys, "evaluate", out, *data, "--split", "test", "--out", tmp_path / "said"
    )
    found = json.loads(said)
    wanted = [target for _, target in read_pairs(corpus, "tok", "test", "fr", "en")]
    said = (tmp_path / "said").read_text("utf-8").splitlines()
    assert (code, found["sentences"]) == (0, 12)
    for measure in ("bleu", "chrf"):
        assert found[measure] == pytest.approx(getattr(score(said, wanted), measure))
    assert "version" in found["bleu_signature"]
    code, said, _ = inside(
        capsys, "evaluate", out, *data, "--average", 2, "--beam-size", 1
    )
    assert (code, json.loads(said)["average"]) == (0, 2)

    for name in ("curves.svg", "curves.png"):
        assert inside(capsys, "plot", out, "--out", tmp_path / name)[0] == 0
        assert (tmp_path / name).stat().st_size > 5000

    (tmp_path / "lines").write_text("le chat\n\nla maison", "utf-8")
    code, from_file, _ = inside(
        capsys, "translate", "--weights", out, "--file", tmp_path / "lines"
    )
    assert code == 0
    first, blank, last = from_file.split("\n")[:3]
    assert first
    assert last
    assert blank == ""
    code, alone, _ = inside(capsys, "translate", "--weights", out, "Le chat")
    assert (code, alone.strip()) == (0, first)


def test_scores_are_printed_as_json(learned, corpus, capsys, monkeypatch):
    clock = iter((10.0, 12.34))
    monkeypatch.setattr(
        commands, "time", types.SimpleNamespace(perf_counter=lambda: next(clock))
    )
    code, said, _ = inside(capsys, "evaluate", learned, "--data", corpus)
    found = json.loads(said)
    assert code == 0
    assert said == json.dumps(found, indent=1) + "\n"
    asked = ("weights", "average", "split", "sentences", "beam_size", "length_penalty")
    assert [found[name] for name in asked] == [str(learned), 0, "val", 12, 5, 1.0]
    assert found["seconds"] == 2.3


def test_a_plot_shows_the_losses_and_bleu(learned, tmp_path, capsys, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig", lambda figure, out: drawn.append(figure)
    )
    again = shutil.copytree(learned, tmp_path / "again")
    code, *_ = inside(capsys, "plot", learned, again, "--out", tmp_path / "x.svg")
    assert code == 0
    metrics = read_metrics(learned)
    checks = [line for line in metrics if "checked" in line]
    (losses, bleus) = drawn[0].axes
    points = [
        *((losses.lines[i], metrics, "loss") for i in (0, 2)),
        *((losses.lines[i], checks, "checked") for i in (1, 3)),
        *((bleus.lines[i], checks, "bleu") for i in (0, 1)),
    ]
    for line, said, what in points:
        assert line.get_xydata().tolist() == [[one["step"], one[what]] for one in said]
    for first in (0, 1):
        training, validation = losses.lines[2 * first : 2 * first + 2]
        assert training.get_color() == validation.get_color()
        assert training.get_color() == bleus.lines[first].get_color()
        assert training.get_alpha() == 0.3
        assert validation.get_marker() == bleus.lines[first].get_marker() == "o"
    assert losses.lines[0].get_color() != losses.lines[2].get_color()
    assert losses.get_xlabel() == bleus.get_xlabel() == "step"
    assert losses.get_ylabel() == "loss, nats a target (dots: validation)"
    assert bleus.get_ylabel() == "validation BLEU, greedy"
    names = [text.get_text() for text in bleus.get_legend().get_texts()]
    assert names == [learned.name, "again"]


def test_what_a_run_goes_on_from_is_said(corpus, tmp_path, capsys):
    flags = ["train", "--data", corpus, *FLAGS, "--out", tmp_path, "--every", 2]
    flags += ["--step-tokens", 200]
    assert inside(capsys, *flags, "--epochs", 1)[0] == 0
    newest(tmp_path).write_bytes(b"")
    code, said, heard = inside(capsys, *flags, "--epochs", 2)
    assert (code, said) == (0, "")
    assert re.search(
        r"^.* going on from training-\d{8}\.safetensors", heard, re.MULTILINE
    )


def test_a_terminal_shows_one_line_that_moves(corpus, tmp_path, capsys, monkeypatch):
    flags = ["train", "--data", corpus, *FLAGS, "--epochs", 1, "--step-tokens", 400]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    code, _, heard = inside(capsys, *flags, "--out", tmp_path / "run")
    assert code == 0
    moving = [line for line in heard.split("\r") if line.startswith("epoch 1  step ")]
    steps = len(read_metrics(tmp_path / "run"))
    assert len(moving) == steps
    assert all(len(line.partition("\n")[0]) >= 79 for line in moving)
    assert "\nepoch 1 ends: validation loss" in heard
    assert f"step 1 of {steps}  loss" in moving[0]
    for part in (" tokens/s  ", " left at most"):
        assert part in moving[0]


def test_a_log_gets_a_line_a_minute(corpus, tmp_path, capsys, monkeypatch):
    def slow():  # half a minute from one look to the next
        slow.clock += 30.0
        return slow.clock

    slow.clock = 0.0
    clock = types.SimpleNamespace(perf_counter=slow)
    monkeypatch.setattr(commands, "time", clock)
    monkeypatch.setattr(translation, "time", clock)
    flags = ["train", "--data", corpus, *FLAGS, "--epochs", 1, "--step-tokens", 100]
    code, _, heard = inside(capsys, *flags, "--out", tmp_path / "run")
    assert code == 0
    lines = [line for line in heard.splitlines() if line.startswith("epoch 1  step ")]
    steps = len(read_metrics(tmp_path / "run"))
    assert steps / 4 < len(lines) < steps / 2
    assert "\r" not in heard
    metrics = read_metrics(tmp_path / "run")
    for line in lines:
        step = int(line.split()[3])
        now = metrics[step - 1]
        tokens = sum(one["tokens"] for one in metrics[:step])
        spent = now["seconds"] + 60  # since a look before the training's own first
        left = commands.span(spent / step * (steps - step))
        assert line == (
            f"epoch 1  step {step} of {steps}  loss {now['loss']:.3f}  "
            f"{tokens / spent:,.0f} tokens/s  {left} left at most"
        )


def test_settings_from_preset_flags_and_device(monkeypatch):
    def chosen(*flags):
        options = commands.parser().parse_args(["train", "--out", "x", *flags])
        return commands.chosen_settings(options), options.device

    for there in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda t=there: t)
        monkeypatch.setattr(translation, "made_for_bf16", lambda d: d == "cuda")
        settings, device = chosen()
        assert device == ("cuda" if there else "cpu")
        assert settings == dataclasses.replace(translation.PRESETS["tiny"], bf16=there)
    settings, _ = chosen(
        *("--preset", "toy", "--norm-first", "--schedule", "cosine", "--seed", "0"),
        *("--precision", "bf16", "--dropout", "0.25"),
    )
    toy = translation.PRESETS["toy"]
    changes = {"norm_first": True, "schedule": "cosine", "seed": 0, "bf16": True}
    assert settings == dataclasses.replace(toy, **changes, dropout=0.25)
    settings, _ = chosen("--preset", "tiny", "--no-norm-first")
    assert not settings.norm_first


def test_a_trained_translator_reads_standard_input(learned, tmp_path):
    done = subprocess.run(
        [*RUN, "translate", "--weights", str(learned)],
        input=b"le chat\n\nla maison\n",
        env=ENVIRONMENT,
        cwd=tmp_path,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    lines = done.stdout.decode().split("\n")
    assert len(lines) == 4
    assert lines[1] == ""


class Typed(list):
    """A terminal with somebody at it."""

    def isatty(self):
        return True


def test_somebody_types_sentences(learned, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Typed(["le chat\n", "x " * 99, "la maison\n"]))
    code, said, heard = inside(capsys, "translate", "--weights", learned)
    assert code == 0
    assert said.count("\n") == 2
    first, second = heard.splitlines()
    assert first.startswith("One sentence a line; end with")
    assert "is too long" in second


def test_a_line_too_long_is_found(learned, tmp_path, capsys):
    lines = ["le chat"] * 70 + ["x " * 99, "la maison"]
    (tmp_path / "lines").write_text("\n".join(lines), "utf-8")
    code, said, heard = inside(
        capsys, "translate", "--weights", learned, "--file", tmp_path / "lines"
    )
    assert (code, said.count("\n"), heard.count("\n")) == (2, 64, 1)
    assert "lines 65 to 72: sentence 7 is too long" in heard


def test_raw_text_is_taken_as_it_is(learned, tmp_path, capsys):
    translator = SubwordTranslator.load(learned)
    translator.text = "raw"
    translator.save(tmp_path / "raw.safetensors")
    heard = []
    for weights in (learned / "model.safetensors", tmp_path / "raw.safetensors"):
        code, said, _ = inside(capsys, "translate", "--weights", weights, "LE CHAT")
        assert code == 0
        heard.append(said)
    wanted = [translator.translate([one], 1, 0.6)[0] for one in ("le chat", "LE CHAT")]
    assert heard == [f"{one}\n" for one in wanted]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("train --out {out} --data {data} --preset huge", "invalid choice: 'huge'"),
        ("train --data {data}", "required: --out"),
        ("train --out {out} --data {data} --epochs 0", "at least 1, got '0'"),
        ("train --out {out} --data {data} --peak fast", "at least 0, got 'fast'"),
        ("train --out {out} --data {data} --dropout 1.5", "dropout must lie in"),
        ("train --out {out} --data {data} --d-model 30", "num_heads must divide"),
        ("train --out {out} --data nowhere", "no folder nowhere"),
        ("train --out {out} --data {data}", "has neither tok/train"),
        ("train --out {data}/train.fr --data {data}", "must name a folder, got the"),
        ("evaluate nowhere --data {data}", "no checkpoint at nowhere"),
        ("evaluate {data} --data {data}", "no checkpoint at"),
        ("evaluate {run} --data {data} --average 9", "keeps 2 epochs, not 9"),
        ("evaluate {out} --split train", "invalid choice: 'train'"),
        ("plot nowhere --out x.svg", "nowhere has no metrics.jsonl"),
        ("plot {run} --out x.doc", "cannot draw x.doc"),
        ("translate --weights {run} --file nowhere", "nowhere"),
        ("words --weights {run}", "reads pieces of words"),
        ("translate --weights {run} --file x chat", "not both"),
        ("translate --weights {data}/val.en chat", "is not a whole safetensors file"),
    ],
)
def test_wrong_flags_and_files_get_one_line(
    corpus, learned, tmp_path, capsys, arguments, said
):
    filled = arguments.format(out=tmp_path / "run", data=corpus, run=learned)
    code, output, heard = inside(capsys, *filled.split())
    assert (code, output) == (2, "")
    assert heard.count("\n") == 1
    assert said in heard


def test_scores_are_told_even_if_the_translations_cannot_be_kept(
    corpus, learned, capsys
):
    arguments = f"evaluate {learned} --data {corpus} --beam-size 1 --out {corpus}"
    code, output, heard = inside(capsys, *arguments.split())
    assert (code, heard.count("\n")) == (2, 1)
    assert 0 <= json.loads(output)["bleu"] <= 100


def test_too_little_memory_is_one_line(monkeypatch, capsys):
    def give_up(*_):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(commands, "run_train", give_up)
    code, _, heard = inside(capsys, "train", "--out", "run")
    assert (code, heard.count("\n")) == (2, 1)
    assert "out of memory. Try a lower --part-tokens" in heard


def test_an_error_of_ours_is_not_taken_for_too_little_memory(monkeypatch):
    def stumble(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(commands, "run_train", stumble)
    with pytest.raises(RuntimeError, match="a bug"):
        commands.main(["train", "--out", "run"])


def test_a_training_keeps_others_out_of_its_folder(lessons, tmp_path):
    lock = tmp_path / "run" / "run.lock"
    code = f"import filelock; filelock.FileLock({str(lock)!r}).acquire(blocking=False)"
    ask = functools.partial(
        subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True
    )
    run = train_translator(lessons, SMALL, tmp_path / "run")
    next(run)
    assert "filelock._error.Timeout" in ask().stderr
    again = train_translator(lessons, SMALL, tmp_path / "run")
    next(again)  # a cell that was stopped and is run again
    run.close()
    assert "filelock._error.Timeout" in ask().stderr
    again.close()
    assert ask().returncode == 0


def test_a_folder_that_cannot_be_held_is_named(lessons, tmp_path):
    (tmp_path / "run" / "run.lock").mkdir(parents=True)
    with pytest.raises(ValueError, match=f"cannot keep a run in {tmp_path / 'run'}"):
        next(train_translator(lessons, SMALL, tmp_path / "run"))


def test_a_second_training_in_a_folder_is_refused(corpus, tmp_path, capsys):
    run = "train", "--data", corpus, "--out", tmp_path, *FLAGS, "--epochs"
    assert inside(capsys, *run, 1)[0] == 0
    with FileLock(tmp_path / "run.lock", is_singleton=False):
        code, _, heard = inside(capsys, *run, 2)
    assert (code, heard.count("\n")) == (2, 2)
    assert heard.endswith(f"another training is writing to {tmp_path}\n")
    assert read_metrics(tmp_path)[-1]["epoch"] == 1
    assert inside(capsys, *run, 2)[0] == 0


@pytest.mark.parametrize("wrong", [{"every": 0}, {"keep": 0}])
def test_what_is_kept_is_counted_from_one(lessons, wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
        next(train_translator(lessons, SMALL, **wrong))


def test_each_process_needs_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(ValueError, match="process 2 of this machine found 1"):
        Crew.join("cuda")


def test_pairs_left_out_are_counted(corpus, tmp_path, capsys):
    short = [*FLAGS, "--max-length", "20", "--epochs", "1"]
    run = "train", "--data", corpus, "--out", tmp_path, *short
    code, _, heard = inside(capsys, *run)
    assert code == 0
    settings = json.loads((tmp_path / "run.json").read_text("utf-8"))
    subwords = SubwordTranslator.load(tmp_path).subwords
    long = 0
    for split in ("train", "val"):
        for source, target in read_pairs(corpus, "tok", split, "fr", "en"):
            sizes = len(subwords.encode(source)), len(subwords.encode(target)) + 1
            long += max(sizes) > settings["max_length"] == 20
    assert heard.startswith(f"{long} pairs are too long and left out\n")
    assert long > 0


TAUGHT = {
    "train": ["run.json", "metrics.jsonl", "torchrun", "same command", "MULTI30K"],
    "evaluate": [
        "Choose on validation; test once",
        "print BLEU and chrF",
        "--average",
        "--beam-size",
    ],
    "plot": ["Draw the losses", ".svg"],
    "translate": ["--file", "standard input", "--beam-size", "--length-penalty"],
}


@pytest.mark.parametrize("command", TAUGHT)
def test_help_teaches(command, capsys):
    code, said, _ = inside(capsys, command, "--help")
    assert code == 0
    flat = " ".join(said.split())
    for word in TAUGHT[command]:
        assert word in flat


def test_help_of_train_names_each_setting_and_its_meaning(capsys):
    code, said, _ = inside(capsys, "train", "--help")
    flat = " ".join(said.split())
    assert code == 0
    names = {field.name for field in dataclasses.fields(translation.Settings)}
    assert set(commands.SETTING_HELP) == names - {"bf16"}
    for name, meaning in commands.SETTING_HELP.items():
        assert f"--{name.replace('_', '-')}" in flat
        assert meaning in flat
