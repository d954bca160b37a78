"""Chapter 16's exercises: the answer is right, likely mistakes are named."""

import math
from collections import Counter
from functools import partial
from itertools import pairwise

import torch

from bookkit.checks.translation import check_better, check_corpus, check_encode
from tests.exercises import named_mistakes, right_answers


def encode(word, merges):
    pieces = list(word)
    for first, second in merges:
        at = 0
        while at < len(pieces) - 1:
            if (pieces[at], pieces[at + 1]) == (first, second):
                pieces[at : at + 2] = [first + second]
            at += 1
    return pieces


def merge(pieces, pair):
    """The chapter's own, which compares with what it has joined already."""
    merged = []
    for piece in pieces:
        if merged and (merged[-1], piece) == pair:
            merged[-1] += piece
        else:
            merged.append(piece)
    return tuple(merged)


def by_the_chapters_merge(word, merges):
    pieces = tuple(word)
    for pair in merges:
        pieces = merge(pieces, pair)
    return pieces


def by_rank(word, merges):
    """As libraries do it: the pair learned first, of those that are there."""
    pieces, ranks = list(word), {pair: rank for rank, pair in enumerate(merges)}
    while pairs := [pair for pair in pairwise(pieces) if pair in ranks]:
        pieces = list(merge(pieces, min(pairs, key=ranks.get)))
    return pieces


def once_each(word, merges):
    pieces = tuple(word)
    for pair in merges:
        for at in range(len(pieces) - 1):
            if pieces[at : at + 2] == pair:
                pieces = (*pieces[:at], "".join(pair), *pieces[at + 2 :])
                break
    return pieces


def longest(word, merges):
    known = {a + b for a, b in merges} | set(word)
    pieces = []
    while word:
        pieces.append(max((k for k in known if word.startswith(k)), key=len))
        word = word.removeprefix(pieces[-1])
    return pieces


def leftmost(word, merges):
    pieces = list(word)
    while True:
        places = [i for i, pair in enumerate(pairwise(pieces)) if pair in merges]
        if not places:
            return pieces
        pieces[places[0] : places[0] + 2] = ["".join(pieces[places[0] : places[0] + 2])]


def replaced(word, merges):
    text = " ".join(word)
    for first, second in merges:
        text = text.replace(f"{first} {second}", first + second)
    return text.split()


def lists_for_tuples(word, merges):
    pieces = list(word)
    for pair in merges:
        for at in range(len(pieces) - 1):
            if pieces[at : at + 2] == pair:
                pieces[at : at + 2] = ["".join(pair)]
    return pieces


def from_the_right(word, merges):
    backwards = [(b[::-1], a[::-1]) for a, b in merges]
    return [piece[::-1] for piece in encode(word[::-1], backwards)][::-1]


def grams(words, n):
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def common(said, reference, n):
    return (grams(said, n) & grams(reference, n)).total()


def clipped(said, reference, n):
    return common(said, reference, n) / max(grams(said, n).total(), 1)


def joined(sentences):
    return [[word for words in sentences for word in words]]


def bleu(
    hypotheses,
    references,
    brevity=lambda c, r: min(1.0, math.exp(1 - r / c)),
    hits=common,
    total=lambda h, r, n: max(len(h) - n + 1, 0),
):
    """By hits and totals of the corpus."""
    pairs = list(zip(hypotheses, references, strict=True))
    product = 1.0
    for n in range(1, 5):
        product *= sum(hits(h, r, n) for h, r in pairs)
        product /= sum(total(h, r, n) for h, r in pairs)
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
        / sum(max(len(h) - n + 1, 0) for h, _ in pairs)
        for n in range(1, 5)
    ]
    c, r = (sum(map(len, side)) for side in (hypotheses, references))
    return 100 * min(1.0, math.exp(1 - r / c)) * sum(shares) / 4


def scores(system, draws, bleu):
    return torch.stack([bleu(system[draw].sum(dim=0)) for draw in draws])


def better(first, second, draws, bleu):
    return (scores(second, draws, bleu) > scores(first, draws, bleu)).float().mean()


def shares(count):
    """The share of draws, by a number for each pair of scores."""

    def share(first, second, draws, bleu):
        ours, theirs = (scores(each, draws, bleu) for each in (first, second))
        return count(ours, theirs).double().mean()

    return share


def of_means(first, second, draws, bleu):
    ahead = 0
    for draw in draws.tolist():
        one, other = (bleu(each[draw].double().mean(dim=0)) for each in (first, second))
        ahead += one < other
    return ahead / len(draws)


def unpaired(first, second, draws, bleu):
    other = scores(second, draws.flip(0), bleu)
    return (other > scores(first, draws, bleu)).float().mean()


def by_mean_scores(first, second, draws, bleu):
    ours, theirs = (bleu(each[draws]).mean(dim=1) for each in (first, second))
    return (theirs > ours).float().mean()


test_right = right_answers(
    [
        (check_encode, by_the_chapters_merge),
        (check_encode, by_rank),
        (check_better, of_means),
        (check_corpus, by_sacrebleu),
        (check_corpus, in_logarithms),
    ]
)


test_wrong = named_mistakes(
    [
        (check_encode, once_each, "wherever it occurs"),
        (check_encode, lambda word, merges: list(word), "Nothing was joined"),
        (check_encode, lambda word, merges: encode(word, merges)[:-1], "lost"),
        (check_encode, lambda word, merges: encode(word, merges[::-1]), "The first"),
        (check_encode, longest, "longest known piece"),
        (check_encode, leftmost, "order of the merges decides"),
        (check_encode, from_the_right, "Join pairs from the left"),
        (check_encode, replaced, "end of one piece with the beginning"),
        (check_encode, lists_for_tuples, "the pairs are tuples"),
        (check_encode, lambda word, merges: word, "A list or tuple"),
        (check_better, lambda a, b, d, f: better(b, a, d, f), "the first is ahead"),
        (check_better, lambda *all: 100 * better(*all), "in percent"),
        (check_better, lambda a, b, d, f: 400 * better(a, b, d, f), "number of draws"),
        (check_better, by_mean_scores, "mean of the sentences' own scores"),
        (
            check_better,
            lambda a, b, d, f: (f(b) > f(a)).float().mean(),
            "whatever is drawn",
        ),
        (
            check_better,
            lambda a, b, d, f: (scores(b, d, f) - scores(a, d, f)).mean(),
            "mean difference",
        ),
        (check_better, lambda a, b, d, f: f(b.sum(0)) > f(a.sum(0)), "True or False"),
        (check_better, lambda a, b, d, f: int(f(b.sum(0)) > f(a.sum(0))), "once"),
        (check_better, lambda a, b, d, f: better(a, b, d.T, f), "a row of `draws`"),
        (check_better, shares(lambda ours, theirs: theirs >= ours), "a tie"),
        (check_better, unpaired, "sentences of its own"),
        (check_better, lambda *all: better(*all) / 2, "The share is 0.9075"),
        (check_better, lambda *all: (1, 2), "a share, one number"),
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
        (
            check_corpus,
            partial(bleu, total=lambda h, r, n: len(h) - n + 1),
            "0, not less",
        ),
        (
            check_corpus,
            partial(bleu, total=lambda h, r, n: max(len(h) - n + 1, 1)),
            "0, not 1",
        ),
        (
            check_corpus,
            partial(bleu, total=lambda h, r, n: grams(r, n).total()),
            "Those are recalls",
        ),
        (check_corpus, lambda h, r: bleu(r, h), "are swapped"),
        (
            check_corpus,
            partial(bleu, hits=lambda h, r, n: len({*grams(h, n)} & {*grams(r, n)})),
            "The hits count how often",
        ),
        (
            check_corpus,
            partial(
                bleu,
                hits=lambda h, r, n: len(grams(h, n) & grams(r, n)),
                total=lambda h, r, n: len(grams(h, n)),
            ),
            "Hits and totals count how often",
        ),
        (
            check_corpus,
            partial(bleu, total=lambda h, r, n: len(h)),
            "len - n + 1 n-grams",
        ),
        (check_corpus, lambda h, r: bleu(joined(h), joined(r)), "into the next"),
        (check_corpus, lambda h, r: 50.0, "got 50.00"),
        (check_corpus, lambda h, r: (1, 2), "a BLEU, one number"),
    ]
)
