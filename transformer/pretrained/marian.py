"""Translators of the library transformers, MarianMT, in the Transformer of chapter 10.

Made from book/16-translation.md: edit the chapter, not this file.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transformer.checks import (
    InvalidType,
    InvalidValue,
    optional_import,
    require_bool,
    require_positive,
    with_article,
)
from transformer.model import Transformer, TransformerConfig
from transformer.positional import sinusoids
from transformer.pretrained.config import (
    end_id,
    layer_count,
    read_config,
    require_setting,
    require_tensors,
    setting,
)
from transformer.pretrained.generator import read_weights
from transformer.text.words import Tokenizer
from transformer.weights.classes import register_model
from transformer.weights.state import load_strictly, require_state_dict, shapes_only

__all__ = [
    "MarianConfig",
    "Marian",
    "from_marian",
    "to_marian",
    "MarianTokenizer",
    "read_marian",
]


_NAMES = (  # the longer first
    ("self_attn_layer_norm", "residuals.0.norm"),
    ("encoder_attn_layer_norm", "residuals.1.norm"),
    ("self_attn", "self_attention"),
    ("encoder_attn", "cross_attention"),
    ("q_proj", "query_proj"),
    ("k_proj", "key_proj"),
    ("v_proj", "value_proj"),
    ("out_proj", "output_proj"),
    ("fc1", "feed_forward.expand"),
    ("fc2", "feed_forward.contract"),
)
_LAST_NORM = {"encoder": "residuals.1.norm", "decoder": "residuals.2.norm"}
_ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU, "silu": nn.SiLU, "swish": nn.SiLU}
_TABLE, _BIAS = "model.shared.weight", "final_logits_bias"
_SAME_TABLE = ("lm_head", "model.encoder.embed_tokens", "model.decoder.embed_tokens")
_POSITIONS = ("model.encoder.embed_positions", "model.decoder.embed_positions")
_NEVER = -100.0  # the output's bias for our padding: it has no probability


def _config(settings: Mapping[str, Any], state: Mapping[str, Tensor]) -> "MarianConfig":
    """The config of our model."""
    size, start = setting(settings, "vocab_size"), setting(settings, "pad_token_id")
    require_positive(vocab_size=size)
    if (end := end_id(settings, size)) is None:
        raise InvalidValue("the config has no eos_token_id")
    require_setting(settings, "decoder_start_token_id", start)
    require_setting(settings, "decoder_vocab_size", size, None)
    for one in ("attention_heads", "ffn_dim"):
        same = setting(settings, f"encoder_{one}")
        require_setting(settings, f"decoder_{one}", same)
    require_setting({"scale_embedding": False, **settings}, "scale_embedding", True)
    for name in ("share_encoder_decoder_embeddings", "tie_word_embeddings"):
        require_setting(settings, name, True)
    for name in ("normalize_before", "normalize_embedding", "add_final_layer_norm"):
        require_setting(settings, name, False)
    for name in ("attention_dropout", "activation_dropout"):
        require_setting(settings, name, 0.0)
    activation = settings.get("activation_function", "gelu")
    require_setting(settings, "activation_function", *_ACTIVATIONS)
    return MarianConfig(
        source_vocab_size=size + 1,
        target_vocab_size=size + 1,
        d_model=setting(settings, "d_model"),
        num_heads=settings["encoder_attention_heads"],
        num_encoder_layers=layer_count(settings, "encoder_layers", state),
        num_decoder_layers=layer_count(settings, "decoder_layers", state),
        d_ff=settings["encoder_ffn_dim"],
        dropout=settings.get("dropout", 0.1),
        tie_embeddings=True,
        pad_id=size,
        bos_id=start,
        eos_id=end,
        max_length=settings.get("max_position_embeddings", 1024),
        activation=activation,
    )


def _reordered(name: str, weight: Tensor, order: Tensor) -> Tensor:
    """A weight with its features in another order, where it reads or writes vectors."""
    if any(part in name for part in ("out_proj", "fc2", "layer_norm")):
        return weight[order]  # rows: what it writes
    return weight[:, order] if weight.dim() == 2 else weight.clone()


@dataclass(frozen=True)
class MarianConfig(TransformerConfig):
    """Marian's configuration: a Transformer's, and the name of its activation.

    Raises:
        ValueError: naming the first field that no model could be built from.
    """

    tie_embeddings: bool = True
    activation: str = "swish"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.activation not in _ACTIVATIONS:
            names = ", ".join(_ACTIVATIONS)
            raise InvalidValue(
                f"activation must be one of {names}, got {self.activation!r:.40}"
            )
        if self.norm_first or not self.tie_embeddings:
            raise InvalidValue(
                "a Marian is post-norm and has one table, got "
                f"norm_first={self.norm_first}, tie_embeddings={self.tie_embeddings}"
            )


@register_model
class Marian(Transformer):
    """Marian (Junczys-Dowmunt et al. 2018): a Transformer with some parts exchanged.

    As in the library, training leaves the bias of the output as it is, and so it does
    the vector of the start token where that is read.
    """

    config: MarianConfig
    config_class = MarianConfig

    def __init__(self, config: MarianConfig) -> None:
        super().__init__(config)
        self.output = nn.Linear(config.d_model, config.target_vocab_size)
        nn.init.zeros_(self.output.bias).requires_grad_(False)
        for layer in (*self.encoder.layers, *self.decoder.layers):
            layer.feed_forward.activation = _ACTIVATIONS[config.activation]()
        for embedding in (self.source_embedding, self.target_embedding):
            embedding.table.padding_idx = config.bos_id
        self.tie_weights()


def _feature_order(width: int) -> Tensor:
    """Which of their features is our first, second, …: sines and cosines in turn."""
    halves = torch.arange(width).view(2, -1)
    return halves.t().flatten()


def from_marian(state: Mapping[str, Tensor], config: object) -> Marian:
    """Make a Marian of the weights and the config of a MarianMTModel.

    `state` is its `state_dict()`, or what a file of its weights holds; `config` is the
    model's `config`, a dictionary, or the path of its config.json. Ids stay what they
    are, and our padding is one more. The weights keep their dtype and are copied; the
    model is in evaluation mode.

    Raises:
        FileNotFoundError: for a path without a config.json.
        TypeError: for what is no config, or no tensor.
        ValueError: naming the first setting that this model cannot follow, and the
            first tensor that is missing, unknown, misshapen or of another dtype.
    """
    require_state_dict(state)
    ours = _config(read_config(config, "marian"), state)
    with shapes_only():
        model = Marian(ours)
    order = _feature_order(ours.d_model)
    theirs = _plain_names(state, ours)
    require_tensors(theirs, to_marian(model))
    table, bias = theirs.pop(_TABLE)[:, order], theirs.pop(_BIAS)[0]
    weights: dict[str, Tensor] = {}
    for name, weight in theirs.items():
        side = name.split(".")[1]
        our_name = name.removeprefix("model.")
        for their_part, our_part in (*_NAMES, ("final_layer_norm", _LAST_NORM[side])):
            our_name = our_name.replace(their_part, our_part)
        weights[our_name] = _reordered(name, weight, order)
    padding = table.new_zeros(1, ours.d_model)
    weights["output.weight"] = torch.cat([table, padding])
    for side in ("source", "target"):
        weights[f"{side}_embedding.table.weight"] = weights["output.weight"]
    weights["output.bias"] = torch.cat([bias, bias.new_tensor([_NEVER])])
    weights["position.table"] = sinusoids(ours.max_length, ours.d_model).to(table)
    load_strictly(model, weights)
    return model.eval()


def _plain_names(
    state: Mapping[str, Tensor], config: TransformerConfig
) -> dict[str, Tensor]:
    """Their weights as a file has them: the table once, and no positions."""
    for name, weight in state.items():
        if not isinstance(weight, Tensor):
            raise InvalidType(f"{name} is {with_article(type(weight).__name__)}")
    theirs = {name: weight.detach() for name, weight in state.items()}
    for name in (f"{one}.weight" for one in _SAME_TABLE):
        other = theirs.pop(name, None)
        if other is not None and not theirs.setdefault(_TABLE, other).equal(other):
            raise InvalidValue(f"{name} differs from {_TABLE}: they are one table")
    for name in (f"{one}.weight" for one in _POSITIONS):
        found = theirs.pop(name, None)
        sines = sinusoids(config.max_length, config.d_model)
        sines = torch.cat([sines[:, ::2], sines[:, 1::2]], dim=1)
        if found is not None and (
            found.shape != sines.shape
            or not torch.allclose(found.float().cpu(), sines, rtol=0, atol=0.01)
        ):
            raise InvalidValue(f"{name} are not the sines and cosines of the paper")
    if _TABLE in theirs and _BIAS not in theirs:
        theirs[_BIAS] = theirs[_TABLE].new_zeros(1, len(theirs[_TABLE]))
    return theirs


def to_marian(model: Marian) -> dict[str, Tensor]:
    """The weights of a Marian, as a file of MarianMT has them.

    Raises:
        ValueError: for anything but a Marian.
    """
    if not isinstance(model, Marian):
        kind = with_article(type(model).__name__)
        raise InvalidValue(f"to_marian needs a Marian, got {kind}")
    back = _feature_order(model.config.d_model).argsort()
    theirs: dict[str, Tensor] = {}
    for name, weight in model.state_dict().items():
        side = name.partition(".")[0]
        if side in _LAST_NORM:
            last = ("final_layer_norm", _LAST_NORM[side])
            for their_part, our_part in (last, *_NAMES):
                name = name.replace(our_part, their_part)
            theirs[f"model.{name}"] = _reordered(name, weight, back)
    theirs[_TABLE] = model.output.weight.detach()[:-1, back]
    theirs[_BIAS] = model.output.bias.detach()[None, :-1].clone()
    return theirs


class MarianTokenizer(Tokenizer):
    """One language's pieces, by SentencePiece, with the ids of a vocab.json.

    `model` is what a file of SentencePiece holds; `special_ids` are those of padding,
    start and end. A source's ids end with that of `</s>`. A piece without an id becomes
    `<unk>`. A code such as `>>fra<<` in front, which some translators into several
    languages need, stays whole.

    Raises:
        ImportError: without the package sentencepiece.
        ValueError: for bytes that are no model of SentencePiece, or a vocabulary
            without `<unk>` or with an id that is not below the padding's.
    """

    def __init__(
        self,
        model: bytes,
        vocabulary: Mapping[str, int],
        special_ids: tuple[int, int, int],
        is_source: bool,
    ) -> None:
        self.pad_id, self.bos_id, self.eos_id = special_ids
        require_bool(is_source=is_source)
        _require_vocabulary("the vocabulary", vocabulary, self.pad_id)
        self._pieces = optional_import("sentencepiece").SentencePieceProcessor()
        try:
            self._pieces.LoadFromSerializedProto(model)
        except RuntimeError:
            raise InvalidValue("the pieces are no model of SentencePiece") from None
        self._model, self._ids, self._is_source = model, vocabulary, is_source
        self._names = {index: piece for piece, index in vocabulary.items()}

    @property
    def vocab_size(self) -> int:
        """How many ids there are: our padding is one more than theirs."""
        return self.pad_id + 1

    def encode(self, sentence: str) -> list[int]:
        """The ids of a sentence."""
        code, found, rest = sentence.partition("<<")
        named = bool(found) and code.startswith(">>")
        first = [code + found] if named else []
        pieces = first + self._pieces.encode(rest if named else sentence, out_type=str)
        unknown = self._ids["<unk>"]
        ids = [self._ids.get(piece, unknown) for piece in pieces]
        return [*ids, self.eos_id] if self._is_source else ids

    def decode(self, ids: Sequence[int]) -> str:
        """The sentence of the ids, without special ones and unknown pieces."""
        special = (self.pad_id, self.bos_id, self.eos_id, self._ids["<unk>"])
        pieces = [self._names.get(index, "") for index in ids if index not in special]
        return "".join(pieces).replace("▁", " ").strip()

    def to_json(self) -> str:
        """The model of SentencePiece, the vocabulary and the special ids."""
        described = {
            "kind": "marian",
            "model": base64.b64encode(self._model).decode(),
            "vocabulary": dict(self._ids),
            "special_ids": [self.pad_id, self.bos_id, self.eos_id],
            "is_source": self._is_source,
        }
        return json.dumps(described, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "MarianTokenizer":
        """The tokenizer that `to_json` described.

        Raises:
            ImportError: without the package sentencepiece.
            ValueError: for text that `to_json` did not write.
        """
        malformed = AttributeError, KeyError, RecursionError, TypeError, ValueError
        try:
            found = json.loads(text)
            if found["kind"] != "marian":
                raise InvalidValue(f"kind {found['kind']!r:.40}")
            model = base64.b64decode(found["model"], validate=True)
            pad_id, bos_id, eos_id = map(int, found["special_ids"])
            special_ids = pad_id, bos_id, eos_id
            return cls(model, found["vocabulary"], special_ids, found["is_source"])
        except malformed as error:
            reason = f"not the description of pieces: {error!r:.80}"
            raise InvalidValue(reason) from None


def read_marian(
    folder: Path,
) -> tuple[Marian, MarianTokenizer, MarianTokenizer, tuple[str, str]]:
    """The model, the two tokenizers and the languages of a folder as it is downloaded.

    It holds config.json, model.safetensors or pytorch_model.bin, source.spm, target.spm
    and vocab.json. Of a .bin, tensors alone are taken: no code runs.

    Raises:
        FileNotFoundError: naming the first file that is missing.
        ImportError: without the package sentencepiece.
        ValueError: naming the file that is damaged or does not fit, and for what
            `from_marian` refuses.
    """
    optional_import("sentencepiece")
    settings = read_config(folder, "marian")
    for name in ("source.spm", "target.spm", "vocab.json"):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"there is no file {folder / name}")
    vocabulary = _read_json(folder / "vocab.json")
    _require_vocabulary(
        folder / "vocab.json", vocabulary, setting(settings, "vocab_size")
    )
    model = from_marian(read_weights(folder), settings)
    special_ids = model.config.pad_id, model.config.bos_id, model.config.eos_id
    sides = []
    for name, is_source in (("source.spm", True), ("target.spm", False)):
        pieces = (folder / name).read_bytes()
        try:
            sides.append(MarianTokenizer(pieces, vocabulary, special_ids, is_source))
        except ValueError:
            what = "is no model of SentencePiece"
            raise InvalidValue(f"{folder / name} {what}") from None
    source, target = sides
    more = folder / "tokenizer_config.json"
    said = _read_json(more) if more.is_file() else {}
    languages = said.get("source_lang") or "source", said.get("target_lang") or "target"
    return model, source, target, languages


def _require_vocabulary(name: object, ids: Mapping[str, Any], size: int) -> None:
    fits = all(type(index) is int and 0 <= index < size for index in ids.values())
    if "<unk>" not in ids or not fits:
        raise InvalidValue(f"{name} is no vocabulary of {size} pieces")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidValue(f"{path} is not a JSON object")
    return found
