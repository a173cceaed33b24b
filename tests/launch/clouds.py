"""A fake gcloud whose hosts are folders: see fake_gcloud.sh."""

import pathlib
import subprocess

from tests.helpers import corpora

ROOT = corpora.ROOT
POD = {
    "PROJECT": "proj", "ZONE": "us-west4-a", "NAME": "pod-1", "ACCELERATOR_TYPE": "v5e-16",
    "CAPACITY": "spot", "BUCKET": "bucket", "CONFIG": "configs/bert_tiny.py:smoke", "WORKDIR": "gs://bucket/run",
    "DATA": "gs://bucket/prepared", "ARGS": '"--config.mesh=fsdp:4,tensor:2 --config.seed=3"',
}  # fmt: skip


class Cloud:
    """A PATH on which gcloud, python3.13 and sudo are fakes; `cue` sets what they do."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder / "fake"
        self.pod = folder / "pod.env"
        bin_ = folder / "bin"
        for path in (self.folder, bin_):
            path.mkdir()
        (bin_ / "gcloud").symlink_to(ROOT / "tests/launch/fake_gcloud.sh")
        (bin_ / "sudo").symlink_to("/bin/false")
        (bin_ / "curl").symlink_to(ROOT / "tests/launch/fake_curl.sh")
        for name in ("python3.13", "python3"):
            (bin_ / name).symlink_to(ROOT / "tests/launch/fake_python.sh")
        self.environment = {
            "PATH": f"{bin_}:/usr/bin:/bin", "FAKE": str(self.folder), "HOME": str(folder),
            "POLL": "0.1", "RESTART_PAUSE": "0.1",
        }  # fmt: skip
        self.write_pod()

    def write_pod(self, **keys: str) -> None:
        self.pod.write_text("".join(f"{key}={value}\n" for key, value in (POD | keys).items()))

    def cue(self, name: str, content: str) -> None:
        (self.folder / name).write_text(content)

    def run(self, script: str, *words: str, **environment: str) -> subprocess.CompletedProcess:
        command = ["bash", ROOT / "launch" / script, *words]
        return subprocess.run(
            command, env=self.environment | environment, capture_output=True, text=True, timeout=60
        )

    def tpu_vm(self, verb: str, *words: str) -> subprocess.CompletedProcess:
        return self.run("tpu_vm.sh", verb, f"--pod={self.pod}", *words)

    def succeed(self, *verbs: str) -> subprocess.CompletedProcess:
        """Runs the verbs one after the other; the last one's output."""
        for verb in verbs:
            done = self.tpu_vm(verb)
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    def calls(self) -> list[str]:
        """The verbs of the calls of gcloud, repetitions left out: "queued-resources create"."""
        verbs = [
            " ".join(line.split()[2:4]) for line in (self.folder / "calls").read_text().splitlines()
        ]
        return [verb for i, verb in enumerate(verbs) if i == 0 or verb != verbs[i - 1]]
