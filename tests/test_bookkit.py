import base64
import re
import struct

import matplotlib.pyplot as plt
import pytest
import torch
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from bookkit import (
    AttentionView,
    Verdict,
    begin,
    exercise,
    figures,
    heatmap,
    matrix,
    right,
    show,
    wrong,
)


@pytest.fixture
def shown(monkeypatch) -> list:
    """What reaches the page."""
    found: list = []
    monkeypatch.setattr(figures, "display", found.append)
    begin()
    return found


def draw(colour: str = "C0") -> plt.Figure:
    figure, ax = plt.subplots()
    ax.plot([0, 1], [1, 3], color=colour)
    ax.set(xlabel="step", ylabel="loss")
    return figure


def test_a_figure_is_one_described_svg_that_scales(shown) -> None:
    show(draw(), alt='The loss "falls" & stays.')
    svg = shown[0]._repr_html_()
    assert svg.startswith("<svg")
    assert 'role="img"' in svg
    assert 'aria-label="The loss &quot;falls&quot; &amp; stays."' in svg
    assert "width:100%" in svg
    assert not re.search(r'<svg[^>]* width="', svg)
    assert repr(shown[0]) == '<figure: The loss "falls" & stays.>'


def test_figures_take_the_themes_colours(shown) -> None:
    show(draw("C1"), alt="A line.")
    svg = shown[0]._repr_html_()
    assert "var(--fig-2, #d55e00)" in svg
    assert "#000000" not in svg
    assert "currentColor" in svg
    assert "font-family: inherit" in svg


def test_the_squares_of_a_heat_map_share_a_class_and_no_id(shown) -> None:
    figure, ax = plt.subplots()
    heatmap(ax, torch.tensor([[0.5, -1.0], [0.0, 1.0]]))
    show(figure, alt="Four squares.", phone=False)
    svg = shown[0]._repr_html_()
    for name in ("heat", "number"):
        assert svg.count(f'<g class="{name}') == 4
        assert not re.search(rf'id="[^"]*{name}', svg)


def test_a_map_of_weights_is_amber_and_an_exact_zero_is_empty(shown) -> None:
    for options in ({"weights": True}, {"hollow": True}, {}):
        _, ax = plt.subplots()
        heatmap(ax, torch.tensor([[0.5, 0.0, -0.5]]), **options)
        show(ax.figure, alt="Three squares.", phone=False)
    weights, hollow, full = (each._repr_html_() for each in shown)
    assert [svg.count('<g class="heat">') for svg in (weights, hollow, full)] == [
        2,
        2,
        3,
    ]
    hues = [
        re.findall(r"fill: var\(--([\w-]+)", svg) for svg in (weights, hollow, full)
    ]
    assert hues[0] == ["heat-weight", "heat-weight"]
    assert hues[1] == ["heat-plus", "heat-minus"]
    assert hues[2] == ["heat-plus", "heat-minus"]  # and a zero without colour


def test_only_a_square_with_room_has_its_number(shown) -> None:
    values = torch.full((5, 5), 0.5)
    for inches in (4.4, 1.4):
        figure, ax = plt.subplots(figsize=(inches, inches))
        heatmap(ax, values)
        show(figure, alt="A table.")
    figure, axes = plt.subplots(1, 2, figsize=(6, 2))  # on a phone one below the other
    for ax in axes:
        heatmap(ax, values[:, :3])
        ax.set_aspect("auto")
    show(figure, alt="Two tables.")
    large, small, both = (each._repr_html_() for each in shown)
    assert [svg.count('<g class="number ') for svg in (large, small)] == [25, 0]
    wide, phone = both.split("<svg")[1:]
    assert wide.count('<g class="number ') == 30
    assert phone.count('<g class="number ') in (0, 30)
    # One drawing for all widths: a phone's, the least, decides.
    figure, ax = plt.subplots(figsize=(4.7, 4.7))
    heatmap(ax, torch.full((13, 13), 0.5))
    show(figure, alt="Thirteen by thirteen.")
    assert '<g class="number ' not in shown[-1]._repr_html_()


def test_a_view_has_numbers_only_in_squares_with_room() -> None:
    for tokens, numbers in ((8, True), (12, True), (13, False)):
        page = AttentionView(torch.eye(tokens), [*map(str, range(tokens))])
        text = page._repr_html_()
        assert ('class="attn-value"' in text) == numbers
        (side,) = set(re.findall(r'<rect[^>]* width="(\d+)"', text))
        least, width = (
            float(re.search(rf"--attn-{name}: (\d+)px", text)[1])
            for name in ("least", "width")
        )
        assert (int(side) * least / width >= 27.9) == numbers


def test_a_wide_figure_is_drawn_again_for_a_phone(shown) -> None:
    _, axes = plt.subplots(1, 2, figsize=(6, 2), sharey=True)
    axes[0].set(ylabel="loss")
    show(axes[0].figure, alt="Two panels.")
    for width, phone in ((4, True), (6, False)):
        show(plt.figure(figsize=(width, 3)), alt="Nothing.", phone=phone)
    show(plt.figure(figsize=(6, 2)), alt="Nothing.")
    twice, narrow, kept, empty = (each._repr_html_() for each in shown)
    assert [svg.count("<svg") for svg in (twice, narrow, kept, empty)] == [2, 1, 1, 2]
    wide, small = re.findall(r'<svg[^>]*viewBox="0 0 ([\d.]+) ([\d.]+)"', twice)
    assert float(wide[0]) > float(small[0])  # a notebook shows the first alone
    assert float(wide[1]) < float(small[1])  # one panel below the other
    assert twice.count("display:none") == 1
    assert twice.index("display:none") > twice.index("<svg", 5)


def test_letters_over_a_map_stand_upright_and_words_lean() -> None:
    weights = torch.full((2, 2), 0.5)
    assert "rotate(" not in AttentionView(weights, ["a", "b"])._repr_html_()
    assert "rotate(-50)" in AttentionView(weights, ["a", "is"])._repr_html_()


def test_a_figure_styles_nothing_else_on_the_page(shown) -> None:
    show(draw(), alt="A line.")
    svg = shown[0]._repr_html_()
    assert "<style" not in svg
    assert 'stroke-linejoin="round"' in svg


def test_the_same_figure_is_the_same_text_and_others_share_no_id(shown) -> None:
    for colour in ("C0", "C0", "C3"):
        show(draw(colour), alt="A line.")
    first, again, other = (figure._repr_html_() for figure in shown)
    assert first == again

    def ids(svg: str) -> set[str]:
        return set(re.findall(r'\bid="([^"]+)"', svg))

    assert ids(first)
    assert not ids(first) & ids(other)
    for used in re.findall(r'(?:url\(|href=")#([^)"]+)', first):
        assert used in ids(first)


@pytest.mark.parametrize("alt", ["", "  \n"])
def test_a_figure_without_alt_text_is_refused(alt) -> None:
    with pytest.raises(ValueError, match="alt text"):
        show(draw(), alt=alt)


def test_a_heat_map_writes_its_numbers(shown) -> None:
    figure, ax = plt.subplots()
    heatmap(ax, torch.tensor([[0.5, -0.001]]), rows=["a"], cols=["x", "y"])
    show(figure, alt="Two numbers.")
    svg = shown[0]._repr_html_()
    assert ">0.50<" in svg
    assert ">0.00<" in svg
    assert "-0.00" not in svg


def test_begin_repeats_the_random_numbers() -> None:
    begin(seed=3)
    first = torch.rand(3)
    begin(seed=3)
    assert torch.rand(3).equal(first)


def test_chapters_run_on_one_thread_unless_a_reader_asks_for_more(monkeypatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.setenv("BOOK_THREADS", "2")
    begin()
    assert torch.get_num_threads() == 2
    monkeypatch.delenv("BOOK_THREADS")
    begin()
    assert torch.get_num_threads() == 1
    torch.set_num_threads(before)


def test_matrices_are_typeset_rounded_and_without_minus_zero() -> None:
    values = torch.tensor([[1.005, -2.0], [-0.001, 3.14159]])
    expected = r"\begin{bmatrix} 1.0 & -2.0 \\ 0.0 & 3.1 \end{bmatrix}"
    assert matrix(values, digits=1) == expected
    assert matrix(values[1]) == r"\begin{bmatrix} 0.00 & 3.14 \end{bmatrix}"
    row = r"\begin{bmatrix} 1 & 2 \end{bmatrix}"
    assert matrix(torch.tensor([1.0, 2.0]), digits=0) == row


def test_a_matrix_that_is_not_whole_is_not_shown_as_whole() -> None:
    row = r"\begin{{bmatrix}} {} & {} \end{{bmatrix}}"
    assert matrix(torch.tensor([0.0, 1.5]), digits=0) == row.format("0.00", "1.50")
    assert matrix(torch.tensor([1 / 3, 1.0]), digits=0) == row.format("0.33", "1.00")
    assert matrix(torch.tensor([11, -12]), digits=0) == row.format("11", "-12")
    hidden = torch.tensor([3.0, -torch.inf])
    assert matrix(hidden, digits=0) == row.format("3", "-inf")


@exercise
def check_double(answer) -> Verdict:
    if answer(3) == 9:
        return wrong("You squared: doubling adds a number to itself.")
    return right("Doubled.") if answer(3) == 6 else wrong("Not doubled.")


def test_an_exception_in_an_answer_is_named() -> None:
    def fails(x):
        raise KeyError("mask")

    assert repr(check_double(fails)) == "✗ your code raised KeyError: 'mask'"
    assert check_double(lambda: 6).kind == "wrong"
    said = repr(check_double(lambda x: next(iter([]))))
    assert said == "✗ your code raised StopIteration"


def test_a_long_exception_still_makes_one_line() -> None:
    def fails(x):
        raise RuntimeError("sizes differ:\n  2\n  3")

    said = repr(check_double(fails))
    assert said == "✗ your code raised RuntimeError: sizes differ: 2 3"


@exercise
def check_sizes(answer) -> Verdict:
    near = answer(torch.ones(3), 2) == 5 and answer(torch.ones(2, 3), 4) == 10
    return right("Added.") if near else wrong("Not added.")


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        (lambda x, n: x.expand(3).sum() + n, "written in?"),
        (lambda x, n: (x + torch.ones(len(x) + 1)).sum(), "keepdim=True keeps it?"),
        (lambda x, n: 5 if n == 2 else (x > 0).mean(), ".double() makes decimals"),
        (lambda x, n: x.backward(), "requires_grad_()"),
    ],
)
def test_an_exception_comes_with_what_often_lies_behind_it(fails, said) -> None:
    verdict = repr(check_sizes(fails))
    assert said in verdict
    later = "runs on the first example, but for `x` of shape (2, 3), `n` = 4 your code"
    assert (later in verdict) == ("written" in said or "decimals" in said)


def test_a_parameter_is_written_into_without_gradients() -> None:
    def fails(x, n):
        torch.nn.Linear(2, 2).weight.mul_(2)

    assert "`with torch.no_grad():`" in repr(check_sizes(fails))


def test_where_a_loop_deletes_the_list_grows_shorter() -> None:
    def fails(x, n):
        rows = [1, 1]
        for at in range(2):
            if n == 4 and rows[at] == 1:
                del rows[at]
        return 5

    assert "use `while`" in repr(check_sizes(fails))


TOKENS = ["Jane", "visite", "l'Afrique"]


def test_the_view_carries_every_weight_to_two_digits() -> None:
    weights = torch.rand(2, 4, 3, 3).softmax(-1)
    page = AttentionView(weights, TOKENS)._repr_html_()
    data = re.search(r'atob\("([^"]+)"\)', page)[1]
    levels = struct.unpack(f"<{2 * 4 * 9}H", base64.b64decode(data))
    back = torch.tensor(levels).view(2, 4, 3, 3) / 60_000
    torch.testing.assert_close(back, weights, rtol=0, atol=1e-5)
    assert "/ 60000" in page


def test_only_a_weight_of_exactly_zero_looks_masked() -> None:
    weights = torch.tensor([[1.0, 0.0], [1 - 1e-9, 1e-9]], dtype=torch.float64)
    page = AttentionView(weights, ["a", "b"])._repr_html_()
    data = re.search(r'atob\("([^"]+)"\)', page)[1]
    levels = struct.unpack("<4H", base64.b64decode(data))
    assert levels[1] == 0
    assert levels[3] > 0


def test_the_view_survives_any_token_and_tells_itself_apart() -> None:
    nasty = ["</script>", '"`${}', "<b>"]
    page = AttentionView(torch.eye(3), nasty, title="<i>&")._repr_html_()
    assert page.count("</script>") == 1
    assert "&lt;i&gt;&amp;" in page
    assert page == AttentionView(torch.eye(3), nasty, title="<i>&")._repr_html_()
    other = AttentionView(torch.eye(3).flip(0), nasty, title="<i>&")._repr_html_()
    key = re.compile(r'data-attnview="(\w+)"')
    assert key.search(page)[1] != key.search(other)[1]
    assert repr(AttentionView(torch.eye(3), TOKENS)) == (
        "AttentionView(1×1 maps of 3×3 weights)"
    )


def test_a_view_opens_where_it_is_told_to() -> None:
    weights = torch.rand(2, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    page = AttentionView(weights, TOKENS, start=(1, 2, 2, 0))._repr_html_()
    said = re.search(r'<p class="attn-say"[^>]*>([^<]*)</p>', page)[1]
    weight = f"{weights[1, 2, 2, 0]:.2f}"
    assert said == f"“l&#x27;Afrique” gives “Jane” weight {weight} (layer 2, head 3)."
    table = re.findall(r"<td>([\d.]+)</td>", page)
    assert table == [f"{each:.3f}" for each in weights[1, 2].flatten().tolist()]
    drawn = re.findall(r"<rect[^>]* style=\"--w:([\d.]+)\"", page)
    assert drawn == [f"{each:.3f}" for each in weights[1, 2].flatten().tolist()]
    sliders = re.findall(r'max="(\d)" value="(\d)"[^>]*> <span><output>(\d)<', page)
    assert sliders == [("1", "1", "2"), ("3", "2", "3")]
    assert "let q = 2, k = 0;" in page
    elsewhere = AttentionView(weights, TOKENS)._repr_html_()
    key = re.compile(r'data-attnview="(\w+)"')
    assert key.search(page)[1] != key.search(elsewhere)[1]  # two views on one page
    third = AttentionView(weights[:1], TOKENS, first_layer=3, start=(0, 1, 0, 0))
    assert "(layer 3, head 2)" in third._repr_html_()
    zeroth = AttentionView(weights[:1], TOKENS, first_layer=0)
    assert "(layer 0, head 1)" in zeroth._repr_html_()


@pytest.mark.parametrize("start", [(2, 0, 0, 0), (0, 0, 3, 0), (0, 0, 0, -1), (1, 0)])
def test_a_view_opens_only_where_there_is_a_weight(start) -> None:
    with pytest.raises(ValueError, match="no weight at"):
        AttentionView(torch.full((2, 1, 3, 3), 0.1), TOKENS, start=start)


def test_views_of_one_page_share_their_style_and_keep_their_own_width() -> None:
    """A style holds for its whole page: nothing in it may be of one view alone."""
    styles, widths = set(), []
    for tokens in (3, 12):
        names = [f"word {number}" for number in range(tokens)]
        page = AttentionView(torch.eye(tokens), names)._repr_html_()
        styles |= set(re.findall(r"<style>.*?</style>", page, re.DOTALL))
        (drawn,) = re.findall(r'viewBox="0 0 (\d+) ', page)
        (own,) = re.findall(r'<div class="attnview"[^>]*--attn-width: (\d+)px', page)
        assert drawn == own
        widths.append(int(own))
    assert len(styles) == 1
    assert widths[0] < widths[1]


@pytest.mark.parametrize(
    ("weights", "keys", "message"),
    [
        (torch.ones(3), None, "2 to 4 dimensions, got 1"),
        (torch.ones(3, 2), None, r"\(3, 2\) tokens, got \(3, 3\)"),
        (torch.ones(3, 3), ["a"], r"\(3, 3\) tokens, got \(3, 1\)"),
        (torch.full((3, 3), -0.1), None, "between 0 and 1"),
        (torch.full((3, 3), float("nan")), None, "between 0 and 1"),
    ],
)
def test_the_view_refuses_what_are_no_weights(weights, keys, message) -> None:
    with pytest.raises(ValueError, match=message):
        AttentionView(weights, TOKENS, keys)


def test_a_readers_own_plot_is_shown_and_the_books_is_shown_once(
    monkeypatch,
) -> None:
    """In a kernel, whose plots appear where a cell ends or asks for them."""
    monkeypatch.delenv("MPLBACKEND")
    notebook = new_notebook(
        cells=[
            new_code_cell("import matplotlib.pyplot as plt"),
            new_code_cell("from bookkit import begin, show\nbegin()"),
            new_code_cell("plt.plot([1, 2])\nplt.show()"),
            new_code_cell("figure, ax = plt.subplots()\nshow(figure, alt='A square.')"),
        ]
    )
    NotebookClient(notebook, timeout=120).execute()
    _, begun, own, book = (cell.outputs for cell in notebook.cells)
    assert begun == []
    assert ["image/png" in each.get("data", {}) for each in own] == [True]
    (shown,) = book
    assert shown.data["text/html"].startswith("<svg")
