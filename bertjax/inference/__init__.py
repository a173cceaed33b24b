"""A trained model in use: vectors, filled masks, generated texts, scores of texts."""
