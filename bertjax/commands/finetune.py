"""Fine-tune a model on labelled data: a sweep of rates, several seeds, honest averages.

Examples:
  bertjax finetune --model=run/ --task=sst2 --data=glue/SST-2/ --output=out/
  bertjax finetune --model=bert-base-cased/ --task=ner --train=train.conll --dev=dev.conll \\
      --test=test.conll --seeds=5 --lr=2e-5,3e-5,5e-5 --output=out/
  bertjax finetune --model=run/ --task=classification --train=train.tsv --strategy=lora \\
      --config.strategy.rank=16 --config.num_epochs=4 --output=out/
  bertjax finetune --suite=configs/suites/glue.py --model=run/ --data=glue/ --output=out/

Without --dev a tenth of the training data is it. The rate of the best mean on dev is taken, and its
runs are scored on test, once. --output gets report.md, report.json, scores.png, the predictions and
the best model, which `bertjax predict`, `evaluate` and `export` take. The same command goes on
after a stop, within a run too: from its newest checkpoint. Every key of the recipe, listed below,
is overridden as --config.KEY=VALUE.

A job of several processes: the same command on every host, with the flags of `bertjax pretrain`.
--output must be a folder that all of them see.

A suite is many tasks in one report; see its file for what it runs.
"""

import argparse

import jax

from bertjax import errors, job_flags
from bertjax.finetuning import keys, recipe, report, strategies, suite, tasks
from bertjax.finetuning import run as run_lib
from bertjax.runtime import backend, signals

FILES = ("train", "dev", "test")
KEPT = "the runs that are finished are kept"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    flag = parser.add_argument
    flag("--model", help="workdir, step of one, artifact or Hugging Face folder")
    names = ", ".join(sorted(tasks.TASKS))
    flag("--task", metavar="NAME", help=f"one of {names}; most also as NAME:text_to_text")
    flag("--output", required=True, help="folder of the results, made where absent")
    flag("--data", help="folder with the files of the splits, or tfds:NAME")
    for split in FILES:
        flag(f"--{split}", metavar="FILE", help=f"file of the split {split}")
    flag("--seeds", type=int, metavar="K", help="runs with each rate; default: 1")
    flag("--lr", metavar="RATES",
         help="learning rates; default: what suits task and strategy, 2e-5,3e-5,5e-5 for a whole "
              "encoder")  # fmt: skip
    flag("--strategy", metavar="NAME",
         help=f"what is trained: {', '.join(strategies.names())}; default: full")  # fmt: skip
    flag("--suite", metavar="FILE[:ARG]", help="many tasks, instead of --task")
    job_flags.add(parser)
    parser.set_defaults(config=None)  # keys are overridden as --config.KEY=VALUE


def config_help(file: str | None) -> list[str]:
    """Returns the help lines of the keys of --config; there are no config files."""
    del file
    return keys.table()


def config_keys() -> list[str]:
    """Returns the keys that --config. accepts."""
    return keys.names()


def run(flags: argparse.Namespace) -> None:
    """Trains, and prints the results."""
    given = {
        "model": flags.model,
        "seeds": flags.seeds,
        "learning_rates": flags.lr,
        "strategy.name": flags.strategy,
    }
    values = {key: str(value) for key, value in given.items() if value is not None}
    values |= flags.overrides
    if flags.suite:
        _suite(flags, values)
    else:
        _task(flags, values)


def _suite(flags: argparse.Namespace, values: dict[str, str]) -> None:
    """Runs every task of a suite and prints the results."""
    for name in ("task", *FILES):
        if getattr(flags, name):
            raise errors.UserError(f"--{name} is of one task; a suite names its own")
    if job_flags.is_one_of_several(flags):
        raise errors.UserError("--suite runs in one process: run its tasks one by one in this job")
    with signals.sigterm_raises(KEPT):
        print(suite.run(flags.suite, flags.output, flags.data, values))


def _task(flags: argparse.Namespace, values: dict[str, str]) -> None:
    """Runs one task and prints the results."""
    if not flags.task or "model" not in values:
        raise errors.UserError("give --model and --task, or --suite")
    files = {split: getattr(flags, split) for split in FILES}
    config = recipe.make(flags.task, flags.data, files, values)
    backend.configure(config.dtype)
    if job_flags.is_one_of_several(flags):  # where JAX catches SIGTERM
        joined = job_flags.joined(flags, lambda: f"{KEPT}, and the last one goes on")
    else:
        joined = signals.sigterm_raises(KEPT)
    with joined:
        done = run_lib.finetune(config, flags.output)
        if jax.process_index() == 0:
            lines = [*report.summary_lines(done.report), f"all of it: {flags.output}"]
            print("\n".join(lines))
