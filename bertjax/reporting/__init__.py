"""The report on a run: one HTML page with config, data, curves, samples and scores."""
