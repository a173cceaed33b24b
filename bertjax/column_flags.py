"""Command-line flags that name the columns of labelled files, for `finetune` and its models."""

import argparse


def add(parser: argparse.ArgumentParser, condition: str = "") -> None:
    """Declares the flags. condition: begins their help, such as "with --data: "."""
    parser.add_argument(
        "--text_column",
        metavar="NAMES",
        help=f"{condition}columns of the text, or of several texts separated by commas, such as "
        "premise,hypothesis; default: the usual names",
    )
    parser.add_argument(
        "--label_column",
        metavar="NAME",
        help=f"{condition}column of the labels, tags, scores, targets or answers; default: the "
        "usual names",
    )


NAMES = ("text_column", "label_column")
