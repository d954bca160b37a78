"""What a command finds or lacks around it: a device, memory, sentences, folders."""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import platformdirs
import torch
from tqdm import tqdm  # type: ignore[import-untyped]

from transformer.cli.console import is_terminal
from transformer.text.multi30k import fetch_multi30k, moses_style


def find_device(name: str) -> str:
    """The device that "auto" stands for, or the one asked for, if it is there.

    Raises:
        ValueError: for an accelerator that this machine or this PyTorch does not have.
    """
    found = "cpu"
    if torch.accelerator.is_available():
        accelerator = torch.accelerator.current_accelerator()
        found = accelerator.type if accelerator is not None else "cpu"
    if name not in ("auto", "cpu", found):
        raise ValueError(f"no device {name} was found here: try --device {found}")
    return found if name == "auto" else name


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, torch's CPU allocator or a GPU ran out of memory."""
    signs = "allocate memory", "not enough memory", "out of memory"
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)
    )


def require_file(path: Path) -> None:
    """Refuse early what cannot be written as a file; its folder is made."""
    if path.is_dir():
        raise ValueError(f"--out must name a file, got the folder {path}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror or error}") from None
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"cannot write in the folder {path.parent}")


def cache_folder() -> Path:
    """Where Multi30k is kept once it was fetched.

    Raises:
        ValueError: where the user has no home folder.
    """
    try:
        folder = platformdirs.user_cache_path("tested-transformer")
    except RuntimeError:
        folder = Path("~")
    if not folder.is_absolute():  # older versions of the library leave "~" in it
        raise ValueError(
            "there is no home folder to keep Multi30k in: give --data, or set "
            "XDG_CACHE_HOME"
        )
    return folder / "multi30k"


def is_cache_folder(folder: Path) -> bool:
    """Whether this is where Multi30k is kept, though it may not be there now."""
    try:
        return folder.resolve() == cache_folder().resolve()
    except ValueError:
        return False


def find_corpus(data: Path | None, text: str, languages: tuple[str, str]) -> Path:
    """The folder of sentences that is named; else Multi30k's, fetched if needed.

    Raises:
        ValueError: for a folder that is not there, and what `fetch_multi30k` refuses.
    """
    if data is None and os.environ.get("MULTI30K"):
        data = Path(os.environ["MULTI30K"])
    if data is not None and not is_cache_folder(data):
        if not data.is_dir():
            raise ValueError(f"no folder {data}")
        return data

    def bar(name: str) -> Any:
        return tqdm(
            desc=f"fetching {name}",
            unit="B",
            unit_scale=True,
            disable=not is_terminal(sys.stderr),
            file=sys.stderr,
        )

    return fetch_multi30k(cache_folder(), text, languages, bar)


def looks_tokenised(sentences: Sequence[str]) -> bool:
    """Whether text seems to be lowercased, its punctuation set apart, already."""
    same = sum(sentence == moses_style(sentence) for sentence in sentences)
    apart = sum(bool(re.search(r" [.,!?]( |$)|&\w+;", each)) for each in sentences)
    return same >= 0.9 * len(sentences) and apart >= 0.1 * len(sentences)
