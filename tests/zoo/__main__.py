"""Runs the transformers side of the zoo in a separate process, for `benchmarks/zoo.py`.

    python -m tests.zoo make FOLDER [SPECIES ...]    # FOLDER/SPECIES/LAYOUT/folder
    python -m tests.zoo check FOLDER [SPECIES ...]   # ids, outputs of FOLDER/SPECIES/LAYOUT/export

Runs under any version of transformers, with torch, tokenizers, sentencepiece and protobuf.
"""

import pathlib
import shutil
import sys

import transformers

from tests.zoo import layouts, table, theirs


def make(root: pathlib.Path, names: list[str]) -> None:
    """Makes every folder with its ids or outputs; prints and removes those that fail."""
    workshop = layouts.Workshop(root / "workshop")
    for cell in table.cells(names):
        folder = root / cell.name / "folder"
        folder.mkdir(parents=True)
        try:
            cell.make(cell.species, workshop, folder)
        except Exception as error:
            print(f"{cell.name}: not made: {type(error).__name__}: {error}")
            shutil.rmtree(folder)
            continue
        theirs.save(folder, cell.group)


def check(root: pathlib.Path, names: list[str]) -> None:
    """Computes the ids or outputs of every export."""
    for cell in table.cells(names):
        folder, export = root / cell.name / "folder", root / cell.name / "export"
        if export.exists():
            theirs.save(export, cell.group, theirs.texts_of(folder))


if __name__ == "__main__":
    verb, where, *chosen = sys.argv[1:]
    (make if verb == "make" else check)(pathlib.Path(where), chosen)
    print(f"transformers {transformers.__version__}")
