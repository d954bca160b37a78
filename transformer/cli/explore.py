"""The command that writes a live model: one page, to open or to send."""

from pathlib import Path

import click

from transformer.cli.console import printable, writing
from transformer.cli.models import load_translator
from transformer.cli.options import FILE, WEIGHTS, Command, option
from transformer.cli.resources import require_file
from transformer.live import LiveModel
from transformer.live.model import known_sentences

__all__ = ["explore"]


@click.command(cls=Command, short_help="Write a page in which a translator runs.")
@WEIGHTS
@option("--out", FILE, "The page to write, such as model.html.", required=True)
def explore(weights: Path | None, out: Path) -> None:
    """Write one HTML file in which a translator runs, its numbers in view.

    It opens from the disk in any current browser, needs no network, and can be sent to
    a friend. Weights are halved in precision where that changes no word of some
    translations. Of a run, the page offers up to 60 validation sentences as examples.
    """
    require_file(out)
    translator = load_translator(weights)
    live = LiveModel(translator, known_sentences(translator, weights or translator))
    with writing(out):
        live.save(out)
    size = out.stat().st_size / 1e6
    print(printable(f"wrote {out} ({size:.1f} MB)"))
