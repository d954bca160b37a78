"""Results of runs too long for a chapter, each made by a command of its own."""

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SHIPPED = HERE / "stored_results"  # in an installed wheel
FOLDER = SHIPPED if SHIPPED.is_dir() else HERE.parent / "benchmarks" / "results"


def results(name: str) -> Any:
    """What `benchmarks/results/<name>.json` holds.

    Raises:
        ValueError: when there is no such file, or it is no JSON.
    """
    path = FOLDER / f"{name}.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = sorted(file.stem for file in FOLDER.glob("*.json"))
        raise ValueError(f"no results are stored as {name!r}, only {known}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
