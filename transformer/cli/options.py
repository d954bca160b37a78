"""What the commands' options have in common: their kinds, limits and headings."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

__all__ = [
    "BEAM_SIZE",
    "COUNT",
    "DEVICE",
    "FILE",
    "FOLDER",
    "FOLDER_OR_FILE",
    "LENGTH_PENALTY",
    "MAX_LENGTH",
    "PROGRAM",
    "RUN_OR_FILE",
    "SEED",
    "WEIGHTS",
    "Command",
    "count",
    "number",
    "refuse_given",
    "settings",
]

PROGRAM = "python -m transformer"


class _Path(click.ParamType):  # type: ignore[type-arg]
    """The name of a file or a folder; an empty one, of an unset variable, is none."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path:
        if not str(value).strip():
            self.fail(
                f"it must name a {self.name.replace('_', ' ')}, got {value!r}",
                param,
                ctx,
            )
        return Path(value)


def count(least: int = 1, most: int | None = None) -> click.IntRange:
    """A whole number in a range; the help calls it COUNT."""
    kind = click.IntRange(least, most)
    kind.name = "count"
    return kind


def number(least: float, most: float | None = None, **ends: bool) -> click.FloatRange:
    """A number in a range, whose ends may be open; the help calls it NUMBER."""
    kind = click.FloatRange(least, most, **ends)
    kind.name = "number"
    return kind


class _Option(click.Option):
    """An option that stands under a heading of its own in the help."""

    def __init__(self, *arguments: Any, heading: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.heading = heading


class Command(click.Command):
    """A command whose help shows options that belong together under one heading."""

    def format_options(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the options, each under the heading it was given."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record and isinstance(parameter, click.Option):
                heading = getattr(parameter, "heading", "Options")
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def refuse_given(context: click.Context, reason: str, *names: str) -> None:
    """Refuse options that were given where they mean nothing.

    Raises:
        ValueError: naming the first of them, and the reason.
    """
    for name in names:
        if context.get_parameter_source(name) != ParameterSource.DEFAULT:
            raise ValueError(f"--{name.replace('_', '-')} is {reason}")


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def settings(heading: str, **table: tuple[Any, str]) -> Decorator:
    """Give a command an option without default for each name, kind and help text."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for name, (kind, text) in reversed(table.items()):
            flag = name.replace("_", "-")
            flags = f"--{flag}/--no-{flag}" if kind is bool else f"--{flag}"
            option = click.option(
                flags, type=kind, default=None, help=text, cls=_Option, heading=heading
            )
            command = option(command)
        return command

    return decorate


FILE, FOLDER = _Path("file"), _Path("folder")
FOLDER_OR_FILE, RUN_OR_FILE = _Path("folder_or_file"), _Path("run_or_file")
COUNT = count()
SEED = count(0, 2**32 - 1)
DEVICE = click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda", "mps", "xpu"]),
    default="auto",
    help="Where to compute; auto takes the GPU if there is one.",
)
BEAM_SIZE = click.option(
    "--beam-size",
    type=count(1, 1000),
    default=1,
    help="Hypotheses that the search keeps; 1 is greedy search.",
)
LENGTH_PENALTY = click.option(
    "--length-penalty",
    type=number(0, 100),
    default=0.6,
    help="The higher, the longer the translations; for beams above 1.",
)
MAX_LENGTH = click.option(
    "--max-length",
    type=COUNT,
    help="Tokens after which a translation is cut.  [default: what training needed]",
)
WEIGHTS = click.option(
    "--weights",
    type=RUN_OR_FILE,
    help="What train or train-phrasebook wrote.  [default: the phrasebook]",
)
