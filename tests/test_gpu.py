"""What a processor computes a GPU computes too: run where there is one."""

import dataclasses
import itertools
import signal
import subprocess
import sys
import time

import pytest
import torch
from small_runs import CONFIG, ENVIRONMENT, ROOT, equal, newest, run_steps, small_model

from transformer.beyond.language_model import (
    LanguageModel,
    LanguageModelConfig,
    PromptDecoder,
)
from transformer.decoding.beam import beam_search
from transformer.decoding.fast import FastDecoder
from transformer.decoding.search import greedy_search, sample
from transformer.decoding.step import CachedState
from transformer.decoding.translator import Translator
from transformer.maps import ablate_heads, all_heads, attention_maps
from transformer.model import Transformer, TransformerConfig
from transformer.phrasebook.grammar import phrasebook_examples, sample_pairs
from transformer.text.batches import pad
from transformer.training.chunked_loss import chunked_loss
from transformer.training.distributed import ProcessGroup
from transformer.training.loop import phrasebook_model, train
from transformer.training.loss import label_smoothed_loss
from transformer.training.precision import bf16_autocast, supports_bf16
from transformer.training.run_folder import load_run
from transformer.weights.files import read_training_state

DEVICE = "cuda"
pytestmark = [
    pytest.mark.plain,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"),
    pytest.mark.filterwarnings("ignore"),  # other versions of PyTorch have others
]
SOURCES = [[3, 4, 5, 9, 11], [6], [7, 8, 3], [9, 3, 10, 4]]
TARGETS = [[1, 5, 8], [1, 4], [1, 9, 9, 3, 7, 7], [1]]


def model_of(norm_first=False, dropout=0.0):
    """A random model whose words are far from equally likely."""
    torch.manual_seed(3)
    config = TransformerConfig(
        24,
        24,
        d_model=32,
        num_heads=4,
        num_encoder_layers=2,
        num_decoder_layers=2,
        d_ff=64,
        dropout=dropout,
        norm_first=norm_first,
        tie_embeddings=True,
        max_length=32,
    )
    model = Transformer(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5)
    return model.eval()


def both(norm_first=False):
    """The same model on the processor and on the GPU, in float64."""
    model = model_of(norm_first).double()
    return model, model_of(norm_first).double().to(DEVICE)


@pytest.mark.parametrize("norm_first", [False, True])
def test_logits_and_gradients_are_the_processors(norm_first):
    here, there = both(norm_first)
    source, target = pad(SOURCES), pad(TARGETS)
    expected = here(source, target)
    found = there(source.to(DEVICE), target.to(DEVICE))
    real = target != 0
    torch.testing.assert_close(found.cpu()[real], expected[real])
    expected[real].square().mean().backward()
    found[real.to(DEVICE)].square().mean().backward()
    for one, other in zip(there.parameters(), here.parameters(), strict=True):
        torch.testing.assert_close(one.grad.cpu(), other.grad)


@pytest.mark.parametrize("kind", [lambda model: model, FastDecoder])
def test_searches_find_the_processors_words(kind):
    here, there = both()
    decoder = kind(there)
    assert greedy_search(decoder, SOURCES, 12) == greedy_search(here, SOURCES, 12)
    padded = pad(SOURCES).to(DEVICE)
    assert greedy_search(decoder, padded, 12) == greedy_search(here, SOURCES, 12)
    for beam_size in (2, 5):
        found = beam_search(decoder, SOURCES, 12, beam_size)
        assert found == beam_search(here, SOURCES, 12, beam_size)
    generator = torch.Generator(DEVICE).manual_seed(0)
    drawn = sample(decoder, SOURCES, 12, 0.8, 0.9, generator)
    again = sample(there, SOURCES, 12, 0.8, 0.9, generator.manual_seed(0))
    assert drawn == again


def test_in_half_precision_the_packed_step_stands_aside():
    for dtype in (torch.float16, torch.bfloat16):
        model = model_of().to(DEVICE, dtype)
        fast = FastDecoder(model)
        state = fast.prefill(pad(SOURCES).to(DEVICE), max_length=8)
        assert isinstance(state, CachedState)
        assert greedy_search(fast, SOURCES, 8) == greedy_search(model, SOURCES, 8)
        one = beam_search(model, SOURCES, 8, 1)
        assert one == greedy_search(model, SOURCES, 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_chunked_loss_is_the_plain_one(dtype):
    torch.manual_seed(0)
    hidden = torch.randn(4, 9, 32, device=DEVICE, requires_grad=True)
    weight = torch.randn(50, 32, device=DEVICE, requires_grad=True)
    labels = torch.randint(0, 50, (4, 9), device=DEVICE)
    plain = label_smoothed_loss(hidden @ weight.T, labels)
    expected = torch.autograd.grad(plain, (hidden, weight))
    with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
        loss = chunked_loss(hidden, weight, labels, chunk_size=8)
    close = {"rtol": 0.05, "atol": 0.02} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(loss, plain, **close)
    for one, other in zip(
        torch.autograd.grad(loss, (hidden, weight)), expected, strict=True
    ):
        torch.testing.assert_close(one, other, **close)


@pytest.mark.filterwarnings("default")
def test_a_model_is_compiled_whole_and_computes_the_same():
    model = model_of().to(DEVICE)
    source, target = pad(SOURCES).to(DEVICE), pad(TARGETS).to(DEVICE)
    compiled = torch.compile(model, fullgraph=True)
    with torch.no_grad():
        found, expected = compiled(source, target), model(source, target)
    real = target != 0
    torch.testing.assert_close(found[real], expected[real], rtol=1e-3, atol=1e-3)


def test_no_forward_pass_waits_for_the_gpu():
    model = model_of().to(DEVICE).train()
    source, target = pad(SOURCES).to(DEVICE), pad(TARGETS).to(DEVICE)
    model(source, target).sum().backward()
    try:
        torch.cuda.set_sync_debug_mode("error")
        model(source, target).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_maps_and_heads_without_are_the_processors():
    here, there = both()
    source, target = pad(SOURCES), pad(TARGETS)
    expected = attention_maps(here, source, target)
    found = attention_maps(there, source.to(DEVICE), target.to(DEVICE))
    for ours, theirs in zip(found, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one.cpu(), other)
    head = all_heads(here)[0]
    with ablate_heads(here, head), ablate_heads(there, head), torch.no_grad():
        one, other = there(source.to(DEVICE), target.to(DEVICE)), here(source, target)
    real = target != 0
    torch.testing.assert_close(one.cpu()[real], other[real])


def test_a_language_model_goes_on_as_on_the_processor():
    torch.manual_seed(0)
    config = LanguageModelConfig(
        30, d_model=32, num_heads=4, num_layers=2, d_ff=64, max_length=24
    )
    model = LanguageModel(config).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5)
    prompts = [[3, 4, 5], [6, 7, 8]]
    expected = greedy_search(PromptDecoder(model), prompts, 12)
    assert greedy_search(PromptDecoder(model.to(DEVICE)), prompts, 12) == expected


def test_what_a_gpu_saved_a_processor_loads(tmp_path):
    model = model_of().to(DEVICE)
    model.save(tmp_path / "model.safetensors")
    loaded = Transformer.load(tmp_path / "model.safetensors")
    for one, other in zip(loaded.parameters(), model.parameters(), strict=True):
        assert one.device.type == "cpu"
        assert one.equal(other.cpu())


def test_the_books_own_training_learns_there():
    model = phrasebook_model(seed=0).to(DEVICE)
    examples = phrasebook_examples(sample_pairs(3000, seed=0))
    steps = itertools.islice(train(model, examples), 60)
    losses = [metrics.loss for metrics in steps]
    assert losses[-1] < 0.8 * losses[0]


def test_a_model_without_a_process_group_is_trained_where_it_is(dataset, tmp_path):
    model = small_model(dataset).to(DEVICE)
    run_steps(dataset, tmp_path, 6, model=model)  # over an epoch's end
    assert {weight.device.type for weight in model.parameters()} == {DEVICE}
    run_steps(dataset, tmp_path, model=small_model(dataset).to(DEVICE))


@pytest.mark.parametrize("bf16", [False, True])
def test_a_run_that_was_left_goes_on_exactly(dataset, tmp_path, bf16):
    assert supports_bf16(DEVICE)
    config = dataclasses.replace(CONFIG, bf16=bf16)

    def run(folder, steps=None):
        model = small_model(dataset)
        group = ProcessGroup(device=torch.device(DEVICE))
        return run_steps(dataset, folder, steps, config, model, process_group=group)

    whole, _ = run(tmp_path / "whole")
    run(tmp_path / "left", 8)
    rest, _ = run(tmp_path / "left")
    assert whole[-1].loss == rest[-1].loss < whole[0].loss
    states = [
        read_training_state(newest(tmp_path / name)) for name in ("whole", "left")
    ]
    assert equal(*states)
    with bf16_autocast(DEVICE):
        translator = load_run(tmp_path / "left")
        assert isinstance(translator, Translator)
        translator.model.to(DEVICE)
        assert translator.translate("une pomme")


def test_a_killed_training_goes_on_and_translates(corpus, tmp_path):
    def command(*words):
        return [sys.executable, "-m", "transformer", *map(str, words)]

    out = tmp_path / "run"
    sizes = ["--d-model", 16, "--num-heads", 2, "--layers", 1, "--d-ff", 16]
    start = command("train", "--data", corpus, "--out", out, "--device", "cuda")
    start += command(*sizes, "--source", "fr", "--target", "en", "--epochs", 60)[3:]
    start += command("--vocab-size", 120, "--save-every", 5)[3:]
    environment = dict(ENVIRONMENT)
    first = subprocess.Popen(start, env=environment, cwd=ROOT)
    deadline = time.monotonic() + 120
    while not list(out.glob("training-*.pt")) and time.monotonic() < deadline:
        assert first.poll() is None
        time.sleep(0.1)
    first.send_signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    done = int(newest(out).stem.removeprefix("training-"))
    steps = (out / "metrics.jsonl").read_text("utf-8").splitlines()[:done]
    again = subprocess.run(
        start, env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr
    # Taken up, and not begun again: the first steps have their old seconds.
    assert len(steps) == done > 0
    assert (out / "metrics.jsonl").read_text("utf-8").splitlines()[:done] == steps
    said = subprocess.run(
        command("translate", "--weights", out, "--device", "cuda", "une pomme"),
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout.strip()


@pytest.mark.parametrize("chunk_size", [40, 64])
def test_the_benchmarks_compiled_loss_is_the_packages(chunk_size):
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from fused_loss import cost_and_gradient, fused_loss

    torch.manual_seed(0)
    hidden = torch.randn(6, 30, 64, device=DEVICE, requires_grad=True)
    weight = torch.randn(5000, 64, device=DEVICE, requires_grad=True)
    labels = torch.randint(1, 5000, (6, 30), device=DEVICE)
    labels[:2, 20:] = 0
    piece = torch.compile(cost_and_gradient, dynamic=False)
    found = []
    for loss, options in ((fused_loss, {"piece": piece}), (chunked_loss, {})):
        with torch.autocast(DEVICE, torch.bfloat16):
            cost = loss(hidden, weight, labels, chunk_size=chunk_size, **options)
        found.append((cost, *torch.autograd.grad(cost, (hidden, weight))))
    for mine, theirs in zip(*found, strict=True):
        assert mine.dtype == theirs.dtype
        assert (mine - theirs).norm() < 0.01 * theirs.norm()
