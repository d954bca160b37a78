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
from torch.optim.swa_utils import get_ema_multi_avg_fn

from transformer.checks import InvalidValue, require_not_empty, require_not_meta
from transformer.decoding.step import evaluating
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
    "kept_share",
    "OptimizerFactory",
    "Schedule",
    "TrainingState",
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
        and type(model).forward is Transformer.forward
        and not any("forward" in vars(module) for module in (model, output))
        and not any(map(_has_hooks, (model, output)))
        and not _has_hooks(nn.modules.module, "_global")
    )


def _has_hooks(owner: Any, prefix: str = "") -> bool:
    """Whether PyTorch calls something before or after a module's passes."""
    kinds = "forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks"
    return any(getattr(owner, f"{prefix}_{kind}") for kind in kinds)


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


OptimizerFactory = Callable[[nn.Module], torch.optim.Optimizer]
Schedule = Callable[[int, int], float]  # of a step, and of how many there are


def kept_share(step: int, decay: float) -> float:
    """The share that a moving average keeps at a step: less at first, then `decay`.

    So the average soon forgets the random weights that a training starts from.
    """
    return min(decay, step / (10 + step))


class TrainingState:
    """All that training changes, and the step that changes it.

    `average` is the moving average of the weights, by name. `best_weights` are the
    average's with the lowest validation loss so far. `train_step` is that of a
    translator; any model can be changed by gradients of its own and `update`.

    `optimizer` makes an optimiser for the model. `schedule` gives the learning rate of
    a step, for every group of parameters; None stands for the config's.
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainingConfig,
        process_group: ProcessGroup,
        optimizer: OptimizerFactory = paper_adam,
        schedule: Schedule | None = None,
    ) -> None:
        require_not_meta(process_group.device, next(model.parameters()).device)
        self.model: Any = model.to(process_group.device)
        self.config = config
        self.process_group = process_group
        self.schedule = schedule
        self._loss: Any = LossModule(model, config.label_smoothing, config.bf16)
        if process_group.size > 1:
            with process_group.connected():
                self._loss = nn.parallel.DistributedDataParallel(self._loss)
        self.optimizer = optimizer(model)
        self.steps_taken = 0
        self.average = {
            name: weight.detach().clone() for name, weight in model.named_parameters()
        }
        self.best_validation_loss, self.best_epoch = math.inf, 0
        self.best_weights: dict[str, Tensor] = {}

    def learning_rate(self, step: int, total_steps: int) -> float:
        """The learning rate of a step, 1 to `total_steps`."""
        if self.schedule is not None:
            return float(self.schedule(step, total_steps))
        width = self.model.config.d_model
        return self.config.learning_rate_at(step, total_steps, width)

    @contextmanager
    def averaged_weights(self) -> Iterator[Any]:
        """The model, which has the moving average for its weights while this lasts."""
        try:
            self._exchange_weights()
            yield self.model
        finally:
            self._exchange_weights()

    def _exchange_weights(self) -> None:
        for name, weight in self.model.named_parameters():
            weight.data, self.average[name] = self.average[name], weight.data

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
        with self.training_step(seed, learning_rate), group.connected():
            for index, micro_batch in enumerate(micro_batches, start=1):
                wait = group.size > 1 and index < len(micro_batches)
                with self._loss.no_sync() if wait else nullcontext():
                    batch = _make_batch(self.model, micro_batch)
                    loss = weight * self._loss(*batch)
                    loss.backward()
                    total += loss.detach()
        return group.sum(total.item()) / group.size, self.update()

    @contextmanager
    def training_step(self, seed: str, learning_rate: float) -> Iterator[None]:
        """What a step begins with: its rate, no gradients, training mode, a seed.

        Dropout draws from the step's own seed, so that no random state need be kept.
        """
        for param_group in self.optimizer.param_groups:
            param_group["lr"] = learning_rate
        self.optimizer.zero_grad()
        number = random.Random(seed).getrandbits(60)
        with training_mode(self._loss), _seeded(self.process_group.device, number):
            yield

    def update(self) -> float:
        """Clip the gradient, take a step, move the average; the gradient's norm."""
        weights = dict(self.model.named_parameters())
        grad_norm = nn.utils.clip_grad_norm_(
            weights.values(), self.config.max_grad_norm
        )
        self.optimizer.step()
        self.steps_taken += 1
        move = get_ema_multi_avg_fn(kept_share(self.steps_taken, self.config.ema_decay))
        current = [weights[name].detach() for name in self.average]
        move(list(self.average.values()), current, self.steps_taken)
        return grad_norm.item()

    def note_validation(self, loss: float, epoch: int) -> None:
        """Keep the average's weights if their validation loss is the lowest so far."""
        if loss < self.best_validation_loss:
            self.best_validation_loss, self.best_epoch = loss, epoch
            self.best_weights = {
                name: weight.cpu().clone() for name, weight in self.average.items()
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
            "average": self.average,
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
            raise InvalidValue("it is of another run")
        try:
            step, best_epoch = int(state["step"]), int(state["best_epoch"])
            best_validation_loss = float(state["best_validation_loss"])
            self._require_fit(state)
            self.model.load_state_dict(state["model"])
            for name, weight in self.average.items():
                weight.copy_(state["average"][name])
            self.optimizer.load_state_dict(state["optimizer"])
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise InvalidValue(f"it does not fit the model: {reason:.120}") from None
        self.steps_taken = step
        self.best_epoch, self.best_validation_loss = best_epoch, best_validation_loss
        self.best_weights = state["best_weights"]
        return step

    def _require_fit(self, state: Mapping[str, Any]) -> None:
        """Refuse what neither optimiser nor model would: other shapes and options."""
        shapes = [
            weight.shape
            for group in self.optimizer.param_groups
            for weight in group["params"]
        ]
        for index, tensors in state["optimizer"]["state"].items():
            for name, tensor in tensors.items():
                moment = isinstance(self.optimizer, torch.optim.Adam) and tensor.dim()
                if moment and tensor.shape != shapes[index]:
                    raise InvalidValue(f"{name} of weight {index} is misshapen")
        groups = state["optimizer"]["param_groups"], self.optimizer.param_groups
        for theirs, ours in zip(*groups, strict=True):
            for name in theirs.keys() & ours.keys() - {"params", "lr", "initial_lr"}:
                if theirs[name] != ours[name]:
                    raise InvalidValue(
                        f"its optimizer has {name} {theirs[name]}, here {ours[name]}"
                    )
        own = {name: x.shape for name, x in self.average.items()}
        for what in ("average", "best_weights"):
            found = {name: x.shape for name, x in state[what].items()}
            if found != own and (found or what == "average"):
                raise InvalidValue(f"the {what.replace('_', ' ')} are misshapen")


@contextmanager
def _seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Draw from a seed, on the CPU and on one device; then as the caller did before."""
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would seed all of the caller's GPUs.
        torch.default_generator.manual_seed(seed)
        if device.type == "cpu":
            yield
            return
        module = torch.get_device_module(device)
        place = () if device.type == "mps" else (device,)
        before = module.get_rng_state(*place)
        drawn = torch.Generator(device).manual_seed(seed)
        module.set_rng_state(drawn.get_state(), *place)
        try:
            yield
        finally:
            module.set_rng_state(before, *place)
