"""Prepared data: ArrayRecord shards of token records, how they are written and read."""
