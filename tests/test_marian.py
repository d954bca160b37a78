"""MarianMT's weights and folders in our Transformer, beside the library itself."""

import dataclasses
import io
import json
import shutil
import warnings
from pathlib import Path

import pytest
import sentencepiece
import torch
from safetensors.torch import save_file
from small_runs import assert_same_run
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from transformer import FastDecoder, Transformer, Translator, greedy_search
from transformer.cli import main
from transformer.pretrained.marian import (
    Marian,
    MarianTokenizer,
    _feature_order,
    from_marian,
    read_marian,
    to_marian,
)
from transformer.training.config import TrainingConfig
from transformer.training.distributed import ProcessGroup
from transformer.training.loop import paper_adam
from transformer.training.run_folder import read_metrics
from transformer.training.state import TrainingState

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import MarianConfig, MarianMTModel
    from transformers import MarianTokenizer as TheirTokenizer

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


def write_folder(folder: Path) -> Path:
    """A folder as it is downloaded, with random weights."""
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


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    return write_folder(tmp_path_factory.mktemp("marian") / "opus")


@pytest.fixture
def folder(made, tmp_path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "opus"))


@pytest.mark.plain
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_a_folder_translates_as_the_library_does(folder, capsys) -> None:
    translator = Translator.load(folder)
    assert translator.languages == ("en", "fr")
    library = TheirTokenizer.from_pretrained(folder)
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
    translator.save(folder / "translator.safetensors")
    again = Translator.load(folder / "translator.safetensors")
    assert again.languages == ("en", "fr")
    assert again.model.config == translator.model.config
    assert again.translate(sentences, **options) == translator.translate(
        sentences, **options
    )


# Training goes on as the library's would.


@pytest.mark.parametrize(
    "optimizer", [paper_adam, lambda model: torch.optim.SGD(model.parameters(), lr=1.0)]
)
def test_loss_and_step_are_the_librarys(optimizer) -> None:
    """In double precision, so that no gradient of 0 has a sign by rounding."""
    theirs = library_model(dropout=0.0)
    ours = from_marian(theirs.state_dict(), theirs.config)
    ours.double(), theirs.double().train()
    sines = theirs.model.encoder.embed_positions.weight  # in float32, as they are made
    ours.position.table.copy_(sines[:, _feature_order(16)])
    before = to_marian(ours)
    examples = [([3, 8, 5, 0], [7, 9]), ([4, 0], [6, 29, 2, 11, 6]), ([1, 1, 0], [12])]
    read = torch.tensor([[3, 8, 5, 0], [4, 0, 29, 29], [1, 1, 0, 29]])
    labels = [[*target, 0, *[-100] * (5 - len(target))] for _, target in examples]
    expected = theirs(read, (read != 29).long(), labels=torch.tensor(labels)).loss
    expected.backward()
    norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0).item()
    rule = optimizer(theirs)
    for group in rule.param_groups:
        group["lr"] = 0.01
    rule.step()

    config = TrainingConfig(label_smoothing=0.0)
    state = TrainingState(ours, config, ProcessGroup.single_process(ours), optimizer)
    loss, found_norm = state.train_step(examples, 1, 0.01)
    assert abs(loss - expected.item()) < 1e-6  # added up in float32
    assert abs(found_norm - norm) < 1e-9 < 1 < norm
    after = to_marian(ours)
    for name, weight in after.items():
        assert_close(weight, theirs.state_dict()[name], atol=1e-9, rtol=0)
        if not name.endswith("k_proj.bias"):  # which has no gradient: softmax undoes it
            assert (name == "final_logits_bias") == weight.equal(before[name]), name


@pytest.mark.plain
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_train_goes_on_from_a_folder(folder, tmp_path, capsys) -> None:
    """On one's own pairs; and what it writes is loaded everywhere."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"dropout": 0.0}))
    data = tmp_path / "pairs"
    data.mkdir()
    for split in ("train", "val", "test"):
        for side, lines in (("en", LINES[2:]), ("fr", LINES[:2])):
            (data / f"{split}.{side}").write_text("\n".join(lines) + "\n")
    more = ["train", "--from", str(folder), "--data", str(data), "--device", "cpu"]
    more += ["--epochs", "3", "--batch-tokens", "200", "--label-smoothing", "0"]
    more += ["--learning-rate", "0.01", "--warmup-steps", "1", "--precision", "float32"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for name, asked in (
        ("--learning-rate", "give --learning-rate"),
        ("--data", "--data"),
    ):
        at = more.index(name)
        refused = [*more[:at], *more[at + 2 :], "--out", str(whole)]
        assert main(refused) == 2
        assert asked in capsys.readouterr().err
    assert main([*more, "--out", str(whole)]) == 0
    metrics = read_metrics(whole)
    assert len(metrics) == 3
    library = TheirTokenizer.from_pretrained(folder)
    theirs = MarianMTModel.from_pretrained(folder)
    batch = library(LINES[2:], text_target=LINES[:2], return_tensors="pt", padding=True)
    batch["labels"][batch["labels"] == theirs.config.pad_token_id] = -100
    with torch.no_grad():
        assert abs(theirs(**batch).loss.item() - metrics[0].loss) < 1e-5
    assert metrics[2].loss < metrics[0].loss - 0.1

    # Cut short, it goes on by itself, though the folder is gone.
    assert main([*more, "--out", str(cut), "--max-steps", "1"]) == 0
    assert main([*more, "--out", str(cut), "--max-steps", "2"]) == 0
    shutil.rmtree(folder)
    assert main(["train", "--out", str(cut)]) == 0
    assert_same_run(cut, whole)

    tuned = Translator.load(whole)
    assert isinstance(tuned.model, Marian)
    assert tuned.languages == ("en", "fr")
    theirs.load_state_dict(to_marian(tuned.model), strict=False)
    with torch.no_grad():
        loss = theirs(**batch).loss.item()
    assert abs(loss - min(each.validation_loss for each in metrics)) < 1e-5
    capsys.readouterr()
    asked = [LINES[2], "--max-length", "9"]
    assert main(["translate", "--weights", str(whole), *asked]) == 0
    found = capsys.readouterr().out.strip()
    assert found == tuned.translate(LINES[2], max_length=9, on_cut=lambda _: None)
    for average in ("0", "2"):
        assert main(["evaluate", str(whole), "--average", average]) == 0
        assert json.loads(capsys.readouterr().out)["sentences"] == 2


def test_a_class_or_a_setting_of_another_model_is_refused(plain, tmp_path) -> None:
    ours = from_marian(plain.state_dict(), plain.config)
    ours.save(tmp_path / "file")
    with pytest.raises(ValueError, match=r"the model Marian, no Transformer: .*Marian"):
        Transformer.load(tmp_path / "file")
    for change, message in (
        ({"activation": "tanh"}, "^activation must be one of gelu, .* got 'tanh'"),
        ({"norm_first": True}, "^a Marian is post-norm and has one table"),
        ({"tie_embeddings": False}, "^a Marian is post-norm and has one table"),
    ):
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(ours.config, **change)


@pytest.mark.plain
@pytest.mark.parametrize(
    "change",
    [
        {"kind": "words"},
        {"model": "%"},
        {"model": ""},
        {"model": "AAAA"},
        {"model": None},
        {"vocabulary": []},
        {"vocabulary": {"a": 1}},
        {"vocabulary": {"<unk>": 10**9}},
        {"special_ids": [1, 2]},
        {"special_ids": None},
        {"is_source": 1},
    ],
)
def test_a_forged_description_of_pieces_is_refused(folder, change) -> None:
    _, source, *_ = read_marian(folder)
    found = json.loads(source.to_json())
    assert MarianTokenizer.from_json(source.to_json()).to_json() == source.to_json()
    for text in (json.dumps(found | change), "[]", "{", "[" * 10**5):
        with pytest.raises(ValueError, match=r"^not the description of pieces: "):
            MarianTokenizer.from_json(text)


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


@pytest.mark.plain  # checked types are refused before
def test_what_is_no_tensor_and_no_marian_is_refused(plain) -> None:
    theirs = plain
    with pytest.raises(ValueError, match="needs a Marian, got a Transformer"):
        to_marian(Translator.phrasebook().model)
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
