"""What benchmarks.outside records of a version, and how two records are compared.

An entry has a name, GROUP/CASE/WHAT, and a value: a text, a file or some arrays. Its digest is what
counts. Texts, files and arrays are kept too, so that a difference can be described.
"""

import hashlib
import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

ROUNDING = 1e-4  # relative differences up to this are called rounding
# Volatile keys of JSON, and why: they are removed before hashing, and with them the checksum of
# the file that they are in.
VOLATILE_KEYS = {
    "seconds": "wall time",
    "tokens_per_second": "wall time",
    "data_wait": "wall time",
    "saved_at": "date and time",
}
# Volatile files, and why: they are not recorded.
VOLATILE_FILES = {
    r"tensorboard/": "names and content hold the time and the host",
    r"checkpoints/": "Orbax names its files at random; arrays are recorded by their paths instead",
    r"[.]png$": "a picture: its bytes are matplotlib's",
}
# Volatile words of what is printed, and what is put in their place.
VOLATILE_WORDS = (
    (r"\b[\d.,]+ MB/s", "# MB/s"),  # wall time
    (r"(?<=\| )[\d.]+\.\d \|$", "# |"),  # report.md: seconds of a run
    (r"\d+[.]\d s\b", "# s"),  # wall time
    (r"\b\d+:\d\d(:\d\d)? ago\b", "# ago"),  # wall time
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_HASH = re.compile(r"\b[0-9a-f]{64}\b")
Entry = dict[str, str]  # digest, and one of: text; file; file and key of a .npz


def sha256(data: bytes) -> str:
    """Returns the hash of some bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def plain_text(text: str) -> str:
    """Returns `text` without what is volatile in it."""
    for pattern, instead in VOLATILE_WORDS:
        text = re.sub(pattern, instead, text, flags=re.MULTILINE)
    return text


def stable(value: Any) -> Any:
    """Returns a JSON value without volatile keys."""
    if isinstance(value, dict):
        return {key: stable(each) for key, each in value.items() if key not in VOLATILE_KEYS}
    return [stable(each) for each in value] if isinstance(value, list) else value


class Record:
    """The entries of one section, made in `folder`, the current folder."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.entries: dict[str, Entry] = {}

    def _add(self, name: str, digest: str, **kept: str) -> None:
        if name in self.entries:
            raise ValueError(f"{name} is recorded twice")
        self.entries[name] = {"digest": digest, **kept}

    def text(self, name: str, text: str) -> None:
        """Records a text; what is volatile is removed."""
        text = plain_text(text.replace(str(self.folder), "FOLDER"))
        self._add(name, sha256(text.encode("utf-8", "backslashreplace")), text=text)

    def json(self, name: str, value: Any) -> None:
        """Records a JSON value without volatile keys; the order of keys counts."""
        self.text(name, json.dumps(stable(value), indent=1, ensure_ascii=False))

    def arrays(self, name: str, arrays: Mapping[str, Any], *, singly: bool = False) -> None:
        """Records arrays by their names, as one entry or, singly, as one each."""
        file = self.folder / "arrays" / f"{name}.npz"
        file.parent.mkdir(parents=True, exist_ok=True)
        arrays = {path: np.asarray(arrays[path]) for path in sorted(arrays)}
        np.savez(file, **{path.replace("/", "|"): array for path, array in arrays.items()})
        digests = {
            path: sha256(f"{path} {a.dtype} {a.shape} ".encode() + np.ascontiguousarray(a).data)
            for path, a in arrays.items()
        }
        kept = {"file": os.path.relpath(file, self.folder)}
        if singly:
            for path, digest in digests.items():
                self._add(f"{name}/{path}", digest, **kept, key=path.replace("/", "|"))
        else:
            self._add(name, sha256(json.dumps(digests).encode()), **kept)

    def files(self, name: str, path: pathlib.Path) -> None:
        """Records every file below `path`, or the file itself, but for volatile ones."""
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            inner = f"/{file.relative_to(path)}" if file != path else ""
            if file.is_dir() or any(re.search(each, str(file)) for each in VOLATILE_FILES):
                continue
            text = _stable_file(file)
            if text is None:
                kept = os.path.relpath(file, self.folder)
                self._add(f"{name}{inner}", sha256(file.read_bytes()), file=kept)
            else:
                self.text(f"{name}{inner}", text)


def _stable_file(file: pathlib.Path) -> str | None:
    """Returns the text to record of a file with something volatile in it, None of others."""
    if file.suffix == ".md":
        return file.read_text(encoding="utf-8")
    if file.suffix not in (".json", ".jsonl"):
        return None
    text = file.read_text(encoding="utf-8")
    whole = [text] if file.suffix == ".json" else text.splitlines()
    values = [json.loads(line) for line in whole]
    left = [stable(value) for value in values]
    if left == values:
        return None
    for value in left:
        value.pop("checksum", None)
    return "\n".join(json.dumps(value, indent=1, ensure_ascii=False) for value in left)


# Comparison


def difference(
    old: Entry, new: Entry, old_folder: pathlib.Path, new_folder: pathlib.Path
) -> tuple[str, bool]:
    """Returns (how two entries differ, whether by rounding only)."""
    if old.keys() != new.keys():
        return f"was a {'text' if 'text' in old else 'file'}, and is none now", False
    if "text" in old:
        return _of_texts(old["text"], new["text"])
    files = old_folder / old["file"], new_folder / new["file"]
    if files[0].suffix == ".npz":
        found = [dict(np.load(file)) for file in files]
        if "key" in old:
            found = [{old["key"]: each[old["key"]]} for each in found]
        return _of_arrays(*found)
    if files[0].suffix == ".safetensors":
        said, rounding = _of_arrays(*map(_tensors, files))
        return said or "the arrays are equal, but not their order or header", rounding
    data = [file.read_bytes() for file in files]
    try:
        return _of_texts(*(each.decode() for each in data))
    except UnicodeDecodeError:
        place = _first_difference(*data)
        return f"{len(data[0])} and {len(data[1])} bytes, different from byte {place} on", False


def _first_difference(old: Sequence[Any], new: Sequence[Any]) -> int:
    pairs = enumerate(zip(old, new, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(old), len(new)))


def _of_texts(old: str, new: str) -> tuple[str, bool]:
    lines = old.splitlines(), new.splitlines()
    place = _first_difference(*lines)
    first = [repr(each[place])[:160] if place < len(each) else "no line" for each in lines]
    said = f"line {place + 1}: {first[0]} is now {first[1]}"
    texts = [_HASH.sub("HASH", text) for text in (old, new)]
    if _NUMBER.sub("#", texts[0]) != _NUMBER.sub("#", texts[1]):
        return said, False
    numbers = [np.array(list(map(float, _NUMBER.findall(text)))) for text in texts]
    rest = np.abs(numbers[0] - numbers[1]) / np.maximum(np.abs(numbers[0]), 1e-3)
    largest = rest.max(initial=0.0)
    return f"{said}; largest relative difference {largest:.1e}", bool(largest <= ROUNDING)


def _of_arrays(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, bool]:
    names = [f"{name} is gone" for name in old.keys() - new.keys()]
    names += [f"{name} is new" for name in new.keys() - old.keys()]
    worst, where = 0.0, ""
    for name in old.keys() & new.keys():
        a, b = old[name], new[name]
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            names.append(f"{name} was {a.dtype}{a.shape} and is {b.dtype}{b.shape}")
        elif a.tobytes() != b.tobytes():
            a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
            rest = np.abs(a - b).max() / max(np.abs(a).max(), 1e-9)
            if not rest <= worst:  # also true of NaN
                worst, where = rest, name
    if where:
        names.append(f"largest difference {worst:.1e} of the largest value, in {where}")
    return "; ".join(names), bool(len(names) == 1 and where and worst <= ROUNDING)


def _tensors(file: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns the arrays of a safetensors file of float32."""
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    types = {"F32": np.float32, "I64": np.int64, "I32": np.int32, "F16": np.float16}
    return {
        name: np.frombuffer(body[slice(*of["data_offsets"])], types[of["dtype"]])
        .reshape(of["shape"])
        for name, of in header.items() if name != "__metadata__"
    }  # fmt: skip


def table(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Returns {group: {outcome: count}} as a table."""
    columns = ("same", "rounding", "different", "missing", "new", "accepted")
    rows = [("group", *columns)]
    rows += [(name, *(str(of.get(column, 0)) for column in columns)) for name, of in counts.items()]
    total = (str(sum(of.get(column, 0) for of in counts.values())) for column in columns)
    rows.append(("all", *total))
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(w) if n == 0 else cell.rjust(w)
                  for n, (cell, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    )  # fmt: skip
