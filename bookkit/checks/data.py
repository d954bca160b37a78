"""Checks for the exercises of chapter 11, What does a translator read?"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from bookkit.exercises import (
    Verdict,
    exercise,
    number,
    right,
    wrong,
)

PAD, BOS, EOS = 0, 1, 2


@exercise
def check_shift(shift: Callable[[list[list[int]]], Any]) -> Verdict:
    """Exercise: given and wanted, two rectangles shifted by one."""
    answer = shift([[7, 8, 9], [5], [6, 4]])
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        return wrong("Two tensors are wanted, `given` and `wanted`, as a pair.")
    if not all(isinstance(part, Tensor) for part in answer):
        return wrong("Both parts should be tensors of ids: `pad` makes them.")
    given, wanted = (part.tolist() for part in answer)
    right_given = [[BOS, 7, 8, 9], [BOS, 5, EOS, PAD], [BOS, 6, 4, EOS]]
    right_wanted = [[7, 8, 9, EOS], [5, EOS, PAD, PAD], [6, 4, EOS, PAD]]
    whole = [[BOS, 7, 8, 9, EOS], [BOS, 5, EOS, PAD, PAD], [BOS, 6, 4, EOS, PAD]]
    no_end = [[BOS, 7, 8, 9], [BOS, 5, PAD, PAD], [BOS, 6, 4, PAD]]
    if given in (right_given, no_end) and wanted == right_wanted:
        single = shift([[3]])
        if [part.tolist() for part in single] == [[[BOS, 3]], [[3, EOS]]]:
            return right("Each word is wanted one place before it is given.")
        return wrong("Right for three sentences, but not for one of a single word.")
    if (given, wanted) in ((right_wanted, right_given), (right_wanted, no_end)):
        return wrong("`given` and `wanted` are swapped: bos is given, eos is wanted.")
    if given == wanted:
        return wrong(
            "`given` and `wanted` are the same: the decoder is handed the very word "
            "that it should say, and learns to copy. Shift by one."
        )
    if answer[0].shape != answer[1].shape:
        shapes = f"{tuple(answer[0].shape)} and {tuple(answer[1].shape)}"
        return wrong(f"Both rectangles should have one shape, got {shapes}.")
    if not any(EOS in row for row in wanted):
        return wrong("No eos is wanted, so the model would never learn to stop.")
    if given == whole[:-1] or wanted == whole[1:]:
        return wrong(
            "You cut off a sentence, not a word: the rows are sentences, the words "
            "stand along the second axis."
        )
    if any(BOS in row for row in wanted):
        return wrong("bos is wanted: but it is only given, nobody ever says it.")
    if not all(row[0] == BOS for row in given):
        return wrong("A row of `given` does not begin with bos.")
    if any(row[-1] == EOS and PAD in row for row in wanted):
        return wrong(
            "Padding stands before eos. Frame each sentence with bos and eos first, "
            "then pad."
        )
    return wrong(f"For the targets [7, 8, 9], [5], [6, 4] you gave {given}, {wanted}.")


@exercise
def check_waste(
    waste: Callable[[Sequence[int], Sequence[Sequence[int]]], Any],
) -> Verdict:
    """Exercise: the share of padding in all batches together."""
    lengths, batches = [2, 3, 8, 8, 5, 9], [[0, 1, 2, 3], [5, 4]]
    words, positions, longest = 35, 50, 9 * 6
    answer = number(waste(lengths, batches), "a share, one number")
    shares = [1 - 21 / 32, 1 - 14 / 18]
    known = {
        1 - words / positions: "",
        words / positions: "That is the share of words. Padding is the rest.",
        (positions - words) / words: (
            "You divided by the words. The share is of all positions, with the padding."
        ),
        1 - words / longest: (
            "You padded every sentence to the longest of all. A batch is only as wide "
            "as its own longest."
        ),
        sum(shares) / 2: (
            "You took the mean of the batches' shares, so that a small batch counts as "
            "much as a large one. Add up first, then divide."
        ),
        float(
            positions - words
        ): "That is the number of wasted places, not their share.",
        100 * (1 - words / positions): "That is in per cent: a share is at most 1.",
    }
    for value, message in known.items():
        if abs(answer - value) < 1e-6:
            if message:
                return wrong(message)
            if abs(number(waste([4, 4], [[0], [1]]))) > 1e-6:
                return wrong("Two sentences in batches of their own waste nothing.")
            return right("Positions are paid for, words are what you get.")
    return wrong(
        f"For lengths {lengths} and batches {batches} the share is {words} words in "
        f"{positions} positions, so 0.30 is wasted; got {answer:.2f}."
    )


@exercise
def check_split(split: Callable[[list[list[str]], str, str], Any]) -> Verdict:
    """Exercise: hold out the sentences in which two words meet."""
    text = (
        "Jane visite Rome en mai|Paul visite Rome|Luc est fatigué en mai|"
        "Jane va à Paris en juin|en mai , Marie habite à Rome|le maire aime Rome"
    )
    sentences = [line.split() for line in text.split("|")]
    answer = split([list(words) for words in sentences], "Rome", "mai")
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        return wrong("Two lists are wanted, training and test, as a pair.")
    training, test = ([list(words) for words in part] for part in answer)
    met = [words for words in sentences if "Rome" in words and "mai" in words]
    rest = [words for words in sentences if words not in met]
    spelt = [words for words in sentences if "Rome" in words and "mai" in str(words)]
    either = [words for words in sentences if "Rome" in words or "mai" in words]
    ordered = [words for words in met if words.index("Rome") < words.index("mai")]
    if sorted(training) == sorted(rest) and sorted(test) == sorted(met):
        return right("Each word is taught, and their meeting is not.")
    if sorted(test) == sorted(rest) and sorted(training) == sorted(met):
        return wrong("Training and test are swapped.")
    if sorted(test) == sorted(spelt):
        return wrong(
            "You looked for letters: *maire* holds *mai* and is another word. Look "
            "among the words of the list."
        )
    if sorted(test) == sorted(either):
        return wrong(
            "You hold out sentences with either word, so training teaches neither. "
            "Only the meeting of both is to be new."
        )
    if sorted(test) == sorted(ordered):
        return wrong(
            "The words may meet in either order: *en mai, … à Rome* counts too."
        )
    if sorted(training + test) != sorted(sentences):
        return wrong("Every sentence should be used exactly once.")
    if any(words in met for words in training):
        leaked = " ".join(next(words for words in training if words in met))
        return wrong(f"A sentence of the test has leaked into training: {leaked}.")
    return wrong("The test holds sentences in which the two words do not meet.")
