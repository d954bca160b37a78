"""Progress of a training: a bar on a terminal, a line now and then elsewhere."""

import math
import sys
import time
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from tqdm import tqdm  # type: ignore[import-untyped]

from transformer.cli.lines import say

if TYPE_CHECKING:
    from transformer.training.loop import StepMetrics

__all__ = ["Progress"]


class Progress:
    """Shows where a training stands, with its speed and an estimate of the time left.

    In a log there is a line each tenth of the way, and each minute.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.bar: tqdm[None] | None = None
        self.started = self.shown = time.perf_counter()
        self.first = self.tokens = 0

    def show(self, now: "StepMetrics") -> None:
        """Take note of a step."""
        if self.quiet:
            return
        if not self.first:  # the first step of this sitting
            self.first = now.step
            if sys.stderr.isatty():
                self.bar = tqdm(
                    total=now.total_steps,
                    initial=now.step - 1,
                    unit="step",
                    file=sys.stderr,
                    ncols=min(get_terminal_size().columns, 100),
                )
        self.tokens += now.target_tokens
        spent = max(time.perf_counter() - self.started, 1e-9)
        speed = f"{self.tokens / spent:,.0f} tokens/s"
        if self.bar is not None:
            self.bar.set_postfix_str(f"loss {now.loss:.3f}, {speed}", refresh=False)
            self.bar.update()
        elif self._due(now):
            taken, left = now.step - self.first + 1, now.total_steps - now.step
            rest = tqdm.format_interval(spent / taken * left)
            say(
                f"epoch {now.epoch}  step {now.step:,} of {now.total_steps:,}  "
                f"loss {now.loss:.3f}  {speed}  {rest} left"
            )
            self.shown = time.perf_counter()
        if now.validation_loss is not None:
            if now.bleu is None:  # of a language model
                score = f"perplexity {math.exp(min(now.validation_loss, 700)):,.1f}"
            else:
                score = f"BLEU {now.bleu:.2f} (greedy)"
            loss = f"validation loss {now.validation_loss:.3f}"
            self.say(f"epoch {now.epoch} ends: {loss}, {score}")

    def _due(self, now: "StepMetrics") -> bool:
        """Whether a log needs a line."""
        tenths = [10 * step // now.total_steps for step in (now.step - 1, now.step)]
        return tenths[0] < tenths[1] or time.perf_counter() - self.shown > 60

    def say(self, message: str) -> None:
        """A line that does not tear the bar."""
        if self.quiet:
            return
        if self.bar is None:
            say(message)
        else:
            self.bar.write(message, file=sys.stderr)

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self.bar is not None:
            self.bar.close()
