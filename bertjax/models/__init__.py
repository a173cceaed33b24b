"""Model families, one per file: each defines `Config`, `VARIANTS`, `Model` and `HF_NAMES`."""
