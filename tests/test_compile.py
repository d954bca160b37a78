"""torch.compile and torch.export of the whole model, of encode and of decode."""

import pytest
import torch
from strategies import shake
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from transformer import (
    MultiHeadAttention,
    Transformer,
    TransformerConfig,
    bf16_autocast,
    padding_mask,
)
from transformer.beyond.forecaster import Forecaster
from transformer.beyond.modern import GroupedQueryAttention

# torch.compile reads through code that is checked with every call, and gives up.
pytestmark = [
    pytest.mark.plain,
    pytest.mark.filterwarnings("ignore"),  # torch's, of its own parts
]
SOURCE = torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0], [3, 9, 3, 0]])
TARGET = torch.tensor([[1, 5, 6], [1, 7, 0], [1, 1, 9]])
MORE = torch.randint(3, 13, (5, 7), generator=torch.Generator().manual_seed(0))


def small(**options) -> Transformer:
    sizes = {"d_model": 8, "num_heads": 2, "d_ff": 12, "max_length": 32}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    model = Transformer(TransformerConfig(13, 13, **sizes, **layers, **options))
    shake(model)
    return model.eval()


class Encode(nn.Module):
    """A model's `encode` as a module, which is what torch.export takes."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor) -> Tensor:
        return self.model.encode(source)


class Decode(nn.Module):
    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, target: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        return self.model.decode(target, memory, mask)


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
def test_the_whole_model_compiles_into_one_graph(norm_first) -> None:
    torch.compiler.reset()
    model = small(norm_first=norm_first)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(SOURCE, TARGET), model(SOURCE, TARGET))
    compiled(SOURCE, TARGET).sum().backward()
    assert all(weight.grad.isfinite().all() for weight in model.parameters())


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (small(), (SOURCE, TARGET)),
        (GroupedQueryAttention(8, 4, 2), (torch.ones(2, 3, 8),) * 3),
        (Forecaster(2, 1, 8, 2, 12, 1), (torch.arange(12.0).view(2, 6),)),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_model_compiles_into_one_graph_in_bf16_too(model, inputs) -> None:
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with bf16_autocast("cpu"):
        found, expected = compiled(*inputs), model(*inputs)
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)


def test_attention_in_bf16_is_compiled_once_for_batches_of_any_size() -> None:
    torch.compiler.reset()
    attention, compiled_graphs = MultiHeadAttention(8, 2), []

    def backend(graph, example_inputs):
        compiled_graphs.append(graph)
        return graph

    compiled = torch.compile(attention, dynamic=True, fullgraph=True, backend=backend)
    for sources in (2, 3, 5):
        x = torch.randn(sources, 4, 8)
        with bf16_autocast("cpu"):
            found, expected = compiled(x, x, x), attention(x, x, x)
        torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
    assert len(compiled_graphs) == 1


def test_encode_and_decode_compile_into_one_graph_for_any_length() -> None:
    torch.compiler.reset()
    model = small()
    compiled = {"fullgraph": True, "backend": "eager", "dynamic": True}
    encode = torch.compile(model.encode, **compiled)
    decode = torch.compile(model.decode, **compiled)
    for source, target in ((SOURCE, TARGET), (MORE, MORE[:, :4])):
        mask = padding_mask(source, 0)
        memory = encode(source)
        torch.testing.assert_close(memory, model.encode(source))
        found = decode(target, memory, mask)
        torch.testing.assert_close(found, model.decode(target, memory, mask))


def test_the_model_exports_with_dynamic_batch_and_lengths() -> None:
    batch = torch.export.Dim("batch", max=64)
    source, target = (torch.export.Dim(n, max=32) for n in ("source", "target"))
    model = small()
    shapes = {"source_ids": {0: batch, 1: source}, "target_ids": {0: batch, 1: target}}
    program = torch.export.export(model, (SOURCE, TARGET), dynamic_shapes=shapes)
    for ids in ((SOURCE, TARGET), (MORE, MORE[:, :6]), (MORE[:2], MORE[:2, :2])):
        torch.testing.assert_close(program.module()(*ids), model(*ids))


def test_encode_and_decode_export_with_dynamic_lengths() -> None:
    auto = torch.export.Dim.AUTO
    model = small()
    encoder = torch.export.export(
        Encode(model), (SOURCE,), dynamic_shapes=({0: auto, 1: auto},)
    )
    mask = padding_mask(SOURCE, 0)
    decoder = torch.export.export(
        Decode(model),
        (TARGET, model.encode(SOURCE), mask),
        dynamic_shapes=({0: auto, 1: auto}, {0: auto, 1: auto}, {0: auto, 3: auto}),
    )
    memory = encoder.module()(MORE)
    torch.testing.assert_close(memory, model.encode(MORE))
    mask = padding_mask(MORE, 0)
    found = decoder.module()(MORE[:, :5], memory, mask)
    torch.testing.assert_close(found, model.decode(MORE[:, :5], memory, mask))


class NoNumberIsRead(TorchDispatchMode):
    """Stand for an accelerator: reading a number of a tensor would make it wait."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func)
        reads = ("_local_scalar_dense", "is_nonzero", "aten.equal", "aten.nonzero")
        assert not any(read in name for read in reads), name
        return func(*args, **(kwargs or {}))


def test_a_forward_pass_waits_for_no_number(monkeypatch) -> None:
    model = small().train()
    with pytest.raises(AssertionError, match="_local_scalar_dense"), NoNumberIsRead():
        model(SOURCE, TARGET)  # on the CPU reading is free: ids are checked
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with NoNumberIsRead():
        model(SOURCE, TARGET).sum().backward()


def test_ids_of_another_device_are_not_read() -> None:
    with torch.device("meta"):
        model = small()
        logits = model(SOURCE.to("meta"), TARGET.to("meta"))
    assert logits.shape == (3, 3, 13)
