"""Compiles a config's train step with the TPU compiler, ahead of time, without a TPU.

    compiled = compile_step(config, hardware.parse_topology("v5e-16"))

libtpu compiles ahead of time on any x86 machine. It runs in a separate process, whose environment
variables prevent a search for TPUs. This process, `python -m bertjax.planning.compile`, reads a
request as JSON and prints the result as JSON. No arrays are allocated and nothing is executed, so
neither numerics nor speed can be measured.
"""

import dataclasses
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from typing import Any

import jax
import ml_collections
import numpy as np
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

from bertjax import config as config_lib
from bertjax import errors, sharding
from bertjax import experiment as experiment_lib
from bertjax import phases as phases_lib
from bertjax.planning import abstract, cost
from bertjax.runtime import hardware

INSTALL = "pip install 'bertjax[tpu]'"
# With these log levels libtpu prints warnings to stderr, where `warnings` reads them. The
# accelerator type need not match the topology, because the topology is passed by name.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_ENABLE_COMPILATION_CACHE": "false",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_MIN_LOG_LEVEL": "1",
    "TPU_STDERR_LOG_LEVEL": "1",
    "TF_CPP_MIN_LOG_LEVEL": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
TIMEOUT = 1800  # seconds; a large model takes a minute or two
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The compiler's figures for one step on one device; memory in bytes.

    seconds: the time to compile.
    arguments: memory of state and batch. temporaries: memory of activations and of all other
    arrays that are allocated within the step. code: memory of the program.
    peak: the most memory in use at one time. It is less than the sum of the parts, because the new
    state replaces the old one and not all temporaries exist at the same time.
    capacity: the device's memory if the step does not fit, else 0. If it does not fit, peak is the
    memory that the step needs, and the parts are 0.
    error: any other reason why compilation failed; "" if there is none.
    rematerialized: the warnings that a sharded array is assembled completely on every device
    ("involuntary full rematerialization").
    flops, hbm_bytes, collectives, open_loops, silent_kernels: see `cost.Cost`; the body of a
    loop is counted as many times as it runs.
    """

    seconds: float = 0.0
    arguments: int = 0
    temporaries: int = 0
    code: int = 0
    peak: int = 0
    capacity: int = 0
    error: str = ""
    rematerialized: tuple[str, ...] = ()
    flops: int = 0
    hbm_bytes: int = 0
    collectives: tuple[cost.Collective, ...] = ()
    open_loops: int = 0
    silent_kernels: int = 0

    @property
    def fits(self) -> bool:
        """Returns whether the step fits, that is, whether compilation succeeded."""
        return not self.error and not self.capacity

    @property
    def ici_bytes(self) -> int:
        """Returns the bytes that a device sends to others of its slice in a step."""
        return sum(c.sent_bytes for c in self.collectives if not c.is_between_slices)

    @property
    def dcn_bytes(self) -> int:
        """Returns the bytes that a device sends to other slices in a step."""
        return sum(c.sent_bytes for c in self.collectives if c.is_between_slices)


def installed() -> bool:
    """Returns whether the TPU compiler (libtpu) is installed."""
    return importlib.util.find_spec("libtpu") is not None


def compile_step(config: ml_collections.ConfigDict, topology: hardware.Topology) -> Compiled:
    """Compiles the train step of a config with one phase in a child process.

    config: for a phase of a run, the config of the phase. Errors of the compiler, such as too
    little memory, are returned in the result. Raises UserError if libtpu is not installed or the
    config is invalid, and RuntimeError if the child process fails with a Python exception.
    """
    if not installed():
        raise errors.UserError(f"the TPU compiler is not installed: {INSTALL}")
    request = {"config": config.to_dict(), "libtpu": topology.libtpu}
    try:
        child = subprocess.run(
            [sys.executable, "-m", __name__],
            input=json.dumps(request),
            env={**os.environ, **ENVIRONMENT},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        return Compiled(
            error=f"the compiler did not finish within {TIMEOUT / 60:.0f} minutes; the reason may "
            "be that a step needs far too much memory"
        )
    if child.returncode == 1:  # a Python exception; libtpu's own failures end in a signal
        raise RuntimeError(f"python -m {__name__} failed:\n{child.stderr[-4000:]}")
    if child.returncode:
        messages = [line.strip() for line in child.stderr.splitlines() if line.strip()]
        last = messages[-1] if messages else "it printed nothing"
        return Compiled(error=f"the compiler exited with code {child.returncode}: {last}")
    result = json.loads(child.stdout.splitlines()[-1])
    if "user_error" in result:
        raise errors.UserError(result["user_error"])
    collectives = [
        cost.Collective(**{**fields, "axes": tuple(fields["axes"])})
        for fields in result.pop("collectives", [])
    ]
    return Compiled(
        **result, collectives=tuple(collectives), rematerialized=tuple(warnings(child.stderr))
    )


def warnings(stderr: str) -> list[str]:
    """Returns the distinct warnings about full rematerialization in the text of stderr."""
    lines = (line for line in stderr.splitlines() if "nvoluntary full rematerialization" in line)
    messages = (re.sub(r"^.*?nvoluntary", "Involuntary", line).strip() for line in lines)
    return list(dict.fromkeys(messages))


def _compile_request(request: dict[str, Any]) -> dict[str, Any]:
    config = config_lib.from_dict(request["config"])
    libtpu = {k: tuple(v) if isinstance(v, list) else v for k, v in request["libtpu"].items()}
    devices = topologies.get_topology_desc(platform="tpu", **libtpu).devices
    mesh = sharding.make_mesh(config.mesh, devices)
    experiment_lib.check_mesh(config, mesh)
    experiment = abstract.experiment(config, "tpu")
    (phase,) = phases_lib.of(config)
    start = time.perf_counter()
    with jax.set_mesh(mesh):
        arguments = step_arguments(experiment, phase, mesh)
        try:
            compiled = experiment.train_step(phase, mesh).lower(*arguments).compile()
        except jax.errors.JaxRuntimeError as error:
            return {"seconds": time.perf_counter() - start, **error_fields(str(error))}
    seconds = time.perf_counter() - start
    memory = compiled.memory_analysis()
    step_cost = cost.of_text(compiled.as_text(), dict(mesh.shape))
    return {
        "seconds": seconds,
        "arguments": memory.argument_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "code": memory.generated_code_size_in_bytes,
        "peak": memory.peak_memory_in_bytes + memory.generated_code_size_in_bytes,
        "flops": step_cost.flops,
        "hbm_bytes": step_cost.hbm_bytes,
        "collectives": [dataclasses.asdict(collective) for collective in step_cost.collectives()],
        "open_loops": step_cost.open_loops,
        "silent_kernels": step_cost.silent_kernels,
    }


def step_arguments(
    experiment: experiment_lib.Experiment, phase: phases_lib.Phase, mesh: jax.sharding.Mesh
) -> tuple[Any, dict[str, Any], dict[str, Any], jax.ShapeDtypeStruct]:
    """Returns the arguments of the train step as shapes, sharded as in training.

    These are state, batch, parameters of frozen models, and bytes of each token.
    """
    batch_sharding = sharding.batch_sharding(mesh)
    batch = jax.tree.map(
        lambda leaf: _with_sharding(leaf, batch_sharding),
        abstract.batch(experiment, phase.batch_size, phase.length),
    )
    frozen = {"params": abstract.frozen_params(experiment)}
    frozen = jax.tree.map(_with_sharding, frozen, sharding.state_shardings(mesh, frozen))
    token_bytes = jax.ShapeDtypeStruct((experiment.config.model.vocab_size,), np.float32)
    token_bytes = _with_sharding(token_bytes, NamedSharding(mesh, PartitionSpec()))
    return experiment.abstract_state(mesh), batch, frozen["params"], token_bytes


def _with_sharding(leaf: jax.ShapeDtypeStruct, leaf_sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf_sharding)


def error_fields(message: str) -> dict[str, Any]:
    """Converts an error message of the compiler to fields of `Compiled`.

    The fields are peak and capacity if the step does not fit, else error. If it does not fit, the
    message is "Ran out of memory in memory space hbm. Used 21.34G of 15.75G hbm." or, if the
    arguments alone are too large, "the total memory required ... (1.00T) exceeds available HBM
    (15.75G)".
    """
    size = r"([\d.]+)([KMGT]?)"
    match = re.search(f"Used {size} of {size} hbm", message) or re.search(
        rf"memory required.*?\({size}\) exceeds available HBM \({size}\)", message
    )
    if not match:
        return {"error": " ".join(message.split())[:500]}
    used, limit = (
        int(float(number) * _UNITS[unit])
        for number, unit in ((match[1], match[2]), (match[3], match[4]))
    )
    return {"peak": used, "capacity": limit}


def main() -> int:
    """Reads a JSON request from stdin and prints the JSON result as the last line of stdout."""
    try:
        result = _compile_request(json.load(sys.stdin))
    except errors.UserError as error:
        result = {"user_error": str(error)}
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
