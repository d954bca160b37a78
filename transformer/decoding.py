"""Made from book/13-decoding.md: edit the chapter, not this file."""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

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
from transformer.decoder import DecoderLayer
from transformer.embedding import require_positive
from transformer.masks import padding_mask
from transformer.model import Transformer, read_checkpoint
from transformer.multi_head import KeysValues

__all__ = [
    "extend",
    "layer_step",
    "layers_of",
    "Cache",
    "next_logits",
    "ready",
    "rule_out",
    "speaking",
    "speak",
    "greedy_search",
    "nucleus",
    "sample",
    "Beginning",
    "grow",
    "penalised",
    "require_beam",
    "beam_search",
    "Translator",
]


def extend(past: KeysValues, new: KeysValues, place: int) -> KeysValues:
    """Write one position's keys and values behind the earlier ones; give back all."""
    rows = len(new.keys)
    for store, fresh in zip(past, new, strict=True):
        store[:rows, :, place : place + 1] = fresh
    return KeysValues(*(store[:rows, :, : place + 1] for store in past))


def layer_step(
    layer: DecoderLayer,
    x: Float[Tensor, "rows 1 d_model"],
    past: KeysValues,
    place: int,
    memory: KeysValues,
    source_mask: Bool[Tensor, "rows 1 1 source"],
) -> Float[Tensor, "rows 1 d_model"]:
    """A decoder layer at one new position: its residuals, given other closures."""

    def look_back(x: Tensor) -> Tensor:
        own = layer.self_attention.keys_values(x, x)
        return layer.self_attention.attend(x, extend(past, own, place))

    x = layer.residuals[0](x, look_back)
    x = layer.residuals[1](
        x, lambda x: layer.cross_attention.attend(x, memory, source_mask)
    )
    return layer.residuals[2](x, layer.feed_forward)


def layers_of(model: Transformer) -> Iterable[DecoderLayer]:
    """The decoder's layers, as what they are."""
    return cast("Iterable[DecoderLayer]", model.decoder.layers)


@dataclass
class Cache:
    """The keys and values that a decoder need not compute again, for each layer.

    `memory` holds those of each row's source. `past` holds those of the words said, in
    stores that have room for all that may come; `place` counts the positions filled.
    `owner` says which source a row answers.
    """

    memory: list[KeysValues]
    source_mask: Bool[Tensor, "rows 1 1 source"]
    past: list[KeysValues]
    owner: Int[Tensor, "rows"]
    place: int = 0

    @classmethod
    def read(
        cls,
        model: Transformer,
        source: Int[Tensor, "rows source"],
        room: int,
        beam_size: int = 1,
    ) -> "Cache":
        """Encode the sources, once, and make room for `beam_size` answers to each."""
        encoded = model.encode(source)
        memory = [
            layer.cross_attention.keys_values(encoded, encoded)
            for layer in layers_of(model)
        ]
        heads = model.config.num_heads
        shape = beam_size * len(source), heads, room, model.config.d_model // heads
        past = [
            KeysValues(encoded.new_empty(shape), encoded.new_empty(shape))
            for _ in memory
        ]
        mask = padding_mask(source, model.config.pad_id)
        return cls(memory, mask, past, torch.arange(len(source), device=source.device))

    def keep(self, rows: Int[Tensor, "kept"]) -> None:
        """Go on with these rows, in this order; one may come twice, or not at all."""
        for past in self.past:
            for store in past:
                store[: len(rows), :, : self.place] = store[rows, :, : self.place]
        owner = self.owner[rows]
        if not owner.equal(self.owner):  # else each row has its source's memory already
            self.owner, self.source_mask = owner, self.source_mask[rows]
            self.memory = [
                KeysValues(keys[rows], values[rows]) for keys, values in self.memory
            ]


def next_logits(
    model: Transformer, words: Int[Tensor, "rows"], cache: Cache
) -> Float[Tensor, "rows vocabulary"]:
    """Give each row its newest word, and hear how it might go on."""
    x = model.position(model.target_embedding(words[:, None]), start=cache.place)
    for layer, past, memory in zip(
        layers_of(model), cache.past, cache.memory, strict=True
    ):
        x = layer_step(layer, x, past, cache.place, memory, cache.source_mask)
    cache.place += 1
    return model.output(model.decoder.norm(x))[:, 0]


def ready(
    model: Transformer, source_ids: Sequence[Sequence[int]], max_length: int
) -> Int[Tensor, "sources length"]:
    """The sources as a batch where the model is.

    Raises:
        ValueError: for no sources, an empty one, or a `max_length` below 1 or beyond
            the model's table.
    """
    require_positive(max_length=max_length)
    longest = model.config.max_length
    if max_length > longest:
        raise ValueError(
            f"max_length must be at most {longest}, the positions that the "
            f"model has, got {max_length}"
        )
    if not source_ids or not all(source_ids):
        lengths = [len(ids) for ids in source_ids]
        raise ValueError(f"every source needs at least one id, got lengths {lengths}")
    return pad(source_ids, model.config.pad_id).to(next(model.parameters()).device)


def rule_out(model: Transformer, scores: Tensor) -> Tensor:
    """Padding and bos are never said, however the model scores them."""
    scores[..., [model.config.pad_id, model.config.bos_id]] = -math.inf
    return scores


@contextmanager
def speaking(model: Transformer) -> Iterator[None]:
    """No dropout and no gradients for a while; then the model is as it was."""
    learning = [part for part in model.modules() if part.training]
    try:
        for part in learning:
            part.training = False
        with torch.inference_mode():
            yield
    finally:
        for part in learning:
            part.training = True


def speak(
    model: Transformer,
    source_ids: Sequence[Sequence[int]],
    max_length: int,
    choose: Callable[[Tensor], Tensor],
) -> list[list[int]]:
    """Answer sentences together, a word a turn; a row that ends leaves the batch.

    `choose` is given logits, (rows, vocabulary), and names each row's next word.
    """
    source = ready(model, source_ids, max_length)
    answers: list[list[int]] = [[] for _ in source_ids]
    with speaking(model):
        cache = Cache.read(model, source, max_length)
        speakers = torch.arange(len(source), device=source.device)
        words = torch.full_like(speakers, model.config.bos_id)
        for _ in range(max_length):
            logits = next_logits(model, words, cache)
            words = choose(rule_out(model, logits))
            going = (words != model.config.eos_id).nonzero().squeeze(1)
            if len(going) < len(speakers):
                cache.keep(going)
                speakers, words = speakers[going], words[going]
            for speaker, word in zip(speakers.tolist(), words.tolist(), strict=True):
                answers[speaker].append(word)
            if not len(going):
                break
    return answers


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
    return speak(model, source_ids, max_length, lambda logits: logits.argmax(dim=-1))


def nucleus(
    chances: Float[Tensor, "*rows vocabulary"], top_p: float
) -> Float[Tensor, "*rows vocabulary"]:
    """Only the likeliest words that together reach `top_p`, sharing all the chance."""
    ranked, order = chances.sort(dim=-1, descending=True)
    before = ranked.cumsum(dim=-1) - ranked  # held by likelier words
    ranked = ranked.masked_fill(before >= top_p, 0.0)
    kept = torch.zeros_like(chances).scatter(-1, order, ranked)
    return kept / kept.sum(dim=-1, keepdim=True)


def sample(
    model: Transformer,
    source_ids: Sequence[Sequence[int]],
    max_length: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    generator: torch.Generator | None = None,
) -> list[list[int]]:
    """Answer sentences together, drawing each next word by its probability.

    A `temperature` below 1 sharpens the probabilities, one above 1 evens them out.
    Only the likeliest words that together hold `top_p` can be drawn. The generator, if
    any, must be on the model's device. Answers are cut as in `greedy_search`.

    Raises:
        ValueError: for a temperature that is not above 0 and finite, `top_p` outside
            (0, 1], and whatever `greedy_search` refuses.
    """
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be above 0 and finite, got {temperature}")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p must lie in (0, 1], got {top_p}")

    def draw(logits: Tensor) -> Tensor:
        chances = nucleus((logits / temperature).softmax(dim=-1), top_p)
        return torch.multinomial(chances, 1, generator=generator).squeeze(1)

    return speak(model, source_ids, max_length, draw)


class Beginning(NamedTuple):
    """The start of an answer to the source numbered `speaker`.

    `total` is its log-probability, `said` its ids with bos, and `row` the row of the
    batch that said all but the last of them.
    """

    total: float
    said: list[int]
    row: int
    speaker: int


def grow(
    beginnings: Sequence[Beginning],
    log_chances: Float[Tensor, "rows vocabulary"],
    beam_size: int,
) -> Iterator[Beginning]:
    """Each beginning with each of its `beam_size` likeliest next words."""
    best = log_chances.topk(min(beam_size, log_chances.size(-1)))
    rows = zip(beginnings, best.values.tolist(), best.indices.tolist(), strict=True)
    for row, (beginning, chances, words) in enumerate(rows):
        for chance, word in zip(chances, words, strict=True):
            if chance > -math.inf:
                total, said = beginning.total + chance, [*beginning.said, word]
                yield Beginning(total, said, row, beginning.speaker)


def penalised(total: float, length: int, length_penalty: float) -> float:
    """A log-probability over ((5 + length) / 6)^α (Wu et al. 2016)."""
    return total / ((5 + length) / 6) ** length_penalty


def require_beam(beam_size: int, length_penalty: float) -> None:
    """Refuse what no beam search could follow.

    Raises:
        ValueError: for a `beam_size` that is no whole number of at least 1, or a
            `length_penalty` that is not finite or below 0.
    """
    require_positive(beam_size=beam_size)
    if not 0 <= length_penalty < math.inf:
        raise ValueError(
            f"length_penalty must be finite and at least 0, got {length_penalty}"
        )


def beam_search(
    model: Transformer,
    source_ids: Sequence[Sequence[int]],
    max_length: int,
    beam_size: int = 4,
    length_penalty: float = 0.6,
) -> list[list[int]]:
    """Translate sentences together, each with its `beam_size` best beginnings in play.

    Each turn keeps the likeliest continuations. One that ends is put aside and closes
    its place; when all places are closed, the best by `penalised` is the answer, its
    length counting the end. Answers are cut as in `greedy_search`, which is a beam of
    1; one that is cut is given only where none has ended.

    Raises:
        ValueError: for a `beam_size` that is no whole number of at least 1, a
            `length_penalty` that is not finite or below 0, and whatever
            `greedy_search` refuses.
    """
    require_beam(beam_size, length_penalty)
    source = ready(model, source_ids, max_length)
    bos, eos = model.config.bos_id, model.config.eos_id
    alive = [Beginning(0.0, [bos], row, row) for row in range(len(source))]
    ended: list[list[Beginning]] = [[] for _ in source_ids]
    with speaking(model):
        cache = Cache.read(model, source, max_length, beam_size)
        for _ in range(max_length):
            newest = source.new_tensor([beginning.said[-1] for beginning in alive])
            logits = next_logits(model, newest, cache)
            grown: list[list[Beginning]] = [[] for _ in source_ids]
            log_chances = rule_out(model, logits.log_softmax(dim=-1))
            for beginning in grow(alive, log_chances, beam_size):
                grown[beginning.speaker].append(beginning)
            alive = []
            for candidates, done in zip(grown, ended, strict=True):
                places = beam_size - len(done)
                for beginning in sorted(candidates, reverse=True)[:places]:
                    (done if beginning.said[-1] == eos else alive).append(beginning)
            if not alive:
                break
            cache.keep(source.new_tensor([beginning.row for beginning in alive]))

    def worth(beginning: Beginning) -> float:
        return penalised(beginning.total, len(beginning.said) - 1, length_penalty)

    for beginning in alive:  # cut, the best first: they count where nothing has ended
        if not ended[beginning.speaker]:
            ended[beginning.speaker].append(beginning)
    answers = [max(found, key=worth).said for found in ended]
    return [[index for index in ids if index not in (bos, eos)] for ids in answers]


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
        except (AttributeError, RecursionError, TypeError, ValueError) as error:
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

    def translate(
        self, sentence: str, beam_size: int = 1, length_penalty: float = 0.6
    ) -> str:
        """The translation of a sentence, by beam search; a beam of 1 is greedy.

        Raises:
            ValueError: when it is empty, too long, or has a word that is not known, and
                for what `beam_search` refuses.
        """
        longest, source = self.model.config.max_length, [self.read(sentence)]
        (ids,) = beam_search(self.model, source, longest, beam_size, length_penalty)
        return detokenize(self.target.decode(ids))
