"""Token embeddings: a learned vector for each token id.

Made from book/02-embedding.md: edit the chapter, not this file.
"""

import math

from jaxtyping import Float, Int
from torch import Tensor, nn

from transformer.checks import require_positive

__all__ = [
    "TokenEmbedding",
]


class TokenEmbedding(nn.Module):
    """Token embedding: a learned row per token id, times √d_model (paper, section 3.4).

    Rows start as draws from a normal distribution of variance 1/d_model, so that the
    scaled vectors start with entries of variance 1.

    Raises:
        ValueError: for a size below 1.
    """

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        require_positive(vocab_size=vocab_size, d_model=d_model)
        self.table = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.table.weight, std=d_model**-0.5)

    def forward(
        self, ids: Int[Tensor, "batch length"]
    ) -> Float[Tensor, "batch length d_model"]:
        return self.table(ids) * math.sqrt(self.table.embedding_dim)
