"""Turns prepared records into batches: samples, packing, masking, noise spans, the loader."""
