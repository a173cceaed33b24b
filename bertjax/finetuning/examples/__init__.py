"""Labelled files as examples, and their splits."""
