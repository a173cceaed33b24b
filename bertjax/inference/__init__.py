"""Inference with a trained model: vectors, filled masks, generated texts, scores of texts."""
