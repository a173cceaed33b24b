"""Counts what a reader of the package has to follow: files, imports, and three traced paths.

    python benchmarks/structure.py [--root=CHECKOUT] [--json=FILE]

Prints for the checkout: files and code lines; rooms (folders and top-level modules), the arrows
between them (imports at any level) and the circles among those; and, of each traced path, the
files, functions and code lines of the package that ran; the hops: pairs of functions in different
files of which one called the other; and how often that happened (calls). Lines without docstrings,
comments and blanks are code. What runs while a module of the package is imported is not a part of
a path, such as the bodies of classes. The paths run through the command line, on a made-up text, in
one process each:

    pretrain   prepare (one worker), then two steps of a small BERT
    finetune   a TSV file, strategy full, one epoch
    predict    bertjax.load of that model, one text
"""

import argparse
import ast
import collections
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parent.parent
PATHS = ("pretrain", "finetune", "predict")
CONFIG = "configs/bert_tiny.py:smoke"


def code_lines(source: str) -> set[int]:
    """Returns the numbers of the lines that hold code."""
    tree = ast.parse(source)
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            value = first.value if isinstance(first, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                value.lineno, value.end_lineno = 0, -1
                first.lineno, first.end_lineno = 0, -1
        elif isinstance(node, ast.expr) and hasattr(node, "lineno"):
            found |= set(range(node.lineno, node.end_lineno + 1))
        if isinstance(node, ast.stmt) and node.lineno:
            found.add(node.lineno)
    return found - {0}


def imports(package: pathlib.Path) -> dict[str, set[str]]:
    """Returns {room: rooms that it imports}."""
    arrows: dict[str, set[str]] = {}
    for path in sorted(package.rglob("*.py")):
        room = _room(path.relative_to(package))
        own = arrows.setdefault(room, set())
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                parts = name.split(".")
                if parts[0] == "bertjax" and len(parts) > 1:
                    there = package / parts[1]
                    if there.is_dir() or there.with_suffix(".py").exists():
                        own.add(parts[1])
    return {room: own - {room} for room, own in arrows.items()}


def _room(path: pathlib.Path) -> str:
    return path.parts[0] if len(path.parts) > 1 else path.stem


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Returns the groups of two rooms or more that reach each other."""

    def reached(start: str) -> set[str]:
        seen, todo = set(), [start]
        while todo:
            for room in arrows.get(todo.pop(), ()):
                if room not in seen:
                    seen.add(room)
                    todo.append(room)
        return seen

    reach = {room: reached(room) for room in arrows}
    groups = {tuple(sorted(b for b in reach if b in reach[a] and a in reach[b])) for a in reach}
    return [list(group) for group in sorted(groups) if len(group) > 1]


class Tracer:
    """Records which code of a package runs, and who calls whom."""

    def __init__(self, package: pathlib.Path):
        self._prefix = str(package) + os.sep
        self.lines: set[tuple[str, int]] = set()
        self.functions: set[tuple[str, str]] = set()
        self.hops: set[tuple[tuple[str, str], tuple[str, str]]] = set()
        self.calls = 0  # from file to file

    def __enter__(self) -> "Tracer":
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)

    def _trace(self, frame, event, _):
        code = frame.f_code
        if not code.co_filename.startswith(self._prefix):
            return None
        if self._is_import(frame):
            return None
        own = code.co_filename, code.co_qualname
        self.functions.add(own)
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(self._prefix):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != code.co_filename:
            self.calls += 1
            self.hops.add(((caller.f_code.co_filename, caller.f_code.co_qualname), own))
        return self._line

    def _is_import(self, frame) -> bool:
        """Returns whether a module of the package is being imported, as for the body of a class."""
        while frame is not None:
            if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(
                self._prefix
            ):
                return True
            frame = frame.f_back
        return False

    def _line(self, frame, event, _):
        if event == "line":
            self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line

    def counts(self) -> dict[str, int]:
        """Returns the numbers of files (also by room), functions, code lines, hops and calls."""
        package = pathlib.Path(self._prefix)
        places = {pathlib.Path(name).relative_to(package) for name, _ in self.functions}
        rooms = collections.Counter(map(_room, places))
        code = {name: code_lines(pathlib.Path(name).read_text()) for name, _ in self.lines}
        return {
            "files": len({name for name, _ in self.functions}),
            "functions": len(self.functions),
            "lines": sum(line in code[name] for name, line in self.lines),
            "hops": len(self.hops),
            "calls": self.calls,
            "rooms": dict(sorted(rooms.items())),
        }


def _texts(folder: pathlib.Path) -> None:
    rng = random.Random(0)
    words = "the a cat dog teacher saw sold wanted old red apple letter house of at in".split()

    def sentence() -> str:
        return " ".join(rng.choice(words) for _ in range(12)) + "."

    documents = [[sentence() for _ in range(12)] for _ in range(60)]
    lines = [json.dumps({"text": "\n".join(each)}) + "\n" for each in documents]
    (folder / "corpus.jsonl").write_text("".join(lines))
    for split, count in (("train", 48), ("dev", 16)):
        rows = [f"{rng.choice('ab')}\t{sentence()}\n" for _ in range(count)]
        (folder / f"{split}.tsv").write_text("label\tsentence\n" + "".join(rows))


def trace(path: str, root: pathlib.Path, folder: pathlib.Path) -> dict[str, int]:
    """Runs one path in this process and returns its counts. The paths build on each other."""
    from bertjax import __main__ as command_line

    def run(*words: str) -> None:
        if command_line.main(words):
            raise SystemExit(f"failed: {' '.join(words)}")

    os.chdir(folder)
    prepare = ("prepare", "--input=corpus.jsonl", "--tokenizer=tok", "--output=prepared",
               "--heldout_fraction=0.1", "--workers=1")  # fmt: skip
    pretrain = ("pretrain", f"--config={root / CONFIG}", "--workdir=run",
                "--config.data.path=prepared", "--config.num_steps=2",
                "--config.phase2.num_steps=0", "--config.model.vocab_size=70",
                "--config.optimizer.warmup_steps=1")  # fmt: skip
    finetune = ("finetune", "--model=run", "--task=classification", "--data=.", "--output=out",
                "--lr=1e-4", "--config.num_epochs=1", "--config.max_length=32")  # fmt: skip

    def predict() -> None:
        import bertjax

        bertjax.load("out").predict("the old cat")

    steps: dict[str, Callable[[], None]] = {
        "pretrain": lambda: (run(*prepare), run(*pretrain)),
        "finetune": lambda: run(*finetune),
        "predict": predict,
    }
    if path == "pretrain":
        run("tokenizer", "--kind=wordpiece", "--input=corpus.jsonl", "--vocab_size=70",
            "--output=tok")  # fmt: skip
    with Tracer(root / "bertjax") as tracer:
        steps[path]()
    return tracer.counts()


def main() -> int:
    """Prints the counts of the checkout as tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, default=ROOT)
    parser.add_argument("--json", type=pathlib.Path, help="file for the counts")
    parser.add_argument("--path", choices=PATHS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    root = flags.root.resolve()
    if flags.path:
        counts = trace(flags.path, root, flags.folder)
        flags.json.write_text(json.dumps(counts))
        return 0
    package = root / "bertjax"
    sources = {path: path.read_text() for path in package.rglob("*.py")}
    arrows = imports(package)
    found = {
        "files": len(sources),
        "code lines": sum(len(code_lines(text)) for text in sources.values()),
        "rooms": len(arrows),
        "arrows": sum(map(len, arrows.values())),
        "circles": circles(arrows),
        "modules at the top": len(list(package.glob("*.py"))),
        "largest drawer": max(
            (len(list(path.glob("*.py"))), str(path.relative_to(package)))
            for path in package.rglob("*") if path.is_dir()
        ),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        _texts(folder)
        for path in PATHS:
            out = folder / "counts.json"
            subprocess.run(
                [sys.executable, __file__, f"--root={root}", f"--path={path}",
                 f"--folder={folder}", f"--json={out}"],
                check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu"},
            )  # fmt: skip
            found[path] = json.loads(out.read_text())
    for key, value in found.items():
        print(f"{key:<20}{value}")
    if flags.json:
        flags.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
