"""What the book draws and checks with. The Transformer itself is in `transformer`."""

from bookkit.exercises import (
    Verdict,
    exercise,
    explain,
    near,
    right,
    unanswered,
    wrong,
)
from bookkit.figures import begin, heatmap, show
from bookkit.lab import BreakLab
from bookkit.latex import matrix, show_math
from bookkit.memory import OneNumber
from bookkit.stored import results
from bookkit.tree import BeamTree, Branch
from bookkit.view import AttentionView

__all__ = [
    "AttentionView",
    "BeamTree",
    "Branch",
    "BreakLab",
    "OneNumber",
    "Verdict",
    "begin",
    "exercise",
    "explain",
    "heatmap",
    "matrix",
    "near",
    "results",
    "right",
    "show",
    "show_math",
    "unanswered",
    "wrong",
]
