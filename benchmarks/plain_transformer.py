"""The Transformer as tutorials write it: what the fast one is compared with.

Every step of it is on the page: three projections, a softmax spelled out with a large
negative number for a mask, dropout on the attention weights, logits and loss at every
position, padding included, and Adam's loop over parameters. It is the book's own; the
habits are those of a dozen tutorials. It has as many parameters as the package's model.
"""

import math

import torch
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head attention, written out."""

    def __init__(self, d_model: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor
    ) -> Tensor:
        batch, _, width = query.shape
        query, key, value = (
            project(x).view(batch, -1, self.num_heads, width // self.num_heads)
            for project, x in (
                (self.query, query),
                (self.key, key),
                (self.value, value),
            )
        )
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
        scores = scores.masked_fill(mask == 0, -1e9)
        weights = self.dropout(scores.softmax(dim=-1))
        heads = (weights @ value).transpose(1, 2).contiguous().view(batch, -1, width)
        return self.output(heads)


class Layer(nn.Module):
    """An encoder layer, or with `cross` a decoder layer."""

    def __init__(
        self, d_model: int, num_heads: int, d_ff: int, dropout: float, cross: bool
    ) -> None:
        super().__init__()
        self.attention = Attention(d_model, num_heads, dropout)
        self.cross = Attention(d_model, num_heads, dropout) if cross else None
        self.feed_forward = nn.Sequential(
            nn.Linear(d_model, d_ff),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(d_ff, d_model),
        )
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(2 + cross))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        mask: Tensor,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        x = self.norms[0](x + self.dropout(self.attention(x, x, x, mask)))
        if self.cross is not None:
            attended = self.cross(x, memory, memory, memory_mask)
            x = self.norms[1](x + self.dropout(attended))
        return self.norms[-1](x + self.dropout(self.feed_forward(x)))


class PlainTransformer(nn.Module):
    """Encoder, decoder, one embedding table for source, target and output."""

    def __init__(
        self,
        words: int,
        d_model: int,
        num_heads: int,
        d_ff: int,
        layers: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, d_model)
        nn.init.normal_(self.embedding.weight, std=d_model**-0.5)
        sizes = d_model, num_heads, d_ff, dropout
        self.encoder = nn.ModuleList(Layer(*sizes, cross=False) for _ in range(layers))
        self.decoder = nn.ModuleList(Layer(*sizes, cross=True) for _ in range(layers))
        self.output = nn.Linear(d_model, words, bias=False)
        self.output.weight = self.embedding.weight
        self.dropout = nn.Dropout(dropout)
        position = torch.arange(1024)[:, None]
        rate = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000) / d_model))
        table = torch.zeros(1024, d_model)
        table[:, 0::2] = torch.sin(position * rate)
        table[:, 1::2] = torch.cos(position * rate)
        self.register_buffer("table", table, persistent=False)

    def embed(self, ids: Tensor) -> Tensor:
        """Embeddings and positions, summed."""
        x = self.embedding(ids) * math.sqrt(self.embedding.embedding_dim)
        return self.dropout(x + self.table[: ids.size(1)])

    def forward(self, source: Tensor, target: Tensor, pad: int = 0) -> Tensor:
        source_mask = (source != pad)[:, None, None, :]
        causal_mask = torch.ones(
            target.size(1), target.size(1), device=target.device
        ).tril()
        target_mask = (target != pad)[:, None, None, :] & (causal_mask == 1)
        memory = self.embed(source)
        for layer in self.encoder:
            memory = layer(memory, source_mask)
        x = self.embed(target)
        for layer in self.decoder:
            x = layer(x, target_mask, memory, source_mask)
        return self.output(x)


class SmoothedLoss(nn.Module):
    """Label smoothing as a divergence from a target written out for every token."""

    def __init__(self, words: int, smoothing: float = 0.1, pad: int = 0) -> None:
        super().__init__()
        self.words, self.smoothing, self.pad = words, smoothing, pad
        self.divergence = nn.KLDivLoss(reduction="sum")

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        log_probs = logits.log_softmax(dim=-1).flatten(0, 1)
        labels = labels.flatten()
        target = torch.full_like(log_probs, self.smoothing / self.words)
        target.scatter_add_(
            1, labels[:, None], torch.full_like(target[:, :1], 1 - self.smoothing)
        )
        target = target.masked_fill((labels == self.pad)[:, None], 0.0)
        return self.divergence(log_probs, target) / (labels != self.pad).sum()
