"""Beyond translation: the same parts in other models."""
