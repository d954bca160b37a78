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

_PAGE = Template(
    Path(__file__).with_name("attention_view.html").read_text(encoding="utf-8")
)
_SCALE = 60_000  # weights travel as whole numbers of 1/60,000, exact to four decimals


class AttentionView:
    """Attention weights as squares: point at one, or move with the arrow keys.

    `weights` is (layers, heads, queries, keys), (heads, queries, keys) or (queries,
    keys). A weight of exactly zero, as a mask leaves it, is drawn as an empty square.
    It is one piece of HTML that needs no network, in a page and in a notebook alike.

    Raises:
        ValueError: when the tokens do not fit the weights, or a weight is no weight.
    """

    def __init__(
        self,
        weights: Tensor,
        query_tokens: Sequence[str],
        key_tokens: Sequence[str] | None = None,
        title: str = "Who looks at whom",
    ) -> None:
        if not 2 <= weights.dim() <= 4:
            raise ValueError(f"weights need 2 to 4 dimensions, got {weights.dim()}")
        shape = (1,) * (4 - weights.dim()) + tuple(weights.shape)
        self.weights = weights.detach().double().cpu().reshape(shape)
        self.queries = list(query_tokens)
        self.keys = list(query_tokens if key_tokens is None else key_tokens)
        self.title = title
        tokens = (len(self.queries), len(self.keys))
        if shape[2:] != tokens:
            raise ValueError(f"weights are for {shape[2:]} tokens, got {tokens}")
        if not ((self.weights >= 0) & (self.weights < 1 + 1e-4)).all():
            raise ValueError("attention weights must lie between 0 and 1")

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
        left = 20 + 8 * max(len(token) for token in self.queries)
        top = 18 + 6 * max(len(token) for token in self.keys)
        width = left + side * keys + top
        about = (
            f"{self.title}. {queries} queries by {keys} keys; "
            "the arrow keys move from square to square."
        )
        key = hashlib.sha256(f"{data}{self.title}{self.keys}".encode()).hexdigest()[:10]
        return _PAGE.substitute(
            key=key,
            title=html.escape(self.title),
            label=html.escape(about),
            layers=layers,
            heads=heads,
            last_layer=layers - 1,
            last_head=heads - 1,
            queries=_script_safe(self.queries),
            keys=_script_safe(self.keys),
            data=data,
            left=left,
            top=top,
            side=side,
            width=width,
            height=top + side * queries + 4,
        )


def _script_safe(tokens: list[str]) -> str:
    return json.dumps(tokens, ensure_ascii=False).replace("<", "\\u003c")
