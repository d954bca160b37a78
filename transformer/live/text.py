"""A language model as data that a page can hold: sizes, tokenizer, weights."""

import dataclasses
import html
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from transformer.beyond.gpt2 import GPT2
from transformer.beyond.language_model import LanguageModel, PromptDecoder
from transformer.beyond.llama import Llama
from transformer.beyond.modern import RMSNorm
from transformer.beyond.text_generator import TextGenerator, decode_text, encode_text
from transformer.checks import with_article
from transformer.decoding.search import greedy_search
from transformer.decoding.support import unwrap_to
from transformer.decoding.translator import Translator
from transformer.live.model import (
    Explorable,
    describe_tokenizer,
    half_precision,
    pack,
    plain_twin,
)
from transformer.positional import sinusoids
from transformer.pretrained.generator import LibraryTokenizer, PretrainedGenerator
from transformer.pretrained.llama2c import Llama2cTokenizer
from transformer.text.subwords import SubwordTokenizer
from transformer.weights.classes import registered_class

__all__ = [
    "LONGEST",
    "Readable",
    "Writer",
    "describe_text",
    "describe_text_model",
    "open_model",
    "text_still",
]

Writer = TextGenerator | PretrainedGenerator | LanguageModel
Readable = Explorable | TextGenerator | PretrainedGenerator
PROMPTS = ("Once upon a time, there was a little", "It was a", "The")
LONGEST = 256  # tokens that a page reads: its maps grow with the square

# What text.js computes with.
SETTINGS = {
    "vocab_size",
    "d_model",
    "num_heads",
    "num_layers",
    "d_ff",
    "dropout",
    "norm_first",
    "max_length",
    "eos_id",
    "num_kv_heads",
    "rope_base",
    "norm_eps",
    "tie_embeddings",
}
KINDS = {LanguageModel: "LanguageModel", GPT2: "GPT2", Llama: "Llama"}


def open_model(model: Readable) -> Writer | Translator | nn.Module:
    """What a page is to show: a file or folder is read, once, for what it holds.

    A language model is what it is also in a wrapper; any other module stays as given.

    Raises:
        FileNotFoundError: naming the first file that is missing.
        ValueError: for a file that neither `Translator.load` nor a loader of language
            models can read, with what the first of them says.
    """
    if isinstance(model, Translator | TextGenerator | PretrainedGenerator):
        return model
    if isinstance(model, nn.Module):
        try:
            return unwrap_to(LanguageModel, model)
        except ValueError:
            return model
    path = Path(model)
    if PretrainedGenerator.reads(path):
        return PretrainedGenerator.load(path)
    try:
        return Translator.load(path)
    except (ValueError, TypeError, OSError) as error:
        try:
            return TextGenerator.load(path)
        except (ValueError, TypeError, OSError):
            raise error from None


def describe_text(
    writer: Writer, prompts: Sequence[str] | None = None, title: str | None = None
) -> dict[str, Any]:
    """All that a page needs to continue texts: model, tokenizer, texts to begin with.

    Weights are in half precision if that changes no token of what greedy search writes
    after the prompts, of each the first 34, else in float32.

    Raises:
        ValueError: for a model that is too large or computes something else than the
            book's, a tokenizer that the page cannot run, or a prompt without tokens.
    """
    model = writer if isinstance(writer, LanguageModel) else writer.model
    tokenizer = None if isinstance(writer, LanguageModel) else writer.tokenizer
    size = model.config.vocab_size
    described = _describe_tokenizer(tokenizer, size)
    if prompts is None:
        prompts = PROMPTS
        if described["kind"] == "ids":
            prompts = [" ".join(map(str, ids)) for ids in _random(model, 3)]
    encoded = [encode(tokenizer, prompt, size) for prompt in prompts]
    if not all(encoded):
        raise ValueError("a prompt needs at least one token, got none")
    room = min(LONGEST, model.config.max_length)
    fitting = [ids for ids in encoded if len(ids) < room]
    examples = [
        prompt for prompt, ids in zip(prompts, encoded, strict=True) if len(ids) < room
    ]
    return {
        "title": title or "The live model",
        "tokenizer": described,
        "prompts": examples[:6],
        "longest": room,
        **describe_text_model(model, fitting),
    }


def text_still(writer: Writer, prompts: Sequence[str]) -> str:
    """What greedy search writes after a prompt, and the likeliest tokens after that.

    It stands on the page where no script runs.
    """
    if not prompts:
        return ""
    model = writer if isinstance(writer, LanguageModel) else writer.model
    tokenizer = None if isinstance(writer, LanguageModel) else writer.tokenizer
    size = model.config.vocab_size
    ids = encode(tokenizer, prompts[0], size)
    length = min(24, model.config.max_length - len(ids))
    (new,) = greedy_search(PromptDecoder(model), [ids], length)
    written = [*ids, *new]
    where = next(model.parameters()).device
    with torch.no_grad():
        logits = model(torch.tensor([written], device=where))[0, -1].float().cpu()
    best = logits.softmax(dim=-1).topk(min(5, len(logits)))
    rows = "".join(
        f"<tr><td>{html.escape(decode(tokenizer, [index], size))}</td>"
        f"<td>{probability:.0%}</td></tr>"
        for probability, index in zip(
            best.values.tolist(), best.indices.tolist(), strict=True
        )
    )
    text = html.escape(decode(tokenizer, written, size))
    return (
        f"<p>{text}</p>\n<table><caption>What may come next</caption>{rows}</table>\n"
        "<noscript><p>To type a text of your own, allow this page its script.</p>"
        "</noscript>"
    )


def decode(tokenizer: Any, ids: Sequence[int], size: int) -> str:
    """The text of the ids: `encode` undone."""
    if tokenizer is None:
        known = size == 256
        return bytes(ids).decode(errors="replace") if known else " ".join(map(str, ids))
    if isinstance(tokenizer, SubwordTokenizer):
        return decode_text(tokenizer, ids)
    return str(tokenizer.decode(list(ids)))


def encode(tokenizer: Any, text: str, size: int) -> list[int]:
    """The ids of a text; without a tokenizer its numbers, or of 256 ids its bytes."""
    if tokenizer is None:
        return list(text.encode()) if size == 256 else [int(x) for x in text.split()]
    if isinstance(tokenizer, SubwordTokenizer):
        return encode_text(tokenizer, text)
    return list(tokenizer.encode(text))


def describe_text_model(
    model: LanguageModel, prompts: Sequence[Sequence[int]] = ()
) -> dict[str, Any]:
    """A language model's class, config and weights.

    Raises:
        ValueError: for a model that is too large or computes something else than the
            book's.
    """
    kind: Any = registered_class(type(model))
    if kind not in KINDS:
        name = with_article(type(model).__name__)
        raise ValueError(f"the page runs a LanguageModel, GPT2 or Llama, got {name}")
    plain = plain_twin(model, kind, SETTINGS, torch.tensor(_random(model, 1)))
    half = _same_tokens(plain, prompts or _random(plain))
    norms = (m for m in plain.modules() if isinstance(m, nn.LayerNorm | RMSNorm))
    (eps,) = {norm.eps for norm in norms}
    return {
        "kind": KINDS[kind],
        "config": dataclasses.asdict(plain.config),
        "eps": eps,
        "parameters": sum(weight.numel() for weight in plain.parameters()),
        **pack(_tensors(plain), half),
    }


def _tensors(model: LanguageModel) -> list[tuple[str, torch.Tensor]]:
    """What the page cannot work out: a tied table once, sinusoids not at all."""
    state = model.state_dict()
    tied = getattr(model.config, "tie_embeddings", isinstance(model, GPT2))
    left_out = {"output.weight"} if tied else set()
    sines = state.get("position.table")
    if sines is not None and sines.equal(sinusoids(*sines.shape)):
        left_out.add("position.table")
    return [(name, each) for name, each in state.items() if name not in left_out]


def _random(model: LanguageModel, count: int = 8) -> list[list[int]]:
    """Texts of random ids, for a model whose texts are not known."""
    draw, config = random.Random(0), model.config
    length = min(6, config.max_length)
    return [draw.choices(range(config.vocab_size), k=length) for _ in range(count)]


def _same_tokens(model: LanguageModel, prompts: Sequence[Sequence[int]]) -> bool:
    """Whether half precision leaves every continuation as it was, for 34 tokens."""
    room = model.config.max_length - max(map(len, prompts)) + 1
    length, ids = min(34, room), [list(each) for each in prompts]
    return half_precision(
        model, lambda each: greedy_search(PromptDecoder(each), ids, length)
    )


def _describe_tokenizer(tokenizer: Any, size: int) -> dict[str, Any]:
    """What the page needs of a language model's tokenizer.

    Raises:
        ValueError: for one that the page cannot run.
    """
    if tokenizer is None:
        return {"kind": "bytes"} if size == 256 else {"kind": "ids", "size": size}
    if isinstance(tokenizer, SubwordTokenizer):
        return describe_tokenizer(tokenizer)
    if isinstance(tokenizer, Llama2cTokenizer):
        pieces = [piece.decode("latin-1") for piece in tokenizer.pieces]
        return {"kind": "llama2c", "pieces": pieces, "scores": tokenizer.scores}
    if isinstance(tokenizer, LibraryTokenizer):
        return _describe_byte_level(json.loads(tokenizer._tokenizer.to_str()))
    kind = with_article(type(tokenizer).__name__)
    raise ValueError(
        f"the page reads the book's subwords, llama2.c's pieces and bytes, got {kind}"
    )


def _describe_byte_level(found: dict[str, Any]) -> dict[str, Any]:
    """A library's tokenizer, if it is of GPT-2's kind.

    Raises:
        ValueError: naming the step at which it is another one.
    """

    def kind(step: Any) -> str:
        # Today's `transformers` writes a template of the text alone for no step.
        alone = [{"Sequence": {"id": "A", "type_id": 0}}]
        if step is None or step.get("single") == alone:
            return "none"
        return str(step["type"])

    model, before = found["model"], found["pre_tokenizer"]
    steps = {
        "model": (model["type"], "BPE"),
        "normalizer": (kind(found["normalizer"]), "none"),
        "pre_tokenizer": (kind(before), "ByteLevel"),
        "decoder": (kind(found["decoder"]), "ByteLevel"),
        "post_processor": (kind(found["post_processor"]), "none ByteLevel"),
    }
    for step, (got, known) in steps.items():
        if got not in known.split():
            raise ValueError(
                f"of a library's tokenizers the page reads GPT-2's kind, whose {step} "
                f"is {' or '.join(known.split())}, got {got}"
            )
    added = found["added_tokens"]
    flags = ("single_word", "lstrip", "rstrip")
    if any(each[flag] for each in added for flag in flags) or not all(
        each["special"] for each in added
    ):
        raise ValueError("the page reads no added tokens but plain special ones")
    affixes = "continuing_subword_prefix", "end_of_word_suffix"
    for setting in ("dropout", "unk_token", *affixes, "ignore_merges"):
        if model.get(setting):
            raise ValueError(f"the page reads no byte pairs with {setting}")
    if not before.get("use_regex", True):
        raise ValueError("the page reads no byte pairs across words")
    ids = model["vocab"] | {each["content"]: each["id"] for each in added}
    pieces = [""] * (1 + max(ids.values()))
    for piece, index in ids.items():
        pieces[index] = piece
    pairs = (m.split(" ") if isinstance(m, str) else m for m in model["merges"])
    return {
        "kind": "bytelevel",
        "pieces": pieces,
        "merges": [" ".join(pair) for pair in pairs],
        "special": [each["content"] for each in added],
        "prefix": before["add_prefix_space"],
    }
