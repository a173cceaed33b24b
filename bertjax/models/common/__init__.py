"""Layers and tables that families share."""
