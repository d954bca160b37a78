"""A training that outlives a crash: what translators and language models share.

Made from book/workshop/real-training.md: edit the chapter, not this file.
"""

import abc
import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Generator
from typing import Any

from transformer.training.loop import StepMetrics
from transformer.training.run_folder import RunFolder, RunInfo, digest_of
from transformer.training.state import TrainingState
from transformer.weights.classes import class_name, foreign_parts
from transformer.weights.files import read_tensors
from transformer.weights.saved_model import config_ties

__all__ = ["Trainer"]


@dataclasses.dataclass
class Trainer(abc.ABC):
    """What a training learns from, what it changes, and where it is kept.

    A kind of training adds what a batch is, how a step is made of it, and how a model
    is evaluated.
    """

    dataset: Any
    state: TrainingState
    folder: RunFolder | None
    checkpoint_every: int
    report: Callable[[str], None]
    stop: Callable[[], bool] | None
    fingerprint: str = dataclasses.field(default="", init=False)

    @abc.abstractmethod
    def batches(self, epoch: int) -> list[list[int]]:
        """The batches of an epoch, as lists of numbers that `train_step` knows."""

    @abc.abstractmethod
    def train_step(
        self, batch: list[int], step: int, learning_rate: float
    ) -> tuple[float, float, int]:
        """Take a step: its loss, the norm of the gradient, how many labels it had."""

    @abc.abstractmethod
    def validate(self) -> float:
        """Validation loss of the moving average."""

    @abc.abstractmethod
    def save_epoch(self, epoch: int, loss: float) -> float | None:
        """Keep the weights, whose validation loss this is; BLEU, where there is one."""

    @abc.abstractmethod
    def with_tokenizers(self, model: Any) -> Any:
        """The model with its tokenizers, as the file of the best weights holds it."""

    def steps(self) -> Generator[StepMetrics, None, None]:
        """Take up the run where it was left, and go on to its end."""
        with contextlib.ExitStack() as stack:
            self._report_foreign_parts()
            done, seconds = self._begin(stack)
            finished = yield from self._train(done, seconds)
            if not finished:
                return
            self.state.give_best_weights()
            if self.folder is not None and self._is_first and self.state.best_weights:
                self._mend_best(self.folder)

    def _report_foreign_parts(self) -> None:
        parts = foreign_parts(self.state.model)
        for place, name in list(parts.items())[:1]:
            more = f" and {len(parts) - 1} more" if len(parts) > 1 else ""
            self.report(
                f"{name}{f' at {place}' if place else ''}{more} is not the package's "
                "own: what is saved can be loaded only into such a model"
            )

    def _mend_best(self, folder: RunFolder) -> None:
        """Write the best weights again where their file is gone or damaged."""
        try:
            read_tensors(folder.path / "model.safetensors")
        except (ValueError, OSError):
            folder.save_best(self.with_tokenizers(self.state.model))

    @property
    def _is_first(self) -> bool:
        return self.state.process_group.rank == 0

    @functools.cached_property
    def _steps_per_epoch(self) -> int:
        return len(self.batches(1))

    @property
    def _total_steps(self) -> int:
        return self.state.config.epochs * self._steps_per_epoch

    def _begin(self, stack: contextlib.ExitStack) -> tuple[int, float]:
        """Open the folder, load the newest checkpoint; its step and seconds."""
        folder, group = self.folder, self.state.process_group
        if folder is None:
            return 0, 0.0
        dataset, model = self.dataset, self.state.model
        _require_savable(model)
        schedule = self.state.schedule
        info = RunInfo(
            dataset.data,
            dataset.languages,
            dataset.text,
            dataclasses.asdict(model.config),
            dataclasses.asdict(self.state.config),
            class_name(type(self.state.optimizer)),
            None if schedule is None else _name_of(schedule),
            digest_of(dataset.validation_set()),
        )
        digest = dataset.digest()

        def open_folder() -> None:
            stack.enter_context(folder.lock())
            folder.open(info, digest)

        group.on_rank_zero(open_folder)
        self.fingerprint = info.fingerprint(digest)
        done = folder.resume(self._load, self.report)
        if group.sum(float(done)) != done * group.size:
            raise ValueError(f"not all processes find the same run in {folder.path}")
        if done:
            self.report(f"going on from step {done:,} of {self._total_steps:,}")
        return done, group.on_rank_zero(lambda: folder.rewind(done)) or 0.0

    def _load(self, state: dict[str, Any]) -> int:
        """Take up the state of a checkpoint; its step.

        Raises:
            ValueError: for that of another run, of another schedule, too.
        """
        step = self.state.load_state_dict(state, self.fingerprint)
        if self.state.schedule is not None and step:
            ours = self.state.learning_rate(step, self._total_steps)
            theirs = self.state.optimizer.param_groups[0]["lr"]
            if ours != theirs:
                raise ValueError(
                    f"its learning rate at step {step} was {theirs}, here {ours}"
                )
        return step

    def _train(self, done: int, seconds: float) -> Generator[StepMetrics, None, bool]:
        """The steps after those that are done; whether the run came to its end."""
        state, config = self.state, self.state.config
        per_epoch, total_steps = self._steps_per_epoch, self._total_steps
        started = time.perf_counter() - seconds
        for epoch in range(done // per_epoch + 1, config.epochs + 1):
            if epoch > state.best_epoch + config.patience:
                self.report(f"no better for {config.patience} epochs: the run ends")
                return True
            first = (epoch - 1) * per_epoch + 1
            for step, batch in enumerate(self.batches(epoch), start=first):
                if step <= done:
                    continue
                learning_rate = state.learning_rate(step, total_steps)
                loss, grad_norm, labels = self.train_step(batch, step, learning_rate)
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
                    bleu = self.save_epoch(epoch, loss)
                    state.note_validation(loss, epoch)
                    metrics = metrics._replace(validation_loss=loss, bleu=bleu)
                saved = self._save(metrics)
                yield metrics
                if step < total_steps and self._stops():
                    if not saved:
                        self._save_checkpoint(step)
                    self.report(f"stopped after step {step:,} of {total_steps:,}")
                    return False
        return True

    def _stops(self) -> bool:
        """Whether one of the processes was asked to stop."""
        if self.stop is None:
            return False
        return self.state.process_group.sum(float(self.stop())) > 0

    def _require_finite(self, step: int, found: str, *numbers: float) -> None:
        if all(map(math.isfinite, numbers)):
            return
        advice = "try a lower learning rate"
        if self.folder is not None:
            if self._is_first:
                self.folder.diverged(step)
            if (self.folder.path / "model.safetensors").exists():
                advice += ", and another folder: this one keeps the model so far"
        raise ValueError(f"step {step} diverged, its {found}: {advice}")

    def _save(self, metrics: StepMetrics) -> bool:
        """Keep the metrics, and a checkpoint where one is due; whether one was."""
        due = (
            metrics.step % self.checkpoint_every == 0
            or metrics.validation_loss is not None
        )
        if self.folder is not None and self._is_first:
            self.folder.append_metrics(metrics)
            if due:
                self._save_checkpoint(metrics.step)
        return due

    def _save_checkpoint(self, step: int) -> None:
        if self.folder is not None and self._is_first:
            state = self.state.state_dict(step, self.fingerprint)
            self.folder.save_checkpoint(step, state)


def _name_of(function: Callable[..., Any]) -> str:
    """The name of a function with its module, or of the class of an object."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


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
