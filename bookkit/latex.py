"""Matrices from the run, typeset."""

from IPython.display import Math, display
from torch import Tensor


def matrix(values: Tensor, digits: int = 2) -> str:
    """LaTeX for a vector (as a row) or a matrix, each number rounded to `digits`.

    With `digits` 0, numbers that are not all whole get two.
    """
    values = values.detach()
    if digits == 0 and not values.allclose(values.round(), rtol=0, atol=1e-6):
        digits = 2
    rows = values.reshape(-1, values.size(-1)).tolist()

    def number(x: float) -> str:
        text = f"{x:.{digits}f}"
        return text.removeprefix("-") if float(text) == 0 else text

    body = r" \\ ".join(" & ".join(number(x) for x in row) for row in rows)
    return rf"\begin{{bmatrix}} {body} \end{{bmatrix}}"


def show_math(*latex: str) -> None:
    """Display one formula, given whole or in pieces, as mathematics."""
    display(Math(" ".join(latex)))
