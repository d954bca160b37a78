"""What the book draws and checks with. The Transformer itself is in `transformer`."""

from transformer.live import explore

try:
    from bookkit.clocks import Clocks
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
    from bookkit.mask_board import MaskBoard
    from bookkit.memory import OneNumber
    from bookkit.parts_map import PartsMap, Piece
    from bookkit.stored import results
    from bookkit.touch import Guess
    from bookkit.tree import BeamTree, Branch
    from bookkit.view import AttentionView
    from bookkit.word_plane import WordPlane
except ModuleNotFoundError as error:
    missing = str(error.name).partition(".")[0]
    if missing not in ("IPython", "matplotlib"):
        raise
    raise ImportError(
        f"bookkit needs {missing}: pip install 'tested-transformer[book]'"
    ) from None


__all__ = [
    "AttentionView",
    "BeamTree",
    "Branch",
    "BreakLab",
    "Clocks",
    "Guess",
    "MaskBoard",
    "OneNumber",
    "PartsMap",
    "Piece",
    "Verdict",
    "WordPlane",
    "begin",
    "exercise",
    "explain",
    "explore",
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
