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

from plain import PlainTransformer, SmoothedLoss  # noqa: E402

from transformer.data import PAD, Batch  # noqa: E402
from transformer.model import Transformer, TransformerConfig  # noqa: E402
from transformer.positional import sinusoids  # noqa: E402

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


def our_model(size: str, dropout: float = 0.1, longest: int = 1024) -> Transformer:
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
            max_length=longest,
        )
    )


def torchs_loss(logits: Tensor, wanted: Tensor) -> Tensor:
    """PyTorch's own smoothed loss, over what is no padding."""
    return F.cross_entropy(
        logits.flatten(0, 1), wanted.flatten(), ignore_index=PAD, label_smoothing=0.1
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
        """Words and places, summed."""
        x = self.embedding(ids) * math.sqrt(self.embedding.embedding_dim)
        return self.dropout(x + self.table[: ids.size(1)])

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        length = target.size(1)
        causal = torch.ones(length, length, dtype=torch.bool, device=source.device)
        padding = source == PAD
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
    """Hugging Face's Marian, with random weights."""
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
        pad_token_id=0,
        bos_token_id=1,
        decoder_start_token_id=1,
        eos_token_id=2,
        forced_eos_token_id=None,
    )
    return transformers.MarianMTModel(config)


def x_transformer(size: str, dropout: float = 0.1) -> Any:
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
        dim=of["d_model"], tie_token_emb=True, pad_value=0, ignore_index=0, **sides
    )


def learner(name: str, size: str) -> tuple[nn.Module, Loss]:
    """A model and its loss on a batch.

    Raises:
        ValueError: for a name that nobody has.
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
        return model, lambda b: divergence(model(b.source, b.given), b.wanted)
    if name == "torch.nn.Transformer":
        model = TorchTransformer(size)
        return model, lambda b: torchs_loss(model(b.source, b.given), b.wanted)
    if name == "Marian":
        model = marian(size)

        def loss(batch: Batch) -> Tensor:
            said = model(
                input_ids=batch.source,
                attention_mask=(batch.source != PAD).long(),
                decoder_input_ids=batch.given,
                use_cache=False,
            )
            return torchs_loss(said.logits, batch.wanted)

        return model, loss
    if name == "x-transformers":
        model = x_transformer(size)

        def loss(batch: Batch) -> Tensor:
            mask = batch.source != PAD
            memory = model.encoder(batch.source, mask=mask, return_embeddings=True)
            logits = model.decoder.net(batch.given, context=memory, context_mask=mask)
            return torchs_loss(logits, batch.wanted)

        return model, loss
    raise ValueError(f"nobody is called {name!r}")


def ctranslate2_model(model: Transformer, folder: Path) -> None:
    """Our weights as a model that CTranslate2 reads, so that both say the same."""
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
