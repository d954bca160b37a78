"""The command that writes a live model: one page, to open or to send."""

from pathlib import Path

import click

from transformer.cli.console import writing
from transformer.cli.models import refuse_language_model
from transformer.cli.options import FILE, WEIGHTS, Command
from transformer.cli.resources import require_file
from transformer.decoding.translator import Translator
from transformer.live import LiveModel

__all__ = ["explore"]


@click.command(cls=Command, short_help="Write a page in which a translator runs.")
@WEIGHTS
@click.option("--out", type=FILE, required=True, help="The page to write: model.html.")
def explore(weights: Path | None, out: Path) -> None:
    """Write one HTML file in which a translator runs, its numbers in view.

    It opens from the disk in any current browser, needs no network, and can be sent to
    a friend. Weights are halved in precision where that changes no word of some
    translations. Of a run, the page offers up to 60 validation sentences as examples.
    """
    require_file(out)
    try:
        live = LiveModel(Translator.phrasebook() if weights is None else weights)
    except ValueError:
        if weights is not None:
            refuse_language_model(weights)
        raise
    with writing(out):
        live.save(out)
    print(f"wrote {out} ({out.stat().st_size / 1e6:.1f} MB)")
