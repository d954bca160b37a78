"""Parallel corpora: fetching Multi30k, reading sentence pairs, Moses-style text.

Made from book/workshop/corpus.md: edit the chapter, not this file.
"""

import gzip
import hashlib
import html
import io
import os
import re
import unicodedata
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformer.checks import InvalidValue, optional_import

__all__ = [
    "MULTI30K_URL",
    "MULTI30K_SHA256",
    "SPLITS",
    "TEXTS",
    "require_text",
    "multi30k_name",
    "fetch_multi30k",
    "MAX_FILE_BYTES",
    "read_lines",
    "find_text",
    "SentencePair",
    "read_pairs",
    "moses_style",
    "undo_moses_style",
]


MULTI30K_URL = (
    "https://raw.githubusercontent.com/multi30k/dataset/"
    "66b36a880c0a217415dbf79c5778e08ffdbf48be/data/task1"
)
MULTI30K_SHA256 = {
    "raw/test.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
    "raw/test.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "raw/test.fr": "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6",
    "raw/train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "raw/train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "raw/train.fr": "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
    "raw/val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "raw/val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "raw/val.fr": "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
    "tok/test.de": "c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4",
    "tok/test.en": "5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2",
    "tok/test.fr": "1463bd5960f9bfe098ec3cd752d3df0c49c84dc646fb518964a29232658cd836",
    "tok/train.de": "cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505",
    "tok/train.en": "08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119",
    "tok/train.fr": "8fa41bb718412bcb7c5dfa58603842810a01543eae86a51279f9886b901266e1",
    "tok/val.de": "97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00",
    "tok/val.en": "46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec",
    "tok/val.fr": "b303e301aa21fe7822a846b2b3fb2d5a1121ec807cd5b1d006fb7b2b5507168a",
}
SPLITS = {"train": "train", "val": "val", "test": "test_2016_flickr"}
TEXTS = ("tok", "raw")  # lowercased and tokenised sentences, or as they were written
MAX_FILE_BYTES = 1 << 30  # unpacked: a small file may hold a gigabyte of zeros


def require_text(text: str) -> None:
    """Refuse another kind of text than "tok" and "raw".

    Raises:
        ValueError: naming it.
    """
    if text not in TEXTS:
        raise InvalidValue(f"text must be {' or '.join(TEXTS)}, got {text!r:.40}")


def multi30k_name(text: str, split: str, language: str) -> str:
    """The path of a file of Multi30k: raw/train.de or tok/train.lc.norm.tok.de.

    Raises:
        ValueError: for a text, a split or a language code that there cannot be.
    """
    require_text(text)
    if split not in SPLITS:
        raise InvalidValue(
            f"split must be one of {', '.join(SPLITS)}, got {split!r:.40}"
        )
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,40}", language):
        raise InvalidValue(
            f"language must be a code, like en or pt-BR, got {language!r}"
        )
    middle = ".lc.norm.tok" if text == "tok" else ""
    return f"{text}/{SPLITS[split]}{middle}.{language}"


def fetch_multi30k(
    folder: str | os.PathLike[str],
    text: str = "tok",
    languages: Sequence[str] = ("en", "de"),
    progressbar: Callable[[str], Any] | None = None,
    base_url: str = MULTI30K_URL,
) -> Path:
    """Multi30k (Elliott et al. 2016): download what a folder lacks of it.

    A file gets its name only when its SHA-256 is the expected one; one that is there is
    not read. `progressbar` makes a bar like tqdm's for each file, from the file's name.

    Raises:
        ValueError: for a language that is not there; when a file cannot be had, or is
            not the one expected: which, why, and where to put it by hand; when files
            are lacking and pooch is not installed.
    """
    folder = Path(folder)
    for language in languages:
        multi30k_name(text, "train", language)
        if f"{text}/train.{language}" not in MULTI30K_SHA256:
            raise InvalidValue(
                f"Multi30k has {text} text in de, en, fr, got {language}"
            )
    for split in SPLITS:
        for language in languages:
            name = multi30k_name(text, split, language)
            if not any((folder / f"{name}{end}").is_file() for end in ("", ".gz")):
                url = f"{base_url}/{name}" + (".gz" if text == "raw" else "")
                sha256 = MULTI30K_SHA256[f"{text}/{split}.{language}"]
                _fetch(url, folder / name, sha256, progressbar)
    return folder


def _fetch(
    url: str, path: Path, sha256: str, progressbar: Callable[[str], Any] | None
) -> None:
    """Download one file, unpack it, and keep it if it is the expected one."""
    pooch = optional_import("pooch")
    try:
        bar = progressbar(path.name) if progressbar else False
        received = _Bounded()
        pooch.HTTPDownloader(progressbar=bar, timeout=30)(url, received, None)
        received.seek(0)
        data = _read(received, url.endswith(".gz"))
        if hashlib.sha256(data).hexdigest() != sha256:
            raise InvalidValue(
                f"it is not the file expected, with SHA-256 {sha256[:12]}…"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        part.write_bytes(data)
        part.replace(path)
        return
    except (OSError, EOFError, ValueError, zlib.error) as error:
        first = next(iter(error.args), "")
        reason = " ".join((first if isinstance(first, str) else str(error)).split())
    reason = re.sub(r'.*port=\d+\): | for url: .*|"?\)\)$', "", reason)
    # Raised out here, because the error that was caught keeps its connection open.
    raise InvalidValue(
        f"cannot fetch {url}: {reason}; download it yourself into {path.parent}"
    )


class _Bounded(io.BytesIO):
    """Memory for a download, which ends when it is too long."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > MAX_FILE_BYTES:
            raise InvalidValue(f"it has more than {MAX_FILE_BYTES:,} bytes")
        return super().write(data)


def _read(file: io.BufferedIOBase, packed: bool) -> bytes:
    """The bytes of a file, unpacked, if they are not too many."""
    with gzip.GzipFile(fileobj=file) if packed else file as reader:
        data = reader.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise InvalidValue(f"it has more than {MAX_FILE_BYTES:,} bytes")
    return data


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    r"""The lines of a text file; one whose name ends in .gz is unpacked.

    Lines end in \\n or \\r\\n, or in \\r where a file has no \\n at all. A carriage
    return inside a line is white space and becomes a space. A byte order mark is
    dropped.

    Raises:
        ValueError: for a file that is no gzip file, no UTF-8 text, or too long.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            text = _read(file, path.suffix == ".gz").decode("utf-8-sig")
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise InvalidValue(f"{path} cannot be read as text: {error}") from None
    text = text.replace("\r\n", "\n")
    text = text.replace("\r", " " if "\n" in text else "\n")
    return text.removesuffix("\n").split("\n")


def find_text(
    folder: str | os.PathLike[str], text: str, split: str, language: str
) -> Path:
    """The file of one language of one split, under Multi30k's name or a plain one.

    Raises:
        ValueError: naming the file that is missing, a text or a split that there is
            not, or a code that no language has.
    """
    folder = Path(folder)
    name = multi30k_name(text, split, language)
    plain = f"{split}.{language}"
    for one in (name, name.partition("/")[2], f"{text}/{plain}", plain):
        for path in (folder / one, folder / f"{one}.gz"):
            if path.is_file():
                return path
    raise InvalidValue(f"{folder} has neither {name}, nor {plain}, packed (.gz) or not")


SentencePair = tuple[str, str]  # a source sentence and its translation


def read_pairs(
    folder: str | os.PathLike[str], text: str, split: str, source: str, target: str
) -> list[SentencePair]:
    """The sentence pairs of a split: line n of one file goes with line n of the other.

    Pairs of which one side is blank are left out.

    Raises:
        ValueError: for a file that is missing or unreadable, numbers of lines that
            differ, or no pairs at all.
    """
    paths = [find_text(folder, text, split, side) for side in (source, target)]
    sides = [read_lines(path) for path in paths]
    if len(sides[0]) != len(sides[1]):
        counts = " and ".join(f"{len(side):,}" for side in sides)
        raise InvalidValue(
            f"{paths[0]} and {paths[1]} should pair, but have {counts} lines"
        )
    pairs = [(a.strip(), b.strip()) for a, b in zip(*sides, strict=True)]
    pairs = [pair for pair in pairs if all(pair)]
    if not pairs:
        raise InvalidValue(f"{paths[0]} holds no sentences")
    return pairs


_PLAIN_SIGNS = str.maketrans(
    dict.fromkeys("’‘", "'")
    | dict.fromkeys("“”„«»", '"')
    | {"–": "-", "—": " - ", "…": "...", "\ufeff": ""}
)
_ESCAPED = {
    "&": "&amp;",
    "|": "&#124;",
    "<": "&lt;",
    ">": "&gt;",
    "'": "&apos;",
    '"': "&quot;",
    "[": "&#91;",
    "]": "&#93;",
}
_ENTITY = r"(?:amp|apos|quot|lt|gt|#91|#93|#124);"
_OTHER_ENTITY = re.compile(rf"&(?!{_ENTITY})#?\w+;")
_SIGNS = re.compile(
    rf"(?P<known>&{_ENTITY})"
    r"|(?P<elided>(?<![\w'])(?:[cdjlmnst]|[a-z]*qu|aujourd|entr)')(?=\s?\w)"
    r"|(?P<apostrophe>')"
    r"|(?P<apart>\.{2,}|(?<!\.)\.(?=\s*$)|(?<!\d),|,(?!\d)|[^\w\s'.,-])"
)


def moses_style(sentence: str) -> str:
    """Moses-style text, as in Multi30k's tok files: lowercased, punctuation set apart.

    Quotation marks and dashes become plain ones. An apostrophe goes with what follows
    (man 's), or in a French elision with what it ends (l' eau). A full stop is set
    apart at the end of the sentence only, for elsewhere it may belong to a word
    (dr. no). Signs are escaped as Moses does (&apos;). Text in this style already is
    left as it is, unless a word with a full stop of its own ends it (5 sec.).
    """
    text = _OTHER_ENTITY.sub(lambda match: html.unescape(match[0]), sentence)
    text = unicodedata.normalize("NFC", text.lower().translate(_PLAIN_SIGNS))
    return " ".join(_SIGNS.sub(_set_apart, text).split())


def _set_apart(match: re.Match[str]) -> str:
    """What a sign becomes, with the spaces that it needs."""
    sign = match[0]
    if match["known"]:
        return sign if sign == "&apos;" else f" {sign} "
    if match["elided"]:
        return f"{sign[:-1]}&apos; "
    if match["apostrophe"]:
        return " &apos;"
    if unicodedata.category(sign[0]) in ("Mn", "Mc", "Cf"):
        return sign  # part of a letter, as the vowel signs of Hindi are
    return f" {_ESCAPED.get(sign, sign)} "


def undo_moses_style(sentence: str, language: str = "en") -> str:
    """Moses-style text as people write it, but for its capitals.

    Punctuation goes back to the words of its `language`, and &apos; becomes an
    apostrophe, by the rules of the library sacremoses.

    Raises:
        ImportError: where sacremoses is not installed.
    """
    sacremoses = optional_import("sacremoses")
    detokenizer = sacremoses.MosesDetokenizer(lang=language)
    return str(detokenizer.detokenize(sentence.split())).strip()
