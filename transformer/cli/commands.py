"""The commands: what each does with the options it is given.

torch takes a second to import, so each command imports what it needs when it runs.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transformer.cli.lines import (
    one_line,
    read_lines,
    require_whole,
    say,
    sentences_of,
)
from transformer.cli.options import (
    BEAM,
    DEVICE,
    PENALTY,
    SEED,
    Command,
    whole,
)
from transformer.cli.progress import Progress
from transformer.cli.resources import chosen_device

if TYPE_CHECKING:
    from transformer.decoding.translator import Translator

__all__ = ["PROGRAM", "app", "explained"]

PROGRAM = "python -m transformer"

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def show_version(asked: bool) -> bool:
    """Print the version if it was asked for, and end there."""
    if asked:
        from importlib.metadata import version

        print(f"tested-transformer {version('tested-transformer')}")
        raise typer.Exit
    return asked


ABOUT = """\
The Transformer of the book, trained on its French-English phrasebook.

\b
python -m transformer translate "Jane visite l'Afrique en septembre"
python -m transformer translate < sentences.txt     one sentence a line
python -m transformer translate --beam-size 4 \\
    "Le grand chien noir aime le petit chat blanc"
python -m transformer words                         what it can read
python -m transformer train-phrasebook --out my.safetensors --seed 1
python -m transformer translate --weights my.safetensors "Il a deux chats noirs"

A translator of real sentences, trained on Multi30k as chapter 16 does:

\b
python -m transformer train --preset tiny --out runs/en-de --seed 1
python -m transformer plot runs/en-de --out curves.svg
python -m transformer evaluate runs/en-de --split test --beam-size 5
python -m transformer translate --weights runs/en-de "Two dogs play in the snow."
torchrun --nproc-per-node 2 -m transformer train …  several processes, one run

Your own sentence pairs, in mine/train.fr, mine/train.en, mine/val.fr, mine/val.en:

\b
python -m transformer train --data mine --source fr --target en --out runs/mine

A language model of your own text, which then continues a prompt:

\b
python -m transformer train --task lm --data book.txt --out runs/book
python -m transformer generate --weights runs/book "It was a"

A training that was cut short goes on when the same command is given again. Exit
codes: 0; 1 when some lines of a file or a pipe could not be translated or continued;
2 for a mistake in what was asked, explained in one line; 130 after Ctrl-C (in the
first second, while Python loads, it ends as any Python program).
"""


@app.callback(help=ABOUT)
def about(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=show_version, is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    """Take the options that stand before any command."""


@app.command(cls=Command, short_help="translate a sentence, a file, or a pipe")
def translate(
    sentence: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SENTENCE",
            show_default=False,
            help="in quotes, for the apostrophes, and several each in their own; words "
            "without quotes are one sentence; without any, standard input is read",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="RUN_OR_FILE",
            help="what train-phrasebook or train wrote  [default: the file that ships]",
        ),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="read the sentences from here, one a line"),
    ] = None,
    beam_size: Annotated[
        int, typer.Option(help="hypotheses to keep; 1 is greedy search", **BEAM)
    ] = 1,
    length_penalty: Annotated[
        float,
        typer.Option(help="0 to 100; higher lets a beam end later", **PENALTY),
    ] = 0.6,
    device: Annotated[
        str, typer.Option(help="auto: the GPU where there is one", **DEVICE)
    ] = "auto",
) -> None:
    """Translate sentences, a file, or standard input line by line.

    Without --weights, from French to English. Blank lines stay blank. A line that
    cannot be translated (too long, or with a word that the phrasebook does not know)
    is named on standard error and left blank; the exit code is then 1. A SENTENCE that
    cannot be translated is refused with exit code 2. A translator with subwords reads
    any word.
    """
    if sentence and file is not None:
        raise ValueError("give a sentence or --file, not both")
    if file is None and not sentence and sys.stdin is None:
        raise ValueError("no sentence given, and standard input is closed")
    translator = load_translator(weights, device)
    options = beam_size, length_penalty
    if sentence:
        print("\n".join(translate_all(translator, sentence, options, weights)))
        return
    typed = file is None and sys.stdin.isatty()
    if typed:
        say("One sentence a line; end with Ctrl-D (Ctrl-Z on Windows).")
    done = failures = 0
    for lines in read_lines(file):
        errors: dict[int, ValueError] = {}
        lines = [hide_unknown(translator, *each, errors) for each in enumerate(lines)]
        translations = translator.translate(
            lines, *options, on_error=errors.__setitem__
        )
        for index, translation in enumerate(translations):
            if index in errors:
                where = "" if typed else f"{PROGRAM}: line {done + index + 1}: "
                say(one_line(f"{where}{explained(errors[index], weights)}"))
            if not (typed and index in errors):
                print(translation)
        if sys.stdout:
            sys.stdout.flush()
        done, failures = done + len(lines), failures + len(errors)
    if failures and not typed:
        raise typer.Exit(1)


def translate_all(
    translator: "Translator",
    arguments: list[str],
    options: tuple[int, float],
    weights: str | None,
) -> list[str]:
    """Translate the sentences that were typed.

    Raises:
        ValueError: for one that cannot be translated, naming its number among several.
    """
    sentences = sentences_of(arguments)
    try:
        for number, sentence in enumerate(sentences, start=1):
            where = f"sentence {number}: " if len(sentences) > 1 else ""
            require_known_letters(translator, sentence, where)
        if len(sentences) == 1:
            return [translator.translate(sentences[0], *options)]
        return translator.translate(sentences, *options)
    except ValueError as error:
        raise ValueError(explained(error, weights)) from None


def load_translator(weights: str | None, device: str, average: int = 0) -> "Translator":
    """The translator in a file or a run's folder, or the one that ships."""
    from transformer.decoding.translator import Translator

    where = chosen_device(device)
    if weights is None:
        translator = Translator.phrasebook()
    elif average:
        from transformer.training.run_folder import load_run

        translator = load_run(weights, average)
    else:
        try:
            translator = Translator.load(weights)
        except ValueError:
            refuse_text_generator(weights)
            raise
    translator.model.to(where)
    return translator


def refuse_text_generator(weights: str) -> None:
    """Say what a language model is for, where a translator is needed."""
    from transformer.beyond.text_generator import TextGenerator

    try:
        TextGenerator.load(weights)
    except ValueError:
        return
    raise ValueError(
        f'{weights} is a language model: "{PROGRAM} generate" continues a text with it'
    ) from None


def require_known_letters(
    translator: "Translator", sentence: str, where: str = ""
) -> None:
    """Refuse a sentence without any letter that a training sentence had.

    Raises:
        ValueError: naming some of its letters, behind `where` it is.
    """
    from transformer.text.subwords import SubwordTokenizer

    tokenizer = translator.source_tokenizer
    if not isinstance(tokenizer, SubwordTokenizer):
        return
    unknown = [c for c in tokenizer.unknown_characters(sentence) if c.isalnum()]
    known = {c for c in tokenizer.normalize(sentence) if c.isalnum()} - set(unknown)
    if unknown and not known:
        raise ValueError(
            f"{where}no training sentence had the letters {', '.join(unknown[:5])}"
        )


def hide_unknown(
    translator: "Translator", index: int, line: str, errors: dict[int, ValueError]
) -> str:
    """The line, or a blank one and a note of the error if no letter is known.

    So it is with a line that is too long.
    """
    try:
        require_whole(line)
        require_known_letters(translator, line)
    except ValueError as error:
        errors[index] = error
        return ""
    return line


def explained(error: Exception, weights: str | None = None) -> str:
    """What went wrong; for an unknown word, also the command that lists the words."""
    if type(error).__name__ != "UnknownWordError":
        return str(error)
    more = f" --weights {weights}" if weights else ""
    return f'{error}; "{PROGRAM} words{more}" lists them'


@app.command(cls=Command, short_help="list the words that can be translated")
def words(
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="what train-phrasebook wrote  [default: the file that ships]",
        ),
    ] = None,
    english: Annotated[
        bool, typer.Option("--english", help="list the words that it can write")
    ] = False,
) -> None:
    """List the words that can be translated, one a line.

    A translator with subwords has no such list: it reads any word.
    """
    from transformer.text.words import WordTokenizer

    translator = load_translator(weights, "cpu")
    side = translator.target_tokenizer if english else translator.source_tokenizer
    if not isinstance(side, WordTokenizer):
        raise ValueError(f"{weights} reads pieces of words: there is no list")
    print("\n".join(side.vocabulary))


@app.command(cls=Command, short_help="train the phrasebook's weights anew, in a minute")
def train_phrasebook(
    out: Annotated[str, typer.Option(metavar="FILE", help="where to write")],
    seed: Annotated[
        int, typer.Option(help="0 or more; fixes the weights, bit for bit", **SEED)
    ] = 0,
    sentences: Annotated[
        int,
        typer.Option(
            parser=whole(1, 1_000_000),  # more make the grammar repeat itself for long
            metavar="N",
            help="how many sentences to learn from",
        ),
    ] = 50_000,
) -> None:
    """Train the phrasebook's translator, on one core in about a minute.

    As chapter 12 does; then test on sentences that hold a pair of words never seen
    together, and write the weights. The same seed gives the same weights on the same
    machine.
    """
    path = new_file(out)
    import torch

    from transformer.decoding.translator import Translator
    from transformer.phrasebook.grammar import (
        phrasebook_examples,
        phrasebook_tokenizers,
        sample_pairs,
    )
    from transformer.training.accuracy import exact_match
    from transformer.training.config import TrainingConfig
    from transformer.training.loop import phrasebook_model, train

    torch.set_num_threads(1)  # the order of additions, and so every bit, is fixed
    say(f"making {sentences:,} sentences …")
    examples = phrasebook_examples(sample_pairs(sentences, seed))
    model = phrasebook_model(seed)
    progress = Progress()
    for metrics in train(model, examples, TrainingConfig(seed=seed)):
        progress.show(metrics)
    progress.close()
    held_out = phrasebook_examples(sample_pairs(1000, seed + 1, held_out=True))
    share = exact_match(model, held_out)
    Translator(model, *phrasebook_tokenizers(), ("fr", "en")).save(path)
    print(
        f"{share:.1%} of {len(held_out):,} held-out sentences translated exactly; "
        f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)"
    )


def require_file(out: str) -> Path:
    """The path of a file to write.

    Raises:
        ValueError: for no name, or a folder's.
    """
    if not out.strip():
        raise ValueError(f"--out must name a file, got {out!r}")
    if Path(out).is_dir():
        raise ValueError(f"--out must name a file, got the folder {out}")
    return Path(out)


def new_file(out: str) -> Path:
    """The path of a file to write, in a folder that is made if it is not there.

    Raises:
        ValueError: for what `require_file` refuses, or a folder that cannot be written.
    """
    path = require_file(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"cannot write in the folder {path.parent}")
    return path
