"""Anything may be typed at the command line: an answer, or one clear line."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from transformer.cli import main
from transformer.decoding.translator import Translator

pytestmark = pytest.mark.plain  # no shapes here, and many calls
ROOT = Path(__file__).resolve().parent.parent
TRANSLATOR = Translator.phrasebook()

odd = st.sampled_from(
    [
        *("\0", "\x1b[2J", "\x7f", "\x9b", "\r", "\t", "\u2028", "\ufeff", "\u200b"),
        *(
            "🙂",
            "👩‍👩‍👧",
            "\u202e",
            "שלום",
            "مرحبا",
            "日本語",
            "e\u0301",
            "ﬁ",
            "İ",
            "ß",
        ),
        *(
            "'",
            "’",
            "''",
            ".",
            ",",
            " ",
            "--",
            "-",
            "\\",
            '"',
            "%s",
            "{}",
            "$(ls)",
            "<pad>",
        ),
        *("Jane", "visite", "l'Afrique", "septembre", "chat", "xyz", "9" * 40),
        *("\ud800", "\udfff"),
    ]
)
texts = st.one_of(st.text(max_size=30), st.lists(odd, max_size=12).map(" ".join))
typed = texts.map(lambda text: text.encode("utf-8", "surrogatepass"))


@pytest.fixture(autouse=True)
def one_translator(monkeypatch):
    """The shipped translator, read once."""
    monkeypatch.setattr(Translator, "phrasebook", lambda: TRANSLATOR)


def run(*arguments, stdin=b""):
    """Exit code, output and errors of `main`, as a terminal would take them."""
    streams = sys.stdin, sys.stdout, sys.stderr
    out, errors = (  # as `python -m transformer` makes them
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
        for _ in range(2)
    )
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin), encoding="ascii")
    sys.stdout, sys.stderr = out, errors
    try:
        code = main(list(arguments))
    except SystemExit as leaving:
        code = leaving.code
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams
    for stream in (out, errors):
        stream.flush()
    return code, *(s.buffer.getvalue().decode("utf-8") for s in (out, errors))


def one_clear_line(errors: str) -> None:
    assert errors.startswith("python -m transformer"), errors
    assert errors.endswith("\n")
    line = errors[:-1]
    assert line.isprintable(), "what is typed must not reach the terminal raw"
    assert "Traceback" not in line
    assert len(line) < 500


@settings(max_examples=60)
@given(text=st.one_of(texts, st.text(st.characters(), max_size=20)))
@example(text="")
@example(text=" \t ")
@example(text="🙂" * 50)
@example(text="\u202eenaJ etisiv")
@example(text="\ud83d")
@example(text="’" * 100)
@example(text="Jane " * 32)
@example(text="Jane " * 100_000)
@example(text="x" * 1_000_000)
def test_a_sentence_is_answered_or_refused_in_one_line(text):
    code, output, errors = run("translate", "--", text)
    if code == 0:
        if errors:  # the model repeats itself, to the limit
            one_clear_line(errors)
            assert "1 translation was cut" in errors
        assert output.count("\n") == 1
        assert output.rstrip("\n").isprintable()
    else:
        assert (code, output) == (2, "")
        one_clear_line(errors)


@settings(max_examples=30)
@given(arguments=st.lists(texts, max_size=4))
@example(arguments=["--beam-size", "٣", "Jane"])
@example(arguments=["--beam-size", "9" * 5000, "Jane"])
@example(arguments=["--length-penalty", "1e999", "Jane"])
@example(arguments=["--weights", "\0", "Jane"])
@example(arguments=["--weights", "x" * 5000, "Jane"])
@example(arguments=["--weights", "🙂", "Jane"])
@example(arguments=["--weights=\ud800", "Jane"])
@example(arguments=["--\x1b[2J", "Jane"])
@example(arguments=["--\x1b]0;title\x07"])
@example(arguments=["caf\udcff"])
def test_any_arguments_are_taken_or_refused_in_one_line(arguments):
    code, output, errors = run("translate", *arguments)
    if code:
        assert (code, output) == (2, "")
        one_clear_line(errors)


@settings(max_examples=30)
@given(stdin=st.one_of(st.binary(max_size=40), typed))
@example(stdin=b"")
@example(stdin=b"\xff")
@example(stdin=b"\n\n\n")
@example(stdin=b"\xef\xbb\xbfJane visite Rome\n")
@example(stdin=b"Jane visite Rome\r\nJane visite Rome")
@example(stdin=b"Jane " * 100_000)
def test_standard_input_is_answered_or_refused_in_one_line(stdin):
    code, output, errors = run("translate", stdin=stdin)
    answers = output.splitlines()
    if code == 2:  # no text
        one_clear_line(errors)
    else:
        text = stdin.decode("utf-8-sig")
        *lines, rest = text.split("\n" if "\n" in text else "\r")
        assert output.count("\n") == len(lines) + bool(rest)
        assert (code, errors != "") in ((0, False), (1, True))
        for line in errors.splitlines(keepends=True):
            one_clear_line(line)
    assert all(answer.isprintable() for answer in answers)


def test_a_real_process_ends_in_one_line():
    """For what is no text and would do something to the terminal."""
    done = subprocess.run(
        [sys.executable, "-m", "transformer", "translate", b"--\x1b]0;caf\xff\x07"],
        input=b"",
        capture_output=True,
        timeout=240,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, b"")
    one_clear_line(done.stderr.decode())
