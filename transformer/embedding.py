"""Made from book/02-embedding.md: edit the chapter, not this file."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

__all__ = [
    "require_positive",
    "require_ids",
    "TokenEmbedding",
]


def require_positive(**sizes: int) -> None:
    """Refuse, by name, any size that is not a whole number of at least 1.

    Raises:
        ValueError: naming the first size at fault and its value.
    """
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(
                f"{name} must be a whole number of at least 1, got {size!r}"
            )


def require_ids(ids: Tensor, vocab_size: int) -> None:
    """Refuse token ids that no row of a table of `vocab_size` rows answers to.

    Raises:
        ValueError: when `ids` is not a (batch, length) tensor of int32 or int64, is
            empty, or holds an id below 0 or beyond the table.
    """
    if ids.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"token ids must be int64 or int32, got {ids.dtype}")
    if ids.dim() != 2 or ids.numel() == 0:
        shape = tuple(ids.shape)
        raise ValueError(
            f"token ids must be (batch, length), neither empty, got {shape}"
        )
    low, high = (int(bound) for bound in ids.aminmax())
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise ValueError(f"token ids must lie in 0..{vocab_size - 1}, got {wrong}")


class TokenEmbedding(nn.Module):
    """A table with one learned row for each token id, times √d_model (section 3.4).

    Rows start as draws from a normal distribution of variance 1/d_model, so that the
    scaled vectors start with entries of variance 1.

    Raises:
        ValueError: for a size below 1, or ids that the table has no row for.
    """

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        require_positive(vocab_size=vocab_size, d_model=d_model)
        self.table = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.table.weight, std=d_model**-0.5)

    def forward(
        self, ids: Int[Tensor, "batch length"]
    ) -> Float[Tensor, "batch length d_model"]:
        require_ids(ids, self.table.num_embeddings)
        return self.table(ids) * math.sqrt(self.table.embedding_dim)
