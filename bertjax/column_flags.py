"""Command-line flags that name the columns of labelled files, for `finetune` and its models."""

import argparse

NAMES = ("text_column", "label_column")  # also keys of a config's `data` and of an artifact's task
_USUAL = "the usual names"
TRAINED = f"those of the training, or {_USUAL}"


def add(parser: argparse.ArgumentParser, condition: str = "", default: str = _USUAL) -> None:
    """Declares the flags.

    condition: begins their help, such as "with --data: ". default: ends it.
    """
    parser.add_argument(
        "--text_column",
        metavar="NAMES",
        help=f"{condition}columns of the text, or of several texts separated by commas, such as "
        f"premise,hypothesis; default: {default}",
    )
    parser.add_argument(
        "--label_column",
        metavar="NAME",
        help=f"{condition}column of the labels, tags, scores, targets or answers; default: "
        f"{default}",
    )
