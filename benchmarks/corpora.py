"""Prepares the same corpora as JSON lines, Parquet, CSV and plain text, and compares the shards.

    python -m benchmarks.corpora --input=pretrain/ --tokenizer=vocab.txt [--part=as_shared]

The folder's files are prepared with `--shard_by=file`. Every shard of every format must have the
same SHA-256. The table has the rate in MB of text per second and the peak memory. There are four
parts:

    demo       the demo's built-in corpus as JSON lines, Parquet, CSV, and a text file a document;
               trains the demo's tokenizer on each, and prepares each with the demo's flags
    as_shared  the files as they are (.jsonl, .txt), Parquet with one row group a file, and CSV
    as_text    JSON lines, Parquet and plain text. A blank line separates the documents of plain
               text, so blank lines are removed from all documents, in all three formats.
    reading    the readers alone, without tokenizer: JSON lines, CSV and Parquet with row groups of
               1,000 rows and with one row group, for the corpora and for the corpora `--times` over

Every row is a separate process. Linux only (reads /proc).
"""

import argparse
import csv
import hashlib
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyarrow import parquet as pq

from benchmarks import prepare as prepare_benchmark
from bertjax.data.corpus import builtin, reader
from bertjax.data.prepared import manifest as manifest_lib
from bertjax.data.prepared import parallel
from bertjax.data.tokenizers import tokenizer

PARTS = ("demo", "as_shared", "as_text", "reading")
BY_FILE = ("--shard_by=file", "--text_split=blank")


def corpora(folder: str) -> Iterator[tuple[str, list[str]]]:
    """Yields (name, documents) of the files of a folder, in the order of their names."""
    for source in reader.find([folder]):
        yield pathlib.Path(source.path).stem, list(reader.documents(source, text_split="blank"))


def without_blank_lines(text: str) -> str:
    return "\n".join(line for line in text.replace("\ufeff", "").split("\n") if line.strip())


def write(folder: pathlib.Path, form: str, name: str, texts: list[str], *, rows: int = 0) -> None:
    """Writes a corpus in a format. rows: the size of a row group of Parquet; 0: one row group."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.{form}"
    if form == "parquet":
        table = pa.table({"id": range(len(texts)), "text": texts})
        pq.write_table(table, path, row_group_size=rows or len(texts), compression="zstd")
        return
    with open(path, "w", encoding="utf-8", newline="") as file:
        if form == "jsonl":
            lines = ({"id": i, "text": text} for i, text in enumerate(texts))
            file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        elif form == "csv":
            csv.writer(file).writerows([["id", "text"], *enumerate(texts)])
        else:
            file.write("\n\n".join(texts) + "\n")


def same(label: str, checksums: dict[str, str], expected: dict[str, str]) -> None:
    """Raises SystemExit if two folders differ; both are {file: checksum}."""
    names = expected | checksums
    different = [name for name in names if expected.get(name) != checksums.get(name)]
    if different:
        raise SystemExit(f"{label}: {len(different)} files differ: {', '.join(different)}")


def demo_tokenizer(folder: str, output: str) -> dict[str, str]:
    """Trains the tokenizer of launch/demo.sh on a folder; returns {file: checksum}."""
    command = [sys.executable, "-m", "bertjax", "tokenizer", "--kind=wordpiece",
               "--vocab_size=2048", f"--input={folder}", f"--output={output}"]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    files = sorted(pathlib.Path(output).iterdir())
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def demo(root: pathlib.Path, workers: int) -> None:
    """Compares tokenizers and shards of the built-in corpus in four formats."""
    texts = list(builtin.documents())
    folders = {form: root / f"demo_{form}" for form in ("jsonl", "parquet", "csv", "txt")}
    for form, folder in folders.items():
        if form == "txt":
            folder.mkdir()
            for i, text in enumerate(texts):
                (folder / f"{i:06}.txt").write_text(text, encoding="utf-8")
        else:
            write(folder, form, "corpus", texts)
    tokenizers = {
        form: demo_tokenizer(str(folder), f"{root}/demo_tok_{form}")
        for form, folder in folders.items()
    }
    for form, checksums in tokenizers.items():
        same(f"tokenizer of {form}", checksums, tokenizers["jsonl"])
    print(f"the demo's {len(texts):,} documents: equal tokenizers in {len(folders)} formats")
    size = sum(len(text.encode()) for text in texts) / 1e6
    named = {f"demo, {form}": str(folder) for form, folder in folders.items()}
    options = ("--heldout_fraction=0.03",)
    compare(named, f"{root}/demo_tok_jsonl", f"{root}/demo", size, workers, options)


def compare(
    folders: dict[str, str],
    tok: str,
    output: str,
    megabytes: float,
    workers: int,
    options: Sequence[str] = BY_FILE,
) -> None:
    """Prepares each folder and prints its row; raises SystemExit if shards differ.

    On a busy machine, compare the CPU seconds, which are those of all processes of a row.
    """
    print(f"{'':<34} {'text MB':>8} {'s':>8} {'MB/s':>8} {'largest, MB':>12} {'together, MB':>12}")
    expected: dict[str, str] = {}
    for label, folder in folders.items():
        result = f"{output}/{label.replace(' ', '_')}"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        prepare_benchmark.measure(
            label,
            ["-m", "bertjax", "prepare", f"--input={folder}", f"--tokenizer={tok}",
             f"--output={result}", f"--workers={workers}", *options],
            megabytes,
        )  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"    {seconds:.1f} CPU seconds, {megabytes / seconds:.2f} MB for each", flush=True)
        splits = manifest_lib.read(result)["splits"].values()
        shards = {shard["file"]: shard["sha256"] for split in splits for shard in split["shards"]}
        expected = expected or shards
        same(label, shards, expected)
    print(f"all {len(expected)} shards are equal in {len(folders)} formats")


def read_alone(folder: str) -> float:
    """Returns the seconds that reading all documents takes."""
    begin = time.perf_counter()
    for source in reader.find([folder]):
        for _ in reader.documents(source, text_split="blank"):
            pass
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--input", required=True, help="folder of corpora (.jsonl, .txt)")
    parser.add_argument("--tokenizer",
                        help="folder or file of a tokenizer, for the parts as_shared and as_text")
    parser.add_argument("--part", choices=PARTS, action="append", help="default: all of them")
    parser.add_argument("--times", type=int, default=10,
                        help="factor by which the larger corpora are larger; default: %(default)s")
    parser.add_argument("--workers", type=int, default=parallel.cpus(),
                        help="number of processes; default: one per CPU")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.alone:
        print(read_alone(flags.input))
        return
    parts = flags.part or PARTS
    print(f"{flags.workers} workers on {parallel.cpus()} CPUs")
    with tempfile.TemporaryDirectory() as temporary:
        root = pathlib.Path(temporary)
        if {"as_shared", "as_text"} & set(parts):
            if not flags.tokenizer:
                parser.error("--part=as_shared and --part=as_text need --tokenizer")
            tokenizer.load(flags.tokenizer).save(f"{root}/tok")
        if "demo" in parts:
            demo(root, flags.workers)
        sizes = dict.fromkeys(PARTS, 0.0)
        for name, texts in corpora(flags.input) if set(parts) != {"demo"} else ():
            size = sum(len(text.encode()) for text in texts) / 1e6
            sizes["as_shared"] += size
            if "as_shared" in parts:
                for form in ("parquet", "csv"):
                    write(root / f"as_shared_{form}", form, name, texts)
            if "as_text" in parts:
                plain = [text for text in map(without_blank_lines, texts) if text]
                sizes["as_text"] += sum(len(text.encode()) for text in plain) / 1e6
                for form in ("jsonl", "parquet", "txt"):
                    write(root / f"as_text_{form}", form, name, plain)
            if "reading" in parts:
                for times in (1, flags.times):
                    for form in ("jsonl", "csv", "parquet"):
                        write(root / f"{form}_{times}", form, name, texts * times)
                    write(root / f"groups_{times}", "parquet", name, texts * times, rows=1000)
        if "as_shared" in parts:
            folders = {"as shared (JSON lines, text)": flags.input}
            folders |= {form: f"{root}/as_shared_{form}" for form in ("parquet", "csv")}
            compare(folders, f"{root}/tok", f"{root}/shared", sizes["as_shared"], flags.workers)
        if "as_text" in parts:
            folders = {form: f"{root}/as_text_{form}" for form in ("jsonl", "parquet", "txt")}
            compare(folders, f"{root}/tok", f"{root}/text", sizes["as_text"], flags.workers)
        if "reading" in parts:
            print("reading alone")
            for times in (1, flags.times):
                for form in ("jsonl", "csv", "groups", "parquet"):
                    prepare_benchmark.measure(
                        f"{form}, {times} x",
                        ["-m", "benchmarks.corpora", "--alone", f"--input={root}/{form}_{times}"],
                        sizes["as_shared"] * times,
                    )


if __name__ == "__main__":
    main()
