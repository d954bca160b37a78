"""The libraries that a reader would pick instead, built to one size.

All share one table between source, target and output, as the paper's model does.
"""

import math
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from plain_transformer import PlainTransformer, SmoothedLoss  # noqa: E402

from transformer.attention import scaled_dot_product_attention  # noqa: E402
from transformer.decoding import search  # noqa: E402
from transformer.masks import padding_mask  # noqa: E402
from transformer.model import Transformer, TransformerConfig  # noqa: E402
from transformer.multi_head import KeysValues, MultiHeadAttention  # noqa: E402
from transformer.positional import sinusoids  # noqa: E402
from transformer.text.batches import Batch  # noqa: E402
from transformer.text.words import BOS_ID, EOS_ID, PAD_ID  # noqa: E402
from transformer.training.chunked_loss import chunked_loss  # noqa: E402

SIZES: dict[str, dict[str, int]] = {
    "smoke": {"words": 50, "d_model": 16, "num_heads": 2, "d_ff": 32, "layers": 1},
    "tiny": {"words": 10_000, "d_model": 128, "num_heads": 4, "d_ff": 256, "layers": 4},
    "small": {
        "words": 10_000,
        "d_model": 256,
        "num_heads": 4,
        "d_ff": 512,
        "layers": 3,
    },
    "base": {
        "words": 37_000,
        "d_model": 512,
        "num_heads": 8,
        "d_ff": 2048,
        "layers": 6,
    },
}
Loss = Callable[[Batch], Tensor]


def our_model(size: str, dropout: float = 0.1) -> Transformer:
    """The package's model."""
    of = SIZES[size]
    return Transformer(
        TransformerConfig(
            of["words"],
            of["words"],
            d_model=of["d_model"],
            num_heads=of["num_heads"],
            num_encoder_layers=of["layers"],
            num_decoder_layers=of["layers"],
            d_ff=of["d_ff"],
            dropout=dropout,
            tie_embeddings=True,
            max_length=1024,
        )
    )


def our_loss(
    model: Transformer,
    batch: Batch,
    chunk_size: int = 512,
    loss: Callable[..., Tensor] = chunked_loss,
) -> Tensor:
    """The package's forward pass and chunked loss, as its training has them."""
    memory = model.encode(batch.source)
    source_mask = padding_mask(batch.source, PAD_ID)
    hidden = model.decode(batch.decoder_input, memory, source_mask)
    return loss(hidden, model.output.weight, batch.labels, chunk_size=chunk_size)


class PackedAttention(MultiHeadAttention):
    """Self-attention with one product for query, key and value: no hook sees it."""

    attention = staticmethod(F.scaled_dot_product_attention)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        maps = self.query_proj, self.key_proj, self.value_proj
        weight = torch.cat([each.weight for each in maps])
        bias = torch.cat([each.bias for each in maps])
        packed = F.linear(query, weight, bias)
        split = (self._split(part) for part in packed.chunk(3, dim=-1))
        heads = self.attention(*split, mask)
        return self.output_proj(heads.transpose(1, 2).flatten(2))


class SpelledOutAttention(MultiHeadAttention):
    """Chapter 4's attention in place of PyTorch's kernel, for a compiler to join."""

    def attend(
        self, query: Tensor, keys_values: KeysValues, mask: Tensor | None = None
    ) -> Tensor:
        queries = self._split(self.query_proj(query))
        heads = scaled_dot_product_attention(queries, *keys_values, mask)
        return self.output_proj(heads.transpose(1, 2).flatten(2))


class PackedSpelledOutAttention(PackedAttention):
    """Both."""

    attention = staticmethod(scaled_dot_product_attention)


class CausalAttention(MultiHeadAttention):
    """Causal self-attention by a flag of PyTorch's kernel instead of a mask."""

    def attend(
        self, query: Tensor, keys_values: KeysValues, mask: Tensor | None = None
    ) -> Tensor:
        queries = self._split(self.query_proj(query))
        heads = F.scaled_dot_product_attention(queries, *keys_values, is_causal=True)
        return self.output_proj(heads.transpose(1, 2).flatten(2))


def replace_self_attention(model: Transformer, kind: type, encoder: bool) -> None:
    """Give the decoder, and the encoder if asked to, another self-attention."""
    layers = [*model.decoder.layers, *(model.encoder.layers if encoder else ())]
    for layer in layers:
        layer.self_attention.__class__ = kind


def maskless_loss(model: Transformer, batch: Batch, padded: bool) -> Tensor:
    """`our_loss` of a model with causal attention; only padded sources are masked."""
    mask = padding_mask(batch.source, PAD_ID) if padded else None
    x = model.position(model.source_embedding(batch.source))
    memory = model.encoder(x, mask)
    x = model.position(model.target_embedding(batch.decoder_input))
    hidden = model.decoder(x, memory, mask)
    return chunked_loss(hidden, model.output.weight, batch.labels)


def step_flops(size: str, sentences: int, length: int) -> float:
    """Operations of a training step: two for each weight and token, thrice in all.

    Of attention to earlier tokens only half of the square is counted.
    """
    of = SIZES[size]
    width, layers = of["d_model"], of["layers"]
    weights = layers * (12 * width**2 + 4 * width * of["d_ff"]) + width * of["words"]
    attention = 2.5 * layers * 2 * length * width
    return 6.0 * sentences * length * (weights + attention)


def torchs_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """PyTorch's own smoothed loss, over what is no padding."""
    return F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=PAD_ID, label_smoothing=0.1
    )


class TorchTransformer(nn.Module):
    """`torch.nn.Transformer` with what it leaves out: embeddings and output."""

    def __init__(self, size: str, dropout: float = 0.1) -> None:
        super().__init__()
        of = SIZES[size]
        self.embedding = nn.Embedding(of["words"], of["d_model"])
        nn.init.normal_(self.embedding.weight, std=of["d_model"] ** -0.5)
        self.stacks = nn.Transformer(
            of["d_model"],
            of["num_heads"],
            of["layers"],
            of["layers"],
            of["d_ff"],
            dropout,
            batch_first=True,
        )
        # The paper has no norm after the last layer of a stack, and neither have ours.
        self.stacks.encoder.norm = self.stacks.decoder.norm = None
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("table", sinusoids(1024, of["d_model"]), persistent=False)

    def embed(self, ids: Tensor) -> Tensor:
        """Embeddings and positions, summed."""
        x = self.embedding(ids) * math.sqrt(self.embedding.embedding_dim)
        return self.dropout(x + self.table[: ids.size(1)])

    def forward(self, source: Tensor, target: Tensor, padded: bool = True) -> Tensor:
        length = target.size(1)
        causal = torch.ones(length, length, dtype=torch.bool, device=source.device)
        padding = source == PAD_ID if padded else None
        x = self.stacks(
            self.embed(source),
            self.embed(target),
            tgt_mask=causal.triu(1),
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return F.linear(x, self.embedding.weight)


def marian(size: str, dropout: float = 0.1) -> Any:
    """Hugging Face's MarianMT, with random weights."""
    import transformers

    transformers.logging.set_verbosity_error()
    of = SIZES[size]
    config = transformers.MarianConfig(
        vocab_size=of["words"],
        decoder_vocab_size=of["words"],
        d_model=of["d_model"],
        encoder_layers=of["layers"],
        decoder_layers=of["layers"],
        encoder_attention_heads=of["num_heads"],
        decoder_attention_heads=of["num_heads"],
        encoder_ffn_dim=of["d_ff"],
        decoder_ffn_dim=of["d_ff"],
        activation_function="relu",
        dropout=dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        max_position_embeddings=1024,
        pad_token_id=PAD_ID,
        bos_token_id=BOS_ID,
        decoder_start_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        forced_eos_token_id=None,
    )
    return transformers.MarianMTModel(config)


def marians_search(model: Any, ids: Tensor, length: int, beams: int) -> Tensor:
    """`generate`, with as many tokens for every source."""
    found: Tensor = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        num_beams=beams,
        do_sample=False,
        min_new_tokens=length,
        max_new_tokens=length,
        length_penalty=0.6,
    )
    return found[:, 1:]


def never_end() -> None:
    """Let the package's searches never choose eos: no row ends before the others."""
    mask_special = search.mask_special

    def mask_eos_too(logits: Tensor, config: Any) -> Tensor:
        logits[:, config.eos_id] = -math.inf
        return mask_special(logits, config)

    search.mask_special = mask_eos_too


def x_transformer(size: str) -> Any:
    """x-transformers' encoder-decoder, at its defaults."""
    from x_transformers import XTransformer

    of = SIZES[size]
    sides: dict[str, Any] = {}
    for side in ("enc", "dec"):
        sides |= {
            f"{side}_num_tokens": of["words"],
            f"{side}_depth": of["layers"],
            f"{side}_heads": of["num_heads"],
            f"{side}_attn_dim_head": of["d_model"] // of["num_heads"],
            f"{side}_ff_mult": of["d_ff"] / of["d_model"],
            f"{side}_max_seq_len": 1024,
            f"{side}_layer_dropout": 0.0,
            f"{side}_attn_flash": True,
        }
    return XTransformer(
        dim=of["d_model"],
        tie_token_emb=True,
        pad_value=PAD_ID,
        ignore_index=PAD_ID,
        **sides,
    )


def peer(name: str, size: str) -> tuple[nn.Module, Loss]:
    """Another library's model and its loss on a batch.

    Raises:
        ValueError: for a name that no library has.
    """
    if name == "plain":
        of = SIZES[size]
        model: nn.Module = PlainTransformer(
            of["words"],
            of["d_model"],
            of["num_heads"],
            of["d_ff"],
            of["layers"],
            dropout=0.1,
        )
        divergence = SmoothedLoss(of["words"])
        return model, lambda b: divergence(model(b.source, b.decoder_input), b.labels)
    if name == "torch.nn.Transformer":
        model = TorchTransformer(size)
        return model, lambda b: torchs_loss(model(b.source, b.decoder_input), b.labels)
    if name == "MarianMT":
        model = marian(size)

        def loss(batch: Batch) -> Tensor:
            output = model(
                input_ids=batch.source,
                attention_mask=(batch.source != PAD_ID).long(),
                decoder_input_ids=batch.decoder_input,
                use_cache=False,
            )
            return torchs_loss(output.logits, batch.labels)

        return model, loss
    if name == "x-transformers":
        model = x_transformer(size)

        def loss(batch: Batch) -> Tensor:
            mask = batch.source != PAD_ID
            memory = model.encoder(batch.source, mask=mask, return_embeddings=True)
            logits = model.decoder.net(
                batch.decoder_input, context=memory, context_mask=mask
            )
            return torchs_loss(logits, batch.labels)

        return model, loss
    raise ValueError(f"no contestant is called {name!r}")


def ctranslate2_model(model: Transformer, folder: Path) -> None:
    """Our weights as a CTranslate2 model: both must find the same tokens."""
    import numpy as np
    from ctranslate2.specs import TransformerSpec, common_spec

    c = model.config
    spec = TransformerSpec.from_config(
        (c.num_encoder_layers, c.num_decoder_layers),
        c.num_heads,
        pre_norm=c.norm_first,
        activation=common_spec.Activation.RELU,
    )

    def array(x: Tensor) -> Any:
        return x.detach().float().numpy()

    def linear(there: Any, *maps: nn.Linear) -> None:
        there.weight = np.concatenate([array(one.weight) for one in maps])
        there.bias = np.concatenate([array(one.bias) for one in maps])

    def norm(there: Any, ours: nn.LayerNorm) -> None:
        there.gamma, there.beta = array(ours.weight), array(ours.bias)

    def attention(there: Any, ours: Any, residual: Any, cross: bool) -> None:
        maps = [ours.query_proj, ours.key_proj, ours.value_proj]
        packed = [maps[:1], maps[1:]] if cross else [maps]
        for slot, group in zip(
            there.linear, [*packed, [ours.output_proj]], strict=True
        ):
            linear(slot, *group)
        norm(there.layer_norm, residual.norm)

    sides = (
        (spec.encoder, model.source_embedding, model.encoder),
        (spec.decoder, model.target_embedding, model.decoder),
    )
    for there, embedding, stack in sides:
        tables = there.embeddings
        table = tables[0] if isinstance(tables, list) else tables
        table.weight = array(embedding.table.weight)
        there.scale_embeddings = True
        there.position_encodings.encodings = array(model.position.table)
        for slot, layer in zip(there.layer, stack.layers, strict=True):
            attention(
                slot.self_attention, layer.self_attention, layer.residuals[0], False
            )
            if hasattr(layer, "cross_attention"):
                other = layer.cross_attention
                attention(slot.attention, other, layer.residuals[1], True)
            linear(slot.ffn.linear_0, layer.feed_forward.expand)
            linear(slot.ffn.linear_1, layer.feed_forward.contract)
            norm(slot.ffn.layer_norm, layer.residuals[-1].norm)
    spec.decoder.projection.weight = array(model.output.weight)
    words = ["<pad>", "<s>", "</s>", *map(str, range(3, c.source_vocab_size))]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.bos_token = spec.config.decoder_start_token = "<s>"
    spec.config.eos_token, spec.config.unk_token = "</s>", "<pad>"
    spec.config.add_source_eos = False
    spec.validate()
    spec.optimize()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    spec.save(str(folder))
