"""A job of real processes: it ends as one, whatever ends one of them. And how a place is found.

The file is the test and, as a script, what each process runs: `PORT PROCESS COUNT FATE FATED`.
"""

import contextlib
import http.server
import os
import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

from bertjax import errors
from bertjax.runtime import distributed, lifeline
from tests.helpers import children

SECONDS = 120  # nothing takes so long
HEARTBEAT = 6


def member(port: str, process: int, count: int, fate: str, fated: int) -> None:
    """Computes with the others for ever; the `fated` process meets its fate at step 3."""
    from jax.experimental import multihost_utils

    place = distributed.Place(f"127.0.0.1:{port}", count, process)
    limits = {
        "heartbeat_seconds": HEARTBEAT if fate == "frozen" else distributed.HEARTBEAT_SECONDS,
        "startup_seconds": 2 if fate == "late" else distributed.STARTUP_SECONDS,
    }
    if fate == "late" and process == fated:
        return
    with distributed.job(place, restart_hint=lambda: "from step 0", **limits):
        for step in range(10**9):
            multihost_utils.sync_global_devices(str(step))
            if step == 3:
                print("steps", flush=True)
                if process == fated:
                    meet(fate)


def meet(fate: str) -> None:
    if fate == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fate == "frozen":
        os.kill(os.getpid(), signal.SIGSTOP)
    if fate == "bad input":
        raise errors.UserError("no such file")
    if fate == "bug":
        raise ZeroDivisionError("of mine")


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@contextlib.contextmanager
def members(count, fate, fated):
    """The processes of a job, killed at the end if they are still there."""
    command = [sys.executable, __file__, free_port()]
    started = [
        subprocess.Popen(
            [*command, str(process), str(count), fate, str(fated)],
            env=children.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for process in range(count)
    ]  # fmt: skip
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    ("count", "fated", "fate", "code", "said"),
    [
        (3, 1, "killed", 75, "process 1 of 3 has died: from step 0"),
        (2, 0, "killed", 75, "process 0 of 2 has died: from step 0"),
        (2, 1, "frozen", 75, f"process 1 of 2 has not responded for {HEARTBEAT} s: from step 0"),
        (3, 2, "bad input", 2, "process 2 of 3 stopped: no such file"),
        (2, 0, "bug", 1, "process 0 of 2 stopped: ZeroDivisionError: of mine"),
        (2, 1, "late", 75, "not all processes of the job connected within 2 s: from step 0"),
    ],
)
def test_the_end_of_one_is_the_end_of_all(count, fated, fate, code, said):
    with members(count, fate, fated) as started:
        for i in set(range(count)) - {fated}:
            _, err = started[i].communicate(timeout=SECONDS)
            lines = [line for line in err.splitlines() if line.startswith("bertjax: ")]
            assert lines == [f"bertjax: process {i}: {said}"], err
            assert started[i].returncode == code
        if fate in ("bad input", "bug"):  # it speaks for itself
            _, err = started[fated].communicate(timeout=SECONDS)
            own = {"bad input": "error: process 2: no such file", "bug": "in process 0 of 2"}
            assert own[fate] in err and started[fated].returncode == code


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_the_coordinator_listens_at_its_own_address(host, monkeypatch):
    with lifeline.listen("localhost", 0)[0] as probe:
        port = probe.getsockname()[1]
    seen = {}
    monkeypatch.setattr(distributed.jax.distributed, "initialize", lambda **kw: seen.update(kw))
    distributed.initialize(distributed.Place(f"{host}:{port}", 2, 0), 1, 1)
    assert seen["coordinator_bind_address"] == f"{host}:{port}"
    distributed.initialize(distributed.Place(f"192.0.2.1:{port}", 2, 0), 1, 1)
    assert seen["coordinator_bind_address"] is None, "not an address of this machine"


def test_a_place_is_all_three_flags_or_none():
    assert distributed.place(None, None, None) is None
    assert distributed.place("10.0.0.2:8476", 4, 0) == distributed.Place("10.0.0.2:8476", 4, 0)
    with pytest.raises(errors.UserError, match=r"^--num_processes and --process_id: not set; a"):
        distributed.place("10.0.0.2:8476", None, None)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (("localhost", 2, 0), r"--coordinator=localhost: must be the HOST:PORT"),
        ((":8476", 2, 0), r"--coordinator=:8476: must be the HOST:PORT"),
        (("h:99999", 2, 0), r"--coordinator=h:99999: must be the HOST:PORT"),
        (("h:8\u00b2", 2, 0), r"must be the HOST:PORT"),
        (("a b:1", 2, 0), r"must be the HOST:PORT"),
        (("h\0:1", 2, 0), r"must be the HOST:PORT"),
        (("h:1", 0, 0), r"--num_processes=0: must be 1 or more"),
        (("h:1", 4, 4), r"--process_id=4: must be between 0 and 3"),
    ],
)
def test_an_impossible_place_names_its_flag(where, message):
    with pytest.raises(errors.UserError, match=message):
        distributed.Place(*where)


def test_a_port_that_is_taken_is_named():
    with lifeline.listen("127.0.0.1", 0)[0] as taken:
        coordinator = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(errors.UserError, match=rf"{coordinator}.*Address already in use"):
            distributed.initialize(distributed.Place(coordinator, 2, 0), 1, 1)


@pytest.fixture
def tpu_host(monkeypatch):
    monkeypatch.setattr(distributed, "_has_tpu", lambda: True)
    for name in ("JAX_PLATFORMS", "TPU_SKIP_MDS_QUERY", "TPU_PROCESS_ADDRESSES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("TPU_WORKER_HOSTNAMES", raising=False)
    monkeypatch.setenv("GCE_METADATA_IP", "127.0.0.1:1")  # nobody answers


@pytest.mark.parametrize(("hosts", "several"), [("a,b", True), ("a", False)])
def test_gke_tells_the_hosts_of_a_slice(tpu_host, monkeypatch, hosts, several):
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", hosts)
    assert distributed.on_several_hosts() == several
    monkeypatch.setenv("MEGASCALE_NUM_SLICES", "2")
    assert distributed.on_several_hosts()
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert not distributed.on_several_hosts()


@pytest.mark.parametrize(
    ("endpoints", "slices", "several"),
    [
        ("unknown:unknown:10.0.0.2,unknown:unknown:10.0.0.3", 1, True),
        ("h:h:10.0.0.2", 1, False),
        ("h:h:10.0.0.2", 2, True),
    ],
)
def test_the_metadata_server_tells_the_hosts_of_slices(
    tpu_host, monkeypatch, endpoints, slices, several
):
    asked = []
    answers = {
        "worker-network-endpoints": endpoints,
        "tpu-env": f"ZONE: 'z'\nMEGASCALE_NUM_SLICES: '{slices}'\n",
    }

    class Metadata(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers["Metadata-Flavor"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answers[self.path.split("/")[-1]].encode())

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Metadata) as server:
        thread = threading.Thread(target=lambda: [server.handle_request() for _ in answers])
        thread.start()
        monkeypatch.setenv("GCE_METADATA_IP", f"127.0.0.1:{server.server_port}")
        assert distributed.on_several_hosts() == several
        thread.join()
    folder = "/computeMetadata/v1/instance/attributes"
    assert asked == [(f"{folder}/{name}", "Google") for name in answers]


def test_without_a_tpu_or_an_answer_it_is_one_host(tpu_host, monkeypatch):
    assert not distributed.on_several_hosts()
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "a,b")
    monkeypatch.setattr(distributed, "_has_tpu", lambda: False)
    assert not distributed.on_several_hosts()


def test_a_process_with_other_data_is_named(monkeypatch):
    def gather(digest):  # process 2 has something else
        return np.stack([digest, digest, digest ^ 1])

    monkeypatch.setattr(distributed.jax, "process_count", lambda: 3)
    monkeypatch.setattr(distributed.multihost_utils, "process_allgather", gather)
    with pytest.raises(errors.UserError, match=r"process 2 and process 0 differ in prepared data"):
        distributed.check_same({"prepared data": "abc"})


if __name__ == "__main__":
    try:
        member(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
    except errors.UserError as error:
        print(f"bertjax: error: {error}", file=sys.stderr)
        sys.exit(errors.exit_code(error))
