"""Margins of a teacher: read from scores, trained on, predicted and scored."""

import numpy as np
import pytest

from bertjax import errors
from bertjax.finetuning import rows
from bertjax.finetuning.examples import types as examples_lib
from bertjax.finetuning.task_types import embeddings
from tests.helpers import task_types, tiny_model
from tests.helpers.task_types import bind

MARGIN = embeddings.Config(loss="margin_mse", normalize=False)


def encode(examples):
    return bind(
        embeddings, MARGIN, tokenizer=tiny_model.tokenizer(), lengths=rows.Lengths(24)
    ).encode(examples)


def taught(*labels):
    texts = ("the cat", "the mat", "ran home"), ("a dog", "saw", "letters", "home"), ("on", "a",
             "many words")  # fmt: skip
    return [
        examples_lib.Sentence(t, label, where=f"train.tsv:{i}")
        for i, (t, label) in enumerate(zip(texts, labels, strict=False), 2)
    ]


def test_margins_are_the_differences_of_scores():
    batch = task_types.batch_of(embeddings, MARGIN, encode(taught((3, 1), (4, 1, -2), 2)))
    assert batch["label"].tolist() == [[2, 0], [3, 6], [2, 0]]
    assert batch["label_weight"].tolist() == [[1, 0], [1, 1], [1, 0]]
    batch["example_weights"][0] = 0
    assert float(bind(embeddings, MARGIN).normalizers(batch)["margin_mse_loss"]) == 3


def test_margins_are_predicted_and_scored():
    vectors = np.array([[[1, 0], [3, 1], [1, 5], [0, 0]], [[0, 2], [0, 1], [0, 3], [0, 2]]])
    examples = taught((3, 1), (1, 3, 2))
    found = bind(embeddings, MARGIN).decode(examples, None, {"vectors": vectors})
    assert [(answer["similarity"], answer["margins"]) for answer in found] == [
        (3, [2]), (2, [-4, -2])
    ]  # fmt: skip
    assert [answer["rank"] for answer in found] == [1, 5]
    scores = bind(embeddings, MARGIN).scores(examples, found)
    assert scores["mrr"] == pytest.approx(60) and scores["pearson"] > 95
    unlabelled = [example.unlabelled() for example in examples]
    assert set(bind(embeddings, MARGIN).scores(unlabelled, found)) == {"accuracy_at_1", "mrr"}


@pytest.mark.parametrize(
    ("config", "texts", "label", "says"),
    [
        (MARGIN, ("a", "b"), 2.0, "train.tsv:2: has no negative, which config.kind.loss = 'margin"),
        (MARGIN, ("a", "b", "c"), (1.0, 2.0, 3.0), r"train.tsv:2: the scores \(1.0, 2.0, 3.0\) do "
         r"not fit 1 negative: .* \(2 numbers\), or their difference"),
        (MARGIN, ("a", "b", "c", "d"), 2.0, "train.tsv:2: the scores 2.0 do not fit 2 negative"),
        (MARGIN, ("a", "b", "c"), None, "train.tsv:2: no score, which config.kind.loss = 'margin"),
        (embeddings.Config(loss="margin_mse"), ("a", "b", "c"), (9.5, 2.0), "train.tsv:2: the "
         "teacher's scores differ by 7.5, .* set --config.kind.normalize=false, or scale"),
    ],
)  # fmt: skip
def test_scores_of_a_teacher_must_fit(config, texts, label, says):
    with pytest.raises(errors.UserError, match=says):
        bind(embeddings, config).label_names(
            [examples_lib.Sentence(texts, label, where="train.tsv:2")]
        )


@pytest.mark.proof
def test_a_student_learns_the_margins():
    examples = taught((3.0, 1.0), (4.0, 1.0, -2.0), 2.0)
    encoded = encode(examples)
    batch = task_types.batch_of(embeddings, MARGIN, encoded)
    model, params = task_types.make(embeddings, MARGIN)
    fitted, losses = task_types.fit(embeddings, MARGIN, model, params, batch)
    outputs = task_types.outputs_of(embeddings, MARGIN, model, fitted, batch)
    predictions = bind(embeddings, MARGIN).decode(examples, encoded, outputs)
    assert losses[-1] < 0.5 * losses[0]
    assert bind(embeddings, MARGIN).scores(examples, predictions)["pearson"] > 95
