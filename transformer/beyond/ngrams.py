"""Kneser-Ney n-gram models: the next token's probability, by counting.

Made from book/17-language-model.md: edit the chapter, not this file.
"""

from collections import Counter
from collections.abc import Sequence

from transformer.checks import require_positive, require_probability

__all__ = [
    "NGramModel",
]


class NGramModel:
    """N-gram model of a text with interpolated Kneser-Ney smoothing.

    Every count gives up `discount`, and the next lower order says how that is shared;
    below the lowest stands the uniform guess. The highest order counts how often an
    n-gram occurs, a lower one how many different tokens come before it (Kneser and Ney
    1995). A text is a string, whose tokens are its characters, or a tuple of any
    tokens.

    Raises:
        ValueError: for an order or `vocab_size` below 1, a discount outside [0, 1), or
            a text shorter than the order.
    """

    def __init__(
        self,
        text: Sequence[object],
        order: int,
        vocab_size: int,
        discount: float = 0.75,
    ) -> None:
        require_positive(order=order, vocab_size=vocab_size)
        require_probability(discount=discount)
        if len(text) < order:
            raise ValueError(f"a text needs at least {order} tokens, got {len(text)}")
        self.order, self.vocab_size, self.discount = order, vocab_size, discount

        def ngrams(n: int) -> list[Sequence[object]]:
            return [text[i : i + n] for i in range(len(text) - n + 1)]

        self.count: Counter[Sequence[object]] = Counter(ngrams(order))
        for n in range(2, order + 1):  # a shorter one: once for each token before it
            self.count.update(ngram[1:] for ngram in set(ngrams(n)))
        # how many different tokens follow a context, and how many in all
        self.kinds = Counter(ngram[:-1] for ngram in self.count)
        self.total = dict.fromkeys(self.kinds, 0)
        for ngram, count in self.count.items():
            self.total[ngram[:-1]] += count

    def probability(self, text: Sequence[object], place: int) -> float:
        """The probability of the token at `place`, given those before it.

        Raises:
            ValueError: for a place where the text has no token.
        """
        if not 0 <= place < len(text):
            raise ValueError(f"place must lie in 0..{len(text) - 1}, got {place}")
        probability = 1 / self.vocab_size
        for n in range(min(self.order, place + 1)):
            context, ngram = text[place - n : place], text[place - n : place + 1]
            if not self.kinds[context]:
                break
            kept = max(self.count[ngram] - self.discount, 0.0)
            given_up = self.discount * self.kinds[context]
            probability = (kept + given_up * probability) / self.total[context]
        return probability
