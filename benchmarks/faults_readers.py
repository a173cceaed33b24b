"""The readers that benchmarks.faults fuzzes, and their inputs that no command writes."""

import json
import pathlib
import shutil
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from etils import epath
from flax import serialization, traverse_util
from pyarrow import parquet as pq

from bertjax import checksums, run_log, workdir
from bertjax.artifact import artifact, flax_weights, huggingface, t5x, weight_files
from bertjax.data.corpus import reader
from bertjax.data.prepared import store
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from bertjax.finetuning import output_folder as folder_lib
from bertjax.finetuning import tasks
from bertjax.finetuning.examples import types
from bertjax.inference import blimp

SQUAD = {"version": "v2.0", "data": [{"title": "t", "paragraphs": [{"context": "Ada wrote it.",
         "qas": [{"id": "q", "question": "Who?", "is_impossible": False,
                  "answers": [{"text": "Ada", "answer_start": 0}]}]}]}]}  # fmt: skip
PAIR = {"UID": "u", "linguistics_term": "t", "sentence_good": "A cat.", "sentence_bad": "A cats."}
T5 = {"vocab_size": 128, "hidden_size": 8, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2,
      "head_dim": 4, "intermediate_size": 8}  # fmt: skip
METRICS = '{"step": 1, "train/loss": 2.5}\n{"step": 2, "eval/loss": null}\n'
TSV = "sentence\tlabel\nthe cat saw\tgood\na dog ran\tbad\n"
CSV = 'text,label\n"the cat, saw",good\n"a\ndog",bad\n'
CONLL = "Ada\tB-PER\nwrote\tO\n\nin\tO\nBonn\tB-LOC\n"


def _documents(folder: pathlib.Path) -> None:
    (path,) = folder.iterdir()
    for split in ("file", "blank"):
        for source in reader.find([str(path)]):
            for _ in reader.documents(source, text_split=split):
                pass


def _tokenizer(folder: pathlib.Path) -> None:
    tokenizer_lib.load(str(folder)).encode("the cat saw \u00e9")


def _prepared(folder: pathlib.Path) -> None:
    for split in ("train", "heldout"):
        dataset = store.open_dataset(str(folder), split)
        if len(dataset):
            dataset.read([0])


def _sentences(folder: pathlib.Path) -> None:
    (path,) = folder.iterdir()
    tasks.read(tasks.find("classification"), str(path), "test")


def _questions(path: str) -> None:
    types.Question.of_squad(path, impossible=True)


def _tensors(folder: pathlib.Path) -> None:
    (path,) = folder.iterdir()
    weight_files.read_tensors(path, list(weight_files.tensor_shapes(path)))


def _tuning(folder: pathlib.Path) -> None:
    """Reads the files that a resumed fine-tuning reads: config, runs, report and predictions."""
    state = folder_lib.Folder.__new__(folder_lib.Folder)  # the model and the data are not needed
    state.path = folder
    state.stored()
    for rate, seed in state.left_out([], []):
        run = state.run(rate, seed)
        if run is not None:
            state.params(run)
            state.holds(run, ["dev"])
    state.predictions("dev")


def _checksums(folder: pathlib.Path) -> None:
    checksums.damage(epath.Path(folder))


def _file(read: Callable[[str], object]) -> Callable[[pathlib.Path], None]:
    def run(folder: pathlib.Path) -> None:
        (path,) = folder.iterdir()
        read(str(path))

    return run


# Name -> (an input folder of the benchmark or {file: text}, reader of a folder).
READERS: dict[str, tuple[str | dict[str, str], Callable[[pathlib.Path], object]]] = {
    "tokenizer": ("tokenizer", _tokenizer),
    "bpe": ("bpe", _tokenizer),
    "unigram": ("unigram", _tokenizer),
    "hf_tokenizer": ("hf_tokenizer", _tokenizer),
    "prepared": ("prepared", _prepared),
    "artifact": ("artifact", artifact.read),
    "hf": ("hf", huggingface.read),
    "tuned": ("tuned_model", artifact.read),
    "jsonl_corpus": ({"c.jsonl": '{"text": "a cat"}\n{"text": "two"}\n'}, _documents),
    "txt_corpus": ({"c.txt": "a cat\n\ntwo cats\n"}, _documents),
    "csv_corpus": ({"c.csv": CSV}, _documents),
    "parquet_corpus": ("parquet", _documents),
    "spiece": ("spiece", _tokenizer),
    "safetensors": ("tensors", _tensors),
    "flax": ("flax", huggingface.read),
    "t5x": ("t5x", t5x.read),
    "tuning": ("tuning", _tuning),
    "workdir": ("workdir", workdir.read),
    "checksums": ("checksums", _checksums),
    "metrics": ({"m.jsonl": METRICS}, _file(run_log.read_metrics)),
    "blimp": ({"b.jsonl": json.dumps(PAIR) + "\n"}, _file(blimp.read)),
    "tsv": ({"t.tsv": TSV}, _sentences),
    "csv": ({"t.csv": CSV}, _sentences),
    "parquet": ("parquet", _sentences),
    "jsonl": ({"t.jsonl": '{"sentence": "a", "label": "x"}\n'}, _sentences),
    "conll": ({"t.conll": CONLL}, _file(lambda path: types.Words.of_conll(path, entities=True))),
    "squad": ({"t.json": json.dumps(SQUAD)}, _file(_questions)),
}


def write_inputs(folder: pathlib.Path) -> int:
    """Writes the folders that only fuzzing reads. Returns 0, as the exit code of a child."""
    texts = [json.loads(line)["text"] for line in (folder / "corpus.jsonl").open()]
    for kind, size in (("bpe", 300), ("unigram", 40)):
        tokenizer_lib.train(kind, texts, size).save(str(folder / kind))
    (folder / "hf_tokenizer").mkdir()
    for path in (folder / "hf").iterdir():
        if path.suffix in (".txt", ".json", ".model") and path.name != "config.json":
            shutil.copy(path, folder / "hf_tokenizer")
    shutil.copytree(folder / "tuned" / "artifact", folder / "tuned_model")
    for name, path in (
        ("spiece", "unigram/spiece.model"), ("tensors", "hf/model.safetensors"),
        ("workdir", "run/config.json"),
    ):  # fmt: skip
        (folder / name).mkdir()
        shutil.copy(folder / path, folder / name)
    shutil.copytree(folder / "run" / "checkpoints" / "6", folder / "checksums")
    left_out = shutil.ignore_patterns("artifact", "*.md", "*.png")
    shutil.copytree(folder / "tuned", folder / "tuning", ignore=left_out)
    (folder / "parquet").mkdir()
    table = pa.table({"text": texts[:9], "label": [str(i % 2) for i in range(9)]})
    pq.write_table(table, folder / "parquet" / "t.parquet", row_group_size=4)
    _write_flax(folder)
    _write_t5x(folder)
    return 0


def _write_flax(folder: pathlib.Path) -> None:
    (folder / "flax").mkdir()
    for name in ("config.json", "vocab.txt"):
        shutil.copy(folder / "hf" / name, folder / "flax")
    weights = folder / "hf" / "model.safetensors"
    tensors = weight_files.read_tensors(weights, list(weight_files.tensor_shapes(weights)))
    tree = traverse_util.unflatten_dict({tuple(name.split(".")): v for name, v in tensors.items()})
    (folder / "flax" / flax_weights.FILE).write_bytes(serialization.msgpack_serialize(tree))


def _write_t5x(folder: pathlib.Path) -> None:
    """Writes a checkpoint of a tiny T5 whose layers are stacked, beside a tokenizer."""
    flat = {}
    for path, leaf in artifact.flatten(artifact.abstract_params("t5", T5, "")).items():
        stack, stacked, rest = t5x._their_name(path).partition("/layers/")
        shape = list(leaf.shape)
        if stacked:  # T5X stacks layers on axis 1
            shape[:2] = shape[1], shape[0]
        elif path.endswith("relative_bias/embedding"):
            shape.reverse()
        name = f"{stack}/{stack}/{rest}" if stacked else stack
        flat[tuple(name.split("/"))] = np.zeros(shape, np.float32)
    state = {"version": 3, "optimizer": {"target": traverse_util.unflatten_dict(flat)}}
    shutil.copytree(folder / "spiece", folder / "t5x")
    (folder / "t5x" / t5x.FILE).write_bytes(serialization.msgpack_serialize(state))
