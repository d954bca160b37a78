"""A book to train on: *Alice's Adventures in Wonderland*, in the public domain.

Lewis Carroll's text of 1865, as the Canterbury corpus has it (`alice29.txt`, Project
Gutenberg's Millennium Fulcrum Edition 2.9) and the source archive of the package Brotli
1.2.1 ships it (`tests/testdata`). Here each paragraph is one line; the title page and
the last line are left out.
"""

from pathlib import Path

ALICE = Path(__file__).with_name("alice.txt")


def alice() -> tuple[str, str]:
    """Chapters I to X, to train on, and XI and XII, which are held out."""
    text = ALICE.read_text(encoding="utf-8")
    start = text.index("CHAPTER XI\n")
    return text[:start], text[start:]
