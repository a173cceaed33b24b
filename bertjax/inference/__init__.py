"""Inference with a trained model: text vectors, mask filling, text generation, text scores."""
