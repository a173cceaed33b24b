"""Average the parameters of several checkpoints or models, and write an artifact.

Example:
  bertjax average --input=run/checkpoints/{8000,9000,10000} --output=artifact/
  bertjax average --input=decay1/ --input=decay2/ --weights=0.7,0.3 --output=artifact/

The models must have the same family, sizes, tokenizer, objective and task; everything else in the
artifact is that of the model with the highest step. config.checkpoint.keep_every keeps checkpoints
to average. Models are read one after another, so their number does not matter for memory. An
earlier artifact at --output is replaced.
"""

import argparse

from bertjax import errors, progress
from bertjax.artifact import artifact, averaging


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument(
        "--input",
        action="append",
        required=True,
        help="workdir, checkpoint, artifact, Hugging Face folder or ORG/NAME on the Hub; repeat it "
        "for each model, or let the shell do so, as above",
    )
    parser.add_argument(
        "--weights",
        metavar="NUMBERS",
        help="one for each --input, separated by commas, in proportion to its share of the mean; "
        "default: equal shares",
    )
    parser.add_argument("--output", required=True, help="folder to write")


def run(flags: argparse.Namespace) -> None:
    """Writes the artifact and prints what it contains."""
    weights = None if flags.weights is None else _weights(flags.weights)
    with progress.stage("averaging") as done:
        model = averaging.average(flags.input, weights, done)
    artifact.write(model, flags.output)
    count = artifact.num_params(model.params, model.fields["vocab_size"])
    step = "" if model.step is None else f", up to step {model.step:,}"
    print(f"{flags.output}: {model.family}, {count:,} parameters, mean of {len(flags.input)} "
          f"models{step}")  # fmt: skip


def _weights(text: str) -> list[float]:
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        raise errors.UserError(f"--weights={text}: give numbers such as 0.5,0.3,0.2") from None
