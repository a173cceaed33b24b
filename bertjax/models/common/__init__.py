"""Layers and tables shared by the model families."""
