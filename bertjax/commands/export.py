"""Write a model as a Hugging Face folder, an artifact, an adapter of PEFT, or a program.

Example:
  bertjax export --model=run/ --output=bert-hf/ --format=hf
  bertjax export --model=electra-run/ --output=generator-hf/ --part=generator
  bertjax export --model=out/ --output=out-hf/ --push_to=org/name --private
  bertjax export --model=lora-out/ --output=adapter/ --format=peft
  bertjax export --model=out/ --output=served/ --format=stablehlo

transformers loads a Hugging Face folder with AutoModel and AutoTokenizer. If the model was trained
for vectors of texts, sentence-transformers loads it with SentenceTransformer; if it predicts one
number for a pair of texts, with CrossEncoder. The folder has a model card, README.md, with the
scores of fine-tuning. An artifact contains parameters, config and tokenizer in bertjax's own
layout. An adapter contains what fine-tuning with --strategy=lora trained, without the base model;
peft loads it. A stablehlo folder contains the predict function of a fine-tuned model (or the text
vectors of an encoder) as a program for any batch size and length, its parameters, and a JSON file
that describes inputs, outputs and labels; it runs without bertjax, with jax, numpy and flatbuffers.
An earlier export at --output is replaced. --push_to also uploads the folder to the Hugging Face
Hub, with its model card.
"""

import argparse
import os
import tempfile

from bertjax import errors, files, hub
from bertjax.artifact import artifact, hf_tasks, huggingface, loading, model_card, peft
from bertjax.finetuning import output_folder, stablehlo

FORMATS = ("hf", "artifact", "peft", "stablehlo")
PROGRAM_FLAGS = ("platforms", "dtype")  # for --format=stablehlo


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument(
        "--model",
        required=True,
        help="workdir, checkpoint, artifact, Hugging Face folder, or ORG/NAME on the Hub",
    )
    parser.add_argument("--output", required=True, help="folder to write, local or gs://")
    parser.add_argument(
        "--format", choices=FORMATS, default="hf", help="format to write; default: %(default)s"
    )
    parser.add_argument(
        "--part",
        default="",
        help="part of a model trained by replaced_token_detection: generator or discriminator "
        "(the default for hf and stablehlo)",
    )
    parser.add_argument(
        "--platforms",
        help="with --format=stablehlo: platforms that the program can run on, among "
        f"{', '.join(stablehlo.PLATFORMS)}; default: {','.join(stablehlo.DEFAULT_PLATFORMS)}",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="with --format=stablehlo: type of the activations; default: float32",
    )
    parser.add_argument(
        "--push_to", metavar="ORG/NAME", help="repository of the Hub to upload the folder to"
    )
    parser.add_argument(
        "--private", action="store_true", help="with --push_to: a new repository is private"
    )


def run(flags: argparse.Namespace) -> None:
    """Writes the folder, prints what it contains, and with --push_to uploads it."""
    options = {name: getattr(flags, name) for name in PROGRAM_FLAGS if getattr(flags, name)}
    if options and flags.format != "stablehlo":
        raise errors.UserError(f"--{next(iter(options))} needs --format=stablehlo; remove it")
    if "platforms" in options:
        options["platforms"] = [name.strip() for name in options["platforms"].split(",")]
    if flags.push_to:
        if flags.format == "stablehlo":
            raise errors.UserError("--push_to does not go with --format=stablehlo; remove it")
        hub.check_upload("push_to", flags.push_to)
    model = loading.load(flags.model)
    scores = output_folder.scores(loading.find(flags.model).folder)
    if flags.part or flags.format in ("hf", "stablehlo"):
        model = artifact.part(model, flags.part)
    if flags.format == "stablehlo":
        stablehlo.write(model, flags.output, **options)
    elif flags.format == "artifact":
        artifact.write(model, flags.output)
    else:
        writer = huggingface if flags.format == "hf" else peft
        writer.write(model, flags.output, scores)
    count = artifact.num_params(model.params, model.fields["vocab_size"])
    step = "" if model.step is None else f", step {model.step:,}"
    print(f"{flags.output}: {model.family}, {count:,} parameters{step}, from {flags.model}")
    warning = hf_tasks.prompt_warning(model) if flags.format == "hf" else ""
    if warning:
        print(f"note: {warning}")
    dropped_paths = huggingface.dropped(model) if flags.format == "hf" else []
    if dropped_paths:
        print(f"not exported, because the Hugging Face model lacks it: {', '.join(dropped_paths)}")
    if flags.push_to:
        card = {}
        if flags.format == "artifact":  # the other formats have one in the folder
            text = model_card.text(model, None, "", {}, scores, model_card.ARTIFACT)
            card = {model_card.FILE: text}
        with tempfile.TemporaryDirectory() as copy:
            folder = files.localise(os.fspath(flags.output), copy)
            print(f"uploaded to {hub.upload(folder, flags.push_to, card, private=flags.private)}")
