"""Files of llama2.c: made here, number by number, and read as its C program reads."""

import dataclasses
import os
import struct
import sys
from pathlib import Path

import pytest
import torch

from transformer import greedy_search
from transformer.beyond.language_model import PromptDecoder
from transformer.beyond.llama import LlamaConfig
from transformer.pretrained.llama2c import Llama2cTokenizer, from_llama2c

pytestmark = pytest.mark.plain

SIZES = LlamaConfig(
    vocab_size=11,
    d_model=16,
    num_heads=4,
    num_layers=2,
    d_ff=20,
    max_length=12,
    eos_id=1,
    num_kv_heads=2,
    norm_eps=1e-5,
    tie_embeddings=True,
)
REAL = Path(os.environ.get("STORIES260K", "no such folder"))


def random_weights(config):
    """The weights of a file, by llama2.c's names for them, in the order of the file."""
    torch.manual_seed(0)
    d, h, n = config.d_model, config.d_ff, config.num_layers
    kv = config.num_kv_heads * d // config.num_heads
    shapes = {
        "table": (config.vocab_size, d),
        "rms_att": (n, d),
        "wq": (n, d, d),
        "wk": (n, kv, d),
        "wv": (n, kv, d),
        "wo": (n, d, d),
        "rms_ffn": (n, d),
        "w1": (n, h, d),
        "w2": (n, d, h),
        "w3": (n, h, d),
        "rms_final": (d,),
        "freq": (2, config.max_length, d // config.num_heads // 2),
    }
    if not config.tie_embeddings:
        shapes["wcls"] = shapes["table"]
    weights = {name: torch.randn(shape) * 0.3 for name, shape in shapes.items()}
    for name in ("rms_att", "rms_ffn", "rms_final"):
        weights[name] += 1
    return weights


def as_bytes(config, weights):
    sign = 1 if config.tie_embeddings else -1
    header = struct.pack(
        "<7i",
        config.d_model,
        config.d_ff,
        config.num_layers,
        config.num_heads,
        config.num_kv_heads,
        sign * config.vocab_size,
        config.max_length,
    )
    return header + b"".join(each.numpy().tobytes() for each in weights.values())


def run_c(config, weights, ids):
    """The logits of one text, computed as run.c does: a token at a time, a head at a
    time, neighbours turned together."""
    d_k = config.d_model // config.num_heads
    group = config.num_heads // config.num_kv_heads

    def norm(x, gain):
        return gain * x / (x.square().mean() + 1e-5).sqrt()

    def turned(vector, place):
        found = vector.clone()
        for i in range(0, len(vector), 2):
            angle = torch.tensor(place / 10_000 ** ((i % d_k) / d_k))
            a, b = vector[i], vector[i + 1]
            found[i] = a * angle.cos() - b * angle.sin()
            found[i + 1] = a * angle.sin() + b * angle.cos()
        return found

    keys = [[] for _ in range(config.num_layers)]
    values = [[] for _ in range(config.num_layers)]
    logits = []
    for place, token in enumerate(ids):
        x = weights["table"][token].clone()
        for n in range(config.num_layers):
            normed = norm(x, weights["rms_att"][n])
            query = turned(weights["wq"][n] @ normed, place).split(d_k)
            keys[n].append(turned(weights["wk"][n] @ normed, place).split(d_k))
            values[n].append((weights["wv"][n] @ normed).split(d_k))
            heads = []
            for head in range(config.num_heads):
                scores = torch.stack(
                    [query[head] @ key[head // group] / d_k**0.5 for key in keys[n]]
                )
                shares = scores.softmax(dim=0)
                mixed = [
                    share * value[head // group]
                    for share, value in zip(shares, values[n], strict=True)
                ]
                heads.append(torch.stack(mixed).sum(dim=0))
            x = x + weights["wo"][n] @ torch.cat(heads)
            normed = norm(x, weights["rms_ffn"][n])
            gate = weights["w1"][n] @ normed
            x = x + weights["w2"][n] @ (
                gate * gate.sigmoid() * (weights["w3"][n] @ normed)
            )
        output = weights.get("wcls", weights["table"])
        logits.append(output @ norm(x, weights["rms_final"]))
    return torch.stack(logits)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_embeddings": False},
        {"num_kv_heads": 4},
        {"num_kv_heads": 1, "num_heads": 2},
    ],
    ids=str,
)
def test_logits_are_those_of_the_c_program(changes, tmp_path):
    config = dataclasses.replace(SIZES, **changes)
    weights, path = random_weights(config), tmp_path / "model.bin"
    path.write_bytes(as_bytes(config, weights))
    model = from_llama2c(path)
    assert model.config == config
    assert not model.training
    ids = torch.randint(11, (1, 12))
    expected = run_c(config, weights, ids[0].tolist())
    assert expected.std() > 0.3
    with torch.no_grad():
        torch.testing.assert_close(model(ids)[0], expected, atol=1e-4, rtol=1e-4)
    assert greedy_search(PromptDecoder(model), [[1, 4]], 5)
    path.unlink()  # nothing is mapped any more that would be needed
    assert model.output.weight.isfinite().all()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda x: b"", "is not a model of llama2.c: "),
        (lambda x: x[:20], "is not a model of llama2.c: "),
        (lambda x: x[:-4], r"has \d+ bytes, but its header says \d+"),
        (lambda x: x[:-1], r"has \d+ bytes, but its header says \d+"),
        (lambda x: x + b"\0", r"has \d+ bytes, but its header says \d+"),
        (lambda x: x[:28], "has 28 bytes, but its header says"),
        (lambda x: struct.pack("<i", 0x616B3432) + x, "of a later version: export it"),
        (lambda x: b"PK\3\4" * 9, "has 36 bytes, but its header says|not a model of"),
        (
            lambda x: struct.pack("<7i", 16, 20, 2, 3, 1, 11, 12),
            "num_heads must divide",
        ),
        (lambda x: struct.pack("<7i", 16, 20, -2, 4, 1, 11, 12), "num_layers must be"),
    ],
)
def test_files_that_are_refused(spoil, said, tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(spoil(as_bytes(SIZES, random_weights(SIZES))))
    with pytest.raises(ValueError, match=rf"^{path} .*({said})"):
        from_llama2c(path)


PIECES = (b"<unk>", b"\n<s>\n", b"\n</s>\n", *(b"<0x%02X>" % i for i in range(256)))
PIECES += (b" ", b"a", b"b", b"c", b" a", b"ab", b"bc", "é".encode())
SCORES = [0.0] * 259 + [-9.0, -8.0, -7.0, -6.0, -3.0, -2.0, -1.0, -5.0]


def tokenizer_bytes():
    found = struct.pack("<i", 7)
    for piece, score in zip(PIECES, SCORES, strict=True):
        found += struct.pack("<fi", score, len(piece)) + piece
    return found


def test_the_best_pair_is_merged_first_and_bytes_stand_for_the_rest(tmp_path):
    path = tmp_path / "tok.bin"
    path.write_bytes(tokenizer_bytes())
    tokenizer = Llama2cTokenizer.load(path, len(PIECES))
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_id) == (267, 1, 1)
    ids = {piece: index for index, piece in enumerate(PIECES)}

    def pieces(text):
        return [PIECES[index] for index in tokenizer.encode(text)[1:]]

    assert tokenizer.encode("") == [1]
    assert pieces("ab") == [b" ", b"ab"]  # -2 before -3: not b" a", b"b"
    assert pieces("abc") == [b" a", b"bc"]  # -1 first, then " a" is left
    assert pieces("é") == [b" ", "é".encode()]
    assert tokenizer.encode("x") == [1, ids[b" "], 3 + ord("x")]
    assert len(tokenizer.encode("猫")) == 2 + 3
    for text in ("", "abc", " ab", "a  b ", "x猫é\n\ta", "naïve <s> <0x41>", "\x00"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode("猫")[:-1]) == "�"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda x: b"",
        lambda x: x[:-1],
        lambda x: x[:-9],
        lambda x: x + b"\0",
        lambda x: x + struct.pack("<fi", 0.0, 1) + b"x",
        lambda x: x[:8] + struct.pack("<i", -4) + x[12:],
        lambda x: x[:8] + struct.pack("<i", 2**30) + x[12:],
    ],
)
def test_tokenizers_that_are_refused(spoil, tmp_path):
    path = tmp_path / "tok.bin"
    path.write_bytes(spoil(tokenizer_bytes()))
    with pytest.raises(ValueError, match=r"tok\.bin is not a tokenizer of 267 pieces"):
        Llama2cTokenizer.load(path, 267)


def test_missing_files_are_named(tmp_path):
    for read in (from_llama2c, lambda path: Llama2cTokenizer.load(path, 3)):
        with pytest.raises(FileNotFoundError, match=r"there is no file .*nowhere"):
            read(tmp_path / "nowhere")


@pytest.mark.skipif(not REAL.is_dir(), reason="STORIES260K names no folder")
def test_the_real_one_tells_its_story():
    sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))
    import stories260k

    model = from_llama2c(REAL / "stories260K.bin")
    tokenizer = Llama2cTokenizer.load(REAL / "tok512.bin", 512)
    (ids,) = greedy_search(PromptDecoder(model), [[1]], 256)
    assert tokenizer.decode(ids) == stories260k.DOCUMENTED
    assert tokenizer.encode(stories260k.DOCUMENTED)[1:] == ids
