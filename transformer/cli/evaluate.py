"""The command that measures models: evaluate."""

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import click
import torch
from tqdm import tqdm  # type: ignore[import-untyped]

from transformer.beyond.text_generator import TextGenerator, encode_text
from transformer.checks import optional_import
from transformer.cli.console import is_terminal, print_error, writing
from transformer.cli.models import (
    load_model,
    report_cut,
    report_unknown,
    text_writer,
)
from transformer.cli.options import (
    BEAM_SIZE,
    DEVICE,
    FILE,
    FOLDER_OR_FILE,
    LENGTH_PENALTY,
    MAX_LENGTH,
    PROGRAM,
    RUN_OR_FILE,
    Command,
    count,
    option,
    refuse_given,
)
from transformer.cli.resources import find_corpus, is_cache_folder, require_file
from transformer.decoding.translator import Translator
from transformer.text.multi30k import read_lines, read_pairs
from transformer.training.bleu import corpus_scores
from transformer.training.run_folder import digest_of, read_run
from transformer.training.text_trainer import split_texts, text_loss
from transformer.weights.files import write_atomically

__all__ = ["evaluate"]


@click.command(cls=Command, short_help="Measure a model: BLEU, or perplexity.")
@click.argument("weights", metavar="RUN", type=RUN_OR_FILE)
@option("--data", FOLDER_OR_FILE, "What to measure on.  [default: the run's own]")
@option("--split", click.Choice(["val", "test"]), "Choose on val, test once.", "val")
@option("--hypotheses", FILE, "Score these translations instead, one a line.")
@BEAM_SIZE
@LENGTH_PENALTY
@MAX_LENGTH
@option("--average", count(0), "Use the mean weights of the last so many epochs.", 0)
@option("--out", FILE, "Write the translations here, one a line.")
@DEVICE
@click.pass_context
def evaluate(
    context: click.Context,
    /,
    weights: Path,
    data: Path | None,
    device: str,
    average: int,
    out: Path | None,
    **options: Any,
) -> int:
    """Measure the model in a RUN's folder or file, and print the result as JSON.

    A translator translates the validation or the test sentences, and sacreBLEU compares
    that with their references: BLEU, with the margin in which 95% of resampled test
    sets lie, and chrF. A sentence that cannot be translated is named and counts as
    blank; the exit code is then 1.

    A language model reads text: the perplexity of a token, and bits a character.
    """
    if out is not None:
        require_file(out)
    model = load_model(weights, device, average)
    if isinstance(model, TextGenerator):
        refuse_given(context, "for translators", *options, "average", "out")
        print(json.dumps(measure_text(model, weights, data), indent=1))
        return 0
    result, translations, failed = measure_translator(model, weights, data, **options)
    print(json.dumps(result | {"average": average}, indent=1), flush=True)
    if out is not None:
        with writing(out):
            lines = "".join(f"{line}\n" for line in translations)
            write_atomically(out, lines.encode())
    return 1 if failed else 0


def measure_translator(
    translator: Translator,
    weights: Path,
    data: Path | None,
    split: str,
    hypotheses: Path | None,
    **search: Any,
) -> tuple[dict[str, Any], list[str], int]:
    """The scores of a translator, its translations, and how many sentences failed."""
    optional_import("sacrebleu")
    tokenizer: Any = translator.target_tokenizer
    text = getattr(tokenizer, "text", "raw")
    write = text_writer(translator)
    folder = find_corpus(data or find_data_of_run(weights), text, translator.languages)
    pairs = read_pairs(folder, text, split, *translator.languages)
    sources, references = map(list, zip(*pairs, strict=True))
    normalize = getattr(tokenizer, "normalize", str)
    references = list(map(normalize, references))
    if data is None and split == "val":
        pairs = list(zip(sources, references, strict=True))
        if digest_of(pairs) != recorded_data(weights)[1]:
            report_change(str(folder))
    result = {
        "weights": str(weights),
        "data": str(folder),
        "split": split,
        "sentences": len(pairs),
    }
    began = time.perf_counter()
    errors: dict[int, ValueError] = {}
    cut: list[int] = []
    unknown: list[list[str]] = []
    if hypotheses is not None:
        found = read_lines(hypotheses)
        if len(found) != len(pairs):
            raise ValueError(
                f"{hypotheses} has {len(found):,} lines for {len(pairs):,} sentences"
            )
        found = list(map(normalize, found))
        result["hypotheses"] = str(hypotheses)
    else:
        found = translate_all(translator, sources, errors, cut, unknown, **search)
        report_unknown(unknown)
        result |= search | {"cut": len(cut)}
    for index, error in errors.items():
        number = f"sentence {index + 1}"
        print_error(f"{PROGRAM}: {number} counts as blank: {error}")
    report_cut(len(cut))
    scores = corpus_scores(found, references, text, 1000)
    for name, value in scores._asdict().items():
        result[name] = round(value, 4) if isinstance(value, float) else value
    result["seconds"] = round(time.perf_counter() - began, 1)
    return result, list(map(write, found)), len(errors)


def translate_all(
    translator: Translator,
    sources: list[str],
    errors: dict[int, ValueError],
    cut: list[int],
    unknown: list[list[str]],
    **search: Any,
) -> list[str]:
    """The translations of many sentences, with a bar that shows how far it is."""
    translations: list[str] = []
    quiet = not is_terminal(sys.stderr)
    search["on_cut"] = cut.append
    search["on_unknown"] = lambda _, characters: unknown.append(characters)
    for start in tqdm(range(0, len(sources), 256), disable=quiet, file=sys.stderr):
        found: dict[int, ValueError] = {}
        some = sources[start : start + 256]
        translations += translator.translate(some, on_error=found.__setitem__, **search)
        errors |= {start + index: error for index, error in found.items()}
    return translations


def measure_text(
    generator: TextGenerator, weights: Path, data: Path | None
) -> dict[str, Any]:
    """Perplexity and bits a character of a text, for a language model.

    Raises:
        ValueError: where there is no text to read.
    """
    recorded, digest = recorded_data(weights)
    files = recorded if isinstance(recorded, list) else []
    if data is None and not files:
        raise ValueError("a language model is measured on a text: give --data FILE")
    if data is not None:
        text = "\n".join(read_lines(data)).strip("\n")
    else:
        text = split_texts(files)[1]
    ids = encode_text(generator.tokenizer, text)
    if data is None and digest_of(ids) != digest:
        report_change(", ".join(files))
    report_unknown(map(generator.tokenizer.unknown_characters, text.split("\n")))
    loss = text_loss(generator.model, torch.tensor(ids))
    bits = loss * (len(ids) - 1) / math.log(2)
    return {
        "weights": str(weights),
        "data": str(data) if data is not None else files,
        "tokens": len(ids),
        "characters": len(text),
        "loss": round(loss, 4),
        "perplexity": round(math.exp(loss), 4),
        "bits_per_character": round(bits / max(len(text), 1), 4),
    }


def recorded_data(weights: Path) -> tuple[str | list[str] | None, str]:
    """What a run was trained on, and the digest of its validation set."""
    folder = weights if weights.is_dir() else weights.parent
    if not (folder / "run.json").is_file():
        return None, ""
    run = read_run(folder)
    return run.data, run.validation


def find_data_of_run(weights: Path) -> Path:
    """The folder of the sentences that a run was trained with.

    Raises:
        ValueError: where no run says so, or the folder is no longer there.
    """
    data, _ = recorded_data(weights)
    if not isinstance(data, str):
        raise ValueError(f"{weights} does not say which sentences to read: give --data")
    if not Path(data).is_dir() and not is_cache_folder(Path(data)):
        raise ValueError(f"the run's sentences are no longer in {data}: give --data")
    return Path(data)


def report_change(data: str) -> None:
    """Say that a run was trained beside another validation set."""
    message = f"the validation set in {data} has changed since the training"
    print_error(f"{PROGRAM}: {message}")
