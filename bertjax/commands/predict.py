"""Fill the [MASK]s of a text, continue a prompt, or predict with a fine-tuned model.

Examples:
  bertjax predict --model=run/ --text='The [MASK] sat on the mat.' --top=5
  bertjax predict --model=gpt2/ --prompt='The cat sat on' --max_new_tokens=20
  bertjax predict --model=gpt2/ --prompt='The cat' --temperature=0.8 --top_p=0.95 --seed=1
  bertjax predict --model=t5/ --prompt='The <extra_id_0> sat on the mat.' --num_beams=4
  bertjax predict --model=gpt2/ --prompt='The sky is' --choice=blue --choice=made

Fine-tuned models predict labels with probabilities, entities, answers or texts:
  bertjax predict --model=out/ --text='I loved this movie'
  bertjax predict --model=out/ --text='A man sleeps.' --pair='Someone is awake.'
  bertjax predict --model=out/ --question='Who wrote it?' --context='Ada wrote it in 1843.'
  bertjax predict --model=out/ --data=test.tsv --output=predictions.jsonl
  bertjax predict --model=out/ --data=texts.txt

An encoder searches a collection in the layout of BEIR for all its queries; a cross-encoder reranks
the results of such a search. Both write a run in TREC's format:
  bertjax predict --model=minilm/ --data=scifact/ --output=first.trec
  bertjax predict --model=rerank/ --data=scifact/ --run=first.trec --top=50 --output=second.trec

--text and --prompt may be repeated. For each mask, the most likely pieces are printed with their
probabilities. A prompt is continued with the most likely token at each step, unless --temperature
turns on sampling or --num_beams turns on beam search; the end-of-text token ends the continuation.
With --choice, the choices are printed with their log probabilities in nats per token, the most
likely first.
"""

import argparse
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import bertjax
from bertjax import column_flags, errors, files, progress
from bertjax.data.corpus import beir, trec_runs
from bertjax.finetuning import output_folder, predictor, retrieval, tasks
from bertjax.finetuning.examples import queries
from bertjax.finetuning.examples import types as examples_lib
from bertjax.inference import pretrained, prompting

# {flag: (type, help)} for the fields of generation.Options, which defines the defaults.
OPTIONS = {
    "max_new_tokens": (int, "maximum number of tokens to generate; default: 64"),
    "temperature": (float, "temperature of the sampling; default: 0, no sampling"),
    "top_k": (int, "sample from the k most likely tokens only; default: 0, off"),
    "top_p": (float, "sample from the fewest tokens whose probabilities sum to p; default: 1, off"),
    "seed": (int, "seed of the sampling; default: 0"),
    "num_beams": (int, "number of beams of a beam search; default: 1, no beam search"),
    "length_penalty": (float, "a beam's score is divided by length ** this value; default: 1"),
}

INPUT_FLAGS = ("text", "prompt", "question", "choice", "data")
# {additional flag: the flags of INPUT_FLAGS with which it can be used}
COMPANION_FLAGS = {
    "pair": ("text",),
    "context": ("question", "choice"),
    "output": ("data",),
    **dict.fromkeys(column_flags.NAMES, ("data",)),
    "run": ("data",),
    "top": ("text", "question", "choice", "data"),
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    flag = parser.add_argument
    flag("--model", required=True,
         help="workdir, checkpoint, artifact, Hugging Face folder or ORG/NAME on the Hub")
    flag("--text", action="append", help="text with masks, or text to predict on; may be repeated")
    flag("--prompt", action="append", help="text to continue; may be repeated")
    flag("--pair", action="append", help="second text of each --text, for tasks on pairs")
    flag("--question", action="append", help="question to answer from --context; may be repeated")
    flag("--context", help="text that contains the answers, or that the choices refer to")
    flag("--choice", action="append", help="a choice for --context or --prompt; repeat the flag")
    flag("--data",
         help="file of examples; .txt: one text per line, or columns for tagging; or a folder in "
              "the layout of BEIR")  # fmt: skip
    column_flags.add(parser, "with --data: ", column_flags.TRAINED)
    flag("--output", help="with --data: file for one JSON line per example; default: stdout")
    flag(
        "--run",
        metavar="FILE",
        help="with a collection as --data and a cross-encoder: run of a search, to be reranked",
    )
    flag(
        "--top",
        type=int,
        help="number of pieces per mask, or of labels (10 at most), default: 5; with a "
        "collection: documents to find, or to rerank, for each query, default: 100",
    )
    options = parser.add_argument_group("with --prompt")
    for name, (kind, summary) in OPTIONS.items():
        options.add_argument(f"--{name}", type=kind, help=summary)


def run(flags: argparse.Namespace) -> None:
    """Prints each text and, below it, the model's predictions."""
    options = {name: getattr(flags, name) for name in OPTIONS}
    options = {name: value for name, value in options.items() if value is not None}
    for name in options:
        if flags.prompt is None or flags.choice:
            raise errors.UserError(f"--{name} can only be used with --prompt, without --choice")
    modes = [name for name in INPUT_FLAGS if getattr(flags, name)]
    if modes == ["prompt", "choice"]:
        modes = ["prompt"]
    if len(modes) != 1:
        raise errors.UserError(f"give exactly one of {_flag_list(INPUT_FLAGS)}")
    for name, partners in COMPANION_FLAGS.items():
        if getattr(flags, name) is not None and modes[0] not in partners:
            raise errors.UserError(
                f"--{name} can only be used with {_flag_list(partners)}, not with --{modes[0]}"
            )
    errors.file_to_write("output", flags.output, data=flags.data, run=flags.run)
    if flags.top is not None and flags.top < 1:
        raise errors.UserError(f"--top={flags.top}: must be 1 or more")
    in_collection = flags.data is not None and beir.is_collection(flags.data)
    for name in ("run", "top") if flags.data and not in_collection else ():
        if getattr(flags, name) is not None:
            raise errors.UserError(
                f"--{name} with --data needs a collection (a folder with {beir.CORPUS}); remove it"
            )
    with progress.stage(f"reading {flags.model}"):
        model = bertjax.load(flags.model)
    if in_collection:
        _predict_collection(model, flags)
    elif isinstance(model, predictor.Predictor):
        _predict(model, flags)
    elif flags.prompt and flags.choice:
        for prompt, line in zip(flags.prompt, _choice_lines(model, flags), strict=True):
            print(prompt)
            print(f"  {line}")
    elif flags.prompt:
        for prompt, text in zip(flags.prompt, model.generate(flags.prompt, **options), strict=True):
            print(prompt)
            print("  " + text.replace("\n", "\n  "))
    elif modes != ["text"] or flags.pair:
        raise errors.UserError(
            f"--model={flags.model} is not fine-tuned: give --text with masks, or --prompt"
        )
    else:
        fills = model.fill_mask(flags.text, top=flags.top or 5)
        for text, masks in zip(flags.text, fills, strict=True):
            print(text)
            for pieces in masks:
                print("  " + "   ".join(f"{fill.piece} {fill.probability:.3f}" for fill in pieces))


def _choice_lines(model: pretrained.Pretrained, flags: argparse.Namespace) -> Iterator[str]:
    """Yields for each prompt a line of the choices with their scores, best first."""
    for result in prompting.choose(model, flags.prompt, flags.choice):
        pairs = sorted(zip(result.scores, flags.choice, strict=True), reverse=True)
        yield "   ".join(f"{choice} {score:.3f}" for score, choice in pairs)


def _predict(model: predictor.Predictor, flags: argparse.Namespace) -> None:
    top = flags.top or 5
    if flags.data:
        _predict_file(model, flags)
        return
    name, required = examples_lib.TYPES[model.task.reader].FLAGS
    if flags.prompt or not getattr(flags, name):
        raise errors.UserError(f"the task {model.task.name} needs {required}, or --data")
    if flags.question:
        if not (flags.context or "").strip():
            raise errors.UserError("--question needs --context, the text with the answer")
        inputs: list[Any] = [{"question": q, "context": flags.context} for q in flags.question]
        texts = flags.question
    elif flags.choice:
        inputs = [{"context": flags.context or "", "choices": tuple(flags.choice)}]
        texts = [flags.context or ""]
    else:
        inputs, texts = flags.text, flags.text
        if flags.pair:
            if len(flags.pair) != len(flags.text):
                raise errors.UserError("give one --pair for each --text")
            inputs = list(zip(flags.text, flags.pair, strict=True))
            texts = [" | ".join(pair) for pair in inputs]
    for text, prediction in zip(texts, model.predict(list(inputs)), strict=True):
        print(text)
        for line in model.task_type.lines(prediction, top):
            print("  " + line)


def _predict_file(model: predictor.Predictor, flags: argparse.Namespace) -> None:
    task = model.task_of(flags.data, flags.text_column or "", flags.label_column or "")
    examples = tasks.read(task, flags.data, "test", scored=False)
    unused = tasks.unused_columns(task, [flags.data])
    if unused:
        errors.tell(f"{flags.data}: {unused}")
    unlabelled = [example.unlabelled() for example in examples]
    with progress.stage("predicting") as done:
        _, predictions = model.answer(unlabelled, done)
    lines = output_folder.prediction_lines(examples, predictions)
    if flags.output is None:
        print(lines, end="")
        return
    files.write_text(pathlib.Path(flags.output), lines)
    print(f"{len(examples)} predictions in {flags.output}")


def _predict_collection(model: pretrained.Pretrained, flags: argparse.Namespace) -> None:
    """Writes the run of a search for all queries, or of reranking --run."""
    examples = queries.read(flags.data, "", flags.top or queries.DEPTH)
    first = trec_runs.read(flags.run, examples.collection) if flags.run else None
    with progress.stage("scoring pairs" if first else "encoding texts") as done:
        found = retrieval.run(model, examples, first, done)
    if flags.output is None:
        print("".join(trec_runs.lines(found)), end="")
        return
    trec_runs.write(flags.output, found)
    print(f"results of {len(found):,} queries in {flags.output}")


def _flag_list(names: Iterable[str]) -> str:
    return ", ".join(f"--{name}" for name in names)
