"""Gradient accumulation in fine-tuning gives the gradients of the whole batch."""

import jax
import numpy as np
import pytest

from bertjax import errors, sharding
from bertjax.artifact import loading
from bertjax.finetuning import batching, job, job_batches, recipe
from tests.helpers import toy_tasks


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = toy_tasks.entities(tmp_path_factory.mktemp("micro"), count=16)
    toy_tasks.model(root)
    return root


def _step(root, num_devices=1, **values):
    """Returns (number of micro-batches, loss, first moments) after one step on a full batch."""
    values |= {"data__dev": "", "data__max_train": 8, "batch_size": 8, "num_epochs": 1}
    config = toy_tasks.config("ner", root / "model", root, **values)
    mesh = sharding.make_mesh("data:-1", jax.devices()[:num_devices])
    with jax.set_mesh(mesh):
        made = job.make(config, loading.load(config.model), mesh)
        batch = made.place(made.train_batches.one_of_each_shape(in_order=False)[-1])
        weights = np.asarray(batch["loss_weights"]).sum(axis=1)
        assert len(set(weights.tolist())) > 1  # so that a mean of means would be another loss
        return job_batches.micro_batches(made, batch), *toy_tasks.first_step(made, batch)


def test_micro_batches_have_the_gradients_of_the_whole_batch(root):
    count, loss, moments = _step(root, micro_batch_size=8)
    assert count == 1
    for num_devices, size in ((1, 2), (2, 4)):
        parts, parts_loss, parts_moments = _step(root, num_devices, micro_batch_size=size)
        assert parts == 8 // size and parts_loss == pytest.approx(loss, rel=1e-6)
        limit = 1e-5 * np.abs(moments).max()
        np.testing.assert_allclose(parts_moments, moments, rtol=0, atol=limit)


@pytest.mark.proof
def test_evaluation_and_cached_features_take_as_few_rows_as_a_micro_batch(root):
    config = toy_tasks.config(
        "ner", root / "model", root, batch_size=8, micro_batch_size=2, strategy__name="features"
    )
    mesh = sharding.make_mesh("data:1", jax.devices()[:1])
    sizes = []
    with pytest.MonkeyPatch.context() as patch, jax.set_mesh(mesh):
        real = batching.by_batch

        def spy(step, params, batches, *rest):
            sizes.append(batches.batch_size)
            return real(step, params, batches, *rest)

        patch.setattr(batching, "by_batch", spy)
        made = job.make(config, loading.load(config.model), mesh)
    assert sizes == [2, 2] and made.train_batches.batch_size == 8
    assert made.batches_of("dev").batch_size == 2


def test_what_cannot_be_accumulated_is_one_line(root):
    config = recipe.default("ner")
    config.update(batch_size=8, micro_batch_size=3)
    message = r"config.micro_batch_size = 3: must be a divisor of config.batch_size = 8"
    with pytest.raises(errors.UserError, match=message):
        recipe.validate(config)
    pairs = root / "pairs.tsv"
    rows = [f"cat {word}\tdog {word}" for word in toy_tasks.WORDS]
    pairs.write_text("\n".join(["sentence1\tsentence2", *rows]) + "\n")
    mesh = sharding.make_mesh("data:1", jax.devices()[:1])
    values = {"model": str(root / "model"), "micro_batch_size": 2, "batch_size": 4}
    config = recipe.make("embeddings", None, {"train": pairs}, values)
    with (
        pytest.raises(errors.UserError, match="compares each row with all rows of its batch"),
        jax.set_mesh(mesh),
    ):
        job.make(config, loading.load(config.model), mesh)
