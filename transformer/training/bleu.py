"""Translation scores: BLEU and chrF of a corpus, by sacreBLEU.

Made from book/16-translation.md: edit the chapter, not this file.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

from transformer.checks import optional_import, require_not_empty, require_texts
from transformer.text.multi30k import require_text

__all__ = [
    "TranslationScores",
    "corpus_scores",
]


class TranslationScores(NamedTuple):
    """BLEU and chrF of a corpus, 0 to 100, with sacreBLEU's signatures.

    If sentences were resampled, 95% of the samples have a BLEU at most about
    `bleu_margin` away from their mean.
    """

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str
    bleu_margin: float | None = None


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[str],
    text: str = "raw",
    resamples: int = 0,
) -> TranslationScores:
    """Corpus BLEU and chrF of translations with one reference each, by sacreBLEU.

    With `text` "tok", both are taken as they are, because their words and punctuation
    stand apart already; with "raw", sacreBLEU's usual tokenizer (13a) cuts them.
    `resamples` is how many samples its bootstrap draws for the margin of BLEU; 0 leaves
    that out.

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
    corpus = list(hypotheses), [list(references)]
    score = bleu.corpus_score(*corpus, n_bootstrap=resamples or 1)
    signature = str(bleu.get_signature())
    found = json.loads(score.format(width=4, signature=signature, is_json=True))
    return TranslationScores(
        score.score,
        chrf.corpus_score(*corpus).score,
        signature,
        str(chrf.get_signature()),
        found.get("confidence_var", 0.0) if resamples else None,
    )
