"""The config of fine-tuning: declares every key, with the usual recipe as defaults.

The usual recipe is AdamW with bias correction, whose rate warms up over a tenth of the steps and
then decays linearly (Mosbach et al., arXiv 2006.04884, section 6). `by_size` chooses the epochs and
the rates that a config leaves open. The results of single runs vary, so several seeds are better
than one.

    config = recipe.default("sst2", strategy="lora")
    config.learning_rates = (1e-4,)
"""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from bertjax import config as config_lib
from bertjax import errors, optimizer, paths, sharding, trackers
from bertjax.data.corpus import beir
from bertjax.finetuning import strategies, task_types, tasks
from bertjax.finetuning import task as task_lib
from bertjax.finetuning.task_types import base
from bertjax.models.common import kernels, layers

SHORTEST = 8  # the smallest maximum length of a row, in tokens
# Keys whose values may change when fine-tuning resumes in an output folder. Rates and seeds may,
# because each (rate, seed) is a separate run. Paths may, because the content of models and files is
# compared instead.
_FREE_KEYS = (
    "learning_rates", "seeds", "seed", "mesh", "remat", "model", "log_every", "log_to",
    "checkpoint_every", "micro_batch_size", "measure_speed",
)  # fmt: skip
# {key that output folders of earlier versions do not have: the value that they were made with}
ADDED_KEYS = {"teacher": "", "teacher_weight": 0.9, "teacher_temperature": 2.0, "num_layers": 0}
# {key of earlier versions, which is accepted and ignored: the reason}
FORMER_KEYS = {"seeds_at_once": "seeds are trained one after the other"}


def default(task: str, strategy: str = "full") -> ConfigDict:
    """Returns the default config, with all keys, for fine-tuning on a task.

    Raises UserError for an unknown task or strategy.
    """
    definition = tasks.find(task)
    kind_config = task_types.load(definition.kind).Config(**definition.options)
    config = ConfigDict()
    config.model = ""  # model to start from: artifact, workdir, Hugging Face folder, ORG/NAME
    config.task = task  # name of the task, see finetuning/tasks.py
    config.kind = ConfigDict(dataclasses.asdict(kind_config))  # options of the task type

    config.data = ConfigDict()
    for split in splits(definition):
        config.data[split] = ""  # file of the split; without a dev file, part of train is held out
    config.data.dev_fraction = 0.1  # share of train that is held out if dev has no file
    config.data.folds = 0  # parts of train that are dev in turn, for cross-validation; 0: none
    config.data.fold = -1  # the part that is dev; 0: none; -1: each in turn, and then none
    config.data.max_train = 0  # training examples to use, with the same shares of labels; 0: all
    config.data.unlabelled = ""  # texts without labels, on which config.teacher predicts
    config.data.text_column = ""  # columns of the texts, such as "text1,text2"; "": the usual
    config.data.label_column = ""  # column of the labels; "": the usual
    config.teacher = ""  # fine-tuned model whose predictions the model learns, too; "": none
    config.teacher_weight = 0.9  # weight of the teacher's predictions; that of the labels: the rest
    config.teacher_temperature = 2.0  # softens the probabilities of teacher and student
    config.num_layers = 0  # layers of config.model to keep, evenly spread; 0: all
    config.max_length = definition.max_length  # tokens per row, special tokens included

    config.num_epochs = 0  # passes over the training data; 0: by the size of train
    config.batch_size = 32  # rows per step, over all devices
    config.micro_batch_size = 0  # rows per forward pass, over all devices; 0: automatic
    config.learning_rates = ()  # rates to try, of which the best on dev is chosen; (): by size
    config.optimizer = ConfigDict(dataclasses.asdict(optimizer.Config()))
    config.optimizer.warmup_rate = 0.1  # share of the steps in which the learning rate warms up
    for key in ("learning_rate", "warmup_steps", "decay_steps", "decay_shape"):
        del config.optimizer[key]  # `run_optimizer` sets these for each run; wsd is not used
    config.head_rate_factor = 1.0  # factor on the learning rate of the head
    options = {"name": strategy, **strategies.default(strategy)}
    config.strategy = ConfigDict(options)  # what is trained
    config.dropout_rate = -1.0  # all dropout rates of the model; -1: those of the checkpoint

    config.seeds = 1  # runs per learning rate, each with its own seed
    config.seed = 0  # first seed; a seed determines the new head, order of examples, dropout
    config.early_stopping = 0  # evaluations without improvement after which a run ends; 0: never
    config.evals_per_epoch = 0  # evaluations on dev, the best one counts; 0: at most 10 a run
    config.measure_speed = False  # measure the time of predictions for the report
    config.log_every = 10  # steps between two lines of a run's metrics
    config.log_to = ""  # trackers that receive the metrics, too: wandb, trackio; "": none
    config.checkpoint_every = 500  # steps between two checkpoints of a run

    config.dtype = "auto"  # of activations: float32, bfloat16; auto: float32 on a CPU only
    config.remat = "none"  # what the backward pass recomputes: none, dots, full
    config.attention = "auto"  # xla, or cudnn on GPUs; auto: on TPUs rows where it applies
    config.mesh = "data:-1"  # sizes: "slice:2,data:2,fsdp:4,tensor:2,sequence:2"; -1: the rest
    return config.lock()


def splits(task: task_lib.Task) -> tuple[str, ...]:
    """Returns the splits for which a task can have files."""
    return tuple(dict.fromkeys(("train", "dev", "test", *task.files)))


def make(
    task: str,
    data: str | os.PathLike | None,
    files: Mapping[str, str | os.PathLike | None],
    values: Mapping[str, Any],
) -> ConfigDict:
    """Returns the config for fine-tuning on files, without validating it.

    data: a folder with the files of the splits. files: {split: path}; these replace the files in
    `data`. values: {"a.b": value}, as text or of the key's type. Raises UserError for unknown
    names, for keys that have a flag (task, learning_rate), and for a key of another strategy.
    """
    values = dict(values)
    config = default(task, values.pop("strategy.name", "full"))
    if data is not None:
        definition = tasks.find(task)
        config.data.update(definition.type.find_files(definition, os.fspath(data)))
    for split, path in files.items():
        if path:
            config.data[split] = _file(split, os.fspath(path))
    for key, value in values.items():
        if key == "task":
            raise errors.UserError(f"config.task = {value}: give the task as --task={value}")
        if key.split(".")[-1] in ("lr", "learning_rate"):
            raise errors.UserError(f"config.{key}: give the learning rates as --lr={value}")
        if key in FORMER_KEYS:
            errors.tell(f"warning: config.{key} no longer has an effect: {FORMER_KEYS[key]}")
            continue
        if key == "learning_rates":
            config.learning_rates = rates(value)
            continue
        owners = [] if key in config_lib.keys(config) else strategies.owners(key)
        if owners:
            raise errors.UserError(
                f"config.{key} is a key of the strategy {' or '.join(owners)}, but this run "
                f"has the strategy {config.strategy.name}: give --strategy={owners[0]}"
            )
        config_lib.override(config, key, str(value))
    return config


def _file(split: str, path: str) -> str:
    """Returns the path. Raises UserError if it is a folder, except a collection for retrieval."""
    is_folder = not path.startswith("tfds:") and paths.of(path).is_dir()
    if is_folder and not beir.is_collection(path):
        raise errors.UserError(f"--{split}={path}: is a folder; give it as --data={path}")
    return path


def rates(value: str | float | Sequence[float]) -> tuple[float, ...]:
    """Returns the learning rates in `value`: a text like "2e-5,3e-5", a number or several.

    Raises UserError for anything else.
    """
    parts: Any = [value] if isinstance(value, float | int) else value
    if isinstance(value, str):
        parts = value.strip("()").rstrip(",").split(",")
    try:
        return tuple(map(float, parts))
    except (TypeError, ValueError):
        raise errors.UserError(f"--lr={value}: give rates like 2e-5,3e-5,5e-5") from None


def validate(config: ConfigDict) -> None:
    """Raises UserError if a value in the config is invalid. Reads no file."""

    def check(ok: bool, key: str, allowed: str) -> None:
        errors.check(ok, key, config_lib.value_of(config, key), allowed)

    for key in ("batch_size", "seeds", "log_every", "checkpoint_every"):
        check(config_lib.value_of(config, key) >= 1, key, "1 or more")
    for key in (
        "data.max_train", "early_stopping", "num_epochs", "evals_per_epoch", "micro_batch_size",
        "num_layers",
    ):  # fmt: skip
        check(config_lib.value_of(config, key) >= 0, key, "0 or more")
    check(config.batch_size % (config.micro_batch_size or 1) == 0, "micro_batch_size",
          f"a divisor of config.batch_size = {config.batch_size}")  # fmt: skip
    folds = config.data.folds
    check(folds == 0 or folds >= 2, "data.folds", "2 or more, or 0 for no cross-validation")
    check(-1 <= config.data.fold <= folds, "data.fold", "between -1 and config.data.folds")
    check(config.max_length >= SHORTEST, "max_length", f"{SHORTEST} or more")
    check(0 <= config.seed < 2**32 - config.seeds, "seed", "between 0 and 2**32 - 1")
    check(all(0 < rate < math.inf for rate in config.learning_rates), "learning_rates",
          "rates above 0")  # fmt: skip
    check(len(set(config.learning_rates)) == len(config.learning_rates), "learning_rates",
          "different rates")  # fmt: skip
    check(0 < config.data.dev_fraction < 1, "data.dev_fraction", "above 0 and below 1")
    check(config.dropout_rate == -1 or 0 <= config.dropout_rate < 1, "dropout_rate",
          "in [0, 1), or -1")  # fmt: skip
    check(config.head_rate_factor > 0, "head_rate_factor", "above 0")
    check(0 < config.teacher_weight <= 1, "teacher_weight", "above 0 and at most 1")
    check(config.teacher_temperature > 0, "teacher_temperature", "above 0")
    check(not config.data.unlabelled or config.teacher, "data.unlabelled",
          "empty without config.teacher, which predicts on these texts")  # fmt: skip
    check(0 <= config.optimizer.warmup_rate < 1, "optimizer.warmup_rate", "in [0, 1)")
    check(config.optimizer.schedule != "wsd", "optimizer.schedule",
          "a schedule that decays to its end: 'wsd' does not decay")  # fmt: skip
    check(config.dtype in ("auto", "float32", "bfloat16"), "dtype",
          "'auto', 'float32' or 'bfloat16'")  # fmt: skip
    check(config.attention in (*kernels.PLAIN, "cudnn"), "attention",
          "'auto', 'xla' or 'cudnn'; the other kernels do not support all lengths")
    check(config.remat in layers.REMAT_POLICIES, "remat", ", ".join(layers.REMAT_POLICIES))
    sharding.parse_mesh(config.mesh)
    trackers.names(config.log_to)  # raises for an unknown one
    optimizer.validate(run_optimizer(config, 1e-5, 1000), 1000)
    task_type(config)
    strategies.config_of(config.strategy)


def is_free(key: str) -> bool:
    """Returns whether the runs of one output folder may differ in this key."""
    is_data = key.startswith("data.") and key not in ("data.dev_fraction", "data.max_train")
    return is_data or key in _FREE_KEYS


def task_type(config: ConfigDict) -> base.TaskType:
    """Returns the task type with the options in the config, not yet bound to a model."""
    task_class = task_types.load(tasks.find(config.task).kind)
    return task_class(config.task, task_class.Config(**config.kind))


def run_optimizer(config: ConfigDict, learning_rate: float, num_steps: int) -> optimizer.Config:
    """Returns the optimizer's config for a run of `num_steps` steps."""
    fields = {key: value for key, value in config.optimizer.items() if key != "warmup_rate"}
    warmup_steps = min(round(config.optimizer.warmup_rate * num_steps), num_steps - 1)
    min_warmup = int(fields["schedule"] == "rsqrt")  # rsqrt is 0 without warm-up steps
    return optimizer.Config(
        **fields, learning_rate=learning_rate, warmup_steps=max(warmup_steps, min_warmup)
    )
