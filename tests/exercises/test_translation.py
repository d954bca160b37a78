"""Chapter 16's exercises: the answer is right, likely mistakes are named."""

import math
from collections import Counter

import pytest

from bookkit.checks.translation import check_clipped, check_corpus, check_merge


def join(pieces, pair):
    joined, at = [], 0
    while at < len(pieces):
        both = tuple(pieces[at : at + 2]) == tuple(pair)
        joined.append("".join(pieces[at : at + 2]) if both else pieces[at])
        at += 2 if both else 1
    return tuple(joined)


def greedy_join(pieces, pair):
    """The chapter's own, which compares with what it has joined already."""
    joined = []
    for piece in pieces:
        if joined and (joined[-1], piece) == pair:
            joined[-1] += piece
        else:
            joined.append(piece)
    return tuple(joined)


def join_once(pieces, pair):
    for at in range(len(pieces) - 1):
        if pieces[at : at + 2] == pair:
            return (*pieces[:at], "".join(pair), *pieces[at + 2 :])
    return pieces


def in_text(pieces, pair):
    """The well-known shortcut, which takes the end of a piece for a piece."""
    return tuple(" ".join(pieces).replace(" ".join(pair), "".join(pair)).split())


def from_the_right(pieces, pair):
    turned = join(
        [piece[::-1] for piece in pieces[::-1]], [p[::-1] for p in pair[::-1]]
    )
    return tuple(piece[::-1] for piece in turned[::-1])


def again_and_again(pieces, pair):
    while (joined := join(pieces, pair)) != pieces:
        pieces, pair = joined, ("".join(pair),) * 2
    return pieces


def grams(words, n):
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def clipped(said, reference, n):
    mine = grams(said, n)
    return (mine & grams(reference, n)).total() / mine.total()


def unclipped(said, reference, n):
    mine, theirs = grams(said, n), grams(reference, n)
    return sum(mine[one] for one in mine if one in theirs) / mine.total()


def recall(said, reference, n):
    theirs = grams(reference, n)
    return (grams(said, n) & theirs).total() / theirs.total()


def by_words(said, reference, n):
    return (grams(said, n) & grams(reference, n)).total() / len(said)


def unordered(said, reference, n):
    mine, theirs = (
        Counter(frozenset(words[i : i + n]) for i in range(len(words) - n + 1))
        for words in (said, reference)
    )
    return (mine & theirs).total() / mine.total()


def different(said, reference, n):
    mine, theirs = grams(said, n), grams(reference, n)
    return len(mine.keys() & theirs.keys()) / len(mine)


def bleu(hypotheses, references, brevity=lambda c, r: min(1.0, math.exp(1 - r / c))):
    """By hits and totals of the corpus."""
    pairs = list(zip(hypotheses, references, strict=True))
    product = 1.0
    for n in range(1, 5):
        hits = sum((grams(h, n) & grams(r, n)).total() for h, r in pairs)
        product *= hits / sum(len(h) - n + 1 for h, _ in pairs)
    lengths = (sum(map(len, side)) for side in (hypotheses, references))
    return 100 * brevity(*lengths) * product**0.25


def by_sacrebleu(hypotheses, references):
    from sacrebleu.metrics import BLEU

    texts = [[" ".join(words) for words in side] for side in (hypotheses, references)]
    return BLEU(tokenize="none").corpus_score(texts[0], [texts[1]]).score


def in_logarithms(hypotheses, references):
    logs = []
    for n in range(1, 5):
        hits = total = 0
        for h, r in zip(hypotheses, references, strict=True):
            hits += sum(min(k, grams(r, n)[g]) for g, k in grams(h, n).items())
            total += sum(grams(h, n).values())
        logs.append(math.log(hits) - math.log(total))
    c, r = (sum(len(words) for words in side) for side in (hypotheses, references))
    return 100 * math.exp(sum(logs) / 4 + min(0, 1 - r / c))


def mean_of_sentences(hypotheses, references):
    scores = [bleu([h], [r]) for h, r in zip(hypotheses, references, strict=True)]
    return sum(scores) / len(scores)


def mean_of_precisions(hypotheses, references):
    pairs = list(zip(hypotheses, references, strict=True))
    product = 1.0
    for n in range(1, 5):
        product *= sum(clipped(h, r, n) for h, r in pairs) / len(pairs)
    whole = bleu(hypotheses, references)
    return whole / bleu(hypotheses, references, lambda c, r: 1) * 100 * product**0.25


def brevity_of_sentences(hypotheses, references):
    pairs = list(zip(hypotheses, references, strict=True))
    each = [min(1, math.exp(1 - len(r) / len(h))) for h, r in pairs]
    return bleu(hypotheses, references, lambda c, r: sum(each) / len(each))


def arithmetic(hypotheses, references):
    pairs = list(zip(hypotheses, references, strict=True))
    shares = [
        sum((grams(h, n) & grams(r, n)).total() for h, r in pairs)
        / sum(len(h) - n + 1 for h, _ in pairs)
        for n in range(1, 5)
    ]
    c, r = (sum(map(len, side)) for side in (hypotheses, references))
    return 100 * min(1.0, math.exp(1 - r / c)) * sum(shares) / 4


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (check_merge, join),
        (check_clipped, clipped),
        (check_corpus, bleu),
        (check_corpus, by_sacrebleu),
        (check_corpus, in_logarithms),
    ],
)
def test_right(check, answer):
    assert check(answer).ok


@pytest.mark.parametrize("check", [check_merge, check_clipped, check_corpus])
def test_unanswered(check):
    assert check(...).kind == "unanswered"


@pytest.mark.parametrize(
    ("check", "answer", "said"),
    [
        (check_merge, join_once, "the first place only"),
        (check_merge, lambda pieces, pair: pieces, "Nothing was joined"),
        (check_merge, lambda pieces, pair: pieces[:-1], "lost or doubled"),
        (check_merge, in_text, "searched the text"),
        (check_merge, from_the_right, "begin at the left"),
        (check_merge, again_and_again, "joined again"),
        (check_merge, lambda pieces, pair: "".join(pieces), "tuple of pieces"),
        (check_clipped, unclipped, "did not clip"),
        (check_clipped, recall, "recall"),
        (check_clipped, different, "different n-grams"),
        (check_clipped, unordered, "order counts"),
        (check_clipped, lambda s, r, n: clipped(s, r, min(n, 2)), "n = 3 the share is"),
        (check_clipped, by_words, "divided by the words"),
        (check_clipped, lambda said, reference, n: (1, 2), "a share, one number"),
        (check_corpus, mean_of_sentences, "mean of the sentences' own scores"),
        (check_corpus, mean_of_precisions, "sentences' precisions"),
        (check_corpus, brevity_of_sentences, "add up the lengths"),
        (check_corpus, arithmetic, "geometric mean"),
        (check_corpus, lambda h, r: bleu(h, r, lambda c, r: 1.0), "is missing"),
        (
            check_corpus,
            lambda h, r: bleu(h, r, lambda c, r: min(1, math.exp(1 - c / r))),
            "too short",
        ),
        (
            check_corpus,
            lambda h, r: bleu(h, r, lambda c, r: math.exp(1 - r / c)),
            "no bonus",
        ),
        (check_corpus, lambda h, r: bleu(h, r) / 100, "times 100"),
        (check_corpus, lambda h, r: 50.0, "got 50.00"),
        (check_corpus, lambda h, r: (1, 2), "a BLEU, one number"),
    ],
)
def test_wrong(check, answer, said):
    verdict = check(answer)
    assert verdict.kind == "wrong"
    assert said in verdict.message


def test_the_chapters_own_merge_is_right_too():
    assert greedy_join(("a", "a", "a", "a"), ("a", "a")) == ("aa", "aa")
    assert check_merge(greedy_join).ok
