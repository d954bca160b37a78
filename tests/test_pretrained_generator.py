"""Folders and files of other libraries' language models: text in, text out."""

import dataclasses
import json
import re
import struct
import warnings

import pytest
import torch
from safetensors.torch import save_file
from test_llama2c import PIECES, SCORES, SIZES, as_bytes, random_weights

from transformer.beyond.llama import LlamaConfig
from transformer.cli import main
from transformer.pretrained.generator import PretrainedGenerator

pytestmark = pytest.mark.plain

tk = pytest.importorskip("tokenizers")
SHARED = {"vocab_size": 300, "bos_token_id": None, "eos_token_id": None}


def library_model(kind):
    with warnings.catch_warnings():  # of progress bars, where there is no notebook
        warnings.simplefilter("ignore")
        import transformers
    torch.manual_seed(0)
    if kind == "gpt2":
        sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 40}
        config = transformers.GPT2Config(**SHARED, **sizes, initializer_range=0.5)
        return transformers.GPT2LMHeadModel(config).eval()
    config = transformers.LlamaConfig(
        **SHARED,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=40,
        initializer_range=0.5,
    )
    return transformers.LlamaForCausalLM(config).eval()


def tokenizer():
    found = tk.Tokenizer(tk.models.BPE())
    found.pre_tokenizer = tk.pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = tk.decoders.ByteLevel()
    letters = tk.pre_tokenizers.ByteLevel.alphabet()
    trainer = tk.trainers.BpeTrainer(
        vocab_size=280, initial_alphabet=letters, show_progress=False
    )
    found.train_from_iterator(["Once upon a time, once upon a time"], trainer)
    return found


def folder_of(kind, path, shards=1, dtype=torch.float32, end="safetensors"):
    """A folder as it is downloaded, and the model that it holds."""
    model = library_model(kind).to(dtype)
    model.config.save_pretrained(path)
    tokenizer().save(str(path / "tokenizer.json"))
    state = {name: x.clone() for name, x in model.state_dict().items()}
    if kind == "gpt2":
        del state["lm_head.weight"]  # its table, which such files keep once
    write, stem = (
        (save_file, "model") if end == "safetensors" else (torch.save, "pytorch_model")
    )
    if shards == 1:
        write(state, path / f"{stem}.{end}")
        return model
    weight_map = {}
    for number in range(shards):
        name = f"{stem}-{number + 1:05}-of-{shards:05}.{end}"
        part = {key: state[key] for key in sorted(state)[number::shards]}
        write(part, path / name)
        weight_map |= dict.fromkeys(part, name)
    index = {"metadata": {}, "weight_map": weight_map}
    (path / f"{stem}.{end}.index.json").write_text(json.dumps(index))
    return model


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("end", ["safetensors", "bin"])
def test_a_folder_is_continued_as_the_library_does(kind, shards, end, tmp_path):
    theirs = folder_of(kind, tmp_path, shards, end=end)
    text = PretrainedGenerator.load(tmp_path)
    prompt = "Once upon a Zoë 猫\n"
    found = text.generate(prompt, 12, temperature=1e-6)
    pieces = list(text.stream(prompt, 12, temperature=1e-6))
    assert "".join(pieces) == found
    assert pieces[0] == prompt
    assert len(pieces) > 3
    ids = tokenizer().encode(prompt).ids
    expected = theirs.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        max_new_tokens=12,
        do_sample=False,
        pad_token_id=0,
    )
    assert found == tokenizer().decode(expected[0].tolist())
    assert found.startswith(prompt)


def test_bfloat16_stays_bfloat16_and_a_text_ends_at_the_last_position(tmp_path):
    folder_of("llama", tmp_path, dtype=torch.bfloat16)
    text = PretrainedGenerator.load(tmp_path)
    assert text.model.output.weight.dtype == torch.bfloat16
    ids = text.tokenizer.encode("Once upon a time")
    generator = torch.Generator().manual_seed(0)
    found = text.generate("Once upon a time", 1000, generator=generator)
    assert found.startswith("Once upon a time")
    assert len(text.tokenizer.encode("Once upon a time")) == len(ids)
    with pytest.raises(ValueError, match="the model has 40 positions"):
        text.generate("a b c d e f g h " * 9)
    with pytest.raises(ValueError, match="a prompt needs at least one token"):
        text.generate("")


def replaced(path):
    """Where weights of the older kind lie, in place of these."""
    path.unlink()
    return path.with_name("pytorch_model.bin")


def write(path, text):
    path.write_text(text, "utf-8")


@pytest.mark.parametrize(
    ("spoil", "error", "said"),
    [
        (lambda p: (p / "config.json").unlink(), FileNotFoundError, "no config.json"),
        (
            lambda p: (p / "model.safetensors").unlink(),
            FileNotFoundError,
            r"there is no file .*model\.safetensors",
        ),
        (
            lambda p: (p / "tokenizer.json").unlink(),
            FileNotFoundError,
            r"there is no file .*tokenizer\.json",
        ),
        (
            lambda p: write(p / "tokenizer.json", "{}"),
            ValueError,
            r"tokenizer\.json is not a tokenizer: ",
        ),
        (
            lambda p: (p / "model.safetensors").write_bytes(b"x" * 99),
            ValueError,
            r"model\.safetensors is not a whole safetensors file",
        ),
        (
            lambda p: torch.save({"x": p}, replaced(p / "model.safetensors")),
            ValueError,
            r"pytorch_model\.bin is not a whole file of weights, or holds more than",
        ),
        (
            lambda p: torch.save([1], replaced(p / "model.safetensors")),
            ValueError,
            r"pytorch_model\.bin holds list, no weights by name",
        ),
        (
            lambda p: replaced(p / "model.safetensors").write_bytes(b"x" * 99),
            ValueError,
            r"pytorch_model\.bin is not a whole file of weights, or holds more than",
        ),
        (
            lambda p: write(p / "config.json", '{"model_type": "gemma"}'),
            ValueError,
            "model_type is 'gemma', expected 'gpt2' or 'llama'",
        ),
        (
            lambda p: write(
                p / "model.safetensors.index.json",
                '{"weight_map": {"lm_head.weight": "model-2.safetensors"}}',
            ),
            FileNotFoundError,
            r"there is no file .*model-2\.safetensors",
        ),
        (
            lambda p: write(
                p / "model.safetensors.index.json", '{"weight_map": {"x": "../y"}}'
            ),
            ValueError,
            r"index\.json does not name the files of its folder",
        ),
        (
            lambda p: write(p / "model.safetensors.index.json", "[]"),
            ValueError,
            r"index\.json does not name the files of its folder",
        ),
    ],
)
def test_a_folder_at_fault_is_named_in_one_line(spoil, error, said, tmp_path, capsys):
    folder_of("llama", tmp_path)
    spoil(tmp_path)
    with pytest.raises(error, match=said):
        PretrainedGenerator.load(tmp_path)
    assert main(["generate", "--weights", str(tmp_path), "Once"]) != 0
    shown = capsys.readouterr()
    assert not shown.out
    assert len(shown.err.splitlines()) == 1
    assert re.search(said, shown.err)


def test_a_tokenizer_of_another_vocabulary_is_refused(tmp_path):
    folder_of("llama", tmp_path)
    other = tokenizer()
    other.add_tokens([f"<{number}>" for number in range(40)])
    other.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match=r"has 310 tokens, the model 300"):
        PretrainedGenerator.load(tmp_path)


def stories(folder):
    """A model of llama2.c with its tokenizer beside it."""
    config = LlamaConfig(**{**vars(SIZES), "vocab_size": len(PIECES)})
    path = folder / "tiny.bin"
    path.write_bytes(as_bytes(config, random_weights(config)))
    found = struct.pack("<i", 7)
    for piece, score in zip(PIECES, SCORES, strict=True):
        found += struct.pack("<fi", score, len(piece)) + piece
    (folder / f"tok{len(PIECES)}.bin").write_bytes(found)
    return path


def test_the_command_continues_with_a_file_of_llama2c(tmp_path, capsys):
    path = stories(tmp_path)
    args = ["generate", "--weights", str(path), "--length", "4", "--device", "cpu"]
    assert main([*args, "abc"]) == 0
    first = capsys.readouterr().out
    assert first.startswith("abc")
    assert main([*args, "abc"]) == 0
    assert capsys.readouterr().out == first
    (tmp_path / "tok267.bin").rename(tmp_path / "tokenizer.bin")
    assert main([*args, "abc"]) == 0
    assert capsys.readouterr().out == first
    (tmp_path / "tokenizer.bin").unlink()
    assert main([*args, "abc"]) != 0
    said = capsys.readouterr().err
    assert "tok267.bin" in said
    assert len(said.splitlines()) == 1


def test_the_command_continues_with_a_folder(tmp_path, capsys):
    folder_of("gpt2", tmp_path)
    args = ["generate", "--weights", str(tmp_path), "--length", "4", "Once upon"]
    assert main([*args, "--device", "cpu"]) == 0
    found = capsys.readouterr().out
    assert found.startswith("Once upon")
    assert main([*args, "--device", "cpu", "--stream"]) == 0
    assert capsys.readouterr().out == found


def test_a_stream_ends_with_the_text_and_keeps_characters_whole(tmp_path):
    folder_of("llama", tmp_path)
    text = PretrainedGenerator.load(tmp_path)
    drawn = [torch.Generator().manual_seed(3) for _ in range(2)]
    found = text.generate("Once", 1000, generator=drawn[0])
    pieces = list(text.stream("Once", 1000, generator=drawn[1]))
    assert "".join(pieces) == found
    assert "\ufffd" in found  # bytes that belong to no character
    (end,) = text.tokenizer.encode(found[4])  # what it writes first
    text.model.config = dataclasses.replace(text.model.config, eos_id=end)
    again = text.stream("Once", 1000, generator=torch.Generator().manual_seed(3))
    assert "".join(again) == "Once"

    # Two bytes of é come as one piece, when the second is there.
    first, second = text.tokenizer.encode("é")
    ids = iter([[first], [second], [first], [first]])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            "transformer.pretrained.generator.sample", lambda *_: [next(ids)]
        )
        assert list(text.stream("a", 4)) == ["a", "é", "\ufffd\ufffd"]


def test_a_translators_folder_is_named_as_one(tmp_path, capsys):
    write(tmp_path / "config.json", '{"model_type": "marian"}')
    assert not PretrainedGenerator.reads(tmp_path)
    assert main(["generate", "--weights", str(tmp_path), "Once"]) != 0
    assert len(capsys.readouterr().err.splitlines()) == 1
