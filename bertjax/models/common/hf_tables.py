"""Lines that the Hugging Face tables of several families share; `models/bert.py` explains them."""

# HF_NAMES of the embeddings; their names without the prefix of the family.
_EMBEDDINGS = (
    ("embeddings/word/embedding", "embeddings.word_embeddings.weight", "vocab_rows"),
    ("embeddings/position/embedding", "embeddings.position_embeddings.weight", "same"),
    ("embeddings/token_type/embedding", "embeddings.token_type_embeddings.weight", "same"),
    ("embeddings/norm/scale", "embeddings.LayerNorm.weight", "same"),
    ("embeddings/norm/bias", "embeddings.LayerNorm.bias", "same"),
)

# HF_CONFIG["fields"]: {key of config.json: our field}
SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "intermediate_size",
    "max_position_embeddings": "max_length",
}


def embeddings(prefix: str) -> tuple[tuple[str, str, str], ...]:
    """Returns the lines of the embeddings; `prefix` starts their names, such as "bert."."""
    return tuple((ours, prefix + theirs, rule) for ours, theirs, rule in _EMBEDDINGS)
