"""Data-parallel training: processes that share the work of each step.

Made from book/workshop/real-training.md: edit the chapter, not this file.
"""

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


@dataclass(frozen=True)
class ProcessGroup:
    """The processes that train together: this one's number, how many, its device."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @classmethod
    def start(cls, device: str = "cpu") -> "ProcessGroup":
        """Join the others that torchrun started; alone where it started none.

        Raises:
            ValueError: for a device that is not there, or processes that do not meet.
        """
        if device == "cuda":
            if not torch.cuda.is_available():
                raise ValueError("no GPU was found here, expected --device cpu")
            local_rank = int(os.environ.get("LOCAL_RANK", "0"))
            if local_rank >= torch.cuda.device_count():
                raise ValueError(
                    f"each process needs a GPU of its own: process {local_rank + 1} of "
                    f"this machine found {torch.cuda.device_count()}"
                )
            own = torch.device(device, local_rank)
        else:
            own = require_device(device)
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            return cls(device=own)
        with _one_line():
            dist.init_process_group("nccl" if device == "cuda" else "gloo")
        return cls(dist.get_rank(), size, own)

    @classmethod
    def beside(cls, model: nn.Module) -> "ProcessGroup":
        """A process alone, on the device where a model is."""
        return cls(device=next(model.parameters()).device)

    def sum(self, number: float) -> float:
        """The sum of the numbers of all processes.

        Raises:
            ValueError: when another process is gone.
        """
        if self.size == 1:
            return number
        tensor = torch.tensor(number, dtype=torch.float64, device=self.device)
        with _one_line():
            dist.all_reduce(tensor)
        return tensor.item()

    def first(self, action: Callable[[], _Result]) -> _Result | None:
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
        return _one_line() if self.size > 1 else nullcontext()

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


@contextmanager
def _one_line() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # dist's own errors are of this class too
        reason = str(error)
        names = ("gloo", "nccl", "connection", "peer", "process group", "store")
        if not isinstance(error, dist.DistError) and not any(
            name in reason.lower() for name in names
        ):
            raise
        raise ValueError("another process stopped: see its message") from None
