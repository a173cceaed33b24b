"""Write a model as a Hugging Face folder or as an artifact.

Example:
  bertjax export --model=run/ --output=bert-hf/ --format=hf
  bertjax export --model=electra-run/ --output=generator-hf/ --part=generator

transformers loads a Hugging Face folder with AutoModel and AutoTokenizer. An artifact contains
parameters, config and tokenizer in bertjax's own layout. An earlier export at --output is replaced.
"""

import argparse

from bertjax.artifact import artifact, hf_tasks, huggingface, loading

WRITERS = {"hf": huggingface.write, "artifact": artifact.write}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument(
        "--model", required=True, help="workdir, checkpoint, artifact or Hugging Face folder"
    )
    parser.add_argument("--output", required=True, help="folder to write")
    parser.add_argument(
        "--format", choices=WRITERS, default="hf", help="format to write; default: %(default)s"
    )
    parser.add_argument(
        "--part",
        default="",
        help="part of a model trained by replaced_token_detection: generator or discriminator "
        "(the default for hf)",
    )


def run(flags: argparse.Namespace) -> None:
    """Writes the folder and prints what it contains."""
    model = loading.load(flags.model)
    if flags.part or flags.format == "hf":
        model = artifact.part(model, flags.part)
    WRITERS[flags.format](model, flags.output)
    count = artifact.num_params(model.params, model.fields["vocab_size"])
    step = "" if model.step is None else f", step {model.step:,}"
    print(f"{flags.output}: {model.family}, {count:,} parameters{step}, from {flags.model}")
    warning = hf_tasks.prompt_warning(model) if flags.format == "hf" else ""
    if warning:
        print(f"note: {warning}")
    dropped_paths = huggingface.dropped(model) if flags.format == "hf" else []
    if dropped_paths:
        print(f"not exported, because the Hugging Face model lacks it: {', '.join(dropped_paths)}")
