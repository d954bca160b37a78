"""The command that continues a text: generate."""

import sys
from pathlib import Path
from typing import Any

import click
import torch

from transformer.cli.console import (
    is_terminal,
    print_error,
    read_lines,
    require_complete_line,
)
from transformer.cli.models import load_generator, report_unknown
from transformer.cli.options import (
    COUNT,
    DEVICE,
    PROGRAM,
    RUN_OR_FILE,
    SEED,
    Command,
    flag,
    number,
    option,
    refuse_given,
)
from transformer.cli.translate import note_unquoted
from transformer.text.subwords import SubwordTokenizer

__all__ = ["generate"]


@click.command(cls=Command, short_help="Continue a text with a language model.")
@click.argument("prompts", metavar="[PROMPT]...", nargs=-1)
@option(
    *("--weights", RUN_OR_FILE),
    "What train --task lm wrote, a folder of GPT-2 or Llama, or a file of llama2.c.",
    required=True,
)
@option("--length", COUNT, "How many tokens to add.", 100)
@option("--temperature", number(0, min_open=True), "Lower is more predictable.", 0.8)
@option("--top-p", number(0, 1, min_open=True), "Lower leaves out rare tokens.", 0.95)
@flag("--greedy", "Take the most probable token each time, and draw none.")
@flag("--stream", "Print the text while it grows.")
@option("--seed", SEED, "The same seed draws the same text.", 0)
@DEVICE
@click.pass_context
def generate(
    context: click.Context,
    /,
    prompts: tuple[str, ...],
    weights: Path,
    length: int,
    temperature: float,
    top_p: float,
    greedy: bool,
    stream: bool,
    seed: int,
    device: str,
) -> int:
    """Continue a text with a language model.

    Each PROMPT is one argument, in quotes; without any, each line of standard input is
    one. The prompt is printed with what follows it, which may be several lines, so that
    a line with --- stands between the texts of several prompts. A blank line has a
    blank text; that of one that cannot be continued is blank too, and named on standard
    error; the exit code is then 1.

    A text that has grown longer than the model's window is cut to its last half window,
    and goes on.
    """
    if greedy:
        refuse_given(context, "for drawing, not for --greedy", "temperature", "top_p")
        temperature, top_p = 1.0, 1e-9  # which leaves the most probable token alone
    if not prompts and sys.stdin is None:
        raise ValueError("no prompt given, and standard input is closed")
    text = load_generator(weights, device)
    random = torch.Generator(next(text.model.parameters()).device)
    random.manual_seed(seed)
    unknown: list[list[str]] = []
    choices: Any = {"temperature": temperature, "top_p": top_p, "generator": random}

    def write(prompt: str) -> None:
        if isinstance(text.tokenizer, SubwordTokenizer):
            unknown.append(text.tokenizer.unknown_characters(prompt))
        if stream:
            for piece in text.stream(prompt, length, **choices):
                print(piece, end="", flush=True)
            print()
        else:
            print(text.generate(prompt, length, **choices), flush=True)

    if prompts:
        note_unquoted(prompts)
        for index, prompt in enumerate(prompts):
            print(end="---\n" if index else "")
            write(prompt)
        report_unknown(unknown)
        return 0
    typed = is_terminal(sys.stdin)
    if typed:
        print_error("One prompt a line; end with Ctrl-D (Ctrl-Z on Windows).")
    failures = 0
    all_lines = (line for lines in read_lines(None) for line in lines)
    for index, line in enumerate(all_lines):
        print(end="---\n" if index and not typed else "")
        try:
            require_complete_line(line)
            if line.strip():
                write(line)
            else:
                print(flush=True)
        except ValueError as error:
            failures += 1
            where = "" if typed else f"{PROGRAM}: line {index + 1}: "
            print_error(f"{where}{error}")
            if not typed:
                print(flush=True)
    report_unknown(unknown)
    return 1 if failures and not typed else 0
