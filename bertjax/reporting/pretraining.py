"""The report on a pretraining run: reads its workdir and writes one HTML page.

    pretraining.write("run/", "run/report.html")

A fact that the workdir lacks, such as the command of a run of an earlier version, is left out.
"""

import math
import os
import time
from collections.abc import Mapping
from typing import Any

import jax

from bertjax import config as config_lib
from bertjax import config_help, errors, files, mixing, paths, plugins
from bertjax import phases as phases_lib
from bertjax.artifact import artifact, facts
from bertjax.reporting import (
    charts,
    contents,
    curves,
    data_facts,
    page,
    sample_tables,
    samples,
    tables,
)

FILE = "report.html"


def write(
    path: str | os.PathLike, file: str | os.PathLike = "", *, predict: bool = True
) -> str:
    """Writes the report on the run at `path`; returns the name of the file.

    file: by default report.html in the workdir. predict: whether to run the model on samples at
    several checkpoints. Raises UserError if `path` is not a workdir, or if the file cannot be
    written.
    """
    run = contents.read(path)
    target = os.fspath(file) or os.path.join(run.path, FILE)
    text = document(run, predict=predict)
    try:
        files.write_text(paths.of(target), text)
    except OSError as error:
        raise errors.UserError(f"{target}: cannot be written: {error.strerror or error}") from error
    return target


def write_at_end(path: str | os.PathLike) -> None:
    """Writes the report of a finished run on process 0; prints a warning if that fails.

    A job of several processes gets no predictions, because Orbax would synchronise the processes.
    """
    if jax.process_index() != 0:
        return
    try:
        file = write(path, predict=jax.process_count() == 1)
    except Exception as error:  # the run is finished, and a report is not worth failing it
        reason = errors.one_line(error) or type(error).__name__
        errors.tell(f"warning: no report was written: {reason}")
    else:
        errors.tell(f"report in {file}")


def document(run: contents.Run, *, predict: bool = True) -> str:
    """Returns the page. predict: whether to run the model on samples at several checkpoints."""
    model = run.model
    texts = data_facts.of_run(run.stored, model.tokenizer)
    sections = [
        page.tiles(_headline(run)),
        page.section("Held-out scores", _scores(run), _scores_by_source(run)),
        page.section("Curves", curves.figures(run.metrics, run.borders)),
        page.section("Predictions on held-out text", _predictions(run) if predict else ""),
        page.section("Model", tables.facts(facts.of_model(model)), _parameters(model)),
        page.section("Phases", _phases(run)),
        page.section("Data", _data(run, texts)),
        page.section("Tokenizer", _tokenizer(model, texts)),
        page.section("Config", _config(run)),
        page.section("Command", _command(run)),
        page.section("Starts and resumes", _starts(run)),
        page.section("Environment", _environment(run)),
    ]
    now = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    subtitle = f"Pretraining run, {model.family} on {run.stored['objective']['name']}; {now}"
    return page.document(run.name, subtitle, sections)


def _headline(run: contents.Run) -> dict[str, str]:
    planned = f" of {run.config.num_steps:,}" if run.config else ""
    values = {"step": f"{run.step:,}{planned}"}
    count = artifact.num_params(run.model.params, run.model.fields["vocab_size"])
    values["parameters"] = tables.short(count)
    if run.phases:
        values["tokens read, with padding"] = tables.short(contents.positions(run))
    loss = curves.latest(run.metrics, "eval/loss")
    if loss is not None:
        values["held-out loss"] = f"{loss:.3f}"
    bits = curves.latest(run.metrics, "eval/bits_per_byte")
    if bits is not None:
        values["held-out bits per byte"] = f"{bits:.3f}"
    speed, mfu = (curves.median(run.metrics, name) for name in ("tokens_per_second", "mfu"))
    if speed is not None:
        values["tokens per second, median"] = tables.short(speed)
    if mfu is not None:
        values["MFU, median"] = tables.share(mfu)
    return values


def _scores(run: contents.Run) -> page.Html:
    scores = contents.final_scores(run)
    averages = {name: curves.latest(run.metrics, f"eval/ema/{name}") for name in scores}
    has_average = any(value is not None for value in averages.values())
    header = ["metric", "held-out"] + ["moving average"] * has_average
    rows = [
        [curves.title_of(name), contents.score_text(name, value)]
        + [contents.score_text(name, averages[name])] * has_average
        for name, value in scores.items()
        if name != "samples"
    ]
    if not rows:
        return page.note("The run has not been evaluated yet.")
    steps = curves.series(run.metrics, "eval/loss")[0]
    samples_note = f" on {int(scores['samples']):,} samples" if "samples" in scores else ""
    step = f"step {int(steps[-1]):,}" if steps.size else "the newest evaluation"
    return page.joined([page.note(f"At {step}{samples_note}."), tables.table(header, rows)])


def _scores_by_source(run: contents.Run) -> page.Html:
    names = curves.sources(run.metrics)
    values = {
        key: [curves.latest(run.metrics, f"eval/{name}/{key}") for name in names]
        for key in contents.final_scores(run)
    }
    keys = [key for key, column in values.items() if any(v is not None for v in column)]
    rows = [
        [name, *(contents.score_text(key, values[key][number]) for key in keys)]
        for number, name in enumerate(names)
    ]
    return tables.table(["source", *map(curves.title_of, keys)], rows)


def _predictions(run: contents.Run) -> page.Html:
    if not run.saved_steps or run.config is None:
        return page.note("There is no checkpoint to predict with.")
    steps = samples.spread(run.saved_steps)
    try:
        found = samples.predict(run.path, steps)
    except (errors.UserError, OSError) as error:
        return page.note(f"Not shown: {errors.one_line(error)}")
    except RuntimeError as error:
        if not errors.device_memory(error):
            raise
        return page.note("Not shown: one device has too little memory for the whole model.")
    return sample_tables.shown(found, steps)


def _parameters(model: artifact.Artifact) -> page.Html:
    vocab_size = model.fields["vocab_size"]
    shapes = {
        path: artifact.real_shape(path, leaf.shape, vocab_size)
        for path, leaf in artifact.flatten(model.params).items()
    }
    total = artifact.num_params(model.params, vocab_size)
    groups: dict[str, int] = {}
    for path, shape in shapes.items():
        group = path.split("/")[0]
        groups[group] = groups.get(group, 0) + math.prod(shape)
    summary = [[name, f"{count:,}", tables.share(count / total)] for name, count in groups.items()]
    rows = [[path, " x ".join(map(str, shape)), f"{math.prod(shape):,}"]
            for path, shape in shapes.items()]  # fmt: skip
    return page.joined([
        page.element("h3", "Parameters"),
        tables.table(["part", "count", "share"], summary),
        page.details(
            f"all {len(rows)} arrays", tables.table(["parameter", "shape", "count"], rows)
        ),
    ])  # fmt: skip


def _phases(run: contents.Run) -> page.Html:
    if len(run.phases) < 2:
        return page.Html("")
    rows = []
    for number, phase in enumerate(run.phases, 1):
        change = phases_lib.described(run.phases, phase).partition(": ")[2] if number > 1 else ""
        rows.append([str(number), f"{phase.start:,} to {phase.stop:,}", change,
                     f"{phase.batch_size:,}", f"{phase.length:,}"])  # fmt: skip
    header = ["phase", "steps", "changes", "sequences per step", "tokens per sequence"]
    return tables.table(header, rows, left=3)


def _data(run: contents.Run, texts: Mapping[str, data_facts.Text | None]) -> page.Html:
    rows, notes = [], []
    sizes = {name: text.manifest["splits"]["train"]["tokens"] for name, text in texts.items()
             if text is not None}  # fmt: skip
    weights: dict[str, float] = {}
    if run.config is not None and "" not in texts and len(sizes) == len(texts) and sizes:
        weights = mixing.weights(run.config, sizes)
    for name, path in facts.folders_of(run.stored).items():
        text = texts[name]
        if text is None:
            notes.append(f"{path}: the prepared data is no longer there, so its facts are missing.")
            continue
        splits = text.manifest["splits"]
        epochs = curves.latest(run.metrics, f"data/{name}/epochs")
        if epochs is None and run.phases and not name:
            epochs = contents.positions(run) / max(1, splits["train"]["tokens"])
        rows.append([
            name or os.path.basename(os.path.normpath(path)),
            f"{len(text.manifest['sources']):,}",
            f"{text.manifest['text_bytes'] / 1e6:,.1f}",
            f"{splits['train']['documents']:,}",
            tables.short(splits["train"]["tokens"]),
            tables.short(splits["heldout"]["tokens"]),
            tables.share(weights[name]) if name in weights else "",
            "" if epochs is None else f"{epochs:.3g}",
        ])  # fmt: skip
    header = ["source", "files", "MB of text", "documents", "tokens", "held-out tokens", "weight",
              "epochs read"]  # fmt: skip
    return page.joined([
        tables.table(header, rows),
        page.details("folders and files", page.bullets(_files(run, texts))) if rows else "",
        *map(page.note, notes),
    ])  # fmt: skip


def _files(run: contents.Run, texts: Mapping[str, data_facts.Text | None]) -> list[str]:
    lines = []
    for name, path in facts.folders_of(run.stored).items():
        text = texts[name]
        if text is not None:
            names = errors.several((source["path"] for source in text.manifest["sources"]), 5)
            options = ", ".join(f"{k}={v}" for k, v in text.manifest["options"].items() if v != "")
            lines.append(f"{path}, prepared from {names}, with {options}")
    return lines


def _tokenizer(
    model: artifact.Artifact, texts: Mapping[str, data_facts.Text | None]
) -> page.Html:
    tokenizer = model.tokenizer
    rows: dict[str, Any] = {
        "kind": f"{tokenizer.kind}, {tokenizer.size:,} pieces",
        "fingerprint": tokenizer.fingerprint[:12],
    }
    figures = []
    for name, text in texts.items():
        if text is None:
            continue
        prefix, suffix = f"{name}: " * bool(name), f", {name}" * bool(name)
        if text.fertility is not None:
            rows[f"{prefix}tokens per word (fertility)"] = f"{text.fertility:.3f}"
        rows[f"{prefix}bytes per token"] = f"{text.bytes_per_token:.2f}"
        rows[f"{prefix}unknown tokens"] = tables.share(text.unknown_share)
        if text.lengths.size:
            title = f"Tokens per document{suffix}, {text.lengths.size:,} sampled"
            edges, counts = data_facts.length_bins(text.lengths)
            figures.append(charts.histogram(title, edges, counts.tolist(), "tokens"))
    return page.joined([
        tables.facts(rows),
        page.element("div", *figures, style="charts") if figures else "",
    ])  # fmt: skip


def _config(run: contents.Run) -> page.Html:
    """Returns the config beside its recipe; without a recorded recipe, beside the defaults."""
    if run.config is None:
        flat = config_lib.flat(run.stored)
        rows = [[key, config_help.format_value(value)] for key, value in flat.items()]
        return tables.table(["key", "value"], rows, left=2)
    start = next((start for start in reversed(run.starts) if start.recipe), None)
    if start is not None:
        label, changed = "recipe", dict(start.changed)
        title = f"The recipe is {start.recipe}. "
    else:
        label, changed = "default", _changed_defaults(run.config)
        title = f"The recipe was not recorded. The defaults are those of {run.config.family}. "
    values = {key: config_help.format_value(config_lib.value_of(run.config, key))
              for key in config_lib.keys(run.config)}  # fmt: skip
    rows = [[key, values.get(key, config_help.ABSENT), other] for key, other in changed.items()]
    every = [[key, value, changed.get(key, value)] for key, value in values.items()]
    marked = [number for number, row in enumerate(every) if row[0] in changed]
    header = ["key", "this run", label]
    count = f"{len(rows)} of {len(every)} keys differ from the {label}"
    return page.joined([
        page.note(title + (f"{count}:" if rows else "No key differs.")),
        tables.table(header, rows, left=3),
        page.details("all keys", tables.table(header, every, left=3, marked=marked)),
    ])  # fmt: skip


def _changed_defaults(config: Any) -> dict[str, str]:
    family = plugins.family(config.family)
    variant = "base" if "base" in family.VARIANTS else next(iter(family.VARIANTS))
    defaults = config_lib.default(config.family, variant, config.objective.name)
    return {
        key: config_help.format_value(default)
        for key, (_, default) in config_help.differences(config, defaults).items()
    }


def _command(run: contents.Run) -> page.Html:
    command = next((start.command for start in reversed(run.starts) if start.command), "")
    if not command:
        return page.note("The command was not recorded.")
    note = page.note("The same command, with another --workdir, repeats the run.")
    return page.joined([page.command(command), note])


def _starts(run: contents.Run) -> page.Html:
    rows = []
    previous: Mapping[str, str] = {}
    for start in run.starts:
        changes = [f"{name} {value}" for name, value in start.environment.items()
                   if name != "devices" and previous and previous.get(name) != value]  # fmt: skip
        rows.append([start.time.replace("T", " ").partition("+")[0],
                     start.environment.get("devices", ""), ", ".join(changes),
                     f"{start.step:,}"])  # fmt: skip
        previous = start.environment
    return tables.table(["time (UTC)", "devices", "changed", "from step"], rows, left=3)


def _environment(run: contents.Run) -> page.Html:
    return tables.facts(run.starts[-1].environment) if run.starts else page.Html("")
