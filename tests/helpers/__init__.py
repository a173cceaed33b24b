"""Small models, corpora and runs that many tests share; each file is named after its content."""
