"""Batches of token ids: padding, shifted targets, and batches of similar length.

Made from book/11-data.md: edit the chapter, not this file.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from transformer.checks import require_positive
from transformer.text.words import BOS_ID, EOS_ID, PAD_ID

__all__ = [
    "pad",
    "Example",
    "Batch",
    "make_batch",
    "example_length",
    "split_by_tokens",
    "batches_by_tokens",
]


def pad(
    sequences: Sequence[Sequence[int]], pad_id: int = PAD_ID
) -> Int[Tensor, "batch length"]:
    """Pad sequences of ids on the right, to the length of the longest.

    Raises:
        ValueError: for no sequence at all, or only empty ones.
    """
    sequences = list(sequences)
    longest = max(map(len, sequences), default=0)
    if not longest:
        raise ValueError(f"a batch needs ids, got {len(sequences)} sequences without")
    return torch.tensor([[*ids, *[pad_id] * (longest - len(ids))] for ids in sequences])


Example = tuple[list[int], list[int]]  # ids of a source and of its target


class Batch(NamedTuple):
    """Batch: sources, decoder inputs, and labels, the next token at each position."""

    source: Int[Tensor, "batch source"]
    decoder_input: Int[Tensor, "batch target"]
    labels: Int[Tensor, "batch target"]

    def to(self, device: str | torch.device) -> "Batch":
        """The same batch on a device."""
        return Batch(*(ids.to(device) for ids in self))


def make_batch(
    examples: Sequence[Example],
    pad_id: int = PAD_ID,
    bos_id: int = BOS_ID,
    eos_id: int = EOS_ID,
) -> Batch:
    """Pad the examples and shift the targets: inputs begin with bos, labels end in eos.

    Raises:
        ValueError: for no examples, or sources that are all empty.
    """
    source = pad([source for source, _ in examples], pad_id)
    target = pad([[bos_id, *target, eos_id] for _, target in examples], pad_id)
    return Batch(source, target[:, :-1], target[:, 1:])


def example_length(example: Example) -> int:
    """The positions that an example needs: the target goes with bos or eos."""
    source, target = example
    return max(len(source), len(target) + 1)


def split_by_tokens(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Group indices so that count × longest stays within `batch_tokens` in each batch.

    Batches hold similar lengths, the shortest first; equal lengths keep their order.
    Every index comes exactly once.

    Raises:
        ValueError: for `batch_tokens` below 1, or a length below 1 or beyond it.
    """
    require_positive(batch_tokens=batch_tokens)
    if lengths and not 1 <= min(lengths) <= max(lengths) <= batch_tokens:
        wrong = max(lengths) if min(lengths) >= 1 else min(lengths)
        raise ValueError(f"lengths must lie in 1..{batch_tokens}, got {wrong}")
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        # Lengths rise: the newcomer is the longest of its batch.
        if not batches or (len(batches[-1]) + 1) * lengths[index] > batch_tokens:
            batches.append([])
        batches[-1].append(index)
    return batches


def batches_by_tokens(
    lengths: Sequence[int], batch_tokens: int, rng: random.Random
) -> list[list[int]]:
    """Token batching: random batches of similar length, as `split_by_tokens` cuts them.

    Which of equal lengths share a batch is random, and so is the order of the batches.

    Raises:
        ValueError: for `batch_tokens` below 1, or a length below 1 or beyond it.
    """
    order = list(range(len(lengths)))
    rng.shuffle(order)
    batches = [
        [order[place] for place in batch]
        for batch in split_by_tokens([lengths[index] for index in order], batch_tokens)
    ]
    rng.shuffle(batches)
    return batches
