"""The command that writes a live model: one page, to open or to send."""

from pathlib import Path
from typing import Annotated

import typer

from transformer.cli.commands import app, new_file, refuse_text_generator
from transformer.cli.options import Command

__all__ = ["explore"]


@app.command(cls=Command, short_help="write a page in which a translator runs")
def explore(
    out: Annotated[
        str, typer.Option(metavar="FILE", help="the page to write, such as model.html")
    ],
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="RUN_OR_FILE",
            help="what train-phrasebook or train wrote  [default: the file that ships]",
        ),
    ] = None,
) -> None:
    """Write one HTML file in which a translator runs, its numbers in view.

    It holds the model, its words and what shows them; it opens from the disk in any
    current browser, needs no network, and can be sent to a friend. Weights are halved
    in precision where that changes no word of some translations. Of a run, up to 60
    sentences of its validation set are in the page, as examples.
    """
    path = new_file(out)
    from transformer.decoding.translator import Translator
    from transformer.live import LiveModel

    try:
        live = LiveModel(Translator.phrasebook() if weights is None else Path(weights))
    except ValueError:
        if weights is not None:
            refuse_text_generator(weights)
        raise
    live.save(path)
    print(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)")
