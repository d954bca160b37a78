"""The state of a real training: weights, optimiser, moving average, the best so far.

Made from book/workshop/real-training.md: edit the chapter, not this file.
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from transformer.checks import require_not_empty, require_not_meta
from transformer.decoding.step import evaluating
from transformer.decoding.support import has_global_hooks
from transformer.masks import padding_mask
from transformer.model import Transformer
from transformer.text.batches import (
    Batch,
    Example,
    example_length,
    make_batch,
    split_by_tokens,
)
from transformer.training.chunked_loss import chunked_loss
from transformer.training.config import TrainingConfig
from transformer.training.distributed import ProcessGroup
from transformer.training.loop import paper_adam, training_mode
from transformer.training.loss import label_smoothed_loss
from transformer.training.precision import bf16_autocast

__all__ = [
    "LossModule",
    "validation_loss",
    "warmed_up_average",
    "TrainState",
]


class LossModule(nn.Module):
    """A model and its summed loss as one module, which is what processes share."""

    def __init__(self, model: nn.Module, label_smoothing: float, bf16: bool) -> None:
        super().__init__()
        self.model: Any = model
        self.label_smoothing = label_smoothing
        self.bf16 = bf16

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        decoder_input: Int[Tensor, "batch target"],
        labels: Int[Tensor, "batch target"],
    ) -> Float[Tensor, ""]:
        model, pad_id = self.model, self.model.config.pad_id
        smoothing, device = self.label_smoothing, source.device.type
        with bf16_autocast(device, enabled=self.bf16):
            if not _has_plain_output(model):
                logits = model(source, decoder_input)
                loss = label_smoothed_loss(logits, labels, smoothing, pad_id)
                return loss * (labels != pad_id).sum()
            memory = model.encode(source)
            hidden = model.decode(decoder_input, memory, padding_mask(source, pad_id))
            weight, chunk = model.output.weight, 512 if device == "cpu" else 8192
            return chunked_loss(
                hidden, weight, labels, smoothing, pad_id, chunk, reduction="sum"
            )


def _has_plain_output(model: Transformer) -> bool:
    """Whether logits are `hidden @ weight.T`: no adapter, hook or bias changes them."""
    output = model.output
    return (
        type(output) is nn.Linear
        and output.bias is None
        and not output._forward_hooks
        and not output._forward_pre_hooks
        and type(model).forward is Transformer.forward
        and not any("forward" in vars(module) for module in (model, output))
        and not model._forward_hooks
        and not model._forward_pre_hooks
        and not has_global_hooks()
    )


def _make_batch(model: Transformer, examples: Sequence[Example]) -> Batch:
    """A batch with the special ids of the model's config, on its device."""
    config, device = model.config, next(model.parameters()).device
    batch = make_batch(examples, config.pad_id, config.bos_id, config.eos_id)
    return batch.to(device)


def validation_loss(
    model: Transformer,
    examples: Sequence[Example],
    batch_tokens: int = 4096,
    bf16: bool = False,
) -> float:
    """Cross-entropy on examples not trained on: the mean over labels, in nats.

    Raises:
        ValueError: for no examples.
    """
    require_not_empty("example", examples)
    loss = LossModule(model, label_smoothing=0.0, bf16=bf16)
    total = 0.0
    with evaluating(loss):
        for indices in split_by_tokens(
            list(map(example_length, examples)), batch_tokens
        ):
            total += loss(*_make_batch(model, [examples[i] for i in indices])).item()
    return total / sum(len(target) + 1 for _, target in examples)


def warmed_up_average(decay: float) -> Callable[[Any, Any, Any], None]:
    """An exponential moving average for `AveragedModel` that soon forgets the start.

    Step n keeps min(decay, n / (10 + n)) of the average, if the model was averaged once
    before the first step.
    """

    def update(averaged: Any, current: Any, num_averaged: Any) -> None:
        n = int(num_averaged)
        get_ema_multi_avg_fn(min(decay, n / (10 + n)))(averaged, current, num_averaged)

    return update


class TrainState:
    """All that training changes, and the step that changes it.

    `averaged` is the moving average of the weights, a model of its own. `best_weights`
    are the average's with the lowest validation loss so far. `train_step` is that of a
    translator; any model can be changed by gradients of its own and `update`.
    """

    def __init__(
        self, model: nn.Module, config: TrainingConfig, process_group: ProcessGroup
    ) -> None:
        require_not_meta(process_group.device, next(model.parameters()).device)
        self.model: Any = model.to(process_group.device)
        self.config = config
        self.process_group = process_group
        self._loss: Any = LossModule(model, config.label_smoothing, config.bf16)
        if process_group.size > 1:
            with process_group.connected():
                self._loss = nn.parallel.DistributedDataParallel(self._loss)
        self.optimizer = paper_adam(model)
        self._average = AveragedModel(
            model, multi_avg_fn=warmed_up_average(config.ema_decay)
        )
        self._average.update_parameters(model)
        self.best_validation_loss, self.best_epoch = math.inf, 0
        self.best_weights: dict[str, Tensor] = {}

    @property
    def averaged(self) -> Any:
        """The model whose weights are the moving average."""
        return self._average.module

    def train_step(
        self, examples: Sequence[Example], step: int, learning_rate: float
    ) -> tuple[float, float]:
        """One step of all processes: mean loss of a label, norm of the gradient.

        Every process divides by the labels of all, so that the number of processes and
        of micro batches changes only the order of additions and what dropout draws.
        """
        group, config = self.process_group, self.config
        labels = sum(len(target) + 1 for _, target in examples)
        tokens = config.micro_batch_tokens or config.batch_tokens
        # Who has no example takes one with weight 0: the others wait for its gradient.
        micro_batches = group.shard(examples, tokens) or [list(examples[:1])]
        weight = group.size / labels if examples[group.rank :: group.size] else 0.0
        total = torch.zeros((), device=group.device)
        seed = f"{config.seed} {step} {group.rank}"
        with self.taking_step(seed, learning_rate), group.connected():
            for index, micro_batch in enumerate(micro_batches, start=1):
                wait = group.size > 1 and index < len(micro_batches)
                with self._loss.no_sync() if wait else nullcontext():
                    batch = _make_batch(self.model, micro_batch)
                    loss = weight * self._loss(*batch)
                    loss.backward()
                    total += loss.detach()
        return group.sum(total.item()) / group.size, self.update()

    @contextmanager
    def taking_step(self, seed: str, learning_rate: float) -> Iterator[None]:
        """What a step begins with: its rate, no gradients, training mode, a seed.

        Dropout draws from the step's own seed, so that no random state need be kept.
        """
        for param_group in self.optimizer.param_groups:
            param_group["lr"] = learning_rate
        self.optimizer.zero_grad()
        device = self.process_group.device
        devices = [device] if device.type == "cuda" else []
        with training_mode(self._loss), torch.random.fork_rng(devices=devices):
            # On a CPU not torch.manual_seed, which would seed the caller's GPUs too.
            cpu = torch.default_generator.manual_seed
            seed_all = cpu if device.type == "cpu" else torch.manual_seed
            seed_all(random.Random(seed).getrandbits(60))
            yield

    def update(self) -> float:
        """Clip the gradient, take a step, move the average; the gradient's norm."""
        weights = self.model.parameters()
        grad_norm = nn.utils.clip_grad_norm_(weights, self.config.max_grad_norm)
        self.optimizer.step()
        self._average.update_parameters(self.model)
        return grad_norm.item()

    def note_validation(self, loss: float, epoch: int) -> None:
        """Keep the average's weights if their validation loss is the lowest so far."""
        if loss < self.best_validation_loss:
            self.best_validation_loss, self.best_epoch = loss, epoch
            self.best_weights = {
                name: weight.detach().cpu().clone()
                for name, weight in self.averaged.named_parameters()
            }

    def give_best_weights(self) -> None:
        """Give the model the best weights, at the end."""
        if self.best_weights:
            self.model.load_state_dict(self.best_weights, strict=False)

    def state_dict(self, step: int, fingerprint: str) -> dict[str, Any]:
        """All that the rest of the run depends on; `fingerprint` names the run."""
        return {
            "step": step,
            "fingerprint": fingerprint,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self._average.state_dict(),
            "best_validation_loss": self.best_validation_loss,
            "best_epoch": self.best_epoch,
            "best_weights": self.best_weights,
        }

    def load_state_dict(self, state: Mapping[str, Any], fingerprint: str) -> int:
        """Go on where `state_dict` was taken; the last step.

        Raises:
            ValueError: for the state of another run, or one that does not fit.
        """
        if state.get("fingerprint") != fingerprint:
            raise ValueError("it is of another run")
        try:
            step, best_epoch = int(state["step"]), int(state["best_epoch"])
            best_validation_loss = float(state["best_validation_loss"])
            self._require_fit(state["optimizer"]["state"], state["best_weights"])
            self.model.load_state_dict(state["model"])
            self._average.load_state_dict(state["average"])
            self.optimizer.load_state_dict(state["optimizer"])
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"it does not fit the model: {reason:.120}") from None
        self.best_epoch, self.best_validation_loss = best_epoch, best_validation_loss
        self.best_weights = state["best_weights"]
        return step

    def _require_fit(
        self, moments: Mapping[int, Mapping[str, Tensor]], best: Mapping[str, Tensor]
    ) -> None:
        """Refuse tensors of other shapes, which neither optimiser nor model would."""
        shapes = [weight.shape for weight in self.model.parameters()]
        for index, tensors in moments.items():
            for name, tensor in tensors.items():
                if tensor.shape not in ((), shapes[index]):
                    raise ValueError(f"{name} of weight {index} is misshapen")
        own = {name: x.shape for name, x in self.model.named_parameters()}
        if best and {name: x.shape for name, x in best.items()} != own:
            raise ValueError("the best weights are misshapen")
