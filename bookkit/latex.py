"""Matrices from the run, typeset."""

import math

from IPython.display import Math, display
from torch import Tensor


def matrix(values: Tensor, digits: int = 2) -> str:
    """LaTeX for a vector (as a row) or a matrix, each number rounded to `digits`.

    Without digits only whole numbers are shown so: any others get two.
    """
    rows = values.detach().reshape(-1, values.size(-1)).tolist()
    whole = all(math.isclose(x, round(x), abs_tol=1e-6) for row in rows for x in row)
    if digits == 0 and not whole:
        digits = 2

    def number(x: float) -> str:
        text = f"{x:.{digits}f}"
        return text.removeprefix("-") if float(text) == 0 else text

    body = r" \\ ".join(" & ".join(number(x) for x in row) for row in rows)
    return rf"\begin{{bmatrix}} {body} \end{{bmatrix}}"


def show_math(*latex: str) -> None:
    """Display one formula, given whole or in pieces, as mathematics."""
    display(Math(" ".join(latex)))
