"""The commands of a translator in use: translate, words."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from transformer.cli.console import (
    is_terminal,
    print_error,
    read_lines,
    require_complete_line,
)
from transformer.cli.models import (
    explain_error,
    load_translator,
    report_cut,
    report_unknown,
    text_writer,
)
from transformer.cli.options import (
    BEAM_SIZE,
    COUNT,
    DEVICE,
    FILE,
    LENGTH_PENALTY,
    MAX_LENGTH,
    PROGRAM,
    WEIGHTS,
    Command,
    flag,
    option,
)
from transformer.decoding.translator import Translation, Translator
from transformer.text.words import WordTokenizer

__all__ = ["note_unquoted", "translate", "words"]


@click.command(cls=Command, short_help="Translate sentences, a file, or a pipe.")
@click.argument("sentences", metavar="[SENTENCE]...", nargs=-1)
@WEIGHTS
@option("--file", FILE, "Read the sentences here, one a line.")
@BEAM_SIZE
@LENGTH_PENALTY
@MAX_LENGTH
@option("--n-best", COUNT, "Translations of each sentence, best first.", 1)
@flag("--scores", "Print a score before each translation.")
@DEVICE
def translate(
    sentences: tuple[str, ...],
    weights: Path | None,
    file: Path | None,
    beam_size: int,
    length_penalty: float,
    max_length: int | None,
    n_best: int,
    scores: bool,
    device: str,
) -> int:
    """Translate sentences, a file, or standard input line by line.

    Each SENTENCE is one argument, in quotes. Without any, and without --file, standard
    input is read. Without --weights, French is translated into English.

    With --n-best, each sentence has as many lines, the best first; where the search
    finds fewer, the others stay blank. A score is the log-probability of a translation,
    divided by a power of its length, and a tab follows it.

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
    write = text_writer(translator)
    cut: list[int] = []
    unknown: list[list[str]] = []

    def search(lines: list[str], errors: dict[int, ValueError]) -> list[str]:
        """What to print for each line."""
        options: Any = {
            "length_penalty": length_penalty,
            "max_length": max_length,
            "on_error": errors.__setitem__,
            "on_cut": cut.append,
            "on_unknown": lambda _, characters: unknown.append(characters),
        }
        if n_best == 1 and not scores:
            return list(map(write, translator.translate(lines, beam_size, **options)))
        lists = translator.n_best(lines, max(beam_size, n_best), **options)
        return [list_best(found, n_best, scores, write) for found in lists]

    def report() -> None:
        report_cut(len(cut))
        report_unknown(unknown)
        cut.clear()
        unknown.clear()

    if sentences:
        note_unquoted(sentences)
        errors: dict[int, ValueError] = {}
        found = search(list(sentences), errors)
        for index, error in errors.items():
            where = f"sentence {index + 1}: " if len(sentences) > 1 else ""
            raise ValueError(f"{where}{explain_error(error, weights)}")
        print("\n".join(found))
        report()
        return 0
    typed = file is None and is_terminal(sys.stdin)
    if typed:
        print_error("One sentence a line; end with Ctrl-D (Ctrl-Z on Windows).")
    done = failures = 0
    for lines in read_lines(file):
        errors = {}
        lines = [leave_out_long(*each, errors) for each in enumerate(lines)]
        for index, translation in enumerate(search(lines, errors)):
            if index in errors:
                where = "" if typed else f"{PROGRAM}: line {done + index + 1}: "
                message = explain_error(errors[index], weights)
                print_error(f"{where}{message}")
            if not (typed and index in errors):
                print(translation)
        if sys.stdout is not None:
            sys.stdout.flush()
        if typed:
            report()
        done, failures = done + len(lines), failures + len(errors)
    report()
    return 1 if failures and not typed else 0


def list_best(
    found: list[Translation], n_best: int, scores: bool, write: Callable[[str], str]
) -> str:
    """The best translations, a line each, and blank lines where there are too few."""
    lines = [
        f"{each.score:.4f}\t{write(each.text)}" if scores else write(each.text)
        for each in found[:n_best]
    ]
    return "\n".join(lines + [""] * (n_best - len(lines)))


def note_unquoted(arguments: Iterable[str]) -> None:
    """Say how to write a sentence of several words, if several single words came."""
    arguments = list(arguments)
    if len(arguments) > 1 and all(len(each.split()) == 1 for each in arguments):
        sentence = " ".join(arguments)
        print_error(
            f"{PROGRAM}: each argument is taken as a text of its own; "
            f'put quotes around a text of several words: "{sentence}"'
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
@flag("--english", "List the words that it can write.")
def words(weights: Path | None, english: bool) -> None:
    """List the words that can be translated, one a line.

    A translator with subwords has no such list: it reads any word.
    """
    translator: Translator = load_translator(weights)
    side = translator.target_tokenizer if english else translator.source_tokenizer
    if not isinstance(side, WordTokenizer):
        raise ValueError(f"{weights} reads pieces of words: there is no list")
    print("\n".join(side.vocabulary))
