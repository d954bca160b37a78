"""A model with parts of one's own is never loaded as another model."""

import json

import pytest
import torch
from small_runs import CONFIG, small_model
from test_search import ALiBi
from torch import nn
from torch.nn import functional as F

from transformer import (
    FeedForward,
    LanguageModel,
    LanguageModelConfig,
    MultiHeadAttention,
    TextGenerator,
    Transformer,
    TransformerConfig,
    Translator,
    train_translator,
)
from transformer.beyond.gpt2 import GPT2
from transformer.beyond.modern import RMSNorm
from transformer.cli import main
from transformer.text.subwords import SubwordTokenizer
from transformer.weights.files import read_tensors, write_tensors

pytestmark = pytest.mark.plain
SIZES = {"d_model": 8, "num_heads": 2, "d_ff": 12, "max_length": 16}
LAYERS = {"num_encoder_layers": 2, "num_decoder_layers": 1}
IDS = torch.tensor([[3, 4, 5]])


class GELU(FeedForward):
    """The same weights, another activation."""

    def forward(self, x):
        return self.contract(F.gelu(self.expand(x)))


class T5Attention(MultiHeadAttention):
    """A table of biases that the first layer alone has."""

    def __init__(self, *sizes) -> None:
        super().__init__(*sizes)
        self.bias_table = nn.Parameter(torch.randn(4, 2))


class OwnDecode(Transformer):
    """A model that computes in a way of its own."""

    def decode(self, *arguments):
        return -super().decode(*arguments)


class OwnParts(Transformer):
    """A model whose constructor puts a part of its own in."""

    def __init__(self, config) -> None:
        super().__init__(config)
        put_gelu(self)


def small(kind=Transformer, **choices):
    torch.manual_seed(0)
    return kind(TransformerConfig(13, 13, **LAYERS, **SIZES, **choices)).eval()


def put_gelu(model) -> None:
    model.encoder.layers[1].feed_forward.__class__ = GELU


def put_alibi(model) -> None:
    model.decoder.layers[0].self_attention.__class__ = ALiBi


def put_t5(model) -> None:
    model.encoder.layers[0].self_attention = T5Attention(8, 2)


def put_rms_norm(model) -> None:
    model.encoder.layers[0].residuals[0].norm = RMSNorm(8)


def put_forward(model) -> None:
    model.encoder.layers[0].feed_forward.forward = torch.tanh


def put_adapter(model) -> None:
    model.output = nn.Sequential(model.output, nn.Linear(13, 13))


CHANGES = {
    "GELU": (put_gelu, "encoder.layers.1.feed_forward", r"\S*\.GELU"),
    "ALiBi": (put_alibi, "decoder.layers.0.self_attention", r"\S*\.ALiBi"),
    "T5": (put_t5, "encoder.layers.0.self_attention", r"\S*\.T5Attention"),
    "RMSNorm": (put_rms_norm, "encoder.layers.0.residuals.0.norm", r"\S*\.RMSNorm"),
    "a forward": (
        put_forward,
        "encoder.layers.0.feed_forward",
        r"transformer\S+FeedForward with its own forward",
    ),
    "an adapter": (put_adapter, "output", r"torch\S+Sequential"),
}
changes = pytest.mark.parametrize(
    ("change", "place", "name"), CHANGES.values(), ids=CHANGES
)


@changes
@pytest.mark.parametrize("tied", [False, True])
def test_a_part_of_ones_own_is_loaded_into_the_model_that_has_it(
    change, place, name, tied, tmp_path
) -> None:
    path, model = tmp_path / "model", small(tie_embeddings=tied)
    change(model)
    model.save(path, {"mine": "text"})
    with pytest.raises(ValueError, match=f"{place} is {name}.*into=") as caught:
        Transformer.load(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=f"{place} is {name}"):
        Transformer.load(path, into=small(tie_embeddings=tied))
    again = small(tie_embeddings=tied)
    with torch.no_grad():
        for weight in again.parameters():
            weight.normal_()
    change(again)
    loaded, metadata = Transformer.load_with_metadata(path, into=again.train())
    assert loaded is again
    assert metadata == {"mine": "text"}
    assert not again.training
    assert again(IDS, IDS).equal(model(IDS, IDS))
    table = again.source_embedding.table.weight
    assert (table is again.target_embedding.table.weight) == tied


def test_a_subclass_gives_back_what_its_constructor_makes(tmp_path) -> None:
    path, model = tmp_path / "model", small(OwnParts)
    model.save(path)
    assert OwnParts.load(path)(IDS, IDS).equal(model(IDS, IDS))
    with pytest.raises(ValueError, match=r"feed_forward is \S+GELU"):
        Transformer.load(path)
    small().save(path)
    with pytest.raises(ValueError, match=r"feed_forward is \S+GELU.*the file has"):
        OwnParts.load(path)


def test_a_model_that_computes_in_its_own_way_is_named(tmp_path) -> None:
    path, model = tmp_path / "model", small(OwnDecode)
    model.save(path)
    with pytest.raises(ValueError, match=r"the model is \S+OwnDecode"):
        Transformer.load(path)
    assert OwnDecode.load(path)(IDS, IDS).equal(model(IDS, IDS))
    assert Transformer.load(path, into=small(OwnDecode))(IDS, IDS).equal(
        model(IDS, IDS)
    )


def test_a_class_keeps_its_name_when_its_script_is_imported(tmp_path) -> None:
    path, model = tmp_path / "model", small()
    put_gelu(model)
    model.save(path)
    tensors, metadata = read_tensors(path)
    place = "encoder.layers.1.feed_forward"
    metadata["parts"] = json.dumps({place: "__main__.GELU"})
    write_tensors(path, tensors, metadata)
    Transformer.load(path, into=model)
    metadata["parts"] = json.dumps({place: "__main__.LU"})
    write_tensors(path, tensors, metadata)
    with pytest.raises(ValueError, match=r"__main__\.LU"):
        Transformer.load(path, into=model)


@pytest.mark.parametrize(
    "parts", ["", "[]", "{", '{"a": 1}', '{"a\\n": "b"}', "[" * 100_000]
)
def test_forged_parts_are_refused(parts, tmp_path) -> None:
    path = tmp_path / "model"
    small().save(path)
    tensors, metadata = read_tensors(path)
    write_tensors(path, tensors, metadata | {"parts": parts})
    with pytest.raises(ValueError, match=r"model has no list of foreign parts: "):
        Transformer.load(path)


def test_what_does_not_fit_leaves_the_model_as_it_was(tmp_path) -> None:
    path, model = tmp_path / "model", small()
    put_t5(model)
    model.save(path)
    other = small(norm_first=True)
    put_t5(other)
    wide = small()
    put_t5(wide)
    wide.encoder.layers[0].self_attention.bias_table = nn.Parameter(torch.ones(5, 2))
    more = small()
    put_t5(more)
    more.extra = nn.Parameter(torch.ones(1))
    with torch.no_grad():
        for each in (other, wide, more):
            each.output.weight.fill_(1)
    for into, message in (
        (other, "norm_first is True in the model and False in the file"),
        (wide, "size mismatch for encoder.layers.0.self_attention.bias_table"),
        (more, "Missing key.*extra"),
    ):
        with pytest.raises(ValueError, match=message):
            Transformer.load(path, into=into)
        assert (into.output.weight == 1).all()
    language_model = LanguageModel(LanguageModelConfig(13, num_layers=1, **SIZES))
    with pytest.raises(TypeError, match="into a Transformer, got a LanguageModel"):
        Transformer.load(path, into=language_model)


def test_a_model_without_memory_is_filled(tmp_path) -> None:
    path, model = tmp_path / "model", small(tie_embeddings=True)
    put_gelu(model)
    model.save(path)
    with torch.device("meta"):
        empty = small(tie_embeddings=True)
    put_gelu(empty)
    assert Transformer.load(path, into=empty)(IDS, IDS).equal(model(IDS, IDS))
    assert empty.output.weight is empty.source_embedding.table.weight


def test_a_language_model_of_ones_own_too(tmp_path) -> None:
    tokenizer = SubwordTokenizer.train(["ab ba"], 8, "tok")
    config = LanguageModelConfig(tokenizer.vocab_size, num_layers=1, **SIZES)
    model = GPT2(config)
    model.encoder.layers[0].feed_forward = FeedForward(8, 12)
    TextGenerator(model, tokenizer).save(tmp_path / "text")
    with pytest.raises(ValueError, match=r"feed_forward.activation is \S+ReLU"):
        TextGenerator.load(tmp_path / "text")
    again = GPT2(config)
    again.encoder.layers[0].feed_forward = FeedForward(8, 12)
    text = TextGenerator.load(tmp_path / "text", into=again)
    assert text.model is again
    assert again.output.weight.equal(model.output.weight)


def test_a_run_with_a_part_of_ones_own_is_scored_as_no_other_model(
    dataset, tmp_path, capsys
) -> None:
    model, folder = small_model(dataset), tmp_path / "run"
    put_part = lambda model: setattr(  # noqa: E731
        model.encoder.layers[0].feed_forward, "__class__", GELU
    )
    put_part(model)
    for _ in train_translator(model, dataset, CONFIG, folder):
        pass
    page = tmp_path / "page.html"
    for command in (
        ["evaluate", str(folder)],
        ["translate", "--weights", str(folder), "le chat"],
        ["explore", "--weights", str(folder), "--out", str(page)],
    ):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert "encoder.layers.0.feed_forward is" in said
        assert "GELU" in said
        assert len(said.splitlines()) == 1
    assert not page.exists()
    again = small_model(dataset)
    put_part(again)
    translator = Translator.load(folder, into=again)
    sources = [source for source, _ in dataset.validation[:2]]
    for ids in sources:
        batch = torch.tensor([ids])
        assert translator.model.encode(batch).equal(model.eval().encode(batch))


def test_a_tie_outlives_memory_of_its_own() -> None:
    with torch.device("meta"):
        model = small(tie_embeddings=True)
    model.to_empty(device="cpu")
    assert model.output.weight is model.source_embedding.table.weight
    assert model.output.weight is model.target_embedding.table.weight


@pytest.mark.filterwarnings("ignore")  # torch's, of its own parts
def test_a_layer_that_was_compiled_is_saved_under_its_own_name(tmp_path) -> None:
    model, plain = small(), small()
    model.encoder.layers[0].compile()
    model.encoder.layers[1] = torch.compile(model.encoder.layers[1])
    model.save(tmp_path / "model")
    assert Transformer.load(tmp_path / "model")(IDS, IDS).equal(plain(IDS, IDS))
