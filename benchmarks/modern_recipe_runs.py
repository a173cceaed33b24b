"""The folder of benchmarks/modern_recipe.py: makes data, runs and scores that are absent.

    runs = Runs("pretrain/", "modern_recipe/", steps=1000, seeds=2)
    runs.prepare()
    run = runs.pretrain("recipe", "recipe,1000")        # modern_recipe/recipe
    runs.score(run, "novels")["mlm_loss"]
"""

import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

import jax

from benchmarks import modern_recipe_config as configs
from bertjax import __main__ as cli
from bertjax import run_log, workdir
from bertjax.data.prepared import manifest

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILES = {
    "novels": "eltec_eng.jsonl",
    "textbooks": "openstax.jsonl",
    "speeches": "us_presidents.jsonl",
    "german": "eltec_deu_small.jsonl",
    "french": "eltec_fra_small.jsonl",
}
MASK_RATE, LENGTH, SAMPLES = 0.15, 128, 1_000  # of all scores in the tables


class Runs:
    """The folder with all data, runs and scores, made by the command line.

    steps: of a whole run. seeds: number of seeds of the ingredients.
    """

    def __init__(self, corpora: str, folder: str, *, steps: int, seeds: int):
        self.corpora = os.path.abspath(corpora)
        self.folder = pathlib.Path(os.path.abspath(folder))
        self.steps, self.seeds = steps, seeds
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        (self.folder / "scores").mkdir(exist_ok=True)
        jax.config.update("jax_compilation_cache_dir", str(self.folder / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

    def start(self, log: str, *words: str) -> subprocess.Popen:
        """Starts `bertjax WORDS`; its output is appended to logs/LOG.txt."""
        print(f"{time.strftime('%H:%M:%S')} {log}", flush=True)
        with open(self.folder / "logs" / f"{log}.txt", "a") as file:
            file.write(f"$ bertjax {' '.join(words)}\n")
            file.flush()
            command = [sys.executable, "-m", "bertjax", *words]
            return subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file)

    def run(self, log: str, *words: str) -> None:
        """Runs `bertjax WORDS` to its end. Raises RuntimeError if it fails."""
        if self.start(log, *words).wait():
            raise RuntimeError(f"bertjax {' '.join(words)} failed; see logs/{log}.txt")

    def prepare(self) -> None:
        """Trains the tokenizer and prepares each source, and the English ones as one dataset."""
        files = {name: f"{self.corpora}/{file}" for name, file in FILES.items()}
        tokenizer = self.folder / "tokenizer"
        if not tokenizer.exists():
            inputs = [f"--input={file}" for file in files.values()]
            self.run("tokenizer", "tokenizer", "--kind=bpe", "--vocab_size=8192",
                     f"--output={tokenizer}", *inputs)  # fmt: skip
        for name in (*FILES, "english"):
            if not (self.data(name) / manifest.FILE).exists():
                inputs = [files[name]] if name in files else map(files.get, configs.ENGLISH)
                self.run("prepare", "prepare", f"--tokenizer={tokenizer}",
                         f"--output={self.data(name)}", "--heldout_fraction=0.1",
                         *(f"--input={file}" for file in inputs))  # fmt: skip

    def data(self, name: str) -> pathlib.Path:
        """Returns the folder of a prepared source."""
        return self.folder / "data" / name

    def command(self, name: str, arg: str, *words: str) -> list[str]:
        """Returns the words of `bertjax pretrain` for the run `name` with the config `arg`."""
        mixes = arg.startswith(("recipe", "extension"))
        sources = [f"--config.data.sources.{s}.path={self.data(s)}" for s in FILES]
        paths = sources if mixes else [f"--config.data.path={self.data('english')}"]
        file = pathlib.Path(configs.__file__)
        return ["pretrain", f"--config={file}:{arg}", f"--workdir={self.folder / name}",
                *paths, *words]  # fmt: skip

    def pretrain(self, name: str, arg: str, *words: str) -> pathlib.Path:
        """Trains the run `name` unless it is finished; returns its workdir."""
        command = self.command(name, arg, *words)
        run = self.folder / name
        if not finished(run):
            self.run(name, *command)
        return run

    def score(self, model: pathlib.Path, data: str, mask_rate: float = MASK_RATE) -> dict:
        """Returns the scores of `bertjax evaluate`."""
        name = f"{model.relative_to(self.folder)}-{data}-{mask_rate:g}".replace("/", "-")
        file = self.folder / "scores" / f"{name}.json"
        if not file.exists():
            words = ["evaluate", f"--model={model}", f"--data={self.data(data)}",
                     f"--mask_rate={mask_rate}", f"--length={LENGTH}", f"--max_samples={SAMPLES}",
                     f"--json={file}"]  # fmt: skip
            print(f"{time.strftime('%H:%M:%S')} {name}", flush=True)
            # In this process, so that a program is compiled once for all models.
            with open(self.folder / "logs" / "evaluate.txt", "a") as log:
                with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
                    print("$ bertjax", *words)
                    code = cli.main(words)
            if code:
                raise RuntimeError(f"bertjax {' '.join(words)} failed; see logs/evaluate.txt")
        return json.loads(file.read_text())

    def write(self, name: str, text: str) -> None:
        """Prints a table and writes it to NAME.md."""
        print(text, flush=True)
        (self.folder / f"{name}.md").write_text(text)


def finished(run: pathlib.Path) -> bool:
    """Returns whether the newest checkpoint of a run is that of its last step."""
    if not (run / workdir.CONFIG).exists():
        return False
    return workdir.saved_step(run) == workdir.read(run).config["num_steps"]


def metrics(run: pathlib.Path) -> list[dict[str, float]]:
    """Returns the lines of a run's metrics; [] if there are none yet."""
    file = run / workdir.METRICS
    return run_log.read_metrics(file) if file.exists() else []


def speed(run: pathlib.Path) -> float:
    """Returns the median of the tokens per second of a run."""
    rates = [line["tokens_per_second"] for line in metrics(run) if "tokens_per_second" in line]
    return statistics.median(rates)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
