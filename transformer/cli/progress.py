"""Progress of a training: a bar on a terminal, a line now and then elsewhere."""

import math
import sys
import time
from shutil import get_terminal_size

from tqdm import tqdm  # type: ignore[import-untyped]

from transformer.cli.console import is_terminal, print_error
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
        self.step = self.first_step = self.tokens = 0

    def show(self, metrics: StepMetrics) -> None:
        """Count a step, and show it if it is time to."""
        self.step = metrics.step
        if self.quiet:
            return
        if not self.first_step:  # the first one since this command began
            self._begin(metrics)
        taken = metrics.step - self.first_step
        seconds = time.perf_counter() - self.started
        status = f"loss {metrics.loss:.3f}"
        if taken and seconds:
            self.tokens += metrics.target_tokens
            status += f", {self.tokens / seconds:,.0f} tokens/s"
        if self.bar is not None:
            self.bar.set_postfix_str(status, refresh=False)
            self.bar.update()
        elif self._is_due(metrics):
            if taken:
                left = seconds / taken * (metrics.total_steps - metrics.step)
                status += f", {tqdm.format_interval(left)} left"
            print_error(
                f"epoch {metrics.epoch}  "
                f"step {metrics.step:,} of {metrics.total_steps:,}  {status}"
            )
            self.shown = time.perf_counter()
        if metrics.validation_loss is not None:
            if metrics.bleu is None:  # of a language model
                perplexity = math.exp(min(metrics.validation_loss, 700))
                score = f"perplexity {perplexity:,.1f}"
            else:
                score = f"BLEU {metrics.bleu:.2f} (greedy)"
            loss = f"validation loss {metrics.validation_loss:.3f}"
            self.write(f"epoch {metrics.epoch} ends: {loss}, {score}")

    def _begin(self, metrics: StepMetrics) -> None:
        self.first_step = metrics.step
        self.started = self.shown = time.perf_counter()
        done, total = metrics.step - 1, metrics.total_steps
        if is_terminal(sys.stderr):
            width = get_terminal_size().columns or 80
            self.bar = tqdm(
                total=total,
                initial=done,
                unit="step",
                file=sys.stderr,
                ncols=min(width, 100),
            )

    def _is_due(self, metrics: StepMetrics) -> bool:
        """Whether a log needs a line."""
        step, total = metrics.step, metrics.total_steps
        tenths = [10 * count // total for count in (step - 1, step)]
        first = step == self.first_step
        return first or tenths[0] < tenths[1] or time.perf_counter() - self.shown > 60

    def write(self, message: str) -> None:
        """Write a line above the bar, or where there is none, as any other line."""
        if self.quiet:
            return
        if self.bar is None:
            print_error(message)
        else:
            self.bar.write(message, file=sys.stderr)

    def close(self) -> None:
        """Leave the bar as it stands on the screen."""
        if self.bar is not None:
            self.bar.close()
