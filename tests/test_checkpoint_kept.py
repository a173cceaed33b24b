"""Which checkpoints a run keeps."""

import shutil

import jax.numpy as jnp

from bertjax import checkpoint

STATE = {"params": {"kernel": jnp.ones(3)}}


def test_keeps_the_newest_and_the_best(tmp_path):
    losses = {1: 3.0, 2: 1.0, 3: float("nan"), 4: 2.0, 5: None, 6: 4.0, 7: 5.0}
    for steps in ((1, 2, 3), (4, 5, 6, 7)):  # opened again in between, as a resumed run does
        checkpoints = checkpoint.Checkpoints(tmp_path, keep_last=2, keep_best=2)
        for step in steps:
            loss = losses[step]
            checkpoints.save(step, STATE, {}, None if loss is None else {"eval/loss": loss})
        checkpoints.close()
    assert checkpoint.Reader(tmp_path).steps() == [2, 4, 6, 7]


def test_keeps_regular_checkpoints_at_a_distance(tmp_path):
    checkpoints = checkpoint.Checkpoints(
        tmp_path, keep_last=2, keep_best=0, keep_every=6, regular=lambda step: step % 2 == 0
    )
    for step in (0, 2, 3, 4, 6, 8, 9, 10, 12, 14, 15):
        checkpoints.save(step, STATE, {}, None)
    checkpoints.close()
    assert checkpoint.Reader(tmp_path).steps() == [0, 6, 12, 14, 15]


def test_checkpoints_in_between_go_with_the_next_save(tmp_path):
    def open_again():
        return checkpoint.Checkpoints(
            tmp_path, keep_last=2, keep_best=0, regular=lambda step: step % 4 == 0
        )

    checkpoints = open_again()
    for step in (4, 8, 9):
        checkpoints.save(step, STATE, {}, None)
    checkpoints.close()
    assert checkpoint.Reader(tmp_path).steps() == [4, 8, 9]
    checkpoints = open_again()
    checkpoints.save(12, STATE, {}, None)
    checkpoints.close()
    assert checkpoint.Reader(tmp_path).steps() == [8, 12]
    shutil.copytree(tmp_path / "8", tmp_path / "4")  # of a save that was killed before it deleted
    checkpoints = open_again()
    checkpoints.save(12, STATE, {}, None)
    checkpoints.close()
    assert checkpoint.Reader(tmp_path).steps() == [8, 12]
