"""Builds optax schedules and optimizers, and defines which parameters decay.

An optimizer's statistics of a parameter (norm, RMS, row and column means) are computed for each
matrix. Since the layers are stacked in one array and heads have their own axes, `by_matrix` first
splits the arrays into matrices. Muon, too, orthogonalises each matrix by itself.

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

    name: str = "adamw"  # adamw, stable_adamw, adamw_rms, lamb, adafactor, muon
    learning_rate: float = 1e-4  # peak learning rate
    schedule: str = "linear"  # constant, linear, cosine, rsqrt, wsd, one_cycle
    warmup_steps: int = 10_000  # steps in which the rate rises from start_rate to its peak
    decay_steps: int = 0  # wsd only: number of steps at the end in which the rate falls
    decay_shape: str = "linear"  # wsd only: how the rate falls: linear, cosine, one_minus_sqrt
    start_rate: float = 0.0  # learning rate before the first warm-up step
    end_rate: float = 0.0  # learning rate after the last step; not used by rsqrt and constant
    weight_decay: float = 0.01  # applied to kernels and embeddings, never to biases and norms
    b1: float = 0.9  # decay of the first moment; not used by adafactor, nor by muon for matrices
    b2: float = 0.999  # decay of the second moment; adafactor uses 1 - step**-0.8
    eps: float = 1e-6  # added to the root of the second moment; not used by adafactor
    clip_norm: float = 1.0  # maximum global norm of the gradient; 0: no clipping


OPTIMIZERS = ("adamw", "stable_adamw", "adamw_rms", "lamb", "adafactor", "muon")
SCHEDULES = ("constant", "linear", "cosine", "rsqrt", "wsd", "one_cycle")
DECAY_SHAPES = ("linear", "cosine", "one_minus_sqrt")
DECAYED_LEAVES = ("kernel", "embedding", "lora_a", "lora_b")

# Of muon's matrices. The momentum and the number of iterations are those of Jordan
# (kellerjordan.github.io/posts/muon), the RMS that of Liu et al., arXiv 2502.16982, section 2.2.
MUON_MOMENTUM = 0.95
MUON_ITERATIONS = 5
MUON_RMS = 0.2  # of an update, as AdamW's usually is, so that rate and weight decay are AdamW's


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
    check(config.decay_shape in DECAY_SHAPES, "decay_shape", f"one of {', '.join(DECAY_SHAPES)}")
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


def _one_minus_sqrt(start: float, end: float, steps: int) -> optax.Schedule:
    return lambda step: end + (start - end) * (1.0 - jnp.sqrt(jnp.clip(step / steps, 0.0, 1.0)))


def make_schedule(config: Any, num_steps: int) -> optax.Schedule:
    """Returns the learning rate as a function of the step.

    The rate rises from `start_rate` to the peak in the warm-up, then follows the schedule:

    constant holds the peak. linear and cosine fall to `end_rate` at `num_steps`. wsd holds the peak
    and falls in the last `decay_steps`: linearly, by half a cosine, or by 1 - sqrt(progress), which
    falls fastest at its start (Haegele et al., arXiv 2405.18392; ModernBERT, arXiv 2412.13663).
    rsqrt is peak * sqrt(warmup / step) (T5, arXiv 1910.10683, 3.1.2). one_cycle rises by half a
    cosine and falls by another (Smith, arXiv 1803.09820); the warm-up of all other schedules is
    linear.
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
        shapes = {"cosine": _half_cosine, "one_minus_sqrt": _one_minus_sqrt}
        make_fall = shapes.get(config.decay_shape, optax.linear_schedule)
        fall = make_fall(peak, config.end_rate, max(config.decay_steps, 1))
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


def _is_stacked(path: Sequence[Any]) -> bool:
    return "/layers/" in sharding.path_name(path)


def _matrix_shape(path: Sequence[Any], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns [in, out] or [layers, in, out] for a kernel; the shapes of other arrays unchanged."""
    stacked = int(_is_stacked(path))
    if len(shape) - stacked <= 2:
        return shape
    axes = sharding.param_axes(sharding.path_name(path))[stacked:]
    num_in = 2 if axes[:2] == ("heads", "head_dim") else 1
    num_outputs = math.prod(shape[stacked + num_in :])
    return (*shape[:stacked], math.prod(shape[stacked : stacked + num_in]), num_outputs)


def _as_matrices(path: Sequence[Any], array: jax.Array) -> jax.Array:
    return array.reshape(_matrix_shape(path, array.shape))


def by_matrix(tx: optax.GradientTransformation) -> optax.GradientTransformation:
    """Returns `tx` applied to each matrix separately.

    Stacked layers are separated, and the axes heads and head_dim are merged into one. The state is
    one state of `tx` per parameter, stacked over layers like the parameter.
    """

    def over_layers(function, path):
        return jax.vmap(function) if _is_stacked(path) else function

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


def _stable_adam(config: Any) -> optax.GradientTransformation:
    """Returns Adam with weight decay, whose updates are clipped for each layer's tensor.

    Wortsman et al., arXiv 2304.13013, algorithm 2: the sum of Adam's update and the decay is
    divided by the RMS of gradient / sqrt(second moment) if that is above 1, that is, if the second
    moment is an outdated estimate of the square of the gradient. The state is AdamW's.
    """
    adamw = optax.chain(
        optax.scale_by_adam(config.b1, config.b2, config.eps),
        optax.add_decayed_weights(config.weight_decay, decay_mask),
    )

    def update_fn(grads, state, params):
        updates, state = adamw.update(grads, state, params)
        moments = optax.tree.bias_correction(state[0].nu, config.b2, state[0].count)

        def clip(path, update, grad, moment):
            tensor_axes = tuple(range(int(_is_stacked(path)), grad.ndim))
            squares = jnp.square(grad) / jnp.maximum(moment, config.eps**2)
            rms = jnp.sqrt(jnp.mean(squares, tensor_axes, keepdims=True))
            return update / jnp.maximum(rms, 1.0)

        return jax.tree_util.tree_map_with_path(clip, updates, grads, moments), state

    return optax.GradientTransformation(adamw.init, update_fn)


def _is_layer_matrix(path: Sequence[Any]) -> bool:
    """Returns whether muon trains the parameter: a matrix of a layer, or a factor of its LoRA."""
    leaf = sharding.path_name(path).split("/")[-1]
    return _is_stacked(path) and leaf in DECAYED_LEAVES and leaf != "embedding"


def _orthogonalize(dtype: str) -> optax.GradientTransformation:
    """Returns the transformation of momenta of layers' matrices to Muon's updates.

    Every matrix is replaced by a nearly orthogonal one: its singular values become 0.7 to 1.2, by
    optax's Newton-Schulz iterations. It is then scaled to an RMS of about MUON_RMS. On a mesh each
    device computes whole layers. If the matrices remained sharded, the devices would have to
    exchange shards for every product.

    dtype: of the iterations, and of the matrices that devices send to one another. The published
    iterations are in bfloat16.
    """
    dimensions = optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=2)
    # With a decay of 0 the momentum is the input, so no state must be kept.
    newton_schulz = optax.contrib.scale_by_muon(
        ns_steps=MUON_ITERATIONS, beta=0.0, nesterov=False, weight_dimension_numbers=dimensions
    )

    def orthogonal(matrices):
        return newton_schulz.update(matrices, newton_schulz.init(matrices))[0]

    def update_leaf(path, momentum):
        matrices = _as_matrices(path, momentum)
        rms = MUON_RMS * math.sqrt(max(matrices.shape[1:]))
        nearly = sharding.map_layers(orthogonal, matrices.astype(dtype))
        return (rms * nearly.astype(momentum.dtype)).reshape(momentum.shape)

    def update_fn(momenta, state, params=None):
        del params
        updates = jax.tree_util.tree_map_with_path(update_leaf, momenta)
        return sharding.constrain_params(updates), state

    return optax.GradientTransformation(optax.init_empty_state, update_fn)


def _muon(adam: optax.GradientTransformation, dtype: str) -> optax.GradientTransformation:
    """Returns Muon for the matrices of layers, and `adam` for all other parameters.

    The momentum is Nesterov's, as in Jordan's code and in `torch.optim.Muon`. (In the momentum of
    `optax.contrib.muon` the first steps have other weights, and its Adam is Nesterov's too.)
    """

    def labels(params):
        tree = jax.tree_util.tree_map_with_path(
            lambda path, _: "muon" if _is_layer_matrix(path) else "adam", params
        )
        errors.check("muon" in jax.tree.leaves(tree), "optimizer.name", "muon",
                     "another optimizer: no matrix of stacked layers is trained")  # fmt: skip
        return tree

    muon = optax.chain(optax.trace(MUON_MOMENTUM, nesterov=True), _orthogonalize(dtype))
    return optax.partition({"muon": muon, "adam": adam}, labels)


def muon_shapes(config: Any, params: Any) -> list[tuple[int, ...]]:
    """Returns [layers, in, out] of each kernel that muon trains; [] for other optimizers.

    params: parameters, or their shapes.
    """
    leaves = jax.tree_util.tree_leaves_with_path(params) if config.name == "muon" else []
    return [_matrix_shape(path, leaf.shape) for path, leaf in leaves if _is_layer_matrix(path)]


def muon_flops(shape: Sequence[int], num_devices: int) -> int:
    """Returns the FLOPs of Muon's matrix products for a kernel, on the device with most layers.

    shape: [layers, in, out].
    """
    layers, *sizes = shape
    rows, columns = sorted(sizes)
    iteration = 4 * rows**2 * columns + 2 * rows**3
    return -(-layers // num_devices) * MUON_ITERATIONS * iteration


def _moment_scaling(config: Any, dtype: str) -> optax.GradientTransformation:
    """Returns the transformation of gradients to updates, before weight decay and learning rate."""
    adam = optax.scale_by_adam(config.b1, config.b2, config.eps)
    if config.name == "stable_adamw":
        return _stable_adam(config)
    if config.name == "muon":
        return _muon(adam, dtype)
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
    config: Any, num_steps: int, schedule: optax.Schedule | None = None, dtype: str = "float32"
) -> optax.GradientTransformation:
    """Returns the whole chain: clipping, moments, weight decay, LAMB's trust ratio, learning rate.

    adamw_rms is AdamW with each matrix's update multiplied by the RMS of the matrix, at least 1e-3.
    T5 v1.1 needs this with AdamW; adafactor does it by itself. LAMB (You et al., arXiv 1904.00962)
    multiplies by the ratio |matrix| / |update| instead, but, like the authors' code, not for biases
    and norms. stable_adamw clips the update of each layer's tensor, decay included, and needs no
    clip_norm. muon trains the matrices of layers with Muon, and all other parameters with AdamW.

    schedule: the learning rate; None: that of the config. dtype: of muon's matrix products.
    """
    decay = optax.add_decayed_weights(config.weight_decay, decay_mask)
    trust_ratio = optax.masked(by_matrix(optax.scale_by_trust_ratio()), decay_mask)
    return optax.chain(
        _clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity(),
        _moment_scaling(config, dtype),
        optax.identity() if config.name == "stable_adamw" else decay,
        trust_ratio if config.name == "lamb" else optax.identity(),
        optax.scale_by_learning_rate(schedule or make_schedule(config, num_steps)),
    )
