"""`python -m transformer`: the command line as a process of its own."""

import io
import os
import sys
from typing import TextIO

from transformer.cli import main


def run() -> int:
    """Run a command with the streams of this process, and return its exit code."""
    # The name of a file need not be UTF-8, and may be printed; input must be.
    for stream, errors in (
        (sys.stdin, "strict"),
        (sys.stdout, "backslashreplace"),
        (sys.stderr, "backslashreplace"),
    ):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)
    if sys.stderr is None:  # it was closed
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    code = main()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            flush(stream)
    return code


def flush(stream: TextIO) -> None:
    """Write what is left, unless the reader has gone, as after `words | head`."""
    try:
        stream.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


raise SystemExit(run())
