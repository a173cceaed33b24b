"""Score a model with its objective on held-out data, or on a task that needs no training.

--data prints loss, accuracies and perplexity, and the loss of a unigram model for comparison. Its
bits per byte of text compare models with different tokenizers.
--task=blimp:FILE measures how often the model prefers the grammatical one of two sentences, for
each paradigm. A fine-tuned model is scored on a file of labelled examples, with all metrics of its
task type. An encoder, fine-tuned or not, is scored on a collection in the layout of BEIR by exact
search; a cross-encoder is scored by the reranked results of such a search.

Example:
  bertjax evaluate --model=run/ --data=prepared/
  bertjax evaluate --model=run/ --data=prepared/ --mask_rate=0.15
  bertjax evaluate --model=run/ --task=blimp:blimp.jsonl --max_pairs=100
  bertjax evaluate --model=out/ --data=test.tsv
  bertjax evaluate --model=out/ --data=reviews.csv --text_column=review --label_column=stars
  bertjax evaluate --model=minilm/ --data=scifact/ --split=test --output=first.trec
  bertjax evaluate --model=rerank/ --data=scifact/ --run=first.trec --top=50 --output=second.trec
  bertjax evaluate --model=gpt2/ --task=classification --data=test.tsv --shots=4 --shot_seeds=5

With --shots, a decoder or a T5 that is not fine-tuned labels the file: its prompt shows labelled
examples, and the likeliest label is its answer. The shots are drawn anew for each of --shot_seeds;
mean, standard deviation and the accuracy of the most frequent label are printed.
"""

import argparse
import collections
import json
import os

import jax
import ml_collections

from bertjax import column_flags, errors, evaluate, progress, sharding, training_data
from bertjax import config as config_lib
from bertjax import experiment as experiment_lib
from bertjax import phases as phases_lib
from bertjax.artifact import artifact, evaluation_config, loading
from bertjax.data.corpus import beir, trec_runs
from bertjax.data.prepared import store
from bertjax.finetuning import few_shot, predictor, ranking_scores, retrieval, scores, tasks
from bertjax.finetuning.examples import queries
from bertjax.inference import blimp, pretrained, prompting, scoring

# Flags that can only be used with --data (DATA_FLAGS) or with --task (TASK_FLAGS).
DATA_FLAGS = ("batch_size", "length", "max_samples", "mask_rate")
TASK_FLAGS = ("max_pairs", "within_word")
COLLECTION_FLAGS = ("split", "run", "top", "output")  # only with a collection as --data
# Flags for --shots. It accepts --max_samples, too.
SHOT_FLAGS = ("shot_seeds", "shots_from", "template", "instruction", "label_words")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    flag = parser.add_argument
    flag("--model", required=True,
         help="workdir, checkpoint, artifact, Hugging Face folder or ORG/NAME on the Hub")
    flag("--data",
         help="prepared data, whose held-out split is scored (train if nothing is held out); for a "
              "fine-tuned model: file of labelled examples; for text vectors and rerankers: folder "
              "in the layout of BEIR, or a file of its folder qrels")  # fmt: skip
    flag("--batch_size", type=int, help="sequences per batch of --data; default: 64")
    flag("--length", type=int, help="tokens per sequence of --data; default: as in the last phase")
    flag("--max_samples", type=int, help="maximum number of samples of --data; default: 10,000")
    flag("--mask_rate", type=float,
         help="share of the tokens of --data to predict, to compare runs of different mask rates; "
              "default: the run's rate")  # fmt: skip
    flag("--task", help="blimp:FILE, instead of --data; with --shots: a task that chooses a label")
    flag("--max_pairs", type=int,
         help="maximum number of pairs of --task per paradigm; default: all")  # fmt: skip
    flag(
        "--within_word",
        action="store_true",
        default=None,
        help="with --task and a masked model: also mask the rest of the word after each token",
    )
    column_flags.add(parser, "with a fine-tuned model or --shots: ", column_flags.TRAINED)
    flag("--shots", type=int, metavar="K",
         help="label the examples of --data by prompts with K labelled examples; 0: none")
    shots = parser.add_argument_group("with --shots")
    shots.add_argument("--shot_seeds", type=int, metavar="N",
                       help="how many times the shots are drawn; default: 1")  # fmt: skip
    shots.add_argument("--shots_from", metavar="FILE",
                       help="labelled file to draw the shots from; default: --data, of which the "
                            "shots are then not scored")  # fmt: skip
    shots.add_argument("--template", help="form of an example; default: "
                                          f"{prompting.TEMPLATE.encode('unicode_escape').decode()}")
    shots.add_argument("--instruction", help="text before the examples; default: none")
    shots.add_argument("--label_words", metavar="LABEL=WORDS,...",
                       help="words that stand for labels, such as neg=negative,pos=positive; "
                            "default: the labels themselves")  # fmt: skip
    flag("--split", help="split of a collection, a file of its folder qrels; default: test")
    flag("--run", metavar="FILE",
         help="with a collection and a cross-encoder: run of a search, which is reranked")
    flag("--top", type=int, metavar="N",
         help="with a collection: documents to find, or to rerank, for each query; default: 100")
    flag("--output", metavar="FILE", help="with a collection: file for the run, in TREC's format")
    flag("--json", help="file to write all numbers to as well")


def run(flags: argparse.Namespace) -> None:
    """Scores the model and prints the numbers as a table; writes them to --json if it is given."""
    read = {"data": flags.data, "run": flags.run, "shots_from": flags.shots_from}
    errors.file_to_write("json", flags.json, **read)
    errors.file_to_write("output", flags.output, **read)
    if flags.shots is not None:
        _write(flags, _few_shot(flags))
        return
    for name in SHOT_FLAGS:
        if getattr(flags, name) is not None:
            raise errors.UserError(f"--{name} can only be used with --shots; remove it")
    if (flags.data is None) == (flags.task is None):
        raise errors.UserError("give either --data or --task to score the model on")
    unusable = (*DATA_FLAGS, *column_flags.NAMES) if flags.task else TASK_FLAGS
    for name in unusable:
        if getattr(flags, name) is not None:
            required = "--data" if flags.task else "--task"
            raise errors.UserError(f"--{name} can only be used with {required}; remove it")
    in_collection = flags.data is not None and beir.is_collection(flags.data)
    unusable = (*DATA_FLAGS, *column_flags.NAMES) if in_collection else COLLECTION_FLAGS
    for name in unusable:
        if getattr(flags, name) is not None:
            problem = "cannot" if in_collection else "can only"
            raise errors.UserError(
                f"--{name} {problem} be used with a collection as --data (a folder with "
                f"{beir.CORPUS}); remove it"
            )
    for name in ("batch_size", "length", "max_samples", "max_pairs", "top"):
        value = getattr(flags, name)
        if value is not None and value < 1:
            raise errors.UserError(f"--{name}={value}: must be 1 or more")
    if flags.mask_rate is not None and not 0 < flags.mask_rate <= 1:
        raise errors.UserError(f"--mask_rate={flags.mask_rate}: must be above 0 and at most 1")
    if flags.task:
        values = _blimp(flags)
    else:
        examples = _queries(flags) if in_collection else None
        with progress.stage(f"reading {flags.model}"):
            model = loading.load(flags.model)
        if examples is not None:
            values = _collection(flags, model, examples)
        else:
            values = (_heldout if model.task is None else _labelled)(flags, model)
    _write(flags, values)


def _write(flags: argparse.Namespace, values: dict) -> None:
    if flags.json:
        with open(flags.json, "w") as file:
            json.dump(values, file, indent=2)


def _few_shot(flags: argparse.Namespace) -> dict:
    """Returns the scores of prompts with labelled examples, and prints them."""
    if flags.data is None or flags.task is None:
        raise errors.UserError("--shots needs --task, such as classification, and --data=FILE")
    for name in ("batch_size", "length", "mask_rate", *TASK_FLAGS, *COLLECTION_FLAGS):
        if getattr(flags, name) is not None:
            raise errors.UserError(f"--{name} cannot be used with --shots; remove it")
    for name, least in (("shots", 0), ("shot_seeds", 1), ("max_samples", 1)):
        value = getattr(flags, name)
        if value is not None and value < least:
            raise errors.UserError(f"--{name}={value}: must be {least} or more")
    task = tasks.find(flags.task)
    few_shot.check(task)
    words = {}
    for item in filter(None, (flags.label_words or "").split(",")):
        label, equals, text = item.partition("=")
        if not equals or not text.strip():
            raise errors.UserError(f"--label_words={flags.label_words}: give LABEL=WORDS,...")
        words[label.strip()] = text.strip()
    # \n in a flag is a line break, which a shell does not write for a user.
    texts = {name: getattr(flags, name) for name in ("template", "instruction")}
    texts = {name: text.replace("\\n", "\n") for name, text in texts.items() if text}
    options = few_shot.Options(flags.shots, flags.shot_seeds or 1, label_words=words, **texts)
    files = [flags.data, *filter(None, [flags.shots_from])]
    task = tasks.with_columns(task, files, flags.text_column or "", flags.label_column or "")
    examples, *rest = (tasks.read(task, path, "dev") for path in files)
    pool = rest[0] if rest else examples
    if flags.max_samples and rest:
        examples = examples[: flags.max_samples]
    elif flags.max_samples:  # the shots are drawn from all examples of the file
        pool, examples = examples, examples[: flags.max_samples]
    with progress.stage(f"reading {flags.model}"):
        source = loading.load(flags.model)
    model = pretrained.Pretrained(source)
    with progress.stage("scoring prompts") as done:
        values = few_shot.evaluate(model, pool, examples, options, done)
    print(
        f"{_title(flags, source)}, {task.name}, "
        f"{errors.count(values['shots'], 'shot')}, drawn {errors.count(values['draws'], 'time')}, "
        f"on {errors.count(len(examples), 'example')} of {flags.data}"
    )
    print("\n".join(few_shot.lines(values)))
    return values


def _blimp(flags: argparse.Namespace) -> dict:
    name, _, file = flags.task.partition(":")
    if name != "blimp" or not file:
        raise errors.UserError(f"--task={flags.task}: must be blimp:FILE; other files need --data")
    pairs = blimp.read(file, flags.max_pairs)
    with progress.stage(f"reading {flags.model}"):
        source = loading.load(flags.model)
    model = pretrained.Pretrained(source)
    method = scoring.describe(model)
    with progress.stage(f"scoring {len(pairs):,} pairs"):
        accuracy = blimp.evaluate(model, pairs, within_word=bool(flags.within_word))
    print(f"{_title(flags, source)}, on {file}, by {method}: accuracy")
    print(blimp.table(accuracy, pairs))
    return {"score": method, **accuracy._asdict()}


def _title(flags: argparse.Namespace, model: artifact.Artifact) -> str:
    return flags.model if model.step is None else f"{flags.model}, step {model.step}"


def _labelled(flags: argparse.Namespace, source: artifact.Artifact) -> dict[str, float]:
    for name in DATA_FLAGS:
        if getattr(flags, name) is not None:
            raise errors.UserError(f"--{name} needs prepared data, but --model is fine-tuned")
    model = predictor.Predictor(source)
    skipped: collections.Counter[str] = collections.Counter()
    task = model.task_of(flags.data, flags.text_column or "", flags.label_column or "")
    examples = tasks.read(task, flags.data, "test", skipped=skipped)
    for reason, count in skipped.items():
        print(f"{flags.data}: {count} {reason}, left out")
    unused = tasks.unused_columns(task, [flags.data])
    if unused:
        print(f"{flags.data}: {unused}")
    if not tasks.can_be_scored(task, examples):
        if not task.labelled:
            raise errors.UserError(
                f"{flags.data}: contains single texts, but only pairs can be scored; get their "
                "vectors with `bertjax predict --data`"
            )
        gap = tasks.label_gap(task, flags.data, examples[0].where)
        raise errors.UserError(
            f"{flags.data}: has no {task.columns.label[0]!r} to score against{gap}; "
            "predict it with `bertjax predict --data`"
        )
    with progress.stage("scoring examples") as done:
        values = model.evaluate(examples, done)
    print(f"{flags.model}, {model.task.name}, on {len(examples)} examples of {flags.data}")
    width = max(map(len, values))
    for name, value in values.items():
        print(f"  {name:<{width}}{value:>12.4f}")
    return values


def _queries(flags: argparse.Namespace) -> queries.Queries:
    """Returns the judged queries of the collection. Checks the run and the library of scores."""
    scores.library("pytrec_eval")
    with progress.stage(f"reading {flags.data}"):
        examples = queries.read(flags.data, flags.split or "test", flags.top or queries.DEPTH)
    return examples


def _collection(
    flags: argparse.Namespace, source: artifact.Artifact, examples: queries.Queries
) -> dict[str, float]:
    first = trec_runs.read(flags.run, examples.collection) if flags.run else None
    of_task = source.task is not None
    model = predictor.Predictor(source) if of_task else pretrained.Pretrained(source)
    with progress.stage("scoring pairs" if first else "encoding texts") as done:
        found = retrieval.run(model, examples, first, done)
    values = {}
    if first is not None:
        values = {f"first_{name}": value for name, value in examples.scores(first).items()}
    values |= examples.scores(found)
    if flags.output:
        trec_runs.write(flags.output, found)
    print(
        f"{_title(flags, source)}, on {len(examples):,} queries and "
        f"{len(examples.collection.documents):,} documents of {flags.data}"
        + f", reranking the best {examples.depth} of {flags.run}" * bool(flags.run)
    )
    for name in ranking_scores.NAMES:
        before = f" (before: {values[f'first_{name}']:.4f})" if first is not None else ""
        print(f"  {name:<14}{values[name]:>10.4f}{before}")
    return values


def _heldout(flags: argparse.Namespace, model: artifact.Artifact) -> dict[str, float]:
    for name in column_flags.NAMES:
        if getattr(flags, name) is not None:
            raise errors.UserError(f"--{name} needs a fine-tuned model, which --model is not")
    if os.path.isfile(flags.data):
        raise errors.UserError(
            f"--data={flags.data} is a file, but --model={flags.model} is not fine-tuned: give a "
            "folder that `bertjax prepare` wrote, or a model that `bertjax finetune` wrote"
        )
    config = _config(model, flags)
    config_lib.validate(config)
    dataset = store.open_heldout(flags.data)
    loading.check_data(model, dataset, f"--model={flags.model}")
    experiment = experiment_lib.Experiment(config)
    mesh = sharding.make_mesh()
    experiment_lib.check_mesh(config, mesh)
    phase = phases_lib.of(config)[-1]
    vocabulary = model.tokenizer.vocabulary()
    experiment_lib.check_vocabulary(config, vocabulary)

    train_data = training_data.TrainingData(
        experiment, store.open_dataset(flags.data, "train"), vocabulary
    )
    with jax.set_mesh(mesh):
        with progress.stage("computing the unigram baseline"):
            unigram = experiment.unigram(train_data, phase)
        batches = experiment.eval_batches(dataset, vocabulary, phase, lambda size: slice(None))
        with progress.stage(f"scoring batches of {config.batch_size:,} samples") as done:
            values = evaluate.evaluate(
                experiment.eval_step(),
                sharding.replicate(mesh, model.params),
                progress.counted(batches, done),
                mesh,
                phase.forward_size,
                experiment.scales,
                unigram,
                token_bytes=experiment_lib.token_bytes(config, model.tokenizer),
            )
    samples = int(values["samples"])
    print(
        f"{_title(flags, model)}, on {samples:,} samples of the {dataset.split} split of "
        f"{flags.data}, {config.objective.name} on rows of {phase.length} tokens"
        f"{_rate(config, model)}"
    )
    for name, value in sorted(values.items()):
        if name == "samples":
            continue
        print(f"  {name:<16}{value:>10.4f}")
    gain = values["unigram_loss"] - values[next(iter(experiment.scales))]
    verdict = "better" if gain >= 0 else "worse"
    print(f"  {abs(gain):.2f} nats per predicted token {verdict} than the unigram model")
    size_warning = store.too_small_to_rank(dataset.num_documents, dataset.num_tokens)
    if size_warning:
        print(progress.wrapped(f"  warning: {size_warning}", "    "))
    if "mask_rate" in config.objective:
        values["mask_rate"] = config.objective.mask_rate
    return values


def _rate(config: ml_collections.ConfigDict, model: artifact.Artifact) -> str:
    """Returns the end of a title: the mask rate, and that of training if it is different.

    Returns "" if the objective has no mask rate.
    """
    if "mask_rate" not in config.objective:
        return ""
    rate = config.objective.mask_rate
    trained = model.config["objective"] if model.config else model.objective or {}
    trained_rate = trained.get("mask_rate", rate)
    return f", mask rate {rate:g}" + (
        f" (trained with {trained_rate:g})" if trained_rate != rate else ""
    )


def _config(model: artifact.Artifact, flags: argparse.Namespace) -> ml_collections.ConfigDict:
    """Returns the config to evaluate with: that of the model, changed by the flags."""
    config = evaluation_config.of(model, f"--model={flags.model}")
    last_phase = phases_lib.of(config)[-1]
    config.phase2.num_steps = 0
    config.data.length = flags.length or min(last_phase.length, config.model.max_length)
    config.batch_size, config.micro_batch_size = flags.batch_size or 64, 0
    config.eval.max_samples = flags.max_samples or 10_000
    if flags.mask_rate is not None:
        if "mask_rate" not in config.objective:
            raise errors.UserError(
                f"--mask_rate={flags.mask_rate}: --model={flags.model} is scored with the "
                f"objective '{config.objective.name}', which has no mask rate: remove the flag"
            )
        config.objective.mask_rate = flags.mask_rate
    return config
