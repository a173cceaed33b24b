"""benchmarks/outside: what counts as a difference between two versions, and what does not."""

import json

import numpy as np
import pytest

from benchmarks import outside, outside_record


def record(folder, name, **values):
    """The entries of a made-up version: a text, a file, a report and arrays."""
    made = folder / name
    (made / "files").mkdir(parents=True)
    given = {"text": "loss 0.5", "data": b"\x00\xff", "seconds": 1.0, "score": 50.0, "weight": 2.0}
    given |= values
    (made / "files" / "shard").write_bytes(given["data"])
    report = {"score": given["score"], "seconds": given["seconds"], "checksum": given["seconds"]}
    (made / "files" / "report.json").write_text(json.dumps(report))
    (made / "files" / "scores.png").write_text(str(given["seconds"]))
    found = outside_record.Record(made)
    found.text("say", f"{given['text']} in {made}, {given['seconds']} MB/s")
    found.files("out", made / "files")
    found.arrays("params", {"a/kernel": np.full(3, given["weight"], np.float32)}, singly=True)
    return found


def compared(tmp_path, capsys, accepted=(), **changed):
    """({outcome: count}, what is printed) of a version and one that `changed`."""
    old, new = record(tmp_path, "old"), record(tmp_path, "new", **changed)
    counts = {}
    outside._compare(
        "s", old.entries, new.entries, old.folder, new.folder, accepted, counts
    )
    total = {}
    for of in counts.values():
        total |= {outcome: total.get(outcome, 0) + n for outcome, n in of.items()}
    return total, capsys.readouterr().out


def test_times_folders_and_pictures_are_no_difference(tmp_path, capsys):
    assert compared(tmp_path, capsys, seconds=7.5) == ({"same": 4}, "")


@pytest.mark.parametrize(
    ("changed", "outcome", "said"),
    [
        ({"text": "loss 0.5 nats"}, "different", "say: line 1: 'loss 0.5 in FOLDER"),
        ({"text": "loss 0.50000001"}, "rounding", "say: line 1: 'loss 0.5 in FOLDER"),
        ({"text": "loss 0.51"}, "different", "largest relative difference 2.0e-02"),
        ({"data": b"\x00\xfe"}, "different", "out/shard: 2 and 2 bytes, different from byte 1 on"),
        ({"score": 51.0}, "different", "out/report.json: line 2"),
        ({"weight": 2.000001}, "rounding", "params/a/kernel: largest difference 4.8e-07"),
        ({"weight": 2.1}, "different", "params/a/kernel: largest difference 5.0e-02"),
        ({"weight": np.nan}, "different", "params/a/kernel: largest difference nan"),
    ],
)
def test_a_difference_is_named(tmp_path, capsys, changed, outcome, said):
    counts, printed = compared(tmp_path, capsys, **changed)
    assert counts == {"same": 3, outcome: 1}
    assert printed.startswith(f"{outcome.upper()} s: ") and said in printed


def test_an_accepted_difference_is_counted_apart(tmp_path, capsys):
    counts, printed = compared(tmp_path, capsys, accepted=["sa*"], text="other words")
    assert counts == {"same": 3, "accepted": 1}
    assert printed.startswith("ACCEPTED s: say")
