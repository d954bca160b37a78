"""A map of attention weights that the reader can move: mouse, touch or keyboard."""

import base64
import hashlib
import html
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from string import Template

from torch import Tensor

from transformer.live.colours import shade

_PAGE = Template(
    Path(__file__).with_name("attention_view.html").read_text(encoding="utf-8")
)
_SCALE = 60_000  # weights travel as whole numbers of 1/60,000, exact to four decimals
_ROOM = 28  # pixels: on the page no smaller square has a number in it


class AttentionView:
    """Attention weights as squares: point at one, or move with the arrow keys.

    `weights` is (layers, heads, queries, keys), (heads, queries, keys) or (queries,
    keys). A weight of exactly zero, as a mask leaves it, is drawn as an empty square;
    of weights that were stored with `digits` decimals a zero says only that it is
    small. `first_layer` is the number that the first layer goes by; a single layer is
    named only where it is given. `start` is the weight shown first: which layer, head,
    query and key, each counted from 0. It is one piece of HTML that needs no network,
    in a page and in a notebook alike; without scripts, and in print, it is a picture of
    the head that it starts with, with the same weights as a table.

    Raises:
        ValueError: when the tokens do not fit the weights, a weight is no weight, or
            there is none at `start`.
    """

    def __init__(
        self,
        weights: Tensor,
        query_tokens: Sequence[str],
        key_tokens: Sequence[str] | None = None,
        title: str = "Who looks at whom",
        first_layer: int | None = None,
        digits: int | None = None,
        start: tuple[int, int, int, int] = (0, 0, 0, 0),
    ) -> None:
        if not 2 <= weights.dim() <= 4:
            raise ValueError(f"weights need 2 to 4 dimensions, got {weights.dim()}")
        shape = (1,) * (4 - weights.dim()) + tuple(weights.shape)
        self.weights = weights.detach().double().cpu().reshape(shape)
        self.queries = list(query_tokens)
        self.keys = list(query_tokens if key_tokens is None else key_tokens)
        self.title = title
        self.first_layer = first_layer
        self.first = 1 if first_layer is None else first_layer
        self.digits = digits
        self.start = tuple(start)
        tokens = (len(self.queries), len(self.keys))
        if shape[2:] != tokens:
            raise ValueError(f"weights are for {shape[2:]} tokens, got {tokens}")
        if not ((self.weights >= 0) & (self.weights < 1 + 1e-4)).all():
            raise ValueError("attention weights must lie between 0 and 1")
        within = [0 <= i < size for i, size in zip(self.start, shape, strict=False)]
        if len(self.start) != 4 or not all(within):
            raise ValueError(f"no weight at {self.start}: there are {shape}")

    def __repr__(self) -> str:
        layers, heads, queries, keys = self.weights.shape
        return f"AttentionView({layers}×{heads} maps of {queries}×{keys} weights)"

    def _repr_html_(self) -> str:
        layers, heads, queries, keys = self.weights.shape
        levels = (self.weights * _SCALE).round().clamp(max=65_535)
        levels = levels.masked_fill((self.weights > 0) & (levels == 0), 1)
        packed = struct.pack(f"<{levels.numel()}H", *levels.int().flatten().tolist())
        data = base64.b64encode(packed).decode()
        side = 40 if keys <= 8 else 30 if keys <= 12 else 24
        left = max(80, 20 + 8 * max(len(token) for token in self.queries))
        top = max(40, 18 + 6 * max(len(token) for token in self.keys))
        width = left + side * keys + top
        about = (
            f"{self.title}. {queries} queries by {keys} keys. The arrow keys move from "
            "square to square, Home and End to the first and last key."
        )
        named = f"{self.title}{self.keys}{self.first_layer}{self.digits}"
        named += str(self.start) if any(self.start) else ""
        layer, head, query, key_token = self.start
        key = hashlib.sha256(f"{data}{named}".encode()).hexdigest()[:10]
        unseen = "0" if self.digits is None else f"below {10.0**-self.digits / 2:g}"
        return _PAGE.substitute(
            key=key,
            ground=shade(),
            palest=shade().replace("var(--w)", "0"),
            fullest=shade().replace("var(--w)", "1"),
            title=html.escape(self.title),
            label=html.escape(about),
            layers=layers,
            of_layers=f" of {layers}" if self.first_layer is None else "",
            heads=heads,
            first=self.first,
            layer=layer,
            head=head,
            query=query,
            key_token=key_token,
            layer_name=layer + self.first,
            head_name=head + 1,
            named=json.dumps(layers > 1 or self.first_layer is not None),
            last_layer=layers - 1,
            last_head=heads - 1,
            queries=_script_safe(self.queries),
            keys=_script_safe(self.keys),
            data=data,
            left=left,
            top=top,
            side=side,
            width=width,
            least=f"{width * max(0.85, min(1, _ROOM / (side - 2))):.0f}",
            many=" attn-many" if keys > 8 else "",
            height=top + side * queries + 4,
            still=self._still(left, top, side),
            say=html.escape(self._say()),
            table=self._table(),
            unseen=unseen,
            none="exactly 0" if self.digits is None else unseen,
        )

    def _say(self) -> str:
        """The weight that it starts with, in a sentence."""
        layers, heads = self.weights.shape[:2]
        layer, head, query, key = self.start
        weight = self.weights[self.start].item()
        places = []
        if layers > 1 or self.first_layer is not None:
            places.append(f"layer {layer + self.first}")
        if heads > 1:
            places.append(f"head {head + 1}")
        where = f" ({', '.join(places)})" if places else ""
        amount = f"weight {weight:.{3 if weight < 0.095 else 2}f}"
        if weight == 0:
            amount = "no weight at all"
            if self.digits is not None:
                amount = f"weight below {10.0**-self.digits / 2:g}"
        elif weight < 1e-3:
            amount = "weight less than 0.001"
        return f"“{self.queries[query]}” gives “{self.keys[key]}” {amount}{where}."

    def _still(self, left: int, top: int, side: int) -> str:
        """The squares of the head it starts with, as the script would draw them."""
        first = self.weights[self.start[:2]].tolist()
        parts = [
            f'<text class="attn-axis" x="{left - 8}" y="{top - up}" '
            f'text-anchor="end">{name}</text>'
            for name, up in (("keys →", 24), ("queries ↓", 8))
        ]
        parts += [
            f'<text class="attn-row" x="{left - 8}" '
            f'y="{top + side * q + side / 2 + 4:g}" text-anchor="end">'
            f"{html.escape(token)}</text>"
            for q, token in enumerate(self.queries)
        ]
        # Words lean, for room; a letter stands upright over its column.
        upright = max(len(token) for token in self.keys) == 1
        shift, lean = (-1, '" text-anchor="middle') if upright else (4, " rotate(-50)")
        parts += [
            f'<text class="attn-col" transform="translate('
            f'{left + side * k + side / 2 + shift:g} {top - 8}){lean}">'
            f"{html.escape(token)}</text>"
            for k, token in enumerate(self.keys)
        ]
        for q, row in enumerate(first):
            for k, weight in enumerate(row):
                never = ' class="attn-never"' if weight == 0 else ""
                parts.append(
                    f'<rect{never} data-q="{q}" data-k="{k}" x="{left + k * side}" '
                    f'y="{top + q * side}" width="{side - 2}" height="{side - 2}" '
                    f'rx="3" style="--w:{weight:.3f}"/>'
                )
        if side - 2 >= _ROOM:
            parts += [
                f'<text class="attn-value" x="{left + k * side + side / 2 - 1:g}" '
                f'y="{top + q * side + side / 2 + 3:g}" style="--w:{weight:.3f}">'
                f"{_short(weight)}</text>"
                for q, row in enumerate(first)
                for k, weight in enumerate(row)
            ]
        return "\n".join(parts)

    def _table(self) -> str:
        """The weights of the head it starts with, a row for each query."""
        head = "".join(f"<th scope=col>{html.escape(t)}</th>" for t in self.keys)
        rows = "\n".join(
            f"<tr><th scope=row>{html.escape(token)}</th>"
            + "".join(f"<td>{weight:.3f}</td>" for weight in row)
            + "</tr>"
            for token, row in zip(
                self.queries, self.weights[self.start[:2]].tolist(), strict=True
            )
        )
        return f"<thead><tr><td></td>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>"


def _short(weight: float) -> str:
    """Two decimals in a square; nothing where a mask left nothing."""
    if weight == 0:
        return ""
    return f"{weight:.2f}".removeprefix("0") if weight < 0.995 else "1.00"


def _script_safe(tokens: list[str]) -> str:
    return json.dumps(tokens, ensure_ascii=False).replace("<", "\\u003c")
