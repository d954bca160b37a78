"""Label-smoothed cross-entropy.

Made from book/12-training.md: edit the chapter, not this file.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transformer.checks import require_labels, require_probability
from transformer.text.words import PAD_ID

__all__ = [
    "label_smoothed_loss",
]


def label_smoothed_loss(
    logits: Float[Tensor, "batch length vocabulary"],
    labels: Int[Tensor, "batch length"],
    smoothing: float = 0.1,
    pad_id: int = PAD_ID,
) -> Float[Tensor, ""]:
    """Cross-entropy with label smoothing: labels keep 1 - ε, all tokens share ε.

    The mean, in nats, over the labels that are not padding (paper, section 5.4), in
    float32 at least.

    Raises:
        ValueError: for smoothing outside [0, 1), sizes that disagree, labels that are
            all padding, or (on a CPU) one outside the vocabulary.
    """
    require_probability(smoothing=smoothing)
    if logits.shape[:-1] != labels.shape:
        shapes = f"{tuple(logits.shape)} and {tuple(labels.shape)}"
        raise ValueError(f"each label needs a row of logits, got {shapes}")
    real = labels != pad_id
    if not real.any():
        raise ValueError("a loss needs at least one label, got only padding")
    labels = labels[real]
    require_labels(labels, logits.size(-1))
    exact = torch.promote_types(logits.dtype, torch.float32)  # also under autocast
    surprise = -logits[real].to(exact).log_softmax(dim=-1)  # of every token, in nats
    of_labels = surprise.gather(-1, labels[:, None].long()).squeeze(-1)
    return ((1 - smoothing) * of_labels + smoothing * surprise.mean(dim=-1)).mean()
