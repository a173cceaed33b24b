"""Runs that must stop: those that diverge, and a second run in a folder that one already uses."""

import contextlib
import fcntl
import os
import pathlib
import re

import numpy as np
import pytest

from bertjax import config, errors, train, workdir
from bertjax.artifact import artifact, loading
from bertjax.finetuning import run
from tests.helpers import corpora, toy_tasks

SMOKE = str(pathlib.Path(__file__).resolve().parent.parent / "configs" / "bert_tiny.py") + ":smoke"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return corpora.make(tmp_path_factory.mktemp("corpus"))


def _config(data, **overrides):
    keys = {"data.path": str(data / "prepared"), "model.vocab_size": "150", "num_steps": "40"}
    keys |= {"phase2.num_steps": "0", "optimizer.decay_steps": "0"}
    return config.load(SMOKE, keys | {k.replace("__", "."): str(v) for k, v in overrides.items()})


DIVERGES = {"optimizer__learning_rate": 1e38, "optimizer__clip_norm": 0.0, "max_bad_steps": 3}


def test_diverging_run_stops_and_names_the_last_good_checkpoint(data, tmp_path):
    conf = _config(data, checkpoint__every=1, optimizer__warmup_steps=10, **DIVERGES)
    with pytest.raises(errors.UserError, match="not finite in 3 steps in a row") as caught:
        train.train_and_evaluate(conf, tmp_path / "run")
    (good,) = re.findall(r"--config\.init_from=(\S+) to keep .* last good", str(caught.value))
    assert good == str(tmp_path / "run" / "checkpoints" / str(workdir.saved_step(tmp_path / "run")))
    params = artifact.flatten(loading.load(good).params)
    assert params and all(np.isfinite(leaf).all() for leaf in params.values())


def test_a_run_that_diverges_at_once_is_advised_to_start_again(data, tmp_path):
    conf = _config(data, checkpoint__every=30, optimizer__warmup_steps=0, **DIVERGES)
    with pytest.raises(errors.UserError, match=r"no checkpoint .*learning_rate and start again$"):
        train.train_and_evaluate(conf, tmp_path / "run")


def test_one_run_at_a_time_in_a_workdir(data, tmp_path):
    conf = _config(data, num_steps=2, optimizer__warmup_steps=1)
    with _locked(tmp_path / "run"):
        with pytest.raises(errors.UserError, match="/run: another process trains in it; wait"):
            train.train_and_evaluate(conf, tmp_path / "run")
        assert not list((tmp_path / "run").iterdir())
    train.train_and_evaluate(conf, tmp_path / "run")


def test_one_finetuning_at_a_time_in_a_folder(tmp_path):
    toy_tasks.sentences(tmp_path)
    conf = toy_tasks.config("classification", toy_tasks.model(tmp_path / "model"), tmp_path)
    with _locked(tmp_path / "out"):
        with pytest.raises(errors.UserError, match="/out: another process fine-tunes in it; give"):
            run.finetune(conf, tmp_path / "out")
        assert not list((tmp_path / "out").iterdir())


@contextlib.contextmanager
def _locked(folder):
    """Locks a new folder as a process that writes to it does."""
    folder.mkdir()
    handle = os.open(folder, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    yield
    os.close(handle)
