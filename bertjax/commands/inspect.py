"""Show the contents of a run, a checkpoint, a model, prepared data or a tokenizer.

Example:
  bertjax inspect run/
  bertjax inspect run/ --plot=curves.png
  bertjax inspect run/ --report
  bertjax inspect run-a/ run-b/ --compare --report=comparison.html
  bertjax inspect prepared/
  bertjax inspect tokenizer/

For a model, prints config, step, table of parameters, tokenizer and data; for a fine-tuned model
also its task and labels; for a tokenizer its special tokens and an example. --plot draws the
learning curves of a run. --report writes one HTML page about a pretraining run or the output folder
of fine-tuning, of a sweep or of a suite: scores, curves, predictions, data, config, command and
environment. The page loads nothing from elsewhere. --compare shows several runs of one kind side by
side: the config keys that differ, the final scores and, with --report, the curves.
"""

import argparse
import dataclasses
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax import errors, files, paths, plot, run_log, workdir
from bertjax.artifact import artifact, loading
from bertjax.data.prepared import manifest as manifest_lib
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from bertjax.finetuning import pages, report_page
from bertjax.reporting import comparison, contents, pretraining
from bertjax.runtime import backend

_LABEL = 12  # width of the column of labels
_WIDTH = 100
_COMPARISON = "comparison.html"
_EXAMPLE = "Jos\u00e9's 2 caf\u00e9s cost $3.50, unbelievably."  # shows how a tokenizer splits text


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument(
        "path", nargs="+",
        help="run, checkpoint, artifact, Hugging Face folder, prepared data or tokenizer",
    )
    parser.add_argument(
        "--plot",
        nargs="?",
        const="",
        metavar="FILE.png",
        help="draw the learning curves of a run; default file: curves.png in the run",
    )
    parser.add_argument(
        "--report",
        nargs="?",
        const="",
        metavar="FILE.html",
        help=f"write a page about a run; default file: {pretraining.FILE} in the run, or "
        f"{_COMPARISON} in the current folder with --compare",
    )
    parser.add_argument(
        "--compare", action="store_true", help="compare several runs of one kind"
    )


def run(flags: argparse.Namespace) -> None:
    """Prints the contents of the folder, draws the curves, or writes the report."""
    if flags.report and "://" not in flags.report:
        errors.file_to_write("report", flags.report)
    if flags.compare:
        _compare(flags.path, flags.report)
        return
    if len(flags.path) > 1:
        raise errors.UserError(
            f"{flags.path[1]}: is a second folder; give one, or add --compare to compare several"
        )
    (path,) = flags.path
    if flags.plot is not None:
        print(f"curves in {draw(path, flags.plot)}")
    if flags.report is not None:
        print(f"report in {_write_report(path, flags.report)}")
    if flags.plot is not None or flags.report is not None:
        return
    print("\n".join(_lines(path)))


def _write_report(path: str, file: str) -> str:
    """Writes the report on a run; returns the name of the file."""
    if pages.kind(path):
        return pages.write(path, file)
    backend.configure("float32")
    return pretraining.write(path, file)


def _compare(compared: Sequence[str], file: str | None) -> None:
    """Prints the comparison of several runs and, if `file` is not None, writes it as a page."""
    if len(compared) < 2:
        raise errors.UserError("--compare: give two folders or more")
    sides = comparison.named([_side(path) for path in compared], compared)
    names = [side.name for side in sides]
    for title, rows in (
        ("config", comparison.config_rows(sides)),
        ("score", comparison.score_rows(sides)),
    ):
        print("\n".join(_table([(title, *names), *rows])), end="\n\n")
    for line in comparison.warnings(sides):
        print(line)
    if file is not None:
        file = file or _COMPARISON
        files.write_text(paths.of(file), comparison.document(sides))
        print(f"comparison in {file}")


def _side(path: str) -> comparison.Side:
    if pages.kind(path) == pages.FINETUNING:
        return report_page.side(path)
    return comparison.of_run(contents.read(path))


def draw(path: str, file: str = "") -> str:
    """Draws the curves of the run at `path`; returns the name of the PNG.

    Raises UserError if `path` is not a workdir.
    """
    place = loading.find(path)
    if place.kind != "workdir":
        raise errors.UserError(f"{path}: is not the workdir of a run, so it has no curves")
    file = file or os.path.join(place.folder, "curves.png")
    metrics = run_log.read_metrics(os.path.join(place.folder, workdir.METRICS))
    title = os.path.basename(os.path.abspath(place.folder))
    plot.curves(metrics, file, title=title)
    return file


def _lines(path: str) -> Iterable[str]:
    if (paths.of(path) / manifest_lib.FILE).exists():
        return _data_lines(path)
    try:
        place = loading.find(path)
    except errors.UserError as error:
        if not paths.of(path).exists():
            raise
        try:
            return _tokenizer_lines(path, tokenizer_lib.load(path))
        except errors.UserError:
            raise errors.UserError(f"{error}, or prepared data or a tokenizer") from error
    return _model_lines(path, place)


def _tokenizer_lines(path: str, tokenizer: tokenizer_lib.Tokenizer) -> Iterable[str]:
    yield f"{path}: tokenizer"
    yield _tokenizer_line(tokenizer.kind, tokenizer.size, tokenizer.fingerprint)
    roles = dataclasses.asdict(tokenizer.specials)
    specials = (f"{role} {tokenizer.readable([i])[0]}={i}" for role, i in roles.items() if i >= 0)
    yield from _wrap("specials", specials)
    yield _line("example", _EXAMPLE)
    yield from _wrap("", tokenizer.readable(tokenizer.encode(_EXAMPLE)))


def _model_lines(path: str, place: loading.Place) -> Iterable[str]:
    model = loading.load(path, with_params=False)
    step = "" if model.step is None else f", step {model.step:,}"
    yield f"{path}: {model.origin}{step}"
    if model.source:
        yield _line("source", model.source)
    if place.kind == "workdir":
        saved_steps = ", ".join(f"{step:,}" for step in workdir.saved_steps(place.folder))
        yield _line("checkpoints", saved_steps or "none yet")
        yield from _latest_metrics(os.path.join(place.folder, workdir.METRICS), model.step)
    yield ""
    yield from _wrap("model", [model.family, *_pairs(model.fields)])
    if model.objective:
        pairs = {k: v for k, v in model.objective.items() if k != "name"}
        yield from _wrap("objective", [model.objective["name"], *_pairs(pairs)])
    if model.config:
        fields = {
            k: v for k, v in model.config.items() if k not in ("family", "model", "objective")
        }
        yield from _wrap("config", _pairs(fields))
    if model.task:
        pairs = {"kind": model.task["kind"], **model.task["config"]}
        yield from _wrap("task", [model.task["name"], *_pairs(pairs)])
        if model.task["labels"]:
            yield from _wrap("labels", model.task["labels"])
    tokenizer = model.tokenizer
    yield _tokenizer_line(tokenizer.kind, tokenizer.size, tokenizer.fingerprint)
    if model.config:
        yield from _data_summary(model.config["data"])
    yield ""
    yield from _parameter_lines(model)


def _data_summary(data: Mapping[str, Any]) -> Iterable[str]:
    """Yields a line for each folder that a run was trained on, with its size if it still exists.

    data: the keys `config.data` of the run.
    """
    sources = data.get("sources") or {}  # absent in earlier versions
    folders = {f"{name}: ": source["path"] for name, source in sources.items()}
    label = "data"
    for name, path in (folders or {"": data["path"]}).items():
        size = ""
        if path and (pathlib.Path(path) / manifest_lib.FILE).exists():
            counts = manifest_lib.read(path)["splits"]["train"]
            documents = errors.count(counts["documents"], "document")
            size = f": {counts['tokens']:,} tokens in {documents}"
        yield _line(label, f"{name}{path}{size}")
        label = ""


def _tokenizer_line(kind: str, size: int, fingerprint: str) -> str:
    return _line("tokenizer", f"{kind}, {size:,} pieces, fingerprint {fingerprint[:12]}")


def _latest_metrics(file: str, step: int | None) -> Iterable[str]:
    """Yields the lines with the newest value of every metric, up to `step`."""
    if step is None or not os.path.exists(file):
        return
    latest: dict[str, float] = {}
    for line in run_log.read_metrics(file):
        latest |= line if line["step"] <= step else {}
    if latest:
        yield from _wrap("metrics", [f"{name}={value:.4g}" for name, value in latest.items()])


def _parameter_lines(model: artifact.Artifact) -> Iterable[str]:
    vocab_size = model.fields["vocab_size"]
    rows = []
    for path, leaf in artifact.flatten(model.params).items():
        shape = artifact.real_shape(path, leaf.shape, vocab_size)
        rows.append((path, " x ".join(map(str, shape)), f"{int(np.prod(shape)):,}"))
    total = f"{artifact.num_params(model.params, vocab_size):,}"
    yield from _table([("parameter", "shape", "count"), *rows, ("total", "", total)])


def _data_lines(path: str) -> Iterable[str]:
    manifest = manifest_lib.read(path)
    tokenizer = manifest["tokenizer"]
    yield f"{path}: prepared data, tokens as {manifest['token_dtype']}"
    yield _tokenizer_line(tokenizer["kind"], tokenizer["size"], tokenizer["fingerprint"])
    sources = manifest["sources"]
    size = sum(source["size"] for source in sources)
    yield _line("sources", f"{size / 1e6:,.1f} MB in {errors.count(len(sources), 'file')}")
    yield from (_line("", source["path"]) for source in sources[:5])
    if len(sources) > 5:
        yield _line("", f"and {len(sources) - 5:,} more")
    yield from _wrap("options", _pairs(manifest["options"]))
    if manifest["skipped"]:
        yield from _wrap("skipped", _pairs(manifest["skipped"]))
    if manifest["filtered"]:
        yield from _wrap("filtered", _pairs(manifest["filtered"]))
    yield ""
    columns = ("documents", "sentences", "tokens", "unknown", "records")
    rows = []
    for split, counts in manifest["splits"].items():
        cells = [f"{counts[column]:,}" for column in columns]
        rows.append((split, *cells, f"{len(counts['shards']):,}"))
    yield from _table([("split", *columns, "shards"), *rows])


def _line(label: str, value: str) -> str:
    return f"{label:<{_LABEL}}{value}".rstrip()


def _pairs(fields: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Returns ["a=1", "b.c=2"] for nested fields."""
    pairs = []
    for key, value in fields.items():
        if isinstance(value, Mapping):
            pairs += _pairs(value, f"{prefix}{key}.")
        else:
            value = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
            pairs.append(f"{prefix}{key}={value}")
    return pairs


def _wrap(label: str, words: Iterable[str]) -> Iterable[str]:
    """Yields the label and the words, wrapped to _WIDTH columns."""
    line = ""
    for word in words:
        if line and _LABEL + len(line) + len(word) + 2 > _WIDTH:
            yield _line(label, line)
            label, line = "", ""
        line = f"{line}  {word}" if line else word
    yield _line(label, line)


def _table(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """Yields the rows with the first column aligned left and the others right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        yield "  ".join(cells).rstrip()
