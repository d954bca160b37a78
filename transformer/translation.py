"""Made from book/16-translation.md: edit the chapter, not this file."""

import contextlib
import dataclasses
import functools
import gzip
import hashlib
import html
import http.client
import importlib
import itertools
import json
import math
import os
import random
import re
import time
import unicodedata
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from filelock import FileLock, Timeout
from jaxtyping import Float, Int
from torch import Tensor, nn

from transformer.data import Example, batches_by_tokens, make_batch
from transformer.embedding import require_positive
from transformer.faster import Speaker, coarse_dropout, half_precision, summed_loss
from transformer.masks import padding_mask
from transformer.model import (
    Transformer,
    TransformerConfig,
    read_checkpoint,
    write_whole,
)
from transformer.training import (
    load_training,
    papers_adam,
    plan_batches,
    save_training,
)

__all__ = [
    "MULTI30K",
    "MULTI30K_SHA256",
    "SPLITS",
    "multi30k_name",
    "download",
    "fetch_multi30k",
    "read_text",
    "find_text",
    "SentencePair",
    "read_pairs",
    "extra",
    "UNKNOWN",
    "SUBWORD_SYMBOLS",
    "Subwords",
    "Lesson",
    "made_for_bf16",
    "Settings",
    "TINY",
    "PRESETS",
    "Crew",
    "Lessons",
    "prepare",
    "Trainee",
    "mean_loss",
    "Score",
    "score",
    "PLAIN_SIGNS",
    "as_tokenized",
    "SubwordTranslator",
    "Moment",
    "RunFolder",
    "read_note",
    "read_metrics",
    "train_translator",
]


MULTI30K = (
    "https://raw.githubusercontent.com/multi30k/dataset/"
    "66b36a880c0a217415dbf79c5778e08ffdbf48be/data/task1"
)
MULTI30K_SHA256 = {
    "raw/test.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
    "raw/test.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "raw/test.fr": "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6",
    "raw/train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "raw/train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "raw/train.fr": "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
    "raw/val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "raw/val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "raw/val.fr": "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
    "tok/test.de": "c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4",
    "tok/test.en": "5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2",
    "tok/test.fr": "1463bd5960f9bfe098ec3cd752d3df0c49c84dc646fb518964a29232658cd836",
    "tok/train.de": "cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505",
    "tok/train.en": "08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119",
    "tok/train.fr": "8fa41bb718412bcb7c5dfa58603842810a01543eae86a51279f9886b901266e1",
    "tok/val.de": "97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00",
    "tok/val.en": "46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec",
    "tok/val.fr": "b303e301aa21fe7822a846b2b3fb2d5a1121ec807cd5b1d006fb7b2b5507168a",
}
SPLITS = {"train": "train", "val": "val", "test": "test_2016_flickr"}


def multi30k_name(text: str, split: str, language: str) -> str:
    """Where a file of Multi30k lies: raw/train.de or tok/train.lc.norm.tok.de."""
    middle = ".lc.norm.tok" if text == "tok" else ""
    return f"{text}/{SPLITS[split]}{middle}.{language}"


def download(url: str, say: Callable[[int, int], None]) -> bytes:
    """All bytes behind an address; `say` hears how many came, and of how many.

    Raises:
        OSError: when the connection fails, or breaks off.
    """
    data = bytearray()
    with urllib.request.urlopen(url, timeout=30) as answer:
        total = int(answer.headers.get("Content-Length") or 0)
        while piece := answer.read(1 << 16):
            data += piece
            say(len(data), total)
    if len(data) < total:
        raise OSError(f"the connection broke off after {len(data)} of {total} bytes")
    if not total:  # the server did not say
        say(len(data), len(data))
    return bytes(data)


def fetch_multi30k(
    folder: str | os.PathLike[str],
    text: str,
    languages: Sequence[str],
    say: Callable[[str, int, int], None] = lambda name, done, total: None,
    address: str = MULTI30K,
) -> Path:
    """Bring what is missing of Multi30k into a folder, checked and whole.

    A file is kept under its final name only when its SHA-256 is the expected one.

    Raises:
        ValueError: for a language that is not there; when a file cannot be had, or is
            not the one expected: which, why, and where to put it by hand.
    """
    folder = Path(folder)
    for language in languages:
        if f"{text}/train.{language}" not in MULTI30K_SHA256:
            raise ValueError(f"Multi30k has {text} text in de, en, fr, got {language}")
    for split in SPLITS:
        for language in languages:
            name = multi30k_name(text, split, language)
            if any((folder / f"{name}{end}").is_file() for end in ("", ".gz")):
                continue
            url = f"{address}/{name}" + (".gz" if text == "raw" else "")
            place = (folder / name).parent
            by_hand = f"fetch {url} yourself into {place}"
            try:
                data = download(url, functools.partial(say, name))
                data = gzip.decompress(data) if url.endswith(".gz") else data
            except (
                OSError,
                EOFError,
                zlib.error,
                http.client.HTTPException,
            ) as error:
                reason = getattr(error, "reason", None) or error
                raise ValueError(f"no Multi30k ({reason}): {by_hand}") from None
            expected = MULTI30K_SHA256[f"{text}/{split}.{language}"]
            found = hashlib.sha256(data).hexdigest()
            if found != expected:
                raise ValueError(
                    f"{url} is not the file expected: its SHA-256 is {found[:12]}…, "
                    f"not {expected[:12]}…; the right one belongs in {place}"
                )
            write_whole(folder / name, data)
    return folder


def read_text(path: Path) -> str:
    """A file of text; one whose name ends in .gz is unpacked.

    Raises:
        ValueError: for a file that is no gzip file, or no UTF-8 text.
    """
    data = path.read_bytes()
    try:
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as text: {error}") from None


def find_text(folder: Path, text: str, split: str, language: str) -> Path:
    """The file of one language of one split, under Multi30k's name or a plain one.

    Raises:
        ValueError: naming the file that is missing, or a code that no language has.
    """
    if not re.fullmatch(r"[\w-]+", language):
        raise ValueError(f"a language has a code, like en or pt-BR, got {language!r}")
    name = multi30k_name(text, split, language)
    plain = f"{split}.{language}"
    for one in (name, name.partition("/")[2], f"{text}/{plain}", plain):
        for path in (folder / one, folder / f"{one}.gz"):
            if path.is_file():
                return path
    raise ValueError(f"{folder} has neither {name}, nor {plain}, packed (.gz) or not")


SentencePair = tuple[str, str]  # a source sentence and its translation


def read_pairs(
    folder: str | os.PathLike[str], text: str, split: str, source: str, target: str
) -> list[SentencePair]:
    """The sentence pairs of a split: line n of one file goes with line n of the other.

    Pairs of which one side is blank are left out.

    Raises:
        ValueError: for a file that is missing or unreadable, numbers of lines that
            differ, or no pairs at all.
    """
    paths = [find_text(Path(folder), text, split, side) for side in (source, target)]
    sides = [read_text(path).removesuffix("\n").split("\n") for path in paths]
    if len(sides[0]) != len(sides[1]):
        counts = " and ".join(f"{len(side):,}" for side in sides)
        raise ValueError(
            f"{paths[0]} and {paths[1]} should pair, but have {counts} lines"
        )
    pairs = [(a.strip(), b.strip()) for a, b in zip(*sides, strict=True)]
    pairs = [pair for pair in pairs if all(pair)]
    if not pairs:
        raise ValueError(f"{paths[0]} holds no sentences")
    return pairs


def extra(module: str) -> Any:
    """A module that only training real translators needs.

    Raises:
        ValueError: saying how to install it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        name = module.partition(".")[0]
        raise ValueError(
            f'this needs {name}: pip install "tested-transformer[train]"'
        ) from None


UNKNOWN = 3
SUBWORD_SYMBOLS = ("<pad>", "<bos>", "<eos>", "<unk>")  # ids 0, 1, 2, 3


class Subwords:
    """A joint vocabulary of word pieces, by byte-pair encoding (Sennrich et al. 2016).

    A piece that opens a word begins with ▁, so that joining pieces gives the sentence
    back, spaces included.

    Raises:
        ValueError: for a description that `to_json` did not write.
    """

    def __init__(self, description: str) -> None:
        tokenizers = extra("tokenizers")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(description)
        except Exception as error:  # the library raises this class and no other
            raise ValueError(f"no description of subwords: {error}") from None
        self._tokenizer.encode_special_tokens = True  # typed, <eos> is five letters
        symbols = [self._tokenizer.id_to_token(i) for i in range(len(SUBWORD_SYMBOLS))]
        if symbols != list(SUBWORD_SYMBOLS):
            raise ValueError(f"the first four subwords must be special, got {symbols}")

    @classmethod
    def learn(
        cls, sentences: Sequence[str], types: int, tokenized: bool = True
    ) -> "Subwords":
        """Merge the commonest neighbours until there are `types` pieces.

        Sentences that are not tokenised have their punctuation cut off first.

        Raises:
            ValueError: for no sentences, or too few types to begin with.
        """
        require_positive(sentences=len(sentences), types=types)
        tk = extra("tokenizers")
        tokenizer = tk.Tokenizer(tk.models.BPE(unk_token=SUBWORD_SYMBOLS[UNKNOWN]))
        tokenizer.normalizer = tk.normalizers.NFC()
        cut = [tk.pre_tokenizers.Metaspace()]
        if not tokenized:
            pattern = tk.Regex(r"▁?[^\p{L}\p{M}\p{N}▁]")
            cut.append(tk.pre_tokenizers.Split(pattern, "isolated"))
        tokenizer.pre_tokenizer = tk.pre_tokenizers.Sequence(cut)
        tokenizer.decoder = tk.decoders.Metaspace()
        trainer = tk.trainers.BpeTrainer(
            vocab_size=types,
            special_tokens=list(SUBWORD_SYMBOLS),
            show_progress=False,
        )
        tokenizer.train_from_iterator(sentences, trainer)
        if tokenizer.get_vocab_size() > types:
            least = tokenizer.get_vocab_size()
            raise ValueError(f"types must be at least {least}, a piece a letter")
        return cls(tokenizer.to_str())

    @property
    def size(self) -> int:
        """How many ids there are: the pieces and the special symbols."""
        return int(self._tokenizer.get_vocab_size())

    def to_json(self) -> str:
        """All that fixes these subwords, as text."""
        return str(self._tokenizer.to_str())

    def pieces(self, sentence: str) -> list[str]:
        """The sentence in pieces; a letter never seen is <unk>."""
        return list(self._tokenizer.encode(sentence, add_special_tokens=False).tokens)

    def encode(self, sentence: str) -> list[int]:
        """The id of each piece."""
        return list(self._tokenizer.encode(sentence, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The sentence that the pieces make; special symbols are left out."""
        return str(self._tokenizer.decode(list(ids)))


class Lesson(nn.Module):
    """A model and its loss as one module, which is what several processes share."""

    def __init__(self, model: Transformer, smoothing: float, bf16: bool) -> None:
        super().__init__()
        self.model = model
        self.smoothing = smoothing
        self.bf16 = bf16

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        given: Int[Tensor, "batch target"],
        wanted: Int[Tensor, "batch target"],
    ) -> Float[Tensor, ""]:
        model, pad_id = self.model, self.model.config.pad_id
        device = source.device.type
        rows = 512 if device == "cpu" else 8192
        with half_precision(device) if self.bf16 else contextlib.nullcontext():
            memory = model.encode(source)
            hidden = model.decode(given, memory, padding_mask(source, pad_id))
            real = wanted != pad_id
            smoothing = self.smoothing if self.training else 0.0
            return summed_loss(
                hidden[real], model.output.weight, wanted[real], smoothing, rows
            )


def made_for_bf16(device: str) -> bool:
    """Whether a device multiplies bf16 matrices faster than float32 ones."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    found = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    return bool(found())


@dataclass(frozen=True)
class Settings:
    """All that fixes a run besides its sentences.

    The sizes are those of Transformer-Tiny (Wu et al. 2021); `PRESETS` has recipes.

    `step_tokens` (sentences × longest) are read a step by all processes together, and
    at most `part_tokens` at once by one of them. The learning rate climbs to `peak` in
    `warmup` steps. `memory` is the share that the running mean of the weights keeps a
    step. After `patience` epochs without a lower validation loss, the run ends.

    Raises:
        ValueError: naming the first choice that no run could follow.
    """

    types: int = 9712
    layers: int = 4
    d_model: int = 128
    num_heads: int = 4
    d_ff: int = 256
    dropout: float = 0.3
    norm_first: bool = False
    max_length: int = 256
    epochs: int = 80
    step_tokens: int = 4096
    part_tokens: int = 4096
    schedule: str = "inverse-sqrt"
    peak: float = 0.003
    warmup: int = 800
    smoothing: float = 0.1
    max_norm: float = 1.0
    memory: float = 0.999
    patience: int = 10
    bf16: bool = False
    seed: int = 1

    def __post_init__(self) -> None:
        whole = ("types", "epochs", "step_tokens", "part_tokens", "warmup", "patience")
        require_positive(**{name: getattr(self, name) for name in whole})
        self.config(self.types)  # says what is wrong with the sizes
        for name in ("smoothing", "memory"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"{name} must lie in [0, 1), got {getattr(self, name)}"
                )
        for name in ("peak", "max_norm"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        if self.schedule not in ("inverse-sqrt", "cosine"):
            raise ValueError(
                f"schedule must be inverse-sqrt or cosine, got {self.schedule!r}"
            )

    def config(self, types: int) -> TransformerConfig:
        """The model's shape; one table serves source, target and output."""
        return TransformerConfig(
            types,
            types,
            d_model=self.d_model,
            num_heads=self.num_heads,
            num_encoder_layers=self.layers,
            num_decoder_layers=self.layers,
            d_ff=self.d_ff,
            dropout=self.dropout,
            norm_first=self.norm_first,
            tie_embeddings=True,
            max_length=self.max_length,
        )

    def model(self, types: int) -> Transformer:
        """A model that has learnt nothing yet, with weights drawn by `seed`."""
        with torch.random.fork_rng(devices=[]):  # a GPU keeps its own numbers
            torch.default_generator.manual_seed(self.seed)
            return Transformer(self.config(types))

    def translator(self, model: Transformer, lessons: "Lessons") -> "SubwordTranslator":
        """What says sentences with a model of such a run."""
        subwords, languages, text = lessons.subwords, lessons.languages, lessons.text
        return SubwordTranslator(model, subwords, languages, text)

    def rate(self, step: int, total: int) -> float:
        """The learning rate of a step, 1 to `total`."""
        if step <= self.warmup:
            return self.peak * step / self.warmup
        if self.schedule == "inverse-sqrt":
            return self.peak * math.sqrt(self.warmup / step)
        done = (step - self.warmup) / (total - self.warmup)
        return self.peak * (1 + math.cos(math.pi * done)) / 2


TINY = Settings(
    norm_first=True, step_tokens=2048, part_tokens=2048, peak=0.005, warmup=2000
)
PRESETS = {
    "tiny": TINY,
    "small": dataclasses.replace(TINY, layers=3, d_model=256, d_ff=512, peak=0.0035),
    "base": Settings(
        layers=6, d_model=512, num_heads=8, d_ff=2048, peak=0.0007, warmup=4000
    ),
    "toy": Settings(
        types=300,
        layers=2,
        d_model=64,
        d_ff=128,
        dropout=0.1,
        epochs=10,
        step_tokens=1024,
        warmup=100,
    ),
}


@dataclass(frozen=True)
class Crew:
    """The processes that train together: which one this is, how many, on what."""

    rank: int = 0
    size: int = 1
    device: torch.device = dataclasses.field(
        default_factory=lambda: torch.device("cpu")
    )

    @classmethod
    def join(cls, device: str = "cpu") -> "Crew":
        """Meet the others that torchrun started; alone where it started none.

        Raises:
            ValueError: for a device that is not there.
        """
        if device == "cuda" and not torch.cuda.is_available():
            raise ValueError("no GPU was found here: try --device cpu")
        size = int(os.environ.get("WORLD_SIZE", "1"))
        place = int(os.environ.get("LOCAL_RANK", "0"))
        if device == "cuda" and place >= torch.cuda.device_count():
            raise ValueError(
                f"each process needs a GPU of its own: process {place + 1} of this "
                f"machine found {torch.cuda.device_count()}"
            )
        where = torch.device(device, place) if device == "cuda" else torch.device("cpu")
        if size == 1:
            return cls(device=where)
        torch.distributed.init_process_group("nccl" if device == "cuda" else "gloo")
        return cls(torch.distributed.get_rank(), size, where)

    def total(self, number: float) -> float:
        """The sum of everybody's number."""
        if self.size == 1:
            return number
        tensor = torch.tensor(number, dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(tensor)
        return tensor.item()

    def share(
        self, batch: Sequence[Example], part_tokens: int
    ) -> list[Sequence[Example]]:
        """This process's part of a step's sentences, cut so that each piece fits."""
        mine = batch[self.rank :: self.size]
        parts: list[list[Example]] = []
        for example in sorted(mine, key=_length):
            if not parts or (len(parts[-1]) + 1) * _length(example) > part_tokens:
                parts.append([])
            parts[-1].append(example)
        return list(parts)

    def leave(self) -> None:
        """Part from the others."""
        if self.size > 1:
            torch.distributed.destroy_process_group()


def _length(example: Example) -> int:
    """How many columns an example needs: the target goes with bos or eos."""
    return max(len(example[0]), len(example[1]) + 1)


class Lessons(NamedTuple):
    """What a run learns from and what it is checked on, in pieces and in words."""

    train: list[Example]
    check: list[Example]
    check_pairs: list[SentencePair]
    subwords: Subwords
    languages: tuple[str, str] = ("en", "de")
    text: str = "tok"
    left_out: int = 0  # pairs, of both kinds, that were too long

    def digest(self) -> str:
        """A number that tells other lessons from these."""
        data = json.dumps([self.train, self.check, self.subwords.to_json()])
        return hashlib.sha256(data.encode()).hexdigest()[:16]


def prepare(
    folder: str | os.PathLike[str],
    settings: Settings,
    source: str = "en",
    target: str = "de",
    text: str = "tok",
) -> Lessons:
    """Read the training and validation pairs of a folder; learn subwords from training.

    A pair too long for the model's table or for a part of a step is left out.

    Raises:
        ValueError: for files that are missing, unreadable or do not pair, too few types
            to begin with, or no pair that fits.
    """
    pairs = read_pairs(folder, text, "train", source, target)
    check_pairs = read_pairs(folder, text, "val", source, target)
    sentences = [side for pair in pairs for side in pair]
    subwords = Subwords.learn(sentences, settings.types, text == "tok")

    def pieces(pair: SentencePair) -> Example:
        return subwords.encode(pair[0]), subwords.encode(pair[1])

    most = min(settings.max_length, settings.part_tokens, settings.step_tokens)
    train = [one for one in map(pieces, pairs) if _length(one) <= most]
    fit = [pair for pair in check_pairs if _length(pieces(pair)) <= most]
    if not train or not fit:
        raise ValueError(f"{folder} has no pairs of at most {most} subwords")
    check = [pieces(pair) for pair in fit]
    left_out = len(pairs) - len(train) + len(check_pairs) - len(fit)
    return Lessons(train, check, fit, subwords, (source, target), text, left_out)


class Trainee:
    """What a run changes: weights, Adam's memory, the running mean, the best so far."""

    def __init__(self, settings: Settings, types: int, crew: Crew) -> None:
        self.settings = settings
        self.crew = crew
        self.model = settings.model(types).to(crew.device)
        coarse_dropout(self.model)
        lesson = Lesson(self.model, settings.smoothing, settings.bf16)
        self.lesson: Any = lesson
        if crew.size > 1:
            self.lesson = nn.parallel.DistributedDataParallel(lesson)
        self.optimizer = papers_adam(self.model)
        self.mean = {
            name: weight.detach().clone()
            for name, weight in self.model.named_parameters()
        }
        self.best, self.best_epoch = math.inf, 0

    def step(
        self, batch: Sequence[Example], number: int, rate: float
    ) -> tuple[float, float]:
        """Learn from a step's sentences; the loss a target, and the gradient's length.

        Everybody divides by everybody's targets, so that the number of processes and
        of parts changes nothing but the order of additions and what dropout draws.
        """
        crew, settings = self.crew, self.settings
        tokens = sum(len(target) + 1 for _, target in batch)
        parts = crew.share(batch, settings.part_tokens) or [batch[:1]]
        weight = crew.size / tokens if batch[crew.rank :: crew.size] else 0.0
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.lesson.train()
        self.optimizer.zero_grad()
        total = torch.zeros((), device=crew.device)
        on_gpu = [crew.device] if crew.device.type == "cuda" else []
        with torch.random.fork_rng(devices=on_gpu):
            # Dropout draws from the step's own numbers: none need be kept.
            torch.manual_seed(
                random.Random(f"{settings.seed} {number} {crew.rank}").getrandbits(60)
            )
            for part in parts:
                wait = crew.size > 1 and part is not parts[-1]
                with self.lesson.no_sync() if wait else contextlib.nullcontext():
                    ids = (ids.to(crew.device) for ids in make_batch(part))
                    loss = weight * self.lesson(*ids)
                    loss.backward()
                    total += loss.detach()
        gradient = nn.utils.clip_grad_norm_(self.model.parameters(), settings.max_norm)
        self.optimizer.step()
        memory = min(settings.memory, number / (10 + number))  # forget the start soon
        torch._foreach_lerp_(
            list(self.mean.values()),
            [weight.detach() for weight in self.model.parameters()],
            1 - memory,
        )
        return crew.total(total.item()) / crew.size, gradient.item()

    @contextlib.contextmanager
    def averaged(self) -> Iterator[Transformer]:
        """The model with the running mean as its weights, for a while."""
        weights: list[Tensor] = list(self.model.parameters())
        own = [weight.detach().clone() for weight in weights]
        try:
            with torch.no_grad():
                torch._foreach_copy_(weights, list(self.mean.values()))
            yield self.model.eval()
        finally:
            with torch.no_grad():
                torch._foreach_copy_(weights, own)

    def save(self, path: Path, step: int, about: Mapping[str, str]) -> None:
        """Write all that the rest of the run depends on, whole or not at all."""
        best = torch.tensor([self.best, self.best_epoch], dtype=torch.float64)
        more = {"best": best, **{f"mean.{n}": value for n, value in self.mean.items()}}
        save_training(path, self.model, self.optimizer, step, about, more)

    def load(self, path: Path, about: Mapping[str, str]) -> int:
        """Take the run up where `save` left it; the last step.

        Raises:
            ValueError: for a file that is missing, damaged, or of another run.
        """
        state = torch.get_rng_state()
        step, more = load_training(path, self.model, self.optimizer, about)
        torch.set_rng_state(state)  # the caller's own numbers: each step brings its own
        means = {f"mean.{name}": value for name, value in self.mean.items()}
        wanted = {name: value.shape for name, value in means.items()}
        if {name: value.shape for name, value in more.items()} != {
            **wanted,
            "best": (2,),
        }:
            raise ValueError(f"{path} is of another run: its running mean does not fit")
        for name, value in means.items():
            value.copy_(more[name])
        self.best, self.best_epoch = more["best"][0].item(), int(more["best"][1])
        return step


@torch.inference_mode()
def mean_loss(lesson: Lesson, examples: Sequence[Example], part_tokens: int) -> float:
    """What the model pays a target on sentences it does not learn from, in nats."""
    lesson.eval()
    device = lesson.model.output.weight.device
    total = 0.0
    for indices in plan_batches(examples, part_tokens, epochs=1, seed=0):
        ids = make_batch([examples[index] for index in indices])
        total += lesson(*(one.to(device) for one in ids)).item()
    return total / sum(len(target) + 1 for _, target in examples)


class Score(NamedTuple):
    """BLEU and chrF of a corpus, 0 to 100, with sacreBLEU's signatures."""

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str


def score(said: Sequence[str], wanted: Sequence[str], text: str = "tok") -> Score:
    """How near translations come to one reference each, measured by sacreBLEU.

    Text that is tokenised already is taken as it is.

    Raises:
        ValueError: for no sentences, numbers that differ, or sacreBLEU not installed.
    """
    require_positive(sentences=len(said))
    if len(said) != len(wanted):
        counts = f"{len(said)} and {len(wanted)}"
        raise ValueError(f"each translation needs one reference, got {counts}")
    metrics = extra("sacrebleu.metrics")
    bleu = metrics.BLEU(tokenize="none" if text == "tok" else "13a", force=True)
    chrf = metrics.CHRF()
    return Score(
        bleu.corpus_score(list(said), [list(wanted)]).score,
        chrf.corpus_score(list(said), [list(wanted)]).score,
        str(bleu.get_signature()),
        str(chrf.get_signature()),
    )


PLAIN_SIGNS = str.maketrans(
    dict.fromkeys("’‘", "'")
    | dict.fromkeys("“”„«»", '"')
    | {"–": "-", "—": " - ", "…": "..."}
)


def as_tokenized(sentence: str, language: str = "en") -> str:
    """A sentence as in Multi30k's tok files: lowercased, punctuation set apart.

    Quotation marks and dashes become plain ones. An apostrophe goes with what follows
    (man 's), in French with what it ends (l' eau). A full stop is set apart at the end
    of the sentence only, for elsewhere it may belong to a word (dr. no).
    """
    text = unicodedata.normalize("NFC", html.unescape(sentence).lower())
    text = text.translate(PLAIN_SIGNS)
    text = re.sub(r"([^\w\s'.-]|\.{2,}|(?<!\.)\.(?=\s*$))", r" \1 ", text)
    text = text.replace("'", "' " if language == "fr" else " '")
    text = text.replace("&", "&amp;").replace("'", "&apos;").replace('"', "&quot;")
    return " ".join(text.split())


class SubwordTranslator:
    """A model and its subwords: sentences in, sentences out.

    `languages` are the codes of source and target; `text` says what the sentences look
    like: `tok` (lowercased, words and punctuation apart) or `raw`.

    Raises:
        ValueError: when subwords and model differ in size.
    """

    def __init__(
        self,
        model: Transformer,
        subwords: Subwords,
        languages: tuple[str, str] = ("en", "de"),
        text: str = "tok",
    ) -> None:
        sizes = model.config.source_vocab_size, model.config.target_vocab_size
        if sizes != (subwords.size, subwords.size):
            raise ValueError(
                f"the model has tables of {sizes[0]} and {sizes[1]} ids, but there "
                f"are {subwords.size} subwords"
            )
        self.model = model.eval()
        self.subwords = subwords
        self.languages = languages
        self.text = text

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write model, subwords and languages to one file, whole or not at all."""
        notes = {
            "subwords": self.subwords.to_json(),
            "languages": " ".join(self.languages),
            "text": self.text,
        }
        self.model.save(path, notes)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], average: int = 0
    ) -> "SubwordTranslator":
        """Read what `save` wrote: a file, or the folder of a run.

        Of a folder, take the weights with the lowest validation loss; or, with
        `average`, the mean of those that the last so many epochs ended with.

        Raises:
            ValueError: for a file that is missing, damaged or not ours; for too few
                epochs to average, or epochs of different models.
        """
        path = Path(path)
        if path.is_dir() and average:
            paths = sorted(path.glob("epoch-*.safetensors"))[-average:]
            if len(paths) < average:
                raise ValueError(f"{path} keeps {len(paths)} epochs, not {average}")
            found = [cls.load(one) for one in paths]
            if any(one.model.config != found[0].model.config for one in found):
                raise ValueError(f"{path} keeps epochs of different models")
            weights = [list(one.model.parameters()) for one in found]
            with torch.no_grad():
                for same in zip(*weights, strict=True):
                    same[0].copy_(torch.stack(list(same)).mean(dim=0))
            return found[0]
        if average:
            raise ValueError(f"{path} is no folder of a run, and holds no epochs")
        path = path / "model.safetensors" if path.is_dir() else path
        _, notes = read_checkpoint(path)
        if "subwords" not in notes:
            raise ValueError(f"{path} holds a model without subwords")
        source, _, target = notes.get("languages", "").partition(" ")
        subwords = Subwords(notes["subwords"])
        model = Transformer.load(path)
        return cls(model, subwords, (source, target), notes.get("text", "tok"))

    def speaker(self) -> Speaker:
        """What searches with the model as it is now."""
        return Speaker(self.model)

    def translate(
        self,
        sentences: Sequence[str],
        beam_size: int = 5,
        length_penalty: float = 1.0,
        batch: int = 64,
    ) -> list[str]:
        """The translation of each sentence; a blank one stays blank.

        Raises:
            ValueError: for a sentence longer than the model's table, and for what
                `beam_search` refuses.
        """
        longest = self.model.config.max_length
        sources = [self.subwords.encode(sentence) for sentence in sentences]
        for number, source in enumerate(sources, start=1):
            if len(source) > longest:
                words = f"{len(source)} subwords, at most {longest} fit"
                raise ValueError(f"sentence {number} is too long: {words}")
        answers = [""] * len(sources)
        speaker = self.speaker()

        def room(index: int) -> int:
            """How long an answer may become: what it is depends on nobody else."""
            eights = math.ceil(len(sources[index]) / 8)
            return min(longest, 2 * 8 * eights + 10)

        order = sorted(
            filter(lambda i: sources[i], range(len(sources))),
            key=lambda i: len(sources[i]),
        )
        for most, alike in itertools.groupby(order, room):
            same = list(alike)
            for start in range(0, len(same), batch):
                now = same[start : start + batch]
                said = speaker.beam_search(
                    [sources[i] for i in now], most, beam_size, length_penalty
                )
                for index, ids in zip(now, said, strict=True):
                    answers[index] = self.subwords.decode(ids)
        return answers


class Moment(NamedTuple):
    """Where a run stands after a step that learnt from `tokens` targets.

    `seconds` count all that the run took so far.
    `checked` is the validation loss and `bleu` the validation BLEU of greedy search,
    both with the running mean of the weights, at an epoch's last step.
    """

    step: int
    total: int
    epoch: int
    loss: float
    rate: float
    gradient: float
    tokens: int
    seconds: float
    checked: float | None = None
    bleu: float | None = None


class RunFolder:
    """The files of a run: settings, subwords, metrics, checkpoints, models."""

    def __init__(
        self, path: Path, settings: Settings, about: Mapping[str, str]
    ) -> None:
        self.path = path
        choices = dataclasses.asdict(settings)
        if settings.schedule == "inverse-sqrt":  # such a run may be made longer
            del choices["epochs"], choices["patience"]
        self.about = {**about, "settings": json.dumps(choices)}
        ours, note = {**about, **choices}, path / "run.json"
        try:
            if not note.is_file():
                write_whole(note, json.dumps(ours, indent=1).encode())
            there = read_note(note)
        except OSError as error:
            raise ValueError(f"cannot keep a run in {path}: {error}") from None
        for name, mine in ours.items():
            if there.get(name) != mine:
                raise ValueError(
                    f"{path} holds another run: its {name} is {there.get(name)}, "
                    f"here {mine}"
                )

    def hold(self) -> None:
        """Keep other processes from writing here until this one lets go, or dies.

        Raises:
            ValueError: when one is writing here already.
        """
        # Held as long as this object lives; shared inside a process, where a notebook
        # may have left a training half-way.
        self.lock = FileLock(self.path / "run.lock", is_singleton=True)
        try:
            self.lock.acquire(blocking=False)
        except Timeout:
            raise ValueError(f"another training is writing to {self.path}") from None
        except OSError as error:
            raise ValueError(f"cannot keep a run in {self.path}: {error}") from None

    def checkpoints(self) -> list[Path]:
        """The checkpoints that are there, the newest first."""
        found = self.path.glob("training-*.safetensors")
        return sorted((p for p in found if p.stem[9:].isdecimal()), reverse=True)

    def resume(self, trainee: Trainee, say: Callable[[str], None]) -> int:
        """Take up the newest checkpoint that is whole; the last step, or 0.

        Raises:
            ValueError: when there are checkpoints, but all are damaged.
        """
        reasons = []
        for path in self.checkpoints():
            try:
                step = trainee.load(path, self.about)
            except ValueError as error:
                reasons.append(str(error))
                continue
            for reason in reasons:
                say(f"{reason}; going on from {path.name} instead")
            return step
        if reasons:
            raise ValueError(f"no checkpoint can be read: {reasons[0]}")
        return 0

    def save(self, trainee: Trainee, step: int) -> None:
        """Keep the run as it stands, and the checkpoint before this one."""
        path = self.path / f"training-{step:08}.safetensors"
        with self._explained():
            trainee.save(path, step, self.about)
            for old in self.checkpoints()[2:]:
                old.unlink()

    def save_model(self, name: str, translator: SubwordTranslator) -> None:
        """Keep weights that can translate."""
        with self._explained():
            translator.save(self.path / name)

    def drop_epochs(self, keep: int) -> None:
        """Only the last few epochs' weights are worth their place."""
        for old in sorted(self.path.glob("epoch-*.safetensors"))[:-keep]:
            old.unlink()

    def note(self, moment: Moment) -> None:
        """Add a line to the metrics."""
        with self._explained(), (self.path / "metrics.jsonl").open("a") as file:
            said = {k: v for k, v in moment._asdict().items() if v is not None}
            file.write(json.dumps(said) + "\n")

    def forget(self, step: int) -> float:
        """Drop what was written after a step: it will be taken again.

        Returns the seconds that the run took up to that step.
        """
        kept = [line for line in read_metrics(self.path) if line["step"] <= step]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        with self._explained():
            for path in (*self.path.glob("*.part"), *self.checkpoints()):
                if path.suffix == ".part" or int(path.stem[9:]) > step:
                    path.unlink(missing_ok=True)
            write_whole(self.path / "metrics.jsonl", text.encode())
        return max((line["seconds"] for line in kept), default=0.0)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Say in one line what a full disk or a read-only folder means."""
        try:
            yield
        except OSError as error:
            there = self.checkpoints()
            kept = f"{there[0].name} is kept" if there else "no checkpoint is kept yet"
            raise ValueError(
                f"cannot write to {self.path}: {error.strerror or error}; {kept}, and "
                "the same command goes on from it once there is room"
            ) from None


def read_note(path: Path) -> dict[str, Any]:
    """What a small file says of a run.

    Raises:
        ValueError: for a file that is no dictionary in JSON.
    """
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged: a dictionary should be in it")
    return found


def read_metrics(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """What a run wrote, a step each; a line that was cut off is left out."""
    path = Path(folder) / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n") if path.is_file() else []
    always = set(Moment._fields) - {"checked", "bleu"}
    found = []
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            said = json.loads(line)
            known = isinstance(said, dict) and said.keys() in (
                always,
                {*always, "checked", "bleu"},
            )
            if known and all(isinstance(x, int | float) for x in said.values()):
                found.append(said)
    return found


def train_translator(
    lessons: Lessons,
    settings: Settings,
    folder: str | os.PathLike[str] | None = None,
    crew: Crew | None = None,
    every: int = 200,
    keep: int = 10,
    say: Callable[[str], None] = lambda message: None,
) -> Iterator[Moment]:
    """Train a translator, and say after each step how it goes.

    With a `folder`, the run is kept there: a checkpoint `every` so many steps and at
    the end of each epoch, the last `keep` epochs' weights, the best averaged weights
    (`model.safetensors`) and a line of metrics a step. A run that was cut short, at any
    moment, goes on to the same weights, bit for bit on one machine's CPU.

    Raises:
        ValueError: for `every` or `keep` below 1; for a folder that cannot be written
            to, that holds another run, that another training is writing to, or that
            not all processes share; for a loss that is no number any more.
    """
    require_positive(every=every, keep=keep)
    crew = crew or Crew()
    trainee = Trainee(settings, lessons.subwords.size, crew)
    kept = None
    done, before = 0, 0.0
    if folder is not None:
        about = {
            "languages": " ".join(lessons.languages),
            "text": lessons.text,
            "lessons": lessons.digest(),
        }
        kept = RunFolder(Path(folder), settings, about)
        if crew.rank == 0:
            kept.hold()
        done = kept.resume(trainee, say)
        if crew.total(float(done)) != done * crew.size:
            raise ValueError(f"not all processes find the same run in {folder}")
        if crew.rank == 0:
            before = kept.forget(done)
    lengths = [_length(example) for example in lessons.train]

    def plan(epoch: int) -> list[list[int]]:
        rng = random.Random(f"{settings.seed} {epoch}")
        return batches_by_tokens(lengths, settings.step_tokens, rng)

    per_epoch = len(plan(1))
    total = settings.epochs * per_epoch
    started = time.perf_counter()
    for epoch in range(done // per_epoch + 1, settings.epochs + 1):
        if epoch > trainee.best_epoch + settings.patience:
            say(f"no better for {settings.patience} epochs: the run ends")
            break
        first = (epoch - 1) * per_epoch + 1
        for step, indices in enumerate(plan(epoch), start=first):
            if step <= done:
                continue
            rate = settings.rate(step, total)
            batch = [lessons.train[index] for index in indices]
            loss, gradient = trainee.step(batch, step, rate)
            if not math.isfinite(loss + gradient):
                raise ValueError(f"step {step} went astray: try a lower peak")
            tokens = sum(len(target) + 1 for _, target in batch)
            seconds = before + time.perf_counter() - started
            moment = Moment(step, total, epoch, loss, rate, gradient, tokens, seconds)
            if step == first + per_epoch - 1:
                moment = _end_epoch(trainee, lessons, moment, kept, keep)
            if kept is not None and crew.rank == 0:
                kept.note(moment)
                if step % every == 0 or moment.checked is not None:
                    kept.save(trainee, step)
            yield moment


def _end_epoch(
    trainee: Trainee,
    lessons: Lessons,
    moment: Moment,
    kept: RunFolder | None,
    keep: int,
) -> Moment:
    """Check on what was not learnt from; keep the weights, and the best of them."""
    crew = trainee.crew
    checked, bleu = 0.0, 0.0
    translator = trainee.settings.translator(trainee.model, lessons)
    if crew.rank == 0:
        if kept is not None:
            kept.save_model(f"epoch-{moment.epoch:04}.safetensors", translator)
            kept.drop_epochs(keep)
        with trainee.averaged() as model:
            lesson = Lesson(model, 0.0, trainee.settings.bf16)
            checked = mean_loss(lesson, lessons.check, trainee.settings.part_tokens)
            said = translator.translate([a for a, _ in lessons.check_pairs], 1)
            wanted = [b for _, b in lessons.check_pairs]
            bleu = score(said, wanted, lessons.text).bleu
            if kept is not None and checked < trainee.best:
                kept.save_model("model.safetensors", translator)
    checked, bleu = crew.total(checked), crew.total(bleu)
    if checked < trainee.best:
        trainee.best, trainee.best_epoch = checked, moment.epoch
    return moment._replace(checked=checked, bleu=bleu)
