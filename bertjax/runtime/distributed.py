"""Joins a job of several processes, and ends all of them if one dies.

    with distributed.job(distributed.Place("10.0.0.2:8476", 4, 2), restart_hint=lambda: "..."):
        train.train_and_evaluate(config, workdir)

Inside `job` no process waits for ever. If a process dies or stops with an error, all others exit
within seconds. Each prints one line, and its exit code shows whether a restart helps. The failure
of a whole host is detected after `heartbeat_seconds`.

The processes share a random token, which process 0 publishes in the key-value store of JAX's
coordination service; clients without it cannot disturb the lifeline. NOTE: JAX's service itself
accepts any client that reaches the coordinator's port, so that port belongs in a private network.
"""

import atexit
import contextlib
import dataclasses
import glob
import hashlib
import json
import os
import re
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from etils import epath
from jax._src import distributed as jax_distributed  # the client's key-value store is not public
from jax.experimental import multihost_utils

from bertjax import errors
from bertjax.runtime import lifeline

HEARTBEAT_SECONDS = 100  # JAX's default
STARTUP_SECONDS = 300  # limit for all processes to connect
SHUTDOWN_SECONDS = 60  # limit for the other processes to shut down after the first one

_COORDINATOR = re.compile(r"([-.\w]+|\[[:.%\w]+\]):[0-9]{1,5}", re.ASCII)
_LIFELINE = "bertjax/lifeline"  # key of the lifeline's port and token in the key-value store
_GRACE_SECONDS = 5  # wait after a failure, since the death of a process may have caused it
_EXIT_SECONDS = 10  # limit in seconds for the last messages before an exit
# https://docs.cloud.google.com/compute/docs/metadata/overview; JAX reads the same attributes.
_METADATA_URL = "http://{host}/computeMetadata/v1/instance/attributes/{name}"


@dataclasses.dataclass(frozen=True)
class Place:
    """A process's position in its job. Raises UserError if a value is invalid."""

    coordinator: str  # HOST:PORT; process 0 opens the port, the others connect to it
    num_processes: int
    process_id: int

    def __post_init__(self):
        if not _COORDINATOR.fullmatch(self.coordinator) or not (
            0 < _host_and_port(self.coordinator)[1] < 2**16
        ):
            raise errors.UserError(
                f"--coordinator={self.coordinator}: must be the HOST:PORT of process 0"
            )
        if self.num_processes < 1:
            raise errors.UserError(f"--num_processes={self.num_processes}: must be 1 or more")
        if not 0 <= self.process_id < self.num_processes:
            raise errors.UserError(
                f"--process_id={self.process_id}: must be between 0 and {self.num_processes - 1}, "
                "--num_processes minus one"
            )


def place(
    coordinator: str | None, num_processes: int | None, process_id: int | None
) -> Place | None:
    """Returns the place given by the three flags; None if all are None.

    Raises UserError if only some of the flags are given.
    """
    flags = {"coordinator": coordinator, "num_processes": num_processes, "process_id": process_id}
    missing = [f"--{name}" for name, value in flags.items() if value is None]
    if len(missing) == len(flags):
        return None
    if missing:
        raise errors.UserError(f"{' and '.join(missing)}: not set; a job of several processes "
                               "needs --coordinator, --num_processes and --process_id")  # fmt: skip
    return Place(**flags)


def on_several_hosts() -> bool:
    """Returns whether this machine is one of several hosts of TPU slices of Google Cloud.

    The hosts may belong to one slice or to several. Reads environment variables, which GKE sets,
    or, if they are not set, the metadata server of a TPU VM. The server is not queried if there is
    no TPU or if JAX_PLATFORMS excludes TPUs.
    """
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if not _has_tpu() or (platforms and "tpu" not in platforms):
        return False
    if os.environ.get("MEGASCALE_NUM_SLICES", "1") != "1":
        return True
    for name in ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES"):
        if name in os.environ:
            return "," in os.environ[name]
    if "TPU_SKIP_MDS_QUERY" in os.environ:
        return False
    hosts, settings = _tpu_attribute("worker-network-endpoints"), _tpu_attribute("tpu-env")
    slices = re.search(r"^MEGASCALE_NUM_SLICES: *'?(\d+)", settings, re.MULTILINE)
    return "," in hosts or (slices is not None and int(slices[1]) > 1)


def _tpu_attribute(name: str) -> str:
    """Returns an attribute from the metadata server; "" if the server does not answer."""
    host = os.environ.get("GCE_METADATA_IP", "metadata.google.internal")
    url = _METADATA_URL.format(host=host, name=name)
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.read().decode()
    except OSError:
        return ""


def _has_tpu() -> bool:
    # tpu-info lists these device files: https://docs.cloud.google.com/tpu/docs/tpu-info-cli.
    return bool(glob.glob("/dev/accel[0-9]*") or glob.glob("/dev/vfio/[0-9]*"))


def initialize(where: Place | None, heartbeat_seconds: int, startup_seconds: int) -> None:
    """Joins the job at `where`. If it is None, JAX finds the place in TPU metadata or SLURM.

    Raises UserError if JAX finds no place, or if the port is taken. NOTE: must be called before a
    device is used. JAX aborts the process if not all processes start in time or if one of them
    dies. Its time limits are longer than those of `job`, so that `job` exits first, with a one-line
    message.
    """
    arguments: dict[str, Any] = {}
    if where is not None:
        arguments = {
            "coordinator_address": where.coordinator,
            "num_processes": where.num_processes,
            "process_id": where.process_id,
            "cluster_detection_method": "deactivate",
            "coordinator_bind_address": _bind_address(where),
        }
    try:
        jax.distributed.initialize(
            **arguments,
            initialization_timeout=startup_seconds + 2 * _EXIT_SECONDS,
            heartbeat_timeout_seconds=heartbeat_seconds + 2 * _EXIT_SECONDS,
            shutdown_timeout_seconds=SHUTDOWN_SECONDS,
        )
    except ValueError as error:
        raise errors.UserError(
            "--distributed: neither TPU metadata nor SLURM identifies this process: give "
            "--coordinator=HOST:PORT, --num_processes=N and --process_id=I"
        ) from error


def _bind_address(where: Place) -> str | None:
    """Returns the address at which JAX's service should listen; None means all addresses.

    Only process 0 runs the service; the other processes get None.
    Raises UserError if the port is taken, because JAX itself would end in a segmentation fault.
    """
    if where.process_id != 0:
        return None
    host, port = _host_and_port(where.coordinator)
    try:
        servers = lifeline.listen(host, port)
    except OSError as error:
        raise errors.UserError(
            f"--coordinator={where.coordinator}: process 0 cannot open the port "
            f"({error.strerror}): use a free port"
        ) from error
    everywhere = any(server.getsockname()[0] in ("::", "0.0.0.0") for server in servers)
    for server in servers:
        server.close()
    return None if everywhere else where.coordinator


def _host_and_port(coordinator: str) -> tuple[str, int]:
    host, _, port = coordinator.rpartition(":")
    return host.strip("[]"), int(port)


@contextlib.contextmanager
def job(
    where: Place | None,
    *,
    restart_hint: Callable[[], str],
    heartbeat_seconds: int = HEARTBEAT_SECONDS,
    startup_seconds: int = STARTUP_SECONDS,
) -> Iterator[None]:
    """Joins the job like `initialize`; if a process dies or fails in the block, all exit.

    If not all processes start in time, those that have started exit with a one-line message and
    EXIT_RESTART. restart_hint: called when a process has died; returns a description of what a
    restart does, for the message.
    """
    end = _end_callback(restart_hint)
    message = f"not all processes of the job connected within {startup_seconds} s"
    timer = threading.Timer(startup_seconds, end, (message, errors.EXIT_RESTART))
    timer.daemon = True
    timer.start()
    try:
        initialize(where, heartbeat_seconds, startup_seconds)
    except BaseException:
        timer.cancel()
        raise
    state = jax_distributed.global_state
    process_id, count = state.process_id, state.num_processes
    line = lifeline.Lifeline(process_id, count, heartbeat_timeout=heartbeat_seconds, on_end=end)
    try:
        _connect(line, startup_seconds, end)
        timer.cancel()
        yield
    except BaseException as error:
        timer.cancel()
        error.add_note(f"in process {process_id} of {count}")
        code, text = errors.exit_code(error), errors.one_line(error) or type(error).__name__
        if isinstance(error, errors.Preempted | errors.Interrupted):
            line.leave()  # all processes stop at this step: JAX's shutdown waits for all of them
        else:
            if code == errors.EXIT_BUG:
                line.ended.wait(_GRACE_SECONDS)
                text = f"{type(error).__name__}: {text}"
            if not line.fail(f"process {process_id} of {count} stopped: {text}", code):
                threading.Event().wait()  # the lifeline's thread ends this process
            _exit_on_timeout(code)
            atexit.register(_exit, line, code)  # because JAX's shutdown would wait for the others
        if code in (errors.EXIT_BUG, errors.EXIT_INTERRUPTED):
            raise
        kind = errors.Preempted if isinstance(error, errors.Preempted) else errors.UserError
        raise kind(f"process {process_id}: {text}") from error
    else:
        line.leave()


def _connect(line: lifeline.Lifeline, timeout: float, end: Callable[[str, int], None]) -> None:
    state = jax_distributed.global_state
    host, _ = _host_and_port(state.coordinator_address)
    if state.num_processes == 1:
        return
    if state.process_id == 0:
        state.client.key_value_set(_LIFELINE, line.listen(host))
    else:
        address = state.client.blocking_key_value_get(_LIFELINE, int(timeout * 1000))
        try:
            line.connect(host, address, timeout)
        except OSError as error:
            cause = f"process 0 of {state.num_processes} has died"
            end(f"{cause}: its lifeline cannot be reached: {error}", errors.EXIT_RESTART)
    line.wait_for_all(timeout)


def _end_callback(restart_hint: Callable[[], str]) -> Callable[[str, int], None]:
    def end(text: str, code: int) -> None:
        _exit_on_timeout(code)
        process_id = jax_distributed.global_state.process_id
        try:
            hint = f": {restart_hint()}" if code == errors.EXIT_RESTART else ""
            errors.tell(f"process {process_id}: {text}{hint}")
        finally:
            os._exit(code)

    return end


def _exit_on_timeout(code: int) -> None:
    """Makes this process exit after `_EXIT_SECONDS` seconds, even if something else hangs."""
    timer = threading.Timer(_EXIT_SECONDS, os._exit, (code,))
    timer.daemon = True
    timer.start()


def _exit(line: lifeline.Lifeline, code: int) -> None:
    line.linger()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def check_same(values: Mapping[str, Any]) -> None:
    """Raises UserError, in every process, unless all processes have the same `values`.

    values: {name for the error message: JSON value}. Each host has its own disk, so without this
    check a host could train on different data from the other hosts.
    """
    if jax.process_count() == 1:
        return
    for name, value in values.items():
        digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()
        all_digests = multihost_utils.process_allgather(np.frombuffer(digest, np.uint8))
        mismatches = np.flatnonzero((all_digests != all_digests[0]).any(axis=1))
        if mismatches.size:
            raise errors.UserError(
                f"process {mismatches[0]} and process 0 differ in {name}: all processes need the "
                "same"
            )


def wait(label: str) -> None:
    """Waits until all processes have called this function with the same `label`, any text."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(label)


def of_first(values: Mapping[str, float]) -> dict[str, float]:
    """Returns process 0's values, so that all processes make the same decisions."""
    if jax.process_count() == 1:
        return dict(values)
    first_values = multihost_utils.broadcast_one_to_all(np.array(list(values.values()), np.float32))
    return dict(zip(values, first_values.tolist(), strict=True))


def check_shared(path: os.PathLike, flag: str = "workdir") -> None:
    """Raises UserError, in every process, unless all of them can see the file at `path`.

    Process 0 must have written the file before this call. flag: the command-line flag that sets the
    file's folder; the error message names it.
    """
    if jax.process_count() == 1:
        return
    wait("written")
    visible = multihost_utils.process_allgather(np.array(epath.Path(path).exists()))
    if not visible.all():
        raise errors.UserError(
            f"process {np.flatnonzero(~visible)[0]} cannot see {os.fspath(path)}, which process 0 "
            f"wrote: use a --{flag} that all hosts share, such as a bucket (gs://...)"
        )
