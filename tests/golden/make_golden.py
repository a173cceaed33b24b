"""Writes bert.npz: a random BERT of transformers, a batch, and every output, for both activations.

    python -m tests.golden.make_golden        needs: pip install 'bertjax[hf]'

So parity is tested where torch is not installed. The arrays: "weights/NAME" as transformers names
them, "batch/NAME", "ACTIVATION/OUTPUT"; "config" is the config.json of the model as text.
"""

import json
import pathlib

import numpy as np

from tests.parity_cases import bert

FILE = pathlib.Path(__file__).with_name("bert.npz")
ACTIVATIONS = ("gelu", "gelu_new")
SHAPE = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 19,
}


def main() -> None:
    """Writes the file and prints its size."""
    batch = bert.batch(SHAPE)
    arrays = {f"batch/{name}": array for name, array in batch.items()}
    for activation in ACTIVATIONS:
        model = bert.theirs(SHAPE | {"hidden_act": activation})
        outputs = bert.their_outputs(model, batch)
        arrays |= {f"{activation}/{name}": array for name, array in outputs.items()}
    state = model.state_dict()  # the same for every activation
    arrays |= {f"weights/{name}": tensor.numpy() for name, tensor in state.items()}
    arrays["config"] = np.array(json.dumps(model.config.to_dict()))
    np.savez_compressed(FILE, **arrays)
    print(f"{FILE}: {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
