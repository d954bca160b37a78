"""A sentence, its translation, and what was attended to: a picture without scripts."""

import html
from typing import NamedTuple

import torch
from torch import Tensor

from transformer.decoding.search import greedy_search
from transformer.live.model import Explorable, as_translator, describe_tokenizer
from transformer.maps import Head, all_heads, attention_maps
from transformer.text.words import Tokenizer, WordTokenizer

__all__ = ["Still", "still"]

ABOUT = (
    "<p>Choose a word of the translation: the numbers say how much of its attention "
    "goes to each word of the source (the mean over all heads of cross-attention).</p>"
)
PLACES = {
    "encoder": "self-attention, encoder layer",
    "masked": "self-attention, decoder layer",
    "cross": "cross-attention, decoder layer",
}

_ROW = 34  # pixels from word to word


class Still(NamedTuple):
    """The picture, the same as a table, and what they show."""

    picture: str
    table: str
    about: str
    keys: list[str]
    queries: list[str]
    weights: Tensor  # (queries, keys): of one head, or the mean over cross-attention

    @property
    def html(self) -> str:
        """Picture and table, with a line on how to read them."""
        return (
            '<div class="live-still">\n'
            f"{self.picture}\n{self.about}\n{self.table}\n</div>"
        )


def _pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """The text of each id; a ValueError for a tokenizer that is not the book's."""
    if isinstance(tokenizer, WordTokenizer):
        return tokenizer.vocabulary.decode(ids)
    pieces = describe_tokenizer(tokenizer)["pieces"]
    return [pieces[index] for index in ids]


def still(
    model: Explorable,
    sentence: str,
    key: str,
    chosen: int = 1,
    head: Head | None = None,
) -> Still:
    """A greedy translation, each token with the source tokens that it attended to.

    The weights are the mean of all heads of cross-attention; with a `head`, its own,
    each of its queries with the keys that it attends to. A reader chooses a query with
    radio buttons; `key` tells two pictures on a page apart.

    Raises:
        ValueError: for a head that the model has not, or a tokenizer that is not the
            book's.
    """
    translator = as_translator(model)
    source_ids = translator.encode(sentence)
    inner = translator.model
    if head is not None and head not in all_heads(inner):
        raise ValueError(f"the model has no {head}")
    (found,) = greedy_search(inner, [source_ids], translator.max_length_for(source_ids))
    device = next(inner.parameters()).device
    inputs = [inner.config.bos_id, *found][: inner.config.max_length]
    maps = attention_maps(
        inner,
        torch.tensor([source_ids], device=device),
        torch.tensor([inputs], device=device),
    )
    source = _pieces(translator.source_tokenizer, source_ids)
    written = _pieces(translator.target_tokenizer, found)
    target = [*written, "<eos>"][: len(inputs)]
    shifted = ["<bos>", *written][: len(inputs)]
    if head is None:
        weights, about = maps.cross[0].float().mean(dim=(0, 1)), ABOUT
        names = "A sentence and its translation", "Source", "Translation"
        keys, queries = source, target
    else:
        weights = getattr(maps, head.kind)[0, head.layer, head.number]
        where = f"{PLACES[head.kind]} {head.layer + 1}, head {head.number + 1}"
        about = (
            "<p>Choose a token on the right: the numbers say how much of its attention "
            f"goes to each token on the left ({where}).</p>"
        )
        names = where.capitalize(), "Keys", "Queries"
        keys = shifted if head.kind == "masked" else source
        queries = source if head.kind == "encoder" else shifted
    weights = weights.float().cpu()
    chosen = min(chosen, len(queries) - 1)
    picture = _draw(names, keys, queries, weights, key, chosen)
    table = _table(keys, queries, weights)
    return Still(picture, table, about, keys, queries, weights)


def _draw(
    names: tuple[str, str, str],
    keys: list[str],
    queries: list[str],
    weights: Tensor,
    key: str,
    chosen: int,
) -> str:
    name, of_keys, of_queries = names
    rows_high = max(len(keys), len(queries))
    high = _ROW * rows_high
    left, right = ((high - _ROW * len(side)) / 2 for side in (keys, queries))
    rules = ", ".join(
        f'.live-pair:has([id="{key}-{i}"]:checked) .live-on-{i}'
        for i in range(len(queries))
    )
    words = "\n".join(
        f"<li><span>{html.escape(word)}</span>"
        + "".join(
            f'<b class="live-on-{i}" style="--w: {weights[i, j]:.3f}">'
            f"{short(weights[i, j].item())}</b>"
            for i in range(len(queries))
        )
        + "</li>"
        for j, word in enumerate(keys)
    )
    arcs = "\n".join(
        f'<g class="live-on-{i}">'
        + "".join(
            f'<path d="M0 {left + _ROW * (j + 0.5):g}C50 {left + _ROW * (j + 0.5):g} '
            f'50 {right + _ROW * (i + 0.5):g} 100 {right + _ROW * (i + 0.5):g}" '
            f'stroke-width="{12 * weights[i, j]:.1f}"/>'
            for j in range(len(keys))
            if weights[i, j] >= 0.01
        )
        + "</g>"
        for i in range(len(queries))
    )
    choices = "\n".join(
        f'<li><label><input type="radio" name="{key}" id="{key}-{i}"'
        f"{' checked' if i == chosen else ''}>{html.escape(word)}</label></li>"
        for i, word in enumerate(queries)
    )
    return "\n".join(
        (
            f"<style>{rules} {{ display: inline; }}</style>",
            f'<div class="live-pair" role="group" aria-label="{name}">',
            f'<ol aria-label="{of_keys}">\n{words}\n</ol>',
            f'<svg viewBox="0 0 100 {high}" style="--rows: {rows_high}" '
            f'preserveAspectRatio="none" aria-hidden="true">\n{arcs}\n</svg>',
            f'<ol aria-label="{of_queries}: choose a token">\n{choices}\n</ol>',
            "</div>",
        )
    )


def _table(keys: list[str], queries: list[str], weights: Tensor) -> str:
    head = "".join(f"<th scope=col>{html.escape(word)}</th>" for word in keys)
    rows = "\n".join(
        f"<tr><th scope=row>{html.escape(word)}</th>"
        + "".join(f"<td>{weight:.2f}</td>" for weight in row)
        + "</tr>"
        for word, row in zip(queries, weights.tolist(), strict=True)
    )
    table = "All of them as a table"
    return "\n".join(
        (
            f"<details><summary>{table}</summary>",
            f'<div class="live-table" tabindex="0" role="group" aria-label="{table}">',
            f"<table><thead><tr><td></td>{head}</tr></thead>",
            f"<tbody>\n{rows}\n</tbody></table>",
            "</div></details>",
        )
    )


def short(weight: float) -> str:
    """Two decimals; none where there is next to nothing."""
    return f"{weight:.2f}".removeprefix("0") if weight >= 0.005 else ""
