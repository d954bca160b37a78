# ruff: noqa: E501
"""Two correct models in two styles, and bugs planted in them by rule.

`HOUSE` is put together from the package's own parts: batch first, boolean masks, True
= may attend. `FOREIGN` is written as others write: length first, masks of zeros and
ones that become large negative numbers, one projection for queries, keys and values,
norms of its own, flat log-probabilities beside a loss.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import transformer

MODULES = [
    "attention",
    "multi_head",
    "masks",
    "positional",
    "embedding",
    "encoder",
    "decoder",
]

PREFACE = """
import math
from collections.abc import Callable
from typing import Any, NamedTuple
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from transformer.checks import *
from transformer import checks as _checks
globals().update({n: v for n, v in vars(_checks).items() if n.startswith("require")})

def spelled(query, key, value, mask, dropout, d_model):
    d_k = query.size(-1)
    scores = query @ key.transpose(-2, -1) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e30)
    weights = scores.softmax(dim=-1)
    return weights @ value
"""

MODEL = """
class Model(nn.Module):
    def __init__(self, d_model, num_heads, num_layers, d_ff, dropout, vocab_size):
        super().__init__()
        rest = num_layers, dropout, NORM_FIRST
        self.source_embedding = TokenEmbedding(vocab_size, d_model)
        self.target_embedding = TokenEmbedding(vocab_size, d_model)
        self.position = PositionalEncoding(d_model, dropout, 64)
        self.encoder = Encoder(d_model, num_heads, d_ff, *rest)
        self.decoder = Decoder(d_model, num_heads, d_ff, *rest)
        self.output = nn.Linear(d_model, vocab_size)
        pass

    def forward(self, source, target):
        source_mask = padding_mask(source, 0)
        causal = causal_mask(target.size(1))
        target_mask = causal & padding_mask(target, 0)
        embedded = self.position(self.source_embedding(source))
        memory = self.encoder(embedded, source_mask)
        x = self.position(self.target_embedding(target))
        return self.output(self.decoder(x, memory, source_mask, target_mask))
"""


def house(norm_first: bool = False) -> str:
    """The package's parts, as one text, and a model of them."""
    texts = [PREFACE]
    for name in MODULES:
        path = f"{transformer.__path__[0]}/{name}.py"
        with open(path, encoding="utf-8") as file:
            body = file.read().split("__all__ = [", 1)[1].split("]\n", 1)[1]
        texts.append(re.sub(r"(Float|Int|Bool)\[Tensor, \"[^\"]*\"\]", "Tensor", body))
    return "\n".join([*texts, f"NORM_FIRST = {norm_first}", MODEL])


FOREIGN = """
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

class Norm(nn.Module):
    def __init__(self, n, eps=1e-6):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(n))
        self.beta = nn.Parameter(torch.zeros(n))
        self.eps = eps
    def forward(self, x):
        mu = x.mean(-1, keepdim=True)
        sd = ((x - mu) ** 2).mean(-1, keepdim=True).sqrt()
        return self.gamma * (x - mu) / (sd + self.eps) + self.beta

class SelfAttn(nn.Module):
    def __init__(self, n, h, p):
        super().__init__()
        self.h, self.n = h, n
        self.qkv = nn.Linear(n, 3 * n)
        self.out = nn.Linear(n, n)
        self.drop = nn.Dropout(p)
    def forward(self, x, bias):                   # x: T B n, bias: B 1 T
        T, B, n = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q = q.reshape(T, B * self.h, n // self.h).transpose(0, 1)
        k = k.reshape(T, B * self.h, n // self.h).transpose(0, 1)
        v = v.reshape(T, B * self.h, n // self.h).transpose(0, 1)
        q = q * (n // self.h) ** -0.5
        s = torch.bmm(q, k.transpose(1, 2))
        s = s.view(B, self.h, T, T) + bias.unsqueeze(1)
        a = self.drop(F.softmax(s, dim=-1)).view(B * self.h, T, T)
        o = torch.bmm(a, v).transpose(0, 1).reshape(T, B, n)
        return self.out(o)

class CrossAttn(nn.Module):
    def __init__(self, n, h, p):
        super().__init__()
        self.h = h
        self.q = nn.Linear(n, n)
        self.kv = nn.Linear(n, 2 * n)
        self.out = nn.Linear(n, n)
        self.drop = nn.Dropout(p)
    def forward(self, x, mem, bias):
        q = self.q(x)
        k, v = self.kv(mem).chunk(2, dim=-1)
        split = lambda y: y.reshape(y.shape[0], y.shape[1], self.h, -1)
        q, k, v = split(q), split(k), split(v)
        s = torch.einsum("tbhd,sbhd->bhts", q, k) / math.sqrt(q.shape[-1])
        a = self.drop(F.softmax(s + bias.unsqueeze(1), dim=3))
        o = torch.einsum("bhts,sbhd->tbhd", a, v)
        return self.out(o.reshape(x.shape))

class Ffn(nn.Module):
    def __init__(self, n, f, p):
        super().__init__()
        self.a = nn.Linear(n, f)
        self.b = nn.Linear(f, n)
        self.drop = nn.Dropout(p)
    def forward(self, x):
        return self.b(self.drop(F.gelu(self.a(x))))

class EncBlock(nn.Module):
    def __init__(self, n, h, f, p):
        super().__init__()
        self.att, self.ffn = SelfAttn(n, h, p), Ffn(n, f, p)
        self.n1, self.n2 = Norm(n), Norm(n)
        self.drop = nn.Dropout(p)
    def forward(self, x, bias):
        x = x + self.drop(self.att(self.n1(x), bias))
        return x + self.drop(self.ffn(self.n2(x)))

class DecBlock(nn.Module):
    def __init__(self, n, h, f, p):
        super().__init__()
        self.att, self.cross = SelfAttn(n, h, p), CrossAttn(n, h, p)
        self.ffn = Ffn(n, f, p)
        self.n1, self.n2, self.n3 = Norm(n), Norm(n), Norm(n)
        self.drop = nn.Dropout(p)
    def forward(self, x, mem, bias, mbias):
        x = x + self.drop(self.att(self.n1(x), bias))
        x = x + self.drop(self.cross(self.n2(x), mem, mbias))
        return x + self.drop(self.ffn(self.n3(x)))

def hide(zeros_and_ones):
    return (1.0 - zeros_and_ones) * -1e9

class Model(nn.Module):
    def __init__(self, d_model, num_heads, num_layers, d_ff, dropout, vocab_size):
        super().__init__()
        self.emb = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.emb.weight, 0, 0.02)
        self.pos = nn.Embedding(64, d_model)
        self.drop = nn.Dropout(dropout)
        a = (d_model, num_heads, d_ff, dropout)
        self.enc = nn.ModuleList([EncBlock(*a) for _ in range(num_layers)])
        self.dec = nn.ModuleList([DecBlock(*a) for _ in range(num_layers)])
        self.ne, self.nd = Norm(d_model), Norm(d_model)
        self.proj = nn.Linear(d_model, vocab_size, bias=False)
        self.proj.weight = self.emb.weight
    def embed(self, ids):                         # T B
        place = torch.arange(ids.shape[0]).unsqueeze(1)
        return self.drop(self.emb(ids) + self.pos(place))
    def forward(self, src, tgt):                  # S B, T B
        T = tgt.shape[0]
        keep = (src != 0).float().t().unsqueeze(1)    # B 1 S
        mbias = hide(keep)
        tri = torch.tril(torch.ones(T, T)).unsqueeze(0)
        tkeep = (tgt != 0).float().t().unsqueeze(1)
        bias = hide(tri * tkeep)
        x = self.embed(src)
        for b in self.enc:
            x = b(x, mbias)
        mem = self.ne(x)
        y = self.embed(tgt)
        for b in self.dec:
            y = b(y, mem, bias, mbias)
        logp = F.log_softmax(self.proj(self.nd(y)), dim=-1)
        loss = F.nll_loss(logp.view(-1, logp.shape[-1]), tgt.reshape(-1))
        return loss, logp.view(-1, logp.shape[-1])
"""


@dataclass(frozen=True)
class Planted:
    """A bug: what is replaced in a model's text, and the causes that name it."""

    base: str  # "house", "house-pre" or "foreign"
    name: str
    old: str
    new: str
    causes: tuple[str, ...]  # the first is the exact one
    level: str = "bug"


FUSED = "F.scaled_dot_product_attention(queries, keys, values, mask, dropout)"
PLAIN = "spelled(queries, keys, values, mask, dropout, query.size(-1))"
SCORES = "scores = query @ key.transpose(-2, -1) / math.sqrt(d_k)"
FILL = "scores = scores.masked_fill(~mask, -1e30)"
SOFT = "weights = scores.softmax(dim=-1)\n    return"


def spelled(name: str, old: str, new: str, *causes: str, level: str = "bug") -> Planted:
    """A bug in the attention, which is then spelled out."""
    return Planted("house", name, f"{FUSED}\0{old}", f"{PLAIN}\0{new}", causes, level)


def house_bug(
    name: str, old: str, new: str, *causes: str, level: str = "bug"
) -> Planted:
    return Planted("house", name, old, new, causes, level)


def pre_bug(name: str, old: str, new: str, *causes: str, level: str = "bug") -> Planted:
    return Planted("house-pre", name, old, new, causes, level)


def foreign_bug(
    name: str, old: str, new: str, *causes: str, level: str = "bug"
) -> Planted:
    return Planted("foreign", name, old, new, causes, level)


POST = "return self.norm(x + self.dropout(sublayer(x)))"
PRE = "return x + self.dropout(sublayer(self.norm(x)))"
RATE = "rate = 10_000 ** (-column / d_model)"
TABLE = "table = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)"
NORM = "x = self.residuals[0](x, lambda x: self.self_attention(x, x, x, mask))"

BUGS = [
    house_bug("no causal mask", "device=device).tril()", "device=device)", "future-leak-no-mask"),
    house_bug("upper triangle", ".tril()", ".triu()", "future-leak-inverted"),
    house_bug("off by one", ".tril()", ".tril(1)", "future-leak-off-by-one"),
    house_bug("itself hidden", ".tril()", ".tril(-1)", "self-hidden"),
    house_bug("or", "causal & padding", "causal | padding", "future-leak-no-mask", "future-leak-with-padding"),
    house_bug(
        "padding replaces", "causal & padding_mask(target, 0)",
        "padding_mask(target, 0) if (target == 0).any() else causal",
        "future-leak-with-padding",
    ),
    house_bug(
        "only in training", "causal = causal_mask(target.size(1))",
        "causal = causal_mask(target.size(1)) | torch.tensor(not self.training)",
        "future-leak-eval-only",
    ),
    house_bug(
        "only in evaluation", "causal = causal_mask(target.size(1))",
        "causal = causal_mask(target.size(1)) | torch.tensor(self.training)",
        "future-leak-train-only",
    ),
    house_bug(
        "first layer only", "x = layer(x, memory, source_mask, target_mask)",
        "x = layer(x, memory, source_mask, target_mask if layer is self.layers[0] else None)",
        "future-leak-some-layers",
    ),
    house_bug(
        "encoder reads the target", "embedded = self.position(self.source_embedding(source))\n        memory = self.encoder(embedded, source_mask)",
        "embedded = self.position(self.source_embedding(target))\n        memory = self.encoder(embedded, padding_mask(target, 0))\n        source_mask = padding_mask(target, 0)",
        "future-leak-encoder-reads-target",
    ),
    house_bug("padding inverted", "ids != pad_id", "ids == pad_id", "padding-inverted"),
    house_bug("wrong id", "ids != pad_id", "ids != 1", "padding-wrong-id"),
    house_bug("all small ids", "ids != pad_id", "ids > 2", "words-hidden"),
    house_bug("encoder unmasked", "self.encoder(embedded, source_mask)", "self.encoder(embedded)", "padding-encoder-unmasked"),
    house_bug("cross unmasked", "memory, memory, source_mask", "memory, memory", "padding-cross-unmasked"),
    house_bug("no padding mask", "source_mask = padding_mask(source, 0)", "source_mask = None", "padding-unmasked"),
    house_bug(
        "one place late", "source_mask = padding_mask(source, 0)",
        "source_mask = padding_mask(torch.cat((source[:, :1], source[:, :-1]), 1), 0)",
        "padding-late",
    ),
    house_bug(
        "rows", "self.encoder(embedded, source_mask)",
        "self.encoder(embedded, source_mask.transpose(-2, -1))",
        "padding-rows", "padding-encoder-unmasked",
    ),
    house_bug("first mask for all", "source_mask = padding_mask(source, 0)", "source_mask = padding_mask(source, 0)[:1]", "mask-of-another-sentence"),
    house_bug("target's mask", "memory, memory, source_mask", "memory, memory, target_mask[..., -1:, :]", "lengths-must-agree"),
    spelled("d_model", SCORES, SCORES.replace("d_k)", "d_model)"), "scale-d-model"),
    spelled("no scale", SCORES, SCORES.replace(" / math.sqrt(d_k)", ""), "scale-missing"),
    spelled("times", SCORES, SCORES.replace("/", "*"), "scale-multiplied"),
    spelled("no root", SCORES, SCORES.replace("math.sqrt(d_k)", "d_k"), "scale-not-root"),
    spelled("root of the length", SCORES, SCORES.replace("d_k)", "query.size(-2))"), "scale-length"),
    spelled("over queries", "softmax(dim=-1)", "softmax(dim=-2)", "softmax-over-queries"),
    spelled("over heads", "softmax(dim=-1)\n    return", "softmax(dim=1)\n    return", "softmax-over-heads"),
    spelled("no softmax", SOFT, "weights = scores.clamp(min=0)\n    return", "softmax-missing"),
    spelled(
        "after the softmax", f"{FILL}\n    {SOFT}",
        "pass\n    weights = scores.softmax(dim=-1)\n    if mask is not None:\n        weights = weights * mask\n    return",
        "mask-after-softmax",
    ),
    spelled("multiplied", FILL, "scores = scores * mask", "mask-multiplied"),
    spelled("added", FILL, "scores = scores + mask.float()", "mask-added"),
    spelled("dropped", FILL, FILL.replace("scores = ", ""), "mask-dropped"),
    spelled("weak", FILL, FILL.replace("-1e30", "-5.0"), "mask-too-weak"),
    spelled("small", FILL, FILL.replace("-1e30", "-1e-9"), "mask-not-minus"),
    spelled("plus", FILL, FILL.replace("-1e30", "1e-9"), "mask-not-minus"),
    spelled("inverted", FILL, FILL.replace("~mask", "mask"), "future-leak-inverted", "padding-inverted", "not-finite"),
    spelled("learnable", FILL, FILL.replace("-1e30", "-1e4"), "mask-can-be-unlearned", level="look"),
    spelled("half", FILL, FILL.replace("-1e30", "-1e9"), "mask-overflows-half", level="look"),
    house_bug("dropout in eval", "self.dropout if self.training else 0.0", "0.1", "dropout-in-eval"),
    house_bug("functional dropout", "return self.contract(self.activation(self.expand(x)))", "return F.dropout(self.contract(self.activation(self.expand(x))), 0.1)", "dropout-in-eval"),
    house_bug("merged by view", "heads.transpose(-3, -2).flatten(-2)", "heads.reshape(query.shape)", "heads-by-view"),
    house_bug(
        "split by view", "return torch.unflatten(x, -1, (self.num_heads, -1)).transpose(-3, -2)",
        "return x.reshape(x.size(0), self.num_heads, x.size(1), -1)", "heads-by-view",
    ),
    house_bug("keys as values", "self._split(self.value_proj(value))", "self._split(self.key_proj(value))", "values-from-keys"),
    house_bug("queries as keys", "self.query_proj(query)), keys_values", "self.key_proj(query)), keys_values", "queries-are-keys", "parameter-unused"),
    house_bug("no output map", "return self.output_proj(heads.transpose(-3, -2).flatten(-2))", "return heads.transpose(-3, -2).flatten(-2)", "parameter-unused", "output-projection-missing"),
    house_bug("no residual", POST, "return self.norm(self.dropout(sublayer(x)))", "residual-missing"),
    pre_bug("no residual, norm first", PRE, "return self.dropout(sublayer(self.norm(x)))", "residual-missing"),
    pre_bug("from the norm", PRE, "x = self.norm(x)\n            return x + self.dropout(sublayer(x))", "residual-from-norm"),
    house_bug("dropout on the residual", POST, "return self.norm(self.dropout(x + sublayer(x)))", "dropout-on-residual"),
    pre_bug("no last norm", "nn.LayerNorm(d_model) if norm_first else nn.Identity()", "nn.Identity()", "final-norm-missing", level="look"),
    house_bug("norm over time", POST, "return F.layer_norm((x + self.dropout(sublayer(x))).mT, (x.size(1),)).mT * self.norm.weight", "norm-over-batch", "mixed-outside-attention"),
    house_bug("no activation", "self.activation(self.expand(x))", "self.expand(x)", "feed-forward-linear"),
    house_bug(
        "one layer repeated", "DecoderLayer(d_model, num_heads, d_ff, dropout, norm_first)\n            for _ in range(num_layers)",
        "[DecoderLayer(d_model, num_heads, d_ff, dropout, norm_first)] * num_layers", "layers-shared",
    ),
    house_bug(
        "plain list", "self.layers = nn.ModuleList(\n            EncoderLayer(d_model, num_heads, d_ff, dropout, norm_first)\n            for _ in range(num_layers)\n        )",
        "self.layers = [\n            EncoderLayer(d_model, num_heads, d_ff, dropout, norm_first)\n            for _ in range(num_layers)\n        ]",
        "layers-not-registered",
    ),
    house_bug("one norm", "x = self.residuals[0](x, lambda x: self.self_attention(x, x, x, mask))", "x = self.residuals[1](x, lambda x: self.self_attention(x, x, x, mask))", "module-shared"),
    house_bug("one attention", "lambda x: self.cross_attention(x, memory", "lambda x: self.self_attention(x, memory", "module-shared"),
    house_bug("made in forward", "return self.norm(x)\n", "return nn.LayerNorm(x.size(-1))(x)\n", "made-in-forward"),
    house_bug("last layer alone", "            x = layer(x, mask)\n        return self.norm(x)", "            y = layer(x, mask)\n        return self.norm(y)", "layer-bypassed"),
    house_bug("detached", "memory = self.encoder(embedded, source_mask)", "memory = self.encoder(embedded, source_mask).detach()", "gradient-cut"),
    house_bug("cross reads the target", "self.cross_attention(x, memory, memory, source_mask)", "self.cross_attention(x, x, x, target_mask)", "cross-reads-target"),
    house_bug("memory lost", "x = self.position(self.target_embedding(target))", "x = self.position(self.target_embedding(target))\n        memory = torch.zeros_like(memory)", "source-ignored"),
    house_bug("no positions", "return self.dropout(x + self.table[start:end])", "return self.dropout(x)", "no-positions"),
    house_bug("positions over the batch", "return self.dropout(x + self.table[start:end])", "return self.dropout(x + self.table[: x.size(0)].unsqueeze(1))", "positions-along-batch"),
    house_bug("column", RATE, "rate = 10_000 ** (-2 * column / d_model)", "sinusoids"),
    house_bug("base", RATE, RATE.replace("10_000", "1_000"), "sinusoids"),
    house_bug("integer exponent", RATE, "rate = 10_000 ** -(column // d_model)", "sinusoids"),
    house_bug("all sines", TABLE, TABLE.replace("angle.cos()", "angle.sin()"), "sinusoids"),
    house_bug("loss at start", "nn.init.normal_(self.table.weight, std=d_model**-0.5)\0self.output = nn.Linear(d_model, vocab_size)\n        pass\n", "pass\0self.output = nn.Linear(d_model, vocab_size)\n        self.output.weight = self.target_embedding.table.weight\n", "loss-at-start"),
    house_bug("log-softmax over time", "return self.output(self.decoder(x, memory, source_mask, target_mask))", "return self.output(self.decoder(x, memory, source_mask, target_mask)).log_softmax(1)", "softmax-over-time"),
    house_bug("probabilities", "return self.output(self.decoder(x, memory, source_mask, target_mask))", "return self.output(self.decoder(x, memory, source_mask, target_mask)).softmax(-1)", "output-probabilities", level="look"),
    house_bug("fixed dropout", "PositionalEncoding(d_model, dropout, 64)", "PositionalEncoding(d_model, 0.1, 64)", "dropout-fixed", level="look"),
    house_bug("one head", "self.num_heads = num_heads", "self.num_heads = 1", "heads-unused", level="look"),
    house_bug("padding row", "self.table = nn.Embedding(vocab_size, d_model)", "self.table = nn.Embedding(vocab_size, d_model, padding_idx=1)", "padding-row-wrong"),
    house_bug("plain tensor", 'self.register_buffer("table", sinusoids(max_length, d_model))', "self.table = sinusoids(max_length, d_model)", "tensor-not-registered", level="look"),
    foreign_bug("no triangle", "hide(tri * tkeep)", "hide(tkeep.expand(-1, T, -1))", "future-leak-no-mask"),
    foreign_bug("upper triangle", "torch.tril(torch", "torch.triu(torch", "future-leak-inverted"),
    foreign_bug("off by one", "torch.ones(T, T))", "torch.ones(T, T), 1)", "future-leak-off-by-one"),
    foreign_bug("masks inverted", "(1.0 - zeros_and_ones)", "zeros_and_ones", "padding-inverted", "future-leak-inverted"),
    foreign_bug("added as it is", "return (1.0 - zeros_and_ones) * -1e9", "return zeros_and_ones", "mask-added"),
    foreign_bug("weak", "-1e9", "-3.0", "mask-too-weak"),
    foreign_bug("encoder unmasked", "x = b(x, mbias)", "x = b(x, 0 * mbias)", "padding-encoder-unmasked"),
    foreign_bug("cross unmasked", "y = b(y, mem, bias, mbias)", "y = b(y, mem, bias, 0 * mbias)", "padding-cross-unmasked"),
    foreign_bug("wrong id", "(src != 0)", "(src != 1)", "padding-wrong-id"),
    foreign_bug("heads before batch", "s.view(B, self.h, T, T) + bias.unsqueeze(1)", "s.view(self.h, B, T, T).transpose(0, 1) + bias.unsqueeze(1)", "mask-of-another-sentence", "batch-mixed"),
    foreign_bug("scale of d_model", "q * (n // self.h) ** -0.5", "q * n ** -0.5", "scale-d-model"),
    foreign_bug("no scale in cross", ' / math.sqrt(q.shape[-1])', "", "scale-missing"),
    foreign_bug("over heads", "unsqueeze(1), dim=3)", "unsqueeze(1), dim=1)", "softmax-over-heads"),
    foreign_bug("over queries", "F.softmax(s, dim=-1)", "F.softmax(s, dim=-2)", "softmax-over-queries"),
    foreign_bug("merged by view", ".transpose(0, 1).reshape(T, B, n)", ".reshape(T, B, n)", "heads-by-view", "mixed-outside-attention", "batch-mixed"),
    foreign_bug("keys as values", 'torch.einsum("bhts,sbhd->tbhd", a, v)', 'torch.einsum("bhts,sbhd->tbhd", a, k)', "values-from-keys"),
    foreign_bug("from the norm", "x = x + self.drop(self.att(self.n1(x), bias))\n        return", "x = self.n1(x)\n        x = x + self.drop(self.att(x, bias))\n        return", "residual-from-norm"),
    foreign_bug("no residual", "return x + self.drop(self.ffn(self.n3(x)))", "return self.drop(self.ffn(self.n3(x)))", "residual-missing"),
    foreign_bug("shift in the denominator", "/ (sd + self.eps) + self.beta", "/ (sd + self.eps + self.beta)", "norm-wrong"),
    foreign_bug("variance for deviation", ".mean(-1, keepdim=True).sqrt()", ".mean(-1, keepdim=True)", "norm-wrong"),
    foreign_bug("unbiased", "((x - mu) ** 2).mean(-1, keepdim=True).sqrt()", "x.std(-1, keepdim=True)", "norm-unbiased", level="look"),
    foreign_bug("norm over time", "mu = x.mean(-1, keepdim=True)", "mu = x.mean(0, keepdim=True)", "norm-over-batch"),
    foreign_bug("no activation", "F.gelu(self.a(x))", "self.a(x)", "feed-forward-linear"),
    foreign_bug("one layer repeated", "[EncBlock(*a) for _ in range(num_layers)]", "[EncBlock(*a)] * num_layers", "layers-shared"),
    foreign_bug("no positions", "self.emb(ids) + self.pos(place)", "self.emb(ids)", "no-positions"),
    foreign_bug("positions over the batch", "torch.arange(ids.shape[0]).unsqueeze(1)", "torch.arange(ids.shape[1]).unsqueeze(0)", "positions-along-batch"),
    foreign_bug("loss at start", "nn.init.normal_(self.emb.weight, 0, 0.02)", "pass", "loss-at-start"),
    foreign_bug("functional dropout", "self.drop(F.gelu(self.a(x)))", "F.dropout(F.gelu(self.a(x)), 0.1)", "dropout-in-eval"),
    foreign_bug("no last norm", "self.proj(self.nd(y))", "self.proj(y)", "final-norm-missing", level="look"),
]  # fmt: skip


def text_of(planted: Planted) -> str:
    """The sick model's code; every replaced part must be there."""
    text = {
        "house": house,
        "house-pre": lambda: house(True),
        "foreign": lambda: FOREIGN,
    }[planted.base]()
    for old, new in zip(planted.old.split("\0"), planted.new.split("\0"), strict=True):
        assert old in text, f"{planted.name}: the model's text has no {old!r}"
        text = text.replace(old, new)
    return text


def loaded(text: str, name: str = "Model") -> Callable[..., Any]:
    """The class that a text defines."""
    space: dict[str, Any] = {"__name__": "sick"}
    exec(compile(text, "<sick>", "exec"), space)
    return space[name]
