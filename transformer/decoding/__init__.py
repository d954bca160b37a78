"""Generating text with a trained model: steps, searches, translation, fast decoding."""
