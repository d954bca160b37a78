import copy
import dataclasses
import itertools
import json
from importlib import resources

import pytest
import torch
from hypothesis import given
from strategies import models, shake, token_ids
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune

from transformer import MultiHeadAttention, Transformer, TransformerConfig, padding_mask


def small(**overrides) -> TransformerConfig:
    sizes = {"d_model": 8, "num_heads": 2, "d_ff": 12}
    layers = {"num_encoder_layers": 2, "num_decoder_layers": 1}
    return TransformerConfig(13, 13, **(sizes | layers | overrides))


@pytest.mark.parametrize(
    ("size", "expected"),
    [(TransformerConfig.base, 63_082_496), (TransformerConfig.big, 214_245_376)],
)
def test_parameters_of_the_paper(size, expected) -> None:
    with torch.device("meta"):
        model = Transformer(size(37_000, 37_000, tie_embeddings=True))
    assert sum(p.numel() for p in model.parameters()) == expected


def test_the_sizes_of_table_3_and_of_tiny() -> None:
    """In order: d_model, heads, layers of each stack, d_ff, dropout, norm_first."""
    rest = (False, 0, 1, 2, 1024)  # not tied; pad, bos and eos; positions

    def choices(config: TransformerConfig) -> tuple[object, ...]:
        return tuple(getattr(config, one.name) for one in dataclasses.fields(config))

    base = (512, 8, 6, 6, 2048, 0.1, False)
    assert choices(TransformerConfig(9, 11)) == (9, 11, *base, *rest)
    big = (1024, 16, 6, 6, 4096, 0.3, False)
    assert choices(TransformerConfig.big(9, 11)) == (9, 11, *big, *rest)
    tiny = (128, 4, 4, 4, 256, 0.3, False)
    assert choices(TransformerConfig.tiny(9, 11)) == (9, 11, *tiny, *rest)


def test_maps_begin_as_glorot_and_bengio_drew_them() -> None:
    """Evenly up to √(6 / (in + out)); torch's own would end at 1 / √in."""
    model = Transformer(small(d_model=64, d_ff=32))
    for part in model.modules():
        if isinstance(part, torch.nn.Linear):
            bound = (6 / (part.in_features + part.out_features)) ** 0.5
            assert 0.98 * bound < part.weight.abs().max() <= bound
            assert part.bias is None or not part.bias.any()


def test_tying_shares_one_table() -> None:
    model = Transformer(small(tie_embeddings=True))
    with torch.no_grad():
        model.source_embedding.table.weight[5] = 7.0
    assert (model.target_embedding.table.weight[5] == 7).all()
    assert (model.output.weight[5] == 7).all()


def test_a_model_makes_nothing_on_another_device() -> None:
    model = Transformer(small()).eval()
    source, target = torch.tensor([[3, 4, 5, 0]]), torch.tensor([[1, 6, 7]])
    expected = model(source, target)
    with torch.device("meta"):
        assert model(source, target).equal(expected)


@given(models(), token_ids(padded=True), token_ids())
def test_forward_is_encode_then_decode(model, source, target) -> None:
    target = target[:1].expand(len(source), -1)
    mask = padding_mask(source, 0)
    with torch.no_grad():
        hidden = model.decode(target, model.encode(source), mask)
        assert model.output(hidden).equal(model(source, target))


@pytest.mark.parametrize("pad_id", [0, 5, 12])
def test_the_id_of_padding_is_the_configs(pad_id) -> None:
    model = Transformer(small(pad_id=pad_id, bos_id=6, eos_id=7)).double().eval()
    source, target = torch.tensor([[3, 4]]), torch.tensor([[6, 4]])
    more = torch.tensor([[pad_id, pad_id]])
    padded = model(torch.cat((source, more), 1), torch.cat((target, more), 1))
    torch.testing.assert_close(padded[:, :2], model(source, target))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
def test_in_half_precision_padding_and_later_tokens_change_nothing(
    dtype, norm_first
) -> None:
    model = Transformer(small(norm_first=norm_first))
    shake(model)
    model.to(dtype).eval()
    source, target = torch.tensor([[3, 4, 5]]), torch.tensor([[1, 5, 6]])
    logits = model(source, target)
    exact = model.double()(source, target)
    model.to(dtype)
    close = {"rtol": 0, "atol": 30 * torch.finfo(dtype).eps}
    torch.testing.assert_close(logits.double(), exact, **close)
    padded = model(F.pad(source, (0, 3)), F.pad(target, (0, 2)))
    torch.testing.assert_close(padded[:, :3], logits, **close)
    other = torch.cat((target[:, :2], torch.tensor([[9]])), 1)
    torch.testing.assert_close(model(source, other)[:, :2], logits[:, :2], **close)


# Saving and loading


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_a_saved_model_comes_back_whole(tmp_path, tied, norm_first) -> None:
    config = small(tie_embeddings=tied, norm_first=norm_first, dropout=0.5)
    model = Transformer(config).train()
    path = tmp_path / "quite" / "new" / "model.safetensors"
    model.save(path)
    assert model.training
    again = Transformer.load(path)
    assert again.config == model.config
    assert not any(module.training for module in again.modules())
    ids = torch.tensor([[3, 4, 5]])
    assert again(ids, ids).equal(model.eval()(ids, ids))
    assert all(weight.requires_grad for weight in again.parameters())
    assert len(list(again.parameters())) == len(list(model.parameters()))
    assert (again.output.weight is again.source_embedding.table.weight) == tied
    assert [p.name for p in path.parent.iterdir()] == ["model.safetensors"]


def test_weights_tied_by_hand_are_saved_under_each_name(tmp_path) -> None:
    model = Transformer(small()).eval()
    model.output.weight = model.source_embedding.table.weight
    model.register_buffer("scratch", torch.ones(1), persistent=False)
    model.save(tmp_path / "model")
    again = Transformer.load(tmp_path / "model")
    assert again.output.weight.equal(model.output.weight)


@pytest.mark.parametrize("key", ["class", "config", "parts"])
def test_metadata_that_would_be_lost_is_refused_by_name(tmp_path, key) -> None:
    with pytest.raises(ValueError, match=f"the key '{key}', it is reserved"):
        Transformer(small()).save(tmp_path / "model", {key: "mine"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_could_not_be_loaded_is_not_saved(tmp_path, number) -> None:
    model = Transformer(TransformerConfig(9, 9, 8, 2, 1, 1, 8))
    with torch.no_grad():
        model.decoder.layers[0].feed_forward.expand.bias[3] = number
    with pytest.raises(ValueError, match=r"layers.0.feed_forward.expand.bias holds a"):
        model.save(tmp_path / "model.safetensors")
    assert list(tmp_path.iterdir()) == []


def pruned_output(model):
    prune.l1_unstructured(model.output, "weight", 0.5)


def output_with_a_bias(model):
    model.output = nn.Linear(8, 9)


def wider_output(model):
    model.output.weight = nn.Parameter(torch.ones(10, 8))


def whole_numbers(model):
    model.position.table = model.position.table.long()


def untied(model):
    model.output = nn.Linear(8, 9, bias=False)


def untied_target(model):
    model.target_embedding = copy.deepcopy(model.source_embedding)
    nn.init.normal_(model.target_embedding.table.weight)


@pytest.mark.parametrize(
    ("change", "tied", "message"),
    [
        (pruned_output, False, 'Missing.*"output.weight"'),
        (output_with_a_bias, False, 'Unexpected.*"output.bias"'),
        (wider_output, False, r"output.weight: got \(10, 8\), expected \(9, 8\)"),
        (whole_numbers, False, "position.table should be floats, got torch.int64"),
        (untied, True, "output.weight differs from source_embedding.table.weight"),
        (untied_target, True, "target_embedding.table.weight differs from"),
    ],
)
def test_a_model_that_its_config_does_not_describe_is_not_saved(
    tmp_path, change, tied, message
) -> None:
    path = tmp_path / "model"
    model = Transformer(TransformerConfig(9, 9, 8, 2, 2, 2, 8, tie_embeddings=tied))
    model.save(path)
    before = path.read_bytes()
    change(model)
    with pytest.raises(ValueError, match=message):
        model.save(path)
    assert path.read_bytes() == before


def test_a_tied_model_whose_three_weights_are_equal_is_saved(tmp_path) -> None:
    model = Transformer(small(tie_embeddings=True)).eval()
    clones = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(clones, assign=True)
    model.save(tmp_path / "model")
    again = Transformer.load(tmp_path / "model")
    ids = torch.tensor([[3, 4, 5]])
    assert again(ids, ids).equal(model(ids, ids))


def test_saving_draws_no_random_numbers(tmp_path) -> None:
    model, before = Transformer(small()), torch.get_rng_state()
    model.save(tmp_path / "model")
    assert torch.get_rng_state().equal(before)


def test_a_model_without_numbers_is_not_saved(tmp_path) -> None:
    with torch.device("meta"):
        model = Transformer(TransformerConfig(9, 9, d_model=8, num_heads=2, d_ff=8))
    with pytest.raises(ValueError, match="is on the meta device"):
        model.save(tmp_path / "model")
    assert not any(tmp_path.iterdir())


def test_the_shipped_weights_are_of_this_format() -> None:
    path = resources.files("transformer") / "weights" / "phrasebook.safetensors"
    model, metadata = Transformer.load_with_metadata(str(path))
    sizes = model.config.source_vocab_size, model.config.target_vocab_size
    for side, size in zip(("source", "target"), sizes, strict=True):
        tokenizer = json.loads(metadata[f"{side}_tokenizer"])
        assert tokenizer["kind"] == "words"
        assert len(tokenizer["words"]) + 3 == size  # <pad>, <bos> and <eos>
    assert metadata["languages"] == "fr en"


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_made_without_memory_is_whole_once_its_state_is_loaded(tied) -> None:
    model = Transformer(small(tie_embeddings=tied)).eval()
    with torch.device("meta"):
        empty = Transformer(small(tie_embeddings=tied))
    filled = empty.to_empty(device="cpu").eval()
    with torch.no_grad():
        for tensor in (*filled.parameters(), *filled.buffers()):
            tensor.fill_(float("nan"))  # memory that holds anything
    filled.load_state_dict(model.state_dict())
    ids = torch.tensor([[3, 4, 5]])
    assert filled(ids, ids).equal(model(ids, ids))


# Modules of one's own, in place of ours


class LoRALinear(nn.Linear):
    """A low-rank update beside frozen weights (Hu et al. 2021), as a subclass."""

    def __init__(self, base: nn.Linear) -> None:
        has_bias = base.bias is not None
        super().__init__(base.in_features, base.out_features, has_bias)
        self.load_state_dict(base.state_dict())
        self.down = nn.Parameter(torch.randn(2, base.in_features))
        self.up = nn.Parameter(torch.randn(base.out_features, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + F.linear(F.linear(x, self.down), self.up)


class Wrapped(nn.Module):
    """A wrapper around a linear map: it has neither `weight` nor `bias`."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.scale = nn.Parameter(torch.full((), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self.base(x)


def attentions(model: Transformer) -> list[MultiHeadAttention]:
    return [part for part in model.modules() if isinstance(part, MultiHeadAttention)]


PROJECTIONS = ["query_proj", "key_proj", "value_proj", "output_proj"]
SOURCE, TARGET = torch.tensor([[3, 4, 5], [6, 7, 0]]), torch.tensor([[1, 5], [1, 9]])


@pytest.mark.parametrize("name", PROJECTIONS)
@pytest.mark.parametrize("kind", [LoRALinear, Wrapped])
def test_a_projection_may_be_replaced_in_each_attention(kind, name) -> None:
    """Self-attention in both stacks and cross-attention use it, and it learns."""
    model = Transformer(small(dropout=0.0))
    shake(model)
    outputs = [model(SOURCE, TARGET)]
    for attention in attentions(model):
        setattr(attention, name, kind(getattr(attention, name)))
        outputs.append(model(SOURCE, TARGET))
    for before, after in itertools.pairwise(outputs):
        assert not torch.allclose(before, after)
    outputs[-1].square().sum().backward()
    for attention in attentions(model):
        parameters = dict(getattr(attention, name).named_parameters())
        added = ["down", "up"] if kind is LoRALinear else ["scale"]
        assert all(parameters[one].grad.abs().sum() > 0 for one in added)


def test_a_hook_on_a_projection_is_called_in_each_attention() -> None:
    model, calls = Transformer(small()), []
    for attention in attentions(model):
        for name in PROJECTIONS:
            linear = getattr(attention, name)
            linear.register_forward_hook(lambda module, *_: calls.append(module))
    model(SOURCE, TARGET)
    assert len(calls) == len(set(calls)) == 4 * len(attentions(model))


@pytest.mark.plain
@pytest.mark.filterwarnings("ignore")  # torch moves its quantisation elsewhere
def test_dynamic_quantisation_of_every_linear_map() -> None:
    model = Transformer(small(d_model=32, d_ff=64)).eval()
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    assert not any(type(part) is nn.Linear for part in quantised.modules())
    exact = model(SOURCE, TARGET)
    error = (quantised(SOURCE, TARGET) - exact).abs().max()
    assert 0 < error < 0.1 * exact.abs().max()


@pytest.mark.filterwarnings("ignore")
def test_pruned_projections_are_used_in_each_attention() -> None:
    model = Transformer(small(dropout=0.0))
    expected = model(SOURCE, TARGET)
    for attention in attentions(model):
        for name in PROJECTIONS:
            prune.l1_unstructured(getattr(attention, name), "weight", amount=0.5)
    assert not torch.allclose(model(SOURCE, TARGET), expected)
    for _ in range(2):  # its hook makes the weight anew for each pass
        model(SOURCE, TARGET).sum().backward()


# Configurations


def test_a_config_stays_as_it_is() -> None:
    config = small()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.d_model = 9
    assert hash(config) == hash(small())


def test_presets_take_overrides() -> None:
    config = TransformerConfig.tiny(100, 120, dropout=0.0, num_heads=2)
    assert (config.d_model, config.num_heads, config.dropout) == (128, 2, 0.0)
    assert TransformerConfig.big(10, 10).d_ff == 4096
    assert TransformerConfig.base(9, 11) == TransformerConfig(9, 11)


@pytest.mark.plain
def test_targets_without_a_source_each_are_refused() -> None:
    """Three sources and two targets; one source may serve all targets."""
    model = Transformer(small()).eval()
    ids = torch.full((3, 4), 5)
    with pytest.raises(ValueError, match="got 2 targets and 3 sources"):
        model(ids, ids[:2])
    with pytest.raises(ValueError, match="got 3 targets and 2 sources"):
        model.decode(ids, model.encode(ids[:2]))
    torch.testing.assert_close(model(ids[:1], ids), model(ids, ids))


def test_a_printed_model_says_how_many_heads_and_where_the_norms_are() -> None:
    said = repr(Transformer(small(norm_first=True)))
    assert "num_heads=2" in said
    assert "norm_first=True" in said


def test_a_subclass_loads_what_it_saved_and_a_plain_file_as_itself(tmp_path) -> None:
    class Mine(Transformer):
        pass

    path = tmp_path / "model.safetensors"
    Mine(small()).save(path)
    assert type(Mine.load(path)) is Mine
    assert type(Transformer.load(path)) is Transformer
    assert type(Mine.load(tmp_path)) is Mine  # as in the folder of a run
    with pytest.raises(FileNotFoundError, match=r"at .*model\.safetensors"):
        Transformer.load(path.parent / "..")
    with pytest.raises(ValueError, match="got the name ''"):
        Transformer.load("")
