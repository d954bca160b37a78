"""All that chapter 15 needs to know of a GPU, in one run of under nine minutes.

    python benchmarks/gpu.py                # writes benchmarks/results/gpu.json
    python benchmarks/gpu.py --smoke        # tiny, on any machine: does it still run?

Needs PyTorch and this repository, and nothing else. The peak of the matrix units is
measured in the same run, and training is reported as a share of it. A part that fails
or finds no time left is named in the results, and the others go on.
"""

import argparse
import math
import re
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from cuda_graph import StaticState
from peers import (
    SIZES,
    CausalAttention,
    TorchTransformer,
    maskless_loss,
    our_loss,
    our_model,
    replace_self_attention,
    step_flops,
    torchs_loss,
)
from race import RESULTS, accelerator, keep, made
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import profile

from transformer.decoding import search
from transformer.decoding.fast import FastDecoder
from transformer.decoding.step import evaluating
from transformer.masks import causal_mask, padding_mask
from transformer.model import Transformer
from transformer.text.batches import Batch
from transformer.text.words import BOS_ID, PAD_ID
from transformer.training.fast_loss import chunked_loss

LIMIT = 520.0  # seconds for everything
ATTENTION = re.compile("flash|fmha|efficient|cudnn|attention", re.IGNORECASE)
Results = dict[str, Any]
wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None


class Bench:
    """The device, the sizes, the clock and the results so far."""

    def __init__(self, smoke: bool, folder: Path) -> None:
        self.smoke = smoke
        self.started = time.perf_counter()
        if smoke:
            torch.set_num_threads(1)  # two would wait for each other
        self.device = torch.device("cpu" if smoke else "cuda")
        self.path = folder / ("gpu-smoke.json" if smoke else "gpu.json")
        self.size = "smoke" if smoke else "base"
        self.length = 8 if smoke else 32
        self.sentences = 4 if smoke else 2048  # of 32 tokens: 65,536 target tokens
        self.chunk_size = 4096
        self.results: Results = {"made": {}, "parts": {}}

    def part(self, name: str, work: Callable[["Bench"], Results], needs: float) -> None:
        """Run a part if there is time for it, and keep its results."""
        started = time.perf_counter()
        left = LIMIT - (started - self.started)
        try:
            found = work(self) if left >= needs else {"skipped": f"{left:.0f} s left"}
        except Exception as error:
            traceback.print_exc()
            found = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
        torch._dynamo.reset()
        torch.cuda.empty_cache()
        self.results["parts"][name] = found
        minutes = (time.perf_counter() - self.started) / 60
        about = made([torch.get_num_threads()], minutes, ""), accelerator(self.device)
        self.results["made"] = {**about[0], **about[1], "smoke": self.smoke}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        keep(self.path, self.results)
        print(f"{name} ({time.perf_counter() - started:.0f} s): {found}", flush=True)

    def seconds(self, work: Callable[[], Any], rounds: int = 5) -> float:
        """The median time of some work; the first three rounds warm up."""
        times = []
        for _ in range(2 if self.smoke else 3 + rounds):
            wait()
            started = time.perf_counter()
            work()
            wait()
            times.append(time.perf_counter() - started)
        return statistics.median(times[1 if self.smoke else 3 :])

    def ms(self, work: Callable[[], Any]) -> float:
        """The same in milliseconds."""
        return round(1e3 * self.seconds(work), 4)

    def model(self, dropout: float = 0.1) -> Transformer:
        """The package's model."""
        torch.manual_seed(0)
        return our_model(self.size, dropout).to(self.device)

    def batch(self, padded: bool = False) -> Batch:
        """Random tokens; with `padded`, a quarter of the sentences is shorter."""
        generator = torch.Generator().manual_seed(0)
        shape, vocab_size = (2, self.sentences, self.length), SIZES[self.size]["words"]
        ids = torch.randint(3, vocab_size, shape, generator=generator)
        if padded:
            ids[:, : self.sentences // 4, self.length // 2 :] = PAD_ID
        source, labels = ids.to(self.device)
        return Batch(source, F.pad(labels[:, :-1], (1, 0), value=BOS_ID), labels)

    def backward(self, loss: Callable[[], Tensor]) -> None:
        """Forward and backward, with products in bfloat16."""
        with torch.autocast(self.device.type, torch.bfloat16):
            cost = loss()
        cost.backward()

    def step(self, model: nn.Module, loss: Callable[[], Tensor]) -> Results:
        """Time and memory of a training step, and the share of the peak it reaches."""
        model.train()
        adam = torch.optim.Adam(model.parameters(), lr=1e-5, fused=True)

        def step() -> None:
            adam.zero_grad()
            self.backward(loss)
            adam.step()

        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        seconds = self.seconds(step, 7)
        tflops = step_flops(self.size, self.sentences, self.length) / seconds / 1e12
        found = {
            "seconds": round(seconds, 5),
            "tokens_per_second": round(self.sentences * self.length / seconds),
            "tflops": round(tflops, 2),
        }
        if top := self.results["parts"].get("peak", {}).get("tflops"):
            found["share_of_peak"] = round(tflops / top, 3)
        if self.device.type == "cuda":
            found["memory_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
        return found


def peak(bench: Bench) -> Results:
    """TFLOP/s of one large product in bfloat16, and the bandwidth of the memory."""
    size = 64 if bench.smoke else 8192
    a, b = torch.randn(2, size, size, device=bench.device, dtype=torch.bfloat16)
    product = a @ b
    seconds = bench.seconds(lambda: torch.mm(a, b, out=product), rounds=20)
    big = torch.empty(1 << (16 if bench.smoke else 30), device=bench.device)
    moved = 8 * big.numel() / bench.seconds(lambda: big.mul_(1.0))
    tflops = 2 * size**3 / seconds / 1e12
    return {"tflops": round(tflops, 4), "gb_per_s": round(moved / 1e9)}


def kernels(bench: Bench) -> Results:
    """Which attention kernel runs, with a mask, with is_causal, and with neither."""
    rows, heads, d_k = (2, 2, 8) if bench.smoke else (256, 8, 64)
    shape = 3, rows, heads, bench.length, d_k
    like = {"device": bench.device, "dtype": torch.bfloat16, "requires_grad": True}
    qkv = torch.randn(shape, **like)
    padding = padding_mask(bench.batch(padded=True).source[:rows], PAD_ID)
    causal = causal_mask(bench.length, bench.device)

    def run(**options: Any) -> None:
        F.scaled_dot_product_attention(*qkv, **options).sum().backward()

    found: Results = {}
    for name, options in {
        "nothing masked": {},
        "is_causal": {"is_causal": True},
        "padding mask": {"attn_mask": padding.expand(-1, -1, *causal.shape)},
        "causal and padding mask": {"attn_mask": padding & causal},
    }.items():
        with profile() as profiled:
            run(**options)
            wait()
        names = {event.key[:90] for event in profiled.key_averages()}
        found[name] = {
            "kernels": sorted(name for name in names if ATTENTION.search(name)),
            "ms": bench.ms(partial(run, **options)),
        }
    with sdpa_kernel(SDPBackend.MATH):
        found["spelled out"] = {"ms": bench.ms(run)}
    return found


def loss_rows(bench: Bench) -> Results:
    """How many rows of logits at once? And PyTorch's loss, for comparison."""
    weight = bench.model().output.weight
    labels = bench.batch().labels[: max(1, bench.sentences // 4)]
    shape = *labels.shape, weight.size(1)
    hidden = torch.randn(shape, device=bench.device, requires_grad=True)
    times = {}
    for rows in (16,) if bench.smoke else (256, 1024, 4096, 16384):
        case = partial(chunked_loss, hidden, weight, labels, chunk_size=rows)
        times[rows] = bench.ms(partial(bench.backward, case))
    bench.chunk_size = min(times, key=times.__getitem__)
    plain = bench.ms(
        lambda: bench.backward(lambda: torchs_loss(F.linear(hidden, weight), labels))
    )
    return {"rows": labels.numel(), "ms": times, "plain_ms": plain}


def train(bench: Bench, name: str, compiled: bool) -> Results:
    """Steps of our model, of ours without masks, or of PyTorch's."""
    batch, chunk = bench.batch(padded=name == "ours, padded"), bench.chunk_size
    theirs = name == "torch.nn.Transformer"
    model = TorchTransformer(bench.size).to(bench.device) if theirs else bench.model()
    if name == "ours, no masks":
        replace_self_attention(model, CausalAttention, encoder=False)
    if compiled:
        for stack in [model.stacks] if theirs else [model.encoder, model.decoder]:
            stack.compile(backend="eager" if bench.smoke else "inductor")

    def loss() -> Tensor:
        if theirs:
            logits = model(batch.source, batch.decoder_input, padded=False)
            return torchs_loss(logits, batch.labels)
        if name == "ours, no masks":
            return maskless_loss(model, batch, padded=False, chunk_size=chunk)
        return our_loss(model, batch, chunk)

    return bench.step(model, loss)


def training(bench: Bench, compiled: bool = False) -> Results:
    """Training steps of each contestant."""
    names = ("ours", "ours, padded", "ours, no masks", "torch.nn.Transformer")
    return {name: train(bench, name, compiled) for name in names}


def mask_all_special(logits: Tensor, config: Any) -> Tensor:
    """In place of the searches' own: no row ends before the others."""
    logits[:, [config.pad_id, config.bos_id, config.eos_id]] = -math.inf
    return logits


def decoding(bench: Bench) -> Results:
    """Tokens a second: the package's searches, and greedy search as a CUDA graph."""
    search.mask_special = mask_all_special
    length = 6 if bench.smoke else 64
    found: Results = {"length": length}
    for dtype in (torch.float32, torch.bfloat16):
        model = bench.model(dropout=0.0).to(dtype)
        decoder = FastDecoder(model)
        for rows in (2,) if bench.smoke else (1, 32, 256):
            source = bench.batch().source[:rows]
            case = decoder, source, length
            with evaluating(model):
                graph = StaticState(model, source, length)
                ways = {
                    "greedy": lambda c=case: search.greedy_search(*c),
                    "beam 4": lambda c=case: search.beam_search(*c),
                    "CUDA graph": lambda g=graph, s=source: g.greedy_search(s),
                }
                rates: Results = {
                    way: round(rows * length / bench.seconds(work, rounds=3))
                    for way, work in ways.items()
                }
                same = ways["CUDA graph"]().tolist() == ways["greedy"]()
            name = f"{str(dtype).removeprefix('torch.')}, batch {rows}"
            found[name] = {**rates, "same tokens": same}
    return found


def main() -> int:
    """Every part in turn; what was found so far is always on the disk."""
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("--smoke", action="store_true", help="tiny, on any machine")
    ask.add_argument("--out", type=Path, default=RESULTS, metavar="DIR")
    options = ask.parse_args()
    if not options.smoke and not torch.cuda.is_available():
        print("no GPU here: --smoke runs everything tiny on the CPU", file=sys.stderr)
        return 2
    bench = Bench(options.smoke, options.out)
    bench.part("peak", peak, needs=20)
    bench.part("kernels", kernels, needs=30)
    bench.part("loss rows", loss_rows, needs=30)
    bench.part("training", training, needs=60)
    bench.part("decoding", decoding, needs=90)
    bench.part("training, compiled", partial(training, compiled=True), needs=150)
    bench.part("peak at the end", peak, needs=10)
    return int(any("failed" in part for part in bench.results["parts"].values()))


if __name__ == "__main__":
    sys.exit(main())
