"""bertjax: pretraining and fine-tuning of BERT and its relatives in JAX and Flax.

import bertjax

bert = bertjax.load("run/")
bert.fill_mask("The [MASK] sat on the mat.")
vectors = bert.encode(["A cat sat.", "A dog ran."])
bert.attentions("The cat sat.").weights[3, 5]      # layer 3, head 5
bertjax.load("gpt2/").generate(["The cat sat on"], max_new_tokens=20)

bertjax.train_tokenizer("corpus/*.jsonl", "tok/", vocab_size=30522)
bertjax.prepare("corpus/*.jsonl", "tok/", "prepared/")
bertjax.plan("configs/mini.py:bert", topology="v5e-4").hours
bertjax.pretrain("configs/mini.py:bert", "run/", {"data.path": "prepared/"})
bertjax.finetune(model="run/", task="classification", train="train.tsv", output="out/")
bertjax.load("out/").predict("I loved this movie.")     # {"label": "positive", ...}
"""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ml_collections import ConfigDict

    from bertjax.data.prepared.prepared import Prepared
    from bertjax.data.tokenizers.corpus_training import Trained
    from bertjax.finetuning.probing.report import Probed
    from bertjax.finetuning.run import Finetuned
    from bertjax.html_tables import Numbers
    from bertjax.inference.pretrained import Pretrained
    from bertjax.planning.planned import Planned, Searched

__version__ = "0.1.0"  # setup.py reads this line

Path = str | os.PathLike


def load(path: Path) -> "Pretrained":
    """Loads a model from a workdir, one of its checkpoints, an artifact or a Hugging Face folder.

    "ORG/NAME" or "ORG/NAME@REVISION" is a model of the Hugging Face Hub, unless there is such a
    folder. "RUN/ema" is the moving average of a run's parameters, if `config.ema_decay` is above 0.
    The result has `config`, `model`, `params`, `tokenizer`, `encode(texts)`, `fill_mask(text)`,
    `generate(prompts)`, `score(texts)`, `hidden_states(texts)` and `attentions(texts)`, and
    computes in float32. A fine-tuned model also has `predict(inputs)` and `evaluate(file)`. Raises
    `errors.UserError` naming the file that is absent or damaged.
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


def train_tokenizer(
    input: Path | Sequence[Path] | None,
    output: Path,
    *,
    vocab_size: int | None = None,
    kind: str = "wordpiece",
    lowercase: bool | None = None,
    max_bytes: int | None = None,
    format: str = "auto",
    text_field: str = "text",
    text_template: str = "",
    text_split: str = "file",
    on_error: str = "stop",
) -> "Trained":
    """Trains a tokenizer on text and writes it to the folder `output`, like `bertjax tokenizer`.

    input: a file, folder or glob, or a list of these; "builtin" is the English text of this Python
    installation. vocab_size: number of pieces, including special tokens. kind: wordpiece, bpe,
    unigram, or bytes, which needs neither input nor vocab_size. lowercase: None means True for
    wordpiece, else False. max_bytes: bytes of text to train on, taken evenly from the input; None:
    256 MiB, but 64 MiB for unigram.
    format: format of the files; auto: by their suffixes. text_field: field or column with the text.
    text_template: several fields with text between them, such as "{title}\\n{text}". text_split:
    for plain text, whether each "file" is a document or "blank" lines separate documents. on_error:
    "stop" at bad input, or "skip" and count it.

    Returns the tokenizer, and what was read. A folder that contains the same tokenizer stays as it
    is. Raises `errors.UserError` for bad input, or if `output` contains anything else.
    """
    from bertjax.data.tokenizers import corpus_training

    return corpus_training.train(
        _paths(input) or None,
        output,
        vocab_size=vocab_size,
        kind=kind,
        lowercase=lowercase,
        max_bytes=max_bytes,
        format=format,
        text_field=text_field,
        text_template=text_template,
        text_split=text_split,
        on_error=on_error,
    )


def prepare(
    input: Path | Sequence[Path],
    tokenizer: Path,
    output: Path,
    *,
    workers: int | None = None,
    splitter: str = "rules",
    language: str = "en",
    heldout_fraction: float = 0.01,
    format: str = "auto",
    text_field: str = "text",
    text_template: str = "",
    text_split: str = "file",
    on_error: str = "stop",
    shard_by: str = "size",
    deduplicate: str = "none",
    min_chars: int = 0,
    max_chars: int = 0,
    keep_languages: Sequence[str] = (),
    language_field: str = "language",
    decontaminate: Path | Sequence[Path] = (),
    runner: str = "local",
    beam: Mapping[str, str] | None = None,
) -> "Prepared":
    """Tokenizes text into sharded token records in the folder `output`, like `bertjax prepare`.

    An interrupted call is resumed by the same call. input: a file, folder or glob, or a list of
    these. tokenizer: the folder or file of the tokenizer, or a name on the Hub. workers: number of
    processes; None: one per CPU. splitter: how sentences are split: rules, lines or none. language:
    the language of the text, for the rules. heldout_fraction: share of the documents held out for
    evaluation, at least one document; 0: none. format, text_field, text_template, text_split,
    on_error: as in `train_tokenizer`. shard_by: "size", or "file": a shard comes from one file.
    deduplicate: drop no documents (none), copies (exact), or also near copies (near). min_chars,
    max_chars: drop shorter and longer documents; 0: no bound. keep_languages: drop documents whose
    `language_field` is none of these; (): keep all. decontaminate: files of test sets; drop
    documents that overlap with one.
    runner: "local", or "beam" for Apache Beam with the options `beam`.

    Returns the counts of documents and tokens, and warnings. Raises `errors.UserError` for bad
    input, or if `output` contains data prepared from other inputs or with other options.
    """
    from bertjax import progress
    from bertjax.data.prepared import prepared

    with progress.stage("preparing (bytes)") as done:
        return prepared.prepare(
            _paths(input),
            tokenizer,
            output,
            workers=workers,
            splitter=splitter,
            language=language,
            heldout_fraction=heldout_fraction,
            format=format,
            text_field=text_field,
            text_template=text_template,
            text_split=text_split,
            on_error=on_error,
            shard_by=shard_by,
            deduplicate=deduplicate,
            min_chars=min_chars,
            max_chars=max_chars,
            keep_languages=keep_languages,
            language_field=language_field,
            decontaminate=_paths(decontaminate),
            runner=runner,
            beam=beam,
            on_progress=done,
        )


def plan(
    config: "ConfigDict | Path | None",
    *,
    topology: str = "",
    mesh: str = "",
    search: bool = False,
    price: float | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> "Planned | Searched":
    """Estimates memory, time and cost of a config on a slice of chips, like `bertjax plan`.

    No chips and no data are needed. With libtpu, the TPU compiler compiles the train step; without
    it, and for GPUs, all numbers are estimates. config, overrides: as in `pretrain`. topology: the
    slice, such as "v5e-16", "2xv5e-256" (two slices), "h100-8" or "cpu-8"; "": config.topology.
    mesh: short for overrides["mesh"]. search: whether to look for the fastest mesh, micro-batch
    size and remat policy that fit. price: the price of one chip for one hour.

    Returns a plan with `fits`, `hours`, `cost` and, in `plan`, all numbers; for a search, the best
    plans. Raises `errors.UserError` for an invalid value, or if a search finds nothing that fits.
    """
    from bertjax.planning import planned

    short_forms = {"topology": topology, "mesh": mesh}
    values = {**(overrides or {}), **{key: value for key, value in short_forms.items() if value}}
    return planned.plan(config, values, price=price, is_search=search)


def pretrain(
    config: "ConfigDict | Path | None",
    workdir: Path,
    overrides: Mapping[str, Any] | None = None,
) -> "Numbers":
    """Trains until step `config.num_steps`; resumes from the newest checkpoint of `workdir` if any.

    config: a config file as FILE or FILE:ARG, or the config itself; None: a config made from the
    model at overrides["init_from"]. overrides: {key of the config: value}, such as {"data.path":
    "prepared/"}. Writes report.html to `workdir` and returns the last held-out metrics, a dict.
    Raises `errors.UserError` if the config, the overrides, the data or the workdir are invalid.
    """
    from ml_collections import ConfigDict

    from bertjax import html_tables, run_starts, train
    from bertjax.artifact import initial
    from bertjax.reporting import pretraining
    from bertjax.runtime import backend

    values = {key: str(value) for key, value in (overrides or {}).items()}
    resolved = initial.run_config(config, values)
    origin = None
    if not isinstance(config, ConfigDict):
        file = os.fspath(config) if config else None
        origin = run_starts.origin(file, workdir, values, resolved)
    backend.configure(resolved.dtype)
    heldout = train.train_and_evaluate(resolved, workdir, origin=origin)
    pretraining.write_at_end(workdir)
    return html_tables.Numbers(heldout)


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


def _paths(values: Path | Sequence[Path] | None) -> list[str]:
    """Returns one path or several as a list; [] for None."""
    if values is None:
        return []
    return [os.fspath(v) for v in ([values] if isinstance(values, str | os.PathLike) else values)]
