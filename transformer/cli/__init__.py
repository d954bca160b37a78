"""The command line: `python -m transformer translate "Jane visite l'Afrique"`."""

import os
import sys
from collections.abc import Sequence

import click

from transformer.cli.console import print_error
from transformer.cli.doctor import doctor
from transformer.cli.evaluate import evaluate
from transformer.cli.explore import explore
from transformer.cli.generate import generate
from transformer.cli.options import PROGRAM
from transformer.cli.phrasebook import train_phrasebook
from transformer.cli.plot import plot
from transformer.cli.resources import is_out_of_memory
from transformer.cli.train import train
from transformer.cli.translate import translate, words

__all__ = ["app", "main"]

ABOUT = """\
The Transformer of the book: translate, train, measure and look inside.

\b
python -m transformer translate "Jane visite l'Afrique en septembre"
python -m transformer translate < sentences.txt     one sentence a line

Your own sentence pairs, in mine/train.fr, mine/train.en, mine/val.fr, mine/val.en:

\b
python -m transformer train --data mine --source fr --target en --out runs/mine
python -m transformer evaluate runs/mine
python -m transformer translate --weights runs/mine "Une phrase."
python -m transformer plot runs/mine --out curves.svg
python -m transformer explore --weights runs/mine --out mine.html

A language model of your own text, which then continues a prompt:

\b
python -m transformer train --task lm --data book.txt --out runs/book
python -m transformer generate --weights runs/book "It was a"

The phrasebook, which translates without --weights:

\b
python -m transformer words                         what it can read
python -m transformer train-phrasebook --out my.safetensors --seed 1

Exit codes: 0; 1 when some lines of a file or a pipe could not be translated or
continued; 2 for a mistake in what was asked, explained in one line; 130 after Ctrl-C.
"""


class Commands(click.Group):
    """A group that lists its commands in the order in which one needs them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands."""
        return list(self.commands)


@click.group(
    cls=Commands,
    commands=[
        *(translate, train, evaluate, plot, explore, generate),
        *(words, train_phrasebook, doctor),
    ],
    help=ABOUT,
    no_args_is_help=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "show_default": True,
        "max_content_width": 88,
    },
)
@click.version_option(
    package_name="tested-transformer", message="tested-transformer %(version)s"
)
def app() -> None:
    """Take the options that stand before any command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; 2 is for what the caller could mend."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with app.make_context(PROGRAM, given) as context:
            code = app.invoke(context)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code or 0
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except BrokenPipeError:  # the reader has seen enough, as in `words | head`
        return 0
    except KeyboardInterrupt:
        print_error("")
        return 130
    except click.UsageError as error:
        return refuse(*explain_usage(error))
    except (ValueError, TypeError, OverflowError, ImportError) as error:
        return refuse(str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        return refuse(f"{where}{error.strerror or error}")
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            reason = str(error) or "there is no more"
            return refuse(
                f"out of memory: {reason}; less is needed with a lower "
                "--micro-batch-tokens, with which train goes on, or --beam-size"
            )
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # under torchrun
            return refuse(f"another process may have ended: {error}")
        raise


def explain_usage(error: click.UsageError) -> tuple[str, str]:
    """What was wrong with the command line, and the command that it was meant for."""
    path = error.ctx.command_path if error.ctx else PROGRAM
    message = error.format_message()
    message = message[:1].lower() + message[1:].rstrip(".")
    return f"{message} ({path} --help explains)", path


def refuse(message: str, program: str = PROGRAM) -> int:
    """Say in one line what is wrong; the exit code."""
    print_error(f"{program}: {message}")
    return 2
