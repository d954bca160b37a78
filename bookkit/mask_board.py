"""A mask that the reader paints, and which outputs then move with which words."""

import html
import json
from collections.abc import Sequence

import torch
from torch import Tensor

from bookkit.touch import Guess, piece


def moves(mask: Tensor, layers: int) -> Tensor:
    """Which outputs move with which tokens, after some layers: (outputs, tokens).

    A layer passes on what the layer below attended to, and each word keeps its own.
    """
    step = mask | torch.eye(len(mask), dtype=torch.bool)
    found = step
    for _ in range(layers - 1):
        found = (found.float() @ step.float()) > 0
    return found


class MaskBoard:
    """A mask to paint with mouse, finger or keyboard, and the leaks that it makes.

    `mask` is what it begins with, True where a query (row) may attend to a key. Beside
    it stands what moves each output after as many layers as the slider says; a later
    word that does is a leak. It is one piece of HTML that needs no network; without
    scripts it is a picture of the first mask, with the same in words below.

    Raises:
        ValueError: when the mask is no square of booleans, a row for each token.
    """

    def __init__(
        self, tokens: Sequence[str], mask: Tensor, guess: Guess, layers: int = 1
    ) -> None:
        if mask.dtype != torch.bool or mask.shape != (len(tokens), len(tokens)):
            raise ValueError(
                f"the mask needs {len(tokens)} rows and columns of booleans, got "
                f"{tuple(mask.shape)} of {mask.dtype}"
            )
        self.tokens, self.mask = list(tokens), mask
        self.guess, self.layers = guess, layers

    def __repr__(self) -> str:
        return f"MaskBoard({', '.join(self.tokens)}; {int(self.mask.sum())} allowed)"

    def say(self) -> str:
        """Which outputs move with a later word, in a sentence."""
        later = moves(self.mask, self.layers).triu(1).any(dim=1).tolist()
        leaky = [name for name, leaks in zip(self.tokens, later, strict=True) if leaks]
        after = f"fter {self.layers} layer{'s' * (self.layers > 1)}"
        if not leaky:
            return f"A{after} no later word moves an output."
        return (
            f"A leak: a{after} a later word moves {len(leaky)} of the "
            f"{len(self.tokens)} outputs, {_listed(leaky)}."
        )

    def _repr_html_(self) -> str:
        found = moves(self.mask, self.layers)
        rows = []
        for i, name in enumerate(self.tokens):
            seen = [j for j, on in enumerate(found[i].tolist()) if on]
            early = _listed([self.tokens[j] for j in seen if j > i])
            rows.append(
                f"The output of {name} moves with "
                f"{_listed([self.tokens[j] for j in seen])}"
                f"{f': a leak, of {early}' if early else ''}."
            )
        about = (
            "A mask to paint: rows are queries, columns keys. The arrow keys move, "
            "space lets the query see the key, or not."
        )
        return piece(
            "mask_board",
            self.guess,
            label=about,
            layers=self.layers,
            painted=self._grid(self.mask, ("on", "●"), ("on", "●")),
            moved=self._grid(found, ("past", ""), ("early", "✕")),
            say=html.escape(self.say()),
            words="\n".join(f"<li>{html.escape(row)}</li>" for row in rows),
            names=json.dumps(self.tokens, ensure_ascii=False).replace("<", "\\u003c"),
            mask=json.dumps(self.mask.tolist()),
        )

    def _grid(self, on: Tensor, past: tuple[str, str], early: tuple[str, str]) -> str:
        """A table of squares: the class and the mark of those that are on."""
        head = "".join(
            f"<th scope=col><span>{html.escape(token)}</span></th>"
            for token in self.tokens
        )
        rows = []
        for i, (token, row) in enumerate(zip(self.tokens, on.tolist(), strict=True)):
            looks = [
                (early if j > i else past) if yes else () for j, yes in enumerate(row)
            ]
            cells = "".join(
                f"<td class={look[0]}>{look[1]}</td>" if look else "<td></td>"
                for look in looks
            )
            rows.append(f"<tr><th scope=row>{html.escape(token)}</th>{cells}</tr>")
        return f"<thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"


def _listed(words: Sequence[str]) -> str:
    """One, two, and three: as `Intl.ListFormat` writes it in English."""
    if len(words) < 3:
        return " and ".join(words)
    return f"{', '.join(words[:-1])}, and {words[-1]}"
