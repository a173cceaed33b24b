"""Prepare on Apache Beam: the bytes of the local run, also when a worker is killed."""

import json
import multiprocessing
import os
import pathlib
import re
import sys

import pytest

from bertjax import __main__, errors
from bertjax.data.prepared import beam, parallel, prepare_unit
from bertjax.data.prepared.filters import Filters
from tests.helpers import corpora, killed_workers, preparing
from tests.helpers.preparing import TEXTS

ROOT = pathlib.Path(__file__).resolve().parents[3]
ONE_PROCESS = {"runner": beam._LOCAL_RUNNER, "direct_running_mode": "in_memory"}


@pytest.fixture(scope="module")
def tok_path(tmp_path_factory) -> str:
    return preparing.train_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def corpus_path(tmp_path) -> str:
    return os.fspath(corpora.write_jsonl(tmp_path / "corpus.jsonl", [*TEXTS, TEXTS[7]]))


def _contents(folder: pathlib.Path) -> dict[str, bytes]:
    return {
        os.fspath(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.proof
def test_several_processes_and_one_killed_give_the_bytes_of_the_local_run(
    tmp_path, corpus_path, tok_path, monkeypatch
):
    pytest.importorskip("apache_beam")
    monkeypatch.setenv("PYTHONPATH", os.fspath(ROOT))
    preparing.run(corpus_path, tok_path, tmp_path / "local")
    out = tmp_path / "beam"
    with monkeypatch.context() as patch:
        patch.setattr(prepare_unit, "make_work", killed_workers.make_work)
        with pytest.raises(errors.UserError, match="a worker process of Beam died") as caught:
            preparing.run(corpus_path, tok_path, out, runner=beam.runner({}, 2))
    assert "\n" not in str(caught.value)
    worker = int((tmp_path / killed_workers.FILE).read_text())
    assert worker != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
    assert not (out / "manifest.json").exists()
    finished = {
        out / shard["file"]
        for file in out.glob("units/*.json")
        for shard in json.loads(file.read_text())["splits"].values()
        if shard
    }
    times = {path: path.stat().st_mtime_ns for path in finished}
    preparing.run(corpus_path, tok_path, out, runner=beam.runner({}, 2))
    assert _contents(out) == _contents(tmp_path / "local")
    assert {path: path.stat().st_mtime_ns for path in finished} == times


def test_the_command_names_bad_input(tmp_path, corpus_path, tok_path, capfd, monkeypatch):
    pytest.importorskip("apache_beam")
    monkeypatch.delenv("BERTJAX_TRACEBACK", raising=False)
    lines = pathlib.Path(corpus_path).read_text().splitlines()
    lines[250] = json.dumps({"title": "no text"})
    pathlib.Path(corpus_path).write_text("\n".join(lines))
    flags = ["prepare", f"--input={corpus_path}", f"--tokenizer={tok_path}"]
    flags += [f"--output={tmp_path / 'out'}", "--runner=beam"]
    flags += [f"--beam.{name}={value}" for name, value in ONE_PROCESS.items()]
    assert __main__.main(flags) == errors.EXIT_BAD_INPUT
    error = [line for line in capfd.readouterr().err.splitlines() if "error" in line]
    assert error == [
        f"bertjax: error: {corpus_path} line 251: has no field 'text' (its fields: title); "
        "give one of them as --text_field; or leave it out with --on_error=skip"
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--runner=beam", "--beam.projekt=a"], "--beam.projekt: is not an option of Apache Beam; "
         "did you mean project?"),
        (["--runner=beam", "--beam.streaming=false"], "--beam.streaming=false: must be true; to"),
        (["--runner=beam", "--beam.number_of_worker_harness_threads=two"],
         "--beam.number_of_worker_harness_threads=two: invalid int value: 'two'"),
        (["--runner=beam", "--beam.help=true"], "--beam.help: is not an option of Apache Beam"),
        (["--beam.project=a"], "--beam.project needs --runner=beam"),
        (["--runner=beam", "--beam.project"], "--beam.project needs a value"),
        (["--runner=spark"], "invalid choice: 'spark'"),
        (["--runner=beam", "--workers=0"], "--workers=0: must be 1 or more"),
    ],
)  # fmt: skip
def test_impossible_flags_are_one_line(
    tmp_path, corpus_path, tok_path, capsys, monkeypatch, flags, message
):
    if "--runner=beam" in flags:
        pytest.importorskip("apache_beam")
    common = [f"--input={corpus_path}", f"--tokenizer={tok_path}", f"--output={tmp_path / 'out'}"]
    monkeypatch.setattr(multiprocessing, "get_context", None)  # no process is started
    assert __main__.main(["prepare", *common, *flags]) == errors.EXIT_BAD_INPUT
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_options_of_the_documentation_are_known():
    pytest.importorskip("apache_beam")
    text = (ROOT / "docs" / "tutorials" / "pretrainer.md").read_text()
    options = dict(re.findall(r"--beam\.([a-z_]+)=([^\s`]*)", text))
    assert len(options) > 8 and "machine_type" in options
    beam.runner(options | {"direct_num_workers": "1"}, 1)


def test_beam_must_be_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    monkeypatch.setitem(sys.modules, "apache_beam.options", None)
    with pytest.raises(errors.UserError, match=r"pip install 'bertjax\[beam\]'"):
        beam.runner({}, 1)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Traceback\n  a.py\nbertjax.errors.UserError: a.txt line 3: bad [1]; do this\n",
         "a.txt line 3: bad [1]; do this"),
        ("RuntimeError: bertjax.errors.UserError: a.txt: bad; do this [while running 'process']\n",
         "a.txt: bad; do this"),
        ("Traceback\n  a.py\nOSError: no space left\n", "the Beam pipeline failed (OSError: no "
         "space left); run the same command again to resume"),
    ],
)  # fmt: skip
def test_errors_of_workers_are_one_line(message, expected):
    assert str(beam._error(message)) == expected


@pytest.mark.proof
def test_results_may_be_in_files_alone(tmp_path, corpus_path, tok_path):
    def silent(tasks, make_work, arguments, *, on_progress):
        options = {"processes": 1, "on_progress": lambda *_: None}
        for _ in parallel.run(tasks, make_work, arguments, **options):
            pass
        yield from ()

    def forgetful(tasks, make_work, arguments, *, on_progress):
        return silent(tasks[:-2], make_work, arguments, on_progress=on_progress)

    filters = Filters(deduplicate="exact")
    whole = preparing.run(corpus_path, tok_path, tmp_path / "whole", filters=filters)
    out = tmp_path / "out"
    with pytest.raises(errors.UserError, match=r"the files of 2 of \d+ units are missing"):
        preparing.run(corpus_path, tok_path, tmp_path / "plain", runner=forgetful)
    reports: list[tuple[int, int]] = []
    manifest = preparing.run(
        corpus_path, tok_path, out, runner=silent, filters=filters,
        on_progress=lambda *report: reports.append(report),
    )  # fmt: skip
    assert manifest == whole
    assert reports[0][0] == 0 and reports[-1][0] == reports[-1][1]
    assert _contents(out) == _contents(tmp_path / "whole")


def test_a_unit_may_be_processed_again_after_it_is_finished(
    tmp_path, corpus_path, tok_path, monkeypatch
):
    """Beam may do this while the pipeline has ended and the counts of the units are read."""
    publish, existed = prepare_unit._Shard.publish, []

    def twice(tasks, make_work, arguments, *, on_progress):
        work = make_work(*arguments)
        for task in tasks:
            counts_file = prepare_unit.counts_file(arguments[0].output, task.index)

            def publish_and_look(shard, file=counts_file):
                existed.append(file.exists())
                publish(shard)

            monkeypatch.setattr(prepare_unit._Shard, "publish", publish_and_look)
            for _ in range(2):
                work(task, lambda amount: None)
        yield from ()

    preparing.run(corpus_path, tok_path, tmp_path / "whole")
    preparing.run(corpus_path, tok_path, tmp_path / "out", runner=twice)
    assert _contents(tmp_path / "out") == _contents(tmp_path / "whole")
    assert existed and existed == [False, False, True, True] * (len(existed) // 4)
