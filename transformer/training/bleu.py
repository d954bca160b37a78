"""Translation scores: BLEU and chrF of a corpus, by sacreBLEU.

Made from book/16-translation.md: edit the chapter, not this file.
"""

from collections.abc import Sequence
from typing import NamedTuple

from transformer.checks import optional_import, require_not_empty, require_texts
from transformer.text.multi30k import require_text

__all__ = [
    "TranslationScores",
    "corpus_scores",
]


class TranslationScores(NamedTuple):
    """BLEU and chrF of a corpus, 0 to 100, with sacreBLEU's signatures."""

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str


def corpus_scores(
    hypotheses: Sequence[str], references: Sequence[str], text: str = "raw"
) -> TranslationScores:
    """Corpus BLEU and chrF of translations with one reference each, by sacreBLEU.

    With `text` "tok", both are taken as they are, for their words and punctuation stand
    apart already; with "raw", sacreBLEU's usual tokenizer (13a) cuts them.

    Raises:
        ValueError: for no sentences, numbers that differ, another `text`, or where
            sacreBLEU is not installed.
    """
    require_texts("hypotheses", hypotheses)
    require_texts("references", references)
    require_not_empty("hypothesis", hypotheses)
    require_text(text)
    if len(hypotheses) != len(references):
        counts = f"{len(hypotheses)} and {len(references)}"
        raise ValueError(f"each translation needs one reference, got {counts}")
    metrics = optional_import("sacrebleu.metrics")
    bleu = metrics.BLEU(tokenize="none" if text == "tok" else "13a", force=True)
    chrf = metrics.CHRF()
    return TranslationScores(
        bleu.corpus_score(list(hypotheses), [list(references)]).score,
        chrf.corpus_score(list(hypotheses), [list(references)]).score,
        str(bleu.get_signature()),
        str(chrf.get_signature()),
    )
