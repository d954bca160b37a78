"""A recurrent translator of the same size, trained as chapter 16 trains its own.

    python benchmarks/recurrent.py FOLDER --data FOLDER [--seed N] [--epochs N] [--test]

What went before the Transformer: a GRU reads the sentence from both sides, another says
the translation, and attention looks back at what was read (Luong et al. 2015, global
attention with the dot product; the GRUs have two layers). Its subwords, table, batches,
loss, optimiser, steps and searches are those of the chapter, and so is the number of
parameters. The loop is the chapter's own: it stops when validation finds no new low,
and goes on where it was stopped. --test asks the test sentences, once. The figures join
those of chapter 16 in results/multi30k_runs.json.
"""

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from ingredients import add_data, follow  # noqa: E402
from translation import CHOSEN, curve, measured, put, this_machine, today  # noqa: E402

from transformer.data import pad  # noqa: E402
from transformer.decoding import penalised, speaking  # noqa: E402
from transformer.faster import Beams  # noqa: E402
from transformer.masks import padding_mask  # noqa: E402
from transformer.model import read_checkpoint, save_checkpoint  # noqa: E402
from transformer.translation import (  # noqa: E402
    TINY,
    Lessons,
    Settings,
    SubwordTranslator,
    prepare,
    read_pairs,
)

WAYS = ((1, 1.0), (5, 0.6), (5, 1.0))  # beams and length penalties


class RecurrentModel(nn.Module):
    """A GRU from both sides, attention, and a GRU that speaks.

    It has the parts that a run asks of a `Transformer`: `encode`, `decode`, `output`,
    `save` and `config`, of which it uses the sizes of the tables, the dropout and the
    ids; and the search that a run asks of a `Speaker`.
    """

    def __init__(self, settings: Settings, types: int) -> None:
        super().__init__()
        self.config = settings.config(types)
        width, state = settings.d_model, 2 * settings.d_model
        self.table = nn.Embedding(types, width)
        nn.init.normal_(self.table.weight, std=width**-0.5)
        self.dropout = nn.Dropout(settings.dropout)
        shape: dict[str, Any] = {
            "num_layers": 2,
            "batch_first": True,
            "dropout": settings.dropout,
        }
        self.reader = nn.GRU(width, state // 2, bidirectional=True, **shape)
        self.first = nn.Linear(state, state)
        self.speaker = nn.GRU(width, state, **shape)
        self.combine = nn.Linear(2 * state, width)
        self.output = nn.Linear(width, types, bias=False)
        self.output.weight = self.table.weight

    def encode(
        self, source: Int[Tensor, "batch source"]
    ) -> Float[Tensor, "batch source state"]:
        """What was read at each piece, from both sides."""
        lengths = padding_mask(source, self.config.pad_id).flatten(1).sum(dim=1)
        pieces = self.dropout(self.table(source))
        packed = pack_padded_sequence(
            pieces, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        read, _ = pad_packed_sequence(self.reader(packed)[0], batch_first=True)
        return self.dropout(read)

    def begin(
        self,
        memory: Float[Tensor, "batch source state"],
        seen: torch.Tensor,
    ) -> Float[Tensor, "layers batch state"]:
        """The state before the first word: from the mean of what was read."""
        real = seen.flatten(1)[..., None].to(memory.dtype)
        mean = (memory * real).sum(dim=1) / real.sum(dim=1)
        return self.first(mean).tanh().expand(2, -1, -1).contiguous()

    def say(
        self,
        given: Int[Tensor, "batch target"],
        state: Float[Tensor, "layers batch state"],
        memory: Float[Tensor, "batch source state"],
        seen: torch.Tensor,
    ) -> tuple[Float[Tensor, "batch target width"], Tensor]:
        """Hear some words; what is to be said next after each, and the state."""
        said, state = self.speaker(self.dropout(self.table(given)), state)
        scores = said @ memory.transpose(1, 2)
        hidden = ~seen.flatten(1)[:, None, :]
        weights = scores.masked_fill(hidden, -math.inf).softmax(dim=-1)
        both = torch.cat((weights @ memory, said), dim=-1)
        return self.dropout(self.combine(both).tanh()), state

    def decode(
        self,
        given: Int[Tensor, "batch target"],
        memory: Float[Tensor, "batch source state"],
        seen: torch.Tensor,
    ) -> Float[Tensor, "batch target width"]:
        """What is to be said next after each given word."""
        return self.say(given, self.begin(memory, seen), memory, seen)[0]

    def save(self, path: Path, notes: Mapping[str, str] | None = None) -> None:
        """Write config and weights to one safetensors file, whole or not at all."""
        save_checkpoint(self, path, notes or {})

    def beam_search(
        self,
        source_ids: Sequence[Sequence[int]],
        max_length: int,
        beam_size: int,
        length_penalty: float,
    ) -> list[list[int]]:
        """The likeliest translations, as `transformer.faster.Speaker` finds them."""
        bos, eos, pad_id = self.config.bos_id, self.config.eos_id, self.config.pad_id
        source = pad(source_ids, pad_id)
        best = [(-math.inf, [bos]) for _ in source_ids]
        with speaking(self):
            memory, seen = self.encode(source), padding_mask(source, pad_id)
            state = self.begin(memory, seen).repeat_interleave(beam_size, dim=1)
            memory = memory.repeat_interleave(beam_size, dim=0)
            seen = seen.repeat_interleave(beam_size, dim=0)
            beams = Beams.begin(source.new_full((len(source), beam_size), bos))
            first = torch.arange(len(source))[:, None] * beam_size
            for length in range(1, max_length + 1):
                words = beams.words.flatten()[:, None]
                hidden, state = self.say(words, state, memory, seen)
                chances = self.output(hidden[:, 0]).log_softmax(dim=-1)
                chances[:, [pad_id, bos]] = -math.inf
                state = state[:, (first + beams.grow(chances)).flatten()]
                for row, total, ids in beams.close(eos):
                    worth = penalised(total, length, length_penalty)
                    if worth > best[row][0]:
                        best[row] = worth, ids
                if not (beams.totals > -math.inf).any():
                    break
            for row, ids in enumerate(beams.said[:, 0].tolist()):
                if best[row][0] == -math.inf:  # none has ended
                    best[row] = 0.0, ids
        return [[i for i in ids if i not in (bos, eos)] for _, ids in best]


@dataclass(frozen=True)
class Recurrent(Settings):
    """A run's settings whose model is a `RecurrentModel`."""

    network: str = "recurrent"  # tells its folder from a Transformer's

    def model(self, types: int) -> Any:
        """A model that has learnt nothing yet, with weights drawn by `seed`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return RecurrentModel(self, types)

    def translator(self, model: Any, lessons: Lessons) -> "RecurrentTranslator":
        """What says sentences with a model of such a run."""
        subwords, languages, text = lessons.subwords, lessons.languages, lessons.text
        return RecurrentTranslator(model, subwords, languages, text)


class RecurrentTranslator(SubwordTranslator):
    """Sentences in, sentences out: the model searches for itself."""

    def speaker(self) -> Any:
        """What searches with the model as it is now."""
        return self.model


def best(folder: Path, lessons: Lessons, settings: Recurrent) -> RecurrentTranslator:
    """The translator of a run with the lowest validation loss."""
    found, _ = read_checkpoint(folder / "model.safetensors")
    model = settings.model(lessons.subwords.size)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(found[name])
    return settings.translator(model, lessons)


def main() -> None:
    """Train, measure, and write what was measured."""
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("folder", type=Path)
    add_data(ask)
    ask.add_argument("--seed", type=int, default=1)
    ask.add_argument("--epochs", type=int, default=40)
    ask.add_argument("--peak", type=float, default=TINY.peak)
    ask.add_argument("--test", action="store_true")
    options = ask.parse_args()
    torch.set_num_threads(1)
    chosen = {"seed": options.seed, "epochs": options.epochs, "peak": options.peak}
    settings = Recurrent(**{**dataclasses.asdict(TINY), **chosen})
    lessons = prepare(options.data, settings)
    follow(lessons, settings, options.folder)
    translator = best(options.folder, lessons, settings)
    points = curve(options.folder)
    ways = []
    for beam_size, length_penalty in WAYS:
        found, _ = measured(translator, lessons.check_pairs, beam_size, length_penalty)
        way = dict(zip(CHOSEN, (0, beam_size, length_penalty), strict=True))
        ways.append({**way, **found})
    note = options.folder / "test.json"
    if options.test and not note.is_file():
        way = max(ways, key=lambda way: way["bleu"])
        pairs = read_pairs(options.data, "tok", "test", *lessons.languages)
        size, penalty = way["beam_size"], way["length_penalty"]
        found, _ = measured(translator, pairs, size, penalty)
        found |= {name: way[name] for name in CHOSEN}
        found |= {"epoch": points[-1]["epoch"], "date": today()}
        note.write_text(json.dumps(found, indent=1), "utf-8")
    run = {
        "command": f"python benchmarks/recurrent.py --seed {options.seed} "
        f"--epochs {options.epochs} --peak {options.peak}",
        **this_machine(),
        "parameters": sum(weight.numel() for weight in translator.model.parameters()),
        "settings": json.loads((options.folder / "run.json").read_text("utf-8")),
        "curve": points,
        "validation": ways,
    }
    if note.is_file():
        run["test"] = json.loads(note.read_text("utf-8"))
    put(run, "rnn", str(options.seed))


if __name__ == "__main__":
    main()
