"""bertjax: pretraining and fine-tuning of BERT and its relatives in JAX and Flax.

import bertjax

bert = bertjax.load("run/")
bert.fill_mask("The [MASK] sat on the mat.")
vectors = bert.encode(["A cat sat.", "A dog ran."])
bertjax.load("gpt2/").generate(["The cat sat on"], max_new_tokens=20)

bertjax.pretrain("configs/mini.py:bert", "run/", {"data.path": "prepared/"})
bertjax.finetune(model="run/", task="classification", train="train.tsv", output="out/")
bertjax.load("out/").predict("I loved this movie.")     # {"label": "positive", ...}
"""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ml_collections import ConfigDict

    from bertjax.finetuning.run import Finetuned
    from bertjax.inference.pretrained import Pretrained

__version__ = "0.1.0"  # setup.py reads this line

Path = str | os.PathLike


def load(path: Path) -> "Pretrained":
    """Loads a model from a workdir, one of its checkpoints, an artifact or a Hugging Face folder.

    "ORG/NAME" or "ORG/NAME@REVISION" is a model of the Hugging Face Hub, unless there is such a
    folder. "RUN/ema" is the moving average of a run's parameters, if `config.ema_decay` is above 0.
    The result has `model`, `params`, `tokenizer`, `encode(texts)`, `fill_mask(text)` and
    `generate(prompts)`, and computes in float32. A fine-tuned model also has `predict(inputs)` and
    `evaluate(file)`. Raises `errors.UserError` naming the file that is absent or damaged.
    """
    # Imported here, since importing jax and flax takes seconds and not every command needs them.
    from bertjax.artifact import loading
    from bertjax.inference import pretrained

    source = loading.load(path)
    if source.task is None:
        return pretrained.Pretrained(source)
    from bertjax.finetuning import predictor

    return predictor.Predictor(source)


def build(family: str = "bert", variant: str = "base", **fields: Any) -> Any:
    """Returns a Flax Linen module of a model family, without parameters.

    The module computes in float32. variant: one of the sizes in the family's file. fields: fields
    of the family's `Config` that override the variant's values, such as num_layers=4. Raises
    `errors.UserError` for an unknown name or an impossible value.
    """
    from bertjax import plugins

    return plugins.model(family, {**plugins.variant(family, variant), **fields})


def pretrain(
    config: "ConfigDict | Path | None",
    workdir: Path,
    overrides: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """Trains until step `config.num_steps`; resumes from the newest checkpoint of `workdir` if any.

    config: a config file as FILE or FILE:ARG, or the config itself; None: a config made from the
    model at overrides["init_from"]. overrides: {key of the config: value}, such as {"data.path":
    "prepared/"}. Writes report.html to `workdir` and returns the last held-out metrics. Raises
    `errors.UserError` if the config, the overrides, the data or the workdir are invalid.
    """
    from bertjax import config as config_lib
    from bertjax import run_starts, train
    from bertjax.artifact import initial
    from bertjax.reporting import pretraining
    from bertjax.runtime import backend

    values = {key: str(value) for key, value in (overrides or {}).items()}
    origin = None
    if config is None or isinstance(config, str | os.PathLike):
        file = os.fspath(config) if config else None
        config = initial.run_config(file, values)
        origin = run_starts.origin(file, workdir, values, config)
    else:
        config = config_lib.overridden(config, values)
    backend.configure(config.dtype)
    heldout = train.train_and_evaluate(config, workdir, origin=origin)
    pretraining.write_at_end(workdir)
    return heldout


def finetune(
    *,
    model: Path,
    task: str = "",
    output: Path,
    data: Path | None = None,
    train: Path | None = None,
    dev: Path | None = None,
    test: Path | None = None,
    text_column: str = "",
    label_column: str = "",
    strategy: str = "",
    recipe: str = "",
    sweep: Mapping[str, Sequence[Any]] | None = None,
    folds: int = 0,
    overrides: Mapping[str, Any] | None = None,
    **keys: Any,
) -> "Finetuned":
    """Fine-tunes `model` on a task of `finetuning/tasks.py` and writes the results to `output`.

    data: the folder that contains the files of all splits. train, dev, test: the files of the
    splits, if `data` is not given. text_column, label_column: the names of the columns, such as
    "premise,hypothesis"; "" means the usual names. strategy: "" means that of the recipe, or full.
    recipe: a name or a file, see configs/finetune/; the task may then be omitted. sweep: {key:
    values to try}, such as {"num_epochs": (2, 3)}; every combination is trained. folds: how many
    parts of train are dev in turn, for cross-validation; 0 for none.
    keys: keys of the config (finetuning/recipe.py), such as num_epochs=2,
    learning_rates=(2e-5, 5e-5), seeds=3. overrides: {key: value} for keys with a dot in the name,
    such as {"kind.class_weights": True}. Returns the report and the best model. Raises
    `errors.UserError` if any argument or file is invalid.
    """
    from bertjax.finetuning import named, run
    from bertjax.finetuning import sweep as sweep_lib

    files = {"train": train, "dev": dev, "test": test}
    columns = {"data.text_column": text_column, "data.label_column": label_column}
    data_keys = {"data.folds": folds, **columns} if folds else columns
    values = {"model": os.fspath(model), **data_keys, **keys, **(overrides or {})}
    values |= {"strategy.name": strategy} if strategy else {}
    make = named.maker(recipe, task, data, files)
    if sweep:
        members = sweep_lib.members(sweep_lib.parse(sweep), values, make)
        return sweep_lib.run(members, output)
    return run.finetune(make(values), output)
