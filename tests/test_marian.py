"""MarianMT's weights and folders in our Transformer, beside the library itself."""

import io
import json
import shutil
import warnings
from pathlib import Path

import pytest
import sentencepiece
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from transformer import FastDecoder, Translator, greedy_search
from transformer.cli import main
from transformer.pretrained.marian import (
    from_marian,
    read_marian,
    to_marian,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import MarianConfig, MarianMTModel, MarianTokenizer

LINES = [
    "le chat dort sur la table ronde",
    "une maison blanche et un jardin vert",
    "the cat sleeps on the round table",
    "a white house and a green garden",
]


def library_model(size: int = 30, **changes: object) -> MarianMTModel:
    """One of theirs, shaken: no bias is zero, no norm is one."""
    sizes = {"d_model": 16, "vocab_size": size, "max_position_embeddings": 40}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": 2, f"{side}_attention_heads": 4}
        sizes |= {f"{side}_ffn_dim": 20}
    pad = {"pad_token_id": size - 1, "decoder_start_token_id": size - 1}
    options = {"activation_function": "swish", "scale_embedding": True, **pad}
    torch.manual_seed(0)
    model = MarianMTModel(MarianConfig(**{**sizes, **options, **changes})).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "embed_positions" not in name:
                weight.mul_(10 if weight.dim() > 1 else 1)
                weight.add_(torch.randn_like(weight), alpha=0.2)
        model.final_logits_bias.normal_()
    return model


@pytest.fixture(scope="module")
def plain() -> MarianMTModel:
    return library_model()


def sources(size: int = 30, count: int = 4) -> tuple[Tensor, Tensor]:
    """Random sources that end with their </s>, and True at their ids."""
    lengths = torch.randint(2, 9, (count, 1))
    ids = torch.randint(1, size - 1, (count, 9))
    real = torch.arange(9) < lengths
    return ids.masked_fill(torch.arange(9) == lengths - 1, 0), real


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"activation_function": "gelu", "encoder_layers": 1, "decoder_layers": 3},
        {"activation_function": "relu", "d_model": 24, "decoder_attention_heads": 3}
        | {"encoder_attention_heads": 3},
    ],
)
def test_logits_and_weights_are_the_librarys(changes) -> None:
    theirs = library_model(**changes)
    state = theirs.state_dict()
    ours = from_marian(state, theirs.config)
    assert not ours.training
    ids, real = sources()
    ids_so_far = torch.cat([torch.full((4, 1), 29), torch.randint(29, (4, 5))], dim=1)
    ours.double(), theirs.double()
    with torch.no_grad():
        logits = ours(ids.masked_fill(~real, 30), ids_so_far)
        expected = theirs(ids, real.long(), decoder_input_ids=ids_so_far).logits
        float_logits = ours.float()(ids.masked_fill(~real, 30), ids_so_far)
    assert_close(logits[..., :-1], expected, atol=1e-6, rtol=0)  # float32's sines
    assert_close(float_logits[..., :-1], expected.float(), atol=1e-4, rtol=1e-5)
    assert (logits[..., -1] == -100).all()
    back = to_marian(ours)
    assert all(weight.equal(state[name].float()) for name, weight in back.items())
    lost = set(state) - set(back)
    assert lost == {name for name in state if "embed" in name} | {"lm_head.weight"}
    again = from_marian(back, theirs.config)  # as a file has them
    assert all(
        map(torch.equal, again.state_dict().values(), ours.state_dict().values())
    )


def without(ids: Tensor, *special: int) -> list[list[int]]:
    return [[index for index in row if index not in special] for row in ids.tolist()]


def test_greedy_search_finds_what_generate_finds() -> None:
    theirs = library_model()
    ours = from_marian(theirs.state_dict(), theirs.config)
    optimizer = torch.optim.Adam(ours.parameters(), lr=0.01)
    for _ in range(30):  # to repeat what it reads, so that translations end
        ids, real = sources(count=16)
        padded = ids.masked_fill(~real, 30)
        before = torch.cat([torch.full((16, 1), 29), padded[:, :-1]], dim=1)
        loss = F.cross_entropy(ours(padded, before).mT, padded, ignore_index=30)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    theirs.load_state_dict(to_marian(ours), strict=False)  # the tables are tied
    ours.double(), theirs.double()
    options = {"max_length": 12, "bad_words_ids": [[29]]}
    expected = without(theirs.generate(ids, attention_mask=real, **options), 0, 29)
    assert greedy_search(ours, padded, 10) == expected
    assert greedy_search(FastDecoder(ours), padded, 10) == expected
    assert len(set(map(len, expected))) > 2


def pieces(lines: list[str]) -> bytes:
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines * 5),
        model_writer=written,
        vocab_size=30,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return written.getvalue()


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder as it is downloaded, with random weights."""
    folder = tmp_path_factory.mktemp("marian") / "opus"
    folder.mkdir()
    names = ["</s>", "<unk>", ">>fra<<"]
    for name, lines in (("source.spm", LINES[2:]), ("target.spm", LINES[:2])):
        (folder / name).write_bytes(model := pieces(lines))
        found = sentencepiece.SentencePieceProcessor(model_proto=model)
        names += [found.id_to_piece(index) for index in range(3, len(found))]
    names = [*dict.fromkeys(names), "<pad>"]
    vocabulary = {name: index for index, name in enumerate(names)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    theirs = library_model(len(vocabulary))
    theirs.config.save_pretrained(folder)
    kept = {n: x.contiguous() for n, x in theirs.state_dict().items()}
    save_file({n: kept[n] for n in kept if "embed" not in n and "lm" not in n},
              folder / "model.safetensors")  # fmt: skip
    torch.save(kept, folder / "pytorch_model.bin")
    said = {"source_lang": "en", "target_lang": "fr"}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    return folder


@pytest.fixture
def folder(made, tmp_path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "opus"))


@pytest.mark.plain
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_a_folder_translates_as_the_library_does(folder, capsys) -> None:
    translator = Translator.load(folder)
    assert translator.languages == ("en", "fr")
    library = MarianTokenizer.from_pretrained(folder)
    sentences = ["the cat sleeps", "a green, table ☃", ">>fra<< a  garden", " the <<"]
    read = [library(sentence)["input_ids"] for sentence in sentences]
    assert [translator.encode(sentence) for sentence in sentences] == read
    written = library(text_target=LINES[0])["input_ids"]
    assert [*translator.target_tokenizer.encode(LINES[0]), 0] == written
    assert translator.target_tokenizer.decode(written) == LINES[0]
    for ids in torch.randint(3, len(library) - 1, (5, 6)).tolist():
        expected = library.decode(ids, skip_special_tokens=True)
        assert translator.target_tokenizer.decode(ids) == expected

    theirs = MarianMTModel.from_pretrained(folder)
    batch = library(sentences[:2], return_tensors="pt", padding=True)
    pad = theirs.config.pad_token_id
    with torch.no_grad():
        written = theirs.generate(**batch, max_length=8, bad_words_ids=[[pad]])
    expected = library.batch_decode(written, skip_special_tokens=True)
    options = {"max_length": 6, "on_cut": lambda index: None}
    assert translator.translate(sentences[:2], **options) == expected

    (folder / "model.safetensors").unlink()
    from_bin = Translator.load(str(folder))
    assert from_bin.translate(sentences[:2], **options) == expected
    arguments = ["--weights", str(folder), "--max-length", "6", sentences[0]]
    assert main(["translate", *arguments]) == 0
    assert capsys.readouterr().out.strip() == expected[0]
    for side, lines in (("en", LINES[2:]), ("fr", LINES[:2])):
        (folder / f"val.{side}").write_text("\n".join(lines) + "\n")
    measured = ["evaluate", str(folder), "--data", str(folder), "--max-length", "6"]
    assert main(measured) == 0
    assert json.loads(capsys.readouterr().out)["sentences"] == 2
    wrong = ["train", "--from", str(folder), "--data", str(folder), "--out"]
    assert main([*wrong, str(folder / "run")]) == 2
    with pytest.raises(ValueError, match="files in the folder that it was read from"):
        translator.save(folder / "translator.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation_function": "tanh"}, "^activation_function is 'tanh', expected"),
        ({"scale_embedding": False}, "^scale_embedding is False, expected True"),
        ({"decoder_start_token_id": 3}, "^decoder_start_token_id is 3, expected 29"),
        ({"decoder_vocab_size": 31}, "^decoder_vocab_size is 31, expected 30"),
        ({"decoder_ffn_dim": 21}, "^decoder_ffn_dim is 21, expected 20"),
        ({"share_encoder_decoder_embeddings": False}, "^share_encoder_decoder_emb"),
        ({"normalize_before": True}, "^normalize_before is True, expected False"),
        ({"attention_dropout": 0.1}, "^attention_dropout is 0.1, expected 0.0"),
        ({"eos_token_id": None}, "^the config has no eos_token_id"),
        ({"vocab_size": None}, "^the config has no vocab_size"),
        ({"model_type": "bart"}, "^model_type is 'bart', expected 'marian'"),
        ({"encoder_layers": 99}, "^the config says 99 layers, but there are"),
        ({"encoder_ffn_dim": 24, "decoder_ffn_dim": 24}, r"fc1.weight has the shape"),
    ],
)
def test_what_a_config_asks_and_ours_has_not_is_refused(plain, change, message) -> None:
    with pytest.raises(ValueError, match=message):
        from_marian(plain.state_dict(), plain.config.to_dict() | change)


def test_weights_of_another_model_are_refused(plain) -> None:
    theirs = plain
    state, positions = theirs.state_dict(), "model.encoder.embed_positions.weight"
    for change, message in (
        ({"lm_head.weight": torch.ones(30, 16)}, r"lm_head.weight differs from model"),
        ({positions: torch.ones(40, 16)}, "embed_positions.weight are not the sines"),
        ({"extra": torch.ones(2)}, "^extra is unknown"),
        ({"final_logits_bias": torch.ones(30)}, "^final_logits_bias has the shape"),
    ):
        with pytest.raises(ValueError, match=message):
            from_marian(state | change, theirs.config)
    first = "model.decoder.layers.1.fc2.bias"
    with pytest.raises(ValueError, match=f"^{first} is missing$"):
        from_marian({n: x for n, x in state.items() if n != first}, theirs.config)
    with pytest.raises(ValueError, match="needs what from_marian made, got a Transf"):
        to_marian(Translator.phrasebook().model)


@pytest.mark.plain  # checked types are refused before
def test_what_is_no_tensor_is_refused(plain) -> None:
    theirs = plain
    with pytest.raises(TypeError, match=r"^lm_head\.weight is a str$"):
        from_marian(theirs.state_dict() | {"lm_head.weight": "x"}, theirs.config)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b"{", r"config\.json is not a JSON object$"),
        ("vocab.json", b"[]", r"vocab\.json is not a JSON object$"),
        ("vocab.json", b'{"<unk>": 999}', r"vocab\.json is no vocabulary of \d+ piec"),
        ("vocab.json", b'{"a": 1}', r"vocab\.json is no vocabulary of \d+ pieces$"),
        ("source.spm", b"nothing", r"source\.spm is no model of SentencePiece$"),
        ("model.safetensors", b"{", r"model\.safetensors is not a whole safetensors"),
        ("pytorch_model.bin", b"PK", r"pytorch_model\.bin is not a whole file of we"),
    ],
)
def test_a_damaged_file_is_named(folder, name, content, message) -> None:
    if name == "pytorch_model.bin":
        (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Translator.load(folder)


def test_a_missing_file_is_named(folder) -> None:
    (folder / "pytorch_model.bin").unlink()
    for name in ("model.safetensors", "vocab.json", "target.spm"):
        (folder / name).unlink()
        with pytest.raises(FileNotFoundError, match=f"there is no file .*{name}$"):
            read_marian(folder)
