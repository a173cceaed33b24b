"""Chooses epochs, evaluations and learning rates that a config leaves open, by the sizes.

Many updates matter more than few epochs: a few hundred examples need tens of epochs (Mosbach et
al., arXiv 2006.04884, take 20; Zhang et al., arXiv 2006.05987, section 6), a hundred thousand need
three. Small models need higher rates than BERT-base (Turc et al., arXiv 1908.08962, take up to
3e-4), large ones lower rates (Liu et al., arXiv 1907.11692, table 10). The best rate of MiniLM is
1e-4 on some tasks and 3e-4 on others (benchmarks/strategies_table.py), so both are tried.

    config = by_size.completed(config, source, num_rows=245)
    config.num_epochs        # 38
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from bertjax import errors, plugins
from bertjax.artifact import artifact
from bertjax.finetuning import batching, strategies
from bertjax.models.common import layers

MIN_STEPS, MIN_EPOCHS = 300, 3  # of a run
MAX_EVALUATIONS = 10  # of a run whose config leaves their number open

# On a CPU, a step of unrolled layers takes 5% less CPU time, but compiling it takes 0.5 s more for
# each layer and shape (MiniLM, 1.8M parameters a layer, 1,600 tokens per second of CPU time; see
# benchmarks/README.md, startup.py). With one run, both are equal at 2e11 tokens x parameters. Half
# of it is taken, because all runs of a job use the same programs.
_MIN_UNROLLED = 1e11


class _UsualRates(NamedTuple):
    """The usual learning rates when the whole model is trained.

    rates: the defaults, the preferred one first, which is chosen if several have the same score.
    limit: training often fails at rates above this one. range: the usual range, as text.
    """

    rates: tuple[float, ...]
    limit: float
    range: str


# Strategies that need higher rates have their own `RATES`. T5: Raffel et al., arXiv 1910.10683,
# section 3.1.2. Base: Devlin et al., arXiv 1810.04805, appendix A.3.
_T5 = _UsualRates((3e-4, 1e-4, 1e-3), 1e-3, "1e-4 to 1e-3")
_SMALL = _UsualRates((3e-4, 1e-4), 1e-3, "1e-4 to 5e-4")
_BASE = _UsualRates((3e-5, 2e-5, 5e-5), 1e-4, "1e-5 to 5e-5")
_LARGE = _UsualRates((2e-5, 1e-5, 3e-5), 5e-5, "1e-5 to 3e-5")
_SMALL_WIDTH, _BASE_WIDTH = 512, 768  # the largest hidden sizes of small and of base models


def completed(config: ConfigDict, source: artifact.Artifact, num_rows: int) -> ConfigDict:
    """Returns the config with a value for each key that it leaves open.

    source: the model. num_rows: the number of rows of train.
    """
    config = config.copy_and_resolve_references()
    if not config.learning_rates:
        config.learning_rates = strategies.rates(config.strategy.name) or usual_rates(source).rates
    if not config.num_epochs:
        config.num_epochs = num_epochs(num_rows, config.batch_size)
    if not config.evals_per_epoch and config.num_epochs <= MAX_EVALUATIONS:
        config.evals_per_epoch = 1
    return config


def compute(
    config: ConfigDict, fields: Mapping[str, Any], train: batching.Batches, tasks: int = 1
) -> layers.Compute:
    """Returns the compute settings; the layers of a short run are compiled as a loop.

    Depends on the config and on the sizes of model and data only, so that a resumed run computes
    the same. config: the result of `completed`. fields: those of the model. tasks: how many tasks
    share their programs; only tasks with the same kind of layers can. So a task of several must be
    longer to be worth programs of its own.
    """
    usual = plugins.compute(config)
    width, hidden = fields["hidden_size"], fields["intermediate_size"]
    layer_params = 4 * width**2 + 2 * width * hidden
    tokens = train.tokens_per_length()
    work = config.num_epochs * sum(tokens.values()) * layer_params
    is_unrolled = usual.unroll_layers and work >= _MIN_UNROLLED * len(tokens) * tasks
    return dataclasses.replace(usual, unroll_layers=is_unrolled)


def num_epochs(num_rows: int, batch_size: int) -> int:
    """Returns how many epochs give MIN_STEPS steps; at least MIN_EPOCHS."""
    return max(MIN_EPOCHS, math.ceil(MIN_STEPS / _steps(num_rows, batch_size)))


def evaluation_steps(config: ConfigDict, steps_per_epoch: int) -> list[int]:
    """Returns the steps after which dev is scored, ascending; the last step is one of them.

    config: the result of `completed`. If it leaves the number open, these are the ends of
    MAX_EVALUATIONS epochs at equal distances. Without a dev (see `folds`), it is the last step.
    """
    if config.data.folds and not config.data.fold:
        return [config.num_epochs * steps_per_epoch]
    count = config.num_epochs * config.evals_per_epoch
    if count:
        parts = range(1, count + 1)
        return sorted({-(-part * steps_per_epoch // config.evals_per_epoch) for part in parts})
    epochs = (
        -(-part * config.num_epochs // MAX_EVALUATIONS) for part in range(1, MAX_EVALUATIONS + 1)
    )
    return sorted({epoch * steps_per_epoch for epoch in epochs})


def usual_rates(source: artifact.Artifact) -> _UsualRates:
    """Returns the usual learning rates for training the whole model."""
    if plugins.family(source.family).KIND == "encoder_decoder":
        return _T5
    width = source.fields["hidden_size"]
    if width <= _SMALL_WIDTH:
        return _SMALL
    return _BASE if width <= _BASE_WIDTH else _LARGE


def highest_rate(config: ConfigDict, source: artifact.Artifact) -> float:
    """Returns the rate above which training often fails; infinity if the strategy knows none."""
    whole = config.strategy.name in ("full", "layerwise", "gradual")
    return usual_rates(source).limit if whole else math.inf


def guard_rails(config: ConfigDict, source: artifact.Artifact, num_rows: int) -> list[str]:
    """Returns a warning for each setting that often fails.

    config: the result of `completed`. Returns nothing for values that `completed` has chosen.
    """
    warnings = []
    highest, usual = max(config.learning_rates), usual_rates(source)
    if highest > highest_rate(config, source):
        warnings.append(
            f"learning rate {highest:g} for the whole model: rates above {usual.limit:g} often "
            f"destroy the pretrained weights of a model of width {source.fields['hidden_size']}; "
            f"usual rates are {usual.range}"
        )
    steps = config.num_epochs * _steps(num_rows, config.batch_size)
    by_size = num_epochs(num_rows, config.batch_size)
    chosen = f"config.num_epochs = {config.num_epochs} with {num_rows:,} rows"
    advice = f"without --config.num_epochs, its value by size is {by_size}"
    if steps < MIN_STEPS / 2:
        warnings.append(f"{chosen} is only {errors.count(steps, 'step')}; {advice}")
    elif config.num_epochs > max(3 * by_size, 10) and not config.early_stopping:
        warnings.append(
            f"{chosen} mostly overfits unless config.early_stopping ends the run; {advice}"
        )
    return warnings


def _steps(num_rows: int, batch_size: int) -> int:
    """Returns the number of steps of an epoch."""
    return max(1, math.ceil(num_rows / batch_size))
