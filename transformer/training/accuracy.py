"""Exact match: the share of sentences that a model translates word for word.

Made from book/12-training.md: edit the chapter, not this file.
"""

from collections.abc import Sequence

from torch import nn

from transformer.checks import require_not_empty
from transformer.decoding.search import mask_special
from transformer.decoding.step import evaluating
from transformer.decoding.support import unwrap
from transformer.text.batches import (
    Example,
    example_length,
    make_batch,
    split_by_tokens,
)

__all__ = [
    "exact_matches",
    "exact_match",
]


def exact_matches(
    model: nn.Module, examples: Sequence[Example], batch_tokens: int = 4096
) -> list[bool]:
    """For each example, whether the most probable token is right at every position.

    After the right tokens so far, the model predicts each next one and the end: then,
    and only then, is a causal model's greedy translation exactly the target. A model
    that sees later tokens reads them off, and this counts more than it translates.

    Raises:
        ValueError: for an example longer than `batch_tokens` or the model's positions.
    """
    config = unwrap(model, "exact_match").config
    device = next(model.parameters()).device
    lengths = [example_length(example) for example in examples]
    exact = [False] * len(examples)
    with evaluating(model):
        for indices in split_by_tokens(lengths, batch_tokens):
            batch = make_batch(
                [examples[index] for index in indices],
                config.pad_id,
                config.bos_id,
                config.eos_id,
            )
            source, decoder_input, labels = batch.to(device)
            logits = mask_special(model(source, decoder_input).flatten(0, 1), config)
            predictions = logits.argmax(dim=-1).view_as(labels)
            right = (predictions == labels) | (labels == config.pad_id)
            for index, whole in zip(indices, right.all(dim=-1).tolist(), strict=True):
                exact[index] = whole
    return exact


def exact_match(model: nn.Module, examples: Sequence[Example]) -> float:
    """The share of examples that a causal model translates exactly, word for word.

    Raises:
        ValueError: for no examples, or one longer than 4,096 tokens or the model's
            positions.
    """
    require_not_empty("example", examples)
    return sum(exact_matches(model, examples)) / len(examples)
