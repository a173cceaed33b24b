"""Two processes and one run: they save together, find damage together and stop together.

The file is the test and, as a script, what each process runs: `PORT RANK FOLDER`, one line of JSON
about what the process saw on its standard output.
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

from tests.helpers import children

STATE_SHAPE = (4096, 16)
START = 100


def worker(port: str, rank: int, folder: pathlib.Path) -> dict:
    import jax
    import jax.numpy as jnp
    from jax.experimental import multihost_utils
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    from bertjax import checkpoint, errors
    from bertjax.runtime import signals

    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=rank)
    mesh = jax.make_mesh((4,), ("fsdp",), axis_types=(AxisType.Auto,))
    rows, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("fsdp",), ()))

    def make(step):
        key = jax.random.key(step)
        return {"params": {"kernel": jax.random.normal(key, STATE_SHAPE)}, "rng": key}

    places = {"params": {"kernel": rows}, "rng": whole}
    make_state = jax.jit(make, out_shardings=places)
    target = jax.tree.map(
        lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
        jax.eval_shape(make, 0),
        places,
    )
    seen = {}
    checkpoints = checkpoint.Checkpoints(folder, keep_last=2, keep_best=0)
    for step in (1, 2, 3):
        checkpoints.save(step, make_state(step), {"step": step}, None)
    state, _ = checkpoints.restore(target)
    mine = [jnp.stack(x["params"]["kernel"].addressable_data(0)) for x in (state, make_state(3))]
    seen["same"] = bool((mine[0] == mine[1]).all())

    if rank == 0:
        path = max((folder / "3" / "state").rglob("d/*"), key=lambda path: path.stat().st_size)
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    multihost_utils.sync_global_devices("damaged")
    try:
        checkpoints.restore(target)
    except errors.UserError as error:
        seen["damage"] = str(error)

    with signals.StopSignals() as stop:
        for step in range(START, sys.maxsize):
            state = jax.block_until_ready(make_state(step))
            if step == START + 5 and rank == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            if stop.reached(step):
                checkpoints.save(step, state, {"step": step}, None)
                break
    checkpoints.close()
    seen |= {"stopped": step, "signal": stop.requested, "steps": checkpoints.steps()}
    return seen


def test_two_processes_save_find_damage_and_stop_together(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, __file__, port]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path)],
            env=children.environment(2), stdout=-1, stderr=-1, text=True,
        )
        for rank in (0, 1)
    ]
    try:
        outputs = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()  # jax.distributed catches SIGTERM
    for process, (_, stderr) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, stderr[-3000:]
    first, second = (json.loads(stdout.splitlines()[-1]) for stdout, _ in outputs)
    assert first["same"] and second["same"]
    for seen in (first, second):
        assert f"{tmp_path / '3'} is damaged" in seen["damage"] and "step 2" in seen["damage"]
    assert first["stopped"] == second["stopped"] > START + 5
    assert first["steps"] == second["steps"] == [3, first["stopped"]]
    assert first["signal"] == second["signal"] == "SIGTERM"


if __name__ == "__main__":
    print(json.dumps(worker(sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3]))), flush=True)
    os._exit(0)  # the shutdown of jax.distributed waits for the other process
