"""The trials of benchmarks.faults on commands: kills, write faults, SIGTERM, damaged files."""

import dataclasses
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
from collections.abc import Sequence

from benchmarks import faults_child
from bertjax import errors

TINY = '''"""One layer of width 8: seconds on one core."""
from bertjax import config as config_lib


def get_config(arg=""):
    config = config_lib.default("bert", "tiny")
    config.model.update(vocab_size=104, hidden_size=8, num_layers=1, num_heads=1,
                        intermediate_size=8, max_length=32)
    config.data.path, config.data.length = "prepared", 32
    config.batch_size, config.num_steps, config.log_every = 4, 6, 1
    config.eval.every, config.eval.max_samples = 3, 8
    config.checkpoint.every, config.checkpoint.keep_last = 2, 2
    config.optimizer.warmup_steps, config.dtype = 1, "float32"
    return config
'''
SUBJECTS = ("the cat", "a dog", "my horse", "the sailor", "her brother", "the teacher")
VERBS = ("saw", "found", "carried", "painted", "sold", "wanted")
OBJECTS = ("a red boat", "the small house", "two apples", "an old letter", "the blue lamp")
TUNING = ["--config.batch_size=8", "--config.num_epochs=1", "--config.max_length=24", "--lr=1e-3"]
COMMANDS = {
    "tokenizer": ["tokenizer", "--kind=wordpiece", "--input=corpus.jsonl", "--vocab_size=100",
                  "--output=out"],
    "prepare": ["prepare", "--input=corpus.jsonl", "--tokenizer=tokenizer", "--output=out",
                "--workers=1", "--heldout_fraction=0.1"],
    "pretrain": ["pretrain", "--config=tiny.py", "--workdir=out"],
    "finetune": ["finetune", "--model=artifact", "--task=classification", "--data=tsv",
                 "--output=out", *TUNING],
    "export": ["export", "--model=run", "--output=out"],
    "import": ["import", "--input=hf", "--output=out"],
}  # fmt: skip
# name -> (folder to damage, command that reads it, whether every change must be detected).
DAMAGED = {
    "prepared": ("prepared", ["pretrain", "--config=tiny.py", "--workdir=out"], True),
    "run": ("run", ["predict", "--model=run", "--text=the [MASK] saw two apples"], True),
    "resumed": ("out", COMMANDS["pretrain"], True),
    "artifact": ("artifact", ["predict", "--model=artifact", "--text=the [MASK] saw"], True),
    "inspected": ("artifact", ["inspect", "artifact"], False),
    "tokenizer": ("tokenizer", COMMANDS["prepare"], False),
    "hf": ("hf", COMMANDS["import"], False),
    "tsv": ("tsv", COMMANDS["finetune"], False),
    "tuned": ("tuned", ["predict", "--model=tuned", "--text=the cat saw two apples"], True),
}
TIMED = {"out/report.md"}  # has rounded seconds, which may be equal in two runs by chance
UNREADABLE = "the last checkpoint is not readable"
SLOW = 60.0  # seconds; generous, because trials share the cores


def write_inputs(folder: pathlib.Path, library_plan: faults_child.Plan) -> None:
    """Writes the corpus and every folder that the commands read.

    Raises RuntimeError if one of the commands that make them fails.
    """
    rng = random.Random(0)

    def sentence() -> str:
        return " ".join(rng.choice(part) for part in (SUBJECTS, VERBS, OBJECTS)).capitalize() + "."

    def document() -> str:
        return " ".join(sentence() for _ in range(rng.randrange(5, 20)))

    documents = [json.dumps({"text": document()}) + "\n" for _ in range(120)]
    (folder / "corpus.jsonl").write_text("".join(documents))
    (folder / "tiny.py").write_text(TINY)
    (folder / "tsv").mkdir()
    for split, count in (("train", 32), ("dev", 8), ("test", 8)):
        rows = [f"{sentence()}\t{rng.choice(['good', 'bad'])}\n" for _ in range(count)]
        (folder / "tsv" / f"{split}.tsv").write_text("sentence\tlabel\n" + "".join(rows))
    for name, argv in (
        ("tokenizer", COMMANDS["tokenizer"]),
        ("prepared", COMMANDS["prepare"]),
        ("run", COMMANDS["pretrain"]),
        ("artifact", [*COMMANDS["export"], "--format=artifact"]),
        ("hf", COMMANDS["export"]),
        ("tuned", COMMANDS["finetune"]),
    ):
        argv = [word.replace("=out", f"={name}") for word in argv]
        done = faults_child.command(folder, argv, folder / "log", 300)
        if done.code:
            raise RuntimeError(f"{' '.join(argv)}: exit code {done.code}\n{done.err}")


def digest(folder: pathlib.Path) -> dict[str, str]:
    """Returns {path: hash} of all files and folders below `folder`; "*" replaces random names."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            continue
        name = re.sub(r"[0-9a-f]{32}|(?<=tfevents[.]).*", "*", str(path.relative_to(folder)))
        value = "folder" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
        found[name] = f"{found.get(name, '')}{value}"
    return found


@dataclasses.dataclass(frozen=True)
class Reference:
    """The result of an undisturbed run. volatile: files that differ between two such runs."""

    files: dict[str, str]
    volatile: frozenset[str]
    operations: int
    seconds: float
    out: str
    state: str

    def differs(self, files: dict[str, str]) -> str:
        """Returns which files are missing, left over or unequal; "" if none."""
        parts = [
            f"{what}: {errors.several(sorted(names), 5)}"
            for what, names in (
                ("missing", self.files.keys() - files.keys()),
                ("left over", files.keys() - self.files.keys()),
                ("unequal", {name for name in self.files.keys() & files.keys()
                             if self.files[name] != files[name]} - self.volatile),
            )
            if names
        ]  # fmt: skip
        return "; ".join(parts)


class Bench:
    """A worker's folder; each trial gets a fresh folder with links to the shared `inputs`."""

    def __init__(self, inputs: pathlib.Path, scratch: pathlib.Path, seconds: float):
        self.inputs, self.scratch, self.seconds = inputs.resolve(), scratch.resolve(), seconds
        self.plan = faults_child.plan()
        self._references: dict[str, Reference] = {}
        scratch.mkdir(parents=True, exist_ok=True)

    def trial(self, copied: Sequence[str] = ()) -> pathlib.Path:
        """Returns a fresh folder with links to the inputs, and copies of those in `copied`."""
        folder = self.scratch / "trial"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for path in self.inputs.iterdir():
            if path.name in copied and path.is_dir():
                shutil.copytree(path, folder / path.name)
            elif path.name in copied:
                shutil.copy(path, folder / path.name)
            else:
                (folder / path.name).symlink_to(path)
        return folder

    def run(self, folder: pathlib.Path, argv: Sequence[str], limit: float = 0, **options):
        """Runs a command in `folder`; see `faults_child.call`."""
        return faults_child.command(
            folder, list(argv), self.scratch / "log", limit or self.seconds, **options
        )

    def state(self, folder: pathlib.Path) -> str:
        """Returns a hash of all arrays of the last checkpoint in out/; "" if out/ is not a run."""
        if not (folder / "out" / "checkpoints").is_dir():
            return ""

        def show() -> int:
            from benchmarks import exact_resume

            os.chdir(folder)
            total = hashlib.sha256()
            for name, array in sorted(exact_resume.state(pathlib.Path("out")).items()):
                total.update(name.encode() + array.tobytes())
            print(total.hexdigest())
            return 0

        done = faults_child.call(show, self.scratch / "state", SLOW)
        return done.out if done.code == 0 else f"{UNREADABLE}: {done.err[-300:]}"

    def reference(self, argv: Sequence[str]) -> Reference:
        """Returns the result of the undisturbed command (cached), which is run twice."""
        name = " ".join(argv)
        if name not in self._references:
            ends = []
            for _ in range(2):
                folder = self.trial()
                faults = (self.plan, "count", 0, folder)
                done = self.run(folder, argv, 300, faults=faults)
                if done.complaint(0):
                    raise RuntimeError(f"{name}, undisturbed: {done.complaint(0)}\n{done.err}")
                ends.append((digest(folder), done, self.plan.count))
            (files, _, count), (again, done, _) = ends
            volatile = {path for path in files if files[path] != again.get(path)} | TIMED
            state = self.state(folder)
            if state.startswith(UNREADABLE):
                raise RuntimeError(state)
            self._references[name] = Reference(
                files, frozenset(volatile), count, done.seconds, done.out, state
            )
        return self._references[name]

    def _limit(self, reference: Reference) -> float:
        return self.seconds + 2 * reference.seconds

    def _again(self, folder: pathlib.Path, argv: Sequence[str], reference: Reference) -> str:
        """Runs the command again, undisturbed; returns how its result differs from `reference`."""
        done = self.run(folder, argv, self._limit(reference))
        wrong = done.complaint(0)
        return f"again: {wrong}" if wrong else self._end(folder, reference)

    def _end(self, folder: pathlib.Path, reference: Reference) -> str:
        wrong = reference.differs(digest(folder))
        if not wrong and reference.state:
            wrong = self._state_differs(folder, reference)
        return wrong

    def _state_differs(self, folder: pathlib.Path, reference: Reference) -> str:
        state = self.state(folder)
        if state.startswith(UNREADABLE):
            return state
        return "" if state == reference.state else "the last checkpoint's arrays are unequal"

    def kill(self, name: str, rng: random.Random) -> tuple[str, str]:
        """Kills a command at a random file operation, runs it again; returns (what, complaint)."""
        argv = COMMANDS[name]
        reference, folder = self.reference(argv), self.trial()
        number = rng.randrange(reference.operations)
        faults = (self.plan, "kill", number, folder)
        done = self.run(folder, argv, self._limit(reference), faults=faults)
        what = f"kill at operation {number} of {reference.operations}"
        if done.code not in (-9, 0):
            return what, done.complaint(-9, 0)
        return what, self._again(folder, argv, reference)

    def fault(self, name: str, rng: random.Random) -> tuple[str, str]:
        """Lets one file operation of a command fail, then runs it again: (what, complaint)."""
        argv = COMMANDS[name]
        reference, folder = self.reference(argv), self.trial()
        number = rng.randrange(reference.operations)
        mode = rng.choice(["no space", "io error", "short write"])
        faults = (self.plan, mode, number, folder)
        done = self.run(folder, argv, self._limit(reference), faults=faults)
        what = f"{mode} at operation {number} of {reference.operations}"
        wrong = done.complaint(0, errors.EXIT_BAD_INPUT, errors.EXIT_RESTART)
        if wrong:
            return what, wrong
        if done.code == 0:
            wrong = self._end(folder, reference)
            return what, f"exit code 0, but {wrong}" if wrong else ""
        return what, self._again(folder, argv, reference)

    def sigterm(self, name: str, rng: random.Random) -> tuple[str, str]:
        """Sends SIGTERM at a random moment, runs the command again; returns (what, complaint)."""
        argv = COMMANDS[name]
        reference, folder = self.reference(argv), self.trial()
        moment = rng.uniform(0.02, 1) * reference.seconds
        done = self.run(folder, argv, self._limit(reference), sigterm_after=moment)
        what = f"SIGTERM after {moment:.2f} s"
        wrong = done.complaint(0, -15, 143, errors.EXIT_RESTART, errors.EXIT_INTERRUPTED)
        return what, wrong or self._again(folder, argv, reference)

    def damage(self, name: str, rng: random.Random) -> tuple[str, str]:
        """Damages one file that a command reads; returns (what, complaint)."""
        damaged, argv, checked = DAMAGED[name]
        reference = self.reference(argv)
        folder = self.trial(copied=[damaged])
        if damaged == "out":
            shutil.copytree(self.inputs / "run", folder / "out")
            shutil.rmtree(folder / "out" / "checkpoints" / "6")  # so that steps remain to be done
        files = [path for path in sorted((folder / damaged).rglob("*")) if path.is_file()]
        path = rng.choice(files)
        data = path.read_bytes()
        how, changed = damage_bytes(data, rng)
        what = f"{path.relative_to(folder)}: {how}"
        if changed is None:
            path.unlink()
        else:
            path.write_bytes(changed)
        done = self.run(folder, argv, self._limit(reference))
        wrong = done.complaint(0, errors.EXIT_BAD_INPUT)
        if wrong or done.code or not checked or changed == data:
            return what, wrong
        if done.out != reference.out and not reference.state:
            return what, "silent: another result with exit code 0"
        wrong = self._state_differs(folder, reference) if reference.state else ""
        return what, f"silent: exit code 0, but {wrong}" if wrong else ""


def damage_bytes(data: bytes, rng: random.Random) -> tuple[str, bytes | None]:
    """Returns (what was done, the damaged bytes); bytes of None mean that the file is deleted."""
    at = rng.randrange(len(data)) if data else 0
    length = min(rng.choice([1, 1, 8, 512]), len(data) - at)
    kinds = {
        "flip": lambda: data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :],
        "truncate": lambda: data[:at],
        "zero": lambda: data[:at] + bytes(length) + data[at + length :],
        "noise": lambda: data[:at] + rng.randbytes(length) + data[at + length :],
        "drop": lambda: data[:at] + data[at + length :],
        "append": lambda: data + rng.randbytes(9),
        "empty": lambda: b"",
        "delete": lambda: None,
    }
    kind = rng.choice(list(kinds)) if data else "append"
    return f"{kind} at byte {at} of {len(data)}", kinds[kind]()
