"""Compares ids and outputs with transformers' on the zoo of real folders and on their exports.

    python -m benchmarks.zoo [--python=PATH] [--verbose] [SPECIES ...]

--python: the interpreter whose transformers makes the folders and checks them, by default this one;
it needs torch, tokenizers, sentencepiece and protobuf, no jax. --verbose prints every difference.

Prints a table of species x layouts for tokenizers (ids of about twenty texts, import and export),
weights and classes (hidden states and logits, float32, within 1e-4, import and export):

    =           equal, both when read by bertjax and when exported to transformers
    = but N     equal except in N texts; tests/zoo/table.py has the rule we follow, and why
    refused     a UserError of one line, as tests/zoo/table.py expects
    not made    this version of transformers cannot make the folder
    no oracle   this version of transformers cannot read the folder
    N differ    N texts or outputs differ, or an unexpected UserError

Exits with 1 if anything differs. tests/zoo makes the folders.
"""

import argparse
import collections
import os
import pathlib
import subprocess
import sys
import tempfile

from tests.zoo import ours, table, theirs


def judge(cell: table.Cell, root: pathlib.Path) -> ours.Result | str:
    """Returns the comparison of a cell's folder by bertjax; a word if it cannot be compared."""
    folder = root / cell.name / "folder"
    if not folder.exists():
        return "not made"
    try:
        own = cell.own(theirs.version_of(folder))
        return ours.compare(folder, root / cell.name / "export", own)
    except RuntimeError as error:  # transformers reads it no more than we do
        return "no oracle" if cell.refused is None else ours.Result(refusal=str(error))


def finished(cell: table.Cell, result: ours.Result | str, root: pathlib.Path) -> tuple[str, list]:
    """Returns (the cell's text in the table, the differences), including those of the export."""
    if isinstance(result, str):
        return result, []
    folder, export = root / cell.name / "folder", root / cell.name / "export"
    differences = list(result.differences)
    if result.refusal:
        expected = cell.refused is not None and cell.refused in result.refusal
        return ("refused", []) if expected else ("1 differ", [result.refusal])
    if cell.refused is not None:
        differences.append("read, though a refusal is expected")
    own = cell.own(theirs.version_of(folder))
    differences += ours.compare_export(folder, export, own)
    if differences:
        return f"{len(differences)} differ", differences
    return (f"= but {len(own)}" if own else "="), []


def show(words: dict[table.Cell, str]) -> None:
    """Prints a Markdown table for each group."""
    groups = collections.defaultdict(dict)
    for cell, word in words.items():
        groups[cell.group][cell.species.name, cell.layout] = word
    for group, found in groups.items():
        rows = list(dict.fromkeys(name for name, _ in found))
        columns = list(dict.fromkeys(layout for _, layout in found))
        print(f"\n| {group} | " + " | ".join(columns) + " |\n|" + "---|" * (len(columns) + 1))
        for row in rows:
            print(f"| {row} | " + " | ".join(found.get((row, c), "") for c in columns) + " |")


def main() -> int:
    """Prints the tables and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("species", nargs="*", metavar="SPECIES",
                        help="species to test; default: all")
    parser.add_argument("--python", default=sys.executable, metavar="PATH")
    parser.add_argument("--verbose", action="store_true")
    flags = parser.parse_args()
    cells = table.cells(flags.species)
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)

        def transformers(verb: str) -> None:
            command = [flags.python, "-W", "ignore", "-m", "tests.zoo", verb, folder]
            environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
            subprocess.run([*command, *flags.species], check=True, env=environment)

        transformers("make")
        results = {cell: judge(cell, root) for cell in cells}
        transformers("check")
        ends = {cell: finished(cell, result, root) for cell, result in results.items()}
    show({cell: word for cell, (word, _) in ends.items()})
    counts = collections.Counter(word.strip(" 0123456789") for word, _ in ends.values())
    print("\n" + ", ".join(f"{count} {word}" for word, count in counts.items()))
    if flags.verbose:
        for cell, (_, differences) in ends.items():
            for difference in differences:
                print(f"{cell.name}: {difference}")
    return int(any(differences for _, differences in ends.values()))


if __name__ == "__main__":
    sys.exit(main())
