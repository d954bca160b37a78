"""What became of runs of `python -m transformer train`: figures for chapter 16.

    python benchmarks/translation.py RUN... --data FOLDER          # validation only
    python benchmarks/translation.py RUN --data FOLDER --test      # and test, once
    python benchmarks/translation.py --data FOLDER --cost          # an epoch's time

RUN is the folder of a run, finished or not. Its name without the seed at the end says
what kind of run it is: runs/en-de-tiny-1 is a run of "en-de-tiny". Everything is chosen
on the validation sentences. With --test the choice is measured on the test sentences;
the result is kept in the folder, and a second --test only reads it. The figures join
those of other runs in benchmarks/results/multi30k_runs.json, from which the chapter
draws.
"""

import argparse
import dataclasses
import datetime
import json
import random
import re
import statistics
import sys
import time
from collections import Counter
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from ingredients import VARIANTS, add_data  # noqa: E402
from race import processor  # noqa: E402

from transformer.data import BOS, batches_by_tokens  # noqa: E402
from transformer.maps import attention_maps  # noqa: E402
from transformer.model import write_whole  # noqa: E402
from transformer.translation import (  # noqa: E402
    PRESETS,
    Crew,
    SentencePair,
    SubwordTranslator,
    Trainee,
    prepare,
    read_metrics,
    read_pairs,
    score,
)

RESULTS = ROOT / "benchmarks" / "results" / "multi30k_runs.json"
AVERAGES = (0, 1, 5, 10)  # last epochs whose weights are averaged; 0: running mean
BEAMS = (1, 5)
PENALTIES = (0.6, 1.0)
CHOSEN = ("average", "beam_size", "length_penalty")


def measured(
    translator: SubwordTranslator,
    pairs: list[SentencePair],
    beam_size: int,
    length_penalty: float,
) -> tuple[dict[str, Any], list[str]]:
    """The scores of one way to translate, and what it said."""
    said = translator.translate([a for a, _ in pairs], beam_size, length_penalty)
    scores = score(said, [b for _, b in pairs], translator.text)
    return {**scores._asdict(), "words": sum(len(one.split()) for one in said)}, said


def curve(folder: Path) -> list[dict[str, float]]:
    """One point an epoch: the mean training loss, and what validation said."""
    points = []
    for epoch, some in groupby(read_metrics(folder), lambda line: line["epoch"]):
        lines = list(some)
        if "checked" not in lines[-1]:
            continue  # not over yet
        tokens = sum(line["tokens"] for line in lines)
        points.append(
            {
                "epoch": epoch,
                "step": lines[-1]["step"],
                "loss": round(sum(x["loss"] * x["tokens"] for x in lines) / tokens, 4),
                "checked": round(lines[-1]["checked"], 4),
                "bleu": round(lines[-1]["bleu"], 2),
                "seconds": round(lines[-1]["seconds"], 1),
                "tokens": tokens,
            }
        )
    return points


def choose(folder: Path, data: str, epoch: int) -> dict[str, Any]:
    """Every way to translate, measured on validation; kept in the folder."""
    kept = folder / "validation.json"
    ways: list[dict[str, Any]] = []
    if kept.is_file():
        there = json.loads(kept.read_text("utf-8"))
        if there["epoch"] == epoch:
            ways = there["ways"]
    known = {way["average"] for way in ways}
    if known == set(AVERAGES):
        return there
    for average in sorted(set(AVERAGES) - known):
        try:
            translator = SubwordTranslator.load(folder, average)
        except ValueError as error:
            print(f"{folder}: {error}")
            continue
        pairs = read_pairs(data, translator.text, "val", *translator.languages)
        for beam in BEAMS:
            for penalty in PENALTIES if beam > 1 else PENALTIES[:1]:
                found, _ = measured(translator, pairs, beam, penalty)
                way = dict(zip(CHOSEN, (average, beam, penalty), strict=True))
                ways.append({**way, **found})
                print(f"{folder}: {way} BLEU {found['bleu']:.2f}", flush=True)
    ways.sort(key=lambda way: way["average"])
    found = {"epoch": epoch, "ways": ways, "made": this_machine()}
    kept.write_text(json.dumps(found, indent=1), "utf-8")
    return found


def tested(
    folder: Path, data: str, epoch: int, ways: list[dict[str, Any]]
) -> dict[str, Any]:
    """What validation chose, on the test sentences: measured once, then read."""
    kept = folder / "test.json"
    if kept.is_file():
        return json.loads(kept.read_text("utf-8"))
    best = max(ways, key=lambda way: way["bleu"])
    way = {name: best[name] for name in CHOSEN}
    translator = SubwordTranslator.load(folder, best["average"])
    pairs = read_pairs(data, translator.text, "test", *translator.languages)
    found, said = measured(translator, pairs, best["beam_size"], best["length_penalty"])
    found = {**way, **found, "epoch": epoch, "date": today()}
    kept.write_text(json.dumps(found, indent=1), "utf-8")
    (folder / "test.said").write_text("".join(f"{one}\n" for one in said), "utf-8")
    return found


def today() -> str:
    """The date of a measurement."""
    return datetime.date.today().isoformat()


def this_machine() -> dict[str, str]:
    """When and with what something was measured."""
    return {
        "date": today(),
        "processor": processor(),
        "torch": version("torch"),
        "sacrebleu": version("sacrebleu"),
    }


def put(found: Any, *names: str) -> None:
    """Store one result under its names, beside what others have stored by now."""
    stored = json.loads(RESULTS.read_text("utf-8")) if RESULTS.is_file() else {}
    place = stored
    for name in names[:-1]:
        place = place.setdefault(name, {})
    place[names[-1]] = found
    text = json.dumps(stored, indent=1, ensure_ascii=False)
    write_whole(RESULTS, f"{text}\n".encode())


def mistakes(folder: Path, data: str, show: int = 6) -> dict[str, Any]:
    """How validation sentences fare: by length, and some from best to worst."""
    from sacrebleu.metrics import CHRF

    translator = SubwordTranslator.load(folder)
    pairs = read_pairs(data, translator.text, "val", *translator.languages)
    _, said = measured(translator, pairs, 5, 1.0)
    chrf = CHRF()
    marks = [
        chrf.sentence_score(one, [wanted]).score
        for one, (_, wanted) in zip(said, pairs, strict=True)
    ]
    counts = Counter(
        word
        for _, target in read_pairs(
            data, translator.text, "train", *translator.languages
        )
        for word in target.split()
    )
    by_count = []
    for low, high in zip((0, 1, 10, 100, 1000), (0, 9, 99, 999, 10**9), strict=True):
        words = hits = 0
        for one, (_, wanted) in zip(said, pairs, strict=True):
            some = Counter(w for w in wanted.split() if low <= counts[w] <= high)
            words += some.total()
            hits += (some & Counter(one.split())).total()
        name = {0: "never", 10**9: f"{low:,}+"}.get(high, f"{low}–{high}")
        by_count.append({"name": name, "words": words, "found": hits})
    by_length = []
    for low, high in ((1, 8), (9, 11), (12, 14), (15, 18), (19, 99)):
        some = [i for i, (a, _) in enumerate(pairs) if low <= len(a.split()) <= high]
        if not some:
            continue
        wanted = [pairs[i][1] for i in some]
        found = score([said[i] for i in some], wanted, translator.text)
        by_length.append(
            {"from": low, "to": high, "sentences": len(some), "bleu": found.bleu}
        )
    short = [i for i, (a, _) in enumerate(pairs) if 7 <= len(a.split()) <= 10]
    short.sort(key=lambda i: -marks[i])
    at = [round(k * (len(short) - 1) / (show - 1)) for k in range(show)]
    shown = [
        {
            "source": pairs[short[k]][0],
            "reference": pairs[short[k]][1],
            "said": said[short[k]],
            "chrf": round(marks[short[k]], 1),
        }
        for k in at
    ]
    middle = shown[show // 2]
    ids = translator.subwords.encode(middle["source"])
    target = translator.subwords.encode(middle["said"])
    maps = attention_maps(
        translator.model, torch.tensor([ids]), torch.tensor([[BOS, *target]])
    )
    pieces = translator.subwords.pieces
    return {
        "run": folder.resolve().name,
        "epochs": curve(folder)[-1]["epoch"],
        "quartiles": statistics.quantiles(marks, n=4),
        "exact": sum(a == b for a, (_, b) in zip(said, pairs, strict=True)),
        "sentences": len(pairs),
        "by_count": by_count,
        "by_length": by_length,
        "shown": shown,
        "attention": {
            "source": pieces(middle["source"]),
            "said": [*pieces(middle["said"]), "<eos>"],
            "cross": [
                [[round(x, 3) for x in row] for row in head]
                for head in maps.cross[0, -1].tolist()
            ],
        },
    }


def cost(data: str, preset: str, bf16: bool, steps: int = 40) -> dict[str, Any]:
    """What an epoch takes on one thread: wants a machine that does nothing else."""
    settings = dataclasses.replace(PRESETS[preset], bf16=bf16)
    lessons = prepare(data, settings)
    trainee = Trainee(settings, lessons.subwords.size, Crew())
    lengths = [max(len(a), len(b) + 1) for a, b in lessons.train]
    plan = batches_by_tokens(lengths, settings.step_tokens, random.Random(0))
    tokens, began = 0, 0.0
    for number, indices in enumerate(plan[: steps + 5], start=1):
        if number == 6:  # warm by now
            tokens, began = 0, time.perf_counter()
        batch = [lessons.train[index] for index in indices]
        trainee.step(batch, number, settings.rate(number, 1000))
        tokens += sum(len(target) + 1 for _, target in batch)
    speed = tokens / (time.perf_counter() - began)
    targets = sum(len(target) + 1 for _, target in lessons.train)
    return {
        "targets_a_second": round(speed, 1),
        "seconds_an_epoch": round(targets / speed, 1),
        "steps": steps,
        **this_machine(),
    }


def main() -> None:
    """Measure the runs, and write what was measured."""
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("runs", nargs="*", metavar="RUN")
    add_data(ask)
    ask.add_argument("--test", action="store_true")
    ask.add_argument("--mistakes", action="store_true", help="look at the first run")
    ask.add_argument("--cost", action="store_true", help="time steps of two presets")
    options = ask.parse_args()
    torch.set_num_threads(1)
    if options.mistakes and not options.runs:
        ask.error("--mistakes needs a RUN")
    for folder in map(Path, options.runs):
        matched = re.fullmatch(r"(.+)-(\d+)", folder.resolve().name)
        if not matched:
            ask.error(f"{folder} should end in its seed: runs/en-de-tiny-1")
        kind, seed = matched.groups()
        points = curve(folder)
        if not points:
            print(f"{folder}: no epoch is over yet")
            continue
        settings = json.loads((folder / "run.json").read_text("utf-8"))
        if settings["seed"] != int(seed):
            ask.error(f"{folder} has seed {settings['seed']}, and says {seed}")
        epoch = points[-1]["epoch"]
        chosen = choose(folder, options.data, epoch)
        translator = SubwordTranslator.load(folder)
        left_out = kind.removeprefix("en-de-")
        command = (
            f"python benchmarks/ingredients.py {left_out} {folder.name} "
            f"--epochs {epoch} --seed {seed}"
            if left_out in VARIANTS
            else f"python -m transformer train --epochs {epoch} --seed {seed}, with "
            "the settings below"
        )
        found = {
            "command": command,
            **chosen["made"],
            "parameters": sum(w.numel() for w in translator.model.parameters()),
            "settings": settings,
            "curve": points,
            "validation": chosen["ways"],
        }
        there = folder / "test.json"
        if options.test or there.is_file():
            found["test"] = tested(folder, options.data, epoch, chosen["ways"])
        put(found, "runs", kind, seed)
    for preset in ("tiny", "small") if options.cost else ():
        for bf16 in (False, True):
            name = f"{preset} {'bf16' if bf16 else 'float32'}"
            took = cost(options.data, preset, bf16)
            put(took, "cost", name)
            print(f"{name}: {took['targets_a_second']:,.0f} targets a second")
    if options.mistakes:
        put(mistakes(Path(options.runs[0]), options.data), "mistakes")


if __name__ == "__main__":
    main()
