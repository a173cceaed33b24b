"""Prepared records to batches: samples, packing, masking, noise spans, the loader."""
