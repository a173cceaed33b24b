"""Fine-tuning: labelled examples, how a model answers, what is trained, and honest scores.

    bertjax.finetune(model="run/", task="classification", train="train.tsv", output="out/")

The package is that function too: importing a module of it makes it the attribute `finetune` of
`bertjax`, whatever had the name before.
"""

import os
import sys
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertjax.finetune.run import Finetuned

Path = str | os.PathLike


class _Package(types.ModuleType):
    def __call__(
        self,
        *,
        model: Path,
        task: str,
        output: Path,
        data: Path | None = None,
        train: Path | None = None,
        dev: Path | None = None,
        test: Path | None = None,
        strategy: str = "full",
        overrides: Mapping[str, Any] | None = None,
        **keys: Any,
    ) -> "Finetuned":
        """Fine-tunes `model` on a task of `finetune/tasks.py`; what it learned is in `output`.

        data: folder with the files of the splits; or train, dev, test: files. keys: of the config
        (finetune/recipe.py), such as num_epochs=2, learning_rates=(2e-5, 5e-5), seeds=3.
        overrides: keys with dots, such as {"kind.class_weights": True}. Returns the report and the
        best model. Raises `errors.UserError` for what is wrong with any of it.
        """
        # Imported here: jax and flax take seconds.
        from bertjax.finetune import recipe, run

        files = {"train": train, "dev": dev, "test": test}
        values = {"model": os.fspath(model), **keys, **(overrides or {})}
        config = recipe.make(task, data, files, {"strategy.name": strategy, **values})
        return run.finetune(config, output)


sys.modules[__name__].__class__ = _Package
