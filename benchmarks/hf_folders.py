"""Checks exported folders in transformers: missing and unexpected keys, outputs and token ids.

    python -m benchmarks.hf_folders write FOLDER    # with bertjax: every family, every class
    python benchmarks/hf_folders.py check FOLDER    # with any transformers; needs no bertjax

The models are small and have random parameters. `write` makes a folder for each of them, with
inputs.npz beside the weights: token ids and the logits or states that bertjax computes for them.
`check` loads the model with the class that its config.json names, and its tokenizer with
AutoTokenizer.
"""

import dataclasses
import json
import pathlib
import sys

import numpy as np

KINDS = {"roberta": "bpe", "gpt2": "bpe", "albert": "unigram", "t5": "unigram"}
TEXT = "the cat sat on the mat"
# Compares the first of these outputs that a model has.
OURS = ("mlm_logits", "logits", "rtd_logits", "nsp_logits", "last_hidden_state")
THEIRS = ("prediction_logits", "logits", "last_hidden_state")


def exact_heads(family: str, classes: dict[tuple[str, ...], str]) -> list[tuple[str, ...]]:
    """Returns for each class of theirs the largest set of heads that it has in full.

    RobertaForMaskedLM lacks a pooler, and no class has SpanBERT's pooler and an MLM head.
    """

    def exact(heads: tuple[str, ...], name: str) -> bool:
        both = {"pooler", "mlm"} <= set(heads)
        return not both or (name.endswith("ForPreTraining") and family != "spanbert")

    fullest = {name: heads for heads, name in classes.items() if exact(heads, name)}
    return list(fullest.values())


def write(folder: pathlib.Path) -> None:
    """Writes a Hugging Face folder per family and class of theirs, with all the class's heads."""
    import jax

    from bertjax import plugins
    from bertjax.artifact import artifact, huggingface
    from bertjax.models.common import layers
    from tests.helpers import tiny_model

    for family in plugins.families():
        module = plugins.family(family)
        tokenizer = tiny_model.tokenizer(KINDS.get(family, "wordpiece"))
        for heads in exact_heads(family, module.HF_CONFIG["architectures"]):
            fields = {"vocab_size": tokenizer.size + 100, **module.SMOKE, "heads": heads}
            if "pad_id" in module.Config.__dataclass_fields__:
                fields["pad_id"] = tokenizer.specials.pad
            model = plugins.model(family, fields)
            how = dataclasses.asdict(layers.Compute())
            fields = {k: v for k, v in vars(model.config).items() if k not in how}
            params = plugins.init_params(model, jax.random.key(0))
            target = folder / "-".join([family, *heads])
            huggingface.write(
                artifact.Artifact(family, fields, jax.device_get(params), tokenizer), target
            )
            ids = np.array([tokenizer.encode(TEXT)], np.int32)
            inputs = dict.fromkeys(module.INPUTS, ids)
            outputs = model.apply({"params": params}, **inputs)
            output = np.asarray(next(outputs[name] for name in OURS if name in outputs))
            if output.shape[-1] > fields["vocab_size"]:
                output = output[..., : fields["vocab_size"]]
            np.savez(target / "inputs.npz", **inputs, output=output, text_ids=ids)
            print(target)


def check(folder: pathlib.Path) -> int:
    """Prints a line for each folder; returns the number of folders that are wrong."""
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    wrong = 0
    for target in sorted(path.parent for path in folder.glob("*/config.json")):
        name = json.loads((target / "config.json").read_text())["architectures"][0]
        model, info = getattr(transformers, name).from_pretrained(
            target, output_loading_info=True, attn_implementation="eager"
        )
        stored = np.load(target / "inputs.npz")
        features = {n: torch.tensor(v).long() for n, v in stored.items() if n.endswith("input_ids")}
        with torch.no_grad():
            outputs = model.eval()(**features)
        output = next(outputs[name] for name in THEIRS if name in outputs).numpy()
        difference = float(np.abs(output - stored["output"]).max())
        ids = transformers.AutoTokenizer.from_pretrained(target)(TEXT, add_special_tokens=False)
        same_ids = ids["input_ids"] == stored["text_ids"][0].tolist()
        missing, unexpected = (sorted(info[f"{key}_keys"]) for key in ("missing", "unexpected"))
        right = not missing and not unexpected and difference < 1e-4 and same_ids
        wrong += not right
        print(f"{'ok   ' if right else 'WRONG'} {target.name:<32}{name:<34}missing {missing} "
              f"unexpected {unexpected} output {difference:.1e} ids {same_ids}")  # fmt: skip
    print(f"transformers {transformers.__version__}: {wrong} wrong")
    return wrong


if __name__ == "__main__":
    verb, where = sys.argv[1], pathlib.Path(sys.argv[2])
    sys.exit(write(where) if verb == "write" else min(check(where), 1))
