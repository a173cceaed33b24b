"""A small fixed part of benchmarks/faults.py: strangers, fuzzed inputs, and the injected faults."""

import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import types

import pytest

from benchmarks import faults_child, faults_fuzz

TABLES = (
    "jsonl_corpus", "txt_corpus", "csv_corpus", "tsv", "csv", "jsonl", "conll", "squad", "metrics",
    "blimp",
)  # fmt: skip
WRITE = "import sys; [open(f'{sys.argv[1]}/{n}', 'wb', 0).write(b'12345678') for n in range(3)]"


@pytest.mark.parametrize("seed", range(3))
def test_strangers_do_not_disturb_a_job(seed):
    what, wrong = faults_fuzz.stranger(random.Random(seed))
    assert not wrong, what


@pytest.mark.parametrize("name", TABLES)
def test_fuzzed_inputs_are_read_or_refused(tmp_path, name):
    old = signal.getsignal(signal.SIGALRM)
    progress = tmp_path / "progress"
    bench = types.SimpleNamespace(scratch=tmp_path, inputs=tmp_path)
    try:
        faults_fuzz.read_many(name, "0", 0, 30, bench, progress)
    finally:
        signal.signal(signal.SIGALRM, old)
    rows = {row[0]: row for row in map(json.loads, progress.read_text().splitlines())}
    assert len(rows) == 30
    assert not [row for row in rows.values() if row[2]]


@pytest.mark.skipif(sys.platform != "linux", reason="faults are injected by LD_PRELOAD of Linux")
@pytest.mark.skipif(not shutil.which("gcc"), reason="the interposed library needs gcc")
def test_the_interposed_library_disturbs_the_operation_that_was_chosen(tmp_path, monkeypatch):
    library, shared = tmp_path / "faults.so", tmp_path / "plan"
    faults_child.build(library)
    environment = os.environ | faults_child.environment(library, shared)
    monkeypatch.setenv("FAULTS_PLAN", str(shared))
    plan = faults_child.plan()

    def run(mode: str, number: int) -> tuple[int, str, list[int], pathlib.Path]:
        folder = tmp_path / mode
        folder.mkdir()
        plan.root, plan.at, plan.count, plan.fired = os.fsencode(folder), number, 0, 0
        plan.mode = faults_child.MODES[mode]
        done = subprocess.run(
            [sys.executable, "-c", WRITE, folder], env=environment, capture_output=True,
            text=True, start_new_session=True,
        )  # fmt: skip
        sizes = [path.stat().st_size for path in sorted(folder.iterdir())]
        return done.returncode, done.stderr, sizes, plan.count

    assert run("count", 0) == (0, "", [8, 8, 8], 6)
    assert run("kill", 3)[::2] == (-9, [8, 4]), "half of the second write, and no more"
    code, err, sizes, _ = run("no space", 3)
    assert code == 1 and "No space left" in err and sizes == [8, 0]
    code, err, sizes, _ = run("io error", 2)
    assert code == 1 and "Input/output error" in err and sizes == [8]
    assert run("short write", 3)[::2] == (0, [8, 4, 8])
