"""What the commands' options have in common: their kinds, limits and headings."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

PROGRAM = "python -m transformer"
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class _Path(click.ParamType):  # type: ignore[type-arg]
    """The name of a file or a folder; an empty one, of an unset variable, is none."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> Path:
        if not str(value).strip():
            kind = self.name.replace("_", " ")
            self.fail(f"it must name a {kind}, got {value!r}", param, ctx)
        return Path(value)


def count(least: int = 1, most: int | None = None) -> "click.ParamType[Any]":
    """A whole number in a range; the help calls it COUNT."""
    kind = click.IntRange(least, most)
    kind.name = "count"
    return kind


def number(
    least: int | float, most: int | float | None = None, **ends: bool
) -> "click.ParamType[Any]":
    """A number in a range, whose ends may be open; the help calls it NUMBER."""
    kind = click.FloatRange(least, most, **ends)
    kind.name = "number"
    return kind


class _Option(click.Option):
    """An option that stands under a heading of its own in the help."""

    def __init__(self, *names: Any, heading: str, **settings: Any) -> None:
        super().__init__(*names, **settings)
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


def option(
    name: str, kind: Any, text: str, default: Any = None, **more: Any
) -> Decorator:
    """An option with its kind, a line of help and perhaps a default."""
    if default is not None:
        more["default"] = default
    return click.option(name, type=kind, help=text, **more)


def flag(name: str, text: str) -> Decorator:
    """An option that is given or not."""
    return click.option(name, is_flag=True, help=text)


def settings(heading: str, **table: tuple[Any, str]) -> Decorator:
    """Options under a heading of their own, without defaults."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for name, (kind, text) in reversed(table.items()):
            word = name.replace("_", "-")
            names = f"--{word}/--no-{word}" if kind is bool else f"--{word}"
            more: Any = {"cls": _Option, "heading": heading, "default": None}
            command = click.option(names, type=kind, help=text, **more)(command)
        return command

    return decorate


def is_given(context: click.Context, name: str) -> bool:
    """Whether an option was written on the command line."""
    return context.get_parameter_source(name) == ParameterSource.COMMANDLINE


def refuse_given(context: click.Context, reason: str, *names: str) -> None:
    """Refuse with a ValueError options that were given where they mean nothing."""
    for name in names:
        if is_given(context, name):
            raise ValueError(f"--{name.replace('_', '-')} is {reason}")


FILE, FOLDER = _Path("file"), _Path("folder")
FOLDER_OR_FILE, RUN_OR_FILE = _Path("folder_or_file"), _Path("run_or_file")
COUNT = count()
SEED = count(0, 2**32 - 1)
DEVICES = click.Choice(["auto", "cpu", "cuda", "mps", "xpu"])
DEVICE = option("--device", DEVICES, "auto takes the GPU if there is one.", "auto")
BEAM_SIZE = option(
    "--beam-size", count(1, 1000), "Hypotheses of the search; 1 is greedy search.", 1
)
LENGTH_PENALTY = option(
    "--length-penalty", number(0, 100), "The higher, the longer a beam's texts.", 0.6
)
MAX_LENGTH = option(
    "--max-length",
    COUNT,
    "Tokens after which a translation is cut.  [default: what training needed]",
)
WEIGHTS = option(
    "--weights",
    RUN_OR_FILE,
    "What train wrote, or a folder of MarianMT.  [default: the phrasebook]",
)
