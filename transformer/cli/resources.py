"""What a command needs of its surroundings: memory, a device, sentences, packages."""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from transformer.beyond.language_model import LanguageModelConfig
    from transformer.model import TransformerConfig

__all__ = [
    "chosen_device",
    "memory_needed",
    "require_memory",
    "require_new_folder",
    "corpus",
    "looks_tokenised",
    "is_multi30k",
    "cache_folder",
    "is_out_of_memory",
]


def chosen_device(device: str) -> str:
    """The device that "auto" stands for, or the one asked for, if it is there.

    Raises:
        ValueError: for a GPU that is not there.
    """
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("no GPU was found here: try --device cpu")
    return device


def memory_needed(config: "TransformerConfig | LanguageModelConfig") -> int:
    """The least bytes that training a model of this size takes, batches apart.

    Weights, gradients, Adam's two moments and the moving average are five float32
    numbers a parameter; a layer's Python objects take about 100 kB. While the table of
    positions is made, six float32 numbers stand for one of its own.
    """
    from transformer.model import TransformerConfig

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
    config: "TransformerConfig | LanguageModelConfig", device: str
) -> None:
    """Refuse a model that cannot be trained here, before any memory is taken.

    Raises:
        ValueError: saying what it would need, and what there is.
    """
    if device == "cuda":
        import torch

        there = torch.cuda.mem_get_info()[1]
    elif hasattr(os, "sysconf"):
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    else:
        there = 1 << 40
    needed = memory_needed(config)
    if needed > there:
        raise ValueError(
            f"training a model of this size needs {needed / 1e9:,.1f} GB of memory, "
            f"and there are {there / 1e9:,.1f} GB: try a lower --d-model, --d-ff, "
            "--layers, --vocab-size or --max-length"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, torch's CPU allocator or a GPU ran out of memory."""
    signs = "allocate memory", "not enough memory", "out of memory"
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)
    )


def require_new_folder(out: str) -> None:
    """Refuse to keep a run where something else is.

    Raises:
        ValueError: for no name, a file, or a folder with files but no run in it.
    """
    if not out.strip():
        raise ValueError(f"--out must name a folder, got {out!r}")
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out must name a folder, got the file {out}")
    if not folder.is_dir() or (folder / "run.json").is_file():
        return
    others = [
        path.name for path in folder.iterdir() if not path.name.startswith("run.")
    ]
    if others:
        raise ValueError(
            f"--out must name a new folder or a run's, but {out} has no run.json and "
            f"holds {min(others)}"
        )


def cache_folder() -> Path:
    """Where Multi30k is kept once it was fetched."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "tested-transformer" / "multi30k"


def corpus(data: str | None, text: str, languages: tuple[str, str]) -> Path:
    """The folder of sentences that is named; else Multi30k's, fetched if needed.

    Raises:
        ValueError: for a folder that is not there, and what `fetch_multi30k` refuses.
    """
    data = data or os.environ.get("MULTI30K")
    if data and Path(data).resolve() != cache_folder().resolve():
        if not Path(data).is_dir():
            raise ValueError(f"no folder {data}")
        return Path(data)
    from transformer.text.multi30k import fetch_multi30k

    def bar(name: str) -> Any:
        return tqdm(
            desc=f"fetching {name}",
            unit="B",
            unit_scale=True,
            disable=not sys.stderr.isatty(),
            file=sys.stderr,
        )

    return fetch_multi30k(cache_folder(), text, languages, bar)


def looks_tokenised(sentences: Sequence[str]) -> bool:
    """Whether text seems to be lowercased, its punctuation set apart, already."""
    from transformer.text.multi30k import moses_style

    same = sum(sentence == moses_style(sentence) for sentence in sentences)
    apart = sum(bool(re.search(r" [.,!?]( |$)|&\w+;", each)) for each in sentences)
    return same >= 0.9 * len(sentences) and apart >= 0.1 * len(sentences)


def is_multi30k(data: str | None) -> bool:
    """Whether sentences are Multi30k's, of which there is tokenised text."""
    return data is None or (Path(data) / "tok").is_dir()
