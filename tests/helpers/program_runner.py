"""Runs exported programs in a process in which bertjax cannot be imported.

    python program_runner.py TEXTS.json FOLDER...

Writes outputs.npz to each folder: the inputs that its own tokenizer makes of the texts, and the
outputs of the program for all of them and for the first one alone (names ending in "/alone").
"""

import json
import pathlib
import sys


class _Refused:
    """Makes every import of bertjax or of its model library fail."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("bertjax", "flax"):
            raise ImportError(f"{name} must not be imported here")
        return None


sys.meta_path.insert(0, _Refused())

import jax  # noqa: E402
import jax.export  # noqa: E402
import numpy as np  # noqa: E402
import tokenizers  # noqa: E402


def main(texts_file, *folders):
    texts = json.loads(pathlib.Path(texts_file).read_text())
    for folder in map(pathlib.Path, folders):
        description = json.loads((folder / "description.json").read_text())
        program = jax.export.deserialize((folder / description["program"]).read_bytes())
        params = jax.device_put(dict(np.load(folder / description["params"])))
        encoder = tokenizers.Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
        encoder.enable_truncation(description["tokenizer"]["max_length"])
        encoder.enable_padding()
        encoded = encoder.encode_batch(texts)
        arrays = {
            "input_ids": [x.ids for x in encoded],
            "attention_mask": [x.attention_mask for x in encoded],
            "token_type_ids": [x.type_ids for x in encoded],
        }
        inputs = {name: np.array(arrays[name], np.int32) for name in description["inputs"]}
        call = jax.jit(program.call)
        found = dict(call(params, inputs))
        size = int(inputs["attention_mask"][0].sum())
        alone = call(params, {name: x[:1, :size] for name, x in inputs.items()})
        found |= {f"{name}/alone": x for name, x in alone.items()}
        np.savez(folder / "outputs.npz", **inputs, **found)


main(*sys.argv[1:])
