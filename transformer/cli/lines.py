"""Text in and out: lines that are read as they come, messages of one line."""

import codecs
import io
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

__all__ = [
    "LONGEST_LINE",
    "sentences_of",
    "read_lines",
    "require_whole",
    "one_line",
    "say",
]

LONGEST_LINE = 100_000  # characters; of what is beyond them, one is kept


def sentences_of(arguments: Sequence[str]) -> list[str]:
    """Arguments as sentences: one with a space is its own, words in a row are one."""
    groups = groupby(arguments, lambda argument: len(argument.split()) > 1)
    return [
        sentence
        for whole, some in groups
        for sentence in (some if whole else [" ".join(some)])
    ]


def read_lines(file: str | None) -> Iterator[list[str]]:
    """The lines of a file or of standard input, as many at a time as are there (64).

    So a program that waits for each answer gets it, and a file is read in batches. Of
    a line that is too long the beginning comes, which `require_whole` refuses.
    """
    stream: Any = sys.stdin.buffer if file is None else open(file, "rb")  # noqa: SIM115
    utf8 = codecs.getincrementaldecoder("utf-8-sig")()
    decoder = io.IncrementalNewlineDecoder(utf8, translate=True)  # \r\n and \r too
    rest, more = "", True
    try:
        while more:
            data = stream.read1(1 << 16)  # what is there, or else the next that comes
            more = bool(data)
            *lines, rest = (rest + decoder.decode(data, not more)).split("\n")
            lines = [line[: LONGEST_LINE + 1] for line in lines]
            rest = rest[: LONGEST_LINE + 1]
            lines += [rest] if rest and not more else []
            for start in range(0, len(lines), 64):
                yield lines[start : start + 64]
    except UnicodeDecodeError:
        raise ValueError(f"{file or 'standard input'} is not UTF-8 text") from None
    finally:
        if file is not None:
            stream.close()


def require_whole(line: str) -> None:
    """Refuse a line whose end `read_lines` left out.

    Raises:
        ValueError: naming the most characters that a line may have.
    """
    if len(line) > LONGEST_LINE:
        raise ValueError(
            f"a line may have {LONGEST_LINE:,} characters, this one has more"
        )


def one_line(message: str) -> str:
    """A message that may hold what was typed: nothing in it moves the cursor."""
    shown = (c if c.isprintable() else repr(c)[1:-1] for c in message[:10_000])
    line = "".join(shown)
    return line if len(line) <= 400 else f"{line[:300]} … {line[-90:]}"


def say(message: str, end: str = "\n") -> None:
    """Write beside the output, not in it; where nobody reads on, work goes on."""
    try:
        print(message, end=end, file=sys.stderr, flush=True)
    except BrokenPipeError:  # as in `train 2>&1 | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
