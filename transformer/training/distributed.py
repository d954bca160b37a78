"""Data-parallel training: processes that share the work of each step.

Made from book/workshop/real-training.md: edit the chapter, not this file.
"""

import datetime
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn

from transformer.checks import require_device
from transformer.text.batches import Example, example_length, split_by_tokens

__all__ = [
    "ProcessGroup",
]


_Result = TypeVar("_Result")
# How long processes wait for one another: the first may be evaluating a large model.
_PATIENCE = datetime.timedelta(days=1)


@dataclass(frozen=True)
class ProcessGroup:
    """The processes that train together: this one's number, how many, its device."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @classmethod
    def start(cls, device: str = "cpu") -> "ProcessGroup":
        """Join the others that torchrun started; alone where it started none.

        On accelerators, each process of a machine has one of its own.

        Raises:
            ValueError: for a device that is not there, or processes that do not meet.
        """
        size = int(os.environ.get("WORLD_SIZE", "1"))
        found = torch.accelerator.current_accelerator()
        shared = size > 1 and found is not None and device == found.type
        own = _own_accelerator(device) if shared else require_device(device)
        if size == 1:
            return cls(device=own)
        with _connection_errors():
            backend = dist.get_default_backend_for_device(own)
            dist.init_process_group(backend, timeout=_PATIENCE)
        return cls(dist.get_rank(), size, own)

    @classmethod
    def single_process(cls, model: nn.Module) -> "ProcessGroup":
        """A process alone, on the device where a model is."""
        return cls(device=next(model.parameters()).device)

    def sum(self, number: float) -> float:
        """The sum of the numbers of all processes.

        Raises:
            ValueError: when another process is gone.
        """
        if self.size == 1:
            return number
        kind = torch.float32 if self.device.type == "mps" else torch.float64
        tensor = torch.tensor(number, dtype=kind, device=self.device)
        with _connection_errors():
            dist.all_reduce(tensor)
        return tensor.item()

    def on_rank_zero(self, action: Callable[[], _Result]) -> _Result | None:
        """Let the first process do something, while the others wait; they get None.

        Raises:
            ValueError: when it fails in the first process, which raises its own error.
        """
        result, failure = None, None
        if self.rank == 0:
            try:
                result = action()
            except BaseException as error:
                failure = error
        failed = self.sum(float(failure is not None))
        if failure is not None:
            raise failure
        if failed:
            raise ValueError("the first process stopped: see its message")
        return result

    def connected(self) -> AbstractContextManager[None]:
        """Turn a lost connection, wherever it shows, into one line.

        Raises:
            ValueError: for an error of the connection between the processes.
        """
        return _connection_errors() if self.size > 1 else nullcontext()

    def shard(
        self, batch: Sequence[Example], micro_batch_tokens: int
    ) -> list[list[Example]]:
        """This process's examples of a step, in micro batches of similar length."""
        own = batch[self.rank :: self.size]
        lengths = [example_length(example) for example in own]
        return [
            [own[index] for index in micro_batch]
            for micro_batch in split_by_tokens(lengths, micro_batch_tokens)
        ]

    def close(self) -> None:
        """Leave the group."""
        if self.size > 1:
            dist.destroy_process_group()


def _own_accelerator(kind: str) -> torch.device:
    """This process's accelerator, made the current one before anything runs there."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    module = torch.get_device_module(kind)
    if local_rank >= (count := module.device_count()):
        raise ValueError(
            f"each process needs a GPU of its own: process {local_rank + 1} of "
            f"this machine found {count}"
        )
    module.set_device(local_rank)
    return torch.device(kind, local_rank)


@contextmanager
def _connection_errors() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # dist's own errors are of this class too
        reason = " ".join(str(error).split())
        # Gloo's errors have no class of their own, but name its source file.
        if isinstance(error, dist.DistError) or "/gloo/" in reason:
            message = f"the connection between the processes failed: {reason:.300}"
            raise ValueError(message) from error
        raise
