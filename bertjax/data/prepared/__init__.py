"""Writes and reads prepared data: ArrayRecord shards of token records."""
