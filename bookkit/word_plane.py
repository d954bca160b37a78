"""Word vectors in a plane, one of which the reader drags: what is then expected."""

import html
import json
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from bookkit.figures import COLOURS
from bookkit.touch import Guess, piece

_WIDTH, _HEIGHT, _EDGE = 360, 270, 34
_MARKS = "●■▲◆"


class WordPlane:
    """Word vectors on a plane: drag one, or move it with the arrow keys.

    `plane` has two columns, the directions that are drawn. A word that moves keeps what
    its vector has outside the plane. The maps of `predict`, by side, such as *before*,
    score each word of the vocabulary as a neighbour; what they expect is shown by the
    groups of `kinds`. The words of a group are drawn where it has more than one. Any of
    `words` can be moved. It is one piece of HTML that needs no network; without scripts
    it shows the first of `words` in its place.

    Raises:
        ValueError: for a word that is not in the vocabulary, or too many kinds.
    """

    def __init__(
        self,
        vectors: Tensor,
        plane: Tensor,
        predict: Mapping[str, nn.Linear],
        vocabulary: Sequence[str],
        kinds: Mapping[str, Sequence[str]],
        words: Sequence[str],
        guess: Guess,
    ) -> None:
        known = {word: number for number, word in enumerate(vocabulary)}
        asked = [*words, *(word for kind in kinds.values() for word in kind)]
        if unknown := [word for word in asked if word not in known]:
            raise ValueError(f"not in the vocabulary: {', '.join(unknown)}")
        many = sum(len(kind) > 1 for kind in kinds.values())
        if many > len(_MARKS):
            raise ValueError(f"{len(_MARKS)} kinds can be told apart, got {many}")
        vectors = vectors.detach().double()
        plane = plane.double()
        self.groups = {name: [known[w] for w in kind] for name, kind in kinds.items()}
        points = (vectors - vectors.mean(dim=0)) @ plane
        self.points = points.round(decimals=3).tolist()
        # What a page is given has three decimals, and what is said here as well.
        self.slopes, self.scores = {}, {}
        for side, linear in predict.items():
            weight = linear.weight.detach().double()
            bias = linear.bias.detach().double()
            self.slopes[side] = (weight @ plane).round(decimals=3)
            self.scores[side] = (vectors @ weight.T + bias).round(decimals=3)
        self.words = {word: known[word] for word in words}
        self.guess = guess

    def __repr__(self) -> str:
        return f"WordPlane({len(self.points)} words; {', '.join(self.words)})"

    def expected(self, side: str, word: str) -> dict[str, float]:
        """With what probability the model expects each group beside a word."""
        shares = self.scores[side][self.words[word]].softmax(dim=0)
        return {name: shares[ids].sum().item() for name, ids in self.groups.items()}

    def _whole(self, side: str, word: str) -> dict[str, float]:
        """What is expected, and last what is left for words of no group."""
        groups = self.expected(side, word)
        return groups | {"other": max(0.0, 1 - sum(groups.values()))}

    def say(self, word: str) -> str:
        """What the model expects beside a word in its place, in a sentence."""
        told = []
        for side in self.scores:
            *groups, other = self._whole(side, word).items()
            most = [*sorted(groups, key=lambda each: -each[1]), other]
            words = [
                f"{name} {_short(share)}" for name, share in most if share >= 0.045
            ]
            told.append(f"{', '.join(words)} {side} it")
        return f"With {word} in its place, the model expects {'; '.join(told)}."

    def _repr_html_(self) -> str:
        drawn = {name: ids for name, ids in self.groups.items() if len(ids) > 1}
        shown = [self.points[i] for ids in drawn.values() for i in ids]
        xs, ys = zip(*shown, strict=True)
        scale = min(
            (_WIDTH - 2 * _EDGE) / (max(xs) - min(xs)),
            (_HEIGHT - 2 * _EDGE) / (max(ys) - min(ys)),
        )
        left = _WIDTH / 2 - scale * (max(xs) + min(xs)) / 2
        top = _HEIGHT / 2 + scale * (max(ys) + min(ys)) / 2

        def place(point: Sequence[float]) -> tuple[float, float]:
            return left + scale * point[0], top - scale * point[1]

        drawing = []
        for number, (name, ids) in enumerate(drawn.items()):
            colour = _colour(number)
            at = [place(self.points[i]) for i in ids]
            drawing += [
                f'<text class="dot" fill="{colour}" style="fill: {colour}" '
                f'x="{x:.1f}" y="{y:.1f}">{_MARKS[number]}</text>'
                for x, y in at
            ]
            middle = sum(x for x, _ in at) / len(at)
            under = max(y for _, y in at) + 22
            below = under < _HEIGHT - 6
            line = under if below else min(y for _, y in at) - 13
            drawing.append(
                f'<text class="kind" x="{min(max(middle, 40), _WIDTH - 40):.1f}" '
                f'y="{line:.1f}">{html.escape(name)}</text>'
            )
        first = next(iter(self.words))
        x, y = place(self.points[self.words[first]])
        drawing.append(
            f'<circle class="home" cx="{x:.1f}" cy="{y:.1f}" r="13"/>'
            f'<g class="word" transform="translate({x:.1f} {y:.1f})"><circle r="22"/>'
            f'<text class="dot">★</text><text y="-17">{html.escape(first)}</text></g>'
        )
        data = {
            "words": [
                {
                    "name": word,
                    "at": self.points[i],
                    "scores": [scores[i].tolist() for scores in self.scores.values()],
                }
                for word, i in self.words.items()
            ],
            "groups": [{"name": name, "ids": ids} for name, ids in self.groups.items()],
            "sides": list(self.scores),
            "slopes": [slopes.tolist() for slopes in self.slopes.values()],
            "scale": round(scale, 3),
            "left": round(left, 1),
            "top": round(top, 1),
        }
        about = (
            "The plane of the word vectors. The arrow keys move the chosen word, Home "
            "puts it back."
        )
        return piece(
            "word_plane",
            self.guess,
            label=about,
            width=_WIDTH,
            height=_HEIGHT,
            choices="".join(f"<option>{html.escape(word)}" for word in self.words),
            drawing="\n".join(drawing),
            bars="\n".join(self._bar(side, first) for side in self.scores),
            say=html.escape(self.say(first)),
            data=json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace(
                "<", "\\u003c"
            ),
        )

    def _bar(self, side: str, word: str) -> str:
        """What is expected on one side, as pieces of a bar."""
        parts = "".join(
            f'<i style="--c: {_colour(number)}; width: {100 * share:.1f}%">'
            f"{f'{html.escape(name)} {_short(share)}' if share > 0.25 else ''}</i>"
            for number, (name, share) in enumerate(self._whole(side, word).items())
        )
        return f'<span>{side} it</span><span class="bar">{parts}</span>'


def _colour(number: int) -> str:
    """The colour of a kind: those of figures, then grey."""
    if number < 4:
        return f"var(--fig-{number + 1}, {COLOURS[number]})"
    return "currentColor"


def _short(share: float) -> str:
    """Two decimals without the leading zero."""
    return "1.00" if share > 0.995 else f"{share:.2f}".removeprefix("0")
