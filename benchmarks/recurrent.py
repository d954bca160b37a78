"""A recurrent translator of the same size, trained as chapter 16 trains its own.

    python benchmarks/recurrent.py FOLDER --data FOLDER [--seed N] [--epochs N] [--test]

What went before the Transformer: a GRU reads the sentence from both sides, another says
the translation, and attention looks back at what was read (Luong et al. 2015, global
attention with the dot product; the GRUs have two layers). Its subwords, table, batches,
loss, optimiser, steps and searches are those of the chapter, and so is the number of
parameters. It stops when validation finds no new low. Like any run it goes on where it
was stopped, from the last epoch's end; --test asks the test sentences, once. The
figures join those of chapter 16 in results/multi30k_runs.json.
"""

import argparse
import dataclasses
import json
import math
import os
import random
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from race import processor  # noqa: E402
from translation import RESULTS, curve, today  # noqa: E402

from transformer.data import batches_by_tokens, pad  # noqa: E402
from transformer.decoding import penalised, speaking  # noqa: E402
from transformer.faster import Beams  # noqa: E402
from transformer.masks import padding_mask  # noqa: E402
from transformer.translation import (  # noqa: E402
    TINY,
    Crew,
    Lesson,
    Lessons,
    Moment,
    RunFolder,
    SentencePair,
    Settings,
    Trainee,
    mean_loss,
    prepare,
    read_pairs,
    score,
)

WAYS = ((1, 1.0), (5, 0.6), (5, 1.0))  # beams and length penalties


class RecurrentModel(nn.Module):
    """A GRU from both sides, attention, and a GRU that speaks.

    It has the parts that a lesson asks of a `Transformer`: `encode`, `decode`, `output`
    and `config`, of which it uses the sizes of the tables, the dropout and the ids.
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


class Recurrent(Settings):
    """A run's settings whose model is a `RecurrentModel`."""

    def model(self, types: int) -> Any:
        """A model that has learnt nothing yet, with weights drawn by `seed`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return RecurrentModel(self, types)


def translate(
    model: RecurrentModel, lessons: Lessons, sentences: Sequence[str], way: tuple
) -> list[str]:
    """The translation of each sentence, batches of like lengths."""
    sources = [lessons.subwords.encode(sentence) for sentence in sentences]
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    answers = [""] * len(sources)
    for start in range(0, len(order), 64):
        now = order[start : start + 64]
        room = 2 * len(sources[now[-1]]) + 10
        said = model.beam_search([sources[i] for i in now], room, *way)
        for index, ids in zip(now, said, strict=True):
            most = 2 * len(sources[index]) + 10  # whoever shares the batch
            answers[index] = lessons.subwords.decode(ids[:most])
    return answers


def train(folder: Path, lessons: Lessons, settings: Recurrent) -> Trainee:
    """Train to the end, or from the last epoch's end; the weights of the lowest loss.

    The file of each epoch has the running mean beside the weights, so that the lowest
    one can be taken up again.
    """
    trainee = Trainee(settings, lessons.subwords.size, Crew())
    kept = RunFolder(folder, settings, {"model": "recurrent", **about(lessons)})
    done = kept.resume(trainee, print)
    before, started = kept.forget(done), time.perf_counter()
    lengths = [max(len(a), len(b) + 1) for a, b in lessons.train]
    best = folder / "best.safetensors"
    step = done
    for epoch in range(1, settings.epochs + 1):
        rng = random.Random(f"{settings.seed} {epoch}")
        plan = batches_by_tokens(lengths, settings.step_tokens, rng)
        total = settings.epochs * len(plan)
        if epoch * len(plan) <= done:
            continue
        if epoch > trainee.best_epoch + settings.patience:
            print(f"no better for {settings.patience} epochs: the run ends")
            break
        for indices in plan:
            step += 1
            batch = [lessons.train[index] for index in indices]
            rate = settings.rate(step, total)
            loss, gradient = trainee.step(batch, step, rate)
            tokens = sum(len(target) + 1 for _, target in batch)
            seconds = before + time.perf_counter() - started
            moment = Moment(step, total, epoch, loss, rate, gradient, tokens, seconds)
            if indices is plan[-1]:
                moment = checked(trainee, lessons, moment)
            kept.note(moment)
        if trainee.best_epoch == epoch:  # first: an epoch taken again writes it again
            trainee.save(best, step, kept.about)
        kept.save(trainee, step)
        print(
            f"epoch {epoch}: training {moment.loss:.3f}, validation "
            f"{moment.checked:.3f}, BLEU {moment.bleu:.2f}, {seconds:.0f} s",
            flush=True,
        )
    trainee.load(best, kept.about)
    return trainee


def about(lessons: Lessons) -> dict[str, str]:
    """What a folder says of its lessons."""
    return {
        "languages": " ".join(lessons.languages),
        "text": lessons.text,
        "lessons": lessons.digest(),
    }


def checked(trainee: Trainee, lessons: Lessons, moment: Moment) -> Moment:
    """Ask the validation sentences, and remember the lowest loss."""
    with trainee.averaged() as model:
        lesson = Lesson(model, 0.0, trainee.settings.bf16)
        loss = mean_loss(lesson, lessons.check, trainee.settings.part_tokens)
        found = measured(model, lessons, lessons.check_pairs, WAYS[0])
    if loss < trainee.best:
        trainee.best, trainee.best_epoch = loss, moment.epoch
    return moment._replace(checked=loss, bleu=found["bleu"])


def measured(
    model: Any, lessons: Lessons, pairs: Sequence[SentencePair], way: tuple
) -> dict[str, Any]:
    """The scores of one way to translate."""
    said = translate(model, lessons, [a for a, _ in pairs], way)
    scores = score(said, [b for _, b in pairs], lessons.text)
    return {
        "average": 0,
        "beam_size": way[0],
        "length_penalty": way[1],
        **scores._asdict(),
    }


def main() -> None:
    """Train, measure, and write what was measured."""
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("folder", type=Path)
    ask.add_argument("--data", default=os.environ.get("MULTI30K"))
    ask.add_argument("--seed", type=int, default=1)
    ask.add_argument("--epochs", type=int, default=40)
    ask.add_argument("--peak", type=float, default=TINY.peak)
    ask.add_argument("--test", action="store_true")
    options = ask.parse_args()
    torch.set_num_threads(1)
    chosen = {"seed": options.seed, "epochs": options.epochs, "peak": options.peak}
    settings = Recurrent(**{**dataclasses.asdict(TINY), **chosen})
    lessons = prepare(options.data, settings)
    trainee = train(options.folder, lessons, settings)
    note = options.folder / "test.json"
    with trainee.averaged() as model:
        ways = [measured(model, lessons, lessons.check_pairs, way) for way in WAYS]
        if options.test and not note.is_file():
            best = max(ways, key=lambda way: way["bleu"])
            way = best["beam_size"], best["length_penalty"]
            pairs = read_pairs(options.data, "tok", "test", *lessons.languages)
            found = measured(model, lessons, pairs, way)
            found |= {"epoch": trainee.best_epoch, "date": today()}
            note.write_text(json.dumps(found, indent=1), "utf-8")
    run = {
        "command": f"python benchmarks/recurrent.py --seed {options.seed} "
        f"--epochs {options.epochs} --peak {options.peak}",
        "date": today(),
        "processor": processor(),
        "torch": version("torch"),
        "sacrebleu": version("sacrebleu"),
        "parameters": sum(weight.numel() for weight in trainee.model.parameters()),
        "settings": json.loads((options.folder / "run.json").read_text("utf-8")),
        "curve": curve(options.folder),
        "validation": ways,
    }
    if note.is_file():
        run["test"] = json.loads(note.read_text("utf-8"))
    stored = json.loads(RESULTS.read_text("utf-8"))
    stored.setdefault("rnn", {})[str(options.seed)] = run
    text = json.dumps(stored, indent=1, ensure_ascii=False)
    RESULTS.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
