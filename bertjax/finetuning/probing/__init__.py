"""Linear probes: how well a linear classifier predicts labels from each layer of a frozen model."""
