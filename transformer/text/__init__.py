"""From sentences to token ids and back: words, subwords, batches, corpora."""
