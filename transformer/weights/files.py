"""Checkpoints: files that are written whole or not at all, and checked when read.

Made from book/workshop/checkpoints.md: edit the chapter, not this file.
"""

import hashlib
import io
import json
import os
import re
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

__all__ = [
    "CHECKPOINT_FORMAT",
    "CHECKPOINT_VERSION",
    "write_atomically",
    "remove_partial_files",
    "write_checkpoint",
    "model_file",
    "read_checkpoint",
    "write_training_state",
    "read_training_state",
]


CHECKPOINT_FORMAT = "the-tested-transformer"
CHECKPOINT_VERSION = "1"
_RESERVED = ("checksum", "format", "version")
# Every checkpoint begins so, behind the eight bytes that give the header's length.
_OPENING = b'{"__metadata__":{"checksum":"'
_CHECKSUM = slice(8 + len(_OPENING), 8 + len(_OPENING) + 64)


def write_atomically(path: Path, data: bytes | bytearray) -> None:
    """Write beside `path`, then move into place: no reader ever sees half a file.

    A link is followed, and a file keeps its permissions. What is no file, such as a
    pipe or a device, stays what it is and is written to directly.
    """
    file_path = Path(os.path.realpath(path))
    if path.exists() and not file_path.is_file():
        with path.open("wb") as file:
            file.write(data)
        return
    file_path.parent.mkdir(parents=True, exist_ok=True)
    call = secrets.randbits(64)  # two threads may write one file
    partial = file_path.with_name(f"{file_path.name}.{call}.part")
    try:
        with partial.open("wb") as file:
            if file_path.exists():
                partial.chmod(stat.S_IMODE(file_path.stat().st_mode))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # on the disk, not only on its way there
        os.replace(partial, file_path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def remove_partial_files(path: Path) -> None:
    """Remove the partial files of `path`, whichever process wrote them."""
    path = Path(os.path.realpath(path))
    ours = re.compile(re.escape(path.name) + r"\.[0-9]+\.part")
    for file in path.parent.glob("*.part"):
        if ours.fullmatch(file.name) and file.is_file():
            file.unlink(missing_ok=True)


def _digest(data: bytes | bytearray, blank: slice) -> bytes:
    """SHA-256 of a file's bytes, with zeros where the digest itself is to stand."""
    view = memoryview(data)
    total = hashlib.sha256(view[: blank.start])
    total.update(b"0" * (blank.stop - blank.start))
    total.update(view[blank.stop :])
    return total.hexdigest().encode()


def write_checkpoint(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Write tensors and text to one safetensors file, whole or not at all.

    The same tensors and text always give the same bytes.

    Raises:
        ValueError: naming a key of `metadata` that is reserved or not text, or whose
            value is not text, or a tensor of a reserved name.
    """
    if "__metadata__" in tensors:  # where the format keeps the text
        raise ValueError("a tensor may not be named '__metadata__', it is reserved")
    for key, value in metadata.items():
        if not isinstance(key, str):
            raise ValueError(f"a key of metadata must be text, got {key!r}")
        if key in _RESERVED:
            raise ValueError(f"metadata may not have the key {key!r}, it is reserved")
        if not isinstance(value, str):
            raise ValueError(f"metadata must be text, got {value!r} for {key!r}")
        if lone := re.search("[\ud800-\udfff]", key + value):
            found = f"the lone surrogate {lone[0]!r} in {key!r}"
            raise ValueError(f"metadata must be text, got {found}")
    apart = torch.contiguous_format  # two names of one tensor are written as two
    data = save(
        {name: one.detach().clone(memory_format=apart) for name, one in tensors.items()}
    )
    size = int.from_bytes(data[:8], "little")
    # The library writes metadata in any order: the header is written again, sorted.
    header = {
        "__metadata__": {
            "checksum": "0" * 64,
            "format": CHECKPOINT_FORMAT,
            "version": CHECKPOINT_VERSION,
            **dict(sorted(metadata.items())),
        },
        **json.loads(data[8 : 8 + size]),
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    whole = bytearray().join(
        (len(text).to_bytes(8, "little"), text, memoryview(data)[8 + size :])
    )
    whole[_CHECKSUM] = _digest(whole, _CHECKSUM)
    write_atomically(path, whole)


def model_file(path: str | os.PathLike[str]) -> Path:
    """The file itself, or the one of the best model in the folder of a run.

    Raises:
        ValueError: for no name.
    """
    if not os.fspath(path):
        raise ValueError("a model is in a file or a folder, got the name ''")
    path = Path(path)
    return path / "model.safetensors" if path.is_dir() else path


def _read(path: Path, kind: str) -> bytes:
    if not path.is_file():
        raise ValueError(f"no {kind} at {path}")
    return path.read_bytes()


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata that `write_checkpoint` wrote; the file is read once.

    Raises:
        ValueError: for a file that is missing, damaged, not ours or too new.
    """
    data = _read(path, "checkpoint")
    try:
        tensors = load(data)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from None
    if data[8 : _CHECKSUM.start] != _OPENING:
        raise ValueError(f"{path} is not a checkpoint of this package")
    if data[_CHECKSUM] != _digest(data, _CHECKSUM):
        raise ValueError(f"{path} is damaged: its checksum does not match")
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    metadata: dict[str, str] = header["__metadata__"]
    if metadata.pop("format", None) != CHECKPOINT_FORMAT:
        raise ValueError(f"{path} is not a checkpoint of this package")
    version = metadata.pop("version", None)
    if version != CHECKPOINT_VERSION:
        raise ValueError(
            f"{path} has version {version!r}, expected {CHECKPOINT_VERSION!r}"
        )
    metadata.pop("checksum", None)
    return tensors, metadata


def write_training_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write what an interrupted training needs to go on, whole or not at all.

    The file is a SHA-256 in 64 hexadecimal digits, then what `torch.save` makes.
    """
    buffer = io.BytesIO(b"0" * 64)
    buffer.seek(64)
    torch.save(dict(state), buffer)
    whole = bytearray(buffer.getbuffer())
    whole[:64] = _digest(whole, slice(0, 64))
    write_atomically(path, whole)


def read_training_state(path: Path) -> dict[str, Any]:
    """The state that `write_training_state` wrote, its tensors on the CPU.

    Only tensors, numbers, text and containers are taken from the file: no code runs.

    Raises:
        ValueError: for a file that is missing, damaged or not ours.
    """
    data = _read(path, "training state")
    if data[:64] != _digest(data, slice(0, 64)):
        raise ValueError(f"{path} is damaged or not a training state of this package")
    try:
        buffer = io.BytesIO(memoryview(data)[64:])
        state = torch.load(buffer, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a forged file makes of torch's reader
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path} is not a training state: {reason}") from None
    if not isinstance(state, dict):
        raise ValueError(f"{path} is not a training state: {type(state).__name__}")
    return state
