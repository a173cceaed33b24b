"""Fine-tuned models as Hugging Face folders: the same logits there, the same task back here."""

import dataclasses
import json

import numpy as np
import pytest
import safetensors.numpy

from bertjax import config as config_lib
from bertjax import errors, plugins, workdir
from bertjax.artifact import artifact, hf_tasks, huggingface
from bertjax.finetuning import predictor
from bertjax.finetuning.task_types import text_to_text
from tests.helpers import downstream, encoders, proofs, tiny_model

FAMILIES = ("bert", "deberta", "modernbert", "gpt2")
some_cases = pytest.mark.parametrize(
    ("family", "ending"),
    proofs.all_but(downstream.CASES, *(case for case in downstream.CASES if case[0] in FAMILIES)),
)

BERT = ("bert", "ForSequenceClassification")


def _config(folder):
    return json.loads((folder / "config.json").read_text())


def _configure(folder, **changes):
    changes["checksum"] = ...  # files of earlier versions have none
    content = {k: v for k, v in (_config(folder) | changes).items() if v is not ...}
    (folder / "config.json").write_text(json.dumps(content))


@some_cases
def test_folder_comes_back_with_its_task(family, ending, tmp_path):
    model = downstream.make(family, ending)
    huggingface.write(model, tmp_path / "hf")
    assert _config(tmp_path / "hf")["architectures"][0].endswith(ending)
    read = huggingface.read(tmp_path / "hf")
    assert read.task == model.task
    assert read.fields == {name: model.fields[name] for name in read.fields}
    assert read.fields["num_labels"] == model.fields["num_labels"]
    downstream.assert_same_params(read.params, model.params)
    huggingface.write(read, tmp_path / "again")
    for name in ("config.json", huggingface.WEIGHTS):
        assert (tmp_path / "hf" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


@some_cases
def test_transformers_says_the_same(family, ending, tmp_path):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    model = downstream.make(family, ending)
    huggingface.write(model, tmp_path / "hf")
    name = _config(tmp_path / "hf")["architectures"][0]
    theirs, info = getattr(transformers, name).from_pretrained(
        tmp_path / "hf", output_loading_info=True, attn_implementation="eager"
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[kind], kind
    inputs = downstream.batch(model.tokenizer)
    downstream.assert_same_logits(model, theirs, inputs)
    if model.task["labels"]:
        assert theirs.config.id2label == dict(enumerate(downstream.LABELS))
        assert theirs.config.label2id["good"] == 2
    # And what they write comes back, the task in their own words.
    theirs.save_pretrained(tmp_path / "theirs")
    model.tokenizer.save(str(tmp_path / "theirs"))
    assert _config(tmp_path / "theirs")["bertjax"] == {"task": model.task}
    _configure(tmp_path / "theirs", bertjax=...)
    read = huggingface.read(tmp_path / "theirs")
    downstream.assert_same_params(read.params, model.params)
    assert read.task["kind"] == model.task["kind"] and read.task["labels"] == model.task["labels"]


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_t5_writes_in_transformers_what_it_writes_here(tmp_path, num_beams):
    """It ends with the tokenizer's own end, and the ids above its pieces are no text."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    # As many layers on both sides: transformers counts the cache of one by the other.
    size = tiny_model.tokenizer().size + 7
    source = encoders.make_artifact("t5", vocab_size=size, num_layers=2, num_decoder_layers=2)
    config = text_to_text.Config(
        prefix="saw: ", max_target_length=6, num_beams=num_beams, length_penalty=0.8
    )
    task = {"name": "translation", "kind": "text_to_text", "labels": [], "max_length": 24,
            "config": dataclasses.asdict(config)}  # fmt: skip
    model = predictor.Predictor(dataclasses.replace(downstream.soft(source), task=task))
    huggingface.write(model.source, tmp_path / "hf")
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "hf").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert theirs.config.prefix == "saw: " and tokenizer.model_max_length == 24
    texts = ["the cat", "a dog ran home", "letters", "and saw many words"]
    found = []
    for text in texts:
        with torch.no_grad():
            ids = theirs.generate(**tokenizer([f"saw: {text}"], return_tensors="pt"))
        found.append(model.source.tokenizer.decode(ids[0].tolist()).strip())
    ours = [prediction["text"] for prediction in model.predict(texts)]
    assert found == ours and len(set(ours)) > 1


def test_labels_of_a_later_training_hold(tmp_path):
    model = downstream.make(*BERT)
    huggingface.write(model, tmp_path)
    assert huggingface.read(tmp_path).task == model.task
    names = {str(i): f"other {i}" for i in range(len(model.task["labels"]))}
    _configure(tmp_path, id2label=names, label2id={name: int(i) for i, name in names.items()})
    task = huggingface.read(tmp_path).task
    assert task["labels"] == list(names.values()) and task["name"] == "classification"


def test_a_number_is_one_label(tmp_path):
    model = downstream.make(*BERT, config={"regression": True}, labels=[])
    model.fields["num_labels"] = 1
    params = model.params | {
        "classifier": {"logits": {"kernel": np.ones((16, 1), np.float32), "bias": np.ones(1)}}
    }
    params["classifier"]["logits"]["bias"] = np.ones(1, np.float32)
    model = artifact.Artifact("bert", model.fields, params, model.tokenizer, task=model.task)
    huggingface.write(model, tmp_path / "hf")
    content = _config(tmp_path / "hf")
    assert content["problem_type"] == "regression" and len(content["id2label"]) == 1
    _configure(tmp_path / "hf", bertjax=...)
    task = huggingface.read(tmp_path / "hf").task
    assert (task["name"], task["labels"], task["config"]) == (
        "regression",
        [],
        {"regression": True},
    )


def test_what_a_folder_says_of_labels(tmp_path):
    model = downstream.make(*BERT)
    huggingface.write(model, tmp_path / "hf")
    _configure(tmp_path / "hf", bertjax=..., id2label=..., label2id=..., num_labels=3)
    assert huggingface.read(tmp_path / "hf").task["labels"] == ["LABEL_0", "LABEL_1", "LABEL_2"]
    for change, word in (
        ({"id2label": {"0": "a", "2": "b"}}, "id2label"),
        ({"id2label": {"0": "a", "1": "b"}}, "classifier"),
        ({"problem_type": "regression"}, "regression with [23] outputs is not supported"),
    ):
        huggingface.write(model, tmp_path / "hf")
        _configure(tmp_path / "hf", bertjax=..., **change)
        with pytest.raises(errors.UserError, match=word):
            huggingface.read(tmp_path / "hf")


def test_a_pooler_that_the_class_does_not_read_is_left_out(tmp_path):
    """As BertForTokenClassification of older transformers has it."""
    model = downstream.make("bert", "ForTokenClassification")
    huggingface.write(model, tmp_path / "hf")
    file = tmp_path / "hf" / huggingface.WEIGHTS
    tensors = safetensors.numpy.load_file(file)
    pooler = {"bert.pooler.dense.weight": np.zeros((16, 16), np.float32)}
    safetensors.numpy.save_file(tensors | pooler, file, metadata={"format": "pt"})
    assert huggingface.read(tmp_path / "hf").fields["heads"] == ("token_classifier",)
    del tensors["classifier.weight"]
    safetensors.numpy.save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(errors.UserError, match="do not contain classifier"):
        huggingface.read(tmp_path / "hf")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"heads": ("pooler", "mlm", "classifier")}, "pooler, mlm, classifier"),
        ({"heads": ("pooler", "classifier", "span")}, "no bert class"),
        ({"adapter_size": 4}, "adapters"),
    ],
)
def test_what_no_class_can_hold_is_refused(change, word, tmp_path):
    model = encoders.make_artifact("bert", **{"heads": ("pooler",), "num_labels": 2, **change})
    with pytest.raises(errors.UserError, match=word) as caught:
        huggingface.write(model, tmp_path / "hf")
    assert "--format=artifact" in str(caught.value) and not (tmp_path / "hf").exists()


def test_what_theirs_reads_otherwise_is_refused(tmp_path):
    prompted = downstream.make(*BERT, prompt_ids=[60, 61])
    with pytest.raises(errors.UserError, match="prompt"):
        huggingface.write(prompted, tmp_path / "hf")
    task = {"name": "text_to_text", "kind": "text_to_text", "labels": [], "max_length": 24,
            "config": dataclasses.asdict(text_to_text.Config(reader="prefix"))}  # fmt: skip
    prefix = dataclasses.replace(encoders.make_artifact("gpt2"), task=task)
    with pytest.raises(errors.UserError, match=r"both directions .* --format=artifact"):
        huggingface.write(prefix, tmp_path / "hf")
    for family in ("roberta", "gpt2"):  # theirs reads the pooler; there is none
        model = downstream.make(family, "ForSequenceClassification", kind="multiple_choice")
        with pytest.raises(errors.UserError, match="multiple choice"):
            huggingface.write(model, tmp_path / "hf")


def test_every_class_of_the_table_is_one_of_theirs():
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    for family, ending in downstream.CASES:
        assert hasattr(transformers, hf_tasks.architecture(plugins.family(family), ending))


def test_artifact_keeps_the_task(tmp_path):
    model = downstream.make(*BERT)
    artifact.write(model, tmp_path / "a")
    read = artifact.read(tmp_path / "a")
    assert (read.task, read.fields) == (model.task, model.fields)
    downstream.assert_same_params(read.params, model.params)
    _configure(tmp_path / "a", task=["mine"])
    with pytest.raises(errors.UserError, match=r"task = \['mine'\]: must be an object or null"):
        artifact.read(tmp_path / "a")


@pytest.mark.parametrize(
    ("family", "later"),
    [("modernbert", ["classifier_pooling"]), ("t5", ["scaled_output", "decoder_start_id"])],
)
def test_a_model_from_before_a_field_was_there_is_exported_with_its_default(
    family, later, tmp_path
):
    model = encoders.make_artifact(family)
    before = {name: value for name, value in model.fields.items() if name not in later}
    huggingface.write(dataclasses.replace(model, fields=before), tmp_path / "hf")
    assert huggingface.read(tmp_path / "hf").fields == model.fields


def test_artifacts_and_runs_from_before_are_what_they_were(tmp_path):
    model = encoders.make_artifact("bert")
    artifact.write(model, tmp_path / "a")
    content = _config(tmp_path / "a")
    assert content["task"] is None
    fields = {k: v for k, v in content["model"].items() if k not in ("num_labels", "adapter_size")}
    assert len(fields) == len(content["model"]) - 2
    _configure(tmp_path / "a", task=..., model=fields)
    read = artifact.read(tmp_path / "a")
    assert read.task is None
    downstream.assert_same_params(read.params, model.params)

    config = config_lib.default()
    mine = workdir.identity(config, "tokenizer", "data", {})
    workdir.claim(tmp_path / "run", mine, lambda folder: None)
    (tmp_path / "run" / workdir.CHECKPOINTS / "5").mkdir(parents=True)
    stored = _config(tmp_path / "run")
    del stored["config"]["model"]["num_labels"], stored["config"]["model"]["adapter_size"]
    _configure(tmp_path / "run", config=stored["config"])
    workdir.claim(tmp_path / "run", mine, lambda folder: None)
    config.model.adapter_size = 8
    other = workdir.identity(config, "tokenizer", "data", {})
    with pytest.raises(errors.UserError, match="adapter_size = 8"):
        workdir.claim(tmp_path / "run", other, lambda folder: None)
