"""Linear probes: the control task, the states of every layer, and training as scikit-learn's."""

import dataclasses
import json
import types

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib import image
from sklearn import linear_model

import bertjax
from bertjax import __main__ as command_line
from bertjax import errors, files, help_texts
from bertjax.artifact import artifact
from bertjax.commands import probe
from bertjax.finetuning import tasks
from bertjax.finetuning.probing import controls, features, labelled, run, training
from bertjax.inference import pretrained
from tests.helpers import encoders, proofs, tiny_model, tiny_t5

WORDS = "the cat sat on mat a dog ran home and saw letters make many words".split()


def write_tags(path, tags_of, sentences=40, seed=0, max_words=6):
    """Writes CoNLL columns of random words; `tags_of` returns the tags of a sentence."""
    draw = np.random.default_rng(seed)
    blocks = []
    for _ in range(sentences):
        words = [str(word) for word in draw.choice(WORDS, draw.integers(2, max_words + 1))]
        pairs = zip(words, tags_of(words), strict=True)
        blocks.append("".join(f"{word}\t{tag}\n" for word, tag in pairs))
    path.write_text("\n".join(blocks))
    return path


def by_neighbour(words):
    """Tags that depend on the word before, which a word's own embedding does not show."""
    return ["LATE" if word > "m" else "EARLY" for word in ["a", *words[:-1]]]


def made(family):
    if family == "t5":
        return tiny_t5.make_artifact("1.0")
    kind = "bpe" if family in ("gpt2", "modernbert") else "wordpiece"
    return encoders.make_artifact(family, kind)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("probe")
    artifact.write(tiny_model.make(), folder / "model")
    for seed, split in enumerate(("train", "dev")):
        write_tags(folder / f"{split}.conll", by_neighbour, 80 if split == "train" else 40, seed)
    return folder


# The control task


def test_a_control_label_belongs_to_its_key():
    counts = np.array([60, 30, 10])
    keys = [f"word{n}" for n in range(3000)]
    labels = controls.labels(keys, counts, seed=0)
    np.testing.assert_array_equal(controls.labels(keys[::-2], counts, 0), labels[::-2])
    np.testing.assert_allclose(np.bincount(labels) / 3000, counts / 100, atol=0.03)
    others = controls.labels(keys, counts, seed=1)
    assert 0.40 < np.mean(others == labels) < 0.52, "independent draws agree in 46%"
    assert not (controls.labels(keys, np.array([0, 1, 0]), 0) != 1).any()
    assert controls.word_key("The") == controls.word_key("the")


def test_the_key_of_a_text_is_a_word_that_train_has_often_enough():
    train = [("a rare cat",)] + [("a cat",)] * 4 + [("a dog",)] * 9
    keys, dev_keys = controls.text_keys(train, [("A CAT", "a new dog"), ("new",), ("",)])
    assert keys == ["cat"] * 5 + ["dog"] * 9
    assert dev_keys == ["cat", "new", ""], "the rarest word of 5 texts or more, in any text"


# Training


def test_probes_are_logistic_regressions_that_do_not_affect_each_other():
    draw = np.random.default_rng(0)
    x = draw.standard_normal((2, 3000, 12)).astype(np.float32)
    weights = draw.standard_normal((2, 12, 3))
    scores = np.einsum("mnd,mdc->mnc", x, weights) + 2 * draw.gumbel(size=(2, 3000, 3))
    targets = scores.argmax(axis=-1).astype(np.int32)  # task t can be read from layer t
    train, dev = slice(0, 1000), slice(1000, None)
    options = {"num_labels": 3, "seed": 0}
    fitted = training.fit(
        jnp.asarray(x[:, train]), targets[:, train], jnp.asarray(x[:, dev]), targets[:, dev],
        **options,
    )  # fmt: skip
    for layer in range(2):
        for task in range(2):
            theirs = linear_model.LogisticRegression().fit(x[layer, train], targets[task, train])
            accuracy = theirs.score(x[layer, dev], targets[task, dev])
            ours = np.mean(fitted.predictions_MTN[layer, task] == targets[task, dev])
            assert abs(ours - accuracy) < 0.01, (layer, task)
    alone = training.fit(
        jnp.asarray(x[1:, train]), targets[:1, train], jnp.asarray(x[1:, dev]), targets[:1, dev],
        **options,
    )  # fmt: skip
    same = alone.predictions_MTN[0, 0] == fitted.predictions_MTN[1, 0]
    assert same.mean() > 0.995 and alone.epochs_MT[0, 0] == fitted.epochs_MT[1, 0]


def test_states_are_standardised_on_train():
    draw = np.random.default_rng(0)
    train = draw.normal([5, -2, 7], [3, 0.1, 0], (2, 50, 3)).astype(np.float32)
    dev = train[:, :20] + 1
    scaled, scaled_dev = train.copy(), dev.copy()
    features.standardise(scaled, scaled_dev)
    np.testing.assert_allclose(scaled.mean(axis=1), 0, atol=1e-4)
    np.testing.assert_allclose(scaled[..., :2].std(axis=1), 1, rtol=1e-4)
    assert not scaled[..., 2].any() and np.isfinite(scaled_dev).all()
    shift = 1 / train.std(axis=1, keepdims=True)[..., :2]
    np.testing.assert_allclose((scaled_dev - scaled[:, :20])[..., :2] / shift, 1, rtol=1e-3)


# The states of the layers


FAMILIES = ("bert", "gpt2", "t5", "albert", "deberta", "electra", "modernbert")


@pytest.mark.parametrize("family", proofs.all_but(FAMILIES, "gpt2", "t5"))
def test_states_are_those_of_first_pieces_in_every_layer(family, tmp_path):
    source = made(family)
    model = pretrained.Pretrained(source)
    path = write_tags(tmp_path / "train.conll", by_neighbour, sentences=3, max_words=12)
    paths = {"train": str(path), "dev": str(path)}
    task = labelled.find_task("", paths, "", "")
    examples = labelled.read(task, paths)
    task_type = labelled.bind(task, examples, source, max_length=20)
    items = labelled.items(task_type, examples)["train"]
    words = [word for example in examples["train"] for word in example.words]
    assert sorted(items.keys) == sorted(words), "windows repeat no word"
    num_layers, width = features.shape(model)
    states = features.encode(model, task_type, items, pooling="")
    assert states.shape == (num_layers, len(words), width)
    start = 0
    for row in items.encoded.rows:
        places = labelled.places(row)
        hidden = model.model.apply(
            {"params": model.params}, row["input_ids"][None], output_hidden_states=True
        )["hidden_states"]  # fmt: skip
        stop = start + len(places)
        np.testing.assert_allclose(states[:, start:stop], hidden[:, 0, places], 1e-3, 1e-4)
        for key, place in zip(items.keys[start:stop], places, strict=True):
            piece = model.tokenizer.decode([int(row["input_ids"][place])]).strip()
            assert key.startswith(piece) or piece == "", (key, piece)
        start = stop
    assert start == len(words)


def test_pooled_states_are_vectors_of_encode_in_the_last_layer(tmp_path):
    model = pretrained.Pretrained(tiny_model.make())
    texts = ["the cat sat", "a dog ran home and saw the cat", "many words"]
    lines = [f"{text}\t{'cat' in text}" for text in texts]
    path = tmp_path / "train.tsv"
    path.write_text("\n".join(["text\tlabel", *lines]))
    paths = {"train": str(path), "dev": str(path)}
    task = labelled.find_task("", paths, "", "")
    examples = labelled.read(task, paths)
    task_type = labelled.bind(task, examples, model.source, max_length=40)
    items = labelled.items(task_type, examples)["dev"]
    for pooling in ("mean", "cls"):
        states = features.encode(model, task_type, items, pooling)
        np.testing.assert_allclose(states[-1], model.encode(texts, pooling), atol=1e-5)
    assert [task_type.labels[t] for t in items.targets_N] == ["True", "True", "False"]


def test_a_model_without_hidden_states_is_one_line():
    source = tiny_model.make()

    class Static:
        def __call__(self, input_ids):
            raise AssertionError

    bare = types.SimpleNamespace(model=Static(), params={}, source=source)
    with pytest.raises(errors.UserError, match="the family bert returns no hidden states"):
        features.shape(bare)


def test_only_as_many_items_as_fit_in_memory(root, monkeypatch, capsys):
    num_layers, width = 3, 16
    monkeypatch.setattr(features, "MAX_BYTES", 100 * num_layers * width * 4)
    options = {"seeds": 1, "max_train": 60}
    probed = bertjax.probe(
        model=root / "model", train=root / "train.conll", dev=root / "dev.conll", **options
    )
    parts = probed.report["files"]
    assert 80 < parts["train"]["items"] <= 100 and 80 < parts["dev"]["items"] <= 100
    assert parts["train"]["examples"] < 60
    assert "train: " in capsys.readouterr().err and "of 80 examples are used" in " ".join(
        probed.report["notes"]
    )


# From files to the report


def test_the_report_shows_what_is_memorised(root, tmp_path):
    train, dev = root / "train.conll", root / "dev.conll"
    probed = bertjax.probe(
        model=root / "model", train=train, dev=dev, output=tmp_path / "out", seeds=2
    )
    report = json.loads((tmp_path / "out" / "probe.json").read_text())
    assert report == probed.report
    assert [layer["name"] for layer in report["layers"]] == ["embeddings", "layer 1", "layer 2"]
    assert report["labels"] == ["EARLY", "LATE"] and report["majority"]["accuracy"] < 70
    assert report["seeds"] == [0, 1] and report["control"]["known"] == 100
    for split, file in (("train", train), ("dev", dev)):
        assert report["files"][split]["sha256"] == {str(file): files.sha256(file)}
    fingerprint = artifact.fingerprint(artifact.read(root / "model"))
    assert report["model"]["fingerprint"] == fingerprint
    first = report["layers"][0]  # has the word, not its neighbour
    assert first["accuracy"]["mean"] < 75 and first["selectivity"]["mean"] < -10
    for layer in report["layers"]:
        values = [
            a - b
            for a, b in zip(
                layer["accuracy"]["values"], layer["control_accuracy"]["values"], strict=True
            )
        ]
        np.testing.assert_allclose(layer["selectivity"]["values"], values)
        assert len(values) == 2 and layer["macro_f1"]["mean"] <= 100
    assert image.imread(tmp_path / "out" / "probe.png").shape[2] == 4
    table = str(probed).splitlines()
    assert table[0].split() == ["layer", "accuracy", "macro", "F1", "control", "selectivity"]
    assert table[1].startswith("embeddings") and "+-" in table[1]
    assert ">embeddings</td>" in probed._repr_html_() and "3 layers" in repr(probed)


def test_the_command_prints_the_table(root, tmp_path, capsys):
    flags = [f"--{name}={root / name}.conll" for name in ("train", "dev")]
    flags += [f"--model={root / 'model'}", f"--output={tmp_path / 'new' / 'out'}"]
    assert command_line.main(["probe", *flags, "--max_train=30", "--seeds=1"]) == 0
    printed = capsys.readouterr()
    assert "layer 2" in printed.out and "probe.json has all numbers" in printed.out
    assert "note: train: 30 of 80 examples are used" in printed.err
    assert {file.name for file in (tmp_path / "new" / "out").iterdir()} == {
        "probe.json", "probe.png",
    }  # fmt: skip
    assert command_line.main(["probe", *flags, "--pooling=max"]) == 2
    assert "the labels are of words, which are not pooled" in capsys.readouterr().err


def test_labels_that_only_dev_has_are_never_predicted(root, tmp_path):
    dev = tmp_path / "dev.conll"
    dev.write_text("the\tEARLY\ncat\tNEW\n\nmany\tEARLY\nwords\tLATE\n")
    probed = bertjax.probe(model=root / "model", train=root / "train.conll", dev=dev)
    assert probed.report["labels"] == ["EARLY", "LATE", "NEW"]
    assert all(layer["accuracy"]["mean"] <= 75 for layer in probed.report["layers"])


# Bad input

TEXTS = "text\tlabel\nthe cat\tyes\na dog\tno\n"
BAD = {
    "no tags": ({"train.conll": "the\ncat\n\na\ndog\n"}, {}, "train.conll:1: has no 'tags'"),
    "one tag": ({"train.conll": "the\tX\n\na\tX\n"}, {}, "the labels of train are: 'X'"),
    "SQuAD": ({"train.json": '{"version": "1", "data": []}'}, {},
              r"contains neither CoNLL columns nor a column of texts with a usual name \(its "
              r"columns: 'data', 'version'\)"),
    "two kinds": ({"train.tsv": TEXTS}, {}, "train.tsv is a file of labelled texts and .*dev.conll "
                                            "is a file of tagged words: give files of one kind"),
    "column": ({"train.csv": "review,stars\ngood,5\n"}, {}, "its columns: 'review', 'stars'"),
    "no label": ({"train.tsv": "text\nthe cat\n", "dev.tsv": TEXTS}, {},
                 "train.tsv:2: has no 'label'"),
    "pooled words": ({}, {"pooling": "mean"}, "pooling = 'mean': the labels are of words"),
    "unknown pooling": ({"train.tsv": TEXTS, "dev.tsv": TEXTS}, {"pooling": "sum"},
                        "pooling = 'sum': must be one of"),
    "task": ({}, {"task": "squad"}, "--task=squad: a probe predicts the labels of words"),
    "numbers": ({}, {"task": "stsb"}, "--task=stsb: a probe predicts the labels of words"),
    "seeds": ({}, {"seeds": 0}, "seeds = 0: must be 1 or more"),
    "missing": ({"train.tsv": None}, {}, "train.tsv: no such file"),
    "output": ({}, {"output": "model/config.json"}, "is a file; give the name of a folder"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case, root, tmp_path):
    contents, options, message = BAD[case]
    paths = {"train": root / "train.conll", "dev": root / "dev.conll"}
    for name, text in contents.items():
        paths[name.partition(".")[0]] = tmp_path / name
        if text is not None:
            (tmp_path / name).write_text(text)
    if "output" in options:
        options = {**options, "output": root / options["output"]}
    with pytest.raises(errors.UserError, match=message):
        bertjax.probe(model=root / "model", **paths, **options)


def test_every_option_has_a_flag():
    flags = help_texts.parser(probe)._option_string_actions
    for field in dataclasses.fields(run.Options):
        assert flags[f"--{field.name}"].default == field.default


@pytest.mark.parametrize(
    ("name", "text", "task"),
    [
        ("a.tsv", "the\tX\n\ncat\tY\n", "tokens"),
        ("a.jsonl", '{"tokens": ["a"], "ner_tags": ["X"]}', "tokens"),
        ("a.csv", '"text","label"\na,b\n', "classification"),
        ("a.tsv", "sentence1\tsentence2\tlabel\na\tb\tc\n", "pair"),
    ],
)
def test_the_task_is_read_from_the_file(name, text, task, tmp_path):
    (tmp_path / name).write_text(text)
    path = str(tmp_path / name)
    assert labelled.find_task("", {"train": path, "dev": path}, "", "") == tasks.find(task)
