"""Formats for sharing a model: our artifact and the Hugging Face folder; T5X is read only."""
