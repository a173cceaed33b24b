"""Train a model on prepared data, or go on where a run stopped.

Example:
  bertjax pretrain --config=configs/bert_base.py --workdir=run/ \\
      --config.data.path=prepared/ --config.batch_size=256

Every key of the config is overridden as --config.KEY=VALUE; FILE:smoke shrinks a config to seconds
on a CPU. The same command goes on after a stop. Exit code 75 says: preempted, start it again.
"""

import argparse

from bertjax import backend, train
from bertjax import config as config_lib


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument("--config", required=True, metavar="FILE[:ARG]", help="config file")
    parser.add_argument("--workdir", required=True, help="folder of the run, made where absent")


def run(flags: argparse.Namespace) -> None:
    """Trains, and prints what came out."""
    config = config_lib.load(flags.config, flags.overrides)
    backend.configure(config.dtype)
    heldout = train.train_and_evaluate(config, flags.workdir)
    print(f"step {config.num_steps} in {flags.workdir}")
    for name, value in sorted(heldout.items()):
        print(f"  held-out {name:<14}{value:.4f}")
