"""Builds optax schedules and optimizers, and defines which parameters decay.

An optimizer's statistics of a parameter (norm, RMS, row and column means) are computed for each
matrix. Since the layers are stacked in one array and heads have their own axes, `by_matrix` first
splits the arrays into matrices.

    tx = optimizer.make(optimizer.Config(name="lamb"), num_steps=1000)
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bertjax import errors, sharding


@dataclasses.dataclass(frozen=True)
class Config:
    """The optimizer's keys; the defaults are those of the BERT paper (appendix A.2)."""

    name: str = "adamw"  # adamw, adamw_rms, lamb, adafactor
    learning_rate: float = 1e-4  # peak learning rate
    schedule: str = "linear"  # constant, linear, cosine, rsqrt, wsd, one_cycle
    warmup_steps: int = 10_000  # steps in which the rate rises from start_rate to its peak
    decay_steps: int = 0  # wsd only: number of steps at the end in which the rate falls
    start_rate: float = 0.0  # learning rate before the first warm-up step
    end_rate: float = 0.0  # learning rate after the last step; not used by rsqrt and constant
    weight_decay: float = 0.01  # applied to kernels and embeddings, never to biases and norms
    b1: float = 0.9  # decay of the first moment; adafactor has no first moment
    b2: float = 0.999  # decay of the second moment; adafactor uses 1 - step**-0.8
    eps: float = 1e-6  # added to the root of the second moment; not used by adafactor
    clip_norm: float = 1.0  # maximum global norm of the gradient; 0: no clipping


OPTIMIZERS = ("adamw", "adamw_rms", "lamb", "adafactor")
SCHEDULES = ("constant", "linear", "cosine", "rsqrt", "wsd", "one_cycle")
DECAYED_LEAVES = ("kernel", "embedding", "lora_a", "lora_b")


def validate(config: Any, num_steps: int) -> None:
    """Raises UserError for an unknown name or an impossible value."""

    def check(ok: bool, key: str, allowed: str) -> None:
        errors.check(ok, f"optimizer.{key}", getattr(config, key), allowed)

    check(config.name in OPTIMIZERS, "name", f"one of {', '.join(OPTIMIZERS)}")
    check(config.schedule in SCHEDULES, "schedule", f"one of {', '.join(SCHEDULES)}")
    check(config.learning_rate > 0, "learning_rate", "above 0")
    check(0 <= config.warmup_steps < num_steps, "warmup_steps",
          f"0 or more and below config.num_steps = {num_steps}")  # fmt: skip
    check(config.schedule != "rsqrt" or config.warmup_steps >= 1, "warmup_steps",
          "1 or more for the schedule 'rsqrt', which is 0 without warm-up")  # fmt: skip
    remaining = num_steps - config.warmup_steps
    check(0 <= config.decay_steps <= remaining, "decay_steps",
          f"between 0 and {remaining}, the number of steps after the warm-up")  # fmt: skip
    check((config.schedule == "wsd") == (config.decay_steps >= 1), "decay_steps",
          "1 or more for the schedule 'wsd', and 0 for all other schedules")  # fmt: skip
    for key in ("start_rate", "end_rate", "weight_decay", "clip_norm"):
        check(getattr(config, key) >= 0, key, "0 or more")
    for key in ("b1", "b2"):
        check(0 <= getattr(config, key) < 1, key, "in [0, 1)")
    check(config.eps > 0, "eps", "above 0")


def _rsqrt(peak: float, warmup_steps: int) -> optax.Schedule:
    return lambda step: peak * jnp.sqrt(warmup_steps / (step + warmup_steps))


def _half_cosine(start: float, end: float, steps: int) -> optax.Schedule:
    def rate(step):
        progress = jnp.clip(step / steps, 0.0, 1.0)
        return end + (start - end) * 0.5 * (1.0 + jnp.cos(math.pi * progress))

    return rate


def make_schedule(config: Any, num_steps: int) -> optax.Schedule:
    """Returns the learning rate as a function of the step.

    The rate rises from `start_rate` to the peak in the warm-up, then follows the schedule:

    constant holds the peak. linear and cosine fall to `end_rate` at `num_steps`. wsd holds the peak
    and falls linearly in the last `decay_steps`. rsqrt is peak * sqrt(warmup / step) (T5, arXiv
    1910.10683, 3.1.2). one_cycle rises by half a cosine and falls by another (Smith, arXiv
    1803.09820); the warm-up of all other schedules is linear.
    """
    peak, warmup = config.learning_rate, config.warmup_steps
    remaining = max(num_steps - warmup, 1)
    rise = optax.linear_schedule(config.start_rate, peak, max(warmup, 1))
    if config.schedule == "constant":
        schedules, boundaries = [optax.constant_schedule(peak)], []
    elif config.schedule == "linear":
        schedules, boundaries = [optax.linear_schedule(peak, config.end_rate, remaining)], []
    elif config.schedule == "cosine":
        schedules, boundaries = [_half_cosine(peak, config.end_rate, remaining)], []
    elif config.schedule == "rsqrt":
        schedules, boundaries = [_rsqrt(peak, warmup)], []
    elif config.schedule == "wsd":
        fall = optax.linear_schedule(peak, config.end_rate, max(config.decay_steps, 1))
        schedules = [optax.constant_schedule(peak), fall]
        boundaries = [num_steps - config.decay_steps]
    else:
        rise = _half_cosine(config.start_rate, peak, max(warmup, 1))
        schedules, boundaries = [_half_cosine(peak, config.end_rate, remaining)], []
    if warmup:
        schedules, boundaries = [rise, *schedules], [warmup, *boundaries]
    return optax.join_schedules(schedules, boundaries)


def decay_mask(params: Any) -> Any:
    """Returns a tree of bools: True for each parameter that weight decay applies to.

    Decides by the name, not by the number of axes, since biases that are stacked over layers have
    two axes.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, _: sharding.path_name(path).split("/")[-1] in DECAYED_LEAVES, params
    )


def _as_matrices(path: Sequence[Any], array: jax.Array) -> jax.Array:
    """Returns a kernel reshaped to [in, out] or [layers, in, out]; other arrays unchanged."""
    name = sharding.path_name(path)
    stacked = int("/layers/" in name)
    if array.ndim - stacked <= 2:
        return array
    axes = sharding.param_axes(name)[stacked:]
    num_in = 2 if axes[:2] == ("heads", "head_dim") else 1
    outer, inner = array.shape[:stacked], array.shape[stacked : stacked + num_in]
    return array.reshape(*outer, math.prod(inner), -1)


def by_matrix(tx: optax.GradientTransformation) -> optax.GradientTransformation:
    """Returns `tx` applied to each matrix separately.

    Stacked layers are separated, and the axes heads and head_dim are merged into one. The state is
    one state of `tx` per parameter, stacked over layers like the parameter.
    """

    def over_layers(function, path):
        return jax.vmap(function) if "/layers/" in sharding.path_name(path) else function

    def init_fn(params):
        def init_leaf(path, param):
            return over_layers(tx.init, path)(_as_matrices(path, param))

        return jax.tree_util.tree_map_with_path(init_leaf, params)

    def update_fn(updates, state, params):
        def update_leaf(path, update, state, param):
            matrices = (_as_matrices(path, x) for x in (update, param))
            new, state = over_layers(lambda u, p, s: tx.update(u, s, p), path)(*matrices, state)
            return new.reshape(update.shape), state

        structure = jax.tree.structure(updates)
        pairs = structure.flatten_up_to(
            jax.tree_util.tree_map_with_path(update_leaf, updates, state, params)
        )
        return tuple(structure.unflatten([pair[i] for pair in pairs]) for i in range(2))

    return optax.GradientTransformation(init_fn, update_fn)


def _moment_scaling(config: Any) -> optax.GradientTransformation:
    """Returns the transformation of gradients to updates, before weight decay and learning rate."""
    adam = optax.scale_by_adam(config.b1, config.b2, config.eps)
    if config.name == "adafactor":
        # Shazeer and Stern, arXiv 1804.04235, as T5 used it: the update is clipped to RMS 1, then
        # multiplied by the parameter's RMS.
        return by_matrix(
            optax.chain(
                optax.scale_by_factored_rms(),
                optax.clip_by_block_rms(1.0),
                optax.scale_by_param_block_rms(),
            )
        )
    if config.name == "adamw_rms":
        return optax.chain(adam, by_matrix(optax.scale_by_param_block_rms()))
    return adam


def _clip_by_global_norm(max_norm: float) -> optax.GradientTransformation:
    """Like `optax.clip_by_global_norm`, but avoids a second copy of the gradients.

    Multiplies by one scalar, where optax divides by the norm. If the norm is not finite, the
    updates become NaN or 0: the train step must discard them.
    """

    def update_fn(updates, state, params=None):
        del params
        factor = jnp.minimum(1.0, max_norm / optax.tree.norm(updates))
        return jax.tree.map(lambda x: x * factor.astype(x.dtype), updates), state

    return optax.GradientTransformation(optax.init_empty_state, update_fn)


def make(
    config: Any, num_steps: int, schedule: optax.Schedule | None = None
) -> optax.GradientTransformation:
    """Returns the whole chain: clipping, moments, weight decay, LAMB's trust ratio, learning rate.

    adamw_rms is AdamW with each matrix's update multiplied by the RMS of the matrix, at least 1e-3.
    T5 v1.1 needs this with AdamW; adafactor does it by itself. LAMB (You et al., arXiv 1904.00962)
    multiplies by the ratio |matrix| / |update| instead, but, like the authors' code, not for biases
    and norms.

    schedule: the learning rate; None: that of the config.
    """
    trust_ratio = optax.masked(by_matrix(optax.scale_by_trust_ratio()), decay_mask)
    return optax.chain(
        _clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity(),
        _moment_scaling(config),
        optax.add_decayed_weights(config.weight_decay, decay_mask),
        trust_ratio if config.name == "lamb" else optax.identity(),
        optax.scale_by_learning_rate(schedule or make_schedule(config, num_steps)),
    )
