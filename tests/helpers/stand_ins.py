"""Small files and models in place of those that the documentation names, so that its blocks run.

    stand_ins.make("openai-community/gpt2", folder)     # writes folder/openai-community/gpt2

A name is that of the path in the block, without a slash at its end. The models are tiny and
random: they show that a command works, not what it answers.
"""

import dataclasses
import json
import pathlib
import shutil
from collections.abc import Callable

from bertjax import __main__ as command_line
from bertjax.artifact import artifact, huggingface
from tests.helpers import scored, tiny_model, toy_tasks

Maker = Callable[[pathlib.Path, pathlib.Path], None]


def make(name: str, folder: pathlib.Path) -> None:
    """Writes the stand-in for `name` into `folder`. Raises KeyError if there is none."""
    maker = MAKERS[name]
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    maker(path, folder)


def _bert(path: pathlib.Path, folder: pathlib.Path) -> None:
    artifact.write(dataclasses.replace(tiny_model.make(), config=None), path)


def _bert_folder(path: pathlib.Path, folder: pathlib.Path) -> None:
    path.mkdir()
    huggingface.write(tiny_model.make(), path)


def _gpt(path: pathlib.Path, folder: pathlib.Path) -> None:
    artifact.write(scored.make("gpt2", "bpe", max_length=512).source, path)


def _t5(path: pathlib.Path, folder: pathlib.Path) -> None:
    model = scored.trained_by(scored.make("t5", "unigram", max_length=128), name="span_corruption")
    artifact.write(model.source, path)


def _finetuned(path: pathlib.Path, folder: pathlib.Path) -> None:
    toys = folder / f"toys-for-{path.name}"
    toys.mkdir()
    toy_tasks.toys(toys, train=24, others=8)
    words = ["finetune", f"--model={toys / 'model'}", "--task=classification", f"--data={toys}"]
    words += ["--config.num_epochs=1", "--config.max_length=40", "--lr=1e-2", f"--output={path}"]
    assert command_line.main(words) == 0


def _served(path: pathlib.Path, folder: pathlib.Path) -> None:
    if not (folder / "out").exists():
        _finetuned(folder / "out", folder)
    words = ["export", f"--model={folder / 'out'}", f"--output={path}", "--format=stablehlo"]
    assert command_line.main(words) == 0


def _copy_of_run(path: pathlib.Path, folder: pathlib.Path) -> None:
    shutil.copytree(folder / "run", path)  # made by a block before


def _table(labels: tuple[str, str]) -> Maker:
    def write(path: pathlib.Path, folder: pathlib.Path) -> None:
        rows = [f"{text}\t{labels[n % 2]}" for n, text in enumerate(tiny_model.TEXTS * 4)]
        path.write_text("\n".join(["sentence\tlabel", *rows]) + "\n")

    return write


def _json_lines(*rows: dict[str, str]) -> Maker:
    def write(path: pathlib.Path, folder: pathlib.Path) -> None:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    return write


def _books(path: pathlib.Path, folder: pathlib.Path) -> None:
    path.mkdir()
    for number, text in enumerate(tiny_model.TEXTS):
        (path / f"{number}.txt").write_text(text + "\n")


def _web(path: pathlib.Path, folder: pathlib.Path) -> None:
    path.mkdir()
    _json_lines(*({"text": text} for text in tiny_model.TEXTS))(path / "one.jsonl", folder)


MAKERS: dict[str, Maker] = {
    "bert": _bert,
    "encoder": _bert,
    "google-bert/bert-base-uncased": _bert,
    "intfloat/e5-small-v2": _bert,
    "run": _bert,
    "encoder-hf": _bert_folder,
    "gpt-run": _gpt,
    "openai-community/gpt2": _gpt,
    "norwegian-t5-small": _t5,
    "out": _finetuned,
    "out-lora": _finetuned,
    "served": _served,
    "run-a": _copy_of_run,
    "run-b": _copy_of_run,
    "train.tsv": _table(("good", "bad")),
    "dev.tsv": _table(("good", "bad")),
    "test.tsv": _table(("pos", "neg")),
    "labelled/dev.tsv": _table(("cat", "dog")),
    "bodies.jsonl": _json_lines(*({"body": text} for text in tiny_model.TEXTS)),
    "blimp.jsonl": _json_lines(
        {"uid": "a", "term": "b", "good": "the cat sat", "bad": "the cat sit"}
    ),
    "books": _books,
    "web": _web,
}
