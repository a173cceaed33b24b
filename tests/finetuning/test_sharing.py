"""Fine-tunings in one process share the model, the rows and the compiled programs."""

import jax
import numpy as np
import pytest

from bertjax import sharding
from bertjax.finetuning import job, sharing, training
from tests.helpers import toy_tasks


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return toy_tasks.toys(tmp_path_factory.mktemp("sharing"), train=24, others=8)


@pytest.mark.proof
def test_jobs_share_what_is_the_same(root, tmp_path):
    mesh = sharding.make_mesh("data:1", jax.devices()[:1])
    shared = sharing.Shared()

    def make(**values):
        config = toy_tasks.config("classification", root / "model", root, **values)
        return job.make(config, shared.source(config.model), mesh, shared)

    def train(made):
        return training.train(made, 1e-2, 0, tmp_path / str(made.num_steps))[0]

    with jax.set_mesh(mesh):
        short, long = make(num_epochs=1), make(num_epochs=2)
        train(short)
        count = len(shared.programs)
        assert len(train(long).evaluations) == 2
        assert len(shared.programs) == count > 0  # other steps and rates are arguments
        assert long.examples is short.examples
        rows = long.encoded["train"].rows
        rows[0]["features"] = np.zeros(1)  # as if they were cached
        assert "features" not in short.encoded["train"].rows[0]
        assert "features" not in make().encoded["train"].rows[0]
        assert make(max_length=9).encoded["train"].rows[0]["input_ids"].size <= 9


def test_the_update_is_compiled_once_for_all_shapes(root):
    config = toy_tasks.config("classification", root / "model", root, num_epochs=10_000)
    # Several tasks, so that rows are not packed in one shape.
    shared, mesh = sharing.Shared(tasks=2), sharding.make_mesh("data:1", jax.devices()[:1])
    with jax.set_mesh(mesh):
        made = job.make(config, shared.source(config.model), mesh, shared)
        assert made.train_step
    shapes = made.train_batches.one_of_each_shape(in_order=False)
    assert len(shapes) > 1 and len(shared.programs) == len(shapes) + 1
