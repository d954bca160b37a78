import dataclasses
import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from safetensors.torch import load_file, save_file
from strategies import models, token_ids

from transformer import Transformer, TransformerConfig, padding_mask
from transformer import model as model_module
from transformer.model import write_whole


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


def test_masks_are_made_of_ids_and_the_id_of_padding(monkeypatch) -> None:
    asked = []

    def made(ids, pad_id):
        asked.append((tuple(ids.shape), pad_id))
        return padding_mask(ids, pad_id)

    monkeypatch.setattr(model_module, "padding_mask", made)
    model = Transformer(small(pad_id=5, bos_id=6, eos_id=7))
    source, target = torch.tensor([[3, 4, 5]]), torch.tensor([[6, 4]])
    memory = model.encode(source)
    model.decode(target, memory, padding_mask(source, 5))
    model(source, target)
    one, other = ((1, 3), 5), ((1, 2), 5)
    assert sorted(asked) == sorted([one, other, one, one, other])


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


def test_a_source_of_padding_alone_poisons_nothing() -> None:
    model = Transformer(small())
    source = torch.tensor([[0, 0, 0], [4, 5, 0]])
    logits = model(source, torch.tensor([[1, 3], [1, 3]]))
    logits.sum().backward()
    assert logits.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("tied", [False, True])
def test_a_saved_model_comes_back_whole(tmp_path, tied) -> None:
    model = Transformer(small(tie_embeddings=tied)).eval()
    path = tmp_path / "quite" / "new" / "model.safetensors"
    model.save(path)
    again = Transformer.load(path).eval()
    assert again.config == model.config
    ids = torch.tensor([[3, 4, 5]])
    assert again(ids, ids).equal(model(ids, ids))
    assert [p.name for p in path.parent.iterdir()] == ["model.safetensors"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
def test_a_saved_model_is_as_readable_as_any_new_file(tmp_path) -> None:
    path, other = tmp_path / "model.safetensors", tmp_path / "other"
    Transformer(small()).save(path)
    other.touch()
    assert path.stat().st_mode == other.stat().st_mode


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch) -> None:
    path = tmp_path / "model.safetensors"
    Transformer(small()).save(path)
    before = path.read_bytes()

    def full(*_) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        Transformer(small()).save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_what_went_wrong_is_told_when_nothing_was_written(
    tmp_path, monkeypatch
) -> None:
    def full(*_, **__) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(OSError, match="No space left"):
        Transformer(small()).save(tmp_path / "model.safetensors")


def test_a_missing_checkpoint(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"no checkpoint at .*nowhere"):
        Transformer.load(tmp_path / "nowhere.safetensors")


def test_a_checkpoint_cut_short_anywhere(tmp_path) -> None:
    path = tmp_path / "model.safetensors"
    Transformer(small()).save(path)
    whole = path.read_bytes()
    for cut in range(0, len(whole), max(1, len(whole) // 100)):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match="not a whole safetensors file"):
            Transformer.load(path)


def rewrite(path, change) -> None:
    """Save a good checkpoint, then change its metadata or tensors."""
    Transformer(small()).save(path)
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    del metadata["checksum"]  # as if whoever changed it had meant to
    change(metadata, tensors)
    save_file(tensors, path, metadata)


def drop(tensors) -> None:
    del tensors["output.weight"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m, t: m.clear(), "not a checkpoint of this package"),
        (lambda m, t: m.update(format="x"), "not a checkpoint of this package"),
        (lambda m, t: m.update(version="99"), "version '99', expected '1'"),
        (lambda m, t: m.pop("config"), "no model has"),
        (lambda m, t: m.update(config="{"), "no model has"),
        (lambda m, t: m.update(config='{"d_model": 8}'), "no model has"),
        (lambda m, t: m.update(config="[]"), "no model has"),
        (
            lambda m, t: m.update(
                config=json.dumps(json.loads(m["config"]) | {"d_ff": 99})
            ),
            "should be",
        ),
        (
            lambda m, t: m.update(
                config=json.dumps(
                    json.loads(m["config"])
                    | {"num_encoder_layers": 50, "num_decoder_layers": 50}
                )
            ),
            "no model has: more layers than the",
        ),
        (lambda m, t: drop(t), "missing or unexpected output.weight"),
        (
            lambda m, t: t.update(extra=torch.ones(1)),
            "missing or unexpected extra",
        ),
        (
            lambda m, t: t.update({"output.weight": torch.ones(2, 2)}),
            r"output.weight should be \(13, 8\)",
        ),
        (
            lambda m, t: t.update(
                {"output.weight": torch.ones(13, 8, dtype=torch.int64)}
            ),
            "int64",
        ),
        (
            lambda m, t: t["output.weight"].fill_(float("nan")),
            "output.weight holds a number that is not finite",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit(tmp_path, change, message) -> None:
    path = tmp_path / "model.safetensors"
    rewrite(path, change)
    with pytest.raises(ValueError, match=message):
        Transformer.load(path)


def test_a_file_of_something_else(tmp_path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear reader, " * 40)
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        Transformer.load(path)


def test_all_is_on_the_disk_before_it_is_named(tmp_path, monkeypatch) -> None:
    there = []
    monkeypatch.setattr(os, "fsync", lambda file: there.append(os.fstat(file).st_size))
    write_whole(tmp_path / "file", b"seven..")
    assert there == [7]


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
