"""The device, the clock and the results of gpu.py.

A part that fails or finds no time left is named in the results, and the others go on.
"""

import statistics
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peers import SIZES, our_model, step_flops
from race import accelerator, keep, made
from torch import Tensor, nn
from torch.nn import functional as F

from transformer.model import Transformer
from transformer.text.batches import Batch
from transformer.text.words import BOS_ID, PAD_ID

LIMIT = 540.0  # seconds for everything
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
        self.times: list[float] = []
        self.results: Results = {"made": {}, "parts": {}}

    def left(self) -> float:
        """Seconds until the end."""
        return LIMIT - (time.perf_counter() - self.started)

    def part(self, name: str, work: Callable[["Bench"], Results], needs: float) -> None:
        """Run a part if there is time for it, and keep its results."""
        started = time.perf_counter()
        found = self.results["parts"][name] = self.attempt(work, needs)
        minutes = (time.perf_counter() - self.started) / 60
        about = made([torch.get_num_threads()], minutes, ""), accelerator(self.device)
        self.results["made"] = {**about[0], **about[1], "smoke": self.smoke}
        keep(self.path, self.results)
        print(f"{name} ({time.perf_counter() - started:.0f} s): {found}", flush=True)

    def attempt(self, work: Callable[["Bench"], Results], needs: float) -> Results:
        """What some work finds, or why it found nothing."""
        left = self.left()
        try:
            return work(self) if left >= needs else {"skipped": f"{left:.0f} s left"}
        except Exception as error:
            traceback.print_exc()
            return {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
        finally:
            torch._dynamo.reset()
            torch.cuda.empty_cache()

    def seconds(self, work: Callable[[], Any], rounds: int = 5) -> float:
        """The median time of some work; the first three rounds warm up."""
        times = []
        for _ in range(2 if self.smoke else 3 + rounds):
            wait()
            started = time.perf_counter()
            work()
            wait()
            times.append(time.perf_counter() - started)
        self.times = times[1 if self.smoke else 3 :]
        return statistics.median(self.times)

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
            "range": [round(limit(self.times), 5) for limit in (min, max)],
            "tokens_per_second": round(self.sentences * self.length / seconds),
            "tflops": round(tflops, 2),
        }
        if top := self.results["parts"].get("peak", {}).get("tflops"):
            found["share_of_peak"] = round(tflops / top, 3)
        if self.device.type == "cuda":
            found["memory_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
        return found
