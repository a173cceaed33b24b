"""Score a model on held-out data: loss, accuracies, perplexity, beside a unigram model's loss.

Example:
  bertjax evaluate --model=run/ --data=prepared/
"""

import argparse
import json
import os

import jax
from jax.sharding import NamedSharding, PartitionSpec

from bertjax import config as config_lib
from bertjax import errors, evaluate, sharding
from bertjax import experiment as experiment_lib
from bertjax.artifact import artifact, loading
from bertjax.data import store


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument("--model", required=True, help="workdir, step of one, artifact, HF folder")
    parser.add_argument("--data", required=True, help="prepared folder; its held-out split, or all")
    parser.add_argument("--batch_size", type=int, default=64, help="sequences at a time")
    parser.add_argument("--length", type=int, help="tokens a sequence; default: the run's last")
    parser.add_argument("--max_samples", type=int, default=10_000)
    parser.add_argument("--json", help="file to write the numbers to as well")


def run(flags: argparse.Namespace) -> None:
    """Prints the numbers as a table."""
    if flags.json and not os.path.isdir(os.path.dirname(os.path.abspath(flags.json))):
        raise errors.UserError(f"--json={flags.json}: there is no such folder to write to")
    model = loading.load(flags.model)
    config = _config(model, flags)
    config_lib.validate(config)
    dataset = store.open_heldout(flags.data)
    loading.check_data(model, dataset, f"--model={flags.model}")
    experiment = experiment_lib.Experiment(config)
    mesh = sharding.make_mesh()
    experiment_lib.check_mesh(config, mesh)
    phase = config_lib.phases(config)[-1]
    vocabulary = model.tokenizer.vocabulary()

    train_data = store.open_dataset(flags.data, "train")
    with jax.set_mesh(mesh):
        values = evaluate.evaluate(
            experiment.eval_step(),
            jax.device_put(model.params, NamedSharding(mesh, PartitionSpec())),
            experiment.eval_batches(dataset, vocabulary, phase, lambda size: slice(None)),
            mesh,
            phase.batch_size,
            experiment.scales,
            experiment.unigram(train_data, vocabulary),
        )
    step = "" if model.step is None else f", step {model.step}"
    print(f"{flags.model}{step}, on the {dataset.split} split of {flags.data}")
    for name, value in sorted(values.items()):
        print(f"  {name:<16}{value:>10.4f}")
    gain = values["unigram_loss"] - values[next(iter(experiment.scales))]
    print(f"  {gain:.2f} nats a predicted token better than the unigram model")
    if flags.json:
        with open(flags.json, "w") as file:
            json.dump(values, file, indent=2)


def _config(model: artifact.Artifact, flags: argparse.Namespace):
    """The config of the model's run, or, for a model without one, the default of its family."""
    if model.config:
        config = config_lib.from_dict(model.config)
    else:
        config = config_lib.default(model.family)
        config.model.update(model.fields)
        config.objective.pair = "nsp" if "nsp" in model.fields["heads"] else "none"
    last = config_lib.phases(config)[-1]
    config.phase2.num_steps = 0
    config.data.length = flags.length or min(last.length, config.model.max_length)
    config.batch_size, config.micro_batch_size = flags.batch_size, 0
    config.eval.max_samples = flags.max_samples
    return config
