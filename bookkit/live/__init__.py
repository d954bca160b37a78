"""The live model: a translator's model in a browser, without a server.

`engine` is the forward pass in JavaScript, `describe` the data that it runs. Both need
no more than the package does.
"""

from pathlib import Path

from bookkit.live.model import LIMIT, Explorable, describe, describe_model

__all__ = ["LIMIT", "Explorable", "describe", "describe_model", "engine"]

_FOLDER = Path(__file__).parent


def engine() -> str:
    """The forward pass in JavaScript: it defines one constant, `engine`."""
    return (_FOLDER / "engine.js").read_text(encoding="utf-8")
