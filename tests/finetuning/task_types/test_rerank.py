"""Rerankers: rows, losses, scores by query, and the front door from training to reranking."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from bertjax import __main__ as command_line
from bertjax import errors
from bertjax.artifact import artifact, huggingface
from bertjax.data.corpus import trec_runs
from bertjax.finetuning import rows, run
from bertjax.finetuning.examples import queries
from bertjax.finetuning.examples import types as examples_lib
from bertjax.finetuning.task_types import rerank
from tests.helpers import tiny_model, toy_tasks
from tests.helpers.task_types import bind

pytest.importorskip("pytrec_eval", reason="pytrec-eval-terrier is not installed")
BINARY, SOFTMAX = rerank.Config("binary"), rerank.Config("softmax")
MARGIN = rerank.Config("margin_mse")
Candidates = examples_lib.Candidates


def typed(config=BINARY, length=12):
    return bind(rerank, config, tokenizer=tiny_model.tokenizer(), lengths=rows.Lengths(length))


def terms(config, scores, labels, weights, example_weights):
    """Returns (loss sum, weight) for scores [B, N] that the model gives."""

    def apply(input_ids, **inputs):
        return {"class_logits": jnp.array(scores, jnp.float32).reshape(-1, 1)}

    batch = {
        "input_ids": jnp.zeros((*np.shape(scores), 3), int),
        "label": jnp.array(labels, jnp.float32),
        "label_weight": jnp.array(weights, jnp.float32),
        "example_weights": jnp.array(example_weights, jnp.float32),
    }
    (found,) = bind(rerank, config).loss(apply, batch).values()
    (normalizer,) = bind(rerank, config).normalizers(batch).values()
    assert found[1] == normalizer
    return found


def test_rows_of_the_losses():
    examples = [
        Candidates("cat", ("the cat", "a dog ran"), (1.0, 0.0), (7.0, 2.0)),
        Candidates("dog", ("a dog",)),
    ]
    binary, margin = typed().encode(examples), typed(MARGIN).encode(examples)
    softmax = typed(SOFTMAX).encode(examples)
    assert softmax.owners.tolist() == [0, 1]
    assert [row["label"].tolist() for row in softmax.rows] == [[1, 0], [0, 0]]
    assert [row["label_weight"].tolist() for row in softmax.rows] == [[1, 1], [0, 0]]
    assert binary.owners.tolist() == [0, 0, 1] and margin.owners.tolist() == [0, 1]
    assert [row["label"].tolist() for row in binary.rows] == [[1], [0], [0]]
    assert [row["label_weight"].tolist() for row in binary.rows] == [[1], [1], [0]]
    assert [row["label"].tolist() for row in margin.rows] == [[7, 2], [0, 0]]
    assert [row["label_weight"].tolist() for row in margin.rows] == [[0, 1], [0, 0]]
    query, document = typed().tokenizer.encode_batch(["cat", "a dog ran"])
    assert binary.rows[1]["input_ids"][0, 1 : 1 + len(query)].tolist() == list(query)
    assert binary.rows[1]["input_ids"][0, 2 + len(query) : -1].tolist() == list(document)
    assert margin.rows[0]["token_type_ids"].max() == 1


def test_a_long_document_is_truncated_and_the_query_is_not():
    encoded = typed().encode([Candidates("the cat", ("ran " * 30,))])
    assert encoded.truncated.tolist() == [True]
    row = encoded.rows[0]
    assert row["input_ids"].shape == (1, 12)
    assert (row["token_type_ids"][0] == 0).sum() == len(typed().tokenizer.encode("the cat")) + 2


def test_the_losses_are_those_of_the_formulas():
    scores, labels = [[2.0], [-1.0], [9.0]], [[1.0], [0.25], [1.0]]
    total, weight = terms(BINARY, scores, labels, [[1], [1], [1]], [1, 1, 0])

    def entropy(score, label):
        p = 1 / (1 + np.exp(-score))
        return -label * np.log(p) - (1 - label) * np.log(1 - p)

    assert weight == 2 and total == pytest.approx(entropy(2, 1) + entropy(-1, 0.25), rel=1e-6)
    scores = [[2.0, 1.0, 0.0], [1.0, 3.0, 9.0], [4.0, 0.0, 0.0]]
    labels = [[1.0, 0.0, 1.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    weights = [[1, 1, 1], [1, 1, 0], [1, 1, 1]]
    total, weight = terms(SOFTMAX, scores, labels, weights, [1, 1, 0])
    first = np.log(np.exp(scores[0]).sum()) - (2 + 0) / 2  # half of the label for each match
    assert weight == 2 and total == pytest.approx(first + np.log1p(np.exp(2)), rel=1e-6)
    scores, labels = [[3.0, 1.0, 5.0], [1.0, 0.0, 0.0]], [[9.0, 8.0, 0.0], [4.0, 1.0, 0.0]]
    total, weight = terms(MARGIN, scores, labels, [[0, 1, 1], [0, 1, 0]], [1, 1])
    assert weight == 3 and total == pytest.approx((2 - 1) ** 2 + (-2 - 9) ** 2 + (1 - 3) ** 2)


def test_candidates_are_ranked_by_query():
    """Rows of one query are one ranking, whether they are in one example or in several."""
    examples = [
        Candidates("q", ("a",), (0.4,)), Candidates("q", ("b",), (0.5,)),
        Candidates("r", ("a", "b", "c"), (1.0, 0.0, 0.0)),
        Candidates("all relevant", ("a", "b"), (1.0, 1.0)),
    ]  # fmt: skip
    predictions = [{"scores": s} for s in ([2.0], [1.0], [0.0, -1.0, 3.0], [0.0, 0.0])]
    found = typed().scores(examples, predictions)
    assert found["mrr_at_10"] == pytest.approx(50)
    same = [{"scores": [0.0] * len(e.documents)} for e in examples]
    ties = typed().scores(examples, same)["mrr_at_10"]
    assert ties == pytest.approx(100 * (1 + 1 / 3) / 2)  # the first document ranks last
    with pytest.raises(errors.UserError, match="no query has both relevant documents and others"):
        typed().scores(examples[3:], predictions[3:])


@pytest.mark.parametrize(
    ("config", "example", "says"),
    [
        (MARGIN, Candidates("q", ("a", "b"), (1.0, 0.0), where="a.tsv:2"),
         "a.tsv:2: no scores of a teacher"),
        (BINARY, Candidates("q", ("a", "b"), (1.0, 0.0), (2.0, 1.0), where="a.tsv:2"),
         "a.tsv:2: has scores of a teacher, which .*--config.kind.loss=margin_mse"),
        (SOFTMAX, Candidates("q", ("a",), (1.0,), where="a.tsv:2"), "a.tsv:2: all documents have "
         "the label 1; config.kind.loss = 'softmax' compares"),
        (BINARY, Candidates("q", ("a",), (1.0,)), "all documents .* label 1: add doc"),
    ],
)  # fmt: skip
def test_train_must_fit_the_loss(config, example, says):
    with pytest.raises(errors.UserError, match=says):
        bind(rerank, config).label_names([example])


def test_the_loss_is_chosen_by_the_examples():
    group, single = Candidates("q", ("a", "b"), (1.0, 0.0)), Candidates("q", ("a",), (1.0,))
    taught = Candidates("q", ("a", "b"), (1.0, 0.0), (2.0, 1.0))

    def chosen(*examples, config=rerank.Config()):  # noqa: B008
        return bind(rerank, config).for_train(examples).config.loss

    assert chosen(group) == "softmax" and chosen(group, single) == "binary"
    assert chosen(taught) == "margin_mse" and chosen(group, config=BINARY) == "binary"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Returns a folder with a trained reranker, its Hugging Face folder and a collection."""
    folder = tmp_path_factory.mktemp("rerank")
    toy_tasks.candidates(folder, asked=("cat",))
    config = toy_tasks.config("rerank", toy_tasks.model(folder), folder, batch_size=16)
    result = run.finetune(config, folder / "out", tell=lambda line: None)
    huggingface.write(artifact.read(folder / "out" / "artifact"), folder / "hf")
    toy_tasks.collection(folder)
    return folder, result


def call(capsys, verb, *flags):
    """Returns (exit code, output)."""
    code = command_line.main([verb, *map(str, flags)])
    out, err = capsys.readouterr()
    return code, out + err


@pytest.mark.proof
def test_training_learns_to_rank(trained):
    folder, result = trained
    assert result.report["metrics"] == ["ndcg_at_10", "mrr_at_10", "map_at_100"]
    assert result.report["splits"]["dev"]["mrr_at_10"]["mean"] > 90
    found = result.model.predict(("cat the", "mat cat", "mat dog"))["scores"]
    assert found[0] > found[1] + 1
    assert result.model.evaluate(folder / "dev.tsv")["mrr_at_10"] > 90


def test_a_first_stage_is_reranked(trained, capsys):
    folder, _ = trained
    first, second, numbers = (folder / name for name in ("first.trec", "second.trec", "n.json"))
    data = f"--data={folder / 'beir'}"
    code, out = call(capsys, "evaluate", f"--model={folder / 'model'}", data, f"--output={first}")
    assert code == 0, out
    assert "4 queries and 12 documents" in out
    code, out = call(capsys, "evaluate", f"--model={folder / 'out'}", data, f"--run={first}",
                     f"--output={second}", f"--json={numbers}", "--top=9")  # fmt: skip
    assert code == 0, out
    scores, examples = json.loads(numbers.read_text()), queries.read(folder / "beir", "test")
    for file, prefix in ((first, "first_"), (second, "")):
        found = examples.scores(trec_runs.read(str(file), examples.collection))
        assert found == {name: scores[prefix + name] for name in found}

    def ranked(file):
        lines = [line.split() for line in file.read_text().splitlines()]
        return [line[2] for line in lines if line[0] == "q0"]

    before, after = ranked(first), ranked(second)
    cats = [name in examples.collection.qrels["q0"] for name in after[:9]]
    assert cats == sorted(cats, reverse=True)  # 7 of the 12 documents are about cats
    assert len(before) == 12 and after[9:] == before[9:]
    assert set(after[:9]) == set(before[:9])
    code, out = call(capsys, "predict", f"--model={folder / 'out'}", data, f"--run={first}",
                     "--top=9")  # fmt: skip
    assert code == 0 and second.read_text().splitlines()[0] in out


def test_a_folder_of_transformers_has_one_label_and_comes_back(trained):
    folder, result = trained
    content = json.loads((folder / "hf" / "config.json").read_text())
    assert content["architectures"] == ["BertForSequenceClassification"]
    assert content["id2label"] == {"0": "LABEL_0"} and content["problem_type"] == "regression"
    identity = {"activation_fn": "torch.nn.modules.linear.Identity"}  # scores without a sigmoid
    assert content["sentence_transformers"] == identity
    pairs = [("cat the", "mat cat"), ("dog the", "mat cat")]
    again = bertjax.load(folder / "hf")
    assert again.task_type.name == "rerank"
    assert again.predict(pairs) == result.model.predict(pairs)


def test_a_reranker_needs_a_run_and_knows_its_ids(trained, capsys):
    folder, _ = trained
    flags = [f"--model={folder / 'out'}", f"--data={folder / 'beir'}"]
    code, out = call(capsys, "evaluate", *flags)
    assert code == 2 and "reranks the results of a search: give a run" in out
    (folder / "bad.trec").write_text("q0 Q0 d99 1 0.5 x\n")
    code, out = call(capsys, "predict", *flags, f"--run={folder / 'bad.trec'}")
    assert code == 2 and "bad.trec:1: there is no document 'd99' in corpus.jsonl" in out
