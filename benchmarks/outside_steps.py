"""The sections of benchmarks.outside: each runs commands in the current folder and records them.

Only the command line and bertjax.load and bertjax.finetune are used, so that this file serves later
versions too. `training_batches` is the one exception.
"""

import contextlib
import functools
import gc
import inspect
import io
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

import bertjax
from benchmarks import outside_inputs as inputs
from benchmarks import outside_record
from bertjax import __main__ as cli

VERBS = ("tokenizer", "prepare", "pretrain", "finetune", "plan", "evaluate", "predict", "average",
         "export", "import", "inspect")  # fmt: skip
SCORED = ("bert", "albert", "electra", "modernbert", "spanbert", "distilbert", "gpt2", "t5", "ul2")
ENCODERS = ("bert", "albert", "roberta", "electra", "modernbert", "spanbert", "distilbert")
WRITERS = ("gpt2", "prefix", "t5", "t5_v1_1", "byt5")
HF_TUNED = ("classification", "regression", "ner", "squad_v2", "multiple_choice", "embeddings",
            "text_to_text", "decoder", "gpt2_labels")  # fmt: skip
MAPS = 15_000  # of the 65,530 memory maps that a process may have
_KEY = re.compile(r"^  ([a-z][\w.]*=.*?)(?:  |$)", re.MULTILINE)
_FLAG = re.compile(r"--[a-z]\w*")


def training_batches(config_file: str, overrides: Mapping[str, str]) -> list[dict[str, np.ndarray]]:
    """Returns the first three training batches of each phase of a run, and number 300.

    NOTE: no command shows the bytes of a batch, so this function imports modules of the package.
    Adapt the imports when the modules move; nothing else here depends on them.
    """
    from bertjax import config as config_lib
    from bertjax import experiment
    from bertjax import phases as phases_lib
    from bertjax.data.prepared import store

    config = config_lib.load(config_file, overrides)
    dataset = store.open_dataset(config.data.path, "train")
    vocabulary = dataset.load_tokenizer().vocabulary()
    built = experiment.Experiment(config)
    streams = [built.stream(dataset, vocabulary, phase) for phase in phases_lib.of(config)]
    return [stream.batch(number) for stream in streams for number in (0, 1, 2, 300)]


class Bench(outside_record.Record):
    """A record that runs commands. unexpected: those that ended otherwise than they should."""

    def __init__(self, folder: pathlib.Path):
        super().__init__(folder)
        self.unexpected: list[str] = []

    def run(self, name: str, argv: list[str], code: int | str = 0, words: bool = True) -> str:
        """Runs a command and records exit code, messages and, with words, output; returns that."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                found: int | str = cli.main(argv)
            except SystemExit as stop:
                found = stop.code or 0
            except Exception:
                found = "traceback"
                traceback.print_exc()
        said = err.getvalue()
        if found != code:
            self.unexpected.append(f"{name}: exit code {found}\n{said[-3000:]}")
        self.text(f"{name}/exit", str(found))
        messages = [line for line in said.splitlines()
                    if line.startswith(("bertjax: error:", "bertjax: warning:"))]  # fmt: skip
        self.text(f"{name}/messages", "\n".join(messages))
        if words:
            self.text(f"{name}/stdout", out.getvalue())
        _drop_compiled()
        return out.getvalue()

    def attempt(self, name: str, function: Callable[[], object]) -> None:
        """Calls a function, and records its error if it raises one."""
        try:
            function()
        except Exception as error:
            self.unexpected.append(f"{name}: {traceback.format_exc()}")
            self.text(f"{name}/raised", f"{type(error).__name__}: {error}")

    def params(self, name: str, path: str) -> None:
        """Records the parameters of a model, each by its path."""
        flat: dict[str, Any] = {}

        def put(tree: Any, prefix: str) -> None:
            for key, value in tree.items():
                if isinstance(value, Mapping):
                    put(value, f"{prefix}{key}/")
                else:
                    flat[prefix + key] = value

        put(bertjax.load(path).params, "")
        self.arrays(name, flat, singly=True)


def _drop_compiled() -> None:
    """Drops compiled programs before their memory maps are more than Linux gives a process."""
    maps = pathlib.Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MAPS:
        jax.clear_caches()
        gc.collect()


def keys(values: Mapping[str, object], prefix: str = "") -> list[str]:
    """Returns the values as flags --config.KEY=VALUE."""
    return [f"--config.{prefix}{key}={value}" for key, value in values.items()]


def texts(bench: Bench) -> None:
    """Help texts, flags, keys of every config, names, plans, the process itself."""
    for verb in VERBS:
        text = bench.run(f"help/{verb}", [verb, "--help"])
        bench.text(f"flags/{verb}", "\n".join(sorted(set(_FLAG.findall(text)))))
        bench.text(f"keys/{verb}", "\n".join(_KEY.findall(text)))
    bench.run("help/all", ["--help"])
    for file in sorted(pathlib.Path("configs").glob("*.py")):
        for arg in ("", ":smoke"):
            given = f"--config=configs/{file.name}{arg}"
            text = bench.run(f"keys/{file.stem}{arg}", ["pretrain", "--help", given], words=False)
            bench.text(f"keys/{file.stem}{arg}/values", "\n".join(_KEY.findall(text)))
    for name in ("load", "finetune"):
        function = getattr(bertjax, name)
        bench.text(f"api/{name}/signature", str(inspect.signature(function)))
        bench.text(f"api/{name}/doc", inspect.getdoc(function))
    for config, topology in (("bert_tiny", "h100-8"),):
        argv = ["plan", f"--config=configs/{config}.py", f"--topology={topology}", "--price=2",
                f"--json=plan_{config}.json"]  # fmt: skip
        bench.run(f"plan/{config}", argv)
        bench.files(f"plan/{config}/json", pathlib.Path(f"plan_{config}.json"))
    for name, words in {"none": [], "version": ["--version"], "bad": ["pretrian"],
                        "bad_flag": ["tokenizer", "--outptu=x"]}.items():  # fmt: skip
        command = [sys.executable, "-m", "bertjax", *words]
        done = subprocess.run(command, capture_output=True, text=True)
        bench.text(f"process/{name}", f"{done.returncode}\n{done.stdout}\n{done.stderr}")


def data(bench: Bench) -> None:
    """Tokenizers of each kind, and prepared shards."""
    inputs.write(bench.folder)
    for name, flags in inputs.TOKENIZERS.items():
        source = [] if name == "bytes" else ["--input=corpus.jsonl"]
        bench.run(f"tokenizer/{name}", ["tokenizer", *source, *flags, f"--output=tok/{name}"])
        bench.files(f"tokenizer/{name}/files", pathlib.Path("tok") / name)
        more = {"cased": ["--input=plain.txt", "--text_split=blank", "--splitter=lines"],
                "bpe": ["--splitter=none"]}  # fmt: skip
        argv = ["prepare", "--input=corpus.jsonl", f"--tokenizer=tok/{name}",
                f"--output=prepared/{name}", "--heldout_fraction=0.1",
                f"--workers={2 if name == 'bpe' else 1}", *more.get(name, [])]  # fmt: skip
        bench.run(f"prepare/{name}", argv)
        bench.files(f"prepare/{name}/files", pathlib.Path("prepared") / name)


def _overrides(tokenizer: str, values: Mapping[str, object]) -> dict[str, object]:
    """Returns the keys of a small run on the data of a tokenizer."""
    model = {"model.vocab_size": 384} if tokenizer == "bytes" else {}
    return {**inputs.SMALL, "data.path": f"prepared/{tokenizer}", **model, **values}


def batches(bench: Bench) -> None:
    """The first batches of every objective and family."""
    for name, (config, tokenizers, values) in inputs.BATCHES.items():
        for tokenizer in tokenizers:
            objective = {f"objective.{key}": value for key, value in values.items()}
            whole = _overrides(tokenizer, objective | inputs.TWO_PHASES)
            given = {key: str(value) for key, value in whole.items()}
            case, file = f"batches/{name}/{tokenizer}", f"configs/{config}.py:smoke"
            bench.attempt(case, functools.partial(_batches, bench, case, file, given))


def _batches(bench: Bench, case: str, file: str, given: Mapping[str, str]) -> None:
    for number, batch in enumerate(training_batches(file, given)):
        bench.arrays(f"{case}/{number}", batch)


def _pretrain(name: str, workdir: str) -> list[str]:
    config, tokenizer, values = inputs.RUNS[name]
    given = keys(_overrides(tokenizer, values))
    return ["pretrain", f"--config=configs/{config}.py:smoke", f"--workdir={workdir}", *given]


def pretrain(bench: Bench) -> None:
    """A short run of every family and of some other objectives and recipes."""
    for name in inputs.RUNS:
        bench.run(f"pretrain/{name}", _pretrain(name, f"runs/{name}"))
        bench.attempt(f"pretrain/{name}", functools.partial(
            _workdir, bench, f"pretrain/{name}", f"runs/{name}"))
    for kind, name, place in (("artifact", "bert", "artifacts"), ("hf", "roberta", "hf")):
        argv = ["export", f"--model=runs/{name}", f"--format={kind}", f"--output={place}/{name}"]
        bench.run(f"pretrain/{kind}", argv)


def _workdir(bench: Bench, name: str, workdir: str) -> None:
    """Records metrics, config, tokenizer, the arrays' names in a checkpoint and the parameters."""
    bench.files(f"{name}/files", pathlib.Path(workdir))
    for step in sorted(os.listdir(f"{workdir}/checkpoints")):
        tree = json.loads(pathlib.Path(f"{workdir}/checkpoints/{step}/state/_METADATA").read_text())
        bench.text(f"{name}/state/{step}", "\n".join(sorted(tree["tree_metadata"])))
    bench.params(f"{name}/params", workdir)


def _tune(name: str, output: str) -> list[str]:
    model, task, place, values = inputs.TASKS[name]
    values = {"learning_rates": "5e-3", **inputs.QUICK, **values}
    flags = {"lr": "learning_rates", "strategy": "strategy.name", "seeds": "seeds"}
    given = [f"--{flag}={values.pop(key)}" for flag, key in flags.items() if key in values]
    what = "train" if place.endswith(".tsv") else "data"
    return ["finetune", f"--model={model}", f"--task={task}", f"--{what}=tasks/{place}",
            f"--output={output}", *given, *keys(values)]  # fmt: skip


def finetune(bench: Bench) -> None:
    """Every task and strategy, a suite, and the function of the package."""
    for name in inputs.TASKS:
        bench.run(f"finetune/{name}", _tune(name, f"tuned/{name}"))
        bench.files(f"finetune/{name}/files", pathlib.Path("tuned") / name)
    argv = ["finetune", "--suite=configs/suites/glue.py:smoke", "--model=runs/bert",
            "--data=tasks/glue", "--output=tuned/glue", "--config.batch_size=8",
            "--config.max_length=32"]  # fmt: skip
    bench.run("finetune/glue", argv)
    bench.files("finetune/glue/files", pathlib.Path("tuned/glue"))
    bench.attempt("finetune/api", functools.partial(_finetune_by_function, bench))


def _finetune_by_function(bench: Bench) -> None:
    found = bertjax.finetune(
        model="artifacts/bert", task="classification", data="tasks/labels", output="tuned/api",
        strategy="lora", overrides={"strategy.rank": 2}, learning_rates=(1e-3,), **inputs.QUICK,
    )  # fmt: skip
    bench.json("finetune/api/report", found.report)
    bench.json("finetune/api/predict", found.model.predict(["the cat saw", "two teachers sold"]))


def _test_file(name: str) -> str:
    place = pathlib.Path("tasks") / inputs.TASKS[name][2]
    place = place.parent if place.suffix else place
    split = "dev" if place.name == "SST-2" else "test"
    return str(next(iter(sorted(place.glob(f"{split}*")))))


def _predict(bench: Bench, name: str, model: str, task: str) -> None:
    """Records what `predict` and `evaluate` make of a task's test file."""
    file, folder = _test_file(task), pathlib.Path("used/said") / name
    folder.mkdir(parents=True, exist_ok=True)
    out = ["--data=" + file, f"--output={folder / 'predictions.jsonl'}"]
    bench.run(f"{name}/predict", ["predict", f"--model={model}", *out], words=False)
    out = ["--data=" + file, f"--json={folder / 'scores.json'}"]
    bench.run(f"{name}/evaluate", ["evaluate", f"--model={model}", *out])
    bench.files(name, folder)


def use(bench: Bench) -> None:
    """Records predictions, scores and exports of the runs' models, and resumes runs."""
    for name in inputs.RUNS:
        for kind in ("hf", "artifact"):
            output = f"used/{kind}/{name}"
            argv = ["export", f"--model=runs/{name}", f"--format={kind}", f"--output={output}"]
            bench.run(f"export/{name}/{kind}", argv)
            bench.files(f"export/{name}/{kind}/files", pathlib.Path(output))
    for part in ("generator", "discriminator"):
        output = f"used/hf/electra_{part}"
        argv = ["export", "--model=runs/electra", f"--part={part}", f"--output={output}"]
        bench.run(f"export/electra_{part}", argv)
        bench.files(f"export/electra_{part}/files", pathlib.Path(output))
    for name in SCORED:
        argv = ["evaluate", f"--model=runs/{name}", "--max_samples=16", "--batch_size=8",
                f"--data=prepared/{inputs.RUNS[name][1]}"]  # fmt: skip
        bench.run(f"evaluate/{name}", argv)
    for name in ("bert", "gpt2"):
        argv = ["evaluate", f"--model=runs/{name}", "--task=blimp:tasks/blimp.jsonl"]
        bench.run(f"evaluate/blimp_{name}", argv)
    for path in ("runs/bert", "runs/bert/checkpoints/2", "prepared/cased", "tuned/ner",
                 "artifacts/bert", "hf/roberta"):  # fmt: skip
        bench.run(f"inspect/{path.replace('/', '_')}", ["inspect", path])
    _speak(bench, "runs")
    for name in inputs.TASKS:
        _predict(bench, f"tuned/{name}", f"tuned/{name}", name)
        output = f"used/tuned/{name}"
        refused = name in ("strategy_adapters", "strategy_prompts", "decoder_prefix")
        argv = ["export", f"--model=tuned/{name}", f"--output={output}"]
        bench.run(f"tuned/{name}/export", argv, 2 if refused else 0)
        if not refused:
            bench.files(f"tuned/{name}/export/files", pathlib.Path(output))
    asked = {"labels": ("classification", ["--text=the cat saw a dog", "--top=2"]),
             "pair": ("pair", ["--text=the cat", "--pair=a dog"]),
             "entities": ("ner", ["--text=Ada Smith saw Bonn."]),
             "question": ("qa", ["--question=Who?", "--context=The cat saw a dog twice."]),
             "choice": ("multiple_choice", ["--context=the cat", "--choice=one", "--choice=two"]),
             "vector": ("embeddings", ["--text=the cat"]),
             "written": ("text_to_text", ["--text=the cat saw a dog"]),
             "lines": ("classification", ["--data=tasks/texts.txt"])}  # fmt: skip
    for name, (task, flags) in asked.items():
        bench.run(f"predict/{name}", ["predict", f"--model=tuned/{task}", *flags])
    for name in inputs.RESUMED:
        workdir = shutil.copytree(f"runs/{name}", f"used/resumed/{name}")
        shutil.rmtree(f"{workdir}/checkpoints/4")
        bench.run(f"resume/{name}", _pretrain(name, workdir))
        bench.attempt(f"resume/{name}", functools.partial(
            _workdir, bench, f"resume/{name}", workdir))
    output = shutil.copytree("tuned/classification", "used/resumed/classification")
    finished = pathlib.Path(output, "runs").glob("*seed1.*")
    for file in (*finished, pathlib.Path(output, "report.json")):
        file.unlink()
    bench.run("resume/finetune", _tune("classification", output))
    bench.files("resume/finetune/files", pathlib.Path(output))
    for verb, place in (("tokenizer", "tok"), ("prepare", "prepared")):
        given = ["--kind=wordpiece", "--vocab_size=200"] if verb == "tokenizer" else [
            "--tokenizer=tok/wordpiece", "--heldout_fraction=0.1", "--workers=1"]  # fmt: skip
        argv = [verb, "--input=corpus.jsonl", f"--output={place}/wordpiece", *given]
        bench.run(f"resume/{verb}", argv)
        bench.files(f"resume/{verb}/files", pathlib.Path(place) / "wordpiece")


def _speak(bench: Bench, place: str) -> None:
    """Filled masks, continuations and vectors of the models in a folder, by its own name."""
    sampled = ["--temperature=0.8", "--top_k=20", "--top_p=0.9", "--seed=3"]
    for name in ENCODERS:
        mask = "<mask>" if inputs.RUNS[name][1] == "bpe" else "[MASK]"
        flags = [f"--text=The {mask} saw a {mask} boat.", "--top=3"]
        bench.run(f"predict/{place}/{name}", ["predict", f"--model={place}/{name}", *flags])
        case = f"predict/{place}/{name}/vectors"
        bench.attempt(case, functools.partial(_vectors, bench, case, f"{place}/{name}"))
    for name in WRITERS:
        for how, flags in {"greedy": [], "beams": ["--num_beams=3"], "sampled": sampled,
                           "choices": ["--choice=a dog", "--choice=the boat"]}.items():
            more = [] if how == "choices" else ["--max_new_tokens=8"]
            argv = ["predict", f"--model={place}/{name}", "--prompt=The cat saw", *flags, *more]
            bench.run(f"predict/{place}/{name}/{how}", argv)


def _vectors(bench: Bench, case: str, path: str) -> None:
    vectors = bertjax.load(path).encode(["The cat saw.", "A dog at last."])
    bench.arrays(case, {"vectors": vectors})


def reread(bench: Bench) -> None:
    """Hugging Face folders and artifacts that are there: imported, and asked."""
    for name in (*ENCODERS, *WRITERS):
        output = f"reread/{name}"
        bench.run(f"import/{name}", ["import", f"--input=used/hf/{name}", f"--output={output}"])
        bench.files(f"import/{name}/files", pathlib.Path(output))
    _speak(bench, "used/artifact")
    for task in HF_TUNED:
        _predict(bench, f"reread/{task}", f"used/tuned/{task}", task)


def errors(bench: Bench) -> None:
    """Exit codes and messages of bad command lines."""
    for name, words in inputs.WRONG.items():
        bench.run(f"errors/{name}", shlex.split(words), 2)


SECTIONS: dict[str, tuple[Callable[[Bench], None], tuple[str, ...]]] = {
    "texts": (texts, ()),
    "data": (data, ("corpus.jsonl", "plain.txt", "tasks", "tok", "prepared")),
    "batches": (batches, ()),
    "pretrain": (pretrain, ("runs", "artifacts", "hf")),
    "finetune": (finetune, ("tuned",)),
    "use": (use, ("used",)),
    "errors": (errors, ("wrong",)),
    "reread": (reread, ("reread",)),
}


def main(section: str, output: str) -> None:
    """Runs one section in the current folder, its earlier outputs removed; writes its record."""
    function, outputs = SECTIONS[section]
    for name in ("configs", *outputs):
        place = pathlib.Path(name)
        shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    shutil.copytree(pathlib.Path(bertjax.__file__).parent.parent / "configs", "configs",
                    ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip
    gc.set_threshold(50_000, 20, 100)  # tracing makes objects by the million
    bench = Bench(pathlib.Path.cwd())
    function(bench)
    content = {"entries": bench.entries, "unexpected": bench.unexpected}
    pathlib.Path(output).write_text(json.dumps(content))


if __name__ == "__main__":
    main(*sys.argv[1:])
