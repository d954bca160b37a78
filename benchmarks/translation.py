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
import time
from collections import Counter
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from ingredients import VARIANTS, add_data, load_dataset
from race import RESULTS, begun, keep, processor

from transformer.decoding.translator import Translator
from transformer.text.batches import batches_by_tokens, example_length
from transformer.text.multi30k import SentencePair, read_pairs
from transformer.training.bleu import corpus_scores
from transformer.training.distributed import ProcessGroup
from transformer.training.run_folder import (
    RunInfo,
    load_run,
    read_metrics,
    read_run,
)
from transformer.training.state import TrainingState
from transformer.training.trainer import PRESETS, translation_model

RUNS = RESULTS / "multi30k_runs.json"
AVERAGES = (0, 1, 5, 10)  # last epochs whose weights are averaged; 0: running mean
BEAMS = (1, 5)
STEPS = 40  # timed of each preset, after five that warm up
PENALTIES = (0.6, 1.0)
CHOSEN = ("average", "beam_size", "length_penalty")


def measured(
    translator: Translator,
    text: str,
    pairs: list[SentencePair],
    beam_size: int,
    length_penalty: float,
) -> tuple[dict[str, Any], list[str]]:
    """The scores of one way to translate, and the translations."""
    sources = [source for source, _ in pairs]
    found = list(translator.translate(sources, beam_size, length_penalty))
    scores = corpus_scores(found, [target for _, target in pairs], text)
    return {**scores._asdict(), "words": sum(len(one.split()) for one in found)}, found


def split_of(info: RunInfo, data: str, split: str) -> list[SentencePair]:
    """The sentence pairs of a split, in the languages of a run."""
    return read_pairs(data, info.text, split, *info.languages)


def settings_of(info: RunInfo) -> dict[str, Any]:
    """A run's choices under the names that the results have had from the first."""
    model, training = info.model, info.training
    tokens = training["batch_tokens"]
    return {
        "languages": " ".join(info.languages),
        "text": info.text,
        "types": model["target_vocab_size"],
        "layers": model["num_encoder_layers"],
        **{
            name: model[name]
            for name in (
                "d_model",
                "num_heads",
                "d_ff",
                "dropout",
                "norm_first",
                "max_length",
            )
        },
        "epochs": training["epochs"],
        "step_tokens": tokens,
        "part_tokens": training["micro_batch_tokens"] or tokens,
        "schedule": training["schedule"],
        "peak": training["learning_rate"],
        "warmup": training["warmup_steps"],
        "smoothing": training["label_smoothing"],
        "max_norm": training["max_grad_norm"],
        "memory": training["ema_decay"],
        **{
            name: training[name]
            for name in ("cooldown", "patience", "bf16", "seed", "begin")
            if name in training
        },
    }


def curve(folder: Path) -> list[dict[str, float]]:
    """One point an epoch: the mean training loss, and the validation's results."""
    points = []
    for epoch, some in groupby(read_metrics(folder), lambda metrics: metrics.epoch):
        steps = list(some)
        last = steps[-1]
        if last.validation_loss is None or last.bleu is None:
            continue  # not over yet
        tokens = sum(each.target_tokens for each in steps)
        losses = sum(each.loss * each.target_tokens for each in steps)
        points.append(
            {
                "epoch": epoch,
                "step": last.step,
                "loss": round(losses / tokens, 4),
                "checked": round(last.validation_loss, 4),
                "bleu": round(last.bleu, 2),
                "seconds": round(last.seconds, 1),
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
    info = read_run(folder)
    pairs = split_of(info, data, "val")
    for average in sorted(set(AVERAGES) - known):
        try:
            translator = load_run(folder, average)
        except ValueError as error:
            print(f"{folder}: {error}")
            continue
        for beam in BEAMS:
            for penalty in PENALTIES if beam > 1 else PENALTIES[:1]:
                found, _ = measured(translator, info.text, pairs, beam, penalty)
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
    translator, info = load_run(folder, best["average"]), read_run(folder)
    pairs = split_of(info, data, "test")
    size, penalty = best["beam_size"], best["length_penalty"]
    found, translations = measured(translator, info.text, pairs, size, penalty)
    found = {**way, **found, "epoch": epoch, "date": today()}
    kept.write_text(json.dumps(found, indent=1), "utf-8")
    text = "".join(f"{one}\n" for one in translations)
    (folder / "test.translations").write_text(text, "utf-8")
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
    place = stored = begun(RUNS)
    for name in names[:-1]:
        place = place.setdefault(name, {})
    place[names[-1]] = found
    keep(RUNS, stored)


def mistakes(folder: Path, data: str) -> dict[str, Any]:
    """How validation sentences fare: by length, and some from best to worst."""
    from sacrebleu.metrics import CHRF

    translator, info = load_run(folder), read_run(folder)
    pairs = split_of(info, data, "val")
    _, found = measured(translator, info.text, pairs, 5, 1.0)
    chrf = CHRF()
    scores = [
        chrf.sentence_score(one, [reference]).score
        for one, (_, reference) in zip(found, pairs, strict=True)
    ]
    train = split_of(info, data, "train")
    counts = Counter(word for _, target in train for word in target.split())
    by_count = []
    for low, high in zip((0, 1, 10, 100, 1000), (0, 9, 99, 999, 10**9), strict=True):
        words = hits = 0
        for one, (_, reference) in zip(found, pairs, strict=True):
            some = Counter(w for w in reference.split() if low <= counts[w] <= high)
            words += some.total()
            hits += (some & Counter(one.split())).total()
        name = {0: "never", 10**9: f"{low:,}+"}.get(high, f"{low}–{high}")
        by_count.append({"name": name, "words": words, "found": hits})
    by_length = []
    for low, high in ((1, 8), (9, 11), (12, 14), (15, 18), (19, 99)):
        chosen = [i for i, (a, _) in enumerate(pairs) if low <= len(a.split()) <= high]
        if not chosen:
            continue
        references = [pairs[i][1] for i in chosen]
        bleu = corpus_scores([found[i] for i in chosen], references, info.text).bleu
        by_length.append(
            {"from": low, "to": high, "sentences": len(chosen), "bleu": bleu}
        )
    lengths = [len(source.split()) for source, _ in pairs]
    short = [i for i, length in enumerate(lengths) if 7 <= length <= 10]
    short.sort(key=lambda i: -scores[i])
    at = [round(k * (len(short) - 1) / 5) for k in range(6)]
    shown = [
        {
            "source": pairs[short[k]][0],
            "reference": pairs[short[k]][1],
            "said": found[short[k]],
            "chrf": round(scores[short[k]], 1),
        }
        for k in at
    ]
    return {
        "run": folder.resolve().name,
        "epochs": curve(folder)[-1]["epoch"],
        "quartiles": statistics.quantiles(scores, n=4),
        "exact": sum(a == b for a, (_, b) in zip(found, pairs, strict=True)),
        "sentences": len(pairs),
        "by_count": by_count,
        "by_length": by_length,
        "shown": shown,
    }


def cost(options: argparse.Namespace, preset: str, bf16: bool) -> dict[str, Any]:
    """What an epoch takes on one thread, on a machine that does nothing else."""
    chosen = PRESETS[preset]
    config = dataclasses.replace(chosen.training, bf16=bf16)
    dataset = load_dataset(options, chosen)
    size = dataset.target_tokenizer.vocab_size
    model = translation_model(size, chosen.sizes, config.seed)
    state = TrainingState(model, config, ProcessGroup())
    lengths = [example_length(example) for example in dataset.train]
    batches = batches_by_tokens(lengths, config.batch_tokens, random.Random(0))
    tokens, began = 0, 0.0
    for step, indices in enumerate(batches[: STEPS + 5], start=1):
        if step == 6:  # warm by now
            tokens, began = 0, time.perf_counter()
        examples = [dataset.train[index] for index in indices]
        rate = config.learning_rate_at(step, 1000, model.config.d_model)
        state.train_step(examples, step, rate)
        tokens += sum(len(target) + 1 for _, target in examples)
    speed = tokens / (time.perf_counter() - began)
    targets = sum(len(target) + 1 for _, target in dataset.train)
    return {
        "targets_a_second": round(speed, 1),
        "seconds_an_epoch": round(targets / speed, 1),
        "steps": STEPS,
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
        settings = settings_of(read_run(folder))
        if settings["seed"] != int(seed):
            ask.error(f"{folder} has seed {settings['seed']}, and says {seed}")
        epoch = points[-1]["epoch"]
        chosen = choose(folder, options.data, epoch)
        model = load_run(folder).model
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
            "parameters": sum(w.numel() for w in model.parameters()),
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
            took = cost(options, preset, bf16)
            put(took, "cost", name)
            print(f"{name}: {took['targets_a_second']:,.0f} targets a second")
    if options.mistakes:
        put(mistakes(Path(options.runs[0]), options.data), "mistakes")


if __name__ == "__main__":
    main()
