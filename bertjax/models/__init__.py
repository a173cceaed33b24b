"""One family a file: `Config`, `VARIANTS`, `Model`, `HF_NAMES`."""
