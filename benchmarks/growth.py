"""What a training step costs as the work grows, beside what its arithmetic alone would.

    python benchmarks/growth.py              # a quarter of an hour, on a quiet machine
    python benchmarks/growth.py --smoke      # two small points each: does it still run?

One size grows at a time: the length of a text, the number of sentences, the width, the
vocabulary. Each point is a process of its own, on one thread. It measures the whole
step (forward, loss, backward), and alone the parts of it that make products: attention,
the layers' linear maps, and the vocabulary's product with its loss. The floor is the
step's multiply-adds at the speed of one large product. Last, a causal mask is compared
with the kernel's own flag. Written to benchmarks/results/growth.json, which chapter 15
draws.
"""

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from typing import Any

import torch
from peers import CausalAttention, our_loss
from race import made, write
from torch import Tensor, nn
from torch.nn import functional as F

from transformer import Transformer, TransformerConfig
from transformer.beyond.language_model import LanguageModel, LanguageModelConfig
from transformer.masks import causal_mask, padding_mask
from transformer.multi_head import MultiHeadAttention
from transformer.text.batches import Batch
from transformer.text.words import PAD_ID
from transformer.training.chunked_loss import chunked_loss

TURNS = 3  # after one that warms up; the median counts


@dataclass(frozen=True)
class Work:
    """A training step's sizes; a source is as long as its target."""

    length: int = 32
    sentences: int = 32
    width: int = 256
    vocabulary: int = 8_000

    def model(self) -> Transformer:
        """Two layers on either side, in heads of 64 features, without dropout."""
        torch.manual_seed(0)
        config = TransformerConfig(
            self.vocabulary,
            self.vocabulary,
            d_model=self.width,
            num_heads=self.width // 64,
            d_ff=4 * self.width,
            num_encoder_layers=2,
            num_decoder_layers=2,
            dropout=0.0,
            max_length=self.length + 1,
        )
        return Transformer(config)


# What grows, and what stands still meanwhile: the length grows in one text alone.
GROWTH = {
    "length": (Work(sentences=1), (32, 128, 512, 1024, 2048, 4096, 8192)),
    "sentences": (Work(), (1, 2, 4, 8, 16, 32, 64, 128)),
    "width": (Work(), (64, 128, 256, 512, 1024)),
    "vocabulary": (Work(), (1_000, 4_000, 16_000, 64_000)),
}
CAUSAL = (64, 256, 1024, 4096)  # lengths of a language model's text
SMOKE = {"length": (Work(sentences=1, vocabulary=100), (8, 16))}


def parts(work: Work) -> dict[str, Callable[[], Tensor]]:
    """The step and its parts, each alone: a call makes a number to go back from."""
    model = work.model().train()
    shape = (work.sentences, work.length)
    source, target = (torch.randint(4, work.vocabulary, shape) for _ in range(2))
    batch = Batch(source, target, target)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, requires_grad=True)

    heads = random(work.sentences, work.width // 64, work.length, 64)
    rows = {
        width: random(work.sentences, work.length, width)
        for width in (work.width, 4 * work.width)
    }
    # A layer of the encoder, then a decoder's own attention and that to the encoder.
    real = padding_mask(source, PAD_ID)
    masks = [real, causal_mask(work.length), real] * model.config.num_decoder_layers
    stacks = nn.ModuleList([model.encoder, model.decoder])
    maps = [part for part in stacks.modules() if isinstance(part, nn.Linear)]

    def attention() -> Tensor:
        made = [
            F.scaled_dot_product_attention(heads, heads, heads, mask).sum()
            for mask in masks
        ]
        return torch.stack(made).sum()

    def linear() -> Tensor:
        made = [linear(rows[linear.in_features]).sum() for linear in maps]
        return torch.stack(made).sum()

    return {
        "step": lambda: our_loss(model, batch),
        "attention": attention,
        "linear": linear,
        "vocabulary": lambda: chunked_loss(
            rows[work.width], model.output.weight, target
        ),
    }


def seconds(part: Callable[[], Tensor], turns: int) -> float:
    """The median time of a part, forward and back, after one turn that warms up."""
    taken = []
    for _ in range(turns + 1):
        started = time.perf_counter()
        part().backward()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[1:])


def peak_mb() -> float:
    """The most memory that this process has held, as Linux counts it."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(work: Work, turns: int) -> dict[str, Any]:
    """Seconds of the step and its parts, the step's FLOP, and the memory it took."""
    torch.set_num_threads(1)
    of = parts(work)
    before = peak_mb()
    taken = {"step": seconds(of.pop("step"), turns)}
    memory = peak_mb() - before
    taken |= {name: seconds(part, turns) for name, part in of.items()}
    return {
        **asdict(work),
        "seconds": rounded(taken),
        "flop": flop(work),
        "memory_mb": round(memory),
    }


def flop(work: Work) -> int:
    """The step's operations: six for each token and weight in a product (chapter 15).

    In each attention a token does twelve more for every feature of every key.
    """
    model = work.model()
    in_products = sum(
        part.weight.numel() for part in model.modules() if isinstance(part, nn.Linear)
    )
    attentions = sum(isinstance(p, MultiHeadAttention) for p in model.modules())
    of_token = 6 * in_products + 12 * attentions * work.length * work.width
    return work.sentences * work.length * of_token


def causal(length: int, turns: int) -> dict[str, Any]:
    """A language model's step with its mask as a tensor, and as the kernel's flag."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = LanguageModel(
        LanguageModelConfig(
            8_000, 256, 4, num_layers=4, d_ff=1024, dropout=0.0, max_length=length
        )
    )
    ids = torch.randint(8_000, (1, length))

    def step() -> Tensor:
        return F.cross_entropy(model(ids)[0], ids[0])

    taken = {"mask": seconds(step, turns)}
    for layer in model.encoder.layers:
        layer.self_attention.__class__ = CausalAttention
    taken["flag"] = seconds(step, turns)
    return {"length": length, "seconds": rounded(taken)}


def rounded(taken: dict[str, float]) -> dict[str, float]:
    """Seconds to four figures."""
    return {name: float(f"{each:.4g}") for name, each in taken.items()}


def matmul_gflops() -> float:
    """What one thread reaches in a large product, in 10⁹ operations a second."""
    torch.set_num_threads(1)
    side = 2048
    left, right = torch.randn(2, side, side)
    best = min(_product_seconds(left, right) for _ in range(5))
    return round(2 * side**3 / best / 1e9, 1)


def _product_seconds(left: Tensor, right: Tensor) -> float:
    started = time.perf_counter()
    left @ right
    return time.perf_counter() - started


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a fresh process, whose memory is its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def main() -> None:
    """Measure every point, and say how it goes."""
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("--smoke", action="store_true", help="two small points")
    ask.add_argument("--out", default="growth", help="the file's name")
    options = ask.parse_args()
    growth, turns = (SMOKE, 1) if options.smoke else (GROWTH, TURNS)
    started = time.monotonic()
    peak = apart(matmul_gflops)
    print(f"one large product: {peak:.0f} GFLOP a second")
    found: dict[str, list[dict[str, Any]]] = {}
    for size, (work, values) in growth.items():
        found[size] = []
        for value in values:
            point = apart(measure, replace(work, **{size: value}), turns)
            found[size].append(point)
            took = "  ".join(f"{k} {v:.3g}" for k, v in point["seconds"].items())
            floor = point["flop"] / peak / 1e9
            print(f"{size} {value:6,}  {took}  floor {floor:.3g} s", flush=True)
    masks = [
        apart(causal, length, turns)
        for length in CAUSAL[: 1 if options.smoke else None]
    ]
    minutes = (time.monotonic() - started) / 60
    note = "seconds are medians of turns after a warm one; memory is the step's own"
    write(
        options.out,
        {
            "made": made([1], minutes, note),
            "matmul_gflops": peak,
            "growth": found,
            "causal": masks,
        },
    )


if __name__ == "__main__":
    sys.exit(main())
