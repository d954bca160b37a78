"""Which chapters the book has, and where each one's notebook lies."""

from pathlib import Path

import jupytext
from jupytext.myst import MystMetadataParsingError
from nbformat import NotebookNode


class ChapterError(ValueError):
    """A chapter breaks a rule of the literate pipeline."""


def chapters(root: Path) -> list[Path]:
    """Chapters in reading order, then the workshop's, then the recipes."""
    book = root / "book"
    numbered = sorted(book.glob("[0-9][0-9]-*.md"))
    recipes = sorted(book.glob("how-to.md"))
    return numbered + sorted((book / "workshop").glob("*.md")) + recipes


def book_of(chapter: Path) -> Path:
    """The folder `book` that a chapter lies in, directly or in its workshop."""
    folder = chapter.parent
    return folder.parent if folder.name == "workshop" else folder


def stored(chapter: Path) -> Path:
    """Where the chapter's notebook lies: `book/notebooks/`, and `workshop/` in it."""
    book = book_of(chapter)
    return book / "notebooks" / chapter.relative_to(book).with_suffix(".ipynb")


def read(chapter: Path) -> NotebookNode:
    """The chapter as a notebook without outputs.

    Raises:
        ChapterError: when a cell's options are no YAML.
    """
    try:
        return jupytext.read(chapter, fmt="md:myst")
    except MystMetadataParsingError as error:
        raise ChapterError(f"{chapter}: {' '.join(str(error).split())}") from None


def called(name: str, chapter: Path) -> bool:
    """Whether a chapter's number, stem or path is meant: 12, training, 12-training."""
    stem = Path(name).stem
    return stem in (chapter.stem, chapter.stem[:2], chapter.stem[3:])


def named(root: Path, names: list[str]) -> list[Path]:
    """The chapters called so; all of them where no name is given.

    Raises:
        ChapterError: for a name that no chapter has.
    """
    known = chapters(root)
    for name in names:
        if not any(called(name, chapter) for chapter in known):
            raise ChapterError(f"no chapter is called {name!r}")
    return [c for c in known if not names or any(called(name, c) for name in names)]
