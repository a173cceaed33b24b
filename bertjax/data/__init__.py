"""Turns text into batches: corpus, tokenizers, prepared data, batches. Uses NumPy, not JAX."""
