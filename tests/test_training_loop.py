import itertools
import random

import pytest
import torch
from torch import nn

from transformer.beyond.language_model import (
    LanguageModel,
    LanguageModelConfig,
    PromptDecoder,
)
from transformer.decoding.search import greedy_search
from transformer.decoding.translator import Translator
from transformer.model import Transformer, TransformerConfig
from transformer.phrasebook.grammar import phrasebook_examples, sample_pairs
from transformer.text.batches import (
    Batch,
    batches_by_tokens,
    example_length,
    make_batch,
)
from transformer.training.accuracy import exact_match, exact_matches
from transformer.training.config import TrainingConfig, noam_learning_rate
from transformer.training.loop import paper_adam, phrasebook_model, train, train_step
from transformer.training.loss import label_smoothed_loss

EXAMPLES = [([a, b], [b, a]) for a, b in itertools.product(range(3, 8), repeat=2)]


def small_model(seed=0, **overrides) -> Transformer:
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 32, "max_length": 8}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1, "dropout": 0.0}
    torch.manual_seed(seed)
    return Transformer(TransformerConfig(11, 11, **(sizes | layers | overrides)))


def weights(model):
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


@pytest.fixture(scope="module")
def trained():
    """A model that learned to turn pairs of tokens around, and its metrics."""
    model = small_model()
    config = TrainingConfig(epochs=120, batch_tokens=200, warmup_steps=40)
    return model, list(train(model, EXAMPLES, config))


@pytest.mark.plain  # checked shapes would make it slow
def test_training_learns_and_reports_each_step(trained):
    model, metrics = trained
    assert [each.step for each in metrics] == list(range(1, len(metrics) + 1))
    assert {each.total_steps for each in metrics} == {len(metrics)}
    assert [each.epoch for each in metrics] == sorted(each.epoch for each in metrics)
    assert metrics[-1].epoch == 120
    assert sum(each.target_tokens for each in metrics) == 120 * 3 * len(EXAMPLES)
    assert [e.seconds for e in metrics] == sorted(e.seconds for e in metrics)
    assert metrics[-1].loss < 0.5 * metrics[0].loss
    assert metrics[-1].learning_rate == 0
    assert all(each.validation_loss is each.bleu is None for each in metrics)
    assert exact_match(model, EXAMPLES) == 1


@pytest.mark.plain
def test_exact_matches_are_greedy_translations(trained):
    model, _ = trained
    wrong = [(source, [3, 3]) for source, _ in EXAMPLES]
    found = exact_matches(model, EXAMPLES + wrong)
    sources = [source for source, _ in EXAMPLES + wrong]
    targets = [target for _, target in EXAMPLES + wrong]
    outputs = greedy_search(model, sources, 4)
    assert found == [a == b for a, b in zip(outputs, targets, strict=True)]
    assert sum(found) == len(EXAMPLES) + 1
    assert exact_match(model, wrong) == 1 / len(wrong)


@pytest.mark.plain  # checked shapes would make it slow
def test_other_special_ids_train_as_well():
    """Ids 0, 1, 2 are ordinary tokens here; the usual ones are 8, 9, 10."""
    model = small_model(pad_id=8, bos_id=9, eos_id=10)
    examples = [([a - 3, b - 3], [c - 3, d - 3]) for (a, b), (c, d) in EXAMPLES]
    config = TrainingConfig(epochs=120, batch_tokens=200, warmup_steps=40)
    for _ in train(model, examples, config):
        pass
    assert exact_match(model, examples) == 1
    sources = [source for source, _ in examples]
    assert greedy_search(model, sources, 4) == [target for _, target in examples]


def test_steps_are_adams_on_the_clipped_gradients():
    model, twin = small_model(), small_model()
    config = TrainingConfig(
        epochs=4, batch_tokens=60, warmup_steps=7, cooldown=0.0, max_grad_norm=0.01
    )
    adam = torch.optim.Adam(twin.parameters(), betas=(0.9, 0.98), eps=1e-9)
    rng, lengths = random.Random(0), [example_length(each) for each in EXAMPLES]
    plan = [b for _ in range(4) for b in batches_by_tokens(lengths, 60, rng)]
    assert len(plan) > 4  # the first alone does not depend on the betas
    for metrics, indices in zip(train(model, EXAMPLES, config), plan, strict=True):
        batch = make_batch([EXAMPLES[index] for index in indices])
        adam.zero_grad()
        logits = twin(batch.source, batch.decoder_input)
        loss = label_smoothed_loss(logits, batch.labels)
        loss.backward()
        assert metrics.loss == pytest.approx(loss.item(), rel=1e-3)
        norm = torch.cat([p.grad.flatten() for p in twin.parameters()]).norm()
        assert metrics.grad_norm == pytest.approx(norm.item(), rel=1e-3)
        for weight in twin.parameters():
            weight.grad *= 0.01 / norm
        assert metrics.learning_rate == noam_learning_rate(metrics.step, 16, 7)
        adam.param_groups[0]["lr"] = metrics.learning_rate
        adam.step()
    theirs = dict(twin.named_parameters())
    for name, ours in model.named_parameters():
        if "key_proj.bias" not in name:  # its gradient is 0, but for rounding
            torch.testing.assert_close(ours, theirs[name], rtol=1e-4, atol=1e-5)


def test_the_seed_fixes_the_order_of_the_examples():
    losses = []
    for seed in (0, 0, 1):
        config = TrainingConfig(epochs=1, batch_tokens=20, seed=seed)
        losses.append([each.loss for each in train(small_model(), EXAMPLES, config)])
    assert losses[0] == losses[1] != losses[2]


def test_a_model_keeps_its_mode_between_steps():
    model = small_model(dropout=0.5).eval()
    model.encoder.train()
    before = {name: part.training for name, part in model.named_modules()}
    seen = []
    model.decoder.register_forward_hook(lambda part, *_: seen.append(part.training))
    for _ in itertools.islice(train(model, EXAMPLES), 1):
        assert {n: part.training for n, part in model.named_modules()} == before
    assert seen == [True]
    exact_matches(model, EXAMPLES)
    assert seen == [True, False]
    assert {n: part.training for n, part in model.named_modules()} == before


def test_nothing_happens_before_the_first_step():
    model = small_model()
    before = weights(model)
    train(model, EXAMPLES)
    paper_adam(model).step()  # whose learning rate is 0 until a step sets it
    assert torch.equal(weights(model), before)


def test_a_wrapped_model_is_trained():
    model, inside = small_model(), small_model()
    wrapped = nn.DataParallel(inside)  # on a CPU, it only calls what it wraps
    config = TrainingConfig(epochs=1)
    one, other = (list(train(each, EXAMPLES, config)) for each in (model, wrapped))
    assert [each.loss for each in one] == [each.loss for each in other]
    assert exact_match(model, EXAMPLES) == exact_match(wrapped, EXAMPLES)


def test_batches_go_to_the_models_device():
    model, seen = small_model().to("meta"), []
    model.register_forward_pre_hook(
        lambda _, ids: seen.extend(each.device.type for each in ids)
    )
    with pytest.raises(RuntimeError, match="meta"):  # which has no numbers
        exact_matches(model, EXAMPLES)
    batch, config = make_batch(EXAMPLES), TrainingConfig()
    with pytest.raises(RuntimeError, match="meta"):
        train_step(model, paper_adam(model), batch, 0.1, config)
    assert seen == ["meta"] * 4


@pytest.mark.plain
def test_what_cannot_be_trained_on_is_refused():
    small = TrainingConfig(batch_tokens=4)
    for learn in (train, exact_match):
        with pytest.raises(ValueError, match="one example is needed, got none"):
            learn(small_model(), [])
    with pytest.raises(ValueError, match=r"example 1 has 6 source .*batch_tokens is 4"):
        train(small_model(), [([3] * 6, [3])], small)
    with pytest.raises(ValueError, match=r"1\.\.4096, got 4097"):
        exact_matches(small_model(), [([3] * 4097, [4])])


def test_the_phrasebook_model_is_seeded_and_leaves_the_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, other = phrasebook_model(seed=1), phrasebook_model(seed=1)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(weights(one), weights(other))
    assert not torch.equal(weights(one), weights(phrasebook_model()))


@pytest.mark.plain  # checked shapes would make it slow
def test_the_phrasebooks_default_training_takes_the_steps_it_always_took():
    """The loss of the first steps, as it was when the shipped weights were trained."""
    examples = phrasebook_examples(sample_pairs(3000, seed=0))
    run = train(phrasebook_model(), examples)
    first = list(itertools.islice(run, 5))
    losses = [5.426767, 5.439031, 5.342350, 5.287612, 5.264788]
    assert [each.loss for each in first] == pytest.approx(losses, rel=1e-4)
    assert first[0].total_steps == 48


@pytest.mark.plain
@pytest.mark.parametrize(
    ("example", "message"),
    [
        (([3] * 9, [3]), "has 9 source tokens, max_length is 8$"),
        (([3], [3] * 8), "has 9 target tokens with its end, max_length is 8$"),
        (([11], [3]), r"has a source id outside 0\.\.10, got 11$"),
        (([3], [3, -1]), r"has a target id outside 0\.\.10, got -1$"),
        (([3], [3], [3]), r"must be two lists of ids, got \(\[3\], \[3\], \[3\]\)$"),
        ((["le"], ["the"]), r"must be two lists of ids, got \(\['le"),
        (("le", "the"), "must be two lists of ids, got"),
        (([3.0], [3]), "must be two lists of ids, got"),
        (7, "must be two lists of ids, got 7$"),
    ],
)
def test_an_example_at_fault_is_named_before_the_first_step(example, message):
    with pytest.raises(ValueError, match=f"^example 26 {message}"):
        train(small_model(), [*EXAMPLES, example])


@pytest.mark.plain  # checked types are refused before
def test_each_caller_says_what_it_takes():
    sizes = LanguageModelConfig(11, 16, 2, 1, 16, 0.0, max_length=8)
    lm = LanguageModel(sizes)
    for model, message in (
        (lm, "^train needs a Transformer, got a LanguageModel$"),
        (PromptDecoder(lm), "^train needs a Transformer, got a PromptDecoder$"),
        (small_model().encoder, "^train needs a Transformer, got an Encoder$"),
        (Translator.phrasebook(), "got a Translator: give translator.model$"),
    ):
        with pytest.raises(ValueError, match=message):
            train(model, EXAMPLES)
    with pytest.raises(ValueError, match=r"^exact_match needs a Tr.*LanguageModel$"):
        exact_match(lm, EXAMPLES)
    with pytest.raises(ValueError, match=r"^a search needs a Transformer or a decoder"):
        greedy_search(nn.Linear(2, 2), [[3]], 4)


def test_a_batch_goes_to_a_device():
    batch = make_batch(EXAMPLES).to("meta")
    assert {ids.device.type for ids in batch} == {"meta"}
    assert isinstance(batch, Batch)


@pytest.mark.plain
def test_a_training_that_diverges_ends_with_a_line():
    config = TrainingConfig(
        learning_rate=1e30, max_grad_norm=1e30, warmup_steps=1, cooldown=0.0
    )
    with pytest.raises(ValueError, match=r"step \d+ diverged.*lower learning rate"):
        list(train(small_model(), EXAMPLES, config))
