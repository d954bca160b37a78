"""Model files that lie: each takes one clear line, and no memory is taken for it."""

import dataclasses
import json
import os
import re
import stat
from pathlib import Path

import pytest
import torch
from torch.nn.modules.module import register_module_module_registration_hook

from transformer import Llama, Transformer, TransformerConfig
from transformer.beyond.gpt2 import GPT2
from transformer.beyond.language_model import LanguageModel
from transformer.weights.files import read_tensors, write_tensors

pytestmark = pytest.mark.plain


def small(**overrides) -> Transformer:
    torch.manual_seed(0)
    sizes = {"d_model": 4, "num_heads": 2, "d_ff": 6, "max_length": 8}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    return Transformer(TransformerConfig(7, 7, **(sizes | layers | overrides)))


def refusal(path) -> str:
    """The one line in which `load` refuses a file, with the file's name in it."""
    with pytest.raises((ValueError, OSError)) as caught:
        Transformer.load(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    assert caught.value.__cause__ is None
    assert len(message) < len(str(path)) + 900
    return message


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="POSIX permissions")
def test_what_may_not_be_read(tmp_path) -> None:
    path = tmp_path / "file"
    small().save(path)
    path.chmod(0)
    for folder in (tmp_path, *tmp_path.parents):
        if os.access(folder, os.W_OK) and folder.stat().st_uid == os.getuid():
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH | stat.S_IXGRP)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        assert path.is_file(), "it is the file that may not be read, not its folder"
        assert "ermission denied" in refusal(path)
    finally:
        if root:
            os.seteuid(0)


def test_the_package_reads_pickles_with_weights_only() -> None:
    root = Path(__file__).resolve().parent.parent / "transformer"
    for module in root.rglob("*.py"):
        text = module.read_text(encoding="utf-8")
        reads = r"import pickle|pickle\.|pickle import (?!UnpicklingError$)"
        barred = rf"\b(?:{reads}|marshal|shelve)"
        if module.parent.name != "doctor":  # which runs the reader's own source
            barred += r"|\bexec\(|(?<!\.)\beval\("
        assert not re.search(barred, text, re.MULTILINE), module
        calls = text.count("torch.load(")
        assert calls == text.count("weights_only=True"), module


# Files that are whole and well formed, and were meant to mislead.


def forge(path, change) -> None:
    """A good file, changed by one who knows how to make the checksum fit."""
    small().save(path)
    tensors, metadata = read_tensors(path)
    change(metadata, tensors)
    write_tensors(path, tensors, metadata)


def config(**changes):
    """The same file with another config."""

    def change(metadata, _):
        metadata["config"] = json.dumps(json.loads(metadata["config"]) | changes)

    return change


def note(name, value):
    return lambda metadata, _: metadata.update({name: value})


def tensor(name, value):
    return lambda _, tensors: tensors.update({name: value})


def without(name):
    return lambda _, tensors: tensors.pop(name)


LAST = "output.weight"
NAN, INF = (torch.full((7, 4), value) for value in (float("nan"), float("inf")))
NO_MODEL = "has a config that no Transformer has"
NO_MATCH = "does not match its config"
HUGE = 10**12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (tensor(LAST, torch.ones(4, 7)), f"{NO_MATCH}: size mismatch for {LAST}"),
        (tensor(LAST, torch.ones(28)), f"{NO_MATCH}: size mismatch for {LAST}"),
        (tensor(LAST, torch.ones(7, 4).int()), "should be floats, got torch.int32"),
        (tensor(LAST, torch.ones(7, 4).bool()), "torch.bool"),
        (tensor(LAST, torch.ones(7, 4).to(torch.float8_e4m3fn)), "float8"),
        (tensor(LAST, torch.ones(7, 4).to(torch.complex64)), "complex64"),
        (tensor(LAST, NAN), "output.weight holds a number that is not finite"),
        (tensor(LAST, -INF), "not finite"),
        (tensor("more", torch.ones(1)), 'Unexpected key(s) in state_dict: "more"'),
        (tensor("a\nb" * 500, torch.ones(0)), "Unexpected key(s)"),
        (without(LAST), f'Missing key(s) in state_dict: "{LAST}"'),
        (without("position.table"), '"position.table"'),
        (config(d_model=8), "size mismatch"),
        (
            config(tie_embeddings=True),
            f'{NO_MATCH}: Unexpected key(s) in state_dict: "',
        ),
        (config(num_encoder_layers=2), '"encoder.layers.1'),
        (config(num_heads=3), f"{NO_MODEL}: num_heads must divide"),
        (config(d_model=4.0), NO_MODEL),
        (config(dropout="much"), NO_MODEL),
        (config(norm_first="no"), f"{NO_MODEL}: norm_first must be True or False"),
        (config(pad_id=0.5), f"{NO_MODEL}: pad_id, bos_id and eos_id must be"),
        (config(name="Jane"), NO_MODEL),
        (config(num_encoder_layers=HUGE), f"{NO_MODEL}: more layers than"),
        (config(d_ff=HUGE), "size mismatch"),
        (config(source_vocab_size=2**62), NO_MODEL),
        (config(d_model=10**30, num_heads=1), NO_MODEL),
        (config(max_length=2**38), "size mismatch for position.table"),
        (config(max_length=10**30), NO_MODEL),
        (note("config", "[" * 100_000), NO_MODEL),
        (note("config", "[" + "9" * 10_000 + "]"), NO_MODEL),
        (note("config", "null"), NO_MODEL),
        (note("config", "{"), NO_MODEL),
        (note("config", ""), NO_MODEL),
        (lambda metadata, _: metadata.pop("config"), NO_MODEL),
    ],
)
def test_a_forged_model_is_refused(tmp_path, change, message) -> None:
    path = tmp_path / "file"
    try:
        forge(path, change)
    except KeyError as unknown:  # an older safetensors has no name for complex numbers
        if "complex" not in str(unknown):
            raise
        pytest.skip("no such file can be written")
    # Had memory been taken for a HUGE one, the message would be another.
    assert message in refusal(path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("ENTRY", "another", "not a checkpoint of this package"),
        ("VERSION", 2, "version 2, expected 1"),
    ],
)
def test_another_format_or_version_is_refused(
    tmp_path, key, value, message, monkeypatch
) -> None:
    path = tmp_path / "file"
    with monkeypatch.context() as patch:
        patch.setattr(f"transformer.weights.files._{key}", value)
        small().save(path)
    assert message in refusal(path)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_a_model_of_another_precision_keeps_it(tmp_path, dtype) -> None:
    path = tmp_path / "file"
    model = small().to(dtype).eval()
    model.save(path)
    again = Transformer.load(path)
    assert {weight.dtype for weight in again.parameters()} == {dtype}
    ids = torch.tensor([[3, 4]])
    assert again(ids, ids).equal(model(ids, ids))


def test_a_tied_model_without_its_table_is_refused(tmp_path) -> None:
    path = tmp_path / "file"
    small(tie_embeddings=True).save(path)
    tensors, metadata = read_tensors(path)
    del tensors["source_embedding.table.weight"]
    write_tensors(path, tensors, metadata)
    assert "embedding.table.weight" in refusal(path)


@pytest.mark.parametrize("kind", [Transformer, LanguageModel, GPT2, Llama])
def test_a_claim_of_many_layers_is_refused_without_making_them(tmp_path, kind) -> None:
    """3,000 layers would take seconds to make, 20,000 minutes."""
    path, layers = tmp_path / "file", 3000
    tensors = {f"x{i}": torch.zeros(1) for i in range(layers)}
    sizes = {"d_model": 2, "num_heads": 1, "d_ff": 1}
    if kind is Transformer:
        stacks = {"num_encoder_layers": layers // 2, "num_decoder_layers": layers // 2}
        claimed = TransformerConfig(8, 8, **sizes, **stacks)
    else:
        more = {"num_kv_heads": 1} if kind is Llama else {}
        claimed = kind.config_class(8, num_layers=layers, **sizes, **more)
    text = json.dumps(dataclasses.asdict(claimed))
    write_tensors(path, tensors, {"config": text, "class": kind.__name__})
    made = []
    handle = register_module_module_registration_hook(lambda *new: made.append(new))
    try:
        with pytest.raises(ValueError, match="more layers than 3000 tensors can fill"):
            kind.load(path)
    finally:
        handle.remove()
    assert not made
