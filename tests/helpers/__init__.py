"""Small models, corpora and runs that many tests start from, each named by what it gives."""
