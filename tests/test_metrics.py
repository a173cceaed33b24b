"""Terms add up before they are divided; FLOPs against the peak of the device."""

import math
import types

import jax
import numpy as np
import pytest

from bertjax import evaluate, metrics, sharding


def test_terms_add_up_and_are_divided_once():
    # Means of 3 and 1, over weights 1 and 9: their mean would be 2.
    total = metrics.add(metrics.add(None, {"mlm_loss": (3.0, 1.0)}), {"mlm_loss": (9.0, 9.0)})
    assert metrics.means(total) == {"mlm_loss": pytest.approx(1.2)}


def test_a_term_that_an_old_checkpoint_lacks_is_left_out():
    total = metrics.add({"mlm_loss": (3.0, 1.0)}, {"mlm_loss": (9.0, 9.0), "bits": (1.0, 1.0)})
    assert total == {"mlm_loss": (12.0, 10.0)}


def test_a_term_that_nothing_counted_in_is_left_out():
    assert metrics.means({"mlm_loss": (0.0, 0.0), "nsp_loss": (1.0, 2.0)}) == {"nsp_loss": 0.5}


def test_total_loss_sums_the_scaled_losses():
    values = {"mlm_loss": 2.0, "rtd_loss": 0.5, "mlm_accuracy": 100.0, "other_loss": 7.0}
    assert metrics.total_loss(values, {"mlm_loss": 1.0, "rtd_loss": 50.0}) == 27.0
    assert metrics.total_loss({"mlm_loss": 2.0}, {"mlm_loss": 1.0, "nsp_loss": 1.0}) == 2.0


def _devices(kind, count=1):
    return [types.SimpleNamespace(device_kind=kind)] * count


def test_mfu_is_of_all_devices_and_of_known_ones():
    assert metrics.mfu(98.5e12, _devices("TPU v5 lite")) == pytest.approx(0.5)
    assert metrics.mfu(98.5e12, _devices("TPU v5 lite", 4)) == pytest.approx(0.125)
    assert metrics.mfu(1e12, _devices("cpu")) is None


def test_perplexity_is_finite():
    assert metrics.perplexity(math.log(50.0)) == pytest.approx(50.0)
    assert math.isfinite(metrics.perplexity(1e6)) and math.isnan(metrics.perplexity(math.nan))


SCALES = {"mlm_loss": 1.0, "nsp_loss": 1.0}


@pytest.mark.parametrize("batch_size", [1, 3, 6])
def test_evaluation_does_not_depend_on_the_batches(batch_size):
    nll = np.arange(6, dtype=np.float32)
    weight = np.array([1, 0, 2, 1, 0, 4], np.float32)

    def eval_step(params, batch, frozen):
        return {
            "mlm_loss": ((params * batch["nll"] * batch["w"]).sum(), batch["w"].sum()),
            "nsp_loss": (batch["w"].sum() * 0.5, batch["w"].sum()),
        }

    cuts = range(0, 6, batch_size)
    batches = [{"nll": nll[i : i + batch_size], "w": weight[i : i + batch_size]} for i in cuts]
    mesh = sharding.make_mesh(devices=jax.devices()[:1])
    values = evaluate.evaluate(eval_step, 2.0, batches, mesh, batch_size, SCALES)
    mlm = 2.0 * float((nll * weight).sum() / weight.sum())
    assert values["mlm_loss"] == pytest.approx(mlm)
    assert values["loss"] == pytest.approx(mlm + 0.5)
    assert values["perplexity"] == pytest.approx(math.exp(mlm))


def test_unigram_loss_is_the_mean_over_predictions():
    log_probs = np.log(np.array([0.5, 0.25, 0.25], np.float32))
    batches = [
        {"masked_ids": np.array([[0, 1]]), "masked_weights": np.array([[1.0, 1.0]])},
        {"masked_ids": np.array([[2, 0]]), "masked_weights": np.array([[1.0, 0.0]])},
    ]
    mesh = sharding.make_mesh(devices=jax.devices()[:1])
    values = evaluate.evaluate(
        lambda params, batch, frozen: {"mlm_loss": (6.0, 3.0)},
        None, batches, mesh, 1, {"mlm_loss": 1.0}, log_probs,
    )  # fmt: skip
    assert values["unigram_loss"] == pytest.approx(math.log(2 * 4 * 4) / 3)
    assert values["loss"] == 2.0, "the unigram model is no part of what is minimised"


def test_bits_per_byte_are_the_bits_of_all_batches_over_their_bytes():
    token_bytes = np.array([0, 3, 5], np.float32)  # id 0 is a special token
    batches = [
        {"targets": np.array([[0, 1]]), "loss_weights": np.array([[1.0, 1.0]])},
        {"targets": np.array([[2, 1]]), "loss_weights": np.array([[1.0, 0.0]])},
    ]
    nats = iter([2.0, 5.0])
    mesh = sharding.make_mesh(devices=jax.devices()[:1])
    values = evaluate.evaluate(
        lambda params, batch, frozen: {"lm_loss": (next(nats), batch["loss_weights"].sum())},
        None, batches, mesh, 1, {"lm_loss": 1.0}, token_bytes=token_bytes,
    )  # fmt: skip
    assert values["bits_per_byte"] == pytest.approx(7 / math.log(2) / 8)
    assert values["lm_loss"] == values["loss"] == pytest.approx(7 / 3)
