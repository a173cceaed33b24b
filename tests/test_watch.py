"""Watching: what was written is read back, and a resumed run shows every step once."""

import io
import json
import re
import resource
import struct

import jax
import pytest
from tensorboardX.proto import event_pb2

from bertjax import errors, run_log
from tests.helpers import buckets


def write_lines(path, *steps: int) -> None:
    path.write_text("".join(json.dumps({"step": step, "train/loss": 1.5}) + "\n" for step in steps))


def steps_of(path) -> list[int]:
    return [line["step"] for line in run_log.read_metrics(path)]


def test_metrics_are_read_back(tmp_path):
    writer = run_log.JsonlWriter(tmp_path / "metrics.jsonl", start_step=0)
    writer.write(50, {"train/loss": 9.1, "learning_rate": 1e-5})
    # A line is there at once: no close before this read.
    assert run_log.read_metrics(tmp_path / "metrics.jsonl") == [
        {"step": 50, "train/loss": 9.1, "learning_rate": 1e-5}
    ]
    writer.close()


def test_float32_survives_in_few_digits(tmp_path):
    loss = float(jax.numpy.float32(1) / 3)
    writer = run_log.JsonlWriter(tmp_path / "metrics.jsonl", start_step=0)
    writer.write(1, {"train/loss": loss})
    writer.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "train/loss": 0.333333343}\n'
    read = run_log.read_metrics(tmp_path / "metrics.jsonl")[0]["train/loss"]
    assert jax.numpy.float32(read) == jax.numpy.float32(loss)


def test_non_finite_numbers_are_strict_json(tmp_path):
    writer = run_log.JsonlWriter(tmp_path / "metrics.jsonl", start_step=0)
    writer.write(1, {"train/loss": float("inf")})
    writer.close()
    assert "null" in (tmp_path / "metrics.jsonl").read_text()
    loss = run_log.read_metrics(tmp_path / "metrics.jsonl")[0]["train/loss"]
    assert loss != loss


@pytest.mark.parametrize(
    ("start_step", "kept"), [(0, []), (20, [10, 20, 20]), (99, [10, 20, 20, 30])]
)
def test_resume_drops_the_lines_past_the_restored_step(tmp_path, start_step, kept):
    path = tmp_path / "metrics.jsonl"
    write_lines(path, 10, 20, 20, 30)
    with path.open("a") as file:
        file.write('{"step": 31, "train/lo')  # cut short by a kill
    writer = run_log.JsonlWriter(path, start_step=start_step)
    writer.write(100, {"train/loss": 1.0})
    writer.close()
    assert steps_of(path) == [*kept, 100]
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_torn_last_line_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for tail in ('{"step": 20', "{", '{"step": 20, "train/loss": 1', "\0\0"):
        write_lines(path, 10)
        with path.open("a") as file:
            file.write(tail)
        assert steps_of(path) == [10]


BAD = ["{", "[1]", '{"train/loss": 1}', '{"step": null}', '{"step": 1e400}', "3",
       '{"step": 2, "x": "y"}', "[" * 2_000, "9" * 5_000]  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_line_is_named(tmp_path, bad):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1}}\n{bad}\n{{"step": 3}}\n')
    with pytest.raises(errors.UserError, match=r"metrics.jsonl:2: .*; delete that line"):
        run_log.read_metrics(path)


def test_absent_metrics_are_one_line(tmp_path):
    with pytest.raises(errors.UserError, match=r"none.jsonl: not found"):
        run_log.read_metrics(tmp_path / "none.jsonl")


def test_full_disk_names_the_file_and_keeps_what_was_there(tmp_path):
    path = tmp_path / "metrics.jsonl"
    writer = run_log.JsonlWriter(path, start_step=0)
    writer.write(1, {"train/loss": 1.0})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, limits[1]))
    try:
        with pytest.raises(errors.UserError, match=r"cannot write .*metrics.jsonl: File too large"):
            writer.write(2, {"train/loss": 1.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    writer.close()
    assert steps_of(path) == [1]


def events(folder) -> list[event_pb2.Event]:
    """The events of all files, oldest file first, read as TFRecords."""
    found = []
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        while content:
            (size,) = struct.unpack("<Q", content[:8])
            found.append(event_pb2.Event.FromString(content[12 : 12 + size]))
            content = content[12 + size + 4 :]
    return found


def test_tensorboard_file_is_in_the_documented_format(tmp_path):
    """The bytes of TFRecord and masked CRC-32C, against a record made by TensorFlow."""
    writer = run_log.TensorBoardWriter(tmp_path, start_step=0)
    writer.close()
    content = next(tmp_path.iterdir()).read_bytes()
    # The first record of every file that tf.summary wrote: 24 bytes, CRC of that length.
    assert content[:12] == bytes.fromhex("1800000000000000 a37f4b22")


def test_tensorboard_resumes_in_a_file_of_its_own(tmp_path):
    for start_step, step in ((0, 10), (0, 20), (20, 30)):
        writer = run_log.TensorBoardWriter(tmp_path, start_step=start_step)
        writer.write(step, {"train/loss": step / 10, "learning_rate": 1e-4})
        writer.close()
    assert len(list(tmp_path.iterdir())) == 3
    found = events(tmp_path)
    scalars = [(e.step, v.tag, round(v.simple_value, 5)) for e in found for v in e.summary.value]
    assert scalars == [
        (step, tag, value)
        for step in (10, 20, 30)
        for tag, value in (("train/loss", step / 10), ("learning_rate", 1e-4))
    ]
    starts = [event.step for event in found if event.HasField("session_log")]
    assert starts == [1, 1, 21]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bar_on_a_terminal_shows_progress_losses_and_speed():
    screen = Terminal()
    bar = run_log.ProgressBar(start_step=100, num_steps=200, file=screen)
    bar.advance(120)
    bar.write(150, {"train/loss": 6.1234, "tokens_per_second": 12_345, "mfu": 0.413})
    bar.write(150, {"eval/loss": 6.5, "eval/samples": 320.0})
    bar.close()
    last = screen.getvalue().split("\r")[-1]
    assert " 75%|" in last and "150/200" in last and " left" in last
    assert "loss 6.123, 12.3k tokens/s, MFU 41%" in last and "held-out" not in last
    assert "step 150/200 (75%), held-out loss 6.500 of 320 samples\n" in screen.getvalue()


def test_log_file_gets_plain_lines_not_too_often():
    now = [0.0]
    log = io.StringIO()
    bar = run_log.ProgressBar(start_step=0, num_steps=100, file=log, clock=lambda: now[0])
    for step in range(1, 101):
        now[0] += 1.0
        bar.advance(step)
        bar.write(step, {"train/loss": 6.0})
        if step == 35:
            bar.write(step, {"eval/loss": 6.5})
    bar.write(100, {"dev/f1": 90.0})  # fine-tuning prints it by itself
    bar.close()
    lines = log.getvalue().splitlines()
    shown = [int(re.match(r"step (\d+)/100 ", line).group(1)) for line in lines]
    assert shown == [1, 11, 21, 31, 35, 41, 51, 61, 71, 81, 91, 100]
    assert lines[1] == "step 11/100 (11%), 01:29 left, loss 6.000"
    assert lines[4] == "step 35/100 (35%), held-out loss 6.500"
    assert lines[-1] == "step 100/100 (100%), loss 6.000"
    assert log.getvalue().replace("\n", "").isprintable()


def test_an_evaluation_of_the_average_is_on_the_same_line():
    log = io.StringIO()
    bar = run_log.ProgressBar(start_step=0, num_steps=100, file=log)
    bar.write(50, {"eval/loss": 6.5, "eval/samples": 320, "eval/ema/loss": 6.25})
    assert log.getvalue() == (
        "step 50/100 (50%), held-out loss 6.500 of 320 samples, of the moving average 6.250\n"
    )


def test_writers_fill_a_workdir_and_only_on_process_0(tmp_path, monkeypatch, capsys):
    for process in (0, 1):
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        workdir = tmp_path / str(process)
        with run_log.Writers(workdir, start_step=0, num_steps=10) as writers:
            writers.advance(4)
            writers.write(5, {"train/loss": 2.0})
            writers.flush()
    assert not (tmp_path / "1").exists()
    assert steps_of(tmp_path / "0" / "metrics.jsonl") == [5]
    assert [e.step for e in events(tmp_path / "0" / "tensorboard") if e.summary.value] == [5]
    assert capsys.readouterr().err.count("step 5/10") == 1


@pytest.mark.parametrize(
    ("process", "logged", "again"),
    [(0, [100, 200, 250], 50), (0, [100], 0), (0, [], 0), (1, [9], 0)],
)
def test_a_resumed_run_says_what_its_stop_cost(
    tmp_path, monkeypatch, capsys, process, logged, again
):
    if logged:
        write_lines(tmp_path / "metrics.jsonl", *logged)
    monkeypatch.setattr(jax, "process_index", lambda: process)
    monkeypatch.setattr(run_log.time, "time", lambda: 1_000_000.0)
    run_log.print_resumed(tmp_path, 200, saved_at=1_000_000.0 - 3723)
    line = "resuming from step 200 (saved 1:02:03 ago); "
    said = "" if process else f"{line}{again} steps will be repeated\n"
    assert capsys.readouterr().err == said


def test_remote_file_is_whole_after_flush_and_close(monkeypatch):
    buckets.install(monkeypatch)
    path = "gs://bucket/metrics.jsonl"
    writer = run_log.JsonlWriter(path, start_step=0)
    writer.write(1, {"train/loss": 1.0})
    writer.flush()
    assert steps_of(path) == [1]
    writer.write(2, {"train/loss": 1.0})
    writer.close()
    assert steps_of(path) == [1, 2]
