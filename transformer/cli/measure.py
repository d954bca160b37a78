"""The commands that measure and draw runs: evaluate, plot."""

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from tqdm import tqdm  # type: ignore[import-untyped]

from transformer.cli.commands import PROGRAM, app, load_translator, require_file
from transformer.cli.lines import one_line, say
from transformer.cli.options import BEAM, DEVICE, PENALTY, SPLIT, Command, whole
from transformer.cli.resources import cache_folder, corpus

__all__ = ["evaluate", "plot"]


@app.command(cls=Command, short_help="measure a translator: BLEU and chrF")
def evaluate(
    weights: Annotated[
        str, typer.Argument(metavar="RUN", help="the folder, or a file, of train's")
    ],
    data: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="where the sentences are  [default: where the run found its own]",
        ),
    ] = None,
    split: Annotated[
        str, typer.Option(help="which sentences; choose on val, test once", **SPLIT)
    ] = "val",
    beam_size: Annotated[
        int, typer.Option(help="hypotheses to keep; 1 is greedy search", **BEAM)
    ] = 5,
    length_penalty: Annotated[
        float,
        typer.Option(help="0 to 100; higher lets a beam end later", **PENALTY),
    ] = 1.0,
    average: Annotated[
        int,
        typer.Option(
            parser=whole(0),
            metavar="N",
            help="use the mean of the last N epochs' weights; 0: the best model",
        ),
    ] = 0,
    out: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="write the translations there, one a line"),
    ] = None,
    device: Annotated[
        str, typer.Option(help="auto: the GPU where there is one", **DEVICE)
    ] = "auto",
) -> None:
    """Measure a translator: BLEU and chrF, with sacreBLEU's signatures.

    Translate the validation or the test sentences, compare with their references, and
    print the scores as JSON. A run knows which sentences it was trained with: its
    validation and test sentences lie beside them. One that cannot be translated is
    named and counts as blank; the exit code is then 1.
    """
    from transformer.checks import optional_import

    optional_import("sacrebleu")
    path = require_file(out) if out is not None else None
    from transformer.text.multi30k import read_pairs
    from transformer.training.bleu import corpus_scores
    from transformer.weights.files import write_atomically

    translator = load_translator(weights, device, average)
    tokenizer: Any = translator.target_tokenizer
    text = getattr(tokenizer, "text", "raw")
    source, target = translator.languages
    folder = corpus(data or data_of_run(weights), text, (source, target))
    pairs = read_pairs(folder, text, split, source, target)
    sources = [source for source, _ in pairs]
    references = [target for _, target in pairs]
    if hasattr(tokenizer, "normalize"):
        references = [tokenizer.normalize(reference) for reference in references]
    began = time.perf_counter()
    hypotheses: list[str] = []
    errors: dict[int, ValueError] = {}
    quiet = not sys.stderr.isatty()
    for start in tqdm(range(0, len(sources), 256), disable=quiet, file=sys.stderr):
        found: dict[int, ValueError] = {}
        some = sources[start : start + 256]
        hypotheses += translator.translate(
            some, beam_size, length_penalty, on_error=found.__setitem__
        )
        errors |= {start + index: error for index, error in found.items()}
    seconds = time.perf_counter() - began
    for index, error in errors.items():
        say(one_line(f"{PROGRAM}: sentence {index + 1} counts as blank: {error}"))
    scores = {
        "weights": weights,
        "average": average,
        "data": str(folder),
        "split": split,
        "sentences": len(pairs),
        "beam_size": beam_size,
        "length_penalty": length_penalty,
        **corpus_scores(hypotheses, references, text)._asdict(),
        "seconds": round(seconds, 1),
    }
    print(json.dumps(scores, indent=1), flush=True)  # whatever becomes of --out
    if path is not None:
        write_atomically(path, "".join(f"{line}\n" for line in hypotheses).encode())
    if errors:
        raise typer.Exit(1)


def data_of_run(weights: str) -> str:
    """The folder of the sentences that a run was trained with.

    Raises:
        ValueError: where no run says so, or the folder is no longer there.
    """
    from transformer.training.run_folder import read_run

    folder = Path(weights) if Path(weights).is_dir() else Path(weights).parent
    data = read_run(folder).data if (folder / "run.json").is_file() else None
    if data is None:
        raise ValueError(f"{weights} does not say which sentences to read: give --data")
    if not Path(data).is_dir() and Path(data) != cache_folder().resolve():
        raise ValueError(f"the run's sentences are no longer in {data}: give --data")
    return data


@app.command(cls=Command, short_help="draw how trainings went")
def plot(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN", help="folders of train's")
    ],
    out: Annotated[
        str, typer.Option(metavar="FILE", help="a .svg, .png or .pdf to write")
    ],
) -> None:
    """Draw the losses and the validation BLEU of one or more runs."""
    path = require_file(out)
    if not path.suffix:
        raise ValueError(f"--out must end in .svg, .png or .pdf, got {out!r}")
    from transformer.checks import optional_import
    from transformer.training.run_folder import read_metrics

    plt = optional_import("matplotlib.pyplot")
    metrics = {folder: read_metrics(folder) for folder in runs}
    for folder, steps in metrics.items():
        if not steps:
            raise ValueError(f"{folder} has no metrics.jsonl with lines in it")
    fig, (losses, bleus) = plt.subplots(1, 2, figsize=(9, 3.6))
    for folder, steps in metrics.items():
        numbers = [each.step for each in steps]
        ends = [each for each in steps if each.validation_loss is not None]
        (line,) = losses.plot(numbers, [each.loss for each in steps], alpha=0.3)
        colour = line.get_color()
        at = [each.step for each in ends]
        validation = [each.validation_loss for each in ends]
        losses.plot(at, validation, "o-", ms=3, color=colour)
        bleu = [each.bleu for each in ends]
        bleus.plot(at, bleu, "o-", ms=3, color=colour, label=Path(folder).name)
    losses.set(xlabel="step", ylabel="loss, nats a token (dots: validation)")
    bleus.set(xlabel="step", ylabel="validation BLEU, greedy")
    bleus.legend()
    fig.tight_layout()
    try:
        fig.savefig(path)
    except ValueError as error:
        raise ValueError(f"cannot draw {out}: {error}") from None
    finally:
        plt.close(fig)
