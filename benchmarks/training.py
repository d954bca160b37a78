"""How fast a training step is, beside the libraries that a reader would pick instead.

    python benchmarks/training.py                    # all sizes: an hour on two cores
    python benchmarks/training.py --sizes tiny --threads 1 --rounds 5

A step is forward, loss, backward and Adam, with dropout, on batches of random words as
long as short translations are. Every contestant has the same batches. Written to
benchmarks/results/training.json; `make bench` installs the others first.
"""

import argparse
import contextlib
import itertools
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from peers import SIZES, Loss, learner, our_model
from race import lines, made, race, ratios, serve, write
from torch import Tensor, nn
from torch.nn import functional as F

from transformer import multi_head
from transformer.data import PAD, Batch, make_batch
from transformer.encoder import EncoderLayer
from transformer.faster import (
    chunked_loss,
    coarse_dropout,
    half_precision,
    lesson_loss,
)
from transformer.masks import padding_mask
from transformer.model import Transformer
from transformer.multi_head import together
from transformer.training import label_smoothed_loss

OURS = "ours"
PEERS = ("torch.nn.Transformer", "Marian", "x-transformers")
# From the tutorials' model to ours, a step at a time. The last one was left out.
LADDER = (
    "plain",
    "fused Adam",
    "fused attention",
    "three projections",
    "PyTorch's dropout",
    OURS,
    "no masks",
)
OWN = (*LADDER, "compiled")  # the last only where asked for: it takes minutes
TOKENS = {"smoke": 64, "tiny": 4096, "small": 4096, "base": 1024}


def lessons(size: str, in_order: bool) -> list[Batch]:
    """Batches of random words, of sentences about as long as an image caption."""
    rng = random.Random(0)
    words, room = SIZES[size]["words"], TOKENS[size]

    def sentence(length: int) -> list[int]:
        return [rng.randrange(3, words) for _ in range(max(3, length))]

    lengths = [round(rng.gauss(14, 5)) for _ in range(40 * room // 14)]
    if in_order:
        lengths.sort()
    examples = [(sentence(n), sentence(n + rng.randint(-2, 2))) for n in lengths]
    batches, batch, longest = [], [], 0
    for example in examples:
        longest = max(longest, len(example[0]), len(example[1]) + 1)
        if (len(batch) + 1) * longest > room and batch:
            batches.append(make_batch(batch))
            batch, longest = [], max(len(example[0]), len(example[1]) + 1)
        batch.append(example)
    rng.shuffle(batches)
    return batches


def apart(x: Tensor, *maps: nn.Linear) -> tuple[Tensor, ...]:
    """Each projection by itself, as a reader of chapter 5 would begin."""
    return tuple(one(x) for one in maps)


def maskless(model: Transformer, batch: Batch) -> Tensor:
    """Our forward with is_causal instead of masks, where none is needed."""

    def attend(
        layer: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool
    ) -> Tensor:
        split = (
            x.unflatten(-1, (layer.num_heads, -1)).transpose(1, 2) for x in (q, k, v)
        )
        heads = F.scaled_dot_product_attention(*split, mask, is_causal=causal)
        return layer.output_proj(heads.transpose(1, 2).flatten(2))

    def own(layer: EncoderLayer, mask: Tensor | None, causal: bool) -> Any:
        a = layer.self_attention
        maps = a.query_proj, a.key_proj, a.value_proj
        return lambda x: attend(a, *together(x, *maps), mask, causal)

    def across(layer: Any, memory: Tensor, mask: Tensor | None) -> Any:
        a = layer.cross_attention
        return lambda x: attend(
            a, a.query_proj(x), a.key_proj(memory), a.value_proj(memory), mask, False
        )

    real = padding_mask(batch.source, PAD)
    mask = None if real.all() else real
    x = model.position(model.source_embedding(batch.source))
    for layer in model.encoder.layers:
        x = layer.residuals[0](x, own(layer, mask, False))
        x = layer.residuals[1](x, layer.feed_forward)
    memory = model.encoder.norm(x)
    x = model.position(model.target_embedding(batch.given))
    for layer in model.decoder.layers:
        x = layer.residuals[0](x, own(layer, None, True))
        x = layer.residuals[1](x, across(layer, memory, mask))
        x = layer.residuals[2](x, layer.feed_forward)
    hidden = model.decoder.norm(x)
    return chunked_loss(hidden, model.output.weight, batch.wanted)


def our_learner(name: str, size: str) -> tuple[nn.Module, Loss]:
    """The package's model, at some rung of the ladder."""
    model = our_model(size)
    if name in (OURS, "no masks", "compiled"):
        coarse_dropout(model)
    if name == "compiled":
        model.encoder.compile(dynamic=True)
        model.decoder.compile(dynamic=True)
    if name == "no masks":
        return model, lambda b: maskless(model, b)
    if name in ("fused attention", "three projections"):
        multi_head.together = apart
    if name == "fused attention":
        return model, lambda b: label_smoothed_loss(model(b.source, b.given), b.wanted)
    return model, lambda b: lesson_loss(model, b)


def take_turns(task: dict[str, Any]) -> None:
    """Be a contestant."""
    torch.set_num_threads(task["threads"])
    torch.manual_seed(0)
    name, size = task["name"], task["size"]
    base = "plain" if name == "fused Adam" else name
    ours = base in OWN and base != "plain"
    model, loss = our_learner(base, size) if ours else learner(base, size)
    model.train()
    # PyTorch's default on a CPU is a loop over the parameters.
    fused = {} if name == "plain" else {"fused": True}
    adam = torch.optim.Adam(
        model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, **fused
    )

    @contextlib.contextmanager
    def precision() -> Iterator[None]:
        if task["bf16"] and task["formula"]:
            with half_precision("cpu"):
                yield
        else:
            with torch.autocast("cpu", torch.bfloat16, enabled=task["bf16"]):
                yield

    batches = lessons(size, task["in_order"])[:4]
    position = 0

    def turn() -> int:
        nonlocal position
        batch = batches[position % len(batches)]
        position += 1
        with precision():
            cost = loss(batch)
        adam.zero_grad()
        cost.backward()
        adam.step()
        return int((batch.wanted != PAD).sum())

    serve(turn, {"parameters": sum(weight.numel() for weight in model.parameters())})


def settings(
    sizes: Sequence[str], threads: Sequence[int]
) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Every race to run, and who is in it."""
    for size, count, bf16, kept in itertools.product(
        sizes, threads, (False, True), (False, True)
    ):
        race_of = {"size": size, "threads": count, "bf16": bf16, "kept": kept}
        if size == "tiny" and count == 1:
            names = [*dict.fromkeys((*LADDER, *PEERS))]
        else:
            names = ["plain", OURS, *PEERS[: 2 if size == "base" else 3]]
        yield {**race_of, "in_order": True}, names
        if size == "tiny" and count == 1 and not bf16:
            yield {**race_of, "in_order": False}, ["plain", OURS, *PEERS[:2]]


def main() -> None:
    """Race, and write what came of it."""
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("--serve", help=argparse.SUPPRESS)
    ask.add_argument("--sizes", nargs="+", default=["tiny", "small", "base"])
    ask.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    ask.add_argument("--rounds", type=int, default=5, help="small, base: at most 3")
    ask.add_argument("--note", default="", help="what else is to be known of this run")
    ask.add_argument("--only", nargs="+", help="these contestants, and ours")
    ask.add_argument("--out", default="training", help="results/NAME.json")
    options = ask.parse_args()
    if options.serve:
        take_turns(json.loads(options.serve))
        return
    started, runs = time.perf_counter(), []
    script = str(Path(__file__).resolve())
    for setting, names in settings(options.sizes, options.threads):
        if options.only:
            names = [OURS, *options.only]
        # As their users have them, others run autocast alone; else all run alike.
        formula = {name: setting["kept"] or name in OWN for name in names}
        tasks = {
            name: {**setting, "name": name, "formula": formula[name]} for name in names
        }
        print(json.dumps(setting), flush=True)
        rounds = options.rounds if setting["size"] == "tiny" else min(options.rounds, 3)
        field = race(script, tasks, setting["threads"], setting["kept"], rounds)
        print(*lines(field, OURS), sep="\n", flush=True)
        runs.append({**setting, "field": field, "ahead": ratios(field, OURS)})
        minutes = (time.perf_counter() - started) / 60
        about = made(options.threads, minutes, options.note)
        write(options.out, {"made": about, "runs": runs})


if __name__ == "__main__":
    sys.exit(main())
