"""Labels and numbers for texts and pairs: rows, losses, answers, scores."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers

from bertjax import errors
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from bertjax.finetuning import rows
from bertjax.finetuning.examples import types as examples_lib
from bertjax.finetuning.task_types import classification, multiple_choice
from tests.helpers import proofs, task_types, tiny_model
from tests.helpers.task_types import bind

CONFIG = classification.Config()
NUMBERS = classification.Config(regression=True)
LENGTHS = task_types.LENGTHS


def sentences(*lines):
    return [
        examples_lib.Sentence(texts, label, where=f"train.tsv:{i}")
        for i, (*texts, label) in enumerate(lines, 2)
    ]


def encode(examples, labels, config=CONFIG, length=24):
    tokenizer = tiny_model.tokenizer()
    return bind(
        classification, config, labels, tokenizer=tokenizer, lengths=rows.Lengths(length)
    ).encode(examples)


CATS = sentences(
    *[(f"{a} cat {b}", "cat") for a in ("the", "a", "one") for b in ("sat", "ran", "saw home")],
    *[(f"{a} dog {b}", "dog") for a in ("the", "a", "one") for b in ("sat", "ran", "saw home")],
)


# Rows


@pytest.mark.parametrize("name", ["wordpiece", "bpe", "unigram"])
@pytest.mark.parametrize("length", [24, 17, 16, 9, 8])
def test_rows_are_those_of_the_exported_tokenizer(tmp_path, name, length):
    one = tiny_model.tokenizer(name)
    one.save(tmp_path, token_types=name != "bpe")
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    library.enable_truncation(length)
    texts = ("a dog ran home", "the cat sat on the mat and many letters", "")
    form = rows.Form(one)
    groups = [[a] for a in texts] + [[a, b] for a in texts for b in texts]
    for group, ids in zip(groups, rows.encode(one, groups), strict=True):
        theirs = library.encode(*group)
        row = form.enclose(ids, length).row
        assert row["input_ids"].tolist() == theirs.ids, group
        assert row["attention_mask"].tolist() == theirs.attention_mask
        if name != "bpe":
            assert row["token_type_ids"].tolist() == theirs.type_ids


def test_rows_of_xlm_r_part_a_pair_as_its_own_tokenizer_does(tmp_path):
    names = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = [(name, 0.0) for name in [*names, "\u2581", *"abcdefgh"]]
    library = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=3))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    library.add_special_tokens(names)
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    library.save(str(tmp_path / "tokenizer.json"))
    loaded, groups = tokenizer_lib.load(tmp_path), [["a bad cab"], ["a bad cab", "fed"]]
    form = rows.Form(loaded)
    for group, ids in zip(groups, rows.encode(loaded, groups), strict=True):
        assert form.enclose(ids, 24).row["input_ids"].tolist() == library.encode(*group).ids


def test_a_decoder_reads_texts_with_the_end_of_text_between_them(tmp_path):
    form, end = rows.Form(tiny_model.gpt2_tokenizer(tmp_path)), 27
    assert form.enclose([[1, 2]], 8).row["input_ids"].tolist() == [1, 2]
    assert form.enclose([[1, 2], [3]], 8).row["input_ids"].tolist() == [1, 2, end, 3]
    assert form.enclose([[]], 8).row["input_ids"].tolist() == [end]


def test_a_row_says_where_its_texts_are():
    form = rows.Form(tiny_model.tokenizer("bpe"))
    made = form.enclose([[7, 8, 9], [5, 6]], 8)
    assert made.row["input_ids"].tolist() == [0, 7, 8, 2, 2, 5, 6, 2]
    assert made.starts == (1, 5) and made.sizes == (2, 2) and made.truncated


def test_a_word_of_ten_thousand_letters_and_ten_thousand_words_are_cut():
    texts = ["the " * 10_000, "a" * 10_000, "the cat"]
    encoded = encode([examples_lib.Sentence((text,), "x") for text in texts], ["x", "y"])
    assert encoded.truncated.tolist()[::2] == [True, False]
    assert max(len(row["input_ids"]) for row in encoded.rows) == 24
    assert encoded.owners.tolist() == [0, 1, 2]


# Labels


def test_labels_are_in_order():
    found = bind(classification, CONFIG).label_names(
        sentences(("a", "no"), ("b", "yes"), ("c", "no"))
    )
    assert found == ["no", "yes"]
    numbers = sentences(*[("a", str(i)) for i in (10, 2, 1)])
    assert bind(classification, CONFIG).label_names(numbers) == ["1", "2", "10"]
    assert bind(classification, NUMBERS).label_names(sentences(("a", 1.0))) == []
    assert bind(classification, NUMBERS).num_labels() == 1


@pytest.mark.parametrize(
    "config, line, says",
    [
        (CONFIG, ("a", "maybe"), "dev.tsv:3: label 'maybe' is not one of the labels of the "),
        (CONFIG, ("a", "b", "no"), "dev.tsv:3: the number of texts is 2, but the first line has 1"),
        (NUMBERS, ("a", "no"), "dev.tsv:3: label 'no' is not a number"),
        (NUMBERS, ("a", float("nan")), "is not a number"),
    ],
)
def test_bad_labels_are_named(config, line, says):
    first = ("a", 1.0 if config.regression else "no")
    examples = [e._replace(where=e.where.replace("train", "dev")) for e in sentences(first, line)]
    bind(classification, config, ["no", "yes"], task="dev").check(examples[:1])
    bind(classification, config, ["no", "yes"], task="dev").check(
        [examples[0]._replace(label=None)]
    )
    with pytest.raises(errors.UserError, match=says):
        bind(classification, config, ["no", "yes"], task="dev").check(examples)


def test_one_label_is_nothing_to_learn():
    with pytest.raises(errors.UserError, match="has only the label 'no'; at least two are"):
        bind(classification, CONFIG, ["no"], task="train").check(sentences(("a", "no")))


def test_many_labels_are_not_all_listed():
    labels = [f"label{i}" for i in range(77)]
    with pytest.raises(errors.UserError, match="label9 and 67 more"):
        bind(classification, CONFIG, labels, task="dev").check(sentences(("a", "new")))


# Losses


def fixed(logits):
    return lambda **inputs: {"class_logits": jnp.array(logits, jnp.float32)}


def loss_of(config, logits, **batch):
    batch = {name: jnp.array(value) for name, value in batch.items()}
    found = bind(classification, config).loss(fixed(logits), batch)
    (main,) = bind(classification, config).normalizers(batch).items()
    assert next(iter(found)) == main[0] and float(found[main[0]][1]) == float(main[1])
    return {name: (float(s), float(w)) for name, (s, w) in found.items()}


def test_the_loss_is_cross_entropy_of_the_rows_that_count():
    logits = [[2.0, 0.0, 1.0], [0.0, 1.0, 0.0], [9.0, 0.0, 0.0]]
    found = loss_of(
        CONFIG, logits, label=[2, 1, 1], label_weight=[1.0, 1, 1], example_weights=[1.0, 1, 0]
    )
    expected = -np.log(np.exp(1) / np.exp(logits[0]).sum() * np.exp(1) / np.exp(logits[1]).sum())
    assert found["label_loss"] == (pytest.approx(expected, rel=1e-5), 2.0)
    assert found["label_accuracy"] == (1.0, 2.0)


def test_class_weights_make_labels_equal():
    examples = sentences(*[("a", "no")] * 6, *[("b", "yes")] * 2, ("c", None))
    config = classification.Config(class_weights=True)
    weights = [row["label_weight"].item() for row in encode(examples, ["no", "yes"], config).rows]
    assert weights == pytest.approx([8 / 12] * 6 + [8 / 4] * 2 + [0])
    encoded = encode(examples, ["no", "yes"], config)
    batch = task_types.batch_of(classification, config, encoded)
    found = bind(classification, config).loss(fixed([[1.0, 0.0]] * 9), batch)
    ours = float(found["label_loss"][0] / found["label_loss"][1])
    assert ours == pytest.approx((np.log(1 + np.exp(-1)) + np.log(1 + np.exp(1))) / 2, rel=1e-5)
    assert [float(x) for x in found["label_accuracy"]] == [6.0, 8.0]  # of examples all the same


def test_numbers_are_trained_by_the_squared_error():
    found = loss_of(
        NUMBERS, [[1.0], [2.0], [7.0]], label=[0.5, 4.0, 0.0], label_weight=[1.0, 1.0, 0.0],
        example_weights=[1.0, 1.0, 1.0],
    )  # fmt: skip
    assert found == {"label_loss": (pytest.approx(0.25 + 4.0), 2.0)}


def test_impossible_options_are_refused():
    with pytest.raises(errors.UserError, match=r"config\.kind\.class_weights = True"):
        classification.Config(regression=True, class_weights=True)


# Answers


def test_answers_have_probabilities_best_first():
    scores = np.array([[0.1, 0.7, 0.2]], np.float32)
    (found,) = bind(classification, CONFIG, ["a", "b", "c"]).decode(
        CATS[:1], None, {"scores": scores}
    )
    assert found["label"] == "b" and list(found["probabilities"]) == ["b", "c", "a"]
    assert json.loads(json.dumps(found)) == found
    (number,) = bind(classification, NUMBERS).decode(CATS[:1], None, {"scores": scores[:, :1]})
    assert number == {"label": pytest.approx(0.1)}


def test_scores_of_labels():
    examples = sentences(("a", "no"), ("b", "yes"), ("c", "yes"), ("d", None))
    predictions = [
        {"label": label, "probabilities": {"no": 1 - p, "yes": p}}
        for label, p in [("no", 0.2), ("no", 0.4), ("yes", 0.9), ("yes", 0.9)]
    ]
    found = bind(classification, CONFIG, ["no", "yes"]).scores(examples, predictions)
    assert found["accuracy"] == pytest.approx(200 / 3)
    assert found["f1"] == pytest.approx(200 / 3) and found["macro_f1"] == pytest.approx(200 / 3)
    assert found["mcc"] == pytest.approx(50) and found["roc_auc"] == 100.0
    assert bind(classification, CONFIG, ["no", "yes"]).scores(examples[3:], predictions[3:]) == {}


def answers(module, config, model, params, examples, encoded, labels=()):
    batch = task_types.batch_of(module, config, encoded, model)
    outputs = task_types.outputs_of(module, config, model, params, batch)
    return bind(module, config, labels, tokenizer=tiny_model.tokenizer()).decode(
        examples, encoded, outputs
    )


@pytest.mark.proof
def test_a_model_learns_labels():
    labels = bind(classification, CONFIG).label_names(CATS)
    encoded = encode(CATS, labels)
    batch = task_types.batch_of(classification, CONFIG, encoded)
    model, params = task_types.make(classification, CONFIG, labels)
    fitted, losses = task_types.fit(classification, CONFIG, model, params, batch)
    assert losses[0] > 0.5 and losses[-1] < 0.1
    for weights, right in ((params, False), (fitted, True)):
        found = answers(classification, CONFIG, model, weights, CATS, encoded, labels)
        assert (
            bind(classification, CONFIG, labels).scores(CATS, found)["accuracy"] == 100
        ) == right


@pytest.mark.proof
def test_a_decoder_learns_numbers_of_pairs():
    words = ("cat", "dog", "mat", "home")
    lines = [(f"the {a}", f"a {b}", float(i)) for i, a in enumerate(words) for b in words]
    examples = sentences(*lines)
    encoded = bind(
        classification, NUMBERS, tokenizer=tiny_model.tokenizer("bpe"), lengths=LENGTHS
    ).encode(examples)
    model, params = task_types.make(classification, NUMBERS, family="gpt2")
    batch = task_types.batch_of(classification, NUMBERS, encoded, model)
    fitted, _ = task_types.fit(classification, NUMBERS, model, params, batch, steps=100)
    found = answers(classification, NUMBERS, model, fitted, examples, encoded)
    assert bind(classification, NUMBERS).scores(examples, found)["pearson"] > 90


# Choices

CHOICE = multiple_choice.Config()
QUESTIONS = [
    examples_lib.Choice("the cat sat on", ("the mat", "a dog"), 0, where="a.jsonl:1"),
    examples_lib.Choice("a dog ran", ("many words", "letters", "home"), 2, where="a.jsonl:2"),
    examples_lib.Choice("", ("a mat", "the home"), 1, where="a.jsonl:3"),
]


def encode_choices(examples, length=24):
    tokenizer = tiny_model.tokenizer()
    return bind(multiple_choice, CHOICE, tokenizer=tokenizer, lengths=rows.Lengths(length)).encode(
        examples
    )


def test_a_choice_is_read_behind_the_context():
    tokenizer, encoded = tiny_model.tokenizer(), encode_choices(QUESTIONS)
    first = encoded.rows[0]["input_ids"]
    text = tokenizer.encode("the cat sat on"), tokenizer.encode("a dog")
    assert first[1, : len(text[0]) + len(text[1]) + 3].tolist() == [2, *text[0], 3, *text[1], 3]
    assert [row["choice_mask"].tolist() for row in encoded.rows] == [[1, 1, 0], [1] * 3, [1, 1, 0]]
    alone = encoded.rows[2]["input_ids"][0].tolist()
    assert alone[: alone.index(3)] == [2, *tokenizer.encode("a mat")]
    assert encode_choices(QUESTIONS, 8).truncated.tolist() == [True, True, False]


def test_no_one_takes_an_empty_choice():
    batch = task_types.batch_of(multiple_choice, CHOICE, encode_choices(QUESTIONS))
    logits = np.array([[0, 0, 50], [0, 0, 0], [1, 0, 50]], np.float32)

    def apply(**inputs):
        assert inputs["input_ids"].shape == (9, 24)
        return {"class_logits": jnp.array(logits.reshape(9, 1))}

    found = bind(multiple_choice, CHOICE).loss(apply, batch)
    expected = np.log(2) + np.log(3) + np.log(1 + np.e)
    assert [float(x) for x in found["choice_loss"]] == [pytest.approx(expected, rel=1e-5), 3.0]
    outputs = jax.device_get(bind(multiple_choice, CHOICE).outputs(apply, batch))
    predictions = bind(multiple_choice, CHOICE).decode(QUESTIONS, None, outputs)
    assert predictions[2]["label"] == 0 and predictions[2]["text"] == "a mat"
    assert [list(p["probabilities"]) for p in predictions[::2]] == [
        ["the mat", "a dog"],
        ["a mat", "the home"],
    ]
    assert bind(multiple_choice, CHOICE).scores(QUESTIONS, predictions)["accuracy"] == 100 / 3
    unlabelled = [question._replace(label=None) for question in QUESTIONS]
    assert bind(multiple_choice, CHOICE).scores(unlabelled, predictions) == {}
    encoded = encode_choices(unlabelled)
    batch = task_types.batch_of(multiple_choice, CHOICE, encoded)
    assert bind(multiple_choice, CHOICE).normalizers(batch)["choice_loss"] == 0


@pytest.mark.parametrize(
    "change, says",
    [
        ({"label": 2}, "a.jsonl:1: label 2 is not the number of a choice: give 0 to 1"),
        ({"choices": ("one",)}, "a.jsonl:1: the number of choices is 1; it must be 2 or more"),
    ],
)
def test_bad_choices_are_named(change, says):
    bind(multiple_choice, CHOICE, task="a.jsonl").check(QUESTIONS)
    with pytest.raises(errors.UserError, match=says):
        bind(multiple_choice, CHOICE, task="a.jsonl").check([QUESTIONS[0]._replace(**change)])


@pytest.mark.proof
@pytest.mark.parametrize("family", proofs.all_but(["bert", "gpt2"], "gpt2"))
def test_a_model_learns_choices(family):
    tokenizer = tiny_model.tokenizer("wordpiece" if family == "bert" else "bpe")
    encoded = bind(multiple_choice, CHOICE, tokenizer=tokenizer, lengths=LENGTHS).encode(QUESTIONS)
    model, params = task_types.make(multiple_choice, CHOICE, family=family)
    batch = task_types.batch_of(multiple_choice, CHOICE, encoded, model)
    fitted, _ = task_types.fit(multiple_choice, CHOICE, model, params, batch)
    found = answers(multiple_choice, CHOICE, model, fitted, QUESTIONS, encoded)
    assert [prediction["label"] for prediction in found] == [0, 2, 1]
    assert min(max(prediction["probabilities"].values()) for prediction in found) > 0.8
