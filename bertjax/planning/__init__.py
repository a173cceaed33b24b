"""Predicts the memory, FLOPs, traffic, time and cost of a run before it starts."""
