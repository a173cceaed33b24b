"""Reads labelled files as examples, and splits them."""
