"""Text to batches: corpus, tokenizer, prepared records, samples, masking, loader. NumPy only."""
