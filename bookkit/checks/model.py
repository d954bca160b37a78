"""Checks for the exercises of chapter 10, on the whole model."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bookkit.exercises import (
    Verdict,
    blanks,
    exercise,
    near,
    number,
    right,
    truth,
    wrong,
)
from bookkit.forms import form
from transformer.encoder import EncoderLayer
from transformer.model import Transformer, TransformerConfig

Sizes = tuple[int, int, int, int, int]


def _count(
    vocab_size: int,
    d_model: int,
    d_ff: int,
    num_layers: int,
    max_length: int,
    *,
    tables: int = 1,
    positions: int = 1,
    bias: int = 1,
    norms: int = 2,
    last: int = 1,
    attentions: int = 1,
) -> int:
    """The parameters of a decoder-only model, or of a mistaken idea of it."""
    attention = 4 * (d_model**2 + bias * d_model)
    feed_forward = 2 * d_model * d_ff + bias * (d_ff + d_model)
    layer = attentions * attention + feed_forward + norms * 2 * d_model
    words = tables * vocab_size * d_model + positions * max_length * d_model
    return words + num_layers * layer + last * 2 * d_model


@exercise
def check_count(answer: Callable[[int, int, int, int, int], int]) -> Verdict:
    """The number of parameters of a decoder-only model."""
    cases: list[Sizes] = [(50_257, 768, 3072, 12, 1024), (11, 8, 12, 1, 5)]
    cases.append((1000, 128, 256, 4, 64))
    ideas: dict[str, Callable[[Sizes], int]] = {
        "The biases are missing: a map from n to m has nm weights and m biases.": (
            lambda c: _count(*c, bias=0)
        ),
        "The layer norms are missing, each with a scale and a shift for each feature; "
        "or the biases of attention and the last norm.": (
            lambda c: _count(*c, norms=0, last=0)
        ),
        "The norm at the end of the stack is missing: pre-norm needs one more.": (
            lambda c: _count(*c, last=0)
        ),
        "Each layer has 4·d_model too few. Either the biases of the query, key, value "
        "and output maps are missing, or the two norms, a scale and a shift each.": (
            lambda c: _count(*c, norms=0)
        ),
        "That is encoder and decoder: GPT-2 has one stack, and no cross-attention.": (
            lambda c: (
                _count(*c, positions=0, last=0)
                + _count(*c, tables=0, positions=0, last=0, attentions=2, norms=3)
            )
        ),
        "A layer has two norms, one for each sublayer.": lambda c: _count(*c, norms=1),
        "A norm has 2·d_model numbers: a scale and a shift for each feature.": (
            lambda c: _count(*c, norms=1, last=0) + c[1]
        ),
        "The biases of the feed-forward network are missing: d_ff and d_model.": (
            lambda c: _count(*c) - c[3] * (c[1] + c[2])
        ),
        "You counted cross-attention: without a source there is nothing to read.": (
            lambda c: _count(*c, attentions=2, norms=3)
        ),
        "You counted two attentions a layer: without a source there is one.": (
            lambda c: _count(*c, attentions=2)
        ),
        "You counted three norms a layer: it has two sublayers.": (
            lambda c: _count(*c, norms=3)
        ),
        "The tied output is the table of words again: count it once.": (
            lambda c: _count(*c, tables=2)
        ),
        "The table of words is missing.": lambda c: _count(*c, tables=0),
        "The positions are missing: here they are a learned table.": (
            lambda c: _count(*c, positions=0)
        ),
        "A tied output has no bias: it is the table of words again.": (
            lambda c: _count(*c) + c[0]
        ),
        "You counted one layer: there are num_layers of them.": (
            lambda c: _count(*c[:3], 1, c[4])
        ),
    }
    results = [number(answer(*case), "a number of parameters") for case in cases]
    expected = [_count(*case) for case in cases]
    if results == expected:
        return right("The count is exact for GPT-2 and for two small models.")
    for message, idea in ideas.items():
        if results == [idea(case) for case in cases]:
            return wrong(message)
    for case, got, due in zip(cases, results, expected, strict=True):
        if got != due:
            many = "too many" if got > due else "too few"
            sizes = "count({}, {}, {}, {}, {})".format(*case)
            return wrong(f"{sizes} gives {got:,.0f}: {abs(got - due):,.0f} {many}.")
    raise AssertionError


@exercise
@form(
    "dictionary",
    "num_heads=16",
    "norm_first=True",
    "tie_embeddings=False",
    "num_decoder_layers=7",
)
def check_cost(answer: Mapping[str, Any]) -> Verdict:
    """What four changes of the base model add to its parameters."""
    attention, table, norm = 4 * (512 * 512 + 512), 37_000 * 512, 1024
    feed_forward = 2 * 512 * 2048 + 2048 + 512
    expected = {
        "num_heads=16": 0,
        "norm_first=True": 2 * norm,
        "tie_embeddings=False": 2 * table,
        "num_decoder_layers=7": 2 * attention + feed_forward + 3 * norm,
    }
    reasons: dict[str, dict[float, str]] = {
        "num_heads=16": {
            18 * attention: "heads share d_model: each has half as many numbers.",
            -9 * attention: "more heads make each narrower, but the total is the same.",
        },
        "norm_first=True": {
            0: "pre-norm does not normalise the last sum, so each stack ends in one "
            "more norm.",
            norm: "each of the two stacks ends in one more norm.",
            512: "a norm has a scale and a shift, and there are two stacks.",
            30 * norm: "no sublayer gets a second norm: the one it has moves.",
        },
        "tie_embeddings=False": {
            table: "untying turns one table into three: that is two more.",
            3 * table: "one of the three exists already: only two are added.",
            -2 * table: "the size is right, but untying adds parameters.",
            0: "tied, the three are one tensor; untied they are three.",
            2 * table + 37_000: "the output map has no bias.",
        },
        "num_decoder_layers=7": {
            attention + feed_forward + 2 * norm: "that is an encoder layer.",
            2 * attention + feed_forward + 2 * norm: "the third sublayer has a norm.",
            2 * attention + feed_forward: "the three norms are missing.",
            8 * 512 * 512 + 2 * 512 * 2048: "biases and norms are missing.",
            8 * 512 * 512 + 2 * 512 * 2048 + 3 * norm: "the biases are missing.",
        },
    }
    added = map(number, blanks(answer, list(expected)))
    for (change, due), got in zip(expected.items(), added, strict=True):
        if got == 63_082_496 + due:
            return wrong(
                f"{change}: that is the whole model; how many more than before?"
            )
        if got != due:
            why = reasons[change].get(got, "count the tensors that are added.")
            return wrong(f"{change}: {why}")
    return right("All four are right: you know where the parameters are.")


@exercise
def check_loss(answer: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> Verdict:
    """The mean loss of the next word over all labels that are not padding."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(256)  # no two of the losses below are nearly the same
        config = TransformerConfig(11, 11, d_model=8, num_heads=2, d_ff=12)
        model = Transformer(config).eval()
        source = torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0]])
        target = torch.tensor([[1, 3, 4, 5, 6, 2], [1, 7, 2, 0, 0, 0]])

        def loss(given: Tensor, labels: Tensor, ignore: int = 0) -> Tensor:
            rows = model(source, given).flatten(0, 1)
            return F.cross_entropy(rows, labels.flatten(), ignore_index=ignore)

        first, last = target[:, :-1], target[:, 1:]
        logits = model(source, first)
        probabilities = logits.flatten(0, 1).softmax(dim=-1)
        expected = loss(first, last)
        total = expected * (last != 0).sum()
        pairs = zip(logits, last, strict=True)
        by_sentence = [F.cross_entropy(z, y, ignore_index=0) for z, y in pairs]
        mistakes = {
            "Padding is counted: skip the labels that are 0.": loss(first, last, -100),
            "There is no shift: the label of each word is the word itself.": (
                loss(target, target)
            ),
            "There is no shift: labels lose their first word, not their last.": (
                loss(first, first)
            ),
            "The shift goes the wrong way: the label is the word before.": (
                loss(last, first)
            ),
            "Shifted by two: position t predicts word t + 2.": (
                loss(first[:, :-1], last[:, 1:])
            ),
            "That is the sum: divide by the number of labels except padding.": total,
            "You divided by all labels, padding included.": total / last.numel(),
            "You divided the sum by the number of sentences: divide by the number of "
            "labels that are not padding.": total / len(target),
            "You averaged the losses of the sentences: a word of a short sentence "
            "then weighs more.": torch.stack(by_sentence).mean(),
            "The sign is wrong: a loss is minus a log probability.": -expected,
            "view() reads the numbers in another order: use transpose(1, 2), or "
            "flatten.": F.cross_entropy(
                logits.reshape(2, 11, -1), last, ignore_index=0
            ),
            "You masked by the input: leave out positions whose label is padding.": (
                F.cross_entropy(logits[first != 0], last[first != 0])
            ),
            "<bos> is no label: divide by the number of labels that are not padding.": (
                total / (target != 0).sum()
            ),
            "The model reads the labels: give it all but the last word, <bos> first.": (
                loss(last, last)
            ),
            "You applied a softmax; cross_entropy applies its own, to logits.": (
                F.cross_entropy(probabilities, last.flatten(), ignore_index=0)
            ),
            "The logarithm is missing: nll_loss wants what log_softmax gives.": (
                F.nll_loss(probabilities, last.flatten(), ignore_index=0)
            ),
            "You left out <eos>: the model must learn to stop.": (
                loss(first, last.masked_fill(last == 2, 0))
            ),
        }
        try:
            given = answer(model, source, target)
        except (RuntimeError, ValueError) as error:
            reasons = {
                "target size": "cross_entropy expects the classes in axis 1, where "
                "yours has the positions: flatten logits and labels first.",
                "target batch_size (2)": "The logits are flat and the labels are not: "
                "flatten both.",
                "batch_size": "There are not as many rows as labels: the model reads "
                "all but the last word, and the labels are all but the first.",
            }
            for words, reason in reasons.items():
                if words in str(error):
                    return wrong(reason)
            raise
    if isinstance(given, Tensor) and given.dim() and given.numel() > 1:
        return wrong(f"A loss is one number, got shape {tuple(given.shape)}.")
    result = torch.tensor(number(given, "a loss, one number"))
    if near(result, expected):
        return right("The labels are shifted by one, and the mean leaves out padding.")
    for message, mistake in mistakes.items():
        if near(result, mistake):
            return wrong(message)
    return wrong(f"It should be {expected:.3f} here, yours is {result:.3f}.")


class _EncoderForgets(EncoderLayer):
    """A layer that attends to padding, too."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x, None)


class _CrossForgets(Transformer):
    """A model whose cross-attention attends to padding, too."""

    def forward(self, source_ids: Tensor, target_ids: Tensor) -> Tensor:
        return self.output(self.decode(target_ids, self.encode(source_ids)))


class _LastDigits(Transformer):
    """A right model; a logit near 0 shows how padding may change the last digits."""

    def forward(self, source_ids: Tensor, target_ids: Tensor) -> Tensor:
        logits = super().forward(source_ids, target_ids).clone()
        last_digits = 3 * torch.finfo(logits.dtype).eps
        logits[..., 0] = last_digits * (source_ids == 0).any()
        return logits


class _Moved(Transformer):
    """A model whose logits move with the share of padding, at some positions."""

    moves, factor, places = torch.zeros(11), torch.ones(()), slice(None)

    def forward(self, source_ids: Tensor, target_ids: Tensor) -> Tensor:
        logits = super().forward(source_ids, target_ids).clone()
        share = (source_ids == 0).float().mean(dim=-1)[:, None, None]
        logits[:, self.places] += share * self.moves
        return logits * self.factor**share


def _models(seed: int) -> dict[str, Transformer]:
    """A right model, and two that forgot one mask each; shared weights."""
    config = TransformerConfig(11, 11, d_model=16, num_heads=2, d_ff=24, dropout=0.0)
    torch.manual_seed(seed)
    whole, forgets_cross, forgets_encoder = (
        _LastDigits(config).eval(),
        _CrossForgets(config).eval(),
        Transformer(config).eval(),
    )
    for layer in forgets_encoder.encoder.layers:
        layer.__class__ = _EncoderForgets
    for faulty in (forgets_cross, forgets_encoder):
        faulty.load_state_dict(whole.state_dict())
    return {"right": whole, "cross": forgets_cross, "encoder": forgets_encoder}


@exercise
def check_detector(answer: Callable[[nn.Module], bool]) -> Verdict:
    """A test that finds the models that attend to source padding."""
    with torch.random.fork_rng(devices=[]):
        found: dict[str, set[bool]] = {"right": set(), "cross": set(), "encoder": set()}
        given, encoded = list[Any](), list[Any]()
        for seed in range(3):
            models = _models(seed)
            whole: Any = models["right"]
            whole.register_forward_pre_hook(lambda _, args: given.append(args))
            whole.encoder.register_forward_pre_hook(lambda *_: encoded.append(True))
            for name, model in models.items():
                found[name].add(truth(answer(model)))
        sees = []
        whole.__class__ = _Moved
        for moves in (9.0, -9.0), (0.09, -0.09), (0.09, 0.09), (-0.09, -0.09):
            whole.moves = F.pad(torch.tensor(moves), (3, 6))  # of two words
            sees.append(truth(answer(whole)))
        alone = [(end, torch.arange(11) - 5.0) for end in (slice(1), slice(-1, None))]
        alone += [(slice(None), each) for each in torch.eye(11)]
        sees_each = True
        for whole.places, whole.moves in alone:
            sees_each &= truth(answer(whole))
        whole.moves, whole.factor = torch.zeros(11), torch.tensor(100.0)
        sees_all_grow = truth(answer(whole))
    intact, cross, encoder = (found[name] for name in ("right", "cross", "encoder"))
    if intact == {False} and sees[0] and not sees_all_grow:
        return wrong(
            "Compare the logits themselves: a fault may make all of them larger, and "
            "leave the most probable word as it was."
        )
    if (intact, cross, encoder) == ({False}, {True}, {True}):
        if not sees[0]:
            return wrong(
                "A fault passes that leaves the sum of the logits, or one of them, "
                "unchanged: compare number by number, (a - b).abs().max()."
            )
        if not any(sees[1:]):
            return wrong(
                "A fault that moves some logits by a few hundredths passes: compare "
                "every logit, with a tolerance for rounding errors only, such as 1e-4."
            )
        if not all(sees):
            return wrong(
                "A fault passes that only raises logits, or one that only lowers them: "
                "take the absolute value of each difference, abs()."
            )
        if not sees_each:
            return wrong("A fault in one logit or one position passes: compare all.")
        return right("Your test finds both faulty models and passes the right one.")
    if (intact, cross, encoder) == ({True}, {False}, {False}):
        return wrong("It is the wrong way round: True means that padding matters.")
    if intact == cross == encoder == {False}:
        return wrong(
            "Your test finds no fault. Does your padded source really hold id 0, and "
            "do you compare numbers, not shapes?"
        )
    if True in intact:
        sources = [args[0] for args in given if args]
        if not encoded:
            return wrong("Your test calls every model faulty.")
        if not given:
            return wrong("Call model(source, target), and allow for the last digits.")
        if any((ids[:, 0] == 0).any() for ids in sources):
            return wrong(
                "Padding goes after the source: in front it moves every word to "
                "another position."
            )
        if sources and not any((ids == 0).any() for ids in sources):
            return wrong("None of your sources holds padding: that is id 0.")
        return wrong(
            "Your test calls the right model faulty. Change only the padding, and "
            "compare with a tolerance of 1e-4: allclose's, atol=1e-8, is too strict."
        )
    if cross == {False} and encoder == {True}:
        return wrong(
            "Your test misses the model whose cross-attention attends to padding: "
            "compare logits, not the memory, with a tolerance for rounding errors only."
        )
    if cross != {True}:
        return wrong(
            "Your test misses some of the faulty models. Take abs() of each "
            "difference, with a tolerance for rounding errors only."
        )
    return wrong(
        "Your test misses the model whose encoder attends to padding: let it encode "
        "the padded source, and compare the logits."
    )
