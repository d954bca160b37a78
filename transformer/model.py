"""Made from book/10-model.md: edit the chapter, not this file."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformer.decoder import Decoder, DecoderLayer
from transformer.embedding import TokenEmbedding, require_positive
from transformer.encoder import Encoder, EncoderLayer
from transformer.masks import causal_mask, padding_mask
from transformer.multi_head import require_dropout
from transformer.positional import PositionalEncoding

__all__ = [
    "TransformerConfig",
    "Transformer",
    "require_stacks",
    "from_torch",
    "to_torch",
    "CHECKPOINT_FORMAT",
    "CHECKPOINT_VERSION",
    "FLOATS",
    "digest",
    "write_whole",
    "save_checkpoint",
    "read_checkpoint",
    "load_checkpoint",
]


@dataclass(frozen=True)
class TransformerConfig:
    """Every choice that fixes a model's shape. The defaults are the paper's base model.

    `tie_embeddings` shares one table between source, target and output (section 3.4);
    `max_length` is the longest sequence, in tokens, that has positions.

    Raises:
        ValueError: naming the first field that no model could be built from.
    """

    source_vocab_size: int
    target_vocab_size: int
    d_model: int = 512
    num_heads: int = 8
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    d_ff: int = 2048
    dropout: float = 0.1
    norm_first: bool = False
    tie_embeddings: bool = False
    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    max_length: int = 1024

    def __post_init__(self) -> None:
        require_positive(
            source_vocab_size=self.source_vocab_size,
            target_vocab_size=self.target_vocab_size,
            d_model=self.d_model,
            num_heads=self.num_heads,
            num_encoder_layers=self.num_encoder_layers,
            num_decoder_layers=self.num_decoder_layers,
            d_ff=self.d_ff,
            max_length=self.max_length,
        )
        require_dropout(self.dropout)
        if self.d_model % 2:
            raise ValueError(f"d_model must be even, got {self.d_model}")
        if self.d_model % self.num_heads:
            raise ValueError(
                "num_heads must divide d_model, "
                f"got {self.num_heads} and {self.d_model}"
            )
        if self.tie_embeddings and self.source_vocab_size != self.target_vocab_size:
            sizes = f"{self.source_vocab_size} and {self.target_vocab_size}"
            raise ValueError(f"tied embeddings need one vocabulary, got sizes {sizes}")
        special = (self.pad_id, self.bos_id, self.eos_id)
        if len(set(special)) < 3 or not all(
            0 <= i < self.target_vocab_size for i in special
        ):
            raise ValueError(
                "pad_id, bos_id and eos_id must be three different ids in "
                f"0..{self.target_vocab_size - 1}, got {special}"
            )

    @classmethod
    def base(
        cls, source_vocab_size: int, target_vocab_size: int, **overrides: Any
    ) -> "TransformerConfig":
        """The paper's base model (table 3)."""
        return cls(source_vocab_size, target_vocab_size, **overrides)

    @classmethod
    def big(
        cls, source_vocab_size: int, target_vocab_size: int, **overrides: Any
    ) -> "TransformerConfig":
        """The paper's big model (table 3)."""
        sizes = {"d_model": 1024, "num_heads": 16, "d_ff": 4096, "dropout": 0.3}
        return cls(source_vocab_size, target_vocab_size, **(sizes | overrides))

    @classmethod
    def tiny(
        cls, source_vocab_size: int, target_vocab_size: int, **overrides: Any
    ) -> "TransformerConfig":
        """A model for small corpora: 4 + 4 layers of width 128 (Wu et al. 2021)."""
        sizes = {"d_model": 128, "num_heads": 4, "d_ff": 256, "dropout": 0.3}
        layers = {"num_encoder_layers": 4, "num_decoder_layers": 4}
        return cls(source_vocab_size, target_vocab_size, **(sizes | layers | overrides))


class Transformer(nn.Module):
    """The model of *Attention Is All You Need*: an encoder, a decoder, one output map.

    Raises:
        ValueError: for token ids outside the vocabulary, of the wrong dtype, empty, or
            longer than `config.max_length`.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        width, heads, d_ff = config.d_model, config.num_heads, config.d_ff
        rest = config.dropout, config.norm_first
        self.source_embedding = TokenEmbedding(config.source_vocab_size, width)
        self.target_embedding = TokenEmbedding(config.target_vocab_size, width)
        self.position = PositionalEncoding(width, config.dropout, config.max_length)
        self.encoder = Encoder(width, heads, d_ff, config.num_encoder_layers, *rest)
        self.decoder = Decoder(width, heads, d_ff, config.num_decoder_layers, *rest)
        self.output = nn.Linear(width, config.target_vocab_size, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        if config.tie_embeddings:
            self.target_embedding = self.source_embedding
            self.output.weight = self.source_embedding.table.weight

    def encode(
        self, source_ids: Int[Tensor, "batch source"]
    ) -> Float[Tensor, "batch source d_model"]:
        """Read the source once: the memory that every decoding step looks at."""
        x = self.position(self.source_embedding(source_ids))
        return self.encoder(x, padding_mask(source_ids, self.config.pad_id))

    def decode(
        self,
        target_ids: Int[Tensor, "batch target"],
        memory: Float[Tensor, "batch source d_model"],
        source_mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch target d_model"]:
        """What the decoder knows after each target token: that one and those before."""
        x = self.position(self.target_embedding(target_ids))
        may_see = causal_mask(target_ids.size(1), target_ids.device)
        target_mask = may_see & padding_mask(target_ids, self.config.pad_id)
        return self.decoder(x, memory, source_mask, target_mask)

    def forward(
        self,
        source_ids: Int[Tensor, "batch source"],
        target_ids: Int[Tensor, "batch target"],
    ) -> Float[Tensor, "batch target vocabulary"]:
        """A logit for every word that could follow each target token."""
        memory = self.encode(source_ids)
        source_mask = padding_mask(source_ids, self.config.pad_id)
        return self.output(self.decode(target_ids, memory, source_mask))

    def save(
        self, path: str | os.PathLike[str], notes: Mapping[str, str] | None = None
    ) -> None:
        """Write config and weights to one safetensors file, whole or not at all.

        `notes` go with them, such as the words that the ids stand for.
        """
        save_checkpoint(self, Path(path), notes or {})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Transformer":
        """Read a model that `save` wrote.

        Raises:
            ValueError: for a file that is missing, damaged, not ours or too new.
        """
        return load_checkpoint(Path(path))


_TORCH_NAMES = (
    ("self_attn", "self_attention"),
    ("multihead_attn", "cross_attention"),
    ("out_proj", "output_proj"),
    ("linear1", "feed_forward.expand"),
    ("linear2", "feed_forward.contract"),
    ("norm1", "residuals.0.norm"),
    ("norm2", "residuals.1.norm"),
    ("norm3", "residuals.2.norm"),
)
_ROLES = ("query", "key", "value")
_OUR_LAYERS = {"encoder": EncoderLayer, "decoder": DecoderLayer}
_TORCH_LAYERS = {
    "encoder": nn.TransformerEncoderLayer,
    "decoder": nn.TransformerDecoderLayer,
}


def require_stacks(
    state: Mapping[str, Tensor],
    layers: Mapping[str, Callable[[int, int, int], nn.Module]],
    width: str,
    inner: str,
) -> None:
    """Refuse weights that are not those of an encoder and a decoder of such layers.

    `width` and `inner` name the weights that tell d_model and d_ff. A stack may end in
    a norm or not.

    Raises:
        ValueError: naming the first tensor that is missing, unknown or misshapen.
    """
    sizes = [f"encoder.layers.0.{name}" for name in (width, inner)]
    for name in sizes:
        if name not in state:
            raise ValueError(f"not the weights of an encoder and a decoder: no {name}")
    d_model, d_ff = (max(1, state[name].numel()) for name in sizes)
    wanted: dict[str, tuple[int, ...]] = {}
    for side, layer in layers.items():
        start, norm = f"{side}.layers.", f"{side}.norm."
        with torch.device("meta"):
            parts = layer(d_model, 1, d_ff).state_dict()
        depth = len({name.split(".")[2] for name in state if name.startswith(start)})
        for number in range(max(1, depth)):
            for name, weight in parts.items():
                wanted[f"{start}{number}.{name}"] = tuple(weight.shape)
        if f"{norm}weight" in state:
            wanted[f"{norm}weight"] = wanted[f"{norm}bias"] = (d_model,)
    found = {name: tuple(weight.shape) for name, weight in state.items()}
    for name in sorted(found.keys() | wanted.keys()):
        should, is_now = wanted.get(name, "absent"), found.get(name, "absent")
        if is_now != should:
            raise ValueError(f"{name} should be {should}, got {is_now}")


def from_torch(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the weights of a `torch.nn.Transformer` to those of our two stacks.

    Takes its `state_dict()` and gives the `encoder.…` and `decoder.…` part of ours;
    torch's class has neither embeddings nor an output map. Its packed query, key and
    value projections come apart into three. The last norms of both stacks come along
    if they are there; our post-norm stacks have none, and refuse them when loaded.

    Raises:
        ValueError: naming the first tensor that is missing, unknown or misshapen.
    """
    require_stacks(state, _TORCH_LAYERS, "norm1.weight", "linear1.bias")
    ours: dict[str, Tensor] = {}
    for name, weight in state.items():
        for torch_name, our_name in _TORCH_NAMES:
            name = name.replace(torch_name, our_name)
        layer, packed, kind = name.partition(".in_proj_")
        names = [f"{layer}.{role}_proj.{kind}" for role in _ROLES] if packed else [name]
        ours.update(zip(names, weight.chunk(len(names)), strict=True))
    return ours


def to_torch(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The way back from `from_torch`: our stacks' weights under torch's names.

    Takes a whole `state_dict()` of ours too, and leaves out what torch does not have.

    Raises:
        ValueError: naming the first tensor that is missing, unknown or misshapen.
    """
    sides = tuple(f"{side}." for side in _OUR_LAYERS)
    stacks = {name: weight for name, weight in state.items() if name.startswith(sides)}
    require_stacks(
        stacks, _OUR_LAYERS, "residuals.0.norm.weight", "feed_forward.expand.bias"
    )
    theirs: dict[str, Tensor] = {}
    for name, weight in stacks.items():
        layer, query, kind = name.partition(".query_proj.")
        if query:
            parts = [stacks[f"{layer}.{role}_proj.{kind}"] for role in _ROLES]
            name, weight = f"{layer}.in_proj_{kind}", torch.cat(parts)
        elif ".key_proj." in name or ".value_proj." in name:
            continue
        for torch_name, our_name in _TORCH_NAMES:
            name = name.replace(our_name, torch_name)
        theirs[name] = weight
    return theirs


CHECKPOINT_FORMAT = "the-tested-transformer"
CHECKPOINT_VERSION = "1"
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def digest(tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> str:
    """SHA-256 of names, numbers and notes: one changed bit, another digest."""
    from safetensors.torch import save

    said = json.dumps(dict(notes), sort_keys=True)
    return hashlib.sha256(save(dict(tensors)) + said.encode()).hexdigest()


def write_whole(path: Path, data: bytes) -> None:
    """Write beside `path`, then move into place: no reader ever sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # on the disk, not only on its way there
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def save_checkpoint(model: Transformer, path: Path, notes: Mapping[str, str]) -> None:
    """The model's weights, its config and notes as one safetensors file."""
    from safetensors.torch import save

    weights = {
        name: weight.detach().contiguous() for name, weight in model.named_parameters()
    }
    metadata = {
        **notes,
        "format": CHECKPOINT_FORMAT,
        "version": CHECKPOINT_VERSION,
        "config": json.dumps(dataclasses.asdict(model.config)),
        "checksum": "",
    }
    metadata["checksum"] = digest(weights, metadata)
    write_whole(path, save(weights, metadata))


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The weights in a file that `save` wrote, and its config and notes, as text.

    Raises:
        ValueError: for a file that is missing, damaged, not ours or too new.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise ValueError(f"no checkpoint at {path}")
    with path.open("rb"):  # or safe_open says that a file it may not read is not there
        pass
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            names = file.keys()
            found = {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from None
    if metadata.get("format") != CHECKPOINT_FORMAT:
        raise ValueError(f"{path} is not a checkpoint of this package")
    if metadata.get("version") != CHECKPOINT_VERSION:
        version = metadata.get("version")
        raise ValueError(
            f"{path} has version {version!r}, expected {CHECKPOINT_VERSION!r}"
        )
    written = metadata.get("checksum")  # the oldest files have none
    if written and written != digest(found, {**metadata, "checksum": ""}):
        raise ValueError(f"{path} is damaged: it is not what was written")
    return found, metadata


def load_checkpoint(path: Path) -> Transformer:
    """Check everything about the file before a model is handed out.

    Raises:
        ValueError: for a file that is missing, damaged, not ours or too new.
    """
    found, metadata = read_checkpoint(path)
    try:
        config = TransformerConfig(**json.loads(metadata["config"]))
        for field in dataclasses.fields(config):
            value = getattr(config, field.name)
            if not isinstance(value, int | field.type):
                raise ValueError(f"{field.name} is {value!r}")
        if config.num_encoder_layers + config.num_decoder_layers > len(found):
            raise ValueError(f"more layers than the {len(found)} tensors here")
        # On "meta" a tensor has a shape and no memory: a false width costs nothing.
        with torch.device("meta"):
            wanted = {
                name: weight.shape
                for name, weight in Transformer(config).named_parameters()
            }
    except (ArithmeticError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path} holds a config that no model has: {reason}") from None
    if found.keys() != wanted.keys():
        odd = sorted(found.keys() ^ wanted.keys())
        raise ValueError(
            f"{path} does not match its config: missing or unexpected {odd[0]}"
        )
    for name, weight in found.items():
        if weight.shape != wanted[name] or weight.dtype not in FLOATS:
            got = f"{tuple(weight.shape)} of {weight.dtype}"
            raise ValueError(
                f"{path}: {name} should be {tuple(wanted[name])} floats, got {got}"
            )
        if not weight.isfinite().all():
            raise ValueError(f"{path}: {name} holds a number that is not finite")
    try:
        model = Transformer(config)
    except (MemoryError, RuntimeError):  # the table of positions is in no file
        raise ValueError(f"{path}: no memory for its max_length") from None
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(found[name])
    return model
