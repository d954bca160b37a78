"""How fast a training step is, beside the libraries that a reader would pick instead.

    python benchmarks/training.py                    # all sizes: an hour on two cores
    python benchmarks/training.py --sizes tiny --threads 1 --rounds 5

A step is forward, loss, backward and Adam, with dropout, on batches of random tokens as
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
from peers import (
    SIZES,
    CausalAttention,
    Loss,
    PackedAttention,
    maskless_loss,
    our_loss,
    our_model,
    peer,
    replace_self_attention,
)
from race import lines, made, race, ratios, serve, write
from torch import nn

from transformer.text.batches import Batch, example_length, make_batch
from transformer.text.words import PAD_ID
from transformer.training.loss import label_smoothed_loss
from transformer.training.precision import bf16_autocast

OURS = "ours"
PEERS = ("torch.nn.Transformer", "MarianMT", "x-transformers")
# From the tutorials' model to ours, a step at a time: "ours" adds the loss in chunks to
# "fused attention". The package leaves two changes out: "packed projections" makes
# query, key and value by one product, and "no masks" needs no mask tensors.
LADDER = ("plain", "fused Adam", "fused attention", OURS)
LEFT_OUT = ("packed projections", "no masks")
# "compiled" takes minutes: only where it is asked for.
OWN = (*LADDER, *LEFT_OUT, "compiled")
TOKENS = {"smoke": 64, "tiny": 4096, "small": 4096, "base": 1024}


def random_batches(size: str, in_order: bool) -> list[Batch]:
    """Batches of random tokens, of sentences about as long as an image caption."""
    rng = random.Random(0)
    vocab_size, batch_tokens = SIZES[size]["words"], TOKENS[size]

    def sentence(length: int) -> list[int]:
        return [rng.randrange(3, vocab_size) for _ in range(max(3, length))]

    lengths = [round(rng.gauss(14, 5)) for _ in range(40 * batch_tokens // 14)]
    if in_order:
        lengths.sort()
    examples = [(sentence(n), sentence(n + rng.randint(-2, 2))) for n in lengths]
    batches, batch, longest = [], [], 0
    for example in examples:
        longest = max(longest, example_length(example))
        if (len(batch) + 1) * longest > batch_tokens and batch:
            batches.append(make_batch(batch))
            batch, longest = [], example_length(example)
        batch.append(example)
    rng.shuffle(batches)
    return batches


def our_rung(name: str, size: str) -> tuple[nn.Module, Loss]:
    """The package's model, at some rung of the ladder."""
    model = our_model(size)
    if name == "packed projections":
        replace_self_attention(model, PackedAttention, encoder=True)
    if name == "compiled":
        model.encoder.compile(dynamic=True)
        model.decoder.compile(dynamic=True)
    if name == "fused attention":
        return model, lambda b: label_smoothed_loss(
            model(b.source, b.decoder_input), b.labels
        )
    if name == "no masks":
        replace_self_attention(model, CausalAttention, encoder=False)
        return model, lambda b: maskless_loss(
            model, b, padded=bool((b.source == PAD_ID).any())
        )
    return model, lambda b: our_loss(model, b)


def take_turns(task: dict[str, Any]) -> None:
    """Be a contestant."""
    torch.set_num_threads(task["threads"])
    torch.manual_seed(0)
    name, size = task["name"], task["size"]
    base = "plain" if name == "fused Adam" else name
    ours = base in OWN and base != "plain"
    model, loss = our_rung(base, size) if ours else peer(base, size)
    model.train()
    # PyTorch's default on a CPU is a loop over the parameters.
    fused = {} if name == "plain" else {"fused": True}
    adam = torch.optim.Adam(
        model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, **fused
    )

    @contextlib.contextmanager
    def precision() -> Iterator[None]:
        if task["bf16"] and task["formula"]:
            with bf16_autocast("cpu"):
                yield
        else:
            with torch.autocast("cpu", torch.bfloat16, enabled=task["bf16"]):
                yield

    batches = random_batches(size, task["in_order"])[:4]
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
        return int((batch.labels != PAD_ID).sum())

    serve(turn, {"parameters": sum(weight.numel() for weight in model.parameters())})


def cases(
    sizes: Sequence[str], threads: Sequence[int]
) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Every race to run, and who is in it."""
    for size, count, bf16, kept in itertools.product(
        sizes, threads, (False, True), (False, True)
    ):
        race_of = {"size": size, "threads": count, "bf16": bf16, "kept": kept}
        if size == "tiny" and count == 1:
            names = [*LADDER, *LEFT_OUT, *PEERS]
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
    for case, names in cases(options.sizes, options.threads):
        if options.only:
            names = [OURS, *options.only]
        # As their users have them, others run autocast alone; else all run alike.
        formula = {name: case["kept"] or name in OWN for name in names}
        tasks = {
            name: {**case, "name": name, "formula": formula[name]} for name in names
        }
        print(json.dumps(case), flush=True)
        rounds = options.rounds if case["size"] == "tiny" else min(options.rounds, 3)
        field = race(script, tasks, case["threads"], case["kept"], rounds)
        print(*lines(field, OURS), sep="\n", flush=True)
        runs.append({**case, "field": field, "ahead": ratios(field, OURS)})
        minutes = (time.perf_counter() - started) / 60
        about = made(options.threads, minutes, options.note)
        write(options.out, {"made": about, "runs": runs})


if __name__ == "__main__":
    sys.exit(main())
