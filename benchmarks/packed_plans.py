"""Fine-tuning with packed and with padded rows on TPUs, by their compiler: operations and bytes.

    python -m benchmarks.packed_plans --model=MODEL --data=DATA [--tasks=qnli_part] \\
        [--batch_size=128]

The model has the size of BERT-base; MODEL, a smaller BERT, gives the tokenizer. The tasks are those
of packed_batches.py. The gradients of a step are compiled for each shape of the batches on four
chips of v5e, over which the rows are split. For each shape, prints the steps of an epoch, the
operations and the bytes of a chip, and the milliseconds that a chip needs for each at its peak.
Nothing is executed, and the update of the parameters is left out.
"""

import argparse
import collections
import os
import pathlib
import sys
import tempfile
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies

from benchmarks import packed_batches as tasks
from bertjax import plugins, sharding
from bertjax.artifact import loading
from bertjax.finetuning import batching, job, packed_batches
from bertjax.planning import compile as compile_lib
from bertjax.planning import cost
from bertjax.runtime import hardware

TOPOLOGY = hardware.parse_topology("v5e-4")
CHOICES = {
    "padded": lambda plain, *_: plain,
    "packed": lambda plain, *_: packed_batches.PackedBatches(plain, TOPOLOGY.num_devices, 1),
}


def gradients(made: job.Job, batch: dict[str, np.ndarray], mesh: Any) -> Any:
    """Returns the compiled gradients of a step of BERT-base on the chips of the mesh."""
    sizes = plugins.family(made.family).VARIANTS["base"]
    model = plugins.model(made.family, made.fields | sizes, plugins.compute(made.config, "tpu"))

    def loss(params: Any, batch: dict[str, jax.Array], key: jax.Array) -> jax.Array:
        def apply(part: int = 0, **inputs: Any) -> dict[str, jax.Array]:
            del part  # of the texts, with dropout of its own
            rngs = {"dropout": key}
            return model.apply({"params": params}, **inputs, deterministic=False, rngs=rngs)

        terms = made.task_type.loss(apply, batch)
        return sum(terms[name][0] for name in made.task_type.normalizers(batch))

    params = jax.eval_shape(lambda key: plugins.init_params(model, key), jax.random.key(0))
    shardings = sharding.state_shardings(mesh, {"params": params})["params"]
    of_rows = sharding.batch_sharding(mesh)
    with jax.set_mesh(mesh):
        arguments = (
            jax.tree.map(_with_sharding, params, shardings),
            {name: _with_sharding(x, of_rows) for name, x in batch.items()},
            jax.eval_shape(lambda: jax.random.key(0)),
        )
        return jax.jit(jax.grad(loss)).lower(*arguments).compile()


def _with_sharding(x: Any, of: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=of)


def rows(name: str, kind: str, flags: argparse.Namespace, mesh: Any, folder: pathlib.Path) -> None:
    """Prints a row for each shape of the batches of a task."""
    packed_batches.cheaper = CHOICES[kind]  # type: ignore[assignment]
    config = tasks.recipe_of(name, flags, folder)
    config.batch_size = flags.batch_size
    here = sharding.make_mesh("data:1", jax.devices()[:1])
    with jax.set_mesh(here):
        made = job.make(config, loading.load(flags.model), here)
    counts: collections.Counter[tuple[int, ...]] = collections.Counter()
    batches = {}
    for batch in made.train_batches.epoch(0, 0):
        shape = batch.get("packed_from", batch["input_ids"]).shape
        counts[shape] += 1
        batches[shape] = batch
    for shape, count in sorted(counts.items()):
        text = gradients(made, batches[shape], mesh).as_text()
        found = cost.of_text(text, dict(mesh.shape))
        chip = TOPOLOGY.chip
        times = 1e3 * found.flops / chip.peak_flops, 1e3 * found.hbm_bytes / chip.hbm_bandwidth
        shown = " x ".join(map(str, shape))
        print(f"| {name} | {kind} | {shown} | {count} | {found.flops / 1e9:,.0f} "
              f"| {found.hbm_bytes / 1e9:.2f} | {times[0]:.1f} | {times[1]:.1f} |",
              flush=True)  # fmt: skip


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True, type=pathlib.Path)
    parser.add_argument("--tasks", default="qnli_part,tatoeba_vectors,squad_vectors")
    parser.add_argument("--batch_size", type=int, default=128)
    flags = parser.parse_args()
    if os.environ.get("TPU_SKIP_MDS_QUERY") is None:  # read when libtpu is loaded
        environment = os.environ | compile_lib.ENVIRONMENT
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.packed_plans", *sys.argv[1:]],
                  environment)  # fmt: skip
    flags.dtype = "bfloat16"
    batching._CPU = batching._ACCELERATOR  # the prices of the chips to compile for
    chips = topologies.get_topology_desc(platform="tpu", **TOPOLOGY.libtpu).devices
    mesh = sharding.make_mesh("data:4", chips)
    print("| task | batches | shape | steps | GFLOP | GB | ms, operations | ms, bytes |"
          "\n|---|---|---|---:|---:|---:|---:|---:|")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for name in flags.tasks.split(","):
            for kind in CHOICES:
                rows(name, kind, flags, mesh, pathlib.Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
