"""Reads text files, indexed records and TFDS datasets as documents and sentences."""
