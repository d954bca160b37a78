"""The recurrent network of one number with its two sliders, as a piece of HTML."""

import re

import pytest
import torch

from bookkit import OneNumber
from bookkit.memory import one_number


@pytest.mark.parametrize(("u", "jane"), [(0.5, 1.0), (1.5, 0.1), (2.0, 0.7)])
def test_state_and_gradient_are_pytorchs(u: float, jane: float) -> None:
    first = torch.tensor(jane, dtype=torch.float64, requires_grad=True)
    state = torch.tanh(first)
    for word, (here, left) in enumerate(one_number(u, jane, 9)):
        state = torch.tanh(u * state) if word else state
        (gradient,) = torch.autograd.grad(state, first, retain_graph=True)
        assert here == pytest.approx(state.item(), rel=1e-12)
        assert left == pytest.approx(gradient.item(), rel=1e-9)


def test_without_a_script_it_is_a_picture_and_a_table() -> None:
    page = OneNumber()._repr_html_().partition("<script>")[0]
    assert page.count("<rect") == page.count("<circle") == 12
    cells = re.findall(r"<td>(.*?)</td>", page)
    assert cells[:6] == ["0.76", "0.42", "0.36", "0.18", "0.18", "0.09"]
    assert len(cells) == 24
    said = "After 12 words the state is 3 · 10⁻⁴; a nudge of Jane moves it by 2 · 10⁻⁴"
    assert said in page
    assert '<p class="one-sliders" hidden>' in page


def test_the_picture_has_the_numbers_it_was_given() -> None:
    page = OneNumber(u=2, jane=0.5, words=5)._repr_html_()
    assert page.count("<rect") == 5
    assert 'name="u" min="0" max="3" step="0.1" value="2"' in page
    assert "words = 5;" in page
    tall = [float(height) for height in re.findall(r'height="([\d.]+)"/>', page)]
    states = [state for state, _ in one_number(2, 0.5, 5)]
    assert tall == pytest.approx([84 * state for state in states], abs=0.06)
    below = [float(y) for y in re.findall(r'cy="([\d.]+)"', page)]
    assert below == sorted(below)  # less and less is left


def test_a_gradient_of_nothing_stands_at_the_foot() -> None:
    assert [left for _, left in one_number(0.0, 1.0, 3)][1:] == [0, 0]
    below = re.findall(r'cy="([\d.]+)"', OneNumber(u=0)._repr_html_())
    assert set(below[1:]) == {"260.0"}


def test_pages_tell_themselves_apart() -> None:
    key = re.compile(r'data-onenumber="(\w+)"')
    one, other = OneNumber()._repr_html_(), OneNumber(u=1)._repr_html_()
    assert key.search(one)[1] != key.search(other)[1]
    assert one == OneNumber(u=0.5, jane=1.0, words=12)._repr_html_()
    assert repr(OneNumber(u=1)) == "OneNumber(u=1, jane=1, 12 words)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"u": -0.1}, r"u must lie in 0\.\.3, got -0\.1"),
        ({"u": 3.5}, r"u must lie in 0\.\.3, got 3\.5"),
        ({"jane": 0}, r"jane must lie in 0\.1\.\.1, got 0"),
        ({"words": 1}, "two words at least, got 1"),
    ],
)
def test_numbers_that_no_slider_has_are_refused(
    options: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        OneNumber(**options)  # type: ignore[arg-type]
