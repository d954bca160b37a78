"""Say how many of mutmut's small changes the tests noticed; fail below 95%.

    mutmut run && mutmut export-cicd-stats && python tools/mutants.py

`make mutants` does all three. What survived: mutmut results; one of them: mutmut show.
"""

import json
import sys
from pathlib import Path

STATS = Path(__file__).resolve().parent.parent / "mutants" / "mutmut-cicd-stats.json"
BAR = 0.95


def main() -> int:
    """Read what mutmut counted."""
    count = json.loads(STATS.read_text(encoding="utf-8"))
    noticed = count["killed"] + count["timeout"] + count["segfault"]
    tried = noticed + count["survived"] + count["suspicious"] + count["no_tests"]
    share = noticed / tried if tried else 0.0
    print(f"{noticed} of {tried} mutants noticed: {share:.1%}, {BAR:.0%} is the bar")
    return 0 if share >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
