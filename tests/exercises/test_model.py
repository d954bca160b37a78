"""Chapter 10's exercises: the answer is right, likely mistakes are named."""

import torch
from torch import nn
from torch.nn import functional as F

from bookkit.checks.model import (
    check_cost,
    check_count,
    check_detector,
    check_loss,
)
from tests.exercises import named_mistakes, right_answers
from transformer import Encoder


def count(tables=1, bias=1, attentions=1, norms=2, last=1, positions=1, layers=None):
    """A count, right unless an option says otherwise."""

    def answer(vocab_size, d_model, d_ff, num_layers, max_length):
        attention = attentions * 4 * (d_model**2 + bias * d_model)
        feed_forward = 2 * d_model * d_ff + bias * (d_ff + d_model)
        one = attention + feed_forward + norms * 2 * d_model
        words = (tables * vocab_size + positions * max_length) * d_model
        return words + (layers or num_layers) * one + last * 2 * d_model

    return answer


def attention_without_biases(vocab_size, d_model, d_ff, num_layers, max_length):
    sizes = vocab_size, d_model, d_ff, num_layers, max_length
    return count()(*sizes) - num_layers * 4 * d_model


def encoder_and_decoder(vocab_size, d_model, d_ff, num_layers, max_length):
    """The chapter's equation."""
    stacks = [count(positions=0, last=0), count(0, 1, 2, 3, 0, 0)]
    sizes = vocab_size, d_model, d_ff, num_layers, max_length
    return sum(stack(*sizes) for stack in stacks)


def less(what):
    """The count without something, which depends on the sizes."""
    return lambda *sizes: count()(*sizes) - what(*sizes)


def cost(**changed):
    right = {
        "num_heads=16": 0,
        "norm_first=True": 2048,
        "tie_embeddings=False": 37_888_000,
        "num_decoder_layers=7": 4_204_032,
    }
    names = dict(zip(["heads", "norm", "tie", "layer"], right, strict=True))
    return right | {names[name]: number for name, number in changed.items()}


def loss(given=slice(None, -1), labels=slice(1, None), **options):
    def answer(model, source, target):
        logits = model(source, target[:, given]).flatten(0, 1)
        options.setdefault("ignore_index", 0)
        return F.cross_entropy(logits, target[:, labels].flatten(), **options)

    return answer


def by_sentence(model, source, target):
    pairs = zip(source, target, strict=True)
    return sum(loss()(model, s[None], t[None]) for s, t in pairs) / len(source)


def twice_softmax(model, source, target):
    probabilities = model(source, target[:, :-1]).softmax(dim=-1)
    return F.cross_entropy(
        probabilities.flatten(0, 1), target[:, 1:].flatten(), ignore_index=0
    )


def no_logarithm(model, source, target):
    probabilities = model(source, target[:, :-1]).softmax(dim=-1)
    return F.nll_loss(probabilities.mT, target[:, 1:], ignore_index=0)


def not_flat(model, source, target):
    return F.cross_entropy(model(source, target[:, :-1]), target[:, 1:])


def detector(look=lambda model, source: model(source, torch.tensor([[1, 3, 4]]))):
    @torch.no_grad()
    def answer(model):
        source = torch.tensor([[3, 4, 5, 6]])
        return not torch.allclose(
            look(model, source), look(model, F.pad(source, (0, 3))), atol=1e-4
        )

    return answer


@torch.no_grad()
def exact(model):
    source, target = torch.tensor([[3, 4, 5, 6]]), torch.tensor([[1, 3, 4]])
    longer = F.pad(source, (0, 1))
    return not torch.equal(model(source, target), model(longer, target))


def compared(differ, pad=(0, 2), value=0):
    """A test with two sentences; `differ` compares the logits."""

    @torch.no_grad()
    def answer(model):
        source = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 3, 4]])
        target = torch.tensor([[1, 3, 4, 5], [1, 8, 9, 10]])
        longer = F.pad(source, pad, value=value)
        return bool(differ(model(source, target), model(longer, target)))

    return answer


def far(limit):
    return lambda a, b: (a - b).abs().max() > limit


def exactly(pads):
    return compared(lambda a, b: not torch.equal(a, b), pad=(0, pads))


def by_default(pads):
    return compared(lambda a, b: not torch.allclose(a, b), pad=(0, pads))


@torch.no_grad()
def a_padded_row_against_itself_alone(model):
    source = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 0, 0]])
    target = torch.tensor([[1, 3, 4, 5], [1, 8, 9, 10]])
    return bool(
        far(1e-5)(model(source, target)[1], model(source[1:, :3], target[1:])[0])
    )


@torch.no_grad()
def decoded_without_a_mask(model):
    source, target = torch.tensor([[3, 4, 5, 6]]), torch.tensor([[1, 3, 4]])
    memory, longer = model.encode(source), model.encode(F.pad(source, (0, 2)))
    return bool(far(1e-5)(model.decode(target, memory), model.decode(target, longer)))


def by_view(model, source, target):
    logits = model(source, target[:, :-1])
    logits = logits.view(len(logits), logits.size(-1), -1)
    return F.cross_entropy(logits, target[:, 1:], ignore_index=0)


def masked_by_the_input(model, source, target):
    logits, words = model(source, target[:, :-1]), target[:, :-1] != 0
    return F.cross_entropy(logits[words], target[:, 1:][words])


def memory_only(model, source):
    return model.encode(source)[:, :4]


RIGHT = [
    (check_count, count()),
    (check_cost, cost()),
    (check_loss, loss()),
    (check_detector, a_padded_row_against_itself_alone),
    *((check_detector, compared(far(1e-2), (0, n))) for n in (1, 8)),
    (
        check_detector,
        compared(lambda a, b: far(1e-5)(a.softmax(-1), b.softmax(-1)), (0, 4)),
    ),
]

WRONG = [
    (check_count, count(bias=0), "biases"),
    (check_count, count(norms=0, last=0), "norms are missing"),
    (check_count, count(norms=0), "or the two norms"),
    (check_count, attention_without_biases, "biases of the query, key, value"),
    (check_count, count(last=0), "end of the stack"),
    (check_count, count(attentions=2, norms=3), "nothing to read"),
    (check_count, count(attentions=2), "without a source there is one"),
    (check_count, count(norms=3), "two sublayers"),
    (check_count, count(tables=2), "count it once"),
    (check_count, count(tables=0), "table of words is missing"),
    (check_count, count(positions=0), "positions are missing"),
    (check_count, count(layers=1), "one layer"),
    (check_count, lambda *sizes: count()(*sizes) + 1, "too many"),
    (check_count, lambda *sizes: 7, "too few"),
    (check_count, encoder_and_decoder, "encoder and decoder"),
    (check_count, count(norms=1), "two norms, one for each sublayer"),
    (check_count, less(lambda v, d, f, n, m: (2 * n + 1) * d), "a scale and a shift"),
    (check_count, less(lambda v, d, f, n, m: n * (f + d)), "of the feed-forward"),
    (check_count, lambda *sizes: "7", "without quotes"),
    (check_count, lambda *sizes: count()(*sizes) + sizes[0], "no bias"),
    (check_cost, cost(heads=18 * 1_050_624), "share d_model"),
    (check_cost, cost(heads=63_082_496), "how many more than before"),
    (check_cost, cost(layer=63_082_496 + 4_204_032), "how many more than before"),
    (check_cost, cost(norm=0), "last sum"),
    (check_cost, cost(norm=1024), "each of the two stacks"),
    (check_cost, cost(tie=18_944_000), "one table into three"),
    (check_cost, cost(tie=-37_888_000), "untying adds"),
    (check_cost, cost(layer=3_152_384), "encoder layer"),
    (check_cost, cost(layer=4_200_960), "norms are missing"),
    (check_cost, cost(layer=4_203_008), "third sublayer"),
    (check_cost, cost(layer=5), "count the tensors"),
    (check_cost, {"num_heads=16": 0}, "Nothing stands under 'norm_first=True'"),
    (check_cost, cost(tie=56_832_000), "exists already"),
    (check_loss, loss(ignore_index=-100), "Padding"),
    (check_loss, loss(given=slice(None), labels=slice(None)), "no shift"),
    (check_loss, loss(labels=slice(None, -1)), "no shift"),
    (check_loss, loss(slice(1, None), slice(None, -1)), "wrong way"),
    (check_loss, loss(reduction="sum"), "sum"),
    (check_loss, loss(reduction="none"), "one number"),
    (check_loss, lambda *a: loss(reduction="sum")(*a) / 10, "padding included"),
    (check_loss, lambda *a: -loss()(*a), "sign"),
    (check_loss, by_sentence, "sentences"),
    (check_loss, by_view, "view() reads the numbers in another order"),
    (check_loss, masked_by_the_input, "whose label is padding"),
    (check_loss, lambda *a: loss(reduction="sum")(*a) / 9, "<bos> is no label"),
    (check_loss, loss(slice(1, None), slice(1, None)), "The model reads the labels"),
    (check_loss, loss(slice(None, -2), slice(2, None)), "predicts word t + 2"),
    (check_loss, lambda *a: loss(reduction="sum")(*a) / 2, "number of sentences"),
    (check_loss, no_logarithm, "what log_softmax gives"),
    (check_loss, twice_softmax, "cross_entropy applies its own"),
    (check_loss, not_flat, "flatten logits and labels"),
    (check_loss, loss(given=slice(None)), "not as many rows as labels"),
    (check_loss, lambda *a: [loss()(*a)] * 2, "not a list"),
    (check_loss, lambda *a: loss()(*a) + 1, "should be"),
    (check_detector, lambda model: False, "no fault"),
    (check_detector, lambda model: True, "calls every model faulty"),
    (check_detector, exactly(2), "with a tolerance"),
    (check_detector, by_default(4), "is too strict"),
    (
        check_detector,
        compared(lambda a, b: (a.argmax(-1) != b.argmax(-1)).any()),
        "Compare the logits themselves",
    ),
    (check_detector, compared(far(0.1)), "few hundredths"),
    (check_detector, compared(far(1.0)), "rounding errors only"),
    (
        check_detector,
        compared(lambda a, b: (a - b).sum().abs() > 1e-4),
        "number by number",
    ),
    *(
        (check_detector, compared(lambda a, b, at=at: far(1e-5)(a[at], b[at])), "one")
        for at in ((..., 3), (slice(None), -1))
    ),
    (check_detector, compared(lambda a, b: (a - b).max() > 1e-5), "abs()"),
    (
        check_detector,
        compared(far(1e-5), (2, 0)),
        "in front it moves every word to another position",
    ),
    (check_detector, compared(far(1e-5), (0, 2), 2), "padding: that is id 0"),
    (check_detector, decoded_without_a_mask, "allow for the last digits"),
    (check_detector, exact, "atol=1e-8, is too strict"),
    (check_detector, lambda model: [detector()(model)], "True or False, not a list"),
    (check_detector, lambda model: str(detector()(model)), "without quotes"),
    (check_detector, lambda model: not detector()(model), "wrong way"),
    (check_detector, detector(memory_only), "cross-attention"),
    (
        check_detector,
        lambda model: type(model).__name__ == "_CrossForgets",
        "encoder attends to padding",
    ),
]


test_right = right_answers(RIGHT)


test_mistake_is_named = named_mistakes(WRONG)


def test_the_expected_counts_are_those_of_a_stack():
    assert count()(50_257, 768, 3072, 12, 1024) == 124_439_808  # GPT-2's smallest
    with torch.device("meta"):
        for case in [(11, 8, 12, 1, 5), (1000, 128, 256, 4, 64)]:
            vocab_size, d_model, d_ff, layers, max_length = case
            stack = Encoder(d_model, 2, d_ff, layers, norm_first=True)
            tables = nn.Embedding(vocab_size + max_length, d_model)
            parameters = [*stack.parameters(), *tables.parameters()]
            assert sum(p.numel() for p in parameters) == count()(*case)


def test_an_open_blank_is_no_answer_yet():
    assert check_cost(cost(heads=...)).kind == "unanswered"
