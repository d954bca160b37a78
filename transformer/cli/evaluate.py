"""The command that measures models: evaluate."""

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm  # type: ignore[import-untyped]

from transformer.checks import optional_import
from transformer.cli.console import is_terminal, print_error, printable, writing
from transformer.cli.models import load_translator, report_unknown_characters
from transformer.cli.options import (
    BEAM_SIZE,
    DEVICE,
    FILE,
    FOLDER,
    LENGTH_PENALTY,
    PROGRAM,
    RUN_OR_FILE,
    Command,
    count,
)
from transformer.cli.resources import find_corpus, is_cache_folder, require_file
from transformer.text.multi30k import read_pairs
from transformer.training.bleu import corpus_scores
from transformer.training.run_folder import read_run
from transformer.weights.files import write_atomically

__all__ = ["evaluate"]


@click.command(cls=Command, short_help="Measure a translator: BLEU and chrF.")
@click.argument("weights", metavar="RUN", type=RUN_OR_FILE)
@click.option(
    "--data",
    type=FOLDER,
    help="Where the sentences are.  [default: where the run found its own]",
)
@click.option(
    "--split",
    type=click.Choice(["val", "test"]),
    default="val",
    help="Which sentences: choose on val, test once.",
)
@BEAM_SIZE
@LENGTH_PENALTY
@click.option(
    "--average",
    type=count(0),
    default=0,
    help="Use the mean of the last N epochs' weights; 0 is the best model.",
)
@click.option("--out", type=FILE, help="Write the translations, one a line.")
@DEVICE
def evaluate(
    weights: Path,
    data: Path | None,
    split: str,
    beam_size: int,
    length_penalty: float,
    average: int,
    out: Path | None,
    device: str,
) -> int:
    """Measure the translator in a RUN's folder or file: BLEU and chrF, as JSON.

    The validation or the test sentences are translated and compared with their
    references by sacreBLEU, whose signatures are printed too. A sentence that cannot be
    translated is named and counts as blank; the exit code is then 1.
    """
    optional_import("sacrebleu")
    if out is not None:
        require_file(out)
    translator = load_translator(weights, device, average)
    tokenizer: Any = translator.target_tokenizer
    text = getattr(tokenizer, "text", "raw")
    folder = find_corpus(data or find_data_of_run(weights), text, translator.languages)
    pairs = read_pairs(folder, text, split, *translator.languages)
    sources, references = map(list, zip(*pairs, strict=True))
    if hasattr(tokenizer, "normalize"):
        references = list(map(tokenizer.normalize, references))
    search = partial(
        translator.translate, beam_size=beam_size, length_penalty=length_penalty
    )
    began = time.perf_counter()
    hypotheses: list[str] = []
    errors: dict[int, ValueError] = {}
    quiet = not is_terminal(sys.stderr)
    for start in tqdm(range(0, len(sources), 256), disable=quiet, file=sys.stderr):
        found: dict[int, ValueError] = {}
        some = sources[start : start + 256]
        hypotheses += search(some, on_error=found.__setitem__)
        errors |= {start + index: error for index, error in found.items()}
    seconds = time.perf_counter() - began
    report_unknown_characters(translator.source_tokenizer, sources)
    for index, error in errors.items():
        number = f"sentence {index + 1}"
        print_error(printable(f"{PROGRAM}: {number} counts as blank: {error}"))
    scores = corpus_scores(hypotheses, references, text)
    result = {
        "weights": str(weights),
        "average": average,
        "data": str(folder),
        "split": split,
        "sentences": len(pairs),
        "beam_size": beam_size,
        "length_penalty": length_penalty,
        "bleu": round(scores.bleu, 4),
        "chrf": round(scores.chrf, 4),
        "bleu_signature": scores.bleu_signature,
        "chrf_signature": scores.chrf_signature,
        "seconds": round(seconds, 1),
    }
    print(json.dumps(result, indent=1), flush=True)  # whatever becomes of --out
    if out is not None:
        with writing(out):
            write_atomically(out, "".join(f"{line}\n" for line in hypotheses).encode())
    return 1 if errors else 0


def find_data_of_run(weights: Path) -> Path:
    """The folder of the sentences that a run was trained with.

    Raises:
        ValueError: where no run says so, or the folder is no longer there.
    """
    folder = weights if weights.is_dir() else weights.parent
    data = read_run(folder).data if (folder / "run.json").is_file() else None
    if data is None:
        raise ValueError(f"{weights} does not say which sentences to read: give --data")
    if not Path(data).is_dir() and not is_cache_folder(Path(data)):
        raise ValueError(f"the run's sentences are no longer in {data}: give --data")
    return Path(data)
