"""What Multi30k's words and subwords are like: counts for chapter 16.

    python benchmarks/multi30k.py --data FOLDER

Only the training and validation sentences are read. Writes results/multi30k.json.
"""

import argparse
import datetime
import platform
from collections import Counter
from importlib.metadata import version

from race import RESULTS, keep

from transformer.text.multi30k import SentencePair, moses_style, read_pairs
from transformer.text.subwords import (
    SUBWORD_SYMBOLS,
    UNKNOWN_ID,
    SubwordTokenizer,
)
from transformer.training.trainer import PRESETS


def by_size(
    joint: list[str],
    train: list[SentencePair],
    val: list[SentencePair],
    vocab_size: int,
) -> dict[str, float]:
    """How long German sentences are in so many subwords, and how rare these are."""
    subwords = SubwordTokenizer.train(joint, vocab_size, "tok")
    seen = Counter(i for pair in train for side in pair for i in subwords.encode(side))
    words = sum(len(target.split()) for _, target in val)
    pieces = sum(len(subwords.encode(target)) for _, target in val)
    rare = sum(seen[i] < 10 for i in range(len(SUBWORD_SYMBOLS), vocab_size))
    return {
        "types": subwords.vocab_size,
        "pieces_a_word": round(pieces / words, 4),
        "seen_under_ten_times": round(rare / subwords.vocab_size, 4),
    }


BANDS = ((0, 0), (1, 9), (10, 99), (100, 999), (1000, 10**9))


def by_chance(train: list[SentencePair], val: list[SentencePair]) -> list[int]:
    """How many words of each reference another reference has, by their frequency.

    The other is the next longer one. The bands are those of translation.py: what a
    translation of another sentence would find.
    """
    counts = Counter(word for _, target in train for word in target.split())
    references = sorted((target.split() for _, target in val), key=len)
    found = []
    for low, high in BANDS:
        hits = 0
        for one, other in zip(
            references, [*references[1:], references[0]], strict=True
        ):
            some = Counter(word for word in one if low <= counts[word] <= high)
            hits += (some & Counter(other)).total()
        found.append(hits)
    return found


def agrees(folder: str, language: str) -> float:
    """For which share of the validation sentences `moses_style` finds the tok text."""
    other = "de" if language == "en" else "en"
    raw, tok = (
        read_pairs(folder, text, "val", language, other) for text in ("raw", "tok")
    )
    same = [
        moses_style(written) == cut
        for (written, _), (cut, _) in zip(raw, tok, strict=True)
    ]
    return sum(same) / len(same)


def main() -> None:
    """Count, and write what was counted."""
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--data", required=True, help="where Multi30k lies")
    folder = ask.parse_args().data
    train, val = (
        read_pairs(folder, "tok", split, "en", "de") for split in ("train", "val")
    )
    size = PRESETS["tiny"].vocab_size
    joint = [side for pair in train for side in pair]
    subwords = SubwordTokenizer.train(joint, size, "tok")
    sides = {}
    for side, language in enumerate(("en", "de")):
        words = Counter(word for pair in train for word in pair[side].split())
        new = [w for pair in val for w in pair[side].split() if w not in words]
        ids = [subwords.encode(pair[side]) for pair in val]
        sides[language] = {
            "words": sum(words.values()),
            "types": len(words),
            "once": sum(count == 1 for count in words.values()),
            "validation_words": sum(len(pair[side].split()) for pair in val),
            "validation_words_new": len(new),
            "validation_pieces": sum(map(len, ids)),
            "validation_pieces_unknown": sum(one.count(UNKNOWN_ID) for one in ids),
            "longest_new": {
                word: subwords.pieces(word)
                for word in sorted(set(new), key=lambda w: (-len(w), w))[:8]
            },
        }
    agreeing = {language: agrees(folder, language) for language in ("en", "de", "fr")}
    pieces = [len(subwords.encode(pair[1])) + 1 for pair in train]
    sizes = (200, 500, 1000, 2000, 5000, size, 20_000)
    by_types = [by_size(joint, train, val, each) for each in sizes]
    found = {
        "command": "python benchmarks/multi30k.py --data FOLDER",
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "tokenizers": version("tokenizers"),
        "pairs": {"train": len(train), "val": len(val)},
        "subwords": subwords.vocab_size,
        "by_types": by_types,
        "targets_an_epoch": sum(pieces),
        "longest_target": max(pieces),
        "sides": sides,
        "as_tokenized_agrees": agreeing,
        "found_by_chance": by_chance(train, val),
    }
    keep(RESULTS / "multi30k.json", found)


if __name__ == "__main__":
    main()
