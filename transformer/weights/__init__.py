"""A model's weights in a file, and which class stands where in a model."""
