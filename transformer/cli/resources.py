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

from transformer.beyond.language_model import LanguageModelConfig
from transformer.cli.console import is_terminal
from transformer.model import TransformerConfig
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


def memory_needed(config: TransformerConfig | LanguageModelConfig) -> int:
    """The least bytes that training a model of this size takes, batches apart.

    Weights, gradients, Adam's two moments and the moving average are five float32
    numbers a parameter; a layer's Python objects take about 100 kB. While the table of
    positions is made, each of its numbers takes as much memory as six of float32.
    """
    width = config.d_model
    if isinstance(config, TransformerConfig):
        encoders, decoders = config.num_encoder_layers, config.num_decoder_layers
        rows = config.target_vocab_size * (1 if config.tie_embeddings else 3)
    else:
        encoders, decoders, rows = config.num_layers, 0, 2 * config.vocab_size
    layers = encoders + decoders
    parameters = rows * width + encoders * (4 * width + 2 * config.d_ff) * width
    parameters += decoders * (8 * width + 2 * config.d_ff) * width
    return 20 * parameters + 24 * config.max_length * width + 100_000 * layers


def require_memory(
    config: TransformerConfig | LanguageModelConfig, device: str
) -> None:
    """Refuse a model that cannot be trained here, before any memory is taken."""
    there, needed = _total_memory(device), memory_needed(config)
    if there is not None and needed > there:
        raise ValueError(
            f"training a model of this size needs {needed / 1e9:,.1f} GB of memory, "
            f"and there are {there / 1e9:,.1f} GB: try a lower --d-model, --d-ff, "
            "--layers, --vocab-size or --max-length"
        )


def _total_memory(device: str) -> int | None:
    """The bytes of a device's memory, asked without opening a context on it."""
    if device in ("cuda", "xpu"):
        number = int(os.environ.get("LOCAL_RANK", "0"))
        library = getattr(torch, device)
        if number >= library.device_count():
            return None  # ProcessGroup.start refuses it
        return int(library.get_device_properties(number).total_memory)
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


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


def require_run_folder(folder: Path) -> None:
    """Refuse to keep a run where something else is."""
    if folder.is_symlink() and not folder.exists():
        raise ValueError(f"--out must name a folder, got a link to nothing: {folder}")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out must name a folder, got the file {folder}")
    if not folder.is_dir() or (folder / "run.json").is_file():
        return
    strangers = [
        path.name
        for path in folder.iterdir()
        if not path.name.startswith(("run.", "."))  # .DS_Store is none
    ]
    if strangers:
        raise ValueError(
            f"--out must name a new folder or a run's, but {folder} has no run in it "
            f"and holds {min(strangers)}"
        )


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
