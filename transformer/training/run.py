"""A training that outlives a crash: what every kind of run has in common.

Made from book/workshop/real-training.md: edit the chapter, not this file.
"""

import abc
import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Generator
from typing import Any

from transformer.training.loop import StepMetrics
from transformer.training.run_folder import RunFolder, RunInfo
from transformer.training.train_state import TrainState
from transformer.weights.files import read_checkpoint
from transformer.weights.saved_model import config_ties

__all__ = ["Run"]


@dataclasses.dataclass
class Run(abc.ABC):
    """A run: what it learns from, what it changes, and where it is kept.

    A kind of training adds what a batch is, how a step is made of it, and how a model
    is evaluated.
    """

    dataset: Any
    state: TrainState
    run: RunFolder | None
    checkpoint_every: int
    report: Callable[[str], None]
    fingerprint: str = dataclasses.field(default="", init=False)

    @abc.abstractmethod
    def batches(self, epoch: int) -> list[list[int]]:
        """The batches of an epoch, each a list of numbers that `step` understands."""

    @abc.abstractmethod
    def step(
        self, batch: list[int], step: int, learning_rate: float
    ) -> tuple[float, float, int]:
        """Take a step: its loss, the norm of the gradient, how many labels it had."""

    @abc.abstractmethod
    def validate(self) -> float:
        """Validation loss of the moving average."""

    @abc.abstractmethod
    def end_epoch(self, epoch: int, loss: float) -> float | None:
        """Keep the weights, whose validation loss this is; BLEU, where there is one."""

    @abc.abstractmethod
    def usable(self, model: Any) -> Any:
        """The model with its tokenizers, as the file of the best weights holds it."""

    def steps(self) -> Generator[StepMetrics, None, None]:
        """Take up the run where it was left, and go on to its end."""
        with contextlib.ExitStack() as stack:
            done, seconds = self._begin(stack)
            yield from self._train(done, seconds)
            self.state.give_best_weights()
            if self.run is not None and self._is_first and self.state.best_weights:
                self._mend_best(self.run)

    def _mend_best(self, run: RunFolder) -> None:
        """Write the best weights again where their file is gone or damaged."""
        try:
            read_checkpoint(run.path / "model.safetensors")
        except (ValueError, OSError):
            run.save_best(self.usable(self.state.model))

    @property
    def _is_first(self) -> bool:
        return self.state.process_group.rank == 0

    def _begin(self, stack: contextlib.ExitStack) -> tuple[int, float]:
        """Open the folder, load the newest checkpoint; its step and seconds."""
        run, group = self.run, self.state.process_group
        if run is None:
            return 0, 0.0
        dataset, model = self.dataset, self.state.model
        _require_savable(model)
        info = RunInfo(
            dataset.folder,
            dataset.languages,
            dataset.text,
            dataclasses.asdict(model.config),
            dataclasses.asdict(self.state.config),
        )
        digest = dataset.digest()

        def open_folder() -> None:
            stack.enter_context(run.lock())
            run.open(info, digest)

        group.first(open_folder)
        self.fingerprint = info.fingerprint(digest)
        done = run.resume(
            lambda state: self.state.load_state_dict(state, self.fingerprint),
            self.report,
        )
        if group.sum(float(done)) != done * group.size:
            raise ValueError(f"not all processes find the same run in {run.path}")
        return done, group.first(lambda: run.rewind(done)) or 0.0

    def _train(self, done: int, seconds: float) -> Generator[StepMetrics, None, None]:
        """The steps after those that are done."""
        state, config = self.state, self.state.config
        per_epoch = len(self.batches(1))
        total_steps = config.epochs * per_epoch
        started = time.perf_counter() - seconds
        for epoch in range(done // per_epoch + 1, config.epochs + 1):
            if epoch > state.best_epoch + config.patience:
                self.report(f"no better for {config.patience} epochs: the run ends")
                return
            first = (epoch - 1) * per_epoch + 1
            for step, batch in enumerate(self.batches(epoch), start=first):
                if step <= done:
                    continue
                learning_rate = config.learning_rate_at(
                    step, total_steps, state.model.config.d_model
                )
                loss, grad_norm, labels = self.step(batch, step, learning_rate)
                found = f"loss is {loss} and its gradient's norm {grad_norm}"
                self._require_finite(step, found, loss, grad_norm)
                metrics = StepMetrics(
                    step,
                    total_steps,
                    epoch,
                    loss,
                    learning_rate,
                    grad_norm,
                    target_tokens=labels,
                    seconds=time.perf_counter() - started,
                )
                if step == epoch * per_epoch:
                    loss = self.validate()
                    self._require_finite(step, f"validation loss is {loss}", loss)
                    bleu = self.end_epoch(epoch, loss)
                    state.note_validation(loss, epoch)
                    metrics = metrics._replace(validation_loss=loss, bleu=bleu)
                self._keep(metrics)
                yield metrics

    def _require_finite(self, step: int, found: str, *numbers: float) -> None:
        if all(map(math.isfinite, numbers)):
            return
        if self.run is not None and self._is_first:
            self.run.diverged(step)
        raise ValueError(
            f"step {step} diverged, its {found}: try a lower learning rate"
        )

    def _keep(self, metrics: StepMetrics) -> None:
        if self.run is None or not self._is_first:
            return
        self.run.append_metrics(metrics)
        if (
            metrics.step % self.checkpoint_every == 0
            or metrics.validation_loss is not None
        ):
            state = self.state.state_dict(metrics.step, self.fingerprint)
            self.run.save_checkpoint(metrics.step, state)


def _require_savable(model: Any) -> None:
    """Refuse now, not after an epoch, a model that could not be saved."""
    try:
        model.weights_to_save()
    except ValueError as error:
        raise ValueError(f"the model cannot be saved: {error}") from None
    weights = dict(model.named_parameters(remove_duplicate=False))
    for name, first in config_ties(model, weights).items():
        if weights[name] is not weights[first]:
            raise ValueError(
                f"the model cannot be saved: {name} is not tied to {first}, as its "
                "config says"
            )
