"""Trains, loads, applies and writes tokenizers."""
