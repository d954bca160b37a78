"""The commands of a translator in use: translate, words."""

import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import click

from transformer.cli.console import (
    is_terminal,
    print_error,
    printable,
    read_lines,
    require_complete_line,
)
from transformer.cli.models import (
    explain_error,
    load_translator,
    report_unknown_characters,
)
from transformer.cli.options import (
    BEAM_SIZE,
    DEVICE,
    FILE,
    LENGTH_PENALTY,
    PROGRAM,
    WEIGHTS,
    Command,
)
from transformer.decoding.translator import Translator
from transformer.text.words import WordTokenizer

__all__ = ["note_unquoted", "translate", "words"]


@click.command(cls=Command, short_help="Translate sentences, a file, or a pipe.")
@click.argument("sentences", metavar="[SENTENCE]...", nargs=-1)
@WEIGHTS
@click.option("--file", type=FILE, help="Read the sentences here, one a line.")
@BEAM_SIZE
@LENGTH_PENALTY
@DEVICE
def translate(
    sentences: tuple[str, ...],
    weights: Path | None,
    file: Path | None,
    beam_size: int,
    length_penalty: float,
    device: str,
) -> int:
    """Translate sentences, a file, or standard input line by line.

    Each SENTENCE is one argument, in quotes. Without any, and without --file, standard
    input is read. Without --weights, French is translated into English.

    Blank lines stay blank. A line that cannot be translated, because it is too long or
    has a word that the phrasebook does not know, is named on standard error and left
    blank; the exit code is then 1. A SENTENCE that cannot be translated is refused with
    exit code 2.
    """
    if sentences and file is not None:
        raise ValueError("give a sentence or --file, not both")
    if file is None and not sentences and sys.stdin is None:
        raise ValueError("no sentence given, and standard input is closed")
    translator = load_translator(weights, device)
    search = partial(
        translator.translate, beam_size=beam_size, length_penalty=length_penalty
    )
    if sentences:
        note_unquoted(sentences)
        errors: dict[int, ValueError] = {}
        found = search(list(sentences), on_error=errors.__setitem__)
        for index, error in errors.items():
            where = f"sentence {index + 1}: " if len(sentences) > 1 else ""
            raise ValueError(f"{where}{explain_error(error, weights)}")
        report_unknown_characters(translator.source_tokenizer, sentences)
        print("\n".join(found))
        return 0
    typed = file is None and is_terminal(sys.stdin)
    if typed:
        print_error("One sentence a line; end with Ctrl-D (Ctrl-Z on Windows).")
    done = failures = 0
    for lines in read_lines(file):
        errors = {}
        lines = [leave_out_long(*each, errors) for each in enumerate(lines)]
        found = search(lines, on_error=errors.__setitem__)
        for index, translation in enumerate(found):
            if index in errors:
                where = "" if typed else f"{PROGRAM}: line {done + index + 1}: "
                message = explain_error(errors[index], weights)
                print_error(printable(f"{where}{message}"))
            if not (typed and index in errors):
                print(translation)
        if sys.stdout is not None:
            sys.stdout.flush()
        report_unknown_characters(
            translator.source_tokenizer,
            (line for index, line in enumerate(lines) if index not in errors),
        )
        done, failures = done + len(lines), failures + len(errors)
    return 1 if failures and not typed else 0


def note_unquoted(arguments: Iterable[str]) -> None:
    """Say how to write a sentence of several words, if several single words came."""
    arguments = list(arguments)
    if len(arguments) > 1 and all(len(each.split()) == 1 for each in arguments):
        sentence = " ".join(arguments)
        print_error(
            printable(
                f"{PROGRAM}: each argument is taken as a text of its own; "
                f'put quotes around a text of several words: "{sentence}"'
            )
        )


def leave_out_long(index: int, line: str, errors: dict[int, ValueError]) -> str:
    """The line, or a blank one and its error if it is too long to be read."""
    try:
        require_complete_line(line)
    except ValueError as error:
        errors[index] = error
        return ""
    return line


@click.command(cls=Command, short_help="List the words that can be translated.")
@WEIGHTS
@click.option("--english", is_flag=True, help="List the words that it can write.")
def words(weights: Path | None, english: bool) -> None:
    """List the words that can be translated, one a line.

    A translator with subwords has no such list: it reads any word.
    """
    translator: Translator = load_translator(weights)
    side = translator.target_tokenizer if english else translator.source_tokenizer
    if not isinstance(side, WordTokenizer):
        raise ValueError(f"{weights} reads pieces of words: there is no list")
    print("\n".join(side.vocabulary))
