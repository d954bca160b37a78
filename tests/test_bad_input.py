"""Mistakes a user can make: each one error of a line that names the value."""

import pytest
import torch

from transformer import (
    Decoder,
    Encoder,
    FastDecoder,
    FeedForward,
    MultiHeadAttention,
    PositionalEncoding,
    Residual,
    SubwordTokenizer,
    TokenEmbedding,
    Transformer,
    TransformerConfig,
    Vocabulary,
    WordTokenizer,
    attention_weights,
    causal_mask,
    greedy_search,
    scaled_dot_product_attention,
    sinusoids,
    train,
)
from transformer.text.words import tokenize

pytestmark = pytest.mark.plain
SMALL = {"d_model": 8, "num_heads": 2, "d_ff": 12}


def model(**overrides) -> Transformer:
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    return Transformer(TransformerConfig(13, 13, **(SMALL | layers | overrides)))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: MultiHeadAttention(10, 3), "num_heads must divide d_model.*3 and 10"),
        (lambda: MultiHeadAttention(0, 1), "d_model .* got 0"),
        (lambda: MultiHeadAttention(8, -2), "num_heads .* got -2"),
        (lambda: MultiHeadAttention(8, 2, dropout=1.0), r"\[0, 1\), got 1.0"),
        (lambda: MultiHeadAttention(8, 2, dropout=-0.1), r"\[0, 1\), got -0.1"),
        (lambda: MultiHeadAttention(8, 2, dropout=float("nan")), "got nan"),
        (lambda: FeedForward(0, 8), "d_model .* got 0"),
        (lambda: FeedForward(8, 0), "d_ff .* got 0"),
        (lambda: Residual(0), "d_model .* got 0"),
        (lambda: Residual(8, dropout=1.0), r"\[0, 1\), got 1.0"),
        (lambda: Residual(8, norm_first="post"), "norm_first must be .* got 'post'"),
        (lambda: Decoder(8, 2, 12, 0), "num_layers .* got 0"),
        (lambda: Encoder(8, 2, 12, 0), "num_layers .* got 0"),
        (lambda: Encoder(8, 2, -1, 1), "d_ff .* got -1"),
        (lambda: Encoder(8, 2, 12, 1, dropout=2), "got 2"),
        (lambda: TokenEmbedding(0, 8), "vocab_size .* got 0"),
        (lambda: TokenEmbedding(8, 2.5), "d_model .* got 2.5"),
        (lambda: sinusoids(4, 7), "d_model must be even.*got 7"),
        (lambda: sinusoids(0, 8), "length .* got 0"),
        (lambda: sinusoids(4, 0), "d_model .* got 0"),
        (lambda: PositionalEncoding(8, max_length=True), "^max_length .* got True"),
        (lambda: PositionalEncoding(8, dropout=1.0), r"\[0, 1\), got 1.0"),
        (lambda: causal_mask(0), "length .* got 0"),
        (lambda: model(d_model=9, num_heads=3), "d_model must be even, got 9"),
        (lambda: model(num_heads=3), "num_heads must divide d_model.*3 and 8"),
        (lambda: model(num_encoder_layers=0), "num_encoder_layers .* got 0"),
        (lambda: model(num_decoder_layers=0), "num_decoder_layers .* got 0"),
        (lambda: model(dropout=1), r"\[0, 1\), got 1"),
        (lambda: TransformerConfig(0, 9), "^source_vocab_size .* got 0"),
        (lambda: TransformerConfig(9, 0), "^target_vocab_size .* got 0"),
        (lambda: TransformerConfig(9, 9, d_model=0), "^d_model .* got 0"),
        (lambda: TransformerConfig(9, 9, num_heads=0), "^num_heads .* got 0"),
        (lambda: TransformerConfig(9, 9, d_ff=0), "^d_ff .* got 0"),
        (lambda: TransformerConfig(9, 9, dropout=1.0), r"\[0, 1\), got 1.0"),
        (lambda: model(max_length=0), "max_length .* got 0"),
        (lambda: model(pad_id=1), r"three different ids in 0..12, got \(1, 1, 2\)"),
        (lambda: model(pad_id=-1), r"three different ids in 0..12, got \(-1, 1, 2\)"),
        (lambda: model(pad_id=0.0), r"three different ids in 0..12, got \(0.0, 1, 2\)"),
        (lambda: model(norm_first="no"), "norm_first must be True or False, got 'no'"),
        (lambda: model(tie_embeddings=1), "tie_embeddings must be .* got 1"),
        (lambda: model(eos_id=13), r"three different ids in 0..12, got \(0, 1, 13\)"),
        (
            lambda: TransformerConfig(9, 13, pad_id=9),
            "pad_id must be an id of both .* got 9 with source_vocab_size 9",
        ),
        (
            lambda: TransformerConfig(10, 12, tie_embeddings=True),
            "one vocabulary, got sizes 10 and 12",
        ),
    ],
)
def test_sizes(build, message) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        build()


@pytest.mark.parametrize("name", ["", "."])
def test_a_model_is_saved_to_a_file(name, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"saved to a file, got the folder '{name}'"):
        model().save(name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", [None, 7, b"un", ["un"]])
def test_sentences_are_text(wrong) -> None:
    words = WordTokenizer(Vocabulary(["un"]))
    pieces = SubwordTokenizer.train(["un deux"], 20)
    for encode in (tokenize, words.encode, pieces.encode):
        with pytest.raises(TypeError, match=r"^a sentence must be text, got "):
            encode(wrong)
    with pytest.raises(TypeError, match=r"^a sentence must be text, got "):
        SubwordTokenizer.train([wrong], 20)


def test_a_model_without_numbers_is_neither_trained_nor_searched() -> None:
    empty = model().to("meta")
    for use in (
        lambda: train(empty, [([3], [4])]),
        lambda: greedy_search(empty, [[3]], 2),
        lambda: greedy_search(FastDecoder(empty), [[3]], 2),
    ):
        with pytest.raises(ValueError, match="on the meta device, without numbers"):
            use()


GOOD = torch.tensor([[3, 4]])


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.tensor([[3, 13]]), "0..12, got 13"),
        (torch.tensor([[0, 13]]), "0..12, got 13"),
        (torch.tensor([[-1, 3]]), "0..12, got -1"),
        (torch.tensor([[3.0, 4.0]]), "int64 or int32, got torch.float32"),
        (torch.tensor([[True, False]]), "int64 or int32, got torch.bool"),
        (torch.tensor([3, 4]), r"\(batch, length\), neither empty, got \(2,\)"),
        (torch.empty(0, 4, dtype=torch.int64), r"neither empty, got \(0, 4\)"),
        (torch.empty(2, 0, dtype=torch.int64), r"neither empty, got \(2, 0\)"),
        (torch.full((1, 9), 3), "0..7, got 0..8"),
        ([[3, 4]], r"ids must be a tensor.* got a list$"),
    ],
)
@pytest.mark.parametrize("side", ["source", "target"])
def test_ids(ids, message, side) -> None:
    arguments = (ids, GOOD) if side == "source" else (GOOD, ids)
    small = model(max_length=8)
    with pytest.raises((TypeError, ValueError), match=message):
        small(*arguments)
    with pytest.raises((TypeError, ValueError), match=message):
        small.encode(ids) if side == "source" else small.decode(
            ids, torch.ones(1, 1, 8)
        )


def test_bos_and_eos_need_no_place_in_the_source_vocabulary() -> None:
    TransformerConfig(9, 13, bos_id=11, eos_id=12)


def test_a_negative_start() -> None:
    with pytest.raises(ValueError, match="got -1"):
        PositionalEncoding(8)(torch.zeros(1, 1, 8), start=-1)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(5, 5), "boolean, True = may attend, got torch.float32"),
        (torch.ones(5, 5, dtype=torch.int64), "got torch.int64"),
        (torch.ones(4, 5, dtype=torch.bool), r"\(2, 1, 5, 5\), got \(4, 5\)"),
        (torch.ones(3, 1, 1, 5, dtype=torch.bool), r"got \(3, 1, 1, 5\)"),
        (torch.ones(1, 2, 1, 5, 5, dtype=torch.bool), r"got \(1, 2, 1, 5, 5\)"),
        ([[True]], "must be a boolean tensor, got a list"),
        (torch.ones(1).bool().numpy(), "must be a boolean tensor, got a ndarray"),
    ],
)
def test_masks(mask, message) -> None:
    x = torch.randn(2, 5, 4)
    heads = x[:, None]
    with pytest.raises((TypeError, ValueError), match=message):
        attention_weights(heads, heads, mask)
    with pytest.raises((TypeError, ValueError), match=message):
        MultiHeadAttention(4, 1)(x, x, x, mask)


def test_queries_keys_and_values_that_do_not_fit() -> None:
    x = torch.randn(1, 5, 4)
    with pytest.raises(ValueError, match="share d_k, got 4 and 3"):
        attention_weights(x, x[..., :3])
    with pytest.raises(ValueError, match="5 keys and 2 values"):
        scaled_dot_product_attention(x, x, x[:, :2])
