"""The command that writes a live model: one page, to open or to send."""

from pathlib import Path

import click

from transformer.cli.console import printable, writing
from transformer.cli.models import load_generator, load_model, load_translator
from transformer.cli.options import FILE, WEIGHTS, Command, option
from transformer.cli.resources import require_file
from transformer.decoding.translator import Translator
from transformer.live import LiveModel
from transformer.live.model import known_sentences
from transformer.live.text import Readable
from transformer.pretrained.generator import PretrainedGenerator

__all__ = ["explore"]


@click.command(cls=Command, short_help="Write a page in which a model runs.")
@WEIGHTS
@option("--out", FILE, "The page to write, such as model.html.", required=True)
def explore(weights: Path | None, out: Path) -> None:
    """Write one HTML file in which a model runs, its numbers in view.

    It opens from the disk in any current browser, needs no network, and can be sent to
    a friend. A translator translates there, also one of MarianMT; a language model,
    also a folder of GPT-2 or a file of llama2.c, continues texts. Weights are halved in
    precision where that changes no word of some translations or texts. Of a run, the
    page offers up to 60 validation sentences as examples. A model may have 20 million
    parameters, which make a page of 53 MB.
    """
    require_file(out)
    model: Readable
    if weights is not None and PretrainedGenerator.reads(weights):
        model = load_generator(weights)
    else:
        model = load_translator(None) if weights is None else load_model(weights)
    sentences = None
    if isinstance(model, Translator):
        sentences = known_sentences(model, weights or model)
    live = LiveModel(model, sentences)
    with writing(out):
        live.save(out)
    size = out.stat().st_size / 1e6
    print(printable(f"wrote {out} ({size:.1f} MB)"))
