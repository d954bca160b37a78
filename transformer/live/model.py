"""A translator's model as data that a page can hold: sizes, words, weights."""

import base64
import copy
import dataclasses
import json
import os
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transformer.checks import with_article
from transformer.decoding.beam import beam_search
from transformer.decoding.search import greedy_search
from transformer.decoding.support import unwrap
from transformer.decoding.translator import Translator
from transformer.live.pieces import read_pieces
from transformer.model import Transformer
from transformer.phrasebook.grammar import (
    BEFORE_VOWEL,
    phrasebook_tokenizers,
    sample_pairs,
    word_kinds,
)
from transformer.positional import sinusoids
from transformer.pretrained.marian import Marian, MarianTokenizer
from transformer.text.multi30k import read_pairs
from transformer.text.subwords import SubwordTokenizer
from transformer.text.words import (
    EOS_ID,
    Tokenizer,
    Vocabulary,
    WordTokenizer,
    detokenize,
)
from transformer.training.run_folder import read_run
from transformer.weights.classes import registered_class, require_known_parts

__all__ = [
    "LIMIT",
    "Explorable",
    "as_translator",
    "describe",
    "describe_model",
    "describe_tokenizer",
    "half_precision",
    "known_sentences",
    "pack",
    "plain_twin",
]

LIMIT = 20_000_000  # parameters: 53 MB of text in half precision

Explorable = Translator | nn.Module | str | os.PathLike[str]

# What engine.js computes with; a field that a config has beside these, it would ignore.
SETTINGS = {
    "source_vocab_size",
    "target_vocab_size",
    "d_model",
    "num_heads",
    "num_encoder_layers",
    "num_decoder_layers",
    "d_ff",
    "dropout",
    "norm_first",
    "tie_embeddings",
    "pad_id",
    "bos_id",
    "eos_id",
    "max_length",
}
KINDS: dict[Any, set[str]] = {
    Transformer: SETTINGS,
    Marian: SETTINGS | {"activation"},
}

EXAMPLES = (
    "Jane visite l'Afrique en septembre",
    "Jane vend sa voiture",
    "Paul vend sa voiture",
    "Elle ne veut pas sa vieille robe rouge",
    "Il a deux chats noirs",
    "Le grand chien noir aime le petit chat blanc",
)


def as_translator(model: Explorable) -> Translator:
    """A translator, or what makes one: a file, a run's folder, or a model alone.

    The words of a model alone are its ids.

    Raises:
        ValueError: for a file that `Translator.load` refuses, or a model whose special
            ids are not the usual ones.
    """
    if isinstance(model, Translator):
        return model
    if not isinstance(model, nn.Module):
        return Translator.load(model)
    config = unwrap(model).config
    sizes = config.source_vocab_size, config.target_vocab_size
    first, second = (
        WordTokenizer(Vocabulary(map(str, range(3, size)))) for size in sizes
    )
    return Translator(model, first, second, ("ids", "ids"))


def known_sentences(translator: Translator, model: Explorable) -> list[str]:
    """Sentences to try: of the phrasebook's grammar, or what a run was validated on.

    `model` is what the translator was made of: the file or folder of a run, perhaps.
    """
    if _is_phrasebook(translator):
        drawn = [detokenize(french) for french, _ in sample_pairs(200, 0)]
        return [each for each in drawn if _can_read(translator, each)]
    if _reads_words(translator):
        return []
    if isinstance(model, Translator | nn.Module):
        return []
    path = Path(model)
    folder = path.parent if path.is_file() else path
    if not (folder / "run.json").is_file():
        return []
    run = read_run(folder)
    if not isinstance(run.data, str):  # no folder with sentences of two languages
        return []
    try:
        pairs = read_pairs(run.data, run.text, "val", *run.languages)
    except (ValueError, OSError):  # they were moved, or are not on this machine
        return []
    return [each for each, _ in pairs[:200] if _can_read(translator, each)]


def describe(
    model: Explorable, sentences: Sequence[str] | None = None, title: str | None = None
) -> dict[str, Any]:
    """All that a page needs to run a translator: model, tokenizers, sentences to try.

    Weights are in half precision if that changes the greedy and the beam translation of
    none of the sentences, of each the first 34 tokens (random ids where there are no
    sentences), else in float32.

    Raises:
        ValueError: for a model that is too large or computes something else than the
            book's, or a tokenizer that is not the book's.
    """
    translator = as_translator(model)
    _require_size(translator.model)
    if sentences is None:
        sentences = known_sentences(translator, model)
    source = describe_tokenizer(translator.source_tokenizer)
    target = describe_tokenizer(translator.target_tokenizer)
    encoded = []
    for sentence in sentences:
        ids = translator.encode(sentence)
        if ids:
            encoded.append(ids)
    described = describe_model(translator.model, encoded)
    few = list(dict.fromkeys(sentences))
    examples: list[str] = []
    if isinstance(translator.source_tokenizer, WordTokenizer):
        examples = [each for each in EXAMPLES if _can_read(translator, each)]
    examples = examples or few[:6] or [_example(translator)]
    return {
        "title": title or "The live model",
        "languages": list(translator.languages),
        "source": source,
        "target": None if source == target else target,
        "examples": examples,
        "sentences": few[:60],
        **_menus(translator),
        **described,
    }


def _is_phrasebook(translator: Translator) -> bool:
    """Whether its words are those of the phrasebook's grammar."""
    words = [each.to_json() for each in phrasebook_tokenizers()]
    both = translator.source_tokenizer, translator.target_tokenizer
    return _reads_words(translator) and [each.to_json() for each in both] == words


def _reads_words(translator: Translator) -> bool:
    both = translator.source_tokenizer, translator.target_tokenizer
    return [type(each) for each in both] == [WordTokenizer] * 2


def _menus(translator: Translator) -> dict[str, Any]:
    """The kinds of the words with what they mean, where the grammar knows them."""
    if not _is_phrasebook(translator):
        return {}
    return {"kinds": word_kinds(), "elided": BEFORE_VOWEL}


def _can_read(translator: Translator, sentence: str) -> bool:
    try:
        return bool(translator.encode(sentence))
    except ValueError:  # an unknown word, or too many
        return False


def _example(translator: Translator) -> str:
    """A sentence that the model can read, for one that comes without any.

    Raises:
        ValueError: where the tokenizer can read none of its own words.
    """
    tokenizer = translator.source_tokenizer
    candidates: Iterable[str]
    if isinstance(tokenizer, WordTokenizer):
        words = [each for each in tokenizer.vocabulary if _can_read(translator, each)]
        candidates = (detokenize(words[:count]) for count in (4, 3, 2, 1))
    else:
        first, end = EOS_ID + 1, tokenizer.vocab_size
        runs = [range(max(first, end - count), end) for count in range(6, 0, -1)]
        runs += [range(index, index + 1) for index in reversed(range(first, end))]
        candidates = (tokenizer.decode(run) for run in runs)
    for sentence in candidates:
        if _can_read(translator, sentence):
            return sentence
    raise ValueError(
        "the source tokenizer can read none of its own words, and there are no "
        "sentences to show"
    )


def describe_model(
    model: nn.Module, sources: Sequence[Sequence[int]] = ()
) -> dict[str, Any]:
    """A model's config and weights; in half precision if `describe` would choose it.

    Raises:
        ValueError: for a model that is too large or computes something else than the
            book's.
    """
    inner = unwrap(model)
    config = inner.config
    ids = torch.tensor(_random(inner, 1, 5))
    target = torch.tensor([[config.bos_id] * min(3, config.max_length)])
    kind: Any = registered_class(type(inner))
    if kind not in KINDS:
        name = with_article(type(inner).__name__)
        raise ValueError(f"the page runs a Transformer or a Marian, got {name}")
    plain = plain_twin(inner, kind, KINDS[kind], ids, target)
    half = _same_words(plain, sources or _random(plain))
    (eps,) = {m.eps for m in plain.modules() if isinstance(m, nn.LayerNorm)}
    return {
        "config": dataclasses.asdict(config),
        "eps": eps,
        "parameters": sum(weight.numel() for weight in plain.parameters()),
        **pack(_tensors(plain), half),
    }


def pack(named: Iterable[tuple[str, Tensor]], half: bool) -> dict[str, Any]:
    """Tensors as a page can hold them: names, shapes, and all numbers as one text."""
    tensors, chunks = [], []
    dtype = torch.float16 if half else torch.float32
    for name, tensor in named:
        tensors.append([name, list(tensor.shape)])
        chunks.append(tensor.to(dtype).contiguous().numpy().tobytes())
    return {
        "dtype": "float16" if half else "float32",
        "tensors": tensors,
        "weights": base64.b64encode(b"".join(chunks)).decode(),
    }


def _tensors(model: Transformer) -> Iterable[tuple[str, Tensor]]:
    """What the page cannot work out: tied tables once, sinusoids not at all."""
    config, state = model.config, model.state_dict()
    usual = sinusoids(config.max_length, config.d_model)
    for name, tensor in state.items():
        tied = name in ("target_embedding.table.weight", "output.weight")
        if config.tie_embeddings and tied:
            continue
        if name == "position.table" and tensor.equal(usual):
            continue
        yield name, tensor


def _require_size(model: nn.Module) -> None:
    size = sum(weight.numel() for weight in model.parameters())
    if size > LIMIT:
        raise ValueError(
            f"the model has {size:,} parameters, in a page {size * 8 / 3e6:.0f} MB; "
            f"the limit is {LIMIT:,} parameters, {LIMIT * 8 / 3e6:.0f} MB"
        )


def plain_twin(
    model: Any, kind: Callable[[Any], Any], settings: set[str], *inputs: Tensor
) -> Any:
    """The book's modules with a model's weights, in float32 on the CPU.

    `kind` makes them from the config, all of whose fields are to be among `settings`;
    both must make the same of the `inputs`.

    Raises:
        ValueError: for a model that is too large, or that computes something else.
    """
    _require_size(model)
    require_known_parts(model, "the page")
    for setting in dataclasses.asdict(model.config):
        if setting not in settings:
            raise ValueError(f"the page does not know the setting {setting!r}")
    plain = kind(model.config).eval()
    try:
        plain.load_state_dict(model.state_dict())
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"the page runs the book's modules alone: {reason}") from None
    where = next(model.parameters())
    copied = copy.deepcopy(model).eval()
    with torch.no_grad():
        theirs = copied(*(each.to(where.device) for each in inputs)).float().cpu()
        ours = plain(*inputs)
    exact = where.dtype in (torch.float32, torch.float64)
    near = 1e-3 if exact else 0.1 * float(ours.abs().max())
    if not (theirs - ours).abs().max() <= near:
        raise ValueError(
            "the page runs the book's modules alone, and this model computes something "
            "else: are there hooks on its modules?"
        )
    return plain


def half_precision(model: Any, written: Callable[[Any], Sequence[object]]) -> bool:
    """Whether half precision holds the weights and changes nothing that is `written`.

    Weights that it holds exactly need no trial.
    """
    rounded, exact = copy.deepcopy(model), True
    for weight in rounded.parameters():
        before = weight.data
        weight.data = before.half().float()
        if not weight.isfinite().all():
            return False
        exact = exact and weight.data.equal(before)
    return exact or written(rounded) == written(model)


def _random(model: Transformer, count: int = 100, longest: int = 12) -> list[list[int]]:
    """Sources of random ids, for a model whose sentences are not known."""
    config, draw = model.config, random.Random(0)
    special = {config.pad_id, config.bos_id, config.eos_id}
    ids = [i for i in range(config.source_vocab_size) if i not in special] or [
        config.bos_id
    ]
    longest = min(longest, config.max_length)
    return [
        draw.choices(ids, k=draw.randint(min(3, longest), longest))
        for _ in range(count)
    ]


def _same_words(model: Transformer, sources: Sequence[Sequence[int]]) -> bool:
    """Whether half precision leaves every translation as it was, for 34 tokens."""
    length = min(model.config.max_length, 34)
    searches = greedy_search, beam_search
    return half_precision(
        model, lambda each: [search(each, sources, length) for search in searches]
    )


def _describe_marian(found: dict[str, Any], size: int) -> dict[str, Any]:
    """The pieces by their ids; for a source also how a sentence is cut."""
    pieces, vocabulary = [""] * size, found["vocabulary"]
    for piece, index in vocabulary.items():
        pieces[index] = piece
    cut: dict[str, Any] = {"scores": [], "charsmap": ""}
    if found["is_source"]:
        cut = read_pieces(base64.b64decode(found["model"]))
    return {
        "kind": "marian",
        "pieces": pieces,
        "special": found["special_ids"],
        "unknown": vocabulary["<unk>"],
        **cut,
    }


def describe_tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    """What the page needs of a tokenizer.

    Raises:
        ValueError: for one that is not the book's.
    """
    if not isinstance(tokenizer, WordTokenizer | SubwordTokenizer | MarianTokenizer):
        kind = type(tokenizer).__name__
        raise ValueError(f"the page reads words or subwords, got {with_article(kind)}")
    found = json.loads(tokenizer.to_json())
    if isinstance(tokenizer, WordTokenizer):
        return {"kind": "words", "words": found["words"]}
    if isinstance(tokenizer, MarianTokenizer):
        return _describe_marian(found, tokenizer.vocab_size)
    inner = found["tokenizer"]
    model, before = inner["model"], inner["pre_tokenizer"]
    steps = [each["type"] for each in before.get("pretokenizers", [before])]
    usual = ["Metaspace"] if tokenizer.text == "tok" else ["Metaspace", "Split"]
    if model["type"] != "BPE" or steps != usual:
        raise ValueError(
            f"the page reads byte pairs split by {' and '.join(usual)}, "
            f"got {model['type']} split by {' and '.join(steps)}"
        )
    return {
        "kind": "subwords",
        "text": tokenizer.text,
        "pieces": sorted(model["vocab"], key=model["vocab"].__getitem__),
        "merges": [" ".join(pair) for pair in model["merges"]],
    }
