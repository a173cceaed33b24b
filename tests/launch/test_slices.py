"""The scripts of launch/ for several slices, on a fake gcloud."""

import pytest


def test_several_slices_are_one_request_and_one_run(cloud):
    cloud.write_pod(SLICES="2")
    printed = cloud.tpu_vm("create", "--dry-run").stdout
    (create,) = (line.split() for line in printed.splitlines() if "resources create" in line)
    assert {"--node-count=2", "--node-prefix=pod-1", "--accelerator-type=v5litepod-16"} < {*create}
    assert not any(word.startswith("--node-id") for word in create)
    cloud.cue("pretrain", 'echo "step 5/5 of slice $FAKE_SLICE"; sleep 0.5\n')
    seen = cloud.succeed("create", "install", "start", "watch").stdout
    assert "the run is done" in seen and "step 5/5 of slice 0" in seen
    assert "step 5/5 of slice 1" not in seen  # the log of one host
    status = cloud.succeed("status").stdout
    for host in ("slice 0 worker 0", "slice 0 worker 1", "slice 1 worker 0", "slice 1 worker 1"):
        assert f"{host}: done" in status


@pytest.mark.proof
def test_all_slices_are_made_again_after_one_is_preempted(cloud):
    cloud.write_pod(SLICES="2")
    cloud.cue("pretrain", 'if (($(grep -c " create " "$FAKE/calls") < 2)); then sleep 30; fi\n')
    cloud.succeed("create", "install", "start")
    cloud.cue("preempted", "pod-1-1")
    done = cloud.succeed("watch")
    assert "pod-1 is PREEMPTED: restarting, 1 of at most 20 times" in done.stdout
    assert [call for call in cloud.calls() if "create" in call or "delete" in call] == [
        "queued-resources create", "queued-resources delete", "queued-resources create",
    ]  # fmt: skip


def test_a_host_of_several_slices_that_ssh_does_not_reach(cloud):
    cloud.write_pod(SLICES="2")
    cloud.succeed("create")
    cloud.cue("unreachable", "1")
    done = cloud.tpu_vm("install")
    assert "install (copying) failed on worker 1: " in done.stderr
