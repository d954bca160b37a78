"""Language models on plain text: the data, the run, and the generator of texts."""

import copy
import dataclasses
import itertools
import math

import pytest
import torch
from small_runs import assert_same_run, note_devices
from torch import nn

from transformer.beyond.language_model import LanguageModel, LanguageModelConfig
from transformer.beyond.llama import Llama, LlamaConfig
from transformer.beyond.text_generator import (
    TextGenerator,
    decode_text,
    encode_text,
)
from transformer.text.subwords import SubwordTokenizer
from transformer.text.words import Vocabulary, WordTokenizer
from transformer.training.run_folder import read_metrics, read_run
from transformer.training.text_trainer import (
    TEXT_PRESET,
    TextDataset,
    language_model,
    text_loss,
    train_language_model,
)

SIZES = {"d_model": 16, "num_heads": 2, "num_layers": 1, "d_ff": 16, "dropout": 0.2}
SIZES |= {"max_length": 12}
CONFIG = dataclasses.replace(
    TEXT_PRESET.training, epochs=3, batch_tokens=200, warmup_steps=5, learning_rate=0.02
)


@pytest.fixture(scope="module")
def dataset(book):
    return TextDataset.load([book], vocab_size=90)


def new_model(dataset, seed=1, **sizes):
    return language_model(dataset.tokenizer.vocab_size, SIZES | sizes, seed)


def run_steps(dataset, folder, steps=None, config=CONFIG, model=None):
    model = new_model(dataset) if model is None else model
    run = train_language_model(model, dataset, config, folder, checkpoint_every=4)
    metrics = list(itertools.islice(run, steps))
    run.close()
    return metrics


@pytest.fixture(scope="module")
def whole(dataset, tmp_path_factory):
    """A run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    run_steps(dataset, folder)
    return folder


# The text


def test_the_last_tenth_of_each_file_is_held_out(tmp_path):
    for name in ("one", "two"):
        lines = [f"{name} {i}" for i in range(100)]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    both = TextDataset.load([tmp_path / "one", tmp_path / "two"], vocab_size=40)
    held_out = decode_text(both.tokenizer, both.validation.tolist()).split("\n")
    train = decode_text(both.tokenizer, both.train.tolist()).split("\n")
    for name in ("one", "two"):
        lines = [f"{name} {i}" for i in range(100)]
        ours = [line for line in train if line.startswith(name)]
        theirs = [line for line in held_out if line.startswith(name)]
        assert ours + theirs == lines
        assert 8 <= len(theirs) <= 10


def test_a_text_of_one_line_is_divided_too(tmp_path):
    (tmp_path / "line").write_text("la " * 400)
    found = TextDataset.load([tmp_path / "line"], vocab_size=10)
    assert 0.08 < len(found.validation) / len(found.train) < 0.14


@pytest.mark.parametrize("lines", [[1200], [600, 600], [590, 590, 20], [60] * 20])
def test_a_tenth_is_held_out_however_long_lines_are(tmp_path, lines):
    text = "\n".join(("la " * count).strip() for count in lines)
    (tmp_path / "text").write_text(text + "\n" * 9)
    found = TextDataset.load([tmp_path / "text"], vocab_size=10)
    words = [decode_text(found.tokenizer, ids.tolist()).split() for ids in found[:2]]
    assert sum(map(len, words)) in (1200, 1201)  # a word may be cut
    assert 0.05 <= len(words[1]) / 1200 <= 0.11


def test_lines_come_back_and_spaces_are_joined():
    tokenizer = SubwordTokenizer.train(["so it was", "it is"], 40, "raw")
    text = "so it\n\n was  it\n"
    ids = encode_text(tokenizer, text)
    assert ids.count(tokenizer.eos_id) == 3
    assert decode_text(tokenizer, ids) == "so it\n\nwas it\n"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "cannot be read"),
        (b"", "has no text in it"),
        (b" \n\t\n", "has no text in it"),
        (b"\xff\xfe\x00", "cannot be read as text"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path, data, message):
    if data is not None:
        (tmp_path / "text").write_bytes(data)
    with pytest.raises(ValueError, match=message):
        TextDataset.load([tmp_path / "text"])


def test_too_little_text_and_a_window_too_long_are_refused(dataset):
    with pytest.raises(ValueError, match="at least 4097 and 2 are needed"):
        train_language_model(
            new_model(dataset, max_length=4096),
            dataset,
            dataclasses.replace(CONFIG, batch_tokens=5000),
        )
    config = dataclasses.replace(CONFIG, micro_batch_tokens=11)
    with pytest.raises(ValueError, match="max_length = 12 tokens, but at most 11 fit"):
        train_language_model(new_model(dataset), dataset, config)
    with pytest.raises(ValueError, match="at least one file is needed, got none"):
        TextDataset.load([])
    with pytest.raises(ValueError, match="but the tokenizer"):
        train_language_model(language_model(50, SIZES), dataset, CONFIG)


# The run


def test_validation_loss_reads_every_token_once(dataset):
    """The same sum, token by token."""
    model = new_model(dataset).eval()
    ids, window = dataset.validation, 12
    assert (len(ids) - 1) % window  # there is a rest
    total = 0.0
    with torch.no_grad():
        for place in range(1, len(ids)):
            first = (place - 1) // window * window
            logits = model(ids[None, first:place])[0, -1]
            total -= logits.log_softmax(-1)[ids[place]].item()
    expected = total / (len(ids) - 1)
    for tokens in (1, 25, 4096):
        assert math.isclose(text_loss(model, ids, tokens), expected, rel_tol=1e-5)


def test_it_learns_and_keeps_the_best_average(dataset, whole):
    config = dataclasses.replace(CONFIG, epochs=20, patience=20)
    model = new_model(dataset)
    metrics = run_steps(dataset, None, config=config, model=model)
    losses = [each.validation_loss for each in metrics if each.validation_loss]
    assert len(losses) == 20
    counts = torch.bincount(dataset.train, minlength=90) + 1
    shares = counts / counts.sum()
    assert min(losses) < -shares.log()[dataset.validation].mean() - 0.5
    assert math.isclose(text_loss(model, dataset.validation), min(losses), rel_tol=1e-4)
    best = TextGenerator.load(whole)
    kept = [each.validation_loss for each in read_metrics(whole)]
    found = text_loss(best.model, dataset.validation)
    assert math.isclose(found, min(filter(None, kept)), rel_tol=1e-4)


def test_micro_batches_and_label_smoothing(dataset):
    """Micro batches change only rounding; smoothing changes the loss."""
    first = {}
    for name, change in {
        "whole": {},
        "parts": {"micro_batch_tokens": 50},
        "smooth": {"label_smoothing": 0.2},
    }.items():
        config = dataclasses.replace(CONFIG, **change)
        model = new_model(dataset, dropout=0.0)
        first[name] = run_steps(dataset, None, 3, config, model)[-1].loss
    assert math.isclose(first["whole"], first["parts"], rel_tol=1e-4)
    assert abs(first["whole"] - first["smooth"]) > 1e-3


def test_patience_and_divergence_end_a_run(dataset, tmp_path):
    lost = dataclasses.replace(CONFIG, epochs=50, patience=1, learning_rate=3.0)
    reported = []
    model = new_model(dataset)
    run = train_language_model(model, dataset, lost, report=reported.append)
    assert len(list(run)) < 50 * len(run_steps(dataset, None)) / 3
    assert "the run ends" in reported[-1]
    model = new_model(dataset)
    with torch.no_grad():
        model.output.weight[0, 0] = math.nan
    with pytest.raises(ValueError, match="step 1 diverged, its loss is nan"):
        run_steps(dataset, None, model=model)
    with pytest.raises(ValueError, match=r"cannot be saved: \S+ holds a number"):
        run_steps(dataset, tmp_path / "run", model=model)


@pytest.mark.parametrize("steps", [1, 9, 17])
def test_a_run_left_and_taken_up_ends_in_the_same_bits(dataset, whole, tmp_path, steps):
    torch.manual_seed(steps)  # no state of the caller's matters
    run_steps(dataset, tmp_path / "run", steps)
    run_steps(dataset, tmp_path / "run")
    assert_same_run(tmp_path / "run", whole)


def test_another_text_is_another_run(whole, book, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text(book.read_text("utf-8").replace("Jane", "Janet"), "utf-8")
    with pytest.raises(ValueError, match="has another run"):
        run_steps(TextDataset.load([other], vocab_size=90), whole)


# The generator


def test_a_generator_is_saved_whole(whole, dataset, tmp_path):
    loaded = TextGenerator.load(whole)
    loaded.save(tmp_path / "again.safetensors")
    again = (tmp_path / "again.safetensors").read_bytes()
    assert again == (whole / "model.safetensors").read_bytes()
    assert not loaded.model.training
    loaded.model.save(tmp_path / "alone.safetensors")
    with pytest.raises(ValueError, match="without its tokenizer"):
        TextGenerator.load(tmp_path / "alone.safetensors")
    with pytest.raises(ValueError, match="tokens, but the tokenizer"):
        TextGenerator(language_model(50, SIZES), dataset.tokenizer)


@pytest.mark.parametrize("length", [1, 5, 6, 7, 8, 50])
def test_a_text_may_be_longer_than_the_window(whole, length):
    """Cached, from half of the window on when it is full: as without a cache."""
    text = TextGenerator.load(whole)
    found = text.generate("Jane  likes\nthe", length, top_p=1e-6)
    ids = encode_text(text.tokenizer, "Jane likes\nthe")
    start, end = 0, len(ids) + length
    with torch.no_grad():
        while len(ids) < end:
            if len(ids) - start > 12:
                start = len(ids) - 6
            ids.append(int(text.model(torch.tensor([ids[start:]]))[0, -1].argmax()))
    assert found == decode_text(text.tokenizer, ids)
    assert found.startswith("Jane likes\nthe")


@pytest.mark.parametrize("ended", ["by the line's eos", "by another token"])
@pytest.mark.parametrize("count", [0, 3, 20])
def test_a_text_ends_where_the_model_ends_it(whole, ended, count):
    """Certain of one token, and after so many more of eos."""
    tokenizer = TextGenerator.load(whole).tokenizer
    eos_id = tokenizer.eos_id if ended == "by the line's eos" else 50
    (jane,) = tokenizer.encode("Jane")[:1]
    model = language_model(90, {**SIZES, "eos_id": eos_id}).eval()
    text = TextGenerator(model, tokenizer)
    steps = itertools.count()

    def certain(_, __, output):
        if output.dim() == 2:  # of the last position
            token = jane if next(steps) < count else eos_id
            output = torch.full_like(output, -1e4)
            output[:, token] = 0.0
        return output

    model.output.register_forward_hook(certain)
    found = text.generate("Jane", 40)
    assert found == decode_text(tokenizer, [*tokenizer.encode("Jane"), *[jane] * count])


def test_characters_that_no_training_text_had_stay_in_the_prompt_alone(whole):
    text = TextGenerator.load(whole)
    assert "日" not in decode_text(
        text.tokenizer, encode_text(text.tokenizer, "Jane日")
    )
    found = text.generate("Jane日", 5, top_p=1e-6)
    assert found.startswith("Jane日")
    assert found.count("日") == 1


@pytest.mark.parametrize("tied", [False, True])
def test_a_llama_generates_text_and_is_saved_with_its_tokenizer(
    dataset, tmp_path, tied
):
    sizes = {**SIZES, "dropout": 0.0, "num_kv_heads": 1, "tie_embeddings": tied}
    torch.manual_seed(0)
    text = TextGenerator(Llama(LlamaConfig(90, **sizes)).eval(), dataset.tokenizer)
    ids = encode_text(text.tokenizer, "Jane likes")
    read = len(ids)
    with torch.no_grad():
        while len(ids) < read + 5:
            ids.append(int(text.model(torch.tensor([ids]))[0, -1].argmax()))
    found = text.generate("Jane likes", 5, top_p=1e-6)
    assert found == decode_text(text.tokenizer, ids)
    text.save(tmp_path / "llama.safetensors")
    loaded = TextGenerator.load(tmp_path / "llama.safetensors")
    assert isinstance(loaded.model, Llama)
    assert loaded.generate("Jane likes", 30, top_p=1e-6).startswith(found)


def test_a_subclass_is_read_as_the_language_model_that_it_is(dataset, tmp_path):
    class Another(LanguageModel):
        pass

    config = LanguageModelConfig(dataset.tokenizer.vocab_size, 8, 2, 1, 8, 0.0)
    path = tmp_path / "another.safetensors"
    TextGenerator(Another(config), dataset.tokenizer).save(path)
    assert isinstance(Another.load(path), Another)
    assert type(TextGenerator.load(path).model) is LanguageModel


def test_one_file_may_stand_alone(book, dataset):
    for file in (book, str(book)):
        assert TextDataset.load(file, vocab_size=90).digest() == dataset.digest()


def test_a_text_without_an_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("transformer.text.multi30k.MAX_FILE_BYTES", 1000)
    (tmp_path / "text").write_text("Jane visits Africa.\n" * 100)
    with pytest.raises(ValueError, match="it has more than 1,000 bytes"):
        TextDataset.load(tmp_path / "text")


@pytest.mark.plain
def test_a_tokenizer_that_no_file_can_hold_is_refused_at_once(dataset, tmp_path):
    mute = copy.copy(dataset.tokenizer)
    mute.to_json = lambda: None
    with pytest.raises((TypeError, ValueError), match="to_json gives must be text"):
        train_language_model(
            language_model(90, SIZES),
            dataset._replace(tokenizer=mute),
            CONFIG,
            tmp_path / "run",
        )


@pytest.mark.plain
def test_a_run_remembers_its_files_and_stops_where_it_is_asked_to(book, tmp_path):
    dataset = TextDataset.load(book, vocab_size=90)
    steps = train_language_model(
        new_model(dataset), dataset, CONFIG, tmp_path, stop=lambda: True
    )
    assert [metrics.step for metrics in steps] == [1]
    assert (tmp_path / "training-00000001.pt").exists()
    assert read_run(tmp_path).data == [str(book)]


def test_a_text_without_a_next_token_has_no_loss(dataset):
    model = language_model(90, SIZES)
    with pytest.raises(ValueError, match="at least two tokens are needed, got 1"):
        text_loss(model, dataset.train[:1])


def test_a_wrapped_model_is_unwrapped(dataset, tmp_path):
    model = language_model(90, SIZES)
    wrapped = nn.DataParallel(model)
    text = TextGenerator(wrapped, dataset.tokenizer)
    assert text.model is model
    text.save(tmp_path / "text.safetensors")
    assert type(TextGenerator.load(tmp_path / "text.safetensors").model) is type(model)
    before = model.output.weight.detach().clone()
    next(train_language_model(wrapped, dataset, CONFIG))
    assert not model.output.weight.equal(before)


def test_draws_depend_on_the_generator_alone(whole):
    text = TextGenerator.load(whole)
    found = []
    for seed in (0, 0, 1):
        drawn = torch.Generator().manual_seed(seed)
        found.append(text.generate("Jane", 30, generator=drawn))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("",), "needs at least one token"),
        (("Jane", 0), "length must be a whole number of at least 1"),
        (("Jane", 5, 0.0), "temperature must be a finite number above 0"),
        (("Jane", 5, 1.0, 0.0), "top_p must lie in"),
    ],
)
def test_a_generator_refuses(whole, arguments, message):
    with pytest.raises(ValueError, match=message):
        TextGenerator.load(whole).generate(*arguments)


def test_a_model_is_trained_where_it_is_or_is_asked_to_go(dataset, monkeypatch):
    devices = note_devices(monkeypatch, "text_trainer")
    train_language_model(new_model(dataset), dataset, CONFIG)
    for device in (None, "meta"):
        model = new_model(dataset).to(device or "meta")
        with pytest.raises(ValueError, match="on the meta device, without numbers"):
            train_language_model(model, dataset, CONFIG, device=device)
    with pytest.raises(ValueError, match="on the meta device, without numbers"):
        train_language_model(model.to("meta"), dataset, CONFIG, device="cpu")
    with pytest.raises(ValueError, match="no device 'nope' was found here"):
        train_language_model(model, dataset, CONFIG, device="nope")
    train_language_model(new_model(dataset), dataset, CONFIG, device="cpu")
    assert [device.type for device in devices] == ["cpu", "meta", "meta", "cpu", "cpu"]


@pytest.mark.plain  # checked types are refused before
def test_a_tokenizer_that_cannot_write_texts_is_refused_at_once():
    words = WordTokenizer(Vocabulary("abc"))
    model = language_model(words.vocab_size, SIZES)
    with pytest.raises(ValueError, match="WordTokenizer lacks `normalize`"):
        TextGenerator(model, words)


def test_a_runs_folder_is_loaded_as_its_model(whole):
    one, other = LanguageModel.load(whole), TextGenerator.load(whole).model
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    assert all(mine.equal(theirs) for mine, theirs in pairs)
