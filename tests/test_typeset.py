"""Formulas made into MathML: spaces, scripts, tables, and what is refused."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "book" / "_ext"))
from pages import mend
from typeset import FormulaError, mathml

MINUS = "−"


def test_letters_numbers_and_scripts() -> None:
    assert mathml("x_i^2") == (
        "<math><msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup></math>"
    )
    assert "<mn>37,000</mn>" in mathml("37{,}000")
    assert mathml(r"d_\text{model}") == (
        "<math><msub><mi>d</mi><mtext>model</mtext></msub></math>"
    )
    assert "<mo>″</mo>" not in mathml("f''")
    assert mathml("f'").count("′") == 1
    assert mathml(r"x^12") == mathml("x^1 2")  # as in TeX, one digit only


def test_a_minus_has_room_between_two_numbers_and_none_before_one() -> None:
    between, before = mathml("a - b"), mathml("= -1")
    assert f'lspace="0.2222em" rspace="0.2222em" stretchy="false">{MINUS}' in between
    assert f'lspace="0" rspace="0" stretchy="false">{MINUS}' in before


def test_a_named_function_stands_off_but_not_from_its_bracket() -> None:
    assert '<mspace width="0.1667em"/>' in mathml(r"\log x")
    assert "mspace" not in mathml(r"\log(x)")
    assert "<mi>softmax</mi>" in mathml(r"\operatorname{softmax}(x)")


def test_limits_stand_under_sums_and_beside_letters() -> None:
    assert "<munderover>" in mathml(r"\sum_{i=1}^n x_i", display=True)
    assert "<munder>" in mathml(r"\operatorname*{arg\,max}_w p")
    assert "<msubsup>" in mathml(r"\beta_1^t")


def test_columns_of_numbers_are_flush_right_those_of_letters_are_not() -> None:
    table = mathml(r"\begin{bmatrix} 1.0 & a \\ -0.5 & b \end{bmatrix}")
    assert table.count('<mtd class="right">') == 2
    assert table.count("<mtd>") == 2
    assert table.count("<mtr>") == 2
    assert table.count('fence="true"') == 2


def test_aligned_rows_keep_their_sign_and_their_room() -> None:
    text = mathml(r"\begin{aligned} a &= b \\[4pt] &+ c \end{aligned}", display=True)
    assert 'class="aligned" displaystyle="true"' in text
    assert 'style="padding-bottom:0.4em"' in text
    assert 'lspace="0.2222em" rspace="0.2222em" stretchy="false">+' in text


def test_words_may_hold_a_formula_and_are_no_markup() -> None:
    text = mathml(r"\text{if <b> $x$}")
    assert "&lt;b&gt;" in text
    assert "<mi>x</mi>" in text


@pytest.mark.parametrize(
    ("tex", "message"),
    [
        (r"\foo", "unknown command"),
        (r"\begin{tikzpicture}x\end{tikzpicture}", "unknown environment"),
        (r"\begin{aligned} x \end{split}", "ends as split"),
        (r"\left( x", r"without \\right"),
        (r"\frac{1}", "argument is missing"),
        ("x^", "argument is missing"),
        ("x^a^b", "two superscripts"),
        ("{x", "expected '}'"),
        ("x}", "unexpected '}'"),
        (r"\text{x", "brace is missing"),
    ],
)
def test_what_cannot_be_typeset_is_refused(tex: str, message: str) -> None:
    with pytest.raises(FormulaError, match=message):
        mathml(tex)


def test_no_line_breaks_between_a_formula_and_its_comma() -> None:
    formula = "<math><mi>x</mi></math>"
    context = {"body": f"<p>({formula}), then {formula}; last {formula}</p>"}
    mend(None, "", "", context, None)
    kept = '<span class="kept">{}</span>'
    assert context["body"] == (
        f"<p>{kept.format(f'({formula}),')} then {kept.format(f'{formula};')}"
        f" last {formula}</p>"
    )
