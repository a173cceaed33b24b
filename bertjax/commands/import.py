"""Convert a Hugging Face folder or a T5X checkpoint to an artifact.

Example:
  bertjax import --input=bert-base-uncased/ --output=artifact/
  bertjax import --input=google-bert/bert-base-uncased --output=gs://bucket/artifact

A Hugging Face folder must contain config.json, model.safetensors (or its shards with their index)
and the files of the tokenizer. A folder with a T5X checkpoint must also contain a tokenizer file,
such as spiece.model. An earlier artifact at --output is replaced.
"""

import argparse

from bertjax.artifact import artifact, loading


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument(
        "--input",
        required=True,
        help="Hugging Face folder, ORG/NAME on the Hub, or T5X checkpoint",
    )
    parser.add_argument("--output", required=True, help="folder to write, local or gs://")


def run(flags: argparse.Namespace) -> None:
    """Writes the artifact and prints what it contains."""
    model = loading.load(flags.input)
    artifact.write(model, flags.output)
    count = artifact.num_params(model.params, model.fields["vocab_size"])
    heads = ", ".join(model.fields["heads"]) or "no heads"
    print(f"{flags.output}: {model.family} ({heads}), {count:,} parameters, from {flags.input}")
