"""Chapter 18: the encoder over patches of a series and of images."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from transformer.beyond.forecaster import (
    Forecast,
    Forecaster,
    ScaledByWindow,
    forecast_loss,
)
from transformer.beyond.patch_classifier import PatchClassifier, image_patches


def forecaster(patch_size=4, horizon=3, d_model=16, num_layers=2, **kwargs):
    torch.manual_seed(0)
    return Forecaster(patch_size, horizon, d_model, 4, 32, num_layers, **kwargs).eval()


def scaled(**kwargs):
    return ScaledByWindow(forecaster(**kwargs))


def classifier(image_size=8, patch_size=2, num_classes=5, d_model=16, **kwargs):
    torch.manual_seed(0)
    sizes = {"num_heads": 4, "d_ff": 32, "num_layers": 2} | kwargs
    return PatchClassifier(image_size, patch_size, num_classes, d_model, **sizes).eval()


def by_loops(images, size):
    """Patches as the docstring has them: row by row, and row by row within."""
    _, height, width = images.shape
    return torch.stack(
        [
            images[:, top : top + size, left : left + size].flatten(1)
            for top in range(0, height, size)
            for left in range(0, width, size)
        ],
        dim=1,
    )


@given(
    batch=st.integers(1, 3),
    rows=st.integers(1, 4),
    columns=st.integers(1, 4),
    size=st.integers(1, 4),
)
@settings(max_examples=25, deadline=None)
def test_patches_are_cut_row_by_row(batch, rows, columns, size):
    images = torch.randn(batch, rows * size, columns * size)
    patches = image_patches(images, size)
    assert patches.shape == (batch, rows * columns, size**2)
    assert patches.equal(by_loops(images, size))


@given(
    batch=st.integers(1, 3),
    patches=st.integers(1, 6),
    patch_size=st.integers(1, 5),
    horizon=st.integers(1, 7),
)
@settings(max_examples=12, deadline=None)
def test_a_forecast_has_a_distribution_for_every_step(
    batch, patches, patch_size, horizon
):
    model = forecaster(patch_size, horizon, num_layers=1)
    forecast = model(torch.randn(batch, patches * patch_size))
    assert forecast.mean.shape == forecast.std.shape == (batch, horizon)
    assert (forecast.std > 0).all()


@given(batch=st.integers(1, 3), side=st.integers(1, 4), patch_size=st.integers(1, 4))
@settings(max_examples=12, deadline=None)
def test_every_image_gets_a_score_for_every_class(batch, side, patch_size):
    size = side * patch_size
    model = classifier(size, patch_size, num_classes=7)
    assert model(torch.randn(batch, size, size)).shape == (batch, 7)


def test_what_else_is_in_the_batch_changes_nothing():
    history, images = torch.randn(4, 24), torch.randn(4, 8, 8)
    model = forecaster()
    for whole, alone in zip(model(history), model(history[2:3]), strict=True):
        torch.testing.assert_close(whole[2:3], alone)
    model = classifier()
    torch.testing.assert_close(model(images)[2:3], model(images[2:3]))


def test_every_value_of_the_history_and_every_pixel_counts():
    history = torch.randn(1, 24, requires_grad=True)
    forecaster()(history).mean.sum().backward()
    assert (history.grad != 0).all()
    images = torch.randn(1, 8, 8, requires_grad=True)
    classifier()(images)[0, 0].backward()
    assert (images.grad != 0).all()


def test_the_order_of_a_series_counts_and_without_positions_only_the_last_patch():
    history = torch.randn(2, 24)
    swapped = history.view(2, 6, 4)[:, [1, 0, 3, 2, 4, 5]].flatten(1)
    model = forecaster()
    assert (model(swapped).mean - model(history).mean).abs().max() > 1e-3
    model.position = nn.Identity()
    torch.testing.assert_close(model(swapped).mean, model(history).mean)
    last = history.view(2, 6, 4)[:, [0, 1, 2, 3, 5, 4]].flatten(1)
    assert (model(last).mean - model(history).mean).abs().max() > 1e-3


def test_a_shuffle_of_patches_is_a_shuffle_of_positions():
    model, images = classifier(), torch.randn(3, 8, 8)
    nn.init.normal_(model.position.table.weight)
    order = torch.randperm(16)
    grid = image_patches(images, 2)[:, order].view(3, 4, 4, 2, 2)
    shuffled = grid.transpose(2, 3).reshape(3, 8, 8)
    before = model(images)
    assert (model(shuffled) - before).abs().max() > 0.01
    with torch.no_grad():
        model.position.table.weight.copy_(model.position.table.weight[order])
    torch.testing.assert_close(model(shuffled), before)
    model.position = nn.Identity()
    torch.testing.assert_close(model(shuffled), model(images))


def test_the_encoder_is_the_books_and_positions_are_not_trained_with_a_series():
    names = {name for name, _ in forecaster().named_parameters()}
    assert not any(name.startswith("position") for name in names)
    assert "position.table.weight" in dict(classifier().named_parameters())
    for model in (forecaster(), classifier()):
        kinds = {type(m).__module__ for m in model.encoder.modules()}
        assert all(k.startswith(("transformer.", "torch.nn")) for k in kinds)


def test_the_loss_is_the_gaussians_without_its_constant():
    mean, actual = torch.randn(2, 5, 3).unbind()
    std = torch.rand(5, 3) + 0.1
    expected = nn.functional.gaussian_nll_loss(mean, actual, std.square())
    torch.testing.assert_close(forecast_loss(Forecast(mean, std), actual), expected)


def test_the_loss_is_least_at_the_true_mean_and_deviation():
    actual = torch.randn(1, 4000) * 3 + 2
    best = forecast_loss(
        Forecast(*(torch.full((1, 4000), x) for x in (2.0, 3.0))), actual
    )
    for mean, std in ((1.0, 3.0), (3.0, 3.0), (2.0, 2.0), (2.0, 4.0)):
        other = Forecast(*(torch.full((1, 4000), x) for x in (mean, std)))
        assert forecast_loss(other, actual) > best + 0.02


@given(
    shift=st.floats(-100, 100),
    stretch=st.floats(0.1, 100),
    patches=st.integers(1, 4),
)
@settings(max_examples=25, deadline=None)
def test_scaled_by_window_a_forecast_shifts_and_stretches_with_the_window(
    shift, stretch, patches
):
    model = scaled().double()
    history = torch.randn(3, 4 * patches, dtype=torch.float64)
    before, after = model(history), model(stretch * history + shift)
    torch.testing.assert_close(after.mean, stretch * before.mean + shift)
    torch.testing.assert_close(after.std, stretch * before.std)


def test_scaled_by_window_the_forecaster_reads_mean_0_and_deviation_1():
    inner = forecaster()
    read = []
    inner.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    history = 50 + 20 * torch.randn(3, 24)
    forecast = ScaledByWindow(inner)(history)
    torch.testing.assert_close(read[0].mean(dim=1), torch.zeros(3), atol=1e-5, rtol=0)
    deviation = read[0].std(dim=1, correction=0)
    torch.testing.assert_close(deviation, torch.ones(3))
    mean, std = inner(read[0])
    spread = history.std(dim=1, correction=0, keepdim=True)
    expected = history.mean(dim=1, keepdim=True) + spread * mean
    torch.testing.assert_close(forecast.mean, expected)
    torch.testing.assert_close(forecast.std, spread * std)


@pytest.mark.parametrize("value", [0.0, 0.1, -1000.0])
def test_scaled_by_window_a_constant_window_has_its_value_and_a_gradient(value):
    model = scaled(patch_size=1)
    for length in (1, 8):
        history = torch.full((2, length), value, requires_grad=True)
        forecast = model(history)
        torch.testing.assert_close(
            forecast.mean, torch.full((2, 3), value), atol=5e-5, rtol=1e-6
        )
        assert (forecast.std > 0).all()
        loss = forecast_loss(forecast, torch.full((2, 3), value + 1))
        loss.backward()
        assert loss.isfinite()
        assert history.grad.isfinite().all()
        assert all(weight.grad.isfinite().all() for weight in model.parameters())


def test_scaled_by_window_holds_the_forecasters_weights_and_no_others():
    inner = forecaster()
    saved = ScaledByWindow(inner).state_dict()
    assert list(saved) == [f"forecaster.{name}" for name in inner.state_dict()]
    other = ScaledByWindow(Forecaster(4, 3, 16, 4, 32, 2)).eval()
    other.load_state_dict(saved)
    history = torch.randn(2, 24)
    for ours, theirs in zip(
        ScaledByWindow(inner)(history), other(history), strict=True
    ):
        assert ours.equal(theirs)


def test_both_learn():
    torch.manual_seed(0)
    model, time = forecaster(num_layers=1, dropout=0.1).train(), torch.arange(27.0)
    adam = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(100):
        waves = (time * 0.7 + torch.rand(16, 1) * 6.28).sin()
        adam.zero_grad()
        forecast_loss(model(waves[:, :24]), waves[:, 24:]).backward()
        adam.step()
    waves = (time * 0.7 + torch.rand(64, 1) * 6.28).sin()
    forecast = model.eval()(waves[:, :24])
    error = (forecast.mean - waves[:, 24:]).abs()
    assert error.mean() < 0.2 < (waves[:, 23:24] - waves[:, 24:]).abs().mean()
    assert ((error < 3 * forecast.std).float().mean()) > 0.9

    model = classifier(num_classes=2, num_layers=1).train()
    adam = torch.optim.Adam(model.parameters(), 5e-3)
    corner = torch.zeros(2, 8, 8)
    corner[0, :2, :2] = corner[1, 6:, 6:] = 3  # the same patch in two places
    for _ in range(60):
        labels = torch.randint(2, (32,))
        adam.zero_grad()
        images = corner[labels] + torch.randn(32, 8, 8) * 0.3
        nn.functional.cross_entropy(model(images), labels).backward()
        adam.step()
    labels = torch.randint(2, (200,))
    guesses = model.eval()(corner[labels] + torch.randn(200, 8, 8) * 0.3).argmax(-1)
    assert (guesses == labels).float().mean() > 0.95


@pytest.mark.plain
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Forecaster(0, 3, 16, 4, 32, 1), "patch_size must be .* got 0"),
        (lambda: Forecaster(4, 0, 16, 4, 32, 1), "horizon must be .* got 0"),
        (lambda: Forecaster(4, 3, 16, 4, 0, 1), "d_ff must be .* got 0"),
        (lambda: Forecaster(4, 3, 15, 5, 32, 1), "d_model must be even.* got 15"),
        (lambda: Forecaster(4, 3, 16, 5, 32, 1), "num_heads must divide d_model"),
        (lambda: Forecaster(4, 3, 16, 4, 32, 0), "num_layers must be .* got 0"),
        (lambda: forecaster(dropout=1.0), "dropout must lie in .* got 1.0"),
        (
            lambda: forecaster()(torch.randn(2, 23)),
            r"a multiple of patch_size = 4, got \(2, 23\)",
        ),
        (lambda: forecaster()(torch.randn(24)), r"\(batch, length\).* got \(24,\)"),
        (lambda: forecaster()(torch.randn(2, 0)), r"got \(2, 0\)"),
        (lambda: scaled()(torch.randn(2, 23)), r"patch_size = 4, got \(2, 23\)"),
        (lambda: scaled()(torch.randn(24)), r"\(batch, length\).* got \(24,\)"),
        (lambda: scaled()(torch.randn(2, 0)), r"got \(2, 0\)"),
        (lambda: scaled()(torch.ones(2, 8).long()), "floating point, got torch.int64"),
        (lambda: forecaster()(torch.ones(2, 8).long()), "floating point, got torch.i"),
        (
            lambda: forecaster(1)(torch.randn(1, 1025)),
            r"positions must lie in 0\.\.1023, got 0\.\.1024",
        ),
        *(
            (
                lambda shape=shape: forecast_loss(
                    Forecast(torch.zeros(4, 3), torch.ones(4, 3)), torch.zeros(shape)
                ),
                re.escape(f"one shape, got {shape}, {(4, 3)} and {(4, 3)}"),
            )
            for shape in ((4, 1), (3,), (4, 2))
        ),
        (
            lambda: forecast_loss(
                Forecast(torch.zeros(4, 3), torch.ones(4, 1)), torch.zeros(4, 3)
            ),
            re.escape(f"one shape, got {(4, 3)}, {(4, 3)} and {(4, 1)}"),
        ),
        (lambda: image_patches(torch.randn(1, 8, 8), 0), "size must be .* got 0"),
        (
            lambda: image_patches(torch.randn(1, 8, 9), 2),
            r"a multiple of size = 2, got \(1, 8, 9\)",
        ),
        (
            lambda: image_patches(torch.randn(8, 8), 2),
            r"images must be .* got \(8, 8\)",
        ),
        (lambda: classifier(8, 3), "patch_size must divide image_size, got 3 and 8"),
        (lambda: classifier(0, 1), "image_size must be .* got 0"),
        (lambda: classifier(num_classes=0), "num_classes must be .* got 0"),
        (lambda: classifier(num_heads=3), "num_heads must divide d_model"),
        (lambda: classifier(dropout=-0.1), "dropout must lie in .* got -0.1"),
        (
            lambda: classifier()(torch.randn(2, 6, 6)),
            r"images must be \(batch, 8, 8\), got \(2, 6, 6\)",
        ),
        (lambda: classifier()(torch.randn(8, 8)), r"images must be .* got \(8, 8\)"),
        (lambda: classifier()(torch.randn(0, 8, 8)), r"got \(0, 8, 8\)"),
        (lambda: classifier()(torch.ones(1, 8, 8).int()), "floating point, got torch"),
    ],
)
def test_bad_input_is_named(make, said):
    with pytest.raises(ValueError, match=said):
        make()


@pytest.mark.parametrize("log_std", [-110.0, 110.0])
def test_a_forecast_surer_than_a_number_can_say_has_a_loss(log_std) -> None:
    model = forecaster()
    with torch.no_grad():
        model.output.bias[3:] = log_std
    loss = forecast_loss(model(torch.zeros(2, 8)), torch.ones(2, 3))
    loss.backward()
    assert loss.isfinite()
    assert all(weight.grad.isfinite().all() for weight in model.parameters())


@pytest.mark.parametrize("log_std", [-110.0, 11.5, 110.0])
def test_in_half_precision_a_deviation_is_neither_zero_nor_infinite(log_std) -> None:
    model = Forecaster(4, 3, 8, 2, 16, 1)
    with torch.no_grad():
        model.output.weight.zero_()
        model.output.bias[3:] = log_std
    for dtype in (torch.float16, torch.bfloat16):
        std = model.to(dtype)(torch.randn(2, 8).to(dtype)).std
        assert std.dtype == dtype
        assert std.isfinite().all()
        assert (std > 0).all()
