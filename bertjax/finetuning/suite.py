"""Fine-tunes one model on many tasks, and reports the scores beside published numbers.

A suite is a Python file with `get_suite(arg="")`. Each task has its own folder under the output,
so finished runs are not repeated when the suite is started again.

    print(suite.run("configs/suites/glue.py", "out/", "glue/", {"model": "run/"}))
"""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from etils import epath

from bertjax import config as config_lib
from bertjax import errors, files, paths, plot
from bertjax.finetuning import output_folder, pages, recipe, report, sharing, tasks
from bertjax.finetuning import run as run_lib
from bertjax.runtime import backend


@dataclasses.dataclass(frozen=True)
class Item:
    """A task of a suite.

    values: {config key: value} for this task.
    data: the task's folder inside the suite's data folder; "" means the data folder itself.
    name: the unique name of the item in the report and of its output folder; "" means the name of
        the task.
    """

    task: str
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    data: str = ""
    name: str = ""


@dataclasses.dataclass(frozen=True)
class Published:
    """Published scores to compare with.

    source: where they were published. scores: {name of an item: {split: its main score}}.
    """

    name: str
    source: str
    scores: Mapping[str, Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class Suite:
    """Tasks to report together.

    title: the title of the report. note: a remark on the comparison with `published`.
    """

    title: str
    items: Sequence[Item]
    published: Sequence[Published] = ()
    note: str = ""


def load(path: str) -> Suite:
    """Returns the suite in a file. Raises UserError if the file defines none.

    path: FILE, or FILE:ARG to call `get_suite(ARG)`.
    """
    return config_lib.of_file("suite", path, Suite)


def run(
    path: str,
    output: str | os.PathLike,
    data: str | os.PathLike | None,
    values: Mapping[str, Any],
    tell: Callable[[str], None] = errors.tell,
) -> str:
    """Fine-tunes on every task whose files exist, and returns the report as Markdown.

    data: the folder with the files of all tasks. values: {config key: value} for all tasks; they
    override those of an `Item`.
    Raises UserError for an invalid config before anything is trained.
    """
    suite, out = load(path), paths.of(output)
    if data is None or "model" not in values:
        raise errors.UserError("a suite needs --model and --data, the folder of its tasks")
    configs, absent = _configs(suite, os.fspath(data), values)
    if not configs:
        name, reason = next(iter(absent.items()))
        raise errors.UserError(
            f"--data={data}: contains no files of the suite's tasks; for example "
            f"{name}: {reason}"
        )
    backend.configure(next(iter(configs.values())).dtype)  # before jax uses a device
    reports: dict[str, Mapping[str, Any]] = {}
    shared = sharing.Shared(len(suite.items))
    for number, (name, config) in enumerate(configs.items(), 1):
        tell(f"task {number} of {len(configs)}: {name}")
        reports[name] = run_lib.finetune(config, out / name, tell, shared=shared).report
        _write(suite, reports, absent, out)
    return table(suite, reports, absent)


def _configs(
    suite: Suite, data: str, values: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns ({name: config}, {name of a task without files: the reason})."""
    configs, absent = {}, {}
    for item in suite.items:
        name = item.name or item.task
        if name in configs or name in absent:
            raise errors.UserError(
                f"the suite {suite.title!r} has two {name!r}: give one of them another name"
            )
        root = os.path.join(data, item.data) if item.data else data
        task = tasks.find(item.task)
        try:
            task.type.find_files(task, root)
        except errors.UserError as error:
            absent[name] = str(error)
            continue
        config = recipe.make(item.task, root, {}, {**item.values, **values})
        recipe.validate(config)
        configs[name] = config
    return configs, absent


def _write(
    suite: Suite,
    reports: Mapping[str, Mapping[str, Any]],
    absent: Mapping[str, str],
    out: epath.Path,
) -> None:
    files.write_text(out / output_folder.TABLE, table(suite, reports, absent))
    content = {
        "title": suite.title,
        "note": suite.note,
        "published": [dataclasses.asdict(published) for published in suite.published],
        "absent": dict(absent),
        "tasks": dict(reports),
    }
    draw(suite, reports, out / output_folder.PLOT)
    files.write_json(out / output_folder.REPORT, content)
    pages.write_at_end(out)


def table(suite: Suite, reports: Mapping[str, Mapping[str, Any]], absent: Mapping[str, str]) -> str:
    """Returns the report of all tasks as Markdown."""
    names = [published.name for published in suite.published]
    lines = [
        f"# {suite.title}",
        "",
        f"| task | split | score | median | mean | std | seeds | rate | {' | '.join(names)} |",
        "|---|---|---|---:|---:|---:|---|---:" + "|---:" * len(names) + "|",
    ]
    for name, content in reports.items():
        main, rate = content["metrics"][0], content["best"]["learning_rate"]
        for split, scores in _rows(suite, name, content):
            values = [_published_score(p, name, split) for p in suite.published]
            published_cells = [f"{value:g}" if value is not None else "" for value in values]
            own_cells = report.cells(scores[main]) if main in scores else [""] * 4
            cells = [name, split, main, *own_cells, f"{rate:g}", *published_cells]
            lines.append(f"| {' | '.join(cells)} |")
    if absent:
        lines += [
            "",
            "Without files:",
            "",
            *(f"- {name}: {reason}" for name, reason in absent.items()),
        ]
    sources = [f"- {published.name}: {published.source}" for published in suite.published]
    notes = [suite.note] if suite.note else []
    lines += ["", *notes, *([""] if notes else []), *sources]
    lines += ["", f"![scores]({output_folder.PLOT})", ""]
    return "\n".join(lines)


def _rows(
    suite: Suite, name: str, content: Mapping[str, Any]
) -> list[tuple[str, Mapping[str, Any]]]:
    """Returns (split, scores) for our splits, and (split, {}) if only published scores exist."""
    by_split = dict(content["splits"])
    for published in suite.published:
        for split in published.scores.get(name, {}):
            by_split.setdefault(split, {})
    return list(by_split.items())


def _published_score(published: Published, name: str, split: str) -> float | None:
    scores = published.scores[name] if name in published.scores else {}
    return scores[split] if split in scores else None


def draw(suite: Suite, reports: Mapping[str, Mapping[str, Any]], path: epath.Path) -> None:
    """Plots for each task the dev score of each seed, their median and published test scores."""
    # Imported here because training does not need matplotlib. Figure is used without pyplot, which
    # has global state and may need a display.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    marks = ("D", "s", "^", "v", "P")
    with rc_context(plot.STYLE):
        figure = Figure(figsize=(9.6, 0.45 * len(reports) + 1.6), dpi=130, layout="constrained")
        axes = figure.subplots()
        labelled: set[str] = set()
        for place, (name, content) in enumerate(reports.items()):
            stats = next(iter(content["splits"].values()))[content["metrics"][0]]  # dev, or folds
            style = dict(color=plot.HELDOUT, label="ours, dev: seeds and median" * (place == 0))
            axes.plot(stats["values"], [place] * len(stats["values"]), "o", alpha=0.6, **style)
            axes.plot([stats["median"]] * 2, [place - 0.3, place + 0.3], color=plot.HELDOUT)
            for mark, published in zip(marks, suite.published, strict=False):
                value = _published_score(published, name, "test")
                if value is not None:
                    label = f"{published.name}, test" * (published.name not in labelled)
                    labelled.add(published.name)
                    axes.plot(value, place, mark, color=plot.REFERENCE, alpha=0.7, label=label)
        rows = [f"{name}, {content['metrics'][0]}" for name, content in reports.items()]
        axes.set_yticks(range(len(reports)), rows)
        axes.set_ylim(len(reports) - 0.5, -0.5)
        axes.set_title(suite.title)
        figure.legend(loc="outside lower left", ncols=3)
        plot.save(figure, path)
