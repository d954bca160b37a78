"""Each check lets through what is right and names what is wrong, in one line."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from transformer.checks import (
    TransformerError,
    require_beam,
    require_ids,
    require_labels,
    require_positive,
    require_probability,
)
from transformer.decoding.search import greedy_search
from transformer.decoding.translator import Translator
from transformer.model import Transformer, TransformerConfig
from transformer.training.run_folder import read_run
from transformer.weights.state import load_strictly, shapes_only

pytestmark = pytest.mark.plain


def test_sizes_are_whole_numbers_of_at_least_one() -> None:
    require_positive(layers=1, heads=10**9)
    for wrong in (0, -3):
        with pytest.raises(ValueError, match=f"^heads must .* got {wrong!r}$"):
            require_positive(layers=1, heads=wrong)
    for wrong in (2.0, True, "4", None, math.nan):
        with pytest.raises(TypeError, match=f"^heads must .* got {wrong!r}$"):
            require_positive(layers=1, heads=wrong)
    with pytest.raises(TypeError, match=r"got .*50"):  # which no JSON could hold
        require_positive(heads=np.int64(50))


def test_probabilities_lie_below_one() -> None:
    require_probability(smoothing=0, decay=0.999)
    message = r"^decay must lie in \[0, 1\), got "
    for wrong in (1, 1.0, -0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match=message):
            require_probability(smoothing=0.1, decay=wrong)
    for wrong in ("0.1", None, True, False, np.float32(0.1)):
        with pytest.raises(TypeError, match=message):
            require_probability(smoothing=0.1, decay=wrong)


def test_a_beam_is_at_least_one_wide_and_its_penalty_finite() -> None:
    require_beam(1, 0)
    require_beam(1, np.float32(0.6))
    with pytest.raises(ValueError, match=r"beam_size .* got 0"):
        require_beam(0, 0.6)
    for wrong in (-0.1, math.inf, math.nan, None, "x"):
        with pytest.raises(
            (TypeError, ValueError), match=f"finite and at least 0, got {wrong!r}"
        ):
            require_beam(4, wrong)


def test_what_the_package_refuses_is_caught_by_one_class(tmp_path) -> None:
    """Wherever it comes from; and nothing else is caught."""
    (tmp_path / "model").write_bytes(b"no model")
    translator = Translator.phrasebook()
    for value, refused in (
        (0, lambda: require_positive(layers=0)),
        ("two", lambda: require_positive(layers="two")),
        ("file", lambda: Transformer.load(tmp_path / "model")),
        ("long", lambda: translator.translate("Jane " * 99)),
        ("source", lambda: greedy_search(translator.model, [[]], 3)),
        ("run", lambda: read_run(tmp_path)),
    ):
        with pytest.raises(TransformerError) as caught:
            refused()
        assert isinstance(caught.value, TypeError if value == "two" else ValueError)
    assert not issubclass(ValueError, TransformerError)


def test_labels_lie_in_the_vocabulary() -> None:
    require_labels(torch.tensor([0, 6]), 7)
    require_labels(torch.tensor([[9]], device="meta"), 7)  # reading it is not free
    for wrong in (torch.ones(2), torch.ones(2).bool()):
        with pytest.raises(TypeError, match="whole numbers, got torch"):
            require_labels(wrong, 7)
    for wrong in (-1, 7):
        with pytest.raises(
            ValueError, match=rf"labels must lie in 0\.\.6, got {wrong}"
        ):
            require_labels(torch.tensor([3, wrong]), 7)


def test_ids_elsewhere_are_checked_in_shape_alone(monkeypatch) -> None:
    require_ids(torch.empty(2, 3, dtype=torch.int64, device="meta"), 7)
    with pytest.raises(ValueError, match=r"got \(3,\)"):
        require_ids(torch.empty(3, dtype=torch.int64, device="meta"), 7)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    require_ids(torch.tensor([[9]]), 7)


def test_a_model_of_shapes_keeps_what_is_made_elsewhere():
    class Kept(Transformer):
        def __init__(self, config):
            super().__init__(config)
            draw = torch.Generator().manual_seed(0)
            numbers = torch.zeros(3, device="cpu")
            self.kept = nn.init.normal_(numbers, generator=draw)

    config = TransformerConfig(7, 7, 8, 2, 1, 1, 8, max_length=4)
    whole, before = Kept(config), torch.get_rng_state()
    with shapes_only():
        made = Kept(config)
    assert all(tensor.is_meta for tensor in made.state_dict().values())
    shapes = {name: tensor.shape for name, tensor in made.state_dict().items()}
    assert shapes == {n: tensor.shape for n, tensor in whole.state_dict().items()}
    assert made.kept.equal(whole.kept)
    assert torch.get_rng_state().equal(before)
    load_strictly(made, whole.state_dict())
    ids = torch.tensor([[3, 4]])
    assert made.eval()(ids, ids).equal(whole.eval()(ids, ids))
