"""The real trainer: data, presets, steps, moving average, validation, a run's end."""

import copy
import dataclasses
import math
import random
import threading
import time
from functools import partial

import numpy as np
import pytest
import torch
from small_runs import (
    CONFIG,
    SIZES,
    equal,
    load_dataset,
    newest,
    note_devices,
    run_steps,
    small_model,
    write_corpus,
)
from torch import nn

from transformer.decoding.support import unwrap
from transformer.decoding.translator import Translator
from transformer.encoder import FeedForward
from transformer.model import Transformer, TransformerConfig
from transformer.text.batches import example_length, make_batch
from transformer.training.bleu import corpus_scores
from transformer.training.distributed import ProcessGroup
from transformer.training.loss import label_smoothed_loss
from transformer.training.run_folder import load_run, read_run
from transformer.training.state import (
    LossModule,
    TrainingState,
    _seeded,
    validation_loss,
)
from transformer.training.trainer import (
    PRESETS,
    TranslationDataset,
    train_translator,
    translation_model,
)
from transformer.weights.files import read_training_state


def train_state(dataset, config=CONFIG, **sizes):
    return TrainingState(small_model(dataset, **sizes), config, ProcessGroup())


def weights(model):
    return {name: x.detach().clone() for name, x in model.named_parameters()}


# The dataset


def test_a_dataset_reads_and_tokenizes_a_folder(corpus, dataset):
    assert (len(dataset.train), len(dataset.validation)) == (60, 6)
    assert dataset.text == "raw"
    assert dataset.folder == str(corpus)
    assert dataset.left_out == 0
    for example, pair in zip(dataset.validation, dataset.validation_pairs, strict=True):
        sides = zip(example, pair, strict=True)
        assert all(dataset.source_tokenizer.decode(ids) == side for ids, side in sides)


def test_pairs_too_long_are_left_out_and_counted(corpus, dataset):
    few = TranslationDataset.load(corpus, "fr", "en", vocab_size=120, max_tokens=20)
    fit = [each for each in dataset.train if example_length(each) <= 20]
    assert few.train == fit
    assert few.left_out == 66 - len(few.train) - len(few.validation) > 0
    # Too long to train on, they count: `evaluate` has blank translations for them.
    assert len(few.validation) < len(few.validation_pairs) == 6
    with pytest.raises(ValueError, match="no pairs of at most 1 tokens"):
        TranslationDataset.load(corpus, "fr", "en", vocab_size=120, max_tokens=1)


def test_tokenizers_are_trained_on_training_sentences_alone(tmp_path):
    write_corpus(tmp_path, (60, 3, 3))
    before = load_dataset(tmp_path).source_tokenizer.to_json()
    (tmp_path / "val.en").write_text("ΩΩΩ\n" * 3, "utf-8")
    assert load_dataset(tmp_path).source_tokenizer.to_json() == before


def test_a_digest_is_of_all_that_is_trained_on(dataset):
    others = [
        dataset._replace(train=dataset.train[1:]),
        dataset._replace(validation=dataset.validation[1:]),
    ]
    digests = {each.digest() for each in (dataset, *others, copy.deepcopy(dataset))}
    assert len(digests) == 3


def test_ordinary_text_has_one_path_to_training_and_to_translation(tmp_path):
    """With "tok", capitals and punctuation are treated alike everywhere."""
    write_corpus(tmp_path)
    for path in tmp_path.iterdir():
        lines = path.read_text("utf-8").splitlines()
        path.write_text("".join(f"{x.capitalize()}!\n" for x in lines), "utf-8")
    for text in ("tok", "raw"):
        dataset = TranslationDataset.load(tmp_path, "fr", "en", text, 150, 64)
        tokenizer = dataset.target_tokenizer
        references = [target for _, target in dataset.validation_pairs]
        outputs = [tokenizer.decode(target) for _, target in dataset.validation]
        assert outputs == references
        assert corpus_scores(outputs, references, text).bleu == pytest.approx(100)
        assert references[0].endswith(" !") == (text == "tok")


# Presets


def test_tiny_has_the_published_number_of_weights():
    vocab_size, sizes, _ = PRESETS["tiny"]
    model = translation_model(vocab_size, sizes)
    assert sum(weight.numel() for weight in model.parameters()) == pytest.approx(
        2.57e6, rel=0.002
    )


def test_a_new_model_is_seeded_and_disturbs_nobody(dataset):
    before = torch.get_rng_state()
    one, same, other = (small_model(dataset, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert equal(one.state_dict(), same.state_dict())
    assert not equal(one.state_dict(), other.state_dict())


# A step


@pytest.mark.plain
def test_micro_batches_add_up_to_the_whole_step(dataset):
    whole = train_state(dataset, dropout=0.0)
    parts = train_state(
        dataset, dataclasses.replace(CONFIG, micro_batch_tokens=40), dropout=0.0
    )
    for step in (1, 2):
        one, other = (
            each.train_step(dataset.train[:12], step, 0.01) for each in (whole, parts)
        )
        assert one == pytest.approx(other, rel=1e-4)
    theirs = weights(parts.model)
    for name, ours in weights(whole.model).items():
        if "key_proj.bias" not in name:  # its gradient is 0, but for rounding
            torch.testing.assert_close(ours, theirs[name], rtol=1e-3, atol=1e-4)


def test_a_step_on_a_cpu_leaves_the_gpus_random_state(dataset, monkeypatch):
    seeds = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    train_state(dataset).train_step(dataset.train[:3], 1, 0.01)
    assert not seeds


def test_a_steps_loss_is_the_mean_over_labels(dataset):
    state = train_state(dataset, dropout=0.0)
    batch = make_batch(dataset.train[:7])
    logits = state.model(batch.source, batch.decoder_input)
    expected = label_smoothed_loss(logits, batch.labels)
    expected.backward()
    norm = torch.cat([p.grad.flatten() for p in state.model.parameters()]).norm()
    loss, grad_norm = state.train_step(dataset.train[:7], 1, 0.01)
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert grad_norm == pytest.approx(norm.item(), rel=1e-4)


def test_dropout_depends_on_seed_and_step_alone(dataset):
    losses = []
    for seed, step in ((5, 1), (5, 1), (5, 2), (6, 1)):
        state = train_state(dataset, dataclasses.replace(CONFIG, seed=seed))
        torch.manual_seed(len(losses))  # has no part in it
        before = torch.get_rng_state()
        losses.append(state.train_step(dataset.train[:7], step, 0.01)[0])
        assert torch.equal(torch.get_rng_state(), before)
    assert losses[0] == losses[1]
    assert len(set(losses)) == 3


def test_a_step_leaves_the_models_mode_alone(dataset):
    state = train_state(dataset)
    state.model.eval()
    state.train_step(dataset.train[:7], 1, 0.01)
    assert not any(part.training for part in state.model.modules())


def test_the_moving_average_is_the_one_with_a_short_memory_at_first(dataset):
    state = train_state(dataset, dataclasses.replace(CONFIG, ema_decay=0.2))
    average = weights(state.model)
    for step in range(1, 5):
        state.train_step(dataset.train[:7], step, 0.01)
        decay = min(0.2, step / (10 + step))
        for name, weight in state.model.named_parameters():
            average[name].lerp_(weight.detach(), 1 - decay)
        assert equal(state.average, average)  # bit for bit
    assert not equal(state.average, weights(state.model))
    with state.averaged_weights() as averaged:
        assert equal(weights(averaged), average)
    assert not equal(weights(state.model), average)


def test_hooks_and_adapters_on_the_output_count(dataset):
    """The chunked loss reads the output's weight; where that is not all, it may not."""
    model, batch = small_model(dataset, dropout=0.0), make_batch(dataset.train[:3])
    before = LossModule(model, 0.1, bf16=False)(*batch)
    handle = model.output.register_forward_hook(lambda _, ids, logits: 2 * logits)
    logits = model(batch.source, batch.decoder_input)
    count = (batch.labels != 0).sum()
    expected = label_smoothed_loss(logits, batch.labels) * count
    hooked = LossModule(model, 0.1, bf16=False)(*batch)
    torch.testing.assert_close(hooked, expected)
    assert hooked != before
    handle.remove()
    assert LossModule(model, 0.1, bf16=False)(*batch) == before


def test_validation_loss_is_not_smoothed_and_counts_every_label(dataset):
    model = small_model(dataset)
    examples, expected = dataset.validation, 0.0
    model.eval()
    for example in examples:
        batch = make_batch([example])
        logits = model(batch.source, batch.decoder_input)
        expected += label_smoothed_loss(logits, batch.labels, 0.0).item() * (
            len(example[1]) + 1
        )
    expected /= sum(len(target) + 1 for _, target in examples)
    model.train()
    assert validation_loss(model, examples, 100) == pytest.approx(expected, rel=1e-5)
    assert all(part.training for part in model.modules())


# A whole run


def test_each_step_reports_what_it_did(dataset):
    model = small_model(dataset)
    started = time.perf_counter()
    metrics, _ = run_steps(dataset, None, model=model)
    lasted = time.perf_counter() - started
    per_epoch = metrics[-1].step // 3
    assert [each.step for each in metrics] == list(range(1, len(metrics) + 1))
    for each in metrics:
        assert each.total_steps == len(metrics)
        assert each.epoch == math.ceil(each.step / per_epoch)
        assert each.learning_rate == CONFIG.learning_rate_at(each.step, 99, 16)
        assert (each.validation_loss is None) == (each.step % per_epoch > 0)
        assert 0 < each.seconds < lasted
    labels = sum(len(target) + 1 for _, target in dataset.train)
    assert sum(each.target_tokens for each in metrics) == 3 * labels
    assert metrics[-1].validation_loss < metrics[per_epoch - 1].validation_loss


@pytest.mark.plain  # checked shapes would make it slow
def test_training_learns(dataset):
    """A pair again and again: its translation is then known by heart."""
    example = max(dataset.train, key=example_length)  # BLEU takes four words at least
    same = dataset._replace(
        train=[example] * 20,
        validation=[example],
        validation_pairs=[tuple(map(dataset.source_tokenizer.decode, example))],
    )
    model = small_model(dataset, dropout=0.0)
    config = dataclasses.replace(CONFIG, epochs=20, batch_tokens=100, ema_decay=0.5)
    metrics, _ = run_steps(same, None, config=config, model=model)
    assert metrics[-1].bleu == pytest.approx(100)
    tokenizer = dataset.source_tokenizer
    ((source, target),) = same.validation_pairs
    assert Translator(model, tokenizer, tokenizer).translate(source) == target


@pytest.mark.plain
def test_the_model_ends_with_the_best_average(dataset, tmp_path):
    model = small_model(dataset)
    seen = {}
    for each in train_translator(model, dataset, CONFIG, tmp_path / "run"):
        if each.validation_loss is not None:
            state = read_training_state(newest(tmp_path / "run"))
            seen[each.validation_loss] = state["average"]
    best = seen[min(seen)]
    for name, weight in model.named_parameters():
        assert torch.equal(weight, best[name])
    assert equal(weights(load_run(tmp_path / "run").model), weights(model))
    again = small_model(dataset, seed=9)
    assert list(train_translator(again, dataset, CONFIG, tmp_path / "run")) == []
    assert equal(weights(again), weights(model))


@pytest.mark.plain
def test_a_run_ends_when_validation_no_longer_improves(dataset, tmp_path):
    """With a learning rate of nearly 0, and no change of mind, nothing improves."""
    config = dataclasses.replace(CONFIG, epochs=9, patience=2, learning_rate=1e-30)
    metrics, reported = run_steps(dataset, tmp_path / "run", config=config)
    assert metrics[-1].epoch == 3
    assert reported == ["no better for 2 epochs: the run ends"]
    again, reported = run_steps(dataset, tmp_path / "run", config=config)
    assert again == []
    assert reported == ["no better for 2 epochs: the run ends"]


@pytest.mark.plain  # checked shapes would make it slow
def test_what_is_trained_further_starts_from_given_weights(dataset, whole_run):
    """Fine-tuning: a loaded model is trained as any other."""
    model = load_run(whole_run).model
    first, _ = run_steps(dataset, None, 1, model=model)
    new, _ = run_steps(dataset, None, 1)
    assert first[0].loss < new[0].loss - 0.2


@pytest.mark.parametrize(
    "wrap",
    [
        lambda model: torch.compile(model, backend="eager"),
        nn.DataParallel,
        torch.optim.swa_utils.AveragedModel,
    ],
)
def test_a_wrapped_model_is_trained_as_it_is_without(dataset, wrap):
    models = small_model(dataset), small_model(dataset)
    run_steps(dataset, None, 4, model=models[0])
    wrapped = wrap(models[1])
    run_steps(dataset, None, 4, model=wrapped)
    inner = unwrap(wrapped)  # an averaged model holds a copy
    for one, other in zip(models[0].parameters(), inner.parameters(), strict=True):
        assert torch.equal(one, other)


def test_other_special_ids_are_refused_by_name(dataset):
    size = dataset.source_tokenizer.vocab_size
    config = TransformerConfig(size, size, **SIZES, pad_id=9, bos_id=10, eos_id=11)
    with pytest.raises(ValueError, match="pad_id is 9 in the model's config, but 0"):
        train_translator(Transformer(config), dataset, CONFIG)


@pytest.mark.plain
def test_what_cannot_be_trained_is_refused_before_the_first_step(dataset, monkeypatch):
    model = small_model(dataset)
    for name in ("checkpoint_every", "keep_epochs"):
        with pytest.raises(ValueError, match=f"{name} must be .* got 0"):
            train_translator(model, dataset, CONFIG, **{name: 0})
    few = dataclasses.replace(CONFIG, batch_tokens=9)
    with pytest.raises(ValueError, match=r"example \d+ has \d+ .*, batch_tokens is 9$"):
        train_translator(model, dataset, few)
    with pytest.raises(ValueError, match="name of a folder, got ''"):
        train_translator(model, dataset, CONFIG, "")
    mute = copy.copy(dataset.source_tokenizer)
    mute.to_json = lambda: None  # a file could not hold it
    with pytest.raises(TypeError, match=r"what \w+\.to_json gives must be text, got N"):
        train_translator(model, dataset._replace(source_tokenizer=mute), CONFIG, "run")
    for name in ("train", "validation", "validation_pairs"):
        one = name.replace("_pairs", " pair")
        message = f"^at least one {one}.* is needed, got none"
        with pytest.raises(ValueError, match=message):
            train_translator(model, dataset._replace(**{name: []}), CONFIG)
    monkeypatch.setitem(__import__("sys").modules, "sacrebleu.metrics", None)
    with pytest.raises(ImportError, match="needs sacrebleu: pip install"):
        train_translator(model, dataset, CONFIG)


def test_the_state_of_a_run_is_restored_to_the_last_bit(dataset):
    one, other = train_state(dataset), train_state(dataset, dropout=0.3)
    one.train_step(dataset.train[:5], 1, 0.01)
    one.note_validation(1 / 3, epoch=7)
    one.note_validation(1 / 3, epoch=8)  # no lower is no better
    assert other.load_state_dict(one.state_dict(1, "mine"), "mine") == 1
    assert equal(other.state_dict(1, ""), one.state_dict(1, ""))
    assert (other.best_validation_loss, other.best_epoch) == (1 / 3, 7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("step"), "does not fit the model: 'step'"),
        (lambda state: state.update(fingerprint="x"), "of another run"),
        (lambda state: state.update(model={}), "does not fit the model: .*Missing key"),
        (lambda state: state.update(optimizer=7), "does not fit the model"),
        (
            lambda state: state["optimizer"]["state"][0].update(exp_avg=torch.ones(3)),
            "exp_avg of weight 0 is misshapen",
        ),
        (
            lambda state: state.update(best_weights={"x": torch.ones(3)}),
            "best weights are misshapen",
        ),
        (lambda state: state["average"].popitem(), "the average are misshapen"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_in_one_line(dataset, change, message):
    one = train_state(dataset)
    one.train_step(dataset.train[:5], 1, 0.01)
    state = copy.deepcopy(one.state_dict(1, "mine"))
    change(state)
    with pytest.raises(ValueError, match=message) as caught:
        train_state(dataset).load_state_dict(state, "mine")
    assert "\n" not in str(caught.value)


def test_a_run_remembers_its_data(corpus, whole_run):
    info = read_run(whole_run)
    assert (info.data, info.languages, info.text) == (str(corpus), ("fr", "en"), "raw")
    assert info.model["d_model"] == 16
    assert info.training == dataclasses.asdict(CONFIG)


@pytest.mark.plain  # the shape checker draws from it
def test_random_is_left_alone(dataset):
    random.seed(1)
    before = random.getstate()
    run_steps(dataset, None, 2)
    assert random.getstate() == before


def test_a_model_that_cannot_be_saved_is_refused_before_a_step(dataset, tmp_path):
    model = small_model(dataset)
    model.output.bias = nn.Parameter(torch.zeros(model.config.target_vocab_size))
    before = weights(model)
    with pytest.raises(ValueError, match="cannot be saved: the model is not what"):
        next(train_translator(model, dataset, CONFIG, tmp_path / "run"))
    assert equal(weights(model), before)


def test_a_hook_or_forward_of_the_models_own_counts_in_its_loss(dataset):
    model = small_model(dataset)
    plain = validation_loss(model, dataset.validation)
    hook = model.register_forward_hook(lambda module, inputs, logits: 0 * logits)
    even = math.log(model.config.target_vocab_size)
    assert validation_loss(model, dataset.validation) == pytest.approx(even)
    hook.remove()
    assert validation_loss(model, dataset.validation) == plain
    whole = model.forward
    model.forward = lambda *ids: 0 * whole(*ids)
    assert validation_loss(model, dataset.validation) == pytest.approx(even)
    with pytest.raises(ValueError, match="at least one example is needed, got none"):
        validation_loss(model, [])


def test_a_model_is_trained_where_it_is(dataset, monkeypatch):
    devices = note_devices(monkeypatch, "trainer")
    model = small_model(dataset)
    train_translator(model, dataset, CONFIG)
    with pytest.raises(ValueError, match="on the meta device, without numbers"):
        train_translator(model.to("meta"), dataset, CONFIG)
    with pytest.raises(ValueError, match="on the meta device, without numbers"):
        train_translator(model, dataset, CONFIG, None, ProcessGroup())
    train_translator(small_model(dataset), dataset, CONFIG, None, ProcessGroup())
    assert [device.type for device in devices] == ["cpu", "meta", "cpu", "cpu"]


class Counter:
    """Counts its calls, and cannot be copied: as loggers are."""

    def __init__(self):
        self.lock = threading.Lock()
        self.modes = []

    def __call__(self, module, *_):
        with self.lock:
            self.modes.append(module.training)


@pytest.mark.plain
@pytest.mark.filterwarnings("ignore:Full backward hook")  # of a model that reads ids
@pytest.mark.parametrize("kind", ["forward", "full_backward"])
@pytest.mark.parametrize("place", ["model", "output"])
def test_hooks_are_called_once_a_step(dataset, kind, place):
    model, counter = small_model(dataset), Counter()
    owner = model if place == "model" else model.output
    getattr(owner, f"register_{kind}_hook")(counter)
    run_steps(dataset, None, 2, model=model)
    assert counter.modes == [True, True]


@pytest.mark.plain
@pytest.mark.parametrize("place", ["", "output", "encoder", "decoder.layers.0"])
def test_hooks_are_called_once_a_batch_of_a_validation(dataset, place):
    model, counter = small_model(dataset), Counter()
    model.get_submodule(place).register_forward_hook(counter)
    validation_loss(model, dataset.validation, batch_tokens=10**6)
    assert counter.modes == [False]


@pytest.mark.plain
def test_an_optimizer_and_a_schedule_of_ones_own(dataset, tmp_path):
    def sgd(model, momentum=0.9):
        return torch.optim.SGD(model.parameters(), lr=1.0, momentum=momentum)

    def falling(step, total_steps):
        return 0.1 / step

    own = {"optimizer": sgd, "schedule": falling}
    whole, _ = run_steps(dataset, tmp_path / "whole", **own)
    assert [each.learning_rate for each in whole[:2]] == [0.1, 0.05]
    run_steps(dataset, tmp_path / "cut", 7, **own)
    rest, _ = run_steps(dataset, tmp_path / "cut", **own)
    assert rest[-1]._replace(seconds=0) == whole[-1]._replace(seconds=0)
    files = [tmp_path / n / "model.safetensors" for n in ("whole", "cut")]
    assert files[0].read_bytes() == files[1].read_bytes()
    for other, message in (
        ({"schedule": falling}, "its optimizer is 'torch.optim.sgd.SGD', here 'torch"),
        ({"optimizer": sgd}, "its schedule is '.*, here None"),
        (own | {"optimizer": partial(sgd, momentum=0.5)}, "momentum 0.9, here 0.5"),
    ):
        with pytest.raises(ValueError, match=message):
            run_steps(dataset, tmp_path / "cut", 1, **other)
    own["schedule"] = lambda step, total_steps: 0.2 / step
    run_steps(dataset, tmp_path / "lambda", 4, **own)
    own["schedule"] = lambda step, total_steps: 0.4 / step
    with pytest.raises(ValueError, match=r"learning rate at step 3 was .*, here"):
        run_steps(dataset, tmp_path / "lambda", 1, **own)


class GELUFeedForward(FeedForward):
    def forward(self, x):
        return self.contract(nn.functional.gelu(self.expand(x)))


@pytest.mark.plain
def test_a_class_that_is_not_ours_is_named_at_the_start(dataset):
    model = small_model(dataset)
    layer = model.encoder.layers[0]
    layer.feed_forward = GELUFeedForward(16, 16)
    _, reported = run_steps(dataset, None, 1, model=model)
    assert len(reported) == 1
    assert "GELUFeedForward at encoder.layers.0.feed_forward" in reported[0]


def test_a_step_seeds_its_own_accelerator_and_no_other(monkeypatch):
    states = {"cuda:1": torch.ones(1), "cuda:0": torch.zeros(1)}
    before = dict(states)

    class Module:
        @staticmethod
        def get_rng_state(device):
            return states[str(device)]

        @staticmethod
        def set_rng_state(state, device):
            states[str(device)] = state

    drawn = torch.Generator()
    monkeypatch.setattr(torch, "get_device_module", lambda device: Module)
    monkeypatch.setattr(torch, "Generator", lambda device: drawn)
    with _seeded(torch.device("cuda", 1), 7):
        assert equal(states["cuda:1"], drawn.manual_seed(7).get_state())
        assert equal(states["cuda:0"], before["cuda:0"])
    assert states == before


@pytest.mark.plain
@pytest.mark.parametrize("kind", [np.array, torch.tensor, lambda x: [*np.array(x)]])
def test_ids_of_numpy_and_tensors_train_in_a_folder(dataset, tmp_path, kind):
    train = [(kind(one), kind(other)) for one, other in dataset.train]
    metrics, _ = run_steps(dataset._replace(train=train), tmp_path, 1)
    assert metrics[0] == run_steps(dataset, None, 1)[0][0]._replace(
        seconds=metrics[0].seconds
    )
    assert run_steps(dataset, tmp_path, 1)[0]  # the same run


@pytest.mark.plain
def test_subwords_are_learned_once(corpus, tmp_path):
    said, run = [], tmp_path / "run"
    load = partial(
        TranslationDataset.load, corpus, "fr", "en", max_tokens=64, report=said.append
    )
    one = load(vocab_size=120, run=run)
    again = load(vocab_size=120, run=run)
    assert one.digest() == again.digest()
    assert sum("learning subwords" in line for line in said) == 1
    assert load(vocab_size=130, run=run).source_tokenizer.vocab_size == 130
    (run / "run.subwords.json").write_bytes(b"{")
    assert load(vocab_size=120, run=run).digest() == one.digest()
    assert run_steps(one, run, 1)[0]  # the folder may still become a run's


@pytest.mark.plain
def test_an_example_at_fault_is_named_before_the_first_step(dataset):
    model = small_model(dataset)
    size, first = model.config.source_vocab_size, dataset.train[0]
    for wrong, message in (
        (([size], [3]), f"source id outside 0..{size - 1}, got {size}"),
        (([3], [-1]), f"target id outside 0..{size - 1}, got -1"),
        (([], [3]), "empty source"),
        (([3, 0], [3]), "padding id 0 in its source"),
        (([3] * 65, [3]), "65 source tokens, max_length is 64"),
        (([3], [3] * 64), "65 target tokens with its end, max_length is 64"),
    ):
        spoilt = dataset._replace(train=[first, wrong])
        with pytest.raises(ValueError, match=f"^train example 2 has .*{message}$"):
            train_translator(model, spoilt, CONFIG)
    spoilt = dataset._replace(validation=[([3], [size])])
    with pytest.raises(ValueError, match=r"^validation example 1 has a target id"):
        train_translator(model, spoilt, CONFIG)
    micro = dataclasses.replace(CONFIG, micro_batch_tokens=9)
    long = dataset._replace(train=[([3] * 10, [3])])
    with pytest.raises(ValueError, match=r"example 1 has 10 .*, micro_batch_tokens is"):
        train_translator(model, long, micro)
