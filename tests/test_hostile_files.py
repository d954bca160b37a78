"""Files that lie: each takes one clear line, and nothing of them is taken in."""

import builtins
import json
import os
import pickle
import random
import stat
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from transformer import (
    Transformer,
    TransformerConfig,
    Translator,
    Vocabulary,
    load_training,
    save_training,
)
from transformer.model import digest
from transformer.training import papers_adam

pytestmark = pytest.mark.plain


def small(seed=0, **overrides) -> Transformer:
    torch.manual_seed(seed)
    sizes = {"d_model": 4, "num_heads": 2, "d_ff": 6, "max_length": 8}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    return Transformer(TransformerConfig(7, 7, **(sizes | layers | overrides)))


def stepped(seed=0):
    """A model that took a step, and its optimiser, which remembers it."""
    model = small(seed)
    optimizer = papers_adam(model)
    model(torch.tensor([[3, 4]]), torch.tensor([[1, 5]])).square().mean().backward()
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


# Three kinds of file, and a reader for each. A reader's complaint must be one line that
# names the file; what it would have written to must be as it was.


def save_model(path) -> None:
    small().save(path)


def save_translator(path) -> None:
    words = Vocabulary("abcd")
    Translator(small(), words, words).save(path)


def save_run(path) -> None:
    model, optimizer = stepped()
    about, mean = {"data": "letters"}, {"mean": torch.rand(3)}
    save_training(path, model, optimizer, 1, about, mean)


def read_model(path):
    model = Transformer.load(path)
    return model.config, *model.parameters()


def read_translator(path):
    translator = Translator.load(path)
    words = list(translator.source), list(translator.target)
    return translator.model.config, words, *translator.model.parameters()


unharmed = []


def read_run(path):
    model, optimizer = unharmed.pop() if unharmed else stepped(seed=1)

    def state():
        memory = optimizer.state_dict()["state"].values()
        kept = [value.clone() for one in memory for value in one.values()]
        weights = [weight.detach().clone() for weight in model.parameters()]
        return [*weights, *kept, torch.get_rng_state()]

    before = state()
    try:
        step, more = load_training(path, model, optimizer, {"data": "letters"})
    except BaseException:
        assert same(state(), before), "half of it was taken in"
        unharmed.append((model, optimizer))
        raise
    return step, *state(), *more.values()


KINDS = {
    "model": (save_model, read_model),
    "translator": (save_translator, read_translator),
    "run": (save_run, read_run),
}
kinds = pytest.mark.parametrize(("write", "read"), KINDS.values(), ids=KINDS)


def same(one, other) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(one, other, strict=True)
    )


def one_line(error, path) -> str:
    """What it says, as whoever calls it sees it."""
    message = str(error)
    assert str(path) in message
    assert "\n" not in message
    assert error.__cause__ is None
    assert len(message) < len(str(path)) + 900
    return message


def complaint(read, path) -> str:
    """The one line that a reader says of a file that it must refuse."""
    with pytest.raises((ValueError, OSError)) as caught:
        read(path)
    return one_line(caught.value, path)


@kinds
def test_cut_short_at_every_hundredth_byte(tmp_path, write, read):
    path = tmp_path / "file"
    write(path)
    whole = path.read_bytes()
    for cut in [*range(0, len(whole), 100), len(whole) - 1]:
        path.write_bytes(whole[:cut])
        assert "not a whole safetensors file" in complaint(read, path), cut


@kinds
def test_one_bit_turned_over_is_noticed_or_changes_nothing(tmp_path, write, read):
    path = tmp_path / "file"
    write(path)
    whole, expected = path.read_bytes(), read(path)
    head = 8 + int.from_bytes(whole[:8], "little")
    harmless = 0
    rng = random.Random(0)
    places = [*range(0, head, head // 100), *rng.sample(range(head, len(whole)), 30)]
    for at in places:
        turned = whole[at] ^ 1 << rng.randrange(8)
        path.write_bytes(whole[:at] + bytes([turned]) + whole[at + 1 :])
        try:
            found = read(path)
        except (ValueError, OSError) as error:
            one_line(error, path)
        else:
            assert at < head, "a changed number must be noticed"
            assert same(found, expected), f"byte {at}: {turned:#x}"
            harmless += 1
    assert harmless < 10  # a space for a space, the checksum's own name


@kinds
def test_more_than_the_file(tmp_path, write, read):
    path = tmp_path / "file"
    write(path)
    path.write_bytes(path.read_bytes() + b"\0")
    assert "not a whole safetensors file" in complaint(read, path)


@kinds
def test_what_is_no_such_file(tmp_path, write, read):
    path = tmp_path / "file"
    assert "no checkpoint at" in complaint(read, path)
    path.mkdir()
    assert "no checkpoint at" in complaint(read, path)
    path.rmdir()
    if hasattr(os, "mkfifo"):
        os.mkfifo(path)
        assert "no checkpoint at" in complaint(read, path)
        path.unlink()
    for content in (b"", b"\0" * 8, b"\xff" * 100, b"Dear reader", b"{}"):
        path.write_bytes(content)
        assert "not a whole safetensors file" in complaint(read, path), content
    save_file({"a": torch.ones(1)}, path)
    assert "not a checkpoint of this package" in complaint(read, path)


@kinds
@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="POSIX permissions")
def test_what_may_not_be_read(tmp_path, write, read):
    path = tmp_path / "file"
    write(path)
    path.chmod(0)
    for folder in (tmp_path, *tmp_path.parents):
        if os.access(folder, os.W_OK) and folder.stat().st_uid == os.getuid():
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH | stat.S_IXGRP)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        assert path.is_file(), "it is the file that may not be read, not its folder"
        assert "ermission denied" in complaint(read, path)
    finally:
        if root:
            os.seteuid(0)


class Bomb:
    """A pickle of this writes a file as it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return builtins.open, (str(self.path), "w")


@kinds
@pytest.mark.parametrize("dump", [pickle.dump, torch.save])
def test_a_pickle_is_not_run(tmp_path, write, read, dump):
    path, boom = tmp_path / "file", tmp_path / "boom"
    with path.open("wb") as file:
        dump({"model": Bomb(boom)}, file)
    assert "not a whole safetensors file" in complaint(read, path)
    assert not boom.exists()


@kinds
def test_no_loading_path_has_a_pickle_on_it(tmp_path, write, read, monkeypatch):
    path = tmp_path / "file"
    write(path)
    expected = read(path)

    def forbidden(*_, **__):
        raise AssertionError("a pickle on a loading path")

    for module, name in [
        (pickle, "load"),
        (pickle, "loads"),
        (pickle, "Unpickler"),
        (pickle, "_Unpickler"),
        (torch, "load"),
        (torch.serialization, "load"),
    ]:
        monkeypatch.setattr(module, name, forbidden)
    assert same(read(path), expected)


def test_the_package_names_no_pickle():
    root = Path(__file__).resolve().parent.parent / "transformer"
    for module in root.glob("*.py"):
        text = module.read_text(encoding="utf-8")
        for word in ("pickle", "torch.load", "marshal", "shelve", "eval(", "exec("):
            found = text.replace(".eval(", "")
            assert word not in found, f"{module.name} says {word}"


# Files that are whole and well formed, and were meant to mislead.


def forged(path, write, change) -> None:
    """A good file, changed by one who knows how to make the checksum fit."""
    write(path)
    with safe_open(path, framework="pt") as file:
        notes = file.metadata()
    tensors = load_file(path)
    change(notes, tensors)
    if "digest" in notes:
        about = {k: v for k, v in notes.items() if k not in ("format", "version")}
        del about["digest"]
        notes["digest"] = digest(tensors, about)
    else:
        notes["checksum"] = digest(tensors, {**notes, "checksum": ""})
    save_file(tensors, path, notes)


def config(**changes):
    """The same file with another config."""

    def change(notes, _):
        notes["config"] = json.dumps(json.loads(notes["config"]) | changes)

    return change


def note(name, value):
    return lambda notes, _: notes.update({name: value})


def tensor(name, value):
    return lambda _, tensors: tensors.update({name: value})


def without(name):
    return lambda _, tensors: tensors.pop(name)


LAST = "output.weight"
NAN, INF = (torch.full((7, 4), value) for value in (float("nan"), float("inf")))
NO_MODEL = "holds a config that no model has"
HUGE = 10**12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (tensor(LAST, torch.ones(4, 7)), r"should be (7, 4) floats, got (4, 7)"),
        (tensor(LAST, torch.ones(28)), "got (28,)"),
        (tensor(LAST, torch.ones(7, 4).int()), "got (7, 4) of torch.int32"),
        (tensor(LAST, torch.ones(7, 4).bool()), "torch.bool"),
        (tensor(LAST, torch.ones(7, 4).to(torch.float8_e4m3fn)), "float8"),
        (tensor(LAST, torch.ones(7, 4).to(torch.complex64)), "complex64"),
        (tensor(LAST, NAN), "not finite"),
        (tensor(LAST, -INF), "not finite"),
        (tensor("more", torch.ones(1)), "missing or unexpected more"),
        (without(LAST), "missing or unexpected output.weight"),
        (config(d_model=8), "should be"),
        (config(tie_embeddings=True), "missing or unexpected output.weight"),
        (config(num_encoder_layers=2), "missing or unexpected encoder.layers.1"),
        (config(num_heads=3), f"{NO_MODEL}: num_heads must divide"),
        (config(d_model=4.0), NO_MODEL),
        (config(dropout="much"), NO_MODEL),
        (config(norm_first="no"), f"{NO_MODEL}: norm_first is 'no'"),
        (config(pad_id=0.5), f"{NO_MODEL}: pad_id is 0.5"),
        (config(name="Jane"), NO_MODEL),
        (config(num_encoder_layers=HUGE), f"{NO_MODEL}: more layers than"),
        (config(d_ff=HUGE), "should be"),
        (config(source_vocab_size=2**62), NO_MODEL),
        (config(d_model=10**30, num_heads=1), NO_MODEL),
        (config(max_length=2**44), "no memory for its max_length"),
        (config(max_length=10**30), NO_MODEL),
        (note("config", "[" * 100_000), NO_MODEL),
        (note("config", "[" + "9" * 10_000 + "]"), NO_MODEL),
        (note("config", "null"), NO_MODEL),
        (note("config", ""), NO_MODEL),
        (note("version", "2"), "version '2', expected '1'"),
        (note("format", "another"), "not a checkpoint of this package"),
    ],
)
def test_a_forged_model_is_refused(tmp_path, change, message):
    path = tmp_path / "file"
    try:
        forged(path, save_model, change)
    except KeyError as unknown:  # an older safetensors has no name for complex numbers
        if "complex" not in str(unknown):
            raise
        pytest.skip("no such file can be written")
    assert message in complaint(read_model, path)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_weights_of_another_width_are_the_same_weights(tmp_path, dtype):
    path = tmp_path / "file"
    forged(path, save_model, lambda _, t: t.update({LAST: t[LAST].to(dtype)}))
    weight = Transformer.load(path).output.weight
    assert weight.dtype == torch.float32
    torch.testing.assert_close(weight, small().output.weight, rtol=0.01, atol=0.01)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "b", "c"], "tables of 7 and 7 ids"),
        (["a", "b", "c", "c"], "each word may come once"),
        (["a", "b", "c", ""], "letters without spaces"),
        (["a", "b", "c", 4], ""),
        (["a", "b", "c", ["d"]], ""),
        ([], "at least one word"),
        ({"a": 1}, "tables of"),
        (7, ""),
        (None, ""),
    ],
)
def test_forged_words_are_refused(tmp_path, words, message):
    path = tmp_path / "file"
    forged(path, save_translator, note("target_words", json.dumps(words)))
    assert message in complaint(read_translator, path)


def test_words_that_are_no_list_are_refused(tmp_path):
    path = tmp_path / "file"
    for text in ("", "{", "[" * 100_000):
        forged(path, save_translator, note("source_words", text))
        complaint(read_translator, path)
    forged(path, save_translator, lambda notes, _: notes.pop("source_words"))
    assert "a model without its words" in complaint(read_translator, path)


STATE = torch.get_rng_state()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (tensor(f"model.{LAST}", torch.ones(4, 7)), "does not fit"),
        (tensor(f"model.{LAST}", torch.ones(7, 4).int()), "does not fit"),
        (tensor(f"model.{LAST}", NAN), "not finite"),
        (tensor("model.more", torch.ones(1)), "model.more does not fit"),
        (without(f"model.{LAST}"), "does not fit"),
        (tensor("optimizer.0.exp_avg", torch.ones(3)), "optimizer.0.exp_avg"),
        (without("optimizer.0.exp_avg"), "optimizer.0.exp_avg"),
        (tensor("optimizer.999.exp_avg", torch.ones(3)), "optimizer.999.exp_avg"),
        (tensor("optimizer.x", torch.ones(3)), "optimizer.x"),
        (tensor("optimizer.9\n9.exp_avg", torch.ones(3)), "optimizer.9"),
        (without("random"), "random"),
        (tensor("random", torch.ones(3)), "random"),
        (tensor("random", STATE[:-1]), "random"),
        (tensor("random", torch.zeros_like(STATE)), "random"),
        (tensor("surplus", torch.ones(3)), "surplus"),
        (note("step", "soon"), "step"),
        (note("step", "-1"), "step -1"),
        (lambda notes, _: notes.pop("step"), "step"),
        (note("data", "numbers"), "its data is numbers, here letters"),
        (config(d_ff=99), "of another run: its config is"),
        (note("optimizer", "SGD"), "its optimizer is SGD, here Adam"),
    ],
)
def test_a_forged_run_is_refused(tmp_path, change, message):
    path = tmp_path / "file"
    forged(path, save_run, change)
    assert message in complaint(read_run, path)
