"""Fine-tune a model on labelled data: a sweep of learning rates, with several seeds each.

Examples:
  bertjax finetune --model=run/ --task=sst2 --data=glue/SST-2/ --output=out/
  bertjax finetune --model=bert-base-cased/ --task=ner --train=train.conll --dev=dev.conll \\
      --test=test.conll --seeds=5 --lr=2e-5,3e-5,5e-5 --output=out/
  bertjax finetune --model=run/ --task=classification --train=train.tsv --strategy=lora \\
      --config.strategy.rank=16 --config.num_epochs=4 --output=out/
  bertjax finetune --model=run/ --task=pair --data=snli/ --text_column=premise,hypothesis \\
      --label_column=gold --output=out/
  bertjax finetune --recipe=sentiment --model=run/ --data=reviews/ --output=out/
  bertjax finetune --model=run/ --task=sst2 --data=glue/SST-2/ --seeds=3 --output=out/ \\
      --sweep.strategy=full,lora --sweep.num_epochs=2,3
  bertjax finetune --suite=configs/suites/glue.py --model=run/ --data=glue/ --output=out/
  bertjax finetune --model=t5/ --task=mixture --data=tasks.json --output=out/

Without --dev, a tenth of the training data is held out as dev. For a few hundred labels, --folds=5
wastes none of them: every label is scored once, and the final model is trained on all of them. The
number of epochs depends on the size of train: at least 300 steps and 3 epochs. The learning rate
with the best mean score on dev is selected, and only its runs are scored on test. --output receives
report.md, report.json, report.html, scores.png, the predictions and the best model, which `bertjax
predict`, `evaluate` and `export` accept. The report has simple baselines beside the model. After a
stop, run the same command again to resume; an unfinished run resumes from its newest checkpoint.
--config.KEY=VALUE overrides a key of the recipe; the keys are listed below.

To run a job of several processes, run the same command on every host, with the flags of
`bertjax pretrain`. All hosts must see the same --output.

A suite runs several tasks, one after the other, and writes one report; its file lists the tasks. A
mixture trains one T5 or GPT on several tasks at once; its file is like {"tasks": [{"task": "sst2",
"data": "SST-2"}, {"task": "squad", "data": "squad"}]}, with paths relative to the file. A task may
have a "name", a "prefix" in front of its sources, and a "rate" instead of a share by its size.

--sweep.KEY=V1,V2 trains every combination of the values of these keys, each with all rates and
seeds. The combination with the best mean on dev is selected, and only its runs are scored on test.
KEY is a key of the recipe. An option of a strategy applies only to runs with that strategy, as in
--sweep.strategy=full,lora --sweep.strategy.rank=4,16; `partial_layers` is short for
strategy.frozen_layers of --strategy=partial. --print_config prints the config and the combinations.

A recipe sets the task and the values of its source; flags override them. --recipe is one of the
names below or the path of a file; NAME:smoke shrinks it to a run of seconds on a CPU.
"""

import argparse

import jax

from bertjax import column_flags, errors, job_flags, trackers
from bertjax import config_help as config_help_lib
from bertjax.finetuning import (
    keys,
    named,
    report,
    strategies,
    suite,
    sweep,
    sweep_report,
    tasks,
)
from bertjax.finetuning import run as run_lib
from bertjax.runtime import backend, signals

FILES = ("train", "dev", "test")
KEPT_NOTE = "finished runs are kept"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    flag = parser.add_argument
    flag("--model",
         help="workdir, checkpoint, artifact, Hugging Face folder or ORG/NAME on the Hub")
    names = ", ".join(sorted(tasks.TASKS))
    flag("--task", metavar="NAME", help=f"task to train: {names}; most also as NAME:text_to_text")
    flag("--output", required=True,
         help="folder for the results, local or gs://; created if it does not exist")  # fmt: skip
    flag("--data",
         help="folder with the files of all splits, such as train.csv or, as on Hugging Face, "
              "data/train-00000-of-00002.parquet; or tfds:NAME")  # fmt: skip
    for split in FILES:
        flag(f"--{split}", metavar="FILE",
             help=f"file of the {split} split: .tsv, .csv, .jsonl or .parquet; or a glob of files")
    column_flags.add(parser)
    flag("--seeds", type=int, metavar="K", help="number of runs per learning rate; default: 1")
    flag("--folds", type=int, metavar="K",
         help="cross-validation: score every part of K of train with a model trained on the "
              "others, then train the final model on all of train, at the best rate")  # fmt: skip
    flag("--lr", metavar="RATES",
         help="learning rates, separated by commas; default: depends on task, strategy and size "
              "of the model, 2e-5,3e-5,5e-5 for --strategy=full on BERT-base")  # fmt: skip
    flag("--strategy", metavar="NAME",
         help=f"fine-tuning strategy: {', '.join(strategies.names())}; default: full")  # fmt: skip
    flag("--suite", metavar="FILE[:ARG]", help="file with several tasks, instead of --task")
    flag("--recipe", metavar="NAME[:smoke]",
         help=f"recipe with a task and values: {', '.join(named.names())}; or a file")  # fmt: skip
    flag("--sweep.KEY", dest="sweep", metavar="V1,V2",
         help="values of a config key to try; several such flags give every combination")
    trackers.add_flag(parser)
    job_flags.add(parser)
    config_help_lib.add_flag(parser)
    parser.set_defaults(config=None)  # keys are overridden as --config.KEY=VALUE


def config_help(file: str | None) -> list[str]:
    """Returns the help lines on the keys. Ignores `file`: fine-tuning has no config files."""
    del file
    return ["recipes, for --recipe=NAME:", *named.table(), "", *keys.table()]


def config_keys() -> list[str]:
    """Returns the keys that --config. accepts."""
    return keys.names()


def run(flags: argparse.Namespace) -> None:
    """Trains, and prints the results."""
    flag_values = {
        "model": flags.model,
        "seeds": flags.seeds,
        "learning_rates": flags.lr,
        "data.folds": flags.folds,
        "strategy.name": flags.strategy,
        "data.text_column": flags.text_column,
        "data.label_column": flags.label_column,
    }
    values = {key: str(value) for key, value in flag_values.items() if value is not None}
    given = values | {f"data.{split}": getattr(flags, split) for split in FILES}
    for key, value in given.items():
        if value is not None and flags.overrides.get(key, value) != value:
            raise errors.UserError(
                f"--config.{key}={flags.overrides[key]}: another flag gives {value} for this key; "
                "remove one of them"
            )
    values |= trackers.overrides(flags) | flags.overrides
    if flags.suite:
        _suite(flags, values)
    else:
        _task(flags, values)


def _suite(flags: argparse.Namespace, values: dict[str, str]) -> None:
    """Runs every task of a suite and prints the results."""
    for name in ("task", "recipe", "sweep", *FILES):
        if getattr(flags, name):
            raise errors.UserError(f"--{name} cannot be used with --suite; remove it")
    if job_flags.is_one_of_several(flags):
        raise errors.UserError(
            "--suite must run in one process: run its tasks one by one in this job"
        )
    with signals.sigterm_raises(KEPT_NOTE):
        print(suite.run(flags.suite, flags.output, flags.data, values))


def _task(flags: argparse.Namespace, values: dict[str, str]) -> None:
    """Runs one task and prints the results."""
    swept = sweep.parse(flags.sweep)
    has_model = "model" in values or "model" in swept or flags.print_config
    if not (flags.task or flags.recipe) or not has_model:
        raise errors.UserError("give --model, and --task or --recipe; or --suite")
    files = {split: getattr(flags, split) for split in FILES}
    make = named.maker(flags.recipe or "", flags.task or "", flags.data, files)
    members = sweep.members(swept, values, make)
    if flags.print_config:
        print("\n".join(keys.resolved(members[0].config, [m.label for m in members])))
        return
    config = members[0].config
    backend.configure(config.dtype)
    if job_flags.is_one_of_several(flags):  # in such a job JAX handles SIGTERM
        context = job_flags.joined(
            flags, lambda: f"{KEPT_NOTE}; run the same command again to resume"
        )
    else:
        context = signals.sigterm_raises(KEPT_NOTE)
    with context:
        if flags.sweep:
            content = sweep.run(members, flags.output).report
            lines = sweep_report.summary_lines(content)
        else:
            content, lines = run_lib.finetune(config, flags.output).report, []
        if jax.process_index() == 0:
            lines += [*report.summary_lines(content), f"all results: {flags.output}"]
            print("\n".join(lines))
