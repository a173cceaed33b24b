"""optax: learning-rate schedules, AdamW and LAMB, and which parameters decay.

    tx = optimizer.make(optimizer.Config(name="lamb"), num_steps=1000)
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bertjax import errors, sharding


@dataclasses.dataclass(frozen=True)
class Config:
    """The optimizer's keys, with the values of the BERT paper (appendix A.2)."""

    name: str = "adamw"  # adamw, lamb
    learning_rate: float = 1e-4  # the peak
    schedule: str = "linear"  # constant, linear, cosine, rsqrt, wsd, one_cycle
    warmup_steps: int = 10_000  # from start_rate up to the peak
    decay_steps: int = 0  # wsd: the last steps, in which the rate falls
    start_rate: float = 0.0  # before the first warm-up step
    end_rate: float = 0.0  # after the last step (rsqrt and constant do not get there)
    weight_decay: float = 0.01  # of kernels and embeddings; never of biases and norms
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-6
    clip_norm: float = 1.0  # of the global gradient; 0: no clipping


OPTIMIZERS = ("adamw", "lamb")
SCHEDULES = ("constant", "linear", "cosine", "rsqrt", "wsd", "one_cycle")
DECAYED_LEAVES = ("kernel", "embedding")


def validate(config: Any, num_steps: int) -> None:
    """Raises UserError for a name that does not exist or a value that cannot be."""

    def check(ok: bool, key: str, allowed: str) -> None:
        if not ok:
            value = getattr(config, key)
            raise errors.UserError(f"config.optimizer.{key} = {value!r}: must be {allowed}")

    check(config.name in OPTIMIZERS, "name", f"one of {', '.join(OPTIMIZERS)}")
    check(config.schedule in SCHEDULES, "schedule", f"one of {', '.join(SCHEDULES)}")
    check(config.learning_rate > 0, "learning_rate", "above 0")
    check(0 <= config.warmup_steps < num_steps, "warmup_steps",
          f"0 or more and below config.num_steps = {num_steps}")  # fmt: skip
    check(config.schedule != "rsqrt" or config.warmup_steps >= 1, "warmup_steps",
          "1 or more for the schedule rsqrt, whose scale it is")  # fmt: skip
    left = num_steps - config.warmup_steps
    check(0 <= config.decay_steps <= left, "decay_steps", f"between 0 and {left}, after warm-up")
    check(config.schedule != "wsd" or config.decay_steps >= 1, "decay_steps",
          "1 or more for the schedule wsd, which ends with them")  # fmt: skip
    for key in ("start_rate", "end_rate", "weight_decay", "clip_norm"):
        check(getattr(config, key) >= 0, key, "0 or more")
    for key in ("b1", "b2"):
        check(0 <= getattr(config, key) < 1, key, "in [0, 1)")
    check(config.eps > 0, "eps", "above 0")


def _rsqrt(peak: float, warmup_steps: int) -> optax.Schedule:
    return lambda step: peak * jnp.sqrt(warmup_steps / (step + warmup_steps))


def _half_cosine(start: float, end: float, steps: int) -> optax.Schedule:
    def rate(step):
        done = jnp.clip(step / steps, 0.0, 1.0)
        return end + (start - end) * 0.5 * (1.0 + jnp.cos(math.pi * done))

    return rate


def make_schedule(config: Any, num_steps: int) -> optax.Schedule:
    """Step -> learning rate: warm-up from `start_rate` to the peak, then what the name says.

    linear and cosine fall to `end_rate` at `num_steps`; wsd holds the peak and falls linearly in
    the last `decay_steps`; rsqrt is peak * sqrt(warmup / step) (T5, arXiv 1910.10683, 3.1.2);
    one_cycle goes both ways by half a cosine (Smith, arXiv 1803.09820).
    """
    peak, warmup = config.learning_rate, config.warmup_steps
    left = max(num_steps - warmup, 1)
    rise = optax.linear_schedule(config.start_rate, peak, max(warmup, 1))
    if config.schedule == "constant":
        parts, borders = [optax.constant_schedule(peak)], []
    elif config.schedule == "linear":
        parts, borders = [optax.linear_schedule(peak, config.end_rate, left)], []
    elif config.schedule == "cosine":
        parts, borders = [_half_cosine(peak, config.end_rate, left)], []
    elif config.schedule == "rsqrt":
        parts, borders = [_rsqrt(peak, warmup)], []
    elif config.schedule == "wsd":
        fall = optax.linear_schedule(peak, config.end_rate, max(config.decay_steps, 1))
        parts = [optax.constant_schedule(peak), fall]
        borders = [num_steps - config.decay_steps]
    else:
        rise = _half_cosine(config.start_rate, peak, max(warmup, 1))
        parts, borders = [_half_cosine(peak, config.end_rate, left)], []
    if warmup:
        parts, borders = [rise, *parts], [warmup, *borders]
    return optax.join_schedules(parts, borders)


def decay_mask(params: Any) -> Any:
    """True where weight decay applies: by the leaf's name, since stacked biases have two axes."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: sharding.path_name(path).split("/")[-1] in DECAYED_LEAVES, params
    )


def scale_by_layer_trust_ratio() -> optax.GradientTransformation:
    """LAMB's ratio |param| / |update| (You et al., arXiv 1904.00962), by layer of a stacked leaf.

    A zero norm gives ratio 1. Biases and norms keep their update, as in the authors' code.
    """

    def ratio(path, update, param):
        name = sharding.path_name(path)
        if name.split("/")[-1] not in DECAYED_LEAVES:
            return update
        axes = tuple(range(1 if "/layers/" in name else 0, param.ndim))

        def norm(x):
            return jnp.sqrt(jnp.sum(jnp.square(x), axis=axes, keepdims=True))

        param_norm, update_norm = norm(param), norm(update)
        known = (param_norm > 0) & (update_norm > 0)
        return update * jnp.where(known, param_norm / jnp.where(known, update_norm, 1.0), 1.0)

    def update_fn(updates, state, params):
        return jax.tree_util.tree_map_with_path(ratio, updates, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update_fn)


def make(config: Any, num_steps: int) -> optax.GradientTransformation:
    """The whole chain: clip, moments, decay, trust ratio where it is LAMB, rate."""
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity(),
        optax.scale_by_adam(config.b1, config.b2, config.eps),
        optax.add_decayed_weights(config.weight_decay, decay_mask),
        scale_by_layer_trust_ratio() if config.name == "lamb" else optax.identity(),
        optax.scale_by_learning_rate(make_schedule(config, num_steps)),
    )
