"""The reader of JSON: whatever a file holds, it is the shape that was asked for or one line."""

import dataclasses
import json
import os
import random
from typing import Annotated, Any, Literal

import pytest

from bertjax import errors, schema

REMEDY = "write it again"
FORM = schema.Form("test-shards", 1)


@dataclasses.dataclass(frozen=True)
class Shard:
    file: schema.FileName
    records: schema.Count
    rate: Annotated[float, schema.Between(0, 1)] = 0.5


@dataclasses.dataclass(frozen=True)
class Split:
    shards: list[Shard]
    kind: Literal["train", "heldout"] = "train"
    note: str | None = None
    scores: dict[str, schema.Score] = dataclasses.field(default_factory=dict)
    others: Any = None
    sizes: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class OpenSplit(schema.Open, Split):
    pass


GOOD = {
    "shards": [{"file": "a", "records": 1}, {"file": "b", "records": 2, "rate": 1}],
    "kind": "heldout",
    "note": "caf\u00e9",
    "scores": {"f1": float("-inf"), "em": 3},
    "others": [{"a": [None, True]}],
    "sizes": [3, 4],
}
MADE = Split(
    [Shard("a", 1), Shard("b", 2, 1.0)], "heldout", "caf\u00e9",
    {"f1": float("-inf"), "em": 3.0}, [{"a": [None, True]}], (3, 4),
)  # fmt: skip


def _error(content: Any, shape: type = Split) -> str:
    with pytest.raises(errors.UserError) as caught:
        schema.typed(content, shape, "file.json", REMEDY)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_written_is_read(tmp_path):
    file = tmp_path / "split.json"
    schema.write(file, GOOD, FORM)
    assert schema.read(file, Split, REMEDY, form=FORM) == MADE
    assert os.listdir(tmp_path) == ["split.json"]
    content = json.loads(file.read_text())
    assert (content["format"], content["version"]) == ("test-shards", 1)
    del content[schema.CHECKSUM]  # as earlier versions wrote it
    file.write_text(json.dumps(content))
    assert schema.read(file, Split, REMEDY, form=FORM) == MADE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shards": {}}, "shards = {}: must be a list"),
        ({"shards": [{"file": "a"}]}, "shards[0] = ['file']: must be an object with the key"),
        ({"shards": [{"file": "a", "records": -1}]}, "shards[0].records = -1: must be an integer, "
         "0 or more"),
        ({"shards": [{"file": "a", "records": True}]}, "shards[0].records = True: must be an "
                                                       "integer"),
        ({"shards": [{"file": "a", "records": 1.0}]}, "records = 1.0: must be an integer"),
        ({"shards": [{"file": "a", "records": 2**64}]}, "must be an integer of at most 64 bits"),
        ({"shards": [{"file": "../a", "records": 1}]}, "'../a': must be the name of a file"),
        ({"shards": [{"file": "a", "records": 1, "rate": 1.5}]}, "must be a number, 0 to 1"),
        ({"shards": [{"file": "a", "records": 1, "rate": float("nan")}]}, "a finite number"),
        ({"kind": "test"}, "kind = 'test': must be 'train' or 'heldout'"),
        ({"note": 3}, "note = 3: must be a string or null"),
        ({"scores": {"f1": "high"}}, "scores.f1 = 'high': must be a number"),
        ({"others": [[float("inf")]]}, "others = inf: must be a finite number"),
        ({"notes": ""}, "notes = '': must be absent: unknown key; did you mean note?"),
    ],
)  # fmt: skip
def test_a_misfit_names_the_key_the_value_and_what_is_expected(change, message):
    found = _error({**GOOD, **change})
    assert found.startswith("file.json: ") and message in found and found.endswith(REMEDY)


def test_an_open_shape_skips_further_keys():
    assert schema.typed({**GOOD, "new": [1]}, OpenSplit, "file", REMEDY) == OpenSplit(
        **vars(MADE)
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "line 1 is not JSON"),
        (b'{"a": 1,\n}', "line 2 is not JSON"),
        (b'{"a": 1}\n{"b": 1}', "line 2 is not JSON: Extra data"),
        (b'{"a": "\n\xff"}', "line 2 is not UTF-8"),
        (b"[1]", "is a JSON list, not an object"),
        (b'{"a": 1, "b": 2, "a": 1}', "the key 'a' occurs twice"),
        (b'{"a": "\\ud83d"}', "contains an unpaired surrogate"),
        (b'{"\\ude00": 1}', "contains an unpaired surrogate"),
        (b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}", "nested more than 64 levels"),
        (b'{"a": ' * 100_000, "nested more than 64 levels"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "is not JSON"),
    ],
)
def test_what_is_no_object_of_json_is_one_line(tmp_path, data, message):
    (tmp_path / "a.json").write_bytes(data)
    with pytest.raises(errors.UserError) as caught:
        schema.read(tmp_path / "a.json", dict[str, Any], REMEDY)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / 'a.json'}: ")


def test_what_is_no_file_of_a_size_that_can_be_is_one_line(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "large").write_text("{" + " " * 100)
    monkeypatch.setattr(schema, "MAX_BYTES", 50)
    names = {"pipe": "not a file", ".": "not a file", "no": "not found", "loop": "cannot be read",
             "large": "more than 50 bytes", "large/a": "cannot be read"}  # fmt: skip
    for name, message in names.items():
        with pytest.raises(errors.UserError, match=message):
            schema.read_object(tmp_path / name, REMEDY)


def test_another_form_is_refused(tmp_path):
    schema.write(tmp_path / "a.json", GOOD, schema.Form("other", 1))
    with pytest.raises(errors.UserError, match="its format must be test-shards"):
        schema.read(tmp_path / "a.json", Split, REMEDY, form=FORM)
    schema.write(tmp_path / "a.json", GOOD, schema.Form("test-shards", 2))
    with pytest.raises(errors.UserError, match=r"has version 2 of .* reads version 1"):
        schema.read(tmp_path / "a.json", Split, REMEDY, form=FORM)


def test_any_damage_is_refused_or_changes_nothing(tmp_path):
    file = tmp_path / "split.json"
    schema.write(file, GOOD, FORM)
    data, rng = file.read_bytes(), random.Random(0)
    for _ in range(1000):
        damaged = bytearray(data)
        for _ in range(rng.choice([1, 1, 3])):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        file.write_bytes(damaged[: rng.choice([len(data), rng.randrange(len(data))])])
        try:
            assert schema.read(file, Split, REMEDY, form=FORM) == MADE, damaged
        except errors.UserError as error:
            assert "\n" not in str(error)


def test_what_a_killed_process_left_is_gone_after_the_next_write(tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    file = tmp_path / "split.json"
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", killed)  # as after SIGKILL: nothing is cleaned up
        patch.setattr(os, "replace", killed)
        patch.setattr(os, "remove", killed)
        with pytest.raises(KeyboardInterrupt):
            schema.write(file, GOOD, FORM)
    assert [path.name for path in tmp_path.iterdir()] == [".split.json.partial"]
    monkeypatch.setattr(os, "getpid", lambda: -1)
    schema.write(file, GOOD, FORM)
    assert [path.name for path in tmp_path.iterdir()] == ["split.json"]
