"""Fill the [MASK]s of a text.

Example:
  bertjax predict --model=run/ --text='The [MASK] sat on the mat.' --top=5

--text may be given several times. Each mask gets the likeliest pieces with their probabilities.
"""

import argparse

import bertjax


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument(
        "--model", required=True, help="workdir, step of one, artifact or Hugging Face folder"
    )
    parser.add_argument(
        "--text", required=True, action="append", help="text with masks; may be repeated"
    )
    parser.add_argument("--top", type=int, default=5, help="guesses a mask, default: %(default)s")


def run(flags: argparse.Namespace) -> None:
    """Prints each text and, a line for each of its masks, the guesses."""
    model = bertjax.load(flags.model)
    for text, masks in zip(flags.text, model.fill_mask(flags.text, flags.top), strict=True):
        print(text)
        for fills in masks:
            print("  " + "   ".join(f"{fill.piece} {fill.probability:.3f}" for fill in fills))
