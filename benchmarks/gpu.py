"""All that chapter 15 wants to know of a GPU, in one run of under nine minutes.

    python benchmarks/gpu.py                # writes benchmarks/results/gpu.json
    python benchmarks/gpu.py --out DIR      # … or DIR/gpu.json
    python benchmarks/gpu.py --smoke        # small, on any machine: does it still run?

Needs PyTorch and this repository, and nothing else. The peak of the matrix units is
measured in the same run, and training is reported as a share of it. A part that fails
or finds no time left is named in the results, and the others go on.
"""

import argparse
import contextlib
import datetime
import json
import math
import platform
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from transformer.data import BOS, EOS, PAD, Batch  # noqa: E402
from transformer.faster import Speaker, Talk, chunked_loss, lesson_loss  # noqa: E402
from transformer.masks import padding_mask  # noqa: E402
from transformer.model import Transformer, TransformerConfig  # noqa: E402
from transformer.multi_head import KeysValues  # noqa: E402
from transformer.positional import sinusoids  # noqa: E402

LIMIT = 520.0  # seconds for everything


class Bench:
    """The device, the sizes, the clock and the results so far."""

    def __init__(self, smoke: bool, folder: Path) -> None:
        self.smoke = smoke
        self.started = time.perf_counter()
        cuda = torch.cuda.is_available() and not smoke
        self.device = torch.device("cuda" if cuda else "cpu")
        self.path = folder / ("gpu-smoke.json" if smoke else "gpu.json")
        self.words = 60 if smoke else 37_000
        self.config = TransformerConfig(
            self.words,
            self.words,
            **({"d_model": 16, "num_heads": 2, "d_ff": 32} if smoke else {}),
            num_encoder_layers=1 if smoke else 6,
            num_decoder_layers=1 if smoke else 6,
            tie_embeddings=True,
        )
        self.length = 8 if smoke else 32
        self.sentences = 4 if smoke else 2048  # of 32 words: 65,536 target tokens
        self.results: dict[str, Any] = {"made": self.made(), "parts": {}}

    def made(self) -> dict[str, Any]:
        """Where, when and with what this ran."""
        about: dict[str, Any] = {
            "date": datetime.date.today().isoformat(),
            "command": " ".join(["python", *sys.argv]),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "device": "cpu",
            "smoke": self.smoke,
        }
        if self.device.type == "cuda":
            of = torch.cuda.get_device_properties(0)
            query = [
                "nvidia-smi",
                "--query-gpu=driver_version",
                "--format=csv,noheader",
            ]
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                said = subprocess.run(query, capture_output=True, text=True, timeout=20)
                about["driver"] = said.stdout.strip().splitlines()[0]
            about |= {
                "device": of.name,
                "memory_gb": round(of.total_memory / 1e9, 1),
                "cuda": torch.version.cuda,
                "cudnn": torch.backends.cudnn.version(),
                "capability": f"{of.major}.{of.minor}",
            }
        return about

    def left(self) -> float:
        """Seconds that are left."""
        return LIMIT - (time.perf_counter() - self.started)

    def part(self, name: str, work: Callable[["Bench"], Any], needs: float) -> None:
        """Run a part if there is time for it, and keep what it found."""
        began = time.perf_counter()
        if self.left() < needs:
            found: Any = {"skipped": f"{self.left():.0f} s left, {needs:.0f} wanted"}
        else:
            try:
                found = work(self)
            except Exception as error:
                traceback.print_exc()
                found = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
        torch._dynamo.reset()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        seconds = time.perf_counter() - began
        self.results["parts"][name] = found
        self.results["made"]["seconds"] = round(time.perf_counter() - self.started)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.results, indent=1, ensure_ascii=False)
        self.path.write_text(text + "\n", "utf-8")
        print(f"{name} ({seconds:.0f} s): {json.dumps(found)[:600]}", flush=True)

    def wait(self) -> None:
        """Until the device has done all that it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def seconds(self, work: Callable[[], Any], rounds: int = 5, warm: int = 2) -> float:
        """The median time of some work."""
        for _ in range(1 if self.smoke else warm):
            work()
        times = []
        for _ in range(1 if self.smoke else rounds):
            self.wait()
            began = time.perf_counter()
            work()
            self.wait()
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    def model(self, dropout: float = 0.1) -> Transformer:
        """The base model, ours."""
        torch.manual_seed(0)
        config = self.config.__dict__ | {"dropout": dropout}
        return Transformer(TransformerConfig(**config)).to(self.device)

    def batch(self, padded: bool = False) -> Batch:
        """Random words; with `padded`, a quarter of the sentences is shorter."""
        made = torch.Generator().manual_seed(0)
        shape = self.sentences, self.length
        source, target = (
            torch.randint(3, self.words, shape, generator=made) for _ in range(2)
        )
        if padded:
            for ids in (source, target):
                ids[: self.sentences // 4, self.length // 2 :] = PAD
        start = torch.full_like(target[:, :1], BOS)
        given = torch.cat((start, target[:, :-1]), dim=1)
        return Batch(*(ids.to(self.device) for ids in (source, given, target)))

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Products in bfloat16."""
        return torch.autocast(self.device.type, torch.bfloat16)

    def compile(self, *stacks: nn.Module) -> None:
        """Compile stacks of layers in place; a smoke test only traces them."""
        for stack in stacks:
            stack.compile(backend="eager" if self.smoke else "inductor")


def peak(bench: Bench) -> dict[str, float]:
    """TFLOP/s of one large product in bfloat16: what the matrix units can do."""
    size = 64 if bench.smoke else 8192
    a, b = (
        torch.randn(size, size, device=bench.device, dtype=torch.bfloat16)
        for _ in range(2)
    )
    product = a @ b
    seconds = bench.seconds(lambda: torch.mm(a, b, out=product), rounds=20, warm=10)
    best = 2 * size**3 / seconds / 1e12
    big = torch.empty(1 << (16 if bench.smoke else 30), device=bench.device)
    seconds = bench.seconds(lambda: big.mul_(1.0), rounds=5)
    return {
        "tflops": round(best, 1),
        "gb_per_s": round(8 * big.numel() / seconds / 1e9),
    }


def lesson_flops(config: TransformerConfig, rows: int, length: int) -> float:
    """Operations of a step: two for each weight and token, thrice for the way back."""
    width, wide = config.d_model, config.d_ff
    feed = 2 * width * wide
    encoder = config.num_encoder_layers * (4 * width**2 + feed)
    decoder = config.num_decoder_layers * (8 * width**2 + feed)
    output = width * config.target_vocab_size
    # Scores and mixing, for self-attention on both sides and for cross-attention;
    # a causal kernel does half of its square, and only that half is counted.
    layers = config.num_encoder_layers + 1.5 * config.num_decoder_layers
    attention = layers * 2 * length * width
    return 6.0 * rows * length * (encoder + decoder + output + attention)


class Torchs(nn.Module):
    """`torch.nn.Transformer` with embeddings and output, tied as ours are."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.scale = math.sqrt(config.d_model)
        self.embedding = nn.Embedding(config.source_vocab_size, config.d_model)
        nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)
        self.stacks = nn.Transformer(
            config.d_model,
            config.num_heads,
            config.num_encoder_layers,
            config.num_decoder_layers,
            config.d_ff,
            config.dropout,
            batch_first=True,
        )
        self.stacks.encoder.norm = self.stacks.decoder.norm = None
        self.dropout = nn.Dropout(config.dropout)
        self.register_buffer("table", sinusoids(1024, config.d_model), persistent=False)

    def embed(self, ids: Tensor) -> Tensor:
        """Words and places."""
        return self.dropout(
            self.embedding(ids) * self.scale + self.table[: ids.size(1)]
        )

    def loss(self, batch: Batch, masked: bool) -> Tensor:
        """PyTorch's smoothed loss; padding is masked where there is any."""
        length = batch.given.size(1)
        causal = torch.ones(length, length, dtype=torch.bool, device=self.table.device)
        padding = batch.source == PAD if masked else None
        x = self.stacks(
            self.embed(batch.source),
            self.embed(batch.given),
            tgt_mask=causal.triu(1),
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        logits = F.linear(x, self.embedding.weight).flatten(0, 1)
        wanted = batch.wanted.flatten()
        return F.cross_entropy(logits, wanted, ignore_index=PAD, label_smoothing=0.1)


def without_masks(model: Transformer, batch: Batch, rows_at_once: int) -> Tensor:
    """Our lesson with `is_causal` for a mask, where no sentence is padded."""

    def own(layer: Any, causal: bool) -> Callable[[Tensor], Tensor]:
        attention = layer.self_attention

        def attend(x: Tensor) -> Tensor:
            maps = attention.query_proj, attention.key_proj, attention.value_proj
            split = (
                one(x).unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
                for one in maps
            )
            heads = F.scaled_dot_product_attention(*split, is_causal=causal)
            return attention.output_proj(heads.transpose(1, 2).flatten(2))

        return attend

    memory = model.position(model.source_embedding(batch.source))
    for layer in model.encoder.layers:
        memory = layer.residuals[0](memory, own(layer, False))
        memory = layer.residuals[1](memory, layer.feed_forward)
    x = model.position(model.target_embedding(batch.given))
    for layer in model.decoder.layers:
        x = layer.residuals[0](x, own(layer, True))
        x = layer.residuals[1](
            x, lambda x, of=layer: of.cross_attention(x, memory, memory)
        )
        x = layer.residuals[2](x, layer.feed_forward)
    table = model.output.weight
    return chunked_loss(x, table, batch.wanted, rows_at_once=rows_at_once)


def step_of(
    bench: Bench, model: nn.Module, loss: Callable[[], Tensor]
) -> dict[str, float]:
    """Time and memory of whole steps, and the share of the peak that they reach."""
    adam = torch.optim.Adam(
        model.parameters(), lr=1e-5, betas=(0.9, 0.98), eps=1e-9, fused=True
    )

    def step() -> None:
        with bench.autocast():
            cost = loss()
        adam.zero_grad()
        cost.backward()
        adam.step()

    cuda = bench.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    seconds = bench.seconds(step, rounds=7, warm=3)
    tokens = bench.sentences * bench.length
    flops = lesson_flops(bench.config, bench.sentences, bench.length)
    found = {
        "seconds": round(seconds, 5),
        "tokens_per_second": round(tokens / seconds),
        "tflops": round(flops / seconds / 1e12, 2),
    }
    top = bench.results["parts"].get("peak", {}).get("tflops")
    if top:
        found["share_of_peak"] = round(flops / seconds / 1e12 / top, 3)
    if cuda:
        found["memory_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    return found


def loss_rows(bench: Bench) -> dict[str, Any]:
    """How many rows of logits at once? And the plain loss, for comparison."""
    count = 64 if bench.smoke else bench.sentences * bench.length // 4
    hidden = torch.randn(
        1, count, bench.config.d_model, device=bench.device, requires_grad=True
    )
    table = torch.randn(
        bench.words, bench.config.d_model, device=bench.device, requires_grad=True
    )
    wanted = torch.randint(1, bench.words, (1, count), device=bench.device)

    def chunks(rows: int) -> None:
        with bench.autocast():
            chunked_loss(hidden, table, wanted, rows_at_once=rows).backward()

    def plain() -> None:
        with bench.autocast():
            logits = F.linear(hidden, table).flatten(0, 1)
            cost = F.cross_entropy(logits, wanted.flatten(), label_smoothing=0.1)
        cost.backward()

    found: dict[str, Any] = {"rows": count, "ms": {}}
    for rows in (16,) if bench.smoke else (256, 1024, 4096, 16384):
        found["ms"][rows] = round(
            1e3 * bench.seconds(lambda rows=rows: chunks(rows)), 3
        )
    found["plain_ms"] = round(1e3 * bench.seconds(plain), 3)
    return found


def rows_that_pay(bench: Bench) -> int:
    """The number of rows that was fastest."""
    times = bench.results["parts"].get("loss rows", {}).get("ms", {})
    return int(min(times, key=times.get)) if times else 4096


def eager(bench: Bench) -> dict[str, Any]:
    """Training as written: ours, ours without masks, and PyTorch's."""
    batch, padded, rows = bench.batch(), bench.batch(padded=True), rows_that_pay(bench)
    model = bench.model()
    found = {
        "ours": step_of(
            bench, model, lambda: lesson_loss(model, batch, rows_at_once=rows)
        ),
        "ours, padded": step_of(
            bench, model, lambda: lesson_loss(model, padded, rows_at_once=rows)
        ),
        "ours, no masks": step_of(
            bench, model, lambda: without_masks(model, batch, rows)
        ),
    }
    del model
    theirs = Torchs(bench.config).to(bench.device)
    found["torch.nn.Transformer"] = step_of(
        bench, theirs, lambda: theirs.loss(batch, masked=False)
    )
    return found


def compiled(bench: Bench) -> dict[str, Any]:
    """Training, the stacks of layers compiled."""
    batch, rows = bench.batch(), rows_that_pay(bench)
    model = bench.model()
    bench.compile(model.encoder, model.decoder)
    found = {
        "ours": step_of(
            bench, model, lambda: lesson_loss(model, batch, rows_at_once=rows)
        )
    }
    del model
    torch._dynamo.reset()
    theirs = Torchs(bench.config).to(bench.device)
    bench.compile(theirs.stacks)
    found["torch.nn.Transformer"] = step_of(
        bench, theirs, lambda: theirs.loss(batch, masked=False)
    )
    return found


def compiled_maskless(bench: Bench) -> dict[str, Any]:
    """Training without masks, the whole forward up to the loss compiled."""
    batch, rows = bench.batch(), rows_that_pay(bench)
    model = bench.model()
    for layer in (*model.encoder.layers, *model.decoder.layers):
        bench.compile(*layer.residuals)
    return {"ours": step_of(bench, model, lambda: without_masks(model, batch, rows))}


def kernels(bench: Bench) -> dict[str, Any]:
    """Which attention kernel runs, with a mask, with is_causal, and with neither."""
    from torch.profiler import ProfilerActivity, profile

    rows, heads, d_k = (2, 2, 8) if bench.smoke else (256, 8, 64)
    shape = rows, heads, bench.length, d_k
    query, key, value = (
        torch.randn(
            shape, device=bench.device, dtype=torch.bfloat16, requires_grad=True
        )
        for _ in range(3)
    )
    ids = bench.batch(padded=True).source[:rows]
    causal = torch.ones(bench.length, bench.length, device=bench.device).tril() > 0
    ways: dict[str, dict[str, Any]] = {
        "nothing masked": {},
        "is_causal": {"is_causal": True},
        "padding mask": {
            "attn_mask": padding_mask(ids, PAD).expand(-1, -1, *causal.shape)
        },
        "causal and padding mask": {"attn_mask": padding_mask(ids, PAD) & causal},
    }
    activities = [ProfilerActivity.CPU]
    if bench.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    found: dict[str, Any] = {}
    for name, options in ways.items():

        def there_and_back(options: dict[str, Any] = options) -> None:
            said = F.scaled_dot_product_attention(query, key, value, **options)
            said.sum().backward()

        there_and_back()
        with profile(activities=activities) as watch:
            there_and_back()
            bench.wait()
        names = {event.key for event in watch.key_averages()}
        telling = ("flash", "fmha", "efficient", "cudnn", "attention")
        found[name] = {
            "kernels": sorted(
                n[:90] for n in names if any(t in n.lower() for t in telling)
            ),
            "ms": round(1e3 * bench.seconds(there_and_back), 4),
        }
    with sdpa_kernel(SDPBackend.MATH):
        found["spelled out"] = {"ms": round(1e3 * bench.seconds(there_and_back), 4)}
    return found


class StaticSpeaker(Speaker):
    """A step whose shapes never change, so that a CUDA graph can repeat it.

    Every step looks at the whole store, through a mask; the place is a tensor. Greedy
    only: one beginning for each sentence.
    """

    def begin(self, source: Tensor, room: int) -> Talk:
        """Room for all, nothing seen yet, and fixed places for what changes."""
        talk = self.hear(source, room, beams=1)
        for past in talk.past:
            past.zero_()
        self.place = torch.zeros(1, dtype=torch.int64, device=source.device)
        self.said = torch.full((len(source), 1), BOS, device=source.device)
        self.cells = torch.arange(room, device=source.device)
        return talk

    def step(self, talk: Talk) -> None:
        """Say the likeliest next word of every sentence, and remember it."""
        model = self.model
        table = model.target_embedding.table.weight
        x = F.embedding(self.said[:, 0], table) * math.sqrt(model.config.d_model)
        x = x + model.position.table.index_select(0, self.place)
        mask = (self.cells <= self.place)[None, None, None]
        for layer, past, memory in zip(
            self.layers, talk.past, talk.memory, strict=True
        ):
            x = self.layer_step(layer, x, past, memory, talk, mask)
        logits = model.decoder.norm(x) @ self.output
        logits.index_fill_(1, self.never, -math.inf)
        self.said.copy_(logits.argmax(dim=-1, keepdim=True))
        self.place.add_(1)

    def layer_step(
        self,
        layer: Any,
        x: Tensor,
        past: Tensor,
        memory: KeysValues,
        talk: Talk,
        mask: Tensor,
    ) -> Tensor:
        """A layer as LeanLayer has it, over the whole store."""
        first, second, third = layer.around
        split = layer.own(first.told(x)).view(-1, 1, 3, layer.heads, past.size(-1))
        split = split.permute(2, 0, 3, 1, 4)
        past.index_copy_(3, self.place, split[1:])
        keys, values = past
        heads = F.scaled_dot_product_attention(split[0], keys, values, mask, scale=1.0)
        said = layer.own_output(heads.transpose(1, 2).reshape(x.shape))
        x = first.add(x, said)
        x = second.add(x, layer.look_across(second.told(x), talk, memory))
        return third.add(x, layer.contract(layer.expand(third.told(x)).relu_()))


@contextlib.contextmanager
def quietly(model: nn.Module) -> Iterator[None]:
    """In evaluation, without gradients."""
    model.eval()
    with torch.no_grad():
        yield


def decoding(bench: Bench) -> dict[str, Any]:
    """Words a second: the lean step, and the same as a CUDA graph."""
    length = 6 if bench.smoke else 64
    model = bench.model(dropout=0.0)
    found: dict[str, Any] = {"length": length}
    for dtype in (torch.float32, torch.bfloat16):
        for rows in (2,) if bench.smoke else (1, 32, 256):
            name = f"{str(dtype).removeprefix('torch.')}, batch {rows}"
            source = bench.batch().source[:rows]
            found[name] = speaking_rates(bench, model.to(dtype), source, length)
    return found


def speaking_rates(
    bench: Bench, model: Transformer, source: Tensor, length: int
) -> dict[str, Any]:
    """Words a second for one batch of sources."""
    sources, words = source.tolist(), len(source) * length
    lean, static = Speaker(model), StaticSpeaker(model)
    lean.never = static.never = torch.tensor([PAD, BOS, EOS], device=bench.device)
    found: dict[str, Any] = {}
    seconds = bench.seconds(lambda: lean.greedy_search(sources, length), rounds=3)
    found["lean"] = round(words / seconds)
    if len(source) <= 32:
        seconds = bench.seconds(
            lambda: lean.beam_search(sources, length, 4), rounds=2, warm=1
        )
        found["lean, beam 4"] = round(words / seconds)
    said, seconds = graphed(bench, static, source, length)
    found["CUDA graph"] = round(words / seconds)
    found["same words"] = said == lean.greedy_search(sources, length)
    return found


def graphed(
    bench: Bench, speaker: StaticSpeaker, source: Tensor, length: int
) -> tuple[list[list[int]], float]:
    """What a repeated graph says, and how long that takes (without the capture)."""
    with quietly(speaker.model):
        talk = speaker.begin(source, length)

        def reset() -> None:
            speaker.place.zero_()
            speaker.said.fill_(BOS)

        repeat: Callable[[], None] = lambda: speaker.step(talk)  # noqa: E731
        if bench.device.type == "cuda":
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(3):
                    speaker.step(talk)
            torch.cuda.current_stream().wait_stream(aside)
            reset()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                speaker.step(talk)
            repeat = graph.replay
        said = torch.empty(len(source), length, dtype=torch.int64, device=source.device)

        def speak() -> None:
            speaker.hear(source, length, beams=1)  # the encoder's time counts, too
            reset()
            for place in range(length):
                repeat()
                said[:, place] = speaker.said[:, 0]

        seconds = bench.seconds(speak, rounds=3)
        return said.tolist(), seconds


def main() -> int:
    """Every part in turn; what was found so far is always on the disk."""
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("--smoke", action="store_true", help="small, on any machine")
    ask.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "results", metavar="DIR"
    )
    options = ask.parse_args()
    if not options.smoke and not torch.cuda.is_available():
        print("no GPU here: --smoke runs everything small on the CPU", file=sys.stderr)
        return 2
    bench = Bench(options.smoke, options.out)
    bench.part("peak", peak, needs=20)
    bench.part("kernels", kernels, needs=30)
    bench.part("loss rows", loss_rows, needs=30)
    bench.part("training", eager, needs=60)
    bench.part("decoding", decoding, needs=90)
    bench.part("training, compiled", compiled, needs=150)
    bench.part("training, no masks, compiled", compiled_maskless, needs=90)
    bench.part("peak at the end", peak, needs=10)
    return int(any("failed" in part for part in bench.results["parts"].values()))


if __name__ == "__main__":
    sys.exit(main())
