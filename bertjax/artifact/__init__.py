"""The hand-over formats: our artifact and the Hugging Face folder."""
