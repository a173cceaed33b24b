"""Formats for sharing a model: artifacts, Hugging Face folders and, for reading only, T5X."""
