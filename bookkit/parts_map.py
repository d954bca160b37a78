"""The model taken apart: choose a part, and see what it does and what it holds."""

import html
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from bookkit.touch import Guess, piece


@dataclass(frozen=True)
class Piece:
    """A part of a model: its name, where it is, what it does, and its chapter's page.

    `path` is the module's, such as `encoder.layers.0.feed_forward`; the others of its
    stack are counted with it. A part without a path holds no parameters.
    """

    name: str
    path: str
    does: str
    page: str


class PartsMap:
    """A model's parts as two towers of boxes: choose one with mouse, touch or keys.

    Each tower is a list, the top first, in which a list is a layer that is repeated.
    There is no script in it. Where styles are not understood everything is shown.

    Raises:
        ValueError: for a path that the model does not have.
    """

    def __init__(
        self,
        model: nn.Module,
        encoder: Sequence[Piece | Sequence[Piece]],
        decoder: Sequence[Piece | Sequence[Piece]],
        guess: Guess,
        first: int = 0,
    ) -> None:
        self.modules = dict(model.named_modules())
        self.total = sum(weight.numel() for weight in model.parameters())
        self.towers = {"encoder": list(encoder), "decoder": list(decoder)}
        self.guess, self.first = guess, first
        for part in self.parts():
            if part.path and part.path not in self.modules:
                raise ValueError(f"the model has no part {part.path}")

    def __repr__(self) -> str:
        return f"PartsMap({len(self.parts())} parts, {self.total:,} parameters)"

    def parts(self) -> list[Piece]:
        """All parts, in the order in which they are drawn."""
        found: list[Piece] = []
        for tower in self.towers.values():
            for each in tower:
                found += [each] if isinstance(each, Piece) else each
        return found

    def size(self, part: Piece) -> int:
        """How many parameters one such part holds."""
        if not part.path:
            return 0
        return sum(weight.numel() for weight in self.modules[part.path].parameters())

    def times(self, part: Piece) -> int:
        """How many of its kind stand in the stack."""
        stack, layers, rest = part.path.partition(".layers.")
        if not layers:
            return 1
        inside = rest.partition(".")[2]
        return sum(
            name.startswith(f"{stack}.layers.")
            and name.removeprefix(f"{stack}.layers.").partition(".")[2] == inside
            for name in self.modules
        )

    def shapes(self, part: Piece) -> str:
        """Its matrices and vectors in words, equal ones counted together."""
        if not part.path:
            return ""
        found = Counter(
            tuple(weight.shape) for weight in self.modules[part.path].parameters()
        )
        words = []
        for shape, count in found.items():
            flat = len(shape) == 1
            one, many = ("vector", "vectors") if flat else ("matrix", "matrices")
            name = f"{count} {many}" if count > 1 else f"a {one}"
            words.append(f"{name} of " + " × ".join(f"{size:,}" for size in shape))
        return ", ".join(words)

    def _repr_html_(self) -> str:
        numbers = {id(part): place for place, part in enumerate(self.parts())}
        columns = {}
        for side, tower in self.towers.items():
            rows = [f"<strong>{side}</strong>"]
            for each in tower:
                if isinstance(each, Piece):
                    rows.append(self._box(each, numbers[id(each)]))
                else:
                    times = self.times(next(part for part in each if part.path))
                    boxes = "".join(self._box(part, numbers[id(part)]) for part in each)
                    rows.append(
                        f'<div class="layer"><strong>× {times}</strong>{boxes}</div>'
                    )
            columns[side] = "\n".join(rows)
        return piece(
            "parts_map",
            self.guess,
            **columns,
            panels="\n".join(
                self._panel(part, place) for place, part in enumerate(self.parts())
            ),
            shown=",\n".join(
                f".partsmap:has(.p{place}:checked) .q{place}"
                for place in range(len(self.parts()))
            ),
        )

    def _box(self, part: Piece, number: int) -> str:
        """A part as a switch, with a bar for its share of all parameters."""
        size, times = self.size(part), self.times(part)
        often = f"{times} × " if times > 1 else ""
        count = f"{size / 1e6:.2f} M" if size > 9999 else f"{size:,}"
        held = f"{often}{count}" if size else "none"
        checked = " checked" if number == self.first else ""
        return (
            f'<label style="--n: {size * times / self.total:.3f}"><input type="radio" '
            f'name="part-@key" class="p{number}"{checked}>'
            f"{html.escape(part.name)} <small>{held}</small></label>"
        )

    def _panel(self, part: Piece, number: int) -> str:
        """What a part does, and what it holds."""
        size, times = self.size(part), self.times(part)
        held = "It holds no parameters."
        if size:
            held = f"Its parameters: {self.shapes(part)}, together {size:,}."
            if times > 1:
                held += f" The {times} layers hold {size * times:,}."
        words = f"chapter {int(part.page[:2])}"
        name, does = html.escape(part.name), html.escape(part.does)
        link = (
            f'<a class="on-paper" href="{part.page}.ipynb">{words}</a>'
            f'<a class="on-page" hidden href="{part.page}.html">{words}</a>'
        )
        return (
            f'<div class="panel q{number}">'
            f"<p><strong>{name}</strong>. {does}</p>"
            f"<p>{held} Built in {link}.</p></div>"
        )
