"""A recurrent translator of the same size, trained as chapter 16 trains its own.

    python benchmarks/recurrent.py FOLDER --data FOLDER [--seed N] [--epochs N] [--test]

What came before the Transformer: a GRU reads the sentence in both directions, another
generates the translation, and attention looks back at what was read (Luong et al. 2015,
global attention with the dot product; the GRUs have two layers). Tokenizer, embedding,
batches, loss, optimiser, steps and searches are those of the chapter, and so is the
number of parameters. It stops when the validation loss finds no new low, and goes on
where it was stopped. --test translates the test set, once. The results join those of
chapter 16 in results/multi30k_runs.json.
"""

import argparse
import dataclasses
import datetime
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from race import RESULTS, keep
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from transformer.decoding.beam import beam_search
from transformer.masks import padding_mask
from transformer.model import TransformerConfig
from transformer.text.batches import batches_by_tokens, example_length
from transformer.text.multi30k import SentencePair, read_pairs
from transformer.text.words import Tokenizer
from transformer.training.bleu import corpus_scores
from transformer.training.config import TrainingConfig
from transformer.training.distributed import ProcessGroup
from transformer.training.state import TrainingState, validation_loss
from transformer.training.trainer import PRESETS, TranslationDataset
from transformer.weights.files import (
    read_training_state,
    write_atomically,
    write_training_state,
)

SEARCHES = ((1, 1.0), (5, 0.6), (5, 1.0))  # beam sizes and length penalties


class RecurrentState:
    """A batch of unfinished translations, as the package's searches see it."""

    def __init__(
        self,
        model: "RecurrentModel",
        memory: Float[Tensor, "rows source state"],
        source_mask: Bool[Tensor, "rows 1 1 source"],
    ) -> None:
        self.model, self.memory, self.source_mask = model, memory, source_mask
        self.state = model.first_state(memory, source_mask)

    def step(self, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocabulary"]:
        """Append a token to each row; the logits of the next."""
        hidden, self.state = self.model.run_decoder(
            tokens[:, None], self.state, self.memory, self.source_mask
        )
        return self.model.output(hidden)[:, 0]

    def reorder(self, rows: Int[Tensor, " kept"]) -> None:
        """Go on with these rows, in this order."""
        self.state, self.memory = self.state[:, rows], self.memory[rows]
        self.source_mask = self.source_mask[rows]


class RecurrentModel(nn.Module):
    """A bidirectional GRU encoder, dot-product attention and a GRU decoder.

    It has what training needs of a `Transformer` (`encode`, `decode`, `output`, and a
    `config`, of which it uses the sizes of the vocabulary, the dropout and the ids),
    and it is an incremental decoder: the package's searches take it as it is.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        width, state = config.d_model, 2 * config.d_model
        self.embedding = nn.Embedding(config.target_vocab_size, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.dropout = nn.Dropout(config.dropout)
        shape: dict[str, Any] = {
            "num_layers": 2,
            "batch_first": True,
            "dropout": config.dropout,
        }
        self.encoder = nn.GRU(width, state // 2, bidirectional=True, **shape)
        self.first = nn.Linear(state, state)
        self.decoder = nn.GRU(width, state, **shape)
        self.combine = nn.Linear(2 * state, width)
        self.output = nn.Linear(width, config.target_vocab_size, bias=False)
        self.output.weight = self.embedding.weight

    @property
    def model(self) -> "RecurrentModel":
        """The model that a search decodes with: this one."""
        return self

    def encode(
        self, source: Int[Tensor, "batch source"]
    ) -> Float[Tensor, "batch source state"]:
        """The states at each token, of both directions."""
        lengths = padding_mask(source, self.config.pad_id).flatten(1).sum(dim=1)
        packed = pack_padded_sequence(
            self.dropout(self.embedding(source)),
            lengths.cpu(),
            batch_first=True,
            enforce_sorted=False,
        )
        states, _ = pad_packed_sequence(self.encoder(packed)[0], batch_first=True)
        return self.dropout(states)

    def first_state(
        self,
        memory: Float[Tensor, "batch source state"],
        source_mask: Bool[Tensor, "batch 1 1 source"],
    ) -> Float[Tensor, "layers batch state"]:
        """The decoder's state before the first token: from the mean of the memory."""
        real = source_mask.flatten(1)[..., None].to(memory.dtype)
        mean = (memory * real).sum(dim=1) / real.sum(dim=1)
        return self.first(mean).tanh().expand(2, -1, -1).contiguous()

    def run_decoder(
        self,
        tokens: Int[Tensor, "batch target"],
        state: Float[Tensor, "layers batch state"],
        memory: Float[Tensor, "batch source state"],
        source_mask: Bool[Tensor, "batch 1 1 source"],
    ) -> tuple[Float[Tensor, "batch target width"], Tensor]:
        """Hidden vectors after each token, and the state after the last."""
        states, state = self.decoder(self.dropout(self.embedding(tokens)), state)
        scores = states @ memory.transpose(1, 2)
        hidden = ~source_mask.flatten(1)[:, None, :]
        weights = scores.masked_fill(hidden, -math.inf).softmax(dim=-1)
        both = torch.cat((weights @ memory, states), dim=-1)
        return self.dropout(self.combine(both).tanh()), state

    def decode(
        self,
        decoder_input: Int[Tensor, "batch target"],
        memory: Float[Tensor, "batch source state"],
        source_mask: Bool[Tensor, "batch 1 1 source"],
    ) -> Float[Tensor, "batch target width"]:
        """Hidden vectors after each token of the decoder's input."""
        state = self.first_state(memory, source_mask)
        return self.run_decoder(decoder_input, state, memory, source_mask)[0]

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        decoder_input: Int[Tensor, "batch target"],
    ) -> Float[Tensor, "batch target vocabulary"]:
        """Logits of the token after each of the decoder's input."""
        memory, mask = self.encode(source), padding_mask(source, self.config.pad_id)
        return self.output(self.decode(decoder_input, memory, mask))

    def prefill(
        self, source_ids: Int[Tensor, "sources length"], max_length: int, beam_size: int
    ) -> RecurrentState:
        """Encode the sources: no state of them needs room."""
        mask = padding_mask(source_ids, self.config.pad_id)
        return RecurrentState(self, self.encode(source_ids), mask)


def recurrent_model(config: TransformerConfig, seed: int) -> RecurrentModel:
    """An untrained model with weights drawn by `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return RecurrentModel(config)


def translate(
    model: RecurrentModel,
    tokenizer: Tokenizer,
    sentences: Sequence[str],
    beam_size: int = 1,
    length_penalty: float = 1.0,
) -> list[str]:
    """Translations, batches of similar length at a time, with Translator's room."""
    sources = [tokenizer.encode(sentence) for sentence in sentences]
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    translations = [""] * len(sources)
    for eights, group in groupby(order, lambda i: math.ceil(len(sources[i]) / 8)):
        room, indices = min(model.config.max_length, 16 * eights + 10), list(group)
        for start in range(0, len(indices), 64):
            chosen = indices[start : start + 64]
            batch: Any = [sources[i] for i in chosen]
            decoder: Any = model
            found = beam_search(decoder, batch, room, beam_size, length_penalty)
            for index, ids in zip(chosen, found, strict=True):
                translations[index] = tokenizer.decode(ids)
    return translations


def scores_of(
    model: RecurrentModel,
    dataset: TranslationDataset,
    pairs: Sequence[SentencePair],
    beam_size: int,
    length_penalty: float,
) -> dict[str, Any]:
    """BLEU and chrF of one search on pairs of sentences."""
    sources, references = zip(*pairs, strict=True)
    tokenizer = dataset.target_tokenizer
    found = translate(model, tokenizer, sources, beam_size, length_penalty)
    scores = corpus_scores(found, references, dataset.text)
    return {**scores._asdict(), "words": sum(len(one.split()) for one in found)}


def train(
    dataset: TranslationDataset,
    model: RecurrentModel,
    config: TrainingConfig,
    folder: Path,
) -> Iterator[dict[str, float]]:
    """Train in a folder, or go on there; a point of the curve for each epoch.

    In the end the model has the average's weights with the lowest validation loss.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, curve_path = folder / "training.pt", folder / "curve.json"
    state: Any = TrainingState(model, config, ProcessGroup())  # type: ignore[arg-type]
    run = json.dumps([dataset.digest(), dataclasses.asdict(config), "recurrent"])
    points: list[dict[str, float]] = []
    if path.is_file():
        done = state.load_state_dict(read_training_state(path), run)
        kept = json.loads(curve_path.read_text("utf-8"))
        points = [point for point in kept if point["step"] <= done]
    lengths = [example_length(example) for example in dataset.train]

    def batches(epoch: int) -> list[list[int]]:
        rng = random.Random(f"{config.seed} {epoch}")
        return batches_by_tokens(lengths, config.batch_tokens, rng)

    total = config.epochs * len(batches(1))
    started = time.perf_counter() - (points[-1]["seconds"] if points else 0.0)
    for epoch in range(len(points) + 1, config.epochs + 1):
        if epoch > state.best_epoch + config.patience:
            break
        first = (epoch - 1) * len(batches(1)) + 1
        losses, tokens = 0.0, 0
        for step, indices in enumerate(batches(epoch), start=first):
            examples = [dataset.train[index] for index in indices]
            rate = config.learning_rate_at(step, total, model.config.d_model)
            loss, _ = state.train_step(examples, step, rate)
            labels = sum(len(target) + 1 for _, target in examples)
            losses, tokens = losses + loss * labels, tokens + labels
        with state.averaged_weights() as averaged:
            checked = validation_loss(averaged, dataset.validation, config.batch_tokens)
            bleu = scores_of(averaged, dataset, dataset.validation_pairs, 1, 1.0)
        state.note_validation(checked, epoch)
        points.append(
            {
                "epoch": epoch,
                "step": step,
                "loss": round(losses / tokens, 4),
                "checked": round(checked, 4),
                "bleu": round(bleu["bleu"], 2),
                "seconds": round(time.perf_counter() - started, 1),
                "tokens": tokens,
            }
        )
        write_atomically(curve_path, json.dumps(points, indent=1).encode())
        write_training_state(path, state.state_dict(step, run))
        yield points[-1]
    state.give_best_weights()


def main() -> None:
    """Train, measure, and write what was measured."""
    preset = PRESETS["tiny"]
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("folder", type=Path)
    ask.add_argument("--data", required=True, help="the folder of Multi30k")
    ask.add_argument("--seed", type=int, default=1)
    ask.add_argument("--epochs", type=int, default=40)
    ask.add_argument("--rate", type=float, default=preset.training.learning_rate)
    ask.add_argument("--test", action="store_true")
    options = ask.parse_args()
    torch.set_num_threads(1)
    config = dataclasses.replace(
        preset.training,
        seed=options.seed,
        epochs=options.epochs,
        learning_rate=options.rate,
    )
    dataset = TranslationDataset.load(
        options.data, "en", "de", "tok", preset.vocab_size, preset.max_tokens
    )
    size = dataset.target_tokenizer.vocab_size
    sizes = TransformerConfig(size, size, **preset.sizes)
    model = recurrent_model(sizes, options.seed)
    for point in train(dataset, model, config, options.folder):
        print(point, flush=True)
    points = json.loads((options.folder / "curve.json").read_text("utf-8"))
    model.eval()
    ways = []
    for beam_size, penalty in SEARCHES:
        found = scores_of(model, dataset, dataset.validation_pairs, beam_size, penalty)
        way = {"average": 0, "beam_size": beam_size, "length_penalty": penalty}
        ways.append({**way, **found})
    note = options.folder / "test.json"
    today = datetime.date.today().isoformat()
    if options.test and not note.is_file():
        way = max(ways, key=lambda way: way["bleu"])
        pairs = read_pairs(options.data, "tok", "test", *dataset.languages)
        size, penalty = way["beam_size"], way["length_penalty"]
        found = scores_of(model, dataset, pairs, size, penalty)
        found |= {"average": 0, "beam_size": size, "length_penalty": penalty}
        found |= {"epoch": points[-1]["epoch"], "date": today}
        note.write_text(json.dumps(found, indent=1), "utf-8")
    run = {
        "command": f"python benchmarks/recurrent.py --seed {options.seed} "
        f"--epochs {options.epochs} --rate {options.rate}",
        "date": today,
        "torch": version("torch"),
        "sacrebleu": version("sacrebleu"),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "settings": {**dataclasses.asdict(config), "peak": options.rate},
        "curve": points,
        "validation": ways,
    }
    if note.is_file():
        run["test"] = json.loads(note.read_text("utf-8"))
    path = RESULTS / "multi30k_runs.json"
    stored = json.loads(path.read_text("utf-8"))
    stored.setdefault("rnn", {})[str(options.seed)] = run
    keep(path, stored)


if __name__ == "__main__":
    main()
