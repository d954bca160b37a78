"""Text in and out: lines that are read as they come, messages of one line."""

import codecs
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from transformer.text import multi30k

MAX_LINE_LENGTH = 100_000  # characters


def read_lines(file: Path | None) -> Iterator[list[str]]:
    r"""The lines of a file, or those of standard input as they come, 64 at most.

    So a program that writes a line and waits for the answer gets it. Lines end in \n or
    \r\n, or in \r where there is no \n at all. Of a line that is too long only the
    beginning may come, which `require_complete_line` refuses.

    Raises:
        ValueError: for what is not UTF-8 text, and a file that cannot be read.
    """
    if file is not None:
        lines = multi30k.read_lines(file)
        yield from _batches(lines if lines != [""] else [])
        return
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    text, more, end = "", True, "\r"
    try:
        while more:
            data = sys.stdin.buffer.read1(1 << 16)  # type: ignore[union-attr]
            more = bool(data)
            text += decoder.decode(data, not more)
            if "\n" in text:
                end = "\n"
            if end == "\n" or not more:
                *lines, text = text.split(end)
                lines += [text] if text and not more else []
                yield from _batches(
                    [line.removesuffix("\r").replace("\r", " ") for line in lines]
                )
            text = text[: MAX_LINE_LENGTH + 1]
    except UnicodeDecodeError:
        raise ValueError("standard input is not UTF-8 text") from None


def _batches(lines: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(lines), 64):
        yield [line[: MAX_LINE_LENGTH + 1] for line in lines[start : start + 64]]


def require_complete_line(line: str) -> None:
    """Refuse a line whose end `read_lines` left out."""
    if len(line) > MAX_LINE_LENGTH:
        raise ValueError(
            f"a line may have {MAX_LINE_LENGTH:,} characters, this one has more"
        )


def printable(message: str) -> str:
    """The message as one line in which no character moves the cursor."""
    shown = (c if c.isprintable() else repr(c)[1:-1] for c in message[:10_000])
    line = "".join(shown)
    return line if len(line) <= 400 else f"{line[:300]} … {line[-90:]}"


def print_error(message: str) -> None:
    """Print a line to standard error; where it is closed or nobody reads it, go on."""
    if sys.stderr is not None:
        with contextlib.suppress(BrokenPipeError):  # as in `train 2>&1 | head`
            print(printable(message), file=sys.stderr, flush=True)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether somebody sits at this stream."""
    return stream is not None and stream.isatty()


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Make the folder of a file, and name the file if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"cannot write {path}: {reason}") from None
