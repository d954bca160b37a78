"""The command that continues a text: generate."""

import sys
from pathlib import Path

import click
import torch

from transformer.cli.console import (
    is_terminal,
    print_error,
    printable,
    read_lines,
    require_complete_line,
)
from transformer.cli.models import load_generator, report_unknown_characters
from transformer.cli.options import (
    COUNT,
    DEVICE,
    PROGRAM,
    RUN_OR_FILE,
    SEED,
    Command,
    number,
)
from transformer.cli.translate import note_unquoted

__all__ = ["generate"]


@click.command(cls=Command, short_help="Continue a text with a language model.")
@click.argument("prompts", metavar="[PROMPT]...", nargs=-1)
@click.option(
    "--weights",
    type=RUN_OR_FILE,
    required=True,
    help="What train --task lm wrote.",
)
@click.option("--length", type=COUNT, default=100, help="How many tokens to add.")
@click.option(
    "--temperature",
    type=number(0, min_open=True),
    default=0.8,
    help="The lower, the more it keeps to what is most probable.",
)
@click.option(
    "--top-p",
    type=number(0, 1, min_open=True),
    default=0.95,
    help="Draw among the most probable tokens that share this probability.",
)
@click.option("--seed", type=SEED, default=0, help="The same seed, the same text.")
@DEVICE
def generate(
    prompts: tuple[str, ...],
    weights: Path,
    length: int,
    temperature: float,
    top_p: float,
    seed: int,
    device: str,
) -> int:
    """Continue a text by sampling from a language model.

    Each PROMPT is one argument, in quotes; without any, each line of standard input is
    one. The prompt is printed with what follows it, which may be several lines. Blank
    lines stay blank, and one that cannot be continued is named on standard error and
    left blank; the exit code is then 1.

    A text that has grown longer than the model's window is cut to its last half window,
    and goes on.
    """
    if not prompts and sys.stdin is None:
        raise ValueError("no prompt given, and standard input is closed")
    text = load_generator(weights, device)
    random = torch.Generator(next(text.model.parameters()).device)
    random.manual_seed(seed)

    def write(prompt: str) -> str:
        found = text.generate(prompt, length, temperature, top_p, random)
        report_unknown_characters(text.tokenizer, [prompt])
        return found

    if prompts:
        note_unquoted(prompts)
        for prompt in prompts:
            print(write(prompt), flush=True)
        return 0
    typed = is_terminal(sys.stdin)
    if typed:
        print_error("One prompt a line; end with Ctrl-D (Ctrl-Z on Windows).")
    failures = 0
    all_lines = (line for lines in read_lines(None) for line in lines)
    for index, line in enumerate(all_lines, start=1):
        try:
            require_complete_line(line)
            print(write(line) if line.strip() else "", flush=True)
        except ValueError as error:
            failures += 1
            where = "" if typed else f"{PROGRAM}: line {index}: "
            print_error(printable(f"{where}{error}"))
            if not typed:
                print(flush=True)
    return 1 if failures and not typed else 0
