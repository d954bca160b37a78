"""Language models on a page: the engine in JavaScript held to PyTorch, and a reader."""

import base64
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from playwright.sync_api import Browser, Page

from transformer.attention import attention_weights
from transformer.beyond.gpt2 import GPT2
from transformer.beyond.language_model import (
    LanguageModel,
    LanguageModelConfig,
    PromptDecoder,
)
from transformer.beyond.llama import Llama, LlamaConfig
from transformer.beyond.text_generator import TextGenerator, decode_text, encode_text
from transformer.cli import main
from transformer.decoding.search import greedy_search
from transformer.live import LiveModel, engine, page
from transformer.live.text import describe_text, describe_text_model
from transformer.maps import self_attention_maps
from transformer.masks import causal_mask
from transformer.pretrained.generator import LibraryTokenizer, PretrainedGenerator
from transformer.pretrained.llama2c import Llama2cTokenizer
from transformer.text.subwords import SubwordTokenizer
from transformer.weights.state import shapes_only

pytestmark = pytest.mark.plain  # nothing here is about shapes

LIVE = Path(__file__).resolve().parent.parent / "transformer" / "live"
HARNESS = Path(__file__).with_name("live_text.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def window(browser: Browser) -> Iterator[Page]:
    """An empty page with the engine in it."""
    page = browser.new_page()
    script = (LIVE / "text.js").read_text(encoding="utf-8")
    page.add_script_tag(content=engine() + script + HARNESS)
    yield page
    page.close()


def ask(window: Page, function: str, given: Any) -> dict[str, torch.Tensor]:
    found = window.evaluate(f"given => {function}(given)", given)
    return {
        name: torch.from_numpy(np.frombuffer(base64.b64decode(text), np.float32).copy())
        for name, text in found
    }


SIZES = {"vocab_size": 23, "d_model": 24, "num_layers": 2, "d_ff": 20, "max_length": 16}
MODELS = {
    "the book's, post-norm": lambda: LanguageModel(
        LanguageModelConfig(**SIZES, num_heads=3, norm_first=False)
    ),
    "the book's, pre-norm": lambda: LanguageModel(
        LanguageModelConfig(**SIZES, num_heads=4)
    ),
    "GPT-2": lambda: GPT2(LanguageModelConfig(**SIZES, num_heads=2)),
    "Llama": lambda: Llama(LlamaConfig(**SIZES, num_heads=4, norm_eps=1e-3)),
    "Llama, grouped": lambda: Llama(
        LlamaConfig(
            **SIZES, num_heads=6, num_kv_heads=2, rope_base=50.0, tie_embeddings=True
        )
    ),
}


def randomised(name: str) -> LanguageModel:
    """A model in which nothing is 0 or 1: a bias left out would be seen."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    for key, weight in model.named_parameters():
        middle = 1.0 if "norm.weight" in key else 0.0
        torch.nn.init.normal_(weight, middle, 0.3)
        weight.data = weight.data.half().float()  # what half precision holds, exactly
    return model


@torch.no_grad()
def intermediates(model: LanguageModel, ids: list[int]) -> dict[str, torch.Tensor]:
    """What the engine calls by the same names, caught from the modules by hooks."""
    found: dict[str, torch.Tensor] = {}
    hooks = []

    def catch(module: Any, name: str, before: bool = False) -> None:
        def keep(_: Any, inputs: Any, output: Any) -> None:
            found[name] = inputs[0] if before else output

        hooks.append(module.register_forward_hook(keep))

    catch(model.embedding, "embedding")
    catch(model.position, "positioned")
    for n, layer in enumerate(model.encoder.layers):
        for place, residual in zip(("self", "ff"), layer.residuals, strict=True):
            catch(residual, f"{n}.{place}.x")
            catch(residual, f"{n}.{place}.before", before=True)
        attention, network = layer.self_attention, layer.feed_forward
        catch(attention, f"{n}.self.input", before=True)
        for name in ("query", "key", "value", "output"):
            catch(getattr(attention, f"{name}_proj"), f"{n}.self.{name}")
        catch(attention.output_proj, f"{n}.self.heads", before=True)
        catch(network, f"{n}.ff.input", before=True)
        catch(network.contract, f"{n}.ff.hidden", before=True)
        catch(network, f"{n}.ff.output")
    catch(model.encoder, "hidden")
    catch(model.output, "logits")
    model(torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    d_k = model.config.d_model // model.config.num_heads
    for n, layer in enumerate(model.encoder.layers):
        at = f"{n}.self"
        query, key = (
            found.pop(f"{at}.{name}").unflatten(-1, (-1, d_k)).transpose(1, 2)
            for name in ("query", "key")
        )
        found[f"{at}.queries"] = query.transpose(1, 2)
        if rotary := getattr(layer.self_attention, "rotary", None):
            query, key = rotary(query), rotary(key)
        found[f"{at}.keys"] = key.transpose(1, 2)
        found[f"{at}.values"] = found.pop(f"{at}.value")
        key = key.repeat_interleave(query.size(1) // key.size(1), 1)
        scores = query @ key.transpose(2, 3) / d_k**0.5
        weights = attention_weights(query, key, causal_mask(len(ids)))
        for head in range(query.size(1)):
            found[f"{at}.scores.{head}"] = scores[0, head]
            found[f"{at}.weights.{head}"] = weights[0, head]
        for place in (at, f"{n}.ff"):
            found[f"{place}.sum"] = found[f"{place}.before"] + found[f"{place}.output"]
    return {name: tensor.flatten() for name, tensor in found.items()}


@pytest.mark.parametrize("name", MODELS)
def test_every_intermediate_is_pytorchs(window: Page, name: str) -> None:
    """And read in parts, over keys and values that are kept, it is the same."""
    model, draw = randomised(name), random.Random(0)
    window.evaluate(
        "data => { model = textEngine.loadTextModel(data); }",
        json.loads(json.dumps(describe_text_model(model))),
    )
    for length in (1, 7, 16):
        ids = draw.choices(range(23), k=length)
        wanted, found = intermediates(model, ids), ask(window, "read", ids)
        assert found.keys() == wanted.keys()
        for key, tensor in found.items():
            torch.testing.assert_close(tensor, wanted[key], atol=1e-4, rtol=0, msg=key)
        cut = length // 2
        parts = ask(window, "readInParts", [ids, cut, draw.choices(range(23), k=5)])
        torch.testing.assert_close(
            parts["logits"], wanted["logits"][cut * 23 :], atol=1e-4, rtol=0
        )


# Texts as tokens


PAGE = (LIVE.parents[1] / "book/17-language-model.md").read_text(encoding="utf-8")
ODD = [
    "don't you'll  I'd 've 12½ ٣ \u3000x\x85y\x1cz \t\n\n  a<|end|> b<|end|><|end|>",
    "\ufeffq e\u0301 क्षि 👩‍👩‍👧",
    "Once upon a time,  there was",
    "l'été\nde l’ami\n\n«où?» 3,5",
    "é🙂 \t x",
    "a" * 30,
    " ",
    "<eos> <s>",
]


def llama2c() -> Llama2cTokenizer:
    """Pieces as llama2.c has them: marks, bytes, letters, and what they merge into."""
    pieces = [b"<unk>", b"<s>", b"</s>", *(b"<0x%02X>" % byte for byte in range(256))]
    pieces += [each.encode() for each in " aeinopstuw,é\n"]
    pieces += [b" t", b"in", b" a", b"on", b"an", b" on", b"aa", b"aaaa", "ét".encode()]
    scores = [0.0] * 259 + [-float(n) for n in range(len(pieces) - 259)]
    return Llama2cTokenizer(pieces, scores)


def subwords() -> SubwordTokenizer:
    lines = ["once upon a time there was a cat", "the cat sat on a mat, and ate"]
    return SubwordTokenizer.train([*lines * 4, *"abcdefghijklmnopqrstuvwxyz"], 60)


def gpt2s() -> LibraryTokenizer:
    """Byte pairs as GPT-2 has them, learnt from the book's own words."""
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    learn = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|end|>"], initial_alphabet=alphabet
    )
    library.train_from_iterator(PAGE.splitlines(), learn)
    # As the library `transformers` writes it: a template that adds nothing.
    library.post_processor = tokenizers.processors.TemplateProcessing(single="$A")
    found = LibraryTokenizer.__new__(LibraryTokenizer)
    found._tokenizer = library
    return found


def size_of(tokenizer: Any) -> int:
    library = getattr(tokenizer, "_tokenizer", None)
    return library.get_vocab_size() if library else tokenizer.vocab_size


@pytest.mark.parametrize("make", [llama2c, subwords, gpt2s])
def test_texts_are_the_tokenizers(window: Page, make: Any) -> None:
    tokenizer = make()
    model = tiny(size_of(tokenizer))
    described = describe_text(PretrainedGenerator(model, tokenizer), ["a"])
    lines = [*ODD, *PAGE.splitlines()[::9]]
    found = window.evaluate(
        """([described, lines]) => {
          const tokenizer = textEngine.makeTextTokenizer(described);
          return lines.map(line => {
            const ids = tokenizer.encode(line);
            return [ids, tokenizer.decode(ids), ids.map(id => tokenizer.show(id))];
          });
        }""",
        [described["tokenizer"], lines],
    )
    for line, (ids, text, shown) in zip(lines, found, strict=True):
        if isinstance(tokenizer, SubwordTokenizer):
            assert ids == encode_text(tokenizer, line), line
            assert text == decode_text(tokenizer, ids), line
        else:
            assert ids == tokenizer.encode(line), line
            assert text == tokenizer.decode(ids), line
        assert not any(" " in each or "\n" in each for each in shown)


def tiny(size: int) -> Llama:
    """A model that gives no two tokens the same probability."""
    torch.manual_seed(1)
    sizes = {"d_model": 16, "num_heads": 2, "num_layers": 2, "d_ff": 24}
    config = LlamaConfig(vocab_size=size, **sizes, num_kv_heads=1, max_length=60)
    model = Llama(config).eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.4)
    return model


# The page


@pytest.fixture(scope="module")
def reader(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Page]:
    """The page of a model that reads bytes, on a phone."""
    path = tmp_path_factory.mktemp("text") / "model.html"
    LiveModel(tiny(256), ["It was", "<b>x</b>"]).save(path)
    page = browser.new_page(viewport={"width": 400, "height": 900})
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_function(IDLE)
    yield page
    assert not wrong
    page.close()


IDLE = "document.querySelector('[data-key=write]')?.textContent.startsWith('Write')"


def text(page: Page) -> str:
    return page.locator(".text-whole").inner_text()


def test_a_text_goes_on_as_greedy_search_says(reader: Page) -> None:
    model, page = tiny(256), reader
    for weight in model.parameters():  # the page may hold them in half precision
        weight.data = weight.data.half().float()
    reader.get_by_label("How the text begins").fill("A cat")
    page.get_by_role("button", name="Write 20 tokens").click()
    page.wait_for_function(IDLE)
    (new,) = greedy_search(PromptDecoder(model), [list(b"A cat")], 20)
    shown = page.locator(".text-tokens button").all_inner_texts()
    assert len(shown) == 25
    assert text(page).startswith("A cat")
    page.get_by_role("button", name="Take back").click()
    assert text(page) == "A cat"
    page.get_by_role("button", name="Write one").click()
    assert page.locator(".text-tokens button").count() == 6
    with torch.no_grad():
        wanted = model(torch.tensor([list(b"A cat")]))[0, -1].softmax(dim=-1)
    page.locator(".text-tokens button").nth(4).click()
    likely = page.locator(".text-next b").all_inner_texts()
    best = wanted.topk(10)
    for said, probability in zip(likely, best.values.tolist(), strict=True):
        assert float(said.strip("<% ")) == pytest.approx(100 * probability, abs=0.6)
    assert page.locator(".text-came").count() == 1
    second = page.locator(".text-next button").nth(1)
    name = second.inner_text()
    second.click()  # in place of what followed
    assert page.locator(".text-tokens button").all_inner_texts()[5:] == [name]
    assert new[0] == best.indices[0]


def test_a_text_shows_where_each_head_looked(reader: Page) -> None:
    page, ids = reader, list(b"A cat")
    page.get_by_label("How the text begins").fill("A cat")
    page.get_by_role("button", name="Layer 2, head 1").click()
    page.locator(".text-tokens button").nth(4).focus()
    page.keyboard.press("ArrowLeft")
    weights = self_attention_maps(tiny(256), torch.tensor([ids]))[0, 1, 0, 3, :4]
    shown = page.locator(".text-tokens button").evaluate_all(
        "all => all.map(e => Number(e.style.getPropertyValue('--w')))"
    )
    assert shown == pytest.approx([*weights.tolist(), 0.0], abs=5e-3)
    said = page.locator(".text-says").inner_text()
    assert said.startswith("Head 1 of layer 2: a looked at")
    assert f"({100 * float(weights.max()):.0f}%)" in said
    assert page.evaluate("document.documentElement.scrollWidth") == 400


def test_a_head_that_looks_at_what_came_next_before_is_named(reader: Page) -> None:
    model, ids = tiny(256), list(b"phnphnphn")
    weights = self_attention_maps(model, torch.tensor([ids]))[0]
    means = weights[..., range(3, 9), range(1, 7)].mean(dim=-1)
    layer, head = divmod(int(means.argmax()), 2)
    note = reader.locator(".text-note").last
    reader.get_by_label("How the text begins").fill("phnphnphn")
    said = note.inner_text()
    assert f"Head {head + 1} of layer {layer + 1} works like an induction head" in said
    assert f"({100 * float(means.max()):.0f}% of its attention, over 6 tokens)" in said
    reader.get_by_label("How the text begins").fill("phnxyzabc")
    assert "induction" not in note.inner_text()


def test_what_is_typed_stays_text_and_may_be_too_long(reader: Page) -> None:
    page = reader
    page.get_by_role("button", name="<b>x</b>").click()
    assert text(page) == "<b>x</b>"
    assert page.locator(".text-whole b").count() == 0
    page.get_by_label("How the text begins").fill("x" * 80)
    assert "80 tokens; the page reads fewer than 60" in (
        page.get_by_role("alert").inner_text()
    )
    page.get_by_label("How the text begins").fill("x" * 57)
    assert page.get_by_role("alert").count() == 0
    page.get_by_role("button", name="Write 20 tokens").click()
    page.get_by_text("at most 60 tokens").wait_for()
    assert page.locator(".text-tokens button").count() == 60


def test_every_kind_of_language_model_opens(tmp_path: Path, capsys: Any) -> None:
    """From a file by the command, and alone; a picture stands there without scripts."""
    model, tokenizer = tiny(60), subwords()
    path, out = tmp_path / "model.safetensors", tmp_path / "page.html"
    TextGenerator(model, tokenizer).save(path)
    assert main(["explore", "--weights", str(path), "--out", str(out)]) == 0
    assert "page.html (0." in capsys.readouterr().out
    still = out.read_text("utf-8").partition("<script>")[0]
    assert "What may come next" in still
    for name in MODELS:
        assert "What may come next" in page(randomised(name))
    with pytest.raises(ValueError, match="pieces and bytes, got a Words"):
        page(PretrainedGenerator(model, Words()))
    other = gpt2s()
    other._tokenizer.normalizer = tokenizers.normalizers.NFC()
    with pytest.raises(ValueError, match="whose normalizer is none, got NFC"):
        page(PretrainedGenerator(tiny(size_of(other)), other))


class Words:
    """A tokenizer that is not ours."""

    vocab_size = 60

    def encode(self, text: str) -> list[int]:
        return [1]


def test_what_a_page_cannot_run_is_refused() -> None:
    model = tiny(60)
    model.encoder.layers[1].register_forward_hook(lambda *_: torch.zeros(1, 6, 16))
    with pytest.raises(ValueError, match="are there hooks on its modules"):
        page(model)
    with shapes_only():
        large = LanguageModel(LanguageModelConfig(vocab_size=20_000))
    with pytest.raises(ValueError, match="the limit is 20,000,000 parameters, 53 MB"):
        page(large)
    model = tiny(60)
    model.encoder.layers[0].feed_forward = torch.nn.Identity()
    with pytest.raises(ValueError, match="does not know the class"):
        page(model)


@pytest.mark.skipif(
    "STORIES260K" not in os.environ, reason="STORIES260K names no folder"
)
def test_a_real_llama_tells_its_story(browser: Browser, tmp_path: Path) -> None:
    LiveModel(Path(os.environ["STORIES260K"]) / "stories260K.bin").save(
        tmp_path / "page.html"
    )
    window = browser.new_page()
    window.goto((tmp_path / "page.html").as_uri())
    window.get_by_label("How the text begins").fill("Once upon a time")
    for _ in range(3):
        window.get_by_role("button", name="Write 20 tokens").click()
        window.wait_for_function(IDLE)
    assert text(window).startswith(
        "Once upon a time, there was a little girl named Lily. She loved to play"
    )
    window.close()
