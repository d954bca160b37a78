"""`{hero}`: the front page's translations, for its reader to change.

The menus offer a few subjects, verbs and things. Every sentence that they make is
translated when the page is built, by the phrasebook's model, so that the page needs no
model: what it said, where it looked to write each English word, where the owner's word
(*sa*, *son*) had looked before, and what the model says if that look is forbidden.
Without scripts one of the translations stands there as a picture.
"""

import html
import itertools
import json
from functools import cache
from typing import Any, NamedTuple

import torch
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

# French, and what it means word by word. A thing comes with its word for his or her.
SUBJECTS = {
    "Jane": "a woman",
    "Marie": "a woman",
    "Elle": "she",
    "Paul": "a man",
    "Luc": "a man",
    "Il": "he",
}
VERBS = {"vend": "sells", "cherche": "looks for", "aime": "likes"}
THINGS = {
    "sa voiture": "car",
    "sa maison": "house",
    "sa robe": "dress",
    "son vélo": "bike",
    "son chat": "cat",
    "son livre": "book",
}
OWNER = 2  # the place of *sa* or *son* in a sentence, after subject and verb
LAYER = 1  # the encoder's second: where that word finds out who the owner is

Percents = list[list[int]]


class Said(NamedTuple):
    """A translation: its words, and the attention of each over the French ones."""

    words: list[str]
    weights: Percents


class Translation(NamedTuple):
    """What the model says of a sentence, and what it says with one path cut."""

    whole: Said
    owner: list[int]  # percents of the owner's word over the French ones, in LAYER
    cut: Said  # the owner's word may not attend to the subject, in LAYER


def sentences() -> list[str]:
    """Every sentence that the menus make, the last of them changing first."""
    return [" ".join(parts) for parts in itertools.product(SUBJECTS, VERBS, THINGS)]


@cache
def translations() -> dict[str, Translation]:
    """What the phrasebook's model says of all sentences."""
    from transformer.decoding.translator import Translator

    translator = Translator.phrasebook()
    french = sentences()
    whole, encoder = _translate(translator, french)
    owner = encoder[:, LAYER, :, OWNER].mean(dim=1)
    attention = translator.model.encoder.layers[LAYER].self_attention
    hook = attention.register_forward_pre_hook(_cut)
    try:
        cut, _ = _translate(translator, french)
    finally:
        hook.remove()
    return {
        sentence: Translation(whole[i], _percents(owner[i]), cut[i])
        for i, sentence in enumerate(french)
    }


def _cut(_: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Hide the subject, the first word, from the owner's word."""
    query, key, value, mask = inputs
    allowed = torch.ones(query.size(1), key.size(1), dtype=torch.bool)
    allowed[OWNER, 0] = False
    return query, key, value, mask & allowed


def _translate(translator: Any, french: list[str]) -> tuple[list[Said], torch.Tensor]:
    """What is said of sentences of one length, and the encoder's maps."""
    from transformer.decoding.search import greedy_search
    from transformer.maps import attention_maps

    model = translator.model
    sources = [translator.encode(sentence) for sentence in french]
    targets = greedy_search(model, sources, 20)
    longest = max(map(len, targets))
    bos, pad = model.config.bos_id, model.config.pad_id
    inputs = [[bos, *ids] + [pad] * (longest - len(ids)) for ids in targets]
    maps = attention_maps(model, torch.tensor(sources), torch.tensor(inputs))
    cross = maps.cross.mean(dim=(1, 2))  # over all layers and heads
    vocabulary = translator.target_tokenizer.vocabulary
    said = [
        Said(vocabulary.decode(ids), [_percents(row) for row in cross[i, : len(ids)]])
        for i, ids in enumerate(targets)
    ]
    for each in said:
        each.words[0] = each.words[0].capitalize()
    return said, maps.encoder


def _percents(weights: torch.Tensor) -> list[int]:
    return [round(100 * weight) for weight in weights.tolist()]


# The picture. The script draws the same: a test compares the ribbons of both.

WIDE, HIGH, FULL = 1000, 100, 105  # of the picture; of a ribbon that has all attention
Ribbon = tuple[float, float, float, float]  # its edges: two above, two below


def ribbons(weights: Percents) -> dict[tuple[int, int], Ribbon]:
    """Where each ribbon begins and ends, by English and French word.

    Below, the ribbons of an English word lie side by side; above, those of a French
    one, narrower where together they would be wider than its column.
    """
    rows, cols = len(weights), len(weights[0])
    given = [sum(row[j] for row in weights) for j in range(cols)]
    narrow = [min(1.0, 0.8 * WIDE / cols / (FULL * max(g, 1) / 100)) for g in given]
    above = [
        WIDE * (j + 0.5) / cols - FULL * narrow[j] * given[j] / 200 for j in range(cols)
    ]
    found = {}
    for i, row in enumerate(weights):
        below = WIDE * (i + 0.5) / rows - FULL * sum(row) / 200
        for j, percent in enumerate(row):
            wide = FULL * percent / 100
            start, end = above[j], below
            above[j], below = start + wide * narrow[j], end + wide
            found[i, j] = start, above[j], end, below
    return found


def path(ribbon: Ribbon) -> str:
    """A ribbon's outline."""
    a, b, c, d = (f"{x:.1f}" for x in ribbon)
    low, middle = HIGH, HIGH // 2
    return (
        f"M{a} 0C{a} {middle} {c} {middle} {c} {low}H{d}"
        f"C{d} {middle} {b} {middle} {b} 0Z"
    )


def picture(sentence: str, chosen: int) -> str:
    """One translation as it stands without scripts."""
    subject, verb, owner, thing = sentence.split()
    said = translations()[sentence].whole
    glosses = SUBJECTS[subject], VERBS[verb], "his, her", THINGS[f"{owner} {thing}"]
    french = "".join(
        f'<span class="hero-word{" hero-menu" if at != OWNER else ""}">'
        f'<b lang="fr">{word}</b><small>{gloss}</small></span>'
        for at, (word, gloss) in enumerate(
            zip((subject, verb, owner, thing), glosses, strict=True)
        )
    )
    groups: list[str] = [""] * len(said.words)
    for (i, _), ribbon in ribbons(said.weights).items():
        groups[i] += f'<path d="{path(ribbon)}"/>'
    flow = "".join(
        f'<g class="{"on" if i == chosen else ""}" style="--i: {i}">{paths}</g>'
        for i, paths in enumerate(groups)
    )
    english = "".join(
        f'<span class="hero-said{" on" if i == chosen else ""}">{word}</span>'
        for i, word in enumerate(said.words)
    )
    return (
        '<div class="hero-machine">\n'
        f'<svg class="hero-arc" viewBox="0 0 {WIDE} {HIGH}" preserveAspectRatio="none" '
        'aria-hidden="true"></svg>\n'
        f'<div class="hero-row hero-french">{french}</div>\n'
        f'<svg class="hero-flow" viewBox="0 0 {WIDE} {HIGH}" '
        f'preserveAspectRatio="none" aria-hidden="true">{flow}</svg>\n'
        f'<div class="hero-row hero-english">{english}</div>\n'
        f'</div>\n<p class="hero-says">{looked(sentence, said, chosen)}</p>'
    )


def looked(sentence: str, said: Said, chosen: int) -> str:
    """Where the model looked when it wrote a word, in a sentence."""
    row = sorted(
        zip(said.weights[chosen], sentence.split(), strict=True),
        key=lambda each: -each[0],
    )
    places = [
        f'<em lang="fr">{word}</em> ({percent}%)' for percent, word in row if percent
    ]
    last = places.pop()
    at = f"{', '.join(places)} and {last}" if places else last
    return f"To write <em>{said.words[chosen]}</em>, the model looked at {at}."


def data() -> str:
    """All that the script needs: menus, and for each sentence what was said."""

    def pack(said: Said) -> list[Any]:
        return [" ".join(said.words), list(itertools.chain(*said.weights))]

    found = {
        "menus": [list(menu.items()) for menu in (SUBJECTS, VERBS, THINGS)],
        "said": [
            [*pack(each.whole), each.owner, *pack(each.cut)]
            for each in translations().values()
        ],
    }
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def markup() -> str:
    """The way into the book, and a translation to change with what its script needs."""
    link = "explore.html#" + html.escape("s=Jane+vend+sa+voiture&t=2")
    return f"""<p class="hero-line">Build a Transformer, the kind of network inside
ChatGPT, and test every claim about it.</p>
<p class="hero-doors">
<a class="hero-start" href="01-why-attention.html">Start reading: chapter 1</a>
<a href="explore.html">See the whole model run</a></p>
<div class="hero" role="group" aria-label="A translation to change"
data-next="01-why-attention.html">
<p class="hero-title">A small Transformer translates this.
<span class="hero-do">Change a word.</span></p>
{picture("Jane vend sa voiture", chosen=2)}
<p class="hero-riddle">French <em lang="fr">sa</em> can mean <em>his</em> or
<em>her</em>. Who made it <em>her</em>?
<a href="14-attention-maps.html">Chapter 14</a> finds out.</p>
<p class="hero-note">The wider a ribbon, the more the model looked at that French word.
<a class="hero-whole" href="{link}">Open this sentence in the whole model.</a></p>
<script type="application/json">{data()}</script>
</div>"""


class Hero(SphinxDirective):
    """The front page's first minute."""

    def run(self) -> list[nodes.Node]:
        """Lay it on the page, which is made again when this file changes."""
        self.env.note_dependency(__file__)
        return [nodes.raw("", markup(), format="html")]


def dress(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Give the page that has it its style and its script."""
    if 'class="hero"' in context.get("body", ""):
        app.add_css_file("hero.css")
        app.add_js_file("hero.js", loading_method="defer")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive, and what dresses it."""
    app.add_directive("hero", Hero)
    app.connect("html-page-context", dress)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
