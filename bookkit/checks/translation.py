"""Checks for the exercises of chapter 16, Can it translate real sentences?"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from bookkit.exercises import (
    Verdict,
    exercise,
    number,
    right,
    wrong,
)

Merges = list[tuple[str, str]]


def _encode(word: str, merges: Merges, first_only: bool = False) -> list[str]:
    """The pieces of a word: each merge in its turn, wherever the pair occurs."""
    pieces = list(word)
    for pair in merges:
        at = 0
        while at < len(pieces) - 1:
            if (pieces[at], pieces[at + 1]) == tuple(pair):
                pieces[at : at + 2] = ["".join(pair)]
                if first_only:
                    break
            at += 1
    return pieces


def _longest_first(word: str, merges: Merges) -> list[str]:
    """The longest known piece from the left, again and again."""
    known = {"".join(pair) for pair in merges} | set(word)
    pieces = []
    while word:
        end = next(n for n in range(len(word), 0, -1) if word[:n] in known)
        pieces.append(word[:end])
        word = word[end:]
    return pieces


def _replaced(word: str, merges: Merges) -> list[str]:
    """The pieces, if a pair is sought in the text of all pieces."""
    text = " ".join(word)
    for first, second in merges:
        text = text.replace(f"{first} {second}", first + second)
    return text.split()


def _any_first(word: str, merges: Merges) -> list[str]:
    """The first pair from the left that some merge has, again and again."""
    pieces = list(word)
    at = 0
    while at < len(pieces) - 1:
        if (pieces[at], pieces[at + 1]) in merges:
            pieces[at : at + 2] = ["".join(pieces[at : at + 2])]
            at = -1
        at += 1
    return pieces


@exercise
def check_encode(encode: Callable[[str, Merges], Any]) -> Verdict:
    """Exercise: cut a word into subwords."""
    newest = [("w", "e"), ("we", "s"), ("n", "e"), ("ne", "w")]
    newest += [("e", "s"), ("s", "t"), ("e", "st")]
    cases: list[tuple[str, Merges]] = [
        ("lowest", [("e", "s"), ("es", "t"), ("l", "o"), ("lo", "w")]),
        ("newest", newest),
        ("banana", [("a", "n"), ("b", "an"), ("an", "a")]),
        ("aaaaa", [("a", "a")]),
        ("xyz", [("a", "n")]),
        ("est", [("e", "s"), ("e", "st")]),
        ("abab", [("a", "b"), ("ab", "a")]),
    ]
    for word, merges in cases:
        expected = _encode(word, merges)
        answer = encode(word, list(merges))
        if isinstance(answer, str) or not isinstance(answer, Sequence):
            return wrong(f"A list or tuple of pieces is wanted, got {answer!r}.")
        pieces = [str(piece) for piece in answer]
        if pieces == expected:
            continue
        shown = f"{word!r} with {merges} should be {expected}, got {pieces}."
        if "".join(pieces) != word:
            return wrong(f"Letters were lost or doubled: {shown}")
        if pieces == list(word):
            return wrong(f"Nothing was joined (the pairs are tuples): {shown}")
        if word == "est":
            return wrong(
                "A pair is two pieces, not the letters that they make together: "
                f"{shown}"
            )
        if word == "abab":
            return wrong(f"A merge joins all its pairs before the next begins: {shown}")
        if pieces == _replaced(word, merges):
            return wrong(
                "`replace` also joins the end of one piece with the beginning of the "
                f"next. A pair is two whole pieces: {shown}"
            )
        if pieces == _encode(word, merges, first_only=True):
            return wrong(f"A pair is joined wherever it occurs, not once: {shown}")
        if pieces == _encode(word, merges[::-1]):
            return wrong(f"The first merge learned is the first applied: {shown}")
        if pieces == _longest_first(word, merges):
            return wrong(
                "You took the longest known piece. Byte-pair encoding repeats the "
                f"merges in the order in which they were learned: {shown}"
            )
        if pieces == _any_first(word, merges):
            return wrong(
                "You joined the first pair from the left that any merge has. The order "
                f"of the merges decides, not that of the letters: {shown}"
            )
        if len(set(word)) == 1:
            return wrong(
                "Join pairs from the left, and do not join a new piece again for the "
                f"same merge: {shown}"
            )
        return wrong(shown)
    return right("Merge by merge, in the order in which they were learned.")


def _bleu(sums: Tensor) -> Tensor:
    """The BLEU of added counts: four hits, four totals and the two lengths."""
    hits, totals, lengths = sums.double().split((4, 4, 2), dim=-1)
    brevity = (1 - lengths[..., 1] / lengths[..., 0]).exp().clamp(max=1)
    return 100 * brevity * (hits / totals).prod(dim=-1) ** (1 / 4)


def _system(draw: torch.Generator, quality: float) -> Tensor:
    """A row of counts for each of sixty sentences, hard or easy for both systems."""
    sentences = torch.Generator().manual_seed(1)
    length = torch.randint(8, 40, (60, 1), generator=sentences)
    ease = torch.rand(60, 1, generator=sentences)
    totals = length - torch.arange(4)
    share = quality + 0.3 * ease + 0.1 * torch.rand(60, 1, generator=draw)
    hits = (totals * share ** torch.arange(1, 5)).long().clamp_min(1)
    return torch.cat([hits, totals, length, length], dim=1)


@exercise
def check_better(
    share_better: Callable[[Tensor, Tensor, Tensor, Callable[[Tensor], Tensor]], Any],
) -> Verdict:
    """Exercise: in which share of resamples the second system is ahead."""
    draw = torch.Generator().manual_seed(3)
    first, second = _system(draw, 0.6), _system(draw, 0.605)
    draws = torch.randint(60, (400, 60), generator=draw)
    drawn = first[draws], second[draws]
    scores, others = (_bleu(each.sum(dim=1)) for each in drawn)
    ahead = (others > scores).double().mean().item()
    share = share_better(first.clone(), second.clone(), draws.clone(), _bleu)
    if isinstance(share, bool) or getattr(share, "dtype", None) is torch.bool:
        return wrong("That is True or False: give the share of the draws, a number.")
    answer = number(share, "a share, one number")
    if math.isclose(answer, ahead, abs_tol=1e-6):
        if number(share_better(first, first, draws, _bleu)) != 0:
            return wrong("Equal is not higher: a tie does not count for `second`.")
        return right("In the same draw for both, added up before BLEU is taken.")
    singly = [_bleu(each).mean(dim=1) for each in drawn]
    apart = [_bleu(first), _bleu(second)]
    known = {
        1 - ahead: "That is how often the first is ahead.",
        100 * ahead: "That is in percent: give back a share, 0 to 1.",
        len(draws) * ahead: "That is a number of draws: divide by how many there are.",
        (singly[1] > singly[0]).double().mean().item(): (
            "You took the mean of the sentences' own scores. Add up the counts of a "
            "draw, then take their BLEU."
        ),
        (apart[1] > apart[0]).double().mean().item(): (
            "That is the share of sentences on which the second is ahead, whatever is "
            "drawn. Compare the scores of whole draws."
        ),
        (others - scores).mean().item(): (
            "That is the mean difference in BLEU. How often is it above 0?"
        ),
        float(_bleu(second.sum(dim=0)) > _bleu(first.sum(dim=0))): (
            "Did you compare the two once, on all sentences? Compare them in each "
            "draw, a row of `draws`."
        ),
    }
    for value, message in known.items():
        if math.isclose(answer, value, abs_tol=1e-6):
            return wrong(message)
    for other in (draws.flip(0), draws.roll(1, dims=0), draws.roll(-1, dims=0)):
        unpaired = (_bleu(second[other].sum(dim=1)) > scores).double().mean().item()
        if math.isclose(answer, unpaired, abs_tol=1e-6):
            return wrong(
                "Each system has sentences of its own. Both must be scored on the same "
                "draw, or the difficulty of the sentences is compared too."
            )
    return wrong(f"The share is {ahead:.4f}, got {answer:.4f}.")


def _grams(words: list[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def _counts(hypothesis: list[str], reference: list[str]) -> list[tuple[int, int]]:
    """Hits and totals for runs of one to four words."""
    found = []
    for n in range(1, 5):
        mine = _grams(hypothesis, n)
        found.append(((mine & _grams(reference, n)).total(), mine.total()))
    return found


def _mistaken(
    pairs: list[tuple[list[str], list[str]]],
) -> tuple[float, dict[str, float]]:
    """The BLEU of a corpus, and what known mistakes make of it."""
    orders = range(1, 5)
    counts = [_counts(*pair) for pair in pairs]
    by_n = list(zip(*counts, strict=True))
    hits, totals = ([sum(one[i] for one in each) for each in by_n] for i in (0, 1))
    lengths = [(len(h), len(r)) for h, r in pairs]
    c, r = (sum(x) for x in zip(*lengths, strict=True))
    brevity = min(1.0, math.exp(1 - r / c))

    def over(totals: Sequence[float], hits: Sequence[float] = hits) -> float:
        ratios = (hit / total for hit, total in zip(hits, totals, strict=True))
        return 100 * math.prod(ratios) ** (1 / 4)

    def at_least(least: float) -> list[float]:
        """Totals to which a sentence adds at least this, not 0."""
        return [sum(max(len(h) - n + 1, least) for h, _ in pairs) for n in orders]

    unclipped = [
        sum(
            count
            for h, r in pairs
            for gram, count in _grams(h, n).items()
            if gram in _grams(r, n)
        )
        for n in orders
    ]
    pooled = [
        (ours & theirs).total()
        for ours, theirs in (
            [sum((_grams(pair[i], n) for pair in pairs), Counter()) for i in (0, 1)]
            for n in orders
        )
    ]
    kinds = [sum(len(_grams(h, n) & _grams(r, n)) for h, r in pairs) for n in orders]
    of_kinds = [sum(len(_grams(h, n)) for h, _ in pairs) for n in orders]
    recalled = [sum(_grams(r, n).total() for _, r in pairs) for n in orders]
    joined = _counts(*([word for pair in pairs for word in pair[i]] for i in (0, 1)))
    # A sentence without an n-gram has no precision.
    ratios = [[x / y if y else 0.0 for x, y in one] for one in counts]
    each_brevity = [min(1.0, math.exp(1 - b / a)) for a, b in lengths]
    singly = [
        each * math.prod(one) ** (1 / 4)
        for each, one in zip(each_brevity, ratios, strict=True)
    ]
    shares = [mean(each) for each in zip(*ratios, strict=True)]
    whole = over(totals)
    return brevity * whole, {
        "That is the mean of the sentences' own scores. Add up hits, totals and "
        "lengths of the corpus first.": 100 * mean(singly),
        "You took the mean of the sentences' precisions: a short sentence counts as "
        "much as a long one. Add up hits and totals, then divide.": (
            100 * brevity * math.prod(shares) ** (1 / 4)
        ),
        "You clipped the corpus as a whole: an n-gram counts only if the reference of "
        "its own sentence has it.": brevity * over(totals, pooled),
        "You did not clip: an n-gram that the reference has once counts once, however "
        "often the hypothesis has it.": brevity * over(totals, unclipped),
        "The hits count how often an n-gram occurs (.total()), not how many differ.": (
            brevity * over(totals, kinds)
        ),
        "Hits and totals count how often an n-gram occurs (.total()), not how many "
        "differ.": brevity * over(of_kinds, kinds),
        "Those are recalls: divide by the number of the hypothesis's n-grams.": (
            brevity * over(recalled)
        ),
        "Hypotheses and references are swapped.": (
            min(1.0, math.exp(1 - c / r)) * over(recalled)
        ),
        "A sentence has len - n + 1 n-grams.": brevity * over([c] * 4),
        "Your n-grams run from one sentence into the next.": (
            brevity * over([y for _, y in joined], [x for x, _ in joined])
        ),
        "A sentence shorter than n has no n-grams: its total is 0, not less.": (
            brevity * over(at_least(-math.inf))
        ),
        "A sentence shorter than n has no n-grams: its total is 0, not 1.": (
            brevity * over(at_least(1))
        ),
        "The brevity penalty is missing.": whole,
        "The brevity penalty is that of the whole corpus: add up the lengths first.": (
            mean(each_brevity) * whole
        ),
        "The penalty is for translations that are too short; yours is for long ones.": (
            min(1.0, math.exp(1 - c / r)) * whole
        ),
        "A long translation gets no bonus: the penalty is at most 1.": (
            math.exp(1 - r / c) * whole
        ),
        "You took the mean of the four precisions. BLEU takes their geometric mean, "
        "the fourth root of the product.": (
            100 * brevity * mean(x / y for x, y in zip(hits, totals, strict=True))
        ),
        "The fourth root is missing.": 100 * brevity * (whole / 100) ** 4,
        "The formula is right, but BLEU is printed times 100.": brevity * whole / 100,
    }


@exercise
def check_corpus(
    corpus_bleu: Callable[[list[list[str]], list[list[str]]], Any],
) -> Verdict:
    """Exercise: the BLEU of a corpus."""
    short = [  # the last pair has no 3-gram and no 4-gram
        ("a dog runs through snow", "a dog runs through the deep snow"),
        (
            "two women laugh at a man in a red hat near the beach",
            "two women laugh at the man in a red hat near a beach",
        ),
        ("two dogs", "two dogs"),
    ]
    long = [
        (
            "a small dog runs through the the the reads snow",
            "a small dog runs through the snow",
        ),
        ("the man who sits there has a book", "the man who sits there reads a book"),
    ]
    for sentences in (long, short):
        pairs = [(h.split(), r.split()) for h, r in sentences]
        wanted, mistakes = _mistaken(pairs)
        hypotheses, references = ([list(pair[i]) for pair in pairs] for i in (0, 1))
        answer = number(corpus_bleu(hypotheses, references), "a BLEU, one number")
        if math.isclose(answer, wanted, abs_tol=1e-4):  # as in float32
            continue
        rounded = [round(wanted, digits) for digits in range(4)]
        if any(math.isclose(answer, value, abs_tol=1e-4) for value in rounded):
            return wrong("The right number, but rounded: give back all its digits.")
        for message, value in mistakes.items():
            if math.isclose(answer, value, abs_tol=1e-4):
                return wrong(message)
        return wrong(
            f"The BLEU of {sentences} should be {wanted:.2f}, got {answer:.2f}."
        )
    return right("Added up over the corpus, then divided.")
