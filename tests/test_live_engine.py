"""The live model's forward pass, in a real browser, held to PyTorch's."""

import base64
import io
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
from playwright.sync_api import Browser, Page
from test_marian import library_model

from bookkit import broken
from transformer.attention import attention_weights
from transformer.decoding.beam import n_best
from transformer.decoding.search import greedy_search
from transformer.live import describe_model, engine
from transformer.live.model import describe_tokenizer
from transformer.maps import Head, ablate_heads
from transformer.masks import causal_mask, padding_mask
from transformer.model import Transformer, TransformerConfig
from transformer.pretrained.marian import (
    Marian,
    MarianConfig,
    MarianTokenizer,
    from_marian,
)
from transformer.text.subwords import SubwordTokenizer
from transformer.text.words import (
    UnknownWordError,
    Vocabulary,
    WordTokenizer,
    tokenize,
)

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.plain  # nothing here is about shapes

HARNESS = (ROOT / "tests" / "live_engine.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def window(browser: Browser) -> Iterator[Page]:
    """An empty page with the engine in it."""
    page = browser.new_page()
    page.add_script_tag(content=engine() + HARNESS)
    yield page
    page.close()


def ask(window: Page, script: str, given: Any) -> Any:
    """What a function says of its argument: as one text, many small ones take long."""
    spoken = f"text => JSON.stringify(({script})(JSON.parse(text)))"
    return json.loads(window.evaluate(spoken, json.dumps(given)))


def load(window: Page, model: Transformer) -> None:
    last = model.config.source_vocab_size - 1
    described = describe_model(model, [[last - (last == model.config.pad_id)]])
    window.evaluate("found => { model = engine.loadModel(found); }", described)


def unpack(packed: dict) -> dict[str, torch.Tensor]:
    numbers = torch.from_numpy(
        np.frombuffer(base64.b64decode(packed["numbers"]), np.float32).copy()
    )
    sizes = [size for _, size in packed["sizes"]]
    return dict(
        zip([name for name, _ in packed["sizes"]], numbers.split(sizes), strict=True)
    )


def randomised(config: TransformerConfig, seed: int) -> Transformer:
    """A model in which nothing is 0 or 1: a bias left out would be seen."""
    torch.manual_seed(seed)
    kind = Marian if isinstance(config, MarianConfig) else Transformer
    model = kind(config).eval()
    for name, weight in model.named_parameters():
        if weight.dim() == 1:
            middle = 1.0 if "norm.weight" in name else 0.0
            torch.nn.init.normal_(weight, middle, 0.2)
    for weight in model.parameters():  # what half precision can hold, exactly
        weight.data = weight.data.half().float()
    return model


def configurations() -> list[TransformerConfig]:
    draw = random.Random(20)
    found = []
    for number in range(20):
        heads, tied = draw.choice([1, 2, 3, 4]), number % 3 == 0
        pad, bos, eos = draw.sample(range(6), 3) if number % 2 else (0, 1, 2)
        size = draw.randint(8, 60)
        config = TransformerConfig(
            source_vocab_size=size,
            target_vocab_size=size if tied else draw.randint(8, 60),
            d_model=2 * heads * draw.randint(2, 6),
            num_heads=heads,
            num_encoder_layers=draw.randint(1, 3),
            num_decoder_layers=draw.randint(1, 3),
            d_ff=draw.randint(5, 50),
            dropout=0.1,
            norm_first=number % 4 > 1,
            tie_embeddings=tied,
            pad_id=pad,
            bos_id=bos,
            eos_id=eos,
            max_length=draw.randint(14, 40),
        )
        found.append(config)
    sizes = {"d_model": 24, "num_heads": 3, "d_ff": 20, "max_length": 24}
    layers = {"num_encoder_layers": 2, "num_decoder_layers": 3}
    ids = {"pad_id": 30, "bos_id": 29, "eos_id": 0}
    for activation in ("swish", "gelu", "relu"):
        more = {**sizes, **layers, **ids, "activation": activation}
        found.append(MarianConfig(31, 31, **more))
    return found


@torch.no_grad()
def intermediates(
    model: Transformer, source: list[int], target: list[int]
) -> dict[str, torch.Tensor]:
    """What the engine calls by the same names, caught from the modules by hooks."""
    found: dict[str, torch.Tensor] = {}
    hooks = []

    def catch(module, action):
        hooks.append(module.register_forward_hook(action))

    def keep(name):
        return lambda module, inputs, output: found.__setitem__(name, output)

    def keep_input(name):
        return lambda module, inputs, output: found.__setitem__(name, inputs[0])

    sides = iter(("source", "target"))

    def position(module, inputs, output):
        side = next(sides)
        found[f"{side}.embedding"], found[f"{side}.positioned"] = inputs[0], output

    catch(model.position, position)
    ids = torch.tensor([source]), torch.tensor([target])
    pad = model.config.pad_id
    own = causal_mask(len(target)) & padding_mask(ids[1], pad)
    across = padding_mask(ids[0], pad)
    for side, layers in (("e", model.encoder.layers), ("d", model.decoder.layers)):
        for number, layer in enumerate(layers, 1):
            places = ("self", "ff") if side == "e" else ("self", "cross", "ff")
            for place, residual in zip(places, layer.residuals, strict=True):
                at = f"{side}{number}.{place}"
                catch(residual, keep(f"{at}.x"))
                catch(residual, keep_input(f"{at}.before"))
                if place == "ff":
                    catch(layer.feed_forward, keep_input(f"{at}.input"))
                    catch(layer.feed_forward.contract, keep_input(f"{at}.hidden"))
                    catch(layer.feed_forward, keep(f"{at}.output"))
                    continue
                part = (
                    layer.self_attention if place == "self" else layer.cross_attention
                )
                catch(part, keep_input(f"{at}.input"))
                for name, module in (
                    ("queries", part.query_proj),
                    ("keys", part.key_proj),
                    ("values", part.value_proj),
                    ("output", part.output_proj),
                ):
                    catch(module, keep(f"{at}.{name}"))
                catch(part.output_proj, keep_input(f"{at}.heads"))
    catch(model.encoder, keep("memory"))
    catch(model.decoder, keep("hidden"))
    catch(model.output, keep("logits"))
    model(*ids)
    for hook in hooks:
        hook.remove()
    heads = model.config.num_heads
    for at in [name.removesuffix(".queries") for name in found if "queries" in name]:
        mask = across if at[0] == "e" or "cross" in at else own
        query, key = (
            found[f"{at}.{name}"].unflatten(-1, (heads, -1)).transpose(1, 2)[0]
            for name in ("queries", "keys")
        )
        scores = query @ key.transpose(1, 2) / query.size(-1) ** 0.5
        weights = attention_weights(query, key, mask[0] if mask.dim() == 4 else mask)
        for head in range(heads):
            found[f"{at}.scores.{head}"] = scores[head]
            found[f"{at}.weights.{head}"] = weights[head]
    for at in [name.removesuffix(".output") for name in found if ".output" in name]:
        found[f"{at}.sum"] = found[f"{at}.before"] + found[f"{at}.output"]
    return {name: tensor.flatten() for name, tensor in found.items()}


def random_ids(draw: random.Random, size: int, config: TransformerConfig, most: int):
    """Ids, some of them padding; the first is none."""
    first = [i for i in range(size) if i != config.pad_id]
    return [
        draw.choice(first),
        *(draw.choice([config.pad_id, *first]) for _ in range(draw.randint(1, most))),
    ]


@pytest.mark.parametrize("number", range(23))
def test_every_intermediate_is_pytorchs(window: Page, number: int) -> None:
    """And what greedy and beam search find is the same: 4 sentences a config."""
    config = configurations()[number]
    model, draw = randomised(config, number), random.Random(number)
    load(window, model)
    most, sources = config.max_length // 2, []
    for _ in range(4):
        source = random_ids(draw, config.source_vocab_size, config, most)
        target = random_ids(draw, config.target_vocab_size, config, most)
        wanted = intermediates(model, source, target)
        found = unpack(ask(window, "compute", {"source": source, "target": target}))
        assert found.keys() == wanted.keys()
        for name, tensor in found.items():
            assert tensor.shape == wanted[name].shape, name
            assert (tensor - wanted[name]).abs().max() <= 1e-4, name
        cached = ask(
            window, "compute", {"source": source, "target": target, "cached": True}
        )
        logits = base64.b64decode(cached["numbers"])
        torch.testing.assert_close(
            torch.frombuffer(bytearray(logits), dtype=torch.float32),
            wanted["logits"],
            atol=1e-4,
            rtol=0,
        )
        sources.append([i for i in source if i != config.pad_id])
    length = config.max_length
    wanted_words = (
        greedy_search(model, sources, length),
        n_best(model, sources, length, 2),
        n_best(model, sources, length, 4),
    )
    for source, words in zip(sources, zip(*wanted_words, strict=True), strict=True):
        greedy, *beams = ask(window, "search", [source, length])
        assert greedy == words[0]
        for found, wanted in zip(beams, words[1:], strict=True):
            assert [ids for ids, *_ in found] == [each.ids for each in wanted]
            for each, judged in zip(found, wanted, strict=True):
                assert each[1:] == pytest.approx(judged[1:], abs=1e-3)


# What a reader switches off is what the break-it lab trains without.

SWITCHES = {
    "scale": broken.without_root,
    "causal": broken.without_causal_mask,
    "positions": broken.without_positions,
    "residual": broken.without_residuals,
}
CONFIG = TransformerConfig(20, 15, 16, 2, 2, 2, 24, 0.0, max_length=16)
SOURCE, TARGET = [5, 9, 4, 4, 12, 7], [1, 6, 3, 8, 3]


def logits(window: Page, **changes) -> torch.Tensor:
    packed = ask(window, "compute", {"source": SOURCE, "target": TARGET} | changes)
    return unpack(packed)["logits"]


@torch.no_grad()
def wanted_logits(model: Transformer) -> torch.Tensor:
    return model(torch.tensor([SOURCE]), torch.tensor([TARGET])).flatten()


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_takes_out_what_the_lab_takes_out(window: Page, name: str) -> None:
    model = randomised(CONFIG, 1)
    load(window, model)
    whole = wanted_logits(model)
    found = logits(window, off=[name])
    assert (found - whole).abs().max() > 1e-2
    wanted = wanted_logits(SWITCHES[name](model))
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)


def test_parts_of_one_place_are_switched_off_alone(window: Page) -> None:
    model = randomised(CONFIG, 2)
    load(window, model)
    for kind, place in (
        ("encoder", "e2.self"),
        ("masked", "d1.self"),
        ("cross", "d2.cross"),
    ):
        with ablate_heads(model, Head(kind, int(place[1]) - 1, 1)):
            wanted = wanted_logits(model)
        found = logits(window, off=[f"head:{place}.2"])
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)
    layer = model.decoder.layers[1]
    norm, layer.residuals[1].norm = layer.residuals[1].norm, torch.nn.Identity()
    found = logits(window, off=["norm:d2.cross"])
    torch.testing.assert_close(found, wanted_logits(model), atol=1e-4, rtol=0)
    layer.residuals[1].norm = norm
    for weight in layer.feed_forward.contract.parameters():
        torch.nn.init.zeros_(weight)
    found = logits(window, off=["feed_forward:d2.ff"])
    torch.testing.assert_close(found, wanted_logits(model), atol=1e-4, rtol=0)


def test_padding_is_seen_only_where_its_mask_is_off(window: Page) -> None:
    model = randomised(CONFIG, 3)
    load(window, model)
    plain, padded = logits(window), logits(window, source=[*SOURCE, 0, 0])
    torch.testing.assert_close(plain, padded, atol=1e-4, rtol=0)
    seen = logits(window, source=[*SOURCE, 0, 0], off=["padding"])
    model.config.__dict__["pad_id"] = 14  # then a 0 is a token as any other
    ids = torch.tensor([[*SOURCE, 0, 0]]), torch.tensor([TARGET])
    with torch.no_grad():
        torch.testing.assert_close(seen, model(*ids).flatten(), atol=1e-4, rtol=0)


def test_a_weight_set_by_hand_leaves_the_rest_in_proportion(window: Page) -> None:
    load(window, randomised(CONFIG, 4))
    before, after = (
        unpack(
            ask(window, "compute", {"source": SOURCE, "target": TARGET, "edits": edits})
        )
        for edits in ([], [["d1.cross.2.3.1", 0.75]])
    )
    row = slice(3 * len(SOURCE), 4 * len(SOURCE))
    old, new = (each["d1.cross.weights.1"][row] for each in (before, after))
    assert new[1] == 0.75
    others = [0, 2, 3, 4, 5]
    torch.testing.assert_close(new[others], old[others] * 0.25 / (1 - old[1]))
    torch.testing.assert_close(
        after["d1.cross.weights.0"], before["d1.cross.weights.0"]
    )
    changed = (after["logits"] - before["logits"]).view(len(TARGET), -1).abs().amax(1)
    assert (changed[:3] == 0).all()
    assert changed[3] > 1e-4


def test_samples_are_repeated_by_their_seed_and_follow_the_probabilities(
    window: Page,
) -> None:
    load(window, randomised(CONFIG, 5))
    drawn = ask(window, "draw", SOURCE)
    assert drawn["again"] == drawn["many"][:20]
    assert set(drawn["cold"]) == {drawn["ranked"][0]["id"]}
    for token in drawn["ranked"]:
        share = drawn["many"].count(token["id"]) / 2000
        assert abs(share - token["probability"]) < 0.045  # four standard deviations


# Words and subwords


def texts() -> list[str]:
    """The book's own pages: prose, code, formulas, names in many letters."""
    return [
        path.read_text(encoding="utf-8")
        for path in sorted((ROOT / "book").glob("*.md"))
    ]


ODD = [
    "L'été, l’ami d'Éve; «où?» dit-elle… 3,5 ou 3.5. Fin.",
    "\ufeffＡ　ｂ\u2009c\u00a0d\x85e\x1cf ½ ²³ ٣ ९ 五 ǆ İSTANBUL ΟΔΟΣ",
    "e\u0301te\u0301 क्षि नमस्ते 👩‍👩‍👧 🇫🇷 a_b don't 'tis qu'il aujourd'hui rock'n'roll",
    "<img onerror=x> &eacute;t&eacute; &amp; &quot;x&quot; &nope; &#233; [x|y] <eos>",
    "▁a ▁▁b a▁",
    "x" * 60 + ". .. ... a.b .c d. e . 1,000 ,5 5, \u200bz\u200d \u0300a",
]


def assert_same_tokens(window: Page, tokenizer: Any, lines: list[str]) -> None:
    """The page cuts lines into the tokenizer's ids, and makes the same text of them."""
    found = ask(
        window,
        """([described, lines]) => {
          const tokenizer = engine.makeTokenizer(described);
          return lines.map(line => {
            const ids = tokenizer.tokens(line).map(token => token.id);
            return [ids, tokenizer.decode(ids)];
          });
        }""",
        [describe_tokenizer(tokenizer), lines],
    )
    for line, (ids, text) in zip(lines, found, strict=True):
        assert ids == tokenizer.encode(line), line
        assert text == tokenizer.decode(ids), line


@pytest.mark.parametrize("text", ["raw", "tok"])
def test_subwords_are_the_tokenizers(window: Page, text: str) -> None:
    """On a third of the book's different words, and on the odd sentences whole."""
    pages = texts()
    tokenizer = SubwordTokenizer.train(pages[3].splitlines(), 600, text)
    types = sorted({word for page in pages for word in page.split()})
    assert len(types) > 10_000
    lines = [*types[::3], *pages[5].splitlines(), *ODD]
    lines = [line for line in lines if tokenizer.normalize(line)]
    assert_same_tokens(window, tokenizer, lines)


def test_the_librarys_marian_has_the_same_logits(window: Page) -> None:
    """Their sines fill one half of the features, their cosines the other."""
    theirs = library_model()
    for weight in (*theirs.parameters(), theirs.final_logits_bias):
        weight.data = weight.data.half().float()  # which a page may hold
    load(window, from_marian(theirs.state_dict(), theirs.config))
    read, written = [3, 17, 8, 0], [29, 5, 12, 12]
    with torch.no_grad():
        wanted = theirs(
            torch.tensor([read]), decoder_input_ids=torch.tensor([written])
        ).logits[0]
    found = unpack(ask(window, "compute", {"source": read, "target": written}))
    found_logits = found["logits"].view(4, -1)[:, :-1]  # without that of our padding
    torch.testing.assert_close(found_logits, wanted, atol=1e-4, rtol=1e-4)


def unigrams(lines: list[str], **options: Any) -> bytes:
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=written,
        vocab_size=500,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return written.getvalue()


def marian_tokenizer(model: bytes) -> MarianTokenizer:
    """With the ids that a file of MarianMT would give them, and a letter of its own."""
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
    names = ["</s>", "<unk>", ">>fra<<", "猫"]
    names += [pieces.id_to_piece(i) for i in range(3, len(pieces))] + ["<pad>"]
    ids = {name: index for index, name in enumerate(names)}
    size = len(names)
    return MarianTokenizer(model, ids, (size, size - 1, 0), is_source=True)


def test_pieces_are_sentencepieces(window: Page) -> None:
    """On a third of the book's different words, lines of a page, and odd sentences."""
    pages = texts()
    tokenizer = marian_tokenizer(unigrams(pages[3].splitlines()))
    types = sorted({word for page in pages for word in page.split()})
    lines = [*types[::3], *pages[5].splitlines(), *ODD, "", "  ", " a  b ", "▁", "猫猫"]
    lines += [
        ">>fra<< one",
        ">>fra<<one <<",
        " >>fra<< two",
        "<< a",
        "\u200b",
        "Ǆ ﬁ ㍿",
    ]
    assert_same_tokens(window, tokenizer, lines)


@pytest.mark.parametrize(
    "options",
    [
        {"model_type": "bpe"},
        {"treat_whitespace_as_suffix": True},
        {"add_dummy_prefix": False},
        {"remove_extra_whitespaces": False},
        {"byte_fallback": True},
        {"user_defined_symbols": "the"},
    ],
)
def test_other_models_of_sentencepiece_are_refused(options: dict[str, Any]) -> None:
    tokenizer = marian_tokenizer(unigrams(texts()[3].splitlines(), **options))
    with pytest.raises(ValueError, match="SentencePiece the page reads unigram models"):
        describe_tokenizer(tokenizer)


def test_words_are_the_tokenizers(window: Page) -> None:
    lines = [
        *dict.fromkeys(line for page in texts() for line in page.splitlines()),
        *ODD,
        "Paul. aime. Jane.",
        "Élan vital",
        "a'b' c",
        ".",
        "a\x00b",
        "\ud800",
    ]
    found = ask(
        window,
        """lines => lines.map(line => {
          try { return engine.tokenize(line); } catch (error) { return error.message; }
        })""",
        lines,
    )
    for line, words in zip(lines, found, strict=True):
        try:
            wanted = tokenize(line)
        except ValueError as error:
            wanted = [] if "needs at least one word" in str(error) else None
        assert words == wanted or (wanted is None and "control" in words), line


def test_known_words_and_suggestions_are_the_vocabularys(window: Page) -> None:
    words = list(dict.fromkeys(re.findall(r"\w{3,}", texts()[0])))[:300]
    words += ["Jane", "été", "l'"]
    words = list(dict.fromkeys(words))
    tokenizer = WordTokenizer(Vocabulary(words))
    draw = random.Random(1)
    typos = [
        word[:cut] + draw.choice("aeé") + word[cut + draw.randint(0, 1) :]
        for word in words
        for cut in [draw.randint(1, len(word))]
    ]
    typos = [word for word in typos if word not in words and word.isalnum()][:150]
    found = ask(
        window,
        """([described, typos]) => {
          const tokenizer = engine.makeTokenizer(described);
          return typos.map(word => tokenizer.tokens("x " + word)[1].suggestions);
        }""",
        [describe_tokenizer(tokenizer), typos],
    )
    for word, suggestions in zip(typos, found, strict=True):
        if word in words:
            continue
        assert suggestions == UnknownWordError(word, tokenizer.vocabulary).suggestions
    line = "Été Jane l'été"
    ids = ask(
        window,
        "([d, line]) => engine.makeTokenizer(d).tokens(line).map(t => t.id)",
        [describe_tokenizer(tokenizer), line],
    )
    assert ids == tokenizer.encode(line)
    decoded = ask(
        window,
        "([d, ids]) => engine.makeTokenizer(d).decode(ids)",
        [describe_tokenizer(tokenizer), ids],
    )
    assert decoded == tokenizer.decode(ids)
