"""Collections as dev and test of embeddings, and the search of encoders by command."""

import json

import numpy as np
import pytest

import bertjax
from bertjax import __main__ as command_line
from bertjax import errors
from bertjax.finetuning import output_folder, recipe, retrieval, run
from bertjax.finetuning.examples import queries
from tests.helpers import toy_tasks

pytest.importorskip("pytrec_eval", reason="pytrec-eval-terrier is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns a folder with a model, a collection and pairs for training."""
    folder = tmp_path_factory.mktemp("retrieval")
    toy_tasks.model(folder)
    toy_tasks.collection(folder)
    toy_tasks.candidates(folder)
    lines = (folder / "train.tsv").read_text().splitlines()[1:]
    pairs = ["\t".join(line.split("\t")[:2]) for line in lines]
    (folder / "pairs.tsv").write_text("\n".join(["anchor\tpositive", *pairs]) + "\n")
    return folder


@pytest.fixture(scope="module")
def trained(folder):
    files = {"train": folder / "pairs.tsv", "dev": folder / "beir",
             "test": folder / "beir" / "qrels" / "test.tsv"}  # fmt: skip
    values = {"model": str(folder / "model"), **toy_tasks.QUICK, "num_epochs": 2}
    return run.finetune(
        recipe.make("embeddings", None, files, values), folder / "out", tell=lambda line: None
    )


@pytest.mark.proof
def test_a_collection_selects_the_best_model(folder, trained):
    report = trained.report
    assert report["metrics"][0] == "ndcg_at_10"
    dev, test = report["splits"]["dev"], report["splits"]["test"]
    assert dev["ndcg_at_10"]["mean"] > 85
    assert dev == test  # the same judgements
    examples = queries.read(folder / "beir", "test")
    found = retrieval.run(trained.model, examples)
    assert examples.scores(found)["ndcg_at_10"] == pytest.approx(test["ndcg_at_10"]["mean"])
    lines = (folder / "out" / "predictions" / "test.jsonl").read_text().splitlines()
    assert len(lines) == 4
    prediction = json.loads(lines[0])["prediction"]
    assert list(prediction["documents"]) == list(found["q0"])


@pytest.mark.proof
def test_the_search_is_the_loop_over_cosines(folder):
    examples = queries.read(folder / "beir", "test", depth=3)
    model = bertjax.load(folder / "model")
    found = retrieval.run(model, examples)
    vectors = model.encode(examples.texts())
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    names = list(examples.collection.documents)
    for query, vector in zip(examples, vectors, strict=False):
        cosines = vectors[len(examples) :] @ vector
        best = np.argsort(-cosines, kind="stable")[:3]
        assert list(found[query.id]) == [names[i] for i in best]
        np.testing.assert_allclose(list(found[query.id].values()), cosines[best], atol=1e-5)


def test_a_document_with_the_id_of_the_query_is_no_result(folder):
    examples = queries.read(folder / "beir", "test", depth=2)
    examples[0] = examples[0]._replace(id="d3")
    vectors = np.eye(16, 12, -4, dtype=np.float32)
    vectors[0, 3] = 1  # the vector of d3
    run_ = examples.search(vectors)
    assert "d3" not in run_["d3"] and len(run_["d3"]) == 2
    vectors[1:3] = np.nan
    for found in examples.search(vectors).values():
        assert np.isfinite(list(found.values())).all()


def test_a_changed_collection_is_other_data(folder):
    examples = queries.read(folder / "beir", "test")
    changed = queries.read(folder / "beir", "test")
    changed.collection.qrels["q0"]["d0"] = 3
    assert output_folder._digest(examples) != output_folder._digest(changed)


def call(capsys, *flags):
    code = command_line.main(list(map(str, flags)))
    out, err = capsys.readouterr()
    return code, " ".join((out + err).split())


def test_an_encoder_searches_by_command(folder, capsys):
    model, data = f"--model={folder / 'model'}", f"--data={folder / 'beir'}"
    code, out = call(capsys, "predict", model, data, "--top=2")
    assert code == 0 and out.count(" Q0 ") == 8
    code, out = call(capsys, "evaluate", model, data, "--split=train")
    assert code == 2 and "its splits are dev, test" in out
    code, out = call(capsys, "evaluate", model, data, "--max_samples=3")
    assert code == 2 and "--max_samples cannot be used with a collection" in out
    (folder / "a.trec").write_text("q0 Q0 d1 1 0.5 x\n")
    code, out = call(capsys, "evaluate", model, data, f"--run={folder / 'a.trec'}")
    assert code == 2 and "only a cross-encoder reranks a run" in out
    code, out = call(capsys, "evaluate", model, f"--data={folder / 'pairs.tsv'}", "--split=dev")
    assert code == 2 and "--split can only be used with a collection" in out
    code, out = call(capsys, "predict", model, f"--data={folder / 'pairs.tsv'}", "--top=3")
    assert code == 2 and "--top with --data needs a collection" in out


def test_only_dev_and_test_of_embeddings_are_collections(folder):

    def refused(task, **files):
        values = {"model": str(folder / "model")}
        config = recipe.make(task, None, {k: folder / v for k, v in files.items()}, values)
        with pytest.raises(errors.UserError) as error:
            run.finetune(config, folder / "refused", tell=lambda line: None)
        return str(error.value)

    assert "which only dev and test of the tasks" in refused("embeddings", train="beir")
    assert "which only dev and test of the tasks" in refused(
        "rerank", train="train.tsv", dev="beir"
    )
    both = refused("embeddings", train="pairs.tsv", dev="beir", test="pairs.tsv")
    assert "--dev is a collection for retrieval, so --test must be one too" in both
