"""Functions that objectives share."""
