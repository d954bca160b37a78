"""The break-it lab: models that lack a part, and the view that shows their curves."""

import dataclasses
import itertools
import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from bookkit import BreakLab, broken
from bookkit.lab import Part, Runs, span
from transformer import (
    TrainingConfig,
    Transformer,
    TransformerConfig,
    greedy_search,
    train,
)

ROOT = Path(__file__).resolve().parent.parent
COPIES = [([a, b], [b, a]) for a, b in itertools.product(range(3, 8), repeat=2)]
SOURCE, TARGET = torch.tensor([[3, 4, 5]]), torch.tensor([[1, 6, 7]])
BREAKS = [
    broken.without_root,
    broken.without_causal_mask,
    broken.without_positions,
    broken.without_residuals,
]
pytestmark = pytest.mark.plain  # broken parts keep no promises about shapes


def model(seed=0) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(TransformerConfig(9, 9, 16, 2, 2, 2, 32, 0.0, max_length=8))


@pytest.mark.parametrize("take_out", BREAKS)
def test_a_broken_model_differs_and_can_be_trained(take_out):
    whole, changed = model(), take_out(model())
    assert not torch.allclose(whole(SOURCE, TARGET), changed(SOURCE, TARGET), atol=1e-3)
    count = sum(weight.numel() for weight in whole.parameters())
    assert sum(weight.numel() for weight in changed.parameters()) == count
    losses = [
        metrics.loss
        for metrics in train(changed, COPIES, TrainingConfig(epochs=10, warmup_steps=5))
    ]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("take_out", "said"),
    [
        (
            broken.without_causal_mask,
            "decoder must be of the class Decoder, got .*Unmasked",
        ),
        (broken.without_positions, "position is of the class Dropout, whose"),
    ],
)
def test_what_cannot_be_decoded_with_a_cache_is_decoded_without(take_out, said):
    with pytest.warns(UserWarning, match=f"without a cache: {said}"):
        greedy_search(take_out(model()), SOURCE, 4)


def test_without_the_root_scores_are_that_much_larger():
    whole, changed = model(), broken.without_root(model())
    x = torch.randn(1, 5, 16)
    before, after = (
        each.encoder.layers[0].self_attention.weights(x, x).log()
        for each in (whole, changed)
    )
    spread = after.diff(dim=-1) / before.diff(dim=-1)
    torch.testing.assert_close(spread, torch.full_like(spread, 8**0.5))


def test_without_the_causal_mask_padding_stays_hidden():
    changed = broken.without_causal_mask(model())
    later = torch.tensor([[1, 6, 5]])
    padded = torch.tensor([[1, 6, 7, 0]])
    said = changed(SOURCE, TARGET)
    assert not torch.allclose(said[:, 0], changed(SOURCE, later)[:, 0], atol=1e-3)
    torch.testing.assert_close(changed(SOURCE, padded)[:, :3], said)


def test_without_positions_order_is_invisible():
    changed = broken.without_positions(model())
    torch.testing.assert_close(
        changed.encode(SOURCE.flip(1)).flip(1), changed.encode(SOURCE)
    )


def test_without_residuals_a_silent_sublayer_leaves_nothing():
    changed = broken.without_residuals(model())
    for layer in changed.encoder.layers:
        torch.nn.init.zeros_(layer.feed_forward.contract.weight)
    other = torch.tensor([[8, 8, 7]])
    torch.testing.assert_close(changed.encode(SOURCE), changed.encode(other))


def test_without_warmup_the_rate_never_rises_and_then_falls_alike():
    config = TrainingConfig(warmup_steps=20)
    at_once = broken.without_warmup(config)
    rates = [at_once.learning_rate_at(step, 100, 16) for step in range(1, 101)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == config.learning_rate_at(20, 100, 16)
    assert rates[19:] == [
        config.learning_rate_at(step, 100, 16) for step in range(20, 101)
    ]
    assert dataclasses.asdict(at_once) == dataclasses.asdict(config)


def test_half_of_the_steps_pass_through_the_default_rates():
    default = TrainingConfig()
    for step in range(1, 399):
        ours = broken.HALF.learning_rate_at(step, 398, 96)
        theirs = default.learning_rate_at(2 * step, 796, 96)
        assert ours == pytest.approx(theirs, rel=1e-12)


WHOLE = Runs([[5.0, 2.0, 1.0], [5.2, 2.2, 1.2]], [0.99, 1.0], [0.99, 1.0])
PARTS = [
    Part("√d_k", Runs([[5.0, 4.0, 3.0]], [0.5], [0.6]), "It <is> slow.", "<a>one</a>"),
    Part("mask", Runs([[5.0, 1.0, 0.5]], [0.0], [1.0]), "It cheats.", "two"),
]


def test_the_lab_shows_every_part_with_its_numbers():
    page = BreakLab(WHOLE, PARTS, step=5, floor=0.8)._repr_html_()
    assert page.count('type="radio"') == 1 + len(PARTS)
    assert page.count(" checked>") == 1
    assert "It &lt;is&gt; slow." in page
    assert "<a>one</a>" in page
    assert "99–100%" in page
    assert "<script" not in page
    label = re.search(r'aria-label="([^"]+)"', page)
    assert label
    assert "Without mask it ends at 0.50." in label[1]
    for number in ("all", "0", "1"):
        assert f".lab-{number}:checked) .lab-p-{number}" in page
    assert "$" not in page


def test_two_labs_do_not_share_their_switches():
    names = {
        re.search(r'name="([^"]+)"', BreakLab(WHOLE, PARTS[:n], 5, 0.8)._repr_html_())[
            1
        ]
        for n in (1, 2)
    }
    assert len(names) == 2


def test_curves_stay_inside_the_frame():
    page = BreakLab(WHOLE, PARTS, step=5, floor=0.8)._repr_html_()
    for points in re.findall(r'(?:points="|d="M)([\d., L]+)"', page):
        for x, y in re.findall(r"([\d.]+),([\d.]+)", points):
            assert 0 <= float(x) <= 600
            assert 0 <= float(y) <= 290


def test_the_lab_names_its_parts():
    lab = BreakLab(WHOLE, PARTS, step=5, floor=0.8)
    assert repr(lab) == "BreakLab(√d_k, mask; 2 runs of each)"


def test_the_lab_refuses_what_it_cannot_draw():
    with pytest.raises(ValueError, match="got 0 parts"):
        BreakLab(WHOLE, [], step=5, floor=0.8)
    longer = Part("x", Runs([[1.0] * 4], [0.0], [0.0]), "", "")
    with pytest.raises(ValueError, match=r"lengths \[3, 4\]"):
        BreakLab(WHOLE, [longer], step=5, floor=0.8)


def test_a_span_of_one_value_is_that_value():
    assert span([0.5, 0.504]) == "50%"
    assert span([0.031, 0.0]) == "0–3%"


def test_the_ablations_are_made_and_taken_up_by_their_command(tmp_path, monkeypatch):
    out = tmp_path / "ablations.json"
    names = ["whole", "few"]
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    module = runpy.run_path(str(ROOT / "benchmarks" / "ablations.py"))
    main = module["main"]
    short = dataclasses.replace(broken.HALF, epochs=2, batch_tokens=20)
    variants = {
        name: dataclasses.replace(variant, training=short)
        for name, variant in module["VARIANTS"].items()
    }
    for name, value in {
        "sample_pairs": lambda count, seed=0, held_out=False: COPIES,
        "phrasebook_examples": lambda pairs: pairs,
        "phrasebook_model": lambda seed=0: model(seed),
        "VARIANTS": variants,
        "RESULTS": tmp_path,
    }.items():
        monkeypatch.setitem(main.__globals__, name, value)
    command = ["ablations.py", "--only", *names, "--seeds"]
    monkeypatch.setattr(sys, "argv", [*command, "0"])
    main()
    first = json.loads(out.read_text())["variants"]
    monkeypatch.setattr(sys, "argv", [*command, "0", "1"])
    main()
    second = json.loads(out.read_text())["variants"]
    assert list(second) == names
    for name in names:
        assert second[name]["runs"]["0"] == first[name]["runs"]["0"]  # not made again
        assert 0 <= second[name]["runs"]["1"]["exact"] <= 1
    assert not list(tmp_path.glob("*.part"))
