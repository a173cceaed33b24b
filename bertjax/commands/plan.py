"""Estimate the memory, time and cost of a config on a slice of chips, without the chips.

Example:
  bertjax plan --config=configs/bert_large.py
  bertjax plan --config=configs/bert_large.py --topology=v5p-128 --mesh=fsdp:64 --price=4.2
  bertjax plan --config=configs/t5_3b.py --topology=v5e-256 --search
  bertjax plan --config=configs/modernbert_base.py --topology=2xv5e-256

With libtpu (pip install 'bertjax[tpu]') the TPU compiler compiles the train step for the slice, on
any machine; without libtpu, and for GPUs, all numbers are estimates. No data is needed. A topology
is a Google name (v5e-16, v5p-128; 2xv5e-256 for two slices), a GPU and a number (h100-8), or cpu-8.
--search tries meshes, micro-batch sizes and remat policies.
"""

import argparse
import json
import pathlib

import jax

from bertjax import config_help as config_help_lib
from bertjax.artifact import initial
from bertjax.planning import planned

config_help, config_keys = config_help_lib.of_run, config_help_lib.keys_of_run


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument(
        "--config",
        metavar="FILE[:ARG]",
        help="config file; default: a config made from the model at --config.init_from",
    )
    parser.add_argument("--topology", help="slice to plan for; default: config.topology")
    parser.add_argument("--mesh", help="short form of --config.mesh")
    parser.add_argument("--search", action="store_true", help="find the fastest plan that fits")
    parser.add_argument("--price", type=float, help="price of one chip for one hour")
    parser.add_argument("--json", metavar="FILE", help="file to write all numbers to as well")
    config_help_lib.add_flag(parser)


def run(flags: argparse.Namespace) -> None:
    """Prints the plan, or with --search several plans; writes the numbers to --json if given."""
    jax.config.update("jax_platforms", "cpu")  # a plan needs only shapes, no device
    overrides = dict(flags.overrides)
    if flags.topology:
        overrides["topology"] = flags.topology
    if flags.mesh:
        overrides["mesh"] = flags.mesh
    if flags.print_config:
        config = initial.run_config(flags.config, overrides)
        print("\n".join(config_help_lib.resolved(flags.config or config.init_from, config)))
        return
    result = planned.plan(flags.config, overrides, price=flags.price, is_search=flags.search)
    if flags.json:
        pathlib.Path(flags.json).write_text(json.dumps(result.to_json(), indent=2) + "\n")
    print("\n".join(result.lines()))
