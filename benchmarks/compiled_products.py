"""Who should make the products of a compiled decoding step, for how many rows?

    python benchmarks/compiled_products.py          # a minute or two

One step of the small model's decoder layers, without the logits, compiled three ways:
the products left to PyTorch's library, left to oneDNN, or written by the compiler.
Timed in turns, on one thread. Written to benchmarks/results/compiled_products.json.
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch
from peers import our_model
from race import made, write

from transformer.decoding.compiled import (
    _OPTIONS,
    CompiledState,
    CompiledStep,
    _compile,
    _Compiled,
)
from transformer.decoding.fast import FastDecoder
from transformer.decoding.search import greedy_search
from transformer.decoding.step import evaluating

ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
PAST, ROUNDS = 16, 60


def step_of(decoder: FastDecoder, run: _Compiled, rows: int) -> Callable[[], object]:
    """A function that takes the same step again and again."""
    prefilled = decoder.prefill(torch.randint(3, 10_000, (rows, 16)), 32)
    table, memory = decoder.model.position.table, prefilled.memory
    state = CompiledState.of(run, table, memory, None, 32, beam_size=1)
    state.past.normal_()
    tokens = torch.full((rows,), 7)

    def step() -> None:
        state.filled, state.position = PAST, PAST - 1  # the first slot has none
        state.step(tokens)

    return step


def main() -> None:
    """Compile, time, write."""
    started = time.perf_counter()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = our_model("tiny", dropout=0.0).eval()
    decoder = FastDecoder(model)
    greedy_search(decoder, [[3]], 1)  # packs the weights
    ways = {}
    for who, options in _OPTIONS.items():
        print(f"compiling: products by {who}", flush=True)
        ways[who] = _Compiled(_compile(CompiledStep(decoder, None), options), None)
    microseconds: dict[str, list[float]] = {who: [] for who in ways}
    with evaluating(model):
        for rows in ROWS:
            steps = {who: step_of(decoder, run, rows) for who, run in ways.items()}
            found: dict[str, list[float]] = {who: [] for who in ways}
            for _ in range(ROUNDS):
                for who, step in steps.items():
                    step()  # once unmeasured: others have had the caches
                    began = time.perf_counter()
                    step()
                    found[who].append(1e6 * (time.perf_counter() - began))
            for who, times in found.items():
                microseconds[who].append(round(statistics.median(times), 1))
            print(rows, {who: each[-1] for who, each in microseconds.items()})
    minutes = (time.perf_counter() - started) / 60
    about = made([1], minutes, " ".join(sys.argv[1:]))
    found_all = {"made": about, "rows": ROWS, "microseconds": microseconds}
    write("compiled_products", found_all)


if __name__ == "__main__":
    main()
