"""The report on a pretraining run: written at its end and by `inspect`, whole in one file."""

import json
import shlex
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

import bertjax
from bertjax import __main__ as command_line
from bertjax import checkpoint, plugins, workdir
from bertjax import config as config_lib
from bertjax.artifact import artifact
from bertjax.data.prepared import store
from bertjax.reporting import pretraining, samples
from tests.helpers import buckets, corpora, proofs, web_pages

RECIPE = f"{corpora.ROOT}/configs/bert_tiny.py:smoke"
FLAGS = ("--config.model.vocab_size=150", "--config.num_steps=12", "--config.phase2.num_steps=4",
         "--config.optimizer.warmup_steps=2", "--config.optimizer.decay_steps=0",
         "--config.checkpoint.every=4", "--config.eval.every=6", "--config.log_every=2",
         "--config.phase2.length=32", "--config.phase2.batch_size=16",  # the same program
         "--config.eval.max_samples=32")  # fmt: skip


def _command(capsys, *words) -> tuple[int, str, str]:
    code = command_line.main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return corpora.make(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def run(data):
    flags = (*FLAGS, f"--config.data.path={data / 'prepared'}", f"--workdir={data / 'run'}")
    assert command_line.main(["pretrain", f"--config={RECIPE}", *flags]) == 0
    return data / "run"


def test_the_page_of_a_finished_run_has_every_fact(run, data):
    page = web_pages.Page(run / "report.html")
    assert page.loads() == [] and len(page.source) < 200_000
    assert list(page.sections)[1:] == [
        "Held-out scores", "Curves", "Predictions on held-out text", "Model", "Phases", "Data",
        "Tokenizer", "Config", "Command", "Starts and resumes", "Environment",
    ]  # fmt: skip
    drawn = {"Masked language model loss", "NSP loss", "MLM accuracy", "Learning rate",
             "Gradient norm", "Tokens per second", "Bits per byte of text"}  # fmt: skip
    assert drawn <= {*page.charts}
    assert sum("Tokens per document" in title for title in page.charts) == 1
    assert ["num_steps", "12", "20"] in page.tables["Config"], "beside its recipe"
    assert f"The recipe is {RECIPE}. " in page.sections["Config"]
    train = store.open_dataset(data / "prepared", "train")
    (row,) = page.tables["Data"][1:]
    assert row[:2] == ["prepared", "1"] and row[3] == f"{train.num_documents:,}"
    tokenizer = dict(row for row in page.tables["Tokenizer"])
    assert 1 <= float(tokenizer["tokens per word (fertility)"]) < 5
    assert tokenizer["unknown tokens"] == "0%" and float(tokenizer["bytes per token"]) > 1
    assert [row[0] for row in page.tables["Phases"]] == ["phase", "1", "2"]
    assert "jax" in dict(page.tables["Environment"])
    header = page.tables["Predictions on held-out text"][0]
    assert header[0] == "true piece" and header[1].startswith("step ") and header[-2] == "12"


def test_the_command_on_the_page_gives_the_same_config(run, data, capsys):
    words = shlex.split(web_pages.Page(run / "report.html").sections["Command"].split("The")[0])
    words = [word for word in words[1:] if word.strip()]  # without the title and "bertjax"
    code, out, _ = _command(capsys, *words, "--print_config")
    assert code == 0 and f"data.path={data / 'prepared'}" in out and "num_steps=12" in out


def test_a_resumed_run_has_a_line_for_each_start(run, data, tmp_path, capsys):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "report.html").unlink()
    overrides = {key: value for key, value in (flag[9:].split("=") for flag in FLAGS)}
    overrides["data.path"] = str(data / "prepared")
    bertjax.pretrain(RECIPE, tmp_path / "run", overrides)
    assert f"report in {tmp_path / 'run' / 'report.html'}" in capsys.readouterr().err
    steps = [row[-1] for row in web_pages.Page(tmp_path / "run" / "report.html").tables[
        "Starts and resumes"]]  # fmt: skip
    assert steps == ["from step", "0", "12"]


def test_what_is_missing_is_left_out(run, tmp_path, capsys):
    bare = tmp_path / "run"
    shutil.copytree(run, bare)
    for name in ("starts.jsonl", "metrics.jsonl", "report.html"):
        (bare / name).unlink()
    content = json.loads((bare / "config.json").read_text())
    content["config"]["data"]["path"] = "gone/"
    content.pop("checksum")
    (bare / "config.json").write_text(json.dumps(content))
    code, out, _ = _command(capsys, "inspect", bare, f"--report={tmp_path / 'page.html'}")
    assert code == 0 and out == f"report in {tmp_path / 'page.html'}\n"
    page = web_pages.Page(tmp_path / "page.html")
    assert "gone/: the prepared data is no longer there" in page.sections["Data"]
    assert "The command was not recorded." in page.sections["Command"]
    assert "The recipe was not recorded." in page.sections["Config"]
    assert "Not shown: gone/manifest.json: not found" in page.sections[
        "Predictions on held-out text"]  # fmt: skip
    assert "not been evaluated yet" in page.sections["Held-out scores"]
    assert "Curves" not in page.sections and "Environment" not in page.sections
    shutil.rmtree(bare / "checkpoints")
    assert _command(capsys, "inspect", bare, "--report")[0] == 0
    assert "no checkpoint" in web_pages.Page(bare / "report.html").source


def test_a_page_that_cannot_be_written_does_not_fail_the_run(run, tmp_path, capsys):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "report.html").unlink()
    (tmp_path / "run" / "report.html").mkdir()
    pretraining.write_at_end(tmp_path / "run")
    assert "warning: no report was written: " in capsys.readouterr().err
    (tmp_path / "run" / "starts.jsonl").write_text("{}\n")
    pretraining.write_at_end(tmp_path / "run")
    (line,) = capsys.readouterr().err.splitlines()
    assert "starts.jsonl:1: " in line and "delete that line" in line
    code, _, err = _command(capsys, "inspect", tmp_path / "run", "--report")
    assert code == 2 and "starts.jsonl:1: " in err


def test_a_model_that_no_device_can_hold_has_no_predictions(run, tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    monkeypatch.setattr(samples, "predict", fail)
    page = web_pages.Page(pretraining.write(run, tmp_path / "page.html"))
    assert "too little memory" in page.sections["Predictions on held-out text"]


def test_the_model_card_shows_the_same_facts(run, data, tmp_path, capsys):
    assert _command(capsys, "export", f"--model={run}", f"--output={tmp_path / 'hf'}")[0] == 0
    card = (tmp_path / "hf" / "README.md").read_text()
    train = store.open_dataset(data / "prepared", "train")
    text = f"{train.num_tokens:,} tokens in {train.num_documents:,} documents"
    assert f"- training data: prepared ({text})\n" in card and "\n## Limits\n" in card
    assert "8 of 16 sequences of 32 tokens, then 4 of 16" in card
    assert str(data) not in card, "the path has no meaning elsewhere"


def test_only_runs_have_a_report(run, data, tmp_path, capsys, monkeypatch):
    buckets.install(monkeypatch)
    monkeypatch.chdir(tmp_path)
    model = bertjax.load(run).source
    artifact.write(model, tmp_path / "model")
    for words, message in {
        (tmp_path / "model", "--report"): "this is a model of the format artifact",
        (data / "prepared", "--report"): "contains no model",
        ("gs://bucket/run", "--report"): "gs://bucket/run: not found; give a workdir",
        ("s3://bucket/run", "--report"): "give a local path or gs://",
        (run, "--report=absent/page.html"): "the parent folder does not exist",
        (run, f"--report={tmp_path}"): "is a folder; give the name of a file",
        (run, tmp_path): "add --compare to compare several",
        (run, "--compare"): "--compare: give two folders or more",
    }.items():
        code, _, err = _command(capsys, "inspect", *words)
        assert code == 2 and message in err, words


def test_a_run_in_a_bucket_has_its_page_there(run, monkeypatch, capsys):
    store_of_bucket = buckets.install(monkeypatch)
    for file in ("config.json", "metrics.jsonl", "starts.jsonl", "tokenizer"):
        for path in sorted((run / file).rglob("*")) if (run / file).is_dir() else [run / file]:
            remote = epath.Path(f"gs://bucket/run/{path.relative_to(run)}")
            remote.parent.mkdir(parents=True, exist_ok=True)
            remote.write_bytes(path.read_bytes())
    code, _, err = _command(capsys, "inspect", "gs://bucket/run", "--report")
    assert code == 0, err
    assert any(name.endswith("run/report.html") for name in store_of_bucket)


def test_runs_side_by_side(run, tmp_path, capsys):
    other = tmp_path / "other"
    shutil.copytree(run, other)
    content = json.loads((run / "config.json").read_text())
    content["config"]["optimizer"]["learning_rate"] = 0.5
    content["tokenizer_fingerprint"] = content["tokenizer_fingerprint"][::-1]
    content.pop("checksum")
    (other / "config.json").write_text(json.dumps(content))
    file = tmp_path / "both.html"
    code, _, err = _command(capsys, "inspect", run, other, "--compare", f"--report={file}")
    assert code == 2 and "is not the tokenizer that the model was trained with" in err
    content["tokenizer_fingerprint"] = content["tokenizer_fingerprint"][::-1]
    content["data_fingerprint"] = "other"
    (other / "config.json").write_text(json.dumps(content))
    lines = (other / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    last["eval/mlm_loss"] = 0.25
    (other / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    code, out, _ = _command(capsys, "inspect", run, other, "--compare", f"--report={file}")
    assert code == 0 and f"comparison in {file}" in out
    rows = [line.split() for line in out.splitlines()]
    assert ["config", "run", "other"] in rows and ["score", "run", "other"] in rows
    assert ["optimizer.learning_rate", "0.001", "0.5"] in rows
    assert next(row for row in rows if row[:1] == ["mlm_loss"])[2] == "0.25"
    assert "The runs differ in the training data: " in out
    page = web_pages.Page(file)
    assert page.loads() == [] and "Masked language model loss, held-out" in page.charts
    assert page.tables["Config keys that differ"] == [
        ["key", "run", "other"], ["optimizer.learning_rate", "0.001", "0.5"]]  # fmt: skip
    assert '<td class="good">0.25</td>' in page.source, "the best is highlighted"


def test_guesses_are_those_of_the_checkpoint(run):
    found = samples.predict(run, [6, 12])
    model = bertjax.load(run)
    pieces = model.tokenizer.readable(range(model.tokenizer.size))
    checked = 0
    for sample in found:
        ids = jnp.array([[pieces.index(piece) for piece in sample.pieces]])
        is_end = np.array(sample.pieces) == "[SEP]"
        second = np.minimum(np.cumsum(is_end) - is_end, 1)
        outputs = model.model.apply(
            {"params": model.params}, ids, token_type_ids=jnp.array([second]),
            masked_positions=jnp.array([[token.position for token in sample.tokens]]),
        )  # fmt: skip
        chances = jax.nn.softmax(outputs["mlm_logits"][0, :, :150])
        for token, chances_V in zip(sample.tokens, np.asarray(chances), strict=True):
            guess = token.guesses[-1]
            assert guess.of_truth == pytest.approx(chances_V[pieces.index(token.truth)], rel=1e-3)
            assert guess.probability == pytest.approx(chances_V.max(), rel=1e-3)
            checked += 1
    assert checked > 8 and len(found) == samples.SAMPLES


CASES = [("gpt2", "causal_lm"), ("t5", "span_corruption"), ("electra", "replaced_token_detection"),
         ("gpt2", "prefix_lm"), ("spanbert", "span_boundary"), ("albert", "mlm")]  # fmt: skip


def _first_checkpoint(config, data, folder) -> None:
    """Writes the workdir of a run that has only saved its first parameters."""
    config.model.vocab_size = 250
    if "pad_id" in config.model:
        config.model.pad_id = 0
    train = store.open_dataset(data / "prepared", "train")
    identity = workdir.identity(config, train.tokenizer_fingerprint, train.fingerprint, {})
    workdir.claim(folder, identity, train.load_tokenizer().save)
    params = plugins.init_params(plugins.model(config.family, config.model), jax.random.key(0))
    checkpoints = checkpoint.Checkpoints(folder / "checkpoints", keep_last=5, keep_best=0)
    checkpoints.save(0, {"step": jnp.int32(0), "params": params}, {"step": 0}, None)
    checkpoints.close()


@pytest.mark.parametrize(("family", "objective"), proofs.all_but(CASES, *CASES[:2]))
def test_every_objective_has_samples(family, objective, data, tmp_path):
    config = config_lib.smoke(config_lib.default(family, "mini", objective))
    config.data.path = str(data / "prepared")
    _first_checkpoint(config, data, tmp_path / "run")
    pretraining.write(tmp_path / "run")
    page = web_pages.Page(tmp_path / "run" / "report.html")
    rows = page.tables["Predictions on held-out text"]
    assert rows[0] == ["true piece", "step 0", "true"] and len(rows) > 8
    assert page.loads() == []


def test_a_mixture_has_a_row_and_samples_for_each_source(data, tmp_path):
    config = config_lib.smoke(config_lib.default("bert", "mini"))
    path = str(data / "prepared")
    weights = {"web": 3.0, "books": 1.0}
    config.data.sources = {name: {"path": path, "weight": w} for name, w in weights.items()}
    _first_checkpoint(config, data, tmp_path / "run")
    metrics = {"step": 10, "eval/loss": 5.0, "eval/web/loss": 4.0, "eval/books/loss": 8.0,
               "data/web/epochs": 0.5, "data/books/epochs": 2.0}  # fmt: skip
    (tmp_path / "run" / "metrics.jsonl").write_text(json.dumps(metrics) + "\n")
    pretraining.write(tmp_path / "run")
    page = web_pages.Page(tmp_path / "run" / "report.html")
    rows = {row[0]: row[-2:] for row in page.tables["Data"]}
    assert rows["web"] == ["75%", "0.5"] and rows["books"] == ["25%", "2"]
    assert ["web", "4"] in page.tables["Held-out scores"]
    shown = page.sections["Predictions on held-out text"]
    assert shown.count(", web") == shown.count(", books") == 2
    assert "Loss, as minimised by source, held-out" in page.charts
