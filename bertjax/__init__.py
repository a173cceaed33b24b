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

    from bertjax.finetuning.probing.report import Probed
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
    "prepared/"}. Returns the last held-out metrics. Raises `errors.UserError` if the config, the
    overrides, the data or the workdir are invalid.
    """
    from bertjax import config as config_lib
    from bertjax import train
    from bertjax.artifact import initial
    from bertjax.runtime import backend

    values = {key: str(value) for key, value in (overrides or {}).items()}
    if config is None or isinstance(config, str | os.PathLike):
        config = initial.run_config(os.fspath(config or ""), values)
    else:
        config = config_lib.overridden(config, values)
    backend.configure(config.dtype)
    return train.train_and_evaluate(config, workdir)


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


def probe(
    *,
    model: Path,
    train: Path,
    dev: Path,
    output: Path | None = None,
    task: str = "",
    text_column: str = "",
    label_column: str = "",
    **options: Any,
) -> "Probed":
    """Measures how well a linear probe on each layer of a frozen model predicts labels.

    train, dev: files with a tag for each word (CoNLL columns), or tables with texts and labels. The
    probes are trained on one and scored on the other, and so is a control task, which can only be
    memorised. output: folder for probe.json and probe.png. task: such as "tokens" or "pair"; "":
    the one that fits the files. options: fields of `finetuning.probing.run.Options`, such as
    seeds=3 or pooling="cls".
    Returns the report; `print` shows its table. Raises `errors.UserError` if any argument or file
    is invalid, or if the model's layers cannot be read.
    """
    from bertjax.finetuning.probing import run

    return run.probe(
        model, train, dev, task=task, text_column=text_column, label_column=label_column,
        output=output, options=run.Options(**options),
    )  # fmt: skip
