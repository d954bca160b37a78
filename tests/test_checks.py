"""Each check lets through what is right and names what is wrong, in one line."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from transformer.checks import (
    TransformerError,
    optional_import,
    require_beam,
    require_device,
    require_ids,
    require_labels,
    require_mask,
    require_not_empty,
    require_positive,
    require_probability,
    require_same_length,
    require_string,
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


def test_lists_of_ids_are_no_tensor() -> None:
    with pytest.raises(TypeError, match=r"^source ids must be a tensor.* got a list$"):
        require_ids([[3, 4]], 7, "source ids")


def test_a_device_is_one_that_is_here() -> None:
    assert require_device("cpu") == require_device(torch.device("cpu"))
    assert require_device("meta").type == "meta"
    for wrong in ("nope", "cuda:99", ""):
        with pytest.raises(ValueError, match=rf"^no device '{wrong}' was found here"):
            require_device(wrong)


def test_text_is_no_list_and_no_bytes() -> None:
    require_string("a sentence", "")
    for wrong in (None, 7, b"un", ["un"]):
        with pytest.raises(TypeError, match=r"^a sentence must be text, got "):
            require_string("a sentence", wrong)


def test_probabilities_lie_below_one() -> None:
    require_probability(smoothing=0, decay=0.999)
    message = r"^decay must lie in \[0, 1\), got "
    for wrong in (1, 1.0, -0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match=message):
            require_probability(smoothing=0.1, decay=wrong)
    for wrong in ("0.1", None, True, False, np.float32(0.1)):
        with pytest.raises(TypeError, match=message):
            require_probability(smoothing=0.1, decay=wrong)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.tensor([[3, 7]]), r"^source ids must lie in 0\.\.6, got 7$"),
        (torch.tensor([[-1, 7]]), "got -1$"),
        (torch.tensor([[3.0]]), "int64 or int32, got torch.float32$"),
        (torch.tensor([[3]], dtype=torch.uint8), "got torch.uint8$"),
        (torch.tensor([3]), r"\(batch, length\), neither empty, got \(1,\)$"),
        (torch.ones(0, 2, dtype=torch.int64), r"got \(0, 2\)$"),
        (torch.ones(2, 0, dtype=torch.int32), r"got \(2, 0\)$"),
    ],
)
def test_ids_are_rows_of_the_table(ids, message) -> None:
    require_ids(torch.tensor([[0, 6]], dtype=torch.int32), 7)
    with pytest.raises((TypeError, ValueError), match=message):
        require_ids(ids, 7, "source ids")


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


def test_masks_are_boolean_and_broadcast() -> None:
    for shape in ((), (5,), (4, 5), (1, 1, 1, 5), (2, 1, 4, 1), (2, 3, 4, 5)):
        require_mask(torch.ones(shape, dtype=torch.bool), (2, 3, 4, 5))
    require_mask(None, (2, 3, 4, 5))
    for wrong in ((4,), (5, 4), (2, 5), (3, 1, 4, 5), (1, 2, 3, 4, 5)):
        with pytest.raises(ValueError, match=r"= \(2, 3, 4, 5\), got \("):
            require_mask(torch.ones(wrong, dtype=torch.bool), (2, 3, 4, 5))
    with pytest.raises(TypeError, match=r"True = may attend, got torch\.float32"):
        require_mask(torch.ones(4, 5), (2, 3, 4, 5))
    for wrong, kind in (
        ([[True]], "a list"),
        (torch.ones(1).bool().numpy(), "a ndarray"),
    ):
        with pytest.raises(TypeError, match=f"must be a boolean tensor, got {kind}"):
            require_mask(wrong, (2, 3, 4, 5))


def test_each_key_has_one_value() -> None:
    require_same_length(torch.ones(2, 4, 3), torch.ones(2, 4, 5))
    with pytest.raises(ValueError, match="got 4 keys and 5 values"):
        require_same_length(torch.ones(2, 4, 3), torch.ones(2, 5, 3))


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bias": None}, r'^Missing key\(s\) in state_dict: "bias"$'),
        ({"bias": None, "weight": None}, r'^Missing key\(s\) .*: "\w+"$'),
        ({"a": torch.ones(1), "b": torch.ones(1)}, r'^Unexpected key.*: "a"$'),
        ({"a\nb": torch.ones(1)}, "^Unexpected key"),
        ({"weight": torch.ones(2, 3)}, r"^size mismatch for weight: .*\(3, 2\)"),
        (
            {"weight": torch.ones(3, 2).int()},
            "^weight should be floats, got",
        ),
    ],
)
def test_a_state_that_does_not_fit_takes_one_line(change, message) -> None:
    state = {"weight": torch.ones(3, 2), "bias": torch.zeros(3)} | change
    state = {name: tensor for name, tensor in state.items() if tensor is not None}
    module = nn.Linear(2, 3, device="meta")
    with pytest.raises(ValueError, match=message) as caught:
        load_strictly(module, state)
    assert "\n" not in str(caught.value)


def test_a_state_that_fits_is_taken_as_it_is() -> None:
    module, weight = nn.Linear(2, 3, bias=False, device="meta"), torch.randn(3, 2)
    load_strictly(module, {"weight": weight})
    assert module.weight.equal(weight)
    assert module.weight.requires_grad


def test_a_missing_package_is_named() -> None:
    assert optional_import("math") is math
    message = "^this needs no_such_package: pip install no_such_package$"
    with pytest.raises(ImportError, match=message):
        optional_import("no_such_package.part")


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


def test_something_is_needed() -> None:
    require_not_empty("example", [1])
    for nothing in ([], (), {}, torch.ones(0)):
        with pytest.raises(ValueError, match=r"^at least one example is needed, "):
            require_not_empty("example", nothing)
