"""Our worker of benchmarks/train_step.py: the package's train step, as `bertjax pretrain` runs it.

python -m benchmarks.train_step_ours FOLDER bfloat16 ours cpu
"""

import json
import os
import pathlib
import sys
from typing import Any

from benchmarks import train_step_worker
from bertjax.runtime import backend


def main() -> None:
    """Serves the train step of the case in FOLDER, for one of our contenders of train_step.py."""
    folder, dtype, name, device = pathlib.Path(sys.argv[1]), *sys.argv[2:]
    os.environ["JAX_PLATFORMS"] = device
    backend.configure(dtype)
    import jax
    import jax.numpy as jnp
    import numpy as np

    from benchmarks import train_step_cases
    from bertjax import experiment, phases, sharding

    case = train_step_cases.Case(**json.loads((folder / "case.json").read_text()))
    config = train_step_cases.config(case, dtype, every_position=name == "every")
    if name == "kernel":
        config.attention = "cudnn"
    run, mesh = experiment.Experiment(config), sharding.make_mesh()
    with np.load(folder / "batch.npz") as file:
        arrays = dict(file)
    if name == "every":
        arrays = train_step_cases.at_every_position(arrays)
    size = train_step_worker.MATMUL[device]
    matrix = jax.random.normal(jax.random.key(0), (size, size), dtype)
    product = jax.jit(jnp.matmul)
    facts = {
        "library": f"jax {jax.__version__}",
        "flops": train_step_cases.parts(run)[1],
        "matmul": train_step_worker.peak(
            lambda: product(matrix, matrix).block_until_ready(), size
        ),
    }
    with jax.set_mesh(mesh):
        state: Any = jax.jit(run.init_state)(jax.random.key(0))
        batch = sharding.global_batch(mesh, case.rows, arrays)
        train_step = run.train_step(phases.of(config)[0], mesh)

        def step() -> jax.Array:
            nonlocal state
            state, report = train_step(state, batch)
            return report["loss"]

        def device_memory() -> int:
            return jax.devices()[0].memory_stats()["peak_bytes_in_use"]

        memory = train_step_worker.resident if device == "cpu" else device_memory
        train_step_worker.serve(facts, step, memory)


if __name__ == "__main__":
    main()
