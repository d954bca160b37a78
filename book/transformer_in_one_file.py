"""The Transformer of 2017 in one file. It needs PyTorch, and nothing else.

python transformer_in_one_file.py            trains on the sentences of a small grammar
python transformer_in_one_file.py pairs.tsv  on your own: a sentence, a tab, another
"""

import itertools
import math
import random
import re
import sys

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

PAD, BOS, EOS, UNKNOWN = range(4)


class Embedding(nn.Module):
    """A row of a table for each id, times √width (paper, section 3.4)."""

    def __init__(self, words, width):
        super().__init__()
        self.table = nn.Embedding(words, width)
        nn.init.normal_(self.table.weight, std=width**-0.5)

    def forward(self, ids):
        return self.table(ids) * math.sqrt(self.table.embedding_dim)


class Positions(nn.Module):
    """Add sines and cosines of the position (section 3.5), then dropout (5.4)."""

    def __init__(self, width, dropout, length=1024):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        rate = 10_000 ** (-torch.arange(0, width, 2).double() / width)
        angle = torch.outer(torch.arange(length).double(), rate)
        table = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)
        self.register_buffer("table", table.float())

    def forward(self, x):
        return self.dropout(x + self.table[: x.size(1)])


class Attention(nn.Module):
    """Multi-head attention of x to memory, where the mask is True (section 3.2)."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        for part in "query", "key", "value", "output":
            setattr(self, f"{part}_proj", nn.Linear(width, width))

    def forward(self, x, memory, mask):
        projected = self.query_proj(x), self.key_proj(memory), self.value_proj(memory)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in projected)
        scores = q @ k.mT / math.sqrt(q.size(-1))  # (batch, heads, queries, keys)
        weights = scores.masked_fill(~mask, -math.inf).softmax(dim=-1)
        return self.output_proj((weights @ v).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two linear maps with a ReLU between them (section 3.3)."""

    def __init__(self, width, d_ff):
        super().__init__()
        self.expand, self.contract = nn.Linear(width, d_ff), nn.Linear(d_ff, width)

    def forward(self, x):
        return self.contract(self.expand(x).relu())


class Residual(nn.Module):
    """Add and norm, with dropout on what is added (sections 3.1 and 5.4)."""

    def __init__(self, width, dropout):
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(dropout)

    def forward(self, x, change):
        return self.norm(x + self.dropout(change))


class Layer(nn.Module):
    """A layer of the encoder, or with `cross` of the decoder (section 3.1)."""

    def __init__(self, width, heads, d_ff, dropout, cross):
        super().__init__()
        self.self_attention = Attention(width, heads)
        self.cross_attention = Attention(width, heads) if cross else None
        self.feed_forward = FeedForward(width, d_ff)
        self.residuals = nn.ModuleList(
            Residual(width, dropout) for _ in range(2 + cross)
        )

    def forward(self, x, mask, memory=None, memory_mask=None):
        x = self.residuals[0](x, self.self_attention(x, x, mask))
        if self.cross_attention:
            x = self.residuals[1](x, self.cross_attention(x, memory, memory_mask))
        return self.residuals[-1](x, self.feed_forward(x))


class Transformer(nn.Module):
    """Encoder, decoder, output projection. True in a mask means *may attend*."""

    def __init__(self, words, width=96, heads=4, d_ff=192, layers=2, dropout=0.0):
        super().__init__()
        self.source_embedding = Embedding(words[0], width)
        self.target_embedding = Embedding(words[1], width)
        self.position = Positions(width, dropout)
        for name, cross in ("encoder", False), ("decoder", True):
            stack = [Layer(width, heads, d_ff, dropout, cross) for _ in range(layers)]
            setattr(self, name, nn.ModuleDict({"layers": nn.ModuleList(stack)}))
        self.output = nn.Linear(width, words[1], bias=False)

    def encode(self, source):
        x, mask = self.source_embedding(source), (source != PAD)[:, None, None]
        x = self.position(x)
        for layer in self.encoder["layers"]:
            x = layer(x, mask)
        return x, mask

    def decode(self, target, memory, memory_mask):
        x, n = self.position(self.target_embedding(target)), target.size(1)
        mask = (target != PAD)[:, None, None] & x.new_ones(n, n).tril().bool()
        for layer in self.decoder["layers"]:
            x = layer(x, mask, memory, memory_mask)
        return self.output(x)

    def forward(self, source, target):
        return self.decode(target, *self.encode(source))


SLOTS = """Jane = Jane, Paul = Paul, Marie = Marie, mon ami = my friend, elle = she
vend = sells, achète = buys, cherche = looks for, lave = washes, aime = likes
maison = house, voiture = car, robe = dress, chaise = chair, fleur = flower
rouge = red, verte = green, bleue = blue, noire = black, blanche = white
en mai = in May, en septembre = in September, le lundi = on Mondays"""


def grammar():
    """Pairs: Jane vend une robe rouge en mai, Jane sells a red dress in May."""
    slots = [[x.split(" = ") for x in line.split(", ")] for line in SLOTS.splitlines()]
    for choice in itertools.product(*slots):
        french, (who, does, thing, colour, when) = zip(*choice)
        english = f"{who} {does} a {colour} {thing} {when}"
        yield "{} {} une {} {} {}".format(*french), english


def split(text):
    """Words and marks; an apostrophe stays with the word before it."""
    return re.findall(r"\w+'?|[^\w\s]", text)


def numbered(texts):
    """An id for every word, after the four special ones."""
    found = dict.fromkeys(word for text in texts for word in split(text))
    return {word: number for number, word in enumerate(found, 4)}


def batch(texts, ids, first=(), last=()):
    """Texts as rows of ids, padded to one length."""
    rows = [[ids.get(word, UNKNOWN) for word in split(text)] for text in texts]
    rows = [torch.tensor([*first, *row, *last]) for row in rows]
    return pad_sequence(rows, batch_first=True, padding_value=PAD)


def train(model, pairs, ids, steps=600, size=64, warmup=150):
    """Smoothed labels, Adam and a warm-up (sections 5.3 and 5.4)."""
    adam = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    smoothed = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)
    for step in range(1, steps + 1):
        sources, targets = zip(*random.sample(pairs, size))
        target = batch(targets, ids[1], [BOS], [EOS])
        logits = model(batch(sources, ids[0]), target[:, :-1])
        loss = smoothed(logits.flatten(0, 1), target[:, 1:].flatten())
        adam.zero_grad()
        loss.backward()
        rate = model.output.in_features**-0.5 * min(step**-0.5, step * warmup**-1.5)
        adam.param_groups[0]["lr"] = rate * min(1, 2 * (1 - step / steps))
        adam.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss:.2f}", flush=True)


@torch.no_grad()
def translate(model, text, ids):
    """Greedy search: the most probable next word, until it is the end."""
    memory, mask = model.encode(batch([text], ids[0]))
    target = torch.tensor([[BOS]])
    while target[0, -1] != EOS and target.size(1) < 50:
        best = model.decode(target, memory, mask)[:, -1:].argmax(dim=-1)
        target = torch.cat((target, best), dim=1)
    words = ["", "", "", "?", *ids[1]]
    return " ".join(words[i] for i in target[0] if i >= UNKNOWN)


def main():
    """Train, say how it went, and translate what is typed in."""
    random.seed(0)
    torch.manual_seed(0)
    pairs = list(grammar())
    if sys.argv[1:]:
        with open(sys.argv[1], encoding="utf-8") as file:
            pairs = [line.split("\t") for line in file.read().splitlines()]
    random.shuffle(pairs)
    ids = [numbered(side) for side in zip(*pairs)]
    model = Transformer([len(known) + 4 for known in ids])
    train(model, pairs[100:], ids)
    held_out = [(translate(model, a, ids), " ".join(split(b))) for a, b in pairs[:100]]
    right = sum(found == due for found, due in held_out)
    print(f"{right} of {len(held_out)} held-out sentences are right")
    while text := input("A sentence in French, or nothing to stop: "):
        print(translate(model, text, ids))


if __name__ == "__main__":
    main()
