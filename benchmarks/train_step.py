"""Compares BERT's train step with that of transformers on PyTorch: tokens/s on the CPU.

    python benchmarks/train_step.py --jax_python=PYTHON --torch_python=PYTHON

A step is forward, backward, clipping and AdamW, with dropout and next sentence prediction; 15% of
the positions are predicted. Ours gathers these positions and theirs scores every position, as each
library does by default. Every contender runs in its own process with its own interpreter (the
newest jax and torch may need different ones). They take turns, so that other load on the machine
affects all of them equally; a figure is the median of its rounds. FLOPs are those of our model,
matmuls only, for every contender, and are compared with those of one large float32 matmul.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
CONTENDERS = ("bertjax", "torch-eager", "torch-compiled")
MATMUL = 2048  # size of the square matmul that measures the machine's peak


@dataclasses.dataclass(frozen=True)
class Shape:
    """A variant of BERT and its batch."""

    variant: str
    batch_size: int
    length: int = 128
    vocab_size: int = 30522

    @property
    def tokens(self) -> int:
        """Tokens per step."""
        return self.batch_size * self.length


SHAPES = {"small": Shape("mini", 64), "base": Shape("base", 16)}


# The worker's code. Heavy imports are local: each interpreter has only its own libraries.


def make_batch(shape: Shape) -> dict:
    """Returns random tokens without padding, with 15% of the positions of each row masked."""
    import numpy as np

    rng = np.random.default_rng(0)
    rows, length = shape.batch_size, shape.length
    chosen = round(0.15 * length)
    order = rng.permuted(np.tile(np.arange(1, length), (rows, 1)), axis=1)
    return {
        "input_ids": rng.integers(5, shape.vocab_size, (rows, length), np.int32),
        "attention_mask": np.ones((rows, length), np.int32),
        "token_type_ids": np.repeat([[0, 1]], length // 2, axis=1).repeat(rows, 0).astype(np.int32),
        "masked_positions": np.sort(order[:, :chosen], axis=1).astype(np.int32),
        "masked_ids": rng.integers(5, shape.vocab_size, (rows, chosen), np.int32),
        "masked_weights": np.ones((rows, chosen), np.float32),
        "next_sentence_label": rng.integers(0, 2, rows, np.int32),
    }


def bertjax_steps(shape: Shape, dtype: str) -> tuple[dict, Callable[[], object]]:
    """Returns (facts, step): the package's own train step, as `bertjax pretrain` builds it."""
    sys.path.insert(0, str(REPOSITORY))
    from bertjax.runtime import backend

    os.environ["JAX_PLATFORMS"] = "cpu"
    backend.configure(dtype)
    import jax

    from bertjax import config as config_lib
    from bertjax import experiment as experiment_lib
    from bertjax import phases as phases_lib
    from bertjax import sharding

    config = config_lib.default("bert", shape.variant, "mlm")
    config.model.vocab_size = shape.vocab_size
    config.data.length, config.batch_size, config.dtype = shape.length, shape.batch_size, dtype
    experiment = experiment_lib.Experiment(config)
    mesh = sharding.make_mesh()
    with jax.set_mesh(mesh):
        state = jax.jit(experiment.init_state)(jax.random.key(0))
        batch = sharding.global_batch(mesh, shape.batch_size, make_batch(shape))
        train_step = experiment.train_step(phases_lib.of(config)[0], mesh)

    def step():
        nonlocal state
        with jax.set_mesh(mesh):
            state, report = train_step(state, batch)
        return jax.block_until_ready(report["loss"])

    flops = shape.batch_size * experiment.flops_per_sequence(shape.length)
    return {"library": f"jax {jax.__version__}", "flops": flops}, step


def torch_steps(shape: Shape, dtype: str, *, compiled: bool) -> tuple[dict, Callable[[], object]]:
    """Returns (facts, step) of transformers' BertForPreTraining with fused AdamW.

    bfloat16 is autocast.
    """
    import torch
    import transformers

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    sys.path.insert(0, str(REPOSITORY))
    sizes = {"mini": (4, 256), "base": (12, 768)}
    layers, width = sizes[shape.variant]
    model = transformers.BertForPreTraining(
        transformers.BertConfig(
            vocab_size=shape.vocab_size,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=width // 64,
            intermediate_size=4 * width,
        )
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.01, fused=True)
    batch = {name: torch.tensor(value) for name, value in make_batch(shape).items()}
    labels = torch.full((shape.batch_size, shape.length), -100, dtype=torch.long)
    labels.scatter_(1, batch["masked_positions"].long(), batch["masked_ids"].long())
    inputs = {
        **{k: batch[k].long() for k in ("input_ids", "attention_mask", "token_type_ids")},
        "labels": labels,
        "next_sentence_label": batch["next_sentence_label"].long(),
    }
    forward = torch.compile(model) if compiled else model

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = forward(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return {"library": f"torch {torch.__version__}, transformers {transformers.__version__}"}, step


def matmul_flops() -> float:
    """Returns the FLOP/s of a float32 matmul in NumPy, the best of ten."""
    import numpy as np

    x = np.ones((MATMUL, MATMUL), np.float32)
    seconds = []
    for _ in range(10):
        start = time.perf_counter()
        x @ x
        seconds.append(time.perf_counter() - start)
    return 2 * MATMUL**3 / min(seconds)


def work(name: str, shape: Shape, dtype: str) -> None:
    """Runs a worker: compiles and prints its facts as JSON; then serves requests from stdin.

    Each line of stdin is a number of steps to run; prints the mean seconds per step.
    """
    if name == "bertjax":
        about, step = bertjax_steps(shape, dtype)
    else:
        about, step = torch_steps(shape, dtype, compiled=name == "torch-compiled")
    start = time.perf_counter()
    step()
    about["first_step_seconds"] = time.perf_counter() - start
    step()
    start = time.perf_counter()
    loss = float(step())
    print(json.dumps({**about, "step_seconds": time.perf_counter() - start, "loss": loss}))
    for line in sys.stdin:
        start = time.perf_counter()
        for _ in range(int(line)):
            step()
        print((time.perf_counter() - start) / int(line))


# The parent's code.


class Worker:
    """A contender in a process of its own, which computes only during `run`."""

    def __init__(self, python: str, name: str, shape: str, dtype: str):
        command = [python, __file__, f"--worker={name}", f"--shapes={shape}", f"--dtypes={dtype}"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        self.about = json.loads(self._line())
        self.seconds: list[float] = []

    def _line(self) -> str:
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker ended with exit code {self._process.wait()}")
        return line

    def run(self, steps: int) -> None:
        """Runs `steps` steps and appends their mean time to `seconds`."""
        print(steps, file=self._process.stdin, flush=True)
        self.seconds.append(float(self._line()))

    def close(self) -> None:
        """Ends the process."""
        self._process.stdin.close()
        self._process.wait()


def compare(flags: argparse.Namespace, shape_name: str, dtype: str, peak: float) -> list[dict]:
    """Times every contender; prints and returns one table row for each."""
    shape = SHAPES[shape_name]
    pythons = {name: flags.torch_python for name in CONTENDERS} | {"bertjax": flags.jax_python}
    workers = {}
    for name in flags.contenders.split(","):
        workers[name] = Worker(pythons[name], name, shape_name, dtype)
    for _ in range(flags.rounds):
        for worker in workers.values():
            worker.run(max(1, round(flags.seconds / worker.about["step_seconds"])))
    rows = []
    for name, worker in workers.items():
        worker.close()
        seconds = statistics.median(worker.seconds)
        row = {"shape": shape_name, "dtype": dtype, "contender": name}
        row["tokens_per_second"] = shape.tokens / seconds
        row["spread"] = (max(worker.seconds) - min(worker.seconds)) / seconds
        if "bertjax" in workers:
            ours = workers["bertjax"]
            row["flops_per_second"] = ours.about["flops"] / seconds
            row["of_matmul"] = row["flops_per_second"] / peak
            row["ours_is"] = statistics.median(
                theirs / mine for theirs, mine in zip(worker.seconds, ours.seconds, strict=True)
            )
        rows.append({**row, "rounds": worker.seconds, **worker.about})
        show(rows[-1])
    return rows


def show(row: dict) -> None:
    """Prints one line of the table."""
    line = f"{row['shape']:<6} {row['dtype']:<9} {row['contender']:<15}"
    line += f"{row['tokens_per_second']:>9,.0f} tok/s  +-{row['spread'] / 2:4.0%}"
    if "of_matmul" in row:
        line += f"  {row['flops_per_second'] / 1e9:6.1f} GFLOP/s  {row['of_matmul']:5.1%} of matmul"
        line += f"  ours is {row['ours_is']:5.2f} x"
    print(f"{line}  first step {row['first_step_seconds']:.0f} s  {row['library']}", flush=True)


def main() -> None:
    """Parses flags; without --worker runs the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jax_python", default=sys.executable)
    parser.add_argument("--torch_python", default=sys.executable)
    parser.add_argument("--shapes", default="small,base", help=f"shapes, of {', '.join(SHAPES)}")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0,
                        help="seconds per contender and round")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--json", help="file for all figures")
    parser.add_argument("--worker", choices=CONTENDERS, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.worker:
        work(flags.worker, SHAPES[flags.shapes], flags.dtypes)
        return
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: flags.cores])
    peak = matmul_flops()
    print(f"{flags.cores} cores; {MATMUL}^3 float32 matmul in NumPy: {peak / 1e9:.0f} GFLOP/s")
    rows = []
    for shape in flags.shapes.split(","):
        for dtype in flags.dtypes.split(","):
            rows += compare(flags, shape, dtype, peak)
    if flags.json:
        pathlib.Path(flags.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
