"""One training step and one evaluation step, as pure functions.

The gradient does not depend on how the batch is split over devices and micro-batches: every loss is
a sum over the whole batch, divided once by the weight of the whole batch.
"""

import functools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import optax

from bertjax import device_groups, metrics, sharding

Batch = dict[str, jax.Array]
# objective.loss with its config bound: loss(apply, batch) returns {name: (sum, weight)}. Frozen
# models, bound to their parameters, are passed by keyword: loss(apply, batch, teacher=...).
Loss = Callable[..., metrics.Terms]
# objective.normalizers with its config bound: maps a batch to {name of a loss term: weight}.
Normalizers = Callable[[Batch], dict[str, jax.Array]]


@flax.struct.dataclass
class TrainState:
    """The state that a step takes and returns. `step` is also the position in the data."""

    step: jax.Array  # int32
    params: Any
    opt_state: Any
    rng: jax.Array  # typed key; folded with the step, never changed
    skipped: jax.Array  # int32: non-finite steps so far
    skipped_in_row: jax.Array  # int32: non-finite steps since the last finite one


@flax.struct.dataclass
class AveragedState(TrainState):
    """A train state with an exponential moving average of the parameters."""

    ema: Any  # like params


class Gradients(NamedTuple):
    """What the first half of a step computes.

    loss: the minimised sum of the losses. terms: see `Loss`. grads: like the parameters.
    """

    loss: jax.Array
    terms: metrics.Terms
    grads: Any


def init_state(
    params: Any, tx: optax.GradientTransformation, rng: jax.Array, *, with_ema: bool = False
) -> TrainState:
    """Returns the state before the first step; with_ema: an `AveragedState`."""
    # Three arrays and not one, so that each can be donated.
    step, skipped, skipped_in_row = (jnp.zeros((), jnp.int32) for _ in range(3))
    fields = step, params, tx.init(params), rng, skipped, skipped_in_row
    if with_ema:
        return AveragedState(*fields, ema=jax.tree.map(jnp.copy, params))
    return TrainState(*fields)


def with_params(state: TrainState, params: Any) -> TrainState:
    """Returns a state before the first step with other parameters."""
    if isinstance(state, AveragedState):
        state = state.replace(ema=jax.tree.map(jnp.copy, params))  # so that each can be donated
    return state.replace(params=params)


def bound(frozen_models: Mapping[str, Any], frozen: Mapping[str, Any]) -> dict[str, Callable]:
    """Returns an apply function for each frozen model, without dropout and without gradients.

    frozen: {name: parameters}, with the names of `frozen_models`.
    """

    def bind(model, params):
        def apply(*args, **kwargs):
            outputs = model.apply({"params": params}, *args, deterministic=True, **kwargs)
            return jax.lax.stop_gradient(outputs)

        return apply

    return {name: bind(model, frozen[name]) for name, model in frozen_models.items()}


def _micro_batches(batch: Batch, count: int) -> Batch:
    # Micro-batch m consists of rows m, m + count, m + 2 count ..., so that no row changes device.
    def split(x):
        return jnp.swapaxes(x.reshape(x.shape[0] // count, count, *x.shape[1:]), 0, 1)

    return jax.tree.map(split, batch)


def _update_unless(skip: jax.Array, update: Callable[..., Any], *old: Any) -> Any:
    """Returns update(*old), or `old` if `skip`.

    On TPUs `jnp.where` costs nothing, since it is fused into the update. On CPUs it would copy
    arrays that could be updated in place, so one `lax.cond` is used for all arrays instead.
    """

    def choose(*old):
        return jax.tree.map(lambda a, b: jnp.where(skip, b, a), update(*old), old)

    def branch(*old):
        return jax.lax.cond(skip, lambda *old: old, update, *old)

    return jax.lax.platform_dependent(*old, cpu=branch, default=choose)


def _moving_average(ema: Any, params: Any, count: jax.Array, decay: float) -> Any:
    """Returns the average after the update with the number `count`, which is 1 for the first.

    The parameters after update i of n have the weight decay ** (n - i), and the weights are divided
    by their sum, so that the initial parameters have no weight: the temporal average with bias
    correction of Kingma and Ba, arXiv 1412.6980, section 7.2.
    """
    log_decay = math.log(decay)
    weight = math.expm1(log_decay) / jnp.expm1(count.astype(jnp.float32) * log_decay)
    return optax.incremental_update(params, ema, weight)


def make_gradients(
    model: Any,
    loss: Loss,
    normalizers: Normalizers,
    scales: Mapping[str, float],
    micro_batches: int = 1,
    frozen_models: Mapping[str, Any] = MappingProxyType({}),
    combine: Callable[[Any, Mapping[str, Any]], Any] = lambda params, frozen: params,
) -> Callable[..., Gradients]:
    """Returns the function gradients(state, batch, frozen), the first half of a train step.

    scales: {loss term: factor} in the sum that is minimised. frozen_models: {keyword argument of
    the loss: Linen module}; `frozen` must contain the parameters of each. combine: builds the
    model's parameters from the trained ones and `frozen`, if only some parameters are trained.

    With several micro-batches, each group of devices along the mesh axes slice and data adds up the
    gradients of its own rows, and the sums are sent once, after the last micro-batch. NOTE: the
    loss then sees only some rows of a micro-batch, so its terms must be sums over rows. A loss that
    compares rows needs micro_batches = 1 (see `TaskType.across_rows` of fine-tuning).
    """

    def loss_fn(params, batch, weights, rng, frozen):
        model_params = combine(params, frozen)

        def apply(*args, deterministic=False, part=None, **kwargs):
            # A loss that calls the model for several parts of the batch numbers them, because
            # otherwise their dropout would be the same.
            part_rng = rng if part is None else jax.random.fold_in(rng, part)
            dropout = {"deterministic": deterministic, "rngs": {"dropout": part_rng}}
            return model.apply({"params": model_params}, *args, **dropout, **kwargs)

        terms = loss(apply, batch, **bound(frozen_models, frozen))
        losses = {name: terms[name][0] / jnp.where(w > 0, w, 1.0) for name, w in weights.items()}
        return metrics.total_loss(losses, scales), terms

    def grad_fn(*args):
        values, grads = jax.value_and_grad(loss_fn, has_aux=True)(*args)
        return values, sharding.constrain_params(grads)

    def all_gradients(params, batch, rng, frozen):
        weights = normalizers(batch)
        if micro_batches == 1:
            return grad_fn(params, batch, weights, rng, frozen)
        return device_groups.sum_over_groups(accumulated, batch, params, weights, rng, frozen)

    def accumulated(batch, params, weights, rng, frozen):
        def accumulate(total, xs):
            index, micro_batch = xs
            result = grad_fn(params, micro_batch, weights, jax.random.fold_in(rng, index), frozen)
            return jax.tree.map(jnp.add, total, result), None

        # Otherwise libtpu gathers them in each micro-batch.
        params, frozen = sharding.gather_tables((params, frozen))
        stacked = _micro_batches(batch, micro_batches)
        first_batch = jax.tree.map(lambda x: x[0], stacked)
        shapes = jax.eval_shape(grad_fn, params, first_batch, weights, rng, frozen)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return jax.lax.scan(accumulate, zeros, (jnp.arange(micro_batches), stacked))[0]

    def gradients(state, batch, frozen=None):
        rng = jax.random.fold_in(state.rng, state.step)
        (loss, terms), grads = all_gradients(state.params, batch, rng, frozen or {})
        return Gradients(loss, terms, grads)

    return gradients


def make_update(
    tx: optax.GradientTransformation, schedule: optax.Schedule, ema_decay: float = 0.0
) -> Callable[..., tuple[TrainState, dict[str, jax.Array]]]:
    """Returns the function update(state, gradients) -> (state, report), the second half.

    ema_decay: the decay per step of the moving average in the state, which must be an
    `AveragedState`; 0: the state has no average.

    A step whose loss or gradient is not finite changes only `step` and the counts of skipped steps.
    """

    def update(state, gradients):
        loss, terms, grads = gradients
        grad_norm = optax.tree.norm(grads)
        finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)

        def changed(params, opt_state, *ema):
            updates, opt_state = tx.update(grads, opt_state, params)
            params = optax.apply_updates(params, updates)
            count = state.step + 1 - state.skipped
            return params, opt_state, *(_moving_average(e, params, count, ema_decay) for e in ema)

        names = ("params", "opt_state", "ema") if ema_decay else ("params", "opt_state")
        new = _update_unless(~finite, changed, *(getattr(state, name) for name in names))
        num_bad = 1 - finite.astype(jnp.int32)
        new_state = state.replace(
            step=state.step + 1,
            skipped=state.skipped + num_bad,
            skipped_in_row=num_bad * (state.skipped_in_row + 1),
            **dict(zip(names, new, strict=True)),
        )
        means = {name: s / jnp.maximum(w, 1e-9) for name, (s, w) in terms.items()}
        report = {
            "loss": loss,
            **means,
            "terms": terms,
            "grad_norm": grad_norm,
            "learning_rate": schedule(state.step - state.skipped),  # tx counts only updates
            "skipped": new_state.skipped,
            "skipped_in_row": new_state.skipped_in_row,
        }
        return new_state, report

    return update


def make_train_step(
    model: Any,
    loss: Loss,
    normalizers: Normalizers,
    scales: Mapping[str, float],
    tx: optax.GradientTransformation,
    schedule: optax.Schedule,
    micro_batches: int = 1,
    frozen_models: Mapping[str, Any] = MappingProxyType({}),
    combine: Callable[[Any, Mapping[str, Any]], Any] = lambda params, frozen: params,
    ema_decay: float = 0.0,
) -> Callable[..., tuple[TrainState, dict[str, jax.Array]]]:
    """Returns the function step(state, batch, frozen, token_bytes), which returns (state, report).

    It is `make_update` after `make_gradients`, which say what the arguments are, and should be
    jitted with the state donated. token_bytes: float32[vocab_size], the bytes of text that each id
    stands for; if given, the report contains "bits_per_byte".
    """
    gradients_of = make_gradients(
        model, loss, normalizers, scales, micro_batches, frozen_models, combine
    )
    update = make_update(tx, schedule, ema_decay)

    def train_step(state, batch, frozen=None, token_bytes=None):
        gradients = gradients_of(state, batch, frozen)
        if token_bytes is not None:
            nats, _ = gradients.terms[next(iter(scales))]
            bits_term = metrics.bits_per_byte(nats, batch, token_bytes)
            gradients = gradients._replace(
                terms=gradients.terms | {metrics.BITS_PER_BYTE: bits_term}
            )
        return update(state, gradients)

    return train_step


def make_eval_step(
    model: Any, loss: Loss, frozen_models: Mapping[str, Any] = MappingProxyType({})
) -> Callable[..., metrics.Terms]:
    """Returns step(params, batch, frozen), which computes the loss's terms without dropout."""

    def eval_step(params, batch, frozen=None):
        apply = functools.partial(model.apply, {"params": params}, deterministic=True)
        return loss(apply, batch, **bound(frozen_models, frozen or {}))

    return eval_step
