"""The hypotheses of a beam search as a tree: mouse, touch or keyboard."""

import hashlib
import html
import json
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Literal, NamedTuple

_PAGE = Template(Path(__file__).with_name("beam_tree.html").read_text(encoding="utf-8"))
_CELL, _ROW, _BOX = 76, 54, (70, 38)


class Branch(NamedTuple):
    """A word, and the hypothesis that it continues.

    `parent` is the index of that hypothesis in the list of branches, or None where the
    word is the first. `chance` is the word's own probability there, `total` that of
    the whole hypothesis.
    """

    word: str
    parent: int | None
    chance: float
    total: float
    fate: Literal["kept", "dropped", "ended"]


class BeamTree:
    """The branches of a beam search: point at one, or walk with the arrow keys.

    Each branch comes after its parent, and those of a turn stand from left to right in
    the order given. `answer` is the place of the branch that ends the chosen sentence.
    It is one piece of HTML that needs no network; without scripts it is a picture, with
    the same tree as text below.

    Raises:
        ValueError: when a branch comes before its parent, continues one that was not
            kept, or `answer` is the place of none.
    """

    def __init__(
        self,
        branches: Sequence[Branch],
        answer: int,
        title: str = "The beam, step by step",
        start: str = "bos",
    ) -> None:
        if not 0 <= answer < len(branches):
            raise ValueError(f"answer must lie in 0..{len(branches) - 1}, got {answer}")
        self.turns: list[int] = []
        for place, branch in enumerate(branches):
            parent = branch.parent
            if parent is None:
                self.turns.append(1)
                continue
            if not 0 <= parent < place:
                raise ValueError(
                    f"branch {place} must come after its parent, got {parent}"
                )
            if branches[parent].fate != "kept":
                raise ValueError(
                    f"branch {place} continues one that was {branches[parent].fate}"
                )
            self.turns.append(self.turns[parent] + 1)
        self.branches = list(branches)
        self.answer = answer
        self.title = title
        self.start = start

    def __repr__(self) -> str:
        return f"BeamTree({len(self.branches)} branches in {max(self.turns)} turns)"

    def _path(self, place: int | None) -> list[int]:
        """The branches of a hypothesis, the first one first."""
        found: list[int] = []
        while place is not None:
            found.append(place)
            place = self.branches[place].parent
        return found[::-1]

    def words(self, place: int | None) -> list[str]:
        """The words of a hypothesis."""
        return [self.branches[each].word for each in self._path(place)]

    def _say(self, place: int) -> str:
        """What is to know about a branch, in a sentence or two."""
        branch = self.branches[place]
        before = " ".join(self.words(branch.parent)) or self.start
        fate = str(branch.fate)
        if place == self.answer:
            fate += "; this is the answer"
        return (
            f"“{before}” → “{branch.word}”: probability {_short(branch.chance)} here, "
            f"{_short(branch.total)} for the whole hypothesis. "
            f"{fate[0].upper()}{fate[1:]}."
        )

    def _places(self) -> list[tuple[float, float]]:
        """The upper left corner of each branch's box."""
        seen: dict[int, int] = {}
        corners = []
        for turn in self.turns:
            rank = seen.get(turn, 0)
            seen[turn] = rank + 1
            corners.append((3.0 + _CELL * rank, 3.0 + _ROW * turn))
        return corners

    def _repr_html_(self) -> str:
        wide = max(self.turns.count(turn) for turn in set(self.turns))
        corners = self._places()
        width, (box, tall) = _CELL * wide, _BOX
        root = (width - box) / 2, 3.0
        on_the_way = self._path(self.answer)
        edges, nodes = [], []
        for place, ((x, y), branch) in enumerate(
            zip(corners, self.branches, strict=True)
        ):
            up, down = root if branch.parent is None else corners[branch.parent], (x, y)
            a, b = up[0] + box / 2, down[0] + box / 2
            top, bottom = up[1] + tall, down[1]
            middle = (top + bottom) / 2
            looks = f"beam-{branch.fate}"
            on = " beam-on" if place in on_the_way else ""
            edges.append(
                f'<path class="{looks}{on}" d="M{a:g} {top:g}C{a:g} {middle:g} {b:g} '
                f'{middle:g} {b:g} {bottom:g}"/>'
            )
            end = " beam-answer" if place == self.answer else ""
            looks = f"beam-node {looks}{on}{end}"
            nodes.append(_node((x, y), branch.word, _short(branch.total), looks))
        data = [
            {
                "turn": turn,
                "parent": -1 if branch.parent is None else branch.parent,
                "say": self._say(place),
            }
            for place, (turn, branch) in enumerate(
                zip(self.turns, self.branches, strict=True)
            )
        ]
        first = _node(root, self.start, "", "beam-root")
        drawing = "\n".join((*edges, first, *nodes))
        about = (
            f"{self.title}. A tree of {max(self.turns)} steps, best branches left; "
            "arrow keys: up to the shorter hypothesis, down to its continuation, left "
            "and right."
        )
        return _PAGE.substitute(
            key=hashlib.sha256(f"{drawing}{self.title}".encode()).hexdigest()[:10],
            title=html.escape(self.title),
            label=html.escape(about),
            turns=max(self.turns),
            width=width,
            least=f"{0.85 * width:.0f}",
            height=_ROW * max(self.turns) + tall + 6,
            drawing=drawing,
            best=self.answer,
            answer=html.escape(self._say(self.answer)),
            text="\n".join(
                f"<li>{html.escape(' · '.join(self._row(turn)))}</li>"
                for turn in range(1, max(self.turns) + 1)
            ),
            branches=json.dumps(data, ensure_ascii=False).replace("<", "\\u003c"),
        )

    def _row(self, turn: int) -> list[str]:
        return [
            f"{' '.join(self.words(place))} {_short(self.branches[place].total)} "
            f"({self.branches[place].fate})"
            for place, other in enumerate(self.turns)
            if other == turn
        ]


def _short(chance: float) -> str:
    """A probability in two digits where it has them: .36, .004, 2e-05."""
    text = f"{chance:.2f}" if chance >= 0.095 else f"{chance:.1g}"
    return text.removeprefix("0") if text.startswith("0.") else text


def _node(corner: tuple[float, float], word: str, chance: str, looks: str) -> str:
    x, y = corner
    box, tall = _BOX
    middle = f"{x + box / 2:g}"
    small = f'<text x="{middle}" y="{y + 31:g}">{chance}</text>' if chance else ""
    return (
        f'<g class="{looks}"><rect x="{x:g}" y="{y:g}" width="{box}" height="{tall}" '
        f'rx="6"/><text x="{middle}" y="{y + (16 if chance else 23):g}">'
        f"{html.escape(word)}</text>{small}</g>"
    )
