"""All that chapter 15 needs to know of a GPU, in one run of some nine minutes.

    python benchmarks/gpu.py                # writes benchmarks/results/gpu.json
    python benchmarks/gpu.py --smoke        # tiny, on any machine: does it still run?

Needs PyTorch, transformers and this repository. The peak of the matrix units is
measured in the same run, and training is reported as a share of it. A part that fails
or finds no time left is named in the results, and the others go on.
"""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from cuda_graph import StaticState
from fused_loss import cost_and_gradient, fused_loss
from gpu_bench import Bench, Results, wait
from peers import (
    PackedAttention,
    PackedSpelledOutAttention,
    SpelledOutAttention,
    marian,
    marians_search,
    never_end,
    our_loss,
    peer,
    replace_self_attention,
    torchs_loss,
)
from race import RESULTS
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import profile

from transformer.decoding import beam, search
from transformer.decoding.fast import FastDecoder
from transformer.masks import causal_mask
from transformer.model import Transformer
from transformer.training.chunked_loss import chunked_loss

KERNELS = {
    "memory-efficient": [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
    "flash": [SDPBackend.FLASH_ATTENTION],
    "spelled out": [SDPBackend.MATH],
}
Cost = Callable[[], Tensor]
Contestant = Callable[[Bench], tuple[nn.Module, Cost]]
Change = Callable[[Bench, Transformer], None]
ATTENTION = re.compile("flash|fmha|efficient|cudnn|attention", re.IGNORECASE)


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
    """Which attention kernel runs with which mask, and the time of other kernels."""
    found: Results = {}
    tokens, heads, d_k = (16, 2, 8) if bench.smoke else (65_536, 8, 64)
    for length in (8,) if bench.smoke else (32, 128, 1024):
        rows = tokens // length
        shape = 3, rows, length, heads, d_k
        like = {"device": bench.device, "dtype": torch.bfloat16}
        qkv = [x.transpose(1, 2).requires_grad_() for x in torch.randn(shape, **like)]
        gradient = torch.randn_like(qkv[0])
        padding = torch.ones(rows, 1, 1, length, device=bench.device).bool()
        padding[: rows // 4, ..., length // 2 :] = False
        causal = causal_mask(length, bench.device)

        def run(qkv: Any = qkv, gradient: Tensor = gradient, **options: Any) -> None:
            heads = F.scaled_dot_product_attention(*qkv, **options)
            torch.autograd.grad(heads, qkv, gradient)

        for name, options in {
            "nothing masked": {},
            "is_causal": {"is_causal": True},
            "padding mask": {"attn_mask": padding},
            "causal and padding mask": {"attn_mask": padding & causal},
        }.items():
            work = partial(run, **options)
            with profile() as profiled:
                work()
                wait()
            names = {event.key[:60] for event in profiled.key_averages()}
            case: Results = {
                "kernels": sorted(name for name in names if ATTENTION.search(name)),
                "ms": {"PyTorch's choice": bench.ms(work)},
            }
            for kind, backend in KERNELS.items():
                with suppress(RuntimeError), sdpa_kernel(backend):  # not every mask
                    case["ms"][kind] = bench.ms(work)
            found[f"{length} tokens, {name}"] = case
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


def compiler(bench: Bench, **tuning: Any) -> dict[str, Any]:
    """How to compile: on the way through, where all is tiny, not at all."""
    return {"backend": "eager"} if bench.smoke else {"options": tuning or None}


def layers(bench: Bench, model: Transformer, **tuning: Any) -> None:
    """Compile each layer."""
    for layer in (*model.encoder.layers, *model.decoder.layers):
        layer.compile(**compiler(bench, **tuning))


def whole(bench: Bench, model: Transformer) -> None:
    """Compile embeddings and stacks, each as one."""
    embeddings = model.source_embedding, model.target_embedding, model.position
    for part in {*embeddings, model.encoder, model.decoder}:
        part.compile(**compiler(bench, **APART))


def packed(bench: Bench, model: Transformer) -> None:
    """One product for query, key and value."""
    replace_self_attention(model, PackedAttention, encoder=True)


def spelled_out(bench: Bench, model: Transformer) -> None:
    """The same, and attention as chapter 4 spells it out."""
    replace_self_attention(model, PackedSpelledOutAttention, encoder=True)
    for layer in model.decoder.layers:
        layer.cross_attention.__class__ = SpelledOutAttention


def compiled_loss(bench: Bench) -> Callable[..., Tensor]:
    """The chunked loss with a compiled middle."""
    how = compiler(bench, **APART)
    return partial(
        fused_loss, piece=torch.compile(cost_and_gradient, dynamic=False, **how)
    )


def ours(
    bench: Bench,
    changes: Sequence[Change] = (),
    loss: Callable[[Bench], Callable[..., Tensor]] = lambda bench: chunked_loss,
    padded: bool = False,
    dropout: float = 0.1,
) -> tuple[nn.Module, Cost]:
    """The package's model, as it is or changed, and its loss on the batch."""
    model = bench.model(dropout)
    for change in changes:
        change(bench, model)
    batch = bench.batch(padded)
    return model, partial(our_loss, model, batch, bench.chunk_size, loss(bench))


def library(bench: Bench, name: str, compiled: bool = False) -> tuple[nn.Module, Cost]:
    """Another library's model, as it is or compiled together with its loss."""
    model, loss = peer(name, bench.size)
    model.to(bench.device)
    if compiled:
        loss = torch.compile(loss, dynamic=False, **compiler(bench, **APART))
    return model, partial(loss, bench.batch())


def efficient(contestant: Contestant) -> Contestant:
    """The contestant with PyTorch's memory-efficient attention."""

    def with_kernel(bench: Bench) -> tuple[nn.Module, Cost]:
        model, cost = contestant(bench)
        return model, sdpa_kernel(KERNELS["memory-efficient"])(cost)

    return with_kernel


def contest(bench: Bench, field: dict[str, Contestant]) -> Results:
    """Training steps of each contestant that there is time for."""

    def steps(bench: Bench, contestant: Contestant) -> Results:
        return bench.step(*contestant(bench))

    found: Results = {}
    for name, contestant in field.items():
        found[name] = bench.attempt(partial(steps, contestant=contestant), needs=60)
        print(f"  {name}: {found[name]}", flush=True)
    return found


LIBRARIES = "torch.nn.Transformer", "MarianMT"
# With the option on, one kernel makes both gradients of a norm.
APART = {"triton.mix_order_reduction": False}
in_layers = partial(layers, **APART)
ALL = {"changes": (packed, whole), "loss": compiled_loss}
AS_WRITTEN: dict[str, Contestant] = {
    "ours": ours,
    "ours, a quarter of the sentences shorter": partial(ours, padded=True),
    "ours, memory-efficient kernel": efficient(ours),
    **{name: partial(library, name=name) for name in LIBRARIES},
}
COMPILED: dict[str, Contestant] = {
    "layers": partial(ours, changes=[layers]),
    "norms' sums apart": partial(ours, changes=[in_layers]),
    "memory-efficient kernel": efficient(partial(ours, changes=[in_layers])),
    "packed projections": efficient(partial(ours, changes=[packed, in_layers])),
    "whole": efficient(partial(ours, changes=[packed, whole])),
    "loss": efficient(partial(ours, **ALL)),
    "attention spelled out": partial(ours, **{**ALL, "changes": [spelled_out, whole]}),
    "without dropout": efficient(partial(ours, **ALL, dropout=0.0)),
    **{name: partial(library, name=name, compiled=True) for name in LIBRARIES},
}


def decoding(bench: Bench) -> Results:
    """Tokens a second: the package's searches, MarianMT's, greedy as a CUDA graph."""
    never_end()
    length = 6 if bench.smoke else 64
    found: Results = {"length": length}
    for dtype in (torch.float32, torch.bfloat16):
        model = bench.model(dropout=0.0).to(dtype).eval()
        decoder = FastDecoder(model)
        other = marian(bench.size, 0.0).to(bench.device, dtype).eval()
        for rows in (2,) if bench.smoke else (1, 32, 256):
            source = bench.batch().source[:rows]
            with torch.inference_mode():
                graph = StaticState(model, source, length)
                ways = {
                    "greedy": partial(search.greedy_search, decoder, source, length),
                    "beam 4": partial(beam.beam_search, decoder, source, length),
                    "CUDA graph": partial(graph.greedy_search, source),
                    "MarianMT": partial(marians_search, other, source, length, 1),
                    "MarianMT, beam 4": partial(
                        marians_search, other, source, length, 4
                    ),
                }
                rates: Results = {
                    way: round(rows * length / bench.seconds(work, rounds=3))
                    for way, work in ways.items()
                }
                same = ways["CUDA graph"]().tolist() == ways["greedy"]()
            name = f"{str(dtype).removeprefix('torch.')}, batch {rows}"
            found[name] = {**rates, "same tokens": same}
            print(f"  {name}: {found[name]}", flush=True)
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
    bench.part("training", partial(contest, field=AS_WRITTEN), needs=60)
    bench.part("training, compiled", partial(contest, field=COMPILED), needs=60)
    bench.part("decoding", decoding, needs=60)
    bench.part("peak at the end", peak, needs=10)
    return int(any("failed" in part for part in bench.results["parts"].values()))


if __name__ == "__main__":
    sys.exit(main())
