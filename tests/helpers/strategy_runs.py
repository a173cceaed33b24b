"""Fine-tunes a tiny model for a few steps with a strategy, for the tests of strategies."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bertjax import optimizer, plugins, sharding
from bertjax import step as step_lib
from bertjax.finetuning import strategies
from bertjax.finetuning.strategies import base
from tests.helpers import encoders

LABELS, ROWS = 3, 8
HEADS = {
    "bert": {"heads": ("pooler", "classifier"), "num_labels": LABELS},
    "albert": {"heads": ("pooler", "classifier"), "num_labels": LABELS},
    "roberta": {"heads": ("classifier",), "num_labels": LABELS},
    "modernbert": {"heads": ("classifier",), "num_labels": LABELS},
    "t5": {"num_decoder_layers": 2, "head_dim": 8},
}


def fields(family: str) -> dict[str, Any]:
    """Returns the fields of a family's tiny model; its head has three labels (T5: the LM head)."""
    return {**encoders.FIELDS, "dropout_rate": 0.0, **HEADS[family]}


def make(name: str, family: str = "bert", rate: float = 1.0, **knobs: Any) -> base.Strategy:
    """Returns the strategy for the family's tiny model, with some of its knobs changed."""
    config = {"name": name, **strategies.default(name), **knobs}
    return strategies.make(config, fields(family), rate)


def model_of(method: base.Strategy, family: str = "bert") -> tuple[Any, Any]:
    """Returns the family's model with the fields that the strategy needs, and its parameters."""
    return _made(family, tuple(sorted(method.fields().items())))


@functools.cache
def _made(family: str, fields: tuple[tuple[str, Any], ...]) -> tuple[Any, Any]:
    return encoders.make(family, **dict(fields))


def batch(method: base.Strategy, family: str = "bert") -> dict[str, jax.Array]:
    """Returns random rows with labels, the same at every call."""
    rng = np.random.default_rng(0)
    ids = rng.integers(5, encoders.FIELDS["vocab_size"], (ROWS, 12)).astype(np.int32)
    prompt = np.tile(np.array(method.prompt_ids(), np.int32), (ROWS, 1))
    found = {"input_ids": jnp.asarray(np.concatenate([ids[:, :1], prompt, ids[:, 1:]], axis=1))}
    if family == "t5":
        return found | {"decoder_input_ids": jnp.asarray(ids[:, :5])}
    return found | {"labels": jnp.arange(ROWS, dtype=jnp.int32) % LABELS}


def loss(apply: Any, batch: dict[str, jax.Array]) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Returns the cross-entropy of the labels, or for T5 of the decoder's next tokens."""
    rows = dict(batch)
    if "labels" in rows:
        targets, scores = rows.pop("labels"), "class_logits"
    else:
        targets, scores = jnp.roll(rows["decoder_input_ids"], -1, axis=1), "logits"
    logits = apply(**rows)[scores]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    return {"loss": (losses.sum(), jnp.float32(losses.size))}


def trainer(
    method: base.Strategy, family: str = "bert", steps_per_epoch: int = 2, **options: Any
) -> tuple[Any, Any, optax.GradientTransformation]:
    """Returns (jitted step(state, batch, {"base": frozen}), the same not jitted, tx).

    options: fields of optimizer.Config.
    """
    model, _ = model_of(method, family)
    flat = {"learning_rate": 1e-2, "schedule": "constant", "warmup_steps": 0, "weight_decay": 0.1}
    config = optimizer.Config(**{**flat, **options})
    tx = method.optimizer(config, 100, steps_per_epoch)

    def normalizers(batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        scored = batch["decoder_input_ids" if family == "t5" else "labels"]
        return {"loss": jnp.float32(scored.size)}

    function = step_lib.make_train_step(
        model, loss, normalizers, {"loss": 1.0}, tx, optimizer.make_schedule(config, 100),
        combine=lambda params, frozen: method.combine(params, frozen["base"]),
    )  # fmt: skip
    return jax.jit(function), function, tx


def train(
    method: base.Strategy, params: Any, family: str = "bert", steps: int = 3, **options: Any
) -> list[Any]:
    """Returns the model's parameters at the start and after every step."""
    step, _, tx = trainer(method, family, **options)
    # One program each: outside of jit every operation on a new shape would be compiled alone.
    trained, frozen = jax.jit(method.split)(params, jax.random.key(1))
    state = jax.jit(lambda p, key: step_lib.init_state(p, tx, key))(trained, jax.random.key(2))
    combine = jax.jit(method.combine)
    stages = [combine(state.params, frozen)]
    for _ in range(steps):
        state, report = step(state, batch(method, family), {"base": frozen})
        assert int(report["skipped"]) == 0
        stages.append(combine(state.params, frozen))
    return stages


def named(tree: Any) -> dict[str, np.ndarray]:
    """Returns {path: leaf}."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {sharding.path_name(path): np.asarray(leaf) for path, leaf in leaves}


def moved(before: Any, after: Any) -> set[str]:
    """Returns the paths of the leaves that changed in any bit; "path[layer]" if stacked."""
    before, after = named(before), named(after)
    assert before.keys() == after.keys()
    found = set()
    for path, old in before.items():
        if "/layers/" in path:
            pairs = zip(old, after[path], strict=True)
            found |= {f"{path}[{i}]" for i, (a, b) in enumerate(pairs) if (a != b).any()}
        elif (old != after[path]).any():
            found.add(path)
    return found


def paths(tree: Any) -> set[str]:
    """Returns every path that `moved` can return."""
    return moved(tree, jax.tree.map(lambda leaf: leaf + 1, tree))


def abstract(family: str, name: str, fields: dict[str, Any]) -> tuple[Any, Any, base.Strategy]:
    """Returns (trained, frozen, strategy) of a model of any size; the first two are only shapes."""
    method = strategies.make({"name": name, **strategies.default(name)}, fields)
    params = plugins.abstract_params(plugins.model(family, method.fields()))
    trained, frozen = jax.eval_shape(lambda p: method.split(p, jax.random.key(0)), params)
    return trained, frozen, method
