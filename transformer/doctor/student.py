"""A student's file, examined: loaded, its sizes guessed or read from an adapter.

Made from book/workshop/examination.md: edit the chapter, not this file.
"""

from pathlib import Path
from typing import Any

from transformer.doctor.examine import examine
from transformer.doctor.findings import Report
from transformer.doctor.loading import Guess, guess, load, read_adapter
from transformer.doctor.subject import KINDS, Refused

__all__ = ["examine_file"]


def examine_file(
    target: str,
    adapter: Path | None = None,
    kind: str | None = None,
    pad_id: int | None = None,
    seconds: float = 60.0,
) -> tuple[Report, Guess | None]:
    """Examine `FILE.py:Class`, `FILE.ipynb:Class` or `package.module:name`.

    Without an adapter the arguments' names say what they are; what they do not say is
    in the guess that is returned beside the report.

    Raises:
        Refused: in one line, for a file, a class or an adapter that cannot be read.
    """
    if kind is not None and kind not in KINDS:
        raise Refused(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    with load(target) as (space, name):
        found: Guess | None = None
        said: dict[str, Any] = {}
        if adapter is not None:
            said = read_adapter(adapter, space)
        if "build" not in said and "model" not in said:
            if not callable(space[name]):
                raise Refused(f"{name} is no class and no function")
            try:
                found = guess(space, name)
            except (TypeError, ValueError) as error:
                raise Refused(f"{name}: {error}") from None
            if found.unknown and "call" not in said:
                report = Report(name)
                unknown = ", ".join(found.unknown)
                report.untested["all"] = f"unknown: {unknown}; an adapter can say"
                return report, found
            guessed = {name: getattr(found, name) for name in ("build", "call", "kind")}
            said = guessed | {"pad_id": found.pad_id} | said
        if kind is not None:
            said["kind"] = kind
        if pad_id is not None:
            said["pad_id"] = pad_id
        report = examine(**said, name=name, seconds=seconds)
    return report, found
