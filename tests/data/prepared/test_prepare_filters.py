"""Prepare with filters: what is dropped, counted and kept, the same for any workers and stops."""

import collections
import json
import os
import pathlib
import tempfile

import numpy as np
import pyarrow as pa
import pytest
from etils import epath
from pyarrow import parquet as pq

from bertjax import __main__, errors
from bertjax.data.prepared import (
    arrays,
    overlap,
    parallel,
    prepare,
    prepare_duplicates,
    prepare_unit,
    store,
)
from bertjax.data.prepared import manifest as manifest_lib
from bertjax.data.prepared.filters import NONE, Filters
from bertjax.data.tokenizers import tokenizer
from tests.helpers import buckets, corpora, preparing
from tests.helpers.preparing import TEXTS

COPIES = [text.upper().replace(" ", "  ") for text in TEXTS[100:110]]
_WORDS = sorted({word for text in TEXTS for word in text.split()})
LONG = [
    " ".join(np.random.default_rng(i).choice(_WORDS, 300)) + " The end." for i in range(5)
]
NEAR = [text.replace("The end.", "The dog.") for text in LONG]
QUESTION = "Why did the old sailor carry an apple to the small house by the river?"


@pytest.fixture(scope="module")
def tok_path(tmp_path_factory) -> str:
    return preparing.train_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def corpus_path(tmp_path) -> str:
    """400 documents, 5 long ones, 10 copies, 5 near copies and 2 empty documents."""
    texts = [*TEXTS, *LONG, *COPIES, "", *NEAR, " \n"]
    return os.fspath(corpora.write_jsonl(tmp_path / "corpus.jsonl", texts))


def _contents(folder: pathlib.Path) -> dict[str, bytes]:
    return {
        os.fspath(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def _texts(folder: pathlib.Path) -> list[str]:
    """The documents of both splits, as text of joined tokens, in the order of the corpus."""
    found: dict[int, list[int]] = {}
    for split in prepare_unit.SPLITS:
        dataset = store.open_dataset(folder, split)
        for record in dataset.read(range(dataset.num_records)):
            sizes = np.add.reduceat(
                record.tokens_per_sentence, np.cumsum([0, *record.sentences_per_document[:-1]])
            )
            pieces = np.split(record.tokens, np.cumsum(sizes)[:-1])
            for document, piece in zip(record.document_ids.tolist(), pieces, strict=True):
                found.setdefault(document, []).extend(piece.tolist())
    return [" ".join(map(str, found[document])) for document in sorted(found)]


def _encoded(texts: list[str], tok_path: str) -> list[str]:
    encode = tokenizer.load(tok_path).encode
    return [" ".join(map(str, encode(text))) for text in texts]


def _filtered(manifest: dict) -> dict[str, int]:
    return {reason: count["documents"] for reason, count in manifest["filtered"].items()}


def test_without_filters_the_manifest_does_not_name_them(tmp_path, corpus_path, tok_path):
    preparing.run(corpus_path, tok_path, tmp_path / "out", filters=NONE)
    content = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert "filtered" not in content
    assert not set(content["options"]) & {"deduplicate", "min_chars", "language_field"}


def test_exact_duplicates_give_way_to_the_first(tmp_path, corpus_path, tok_path):
    out = tmp_path / "out"
    manifest = preparing.run(corpus_path, tok_path, out, filters=Filters(deduplicate="exact"))
    assert _filtered(manifest) == {"exact_duplicate": 10}
    assert manifest["filtered"]["exact_duplicate"]["bytes"] == sum(map(len, COPIES))
    assert manifest["text_bytes"] == sum(map(len, [*TEXTS, *LONG, *NEAR, " \n"]))
    assert manifest["empty_documents"] == 2
    assert manifest["options"]["deduplicate"] == "exact"
    assert _texts(out) == _encoded([*TEXTS, *LONG, *NEAR], tok_path)
    assert not (out / prepare_unit.UNITS).exists()


def test_near_duplicates_give_way_too(tmp_path, corpus_path, tok_path, monkeypatch):
    out, columns, read = tmp_path / "out", collections.Counter(), arrays.read

    def recording(path, *names):
        columns.update((path.name, name) for name in names if name.startswith("key_"))
        return read(path, *names)

    monkeypatch.setattr(arrays, "read", recording)
    manifest = preparing.run(corpus_path, tok_path, out, filters=Filters(deduplicate="near"))
    assert _filtered(manifest) == {"exact_duplicate": 10, "near_duplicate": 5}
    assert _texts(out) == _encoded([*TEXTS, *LONG], tok_path)
    assert len(columns) % 15 == 0 and set(columns.values()) == {1}  # each key is read once


def test_the_order_of_the_corpus_decides_which_copy_is_kept(tmp_path, tok_path):
    for name, texts in (("b", NEAR + COPIES), ("a", LONG + TEXTS[100:110])):
        corpora.write_jsonl(tmp_path / f"{name}.jsonl", texts)
    for names, kept in (("ab", LONG + TEXTS[100:110]), ("ba", NEAR + COPIES)):
        inputs = [os.fspath(tmp_path / f"{name}.jsonl") for name in names]
        manifest = preparing.run(
            inputs, tok_path, tmp_path / names, filters=Filters(deduplicate="near")
        )
        assert _filtered(manifest) == {"exact_duplicate": 10, "near_duplicate": 5}
        assert _texts(tmp_path / names) == _encoded(kept, tok_path)


def test_all_filters_at_once_and_any_number_of_workers(tmp_path, tok_path, monkeypatch):
    rows = [
        ("a" * 30, "en"),  # too short
        (TEXTS[0], "de"),  # another language, so its copy below is the first
        (TEXTS[0], "en"),
        (TEXTS[0].lower(), "nl"),  # exact duplicate
        (f"{TEXTS[1]} {QUESTION}", "en"),  # overlaps
        (" ".join(TEXTS[2:200]), "en"),  # too long
        (LONG[0], "en"),
        (NEAR[0], "nl"),  # near duplicate
        ("", "de"),  # empty, whatever its language
        (TEXTS[3], None),  # another language
        *((text, "en") for text in TEXTS[200:]),
    ]
    (tmp_path / "test.txt").write_text(QUESTION)
    pattern = os.fspath(tmp_path / "test.*")
    options = {
        "filters": Filters(
            keep_languages=("en", "nl"), language_field="lang", min_chars=100, max_chars=50_000,
            decontaminate=(pattern,), deduplicate="near",
        )
    }  # fmt: skip
    texts, languages = zip(*rows, strict=True)
    table = pa.table({"lang": languages, "text": texts})
    pq.write_table(table, tmp_path / "a.parquet")
    path = os.fspath(tmp_path / "a.parquet")
    for workers in (1, 2):
        manifest = preparing.run(
            path, tok_path, tmp_path / str(workers), workers=workers, **options
        )
        assert _filtered(manifest) == {
            "other_language": 2, "too_short": 1, "too_long": 1, f"overlaps {pattern}": 1,
            "exact_duplicate": 1, "near_duplicate": 1,
        }  # fmt: skip
        assert manifest["empty_documents"] == 1
    assert _contents(tmp_path / "1") == _contents(tmp_path / "2")
    kept = [TEXTS[0], LONG[0], *TEXTS[200:]]
    assert sorted(_texts(tmp_path / "1")) == sorted(_encoded(kept, tok_path))
    # Without duplicates there is one pass; what the other filters drop is the same.
    single = Filters(
        keep_languages=("en", "nl"), language_field="lang", min_chars=100, max_chars=50_000,
        decontaminate=(pattern,),
    )  # fmt: skip
    loads, load = [], overlap.load
    monkeypatch.setattr(overlap, "load", lambda path: loads.append(path) or load(path))
    counts = _filtered(preparing.run(path, tok_path, tmp_path / "single", filters=single))
    assert len(loads) == 1  # not once in each unit
    assert counts.items() <= _filtered(manifest).items() and len(counts) == 4


@pytest.mark.parametrize("form", ["jsonl", "csv", "arrayrecord_jsonl"])
def test_languages_of_every_format_with_fields(tmp_path, tok_path, form):
    rows = [{"text": text, "language": "de" if i % 2 else "en"} for i, text in enumerate(TEXTS)]
    path = tmp_path / f"a.{form.partition('_')[0]}"
    lines = [json.dumps(row) for row in rows]
    if form == "jsonl":
        path.write_text("\n".join(lines))
    elif form == "csv":
        cells = (f'{row["language"]},"{row["text"]}"\n' for row in rows)
        path.write_text("language,text\n" + "".join(cells))
    else:
        writer = store.array_record_module.ArrayRecordWriter(os.fspath(path), "group_size:1")
        for line in lines:
            writer.write(line.encode())
        writer.close()
    manifest = preparing.run(
        os.fspath(path), tok_path, tmp_path / "out", filters=Filters(keep_languages=("de",)),
        format=form,
    )  # fmt: skip
    assert _filtered(manifest) == {"other_language": 200}
    assert sorted(_texts(tmp_path / "out")) == sorted(_encoded(TEXTS[1::2], tok_path))


class _Stop(Exception):
    pass


@pytest.mark.proof
def test_stopped_anywhere_it_resumes_with_the_same_bytes(
    tmp_path, corpus_path, tok_path, monkeypatch
):
    filters = Filters(deduplicate="near")
    preparing.run(corpus_path, tok_path, tmp_path / "whole", filters=filters)
    out, done = tmp_path / "out", []
    run, decide = parallel.run, prepare_duplicates.decide

    def stopping_run(tasks, make_work, arguments, **options):
        checks = make_work is prepare_unit.make_digest  # whether the text of a unit has changed
        for i, (task, result) in enumerate(run(tasks, make_work, arguments, **options)):
            yield task, result
            if not checks:
                done.append((make_work.__module__, task.index))
                if i == 4:
                    raise _Stop

    def stop(*_):
        raise _Stop

    monkeypatch.setattr(parallel, "run", stopping_run)
    monkeypatch.setattr(prepare_duplicates, "decide", stop)
    calls = 0
    while True:
        calls += 1
        try:
            preparing.run(corpus_path, tok_path, out, filters=filters)
            break
        except _Stop:
            with pytest.raises(errors.UserError, match="not finished"):
                manifest_lib.read(out)
            if calls == 4:
                monkeypatch.setattr(prepare_duplicates, "decide", decide)
    assert calls > 5
    assert len(done) == len(set(done))  # nothing was repeated
    assert _contents(out) == _contents(tmp_path / "whole")


def test_a_damaged_file_of_keys_is_written_again(tmp_path, corpus_path, tok_path, monkeypatch):
    filters = Filters(deduplicate="exact")
    preparing.run(corpus_path, tok_path, tmp_path / "whole", filters=filters)
    monkeypatch.setattr(prepare_duplicates, "decide", lambda *_: 1 / 0)
    out = tmp_path / "out"
    with pytest.raises(ZeroDivisionError):
        preparing.run(corpus_path, tok_path, out, filters=filters)
    monkeypatch.undo()
    for number, damage in ((0, lambda data: data[:-9]), (1, lambda data: data[:700] + b"?" * 40)):
        path = prepare_duplicates.keys_file(os.fspath(out), number)
        path.write_bytes(damage(path.read_bytes()))
    monkeypatch.setattr(prepare_unit, "make_work", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        preparing.run(corpus_path, tok_path, out, filters=filters)
    monkeypatch.undo()
    path = prepare_unit.verdicts_file(os.fspath(out), 2)
    path.write_bytes(path.read_bytes()[:-9])
    preparing.run(corpus_path, tok_path, out, filters=filters)
    assert _contents(out) == _contents(tmp_path / "whole")


def test_filters_read_and_write_buckets(tmp_path, corpus_path, tok_path, monkeypatch):
    buckets.install(monkeypatch)
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(tmp_path))
    epath.Path("gs://bucket/in").mkdir(parents=True)
    epath.Path("gs://bucket/in/a.jsonl").write_bytes(pathlib.Path(corpus_path).read_bytes())
    epath.Path("gs://bucket/in/test.txt").write_text(" ".join(LONG[0].split()[:13]))
    manifests = []
    for pattern, test, out in (
        ("gs://bucket/in/*.jsonl", "gs://bucket/in/test.txt", "gs://bucket/out"),
        (corpus_path, "gs://bucket/in/test.txt", tmp_path / "out"),
    ):
        filters = Filters(deduplicate="near", decontaminate=(test,))
        manifests.append(preparing.run(pattern, tok_path, out, filters=filters))
    assert manifests[0]["splits"] == manifests[1]["splits"]
    assert list(_filtered(manifests[0]).values()) == [2, 10, 4]


def test_text_that_changes_between_the_passes_is_noticed(
    tmp_path, corpus_path, tok_path, monkeypatch
):
    path, decide = pathlib.Path(corpus_path), prepare_duplicates.decide

    def change(*arguments):
        path.write_text(path.read_text().replace("red", "tan"))
        decide(*arguments)

    monkeypatch.setattr(prepare_duplicates, "decide", change)
    with pytest.raises(errors.UserError, match="its text has changed since its duplicates were"):
        preparing.run(
            corpus_path, tok_path, tmp_path / "out", filters=Filters(deduplicate="exact")
        )
    with pytest.raises(errors.UserError, match=r"the text of .*corpus\.jsonl has changed"):
        preparing.run(
            corpus_path, tok_path, tmp_path / "out", filters=Filters(deduplicate="exact")
        )


def test_other_filters_are_refused(tmp_path, corpus_path, tok_path):
    (tmp_path / "test.txt").write_text(QUESTION)
    out, tests = tmp_path / "out", (os.fspath(tmp_path / "test.txt"),)
    preparing.run(
        corpus_path, tok_path, out, filters=Filters(deduplicate="exact", decontaminate=tests)
    )
    for filters, message in (
        (Filters(decontaminate=tests), "deduplicate='exact' instead of None"),
        (NONE, "decontaminate=.*test.txt' instead of None"),
        (Filters(deduplicate="exact", decontaminate=tests, min_chars=9), "min_chars=None instead"),
    ):
        with pytest.raises(errors.UserError, match=message):
            preparing.run(corpus_path, tok_path, out, filters=filters)
    (tmp_path / "test.txt").write_text(QUESTION + " " + QUESTION)
    with pytest.raises(errors.UserError, match="decontaminate_digest="):
        preparing.run(
            corpus_path, tok_path, out, filters=Filters(deduplicate="exact", decontaminate=tests)
        )


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        (Filters(deduplicate="fuzzy"), "deduplicate = 'fuzzy': must be one of none, exact, near"),
        (Filters(min_chars=-1), "min_chars = -1: must be 0 or more"),
        (Filters(min_chars=9, max_chars=8), "max_chars = 8: must be min_chars = 9 or more"),
        (Filters(language_field="lang"), "language_field = 'lang': has no effect without"),
        (Filters(keep_languages=("de", "")), "keep_languages = 'de,': contains an empty name"),
        (Filters(keep_languages=("de",)), "line 1: has no field 'language' .its fields: text.; give"
         " the one with the language as --language_field"),
        (Filters(decontaminate=("none.txt",)), "none.txt: no such file"),
        (Filters(min_chars=10**6), r"the filters leave no document: \{'too_short': 420\}, 2 empty"),
    ],
)  # fmt: skip
def test_impossible_filters_are_one_line(tmp_path, corpus_path, tok_path, filters, message):
    with pytest.raises(errors.UserError, match=message) as caught:
        preparing.run(corpus_path, tok_path, tmp_path / "out", filters=filters)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_language_needs_a_field_and_near_duplicates_a_package(tmp_path, tok_path, monkeypatch):
    (tmp_path / "a.txt").write_text(TEXTS[0])
    for path, form in (("builtin", "auto"), (os.fspath(tmp_path / "a.txt"), "auto")):
        with pytest.raises(errors.UserError, match="plain text has no field 'language'"):
            preparing.run(
                path, tok_path, tmp_path / "out", filters=Filters(keep_languages=("de",)),
                format=form,
            )  # fmt: skip
    pq.write_table(pa.table({"text": TEXTS, "language": [1] * 400}), tmp_path / "a.parquet")
    path = os.fspath(tmp_path / "a.parquet")
    with pytest.raises(errors.UserError, match="'language' is of type int64, but must be text"):
        preparing.run(path, tok_path, tmp_path / "out", filters=Filters(keep_languages=("de",)))
    monkeypatch.setitem(__import__("sys").modules, "datasketch", None)
    with pytest.raises(errors.UserError, match=r"pip install 'bertjax\[dedup\]'"):
        preparing.run(path, tok_path, tmp_path / "out", filters=Filters(deduplicate="near"))


def test_the_command_filters_and_reports(tmp_path, tok_path, capsys):
    (tmp_path / "test.txt").write_text(QUESTION)
    rows = [{"text": text, "lang": "en"} for text in [*TEXTS, TEXTS[0], f"{TEXTS[0]} {QUESTION}"]]
    rows[7]["lang"] = "fr"
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["prepare", f"--input={path}", f"--tokenizer={tok_path}", f"--output={tmp_path}/out"]
    flags += ["--workers=1", "--keep_languages=en,de", "--language_field=lang", "--min_chars=3"]
    flags += ["--max_chars=999999", f"--decontaminate={tmp_path}/test.txt", "--deduplicate=exact"]
    assert __main__.main(flags) == 0
    output = " ".join(capsys.readouterr().out.split())
    for line in (
        "documents: 399 ", "filtered: other_language: 1 document,", "filtered: too_short: 0",
        f"overlaps {tmp_path}/test.txt: 1 document, 0.0 MB", "exact_duplicate: 1 document,",
    ):  # fmt: skip
        assert line in output
    assert prepare.prepare.__kwdefaults__["filters"] == NONE
