"""The model under examination: built, called, and its output read as it is meant.

Made from book/workshop/museum.md: edit the chapter, not this file.
"""

import io
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from transformer.doctor.xray import Xray, tensors_of, xray

__all__ = ["KINDS", "Refused", "Sizes", "Subject"]


KINDS = ("encoder-decoder", "language model", "encoder", "attention", "positions")


class Refused(ValueError):  # noqa: N818
    """The model cannot be examined; the message says why, in one line."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model: small, and different, so that no axis is mistaken."""

    d_model: int = 16
    num_heads: int = 2
    num_layers: int = 2
    d_ff: int = 48
    dropout: float = 0.1
    vocab_size: int = 23

    @property
    def d_head(self) -> int:
        """The width of a head."""
        return self.d_model // self.num_heads


_BATCH, _SOURCE, TARGET = 3, 7, 5


class _Plain(TorchFunctionMode):
    """A mode in which a missing CUDA device is the CPU; and, if `still`, no dropout.

    It sees every call of torch, from wherever it comes, and ends with the examination.
    """

    def __init__(self, still: bool) -> None:
        super().__init__()
        self.still, self.away = still, not torch.cuda.is_available()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if self.away:
            if name == "cuda":
                return args[0]
            args = tuple("cpu" if _is_cuda(one) else one for one in args)
            kwargs = {n: "cpu" if _is_cuda(v) else v for n, v in kwargs.items()}
        if not self.still:
            return func(*args, **kwargs)
        if name.rstrip("_") in ("dropout", "alpha_dropout", "feature_dropout"):
            return args[0] if args else kwargs["input"]
        if name == "scaled_dot_product_attention":
            args = args[:4] + (0.0,) * (len(args) > 4) + args[5:]
            kwargs.pop("dropout_p", None)
        return func(*args, **kwargs)


def _is_cuda(value: Any) -> bool:
    """Whether an argument names a CUDA device."""
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and value.startswith("cuda")


def one_line(error: BaseException) -> str:
    """An error in one line: its type and the first line of what it says."""
    said = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {said[0]}"[:300].rstrip(": ")


@dataclass
class Subject:
    """A model of somebody else: how to build it, call it, and read what it returns."""

    kind: str
    call: Callable[..., Any]
    build: Callable[..., nn.Module] | None = None
    model: nn.Module | None = None
    pad_id: int | None = None
    window: int | None = None
    alone: bool = False  # one attention, without layers
    sizes: Sizes = field(default_factory=Sizes)
    flat: bool = False
    time_first: bool = False
    last_alone: bool = False
    still: bool = False  # dropout is taken out: it would not stop in evaluation
    source_length: int = _SOURCE
    lengths_agree: bool = False
    built: dict[Sizes, nn.Module] = field(default_factory=dict)

    @property
    def reads_source(self) -> bool:
        """Whether there is a second sequence, with an encoder of its own."""
        return self.kind == "encoder-decoder"

    def make(self, **changes: Any) -> nn.Module:
        """The model, built with some sizes changed; without `build`, the one given."""
        if self.build is None:
            if changes or self.model is None:
                raise Refused("there is no build, so no other size can be tried")
            return self.model
        sizes = Sizes(**(vars(self.sizes) | changes))
        if sizes not in self.built:
            with self.quiet(), torch.random.fork_rng(devices=[]), _Plain(False):
                torch.manual_seed(1)
                made = self.build(**vars(sizes))
            if not isinstance(made, nn.Module):
                raise Refused(f"build gave a {type(made).__name__}, not an nn.Module")
            self.built[sizes] = made
        return self.built[sizes]

    def quiet(self) -> AbstractContextManager[Any]:
        """What the model prints is not ours to show."""
        return redirect_stdout(io.StringIO())

    def raw(
        self,
        model: nn.Module,
        *inputs: Any,
        train: bool = False,
        seed: int = 0,
    ) -> Any:
        """What the call returns, from the random numbers of a seed."""
        model.train(train)
        with self.quiet(), torch.random.fork_rng(devices=[]), _Plain(self.still):
            torch.manual_seed(seed)
            return self.call(model, *inputs)

    def given(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The inputs in the layout that the model reads."""
        return [ids.T for ids in inputs] if self.time_first else list(inputs)

    def output(self, result: Any, batch: int, length: int) -> Tensor:
        """Of all that was returned, the numbers for each position, batch first.

        Raises:
            Refused: when no tensor has the shape of an output.
        """
        found = list(tensors_of(dict(result) if hasattr(result, "keys") else result))
        for tensor in found:
            if not tensor.is_floating_point():
                continue
            shape = tuple(tensor.shape)
            if len(shape) == 3 and shape[:2] == (batch, length):
                return tensor
            if len(shape) == 3 and shape[:2] == (length, batch):
                return tensor.transpose(0, 1)
            if len(shape) == 2 and shape[0] == batch * length:
                self.flat = True
                return tensor.view(batch, length, -1)
            if shape[:-1] in ((batch,), (batch, 1)):
                self.last_alone = True
                return tensor.reshape(batch, 1, -1)
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in found) or "no tensor"
        raise Refused(
            f"no output of shape ({batch}, {length}, vocabulary) was returned, but "
            f"{shapes}"
        )

    def read(self, result: Any, inputs: Sequence[Tensor]) -> Tensor:
        """The numbers for each position of the last input, (batch, length, size)."""
        batch, length = inputs[-1].shape[:2]
        if not self.time_first:
            return self.output(result, batch, length).detach()
        if not self.flat:
            return self.output(result, length, batch).transpose(0, 1).detach()
        flat = self.output(result, batch, length)
        return flat.reshape(length, batch, -1).transpose(0, 1).detach()

    def run(
        self, *inputs: Tensor, model: nn.Module | None = None, **how: Any
    ) -> Tensor:
        """One pass, read; the words in `how` are those of `raw`."""
        model = self.make() if model is None else model
        with torch.no_grad():
            return self.read(self.raw(model, *self.given(inputs), **how), inputs)

    def failure(self, *inputs: Tensor) -> Exception | None:
        """What a pass raises; None if it works."""
        try:
            self.run(*inputs)
        except Exception as error:  # theirs: anything may be raised
            return error
        return None

    def trace(
        self,
        *inputs: Tensor,
        model: nn.Module | None = None,
        hold: Any = None,
        train: bool = False,
    ) -> Xray:
        """The x-ray of one pass."""
        model = self.make() if model is None else model
        given = self.given(inputs)
        return xray(lambda: self.raw(model, *given, train=train), model, hold)

    def held(
        self, *inputs: Tensor, hold: str, model: nn.Module | None = None
    ) -> Tensor:
        """The output with every attention held still (see `Xray`)."""
        return self.read(self.trace(*inputs, hold=hold, model=model).output, inputs)

    @property
    def allowed(self) -> list[int]:
        """Ids of ordinary words: neither padding nor the usual special tokens."""
        last = self.sizes.vocab_size
        return [i for i in range(4, last - 1) if i != self.pad_id]

    def ids(self, length: int, batch: int = _BATCH, seed: int = 0) -> Tensor:
        """Random words, all different within a sentence, as far as there are enough."""
        words = torch.tensor(self.allowed)
        random = torch.Generator().manual_seed(100 + seed)
        rows = [
            words[torch.randperm(len(words), generator=random)].repeat(
                length // len(words) + 1
            )[:length]
            for _ in range(batch)
        ]
        return torch.stack(rows)

    def inputs(
        self, target: int = TARGET, seed: int = 0, batch: int = _BATCH
    ) -> list[Tensor]:
        """A source where the model reads one, and a target."""
        target_ids = self.ids(target, batch, seed)
        if not self.reads_source:
            return [target_ids]
        source = target if self.lengths_agree else self.source_length
        return [self.ids(source, batch, seed + 50), target_ids]
