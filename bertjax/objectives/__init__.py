"""One objective a file: what a sample is, how it is corrupted, what its loss is."""
