"""The worker of benchmarks/train_step.py for the Flax classes of transformers 4, its last ones.

    python -m benchmarks.train_step_flax FOLDER bfloat16 flax cpu

It needs an interpreter with transformers==4.57.6 jax==0.4.30 flax==0.8.5 optax==0.2.3 'numpy<2'.
The step is that of transformers' examples: `jax.jit`, optax, logits at every position.
"""

import json
import os
import pathlib
import sys

import numpy as np

from benchmarks import train_step_worker


def targets(arrays: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Returns (inputs of the model, the token to predict at each position, its weight)."""
    names = ("input_ids", "attention_mask", "token_type_ids", "decoder_input_ids",
             "decoder_attention_mask")  # fmt: skip
    inputs = {name: arrays[name] for name in names if name in arrays}
    if "targets" in arrays:
        return inputs, arrays["targets"], arrays["loss_weights"]
    labels, weights = np.zeros_like(inputs["input_ids"]), np.zeros(inputs["input_ids"].shape)
    np.put_along_axis(labels, arrays["masked_positions"], arrays["masked_ids"], axis=1)
    np.put_along_axis(weights, arrays["masked_positions"], arrays["masked_weights"], axis=1)
    return inputs, labels, weights


def main() -> None:
    """Serves the train step of the case in FOLDER."""
    folder, dtype, _, device = pathlib.Path(sys.argv[1]), *sys.argv[2:]
    os.environ["JAX_PLATFORMS"] = device
    import jax
    import jax.numpy as jnp
    import optax
    import transformers

    (content,) = json.loads((folder / "transformers.json").read_text())
    config = transformers.AutoConfig.for_model(**content)
    model_class = getattr(transformers, f"Flax{content['architectures'][0]}")
    model = model_class(config, input_shape=(1, 8), dtype=jnp.dtype(dtype))
    with np.load(folder / "batch.npz") as file:
        arrays = dict(file)
    inputs, labels, weights = targets(arrays)
    pairs = next((arrays[name] for name in arrays if name.endswith("_label")), None)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-6, weight_decay=0.01))

    def entropy(logits: jax.Array, ids: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), ids)

    def loss_of(params, key):
        outputs = model(**inputs, params=params, dropout_rng=key, train=True)
        logits = outputs["prediction_logits" if "prediction_logits" in outputs else "logits"]
        loss = (entropy(logits, labels) * weights).sum() / weights.sum()
        if pairs is None:
            return loss
        name = "sop_logits" if "sop_logits" in outputs else "seq_relationship_logits"
        return loss + entropy(outputs[name], pairs).mean()

    def train_step(params, moments, key):
        key, dropout_key = jax.random.split(key)
        loss, gradients = jax.value_and_grad(loss_of)(params, dropout_key)
        updates, moments = optimizer.update(gradients, moments, params)
        return optax.apply_updates(params, updates), moments, key, loss

    jitted = jax.jit(train_step, donate_argnums=(0, 1))
    state = model.params, optimizer.init(model.params), jax.random.key(0)

    def step() -> jax.Array:
        nonlocal state
        *state, loss = jitted(*state)
        return loss

    size = train_step_worker.MATMUL[device]
    matrix = jax.random.normal(jax.random.key(0), (size, size), dtype)
    product = jax.jit(jnp.matmul)
    facts = {
        "library": f"transformers {transformers.__version__} and jax {jax.__version__} for flax",
        "matmul": train_step_worker.peak(
            lambda: product(matrix, matrix).block_until_ready(), size
        ),
    }
    train_step_worker.serve(facts, step)


if __name__ == "__main__":
    main()
