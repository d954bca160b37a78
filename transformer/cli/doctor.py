"""The command that examines somebody else's Transformer."""

import json
from pathlib import Path

import click

from transformer.cli.options import Command
from transformer.doctor.loading import adapter_text, examine_file
from transformer.doctor.subject import KINDS

__all__ = ["doctor"]


@click.command(cls=Command, short_help="Is your own Transformer right?")
@click.argument("target", metavar="FILE:CLASS")
@click.option("--adapter", metavar="FILE", help="Says how to build and call the model.")
@click.option("--kind", type=click.Choice(KINDS), help="What the model is.")
@click.option("--pad-id", type=int, metavar="ID", help="The id of padding.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def doctor(
    target: str,
    adapter: str | None,
    kind: str | None,
    pad_id: int | None,
    as_json: bool,
) -> None:
    """Examine a Transformer from outside: prove bugs, and name their causes.

    FILE:CLASS is FILE.py:Class, FILE.ipynb:Class or package.module:name. Of a file its
    imports, classes, functions and constants are loaded, and no more. What it imports
    and the model are then run, so examine no code that you would not run. Nothing is
    written.

    The exit code is 0 for a sound model, 1 for a bug, and 2 for what could not be
    examined: then an adapter is printed, to fill in.
    """
    given = Path(adapter) if adapter else None
    report, found = examine_file(target, given, kind, pad_id)
    if as_json:
        print(json.dumps(report.to_json(), ensure_ascii=False, indent=2))
    else:
        print(report)
    if report.exit_code == 2 and not as_json:
        print(f"\n{adapter_text(target, target.rpartition(':')[2], found)}")
    raise click.exceptions.Exit(report.exit_code)
