"""Objectives, one per file: each defines its samples, their corruption and the loss."""
