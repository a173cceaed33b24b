"""Prepare: the same documents give the same shards, byte for byte, whatever the files' format."""

import csv
import json
import os
import pathlib

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from bertjax import errors, schema
from bertjax.data.prepared import manifest as manifest_lib
from tests.helpers import preparing
from tests.helpers.preparing import TEXTS

FORMATS = ("jsonl", "parquet", "csv", "txt")


@pytest.fixture(scope="module")
def tok_path(tmp_path_factory) -> str:
    return preparing.train_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def _write(folder: pathlib.Path, form: str, texts: list[str]) -> str:
    """Writes the texts to three files of a format; returns a glob for them."""
    folder.mkdir(exist_ok=True)
    for name, part in (("a", texts[:200]), ("b", texts[200:210]), ("c", texts[210:])):
        path = folder / f"{name}.{form}"
        if form == "jsonl":
            path.write_text("".join(json.dumps({"id": 1, "text": text}) + "\n" for text in part))
        elif form == "parquet":
            pq.write_table(pa.table({"text": part, "id": [1] * len(part)}), path, row_group_size=70)
        elif form == "csv":
            with open(path, "w", newline="") as file:
                csv.writer(file).writerows([["id", "text"], *([1, text] for text in part)])
        else:
            path.write_text("\n\n".join(part) + "\n")
    return os.fspath(folder / f"*.{form}")


def _shards(folder: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.array_record")}


@pytest.mark.parametrize("shard_bytes", [preparing.UNIT, 1 << 30])
def test_shards_by_file_and_corpora_of_one_shard_do_not_depend_on_the_format(
    tmp_path, tok_path, shard_bytes
):
    shard_by = "file" if shard_bytes == preparing.UNIT else "size"
    shards, manifests = [], []
    for form in FORMATS:
        pattern = _write(tmp_path / "corpus", form, TEXTS)
        manifests.append(
            preparing.run(
                pattern, tok_path, tmp_path / form, shard_bytes=shard_bytes, shard_by=shard_by,
                text_split="blank", heldout_fraction=0.1, workers=2 if form == "parquet" else 1,
            )
        )  # fmt: skip
        shards.append(_shards(tmp_path / form))
    assert shards[0] == shards[1] == shards[2] == shards[3]
    assert len(shards[0]) == (6 if shard_by == "file" else 2)
    for manifest in manifests[1:]:
        for key in ("splits", "texts", "text_bytes", "empty_documents", "skipped", "tokenizer"):
            assert manifest[key] == manifests[0][key], key


def test_more_files_than_shards_share_them_in_order(tmp_path, tok_path, monkeypatch):
    monkeypatch.setattr(preparing.prepare, "MAX_UNITS", 2)
    pattern = _write(tmp_path / "corpus", "jsonl", TEXTS)
    manifest = preparing.run(pattern, tok_path, tmp_path / "out", shard_by="file")
    documents = [shard["documents"] for shard in manifest["splits"]["train"]["shards"]]
    assert len(documents) == 2 and sum(documents) > 390 and 200 < documents[0] <= 210


@pytest.mark.proof
def test_a_large_row_group_is_prepared_in_parts_and_by_any_number_of_workers(tmp_path, tok_path):
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "a.parquet")
    path = os.fspath(tmp_path / "a.parquet")
    one = preparing.run(path, tok_path, tmp_path / "one")
    preparing.run(path, tok_path, tmp_path / "two", workers=2)
    assert _shards(tmp_path / "one") == _shards(tmp_path / "two")
    assert len(one["splits"]["train"]["shards"]) > 5
    assert sum(one["splits"][split]["documents"] for split in ("train", "heldout")) == len(TEXTS)


def test_nulls_are_counted_as_empty_documents(tmp_path, tok_path):
    columns = {"title": [None, "A tale.", None], "text": ["The cat.", None, None]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    manifest = preparing.run(
        os.fspath(tmp_path / "a.parquet"), tok_path, tmp_path / "out", heldout_fraction=0,
        text_template="{title}\n{text}",
    )  # fmt: skip
    assert manifest["splits"]["train"]["documents"] == 2
    assert manifest["empty_documents"] == 1 and manifest["skipped"] == {}
    manifest = preparing.run(
        os.fspath(tmp_path / "a.parquet"), tok_path, tmp_path / "text", heldout_fraction=0
    )
    assert manifest["splits"]["train"]["documents"] == 1 and manifest["empty_documents"] == 2


def test_another_template_is_refused_and_earlier_manifests_are_read(tmp_path, tok_path):
    pq.write_table(pa.table({"title": TEXTS, "text": TEXTS}), tmp_path / "a.parquet")
    path, out = os.fspath(tmp_path / "a.parquet"), tmp_path / "out"
    manifest = preparing.run(path, tok_path, out, text_template="{title} {text}")
    assert manifest["options"]["text_template"] == "{title} {text}"
    said = r"text_template='\{title\} \{text\}' instead of ''"
    with pytest.raises(errors.UserError, match=said):
        preparing.run(path, tok_path, out)
    with pytest.raises(errors.UserError, match="shard_by='size' instead of 'file'"):
        preparing.run(path, tok_path, out, text_template="{title} {text}", shard_by="file")
    old = preparing.run(path, tok_path, tmp_path / "old")
    for key in ("text_template", "shard_by"):
        del old["options"][key]
    content = {key: value for key, value in old.items() if key not in ("format", "version")}
    schema.write(tmp_path / "old" / manifest_lib.FILE, content, manifest_lib.FORM)
    assert preparing.run(path, tok_path, tmp_path / "old")["options"] == old["options"]
    with pytest.raises(errors.UserError, match=r"text_template='' instead of '\{text\}'"):
        preparing.run(path, tok_path, tmp_path / "old", text_template="{text}")


def test_changed_text_is_noticed_and_a_file_that_was_only_rewritten_is_not(tmp_path, tok_path):
    path, out = tmp_path / "a.parquet", tmp_path / "out"
    texts = [text[:100] for text in TEXTS]  # of one length, so that the order changes no size
    pq.write_table(pa.table({"id": range(400), "text": texts}), path, use_dictionary=False)
    manifest = preparing.run(os.fspath(path), tok_path, out)
    pq.write_table(pa.table({"id": range(1, 401), "text": texts}), path, use_dictionary=False)
    assert preparing.run(os.fspath(path), tok_path, out) == manifest
    pq.write_table(pa.table({"id": range(400), "text": texts[::-1]}), path, use_dictionary=False)
    with pytest.raises(errors.UserError, match=r"the text of .*a\.parquet has changed"):
        preparing.run(os.fspath(path), tok_path, out)


@pytest.mark.parametrize("command", ["prepare", "tokenizer"])
def test_the_commands_take_a_template(tmp_path, tok_path, command, capsys):
    from bertjax import __main__

    pq.write_table(pa.table({"title": ["A", "B"] * 20, "text": TEXTS[:40]}), tmp_path / "a.parquet")
    flags = [f"--input={tmp_path}/a.parquet", r"--text_template={title}\n{text}"]
    flags += [f"--output={tmp_path}/out"]
    if command == "prepare":
        flags += [f"--tokenizer={tok_path}", "--workers=1"]
    else:
        flags += ["--vocab_size=100"]
    assert __main__.main([command, *flags]) == 0
    assert "40" in capsys.readouterr().out
    if command == "prepare":
        options = manifest_lib.read(tmp_path / "out")["options"]
        assert options["text_template"] == "{title}\n{text}"
    assert __main__.main([command, *flags, "--text_field=body"]) == errors.EXIT_BAD_INPUT
    assert "cannot be used with --text_field=body" in capsys.readouterr().err
