"""Files that are written whole or not at all, and checked when they are read.

Made from book/workshop/checkpoints.md: edit the chapter, not this file.
"""

import hashlib
import io
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from transformer.checks import InvalidType, InvalidValue

__all__ = [
    "open_atomically",
    "write_atomically",
    "remove_partial_files",
    "write_tensors",
    "read_tensors",
    "model_file",
    "write_training_state",
    "read_training_state",
]


@contextmanager
def open_atomically(path: Path) -> Iterator[Any]:
    """Open a new file that takes the place of `path` once it is complete.

    Until then it lies next to `path` under another name, and an error removes it. A
    link is followed, and a file keeps its permissions. What is not a file, such as a
    pipe or a device, is written to directly.
    """
    file_path = Path(os.path.realpath(path))
    if path.exists() and not file_path.is_file():
        with path.open("wb") as file:
            yield file
        return
    file_path.parent.mkdir(parents=True, exist_ok=True)
    call = secrets.randbits(64)  # two threads may write one file
    partial = file_path.with_name(f"{file_path.name}.{call}.part")
    try:
        with partial.open("w+b") as file:
            if file_path.exists():
                partial.chmod(stat.S_IMODE(file_path.stat().st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())  # on the disk, not only on its way there
        os.replace(partial, file_path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: no reader ever sees half of it."""
    with open_atomically(path) as file:
        file.write(data)


def remove_partial_files(path: Path) -> None:
    """Remove the partial files of `path`, whichever process wrote them."""
    path = Path(os.path.realpath(path))
    ours = re.compile(re.escape(path.name) + r"\.[0-9]+\.part")
    for file in path.parent.glob("*.part"):
        if ours.fullmatch(file.name) and file.is_file():
            file.unlink(missing_ok=True)


_ENTRY, _VERSION = "tested-transformer", 1


def _entry(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """The one text in a file's header: the metadata, and a checksum over all."""
    content = {"metadata": metadata, "version": _VERSION}
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    checksum = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        described = [name, str(tensor.dtype), *tensor.shape]
        checksum.update(json.dumps(described).encode())
        numbers: Any = tensor.flatten().view(torch.uint8).numpy()
        checksum.update(numbers)
    content["checksum"] = checksum.hexdigest()
    return json.dumps(content, sort_keys=True, ensure_ascii=False)


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Write tensors and text to one safetensors file, whole or not at all.

    The same tensors and text always give the same bytes.

    Raises:
        TypeError: for metadata that is not text.
        ValueError: for a tensor of the name `__metadata__`, which the format reserves.
    """
    if "__metadata__" in tensors:
        raise InvalidValue("a tensor may not be named '__metadata__', it is reserved")
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidType(f"metadata must be text, got {value!r} for {key!r}")
    ready: dict[str, Tensor] = {}
    memory: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        start = tensor.untyped_storage().data_ptr()
        # Two names of one tensor are written as two; the library refuses to.
        ready[name] = tensor.clone() if start in memory else tensor
        memory.add(start)
    write_atomically(path, save(ready, {_ENTRY: _entry(ready, metadata)}))


def _read(path: Path, kind: str) -> bytes:
    if not path.is_file():
        raise FileNotFoundError(f"no {kind} at {path}")
    return path.read_bytes()


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata that `write_tensors` wrote.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: for a file that is damaged, not of this package, or of a later
            version.
    """
    data = _read(path, "checkpoint")
    try:
        tensors = load(data)
    except (KeyError, SafetensorError) as error:
        raise InvalidValue(f"{path} is not a whole safetensors file: {error}") from None
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    del data
    for name in tensors:  # aligned as any tensor is, so that sums add in one order
        tensors[name] = tensors[name].clone()
    text = header.get("__metadata__", {}).get(_ENTRY)
    if text is None:
        raise InvalidValue(f"{path} is not a checkpoint of this package")
    try:
        content = json.loads(text)
        version, metadata = content["version"], dict(content["metadata"])
        whole = text == _entry(tensors, metadata) or version != _VERSION
    except (KeyError, RecursionError, TypeError, ValueError):
        version, metadata, whole = _VERSION, {}, False
    if not whole or not all(isinstance(value, str) for value in metadata.values()):
        raise InvalidValue(f"{path} is damaged: its checksum does not match")
    if version != _VERSION:
        raise InvalidValue(f"{path} has version {version!r}, expected {_VERSION}")
    return tensors, metadata


def model_file(path: str | os.PathLike[str]) -> Path:
    """The file itself, or the one of the best model in the folder of a run.

    Raises:
        ValueError: for an empty name.
    """
    if not os.fspath(path):
        raise InvalidValue("a model is in a file or a folder, got the name ''")
    path = Path(path)
    return path / "model.safetensors" if path.is_dir() else path


def write_training_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write what an interrupted training needs to go on, whole or not at all.

    The file is what `torch.save` makes, then its SHA-256 in 64 hexadecimal digits.
    """
    with open_atomically(path) as file:
        torch.save(dict(state), file)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256")
        file.write(digest.hexdigest().encode())


def read_training_state(path: Path) -> dict[str, Any]:
    """The state that `write_training_state` wrote, its tensors on the CPU.

    Only tensors, numbers, text and containers are taken from the file: no code runs.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: for a file that is damaged or not of this package.
    """
    data = _read(path, "training state")
    digest = hashlib.sha256(memoryview(data)[:-64])
    if data[-64:] != digest.hexdigest().encode():
        raise InvalidValue(f"{path} is damaged or not a training state of this package")
    try:
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a forged file makes of torch's reader
        reason = str(error).partition("\n")[0]
        raise InvalidValue(f"{path} is not a training state: {reason}") from None
    if not isinstance(state, dict):
        raise InvalidValue(f"{path} is not a training state: {type(state).__name__}")
    return state
