"""Tasks in config.json that are damaged: one line that names the key."""

import dataclasses

import pytest

from bertjax import errors
from bertjax.artifact import artifact, hf_tasks
from bertjax.finetuning import task_types

TASK = {"name": "t", "kind": "classification", "config": {"regression": False},
        "labels": ["a", "b"], "max_length": 16}  # fmt: skip
SEQUENCE = "ForSequenceClassification"
NAMES = {"id2label": {"0": "a", "1": "b"}}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"id2label": 7}, "id2label: 7: must be an object"),
        ({"id2label": ["a", "b"]}, "id2label: .* must be an object"),
        ({"num_labels": 10**12}, "num_labels: 1000000000000: must be an integer"),
        ({"num_labels": "2"}, "num_labels: '2': must be an integer"),
        (NAMES | {"bertjax": {"task": 3}}, "bertjax.task: 3: must be an object"),
        (NAMES | {"bertjax": {"task": {"kind": "tokens"}}}, "an object with the key 'name'"),
        (NAMES | {"bertjax": {"task": TASK | {"max_length": "long"}}}, "max_length = 'long'"),
    ],
)
def test_damaged_task_of_a_hugging_face_folder_is_one_line(content, says):
    with pytest.raises(errors.UserError, match=says) as caught:
        hf_tasks.read(content, SEQUENCE, 16, "config.json")
    assert "\n" not in str(caught.value)


def test_sound_tasks_are_read():
    assert hf_tasks.read(NAMES | {"bertjax": {"task": TASK}}, SEQUENCE, 16, "") == TASK
    assert hf_tasks.read({"num_labels": 3}, SEQUENCE, 16, "")["labels"][2] == "LABEL_2"


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"regression": "no"}, "task: config: regression = 'no': must be true or false"),
        ({"regresion": True}, "unknown key; did you mean|unknown key"),
    ],
)
def test_damaged_config_of_a_kind_is_one_line(config, says):
    model = artifact.Artifact("bert", {}, {}, None, task=TASK | {"config": config})
    with pytest.raises(errors.UserError, match=says):
        task_types.of_artifact(model)
    whole = dataclasses.replace(model, task=TASK)
    assert task_types.of_artifact(whole).config.regression is False
