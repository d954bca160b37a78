"""The command line: `python -m transformer translate "Jane visite l'Afrique"`."""

import io
import os
import sys
from collections.abc import Sequence
from typing import Any

import typer
import typer.main

# The commands, in the order of --help.
from transformer.cli import runs, measure, generation, explore  # noqa: F401  # isort: skip
from transformer.cli.commands import PROGRAM, app, explained
from transformer.cli.lines import one_line, say
from transformer.cli.resources import is_out_of_memory

__all__ = ["main"]

# What typer refuses: its library of commands has had two names, this class is public.
UsageError: Any = typer.BadParameter.__mro__[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; 2 is for what the caller could mend."""
    if sys.stderr is None:  # closed: what is said would be printed as output
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    # The name of a file need not be UTF-8, and may be printed; input must be.
    for stream, errors in ((sys.stdin, "strict"), (sys.stdout, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)
    command = typer.main.get_command(app)
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with command.make_context(PROGRAM, given) as context:
            command.invoke(context)
        if sys.stdout:
            sys.stdout.flush()
    except typer.Exit as leaving:
        return leaving.exit_code
    except BrokenPipeError:  # the reader has seen enough, as in `words | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        say("")
        return 130
    except UsageError as error:
        return refuse(*usage(error))
    except (ValueError, OSError) as error:
        return refuse(explained(error))
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            reason = str(error) or "there is no more"
            return refuse(
                f"out of memory: {reason}; less is needed with a lower "
                "--micro-batch-tokens (train) or --beam-size"
            )
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # under torchrun
            return refuse(f"another process may have ended: {error}")
        raise
    return 0


def usage(error: Exception) -> tuple[str, str]:
    """What was wrong with the command line, and the command that it was meant for."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else PROGRAM
    message = error.format_message()  # type: ignore[attr-defined]
    message = message[:1].lower() + message[1:].rstrip(".")
    return f"{message} ({path} --help explains)", path


def refuse(message: str, program: str = PROGRAM) -> int:
    """Say in one line what is wrong; the exit code."""
    say(one_line(f"{program}: {message}"))
    return 2
