"""Freezes what is seen of bertjax from outside, and compares a later version with it.

    python -m benchmarks.outside write FOLDER
    python -m benchmarks.outside check FOLDER [--accept='help/*'] [--only=SECTION]

`write` runs today's code: every verb on tiny data, models of width 16, on one CPU device. It keeps
what was made, and writes FOLDER/digests.json: a digest by name of every help text, key, exit code,
message, file, batch, parameter, prediction and score.

`check` runs the code that is there now, twice: everything anew in a temporary folder; and, in a
copy of the kept folder, all that reads (predict, evaluate, export, import, resume). It prints every
entry that is not as recorded, and a table of counts; it exits with 1 if there is any. An entry is
"rounding" where only numbers differ, by at most 1e-4 of their size; that counts as a difference.

--accept: a pattern of names whose differences are expected; may be repeated. --only: sections to
run, on copies of the kept inputs; may be repeated. The top of outside_record.py lists what is
volatile and therefore left out, with the reasons. Sections: outside_steps.py; cases:
outside_inputs.py.
"""

import argparse
import collections
import fnmatch
import importlib.metadata
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from benchmarks import outside_record

ROOT = pathlib.Path(__file__).resolve().parent.parent
DIGESTS, DETAILS, MADE = "digests.json", "details.json", "made"
SECTIONS = ("texts", "data", "batches", "pretrain", "finetune", "use", "errors", "reread")
ANEW = SECTIONS[:5]
KEPT = ("reread", "use", "errors")  # `reread` reads what the recorded `use` wrote
PACKAGES = ("jax", "jaxlib", "numpy", "flax", "optax", "tokenizers", "sentencepiece")
_FLAGS = ["--xla_force_host_platform_device_count=1", "--xla_backend_optimization_level=0"]
if importlib.metadata.version("jaxlib").startswith("0.10."):  # an unknown flag ends the process
    _FLAGS.append("--xla_cpu_use_fusion_emitters=false")
Records = dict[str, dict[str, outside_record.Entry]]


def versions() -> dict[str, str]:
    """Returns what results may depend on besides the code."""
    found = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"python": platform.python_version(), "machine": platform.machine(), **found}


def run(section: str, folder: pathlib.Path, cache: pathlib.Path) -> dict[str, outside_record.Entry]:
    """Runs a section in a child, with `folder` as the current one; returns its entries."""
    output = folder / f"record_{section}.json"
    environment = os.environ | {
        "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join(_FLAGS),
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
        "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "COLUMNS": "100",
    }  # fmt: skip
    began = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.outside_steps", section, str(output)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    content = json.loads(output.read_text()) if output.exists() else {"entries": {}}
    if done.returncode:
        print(f"{section}: exit code {done.returncode}\n{done.stderr[-3000:]}", flush=True)
    for line in content.get("unexpected", []):
        print(f"{section}: {line}", flush=True)
    took, count = time.monotonic() - began, len(content["entries"])
    print(f"{section}: {count:,} entries in {took:.0f} s", file=sys.stderr, flush=True)
    return content["entries"]


def write(folder: pathlib.Path) -> int:
    """Makes and records everything."""
    made = folder / MADE
    if made.exists():
        print(f"{folder} holds a record; name another folder")
        return 2
    made.mkdir(parents=True)
    records = {section: run(section, made, folder / "jax_cache") for section in SECTIONS}
    digests = {
        section: {name: entry["digest"] for name, entry in entries.items()}
        for section, entries in records.items()
    }
    head = {"versions": versions(), "sections": digests}
    (folder / DIGESTS).write_text(json.dumps(head, indent=1) + "\n")
    (folder / DETAILS).write_text(json.dumps(records))
    print(f"{sum(map(len, records.values())):,} entries in {folder / DIGESTS}")
    return 0 if all(records.values()) else 1


def check(folder: pathlib.Path, accepted: Sequence[str], only: Sequence[str]) -> int:
    """Compares what the present code makes and reads with the record; see the module."""
    recorded: Records = json.loads((folder / DETAILS).read_text())
    before = json.loads((folder / DIGESTS).read_text())["versions"]
    for name, version in versions().items():
        if before[name] != version:
            print(f"warning: {name} is {version}, it was {before[name]}: numbers may differ")
    counts: dict[str, collections.Counter[str]] = {}
    for section in SECTIONS:
        for name in recorded[section]:
            counts.setdefault(_group(section, name), collections.Counter())
    groups = [((*only,), True)] if only else [(ANEW, False), (KEPT, True)]
    with tempfile.TemporaryDirectory(prefix="outside") as scratch:
        for number, (sections, is_copy) in enumerate(groups):
            place = pathlib.Path(scratch) / str(number)
            if is_copy:
                shutil.copytree(folder / MADE, place)
            else:
                place.mkdir()
            for section in sections:
                found = run(section, place, folder / "jax_cache")
                _compare(section, recorded[section], found, folder / MADE, place, accepted, counts)
    print(outside_record.table({name: of for name, of in counts.items() if of}))
    return int(any(of.keys() - {"same", "accepted"} for of in counts.values()))


def _group(section: str, name: str) -> str:
    return f"{section}: {name.partition('/')[0]}"


def _compare(
    section: str,
    old: dict[str, outside_record.Entry],
    new: dict[str, outside_record.Entry],
    old_folder: pathlib.Path,
    new_folder: pathlib.Path,
    accepted: Sequence[str],
    counts: dict[str, collections.Counter[str]],
) -> None:
    """Prints the differences of a section and counts them by group."""
    for name in [*old, *(name for name in new if name not in old)]:
        said = ""
        if name not in new:
            outcome = "missing"
        elif name not in old:
            outcome = "new"
        elif old[name]["digest"] == new[name]["digest"]:
            outcome = "same"
        else:
            said, rounding = outside_record.difference(
                old[name], new[name], old_folder, new_folder
            )
            outcome = "rounding" if rounding else "different"
        if outcome != "same":
            if any(fnmatch.fnmatch(name, pattern) for pattern in accepted):
                outcome = "accepted"
            print(f"{outcome.upper()} {section}: {name}{': ' * bool(said)}{said}", flush=True)
        counts.setdefault(_group(section, name), collections.Counter())[outcome] += 1


def main() -> int:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("write", "check"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--accept", action="append", default=[], metavar="PATTERN")
    parser.add_argument("--only", action="append", default=[], choices=SECTIONS)
    flags = parser.parse_args()
    folder = flags.folder.resolve()
    return write(folder) if flags.command == "write" else check(folder, flags.accept, flags.only)


if __name__ == "__main__":
    sys.exit(main())
