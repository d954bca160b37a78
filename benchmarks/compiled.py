"""A decoding step compiled ahead of time, by torch.export and AOTInductor.

How near PyTorch comes to a library in C++: `benchmarks/decoding.py` races it. It needs
a C++ compiler, minutes for the first search, and parts of PyTorch that are not public,
so the package does not have it.
"""

import math
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from transformer.decoding.fast import FastDecoder, PackedModel
from transformer.decoding.packed import PackedLinear
from transformer.masks import padding_mask


class CompiledStep(nn.Module):
    """The packed step as a function that changes none of its arguments.

    Without an `output` its first result is what logits are made of.
    """

    def __init__(self, packed: PackedModel, output: PackedLinear | None) -> None:
        super().__init__()
        self.layers, self.output = packed.decoder_layers, output
        self.norm = packed.decoder_norm
        self.table = packed.target_embedding.table.weight.detach()
        self.scale = math.sqrt(packed.config.d_model)

    def forward(
        self,
        tokens: Int[Tensor, "sources beam"],
        position: Float[Tensor, " d_model"],
        filled: Float[Tensor, " filled"],
        past: Float[Tensor, "sources layers 2 heads slots d_k"],
        ancestry: Float[Tensor, "sources beam slots"],
        memory: Float[Tensor, "layers 2 sources heads length d_k"],
        hidden: Float[Tensor, "sources length"],
    ) -> tuple[
        Float[Tensor, "rows outputs"],
        Float[Tensor, "sources layers 2 heads beam d_k"],
    ]:
        """The logits, or what they are made of, and the keys and values to store.

        Of `filled` only the size counts. `ancestry` and `hidden` are added to scores:
        0, or -∞ for what is not seen.
        """
        x = position + self.scale * F.embedding(tokens.flatten(), self.table)
        end, stored = filled.size(0), []
        for number, layer in enumerate(self.layers):
            first, second, third = layer.residuals
            new = _split(layer.self_proj, first.before(x), tokens.shape, layer.heads)
            stored.append(new[1:].transpose(0, 1))
            past_keys_values = past[:, number, :, :, :end].unbind(1)
            heads = _attend_to_both(new, past_keys_values, ancestry[:, None, :, :end])
            x = first.after(x, _merge(layer.self_output, heads))
            (query,) = _split(
                layer.cross_query, second.before(x), tokens.shape, layer.heads
            )
            keys, values = memory[number].unbind()
            weights = (_scores(query, keys) + hidden[:, None, None]).softmax(-1)
            x = second.after(x, _merge(layer.cross_output, _mix(weights, values)))
            inner = _linear(layer.expand, third.before(x)).relu()
            x = third.after(x, _linear(layer.contract, inner))
        x = self.norm(x)
        if self.output is not None:
            x = _linear(self.output, x)
        return x, torch.stack(stored, dim=1)


def _linear(packed: PackedLinear, x: Tensor) -> Tensor:
    if packed.bias is None:
        return x @ packed.weight
    return x @ packed.weight + packed.bias


def _split(
    packed: PackedLinear, x: Tensor, shape: torch.Size, heads: int
) -> Float[Tensor, "maps sources heads beam d_k"]:
    """Linear maps of each row, their outputs cut into heads."""
    d_k = x.size(-1) // heads
    return _linear(packed, x).view(*shape, -1, heads, d_k).permute(2, 0, 3, 1, 4)


def _merge(packed: PackedLinear, heads: Float[Tensor, "s h b d_k"]) -> Tensor:
    return _linear(packed, heads.transpose(1, 2).flatten(0, 1).flatten(1))


def _scores(
    query: Float[Tensor, "s h b d_k"], keys: Float[Tensor, "s h n d_k"]
) -> Float[Tensor, "s h b n"]:
    return (query[..., None, :] * keys[:, :, None]).sum(-1)


def _mix(
    weights: Float[Tensor, "s h b n"], values: Float[Tensor, "s h n d_k"]
) -> Float[Tensor, "s h b d_k"]:
    return (weights[..., None] * values[:, :, None]).sum(-2)


def _attend_to_both(
    new: Float[Tensor, "3 s h b d_k"], past: tuple[Tensor, ...], ancestry: Tensor
) -> Float[Tensor, "s h b d_k"]:
    """One softmax over the stored keys and each row's own, which are not joined."""
    query, key, value = new
    keys, values = past
    scores, own = _scores(query, keys) + ancestry, (query * key).sum(-1, keepdim=True)
    largest = torch.maximum(scores.amax(-1, keepdim=True), own)
    weights, own_weight = (scores - largest).exp(), (own - largest).exp()
    mixed = _mix(weights, values) + own_weight * value
    return mixed / (weights.sum(-1, keepdim=True) + own_weight)


_Run = Callable[[list[Tensor]], Sequence[Tensor]]


class _Compiled(NamedTuple):
    """A compiled step, and the product that its logits still need, if they do."""

    run: _Run
    output: PackedLinear | None


@dataclass
class CompiledState:
    """As `FastState`, in tensors of one piece, as a compiled step needs them.

    The first slot belongs to no position, and is seen by nobody: so none is empty.
    """

    compiled: _Compiled
    table: Float[Tensor, "positions d_model"]
    past: Float[Tensor, "sources layers 2 heads slots d_k"]
    ancestry: Float[Tensor, "sources beam slots"]
    memory: Float[Tensor, "layers 2 sources heads length d_k"]
    hidden: Float[Tensor, "sources length"]
    counter: Float[Tensor, " slots"]
    width: int = 1
    filled: int = 1  # slots
    position: int = 0

    @classmethod
    def of(
        cls,
        compiled: _Compiled,
        table: Float[Tensor, "positions d_model"],
        memory: Float[Tensor, "layers 2 sources heads length d_k"],
        source_mask: Tensor | None,
        slots: int,
        beam_size: int,
    ) -> "CompiledState":
        """A state that has taken no step yet."""
        layers, _, sources, heads, length, d_k = memory.shape
        ancestry = memory.new_full((sources, beam_size, 1 + slots), -math.inf)
        if beam_size == 1:
            ancestry[..., 1:] = 0.0
        past = memory.new_empty(sources, layers, 2, heads, 1 + slots, d_k)
        past[..., 0, :] = 0.0
        hidden = memory.new_zeros(sources, length)
        if source_mask is not None:
            hidden.masked_fill_(~source_mask.view_as(hidden), -math.inf)
        counter = memory.new_empty(1 + slots)
        return cls(compiled, table, past, ancestry, memory, hidden, counter)

    def step(self, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocabulary"]:
        """Append a token to each row; the logits of the next."""
        width, filled = self.width, self.filled
        inputs = [
            tokens.view(-1, width),
            self.table[self.position],
            self.counter[:filled],
            self.past,
            self.ancestry[:, :width].contiguous(),
            self.memory,
            self.hidden,
        ]
        x, stored = self.compiled.run(inputs)
        self.filled, self.position = filled + width, self.position + 1
        self.past[..., filled : self.filled, :] = stored
        if self.ancestry.size(1) > 1:
            new = self.ancestry[:, :width, filled : self.filled]
            new.diagonal(dim1=1, dim2=2).zero_()  # each sees its own
        return x if self.compiled.output is None else self.compiled.output(x)

    def reorder(self, rows: Int[Tensor, " kept"]) -> None:
        """Each hypothesis goes on from one of its source; sources may be dropped."""
        beam = self.ancestry.size(1)
        groups = rows.view(-1, beam)
        sources = groups[:, 0] // self.width
        if (kept := len(sources)) < len(self.past):
            self.past[:kept, ..., : self.filled, :] = self.past[
                sources, ..., : self.filled, :
            ]
            self.past = self.past[:kept]
            self.memory = self.memory[:, :, sources]
            self.hidden = self.hidden[sources]
            self.ancestry = self.ancestry[sources]
        if beam > 1:
            parents = (groups % self.width)[:, :, None]
            before = self.ancestry[..., : self.filled]
            before.copy_(before.gather(1, parents.expand_as(before)))
            self.width = beam


_FEW = 4  # rows: with eight the compiler's products were slower on one processor
# The compiler's options, by who makes the products of a step.
_OPTIONS: dict[str, dict[str, Any]] = {
    "the compiler": {
        "freezing": True,
        "max_autotune_gemm": True,
        "max_autotune_gemm_backends": "CPP",
    },
    "PyTorch": {"pattern_matcher": False},  # else each product begins with its bias
}


class CompiledDecoder:
    """Fast decoding of a float32 model on a CPU with a compiled step.

    The first search compiles, and so does the first one with more than four rows
    (sources times beam size). The compiled code has a copy of the weights, and runs on
    as many threads as PyTorch had when it was compiled.
    """

    def __init__(self, model: nn.Module) -> None:
        fast = FastDecoder(model)
        if fast.packed is None:
            raise ValueError("the model cannot be packed")
        self.model, self.packed = fast.model, fast.packed
        self._steps: dict[str, _Compiled] = {}

    def prefill(
        self,
        source_ids: Int[Tensor, "sources length"],
        max_length: int,
        beam_size: int = 1,
    ) -> CompiledState:
        """Encode the sources, once, with room for `beam_size` hypotheses of each."""
        mask = padding_mask(source_ids, self.model.config.pad_id)
        hidden = None if mask.all() else mask
        memory = self.packed.encode(source_ids, hidden)
        step = self._step_for(len(source_ids) * beam_size)
        table = self.packed.position.table
        slots = max_length * beam_size
        return CompiledState.of(step, table, memory, hidden, slots, beam_size)

    def _step_for(self, rows: int) -> _Compiled:
        """A compiled step that is fast for so many rows, and right for any number."""
        who = "the compiler" if rows <= _FEW else "PyTorch"
        if who not in self._steps:
            output = self.packed.output
            inside = output if rows <= _FEW else None
            run = _compile(CompiledStep(self.packed, inside), _OPTIONS[who])
            self._steps[who] = _Compiled(run, None if inside else output)
        return self._steps[who]


def _compile(step: CompiledStep, options: dict[str, Any]) -> _Run:
    """The step for any number of sources, hypotheses, slots and source tokens."""
    from torch._inductor import aoti_compile_and_package, aoti_load_package, config
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        message = "a CompiledDecoder needs a C++ compiler, such as g++"
        raise RuntimeError(message) from None
    heads = step.layers[0].heads
    layers, d_model = len(step.layers), step.table.size(1)
    room = 2, layers, 2, heads
    zeros = step.table.new_zeros  # of its dtype, whatever the default is
    example = (
        torch.zeros(2, 3, dtype=torch.long),
        zeros(d_model),
        zeros(5),
        zeros(*room, 18, d_model // heads),
        zeros(2, 3, 18),
        zeros(layers, 2, 2, heads, 7, d_model // heads),
        zeros(2, 7),
    )
    free = torch.export.Dim.AUTO
    sizes = (
        {0: free, 1: free},
        None,
        {0: free},
        {0: free, 4: free},
        {0: free, 1: free, 2: free},
        {2: free, 4: free},
        {0: free, 1: free},
    )
    if hasattr(config.aot_inductor, "precompile_headers"):  # newer than PyTorch 2.6
        # To prepare headers takes longer than three compilations gain by them.
        options = options | {"aot_inductor.precompile_headers": False}
    with warnings.catch_warnings(), config.patch(**options), torch.no_grad():
        warnings.simplefilter("ignore")  # PyTorch's, of its own parts
        exported = torch.export.export(step, example, dynamic_shapes=sizes)
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "step.pt2")
            aoti_compile_and_package(exported, package_path=path)
            # Called itself, the package takes nested arguments apart, and has none.
            return cast("_Run", aoti_load_package(path).loader.run)
