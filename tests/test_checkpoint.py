"""Files that are whole or not there, and of which no bit may turn."""

import builtins
import json
import os
import pickle
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from transformer.weights.files import (
    read_tensors,
    read_training_state,
    remove_partial_files,
    write_atomically,
    write_tensors,
    write_training_state,
)

TENSORS = {"b": torch.arange(3.0), "a": torch.tensor([[1, 2]]), "c": torch.ones(())}
METADATA = {"words": '["né", "a\\"b"]', "": "nothing", "z": "\n"}
STATE = {
    "step": 7,
    "best": 1.5,
    "optimizer": {"state": {0: {"exp_avg": torch.arange(3.0)}}, "groups": [{"lr": 1}]},
    "random": torch.get_rng_state(),
}


def write_model(path: Path) -> None:
    write_tensors(path, TENSORS, METADATA)


def write_state(path: Path) -> None:
    write_training_state(path, STATE)


KINDS = {
    "checkpoint": (write_model, read_tensors),
    "training state": (write_state, read_training_state),
}
kinds = pytest.mark.parametrize(("write", "read"), KINDS.values(), ids=KINDS)


def refusal(read, path) -> str:
    """The one line in which a reader refuses a file, with the file's name in it."""
    with pytest.raises((ValueError, OSError), match=re.escape(str(path))) as caught:
        read(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    assert caught.value.__cause__ is None
    return message


def test_tensors_and_text_come_back_as_they_were(tmp_path) -> None:
    path = tmp_path / "new" / "folder" / "file"
    write_model(path)
    tensors, metadata = read_tensors(path)
    assert metadata == METADATA
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].equal(tensor)
        assert tensors[name].dtype == tensor.dtype


def test_any_reader_of_safetensors_reads_a_checkpoint(tmp_path) -> None:
    path = tmp_path / "file"
    write_model(path)
    assert load_file(path)["b"].equal(TENSORS["b"])
    with safe_open(path, framework="pt") as file:
        (entry,) = file.metadata().values()
        assert json.loads(entry)["metadata"] == METADATA


def test_the_same_content_makes_the_same_bytes(tmp_path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    write_model(one)
    backwards = dict(reversed(METADATA.items()))
    transposed = TENSORS | {"a": torch.tensor([[1], [2]]).T}
    for _ in range(5):
        write_tensors(other, dict(reversed(transposed.items())), backwards)
        assert other.read_bytes() == one.read_bytes()


@kinds
def test_any_single_bit_turned_is_refused(tmp_path, write, read, monkeypatch) -> None:
    """Of a checkpoint every bit, its header's among them; of a state's, each 97th."""
    path = tmp_path / "file"
    write(path)
    whole = path.read_bytes()
    turned = bytearray(whole)
    monkeypatch.setattr(Path, "read_bytes", lambda self: bytes(turned))
    step = 1 if read is read_tensors else 97
    for bit in range(0, 8 * len(whole), step):
        turned[:] = whole
        turned[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match=re.escape(str(path))):
            read(path)
    turned[:] = whole
    read(path)


@kinds
def test_cut_short_or_with_more_behind_it_is_refused(tmp_path, write, read) -> None:
    path = tmp_path / "file"
    write(path)
    whole = path.read_bytes()
    for cut in [*range(0, len(whole), 1 + len(whole) // 100), len(whole) - 1]:
        path.write_bytes(whole[:cut])
        refusal(read, path)
    path.write_bytes(whole + b"\0")
    refusal(read, path)


@kinds
def test_what_is_no_such_file_is_refused(tmp_path, write, read) -> None:
    path = tmp_path / "file"
    with pytest.raises(FileNotFoundError):
        read(path)
    path.mkdir()
    assert refusal(read, path).startswith("no ")
    path.rmdir()
    if hasattr(os, "mkfifo"):
        os.mkfifo(path)
        assert refusal(read, path).startswith("no ")
        path.unlink()
    for content in (b"", b"\0" * 8, b"\xff" * 100, b"Dear reader", b"{}"):
        path.write_bytes(content)
        refusal(read, path)
    save_file({"a": torch.ones(1)}, path, {"format": "pt"})
    refusal(read, path)


@kinds
def test_a_file_is_read_once(tmp_path, write, read, monkeypatch) -> None:
    path, opened = tmp_path / "file", []
    write(path)
    whole = path.read_bytes()
    monkeypatch.setattr(Path, "read_bytes", lambda self: opened.append(self) or whole)
    path.write_bytes(b"nothing, should it be read by other means")
    read(path)
    assert opened == [path]


def test_weights_of_one_memory_are_written_as_two(tmp_path) -> None:
    one, path = torch.randn(4, 3), tmp_path / "file"
    tensors = {"a": one, "b": one, "rows": one[1:], "turned": one.T, "none": one[:0]}
    write_tensors(path, tensors, {})
    found, _ = read_tensors(path)
    assert all(found[name].equal(tensor) for name, tensor in tensors.items())


def test_a_tensor_in_the_place_of_the_text_is_refused(tmp_path) -> None:
    write_tensors(tmp_path / "file", TENSORS, {})
    before = (tmp_path / "file").read_bytes()
    with pytest.raises(ValueError, match="'__metadata__', it is reserved"):
        write_tensors(tmp_path / "file", {"__metadata__": torch.zeros(2)}, {})
    assert (tmp_path / "file").read_bytes() == before


@pytest.mark.plain
def test_metadata_that_is_no_text_is_refused_by_name(tmp_path) -> None:
    with pytest.raises(TypeError, match="must be text, got 3 for 'epoch'"):
        write_tensors(tmp_path / "file", TENSORS, {"epoch": 3})
    with pytest.raises(TypeError, match="must be text, got 'a' for 1"):
        write_tensors(tmp_path / "file", TENSORS, {1: "a"})


@pytest.mark.parametrize(("key", "value"), [("a", "x\ud800y"), ("a\udfff", "x")])
def test_metadata_that_is_not_unicode_is_refused_by_name(tmp_path, key, value) -> None:
    path = tmp_path / "file"
    write_model(path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"surrogates not allowed"):
        write_tensors(path, TENSORS, {key: value})
    assert path.read_bytes() == before


# Writing


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch) -> None:
    path = tmp_path / "file"
    write_model(path)
    before = path.read_bytes()

    def full(*_) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for write in (write_model, write_state):
        with pytest.raises(OSError, match="No space left"):
            write(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_everything_is_on_the_disk_before_the_file_has_its_name(
    tmp_path, monkeypatch
) -> None:
    there = []
    monkeypatch.setattr(os, "fsync", lambda file: there.append(os.fstat(file).st_size))
    write_atomically(tmp_path / "file", b"seven..")
    assert there == [7]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
def test_a_file_is_as_readable_as_any_new_one(tmp_path) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    write_atomically(path, b"")
    other.touch()
    assert path.stat().st_mode == other.stat().st_mode


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX pipes")
@pytest.mark.parametrize("through_a_link", [False, True])
def test_a_pipe_is_written_to_and_stays(tmp_path, through_a_link) -> None:
    pipe, path = tmp_path / "pipe", tmp_path / "pipe"
    os.mkfifo(pipe)
    if through_a_link:
        path = tmp_path / "link"
        path.symlink_to(pipe)
    before = sorted(tmp_path.iterdir())
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(path, b"seven..")
    assert os.read(reader, 100) == b"seven.."
    os.close(reader)
    assert pipe.is_fifo()
    assert path.is_symlink() == through_a_link
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="open files have no names")
def test_a_link_to_an_open_pipe_is_written_through(tmp_path) -> None:
    """As /dev/stdout is one."""
    reader, writer = os.pipe()
    path = tmp_path / "out"
    path.symlink_to(f"/dev/fd/{writer}")
    write_atomically(path, b"seven..")
    os.close(writer)
    assert os.read(reader, 100) == b"seven.."
    os.close(reader)
    assert [file.name for file in tmp_path.iterdir()] == ["out"]
    assert path.is_symlink()


@pytest.mark.skipif(os.name == "nt", reason="links need a right of their own")
@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_its_file_is_written(tmp_path, there) -> None:
    path, file = tmp_path / "link", tmp_path / "elsewhere" / "file"
    file.parent.mkdir()
    path.symlink_to(Path("elsewhere", "file"))
    if there:
        file.write_bytes(b"old")
    (file.parent / "file.17.part").touch()
    write_atomically(path, b"new")
    remove_partial_files(path)
    assert path.is_symlink()
    assert file.read_bytes() == b"new"
    assert [each.name for each in file.parent.iterdir()] == ["file"]


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_a_file_keeps_its_permissions(tmp_path, mode) -> None:
    path = tmp_path / "file"
    path.touch()
    path.chmod(mode)
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_folder_is_refused_and_stays(tmp_path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    with pytest.raises(OSError, match=re.escape(path.name)):
        write_atomically(path, b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["folder"]


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps an open file's name")
def test_threads_that_write_one_file_do_not_meet(tmp_path) -> None:
    path = tmp_path / "file"

    def write(number: int) -> None:
        for _ in range(30):
            write_atomically(path, bytes([number]) * 10_000)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    assert len(set(path.read_bytes())) == 1
    assert path.stat().st_size == 10_000
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_only_partial_files_of_that_name_are_removed(tmp_path) -> None:
    ours = ["a.txt.17.part", "a.txt.4.part"]
    others = ["a.txt", "b.txt.17.part", "a.txt.part", "a.txt.x.part", "my.part"]
    others.append("a_txt.17.part")
    for name in [*ours, *others]:
        (tmp_path / name).touch()
    (tmp_path / "a.txt.5.part").mkdir()
    remove_partial_files(tmp_path / "a.txt")
    remove_partial_files(tmp_path / "nowhere" / "a.txt")
    left = {file.name for file in tmp_path.iterdir()}
    assert left == {*others, "a.txt.5.part"}


# Training state


def test_a_training_state_comes_back_as_it_was(tmp_path) -> None:
    path = tmp_path / "state"
    write_state(path)
    state = read_training_state(path)
    assert state.keys() == STATE.keys()
    assert (state["step"], state["best"]) == (7, 1.5)
    assert state["random"].equal(STATE["random"])
    assert state["optimizer"]["groups"] == [{"lr": 1}]
    assert state["optimizer"]["state"][0]["exp_avg"].equal(torch.arange(3.0))


class Bomb:
    """A pickle of this writes a file as it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return builtins.open, (str(self.path), "w")


@kinds
@pytest.mark.parametrize("dump", [pickle.dump, torch.save])
def test_a_pickle_is_not_run(tmp_path, write, read, dump) -> None:
    path, boom = tmp_path / "file", tmp_path / "boom"
    with path.open("wb") as file:
        dump({"model": Bomb(boom)}, file)
    refusal(read, path)
    assert not boom.exists()


def test_a_forged_state_runs_no_code(tmp_path) -> None:
    """Its checksum fits: only `weights_only` stands between it and the disk."""
    path, boom = tmp_path / "state", tmp_path / "boom"
    write_training_state(path, {"model": Bomb(boom)})
    assert "is not a training state" in refusal(read_training_state, path)
    assert not boom.exists()
