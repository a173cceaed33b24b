"""The trials of benchmarks.faults with fuzzed inputs, odd command lines and unknown clients."""

import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import struct
import threading
import traceback
from collections.abc import Callable

import msgpack

from benchmarks import faults_child, faults_commands, faults_readers
from bertjax import errors
from bertjax.runtime import lifeline

VALUES = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, 1e300, 1.5, "", "\0", "\ud800", "x" * 10_000,
    "/dev/zero", "../..", "1e400", [], {}, [[]], [None], {"": None}, float("nan"), float("inf"),
]  # fmt: skip
def mutate(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    """Returns (how, changed bytes): a change of a JSON or msgpack value, a line, or any bytes."""
    content, encode = _decoded(data)
    lines = data.split(b"\n")
    draw = rng.random()
    if draw < 0.06:
        depth = rng.choice([100, 2_000, 100_000])
        return f"nested {depth}", b"[" * depth + b"]" * depth
    if draw < 0.1:
        return "huge number", b'{"a": ' + b"9" * rng.choice([400, 5_000, 10**6]) + b"}"
    if isinstance(content, dict | list) and draw < 0.75:
        changes = [_change(content, rng) for _ in range(rng.choice([1, 1, 1, 3]))]
        with contextlib.suppress(ValueError, OverflowError):  # msgpack cannot encode the value
            return "; ".join(changes), encode(content)
    if len(lines) > 2 and draw < 0.5:
        at = rng.randrange(len(lines))
        what = rng.choice(
            [b"", b"\t" * 50, b"\0", b"\xff\xfe", b"x" * 100_000, b"{}", b"[]", b"null",
             json.dumps({"text": rng.choice(VALUES)}).encode(errors="surrogatepass"),
             b'{"text": "\\ud800"}', "\u2028\u0085".encode(), lines[at] * 2]
        )  # fmt: skip
        lines[at] = what
        return f"line {at}: {what[:30]!r}", b"\n".join(lines)
    how, changed = faults_commands.damage_bytes(data, rng)
    return how, changed or b""


def _decoded(data: bytes) -> tuple[object, Callable[[object], bytes]]:
    """Returns the content of JSON, msgpack or a safetensors header, and its encoder; else None."""
    with contextlib.suppress(ValueError):
        return json.loads(data), _json
    length = int.from_bytes(data[:8], "little")
    with contextlib.suppress(ValueError):
        header, rest = json.loads(data[8 : 8 + length]), data[8 + length :]
        return header, lambda new: struct.pack("<Q", len(_json(new))) + _json(new) + rest
    with contextlib.suppress(ValueError, msgpack.exceptions.UnpackException):
        return msgpack.unpackb(data), msgpack.packb
    return None, _json


def _json(content: object) -> bytes:
    return json.dumps(content).encode(errors="surrogatepass")


def _change(content: dict | list, rng: random.Random) -> str:
    node, path = content, []
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return "nothing"
        key = rng.choice(keys)
        path.append(str(key)[:20])
        if isinstance(node[key], dict | list) and node[key] and rng.random() < 0.8:
            node = node[key]
            continue
        kind = rng.choice(["replace", "replace", "replace", "delete", "rename", "swap"])
        if kind == "delete":
            del node[key]
        elif kind == "rename" and isinstance(node, dict):
            node[f"{key}\u00b2"] = node.pop(key)
        elif kind == "swap":
            other = rng.choice(keys)
            node[key], node[other] = node[other], node[key]
        else:
            value = rng.choice(VALUES)
            node[key] = value
            kind = f"= {str(value)[:20]!r}"
        return f"{'.'.join(path)} {kind}"


def read_many(name: str, seed: str, first: int, last: int, bench, progress: pathlib.Path) -> int:
    """Reads fuzzed inputs in this process; writes lines of JSON for each to `progress`.

    Each line is [number, what, complaint]. The first line of an input says that the process died;
    the second one, written after the input was read, replaces it. Returns 0.
    """
    source, read = faults_readers.READERS[name]
    folder = bench.scratch / "fuzz"
    signal.signal(signal.SIGALRM, _too_long)
    with progress.open("a") as log:
        for number in range(first, last):
            print(json.dumps([number, "", "the process died"]), file=log, flush=True)
            rng = random.Random(f"{seed}/{number}")
            shutil.rmtree(folder, ignore_errors=True)
            what = _write(source, folder, bench.inputs, rng)
            wrong = ""
            signal.alarm(20)
            try:
                read(folder)
            except (errors.UserError, OSError) as error:
                if not errors.of_the_user(error):
                    wrong = f"traceback: {error!r}"
            except BaseException as error:
                frame = traceback.extract_tb(error.__traceback__)[-1]
                place = f"{pathlib.Path(frame.filename).name}:{frame.lineno}"
                wrong = f"traceback: {type(error).__name__}: {str(error)[:120]} ({place})"
            finally:
                signal.alarm(0)
            what = what.encode("ascii", "backslashreplace").decode()
            print(json.dumps([number, what, wrong]), file=log, flush=True)
    return 0


def _too_long(*_: object) -> None:
    raise TimeoutError("hang: 20 s")


def _write(source, folder: pathlib.Path, inputs: pathlib.Path, rng: random.Random) -> str:
    if isinstance(source, str):
        shutil.copytree(inputs / source, folder)
    else:
        folder.mkdir()
        for name, text in source.items():
            (folder / name).write_text(text)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = rng.choice(files)
    how, data = mutate(path.read_bytes(), rng)
    path.write_bytes(data)
    return f"{path.relative_to(folder)}: {how}"


FLAGS = {
    "tokenizer": ["kind", "input", "vocab_size", "output"],
    "prepare": ["input", "tokenizer", "output", "workers", "heldout_fraction"],
    "pretrain": ["config", "workdir", "config.data.path", "config.num_steps", "config.batch_size",
                 "config.model.num_layers", "config.data.length", "config.mesh", "process_id",
                 "config.optimizer.learning_rate", "coordinator", "num_processes", "config.seed"],
    "finetune": ["model", "task", "data", "train", "dev", "output", "seeds", "lr", "strategy",
                 "config.batch_size", "config.num_epochs", "config.max_length"],
    "plan": ["config", "topology"],
    "evaluate": ["model", "data", "task"],
    "predict": ["model", "text", "prompt", "max_new_tokens", "num_beams"],
    "export": ["model", "output", "format"],
    "import": ["input", "output"],
    "inspect": ["plot"],
}  # fmt: skip
NUMBERS = [  # a value that is accepted must not make a run longer
    "0", "-1", "1e-300", "2147483647", "4294967296", "100000000000", "9000000000000000000",
    "18446744073709551616", "1e18", "1e300", "nan",
]  # fmt: skip
NUMERIC = [
    "num_steps", "batch_size", "log_every", "seed", "model.num_layers", "model.hidden_size",
    "model.num_heads", "model.vocab_size", "model.max_length", "model.intermediate_size",
    "data.length", "eval.every", "eval.max_samples", "checkpoint.every", "checkpoint.keep_last",
    "checkpoint.keep_best", "optimizer.learning_rate", "optimizer.warmup_steps", "max_bad_steps",
    "micro_batch_size", "phase2.num_steps", "phase2.length", "objective.mask_rate",
]
WORDS = [
    "", "=", "0", "-1", "1", "2147483648", "9000000000000000000", "1e300", "1e-300", "nan", "inf",
    "8\u00b2", "x\0y", "\ud800", "gs://bucket/x", "http://localhost/x", "file:///x", "s3://a/b",
    "/dev/zero", "/dev/null", "/", ".", "..", "a/" * 2_000, "x" * 5_000, "~", "*", "**", "[", "\n",
    "tiny.py", "tiny.py:", "tiny.py:smoke", "prepared", "run", "artifact", "hf", "tokenizer", "tsv",
    "corpus.jsonl", "builtin", "tfds:none", "tfds:", "bert", "mlm", "sst2", "ner", "squad:", "out",
    "None", "True", "(1,2)", "{", "data:2", "localhost:1\u00b2", "h:1", "v5e-16", "v5e-0", "lora",
]  # fmt: skip


def command_line(rng: random.Random) -> list[str]:
    """Returns a random command line: about half of its flags, or all but 1 or 2, are right."""
    if rng.random() < 0.25:
        keys = rng.choices(NUMERIC, k=rng.choice([1, 1, 2]))
        numbers = [f"--config.{key}={rng.choice(NUMBERS)}" for key in keys]
        return ["pretrain", "--config=tiny.py", "--workdir=out", *numbers]
    verb = rng.choice([*FLAGS, *FLAGS, "", "trian", "--help", "\u00b2", "-", "x\ny"])
    flags = FLAGS.get(verb, ["input"])
    good = {"config": "tiny.py", "workdir": "out", "output": "out", "input": "corpus.jsonl",
            "tokenizer": "tokenizer", "model": "artifact", "data": "prepared", "kind": "wordpiece",
            "config.num_steps": "2", "vocab_size": "100", "workers": "1"}  # fmt: skip
    words = [verb]
    for flag in flags:
        draw = rng.random()
        if draw < 0.45 and flag in good:
            words.append(f"--{flag}={good[flag]}")
        elif draw < 0.65:
            words.append(f"--{flag}={rng.choice(WORDS)}")
        elif draw < 0.7:
            words += [f"--{flag}", rng.choice(WORDS)]
        elif draw < 0.73:
            words.append(f"--{flag}")
        elif draw < 0.76:
            words.append(f"--{flag}s={rng.choice(WORDS)}")
    if rng.random() < 0.3:
        words.append(rng.choice(WORDS))
    return words


def commands(bench, rng: random.Random) -> tuple[str, str]:
    """Runs one random command line; returns (what, complaint)."""
    folder, argv = bench.trial(), command_line(rng)
    done = bench.run(folder, argv)
    what = " ".join(word if len(word) < 60 else f"{word[:40]}...({len(word)})" for word in argv)
    wrong = done.complaint(0, errors.EXIT_BAD_INPUT)
    return what.encode("ascii", "backslashreplace").decode(), wrong


def stranger(rng: random.Random) -> tuple[str, str]:
    """Connects unknown clients to a lifeline while its job starts; returns (what, complaint)."""
    ends: dict[int, tuple[str, int]] = {}
    heard = threading.Event()
    lines = [
        lifeline.Lifeline(p, 2, heartbeat_timeout=30,
                          on_end=lambda *end, p=p: (ends.update({p: end}), heard.set()))
        for p in range(2)
    ]  # fmt: skip
    address = lines[0].listen("127.0.0.1")
    port, token = address.split()
    attacks = [
        b"", b"[" * 200_000, b"x" * rng.choice([1, 35, 36, 37, 1_000_000]), rng.randbytes(36),
        token.encode(), b'{"hello": 1, "token": "' + token.encode() + b'"}\n',
        lifeline._HELLO.pack(1, rng.randbytes(32)), b"GET / HTTP/1.1\r\n\r\n",
    ]  # fmt: skip
    opened, what = [], []
    for _ in range(rng.choice([1, 5, 100])):
        words = rng.choice(attacks)
        what.append(f"{len(words)} bytes")
        with contextlib.suppress(OSError):
            line = socket.create_connection(("127.0.0.1", int(port)), timeout=1)
            opened.append(line)
            line.sendall(words)
            if rng.random() < 0.5:
                line.close()
    wrong = ""
    try:
        lines[1].connect("127.0.0.1", address, 20)
        for line in lines:
            line.wait_for_all(20)
        if ends:
            wrong = f"a stranger ended the job: {ends}"
        lines[1].fail("heard", 1)
        if not heard.wait(20) or ends.get(0) != ("heard", 1):
            wrong = wrong or "process 0 does not hear process 1"
    except (OSError, errors.UserError) as error:
        wrong = f"the job does not start: {error}"
    for line in lines:
        line.close()
    for line in opened:
        line.close()
    return f"{len(what)} connections, {', '.join(what[:3])}", wrong


def fuzz(name: str, seed: str, numbers: range, bench) -> list[tuple[int, str, str]]:
    """Reads fuzzed inputs in children, which may die; returns [(number, what, complaint)]."""
    progress = bench.scratch / "progress"
    found: dict[int, tuple[int, str, str]] = {}
    first = numbers.start
    while first < numbers.stop:
        progress.unlink(missing_ok=True)
        done = faults_child.call(
            lambda start=first: read_many(name, seed, start, numbers.stop, bench, progress),
            bench.scratch / "log",
            600,
        )
        for line in progress.read_text().splitlines():
            number, what, wrong = json.loads(line)
            found[number] = (number, what, wrong)
        if done.code == 0:
            break
        last = max(found)
        reason = done.limit or f"the process died with {done.code}"
        found[last] = (last, found[last][1], reason)
        first = last + 1
    return [found[number] for number in numbers]


def member(port: str, process: int, count: int) -> None:
    """Runs one process of a job that synchronises with the others in an endless loop."""
    from jax.experimental import multihost_utils

    from bertjax.runtime import distributed

    place = distributed.Place(f"127.0.0.1:{port}", count, process)
    with distributed.job(place, restart_hint=lambda: "again", heartbeat_seconds=6):
        for step in range(10**9):
            multihost_utils.sync_global_devices(str(step))
            if step == 3:
                print(os.getpid(), flush=True)
