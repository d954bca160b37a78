# ruff: noqa: E501
"""Bugs planted in five models that the doctor was not tuned for: what does it name?

    python benchmarks/doctor.py            all of them: minutes
    python benchmarks/doctor.py karpathy   one model's

The models were written, and the bugs planted, before the doctor had seen any. Its
first run is kept in the results as "before"; this command measures "after".
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from transformer.doctor import Report, examine

RESULTS = Path(__file__).parent / "results" / "doctor.json"

MODELS: dict[str, str] = {}
MODELS["annot"] = """
import torch, math, copy
import torch.nn as nn
import torch.nn.functional as F
def clones(module, N):
    return nn.ModuleList([copy.deepcopy(module) for _ in range(N)])
def attention(query, key, value, mask=None, dropout=None):
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn
class LayerNorm(nn.Module):
    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.a_2 = nn.Parameter(torch.ones(features))
        self.b_2 = nn.Parameter(torch.zeros(features))
        self.eps = eps
    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        std = x.std(-1, keepdim=True)
        return self.a_2 * (x - mean) / (std + self.eps) + self.b_2
class SublayerConnection(nn.Module):
    def __init__(self, size, dropout):
        super().__init__()
        self.norm = LayerNorm(size)
        self.dropout = nn.Dropout(dropout)
    def forward(self, x, sublayer):
        return x + self.dropout(sublayer(self.norm(x)))
class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        self.d_k = d_model // h
        self.h = h
        self.linears = clones(nn.Linear(d_model, d_model), 4)
        self.attn = None
        self.dropout = nn.Dropout(p=dropout)
    def forward(self, query, key, value, mask=None):
        if mask is not None:
            mask = mask.unsqueeze(1)
        nbatches = query.size(0)
        query, key, value = [lin(x).view(nbatches, -1, self.h, self.d_k).transpose(1, 2) for lin, x in zip(self.linears, (query, key, value))]
        x, self.attn = attention(query, key, value, mask=mask, dropout=self.dropout)
        x = x.transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k)
        return self.linears[-1](x)
class PositionwiseFeedForward(nn.Module):
    def __init__(self, d_model, d_ff, dropout=0.1):
        super().__init__()
        self.w_1 = nn.Linear(d_model, d_ff)
        self.w_2 = nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)
    def forward(self, x):
        return self.w_2(self.dropout(self.w_1(x).relu()))
class EncoderLayer(nn.Module):
    def __init__(self, size, self_attn, feed_forward, dropout):
        super().__init__()
        self.self_attn = self_attn
        self.feed_forward = feed_forward
        self.sublayer = clones(SublayerConnection(size, dropout), 2)
    def forward(self, x, mask):
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))
        return self.sublayer[1](x, self.feed_forward)
class DecoderLayer(nn.Module):
    def __init__(self, size, self_attn, src_attn, feed_forward, dropout):
        super().__init__()
        self.self_attn, self.src_attn, self.feed_forward = self_attn, src_attn, feed_forward
        self.sublayer = clones(SublayerConnection(size, dropout), 3)
    def forward(self, x, memory, src_mask, tgt_mask):
        m = memory
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, tgt_mask))
        x = self.sublayer[1](x, lambda x: self.src_attn(x, m, m, src_mask))
        return self.sublayer[2](x, self.feed_forward)
class PositionalEncoding(nn.Module):
    def __init__(self, d_model, dropout, max_len=500):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(0, max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * -(math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0))
    def forward(self, x):
        x = x + self.pe[:, : x.size(1)].requires_grad_(False)
        return self.dropout(x)
class Model(nn.Module):
    def __init__(self, d_model, num_heads, num_layers, d_ff, dropout, vocab_size):
        super().__init__()
        c = copy.deepcopy
        attn = MultiHeadedAttention(num_heads, d_model, dropout)
        ff = PositionwiseFeedForward(d_model, d_ff, dropout)
        self.pos = PositionalEncoding(d_model, dropout)
        self.enc = clones(EncoderLayer(d_model, c(attn), c(ff), dropout), num_layers)
        self.dec = clones(DecoderLayer(d_model, c(attn), c(attn), c(ff), dropout), num_layers)
        self.enorm, self.dnorm = LayerNorm(d_model), LayerNorm(d_model)
        self.src_embed, self.tgt_embed = nn.Embedding(vocab_size, d_model), nn.Embedding(vocab_size, d_model)
        self.gen = nn.Linear(d_model, vocab_size)
        self.d_model = d_model
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)
    def forward(self, src, labels):
        tgt = torch.cat((torch.ones_like(labels[:, :1]), labels[:, :-1]), 1)
        src_mask = (src != 0).unsqueeze(-2)
        tgt_mask = (tgt != 0).unsqueeze(-2)
        size = tgt.size(1)
        subsequent = torch.triu(torch.ones((1, size, size)), diagonal=1).type(torch.uint8)
        tgt_mask = tgt_mask & (subsequent == 0)
        x = self.pos(self.src_embed(src) * math.sqrt(self.d_model))
        for layer in self.enc:
            x = layer(x, src_mask)
        memory = self.enorm(x)
        y = self.pos(self.tgt_embed(tgt) * math.sqrt(self.d_model))
        for layer in self.dec:
            y = layer(y, memory, src_mask, tgt_mask)
        return F.log_softmax(self.gen(self.dnorm(y)), dim=-1)
"""
MODELS["karpathy"] = """
import torch
import torch.nn as nn
from torch.nn import functional as F
block_size = 64
class Head(nn.Module):
    def __init__(self, n_embd, head_size, dropout):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer('tril', torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(dropout)
    def forward(self, x):
        B,T,C = x.shape
        k = self.key(x)
        q = self.query(x)
        wei = q @ k.transpose(-2,-1) * k.shape[-1]**-0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float('-inf'))
        wei = F.softmax(wei, dim=-1)
        wei = self.dropout(wei)
        v = self.value(x)
        return wei @ v
class MultiHeadAttention(nn.Module):
    def __init__(self, n_embd, num_heads, head_size, dropout):
        super().__init__()
        self.heads = nn.ModuleList([Head(n_embd, head_size, dropout) for _ in range(num_heads)])
        self.proj = nn.Linear(head_size * num_heads, n_embd)
        self.dropout = nn.Dropout(dropout)
    def forward(self, x):
        out = torch.cat([h(x) for h in self.heads], dim=-1)
        out = self.dropout(self.proj(out))
        return out
class FeedFoward(nn.Module):
    def __init__(self, n_embd, d_ff, dropout):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(n_embd, d_ff), nn.ReLU(), nn.Linear(d_ff, n_embd), nn.Dropout(dropout))
    def forward(self, x):
        return self.net(x)
class Block(nn.Module):
    def __init__(self, n_embd, n_head, d_ff, dropout):
        super().__init__()
        head_size = n_embd // n_head
        self.sa = MultiHeadAttention(n_embd, n_head, head_size, dropout)
        self.ffwd = FeedFoward(n_embd, d_ff, dropout)
        self.ln1 = nn.LayerNorm(n_embd)
        self.ln2 = nn.LayerNorm(n_embd)
    def forward(self, x):
        x = x + self.sa(self.ln1(x))
        x = x + self.ffwd(self.ln2(x))
        return x
class Model(nn.Module):
    def __init__(self, d_model, num_heads, num_layers, d_ff, dropout, vocab_size):
        super().__init__()
        self.token_embedding_table = nn.Embedding(vocab_size, d_model)
        self.position_embedding_table = nn.Embedding(block_size, d_model)
        self.blocks = nn.Sequential(*[Block(d_model, num_heads, d_ff, dropout) for _ in range(num_layers)])
        self.ln_f = nn.LayerNorm(d_model)
        self.lm_head = nn.Linear(d_model, vocab_size)
        self.apply(self._init_weights)
    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)
            if module.bias is not None:
                torch.nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)
    def forward(self, idx, targets=None):
        B, T = idx.shape
        tok_emb = self.token_embedding_table(idx)
        pos_emb = self.position_embedding_table(torch.arange(T))
        x = tok_emb + pos_emb
        x = self.blocks(x)
        x = self.ln_f(x)
        logits = self.lm_head(x)
        return logits, None
"""
MODELS["torch"] = """
import math, torch
from torch import nn, Tensor
class PositionalEncoding(nn.Module):
    def __init__(self, emb_size, dropout, maxlen=500):
        super().__init__()
        den = torch.exp(-torch.arange(0, emb_size, 2) * math.log(10000) / emb_size)
        pos = torch.arange(0, maxlen).reshape(maxlen, 1)
        pos_embedding = torch.zeros((maxlen, emb_size))
        pos_embedding[:, 0::2] = torch.sin(pos * den)
        pos_embedding[:, 1::2] = torch.cos(pos * den)
        pos_embedding = pos_embedding.unsqueeze(-2)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer('pos_embedding', pos_embedding)
    def forward(self, token_embedding):
        return self.dropout(token_embedding + self.pos_embedding[:token_embedding.size(0), :])
class Model(nn.Module):
    def __init__(self, d_model, num_heads, num_layers, d_ff, dropout, vocab_size):
        super().__init__()
        self.transformer = nn.Transformer(d_model=d_model, nhead=num_heads, num_encoder_layers=num_layers, num_decoder_layers=num_layers, dim_feedforward=d_ff, dropout=dropout)
        self.generator = nn.Linear(d_model, vocab_size)
        self.src_tok = nn.Embedding(vocab_size, d_model)
        self.tgt_tok = nn.Embedding(vocab_size, d_model)
        self.d_model = d_model
        self.positional_encoding = PositionalEncoding(d_model, dropout=dropout)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)
    def forward(self, src, trg):
        tgt_mask = (torch.triu(torch.ones((trg.shape[0], trg.shape[0]))) == 1).transpose(0, 1)
        tgt_mask = tgt_mask.float().masked_fill(tgt_mask == 0, float('-inf')).masked_fill(tgt_mask == 1, float(0.0))
        pad = lambda x: torch.zeros(x.t().shape).masked_fill((x == 0).t(), float('-inf'))
        src_padding_mask, tgt_padding_mask = pad(src), pad(trg)
        src_emb = self.positional_encoding(self.src_tok(src) * math.sqrt(self.d_model))
        tgt_emb = self.positional_encoding(self.tgt_tok(trg) * math.sqrt(self.d_model))
        outs = self.transformer(src_emb, tgt_emb, None, tgt_mask, None, src_padding_mask, tgt_padding_mask, src_padding_mask)
        return self.generator(outs)
"""
MODELS["llama"] = """
import torch, math
import torch.nn.functional as F
from torch import nn
class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
    def forward(self, x):
        return self._norm(x.float()).type_as(x) * self.weight
def rope_table(dim, end, theta=10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: (dim // 2)].float() / dim))
    freqs = torch.outer(torch.arange(end), freqs).float()
    return torch.polar(torch.ones_like(freqs), freqs)
def rotate(xq, freqs_cis):
    xq_ = torch.view_as_complex(xq.float().reshape(*xq.shape[:-1], -1, 2))
    freqs_cis = freqs_cis.view(1, xq_.shape[1], 1, xq_.shape[-1])
    return torch.view_as_real(xq_ * freqs_cis).flatten(3).type_as(xq)
class Attention(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads, self.n_kv = n_heads, max(n_heads // 2, 1)
        self.hd = dim // n_heads
        self.wq = nn.Linear(dim, n_heads * self.hd, bias=False)
        self.wk = nn.Linear(dim, self.n_kv * self.hd, bias=False)
        self.wv = nn.Linear(dim, self.n_kv * self.hd, bias=False)
        self.wo = nn.Linear(n_heads * self.hd, dim, bias=False)
    def forward(self, x, freqs_cis):
        bsz, seqlen, _ = x.shape
        xq, xk, xv = self.wq(x), self.wk(x), self.wv(x)
        xq = xq.view(bsz, seqlen, self.n_heads, self.hd)
        xk = xk.view(bsz, seqlen, self.n_kv, self.hd)
        xv = xv.view(bsz, seqlen, self.n_kv, self.hd)
        xq, xk = rotate(xq, freqs_cis), rotate(xk, freqs_cis)
        xk = xk.repeat_interleave(self.n_heads // self.n_kv, dim=2)
        xv = xv.repeat_interleave(self.n_heads // self.n_kv, dim=2)
        xq, xk, xv = xq.transpose(1, 2), xk.transpose(1, 2), xv.transpose(1, 2)
        output = F.scaled_dot_product_attention(xq, xk, xv, attn_mask=None, dropout_p=0.0, is_causal=True)
        output = output.transpose(1, 2).contiguous().view(bsz, seqlen, -1)
        return self.wo(output)
class FeedForward(nn.Module):
    def __init__(self, dim, hidden_dim, dropout):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden_dim, bias=False)
        self.w2 = nn.Linear(hidden_dim, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden_dim, bias=False)
        self.dropout = nn.Dropout(dropout)
    def forward(self, x):
        return self.dropout(self.w2(F.silu(self.w1(x)) * self.w3(x)))
class Block(nn.Module):
    def __init__(self, dim, n_heads, d_ff, dropout):
        super().__init__()
        self.attention = Attention(dim, n_heads)
        self.feed_forward = FeedForward(dim, d_ff, dropout)
        self.attention_norm = RMSNorm(dim)
        self.ffn_norm = RMSNorm(dim)
    def forward(self, x, freqs_cis):
        h = x + self.attention(self.attention_norm(x), freqs_cis)
        return h + self.feed_forward(self.ffn_norm(h))
class Model(nn.Module):
    def __init__(self, d_model, num_heads, num_layers, d_ff, dropout, vocab_size):
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocab_size, d_model)
        self.layers = nn.ModuleList()
        for _ in range(num_layers):
            self.layers.append(Block(d_model, num_heads, d_ff, dropout))
        self.norm = RMSNorm(d_model)
        self.output = nn.Linear(d_model, vocab_size, bias=False)
        self.register_buffer("freqs", rope_table(d_model // num_heads, 128), persistent=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, mean=0.0, std=0.05)
    def forward(self, tokens):
        h = self.tok_embeddings(tokens)
        f = self.freqs[: tokens.shape[1]]
        for layer in self.layers:
            h = layer(h, f)
        return {"logits": self.output(self.norm(h))}
"""
MODELS["trevett"] = """
import torch
import torch.nn as nn
class MultiHeadAttentionLayer(nn.Module):
    def __init__(self, hid_dim, n_heads, dropout, device):
        super().__init__()
        self.hid_dim = hid_dim
        self.n_heads = n_heads
        self.head_dim = hid_dim // n_heads
        self.fc_q = nn.Linear(hid_dim, hid_dim)
        self.fc_k = nn.Linear(hid_dim, hid_dim)
        self.fc_v = nn.Linear(hid_dim, hid_dim)
        self.fc_o = nn.Linear(hid_dim, hid_dim)
        self.dropout = nn.Dropout(dropout)
        self.scale = torch.sqrt(torch.FloatTensor([self.head_dim])).to(device)
    def forward(self, query, key, value, mask = None):
        batch_size = query.shape[0]
        Q = self.fc_q(query)
        K = self.fc_k(key)
        V = self.fc_v(value)
        Q = Q.view(batch_size, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        K = K.view(batch_size, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        V = V.view(batch_size, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        energy = torch.matmul(Q, K.permute(0, 1, 3, 2)) / self.scale
        if mask is not None:
            energy = energy.masked_fill(mask == 0, -1e10)
        attention = torch.softmax(energy, dim = -1)
        x = torch.matmul(self.dropout(attention), V)
        x = x.permute(0, 2, 1, 3).contiguous()
        x = x.view(batch_size, -1, self.hid_dim)
        x = self.fc_o(x)
        return x, attention
class PositionwiseFeedforwardLayer(nn.Module):
    def __init__(self, hid_dim, pf_dim, dropout):
        super().__init__()
        self.fc_1 = nn.Linear(hid_dim, pf_dim)
        self.fc_2 = nn.Linear(pf_dim, hid_dim)
        self.dropout = nn.Dropout(dropout)
    def forward(self, x):
        x = self.dropout(torch.relu(self.fc_1(x)))
        return self.fc_2(x)
class EncoderLayer(nn.Module):
    def __init__(self, hid_dim, n_heads, pf_dim, dropout, device):
        super().__init__()
        self.self_attn_layer_norm = nn.LayerNorm(hid_dim)
        self.ff_layer_norm = nn.LayerNorm(hid_dim)
        self.self_attention = MultiHeadAttentionLayer(hid_dim, n_heads, dropout, device)
        self.positionwise_feedforward = PositionwiseFeedforwardLayer(hid_dim, pf_dim, dropout)
        self.dropout = nn.Dropout(dropout)
    def forward(self, src, src_mask):
        _src, _ = self.self_attention(src, src, src, src_mask)
        src = self.self_attn_layer_norm(src + self.dropout(_src))
        _src = self.positionwise_feedforward(src)
        src = self.ff_layer_norm(src + self.dropout(_src))
        return src
class DecoderLayer(nn.Module):
    def __init__(self, hid_dim, n_heads, pf_dim, dropout, device):
        super().__init__()
        self.self_attn_layer_norm = nn.LayerNorm(hid_dim)
        self.enc_attn_layer_norm = nn.LayerNorm(hid_dim)
        self.ff_layer_norm = nn.LayerNorm(hid_dim)
        self.self_attention = MultiHeadAttentionLayer(hid_dim, n_heads, dropout, device)
        self.encoder_attention = MultiHeadAttentionLayer(hid_dim, n_heads, dropout, device)
        self.positionwise_feedforward = PositionwiseFeedforwardLayer(hid_dim, pf_dim, dropout)
        self.dropout = nn.Dropout(dropout)
    def forward(self, trg, enc_src, trg_mask, src_mask):
        _trg, _ = self.self_attention(trg, trg, trg, trg_mask)
        trg = self.self_attn_layer_norm(trg + self.dropout(_trg))
        _trg, attention = self.encoder_attention(trg, enc_src, enc_src, src_mask)
        trg = self.enc_attn_layer_norm(trg + self.dropout(_trg))
        _trg = self.positionwise_feedforward(trg)
        trg = self.ff_layer_norm(trg + self.dropout(_trg))
        return trg, attention
class Stack(nn.Module):
    def __init__(self, layer, vocab, hid_dim, n_layers, n_heads, pf_dim, dropout, device, max_length = 100):
        super().__init__()
        self.device = device
        self.tok_embedding = nn.Embedding(vocab, hid_dim)
        self.pos_embedding = nn.Embedding(max_length, hid_dim)
        self.layers = nn.ModuleList([layer(hid_dim, n_heads, pf_dim, dropout, device) for _ in range(n_layers)])
        self.dropout = nn.Dropout(dropout)
        self.scale = torch.sqrt(torch.FloatTensor([hid_dim])).to(device)
    def embed(self, src):
        batch_size = src.shape[0]
        src_len = src.shape[1]
        pos = torch.arange(0, src_len).unsqueeze(0).repeat(batch_size, 1).to(self.device)
        return self.dropout((self.tok_embedding(src) * self.scale) + self.pos_embedding(pos))
class Model(nn.Module):
    def __init__(self, d_model, num_heads, num_layers, d_ff, dropout, vocab_size):
        super().__init__()
        device = torch.device('cpu')
        self.encoder = Stack(EncoderLayer, vocab_size, d_model, num_layers, num_heads, d_ff, dropout, device)
        self.decoder = Stack(DecoderLayer, vocab_size, d_model, num_layers, num_heads, d_ff, dropout, device)
        self.fc_out = nn.Linear(d_model, vocab_size)
        self.src_pad_idx = 0
        self.trg_pad_idx = 0
        self.device = device
    def make_src_mask(self, src):
        return (src != self.src_pad_idx).unsqueeze(1).unsqueeze(2)
    def make_trg_mask(self, trg):
        trg_pad_mask = (trg != self.trg_pad_idx).unsqueeze(1).unsqueeze(2)
        trg_len = trg.shape[1]
        trg_sub_mask = torch.tril(torch.ones((trg_len, trg_len), device = self.device)).bool()
        return trg_pad_mask & trg_sub_mask
    def forward(self, src, trg):
        src_mask = self.make_src_mask(src)
        trg_mask = self.make_trg_mask(trg)
        h = self.encoder.embed(src)
        for layer in self.encoder.layers:
            h = layer(h, src_mask)
        enc_src = h
        y = self.decoder.embed(trg)
        for layer in self.decoder.layers:
            y, attention = layer(y, enc_src, trg_mask, src_mask)
        return self.fc_out(y), attention
"""

SETTINGS: dict[str, dict[str, Any]] = {
    "annot": {"pad_id": 0},
    "karpathy": {"kind": "language model"},
    "torch": {"pad_id": 0},
    "llama": {"kind": "language model"},
    "trevett": {"pad_id": 0},
}
BUGS: list[tuple[str, str, str, str, tuple[str, ...]]] = []


def plant(model: str, name: str, old: str, new: str, *causes: str) -> None:
    """Add a bug: what is replaced in a model's text, and the causes that name it."""
    assert old in MODELS[model], (model, name)
    BUGS.append((model, name, old, new, causes))


plant(
    "annot",
    "tgt mask: no subsequent",
    "tgt_mask & (subsequent == 0)",
    "tgt_mask",
    "future-leak-no-mask",
)
plant(
    "annot",
    "subsequent inverted",
    "(subsequent == 0)",
    "(subsequent == 1)",
    "future-leak-inverted",
)
plant(
    "annot",
    "src ids shift pad id",
    "(src != 0).unsqueeze(-2)",
    "(src != 2).unsqueeze(-2)",
    "padding-wrong-id",
)
plant("annot", "mask value -1e-9", "-1e9", "-1e-9", "mask-not-minus")
plant(
    "annot",
    "mask dropped",
    "scores = scores.masked_fill",
    "scores.masked_fill",
    "mask-dropped",
)
plant(
    "annot",
    "heads merged",
    "x.transpose(1, 2).contiguous().view(nbatches",
    "x.contiguous().view(nbatches",
    "heads-by-view",
)
plant(
    "annot",
    "residual from norm",
    "return x + self.dropout(sublayer(self.norm(x)))",
    "x = self.norm(x)\n        return x + self.dropout(sublayer(x))",
    "residual-from-norm",
)
plant(
    "annot",
    "scale d_model",
    "math.sqrt(d_k)",
    "math.sqrt(query.size(1) * d_k)",
    "scale-d-model",
)
plant("annot", "pe without minus", "* -(math.log", "* (math.log", "sinusoids")
plant(
    "annot",
    "cross reads itself",
    "self.src_attn(x, m, m, src_mask)",
    "self.src_attn(x, x, x, tgt_mask)",
    "cross-reads-target",
)
plant(
    "annot",
    "encoder reads tgt",
    "x = self.pos(self.src_embed(src) * math.sqrt(self.d_model))",
    "src_mask = (labels != 0).unsqueeze(-2)\n        x = self.pos(self.src_embed(labels) * math.sqrt(self.d_model))",
    "future-leak-encoder-reads-target",
)
plant(
    "annot",
    "softmax dim 1",
    "scores.softmax(dim=-1)",
    "scores.softmax(dim=1)",
    "softmax-over-heads",
)
plant(
    "karpathy",
    "no mask",
    "wei = wei.masked_fill(self.tril[:T, :T] == 0, float('-inf'))",
    "pass",
    "future-leak-no-mask",
)
plant(
    "karpathy",
    "mask inverted",
    "self.tril[:T, :T] == 0",
    "self.tril[:T, :T] == 1",
    "future-leak-inverted",
    "not-finite",
)
plant("karpathy", "mask 0 fill", "float('-inf')", "0", "mask-not-minus")
plant(
    "karpathy",
    "mask after",
    "wei = wei.masked_fill(self.tril[:T, :T] == 0, float('-inf'))\n        wei = F.softmax(wei, dim=-1)",
    "wei = F.softmax(wei, dim=-1)\n        wei = wei.masked_fill(self.tril[:T, :T] == 0, 0)",
    "mask-after-softmax",
)
plant("karpathy", "scale C", "k.shape[-1]**-0.5", "C**-0.5", "scale-d-model")
plant(
    "karpathy",
    "softmax default dim 1",
    "F.softmax(wei, dim=-1)",
    "F.softmax(wei, dim=1)",
    "softmax-over-queries",
)
plant(
    "karpathy", "v from key", "v = self.value(x)", "v = self.key(x)", "values-from-keys"
)
plant(
    "karpathy",
    "list of blocks",
    "self.blocks = nn.Sequential(*[Block(d_model, num_heads, d_ff, dropout) for _ in range(num_layers)])",
    "self.blocks_ = [Block(d_model, num_heads, d_ff, dropout) for _ in range(num_layers)]\n        self.blocks = lambda x: self.blocks_[1](self.blocks_[0](x))",
    "layers-not-registered",
)
plant(
    "karpathy", "no positions", "x = tok_emb + pos_emb", "x = tok_emb", "no-positions"
)
plant(
    "karpathy",
    "heads list",
    "self.heads = nn.ModuleList([Head(n_embd, head_size, dropout) for _ in range(num_heads)])",
    "self.heads = [Head(n_embd, head_size, dropout) for _ in range(num_heads)]",
    "layers-not-registered",
)
plant(
    "karpathy",
    "no residual",
    "x = x + self.sa(self.ln1(x))",
    "x = self.sa(self.ln1(x))",
    "residual-missing",
)
plant(
    "karpathy",
    "F.dropout",
    "wei = self.dropout(wei)",
    "wei = F.dropout(wei, 0.2)",
    "dropout-in-eval",
)
plant(
    "torch",
    "no tgt mask",
    "None, tgt_mask, None",
    "None, None, None",
    "future-leak-no-mask",
)
plant(
    "torch",
    "tgt mask transposed twice",
    "== 1).transpose(0, 1)",
    "== 1)",
    "future-leak-inverted",
)
plant(
    "torch",
    "no memory padding",
    "tgt_padding_mask, src_padding_mask)",
    "tgt_padding_mask, None)",
    "padding-cross-unmasked",
)
plant(
    "torch",
    "no src padding",
    "None, src_padding_mask, tgt",
    "None, None, tgt",
    "padding-encoder-unmasked",
)
plant(
    "torch",
    "pad inverted",
    "(x == 0).t()",
    "(x != 0).t()",
    "padding-inverted",
    "not-finite",
)
plant("torch", "pad id 1", "(x == 0).t()", "(x == 1).t()", "padding-wrong-id")
plant(
    "torch",
    "positions batch",
    "self.pos_embedding[:token_embedding.size(0), :]",
    "self.pos_embedding[:token_embedding.size(1), 0]",
    "positions-along-batch",
)
plant("torch", "base 1000", "math.log(10000)", "math.log(1000)", "sinusoids")
plant(
    "torch",
    "exponent column",
    "-torch.arange(0, emb_size, 2) *",
    "-2 * torch.arange(0, emb_size, 2) *",
    "sinusoids",
)
plant(
    "torch",
    "masks off by one",
    "(torch.triu(torch.ones((trg.shape[0], trg.shape[0]))) == 1)",
    "(torch.triu(torch.ones((trg.shape[0], trg.shape[0])), -1) == 1)",
    "future-leak-off-by-one",
)
plant(
    "torch",
    "batch_first",
    "dropout=dropout)\n        self.generator",
    "dropout=dropout, batch_first=True)\n        self.generator",
    "batch-first-forgotten",
    "lengths-must-agree",
)
plant(
    "torch",
    "weak float mask",
    "float('-inf')).masked_fill(tgt_mask",
    "float(-2)).masked_fill(tgt_mask",
    "mask-too-weak",
)
plant("llama", "not causal", "is_causal=True", "is_causal=False", "future-leak-no-mask")
plant("llama", "sdpa dropout", "dropout_p=0.0", "dropout_p=0.1", "dropout-in-eval")
plant(
    "llama",
    "merge without transpose",
    "output.transpose(1, 2).contiguous().view",
    "output.contiguous().view",
    "heads-by-view",
)
plant(
    "llama",
    "no rope",
    "xq, xk = rotate(xq, freqs_cis), rotate(xk, freqs_cis)",
    "pass",
    "no-positions",
)
plant(
    "llama",
    "norm over time",
    "x.pow(2).mean(-1, keepdim=True)",
    "x.pow(2).mean(1, keepdim=True)",
    "norm-over-batch",
)
plant(
    "llama",
    "residual from norm",
    "h = x + self.attention(self.attention_norm(x), freqs_cis)",
    "x = self.attention_norm(x)\n        h = x + self.attention(x, freqs_cis)",
    "residual-from-norm",
)
plant(
    "llama",
    "no gate activation",
    "F.silu(self.w1(x)) * self.w3(x)",
    "self.w1(x) + self.w3(x)",
    "feed-forward-linear",
)
plant(
    "llama",
    "scale given 1",
    "is_causal=True",
    "is_causal=True, scale=1.0",
    "scale-missing",
)
plant(
    "llama",
    "one block",
    "self.layers.append(Block(d_model, num_heads, d_ff, dropout))",
    "pass\n        self.layers = nn.ModuleList([Block(d_model, num_heads, d_ff, dropout)] * num_layers)",
    "layers-shared",
)
plant(
    "llama",
    "value from x",
    "xv = xv.view(bsz",
    "xv = xk.view(bsz",
    "values-from-keys",
    "parameter-unused",
)
plant(
    "llama",
    "tied big",
    "nn.init.normal_(p, mean=0.0, std=0.05)",
    "nn.init.normal_(p, mean=0.0, std=0.05 if p.shape[0] != vocab_size else 2.0)",
    "loss-at-start",
)
plant(
    "llama",
    "norm shared",
    "h + self.feed_forward(self.ffn_norm(h))",
    "h + self.feed_forward(self.attention_norm(h))",
    "module-shared",
)
plant(
    "trevett",
    "trg or",
    "trg_pad_mask & trg_sub_mask",
    "trg_pad_mask | trg_sub_mask",
    "future-leak-no-mask",
    "future-leak-with-padding",
)
plant(
    "trevett",
    "trg pad only",
    "return trg_pad_mask & trg_sub_mask",
    "return trg_pad_mask",
    "future-leak-no-mask",
)
plant(
    "trevett",
    "scale hid_dim",
    "torch.FloatTensor([self.head_dim])",
    "torch.FloatTensor([self.hid_dim])",
    "scale-d-model",
)
plant("trevett", "scale times", "/ self.scale\n", "* self.scale\n", "scale-multiplied")
plant(
    "trevett",
    "pos along batch",
    "torch.arange(0, src_len).unsqueeze(0).repeat(batch_size, 1)",
    "torch.arange(0, batch_size).unsqueeze(1).repeat(1, src_len)",
    "positions-along-batch",
)
plant(
    "trevett",
    "split by view",
    "Q = Q.view(batch_size, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)",
    "Q = Q.view(batch_size, self.n_heads, -1, self.head_dim)",
    "heads-by-view",
)
plant(
    "trevett",
    "src mask rows",
    "return (src != self.src_pad_idx).unsqueeze(1).unsqueeze(2)",
    "m = (src != self.src_pad_idx)\n        return m.unsqueeze(1).unsqueeze(3)",
    "padding-rows",
    "lengths-must-agree",
)
plant(
    "trevett",
    "no enc mask",
    "h = layer(h, src_mask)",
    "h = layer(h, None)",
    "padding-encoder-unmasked",
)
plant(
    "trevett",
    "no residual",
    "src = self.ff_layer_norm(src + self.dropout(_src))\n",
    "src = self.ff_layer_norm(self.dropout(_src))\n",
    "residual-missing",
)
plant(
    "trevett",
    "mask multiplies",
    "energy.masked_fill(mask == 0, -1e10)",
    "energy * mask",
    "mask-multiplied",
)
plant(
    "trevett",
    "only last enc layer",
    "            h = layer(h, src_mask)\n        enc_src = h",
    "            enc_src = layer(h, src_mask)",
    "layer-bypassed",
)
plant("trevett", "detached", "enc_src = h", "enc_src = h.data", "gradient-cut")


def examined(model: str, text: str) -> Report:
    """The report on a model's text."""
    space: dict[str, Any] = {"__name__": model}
    exec(compile(text, f"<{model}>", "exec"), space)
    return examine(space["Model"], name=model, **SETTINGS[model])


def main() -> None:
    """Examine each model as it is, and with each bug; keep what was named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    chosen = parser.parse_args().models
    torch.set_num_threads(1)
    counts = {"noticed": 0, "first": 0, "false_alarms": 0}
    for model in chosen:
        report = examined(model, MODELS[model])
        counts["false_alarms"] += report.verdict == "bug"
        print(f"{model}: {report.verdict} ({report.seconds:.0f} s)", flush=True)
    for model, name, old, new, causes in BUGS:
        if model not in chosen:
            continue
        report = examined(model, MODELS[model].replace(old, new))
        found = [one.cause for one in report.findings if one.level == "bug"]
        counts["noticed"] += report.verdict == "bug"
        counts["first"] += bool(found) and found[0] in causes
        print(f"{model:10}{name:30}{', '.join(found) or '–'}", flush=True)
    print(counts)
    if set(chosen) == set(MODELS):
        results = json.loads(RESULTS.read_text(encoding="utf-8"))
        results["planted"]["after"] = counts
        text = json.dumps(results, indent=2) + "\n"
        RESULTS.write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
