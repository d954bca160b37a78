"""The command that continues a text: generate."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from transformer.cli.commands import PROGRAM, app
from transformer.cli.lines import (
    one_line,
    read_lines,
    require_whole,
    say,
    sentences_of,
)
from transformer.cli.options import COUNT, DEVICE, SEED, TINY, Command, real
from transformer.cli.resources import chosen_device

if TYPE_CHECKING:
    from transformer.beyond.text_generator import TextGenerator

__all__ = ["generate"]


@app.command(cls=Command, short_help="continue a text with a language model")
def generate(
    weights: Annotated[
        str,
        typer.Option(metavar="RUN_OR_FILE", help="what train --task lm wrote"),
    ],
    prompt: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROMPT",
            show_default=False,
            help="the text to continue, in quotes, and several each in their own; "
            "words without quotes are one text; without any, standard input is read by "
            "line",
        ),
    ] = None,
    length: Annotated[int, typer.Option(help="tokens to add", **COUNT)] = 100,
    temperature: Annotated[
        float,
        typer.Option(
            parser=real(TINY),
            metavar="X",
            help="above 0; lower keeps to what is most probable",
        ),
    ] = 0.8,
    top_p: Annotated[
        float,
        typer.Option(
            parser=real(TINY, 1.0),
            metavar="X",
            help="draw among the likeliest tokens that together have this probability",
        ),
    ] = 0.95,
    seed: Annotated[
        int, typer.Option(help="the same seed draws the same text", **SEED)
    ] = 0,
    device: Annotated[
        str, typer.Option(help="auto: the GPU where there is one", **DEVICE)
    ] = "auto",
) -> None:
    """Continue a text by sampling from a language model.

    Print the prompt and what follows it, which may be several lines. Of standard input,
    each line is a prompt; blank lines stay blank, and one that cannot be continued is
    named on standard error and left blank; the exit code is then 1. A text that has
    grown longer than the model's window is cut to its last half window, and goes on.
    """
    import torch

    if not prompt and sys.stdin is None:
        raise ValueError("no prompt given, and standard input is closed")
    text = load_generator(weights, chosen_device(device))
    choices = length, temperature, top_p
    generator = torch.Generator(next(text.model.parameters()).device)
    generator.manual_seed(seed)
    if prompt:
        prompts = sentences_of(prompt)
        for line in prompts:
            require_known(text, line)
        for line in prompts:
            print(text.generate(line, *choices, generator), flush=True)
        return
    typed = sys.stdin.isatty()
    if typed:
        say("One prompt a line; end with Ctrl-D (Ctrl-Z on Windows).")
    done = failures = 0
    for lines in read_lines(None):
        for line in lines:
            done += 1
            try:
                require_whole(line)
                if line.strip():
                    require_known(text, line)
                    line = text.generate(line, *choices, generator)
                print(line.strip(), flush=True)
            except ValueError as error:
                failures += 1
                say(one_line(f"{'' if typed else f'{PROGRAM}: line {done}: '}{error}"))
                if not typed:
                    print(flush=True)
    if failures and not typed:
        raise typer.Exit(1)


def load_generator(weights: str, device: str) -> "TextGenerator":
    """The language model in a file or a run's folder."""
    from transformer.beyond.text_generator import TextGenerator
    from transformer.decoding.translator import Translator

    try:
        text = TextGenerator.load(weights)
    except ValueError:
        try:
            Translator.load(weights)
        except ValueError:
            pass
        else:
            raise ValueError(
                f'{weights} is a translator: "{PROGRAM} translate" translates with it'
            ) from None
        raise
    text.model.to(device)
    return text


def require_known(text: "TextGenerator", prompt: str) -> None:
    """Refuse a prompt without any character that the training text had.

    Raises:
        ValueError: naming some of its characters.
    """
    characters = {c for c in text.tokenizer.normalize(prompt) if not c.isspace()}
    unknown = text.tokenizer.unknown_characters(prompt)
    if unknown and set(unknown) >= characters:
        raise ValueError(
            f"no training text had the characters {', '.join(unknown[:5])}"
        )
