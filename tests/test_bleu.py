"""Scores of translations, beside what can be counted by hand."""

import math
import sys

import pytest

from transformer.training.bleu import TranslationScores, corpus_scores

REFERENCE = "the cat sat on the mat ."


def test_scores_of_known_translations():
    references = [REFERENCE, "a dog ran ."]
    same = corpus_scores(references, references)
    assert isinstance(same, TranslationScores)
    assert same.bleu == pytest.approx(100)
    assert same.chrf == pytest.approx(100)
    # 5 of 7 words, 3 of 6 pairs, 2 of 5 triples, 1 of 4 fours; no brevity penalty.
    found = corpus_scores(["the cat sat on a rug ."], [REFERENCE])
    by_hand = 100 * (5 / 7 * 3 / 6 * 2 / 5 * 1 / 4) ** 0.25
    assert found.bleu == pytest.approx(by_hand)
    short = corpus_scores(["the cat sat on the"], [REFERENCE])
    assert short.bleu == pytest.approx(100 * math.exp(1 - 7 / 5))


def test_the_margin_is_that_of_sacrebleus_bootstrap():
    import sacrebleu

    references = [f"a cat sat on mat {number} ." for number in range(50)]
    hypotheses = [f"a cat sat on mat {number % 30} ." for number in range(50)]
    found = corpus_scores(hypotheses, references, "tok", resamples=1000)
    metric = sacrebleu.BLEU(tokenize="none")
    expected = metric.corpus_score(hypotheses, [references], n_bootstrap=1000)
    assert f"± {found.bleu_margin:.2f}" in str(expected)
    assert found.bleu == corpus_scores(hypotheses, references, "tok").bleu
    assert "bs:1000" in found.bleu_signature
    assert corpus_scores(hypotheses, references).bleu_margin is None


def test_signatures_name_the_tokenizer():
    import sacrebleu

    tok, raw = (
        corpus_scores([REFERENCE], [REFERENCE], text) for text in ("tok", "raw")
    )
    version = f"version:{sacrebleu.__version__}"
    assert corpus_scores((REFERENCE,), (REFERENCE,)) == raw
    assert tok.bleu_signature == (
        f"nrefs:1|case:mixed|eff:no|tok:none|smooth:exp|{version}"
    )
    assert raw.bleu_signature == (
        f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|{version}"
    )
    assert version in tok.chrf_signature


def test_raw_text_is_tokenised_by_sacrebleu():
    hypotheses, references = ["The black cat sat, now."], ["The black cat sat, now"]
    tok, raw = (corpus_scores(hypotheses, references, text) for text in ("tok", "raw"))
    assert raw.bleu > tok.bleu  # six of seven tokens in place of four of five


def test_tokenised_text_raises_no_alarm(caplog):
    corpus_scores(["a cat sat ."] * 200, ["a cat sits ."] * 200, "tok")
    assert not caplog.records


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], []), "at least one hypothesis is needed, got none"),
        (("abc", ["a"] * 3), "hypotheses must be several, got the text 'abc'"),
        ((["a"], "a"), "references must be several, got the text 'a'"),
        ((["a"], ["a", "b"]), "one reference, got 1 and 2$"),
        ((["a"], ["a"], "Tok"), "text must be tok or raw, got 'Tok'$"),
    ],
)
def test_what_cannot_be_scored_is_refused(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        corpus_scores(*arguments)


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(ImportError, match="needs sacrebleu"):
        corpus_scores(["a"], ["a"])
