"""The command that draws how trainings went: plot."""

import io
from pathlib import Path

import click

from transformer.checks import optional_import
from transformer.cli.console import printable, writing
from transformer.cli.options import (
    FILE,
    FOLDER,
    Command,
    option,
)
from transformer.cli.resources import require_file
from transformer.training.run_folder import read_metrics
from transformer.weights.files import write_atomically

__all__ = ["plot"]


@click.command(cls=Command, short_help="Draw how trainings went.")
@click.argument("runs", metavar="RUN...", type=FOLDER, nargs=-1, required=True)
@option("--out", FILE, "A .svg, .png or .pdf to write.", required=True)
def plot(runs: tuple[Path, ...], out: Path) -> None:
    """Draw the losses and the validation BLEU of the folders of one or more runs.

    Training and validation losses have a panel each, because they cannot be compared:
    the model trains with dropout and perhaps on smoothed labels.
    """
    require_file(out)
    if not out.suffix:
        raise ValueError(f"--out must end in .svg, .png or .pdf, got {str(out)!r}")
    figures = optional_import("matplotlib.figure")
    metrics = {run: read_metrics(run) for run in runs}
    for run, steps in metrics.items():
        if not steps:
            raise ValueError(f"{run} has no metrics.jsonl with lines in it")
    with_bleu = any(
        each.bleu is not None for steps in metrics.values() for each in steps
    )
    names = [run.name for run in metrics]
    panels = ["training loss", "validation loss", "validation BLEU"][: 2 + with_bleu]
    figure = figures.Figure(figsize=(3.4 * len(panels), 3.4), layout="constrained")
    axes = figure.subplots(1, len(panels))
    for axis, title in zip(axes, panels, strict=True):
        unit = " (nats a token)" if "loss" in title else ""
        axis.set(xlabel="step", ylabel=f"{title}{unit}")
    for run, steps in metrics.items():
        label = run.name if names.count(run.name) == 1 else str(run)
        ends = [each for each in steps if each.validation_loss is not None]
        at = [each.step for each in ends]
        axes[0].plot([each.step for each in steps], [each.loss for each in steps], lw=1)
        axes[1].plot(
            at, [each.validation_loss for each in ends], "o-", ms=3, label=label
        )
        if with_bleu:
            axes[2].plot(at, [each.bleu for each in ends], "o-", ms=3)
    axes[1].legend()
    picture = io.BytesIO()
    try:
        figure.savefig(picture, format=out.suffix[1:])
    except ValueError as error:
        raise ValueError(f"cannot draw {out}: {error}") from None
    with writing(out):
        write_atomically(out, picture.getvalue())
    print(printable(f"wrote {out}"))
