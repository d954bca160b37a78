"""Made from book/13-decoding.md: edit the chapter, not this file."""

import json
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import torch

from transformer.data import (
    BOS,
    EOS,
    PAD,
    Vocabulary,
    detokenize,
    lower_first,
    pad,
    tokenize,
)
from transformer.embedding import require_positive
from transformer.masks import padding_mask
from transformer.model import Transformer, read_checkpoint

__all__ = [
    "greedy_search",
    "Translator",
]


@torch.inference_mode()
def greedy_search(
    model: Transformer, source_ids: Sequence[Sequence[int]], max_length: int
) -> list[list[int]]:
    """Translate sentences together, each time taking the likeliest next word.

    The sources may differ in length. Each target has at most `max_length` ids, without
    bos, eos and padding; one that reaches no end is cut there.

    Raises:
        ValueError: for no sources, an empty one, ids that the model does not know, or a
            `max_length` below 1 or beyond the model's table.
    """
    config = model.config
    require_positive(max_length=max_length)
    if max_length > config.max_length:
        raise ValueError(
            f"max_length must be at most {config.max_length}, the positions that the "
            f"model has, got {max_length}"
        )
    if not source_ids or not all(source_ids):
        lengths = [len(ids) for ids in source_ids]
        raise ValueError(f"every source needs at least one id, got lengths {lengths}")
    device = next(model.parameters()).device
    source = pad(source_ids, config.pad_id).to(device)
    was_training = model.training
    model.eval()
    try:
        memory = model.encode(source)  # once: the source does not change
        source_mask = padding_mask(source, config.pad_id)
        target = source.new_full((len(source), 1), config.bos_id)
        ended = torch.zeros(len(source), dtype=torch.bool, device=device)
        for _ in range(max_length):
            hidden = model.decode(target, memory, source_mask)
            logits = model.output(hidden[:, -1])
            logits[:, [config.pad_id, config.bos_id]] = float("-inf")  # never said
            chosen = logits.argmax(dim=-1).masked_fill(ended, config.pad_id)
            target = torch.cat((target, chosen[:, None]), dim=1)
            ended |= chosen == config.eos_id
            if ended.all():
                break
    finally:
        model.train(was_training)
    silent = (config.pad_id, config.eos_id)
    return [[i for i in ids if i not in silent] for ids in target[:, 1:].tolist()]


class Translator:
    """A model with the words of both its languages: sentences in, sentences out.

    Raises:
        ValueError: when a vocabulary has another size than the model's table.
    """

    def __init__(
        self, model: Transformer, source: Vocabulary, target: Vocabulary
    ) -> None:
        config = model.config
        sizes = config.source_vocab_size, config.target_vocab_size
        if (source.size, target.size) != sizes:
            raise ValueError(
                f"the model has tables of {sizes[0]} and {sizes[1]} ids, "
                f"but the vocabularies have {source.size} and {target.size}"
            )
        special = config.pad_id, config.bos_id, config.eos_id
        if special != (PAD, BOS, EOS):
            wanted = (PAD, BOS, EOS)
            raise ValueError(f"pad, bos and eos must be {wanted}, got {special}")
        self.model = model.eval()
        self.source = source
        self.target = target

    @classmethod
    def phrasebook(cls) -> "Translator":
        """The translator that ships with this package, trained as chapter 12 does."""
        weights = resources.files("transformer") / "weights" / "phrasebook.safetensors"
        return cls.load(str(weights))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Translator":
        """Read a translator that `save` wrote.

        Raises:
            ValueError: for a file that is missing, damaged or not ours, or that does
                not say what its model's words are.
        """
        _, notes = read_checkpoint(Path(path))
        if not {"source_words", "target_words"} <= notes.keys():
            raise ValueError(f"{path} holds a model without its words")
        try:
            source, target = (
                Vocabulary(json.loads(notes[side]))
                for side in ("source_words", "target_words")
            )
            return cls(Transformer.load(path), source, target)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write model and words to one safetensors file, whole or not at all."""
        words = {
            "source_words": json.dumps(list(self.source), ensure_ascii=False),
            "target_words": json.dumps(list(self.target), ensure_ascii=False),
        }
        self.model.save(path, words)

    def read(self, sentence: str) -> list[int]:
        """The ids of a sentence.

        Raises:
            ValueError: when it is empty, too long, or has a word that is not known.
        """
        words = tokenize(sentence)
        longest = self.model.config.max_length
        if len(words) > longest:
            raise ValueError(
                f"a sentence has at most {longest} words, got {len(words)}"
            )
        return self.source.encode(lower_first(words, self.source))

    def translate(self, sentence: str) -> str:
        """The translation of a sentence, by greedy search.

        Raises:
            ValueError: when it is empty, too long, or has a word that is not known.
        """
        longest = self.model.config.max_length
        (ids,) = greedy_search(self.model, [self.read(sentence)], longest)
        return detokenize(self.target.decode(ids))
