"""The program in plain Python, held to the package: logits, loss, gradients, Adam."""

import ast
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from transformer import micro
from transformer.decoding.search import greedy_search
from transformer.model import Transformer, TransformerConfig
from transformer.training.loop import paper_adam
from transformer.training.loss import label_smoothed_loss

pytestmark = pytest.mark.plain  # the program has no shapes, and very many calls
ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "transformer" / "micro.py"
SIZES = [(16, 2, 32, 1), (24, 4, 20, 2)]
PAD = micro.ids("q")[0]  # which no month has
PAIRS = [("7 jul 2017", "2017-07-07"), ("31 dec 1999", "1999-12-31"), ("3", "4")]


def package_model(d_model, heads, d_ff, layers, seed=0):
    """A model of the package for the program's characters, in float64."""
    torch.manual_seed(seed)
    size = len(micro.ALPHABET)
    config = TransformerConfig(
        size,
        size,
        d_model=d_model,
        num_heads=heads,
        num_encoder_layers=layers,
        num_decoder_layers=layers,
        d_ff=d_ff,
        dropout=0.0,
        tie_embeddings=True,
        pad_id=PAD,
        bos_id=micro.BEGIN,
        eos_id=micro.END,
        max_length=32,
    )
    model = Transformer(config).double()
    torch.set_default_dtype(torch.float64)
    try:  # the table of positions, in float64 from the start
        model.position = type(model.position)(d_model, max_length=32)
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.no_grad():  # norms and biases do not stay ones and zeros in training
        for weight in model.parameters():
            weight += 0.1 * torch.randn_like(weight)
    return model


def poured(model):
    """The same weights in the program's own values."""
    return {
        name: micro.Value(torch.atleast_2d(weight.detach()).tolist())
        for name, weight in model.named_parameters()
    }


@pytest.fixture(params=SIZES, ids=str)
def both(request, monkeypatch):
    d_model, heads, d_ff, layers = request.param
    for name, size in zip(
        ("D_MODEL", "HEADS", "D_FF", "LAYERS"), request.param, strict=True
    ):
        monkeypatch.setattr(micro, name, size)
    model = package_model(d_model, heads, d_ff, layers)
    return model, poured(model)


def as_batch(pairs):
    """The pairs as the package reads them: padded, in one batch."""

    def padded(rows):
        return torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD
        )

    sources = padded([micro.ids(source) for source, _ in pairs])
    targets = [micro.ids(target) for _, target in pairs]
    inputs = padded([[micro.BEGIN, *target] for target in targets])
    return sources, inputs, padded([[*target, micro.END] for target in targets])


def package_loss(model):
    sources, inputs, labels = as_batch(PAIRS)
    return label_smoothed_loss(model(sources, inputs), labels, pad_id=PAD)


def gap(rows, tensor):
    """The largest difference between a matrix of the program and a tensor."""
    own = torch.tensor(rows, dtype=torch.float64)
    return (own - torch.atleast_2d(tensor)).abs().max().item()


IN_IDS = [[micro.ids(text) for text in pair] for pair in PAIRS]


def test_names_of_the_weights_are_the_package_s(both):
    _, weights = both
    own = micro.new_model(random.Random(0))
    assert {name: (len(v.rows), len(v.rows[0])) for name, v in own.items()} == {
        name: (len(v.rows), len(v.rows[0])) for name, v in weights.items()
    }


def test_logits_equal_the_package_s(both):
    model, weights = both
    sources, inputs, _ = as_batch(PAIRS)
    logits = model(sources, inputs).detach()
    for row, (source, target) in zip(logits, IN_IDS, strict=True):
        memory = micro.encode(weights, source)
        own = micro.decode(weights, [micro.BEGIN, *target], memory).rows
        assert gap(own, row[: len(own)]) < 1e-9


def test_loss_and_every_gradient_equal_the_package_s(both):
    model, weights = both
    loss = package_loss(model)
    loss.backward()
    assert abs(micro.gradients(weights, IN_IDS) - loss.item()) < 1e-9
    for name, weight in model.named_parameters():
        assert gap(weights[name].grad, weight.grad) < 1e-9, name
        # Adding a number to all scores of a row changes nothing: so no key has a bias.
        assert weight.grad.abs().max() > 1e-4 or "key_proj.bias" in name


def test_steps_of_adam_equal_the_package_s(both):
    model, weights = both
    optimizer, moments = paper_adam(model), {}
    for step, rate in [(1, 0.01), (2, 0.02)]:
        optimizer.zero_grad()
        package_loss(model).backward()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        micro.gradients(weights, IN_IDS)
        micro.adam(weights, moments, step, rate)
        for name, weight in model.named_parameters():
            if "key_proj.bias" not in name:  # of a gradient of 0, rounding decides
                assert gap(weights[name].rows, weight.detach()) < 1e-9, name


def test_greedy_equals_the_package_s(both):
    model, weights = both
    sources = [micro.ids(text) for text in ("7 jul 2017", "1 may 1901", "12 oct 2050")]
    found = greedy_search(model, sources, max_length=12)
    assert [micro.greedy(weights, source) for source in sources] == found


def test_a_later_character_changes_no_earlier_logit(both, monkeypatch):
    _, weights = both
    memory = micro.encode(weights, micro.ids("7 jul 2017"))

    def moved():
        one, other = (
            micro.decode(weights, [micro.BEGIN, *micro.ids(text)], memory).rows
            for text in ("2017-07-07", "2017-99-99")
        )
        return [
            max(abs(x - y) for x, y in zip(*rows, strict=True))
            for rows in zip(one, other, strict=True)
        ]

    assert max(moved()[:6]) == 0.0
    assert min(moved()[6:]) > 1e-6
    softmax = micro.softmax
    monkeypatch.setattr(micro, "softmax", lambda scores, mask=None: softmax(scores))
    assert max(moved()[:6]) > 1e-6


OPERATIONS = {
    "dots": lambda a: micro.dots(a, micro.Value([[0.3, -1.0, 2.0], [1.0, 0.5, -0.2]])),
    "dots with itself": lambda a: micro.dots(a, a),
    "add": lambda a: micro.add(a, a),
    "add a row": lambda a: micro.add(
        micro.Value([[1.0] * 3] * 4), micro.lookup(a, [0])
    ),
    "scale": lambda a: micro.scale(a, -0.7),
    "relu": micro.relu,
    "lookup": lambda a: micro.lookup(a, [1, 0, 1]),
    "flip": micro.flip,
    "columns": lambda a: micro.columns(a, [2, 0]),
    "softmax": micro.softmax,
    "softmax, masked": lambda a: micro.softmax(
        a, [[True, False, True], [True, True, True]]
    ),
    "norm": lambda a: micro.norm(
        a, micro.Value([[0.5, 2.0, -1.0]]), micro.Value([[0.1, 0.2, 0.3]])
    ),
    "gain of norm": lambda a: micro.norm(
        micro.Value([[1.0, 2.0, 4.0]]), micro.lookup(a, [0]), micro.lookup(a, [1])
    ),
    "smoothed loss": lambda a: micro.smoothed_loss(a, [2, 0]),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_chains_equal_finite_differences(operation):
    rows = [[0.4, -1.1, 0.7], [1.3, 0.2, -0.5]]

    def weighed(rows):
        """All outputs, no two with the same factor, summed."""
        out = operation(micro.Value(rows)).rows
        flat = [x for row in out for x in row]
        return sum(math.sin(i + 1) * x for i, x in enumerate(flat))

    start = micro.Value(rows)
    out = operation(start)
    width = len(out.rows[0])
    out.backward(
        [
            [math.sin(i * width + j + 1) for j in range(width)]
            for i in range(len(out.rows))
        ]
    )
    for i, j in [(i, j) for i in range(2) for j in range(3)]:
        up, down = ([list(row) for row in rows] for _ in range(2))
        up[i][j] += 1e-6
        down[i][j] -= 1e-6
        slope = (weighed(up) - weighed(down)) / 2e-6
        assert start.grad[i][j] == pytest.approx(slope, abs=1e-8)


def test_the_program_is_one_file_of_math_and_random():
    text = PROGRAM.read_text(encoding="utf-8")
    imported = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Import)]
    assert [alias.name for n in imported for alias in n.names] == ["math", "random"]
    assert not [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom)]
    assert len([line for line in text.splitlines() if line.strip()]) <= 250


@pytest.mark.plain
def test_the_program_trains_and_answers_alone(tmp_path):
    """The file is copied to an empty folder, and its training cut short."""
    text = PROGRAM.read_text(encoding="utf-8")
    short = text.replace("steps=600, size=8", "steps=25, size=1").replace(
        "range(200)", "range(2)"
    )
    assert short != text
    (tmp_path / "alone.py").write_text(short, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-I", "-S", tmp_path / "alone.py"],
        input="7 jul 2017\n?!\n\n",
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert lines[0].startswith("step 25: loss ")
    assert lines[1].endswith(" of 2 dates that it never saw are right")
    assert done.stdout.count("A date such as") == 3
