"""Checks for the exercises of chapter 11, What does a translator train on?"""

from collections.abc import Callable
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from bookkit.exercises import (
    Verdict,
    exercise,
    right,
    tensor,
    wrong,
)
from bookkit.forms import form


def _lengths(mask: list[list[bool]]) -> Verdict:
    """The verdict on the padding mask of sentences of 3, 4 and 1 words."""

    def drawn(holds: Callable[[int, int], bool]) -> list[list[bool]]:
        return [[holds(place, n) for place in range(4)] for n in (3, 4, 1)]

    if mask == drawn(lambda place, n: place < n):
        return right(
            "A position holds a word as long as it is smaller than the length."
        )
    if mask == drawn(lambda place, n: place >= n):
        return wrong("It is inverted: True marks words, False marks padding.")
    if mask == drawn(lambda place, n: place <= n):
        return wrong(
            "One position too many in a row: positions count from 0, so a sentence "
            "of 3 words has positions 0, 1 and 2."
        )
    if mask == drawn(lambda place, n: place < n - 1):
        return wrong(
            "One position too few in a row: positions count from 0, so a sentence "
            "of 3 words has positions 0, 1 and 2."
        )
    if mask == drawn(lambda place, n: 3 - place < n):
        return wrong("The padding is on the left; here it comes after the words.")
    given = [[int(word) for word in row] for row in mask]
    return wrong(f"For lengths [3, 4, 1] you gave {given}.")


@exercise
@form(
    "matrix",
    *("3 words", "4 words", "1 word"),
    columns=("0", "1", "2", "3"),
    ticks=True,
    by_hand="By hand first, for lengths of 3, 4 and 1: tick the positions of words.",
    judge=_lengths,
)
def check_lengths(mask_from_lengths: Callable[[Tensor], Any]) -> Verdict:
    """Exercise: the padding mask of a batch, from the lengths of its sentences."""
    lengths = torch.tensor([3, 4, 1])
    expected = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]]).bool()
    answer = tensor(mask_from_lengths(lengths), "a Boolean tensor")
    if answer.shape == (4, 3):
        return wrong(
            "It is transposed: sentences are rows, positions are columns, so the "
            "shape is (batch, longest)."
        )
    if answer.shape == (3, 5) or answer.shape == (3, 3):
        return wrong(
            f"The shape is {tuple(answer.shape)}, for (3, 4): the longest sentence has "
            "4 words, and the positions are 0, 1, 2, 3."
        )
    if answer.shape == (3, 1):
        return wrong(
            "The mask is as wide as the last sentence; the longest may stand anywhere."
        )
    if answer.shape != expected.shape:
        return wrong(f"The shape is {tuple(answer.shape)}; it should be (3, 4).")
    if answer.is_floating_point() or answer.dtype != torch.bool:
        if answer.bool().equal(expected):
            return wrong(
                f"The right positions, but as {answer.dtype}. A mask is Boolean: a "
                "comparison makes one."
            )
        return wrong(f"A mask is Boolean, not {answer.dtype}.")
    if not (verdict := _lengths(answer.tolist())).ok:
        return verdict
    for few in ([2, 2], [4, 2]):
        other = tensor(mask_from_lengths(torch.tensor(few)), "a Boolean tensor")
        full = torch.tensor([[place < n for place in range(max(few))] for n in few])
        if not other.equal(full):
            return wrong(f"Right for lengths [3, 4, 1], but not for {few}.")
    return verdict


@exercise
def check_duplicates(
    without_duplicates: Callable[[list[list[str]], list[list[str]]], Any],
) -> Verdict:
    """Exercise: leave out training sentences that a test sentence nearly equals."""
    test = [
        line.split()
        for line in ("Jane visite Rome en mai", "Paul aime les chats", "Luc dort")
    ]
    kinds = {
        "same": ["Paul aime les chats"],
        "one": [
            "Jane visite Rome en juin",
            "Jane adore Rome en mai",
            "Luc aime les chats",
            "Luc mange",
        ],
        "shorter": ["Jane visite Rome", "Jane visite Rome en"],
        "longer": ["Luc dort en mai", "Paul aime les chats noirs"],
        "two": ["Luc visite Paris en mai", "Paul veut les chiens"],
        "order": [
            "mai en Rome visite Jane",
            "les chats aime Paul",
            "dort Luc",  # a word has moved: without its place, the gap is the same
            "visite Jane Rome en mai",
        ],
        # like no sentence of the test, but like another of training
        "within": ["Marie est gaie", "Marie est lasse", "Marie est lasse"],
        "other": ["Il pleut souvent"],
    }
    sentences = {kind: [one.split() for one in kinds[kind]] for kind in kinds}
    training = [words for part in sentences.values() for words in part]
    answer = list(without_duplicates(training, test))
    if any(isinstance(words, Integral | Tensor) for words in answer):
        return wrong("Return the sentences themselves, lists of words, not numbers.")
    kept = [list(words) for words in answer]
    if any(words not in training for words in kept):
        return wrong("Some of the sentences that you return are not in training.")

    def lost(kind: str) -> bool:
        return any(words not in kept for words in sentences[kind])

    def stays(kind: str) -> bool:
        return any(words in kept for words in sentences[kind])

    if kept == training[: len(test)]:
        return wrong(
            "Each training sentence was compared with one test sentence, as `zip` "
            "pairs them: compare it with all of them."
        )
    if not stays("other"):
        if stays("same"):
            return wrong("Swapped: you return what should be left out.")
        return wrong("A sentence that shares no word with the test may stay.")
    if stays("one"):
        if stays("same"):
            return wrong("Sentences that stand in the test set are still in training.")
        if kept == [words for words in training if words not in test]:
            return wrong(
                "Only equal sentences are removed. Remove those that differ from a "
                "test sentence in a single word, too: they leak it nearly as well."
            )
        left = next(words for words in sentences["one"] if words in kept)
        return wrong(
            "Some sentences that differ from a test sentence in a single word are "
            f"still there: {' '.join(left)}."
        )
    if stays("same"):
        return wrong(
            "A test sentence itself is still in training: remove sentences that differ "
            "in no word, too."
        )
    if lost("shorter") or lost("longer"):
        return wrong(
            "A sentence may stay if the test sentences like it have more or fewer "
            "words. `zip` stops at the end of the shorter one, and a set of words does "
            "not keep the length: compare the lengths first."
        )
    if lost("two"):
        return wrong("Sentences that differ in two words may stay.")
    if lost("order"):
        return wrong(
            "The same words in another order differ in several places. Compare "
            "position by position, not sets of words."
        )
    if lost("within"):
        return wrong(
            "A sentence may stay if only another training sentence is like it: compare "
            "with the test sentences alone."
        )
    if len(kept) > sum(words in kept for words in training):
        return wrong("You return some sentences more often than training has them.")
    if len(kept) < sum(words in kept for words in training):
        return wrong("You also removed a sentence that stands twice in training.")
    return right(
        "What stays differs from every test sentence of its length in at least two "
        "words."
    )


@exercise
def check_tokens(longest_first: Callable[[list[int], int], Any]) -> Verdict:
    """Exercise: token batches from the longest sentences down."""
    lengths, budget = [3, 9, 2, 6, 4, 9, 3, 5, 2, 6, 12, 1], 12
    answer = longest_first(list(lengths), budget)
    batches = [[int(index) for index in batch] for batch in answer]
    flat = [index for batch in batches for index in batch]
    if sorted(flat) != list(range(len(lengths))):
        if sorted(flat) == sorted(lengths):
            return wrong("These are lengths. Return the sentences' indices.")
        missing = set(range(len(lengths))) - set(flat)
        if missing and len(set(flat)) == len(flat) and set(flat) < {*range(12)}:
            if not flat:
                return wrong("There is no batch: is each appended?")
            kept = [lengths[i] for i in flat]
            if (
                kept == sorted(kept)[::-1]
                and max(lengths[i] for i in missing) > kept[-1]
            ):
                return wrong(
                    "A sentence that did not fit is dropped: it must begin the next "
                    "batch."
                )
            return wrong(
                f"The sentences {sorted(missing)} are in no batch: is the last batch "
                "forgotten?"
            )
        return wrong("Every index should come exactly once.")
    if not all(batches):
        return wrong("One of the batches is empty.")
    best = [[12], [9], [9], [6, 6], [5, 4], [3, 3, 2, 2], [1]]
    for order in sorted(lengths), sorted(lengths, reverse=True):
        if [[order[index] for index in batch] for batch in batches] == best:
            return wrong(
                "These are places in your sorted list: return each sentence's index "
                "in `lengths`."
            )
    widths = [max(lengths[index] for index in batch) for batch in batches]
    for batch, width in zip(batches, widths, strict=True):
        words = sum(lengths[index] for index in batch)
        if len(batch) * width > budget:
            if words <= budget:
                return wrong(
                    f"A batch of lengths {[lengths[i] for i in batch]} has "
                    f"{words} words, but {len(batch)} × {width} = "
                    f"{len(batch) * width} positions, more than {budget}. Padding "
                    "counts too: multiply by the longest."
                )
            return wrong(
                f"A batch has {len(batch)} × {width} = {len(batch) * width} positions, "
                f"more than {budget}. Count the sentence to be added, too, and "
                "multiply by the longest, which is the first of the batch, not the one "
                "to be added."
            )
    if widths == sorted(widths) != sorted(widths, reverse=True):
        return wrong("The shortest come first. Here the longest should.")
    if widths != sorted(widths, reverse=True):
        return wrong("A batch is wider than the one before it: sort by length first.")
    if len(batches) > len(best):
        return wrong(
            f"{len(batches)} batches, where {len(best)} are enough: a batch may have "
            f"exactly {budget} positions, and takes sentences until the next would be "
            "too many."
        )
    positions = sum(len(b) * w for b, w in zip(batches, widths, strict=True))
    enough = sum(len(group) * max(group) for group in best)
    if positions > enough:
        return wrong(
            f"{positions} positions, where {enough} are enough: fill from the longest "
            "sentence down. Filling from the shortest up and reversing the batches is "
            "not the same."
        )
    found = [[lengths[index] for index in batch] for batch in batches]
    for batch, full in zip(found, best, strict=True):
        if len(batch) < len(full):
            return wrong(
                f"The batch of lengths {batch} is closed too early: {full} has "
                f"{len(full) * full[0]} positions, and {budget} are allowed."
            )
    return right(
        "The first batch is the widest: a sentence too long for the memory shows first."
    )
