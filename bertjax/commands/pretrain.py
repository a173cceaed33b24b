"""Train a model on prepared data, or resume a run.

Example:
  bertjax pretrain --config=configs/bert_base.py --workdir=run/ \\
      --config.data.path=prepared/ --config.batch_size=256

Continue the pretraining of any model, here a Hugging Face folder, on other text:
  bertjax prepare --tokenizer=bert-base-uncased/ --input='papers/*.jsonl' --output=prepared/
  bertjax pretrain --config.init_from=bert-base-uncased/ --config.data.path=prepared/ \\
      --workdir=run/
Without --config, the config is made from the model at --config.init_from: its family, its sizes and
its objective, with the steps and rates of arXiv 2004.10964 (--print_config shows all values).

--config.KEY=VALUE overrides a key of the config. The keys are listed below; with --config=FILE,
--help lists them with the values of that file, and --print_config prints the config that the
command would run and where it differs from the defaults. FILE:smoke shrinks a config to a run of
seconds on a CPU. After a stop, run the same command again to resume. A finished run has a report
for a browser, WORKDIR/report.html. Exit code 75 means that the run was preempted or that another
process of the job died: run the same command again.

To run a job of several processes, run the same command on every host, with --distributed if TPU
metadata or SLURM defines the processes, otherwise with three flags:
  bertjax pretrain ... --coordinator=10.0.0.2:8476 --num_processes=4 --process_id=2
The hosts of a TPU slice need no flag. All hosts must see the same --workdir.
"""

import argparse

import jax

from bertjax import config_help as config_help_lib
from bertjax import job_flags, profiler, run_starts, trackers, train
from bertjax import workdir as workdir_lib
from bertjax.artifact import initial
from bertjax.reporting import pretraining
from bertjax.runtime import backend

config_help, config_keys = config_help_lib.of_run, config_help_lib.keys_of_run


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument(
        "--config",
        metavar="FILE[:ARG]",
        help="config file; default: a config made from the model at --config.init_from",
    )
    parser.add_argument("--workdir", required=True, help="folder of the run; created if absent")
    parser.add_argument(
        "--profile",
        metavar="FIRST:LAST",
        help="steps to trace with jax.profiler, written to WORKDIR/profile by process 0 only; a "
        "resumed run omits steps that ran before",
    )
    parser.add_argument(
        "--branch_from",
        metavar="RUN/checkpoints/STEP",
        help="start a new run from this checkpoint of another run, with its optimizer state and "
        "position in the data; the config may differ in what comes after its step",
    )
    trackers.add_flag(parser)
    job_flags.add(parser)
    config_help_lib.add_flag(parser)


def run(flags: argparse.Namespace) -> None:
    """Trains, and prints the held-out metrics."""
    overrides = trackers.overrides(flags) | flags.overrides
    config = initial.run_config(flags.config, overrides)
    if flags.print_config:
        print("\n".join(config_help_lib.resolved(flags.config or config.init_from, config)))
        return
    origin = run_starts.origin(
        flags.config, flags.workdir, flags.overrides, config, flags.branch_from
    )
    traced_steps = profiler.parse(flags.profile, config.num_steps) if flags.profile else range(0)
    backend.configure(config.dtype)

    def resume_advice() -> str:
        step = workdir_lib.saved_step(flags.workdir)
        return f"run the same command again to resume from step {step or 0}"

    with job_flags.joined(flags, resume_advice):
        heldout = train.train_and_evaluate(
            config, flags.workdir, traced_steps, branch_from=flags.branch_from, origin=origin
        )
        if jax.process_index() == 0:
            samples = int(heldout.pop("samples"))
            print(f"step {config.num_steps} in {flags.workdir}, on {samples:,} held-out samples")
            of_source = ("/loss", "/bits_per_byte")  # the curves have all metrics of each source
            shown = {k: v for k, v in heldout.items() if "/" not in k or k.endswith(of_source)}
            width = max(map(len, shown)) + 2
            for name, value in sorted(shown.items(), key=lambda item: ("/" in item[0], item[0])):
                print(f"  held-out {name:<{width}}{value:.4f}")
    pretraining.write_at_end(flags.workdir)
